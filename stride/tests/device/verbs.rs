//! Options of the path, of memory, and of waiting for completions.

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
    ("a_sleeping_side_uses_no_processor_time", a_sleeping_side_uses_no_processor_time),
    ("messages_may_be_in_pieces", messages_may_be_in_pieces),
    ("memory_may_be_of_any_kind", memory_may_be_of_any_kind),
    ("memory_on_the_device", memory_on_the_device),
    (
        "huge_pages_are_there_or_an_error_says_how_to_get_them",
        huge_pages_are_there_or_an_error_says_how_to_get_them,
    ),
    ("memory_of_a_gpu_that_is_not_there_is_an_error", memory_of_a_gpu_that_is_not_there_is_an_error),
    ("the_order_of_writes_is_said", the_order_of_writes_is_said),
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
    // The client's path options count, and both sides report the difference.
    let (server, client) = pair(device, "send bw", &format!("send bw -n 50 {way} 127.0.0.1"));
    for ended in [&server, &client] {
        for words in ["MTU 256", "service level 2", "traffic class 96", "timeout 16", "retry count 5"] {
            assert!(ended.stderr.contains(words), "no `{words}` in {ended:#?}");
        }
    }
    let differs = |line: &str| line.split_whitespace().eq(["timeout", "(-u)", "16", "the", "default"]);
    assert!(server.stderr.lines().any(differs), "{server:#?}");
    // A datagram is limited to one packet, so the default size is the MTU.
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

/// Whether the connection manager can reach the device: it needs a GID that is a routable IP
/// address.
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

/// A link-local GID is useless without an interface; then the route to the server's other address
/// must lead to the device, too.
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
    // Between two processes, only the client of which was asked to sleep; and with a duration.
    let (server, client) = pair(device, "send lat", "send lat -e -n 200 127.0.0.1");
    assert_eq!(server.stdout, client.stdout);
    assert!(server.stderr.contains(", by events"), "{server:#?}");
    is_bandwidth(&row(device, "send bw -e -X 0 -n 50 -s 64"), 64.0, 50.0);
    let [.., gigabits, _] = row(device, "send bw -c UC -e -D 0.2 -s 64")[..] else { panic!("no row") };
    assert!(gigabits > 0.0);
    Outcome::Ran
}

/// Processor time of a process, in the system's ticks of 10 ms.
fn used(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let behind_name = stat.rsplit(')').next().unwrap();
    behind_name.split_whitespace().skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum()
}

/// A stopped client keeps its server waiting.
fn a_sleeping_side_uses_no_processor_time(device: &Device) -> Outcome {
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

/// A row of a test with a duration.
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
    // Messages into one memory can be validated only if their positions are known.
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

/// Measures and validates every operation in memory of one kind.
fn measure_in(device: &Device, memory: &str, is_seen: bool) {
    for operation in OPERATIONS {
        let size = if operation == "atomic" { 8.0 } else { 1000.0 };
        let with =
            |measure| format!("{} -n 50 -s {size} {memory} --data-validation", flags(operation, measure));
        is_bandwidth(&row(device, &with("bw -q 2")), size, 100.0);
        is_latency(&row(device, &with("lat --latency completion")), size, 50.0);
        if operation.starts_with("send") || operation.ends_with("imm") || is_seen && operation == "write" {
            is_latency(&row(device, &with("lat")), size, 50.0);
        }
    }
    // Inline messages come from host memory.
    run(&device.flags(&format!("send lat --loopback -n 20 -s 20 -I 32 {memory} --data-validation")))
        .succeeded();
}

fn memory_may_be_of_any_kind(device: &Device) -> Outcome {
    for kind in ["shared", "malloc"] {
        measure_in(device, &format!("--buffer {kind}"), true);
    }
    let ended = run(&device.flags("write bw --loopback -n 5 --buffer dma-buf"));
    if !ended.status.success() {
        // The kernel lacks udmabuf, or the device does not register dma-bufs.
        let line = ended.refused();
        assert!(
            !device.is_soft
                && (line.contains("udmabuf") || line.contains("dma-buf") || line.contains("dmabuf")),
            "{line}"
        );
        return Outcome::Ran;
    }
    assert!(ended.stderr.contains("buffer dma-buf"), "{ended:#?}");
    measure_in(device, "--buffer dma-buf", true);
    Outcome::Ran
}

fn memory_on_the_device(device: &Device) -> Outcome {
    if device.max_dm_size == 0 {
        let ended = run(&device.flags("write bw --loopback -n 5 --dm"));
        let line = ended.refused();
        assert!(
            line.contains("--dm") && line.contains(&device.name) && line.contains("max_dm_size is 0"),
            "{line}"
        );
        return Outcome::Ran;
    }
    measure_in(device, "--dm", false);
    // A length above the limit; and a test whose client cannot know that the server's memory is not
    // visible.
    let ended = run(&device.flags(&format!("write bw --loopback -n 5 --dm -s {}", device.max_dm_size)));
    let line = ended.refused();
    assert!(
        line.contains("--dm") && line.contains(&format!("max_dm_size is {}", device.max_dm_size)),
        "{line}"
    );
    let mut server = Running::start(&mut command(&device.flags("serve --dm -p 0")));
    let waiting = server.await_line("waiting for clients on TCP port");
    let port = waiting.split("TCP port ").nth(1).unwrap().split(',').next().unwrap().to_owned();
    let client = run(&device.flags(&format!("write lat -n 20 127.0.0.1 -p {port}")));
    assert!(client.refused().contains("device memory (--dm) and --latency pingpong of write"), "{client:#?}");
    let client =
        run(&device.flags(&format!("send lat -n 20 127.0.0.1 -p {port} --data-validation"))).succeeded();
    is_latency(&client.rows()[0], 2.0, 20.0);
    Outcome::Ran
}

fn huge_pages_are_there_or_an_error_says_how_to_get_them(device: &Device) -> Outcome {
    let ended = run(&device.flags("send lat --loopback -n 20 --use-hugepages --data-validation"));
    if ended.status.success() {
        assert!(ended.stderr.contains("buffer huge pages of 2048 KiB"), "{ended:#?}");
    } else {
        let line = ended.refused();
        assert!(line.contains("hugepages-2048kB/nr_hugepages"), "{line}");
    }
    Outcome::Ran
}

fn memory_of_a_gpu_that_is_not_there_is_an_error(device: &Device) -> Outcome {
    for role in ["--loopback", "--use-srq --loopback"] {
        let ended = run(&device.flags(&format!("send bw -n 5 --use-cuda=4000000000 {role}")));
        let line = ended.refused();
        assert!(line.contains("--use-cuda 4000000000"), "{line}");
        assert!(["libcuda.so.1", "CUDA device", "cuInit"].iter().any(|word| line.contains(word)), "{line}");
    }
    Outcome::Ran
}

fn the_order_of_writes_is_said(device: &Device) -> Outcome {
    for (flags, order) in [
        ("write bw --disable_pcie_relaxed", "strict ordering"),
        ("send bw --relaxed-ordering on", "relaxed ordering"),
        ("send bw", "relaxed ordering"),
        ("write lat", "strict ordering"),
        ("write lat --latency completion --relaxed-ordering on", "relaxed ordering"),
    ] {
        let ended = run(&device.flags(&format!("{flags} --loopback -n 20"))).succeeded();
        assert!(ended.stderr.contains(order), "{flags}: {ended:#?}");
    }
    Outcome::Ran
}

fn messages_may_be_in_pieces(device: &Device) -> Outcome {
    for operation in ["write", "write --imm", "send", "read"] {
        let limit = if operation == "read" { device.max_sge_rd } else { device.max_sge };
        for count in [2, 3, limit.min(64)] {
            for calls in ["classic", "extended"] {
                let with = |measure| {
                    format!(
                        "{} -n 40 --sge {count} --calls {calls} --data-validation",
                        flags(operation, measure)
                    )
                };
                is_bandwidth(&row(device, &with("bw -s 3001 -q 2")), 3001.0, 80.0);
                is_latency(&row(device, &with("lat -s 2")), 2.0, 40.0);
            }
        }
        let above = limit + 1;
        let ended = run(&device.flags(&format!("{} --loopback --sge {above}", flags(operation, "bw"))));
        assert!(ended.refused().contains(&format!("--sge {above} is above")), "{ended:#?}");
    }
    if device.has_xrc {
        for operation in ["write", "send", "read"] {
            let test = format!("{operation} bw -c XRC -n 40 -s 100 --sge 2 --data-validation --loopback");
            run(&device.flags(&test)).succeeded();
        }
    }
    let test = "send bw -c UD --sge 2 -n 20 -s 100 --loopback";
    run(&device.flags(test)).succeeded();
    Outcome::Ran
}
