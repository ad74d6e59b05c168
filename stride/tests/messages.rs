//! `stride-perf msg`: messages of trespass, over software devices and over TCP.

use std::process::Command;

use crate::common::{Ended, FAILURE, Running, command, is_bandwidth, is_latency};

/// The program over a software device, unless the flags select TCP.
fn soft(flags: &str) -> Command {
    let mut command = command(flags);
    command.env("SIDEWAY_PROVIDER", "soft").env_remove("TRESPASS_TRANSPORT").env_remove("TRESPASS_DEV");
    command
}

#[track_caller]
fn run(flags: &str) -> Ended {
    Running::start(&mut soft(flags)).end()
}

/// A listening server, and its port.
fn server(flags: &str) -> (Running, String) {
    let mut server = Running::start(&mut soft(&format!("{flags} -p 0")));
    let waiting = server.await_line("waiting for a client on TCP port");
    (server, waiting.rsplit(' ').next().unwrap().to_owned())
}

/// Runs a server and a client; returns the output of both.
#[track_caller]
fn pair(of_server: &str, of_client: &str) -> (Ended, Ended) {
    let (server, port) = server(of_server);
    let client = run(&format!("{of_client} 127.0.0.1 -p {port}")).succeeded();
    (server.end().succeeded(), client)
}

#[test]
fn both_interfaces_are_measured_over_both_transports() {
    for api in ["copy", "pool"] {
        for (transport, over) in [("rdma", "# over soft0, a software device"), ("tcp", "# over TCP")] {
            let flags = format!("--loopback --api {api} --transport {transport} -n 30");
            let bw = run(&format!("msg bw {flags}")).succeeded();
            is_bandwidth(&bw.rows()[0], 65536.0, 30.0);
            let lat = run(&format!("msg lat {flags}")).succeeded();
            is_latency(&lat.rows()[0], 2.0, 30.0);
            for ended in [bw, lat] {
                assert!(ended.stdout.contains(&format!("messages (--api {api})")), "{ended:#?}");
                assert!(ended.stdout.contains(over), "{ended:#?}");
            }
        }
    }
}

#[test]
fn all_sizes_go_through_frames_sources_and_parts() {
    for (api, last) in [("copy", 23), ("pool", 20)] {
        let ended = run(&format!("msg bw --loopback -a -n 5 --api {api}")).succeeded();
        let rows = ended.rows();
        assert_eq!(rows.len(), last, "{ended:#?}");
        rows.iter().zip(1..).for_each(|(row, power)| is_bandwidth(row, 2f64.powi(power), 5.0));
    }
    let ended = run("msg bw --loopback -a -n 40 --cork").succeeded();
    assert!(ended.stdout.contains("short ones go together (--cork)"), "{ended:#?}");
    ended.rows().iter().zip(1..).for_each(|(row, power)| is_bandwidth(row, 2f64.powi(power), 40.0));
    let ended = run("msg lat --loopback -a --max-msg-size 256K -n 5 --transport tcp --api pool").succeeded();
    assert_eq!(ended.rows().len(), 18, "{ended:#?}");
}

/// The row of a mux, which also has the requests for each write.
#[track_caller]
fn is_muxed(row: &[f64], cell: [f64; 3]) {
    let (per_write, row) = row.split_last().unwrap();
    is_echo(row, cell);
    assert!((0.001..=cell[2]).contains(per_write), "{row:?} {per_write}");
}

#[track_caller]
fn is_echo(row: &[f64], cell: [f64; 3]) {
    let [bytes, count, in_flight, gigabits, p90, p99, rate] = row[..] else { panic!("{row:?}") };
    assert_eq!([bytes, count, in_flight], cell, "{row:?}");
    assert!(gigabits > 0.0 && rate > 0.0 && p90 > 0.0 && p90 <= p99, "{row:?}");
    // By Little's law, requests per second equal those in flight divided by the latency; the bound
    // allows for the slowest tenth.
    assert!(rate * p99 / 1e6 > 0.5 * in_flight.min(count / 2.0) || in_flight == 1.0, "{row:?}");
}

#[test]
fn the_grid_has_each_size_with_each_number_of_requests_in_flight() {
    let in_flight = [1.0, 4.0, 16.0, 64.0, 256.0];
    for (flags, sizes) in [
        ("--transport rdma", &[128.0, 4096.0, 32768.0, 262_144.0, 1_048_576.0, 8_388_608.0][..]),
        ("--transport rdma --api pool", &[128.0, 4096.0, 32768.0, 262_144.0, 1_048_576.0]),
        ("--transport tcp --max-msg-size 1M", &[128.0, 4096.0, 32768.0, 262_144.0, 1_048_576.0]),
    ] {
        let ended = run(&format!("msg grid --loopback {flags} -n 20")).succeeded();
        let rows = ended.rows();
        assert_eq!(rows.len(), sizes.len() * in_flight.len(), "{ended:#?}");
        let cells = sizes.iter().flat_map(|size| in_flight.map(|in_flight| [*size, 20.0, in_flight]));
        rows.iter().zip(cells).for_each(|(row, cell)| is_echo(row, cell));
    }
}

#[test]
fn one_cell_of_the_grid_is_chosen_by_size_and_depth() {
    for api in ["copy", "pool"] {
        let (server, client) = pair("msg grid", &format!("msg grid --api {api} -s 64 -t 512 -n 20000"));
        assert_eq!(server.stdout, client.stdout);
        let [row] = &client.rows()[..] else { panic!("{client:#?}") };
        is_echo(row, [64.0, 20_000.0, 512.0]);
    }
}

#[test]
fn the_grid_runs_over_a_mux() {
    for transport in ["rdma", "tcp"] {
        let flags = format!("msg grid --loopback --api mux --transport {transport} -n 20");
        let ended = run(&flags).succeeded();
        assert!(ended.stdout.contains("mux (--api mux)"), "{ended:#?}");
        let rows = ended.rows();
        let cells = [128.0, 4096.0, 32768.0, 262_144.0, 1_048_576.0, 8_388_608.0]
            .into_iter()
            .flat_map(|size| [1.0, 4.0, 16.0, 64.0, 256.0].map(|in_flight| [size, 20.0, in_flight]));
        assert_eq!(rows.len(), 30, "{ended:#?}");
        rows.iter().zip(cells).for_each(|(row, cell)| is_muxed(row, cell));
    }
}

#[test]
fn small_requests_in_flight_share_writes() {
    let (server, client) = pair("msg grid --api mux", "msg grid --api mux -s 128 -t 256 -n 256");
    assert_eq!(server.stdout, client.stdout);
    let [row] = &client.rows()[..] else { panic!("{client:#?}") };
    is_muxed(row, [128.0, 256.0, 256.0]);
    assert!(row[7] >= 64.0, "{row:?}");
    let long = &run("msg grid --loopback --api mux -s 1M -t 4 -n 20").succeeded().rows()[0];
    is_muxed(long, [1_048_576.0, 20.0, 4.0]);
    assert!(long[7] < 1.0, "a long one takes several writes: {long:?}");
}

#[test]
fn a_server_with_a_mux_answers_after_a_delay() {
    for flags in ["-n 50", "-D 0.2"] {
        let client = format!("msg grid --api mux -s 64 -t 16 {flags}");
        let (server, client) = pair("msg grid --api mux --delay-us 3000", &client);
        assert_eq!(server.stdout, client.stdout);
        let [row] = &client.rows()[..] else { panic!("{client:#?}") };
        is_muxed(row, [64.0, row[1], 16.0]);
        assert!(row[4] >= 3000.0, "{row:?}");
    }
    let ended = run("msg grid --api mux --delay-us 5 127.0.0.1 -p 1");
    assert!(ended.stderr.contains("--delay-us 5 has no effect on a client"), "{ended:#?}");
}

#[test]
fn a_mux_on_one_side_is_told_of() {
    for (of_server, of_client) in [("", "--api mux"), ("--api mux", "")] {
        let (mut listening, port) = server(&format!("msg grid {of_server}"));
        let connect = || run(&format!("msg grid {of_client} 127.0.0.1 -p {port}"));
        let mut client = connect();
        if client.stderr.contains("closed the control connection") {
            // A listener takes both kinds until its program first accepts, and then resets the other.
            client = connect();
        }
        assert!(client.refused().contains("give --api mux to both sides or to neither"), "{client:#?}");
        listening.kill();
    }
}

/// The server learns of the end of each size, and goes on with the next.
#[test]
fn a_time_takes_the_place_of_a_number() {
    for flags in ["--transport rdma", "--transport rdma --api pool", "--transport tcp"] {
        let (server, client) = pair("msg bw", &format!("msg bw {flags} -a --max-msg-size 4 -D 0.2"));
        assert_eq!(server.stdout, client.stdout);
        let (rows, sizes) = (client.rows(), [2.0, 4.0]);
        assert_eq!(rows.len(), sizes.len(), "{client:#?}");
        rows.iter().zip(sizes).for_each(|(row, size)| is_bandwidth(row, size, row[1]));
        let latency = &run(&format!("msg lat --loopback {flags} -s 64 -D 0.2")).succeeded().rows()[0];
        is_latency(latency, 64.0, latency[1]);
        let echo = &run(&format!("msg grid --loopback {flags} -s 64 -t 8 -D 0.2")).succeeded().rows()[0];
        is_echo(echo, [64.0, echo[1], 8.0]);
        if !flags.contains("pool") {
            let muxed = run(&format!("msg grid --loopback {flags} --api mux -s 64 -t 8 -D 0.2")).succeeded();
            let row = &muxed.rows()[0];
            is_muxed(row, [64.0, row[1], 8.0]);
            assert!(row[1] > 0.0, "{flags}");
        }
        for count in [rows[0][1], rows[1][1], latency[1], echo[1]] {
            assert!(count > 0.0, "{flags}");
        }
    }
    let ended = run("msg bw --loopback -D 1 -n 5").succeeded();
    assert!(ended.stderr.contains("-n 5 has no effect with -D 1"), "{ended:#?}");
}

/// The buffers of both sides hold a fraction of the requests in flight.
#[test]
fn requests_that_do_not_fit_wait_for_room_without_stopping_the_answers() {
    for transport in ["rdma", "tcp"] {
        let flags = format!("msg grid --loopback --transport {transport} -s 4M -t 32 -n 64");
        is_echo(&run(&flags).succeeded().rows()[0], [4_194_304.0, 64.0, 32.0]);
    }
}

#[test]
fn a_depth_of_one_waits_for_each_block() {
    for size in ["64", "200000"] {
        let ended = run(&format!("msg bw --loopback --api pool -t 1 -n 40 -s {size}")).succeeded();
        is_bandwidth(&ended.rows()[0], size.parse().unwrap(), 40.0);
    }
}

#[test]
fn server_and_client_print_the_same_and_the_clients_parameters_count() {
    let (server, client) = pair("msg bw", "msg lat -n 20 -s 300");
    assert_eq!(server.stdout, client.stdout);
    is_latency(&client.rows()[0], 300.0, 20.0);
    for ended in [&server, &client] {
        assert!(ended.stderr.contains("  lat (ping-pong)  bw\n"), "{ended:#?}");
        assert!(ended.stderr.contains("over RDMA (soft0)"), "{ended:#?}");
    }
}

#[test]
fn a_side_without_rdma_is_told_of() {
    let (serving, client) = pair("msg bw --transport tcp", "msg bw -n 20");
    for ended in [&serving, &client] {
        assert!(ended.stdout.contains("# over TCP\n"), "{ended:#?}");
        assert!(ended.stderr.contains("no RDMA, as "), "{ended:#?}");
    }
    let (mut listening, port) = server("msg bw --transport tcp");
    let client = run(&format!("msg bw --transport rdma 127.0.0.1 -p {port}"));
    assert!(client.refused().contains("RDMA"), "{client:#?}");
    listening.kill();
}

#[test]
fn a_named_device_is_used_or_missed() {
    let ended = run("msg lat --loopback -n 5 -d soft0 -i 1").succeeded();
    assert!(ended.stdout.contains("soft0"), "{ended:#?}");
    let ended = run("msg lat --loopback -n 5 -d no_such_0 --transport rdma");
    assert!(ended.refused().contains("no_such_0"), "{ended:#?}");
}

#[test]
fn the_other_kind_of_test_is_told_from_this_one() {
    let (mut listening, port) = server("write bw");
    let client = run(&format!("msg bw 127.0.0.1 -p {port}"));
    assert_eq!(client.status.code(), Some(FAILURE), "{client:#?}");
    assert!(client.complaint().contains("run `stride-perf msg` there"), "{client:#?}");
    let said = listening.await_line("does not speak stride-perf's protocol");
    assert!(said.contains("a client of `stride-perf msg`"), "{said}");
    assert!(said.contains("waiting for another client"), "{said}");
    listening.kill();
}

/// They are more than the server hears at a time, so that the oldest make room.
#[test]
fn connections_that_say_nothing_delay_no_client() {
    let stranger = trespass::Builder::new().policy(trespass::Policy::TcpOnly).build().unwrap();
    for transport in ["rdma", "tcp"] {
        let (mut serving, port) = server("msg bw");
        let connect = |_| stranger.connect_seq_packet(format!("127.0.0.1:{port}")).unwrap();
        let silent: Vec<_> = (0..70).map(connect).collect();
        serving.await_line("made room for another connection");
        let client = run(&format!("msg bw 127.0.0.1 -p {port} -n 20 --transport {transport}")).succeeded();
        is_bandwidth(&client.rows()[0], 65536.0, 20.0);
        serving.await_line("serving 127.0.0.1");
        serving.end().succeeded();
        drop(silent);
    }
}

#[test]
fn a_server_that_stays_takes_no_messages_and_says_so() {
    let mut serving = Running::start(&mut soft("serve -p 0"));
    let waiting = serving.await_line("waiting for clients on TCP port");
    let port = waiting.split("TCP port ").nth(1).and_then(|rest| rest.split(',').next()).unwrap();
    for transport in ["auto", "rdma", "tcp"] {
        let client = run(&format!("msg grid 127.0.0.1 -p {port} --transport {transport}"));
        let line = client.refused();
        assert!(line.contains("serve") && line.contains("run `stride-perf msg` there"), "{line}");
        serving.await_line("a client of `stride-perf msg`");
    }
    serving.kill();
}

#[test]
fn a_peer_that_dies_is_noticed() {
    for (transport, api) in [("rdma", "copy"), ("rdma", "pool"), ("tcp", "copy")] {
        let (mut listening, port) = server("msg bw");
        let flags =
            format!("msg bw 127.0.0.1 -p {port} -n 100000000 -s 1000 --transport {transport} --api {api}");
        let client = Running::start(&mut soft(&flags));
        listening.await_line("iterations");
        listening.kill();
        let client = client.end();
        assert!(client.complaint().contains(&format!("127.0.0.1:{port} closed")), "{client:#?}");
    }
}

#[test]
fn nobody_there_is_said_in_one_line() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let ended = run(&format!("msg bw 127.0.0.1 -p {port}"));
    assert!(ended.refused().contains(&port.to_string()), "{ended:#?}");
}
