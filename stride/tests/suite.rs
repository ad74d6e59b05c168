//! `stride-perf suite`: several tests, one after the other.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use crate::common::{Ended, FAILURE, Running, command};

fn soft(flags: &str) -> Command {
    let mut command = command(flags);
    command.env("SIDEWAY_PROVIDER", "soft");
    command
}

#[track_caller]
fn run(flags: &str) -> Ended {
    Running::start(&mut soft(flags)).end()
}

/// A folder that is removed with its test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("stride-suite-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// Writes a suite file; returns its name.
    fn suite(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The line with the counts, and those that follow it.
#[track_caller]
fn summary(ended: &Ended) -> (String, Vec<&str>) {
    let at = ended.stdout.rfind("# suite ").unwrap_or_else(|| panic!("{ended:#?}"));
    let mut lines = ended.stdout[at..].lines();
    let counts = lines.next().unwrap().rsplit(": ").next().unwrap().to_owned();
    (counts, lines.collect())
}

const TWO: &str = "title = \"two\"
[[test]]
name = \"first\"
run = \"write bw -n 10 -s 64\"
[[test]]
name = \"second\"
run = \"read lat -n 10\"
sizes = [\"8\", \"4K\"]
";

#[test]
fn every_test_is_run_and_says_which_it_is() {
    let folder = Folder::new("run");
    let suite = folder.suite("two.toml", TWO);
    let ended = run(&format!("suite {suite} --loopback")).succeeded();
    let headings: Vec<_> = ended.stdout.lines().filter(|line| line.starts_with("# test ")).collect();
    assert_eq!(
        headings,
        [
            "# test 1 of 3, first: stride-perf write bw -n 10 -s 64 --loopback",
            "# test 2 of 3, second-8: stride-perf read lat -n 10 -s 8 --loopback",
            "# test 3 of 3, second-4K: stride-perf read lat -n 10 -s 4K --loopback",
        ]
    );
    let sizes: Vec<_> = ended.rows().iter().map(|row| (row[0], row[1])).collect();
    assert_eq!(sizes, [(64.0, 10.0), (8.0, 10.0), (4096.0, 10.0)]);
    assert_eq!(summary(&ended), ("of 3 tests 3 ran, 0 skipped, 0 failed".to_owned(), vec![]));
}

#[test]
fn a_server_that_stays_serves_them_all() {
    let folder = Folder::new("server");
    let suite = folder.suite("two.toml", &format!("{TWO}[[test]]\nname = \"tcp\"\nrun = \"tcp bw -n 10\"\n"));
    let mut server = Running::start(&mut soft("serve -p 0"));
    let waiting = server.await_line("on TCP port");
    let port = waiting.split("TCP port ").nth(1).unwrap().split(',').next().unwrap();
    let jsonl = folder.0.join("all.jsonl");
    let ended = run(&format!(
        "suite {suite} 127.0.0.1 -p {port} -n 20 --jsonl {} --json {}",
        jsonl.display(),
        folder.0.join("result.json").display()
    ))
    .succeeded();
    assert!(ended.rows().iter().all(|row| row[1] == 20.0) && ended.rows().len() == 4, "{ended:#?}");
    assert_eq!(fs::read_to_string(jsonl).unwrap().lines().count(), 4);
    for name in ["first", "second-8", "second-4K", "tcp"] {
        let text = fs::read_to_string(folder.0.join(format!("result.{name}.json"))).unwrap();
        let document: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            (&document["status"], document["results"].as_array().unwrap().len()),
            (&"finished".into(), 1)
        );
    }
    // Existing files stay, and the error comes before any test runs.
    let json = folder.0.join("result.json");
    let again = run(&format!("suite {suite} 127.0.0.1 -p {port} --json {}", json.display()));
    assert!(again.refused().contains("result.first.json exists"), "{again:#?}");
    server.signal("INT");
    assert_eq!(server.end().rows().len(), 4);
}

#[test]
fn unavailable_tests_are_skipped_and_counted() {
    let ended = run("suite blog-bw --loopback -n 10 --max-msg-size 1K");
    let (counts, lines) = summary(&ended);
    // Without the flag, or without a GPU.
    assert_eq!(ended.status.code(), Some(0), "{ended:#?}");
    assert_eq!(counts, "of 2 tests 1 ran, 1 skipped, 0 failed", "{ended:#?}");
    assert!(lines[0].starts_with("#   cuda: skipped: ") && lines.len() == 1, "{lines:?}");
    assert!(ended.stderr.lines().any(|line| line.starts_with("cuda: skipped: ")), "{ended:#?}");
    assert_eq!(ended.rows().len(), 10);
    // A suite whose tests were all skipped has shown nothing.
    let folder = Folder::new("skipped");
    let suite = folder.suite(
        "none.toml",
        "title = \"none\"\n[[test]]\nname = \"a\"\nrun = \"write bw -n 5\"\nneeds = \"--no-such-memory 0\"\n",
    );
    let ended = run(&format!("suite {suite} --loopback"));
    assert!(
        ended.refused().contains("no test of") && ended.stdout.contains("0 ran, 1 skipped"),
        "{ended:#?}"
    );
}

#[test]
fn one_that_fails_leaves_the_others() {
    let folder = Folder::new("fails");
    let suite = folder.suite(
        "three.toml",
        "title = \"three\"
[[test]]
name = \"missing\"
run = \"write bw -n 5 -d nowhere0\"
[[test]]
name = \"slow\"
run = \"write lat -n 5 --expect-p99 0.000001\"
[[test]]
name = \"good\"
run = \"write bw -n 5 -s 8\"
",
    );
    let ended = run(&format!("suite {suite} --loopback"));
    assert_eq!(ended.status.code(), Some(FAILURE), "{ended:#?}");
    assert!(ended.complaint().contains("1 of 3 tests failed"), "{ended:#?}");
    let (counts, lines) = summary(&ended);
    assert_eq!(counts, "of 3 tests 2 ran, 0 skipped, 1 failed, 1 not as expected");
    assert!(lines[0].contains("missing: failed: ") && lines[0].contains("nowhere0"), "{lines:?}");
    assert_eq!(lines[1], "#   slow: a figure is not as expected");
    assert_eq!(ended.rows().last().unwrap()[0], 8.0);
}

#[test]
fn whoever_has_seen_enough_ends_them_all() {
    let folder = Folder::new("interrupted");
    let suite = folder.suite(
        "long.toml",
        "title = \"long\"
[[test]]
name = \"short\"
run = \"write bw -n 5\"
[[test]]
name = \"long\"
run = \"write lat -n 4000000000\"
[[test]]
name = \"never\"
run = \"write bw -n 5\"
",
    );
    let json = folder.0.join("r.json");
    let mut running =
        Running::start(&mut soft(&format!("suite {suite} --loopback --json {}", json.display())));
    running.await_line(" s: ");
    sleep(Duration::from_millis(200));
    running.signal("INT");
    let ended = running.end();
    assert_eq!(ended.status.code(), Some(130), "{ended:#?}");
    assert!(ended.stdout.contains("# interrupted after ") && !ended.stdout.contains("never:"), "{ended:#?}");
    let text = fs::read_to_string(folder.0.join("r.long.json")).unwrap();
    let document: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(document["status"], "interrupted");
}

#[test]
fn errors_are_reported_before_anything_runs() {
    let folder = Folder::new("wrong");
    let bad = folder.suite("bad.toml", "title = \"bad\"\n[[test]]\nname = \"a\"\nrun = \"write bw -n 5\"\n[[test]]\nname = \"b\"\nrun = \"write bw -n 1\"\n");
    let two = folder.suite("two.toml", TWO);
    for (flags, words) in [
        (format!("suite {bad} --loopback"), ["the test b", "-n 1 is below", "-n 5 or more"]),
        (format!("suite {two}"), ["no server is named", "stride-perf serve", "--loopback"]),
        (
            "suite nowhere.toml --loopback".to_owned(),
            ["cannot read the suite nowhere.toml", "No such file", "suite --list"],
        ),
        (format!("suite {two} --loopback --nonsense"), ["the test first", "--nonsense", "--help"]),
        (format!("suite {two} --loopback --jsonl x --force"), ["--force and --jsonl", "one file", "remove"]),
    ] {
        let ended = run(&flags);
        let line = ended.refused();
        assert!(words.iter().all(|word| line.contains(word)), "{flags}: {line}");
        assert!(!ended.stdout.contains("# test"), "{ended:#?}");
    }
    assert_eq!(run("suite").status.code(), Some(FAILURE));
}

#[test]
fn the_shipped_ones_are_listed_and_measure_what_they_say() {
    let ended = run("suite --list").succeeded();
    let names: Vec<_> = ended.stdout.lines().map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(names.len(), 9, "{ended:#?}");
    for (suite, flags, rows) in [
        ("blog-maxed", "-n 128 -t 128 --max-msg-size 64", 6),
        ("blog-latency", "-n 10 --max-msg-size 64", 12),
        ("alluxio-basic", "-n 10", 6),
        ("alluxio-latency", "-n 10", 6),
        // Both directions, three sizes each, for one second instead of ten.
        ("alluxio-stress", "-D 1 -q 2", 6),
    ] {
        assert!(names.contains(&suite));
        let ended = run(&format!("suite {suite} --loopback {flags}")).succeeded();
        assert_eq!(ended.rows().len(), rows, "{ended:#?}");
        assert!(summary(&ended).0.ends_with("0 failed"), "{ended:#?}");
    }
}
