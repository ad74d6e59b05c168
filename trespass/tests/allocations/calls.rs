//! Tests that a steady sequence of hot path calls allocates nothing, at any level below them. The
//! tests cover sockets and workers, over TCP and over queue pairs of the software device in this
//! process. Each thread counts its own allocations.

use std::hint::black_box;
use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use crate::allocated;
use trespass::{Builder, Event, Kind, Listener, Policy, SeqPacket, Stream, Worker};

/// A limit far above the duration of any working call, so that a side whose peer has failed fails
/// too.
const LONG: Duration = Duration::from_secs(60);
/// Warm-up rounds, after which queues, pools and the system's lists have their final size.
const BEFORE: usize = 500;
const COUNTED: usize = 500;
/// Allocations that happen once, perhaps late: a queue holds something for the first time, or a
/// thread takes its first slot of the pool. `protocol_alone` tests that queues of their final size
/// allocate nothing at all.
const ONCE: u64 = 8;

/// Runs `round` repeatedly, and returns this thread's allocations after the warm-up.
fn allocations(mut round: impl FnMut()) -> u64 {
    (0..BEFORE).for_each(|_| round());
    let before = allocated();
    (0..COUNTED).for_each(|_| round());
    allocated() - before
}

/// What each side of a connection does in a round.
struct PeerClosures<A, B> {
    client: A,
    server: B,
}

/// Checks that neither side allocates.
fn expect_none<A: FnMut() + Send, B: FnMut() + Send>(what: &str, sides: PeerClosures<A, B>) {
    let PeerClosures { client, server } = sides;
    let counts = thread::scope(|scope| {
        let server = scope.spawn(|| allocations(server));
        [allocations(client), server.join().expect("the server")]
    });
    println!("{what}: {counts:?} allocations in {COUNTED} rounds of the client and the server");
    assert!(counts.iter().all(|count| *count <= ONCE), "{what}: {counts:?}");
}

fn builder(over_rdma: bool) -> Builder {
    // The first use of memory and the periodic trace allocate, so neither falls into the counted
    // rounds. Timeouts are generous for busy machines, and a fallback to TCP is not allowed.
    let builder = Builder::new().trace_interval(None).keepalive(None).rnr_retry(0);
    let builder = builder.handshake_deadline(LONG).probe_timeout(LONG / 3);
    builder.policy(if over_rdma { Policy::RequireRdma } else { Policy::TcpOnly })
}

/// Both ends of a connection. No call on them waits for ever.
fn ends<T: Send + 'static>(
    over_rdma: bool,
    connect: fn(Builder, SocketAddr) -> io::Result<T>,
    accept: fn(&mut Listener) -> io::Result<T>,
    limit: fn(&T) -> io::Result<()>,
) -> [T; 2] {
    let mut listener = builder(over_rdma).bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let server = thread::spawn(move || accept(&mut listener).unwrap());
    let ends = [connect(builder(over_rdma), addr).unwrap(), server.join().unwrap()];
    ends.iter().for_each(|end| limit(end).unwrap());
    ends
}

fn packets(over_rdma: bool) -> [SeqPacket; 2] {
    ends(
        over_rdma,
        |builder, addr| builder.connect_seq_packet(addr),
        |listener| Ok(listener.accept_seq_packet()?.0),
        |end| end.set_read_timeout(Some(LONG)).and_then(|()| end.set_write_timeout(Some(LONG))),
    )
}

fn streams(over_rdma: bool) -> [Stream; 2] {
    ends(
        over_rdma,
        |builder, addr| builder.connect(addr),
        |listener| Ok(listener.accept()?.0),
        |end| end.set_read_timeout(Some(LONG)).and_then(|()| end.set_write_timeout(Some(LONG))),
    )
}

/// Messages of `len` bytes in both directions.
fn messages(over_rdma: bool, len: usize) {
    let [mut client, mut server] = packets(over_rdma);
    let (message, mut answer, mut buffer) = (vec![7; len], vec![0; len], vec![0; len]);
    expect_none(
        &format!("messages of {len} bytes over {}", client.transport()),
        PeerClosures {
            client: || {
                client.send(&message).unwrap();
                assert_eq!(client.recv(&mut answer).unwrap(), len);
            },
            server: || {
                let got = server.recv(&mut buffer).unwrap();
                server.send(&buffer[..got]).unwrap();
            },
        },
    );
}

/// Blocks of the pool, which the peer receives without a copy.
fn blocks(over_rdma: bool, len: usize) {
    let [mut client, mut server] = packets(over_rdma);
    let mut block = Some(client.buffer(len).unwrap());
    expect_none(
        &format!("blocks of {len} bytes over {}", client.transport()),
        PeerClosures {
            client: || {
                client.send_buf(block.take().expect("it has come back"), len).unwrap();
                assert_eq!(client.recv(&mut [0; 8]).unwrap(), 1);
                block = client.next_completion().unwrap().map(|completion| completion.block);
            },
            server: || {
                let message = server.recv_buf().unwrap();
                assert_eq!(message.len(), len);
                drop(message);
                server.send(b"k").unwrap();
            },
        },
    );
}

fn bytes(over_rdma: bool, len: usize) {
    let [mut client, mut server] = streams(over_rdma);
    let (given, mut answer, mut buffer) = (vec![7; len], vec![0; len], vec![0; len]);
    expect_none(
        &format!("{len} bytes of a stream over {}", client.transport()),
        PeerClosures {
            client: || {
                client.write_all(&given).unwrap();
                client.read_exact(&mut answer).unwrap();
            },
            server: || {
                server.read_exact(&mut buffer).unwrap();
                server.write_all(&buffer).unwrap();
            },
        },
    );
}

/// Runs an echoing worker and an asking worker until each has completed its rounds.
fn workers(over_rdma: bool, len: usize) {
    let config = builder(over_rdma).build().unwrap();
    let (tell, told) = std::sync::mpsc::channel::<SocketAddr>();
    let server = thread::spawn({
        let config = config.clone();
        move || {
            let mut worker = Worker::new(&config).unwrap();
            let listener = worker.listen("127.0.0.1:0", Kind::SeqPacket).unwrap();
            tell.send(worker.local_addr(listener).unwrap()).unwrap();
            turns(worker, len, None)
        }
    });
    let mut worker = Worker::new(&config).unwrap();
    worker.connect(told.recv().unwrap(), Kind::SeqPacket).unwrap();
    let message = vec![7; len];
    let counts = [turns(worker, len, Some(&message)), server.join().unwrap()];
    println!(
        "workers with messages of {len} bytes, over RDMA: {over_rdma}: {counts:?} allocations in {COUNTED} rounds"
    );
    assert!(
        counts.iter().all(|count| *count <= ONCE),
        "workers, {len} bytes, over RDMA: {over_rdma}: {counts:?}"
    );
}

/// Echoes each message, and sends `first` at the start if given. The asking side ends the exchange.
fn turns(mut worker: Worker, len: usize, first: Option<&[u8]>) -> u64 {
    let (mut events, mut buffer) = (Vec::with_capacity(16), vec![0; len]);
    let (mut rounds, mut before, mut count) = (0, 0, None);
    let deadline = Instant::now() + LONG;
    loop {
        assert!(Instant::now() < deadline, "only {rounds} rounds in {LONG:?}");
        worker.poll(&mut events, Some(Duration::from_secs(1))).unwrap();
        for event in events.drain(..) {
            let key = match event {
                Event::Connected { key, .. } => {
                    first.iter().for_each(|first| worker.send(key, first).unwrap());
                    continue;
                }
                Event::Ready { key, readiness, .. } if readiness.readable => key,
                Event::Failed { error, .. } => panic!("{error}"),
                _ => continue,
            };
            loop {
                match worker.recv(key, &mut buffer) {
                    Ok(got) => match worker.send(key, &buffer[..got]) {
                        Ok(()) => (),
                        // The asking side closes as soon as it has counted.
                        Err(error) => {
                            return count.unwrap_or_else(|| panic!("{error} after {rounds} rounds"));
                        }
                    },
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => return count.unwrap_or_else(|| panic!("{error} after {rounds} rounds")),
                }
                rounds += 1;
                if rounds == BEFORE {
                    before = allocated();
                } else if rounds == BEFORE + COUNTED {
                    count = Some(allocated() - before);
                }
                if let (Some(count), true) = (count, first.is_some()) {
                    return count;
                }
            }
        }
    }
}

pub(crate) fn run() {
    assert_eq!(allocations(|| drop(black_box(Box::new(7)))), COUNTED as u64, "what is allocated is counted");
    let mut config = sideway::soft::Config::from_env().expect("a valid environment");
    config.time_scale = 0.01;
    sideway::set_default_provider(sideway::soft::provider_with(config).expect("no device is listed yet"));
    for over_rdma in [false, true] {
        for len in [64, 1000, 60_000, 300_000] {
            messages(over_rdma, len);
            bytes(over_rdma, len);
        }
        for len in [64, 60_000] {
            blocks(over_rdma, len);
            workers(over_rdma, len);
        }
    }
}
