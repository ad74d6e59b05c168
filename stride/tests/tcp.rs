//! `stride-perf tcp`: the operating system's TCP, with the table of the other tests.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::common::{Ended, Running, command, is_bandwidth, is_latency, run};

/// A listening server, and its port.
fn server(flags: &str) -> (Running, String) {
    let mut server = Running::start(&mut command(&format!("{flags} -p 0")));
    let waiting = server.await_line("on TCP port");
    let port = waiting.split("TCP port ").nth(1).unwrap().split(',').next().unwrap().to_owned();
    (server, port)
}

#[test]
fn both_figures_have_the_table_of_other_tests() {
    let bandwidth = run("tcp bw --loopback -n 30").succeeded();
    is_bandwidth(&bandwidth.rows()[0], 65536.0, 30.0);
    let lines: Vec<_> = bandwidth.stdout.lines().collect();
    assert_eq!(
        lines[0],
        "# TCP bandwidth: all bytes / (the receiving program's answer to the last - first send)"
    );
    assert!(lines[1].starts_with("# over TCP, the system's, from 127.0.0.1:"), "{bandwidth:#?}");
    let latency = run("tcp lat --loopback -n 30").succeeded();
    is_latency(&latency.rows()[0], 2.0, 30.0);
    assert!(
        latency.stdout.contains("half the round trip of a ping-pong of the two programs"),
        "{latency:#?}"
    );
    assert!(latency.stdout.contains("TCP_NODELAY"), "{latency:#?}");
}

#[test]
fn every_size_is_measured_between_two_processes() {
    for (test, count) in [("tcp bw", 23), ("tcp lat", 23)] {
        let (server, port) = server(test);
        let client = run(&format!("{test} -a -n 5 127.0.0.1 -p {port}")).succeeded();
        let sizes: Vec<_> = client.rows().iter().map(|row| row[0]).collect();
        assert_eq!(sizes, (1..=count).map(|power| f64::from(1 << power)).collect::<Vec<_>>());
        assert_eq!(server.end().succeeded().rows(), client.rows());
    }
}

/// The server learns of the end of each size, and goes on with the next.
#[test]
fn a_time_takes_the_place_of_a_number() {
    for test in ["tcp bw", "tcp lat"] {
        let (server, port) = server(test);
        let client = run(&format!("{test} -a --max-msg-size 4 -D 0.2 127.0.0.1 -p {port}")).succeeded();
        let rows = client.rows();
        assert_eq!(rows.iter().map(|row| row[0]).collect::<Vec<_>>(), [2.0, 4.0], "{client:#?}");
        assert!(rows.iter().all(|row| row[1] > 0.0), "{client:#?}");
        assert_eq!(server.end().succeeded().rows(), rows);
    }
}

#[test]
fn a_server_that_stays_serves_it_too() {
    let mut server = Running::start(command("serve -p 0").env("SIDEWAY_PROVIDER", "soft"));
    let waiting = server.await_line("on TCP port");
    let port = waiting.split("TCP port ").nth(1).unwrap().split(',').next().unwrap().to_owned();
    let client = run(&format!("tcp lat -n 20 -s 4K 127.0.0.1 -p {port}")).succeeded();
    is_latency(&client.rows()[0], 4096.0, 20.0);
    let refused = run(&format!("tcp bw -n 5 -s 600M 127.0.0.1 -p {port}"));
    assert!(refused.refused().contains("serve --max-memory"), "{refused:#?}");
    server.signal("INT");
    assert_eq!(server.end().rows(), client.rows());
}

#[test]
fn results_are_as_those_of_other_tests() {
    let path = std::env::temp_dir().join(format!("stride-tcp-{}.json", std::process::id()));
    let _ = std::fs::remove_file(&path);
    run(&format!("tcp lat --loopback -n 50 --json {} --expect-p99 60000000", path.display())).succeeded();
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let document: serde_json::Value = serde_json::from_str(&text).unwrap();
    let schema = serde_json::from_str(include_str!("../schema/result.schema.json")).unwrap();
    let errors: Vec<_> = jsonschema::validator_for(&schema)
        .unwrap()
        .iter_errors(&document)
        .map(|error| error.to_string())
        .collect();
    assert!(errors.is_empty(), "{errors:?}");
    assert_eq!(
        (&document["parameters"]["operation"], &document["connection"]["transport"], &document["device"]),
        (&"tcp".into(), &"TCP".into(), &serde_json::Value::Null)
    );
    assert!(document["results"][0]["histogram"].is_object(), "{text}");
}

#[test]
fn flags_without_effect_are_reported() {
    let ended = run("tcp bw --loopback -n 5 -d mlx5_0 -x 3").succeeded();
    assert!(ended.stderr.contains("warning: -d, -x have no effect on tcp"), "{ended:#?}");
    let ended = run("tcp bw --loopback -n 1");
    assert!(ended.refused().contains("-n 1 is below"), "{ended:#?}");
}

/// A client and a server of different tests both report that.
#[test]
fn another_kind_of_test_is_refused() {
    let (server, port) = server("tcp bw");
    let mut client = command(&format!("write bw -n 5 127.0.0.1 -p {port}"));
    let client = Running::start(client.env("SIDEWAY_PROVIDER", "soft")).end();
    assert!(client.refused().contains("a request for write, by the way of `tcp`"), "{client:#?}");
    assert!(server.end().refused().contains("a request for write"));
}

#[test]
fn a_peer_that_dies_is_noticed() {
    let kill = |mut victim: Running, survivor: Running| -> Ended {
        sleep(Duration::from_millis(500));
        victim.kill();
        let start = Instant::now();
        let ended = survivor.end();
        assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
        assert_eq!(ended.status.code(), Some(2), "{ended:#?}");
        ended
    };
    for test in ["tcp bw -n 4000000000", "tcp lat -n 4000000000"] {
        let (victim, port) = server(test);
        let client = Running::start(&mut command(&format!("{test} 127.0.0.1 -p {port}")));
        kill(victim, client);
        let (survivor, port) = server(test);
        let client = Running::start(&mut command(&format!("{test} 127.0.0.1 -p {port}")));
        kill(client, survivor);
        // A stopped peer sends nothing.
        let (stopped, port) = server(test);
        let client = Running::start(&mut command(&format!("{test} 127.0.0.1 -p {port}")));
        sleep(Duration::from_millis(500));
        stopped.signal("STOP");
        let ended = client.end();
        assert!(ended.complaint().contains("has not been heard of for 8 s"), "{ended:#?}");
    }
}

/// A connection to the measured port without the token is rejected, and silent ones delay nobody.
#[test]
fn strangers_at_the_measured_port_are_sent_away() {
    let control = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let (server, port) = server("tcp bw");
    // A client whose messages are relayed up to the one with the server's port.
    let client = Running::start(&mut command(&format!(
        "tcp bw -n 5 -s 64 127.0.0.1 -p {}",
        control.local_addr().unwrap().port()
    )));
    let mut here = control.accept().unwrap().0;
    let mut there = TcpStream::connect((Ipv4Addr::LOCALHOST, port.parse().unwrap())).unwrap();
    let (mut from, mut to) = (here.try_clone().unwrap(), there.try_clone().unwrap());
    std::thread::spawn(move || std::io::copy(&mut from, &mut to));
    let (mut seen, mut buffer) = (String::new(), [0; 4096]);
    let (mut has_been, mut strangers) = (false, Vec::new());
    while let Ok(count @ 1..) = there.read(&mut buffer) {
        seen += &String::from_utf8_lossy(&buffer[..count]);
        if let Some((_, rest)) = seen.split_once("\"port\":").filter(|_| !has_been) {
            has_been = true;
            let port = rest.split(',').next().unwrap().parse().unwrap();
            let mut stranger = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
            stranger.write_all(&[7; 32]).unwrap();
            assert_eq!(stranger.read(&mut [0; 1]).unwrap_or(0), 0);
            let silent = || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
            strangers.extend((0..200).map(|_| silent()));
        }
        here.write_all(&buffer[..count]).unwrap();
    }
    drop(here);
    assert!(has_been, "{seen}");
    is_bandwidth(&client.end().succeeded().rows()[0], 64.0, 5.0);
    is_bandwidth(&server.end().succeeded().rows()[0], 64.0, 5.0);
}

#[test]
fn an_interrupted_one_keeps_what_it_has() {
    let mut running = Running::start(&mut command("tcp bw --loopback -n 4000000000"));
    running.await_line("65536 bytes, 1 s: ");
    running.signal("INT");
    let ended = running.end();
    assert_eq!(ended.status.code(), Some(130), "{ended:#?}");
    assert!(ended.stdout.contains("# interrupted after "), "{ended:#?}");
}

#[test]
fn a_link_local_server_without_an_interface_is_explained() {
    for server in ["fe80::1", "[fe80::1]"] {
        let ended = run(&format!("tcp bw {server} -p 7"));
        let line = ended.refused();
        assert!(line.starts_with("stride-perf: cannot reach a server at [fe80::1]:7: "), "{line}");
        let remedy = "; a link-local address needs the interface that leads there: fe80::1%eth0";
        assert!(line.ends_with(remedy), "{line}");
    }
    // With its interface it is an address like any other: nobody listens there.
    let ended = run("tcp bw fe80::1%lo -p 7");
    let line = ended.refused();
    assert!(line.starts_with("stride-perf: cannot reach a server at [fe80::1%lo]:7: "), "{line}");
    assert!(line.ends_with("without an address, and check -p and firewalls"), "{line}");
}
