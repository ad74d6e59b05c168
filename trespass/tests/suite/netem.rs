//! Connections over a network that loses, delays, repeats and reorders packets: two SoftRoCE
//! devices at the ends of a veth pair, which the kernel's netem disturbs.
//!
//!     cargo xtask softroce --suite --test netem
//!
//! The suite first checks that netem acts: a delay of 20 ms must lengthen a round trip by as much,
//! over TCP, which carries the handshakes, and over RDMA. Otherwise the traffic bypasses netem, and
//! every case fails.

use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::process::{Command, ExitCode};
use std::thread;
use std::time::{Duration, Instant};

use test_harness::{Outcome, RunOptions, Suite, cases};
use trespass::{Builder, SeqPacket, Stream, Transport};

use super::bare;
use super::fixture::{Fixture, Target};
use super::traffic::{self, TrafficPlan, TrafficResult, WaitLimits, both, is_failure};

/// A guest is slow, and at 5 % loss its devices move half a megabyte a second at most.
const CASE_LIMIT: Duration = Duration::from_secs(300);
const PATIENT: WaitLimits = WaitLimits { limit: Duration::from_secs(240), nap: Duration::from_secs(240) };
const WATCHFUL: WaitLimits = WaitLimits { limit: Duration::from_secs(240), nap: Duration::from_millis(100) };

/// The devices' interfaces.
const INTERFACES: [&str; 2] = ["veth0", "veth1"];

/// The delay that the check expects to see.
const DELAY: Duration = Duration::from_millis(20);

pub(crate) fn run(part: &'static str) -> ExitCode {
    let mut suite = Suite::<Fixture>::default().of_part(part);
    cases!(suite: packets_that_are_late_arrive, one_packet_in_a_hundred_is_lost, one_packet_in_twenty_is_lost,
        packets_overtake_each_other, packets_come_twice, a_cut_cable_ends_both_ends,
        reads_without_trespass);
    let terms = RunOptions {
        required: test_harness::device_is_required(),
        limit: CASE_LIMIT,
        advice: "`cargo xtask softroce --suite --test netem` runs them in a virtual machine with two SoftRoCE devices.",
    };
    suite.run(&test_harness::arguments(), &prepared(), terms)
}

/// A test device whose listeners use the second device and whose clients use the first, if netem
/// acts between both.
fn prepared() -> Result<Fixture, String> {
    let address = std::env::var("SOFTROCE_PEER_ADDRESS")
        .map_err(|_| "SOFTROCE_PEER_ADDRESS names no second device".to_owned())?;
    // A client without a source address uses the first device, and its packets cross the wire.
    command("ip", &format!("rule add pref 3 iif lo to {address} lookup 100"))?;
    let fixture = Fixture::new(Target::System, address.parse::<IpAddr>().map_err(|error| error.to_string())?);
    let (tcp, rdma) = (round_trip_by_tcp(&fixture), round_trip(&fixture));
    let (late_tcp, late_rdma) = {
        let _netem = Netem::begin("delay 20ms")?;
        (round_trip_by_tcp(&fixture), round_trip(&fixture))
    };
    println!(
        "there and back: by TCP {tcp:?}, by RDMA {rdma:?}; with {DELAY:?} each way {late_tcp:?} and {late_rdma:?}"
    );
    for (usual, late, way) in [(tcp, late_tcp, "TCP"), (rdma, late_rdma, "RDMA")] {
        if usual >= DELAY || late < usual + DELAY {
            return Err(format!(
                "a delay of {DELAY:?} is not to be seen by {way}: {usual:?} without, {late:?} with it"
            ));
        }
    }
    Ok(fixture)
}

fn command(program: &str, arguments: &str) -> Result<(), String> {
    let output = Command::new(program).args(arguments.split(' ')).output();
    let output = output.map_err(|error| format!("{program} cannot be started: {error}"))?;
    let told = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(format!("{program} {arguments}: {}", told.trim())) }
}

/// A netem discipline on both interfaces, removed when this is dropped.
struct Netem;

impl Netem {
    fn begin(what: &str) -> Result<Self, String> {
        let netem = Self;
        for interface in INTERFACES {
            command("tc", &format!("qdisc replace dev {interface} root netem limit 10000 {what}"))?;
        }
        Ok(netem)
    }
}

impl Drop for Netem {
    fn drop(&mut self) {
        for interface in INTERFACES {
            if let Err(error) = command("tc", &format!("qdisc del dev {interface} root")) {
                println!("{error}");
            }
        }
    }
}

/// The shortest of five round trips.
fn shortest(mut once: impl FnMut()) -> Duration {
    let time = |_| {
        let begin = Instant::now();
        once();
        begin.elapsed()
    };
    (0..5).map(time).min().expect("five")
}

/// The client's builder with a separate pool: its device differs from the server's, and a pool
/// belongs to one device.
fn of_client(builder: Builder) -> Builder {
    builder.pool_max(1000 << 20)
}

/// Both ends of a message connection.
fn packets(fixture: &Fixture, set: impl Fn(Builder) -> Builder) -> [SeqPacket; 2] {
    let listener = set(fixture.builder()).bind(fixture.anywhere()).unwrap();
    let addr = listener.local_addr().unwrap();
    let accepting = thread::spawn(move || listener.accept_seq_packet().unwrap().0);
    let client = of_client(set(fixture.builder())).connect_seq_packet(addr).unwrap();
    let ends = [client, accepting.join().unwrap()];
    assert_eq!(ends.each_ref().map(SeqPacket::transport), [Transport::Rdma; 2]);
    assert_ne!(ends[0].device(), ends[1].device(), "a device talks to itself");
    for end in &ends {
        end.set_read_timeout(Some(PATIENT.limit)).unwrap();
        end.set_write_timeout(Some(PATIENT.limit)).unwrap();
    }
    ends
}

fn round_trip(fixture: &Fixture) -> Duration {
    let [mut client, mut server] = packets(fixture, |builder| builder);
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut buffer = [0; 64];
            while server.recv(&mut buffer).is_ok() {
                server.send(&buffer).unwrap();
            }
        });
        let mut buffer = [0; 64];
        let time = shortest(|| {
            client.send(&[0; 64]).unwrap();
            assert_eq!(client.recv(&mut buffer).unwrap(), 64);
        });
        drop(client);
        time
    })
}

fn round_trip_by_tcp(fixture: &Fixture) -> Duration {
    let listener = TcpListener::bind(fixture.anywhere()).unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    client.set_nodelay(true).unwrap();
    server.set_nodelay(true).unwrap();
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut buffer = [0; 64];
            while server.read_exact(&mut buffer).is_ok() {
                server.write_all(&buffer).unwrap();
            }
        });
        let time = shortest(|| {
            client.write_all(&[0; 64]).unwrap();
            client.read_exact(&mut [0; 64]).unwrap();
        });
        drop(client);
        time
    })
}

/// Both ends of a message and of a byte connection, established while netem acts.
fn connected(fixture: &Fixture) -> ([SeqPacket; 2], [Stream; 2]) {
    // The devices retransmit without limit, because lost packets are no reason to give up; an RNR
    // ends the connection.
    let builder =
        |builder: Builder| builder.retry_count(7).rnr_retry(0).keepalive(Some(Duration::from_secs(60)));
    let streams = fixture.streams_of(of_client(builder(fixture.builder())), builder(fixture.builder()));
    (packets(fixture, builder), streams.into())
}

fn plans(seed: u64, count: usize, most: usize) -> [TrafficPlan; 2] {
    [0, 1].map(|side| TrafficPlan { seed: 2 * seed + side, count, most })
}

fn expect_all<E>(ends: &[TrafficResult<E>; 2], what: &str) {
    for end in ends {
        assert!(end.error.is_none(), "{what}: {:?}", end.error);
    }
}

/// All data arrives, once and in order: `count` messages in each direction, and as many pieces of a
/// stream.
fn all_arrives(fixture: &Fixture, netem: &str, count: usize, most: usize) -> Outcome {
    let _netem = Netem::begin(netem).unwrap();
    let begin = Instant::now();
    let (packets, streams) = connected(fixture);
    let made = begin.elapsed();
    let messages =
        both(packets, plans(1, count, most), |end, out, into| traffic::messages(end, out, into, PATIENT));
    expect_all(&messages, netem);
    assert!(messages.iter().all(|end| end.got == count && end.lent == count / 3), "{netem}");
    let bytes =
        both(streams, plans(2, count, most), |end, out, into| traffic::bytes(end, out, into, PATIENT));
    expect_all(&bytes, netem);
    println!(
        "{netem}: connected in {made:?}, {} messages and {} bytes each way in {:?}",
        count,
        bytes[0].got,
        begin.elapsed() - made
    );
    Ok(())
}

fn packets_that_are_late_arrive(fixture: &Fixture) -> Outcome {
    all_arrives(fixture, "delay 20ms", 60, 70_000)
}

fn one_packet_in_a_hundred_is_lost(fixture: &Fixture) -> Outcome {
    all_arrives(fixture, "loss 1%", 150, 70_000)
}

fn one_packet_in_twenty_is_lost(fixture: &Fixture) -> Outcome {
    all_arrives(fixture, "loss 5%", 60, 70_000)
}

fn packets_overtake_each_other(fixture: &Fixture) -> Outcome {
    all_arrives(fixture, "delay 4ms reorder 75% 50%", 30, 9000)
}

fn packets_come_twice(fixture: &Fixture) -> Outcome {
    all_arrives(fixture, "duplicate 5%", 60, 70_000)
}

/// From some moment on nothing arrives any more, while both ends send.
fn a_cut_cable_ends_both_ends(fixture: &Fixture) -> Outcome {
    // SoftRoCE treats 7 as unlimited.
    let ends = packets(fixture, |builder| builder.retry_count(3).keepalive(Some(Duration::from_secs(2))));
    let begin = Instant::now();
    let (_netem, ends) = thread::scope(|scope| {
        let cut = scope.spawn(|| {
            thread::sleep(Duration::from_secs(1));
            Netem::begin("loss 100%").unwrap()
        });
        let ends =
            both(ends, plans(3, 100_000, 9000), |end, out, into| traffic::messages(end, out, into, WATCHFUL));
        (cut.join().unwrap(), ends)
    });
    println!("a cut cable was noticed within {:?}", begin.elapsed());
    for end in &ends {
        let error = end.error.as_ref().expect("nothing comes to its end any more");
        assert!(is_failure(error), "{:?}: {error}", error.kind());
    }
    // The closing handshake is lost, too.
    ends.into_iter().for_each(drop);
    Ok(())
}

/// RDMA READs of the devices alone. On Linux 6.1 they arrive, so trespass uses READs there. On
/// later kernels the case reports the outcome.
fn reads_without_trespass(_: &Fixture) -> Outcome {
    let devices = ["SOFTROCE_DEVICE", "SOFTROCE_PEER_DEVICE"]
        .map(|name| std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set")));
    let _netem = Netem::begin("loss 5%").unwrap();
    let is_old = std::env::var("SOFTROCE_RDMA_CORE").is_ok_and(|name| name == "old");
    for (at_once, has_to) in [(1, is_old), (1, is_old), (16, is_old), (16, is_old)] {
        match bare::reads(&devices, at_once) {
            Err(error) if has_to => panic!("{at_once} READs at a time: {error}"),
            Err(error) => println!("{at_once} READs at a time do not arrive: {error}"),
            Ok(()) => println!("{at_once} READs at a time arrive"),
        }
    }
    Ok(())
}
