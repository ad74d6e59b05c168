//! `stride-perf ping`: round trips to a server, over the device.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::common::{Ended, LIMIT, Running, command};

fn soft(flags: &str) -> Command {
    let mut command = command(flags);
    command.env("SIDEWAY_PROVIDER", "soft");
    command
}

#[track_caller]
fn run(flags: &str) -> Ended {
    Running::start(&mut soft(flags)).end()
}

/// The round trips of the lines, and the summary.
#[track_caller]
fn lines(ended: &Ended, bytes: u64) -> (Vec<f64>, String) {
    let mut lines = ended.stdout.lines();
    let heading = lines.next().unwrap();
    assert!(
        heading.starts_with("# ping ") && heading.contains("over soft0, a software device"),
        "{ended:#?}"
    );
    let (mut trips, mut summary) = (Vec::new(), String::new());
    for line in lines {
        if let Some(rest) = line.strip_prefix("# ") {
            assert!(summary.is_empty(), "{ended:#?}");
            summary = rest.to_owned();
            continue;
        }
        let start = format!("{bytes} bytes from ");
        assert!(
            line.starts_with(&start) && line.contains(&format!(": seq={} rtt=", trips.len() + 1)),
            "{line}"
        );
        let us = line.split("rtt=").nth(1).unwrap().strip_suffix(" us").unwrap();
        trips.push(us.parse().unwrap());
        assert!(trips.iter().all(|us| *us > 0.0), "{line}");
    }
    (trips, summary)
}

#[track_caller]
fn summary_is_of(summary: &str, trips: &[f64]) {
    let rest = summary.strip_prefix(&format!("{} round trips: min/avg/max/stdev ", trips.len()));
    let figures: Vec<f64> = rest
        .and_then(|rest| rest.strip_suffix(" us"))
        .map(|rest| rest.split('/').map(|figure| figure.parse().unwrap()).collect())
        .unwrap_or_else(|| panic!("{summary}"));
    let (min, max) = trips.iter().fold((f64::MAX, 0f64), |(min, max), us| (min.min(*us), max.max(*us)));
    let average = trips.iter().sum::<f64>() / trips.len() as f64;
    assert!((figures[0] - min).abs() < 0.002 && (figures[2] - max).abs() < 0.002, "{summary} of {trips:?}");
    assert!((figures[1] - average).abs() < 0.002, "{summary} of {trips:?}");
}

#[test]
fn so_many_round_trips_are_a_line_each_and_a_summary() {
    let start = Instant::now();
    let ended = run("ping --loopback -c 3 --interval 0.3").succeeded();
    assert!(start.elapsed() >= Duration::from_millis(600), "{:?}", start.elapsed());
    let (trips, summary) = lines(&ended, 64);
    assert_eq!(trips.len(), 3, "{ended:#?}");
    summary_is_of(&summary, &trips);
    let (trips, _) = lines(&run("ping --loopback -c 50 --interval 0 -s 4K").succeeded(), 4096);
    assert_eq!(trips.len(), 50);
}

#[test]
fn servers_of_both_kinds_answer() {
    for (server, is_staying) in [("serve -p 0", true), ("ping -p 0", false)] {
        let mut server = Running::start(&mut soft(server));
        let waiting = server.await_line("on TCP port");
        let port = waiting.split("TCP port ").nth(1).unwrap().split(',').next().unwrap();
        let ended = run(&format!("ping 127.0.0.1 -p {port} -c 2 --interval 0.1")).succeeded();
        assert_eq!(lines(&ended, 64).0.len(), 2);
        assert!(!ended.stderr.contains("differ"), "{ended:#?}");
        if is_staying {
            server.signal("INT");
        }
        let ended = server.end();
        assert_eq!(ended.status.code(), Some(if is_staying { 130 } else { 0 }), "{ended:#?}");
        assert_eq!(ended.rows().len(), 0, "{ended:#?}");
    }
}

/// A client whose lines the test reads as they come.
struct Client {
    child: Child,
    lines: PathBuf,
}

impl Client {
    fn start(name: &str, port: &str) -> Self {
        let lines = std::env::temp_dir().join(format!("stride-ping-{name}-{}", std::process::id()));
        let mut command = soft(&format!("ping 127.0.0.1 -p {port} --interval 0.1"));
        command.stdin(Stdio::null()).stdout(File::create(&lines).unwrap()).stderr(Stdio::piped());
        Self { child: command.spawn().unwrap(), lines }
    }

    /// Waits until it has printed `count` round trips.
    #[track_caller]
    fn await_pings(&self, count: u32) {
        let (deadline, words) = (Instant::now() + LIMIT, format!(": seq={count} "));
        while !fs::read_to_string(&self.lines).unwrap().contains(&words) {
            assert!(Instant::now() < deadline, "no {count} round trips");
            sleep(Duration::from_millis(20));
        }
    }

    fn interrupt(&self) {
        let status = Command::new("kill").args(["-s", "INT", &self.child.id().to_string()]).status();
        assert!(status.unwrap().success());
    }

    fn end(self) -> Ended {
        let output = self.child.wait_with_output().unwrap();
        let stdout = fs::read_to_string(&self.lines).unwrap();
        fs::remove_file(&self.lines).unwrap();
        Ended { status: output.status, stdout, stderr: String::from_utf8(output.stderr).unwrap() }
    }
}

#[test]
fn whoever_has_seen_enough_gets_a_summary() {
    let mut server = Running::start(&mut soft("serve -p 0"));
    let waiting = server.await_line("on TCP port");
    let port = waiting.split("TCP port ").nth(1).unwrap().split(',').next().unwrap();
    let client = Client::start("interrupted", port);
    client.await_pings(2);
    client.interrupt();
    let ended = client.end();
    assert_eq!(ended.status.code(), Some(130), "{ended:#?}");
    let (trips, summary) = lines(&ended, 64);
    assert!(trips.len() > 1, "{ended:#?}");
    summary_is_of(&summary, &trips);
    server.await_line("gave up: interrupted");
    // The client notices when its server ends, and prints the summary so far.
    let client = Client::start("left", port);
    client.await_pings(1);
    server.kill();
    let ended = client.end();
    assert_eq!(ended.status.code(), Some(2), "{ended:#?}");
    let (trips, summary) = lines(&ended, 64);
    summary_is_of(&summary, &trips);
    assert!(ended.complaint().contains("closed the control connection"), "{ended:#?}");
}

#[test]
fn invalid_ping_flags_are_refused() {
    for (flags, words) in [
        ("--loopback --json a.json", ["ping writes no results", "--json", "send lat"]),
        ("--loopback --interval 31", ["--interval 31", "0 to 30", "--interval 1"]),
        ("--loopback --interval=-1", ["--interval -1", "0 to 30", "--interval 1"]),
        ("--loopback --interval NaN", ["--interval NaN", "0 to 30", "--interval 1"]),
        ("--loopback -s 0", ["-s 0", "smallest", "-s 1"]),
        ("--loopback -c 0", ["'0'", "--count", "1.."]),
        ("--loopback -s 3000M", ["-s 3145728000", "max_msg_sz", "soft0"]),
        ("127.0.0.1 -p 1", ["cannot reach", "127.0.0.1:1", "firewalls"]),
    ] {
        let ended = run(&format!("ping {flags}"));
        let line = ended.refused();
        assert!(words.iter().all(|word| line.contains(word)), "{flags}: {line}");
    }
}
