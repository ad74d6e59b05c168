//! The suite, over the system's device and over the software device in both modes.

fn main() -> std::process::ExitCode {
    conformance::run()
}
