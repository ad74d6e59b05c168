//! Every operation, within one process and between two.

use std::time::{Duration, Instant};

use test_harness::is_emulated;

use crate::common::run;
use crate::harness::{Device, Outcome, Test, side_by_side};
use crate::measure::{is_bandwidth, is_latency, pair, row};

pub(crate) const TESTS: &[Test] = &[
    ("every_operation_has_a_bandwidth", every_operation_has_a_bandwidth),
    ("every_operation_has_a_latency", every_operation_has_a_latency),
    ("every_operation_between_two_processes", every_operation_between_two_processes),
    ("operations_of_odd_sizes", operations_of_odd_sizes),
    ("operations_of_all_sizes", operations_of_all_sizes),
    ("operations_are_named_in_the_heading", operations_are_named_in_the_heading),
    ("few_receives_are_enough", few_receives_are_enough),
    ("lists_and_moderation_of_every_operation", lists_and_moderation_of_every_operation),
    ("inline_sends", inline_sends),
    ("reads_under_way_are_what_was_asked_for", reads_under_way_are_what_was_asked_for),
    ("many_queue_pairs", many_queue_pairs),
    ("both_ways", both_ways),
    ("limits_of_the_device_are_named", limits_of_the_device_are_named),
    ("received_data_equals_sent_data", received_data_equals_sent_data),
    ("unreliable_connections", unreliable_connections),
    ("datagrams", datagrams),
    ("datagrams_are_as_long_as_the_mtu", datagrams_are_as_long_as_the_mtu),
    ("lost_messages_are_counted", lost_messages_are_counted),
    ("a_test_takes_the_time_it_was_given", a_test_takes_the_time_it_was_given),
    ("every_operation_for_a_time", every_operation_for_a_time),
    ("the_server_may_measure", the_server_may_measure),
    ("lists_of_receives", lists_of_receives),
];

/// The operations with a message size.
const SIZED: [&str; 5] = ["write", "write imm", "send", "send imm", "read"];

/// All operations, with perftest's size or their fixed one.
const ALL: [(&str, f64); 7] = [
    ("write", 2.0),
    ("write imm", 2.0),
    ("send", 2.0),
    ("send imm", 2.0),
    ("read", 2.0),
    ("atomic", 8.0),
    ("atomic swap", 8.0),
];

/// An operation and a measure, as flags.
fn flags(operation: &str, measure: &str) -> String {
    match operation.split_once(' ') {
        Some((operation, "imm")) => format!("{operation} {measure} --imm"),
        Some((operation, _)) => format!("{operation} {measure} --atomic-type compare-swap"),
        None => format!("{operation} {measure}"),
    }
}

fn every_operation_has_a_bandwidth(device: &Device) -> Outcome {
    for (operation, latency_size) in ALL {
        let size = if latency_size == 8.0 { 8.0 } else { 65536.0 };
        is_bandwidth(&row(device, &format!("{} -n 50", flags(operation, "bw"))), size, 50.0);
    }
    Outcome::Ran
}

fn every_operation_has_a_latency(device: &Device) -> Outcome {
    for (operation, size) in ALL {
        is_latency(&row(device, &format!("{} -n 50", flags(operation, "lat"))), size, 50.0);
        let completion = format!("{} -n 50 --latency completion", flags(operation, "lat"));
        is_latency(&row(device, &completion), size, 50.0);
    }
    Outcome::Ran
}

fn every_operation_between_two_processes(device: &Device) -> Outcome {
    for (operation, _) in ALL {
        for measure in ["bw", "lat", "lat --latency completion"] {
            let test = format!("{} -n 50", flags(operation, measure));
            let (server, client) = pair(device, &test, &format!("{test} 127.0.0.1"));
            assert_eq!(server.stdout, client.stdout);
            assert_eq!(client.rows().len(), 1, "{client:#?}");
            assert!(!client.stderr.contains("differ"), "{client:#?}");
        }
    }
    // The client's test counts even if the server's command line names another one.
    let (server, client) = pair(device, "write bw", "send lat -n 20 127.0.0.1");
    assert_eq!(server.stdout, client.stdout);
    let differs = |line: &str| line.split_whitespace().eq(["operation", "send", "write"]);
    assert!(server.stderr.lines().any(differs), "{server:#?}");
    Outcome::Ran
}

fn operations_of_odd_sizes(device: &Device) -> Outcome {
    for operation in SIZED {
        for size in ["1", "3", "2049", "4097", "12345", "8M"] {
            let bytes = if size == "8M" { 8_388_608.0 } else { size.parse().unwrap() };
            is_bandwidth(&row(device, &format!("{} -n 7 -s {size}", flags(operation, "bw"))), bytes, 7.0);
            is_latency(&row(device, &format!("{} -n 7 -s {size}", flags(operation, "lat"))), bytes, 7.0);
        }
    }
    Outcome::Ran
}

fn operations_of_all_sizes(device: &Device) -> Outcome {
    for operation in SIZED {
        for (measure, count, is_right) in
            [("bw", 130.0, is_bandwidth as fn(&[f64], f64, f64)), ("lat", 20.0, is_latency)]
        {
            let flags = format!("{} --loopback -a --max-msg-size 64K -n {count}", flags(operation, measure));
            let rows = run(&device.flags(&flags)).succeeded().rows();
            assert_eq!(rows.len(), 16, "{flags}");
            rows.iter().zip(1..).for_each(|(row, power)| is_right(row, 2f64.powi(power), count));
        }
    }
    Outcome::Ran
}

fn operations_are_named_in_the_heading(device: &Device) -> Outcome {
    for (operation, measure, heading) in [
        ("send", "bw", "# send bandwidth: all bytes / (last completion - first post)"),
        ("read", "lat", "# RDMA read latency in us: from the post to the completion"),
        ("send", "lat", "# send latency in us: half the round trip of a ping-pong"),
        ("write imm", "bw", "# RDMA write with immediate data bandwidth"),
        ("atomic", "lat", "# atomic fetch-add latency in us: from the post to the completion"),
        ("atomic swap", "bw", "# atomic compare-swap bandwidth"),
    ] {
        let ended = run(&device.flags(&format!("{} --loopback -n 5", flags(operation, measure)))).succeeded();
        assert!(ended.stdout.starts_with(heading), "{ended:#?}");
    }
    Outcome::Ran
}

fn few_receives_are_enough(device: &Device) -> Outcome {
    for operation in ["send", "send imm", "write imm"] {
        for depth in [1, 3, 128] {
            let with = |measure| format!("{} -n 100 -r {depth}", flags(operation, measure));
            is_bandwidth(&row(device, &with("bw -s 64")), 64.0, 100.0);
            is_latency(&row(device, &format!("{} -n 20 -r {depth}", flags(operation, "lat"))), 2.0, 20.0);
        }
    }
    Outcome::Ran
}

fn lists_and_moderation_of_every_operation(device: &Device) -> Outcome {
    // Several packets each.
    let (sized, bytes) = if is_emulated() { ("-s 4K", 4096.0) } else { ("-s 64K", 65536.0) };
    for (operation, _) in ALL {
        for list in ["-l 16 -n 640", "-l 8 -n 800 -t 8 -Q 4", "-n 101 -Q 7 -t 10", "-n 20 -t 1"] {
            let (size, bytes) = if operation.starts_with("atomic") { ("", 8.0) } else { (sized, bytes) };
            let flags = format!("{} {list} {size}", flags(operation, "bw"));
            let messages = list.split(' ').skip_while(|word| *word != "-n").nth(1).unwrap();
            is_bandwidth(&row(device, &flags), bytes, messages.parse().unwrap());
        }
    }
    Outcome::Ran
}

fn inline_sends(device: &Device) -> Outcome {
    for operation in ["send", "send imm", "write imm"] {
        is_latency(&row(device, &format!("{} -n 50 -s 16 -I 32", flags(operation, "lat"))), 16.0, 50.0);
        is_bandwidth(&row(device, &format!("{} -n 200 -s 16 -I 32", flags(operation, "bw"))), 16.0, 200.0);
    }
    Outcome::Ran
}

fn reads_under_way_are_what_was_asked_for(device: &Device) -> Outcome {
    for operation in ["read bw", "atomic bw"] {
        let ended = run(&device.flags(&format!("{operation} --loopback -n 50 -o 1"))).succeeded();
        assert!(ended.stderr.contains(", 1 outstanding"), "{ended:#?}");
        let ended = run(&device.flags(&format!("{operation} --loopback -n 50"))).succeeded();
        assert!(!ended.stderr.contains(", 0 outstanding"), "{ended:#?}");
    }
    Outcome::Ran
}

fn many_queue_pairs(device: &Device) -> Outcome {
    for (operation, _) in ALL {
        let size = if operation.starts_with("atomic") { "" } else { "-s 64" };
        let flags = format!("{} {size} -n 60 -t 16 -q 5", flags(operation, "bw"));
        let ended = run(&device.flags(&format!("{flags} --loopback"))).succeeded();
        let bytes = if size.is_empty() { 8.0 } else { 64.0 };
        is_bandwidth(&ended.rows()[0], bytes, 300.0);
        assert!(ended.stdout.contains("bandwidth of 5 queue pairs"), "{ended:#?}");
    }
    is_bandwidth(&row(device, "send bw -s 4K -n 64 -l 8 -t 16 -r 8 -q 33"), 4096.0, 64.0 * 33.0);
    Outcome::Ran
}

fn both_ways(device: &Device) -> Outcome {
    for (operation, _) in ALL {
        let size = if operation.starts_with("atomic") { 8.0 } else { 65536.0 };
        for flags in [flags(operation, "bw -b -n 200"), flags(operation, "bw -b -n 40 -q 3 -t 7 -Q 2")] {
            let (server, client) = pair(device, &flags, &format!("{flags} 127.0.0.1"));
            assert_eq!(server.stdout, client.stdout);
            assert!(client.stdout.contains("both ways, added"), "{client:#?}");
            let messages = if flags.contains("-q 3") { 120.0 } else { 200.0 };
            is_bandwidth(&client.rows()[0], size, messages);
        }
    }
    Outcome::Ran
}

fn limits_of_the_device_are_named(device: &Device) -> Outcome {
    let above = device.max_qp_wr.min(device.max_cqe) + 1;
    for operation in ["send", "write imm"] {
        let flags = device.flags(&format!("{} --loopback -n 5000000000 -r {above}", flags(operation, "bw")));
        let ended = run(&flags);
        let line = ended.refused();
        assert!(line.contains(&format!("-r {above}")) && line.contains("give -r"), "{line}");
    }
    if device.max_qp_init_rd_atom < 255 {
        let ended = run(&device.flags("read bw --loopback -o 255"));
        let line = ended.refused();
        let limit = device.max_qp_init_rd_atom.to_string();
        for word in ["-o 255", "max_qp_init_rd_atom", &device.name, &limit] {
            assert!(line.contains(word), "no `{word}` in {line}");
        }
    }
    Outcome::Ran
}

/// Validates the bytes of every operation: in one memory and in two, with repeated locations, in
/// lists, inline, over many queue pairs, and in both directions.
fn received_data_equals_sent_data(device: &Device) -> Outcome {
    for (operation, _) in ALL {
        let sizes: &[&str] = match operation.split(' ').next() {
            Some("atomic") => &["-s 8"],
            _ => &["-s 1", "-s 70000", "-a --max-msg-size 8K"],
        };
        let check = "--data-validation --loopback";
        for size in sizes {
            for shape in ["", "-l 16 -n 640", "-l 100 -n 300", "-b -q 3"] {
                let flags = format!("{} {size} {shape} {check}", flags(operation, "bw -n 130"));
                run(&device.flags(&without_the_first_count(&flags, shape))).succeeded();
            }
            for definition in ["", "--latency completion"] {
                let measure = format!("lat -n 20 {definition}");
                run(&device.flags(&format!("{} {size} {check}", flags(operation, &measure)))).succeeded();
            }
        }
        // More messages than a mark can distinguish, and than a page has locations.
        run(&device.flags(&format!("{} {check}", flags(operation, "lat -n 300")))).succeeded();
        if ["send", "send imm", "write", "write imm"].contains(&operation) {
            for measure in ["bw -s 24 -I 32", "lat -s 24 -I 32", "bw -s 24 -I 32 -q 3"] {
                run(&device.flags(&format!("{} {check} -n 100", flags(operation, measure)))).succeeded();
            }
        }
    }
    let test = "send bw -n 50 --data-validation";
    let (server, client) = pair(device, test, &format!("{test} 127.0.0.1"));
    assert!(server.stderr.contains(", data validation") && client.stderr.contains(", data validation"));
    Outcome::Ran
}

/// Removes the first `-n`, because a flag may be given once only.
fn without_the_first_count(flags: &str, shape: &str) -> String {
    if shape.contains("-n") { flags.replacen("-n 130", "", 1) } else { flags.to_owned() }
}

fn unreliable_connections(device: &Device) -> Outcome {
    for operation in ["write", "write imm", "send", "send imm"] {
        for size in ["-s 2", "-s 5000", "-s 64K"] {
            let bytes = if size == "-s 64K" { 65536.0 } else { size[3..].parse().unwrap() };
            let with = |measure| format!("{} {size} -n 100 --data-validation", flags(operation, measure));
            is_bandwidth(&row(device, &with("bw -c UC")), bytes, 100.0);
            is_latency(&row(device, &with("lat -c UC").replace("-n 100", "-n 20")), bytes, 20.0);
        }
        let test = flags(operation, "bw -c UC -n 100 -b -q 2");
        let (server, client) = pair(device, &test, &format!("{test} 127.0.0.1"));
        assert_eq!(server.stdout, client.stdout);
        assert!(client.stderr.contains(" bw over UC, "), "{client:#?}");
    }
    Outcome::Ran
}

fn datagrams(device: &Device) -> Outcome {
    for operation in ["send", "send imm"] {
        for size in ["-s 2", "-s 1000", "-s 1024"] {
            let bytes = size[3..].parse().unwrap();
            let with = |measure| format!("{} {size} -n 100 --data-validation", flags(operation, measure));
            is_bandwidth(&row(device, &with("bw -c UD")), bytes, 100.0);
            is_bandwidth(&row(device, &with("bw -c UD -l 10 -q 3")), bytes, 300.0);
            is_latency(&row(device, &with("lat -c UD").replace("-n 100", "-n 20")), bytes, 20.0);
            is_latency(&row(device, &with("lat -c UD --latency completion")), bytes, 100.0);
        }
        is_latency(&row(device, &flags(operation, "lat -c UD -n 100 -s 16 -I 32")), 16.0, 100.0);
        for measure in ["bw -c UD -n 100 -b -q 2", "lat -c UD -n 100"] {
            let test = flags(operation, measure);
            let (server, client) = pair(device, &test, &format!("{test} 127.0.0.1"));
            assert_eq!(server.stdout, client.stdout);
            assert!(client.stderr.contains(" over UD, "), "{client:#?}");
        }
    }
    Outcome::Ran
}

fn datagrams_are_as_long_as_the_mtu(device: &Device) -> Outcome {
    let rows = run(&device.flags("send bw -c UD --loopback -a -n 20")).succeeded().rows();
    let longest = rows.last().unwrap()[0];
    is_bandwidth(&row(device, "send bw -c UD -n 20"), longest, 20.0);
    let above = longest + 1.0;
    let ended = run(&device.flags(&format!("send bw -c UD --loopback -s {above}")));
    let line = ended.refused();
    for word in [&format!("-s {above}"), "MTU", &device.name, &format!("give -s {longest}")] {
        assert!(line.contains(word), "no `{word}` in {line}");
    }
    Outcome::Ran
}

/// More datagrams than receives: some are lost, the test ends all the same, and both sides report
/// the loss.
fn lost_messages_are_counted(device: &Device) -> Outcome {
    for connection in ["UD", "UC"] {
        let test = format!("send bw -c {connection} -n 20000 -s 64 -r 1 -t 64");
        let (server, client) = pair(device, &test, &format!("{test} 127.0.0.1"));
        assert_eq!(server.stdout, client.stdout);
        let lost = |text: &str, whose| text.contains("messages were lost, ") && text.contains(whose);
        assert!(lost(&client.stderr, "this side's"), "{client:#?}");
        assert!(lost(&server.stderr, "the peer's"), "{server:#?}");
    }
    let ended = run(&device.flags("send bw -c UD -n 20000 -s 64 -r 1 --data-validation --loopback"));
    assert!(ended.complaint().contains("messages of 64 bytes were lost"), "{ended:#?}");
    Outcome::Ran
}

/// Messages are counted in the middle half of the duration.
fn a_test_takes_the_time_it_was_given(device: &Device) -> Outcome {
    for test in ["write bw -D 4 -s 4K", "send lat -D 4"] {
        let start = Instant::now();
        let (server, client) = pair(device, test, &format!("{test} 127.0.0.1"));
        let took = start.elapsed();
        assert!(took >= Duration::from_secs(4), "{test} took {took:?}");
        assert_eq!(server.stdout, client.stdout);
        let row = &client.rows()[0];
        assert!(row[1] > 0.0, "{client:#?}");
        if test.starts_with("write bw") {
            // The count matches the rate over two seconds, as exactly as a busy machine's clock
            // thread permits.
            let seconds = row[1] / (row[3] * 1e6);
            assert!((1.9..4.0).contains(&seconds), "{seconds} s of {client:#?}");
        }
        assert!(client.stderr.contains(", 4 s, depth"), "{client:#?}");
    }
    Outcome::Ran
}

fn every_operation_for_a_time(device: &Device) -> Outcome {
    let time = format!("-D {} --loopback", if is_emulated() { 0.03 } else { 0.2 });
    side_by_side(device, &ALL, |&(operation, size)| {
        let rows = run(&device.flags(&format!("{} {time}", flags(operation, "lat")))).succeeded().rows();
        assert!(rows[0][0] == size && rows[0][1] > 0.0, "{rows:?}");
        // In an emulator a request takes milliseconds, and the middle half must have some.
        let both_ways = format!("{} -b -q 2 -t 100 -D 0.2 --loopback", flags(operation, "bw"));
        let rows = run(&device.flags(&both_ways)).succeeded().rows();
        assert!(rows[0][1] > 0.0 && rows[0][3] > 0.0, "{rows:?}");
    });
    // Receives left by one size serve the next.
    let sizes = format!("send bw -a --max-msg-size 8 {time}");
    assert_eq!(run(&device.flags(&sizes)).succeeded().rows().len(), 3);
    let others = ["bw -c UC -s 64", "lat -c UC", "bw -c UD -s 64", "lat -c UD", "lat --latency completion"];
    side_by_side(device, &others, |flags| {
        run(&device.flags(&format!("send {flags} {time}"))).succeeded();
    });
    Outcome::Ran
}

fn the_server_may_measure(device: &Device) -> Outcome {
    for (operation, size) in ALL {
        let check = "-n 30 --reversed --data-validation";
        let test = format!("{} {check}", flags(operation, "bw"));
        let (server, client) = pair(device, &test, &format!("{test} 127.0.0.1"));
        assert_eq!(server.stdout, client.stdout);
        is_bandwidth(&client.rows()[0], if size == 8.0 { 8.0 } else { 65536.0 }, 30.0);
        is_latency(&row(device, &format!("{} {check}", flags(operation, "lat"))), size, 30.0);
    }
    Outcome::Ran
}

fn lists_of_receives(device: &Device) -> Outcome {
    for operation in ["send", "send imm", "write imm"] {
        for list in ["-r 8 --recv-post-list 8", "-r 64 --recv-post-list 5", "--recv-post-list 16 -q 3"] {
            let flags = format!("{} {list}", flags(operation, "bw -n 101 -s 64 --data-validation"));
            let messages = if list.contains("-q") { 303.0 } else { 101.0 };
            is_bandwidth(&row(device, &flags), 64.0, messages);
        }
        is_latency(&row(device, &format!("{} --recv-post-list 4", flags(operation, "lat -n 20"))), 2.0, 20.0);
    }
    Outcome::Ran
}
