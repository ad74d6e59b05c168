//! The device suite: tests sideway's guarantees on a real device.
//!
//! It runs on the first device with an active port, or on the one that `SIDEWAY_TEST_DEVICE` names.
//! It also runs on the software devices in both modes (`support/suite.rs`). The two sides of a
//! connection are two queue pairs of one process. Without a device every test is reported as
//! ignored; with `SIDEWAY_TEST_REQUIRE_DEVICE=1` that is a failure.

#[macro_use]
extern crate test_harness;

#[macro_use]
#[path = "../support/mod.rs"]
mod support;

#[macro_use]
mod harness;
mod allocations;
mod cm_connecting;
mod cm_limits;
mod cm_site;
mod completion;
mod connect;
mod data;
mod datagrams;
mod device;
mod errors;
mod events;
mod extras;
mod flags;
mod lifetimes;
mod limits;
mod memory;
mod modify;
mod node;
#[cfg(feature = "tcp")]
mod over_tcp;
mod pool;
mod provided;
mod queue_pair;
mod regions;
mod scopes;
mod srq;
#[path = "../support/suite.rs"]
mod suite;
mod threads;
mod windows;
mod work_requests;
mod xrc;

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: support::counting_allocator::CountingAllocator =
    support::counting_allocator::CountingAllocator;

fn main() -> ExitCode {
    suite::in_each_configuration(suite::Links::All, run)
}

fn run() -> ExitCode {
    let mut suite = harness::Suite::default();
    device::cases(&mut suite);
    memory::cases(&mut suite);
    regions::cases(&mut suite);
    scopes::cases(&mut suite);
    provided::cases(&mut suite);
    completion::cases(&mut suite);
    events::cases(&mut suite);
    queue_pair::cases(&mut suite);
    modify::cases(&mut suite);
    connect::cases(&mut suite);
    #[cfg(feature = "tcp")]
    over_tcp::cases(&mut suite);
    data::cases(&mut suite);
    datagrams::cases(&mut suite);
    srq::cases(&mut suite);
    xrc::cases(&mut suite);
    pool::cases(&mut suite);
    flags::cases(&mut suite);
    work_requests::cases(&mut suite);
    limits::cases(&mut suite);
    errors::cases(&mut suite);
    windows::cases(&mut suite);
    extras::cases(&mut suite);
    lifetimes::cases(&mut suite);
    threads::cases(&mut suite);
    cm_connecting::cases(&mut suite);
    cm_limits::cases(&mut suite);
    allocations::cases(&mut suite);
    harness::run(suite)
}
