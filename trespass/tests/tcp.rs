//! The suite over TCP.

mod suite;

fn main() -> std::process::ExitCode {
    suite::run(suite::Target::Tcp)
}
