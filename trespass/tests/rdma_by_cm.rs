//! The suite over queue pairs of the system's devices, for connections that start with the
//! connection manager.

mod suite;
mod system;

use std::process::ExitCode;

fn main() -> ExitCode {
    let terms = test_harness::Terms {
        required: test_harness::device_is_required(),
        limit: suite::CASE_LIMIT,
        advice: "`cargo xtask softroce --suite --test rdma_by_cm` runs them in a virtual machine with SoftRoCE.",
    };
    suite::run_at(suite::Target::SystemByCm, &system::address(), terms)
}
