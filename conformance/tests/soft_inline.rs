//! The suite on the software device that executes a request while it is posted.

fn main() -> std::process::ExitCode {
    conformance::run(conformance::TestTarget::SoftInline)
}
