//! The suite on the device that the system has.

fn main() -> std::process::ExitCode {
    conformance::run(conformance::TestTarget::System)
}
