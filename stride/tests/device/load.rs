//! The load: threads, warm-up, rates.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use crate::common::{Ended, run};
use crate::harness::{Device, Outcome, Test};
use crate::measure::{is_bandwidth, is_latency, pair, row};

pub(crate) const TESTS: &[Test] = &[
    ("threads_share_the_queue_pairs", threads_share_the_queue_pairs),
    ("threads_of_both_sides", threads_of_both_sides),
    ("threads_measure_one_latency", threads_measure_one_latency),
    ("threads_for_a_time", threads_for_a_time),
    ("threads_and_depth_are_chosen_and_printed", threads_and_depth_are_chosen_and_printed),
    ("warm_up_messages_do_not_count", warm_up_messages_do_not_count),
    ("a_warm_up_of_both_sides", a_warm_up_of_both_sides),
    ("a_rate_is_not_exceeded", a_rate_is_not_exceeded),
    ("latency_counts_from_the_intended_start", latency_counts_from_the_intended_start),
    ("a_rate_for_a_time", a_rate_for_a_time),
    ("reads_and_writes_in_one_test", reads_and_writes_in_one_test),
    ("the_cost_of_a_message_is_reported", the_cost_of_a_message_is_reported),
    ("both_sides_figures_are_kept", both_sides_figures_are_kept),
    ("several_devices_share_the_threads", several_devices_share_the_threads),
    ("the_devices_clock_takes_the_time", the_devices_clock_takes_the_time),
];

const ALL: [&str; 6] = ["write", "write --imm", "send", "read", "atomic", "send --imm"];

/// An operation and a measure, as flags.
fn flags(operation: &str, measure: &str) -> String {
    match operation.split_once(' ') {
        Some((operation, own)) => format!("{operation} {measure} {own}"),
        None => format!("{operation} {measure}"),
    }
}

/// The size if none is given; atomic operations have a fixed one.
fn size_of(operation: &str) -> f64 {
    if operation == "atomic" { 8.0 } else { 64.0 }
}

/// A loopback run, and its JSON document.
#[track_caller]
fn with_document(device: &Device, name: &str, flags: &str) -> (Ended, Value) {
    let path: PathBuf = std::env::temp_dir().join(format!("stride-load-{name}-{}.json", std::process::id()));
    let flags = format!("{flags} --loopback --force --json {}", path.display());
    let ended = run(&device.flags(&flags)).succeeded();
    let text = fs::read_to_string(&path).unwrap();
    fs::remove_file(&path).unwrap();
    (ended, serde_json::from_str(&text).unwrap())
}

fn threads_share_the_queue_pairs(device: &Device) -> Outcome {
    for operation in ALL {
        let flags = format!("{} -s {} -n 60 -t 16 -q 5", flags(operation, "bw"), size_of(operation));
        let ended = run(&device.flags(&format!("{flags} --loopback --threads 2"))).succeeded();
        is_bandwidth(&ended.rows()[0], size_of(operation), 300.0);
        assert!(ended.stdout.contains("bandwidth of 5 queue pairs by 2 threads"), "{ended:#?}");
        assert!(ended.stderr.contains(", 5 queue pairs, 2 threads, "), "{ended:#?}");
    }
    // As many queue pairs as threads, with validated bytes, whichever thread moved them.
    is_bandwidth(
        &row(device, "send bw -s 4K -n 64 -l 8 -t 16 -r 8 --threads 3 --data-validation"),
        4096.0,
        192.0,
    );
    is_bandwidth(&row(device, "read bw -s 100 -n 64 --threads 2 --data-validation"), 100.0, 128.0);
    is_bandwidth(&row(device, "write bw -n 64 --threads 1"), 65536.0, 64.0);
    Outcome::Ran
}

fn threads_of_both_sides(device: &Device) -> Outcome {
    for operation in ALL {
        let size = size_of(operation);
        let one_way = format!("{} -s {size} --threads 2", flags(operation, "bw -n 300"));
        // Few receives: a thread that is done must go on receiving, or the threads would wait for
        // each other in a circle.
        let receives = if ["write", "read", "atomic"].contains(&operation) { "" } else { "-r 4" };
        for flags in [one_way.clone(), format!("{one_way} -b {receives}"), format!("{one_way} -q 3 -b")] {
            let (server, client) = pair(device, &flags, &format!("{flags} 127.0.0.1"));
            assert_eq!(server.stdout, client.stdout);
            let messages = if flags.contains("-q 3") { 900.0 } else { 600.0 };
            is_bandwidth(&client.rows()[0], size, messages);
        }
    }
    Outcome::Ran
}

fn threads_measure_one_latency(device: &Device) -> Outcome {
    for operation in ALL {
        let size = if operation == "atomic" { 8.0 } else { 2.0 };
        let (ended, document) = with_document(device, "latency", &flags(operation, "lat -n 30 --threads 2"));
        is_latency(&ended.rows()[0], size, 60.0);
        assert!(ended.stdout.contains("latency by 2 threads in us: "), "{ended:#?}");
        let buckets = document["results"][0]["histogram"]["buckets_us"].as_array().unwrap();
        assert_eq!(buckets.iter().map(|bucket| bucket[1].as_u64().unwrap()).sum::<u64>(), 60);
        assert_eq!(document["parameters"]["plan"]["threads"], 2);
    }
    let flags = "send lat -n 20 --threads 2";
    let (_, client) = pair(device, flags, &format!("{flags} 127.0.0.1"));
    is_latency(&client.rows()[0], 2.0, 40.0);
    Outcome::Ran
}

fn threads_for_a_time(device: &Device) -> Outcome {
    for flags in ["write bw -s 4K -D 0.2", "send bw -s 64 -D 0.2 -b", "write lat -D 0.2"] {
        let rows = run(&device.flags(&format!("{flags} --threads 2 --loopback"))).succeeded().rows();
        let [row] = &rows[..] else { panic!("{flags}: {rows:?}") };
        match row.len() {
            4 => is_bandwidth(row, row[0], row[1]),
            _ => is_latency(row, 2.0, row[1]),
        }
        assert!(row[1] >= 2.0, "{flags}: {row:?}");
    }
    Outcome::Ran
}

fn threads_and_depth_are_chosen_and_printed(device: &Device) -> Outcome {
    let ended = run(&device.flags("write bw -s 64 -n 64 --threads auto -t auto --loopback")).succeeded();
    assert!(ended.stderr.contains("--threads auto: "), "{ended:#?}");
    assert!(ended.stderr.contains("-t auto: "), "{ended:#?}");
    let line = ended.stderr.lines().find_map(|line| line.strip_prefix("--threads auto: ")).unwrap();
    let threads: f64 = line.split(',').next().unwrap().parse().unwrap();
    is_bandwidth(&ended.rows()[0], 64.0, 64.0 * threads);
    Outcome::Ran
}

fn warm_up_messages_do_not_count(device: &Device) -> Outcome {
    for operation in ALL {
        let size = size_of(operation);
        for warm_up in ["--warmup 7", "--warmup 1000", "--perform_warm_up"] {
            let flags = format!("{} -s {size} -n 30 -t 8 {warm_up}", flags(operation, "bw"));
            is_bandwidth(&row(device, &flags), size, 30.0);
        }
        let (ended, document) = with_document(
            device,
            "warm",
            &format!("{} -s {size} -n 30 --warmup 50", flags(operation, "lat")),
        );
        is_latency(&ended.rows()[0], size, 30.0);
        assert!(ended.stderr.contains(", warm-up of 50 messages"), "{ended:#?}");
        assert_eq!(document["parameters"]["plan"]["warm_up"]["messages"]["count"], 50);
    }
    is_bandwidth(&row(device, "write bw -s 64 -n 30 --warmup 0.2s"), 64.0, 30.0);
    is_bandwidth(&row(device, "send bw -s 512 -n 40 --warmup 9 --data-validation"), 512.0, 40.0);
    is_bandwidth(&row(device, "write bw -s 512 -n 64 -l 16 --warmup 9 --threads 2"), 512.0, 128.0);
    Outcome::Ran
}

fn a_warm_up_of_both_sides(device: &Device) -> Outcome {
    for flags in [
        "send bw -s 64 -n 50 -b --warmup 20",
        "send lat -n 50 --warmup 0.2s",
        "send bw -s 64 -n 50 --reversed --warmup 20",
    ] {
        let (server, client) = pair(device, flags, &format!("{flags} 127.0.0.1"));
        assert_eq!(server.stdout, client.stdout);
        assert_eq!(client.rows()[0][1], 50.0, "{client:#?}");
    }
    // Every size has a fresh warm-up, whatever the timed run before left over.
    let rows =
        run(&device.flags("send bw -a --max-msg-size 64 -n 20 --warmup 0.2s --loopback")).succeeded().rows();
    rows.iter().zip(1..).for_each(|(row, power)| is_bandwidth(row, 2f64.powi(power), 20.0));
    assert_eq!(rows.len(), 6);
    Outcome::Ran
}

/// A row of messages at a rate: the rate in messages per second, and the greatest latency in
/// microseconds.
#[track_caller]
fn rated(row: &[f64], size: f64, iterations: f64) -> (f64, f64) {
    let [bytes, count, _, messages, avg, p50, p99, p99_9, max] = row[..] else { panic!("{row:?}") };
    assert_eq!((bytes, count), (size, iterations), "{row:?}");
    assert!(p50 > 0.0 && [p50, p99, p99_9, max].is_sorted() && avg <= max, "{row:?}");
    (messages * 1e6, max)
}

fn a_rate_is_not_exceeded(device: &Device) -> Outcome {
    for operation in ALL {
        let size = size_of(operation);
        let flags = format!("{} -s {size} -n 200 --rate 2000", flags(operation, "bw"));
        let (rate, _) = rated(&row(device, &flags), size, 200.0);
        // Between the first message and the last there are 199 intervals, on any machine.
        assert!(rate <= 2000.0 * 200.0 / 199.0 * 1.001, "{operation}: {rate}");
    }
    let (rate, _) =
        rated(&row(device, "write bw -s 1K -n 100 --rate 1K --burst-size 10 -q 2 -t 3"), 1024.0, 200.0);
    assert!(rate <= 1000.0 * 200.0 / 190.0 * 1.001, "{rate}");
    // 2000 messages of 1250 bytes per second are 20 Mb/s, whichever thread sends them.
    let flags = "send bw -s 1250 -n 100 --rate_limit 0.02 --rate_units g --threads 2";
    let (rate, _) = rated(&row(device, flags), 1250.0, 200.0);
    assert!(rate <= 2000.0 * 200.0 / 198.0 * 1.001, "{rate}");
    Outcome::Ran
}

fn latency_counts_from_the_intended_start(device: &Device) -> Outcome {
    for flags in ["write bw -s 64 -t 1 -n 2000 --rate 1000M", "send bw -s 64 -t 7 -n 2000 --rate 1000M"] {
        let (ended, document) = with_document(device, "rate", flags);
        let (_, max) = rated(&ended.rows()[0], 64.0, 2000.0);
        // All were scheduled within 2 us: the last one waited for all others, and the median for
        // half of them.
        let result = &document["results"][0];
        let duration = result["duration_s"].as_f64().unwrap() * 1e6;
        assert!(max <= duration * 1.01 && max >= duration * 0.9 - 1000.0, "{max} of {duration}");
        assert!(result["lat_us_p50"].as_f64().unwrap() > max / 50.0, "{result}");
        assert!(
            ended.stderr.contains("in place of 1000000000: latencies are of a queue that grows"),
            "{ended:#?}"
        );
        assert_eq!(document["parameters"]["latency_definition"], "completion");
        assert_eq!(document["parameters"]["plan"]["rate"]["of"]["messages"]["per_second"], 1_000_000_000);
    }
    let ended = run(&device.flags("read lat -n 50 --rate 1000 --loopback")).succeeded();
    is_latency(&ended.rows()[0], 2.0, 50.0);
    assert!(
        ended.stdout.contains("from when a message was meant to be sent to its completion"),
        "{ended:#?}"
    );
    Outcome::Ran
}

fn a_rate_for_a_time(device: &Device) -> Outcome {
    let row = row(device, "write bw -s 64 -D 1 --rate 1000");
    let (rate, _) = rated(&row, 64.0, row[1]);
    assert!(row[1] > 0.0 && rate > 0.0, "{row:?}");
    let (server, client) =
        pair(device, "write bw", "write bw -s 64 -n 100 --rate 1000 --warmup 10 127.0.0.1");
    assert_eq!(server.stdout, client.stdout);
    Outcome::Ran
}

fn reads_and_writes_in_one_test(device: &Device) -> Outcome {
    for flags in [
        "mix bw -n 250",
        "mix bw -n 250 --ratio read=1,write=99 -s 64",
        "mix bw -n 256 --mix read=99 -s 4K -l 8 -t 16 -o 1",
        "mix bw -n 250 -s 100 --calls extended",
    ] {
        let row = row(device, flags);
        let messages = if flags.contains("256") { 256.0 } else { 250.0 };
        is_bandwidth(&row, row[0], messages);
    }
    is_bandwidth(&row(device, "mix bw -s 64 -n 200 -q 3 --threads 2 -b"), 64.0, 600.0);
    is_latency(&row(device, "mix lat -n 200 --ratio write=70"), 2.0, 200.0);
    let flags = "mix bw -s 1K -n 300 --ratio read=30,write=70";
    let (server, client) = pair(device, flags, &format!("{flags} 127.0.0.1"));
    assert_eq!(server.stdout, client.stdout);
    assert!(
        client.stdout.starts_with("# mix of RDMA reads and writes (30 % reads, 70 % writes) bandwidth"),
        "{client:#?}"
    );
    Outcome::Ran
}

fn the_cost_of_a_message_is_reported(device: &Device) -> Outcome {
    for flags in ["write bw -s 64 -n 500 --threads 2", "send lat -n 50", "write bw -s 64 -n 50 --rate 1000"] {
        let (ended, document) = with_document(device, "cost", flags);
        let cost = document["results"][0]["cpu_ns_per_msg"].as_f64().unwrap();
        assert!(cost > 0.0, "{flags}: {cost}");
        let footer = format!("# CPU time of the measuring threads, ns a message: {cost:.1}");
        assert_eq!(ended.stdout.lines().last(), Some(&*footer), "{ended:#?}");
        // The kernel counts for its devices only.
        assert_eq!(document["results"][0]["counters"].is_null(), device.is_soft);
    }
    let ended = run(&device.flags("write bw -a --max-msg-size 16 -n 50 --loopback")).succeeded();
    let footer = ended.stdout.lines().last().unwrap();
    assert!(footer.contains(" (2 bytes) to ") && footer.ends_with(" (16 bytes)"), "{ended:#?}");
    Outcome::Ran
}

fn both_sides_figures_are_kept(device: &Device) -> Outcome {
    let (_, document) = with_document(device, "sides", "write bw -s 64 -n 300 -b");
    let result = &document["results"][0];
    let sides = result["sides"].as_array().unwrap();
    assert_eq!((sides.len(), &sides[0]["side"], &sides[1]["side"]), (2, &"client".into(), &"server".into()));
    let sum: f64 = sides.iter().map(|side| side["bw_gbps"].as_f64().unwrap()).sum();
    assert!((sum / result["bw_gbps"].as_f64().unwrap() - 1.0).abs() < 1e-9, "{result}");
    assert!(
        sides.iter().all(|side| side["iterations"] == 300 && side["cpu_ns_per_msg"].as_f64().unwrap() > 0.0)
    );
    let (_, one_way) = with_document(device, "side", "write bw -s 64 -n 300");
    assert_eq!(one_way["results"][0]["sides"].as_array().unwrap().len(), 0);
    Outcome::Ran
}

fn several_devices_share_the_threads(device: &Device) -> Outcome {
    if !device.is_soft || !device.known.iter().any(|name| name == "soft1") {
        return Outcome::Skipped("there is one device");
    }
    for flags in [
        "write bw -s 64 -n 100",
        "send bw -s 4K -n 100 --threads 3 -b",
        "send lat -n 50",
        "read bw -s 64 -D 0.2",
    ] {
        let ended = run(&format!("{flags} --loopback -d soft0,soft1:1")).succeeded();
        let row = &ended.rows()[0];
        let threads = if flags.contains("--threads") { 3.0 } else { 2.0 };
        match row.len() {
            4 if flags.contains("-D") => is_bandwidth(row, row[0], row[1]),
            4 => is_bandwidth(row, row[0], 100.0 * threads),
            _ => is_latency(row, 2.0, 50.0 * threads),
        }
        assert!(ended.stderr.contains("device soft1 (as asked for)"), "{ended:#?}");
        assert!(ended.stdout.contains("# over soft0 and soft1, a software device"), "{ended:#?}");
    }
    let path = std::env::temp_dir().join(format!("stride-load-devices-{}.json", std::process::id()));
    run(&format!("write bw -n 50 --loopback -d soft1,soft0 --force --json {}", path.display())).succeeded();
    let document: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    fs::remove_file(&path).unwrap();
    assert_eq!(
        (&document["device"]["name"], &document["other_devices"][0]["name"]),
        (&"soft1".into(), &"soft0".into())
    );
    // The server need not have as many devices.
    let (_, client) = pair(device, "write bw", "write bw -s 64 -n 50 --threads 2 127.0.0.1");
    is_bandwidth(&client.rows()[0], 64.0, 100.0);
    let refused = run("write bw --loopback -d soft0 --dualport");
    assert!(refused.refused().contains("port"), "{refused:#?}");
    Outcome::Ran
}

fn the_devices_clock_takes_the_time(device: &Device) -> Outcome {
    for flags in [
        "write lat",
        "read lat",
        "atomic lat",
        "send lat --latency completion --threads 2",
        "send lat --latency completion -e",
    ] {
        let flags = device.flags(&format!("{flags} --loopback -n 50 --clock device --calls classic"));
        let ended = run(&flags);
        if !device.is_soft && !ended.status.success() {
            // Some of the system's devices lack timestamps; the error names such a device.
            assert!(ended.refused().contains("leave --clock out"), "{ended:#?}");
            return Outcome::Skipped("the device has no timestamps");
        }
        let (ended, threads) = (ended.succeeded(), if flags.contains("--threads") { 2.0 } else { 1.0 });
        let row = &ended.rows()[0];
        assert_eq!(row[1], 50.0 * threads, "{ended:#?}");
        // A device may finish within one tick of its clock, but not always, and no message takes a
        // minute.
        assert!(row[8] > 0.0 && row[8] < 60e6, "{row:?}");
        assert!(ended.stdout.contains("by the device's clock (--clock device)"), "{ended:#?}");
    }
    let ended =
        run(&device.flags("write lat --latency completion --loopback -n 50 --clock program")).succeeded();
    assert!(ended.stdout.contains("from the post to the completion (--latency completion)"), "{ended:#?}");
    Outcome::Ran
}
