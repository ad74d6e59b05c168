//! Measurements within one process and between two.

use std::net::ToSocketAddrs;
use std::thread;

use crate::common::{Ended, Running, command, run};
pub(crate) use crate::common::{is_bandwidth, is_latency};
use crate::harness::{Device, Outcome, Test};

pub(crate) const TESTS: &[Test] = &[
    ("loopback_bandwidth", loopback_bandwidth),
    ("loopback_latency_is_a_pingpong", loopback_latency_is_a_pingpong),
    ("loopback_latency_to_the_completion", loopback_latency_to_the_completion),
    ("all_sizes_of_bandwidth", all_sizes_of_bandwidth),
    ("all_sizes_of_latency", all_sizes_of_latency),
    ("all_sizes_go_to_8_mib", all_sizes_go_to_8_mib),
    ("odd_sizes", odd_sizes),
    ("more_messages_than_a_mark_counts", more_messages_than_a_mark_counts),
    ("post_lists", post_lists),
    ("queues_of_one", queues_of_one),
    ("moderation_that_leaves_a_rest", moderation_that_leaves_a_rest),
    ("inline_messages", inline_messages),
    ("port_and_gid_as_asked_for", port_and_gid_as_asked_for),
    ("a_device_is_found_and_explained", a_device_is_found_and_explained),
    ("memory_is_of_the_kind_that_suits_or_was_asked_for", memory_is_of_the_kind_that_suits_or_was_asked_for),
    ("calls_are_those_that_suit_or_were_asked_for", calls_are_those_that_suit_or_were_asked_for),
    ("a_software_device_is_named_as_such", a_software_device_is_named_as_such),
    ("a_software_device_takes_the_place_of_none", a_software_device_takes_the_place_of_none),
    ("server_and_client_print_the_same", server_and_client_print_the_same),
    ("the_announcements_lines", the_announcements_lines),
    ("the_clients_parameters_count", the_clients_parameters_count),
    ("the_clients_test_counts", the_clients_test_counts),
];

/// Runs a server and a client; returns the output of both.
pub(crate) fn pair(device: &Device, server: &str, client: &str) -> (Ended, Ended) {
    let mut server = Running::start(&mut command(&device.flags(&format!("{server} -p 0"))));
    let waiting = server.await_line("waiting for a client on TCP port");
    let port = waiting.rsplit(' ').next().unwrap();
    let client = run(&device.flags(&format!("{client} -p {port}"))).succeeded();
    (server.end().succeeded(), client)
}

/// A name of this machine, or an address in a guest that knows no name.
fn name_of_this_machine() -> &'static str {
    let known = ("localhost", 0).to_socket_addrs().is_ok_and(|mut addresses| addresses.next().is_some());
    if known { "localhost" } else { "127.0.0.1" }
}

/// The only row of a loopback run.
#[track_caller]
pub(crate) fn row(device: &Device, flags: &str) -> Vec<f64> {
    let ended = run(&device.flags(&format!("{flags} --loopback"))).succeeded();
    let rows = ended.rows();
    assert_eq!(rows.len(), 1, "{ended:#?}");
    rows[0].clone()
}

fn loopback_bandwidth(device: &Device) -> Outcome {
    let ended = run(&device.flags("write bw --loopback -n 50")).succeeded();
    assert!(ended.stdout.starts_with("# RDMA write bandwidth"), "{ended:#?}");
    is_bandwidth(&ended.rows()[0], 65536.0, 50.0);
    Outcome::Ran
}

fn loopback_latency_is_a_pingpong(device: &Device) -> Outcome {
    let ended = run(&device.flags("write lat --loopback -n 50")).succeeded();
    assert!(ended.stdout.contains("half the round trip of a ping-pong"), "{ended:#?}");
    is_latency(&ended.rows()[0], 2.0, 50.0);
    Outcome::Ran
}

fn loopback_latency_to_the_completion(device: &Device) -> Outcome {
    let ended = run(&device.flags("write latency --loopback -n 50 --latency completion")).succeeded();
    assert!(ended.stdout.contains("from the post to the completion"), "{ended:#?}");
    is_latency(&ended.rows()[0], 2.0, 50.0);
    Outcome::Ran
}

fn all_sizes_of_bandwidth(device: &Device) -> Outcome {
    let ended = run(&device.flags("write bandwidth --loopback -a --max-msg-size 64K -n 20")).succeeded();
    let rows = ended.rows();
    assert_eq!(rows.len(), 16, "{ended:#?}");
    rows.iter().zip(1..).for_each(|(row, power)| is_bandwidth(row, 2f64.powi(power), 20.0));
    for (steps, sizes) in [
        ("--min-msg-size 100 --step-factor 1.5", &[100.0, 150.0, 225.0, 338.0][..]),
        ("--min-msg-size 64 --step-addition 100", &[64.0, 164.0, 264.0, 364.0]),
    ] {
        let flags = format!("write bw --loopback -a --max-msg-size 400 -n 20 {steps}");
        let rows = run(&device.flags(&flags)).succeeded().rows();
        assert_eq!(rows.iter().map(|row| row[0]).collect::<Vec<_>>(), sizes, "{steps}");
    }
    Outcome::Ran
}

fn all_sizes_of_latency(device: &Device) -> Outcome {
    for flags in ["", "--latency completion"] {
        let flags = format!("write lat --loopback -a --max-msg-size 64K -n 20 {flags}");
        let ended = run(&device.flags(&flags)).succeeded();
        let rows = ended.rows();
        assert_eq!(rows.len(), 16, "{ended:#?}");
        rows.iter().zip(1..).for_each(|(row, power)| is_latency(row, 2f64.powi(power), 20.0));
    }
    Outcome::Ran
}

fn all_sizes_go_to_8_mib(device: &Device) -> Outcome {
    if device.max_msg_sz < 8 << 20 {
        return Outcome::Skipped("the port's largest message is below 8 MiB");
    }
    let rows = run(&device.flags("write bw --loopback -a -n 5")).succeeded().rows();
    assert_eq!(rows.len(), 23);
    is_bandwidth(&rows[22], 8_388_608.0, 5.0);
    Outcome::Ran
}

fn odd_sizes(device: &Device) -> Outcome {
    for size in ["1", "3", "2047", "2049", "4095", "4097", "12345"] {
        let bytes: f64 = size.parse().unwrap();
        is_bandwidth(&row(device, &format!("write bw -n 70 -s {size}")), bytes, 70.0);
        is_latency(&row(device, &format!("write lat -n 20 -s {size}")), bytes, 20.0);
    }
    Outcome::Ran
}

fn more_messages_than_a_mark_counts(device: &Device) -> Outcome {
    is_latency(&row(device, "write lat -n 600"), 2.0, 600.0);
    Outcome::Ran
}

fn post_lists(device: &Device) -> Outcome {
    is_bandwidth(&row(device, "write bw -s 64 -l 64 -n 640"), 64.0, 640.0);
    is_bandwidth(&row(device, "write bw -s 64 -l 8 -n 800 -t 8 -Q 4"), 64.0, 800.0);
    is_bandwidth(&row(device, "write bw -s 4K -l 3 -n 300 -t 128"), 4096.0, 300.0);
    Outcome::Ran
}

fn queues_of_one(device: &Device) -> Outcome {
    is_bandwidth(&row(device, "write bw -s 64 -n 100 -t 1"), 64.0, 100.0);
    is_latency(&row(device, "write lat -n 20 -t 16"), 2.0, 20.0);
    Outcome::Ran
}

fn moderation_that_leaves_a_rest(device: &Device) -> Outcome {
    is_bandwidth(&row(device, "write bw -s 64 -n 250"), 64.0, 250.0);
    is_bandwidth(&row(device, "write bw -s 64 -n 101 -Q 7 -t 10"), 64.0, 101.0);
    is_bandwidth(&row(device, "write bw -s 64K -n 50 -Q 20"), 65536.0, 50.0);
    Outcome::Ran
}

fn inline_messages(device: &Device) -> Outcome {
    is_latency(&row(device, "write lat -n 50 -s 16 -I 32"), 16.0, 50.0);
    is_bandwidth(&row(device, "write bw -n 200 -s 16 -I 32"), 16.0, 200.0);
    // Messages above the inline size come from registered memory.
    is_latency(&row(device, "write lat -n 50 -s 64 -I 32"), 64.0, 50.0);
    is_latency(&row(device, "write lat -n 50 -I 0"), 2.0, 50.0);
    Outcome::Ran
}

fn port_and_gid_as_asked_for(device: &Device) -> Outcome {
    for index in &device.gid_indices {
        let ended = run(&device.flags(&format!("write bw --loopback -n 5 -i {} -x {index}", device.port)));
        // Some GIDs do not lead back to the port, but each can be selected.
        assert!(ended.stderr.contains(&format!("GID index {index}")), "{ended:#?}");
    }
    Outcome::Ran
}

fn a_device_is_found_and_explained(device: &Device) -> Outcome {
    let ended = run("write lat --loopback -n 5").succeeded();
    assert!(ended.stderr.contains("(the first with an active port)"), "{ended:#?}");
    assert!(!ended.stdout.contains("GID"), "{ended:#?}");
    assert!(
        ended.stderr.contains("write lat (ping-pong) over RC, messages of 2 bytes, 5 iterations"),
        "{ended:#?}"
    );
    let named = run(&device.flags("write lat --loopback -n 5")).succeeded();
    assert!(named.stderr.contains(&format!("device {} (as asked for)", device.name)), "{named:#?}");
    Outcome::Ran
}

fn memory_is_of_the_kind_that_suits_or_was_asked_for(device: &Device) -> Outcome {
    let default = if device.is_soft { "shared" } else { "malloc" };
    for (flags, kind) in [("", default), ("--buffer shared", "shared"), ("--buffer malloc", "malloc")] {
        for test in ["write bw -n 50 -s 4K", "write lat -n 50"] {
            let ended = run(&device.flags(&format!("{test} --loopback {flags}"))).succeeded();
            assert!(ended.stderr.contains(&format!("buffer {kind};")), "{ended:#?}");
        }
    }
    // Each side chooses its memory.
    let server = "write bw -n 50 --buffer malloc";
    let (server, client) = pair(device, server, "write bw -n 50 --buffer shared 127.0.0.1");
    assert!(server.stderr.contains("buffer malloc;") && client.stderr.contains("buffer shared;"));
    assert!(!client.stderr.contains("differ"), "{client:#?}");
    Outcome::Ran
}

fn calls_are_those_that_suit_or_were_asked_for(device: &Device) -> Outcome {
    for (flags, calls) in
        [("", "ibv_post_send"), ("--calls classic", "ibv_post_send"), ("--calls extended", "ibv_wr_*")]
    {
        for test in ["bw -n 500 -s 64", "bw -n 128 -l 16 -t 32", "lat -n 300", "lat -n 300 -I 16 -s 8"] {
            let ended = run(&device.flags(&format!("write {test} --loopback {flags}"))).succeeded();
            // Other devices may lack one of them, or default to another.
            if device.is_soft {
                assert!(ended.stderr.contains(&format!("by {calls},")), "{ended:#?}");
            }
        }
    }
    Outcome::Ran
}

fn a_software_device_is_named_as_such(device: &Device) -> Outcome {
    let ended = run(&device.flags("write bw --loopback -n 50 -s 64")).succeeded();
    let line = format!("# over {}, a software device: ", device.name);
    assert_eq!(ended.stdout.contains(&line), device.is_soft, "{ended:#?}");
    assert_eq!(ended.stderr.contains("(as asked for), software, port"), device.is_soft, "{ended:#?}");
    Outcome::Ran
}

/// The experience of a user without a NIC, without rdma-core, and without a choice of provider.
fn a_software_device_takes_the_place_of_none(device: &Device) -> Outcome {
    if !device.is_soft {
        return Outcome::Skipped("the system has a device");
    }
    let bare = |flags: &str| {
        let mut command = command(flags);
        command.env("RDMA_MUMMY_LIB_DIR", "/nonexistent").env_remove("SIDEWAY_PROVIDER");
        command
    };
    let noticed = |ended: Ended| {
        let ended = ended.succeeded();
        let lines = ended.stderr.lines().filter(|line| line.starts_with("notice: "));
        assert_eq!(lines.count(), 1, "{ended:#?}");
        assert!(ended.stdout.contains("# over soft0, a software device: "), "{ended:#?}");
        ended
    };
    let ended = noticed(Running::start(&mut bare("write bw -a --loopback -n 10")).end());
    assert_eq!(ended.rows().len(), 23, "{ended:#?}");
    let mut server = Running::start(&mut bare("write bw -a -n 10 -p 0"));
    let waiting = server.await_line("waiting for a client on TCP port");
    let port = waiting.rsplit(' ').next().unwrap();
    let client = Running::start(&mut bare(&format!("write bw -a -n 10 -p {port} 127.0.0.1"))).end();
    let (client, server) = (noticed(client), noticed(server.end()));
    assert_eq!(client.stdout, server.stdout);
    assert_eq!(client.rows().len(), 23);
    Outcome::Ran
}

fn server_and_client_print_the_same(device: &Device) -> Outcome {
    for test in ["write bw -n 50", "write lat -n 50", "write lat -n 50 --latency completion"] {
        let (server, client) = pair(device, test, &format!("{test} {}", name_of_this_machine()));
        assert_eq!(server.stdout, client.stdout);
        assert_eq!(client.rows().len(), 1);
        assert!(!client.stderr.contains("differ"), "{client:#?}");
    }
    Outcome::Ran
}

/// The announcement's commands, except for the device's name, the number of iterations, and the
/// last size, which would take SoftRoCE too long; and with a port, because another configuration of
/// this suite runs at the same time.
fn the_announcements_lines(device: &Device) -> Outcome {
    let d = &device.name;
    let port = test_harness::free_port().unwrap();
    let all = format!("-a --max-msg-size 16384 -p {port}");
    for (server, client) in [
        (format!("write bw -d {d} -n 10 {all}"), format!("write bw -d {d} 127.0.0.1 -n 20 {all}")),
        (
            format!("write bw -d {d} -n 128 {all} -l 64 -t 1024"),
            format!("write bw -d {d} -n 128 {all} 127.0.0.1 -l 64 -t 1024"),
        ),
        (format!("write lat -d {d} -n 20 {all}"), format!("write lat -d {d} -n 20 {all} 127.0.0.1")),
    ] {
        let server = thread::spawn(move || run(&server).succeeded());
        let client = run(&client).succeeded();
        let server = server.join().expect("the server succeeds");
        assert_eq!(client.rows().len(), 14, "{client:#?}");
        assert_eq!(client.stdout, server.stdout);
    }
    Outcome::Ran
}

fn the_clients_parameters_count(device: &Device) -> Outcome {
    let (server, client) = pair(device, "write bw -n 100 -s 4096", "write bw -n 70 -s 8K 127.0.0.1");
    for side in [&server, &client] {
        is_bandwidth(&side.rows()[0], 8192.0, 70.0);
        let mut lines =
            side.stderr.lines().skip_while(|line| !line.contains("and the client's count; give the server"));
        let table: Vec<Vec<_>> =
            lines.by_ref().skip(1).map(|line| line.split("  ").collect()).take(3).collect();
        let cells = |row: &[&str]| {
            row.iter().map(|cell| cell.trim()).filter(|cell| !cell.is_empty()).collect::<Vec<_>>().join("|")
        };
        let rows: Vec<_> = table.iter().map(|row| cells(row)).collect();
        assert_eq!(
            rows,
            ["parameter|client|server", "sizes (-s, -a, --max-msg-size)|8192|4096", "iterations (-n)|70|100"],
            "{side:#?}"
        );
    }
    Outcome::Ran
}

fn the_clients_test_counts(device: &Device) -> Outcome {
    let (server, client) = pair(device, "write bw", "write lat -n 20 127.0.0.1");
    assert_eq!(server.stdout, client.stdout);
    is_latency(&server.rows()[0], 2.0, 20.0);
    assert!(server.stderr.contains("  lat (ping-pong)  bw\n"), "{server:#?}");
    Outcome::Ran
}
