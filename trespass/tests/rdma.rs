//! The suite over queue pairs of the system's devices, at the address of the first device that has
//! one.

mod suite;
mod system;

use std::process::ExitCode;

fn main() -> ExitCode {
    let terms = test_harness::Terms {
        required: test_harness::device_is_required(),
        limit: suite::CASE_LIMIT,
        advice: "`cargo xtask softroce --suite --test rdma` runs them in a virtual machine with SoftRoCE.",
    };
    suite::run_at(suite::Target::System, &system::address(), terms)
}
