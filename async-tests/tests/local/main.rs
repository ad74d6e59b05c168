//! Cases for `trespass::local`, over each transport.
//!
//! Each part of the program runs in a separate process. `TRESPASS_LOCAL` names the only one to run.

mod cases;
mod ends;
mod fixture;
mod mux_runtimes;
#[path = "../muxed.rs"]
mod muxed;
mod pooled;
mod runtime;
mod threads;

use std::process::ExitCode;
use std::time::Duration;

use sideway::soft::{self, Mode};
use test_harness::{RunOptions, Suite};

use fixture::{Carrier, Fixture};

/// Names the only part of the program to run.
const PART: &str = "TRESPASS_LOCAL";

/// The time limit of a case. Each wait in a case has a shorter limit.
const CASE_LIMIT: Duration = Duration::from_secs(120);

fn main() -> ExitCode {
    test_harness::run_parts(PART, &["tcp", "soft", "soft_deferred", "soft_by_cm"], |part| match part {
        "tcp" => run(part, Carrier::Tcp),
        "soft" => over_soft(part, Carrier::Soft, Mode::Inline),
        "soft_deferred" => over_soft(part, Carrier::Soft, Mode::Deferred),
        "soft_by_cm" => over_soft(part, Carrier::SoftByCm, Mode::Inline),
        part => unreachable!("{part} is not one of the parts"),
    })
}

/// Runs the cases over software devices that only this process sees.
fn over_soft(part: &'static str, carrier: Carrier, mode: Mode) -> ExitCode {
    let mut config = soft::Config::from_env().expect("a valid environment");
    config.fabric = format!("trespass-local-{}", std::process::id());
    config.time_scale = 0.01;
    config.mode = mode;
    sideway::set_default_provider(soft::provider_with(config).expect("no device is listed yet"));
    run(part, carrier)
}

fn run(part: &'static str, carrier: Carrier) -> ExitCode {
    let terms = RunOptions { required: true, limit: CASE_LIMIT, advice: "" };
    let mut suite = Suite::<Fixture>::default().of_part(part);
    cases::add(&mut suite);
    threads::add(&mut suite);
    pooled::add(&mut suite);
    muxed::add(&mut suite);
    mux_runtimes::add(&mut suite);
    ends::add(&mut suite);
    suite.run(&test_harness::arguments(), &Ok(Fixture::new(carrier)), terms)
}
