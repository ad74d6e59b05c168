//! Cases for `trespass::tokio`, over each transport, in a runtime with one thread and in one with
//! several.
//!
//! Each part of the program runs in a separate process. `TRESPASS_TASKS` names the only one to run.

mod cancelling;
mod closing;
mod completion_buffers;
mod connecting;
mod fixture;
mod idle;
mod libraries;
mod looks;
mod messages;
mod mux_runtimes;
#[path = "../muxed.rs"]
mod muxed;
mod plain;
mod pooled;
mod runtime;
mod streams;
mod wakers;
mod zero_copy;

use std::process::ExitCode;
use std::time::Duration;

use sideway::soft::{self, Mode};
use test_harness::{RunOptions, Suite};

use fixture::{Carrier, Fixture};

/// Names the only part of the program to run.
const PART: &str = "TRESPASS_TASKS";

/// The time limit of a case. Each wait in a case has a shorter limit.
const CASE_LIMIT: Duration = Duration::from_secs(120);

fn main() -> ExitCode {
    let parts = &["tcp", "tcp_threads", "soft", "soft_threads", "soft_deferred", "soft_by_cm"];
    test_harness::run_parts(PART, parts, |part| match part {
        "tcp" => run(part, Carrier::Tcp, 1),
        "tcp_threads" => run(part, Carrier::Tcp, 3),
        "soft" => over_soft(part, Carrier::Soft, 1, Mode::Inline),
        "soft_threads" => over_soft(part, Carrier::Soft, 3, Mode::Inline),
        "soft_deferred" => over_soft(part, Carrier::Soft, 1, Mode::Deferred),
        "soft_by_cm" => over_soft(part, Carrier::SoftByCm, 1, Mode::Inline),
        part => unreachable!("{part} is not one of the parts"),
    })
}

/// Runs the cases over software devices that only this process sees.
fn over_soft(part: &'static str, target: Carrier, threads: usize, mode: Mode) -> ExitCode {
    let mut config = soft::Config::from_env().expect("a valid environment");
    config.fabric = format!("trespass-tasks-{}", std::process::id());
    config.time_scale = 0.01;
    config.mode = mode;
    sideway::set_default_provider(soft::provider_with(config).expect("no device is listed yet"));
    run(part, target, threads)
}

fn run(part: &'static str, target: Carrier, threads: usize) -> ExitCode {
    let terms = RunOptions { required: true, limit: CASE_LIMIT, advice: "" };
    let mut suite = Suite::<Fixture>::default().of_part(part);
    streams::add(&mut suite);
    messages::add(&mut suite);
    looks::add(&mut suite);
    zero_copy::add(&mut suite);
    completion_buffers::add(&mut suite);
    connecting::add(&mut suite);
    plain::add(&mut suite);
    closing::add(&mut suite);
    cancelling::add(&mut suite);
    libraries::add(&mut suite);
    pooled::add(&mut suite);
    muxed::add(&mut suite);
    mux_runtimes::add(&mut suite);
    idle::add(&mut suite);
    wakers::add(&mut suite);
    suite.run(&test_harness::arguments(), &Ok(Fixture::new(target, threads)), terms)
}
