//! Programs that nobody here wrote, unmodified, through the tunnel.
//!
//! `.ci/run programs` installs and runs them (`SOFT_RNIC_PROGRAMS=all`), and so does a filter here. A
//! program that is not installed is a printed and counted skip. `cargo xtask softroce --suite --test
//! programs` runs those that a guest has over SoftRoCE.

#[allow(dead_code, unused_macros, unused_imports, reason = "the other test program needs more of it")]
#[path = "../main/fixture.rs"]
mod fixture;
mod postgres;
mod server;

use std::fs;
use std::io::Write;
use std::process::{Command, ExitCode, Stdio};

use libtest_mimic::{Arguments, Completion, Trial};
use test_harness::{bytes, report_skip};

use fixture::{TestTransport, wait_until};
use server::{Scratch, TargetServer, Tunnel, is_installed, run, try_run};

/// Chooses the programs: `all`, or by default none.
const SCOPE: &str = "SOFT_RNIC_PROGRAMS";

/// A case: its name, its programs with their packages, and its body.
type Case = (&'static str, &'static [(&'static str, &'static str)], fn(TestTransport));

const CASES: [Case; 4] = [
    ("iperf3", &[("iperf3", "iperf3")], iperf3),
    (
        "redis",
        &[("redis-server", "redis-server"), ("redis-benchmark", "redis-tools"), ("redis-cli", "redis-tools")],
        redis,
    ),
    (
        "psql",
        &[("psql", "postgresql-client"), ("postgres", "postgresql"), ("initdb", "postgresql")],
        postgres::psql,
    ),
    ("socat", &[("socat", "socat"), ("sha256sum", "coreutils")], socat),
];

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // Each case has four programs at work.
    arguments.test_threads.get_or_insert(1);
    let is_chosen = arguments.filter.is_some() || std::env::var_os(SCOPE).is_some_and(|scope| scope == "all");
    let required = test_harness::device_is_required();
    let transports = [
        ("tcp", Ok(TestTransport::Tcp)),
        ("soft", Ok(TestTransport::Soft)),
        ("rdma", fixture::system_devices()),
    ];
    let trials = transports.into_iter().flat_map(|(over, transport)| {
        CASES.map(|(name, programs, run)| {
            let (title, transport) = (format!("{over}::{name}"), transport.clone());
            let trial = Trial::ignorable_test(title.clone(), move || {
                let transport = match transport {
                    Ok(transport) => transport,
                    Err(reason) if required => return Err(reason.into()),
                    Err(reason) => {
                        report_skip(&title, &reason);
                        return Ok(Completion::ignored_with(reason));
                    }
                };
                if let Some((program, package)) = programs.iter().find(|(program, _)| !is_installed(program))
                {
                    let reason = format!("no `{program}` here (install {package})");
                    report_skip(&title, &reason);
                    return Ok(Completion::ignored_with(reason));
                }
                run(transport);
                Ok(Completion::Completed)
            });
            trial.with_ignored_flag(!is_chosen)
        })
    });
    let conclusion = libtest_mimic::run(&arguments, trials.collect());
    if !arguments.list {
        println!(
            "programs through the tunnel: {} ran, {} skipped, {} failed",
            conclusion.num_passed + conclusion.num_failed,
            conclusion.num_ignored,
            conclusion.num_failed
        );
        if !is_chosen {
            println!("{SCOPE}=all runs them");
        }
    }
    if required {
        return test_harness::print_summary(&arguments, &conclusion, required);
    }
    conclusion.exit_code()
}

/// One direction, the other, and several connections. iperf3 checks that all bytes arrive. Not both
/// directions at once: both sides of iperf3 3.12 then wait in a write, through two socats, too.
fn iperf3(transport: TestTransport) {
    let server = TargetServer::start("iperf3", |port| {
        vec!["-s".into(), "-B".into(), "127.0.0.1".into(), "-p".into(), port]
    });
    let tunnel = Tunnel::start(transport, server.addr);
    let (all, each) = (transport.less(32 << 20), transport.less(16 << 20));
    for more in
        [format!("-n {all}"), format!("-n {all} -R"), format!("-n {each} -P 8"), format!("-n {each} -P 8 -R")]
    {
        wait_until("the server is free for a test", || {
            let mut client = Command::new("iperf3");
            client.args(["-c", "127.0.0.1", "-p", &tunnel.addr.port().to_string()]).args(more.split(' '));
            // The server has one test at a time, and may not know yet that the last one has ended.
            match try_run(client, b"") {
                Ok(_) => true,
                Err(failure) if failure.contains("the server is busy") => false,
                Err(failure) => panic!("{failure}"),
            }
        });
    }
}

fn redis(transport: TestTransport) {
    let server = TargetServer::start("redis-server", |port| {
        ["--save", "", "--appendonly", "no", "--bind", "127.0.0.1", "--port", &port].map(str::to_owned).into()
    });
    let tunnel = Tunnel::start(transport, server.addr);
    let port = tunnel.addr.port().to_string();
    let mut benchmark = Command::new("redis-benchmark");
    let requests = transport.less(2000).to_string();
    benchmark.args([
        "-p",
        &port,
        "-q",
        "-n",
        &requests,
        "-c",
        "50",
        "-t",
        "set,get,lpush,lrange_100",
        "--csv",
    ]);
    let table = run(benchmark, b"");
    assert!(table.contains("\"LRANGE_100"), "{table}");
    let value = "x".repeat(100_000);
    let cli = |words: &[&str]| {
        let mut cli = Command::new("redis-cli");
        cli.args(["-p", &port]).args(words);
        run(cli, b"")
    };
    assert_eq!(cli(&["set", "long", &value]).trim(), "OK");
    assert_eq!(cli(&["get", "long"]).trim(), value);
}

/// A file, and a checksum that comes after the client has ended its direction.
fn socat(transport: TestTransport) {
    let scratch = Scratch::new("socat");
    let (sent, received) = (scratch.path.join("sent"), scratch.path.join("received"));
    let contents = bytes(1, transport.less(16 << 20));
    fs::write(&sent, &contents).expect("a file");
    let server = TargetServer::start("socat", |port| {
        vec![
            "-u".into(),
            format!("TCP-LISTEN:{port},bind=127.0.0.1"),
            format!("CREATE:{}", received.display()),
        ]
    });
    let tunnel = Tunnel::start(transport, server.addr);
    let mut client = Command::new("socat");
    client.arg("-u").arg(format!("FILE:{}", sent.display())).arg(format!("TCP:{}", tunnel.addr));
    run(client, b"");
    server.ends_by_itself();
    assert!(fs::read(&received).expect("a file") == contents, "the bytes differ");

    let server = TargetServer::start("socat", |port| {
        vec!["-t60".into(), format!("TCP-LISTEN:{port},bind=127.0.0.1"), "EXEC:sha256sum".into()]
    });
    let tunnel = Tunnel::start(transport, server.addr);
    let mut client = Command::new("socat");
    client.args(["-t60", "-"]).arg(format!("TCP:{}", tunnel.addr));
    let of_peer = run(client, &contents);
    let mut here =
        Command::new("sha256sum").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
    here.stdin.take().expect("a pipe").write_all(&contents).expect("it reads");
    let here = here.wait_with_output().expect("it ends");
    assert_eq!(of_peer, String::from_utf8_lossy(&here.stdout));
}
