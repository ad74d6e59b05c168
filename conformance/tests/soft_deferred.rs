//! The suite on the software device that executes requests later, as hardware does.

fn main() -> std::process::ExitCode {
    conformance::run(conformance::TestTarget::SoftDeferred)
}
