//! The shared secret.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use crate::common::{Ended, Running, command};
use crate::harness::{Device, Outcome, Test};

pub(crate) const TESTS: &[Test] = &[
    ("a_server_with_a_secret_serves_who_knows_it", a_server_with_a_secret_serves_who_knows_it),
    ("both_sides_of_one_test_share_a_secret", both_sides_of_one_test_share_a_secret),
    ("an_invalid_secret_is_refused_at_once", an_invalid_secret_is_refused_at_once),
];

const OURS: &str = "correct horse battery staple";
const OTHER: &str = "correct horse battery stable";

/// Starts the program with this secret in its environment.
fn start(flags: &str, secret: Option<&str>) -> Running {
    let mut command = command(flags);
    match secret {
        Some(secret) => command.env("STRIDE_SECRET", secret),
        None => command.env_remove("STRIDE_SECRET"),
    };
    Running::start(&mut command)
}

/// A file with a secret, which only its owner can read.
struct File(PathBuf);

impl File {
    fn new(content: &str) -> Self {
        let path = std::env::temp_dir().join(format!("stride-secret-{}", std::process::id()));
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        Self(path)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Waits until a server prints its port; returns the port.
fn port(server: &mut Running, words: &str) -> String {
    let waiting = server.await_line(words);
    let rest = waiting.split("TCP port ").nth(1).unwrap();
    rest.split(',').next().unwrap().to_owned()
}

fn a_server_with_a_secret_serves_who_knows_it(device: &Device) -> Outcome {
    let file = File::new(&format!("{OURS}\n"));
    let serve = device.flags(&format!("serve -p 0 --secret-file {}", file.0.display()));
    // The file takes precedence over the variable.
    let mut server = start(&serve, Some(OTHER));
    let port = port(&mut server, "those alone that know the secret");
    let client = |test: &str, secret| {
        start(&device.flags(&format!("{test} -n 5 -s 64 127.0.0.1 -p {port}")), secret).end()
    };
    let refused = |ended: &Ended, words: &str| {
        let line = ended.refused().to_owned();
        assert!(line.contains(words) && line.contains("--secret-file or STRIDE_SECRET"), "{line}");
    };
    refused(&client("write bw", None), "serves only who knows its secret");
    refused(&client("write bw", Some(OTHER)), "another secret");
    for test in ["write bw", "send lat"] {
        assert_eq!(client(test, Some(OURS)).succeeded().rows().len(), 1);
    }
    refused(&client("write bw", None), "serves only who knows its secret");
    server.signal("INT");
    let ended = server.end();
    assert_eq!(ended.rows().len(), 2, "{ended:#?}");
    assert_eq!(ended.stderr.matches("gave no secret").count(), 2, "{ended:#?}");
    assert_eq!(ended.stderr.matches("has another secret").count(), 1, "{ended:#?}");
    for secret in [OURS, OTHER] {
        assert!(!ended.stderr.contains(secret) && !ended.stdout.contains(secret), "{ended:#?}");
    }
    // Other users of the machine could read it.
    fs::set_permissions(&file.0, Permissions::from_mode(0o644)).unwrap();
    let mut server = start(&serve, None);
    server.await_line("chmod 600");
    server.kill();
    Outcome::Ran
}

fn both_sides_of_one_test_share_a_secret(device: &Device) -> Outcome {
    // Tests of messages agree over the measured connection, which uses a device here only if it is
    // a software device.
    for test in ["write lat", "msg bw --transport tcp"] {
        let flags = |rest: &str| match test.starts_with("msg") {
            true => format!("{test} -n 5 -s 64 {rest}"),
            false => device.flags(&format!("{test} -n 5 -s 64 {rest}")),
        };
        for (of_server, of_client, [at_server, at_client]) in [
            (Some(OURS), Some(OURS), ["", ""]),
            (Some(OURS), Some(OTHER), ["has another secret", "has another secret"]),
            (Some(OURS), None, ["gave no secret", "serves only who knows its secret"]),
            (None, Some(OURS), ["there is none here", "has no secret, and this side has one"]),
        ] {
            let mut server = start(&flags("-p 0"), of_server);
            let port = port(&mut server, "waiting for a client");
            let client = |secret| start(&flags(&format!("127.0.0.1 -p {port}")), secret).end();
            if !at_server.is_empty() {
                let refused = client(of_client);
                let line = refused.refused();
                assert!(line.contains(at_client), "{test}: no `{at_client}` in {line}");
                // The server waits for one that knows its secret.
                server.await_line(at_server);
            }
            let client = client(of_server);
            assert_eq!((client.succeeded().rows().len(), server.end().succeeded().rows().len()), (1, 1));
        }
    }
    Outcome::Ran
}

fn an_invalid_secret_is_refused_at_once(device: &Device) -> Outcome {
    for (flags, secret, words) in [
        ("", Some("short"), ["STRIDE_SECRET", "5 bytes", "head -c 32 /dev/urandom"]),
        ("", Some(""), ["STRIDE_SECRET", "0 bytes", "unset it"]),
        (
            "--secret-file /nowhere/secret",
            None,
            ["--secret-file", "cannot read /nowhere/secret", "No such file"],
        ),
        ("--secret-file /dev/zero", None, ["--secret-file", "/dev/zero", "more than 4096 bytes"]),
    ] {
        for command in ["serve -p 0", "write bw -p 0", "write bw --loopback"] {
            let ended = start(&device.flags(&format!("{command} {flags}")), secret).end();
            let line = ended.refused();
            assert!(words.iter().all(|words| line.contains(words)), "{command} {flags}: {line}");
        }
    }
    Outcome::Ran
}
