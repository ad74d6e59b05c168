//! The suite over queue pairs of the software device, where work is executed when completions are
//! polled, as on hardware.

mod suite;

fn main() -> std::process::ExitCode {
    let mut config = sideway::soft::Config::from_env().expect("a valid environment");
    config.time_scale = 0.01;
    config.mode = sideway::soft::Mode::Deferred;
    sideway::set_default_provider(sideway::soft::provider_with(config).expect("no device is listed yet"));
    suite::run(suite::Target::Soft)
}
