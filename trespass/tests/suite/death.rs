//! I9: the peer's process is killed at random moments; whatever was pending completes, once.

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use test_harness::{Outcome, cases};
use trespass::Completion;

use super::rig::{LONG, Rig, Target, below, random};

pub(crate) fn add(suite: &mut test_harness::Suite<Rig>) {
    cases!(suite: i9_a_killed_peer_ends_every_call, i9_a_killed_peer_ends_a_blocked_reader_and_writer,
        i9_every_ticket_completes_once);
}

/// What a child process does: `PART ADDR`, with the rig's own target.
const CHILD: &str = "TRESPASS_SUITE_CHILD";

/// The child's part, if this process is one.
pub(crate) fn part_of_child() -> Option<ExitCode> {
    let order = std::env::var(CHILD).ok()?;
    let (part, addr) = order.split_once(' ').expect("a part and an address");
    let addr: SocketAddr = addr.parse().expect("an address");
    let builder = Rig::new(Target::Tcp).builder();
    let mut buffer = vec![0; 1 << 20];
    match part {
        // Sends and receives until it is killed.
        "talk" => {
            let mut stream = builder.connect(addr).unwrap();
            stream.set_nonblocking(true).unwrap();
            loop {
                let _ = stream.write(&buffer);
                let _ = stream.read(&mut buffer);
            }
        }
        // Connects, and no more.
        "stand" => {
            let _stream = builder.connect(addr).unwrap();
            loop {
                thread::park();
            }
        }
        // Takes what comes, slowly.
        "take" => {
            let mut packets = builder.connect_seq_packet(addr).unwrap();
            loop {
                packets.recv(&mut buffer).unwrap();
                thread::sleep(Duration::from_micros(200));
            }
        }
        other => panic!("a child with the part {other:?}"),
    }
}

/// A child that is killed at the latest when it is dropped.
struct Peer(Child);

impl Peer {
    fn start(part: &str, addr: SocketAddr) -> Self {
        let program = std::env::current_exe().unwrap();
        let child = Command::new(program)
            .env(CHILD, format!("{part} {addr}"))
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self(child)
    }

    /// SIGKILL.
    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn is_death(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::ConnectionAborted)
}

fn i9_a_killed_peer_ends_every_call(rig: &Rig) -> Outcome {
    rig.not_over_queue_pairs_yet("how children end is not gone through over queue pairs")?;
    let (mut listener, addr) = rig.listener();
    let mut random = random(9);
    for round in 0..15 {
        let mut peer = Peer::start("talk", addr);
        let (mut stream, _) = listener.accept().unwrap();
        let delay = Duration::from_micros(below(&mut random, 20_000) as u64);
        let killer = thread::spawn(move || {
            thread::sleep(delay);
            peer.kill();
        });
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream.set_write_timeout(Some(LONG)).unwrap();
        let mut buffer = vec![0; 100_000];
        let deadline = Instant::now() + LONG;
        let error = loop {
            assert!(Instant::now() < deadline, "round {round}: nobody noticed");
            match stream.read(&mut buffer) {
                Ok(0) => panic!("round {round}: a killed peer is no orderly end"),
                Ok(count) => {
                    if let Err(error) = stream.write(&buffer[..count]) {
                        break error;
                    }
                }
                Err(error) => break error,
            }
        };
        killer.join().unwrap();
        assert!(is_death(error.kind()), "round {round}: {error}");
        // It stays so.
        loop {
            match stream.read(&mut buffer) {
                Ok(0) => panic!("round {round}: the end of a broken connection"),
                Ok(_) => (),
                Err(error) => break assert!(is_death(error.kind()), "round {round}: {error}"),
            }
        }
        assert!(is_death(stream.write(&buffer).unwrap_err().kind()));
    }
    Ok(())
}

fn i9_a_killed_peer_ends_a_blocked_reader_and_writer(rig: &Rig) -> Outcome {
    rig.not_over_queue_pairs_yet("how children end is not gone through over queue pairs")?;
    let (mut listener, addr) = rig.listener();
    for writes in [false, true] {
        let mut peer = Peer::start("stand", addr);
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream.set_write_timeout(Some(LONG)).unwrap();
        let waiting = thread::spawn(move || {
            if writes {
                stream.write_all(&vec![0; 256 << 20]).unwrap_err()
            } else {
                stream.read(&mut [0; 8]).unwrap_err()
            }
        });
        thread::sleep(Duration::from_millis(100));
        assert!(!waiting.is_finished());
        peer.kill();
        let error = waiting.join().unwrap();
        assert!(is_death(error.kind()), "{error}");
    }
    Ok(())
}

fn i9_every_ticket_completes_once(rig: &Rig) -> Outcome {
    rig.not_over_queue_pairs_yet("how children end is not gone through over queue pairs")?;
    let (mut listener, addr) = rig.listener();
    let mut random = random(99);
    for round in 0..8 {
        let mut peer = Peer::start("take", addr);
        let (mut packets, _) = listener.accept_seq_packet().unwrap();
        packets.set_nonblocking(true).unwrap();
        let delay = Duration::from_micros(below(&mut random, 30_000) as u64);
        let killer = thread::spawn(move || {
            thread::sleep(delay);
            peer.kill();
        });
        let (mut given, mut came, mut failed) = (Vec::new(), Vec::new(), false);
        let deadline = Instant::now() + LONG;
        let collect = |packets: &mut trespass::SeqPacket, came: &mut Vec<_>| {
            while let Some(Completion { ticket, .. }) = packets.completion() {
                came.push(ticket);
            }
        };
        while !failed {
            assert!(Instant::now() < deadline, "round {round}: nobody noticed");
            let len = 1 + below(&mut random, 60_000);
            // The pool is finite, and so are the buffers: what is refused comes back.
            match packets.buffer(len).map(|buffer| packets.send_buf(buffer, len)) {
                Ok(Ok(ticket)) => given.push(ticket),
                Ok(Err(refused)) => match refused.error.kind() {
                    ErrorKind::WouldBlock => thread::sleep(Duration::from_micros(100)),
                    kind => failed = is_death(kind),
                },
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
            }
            let _ = packets.readiness();
            collect(&mut packets, &mut came);
        }
        killer.join().unwrap();
        collect(&mut packets, &mut came);
        assert!(!given.is_empty());
        let mut once = came.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), came.len(), "round {round}: a ticket completed twice");
        assert_eq!(once, given, "round {round}: given, and completed");
    }
    Ok(())
}
