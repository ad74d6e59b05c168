//! The effect of environment variables on configurations. Each case runs in a child process,
//! because the environment belongs to the whole process.

use std::process::{Command, Output};

#[cfg(target_os = "linux")]
use test_harness::{Grant, PrivilegedCopy};
use trespass::Builder;

/// All variables that trespass reads.
pub(crate) const VARIABLES: [&str; 7] = [
    "TRESPASS_DEV",
    "TRESPASS_GID_INDEX",
    "TRESPASS_TRANSPORT",
    "TRESPASS_PROBE_TIMEOUT",
    "TRESPASS_CONTROL_KEEPALIVE",
    "TRESPASS_EXIT_TIMEOUT",
    "TRESPASS_LOG",
];

/// The output of a process that builds a configuration with these variables set.
fn built_with(variables: &[(&str, &str)]) -> String {
    answer_of("build_and_tell", variables)
}

/// The answer of a test of this module, in a process with these variables set.
fn answer_of(part: &str, variables: &[(&str, &str)]) -> String {
    answer_and_log_of(part, variables).0
}

/// The answer, and what the process has logged.
fn answer_and_log_of(part: &str, variables: &[(&str, &str)]) -> (String, String) {
    let mut command = Command::new(std::env::current_exe().expect("this test's program"));
    prepare(&mut command, part, variables);
    heard(command.output().expect("it runs"))
}

/// The arguments and variables of a process that runs a test of this module.
fn prepare(command: &mut Command, part: &str, variables: &[(&str, &str)]) {
    command.args(["--ignored", "--exact", &format!("environment::{part}"), "--nocapture"]);
    for name in VARIABLES {
        command.env_remove(name);
    }
    command.envs(variables.iter().copied());
}

/// The answer and the log of a process.
fn heard(output: Output) -> (String, String) {
    let text = String::from_utf8(output.stdout).expect("text");
    let answer =
        text.lines().find_map(|line| line.split_once("answer: ")).map(|(_, answer)| answer.to_owned());
    let log = String::from_utf8(output.stderr).expect("text");
    (answer.unwrap_or_else(|| panic!("no answer: {text}{log}")), log)
}

/// The child process's part.
#[test]
#[ignore = "run by the other tests, in an environment of their choice"]
fn build_and_tell() {
    match Builder::new().build() {
        Ok(config) => println!("\nanswer: {config:?}"),
        Err(error) => println!("\nanswer: {error}"),
    }
}

#[test]
fn the_environment_counts() {
    let variables =
        [("TRESPASS_DEV", "soft0:2,soft1"), ("TRESPASS_GID_INDEX", "3"), ("TRESPASS_TRANSPORT", "tcp")];
    let config = built_with(&variables);
    for part in [
        "name: \"soft0\", port: Some(2)",
        "name: \"soft1\", port: None",
        "gid_index: Some(3)",
        "policy: TcpOnly",
    ] {
        assert!(config.contains(part), "{part}: {config}");
    }
    let config = built_with(&[("TRESPASS_CONTROL_KEEPALIVE", "0")]);
    assert!(config.contains(" control_keepalive: None"), "{config}");
    let config = built_with(&[("TRESPASS_EXIT_TIMEOUT", "300")]);
    assert!(config.contains(" exit_timeout: 300ms"), "{config}");
    let config = built_with(&[]);
    for part in ["devices: []", "gid_index: None", "policy: Auto", "exit_timeout: 10s"] {
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
        ("TRESPASS_EXIT_TIMEOUT", "1h", "it must be a number of milliseconds up to 3600000"),
        ("TRESPASS_LOG", "loud", "it must be off, error, warn, info, debug or trace"),
    ] {
        let error = built_with(&[(name, value)]);
        assert!(error.starts_with(&format!("{name} = {value:?} is refused: {bound}")), "{error}");
    }
}

/// A value that no variable may have makes no difference, and is no error.
#[cfg(target_os = "linux")]
#[test]
fn a_program_with_more_rights_than_its_user_ignores_the_environment() {
    let expected = built_with(&[]);
    let test = "a_program_with_more_rights_than_its_user_ignores_the_environment";
    for copy in Grant::ALL.into_iter().filter_map(|grant| PrivilegedCopy::new(test, grant)) {
        let variables = VARIABLES.map(|name| (name, "no such value"));
        let output = copy.run(|command| prepare(command, "build_and_tell", &variables));
        assert_eq!(heard(output).0, expected);
        #[cfg(feature = "rdma")]
        for (name, value, ignored) in [
            ("SIDEWAY_PROVIDER", "sofd", "InvalidVariable"),
            ("RDMA_MUMMY_LIB_DIR", "/nonexistent", "/nonexistent"),
        ] {
            let output = copy.run(|command| prepare(command, "connect_and_tell", &[(name, value)]));
            let answer = heard(output).0;
            assert!(!answer.contains(ignored), "{answer}");
        }
    }
}

/// The child process's part: connects to itself, and prints why it has no RDMA.
#[cfg(feature = "rdma")]
#[test]
#[ignore = "run by the other tests, in an environment of their choice"]
fn connect_and_tell() {
    let listener = Builder::new().bind("127.0.0.1:0").unwrap();
    let stream = Builder::new().connect(listener.local_addr().unwrap()).unwrap();
    let reason = stream.fallback_reason().expect("no RDMA");
    println!("\nanswer: {:?}: {reason}", reason.cause());
}

/// The cause names the variable, its value and what is allowed, and sends nobody to install a
/// library.
#[cfg(feature = "rdma")]
#[test]
fn a_bad_value_of_a_device_s_variable_is_the_reason_for_tcp() {
    let long = "x".repeat(33);
    for (name, value, allowed) in [
        ("SIDEWAY_PROVIDER", "sofd", "choose `system`, `soft` or `auto`"),
        ("SOFT_RNIC_DEVICES", "0", "a number from 1 to 16"),
        ("SOFT_RNIC_PORTS", "9", "a number from 1 to 8"),
        ("SOFT_RNIC_MODE", "lazy", "inline or deferred"),
        ("SOFT_RNIC_TIME_SCALE", "fast", "a number from 0.000001 to 1000000"),
        ("SOFT_RNIC_REVOKE_MS", "-1", "a number from 0 to 3600000"),
        ("SOFT_RNIC_PATH", "direct", "auto or vm or call"),
        ("SOFT_RNIC_SHM", "yes", "0 or 1"),
        ("SOFT_RNIC_FABRIC", &long, "at most 32 letters, digits"),
        ("SOFT_RNIC_LIMITS", "max_sge=x", "a number for max_sge"),
        ("SOFT_RNIC_FAULTS", "dorp", "valid fault rules; fault rule \"dorp\" (line 1, column 1)"),
        ("SOFT_RNIC_FAULTS", "@/nonexistent/rules", "@FILE with a readable file"),
        ("SOFT_RNIC_SEED", "1.5", "a number from 0 to 18446744073709551615"),
        ("SOFT_RNIC_LOG", "loud", "one of off, error, warn"),
    ] {
        let answer = answer_of("connect_and_tell", &[("SIDEWAY_PROVIDER", "soft"), (name, value)]);
        let (cause, text) = answer.split_once(": ").unwrap();
        assert_eq!(cause, "InvalidVariable", "{name}: {answer}");
        assert!(text.starts_with("this side has an invalid environment variable ("), "{text}");
        for part in [name, value, allowed, "; correct it, or unset it"] {
            assert!(text.contains(part), "no {part:?} in {text}");
        }
        assert!(!text.contains("install"), "{text}");
    }
}

/// Nothing passes through the device, which no network has to do with.
#[cfg(feature = "rdma")]
#[test]
fn a_blocked_software_device_blames_no_firewall() {
    let variables = [("SIDEWAY_PROVIDER", "soft"), ("SOFT_RNIC_FAULTS", "drop")];
    let answer = answer_of("connect_and_tell", &variables);
    assert!(answer.starts_with("SoftProbeTimedOut: "), "{answer}");
    let lower = answer.to_lowercase();
    for word in ["firewall", "udp", "port", "4791", "network", "roce"] {
        assert!(!lower.contains(word), "{word}: {answer}");
    }
}

/// Sets the limit of open files as `ulimit -n` does.
fn limit_files(count: u64) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(count), maximum }).unwrap();
}

/// The child process's part: a listener has accepted as many clients that send nothing as it may when
/// one comes that is served.
#[test]
#[ignore = "run by the other tests, in an environment of their choice"]
fn connect_beside_silent_clients() {
    const DESCRIPTORS: u64 = 1024;
    /// An eighth of them.
    const ACCEPTED: usize = 128;
    limit_files(DESCRIPTORS);
    let builder = || Builder::new().policy(trespass::Policy::TcpOnly);
    let listener = builder().bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let _silent: Vec<_> = (0..ACCEPTED).map(|_| std::net::TcpStream::connect(addr).unwrap()).collect();
    let client = builder().handshake_deadline(std::time::Duration::from_secs(60)).connect(addr).unwrap();
    let (server, _) = listener.accept().unwrap();
    assert_eq!(server.peer_addr().unwrap(), client.local_addr().unwrap());
    println!("\nanswer: connected");
}

#[test]
fn a_client_that_loses_its_place_is_logged() {
    let (answer, log) = answer_and_log_of("connect_beside_silent_clients", &[("TRESPASS_LOG", "warn")]);
    assert_eq!(answer, "connected");
    let line = log.lines().find(|line| line.contains("makes room for others"));
    let line = line.unwrap_or_else(|| panic!("no line about it: {log}"));
    assert!(line.starts_with("trespass warning: ") && line.contains(" peer=127.0.0.1:"), "{line}");
}

/// A folder without libraries is no invalid value: nothing says that it should have them.
#[cfg(feature = "rdma")]
#[test]
fn a_folder_without_a_library_is_named() {
    let variables = [("SIDEWAY_PROVIDER", "system"), ("RDMA_MUMMY_LIB_DIR", "/nonexistent")];
    let answer = answer_of("connect_and_tell", &variables);
    assert!(answer.starts_with("NoLibrary: this side has no usable libibverbs ("), "{answer}");
    assert!(answer.contains("/nonexistent/libibverbs.so.1"), "{answer}");
}
