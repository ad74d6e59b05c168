//! The suite over queue pairs of the software device, for connections that start with its
//! connection manager.

mod suite;

fn main() -> std::process::ExitCode {
    let mut config = sideway::soft::Config::from_env().expect("a valid environment");
    config.time_scale = 0.01;
    config.fabric = suite::fabric();
    sideway::set_default_provider(sideway::soft::provider_with(config).expect("no device is listed yet"));
    suite::run(suite::Target::SoftByCm)
}
