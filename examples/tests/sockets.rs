//! The programs over trespass, each with itself.

use std::fs;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::path::Path;
use std::thread;
use std::time::Duration;

use trespass::{Builder, Policy};

use crate::common::{Output, RunningProgram, example, run_with};

const TCP: [(&str, &str); 1] = [("TRESPASS_TRANSPORT", "tcp")];

/// Over the software device, which has a connection manager.
const SOFT: [(&str, &str); 1] = [("SIDEWAY_PROVIDER", "soft")];

/// The same for programs that begin with TCP and would otherwise stay on it.
const BY_DEVICE: [(&str, &str); 2] = [SOFT[0], ("TRESPASS_TRANSPORT", "rdma")];

/// A server on a new port, and its address.
fn server(name: &str, arguments: &[&str]) -> (RunningProgram, String) {
    server_in(name, arguments, &TCP)
}

fn server_in(name: &str, arguments: &[&str], variables: &[(&str, &str)]) -> (RunningProgram, String) {
    let mut server = RunningProgram::start(&example(name).unwrap(), arguments, variables).unwrap();
    let mut addr = None;
    server
        .wait_for("printed its address", |text| {
            addr = text.lines().find_map(|line| line.strip_prefix("listening at ")).map(str::to_owned);
            addr.is_some()
        })
        .unwrap();
    (server, addr.unwrap())
}

fn client(name: &str, arguments: &[&str]) -> Output {
    run_with(&example(name).unwrap(), arguments, &TCP).unwrap()
}

/// The distribution has an `echo`, too, and `ls` is not an example.
#[test]
fn no_other_program_is_taken_for_an_example() {
    let error = example("ls").unwrap_err();
    assert!(error.contains("cargo build -p rdma-examples --examples"), "{error}");
}

#[test]
fn hello_says_hello_and_what_carried_it() {
    let (server, addr) = server("hello", &["server", "127.0.0.1:0"]);
    let greeting = client("hello", &["client", &addr]).ok().unwrap();
    assert!(greeting.starts_with("hello, world, over TCP\nno RDMA: "), "{greeting}");
    assert!(greeting.contains("TRESPASS_TRANSPORT"), "{greeting}");
    let guest = server.finish().unwrap().ok().unwrap();
    assert!(guest.contains("world was here from 127.0.0.1:") && guest.contains("over TCP"), "{guest}");
}

/// Over the software device, with log messages about each connection.
const TELLING: [(&str, &str); 3] = [BY_DEVICE[0], BY_DEVICE[1], ("TRESPASS_LOG", "info")];

/// Both begin with TCP, and each side logs one line about its connection.
#[test]
fn hello_becomes_rdma_by_itself_and_says_by_what() {
    let (server, addr) = server_in("hello", &["server", "127.0.0.1:0"], &TELLING);
    let guest = run_with(&example("hello").unwrap(), &["client", &addr], &TELLING).unwrap();
    assert_eq!(guest.stdout, "hello, world, over RDMA\n");
    let host = server.finish().unwrap();
    assert!(host.stdout.contains("over RDMA"), "{host}");
    for output in [guest, host] {
        let lines: Vec<_> = output.stderr.lines().filter(|line| line.starts_with("trespass info:")).collect();
        let [line] = &lines[..] else { panic!("{output}") };
        assert!(line.starts_with("trespass info: RDMA activated: soft0 port 1, GID index "), "{line}");
        for word in [
            "queue pair 0x",
            " MTU ",
            " bytes inline, ",
            " sends and ",
            " receives deep connection=RDMA 127.0.0.1:",
        ] {
            assert!(line.contains(word), "no {word:?} in {line}");
        }
    }
}

#[test]
fn why_it_is_tcp_is_told_in_one_line() {
    let variables = [TCP[0], ("TRESPASS_LOG", "info")];
    let (server, addr) = server_in("hello", &["server", "127.0.0.1:0"], &variables);
    let guest = run_with(&example("hello").unwrap(), &["client", &addr], &variables).unwrap();
    for output in [guest, server.finish().unwrap()] {
        let lines: Vec<_> = output.stderr.lines().filter(|line| line.starts_with("trespass info:")).collect();
        let [line] = &lines[..] else { panic!("{output}") };
        assert!(line.starts_with("trespass info: no RDMA connection=TCP 127.0.0.1:"), "{line}");
        assert!(line.contains("TRESPASS_TRANSPORT=tcp"), "{line}");
    }
}

#[test]
fn both_begin_by_rdma_cm_where_they_are_told_to() {
    const BY_CM: [&str; 2] = ["--bootstrap", "rdma_cm"];
    let client = |name: &str, arguments: &[&str]| {
        run_with(&example(name).unwrap(), &[arguments, &BY_CM].concat(), &SOFT).unwrap().ok().unwrap()
    };
    let (server, addr) = server_in("hello", &[&BY_CM[..], &["server", "127.0.0.1:0"]].concat(), &SOFT);
    assert_eq!(client("hello", &["client", &addr]), "hello, world, over RDMA\n");
    let guest = server.finish().unwrap().ok().unwrap();
    assert!(guest.contains("world was here from 127.0.0.1:") && guest.contains("over RDMA"), "{guest}");
    let arguments = [&["server", "127.0.0.1:0", "--clients", "1"], &BY_CM[..]].concat();
    let (server, addr) = server_in("echo", &arguments, &SOFT);
    let text = client("echo", &["client", &addr, "--duration", "0.05"]);
    assert!(text.starts_with("connected over RDMA\n") && rows(&text).len() == 1, "{text}");
    server.finish().unwrap().ok().unwrap();
}

/// The measured rows: bytes, in flight, QPS, Gb/s, P90, P99.
fn rows(text: &str) -> Vec<Vec<f64>> {
    text.lines().filter_map(|line| line.split_whitespace().map(|word| word.parse().ok()).collect()).collect()
}

#[test]
fn echo_measures_what_comes_back() {
    let (server, addr) = server("echo", &["server", "127.0.0.1:0", "--clients", "2", "--delay-us", "2000"]);
    let text = client("echo", &["client", &addr, "--size", "5000", "--in-flight", "3", "--duration", "0.3"])
        .ok()
        .unwrap();
    assert!(text.starts_with("connected over TCP\nno RDMA: "), "{text}");
    assert!(text.contains("\nfrom when a message may be sent to its answer:\n"), "{text}");
    let [row] = &rows(&text)[..] else { panic!("{text}") };
    assert_eq!(row[..2], [5000.0, 3.0]);
    assert!(row[2] > 0.0 && row[2] <= 500.0, "with 2 ms each at most 500 fit into a second: {text}");
    assert!(row[4] >= 2000.0, "each takes at least 2 ms: {text}");
    let empty = client("echo", &["client", &addr, "--size", "0", "--duration", "0.05"]).ok().unwrap();
    assert_eq!(rows(&empty).len(), 1, "{empty}");
    let output = server.finish().unwrap();
    assert_eq!(output.stderr.matches("is gone after").count(), 2, "{output}");
    assert_eq!(output.stdout.matches(" is here, over TCP").count(), 2, "{output}");
}

#[test]
fn echo_goes_through_its_grid() {
    let (server, addr) = server("echo", &["server", "127.0.0.1:0", "--clients", "1"]);
    let text = client("echo", &["client", &addr, "--grid", "--duration", "0.05"]).ok().unwrap();
    let rows = rows(&text);
    assert_eq!(rows.len(), 6 * 5, "{text}");
    assert!(rows.iter().all(|row| row[2] > 0.0), "{text}");
    server.finish().unwrap().ok().unwrap();
}

#[test]
fn a_copied_file_is_the_file() {
    copy_files(&TCP, "over TCP\n");
}

#[test]
fn a_file_copied_by_a_device_is_the_file() {
    copy_files(&BY_DEVICE, "over RDMA\n");
}

fn copy_files(variables: &[(&str, &str)], ending: &str) {
    let (_, way) = variables[0];
    let folder = std::env::temp_dir().join(format!("trespass-file-copy-{}-{way}", std::process::id()));
    fs::create_dir(&folder).unwrap();
    let (from, to) = (folder.join("from"), folder.join("to"));
    for len in [0, 1, 262_144, 5_000_001] {
        let bytes: Vec<u8> = (0..len as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        fs::write(&from, &bytes).unwrap();
        let arguments = ["receive", "127.0.0.1:0", to.to_str().unwrap()];
        let (server, addr) = server_in("file_copy", &arguments, variables);
        let arguments = ["send", &addr, from.to_str().unwrap()];
        let text = run_with(&example("file_copy").unwrap(), &arguments, variables).unwrap().ok().unwrap();
        assert!(text.starts_with(&format!("sent {len} bytes in ")) && text.ends_with(ending), "{text}");
        server.finish().unwrap().ok().unwrap();
        assert!(fs::read(&to).unwrap() == bytes, "{len} bytes");
    }
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_file_read_by_its_window_is_the_file() {
    for (variables, ending) in [(&TCP[..], "over TCP\n"), (&BY_DEVICE, "over RDMA\n")] {
        read_files(variables, ending);
    }
}

fn read_files(variables: &[(&str, &str)], ending: &str) {
    let folder = std::env::temp_dir().join(format!("trespass-window-files-{}", std::process::id()));
    fs::create_dir(&folder).unwrap();
    let (name, to) = ("from", folder.join("to"));
    let bytes: Vec<u8> = (0..5_000_001_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    fs::write(folder.join(name), &bytes).unwrap();
    let arguments = ["serve", "127.0.0.1:0", folder.to_str().unwrap()];
    let (_server, addr) = server_in("window_files", &arguments, variables);
    let read = |arguments: &[&str]| {
        let arguments = [&["read", &addr][..], arguments].concat();
        run_with(&example("window_files").unwrap(), &arguments, variables).unwrap()
    };
    let text = read(&[name, "--to", to.to_str().unwrap()]).ok().unwrap();
    assert!(text.starts_with("8 parts ahead: 5000001 bytes in ") && text.ends_with(ending), "{text}");
    assert!(fs::read(&to).unwrap() == bytes);
    let text = read(&[name, "--parts", "1,16", "--part", "100000"]).ok().unwrap();
    assert_eq!(text.matches(", 50 of 51 parts ahead, ").count(), 2, "{text}");
    for outside in ["../from", "/etc/passwd", "none"] {
        assert!(!read(&[outside]).error(1).unwrap().is_empty(), "{outside}");
    }
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn an_error_takes_one_line() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    for name in ["hello", "echo"] {
        let line = client(name, &["client", &nobody]).error(2).unwrap();
        assert!(line.contains(&nobody) && line.contains("refused"), "{name}: {line}");
    }
    let line = client("file_copy", &["send", &nobody, "/nonexistent/file"]).error(2).unwrap();
    assert!(line.contains("/nonexistent/file"), "{line}");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap().to_string();
    let line = client("hello", &["server", &addr]).error(2).unwrap();
    assert!(line.contains(&addr) && line.contains("ss -ltnp"), "{line}");
}

#[test]
fn a_store_keeps_what_it_is_given() {
    for (name, variables) in [("store_tcp", &TCP[..]), ("store", &TCP), ("store", &BY_DEVICE)] {
        let (server, addr) = server_in(name, &["server", "127.0.0.1:0"], variables);
        let ask = |request: &[&str]| {
            let arguments = [&["client", &addr], request].concat();
            run_with(&example(name).unwrap(), &arguments, variables).unwrap().ok().unwrap()
        };
        assert_eq!(ask(&["get", "colour"]), "\n");
        assert_eq!(ask(&["set", "colour", "light", "green"]), "ok\n");
        assert_eq!(ask(&["get", "colour"]), "light green\n");
        assert!(ask(&["forget", "colour"]).starts_with("neither "));
        drop(server);
    }
}

/// A client of the workers sends many requests without waiting, and reads their answers late, so
/// that reads and writes of the workers are partial.
#[test]
fn workers_keep_one_store_for_all_clients() {
    // Other tests of this process set fault rules.
    test_harness::alone!(workers_keep_one_store_for_all_clients);
    sideway::set_default_provider(sideway::soft::provider());
    let servers = ["store_workers"].into_iter().chain(cfg!(feature = "local").then_some("store_tasks"));
    let kinds = servers.flat_map(|name| [(name, &TCP[..]), (name, &BY_DEVICE)]);
    for (name, variables) in kinds {
        let arguments = ["127.0.0.1:0", "--workers", "3", "--clients", "14"];
        let (server, addr) = server_in(name, &arguments, variables);
        let ask = |request: &[&str]| {
            let arguments = [&["client", &addr], request].concat();
            run_with(&example("store").unwrap(), &arguments, variables).unwrap().ok().unwrap()
        };
        assert_eq!(ask(&["set", "colour", "light", "green"]), "ok\n");
        for _ in 0..12 {
            assert_eq!(ask(&["get", "colour"]), "light green\n");
        }
        let policy = if variables == TCP { Policy::TcpOnly } else { Policy::RequireRdma };
        let stream = Builder::new().policy(policy).connect(&addr).unwrap();
        let long = "x".repeat(30_000);
        thread::scope(|scope| {
            scope.spawn(|| {
                for n in 0..240 {
                    (&stream).write_all(format!("set {n} {long}\nget {n}\n").as_bytes()).unwrap();
                }
                stream.shutdown(Shutdown::Write).unwrap();
            });
            thread::sleep(Duration::from_millis(200));
            let mut answers = String::new();
            (&stream).read_to_string(&mut answers).unwrap();
            assert!(answers == format!("ok\n{long}\n").repeat(240), "{} bytes", answers.len());
        });
        drop(stream);
        let said = server.finish().unwrap().ok().unwrap();
        assert!(said.ends_with("3 workers have served 14 clients\n"), "{said}");
    }
}

#[cfg(feature = "local")]
#[test]
fn each_core_echoes() {
    test_harness::alone!(each_core_echoes);
    sideway::set_default_provider(sideway::soft::provider());
    for variables in [&TCP[..], &BY_DEVICE] {
        let (server, addr) = server_in("echo_tasks", &["127.0.0.1:0", "--clients", "8"], variables);
        let policy = if variables == TCP { Policy::TcpOnly } else { Policy::RequireRdma };
        let config = Builder::new().policy(policy).build().unwrap();
        for round in 0..8_u8 {
            let mut stream = config.connect(&addr).unwrap();
            stream.write_all(&[round; 1000]).unwrap();
            let mut answer = [0; 1000];
            stream.read_exact(&mut answer).unwrap();
            assert_eq!(answer, [round; 1000]);
        }
        let said = server.finish().unwrap().ok().unwrap();
        assert!(said.ends_with("threads have served 8 clients\n"), "{said}");
    }
}

/// The documentation shows the actual difference between the two programs.
#[test]
fn the_documented_difference_is_what_it_takes() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap();
    let document = read("../docs/moving-from-tcp.md");
    let (_, rest) = document.split_once("```diff\n").unwrap();
    let (diff, _) = rest.split_once("```").unwrap();
    // Without the removed lines the first program equals the second without the added ones. The
    // comments at the top are left out, because they differ by purpose.
    let without = |path: &str, sign: char| {
        let mut others = diff.lines().filter_map(|line| line.strip_prefix(sign)).peekable();
        let text = read(path);
        let kept = text.lines().filter(|line| !line.starts_with("//!") && others.next_if_eq(line).is_none());
        let kept: Vec<_> = kept.map(str::to_owned).collect();
        assert_eq!(others.next(), None, "{path} lacks a line, or has it elsewhere");
        kept
    };
    assert_eq!(without("store_tcp.rs", '-'), without("store.rs", '+'));
}
