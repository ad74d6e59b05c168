//! What queue pairs are told of their way and their memory, and how completions are waited for.

use std::thread;
use std::time::Duration;

use crate::common::{Running, command, run};
use crate::harness::{Device, Outcome, Test};
use crate::measure::{is_bandwidth, is_latency, pair, row};

pub(crate) const TESTS: &[Test] = &[
    ("queue_pairs_go_the_way_that_was_asked_for", queue_pairs_go_the_way_that_was_asked_for),
    ("ways_that_the_port_has_not_are_refused", ways_that_the_port_has_not_are_refused),
    ("rdma_cm_connects_every_operation", rdma_cm_connects_every_operation),
    (
        "rdma_cm_connects_many_queue_pairs_of_two_processes",
        rdma_cm_connects_many_queue_pairs_of_two_processes,
    ),
    ("rdma_cm_needs_an_address", rdma_cm_needs_an_address),
    ("completions_may_be_slept_for", completions_may_be_slept_for),
    ("who_sleeps_takes_no_time", who_sleeps_takes_no_time),
    ("receives_may_be_shared", receives_may_be_shared),
    ("connections_may_be_extended", connections_may_be_extended),
    ("shared_receives_are_as_many_as_the_device_has", shared_receives_are_as_many_as_the_device_has),
    (
        "completions_are_taken_as_many_at_a_time_as_was_asked_for",
        completions_are_taken_as_many_at_a_time_as_was_asked_for,
    ),
];

/// An operation of each kind.
const OPERATIONS: [&str; 5] = ["write", "write --imm", "send", "read", "atomic"];

/// An operation and a measure, as flags.
fn flags(operation: &str, measure: &str) -> String {
    let (operation, own) = operation.split_once(' ').unwrap_or((operation, ""));
    format!("{operation} {measure} {own}")
}

fn queue_pairs_go_the_way_that_was_asked_for(device: &Device) -> Outcome {
    let way = "-m 256 -S 2 --tclass 96 --pkey-index 0 -u 16 --retry-count 5";
    for operation in OPERATIONS {
        let size = if operation == "atomic" { "" } else { "-s 1000" };
        let bytes = if operation == "atomic" { 8.0 } else { 1000.0 };
        is_bandwidth(&row(device, &format!("{} {size} -n 50 {way}", flags(operation, "bw"))), bytes, 50.0);
        is_latency(&row(device, &format!("{} {size} -n 20 {way}", flags(operation, "lat"))), bytes, 20.0);
    }
    // The client's way counts, and both sides say so.
    let (server, client) = pair(device, "send bw", &format!("send bw -n 50 {way} 127.0.0.1"));
    for ended in [&server, &client] {
        for words in ["MTU 256", "service level 2", "traffic class 96", "timeout 16", "retry count 5"] {
            assert!(ended.stderr.contains(words), "no `{words}` in {ended:#?}");
        }
    }
    let differs = |line: &str| line.split_whitespace().eq(["timeout", "(-u)", "16", "the", "default"]);
    assert!(server.stderr.lines().any(differs), "{server:#?}");
    // A datagram is a packet: without a size it is as long as the MTU.
    is_bandwidth(&row(device, "send bw -c UD -n 50 -m 256"), 256.0, 50.0);
    Outcome::Ran
}

fn ways_that_the_port_has_not_are_refused(device: &Device) -> Outcome {
    let above = device.pkeys.max(1);
    let ended = run(&device.flags(&format!("send bw --loopback --pkey-index {above}")));
    let line = ended.refused();
    for word in [&*format!("--pkey-index {above}"), &device.name, &(above - 1).to_string()] {
        assert!(line.contains(word), "{line}");
    }
    if device.mtu < 4096 {
        let ended = run(&device.flags("send bw --loopback -m 4096"));
        let line = ended.refused();
        assert!(
            line.contains(&format!("port {}, {}: give -m {}", device.port, device.mtu, device.mtu)),
            "{line}"
        );
    }
    Outcome::Ran
}

/// Whether the connection manager reaches the device: it needs a GID that is an IP address which routes lead to.
fn is_managed(device: &Device) -> bool {
    device.is_soft
}

fn rdma_cm_connects_every_operation(device: &Device) -> Outcome {
    if !is_managed(device) {
        return Outcome::Skipped("the connection manager is tried over the software device");
    }
    for operation in OPERATIONS {
        let bytes = if operation == "atomic" { [8.0, 8.0] } else { [65536.0, 2.0] };
        is_bandwidth(&row(device, &format!("{} -n 50 -R", flags(operation, "bw"))), bytes[0], 50.0);
        is_latency(
            &row(device, &format!("{} -n 20 -R -u 10 -T 32", flags(operation, "lat"))),
            bytes[1],
            20.0,
        );
    }
    is_bandwidth(&row(device, "read bw -R -o 4 -n 200 -s 512 --data-validation"), 512.0, 200.0);
    Outcome::Ran
}

fn rdma_cm_connects_many_queue_pairs_of_two_processes(device: &Device) -> Outcome {
    if !is_managed(device) {
        return Outcome::Skipped("the connection manager is tried over the software device");
    }
    let test = "write bw -R -q 8 -b -n 100 -s 4K --data-validation";
    let (server, client) = pair(device, test, &format!("{test} 127.0.0.1"));
    assert_eq!(server.stdout, client.stdout);
    is_bandwidth(&client.rows()[0], 4096.0, 800.0);
    for ended in [&server, &client] {
        assert!(ended.stderr.contains("by rdma_cm, from GID index"), "{ended:#?}");
        assert!(!ended.stderr.contains("differ"), "{ended:#?}");
    }
    Outcome::Ran
}

/// A link-local GID leads nowhere without an interface: then the way to the server's other address has to end at the device, too.
fn rdma_cm_needs_an_address(device: &Device) -> Outcome {
    if !is_managed(device) {
        return Outcome::Skipped("the connection manager is tried over the software device");
    }
    let row = row(device, "send lat -R -n 20 -x 0");
    is_latency(&row, 2.0, 20.0);
    Outcome::Ran
}

fn completions_may_be_slept_for(device: &Device) -> Outcome {
    for calls in ["classic", "extended"] {
        for operation in OPERATIONS {
            let size = if operation == "atomic" { 8.0 } else { 100.0 };
            let with = |measure, more: &str| {
                format!("{} -e -n 50 -s {size} --calls {calls} {more}", flags(operation, measure))
            };
            is_bandwidth(&row(device, &with("bw", "")), size, 50.0);
            is_bandwidth(&row(device, &with("bw", "-b -q 3 -t 4")), size, 150.0);
            is_latency(&row(device, &with("lat", "--latency completion")), size, 50.0);
            if !["write", "read", "atomic"].contains(&operation) {
                is_latency(&row(device, &with("lat", "")), size, 50.0);
            }
        }
    }
    // Between two processes, of which only the client was asked to; and until a time is over.
    let (server, client) = pair(device, "send lat", "send lat -e -n 200 127.0.0.1");
    assert_eq!(server.stdout, client.stdout);
    assert!(server.stderr.contains(", by events"), "{server:#?}");
    let [.., gigabits, _] = row(device, "send bw -c UC -e -D 1 -s 64")[..] else { panic!("no row") };
    assert!(gigabits > 0.0);
    Outcome::Ran
}

/// What a process has used of its processors so far, in the system's ticks of 10 ms.
fn used(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let behind_name = stat.rsplit(')').next().unwrap();
    behind_name.split_whitespace().skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum()
}

/// A client that is stopped keeps its server waiting.
fn who_sleeps_takes_no_time(device: &Device) -> Outcome {
    let mut server = Running::start(&mut command(&device.flags("send lat -p 0")));
    let waiting = server.await_line("waiting for a client on TCP port");
    let port = waiting.rsplit(' ').next().unwrap();
    let client =
        Running::start(&mut command(&device.flags(&format!("send lat -e -D 4 127.0.0.1 -p {port}"))));
    server.await_line(", by events");
    thread::sleep(Duration::from_millis(500));
    client.signal("STOP");
    thread::sleep(Duration::from_millis(200));
    let before = used(server.id());
    thread::sleep(Duration::from_millis(1000));
    let ticks = used(server.id()) - before;
    client.signal("CONT");
    assert!(ticks < 20, "{ticks} of 100 ticks");
    is_latency_of(&client.end().succeeded().rows()[0]);
    server.end().succeeded();
    Outcome::Ran
}

/// A row of a test that took a time.
fn is_latency_of(row: &[f64]) {
    is_latency(row, 2.0, row[1]);
}

fn completions_are_taken_as_many_at_a_time_as_was_asked_for(device: &Device) -> Outcome {
    for count in [1, 3, 64, 5000] {
        for operation in OPERATIONS {
            let test = format!("{} -s 8 -n 300 -Q 1 --cqe-poll {count}", flags(operation, "bw"));
            is_bandwidth(&row(device, &test), 8.0, 300.0);
        }
    }
    Outcome::Ran
}

fn receives_may_be_shared(device: &Device) -> Outcome {
    if device.max_srq == 0 {
        return Outcome::Skipped("the device has no shared receive queues");
    }
    for operation in ["send", "send --imm", "write --imm"] {
        for more in ["", "-r 1", "-r 16 --recv-post-list 4", "-e"] {
            let with = |measure| format!("{} --use-srq -n 60 -s 200 {more}", flags(operation, measure));
            is_bandwidth(&row(device, &with("bw -q 5")), 200.0, 300.0);
            is_bandwidth(&row(device, &with("bw -b -q 3 --calls extended")), 200.0, 180.0);
            is_latency(&row(device, &with("lat")), 200.0, 60.0);
        }
    }
    // What comes to one memory is told apart where its place is known.
    for test in ["send bw -n 100", "send lat -n 20", "write bw --imm -q 4 -n 100 -s 3000"] {
        run(&device.flags(&format!("{test} --loopback --use-srq --data-validation"))).succeeded();
    }
    let (server, client) =
        pair(device, "send bw", "send bw --use_srq -q 4 -a --max-msg-size 4K -n 100 127.0.0.1");
    assert_eq!(server.stdout, client.stdout);
    assert_eq!(client.rows().len(), 12);
    assert!(server.stderr.contains(", shared receive queue"), "{server:#?}");
    Outcome::Ran
}

fn shared_receives_are_as_many_as_the_device_has(device: &Device) -> Outcome {
    if device.max_srq == 0 {
        return Outcome::Skipped("the device has no shared receive queues");
    }
    let above = device.max_srq_wr + 1;
    let ended = run(&device.flags(&format!("send bw --loopback --use-srq -n 5000000000 -r {above}")));
    let line = ended.refused();
    for word in [&*format!("-r {above}"), "max_srq_wr", &device.name, &device.max_srq_wr.to_string()] {
        assert!(line.contains(word), "{line}");
    }
    Outcome::Ran
}

fn connections_may_be_extended(device: &Device) -> Outcome {
    if !device.has_xrc {
        let ended = run(&device.flags("write bw --loopback -c XRC"));
        let line = ended.refused();
        assert!(line.contains(&device.name) && line.contains("IBV_DEVICE_XRC"), "{line}");
        return Outcome::Ran;
    }
    for operation in OPERATIONS.into_iter().chain(["send --imm", "atomic --atomic-type compare-swap"]) {
        let size = if operation.starts_with("atomic") { 8.0 } else { 300.0 };
        for more in ["", "--calls extended", "--calls classic -e --latency completion"] {
            let (bandwidth, latency) =
                more.split_once(" --latency").map_or((more, more), |(flags, _)| (flags, more));
            let with = |measure, more| format!("{} -c XRC -n 60 -s {size} {more}", flags(operation, measure));
            is_bandwidth(&row(device, &with("bw", bandwidth)), size, 60.0);
            is_bandwidth(&row(device, &with("bw -b -q 3", bandwidth)), size, 180.0);
            is_latency(&row(device, &with("lat", latency)), size, 60.0);
        }
        for test in ["bw -q 1", "lat"] {
            let test =
                format!("{} -c XRC -n 60 -s {size} --data-validation --loopback", flags(operation, test));
            run(&device.flags(&test)).succeeded();
        }
    }
    for test in ["write bw -q 4 -I 64 -s 64", "write bw --imm -q 4", "read bw -q 4", "atomic bw -q 4"] {
        let test = format!("{test} -c xrc -n 50 --data-validation");
        let (server, client) = pair(device, &test, &format!("{test} 127.0.0.1"));
        assert_eq!(server.stdout, client.stdout);
        assert!(client.stderr.contains("over XRC"), "{client:#?}");
    }
    Outcome::Ran
}
