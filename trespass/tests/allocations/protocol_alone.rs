//! Tests that the hot path of the protocol allocates nothing once its queues have their final size.
//! The tests count the allocations of messages, streams, rendezvous and lent blocks between two
//! connections.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use crate::allocated;
use crate::protocol::{
    Block, Blocks, ConnectionEvent, ConnectionKind, ConnectionSetup, LinkType, PostedSends, ProtocolMachine,
    Purpose, RemoteAddress, RemoteKeys, TransmitItem,
};

/// A block that returns to its pool.
struct TestBlock {
    bytes: Option<Box<[u8]>>,
    home: Arc<Mutex<Vec<Box<[u8]>>>>,
}

impl Block for TestBlock {
    fn bytes(&self) -> &[u8] {
        self.bytes.as_ref().unwrap()
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self.bytes.as_mut().unwrap()
    }

    fn remote(&self) -> Option<RemoteAddress> {
        Some(RemoteAddress { addr: self.bytes().as_ptr() as u64, rkeys: RemoteKeys::one(1) })
    }
}

impl Drop for TestBlock {
    fn drop(&mut self) {
        self.home.lock().unwrap().extend(self.bytes.take());
    }
}

/// Blocks of 8 KiB and of 256 KiB, all made at the start.
struct TestBlocks {
    small: Arc<Mutex<Vec<Box<[u8]>>>>,
    large: Arc<Mutex<Vec<Box<[u8]>>>>,
}

impl TestBlocks {
    fn new() -> Self {
        let make = |n: usize, size: usize| {
            Arc::new(Mutex::new((0..n).map(|_| vec![0; size].into_boxed_slice()).collect::<Vec<_>>()))
        };
        TestBlocks { small: make(600, 8192), large: make(40, 256 * 1024) }
    }
}

impl Blocks for TestBlocks {
    type Block = TestBlock;

    fn take(&mut self, size: usize, _: Purpose) -> Option<TestBlock> {
        let home = if size <= 8192 { &self.small } else { &self.large };
        let bytes = home.lock().unwrap().pop()?;
        Some(TestBlock { bytes: Some(bytes), home: Arc::clone(home) })
    }
}

struct TestPeer {
    connection: ProtocolMachine<TestBlock>,
    pool: TestBlocks,
    queue: PostedSends<TestBlock>,
    posted: VecDeque<u64>,
    returned: Option<TestBlock>,
}

impl TestPeer {
    fn new(setup: &ConnectionSetup) -> Self {
        let mut connection = ProtocolMachine::new(setup).unwrap();
        connection.slots_posted(connection.slots_wanted());
        let posted = VecDeque::with_capacity(128);
        TestPeer { connection, pool: TestBlocks::new(), queue: PostedSends::new(128), posted, returned: None }
    }

    /// Sends everything possible straight to the peer, and completes the requests.
    fn turn(&mut self, peer: &mut TestPeer, now: Instant) {
        self.connection.slots_posted(self.connection.slots_wanted());
        while let Some(transmit) = self.connection.transmit(now, &mut self.pool, self.queue.room()) {
            if let TransmitItem::Send(frame) = &transmit {
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
                ConnectionEvent::Returned { block, sent: true, .. } => self.returned = Some(block),
                other => panic!("{other:?}"),
            }
        }
    }
}

impl std::fmt::Debug for TestBlock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a block of {} bytes", self.bytes().len())
    }
}

/// Runs `round` repeatedly, and counts the allocations after 100 rounds.
fn count(name: &str, setup: &ConnectionSetup, mut round: impl FnMut(&mut TestPeer, &mut TestPeer, Instant)) {
    let (mut a, mut b, now) = (TestPeer::new(setup), TestPeer::new(setup), Instant::now());
    (0..100).for_each(|_| round(&mut a, &mut b, now));
    let before = allocated();
    (0..1000).for_each(|_| round(&mut a, &mut b, now));
    let allocations = allocated() - before;
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
fn messages(size: usize, burst: usize) -> impl FnMut(&mut TestPeer, &mut TestPeer, Instant) {
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

pub(crate) fn run() {
    let payload = vec![7; 1 << 20];
    let mut buffer = vec![0; 1 << 20];
    let mut setup = ConnectionSetup::new(ConnectionKind::SeqPacket, LinkType::Rc);
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

    setup.kind = ConnectionKind::Stream;
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
