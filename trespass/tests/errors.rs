//! The text that a `main` prints which returns an error of this crate. The standard library prints
//! the error's `Debug`, also for a `#[test]` that returns one, which is the child process here.

use std::io;
use std::net::TcpListener;
use std::process::Command;

use trespass::{Builder, ConfigError, Stream};

/// The line that the child process prints about the error of this test.
fn printed_by(test: &str) -> String {
    let mut command = Command::new(std::env::current_exe().expect("this test's program"));
    command.args(["--ignored", "--exact", &format!("errors::{test}"), "--nocapture"]);
    let output = command.output().expect("it runs");
    assert!(!output.status.success(), "{test} returns an error");
    let text = String::from_utf8(output.stderr).expect("text");
    text.lines()
        .find(|line| line.starts_with("Error: "))
        .map(str::to_owned)
        .unwrap_or_else(|| panic!("{text}"))
}

/// An address at which nobody listens.
fn nobody() -> std::net::SocketAddr {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port")
}

#[test]
#[ignore = "the child process of `a_main_prints_what_to_do`"]
fn returns_a_config_error() -> Result<(), ConfigError> {
    Builder::new().rx_slots(3).build().map(drop)
}

#[test]
#[ignore = "the child process of `a_main_prints_what_to_do`"]
fn returns_an_invalid_configuration() -> io::Result<()> {
    Builder::new().rx_slots(3).bind("127.0.0.1:0").map(drop)
}

#[test]
#[ignore = "the child process of `a_main_prints_what_to_do`"]
fn returns_a_port_in_use() -> io::Result<()> {
    let taken = TcpListener::bind("127.0.0.1:0")?;
    trespass::Listener::bind(taken.local_addr()?).map(drop)
}

#[test]
#[ignore = "the child process of `a_main_prints_what_to_do`"]
fn returns_a_refused_connect() -> io::Result<()> {
    Stream::connect(nobody()).map(drop)
}

#[test]
#[ignore = "the child process of `a_main_prints_what_to_do`"]
fn returns_a_call_error() -> io::Result<()> {
    let listener = trespass::Listener::bind("127.0.0.1:0")?;
    let mut stream = Stream::connect(listener.local_addr()?)?;
    stream.shutdown(std::net::Shutdown::Write)?;
    io::Write::write_all(&mut stream, b"late")
}

#[test]
#[cfg_attr(miri, ignore = "starts processes")]
fn a_main_prints_what_to_do() {
    let config = "rx_slots = 3 is refused: it must be ";
    let plain = printed_by("returns_a_config_error");
    assert!(plain.starts_with(&format!("Error: {config}")) && plain.contains("; "), "{plain}");
    let wrapped = printed_by("returns_an_invalid_configuration");
    let text = plain.strip_prefix("Error: ").expect("checked above");
    assert_eq!(wrapped, format!("Error: Custom {{ kind: InvalidInput, error: {text} }}"));
    let busy = printed_by("returns_a_port_in_use");
    assert!(
        busy.starts_with("Error: Custom { kind: AddrInUse, error: cannot listen at 127.0.0.1:"),
        "{busy}"
    );
    assert!(busy.contains("`ss -ltnp`"), "{busy}");
    let refused = printed_by("returns_a_refused_connect");
    let start = "Error: Custom { kind: ConnectionRefused, error: TCP did not connect to 127.0.0.1:";
    assert!(refused.starts_with(start), "{refused}");
    let late = printed_by("returns_a_call_error");
    assert!(late.contains("kind: BrokenPipe, error: this half of the connection was shut down"), "{late}");
}
