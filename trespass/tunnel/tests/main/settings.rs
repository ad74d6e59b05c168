//! The configuration file, allowed targets, and mistakes.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::Command;

use test_harness::{Outcome, Suite};

use crate::fixture::{
    Program, TestTransport, accept, connect, end, free_addr, is_reset, new_fabric, over_each_transport, pass,
    tunnel,
};

over_each_transport!(a_file_has_several_targets, other_targets_are_refused);

/// The cases that carry nothing.
pub(crate) fn add_without_connections(suite: &mut Suite<TestTransport>) {
    test_harness::cases!(suite:
        mistakes_are_explained_and_have_status_2,
        failures_at_the_start_have_status_1,
        insecure_listens_beyond_loopback,
    );
}

/// A file that is removed when this is dropped.
struct TemporaryFile(PathBuf);

impl TemporaryFile {
    fn new(name: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("trespass-tunnel-{name}-{}.toml", std::process::id()));
        fs::write(&path, text).expect("a file");
        Self(path)
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn target() -> (TcpListener, SocketAddr) {
    let target = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let addr = target.local_addr().expect("an address");
    (target, addr)
}

fn a_file_has_several_targets(transport: TestTransport) {
    let ((first, first_addr), (second, second_addr)) = (target(), target());
    let (fabric, serve_addr) = (new_fabric(), transport.free_addr());
    let [to_first, to_second] = [free_addr(), free_addr()];
    let serve = TemporaryFile::new(
        &format!("serve-{}", transport.name()),
        &format!(
            "[[serve]]\nlisten = '{serve_addr}'\nto = '{first_addr}'\nallow = ['{second_addr}']\n\
             insecure = {}\n",
            !serve_addr.ip().is_loopback()
        ),
    );
    let connecting = TemporaryFile::new(
        &format!("connect-{}", transport.name()),
        &format!(
            "[[connect]]\nlisten = '{to_first}'\nto = '{serve_addr}'\n\
             [[connect]]\nlisten = '{to_second}'\nto = '{serve_addr}'\ntarget = '{second_addr}'\n"
        ),
    );
    let run = |file: &TemporaryFile, listen| {
        let mut command = tunnel(transport, &fabric);
        command.arg("run").arg("--config").arg(&file.0);
        Program::listening(command, listen)
    };
    let _serve = run(&serve, serve_addr);
    let connecting = run(&connecting, to_second);
    for (addr, target) in [(to_second, &second), (to_first, &first)] {
        let mut client = connect(addr);
        pass(&mut client, &mut accept(target), b"to this target");
    }
    connecting.wait_for_log(&[&to_first.to_string()]);
}

fn other_targets_are_refused(transport: TestTransport) {
    let ((_first, first_addr), (second, second_addr)) = (target(), target());
    let (fabric, serve_addr, addr) = (new_fabric(), transport.free_addr(), free_addr());
    let serve = end(transport, &fabric, ["serve", &serve_addr.to_string(), &first_addr.to_string()], &[]);
    let mut command = tunnel(transport, &fabric);
    command.args(["connect", "--listen", &addr.to_string(), "--to", &serve_addr.to_string()]);
    command.args(["--target", &second_addr.to_string()]);
    let connecting = Program::listening(command, addr);
    is_reset(&mut connect(addr));
    let words = ["WARN", "is no allowed target: add --allow", &second_addr.to_string()];
    serve.wait_for_log(&words);
    connecting.wait_for_log(&words);
    second.set_nonblocking(true).expect("an option");
    second.accept().expect_err("nobody has connected");
}

/// Runs a command that ends by itself. Returns its exit status and what it says.
fn fails(mut command: Command) -> (Option<i32>, String) {
    command.env_remove("TRESPASS_LOG");
    let (status, log) = Program::start(command).ended();
    (status.code(), log)
}

fn with(arguments: &[&str]) -> Command {
    let mut command = tunnel(TestTransport::Tcp, "none");
    command.args(arguments);
    command
}

fn mistakes_are_explained_and_have_status_2(_: &TestTransport) -> Outcome {
    let file =
        TemporaryFile::new("mistake", "grace = 1\n[[serve]]\nlisten = 'a:1'\nto = 'b:2'\nallowed = []\n");
    let path = file.0.to_str().expect("text");
    for (arguments, words) in [
        (&["serve", "--listen", "0.0.0.0:0", "--to", "127.0.0.1:1"][..], "add --insecure"),
        (&["serve", "--listen", "[::]:0", "--to", "127.0.0.1:1"], "nobody authenticates them"),
        (&["serve", "--listen", "7000", "--to", "127.0.0.1:1"], "write HOST:PORT"),
        (&["serve", "--listen", "127.0.0.1:0"], "--to"),
        (&["connect", "--listen", "::1:0", "--to", "127.0.0.1:1"], "brackets"),
        (&["connect", "--listen", "127.0.0.1:0", "--to", "127.0.0.1:1", "--transport", "udp"], "auto"),
        (&["run", "--config", path], "line 5"),
        (&["run", "--config", "/nowhere.toml"], "cannot read /nowhere.toml"),
        (&[], "Usage"),
    ] {
        let (status, log) = fails(with(arguments));
        assert!(status == Some(2) && log.contains(words), "{arguments:?}: {status:?} {log}");
    }
    let mut command = with(&["connect", "--listen", "127.0.0.1:0", "--to", "127.0.0.1:1"]);
    command.env("TRESPASS_TRANSPORT", "udp");
    let (status, log) = fails(command);
    assert!(status == Some(2) && log.contains("TRESPASS_TRANSPORT"), "{status:?} {log}");
    Ok(())
}

fn failures_at_the_start_have_status_1(_: &TestTransport) -> Outcome {
    let (_taken, addr) = target();
    let addr = addr.to_string();
    for arguments in [
        ["serve", "--listen", &addr, "--to", "127.0.0.1:1"],
        ["connect", "--listen", &addr, "--to", "127.0.0.1:1"],
    ] {
        let (status, log) = fails(with(&arguments));
        assert!(status == Some(1) && log.contains("choose another address or port"), "{status:?} {log}");
        assert!(log.contains(&addr), "{log}");
    }
    let arguments = ["connect", "--listen", "127.0.0.1:0", "--to", "127.0.0.1:1", "--metrics", &addr];
    let (status, log) = fails(with(&arguments));
    assert!(status == Some(1) && log.contains("cannot serve metrics"), "{status:?} {log}");
    Ok(())
}

fn insecure_listens_beyond_loopback(_: &TestTransport) -> Outcome {
    let listen = free_addr();
    let everywhere = format!("0.0.0.0:{}", listen.port());
    let serve = Program::listening(
        with(&["serve", "--listen", &everywhere, "--to", "127.0.0.1:1", "--insecure"]),
        listen,
    );
    serve.wait_for_log(&["connections are carried", &everywhere]);
    Ok(())
}
