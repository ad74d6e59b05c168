//! The hot path of the protocol allocates nothing. The program counts the allocations of messages,
//! streams, rendezvous and lent blocks between two connections whose queues have reached their
//! final size. It runs without a harness, because no other code may allocate while it counts.

// The included modules bring their unit tests along, whose imports are unused without the harness.
#![allow(unused_imports)]

#[path = "../src/corpus.rs"]
#[allow(dead_code)]
mod corpus;
#[path = "../src/protocol/mod.rs"]
#[allow(dead_code)]
mod protocol;

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use protocol::{Block, Blocks, Connection, Event, Kind, Link, Purpose, Remote, SendQueue, Setup, Transmit};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call passes unchanged to the system's allocator; the counter does not touch the
// memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's guarantee about `layout` is the one that `System` needs.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: `alloc` above got `memory` from `System`, and the caller guarantees that it has
        // this layout.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A block that returns to its pool when it is dropped.
struct Piece {
    bytes: Option<Box<[u8]>>,
    home: Arc<Mutex<Vec<Box<[u8]>>>>,
}

impl Block for Piece {
    fn bytes(&self) -> &[u8] {
        self.bytes.as_ref().unwrap()
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self.bytes.as_mut().unwrap()
    }

    fn remote(&self) -> Option<Remote> {
        Some(Remote { addr: self.bytes().as_ptr() as u64, rkey: 1 })
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.home.lock().unwrap().extend(self.bytes.take());
    }
}

/// Blocks of 8 KiB and of 256 KiB, all created at the start.
struct Pool {
    small: Arc<Mutex<Vec<Box<[u8]>>>>,
    large: Arc<Mutex<Vec<Box<[u8]>>>>,
}

impl Pool {
    fn new() -> Self {
        let make = |n: usize, size: usize| {
            Arc::new(Mutex::new((0..n).map(|_| vec![0; size].into_boxed_slice()).collect::<Vec<_>>()))
        };
        Pool { small: make(600, 8192), large: make(40, 256 * 1024) }
    }
}

impl Blocks for Pool {
    type Block = Piece;

    fn take(&mut self, size: usize, _: Purpose) -> Option<Piece> {
        let home = if size <= 8192 { &self.small } else { &self.large };
        let bytes = home.lock().unwrap().pop()?;
        Some(Piece { bytes: Some(bytes), home: Arc::clone(home) })
    }
}

struct Side {
    connection: Connection<Piece>,
    pool: Pool,
    queue: SendQueue<Piece>,
    posted: VecDeque<u64>,
    returned: Option<Piece>,
}

impl Side {
    fn new(setup: &Setup) -> Self {
        let mut connection = Connection::new(setup).unwrap();
        connection.slots_posted(connection.slots_wanted());
        let posted = VecDeque::with_capacity(128);
        Side { connection, pool: Pool::new(), queue: SendQueue::new(128), posted, returned: None }
    }

    /// Delivers all pending transmissions to the peer, and completes them.
    fn turn(&mut self, peer: &mut Side, now: Instant) {
        self.connection.slots_posted(self.connection.slots_wanted());
        while let Some(transmit) = self.connection.transmit(now, &mut self.pool, self.queue.room()) {
            if let Transmit::Send(frame) = &transmit {
                let mut block = peer.pool.take(8192, Purpose::Receive).unwrap();
                let mut end = 0;
                for part in frame.parts() {
                    block.bytes_mut()[end..end + part.len()].copy_from_slice(part);
                    end += part.len();
                }
                let again = peer.connection.received(block, frame.len()).unwrap();
                if again.is_some() && peer.connection.slots_wanted() > 0 {
                    peer.connection.slots_posted(1);
                }
            }
            self.posted.push_back(self.queue.push(transmit, true).0);
        }
        while let Some(id) = self.posted.pop_front() {
            while let Some(done) = self.queue.complete(id) {
                self.connection.done(done);
            }
        }
        while let Some(event) = self.connection.take_event() {
            match event {
                Event::Returned { block, sent: true, .. } => self.returned = Some(block),
                other => panic!("{other:?}"),
            }
        }
    }
}

impl std::fmt::Debug for Piece {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a block of {} bytes", self.bytes().len())
    }
}

/// Runs `round` repeatedly, and counts the allocations after a number of warm-up rounds.
fn count(name: &str, setup: &Setup, mut round: impl FnMut(&mut Side, &mut Side, Instant)) {
    let (mut a, mut b, now) = (Side::new(setup), Side::new(setup), Instant::now());
    (0..100).for_each(|_| round(&mut a, &mut b, now));
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    (0..1000).for_each(|_| round(&mut a, &mut b, now));
    let allocations = ALLOCATIONS.load(Ordering::Relaxed) - before;
    let sent = a.connection.counters();
    println!(
        "{name}: {allocations} allocations; {} frames and {} READs",
        sent.frames_sent,
        b.connection.counters().reads
    );
    assert_eq!(allocations, 0, "{name}");
    assert!(sent.frames_sent >= 1100);
}

/// A round of `burst` messages of `size` bytes.
fn messages(size: usize, burst: usize) -> impl FnMut(&mut Side, &mut Side, Instant) {
    let (payload, mut buffer) = (vec![7; size], vec![0; size]);
    move |a, b, now| {
        for _ in 0..burst {
            a.connection.send(&[IoSlice::new(&payload)], &mut a.pool).unwrap();
        }
        for _ in 0..4 {
            a.turn(b, now);
            b.turn(a, now);
        }
        for _ in 0..burst {
            assert_eq!(b.connection.recv(&mut buffer), Ok(Some(size)));
        }
        b.turn(a, now);
    }
}

fn main() {
    let payload = vec![7; 1 << 20];
    let mut buffer = vec![0; 1 << 20];
    let mut setup = Setup::new(Kind::SeqPacket, Link::Rc);
    setup.read = true;
    // The simulated link carries the frame header instead of immediate data.
    setup.immediate = false;

    count("a message of 64 bytes", &setup, messages(64, 1));
    count("64 messages of 64 bytes at once", &setup, messages(64, 64));
    count("a message of 60,000 bytes", &setup, messages(60_000, 1));
    count("a message of 1 MiB, staged", &setup, messages(1 << 20, 1));

    count("a lent block of 256 KiB", &setup, |a, b, now| {
        let block = a.returned.take().or_else(|| a.pool.take(256 * 1024, Purpose::Send)).unwrap();
        a.connection.send_block(block, 256 * 1024).map_err(|(_, error)| error).unwrap();
        a.turn(b, now);
        b.turn(a, now);
        b.turn(a, now);
        a.turn(b, now);
        let chunk = b.connection.recv_chunk(&mut b.pool).unwrap().unwrap();
        assert!(chunk.last);
        b.connection.give_back(chunk.charge);
        assert!(a.returned.is_some());
    });

    let mut blocks = Vec::with_capacity(3);
    count("a head, and two blocks of 256 KiB", &setup, |a, b, now| {
        for len in [100, 256 * 1024, 256 * 1024] {
            blocks.push((a.pool.take(len, Purpose::Send).unwrap(), len));
        }
        a.connection.send_blocks(&mut blocks).unwrap();
        for _ in 0..4 {
            a.turn(b, now);
            b.turn(a, now);
        }
        assert_eq!(b.connection.recv(&mut buffer), Ok(Some(100 + 512 * 1024)));
        drop(a.returned.take());
        b.turn(a, now);
    });
    count("three short blocks in a frame", &setup, |a, b, now| {
        for len in [100, 200, 300] {
            blocks.push((a.pool.take(len, Purpose::Send).unwrap(), len));
        }
        a.connection.send_blocks(&mut blocks).unwrap();
        for _ in 0..2 {
            a.turn(b, now);
            b.turn(a, now);
        }
        assert_eq!(b.connection.recv(&mut buffer), Ok(Some(600)));
        drop(a.returned.take());
        b.turn(a, now);
    });

    setup.read = false;
    count("two blocks of 100,000 bytes, in frames", &setup, |a, b, now| {
        for _ in 0..2 {
            blocks.push((a.pool.take(100_000, Purpose::Send).unwrap(), 100_000));
        }
        a.connection.send_blocks(&mut blocks).unwrap();
        for _ in 0..2 {
            a.turn(b, now);
            b.turn(a, now);
        }
        assert_eq!(b.connection.recv(&mut buffer), Ok(Some(200_000)));
        assert!(a.returned.take().is_some());
        b.turn(a, now);
    });
    setup.read = true;

    setup.kind = Kind::Stream;
    count("a stream both ways", &setup, |a, b, now| {
        a.connection.write(&[IoSlice::new(&payload[..100_000])], &mut a.pool).unwrap();
        b.connection.write(&[IoSlice::new(&payload[..10_000])], &mut b.pool).unwrap();
        for _ in 0..4 {
            a.turn(b, now);
            b.turn(a, now);
            let _ = a.connection.read(&mut buffer);
            let _ = b.connection.read(&mut buffer);
        }
    });
}
