//! The effect of environment variables on configurations. Each case runs in a child process,
//! because the environment belongs to the whole process.

use std::process::Command;

use trespass::Builder;

/// The output of a process that builds a configuration with these variables set.
fn built_with(variables: &[(&str, &str)]) -> String {
    let mut command = Command::new(std::env::current_exe().expect("this test's program"));
    command.args(["--ignored", "--exact", "environment::build_and_tell", "--nocapture"]);
    for name in [
        "TRESPASS_DEV",
        "TRESPASS_GID_INDEX",
        "TRESPASS_TRANSPORT",
        "TRESPASS_PROBE_TIMEOUT",
        "TRESPASS_CONTROL_KEEPALIVE",
        "TRESPASS_LOG",
    ] {
        command.env_remove(name);
    }
    let output = command.envs(variables.iter().copied()).output().expect("it runs");
    let text = String::from_utf8(output.stdout).expect("text");
    let answer =
        text.lines().find_map(|line| line.split_once("built: ")).map(|(_, answer)| answer.to_owned());
    answer.unwrap_or_else(|| panic!("no answer: {text}"))
}

/// The child process's part.
#[test]
#[ignore = "run by the other tests, in an environment of their choice"]
fn build_and_tell() {
    match Builder::new().build() {
        Ok(config) => println!("\nbuilt: {config:?}"),
        Err(error) => println!("\nbuilt: {error}"),
    }
}

#[test]
fn the_environment_counts() {
    let variables = [("TRESPASS_DEV", "soft0:2"), ("TRESPASS_GID_INDEX", "3"), ("TRESPASS_TRANSPORT", "tcp")];
    let config = built_with(&variables);
    for part in ["name: \"soft0\"", "port: Some(2)", "gid_index: Some(3)", "policy: TcpOnly"] {
        assert!(config.contains(part), "{part}: {config}");
    }
    let config = built_with(&[("TRESPASS_CONTROL_KEEPALIVE", "0")]);
    assert!(config.contains(" control_keepalive: None"), "{config}");
    let config = built_with(&[]);
    for part in ["device: None", "gid_index: None", "policy: Auto"] {
        assert!(config.contains(part), "{part}: {config}");
    }
}

#[test]
fn a_bad_value_is_an_error() {
    for (name, value, bound) in [
        ("TRESPASS_DEV", "soft0:0", "it must be NAME or NAME:PORT"),
        ("TRESPASS_GID_INDEX", "256", "it must be a number from 0 to 255"),
        ("TRESPASS_TRANSPORT", "ib", "it must be auto, rdma or tcp"),
        ("TRESPASS_CONTROL_KEEPALIVE", "99", "it must be 0, or a number of milliseconds from 100 to 3600000"),
        ("TRESPASS_LOG", "loud", "it must be off, error, warn, info, debug or trace"),
    ] {
        let error = built_with(&[(name, value)]);
        assert!(error.starts_with(&format!("{name} = {value:?} is refused: {bound}")), "{error}");
    }
}
