//! Programs of others through each path.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use test_harness::free_port;

use crate::path::{Path, PathProgram, is_installed};
use crate::{Better, measure};

/// Each of these takes about a second.
const ROUNDS: usize = 9;

pub(crate) fn measure_all() {
    if let Some(addr) =
        server("iperf3", |port| vec!["-s".into(), "-B".into(), "127.0.0.1".into(), "-p".into(), port])
    {
        for (what, more) in [("iperf3, one connection", "1"), ("iperf3, 8 connections", "8")] {
            measure(what, "Gb/s", Better::More, ROUNDS, &Path::all(addr.1), |path| iperf3(path.addr, more));
        }
    }
    let arguments =
        |port: String| ["--save", "", "--bind", "127.0.0.1", "--port", &port].map(str::to_owned).into();
    if is_installed("redis-benchmark")
        && let Some(addr) = server("redis-server", arguments)
    {
        for (what, clients) in
            [("redis-benchmark GET, one client", "1"), ("redis-benchmark GET, 50 clients", "50")]
        {
            measure(what, "k/s", Better::More, ROUNDS, &Path::all(addr.1), |path| redis(path.addr, clients));
        }
    }
}

/// Starts a server, if it is installed.
fn server(name: &str, arguments: impl FnOnce(String) -> Vec<String>) -> Option<(PathProgram, SocketAddr)> {
    if !is_installed(name) {
        println!("SKIPPED {name}: it is not installed");
        return None;
    }
    let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port().expect("a port")));
    let mut command = Command::new(name);
    command.args(arguments(addr.port().to_string()));
    Some((PathProgram::start(command, addr), addr))
}

fn output(mut command: Command) -> String {
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output().expect("it starts");
    String::from_utf8(output.stdout).expect("text")
}

/// Gigabits a second that the server has received.
fn iperf3(addr: SocketAddr, connections: &str) -> f64 {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let mut client = Command::new("iperf3");
        client.args(["-c", "127.0.0.1", "-p", &addr.port().to_string(), "-t", "1", "-P", connections, "-J"]);
        let report: Value = serde_json::from_str(&output(client)).expect("JSON");
        if let Some(rate) = report["end"]["sum_received"]["bits_per_second"].as_f64() {
            return rate / 1e9;
        }
        // The server has one test at a time, and may not know yet that the last one has ended.
        let error = report["error"].as_str().unwrap_or_default();
        assert!(error.contains("busy") && Instant::now() < deadline, "{error}");
    }
}

/// Thousands of requests a second.
fn redis(addr: SocketAddr, clients: &str) -> f64 {
    let requests = if clients == "1" { "2000" } else { "10000" };
    let mut client = Command::new("redis-benchmark");
    client.args(["-p", &addr.port().to_string(), "-t", "get", "-n", requests, "-c", clients, "--csv"]);
    let table = output(client);
    let row = table.lines().last().and_then(|row| row.split(',').nth(1)).expect("a row");
    row.trim_matches('"').parse::<f64>().expect("a rate") / 1e3
}
