//! The suite over queue pairs of the software device with shared receive queues, in this process
//! and in the children that cases start.

mod suite;

fn main() -> std::process::ExitCode {
    let mut config = sideway::soft::Config::from_env().expect("a valid environment");
    config.time_scale = 0.01;
    sideway::set_default_provider(sideway::soft::provider_with(config).expect("no device is listed yet"));
    suite::run(suite::Target::SoftShared)
}
