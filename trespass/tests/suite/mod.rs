//! Cases that hold over every transport.
//!
//! Each transport has a test program of a few lines that names it ([`Target`]). A case gets a
//! [`Rig`], which makes listeners and connections of that transport, and checks that they use it.

mod close;
mod death;
mod edges;
mod hostile;
mod idle;
mod memory;
mod messages;
mod parity;
mod ready;
mod rig;
mod single;
mod strangers;
mod streams;

use std::net::{IpAddr, Ipv4Addr};
use std::process::ExitCode;
use std::time::Duration;

use test_harness::{Suite, Terms};

use rig::Rig;
pub(crate) use rig::Target;

/// The limit of a case, also in a virtual machine without hardware support. Every wait in a case
/// has a shorter limit.
pub(crate) const CASE_LIMIT: Duration = Duration::from_secs(300);

/// Isolates the software devices of this process and its children, because other processes on the
/// same fabric would use descriptors.
#[allow(dead_code, reason = "not every test program's devices are software")]
pub(crate) fn fabric() -> String {
    let of = if death::is_child() { std::os::unix::process::parent_id() } else { std::process::id() };
    format!("trespass-{of}")
}

/// Runs the cases that the arguments choose over a transport that every host has.
#[allow(dead_code, reason = "not every test program's transport is one")]
pub(crate) fn run(target: Target) -> ExitCode {
    run_at(target, &Ok(Ipv4Addr::LOCALHOST.into()), Terms { required: true, limit: CASE_LIMIT, advice: "" })
}

/// Runs them at an address of the host, if it has one for the transport. A child process that a
/// case started runs its part and nothing else.
pub(crate) fn run_at(target: Target, host: &Result<IpAddr, String>, terms: Terms<'_>) -> ExitCode {
    if let Some(part) = death::part_of_child(target) {
        return part;
    }
    let mut suite = Suite::<Rig>::default();
    streams::add(&mut suite);
    messages::add(&mut suite);
    single::add(&mut suite);
    edges::add(&mut suite);
    ready::add(&mut suite);
    close::add(&mut suite);
    death::add(&mut suite);
    match target {
        Target::SoftByCm | Target::SystemByCm => strangers::add(&mut suite),
        _ => hostile::add(&mut suite),
    }
    idle::add(&mut suite);
    memory::add(&mut suite);
    parity::add(&mut suite);
    let rig = host.clone().map(|host| Rig::new(target, host));
    suite.run(&test_harness::arguments(), &rig, terms)
}
