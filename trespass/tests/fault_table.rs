//! The tables of `docs/soft-rnic-faults.md`, from a fault rule to the report of this crate. Each
//! row is run in a child process.

use std::io::{self, Read, Write};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use sideway::soft::faults;
use trespass::{Builder, Stream, Transport};

/// The rule that a child process sets on an open connection.
const RULE: &str = "TRESPASS_FAULT_TABLE_RULE";

/// A limit far above the duration of any working call.
const LONG: Duration = Duration::from_secs(60);

/// A row of a table: the rule, the cause or kind, and words of the text.
struct Row<'a> {
    rule: &'a str,
    reported: &'a str,
    words: &'a str,
}

/// The rows of the table that follows the first mention of `test`.
fn rows(test: &str) -> Vec<Row<'static>> {
    let document = include_str!("../../docs/soft-rnic-faults.md");
    let (_, rest) = document.split_once(&format!("`{test}`")).expect("the table's paragraph");
    let table =
        rest.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    let rows = table.skip(2).map(|line| {
        let cells: Vec<_> = line.split('`').skip(1).step_by(2).collect();
        let [rule, reported, words] = cells[..] else { panic!("three cells in {line}") };
        Row { rule, reported, words }
    });
    rows.collect()
}

/// What a test of this module prints behind "answer: ", in a process with these variables.
fn answers_of(part: &str, variables: &[(&str, &str)]) -> Vec<String> {
    let mut command = Command::new(std::env::current_exe().expect("this test's program"));
    command.args(["--ignored", "--exact", &format!("fault_table::{part}"), "--nocapture"]);
    command.env("SIDEWAY_PROVIDER", "soft").env_remove("SOFT_RNIC_FAULTS");
    command.env("SOFT_RNIC_FABRIC", format!("table-{}", std::process::id()));
    let output = command.envs(variables.iter().copied()).output().expect("it runs");
    let [text, errors] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).expect("text"));
    let answers: Vec<_> = text
        .lines()
        .filter_map(|line| line.split_once("answer: "))
        .map(|(_, line)| line.to_owned())
        .collect();
    assert!(!answers.is_empty() && output.status.success(), "{variables:?}: {text}{errors}");
    answers
}

/// Both ends of a connection of this process.
fn connected() -> [Stream; 2] {
    let builder = Builder::new().keepalive(Some(Duration::from_secs(1))).rnr_retry(3);
    let listener = builder.clone().bind("127.0.0.1:0").unwrap();
    let client = builder.connect(listener.local_addr().unwrap()).unwrap();
    [client, listener.accept().unwrap().0]
}

#[test]
#[ignore = "the child process of `rules_while_a_connection_is_made`"]
fn connects() {
    for end in connected() {
        let reason = end.fallback_reason().expect("no RDMA");
        println!("\nanswer: {:?}: {reason}", reason.cause());
    }
}

#[test]
#[cfg_attr(miri, ignore = "starts processes")]
fn rules_while_a_connection_is_made() {
    let rows = rows("fault_table::rules_while_a_connection_is_made");
    assert_eq!(rows.len(), 18);
    for Row { rule, reported, words } in rows {
        let answers = answers_of("connects", &[("SOFT_RNIC_FAULTS", rule)]);
        let fits = |answer: &String| answer.starts_with(&format!("{reported}: ")) && answer.contains(words);
        assert!(answers.iter().any(fits), "{rule}: {reported} and {words:?}, not {answers:#?}");
    }
}

/// Sends and receives until a call fails.
fn talk(mut end: Stream) -> io::Error {
    end.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let until = Instant::now() + LONG;
    loop {
        let moved = end.write_all(&[7; 100]).and_then(|()| end.read(&mut [0; 1000]));
        match moved {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return error,
            moved => assert!(Instant::now() < until, "the rule ends nothing: {moved:?}"),
        }
    }
}

#[test]
#[ignore = "the child process of `rules_on_an_open_connection`"]
fn talks() {
    let ends = connected();
    assert!(ends.iter().all(|end| end.transport() == Transport::Rdma), "{:?}", ends[0].fallback_reason());
    faults::set(faults::parse(&std::env::var(RULE).expect("a rule")).expect("valid"), 1).expect("rules");
    for talking in ends.map(|end| thread::spawn(|| talk(end))) {
        let error = talking.join().expect("no end panics");
        println!("\nanswer: {:?}: {error}", error.kind());
    }
    // The end of the process would wait for requests that the device lost.
    faults::clear();
}

#[test]
#[cfg_attr(miri, ignore = "starts processes")]
fn rules_on_an_open_connection() {
    let rows = rows("fault_table::rules_on_an_open_connection");
    assert_eq!(rows.len(), 10);
    for Row { rule, reported, words } in rows {
        let answers = answers_of("talks", &[(RULE, rule), ("SOFT_RNIC_TIME_SCALE", "0.01")]);
        let fits = |answer: &String| answer.starts_with(&format!("{reported}: ")) && answer.contains(words);
        assert!(answers.iter().any(fits), "{rule}: {reported} and {words:?}, not {answers:#?}");
    }
}
