//! Combinations of load with connection types and ways of waiting.

use crate::common::run;
use crate::harness::{Device, Outcome, Test, side_by_side};
use crate::measure::{is_bandwidth, is_latency, pair, row};

pub(crate) const TESTS: &[Test] = &[
    ("each_thread_sleeps_for_its_own_completions", each_thread_sleeps_for_its_own_completions),
    ("each_thread_shares_its_own_receives", each_thread_shares_its_own_receives),
    ("threads_over_extended_connections", threads_over_extended_connections),
    ("rates_over_every_kind_of_queue", rates_over_every_kind_of_queue),
    ("warm_up_uses_the_requested_direction", warm_up_uses_the_requested_direction),
];

fn each_thread_sleeps_for_its_own_completions(device: &Device) -> Outcome {
    for operation in ["write bw", "write bw --imm", "send bw", "read bw", "mix bw"] {
        for more in ["", "-b", "-q 5 -t 4 --cqe-poll 2"] {
            let flags = format!("{operation} -e --threads 2 -s 64 -n 60 {more}");
            let messages = if more.starts_with("-q") { 300.0 } else { 120.0 };
            is_bandwidth(&row(device, &flags), 64.0, messages);
        }
    }
    let flags = "send bw -e --threads 2 -q 3 -b -r 4 -n 100 -s 64 --data-validation";
    let (server, client) = pair(device, flags, &format!("{flags} 127.0.0.1"));
    assert_eq!(server.stdout, client.stdout);
    is_bandwidth(&client.rows()[0], 64.0, 300.0);
    is_latency(&row(device, "send lat -e --threads 2 -n 30"), 2.0, 60.0);
    let timed = row(device, "send bw -e -D 0.2 -s 64 --threads 2");
    is_bandwidth(&timed, 64.0, timed[1]);
    if device.max_sge.min(device.max_sge_rd) > 2 {
        is_bandwidth(&row(device, "mix bw -e --threads 2 --sge 3 -s 64 -n 60"), 64.0, 120.0);
    }
    Outcome::Ran
}

fn each_thread_shares_its_own_receives(device: &Device) -> Outcome {
    if device.max_srq < 2 {
        return Outcome::Skipped("the device has no two shared receive queues");
    }
    for operation in ["send bw", "write bw --imm"] {
        // One thread has two queue pairs, the other one: each shared queue fits its thread's queue
        // pairs.
        for more in ["", "-e", "-b -r 4", "--warmup 200", "-r 1 --cqe-poll 1"] {
            let flags = format!("{operation} --use-srq --threads 2 -q 3 -s 64 -n 60 {more}");
            is_bandwidth(&row(device, &flags), 64.0, 180.0);
        }
    }
    // With one queue pair per thread, the positions of messages are known.
    let flags = "send bw --use-srq --threads 2 -n 100 -s 100 --data-validation";
    is_bandwidth(&row(device, flags), 100.0, 200.0);
    is_latency(&row(device, "send lat --use-srq --threads 2 -n 30"), 2.0, 60.0);
    Outcome::Ran
}

fn threads_over_extended_connections(device: &Device) -> Outcome {
    if !device.has_xrc || device.max_srq < 2 {
        return Outcome::Skipped("the device has no extended connections, or no two shared receive queues");
    }
    for operation in
        ["write bw", "write bw --imm", "send bw", "read bw", "mix bw --ratio read=30", "atomic bw"]
    {
        for more in ["", "-b -q 3", "-e"] {
            let size = if operation.starts_with("atomic") { 8.0 } else { 64.0 };
            let flags = format!("{operation} -c XRC --threads 2 -s {size} -n 60 {more}");
            let messages = if more.contains("-q 3") { 180.0 } else { 120.0 };
            is_bandwidth(&row(device, &flags), size, messages);
        }
    }
    let flags = "send bw -c XRC --threads 2 -n 100 -s 100 --data-validation";
    let (server, client) = pair(device, flags, &format!("{flags} 127.0.0.1"));
    assert_eq!(server.stdout, client.stdout);
    is_bandwidth(&client.rows()[0], 100.0, 200.0);
    Outcome::Ran
}

fn rates_over_every_kind_of_queue(device: &Device) -> Outcome {
    let mut ways = vec!["", "--cqe-poll 1", "--cqe-poll 40 --threads 2", "-m 256 --retry-count 3"];
    ways.extend((device.max_srq > 1).then_some("--use-srq -q 3 --threads 2"));
    ways.extend(device.has_xrc.then_some("-c XRC"));
    ways.extend(device.is_soft.then_some("-R -q 2"));
    for way in ways {
        let ended =
            run(&device.flags(&format!("send bw -s 64 -n 200 --rate 2000 --loopback {way}"))).succeeded();
        assert!(ended.stderr.contains(", at 2000 messages/s"), "{way}: {ended:#?}");
        let latency =
            run(&device
                .flags(&format!("send lat -s 64 -n 100 --rate 2000 --loopback {}", without_pairs(way))));
        let row = &latency.succeeded().rows()[0];
        is_latency(row, 64.0, row[1]);
        assert!(row[1] >= 100.0, "{way}: {row:?}");
    }
    Outcome::Ran
}

/// A latency test has one queue pair per thread.
fn without_pairs(way: &str) -> String {
    way.replace("-q 3", "").replace("-q 2", "")
}

fn warm_up_uses_the_requested_direction(device: &Device) -> Outcome {
    let mut ways = vec!["-e", "-m 256", "--cqe-poll 3"];
    ways.extend((device.max_srq > 0).then_some("--use-srq -q 4"));
    ways.extend(device.has_xrc.then_some("-c XRC -q 4"));
    ways.extend(device.is_soft.then_some("-R -q 4"));
    side_by_side(device, &ways, |way| {
        for warm_up in ["--warmup 500", "--perform_warm_up", "--warmup 0.2s"] {
            let messages = if way.contains("-q 4") { 80.0 } else { 20.0 };
            let flags = format!("send bw -s 64 -n 20 {way} {warm_up}");
            is_bandwidth(&row(device, &flags), 64.0, messages);
        }
    });
    Outcome::Ran
}
