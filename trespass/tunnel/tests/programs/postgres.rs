//! PostgreSQL, which does not run as root.

use std::os::unix::fs::chown;
use std::process::Command;

use rustix::process::geteuid;

use crate::fixture::{TestTransport, free_addr, wait_until};
use crate::server::{Scratch, TargetServer, Tunnel, path_of, run};

/// A command of PostgreSQL's server, as root with the user of Debian's package.
fn as_server(program: &str) -> Command {
    let path = path_of(program).expect("it is installed");
    if !geteuid().is_root() {
        return Command::new(path);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "postgres", "--regid", "postgres", "--clear-groups"]).arg(path);
    command
}

/// Gives a folder to the server's user.
fn give(scratch: &Scratch) {
    if geteuid().is_root() {
        let mut id = Command::new("id");
        id.args(["-u", "postgres"]);
        let user = run(id, b"").trim().parse().expect("a number");
        chown(&scratch.path, Some(user), None).expect("root may");
    }
}

pub(crate) fn psql(transport: TestTransport) {
    let scratch = Scratch::new("postgres");
    give(&scratch);
    let data = scratch.path.join("data");
    let mut initdb = as_server("initdb");
    initdb.args(["-A", "trust", "-U", "postgres", "--no-sync", "-D"]).arg(&data).current_dir(&scratch.path);
    run(initdb, b"");
    let addr = free_addr();
    let mut postgres = as_server("postgres");
    postgres.arg("-D").arg(&data).args(["-p", &addr.port().to_string(), "-c", "fsync=off"]);
    postgres.args(["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="]);
    postgres.args(["-c", "log_min_messages=fatal"]).current_dir(&scratch.path);
    let server = TargetServer::listening(postgres, addr);
    wait_until("the server answers", || {
        let mut ready = Command::new("pg_isready");
        ready.args(["-q", "-h", "127.0.0.1", "-p", &addr.port().to_string()]);
        ready.status().expect("it is installed with psql").success()
    });
    let tunnel = Tunnel::start(transport, server.addr);
    let ask = |sql: &str, input: &[u8]| {
        let mut psql = Command::new("psql");
        psql.args(["-h", "127.0.0.1", "-p", &tunnel.addr.port().to_string(), "-U", "postgres", "-X"]);
        psql.args(["-v", "ON_ERROR_STOP=1", "-At", "-c", sql]);
        run(psql, input)
    };
    ask("create table numbers (number int, name text)", b"");
    let count = transport.less(100_000) as u64;
    let rows: String = (0..count).map(|number| format!("{number}\tthe number {number}\n")).collect();
    ask("copy numbers from stdin", rows.as_bytes());
    assert_eq!(
        ask("select count(*), sum(number) from numbers", b""),
        format!("{count}|{}\n", count * (count - 1) / 2)
    );
    assert!(ask("copy (select * from numbers order by number) to stdout", b"") == rows, "the rows differ");
}
