//! stride-perf over a device: the first one with an active port, or the one that `SOFTROCE_DEVICE`
//! names, and the software devices in both modes (`suite.rs`).
//!
//! Without a device every test is ignored, with the reason; with `SIDEWAY_TEST_REQUIRE_DEVICE=1`
//! that is a failure.

#[path = "../common/mod.rs"]
mod common;
mod harness;
mod input;
mod load;
mod measure;
mod operations;
mod peers;
mod secret;
mod serve;
#[path = "../../../sideway/tests/support/suite.rs"]
mod suite;
mod together;
mod verbs;

use std::process::ExitCode;

fn main() -> ExitCode {
    suite::in_each_configuration(suite::Links::Ethernet, || {
        harness::run(
            [
                measure::TESTS,
                operations::TESTS,
                input::TESTS,
                peers::TESTS,
                serve::TESTS,
                secret::TESTS,
                load::TESTS,
                verbs::TESTS,
                together::TESTS,
            ]
            .concat(),
        )
    })
}
