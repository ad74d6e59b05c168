//! Peer processes that stop or end in the midst of a message.

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use sideway::soft::faults;
use test_harness::{Outcome, Suite, cases};
use trespass::{Builder, Event, Kind, Transport, Worker};

use super::{OF_CHILD, PATIENT, RULES, builder, command, nothing_is_left, plans, start, streams};
use crate::fixture::{Fixture, LONG, greet};
use crate::traffic::{self, is_failure};

pub(super) fn add(suite: &mut Suite<Fixture>) {
    cases!(suite: a_process_that_stops_in_the_midst_of_a_message_goes_on,
        a_process_that_ends_in_the_midst_of_a_message_is_noticed,
        a_peer_that_stops_in_the_midst_of_a_message_delays_nobody);
}

/// The steps of a sent message; a message that is fetched by READ passes fewer. Half a message is
/// visible only where it is copied. Short messages may share a frame, so the number of frames is at
/// most that of messages, and at least that of lent blocks.
const STEPS: [&str; 8] = [
    "before_mark opcode=send,send_with_imm nth=10",
    "before_claim opcode=send,send_with_imm nth=10",
    "claimed opcode=send,send_with_imm nth=10",
    "before_copy opcode=send,send_with_imm nth=10",
    "mid_copy size=1000.. nth=5",
    "before_finish opcode=send,send_with_imm nth=10",
    "before_announce opcode=send,send_with_imm nth=10",
    "before_doorbell opcode=send,send_with_imm nth=10",
];

fn a_process_that_stops_in_the_midst_of_a_message_goes_on(fixture: &Fixture) -> Outcome {
    faults::clear();
    // A stopped process sends no probes.
    let builder = builder(fixture).keepalive(None);
    for step in STEPS {
        let listener = builder.clone().bind(fixture.anywhere()).unwrap();
        listener.set_accept_timeout(Some(LONG)).unwrap();
        let addr = listener.local_addr().unwrap();
        let mut child = start(&format!("talk {addr}"), Some(&format!("stop={step}")));
        let (end, _) = listener.accept_seq_packet().unwrap();
        let pid = Pid::from_child(&child);
        let [to_server, to_client] = plans(OF_CHILD);
        let ended = thread::scope(|scope| {
            let talking = scope.spawn(|| traffic::messages(end, to_client, to_server, PATIENT));
            let status = waitpid(Some(pid), WaitOptions::UNTRACED).unwrap().expect("it has stopped").1;
            assert!(status.stopped(), "{step}: {status:?}");
            thread::sleep(Duration::from_millis(100));
            kill_process(pid, Signal::CONT).unwrap();
            talking.join().expect("this end has failed")
        });
        assert!(ended.error.is_none() && ended.got == 90, "{step}: {ended:?}");
        drop(ended);
        assert!(child.wait().unwrap().success(), "{step}");
    }
    Ok(())
}

fn a_process_that_ends_in_the_midst_of_a_message_is_noticed(fixture: &Fixture) -> Outcome {
    faults::clear();
    let builder = builder(fixture);
    for step in STEPS {
        let listener = builder.clone().bind(fixture.anywhere()).unwrap();
        listener.set_accept_timeout(Some(LONG)).unwrap();
        let addr = listener.local_addr().unwrap();
        let mut child = start(&format!("talk {addr}"), Some(&format!("crash={step}")));
        let (end, _) = listener.accept_seq_packet().unwrap();
        let pool = end.pool().clone();
        let [to_server, to_client] = plans(OF_CHILD);
        // The operating system reports the child's end.
        let ended = traffic::messages(end, to_client, to_server, PATIENT);
        let error = ended.error.as_ref().unwrap_or_else(|| panic!("{step}: {ended:?}"));
        assert!(is_failure(error), "{step}: {error}");
        drop(ended);
        assert!(!child.wait().unwrap().success(), "{step}: it has not ended there");
        nothing_is_left(&pool);
    }
    Ok(())
}

/// How long a device waits for a stopped peer.
pub(super) const REVOKE: Duration = Duration::from_secs(100);

/// Where the peer stops: it uses the queue pair, or also memory that was lent to it.
const STOPS: [&str; 2] =
    ["stop=before_announce opcode=send,send_with_imm nth=10", "stop=before_copy opcode=rdma_read"];

fn a_peer_that_stops_in_the_midst_of_a_message_delays_nobody(_: &Fixture) -> Outcome {
    faults::clear();
    for way in ["socket", "worker"] {
        for stop in STOPS {
            let mut command = command(&format!("drop {way}"), Some(stop));
            let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
            let mut peer = String::new();
            BufReader::new(child.stdout.take().unwrap()).read_line(&mut peer).unwrap();
            let told_at = Instant::now();
            assert!(child.wait().unwrap().success(), "{way}, {stop}");
            let took = told_at.elapsed();
            kill_process(Pid::from_raw(peer.trim().parse().unwrap()).unwrap(), Signal::KILL).unwrap();
            assert!(took < REVOKE / 2, "{way}, {stop}: the end of the process takes {took:?}");
        }
    }
    Ok(())
}

/// Drops a connection whose queue pair cannot be destroyed, because its peer has stopped. The thread
/// that drops it and the next connection wait for less time than the device does. Writes the peer's
/// number.
pub(super) fn drop_beside_a_stopped_peer(fixture: &Fixture, builder: &Builder, way: &str) {
    let stop = std::env::var(RULES).expect("rules");
    // Otherwise the stopped peer would keep this process's output open after a failure.
    let start_peer =
        |addr| command(&format!("talk {addr}"), Some(&stop)).stdout(Stdio::null()).spawn().unwrap();
    let (child, worker) = match way {
        "worker" => drop_in_worker(builder, start_peer),
        _ => (drop_socket(builder, start_peer), None),
    };
    let dropped_at = Instant::now();
    for _ in 0..5 {
        let [mut client, mut server] = streams(fixture, builder);
        greet(&mut client, &mut server);
        assert_eq!(client.transport(), Transport::Rdma, "{:?}", client.fallback_reason());
    }
    drop(worker);
    let took = dropped_at.elapsed();
    assert!(took < REVOKE / 2, "it takes {took:?}");
    println!("{}", child.id());
}

fn drop_socket(builder: &Builder, start_peer: impl FnOnce(SocketAddr) -> Child) -> Child {
    let listener = builder.clone().bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    listener.set_accept_timeout(Some(LONG)).unwrap();
    let child = start_peer(listener.local_addr().unwrap());
    let (mut end, _) = listener.accept_seq_packet().unwrap();
    end.set_nonblocking(true).unwrap();
    let mut buffer = vec![0; 1 << 20];
    until_it_stops(&child, || {
        let _ = end.recv(&mut buffer);
        let _ = end.send(&buffer[..400_000]);
    });
    let dropped_at = Instant::now();
    drop(end);
    assert!(dropped_at.elapsed() < REVOKE / 2, "the drop takes {:?}", dropped_at.elapsed());
    child
}

fn drop_in_worker(
    builder: &Builder,
    start_peer: impl FnOnce(SocketAddr) -> Child,
) -> (Child, Option<Worker>) {
    let mut worker = Worker::new(&builder.clone().build().unwrap()).unwrap();
    let listener = worker.listen((Ipv4Addr::LOCALHOST, 0), Kind::SeqPacket).unwrap();
    let child = start_peer(worker.local_addr(listener).unwrap());
    let (mut connection, mut events, mut buffer) = (None, Vec::new(), vec![0; 1 << 20]);
    let mut act = || {
        worker.poll(&mut events, Some(Duration::ZERO)).unwrap();
        for event in events.drain(..) {
            if let Event::Accepted { key, .. } = event {
                connection = Some(key);
            }
        }
        if let Some(key) = connection {
            let _ = worker.recv(key, &mut buffer);
            let _ = worker.send(key, &buffer[..400_000]);
        }
        connection
    };
    until_it_stops(&child, || _ = act());
    // It may have sent its last message before the poll that reports it.
    let until = Instant::now() + LONG;
    let key = loop {
        match act() {
            Some(key) => break key,
            None => assert!(Instant::now() < until, "a peer that stopped is not reported"),
        }
    };
    let dropped_at = Instant::now();
    worker.close(key);
    while dropped_at.elapsed() < Duration::from_secs(1) {
        worker.poll(&mut events, Some(Duration::from_millis(200))).unwrap();
    }
    assert!(dropped_at.elapsed() < REVOKE / 2, "the worker is stuck for {:?}", dropped_at.elapsed());
    (child, Some(worker))
}

fn until_it_stops(child: &Child, mut act: impl FnMut()) {
    let until = Instant::now() + LONG;
    let options = WaitOptions::UNTRACED | WaitOptions::NOHANG;
    while waitpid(Some(Pid::from_child(child)), options).unwrap().is_none() {
        assert!(Instant::now() < until, "the peer does not stop");
        act();
    }
}
