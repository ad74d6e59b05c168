//! Interruption at any time and on either side keeps the results so far, and the other side is
//! told.

use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::common::{Ended, FAILURE, Running, command};

/// The exit status that shells use for a program that SIGINT ended.
const INTERRUPTED: i32 = 130;

/// The time in which a run ends, even if it does not notice the signal by itself.
const NOTICE: Duration = Duration::from_secs(15);

fn soft(flags: &str) -> Command {
    let mut command = command(flags);
    command.env("SIDEWAY_PROVIDER", "soft").env_remove("TRESPASS_TRANSPORT").env_remove("TRESPASS_DEV");
    command
}

fn server(flags: &str) -> (Running, String) {
    let mut server = Running::start(&mut soft(&format!("{flags} -p 0")));
    let waiting = server.await_line("waiting for a client on TCP port");
    (server, waiting.rsplit(' ').next().unwrap().to_owned())
}

#[track_caller]
fn is_interrupted(ended: &Ended) {
    assert_eq!(ended.status.code(), Some(INTERRUPTED), "{ended:#?}");
    assert_eq!(ended.complaint(), "stride-perf: interrupted", "{ended:#?}");
}

#[test]
fn measurements_so_far_are_kept() {
    let path = std::env::temp_dir().join(format!("stride-signals-{}.json", std::process::id()));
    let _ = std::fs::remove_file(&path);
    // The last sizes take minutes. If two polling threads share a processor, each message takes a
    // time slice.
    for test in [
        "write bw -n 20000",
        "write lat -n 1000",
        "write lat --latency completion -n 20000",
        "msg bw --transport tcp -n 20000",
        "msg grid --transport tcp -n 20000",
    ] {
        let flags = format!("{test} --loopback -a --json {} --force", path.display());
        let running = Running::start(&mut soft(&flags));
        while !path.exists() {
            sleep(Duration::from_millis(50));
        }
        running.signal("INT");
        let ended = running.end_within(NOTICE);
        is_interrupted(&ended);
        let document: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        assert_eq!(
            (&document["status"], &document["error"]),
            (&"interrupted".into(), &serde_json::Value::Null)
        );
        let (results, rows) = (document["results"].as_array().unwrap(), ended.rows());
        let interrupted = results.iter().filter(|result| result["interrupted"] == true).count();
        assert!(!rows.is_empty() && results.len() == rows.len() + interrupted, "{ended:#?} {document}");
        assert_eq!(interrupted, usize::from(ended.stdout.contains("\n# interrupted after ")), "{ended:#?}");
        assert!(interrupted <= 1, "{test}: {ended:#?} {document}");
        std::fs::remove_file(&path).unwrap();
    }
}

/// A size that takes days, so that only the live progress is known.
#[test]
fn seconds_are_seen_and_kept() {
    let path = std::env::temp_dir().join(format!("stride-seconds-{}.json", std::process::id()));
    for (test, cell) in [
        ("write bw -s 64", "64 bytes"),
        ("write lat -s 64", "64 bytes"),
        ("msg bw --transport tcp -s 64", "64 bytes"),
        ("msg lat --transport tcp -s 64", "64 bytes"),
        ("msg grid --transport rdma -s 64 -t 4", "64 bytes, 4 in flight"),
    ] {
        let flags = format!("{test} --loopback -n 4000000000 --json {} --force", path.display());
        let mut running = Running::start(&mut soft(&flags));
        for second in 1..=3 {
            running.await_line(&format!("{cell}, {second} s: "));
        }
        running.signal("INT");
        let ended = running.end_within(NOTICE);
        is_interrupted(&ended);
        let document: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        let result = &document["results"][0];
        let intervals = result["intervals"].as_array().unwrap();
        assert!((3..30).contains(&intervals.len()), "{document}");
        let count = |value: &serde_json::Value| value["iterations"].as_u64().unwrap();
        let seen: u64 = intervals.iter().map(count).sum();
        // A second in which other processes had the processors may have no messages.
        assert!(seen > 0 && seen <= count(result), "{document}");
        assert_eq!(result["interrupted"], true);
        let seconds: f64 = intervals.iter().map(|interval| interval["duration_s"].as_f64().unwrap()).sum();
        assert!(
            (intervals.len() as f64 * 0.9..intervals.len() as f64 * 1.5).contains(&seconds),
            "{document}"
        );
        std::fs::remove_file(&path).unwrap();
    }
}

#[test]
fn a_side_that_waits_ends_at_once() {
    for test in ["write bw", "msg bw --transport tcp"] {
        let (waiting, _) = server(test);
        let start = Instant::now();
        waiting.signal("INT");
        is_interrupted(&waiting.end_within(NOTICE));
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    }
    let (waiting, _) = server("write bw");
    waiting.signal("TERM");
    let ended = waiting.end_within(NOTICE);
    assert_eq!(ended.status.code(), Some(143), "{ended:#?}");
}

#[test]
fn the_other_side_is_told() {
    for test in ["write bw -n 4000000000", "write lat -n 4000000000"] {
        for interrupts_server in [false, true] {
            let (mut serving, port) = server(test);
            let client = Running::start(&mut soft(&format!("{test} 127.0.0.1 -p {port}")));
            serving.await_line("RoCE");
            sleep(Duration::from_millis(500));
            let (interrupted, other) = if interrupts_server { (serving, client) } else { (client, serving) };
            interrupted.signal("INT");
            is_interrupted(&interrupted.end_within(NOTICE));
            let other = other.end_within(NOTICE);
            assert_eq!(other.status.code(), Some(FAILURE), "{other:#?}");
            let complaint = other.complaint();
            let causes = ["gave up: interrupted", "closed the control connection", "a message failed"];
            assert!(causes.iter().any(|cause| complaint.contains(cause)), "{complaint}");
        }
    }
}

#[test]
fn a_peer_that_is_stopped_is_noticed() {
    let test = "write lat -n 4000000000";
    let (mut serving, port) = server(test);
    let client = Running::start(&mut soft(&format!("{test} 127.0.0.1 -p {port}")));
    serving.await_line("RoCE");
    sleep(Duration::from_millis(500));
    serving.signal("STOP");
    let ended = client.end_within(Duration::from_secs(30));
    assert!(ended.complaint().contains("has not been heard of for 8 s"), "{ended:#?}");
}
