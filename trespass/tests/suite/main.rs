//! Test cases that run over every transport, and cases for a disturbed device or network.
//!
//! The program has several parts. Each runs in a process of its own, because a process has one
//! configuration of the software device. `TRESPASS_SUITE` names the only part to run. So does a
//! filter that begins with its name: `cargo test -p trespass --test suite -- soft::i9`.
//!
//! | part | runs over |
//! | --- | --- |
//! | `tcp` | TCP |
//! | `soft` | queue pairs of the software device, in this process and in those that cases start |
//! | `soft_deferred` | the same where work is done when completions are polled, as on hardware |
//! | `soft_srq` | queue pairs of the software device that receive from shared receive queues |
//! | `soft_rails`, `soft_rails_deferred` | the first two over three software devices, with a queue pair between each two from the first byte on |
//! | `soft_by_cm`, `soft_by_cm_deferred` | queue pairs of the software device, for connections that begin with its connection manager |
//! | `rdma`, `rdma_by_cm` | queue pairs of the system's devices, at the address of the first of them that has one; skipped without one |
//! | `faults` | a software device with faults (`faults.rs`) |
//! | `rails` | several software devices, some of which fail (`rails.rs`) |
//! | `netem` | two SoftRoCE devices with a disturbed network between them (`netem.rs`); skipped without them |
//!
//! A case gets a [`Fixture`], which makes listeners and connections of the part's transport. The
//! fixture checks that they use that transport.

mod accepting;
#[cfg(feature = "rdma")]
mod bare;
mod close;
mod connecting;
mod control;
mod death;
mod edges;
#[cfg(feature = "rdma")]
mod faults;
mod fixture;
mod hostile;
mod hostile_windows;
mod idle;
mod memory;
mod messages;
mod muxed;
#[cfg(feature = "rdma")]
mod netem;
mod parity;
mod plain;
mod pooled;
mod proxy;
#[cfg(feature = "rdma")]
mod rails;
mod ready;
mod single;
mod strangers;
mod streams;
mod system;
mod threads;
#[cfg(feature = "rdma")]
mod traffic;
mod unsent;
mod waiting;
mod window_devices;
mod windows;
mod writable;

use std::net::{IpAddr, Ipv4Addr};
use std::process::ExitCode;
use std::time::Duration;

use sideway::soft::{self, Mode};
use test_harness::{RunOptions, Suite};

use fixture::{Fixture, Target};

/// Names the only part of the program to run, in the process that was started with it.
const PART: &str = "TRESPASS_SUITE";

/// The parts of the program.
const PARTS: &[&str] = if cfg!(feature = "rdma") {
    &[
        "tcp",
        "soft",
        "soft_deferred",
        "soft_srq",
        "soft_rails",
        "soft_rails_deferred",
        "soft_by_cm",
        "soft_by_cm_deferred",
        "faults",
        "rails",
        "rdma",
        "rdma_by_cm",
        "netem",
    ]
} else {
    &["tcp"]
};

/// The time limit of a case, also in a virtual machine without hardware support. Each wait in a
/// case has a shorter limit.
const CASE_LIMIT: Duration = Duration::from_secs(300);

fn main() -> ExitCode {
    test_harness::run_parts(PART, PARTS, |part| match part {
        "tcp" => run(part, Target::Tcp),
        "soft" => over_soft(part, Target::Soft, Mode::Inline),
        "soft_deferred" => over_soft(part, Target::Soft, Mode::Deferred),
        "soft_srq" => over_soft(part, Target::SoftShared, Mode::Inline),
        "soft_rails" => over_soft(part, Target::SoftRails, Mode::Inline),
        "soft_rails_deferred" => over_soft(part, Target::SoftRails, Mode::Deferred),
        "soft_by_cm" => over_soft(part, Target::SoftByCm, Mode::Inline),
        "soft_by_cm_deferred" => over_soft(part, Target::SoftByCm, Mode::Deferred),
        "rdma" => over_system(part, Target::System),
        "rdma_by_cm" => over_system(part, Target::SystemByCm),
        #[cfg(feature = "rdma")]
        "faults" => faults::run(part),
        #[cfg(feature = "rdma")]
        "rails" => rails::run(part),
        #[cfg(feature = "rdma")]
        "netem" => netem::run(part),
        part => unreachable!("{part} is not one of the parts"),
    })
}

/// Runs the cases over software devices that only this process and the children of its cases see.
/// Other processes that come and go would cost descriptors.
fn over_soft(part: &'static str, target: Target, mode: Mode) -> ExitCode {
    let of = if death::is_child() { std::os::unix::process::parent_id() } else { std::process::id() };
    let mut config = soft::Config::from_env().expect("a valid environment");
    config.fabric = format!("trespass-{of}");
    config.time_scale = 0.01;
    if target == Target::SoftRails {
        config.devices = 3;
    }
    if mode == Mode::Deferred {
        config.mode = mode;
    }
    sideway::set_default_provider(soft::provider_with(config).expect("no device is listed yet"));
    run(part, target)
}

/// Runs the cases over the system's devices.
fn over_system(part: &'static str, target: Target) -> ExitCode {
    let advice =
        format!("`cargo xtask softroce --suite --test {part}` runs them in a virtual machine with SoftRoCE.");
    let terms =
        RunOptions { required: test_harness::device_is_required(), limit: CASE_LIMIT, advice: &advice };
    run_at(part, target, &system::address(), terms)
}

/// Runs the cases over a transport that every host has.
fn run(part: &'static str, target: Target) -> ExitCode {
    let terms = RunOptions { required: true, limit: CASE_LIMIT, advice: "" };
    run_at(part, target, &Ok(Ipv4Addr::LOCALHOST.into()), terms)
}

/// Runs the cases at an address of the host, if that transport has one. A process that is the child
/// of a case does only its part.
fn run_at(
    part: &'static str,
    target: Target,
    host: &Result<IpAddr, String>,
    terms: RunOptions<'_>,
) -> ExitCode {
    if let Some(part) = death::part_of_child(target) {
        return part;
    }
    let mut suite = Suite::<Fixture>::default().of_part(part);
    streams::add(&mut suite);
    threads::add(&mut suite);
    messages::add(&mut suite);
    single::add(&mut suite);
    edges::add(&mut suite);
    ready::add(&mut suite);
    writable::add(&mut suite);
    accepting::add(&mut suite);
    connecting::add(&mut suite);
    close::add(&mut suite);
    unsent::add(&mut suite);
    waiting::add(&mut suite);
    death::add(&mut suite);
    match target {
        Target::SoftByCm | Target::SystemByCm => strangers::add(&mut suite),
        _ => {
            hostile::add(&mut suite);
            control::add(&mut suite);
            plain::add(&mut suite);
        }
    }
    pooled::add(&mut suite);
    muxed::add(&mut suite);
    windows::add(&mut suite);
    window_devices::add(&mut suite);
    hostile_windows::add(&mut suite);
    idle::add(&mut suite);
    memory::add(&mut suite);
    parity::add(&mut suite);
    let fixture = host.clone().map(|host| {
        let fixture = Fixture::new(target, host);
        if target == Target::System { fixture.over(system::devices().unwrap_or_default()) } else { fixture }
    });
    suite.run(&test_harness::arguments(), &fixture, terms)
}
