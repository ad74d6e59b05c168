//! The tunnel as two processes: over TCP, over software devices, and over the system's devices.
//!
//! `TRESPASS_TUNNEL_SUITE` names the only part to run: `tcp`, `soft` or `rdma`. So does a filter that
//! begins with its name. Without a device, the cases of `rdma` are ignored.

mod carrying;
mod fixture;
mod llama;
mod many;
mod metrics;
mod programs_of_trespass;
mod resets;
mod settings;
mod shutdown;

use std::process::ExitCode;
use std::time::Duration;

use sideway::soft;
use test_harness::{RunOptions, Suite};

use fixture::TestTransport;

/// Names the only part of the program to run, in the process that was started with it.
const PART: &str = "TRESPASS_TUNNEL_SUITE";

/// The time limit of a case, also in a virtual machine without hardware support. Each wait in a case
/// has a shorter limit.
const CASE_LIMIT: Duration = Duration::from_secs(300);

fn main() -> ExitCode {
    test_harness::run_parts(PART, &["tcp", "soft", "rdma"], |part| match part {
        "tcp" => run(part, &Ok(TestTransport::Tcp)),
        "soft" => {
            let mut config = soft::Config::from_env().expect("a valid environment");
            config.fabric = fixture::own_fabric();
            sideway::set_default_provider(soft::provider_with(config).expect("no device is listed yet"));
            run(part, &Ok(TestTransport::Soft))
        }
        "rdma" => run(part, &fixture::system_devices()),
        part => unreachable!("{part} is not one of the parts"),
    })
}

fn run(part: &'static str, transport: &Result<TestTransport, String>) -> ExitCode {
    let terms = RunOptions {
        required: part != "rdma" || test_harness::device_is_required(),
        limit: CASE_LIMIT,
        advice: "`cargo xtask softroce --suite --test rdma` runs them in a virtual machine with SoftRoCE.",
    };
    let mut suite = Suite::default().of_part(part);
    carrying::add(&mut suite);
    resets::add(&mut suite);
    shutdown::add(&mut suite);
    many::add(&mut suite);
    llama::add(&mut suite);
    metrics::add(&mut suite);
    programs_of_trespass::add(&mut suite);
    settings::add(&mut suite);
    if part == "tcp" {
        settings::add_without_connections(&mut suite);
    }
    suite.run(&test_harness::arguments(), transport, terms)
}
