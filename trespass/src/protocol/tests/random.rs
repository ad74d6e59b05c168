//! Randomised tests from seeds: everything arrives once and in order, receives suffice, nothing
//! stalls, all memory comes back.

use std::collections::HashSet;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::*;

/// The data that one side has given and the other has not received.
#[derive(Default)]
struct Oracle {
    messages: VecDeque<Vec<u8>>,
    bytes: VecDeque<u8>,
    lent: HashSet<Ticket>,
    /// A message that is sent in parts: its bytes, and the number given so far.
    parts: Option<(Vec<u8>, usize)>,
    /// The bytes so far of a message that is taken in parts.
    taking: Vec<u8>,
    /// Chunks that the program holds.
    chunks: Vec<(VecBlock, usize)>,
    chunk: Vec<u8>,
}

struct RandomExchange {
    rng: ChaCha8Rng,
    kind: ConnectionKind,
    pair: PeerPair,
    /// The data that each side has given.
    given: [Oracle; 2],
    largest: usize,
    count: u8,
}

impl RandomExchange {
    fn new(seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let kind =
            if rng.next_u32().is_multiple_of(2) { ConnectionKind::Stream } else { ConnectionKind::SeqPacket };
        let link = if rng.next_u32().is_multiple_of(6) { LinkType::Tcp } else { LinkType::Rc };
        let mut setup = ConnectionSetup::new(kind, link);
        let mut pick = |choices: &[usize]| choices[rng.next_u32() as usize % choices.len()];
        setup.own.slot_size = pick(&[512, 600, 1024, 8192]) as u32;
        setup.own.rx_slots = pick(&[16, 17, 20, 64]) as u32;
        setup.own.first_slots = [None, None, Some(5), Some(8)][pick(&[0, 1, 2, 3])];
        setup.own.eager_max = pick(&[0, 1000, 5000]) as u32;
        setup.own.rd_atomic = pick(&[1, 2, 16]) as u32;
        setup.own.max_rts = pick(&[1, 2, 16]) as u32;
        setup.peer = setup.own;
        setup.read = link == LinkType::Rc && pick(&[0, 1, 1]) == 1;
        setup.coalesce = pick(&[0, 1]) == 1;
        setup.rcvbuf = pick(&[16_384, 20_000, 100_000]);
        setup.sndbuf = pick(&[16_384, 20_000, 100_000]);
        setup.low_water = pick(&[1, 2, 8]);
        setup.gather = pick(&[1, 3, 7]);
        setup.stage = pick(&[4096, 16_384, 65_536]);
        let start = [0, u32::MAX - 40][pick(&[0, 1])];
        let largest = setup.rcvbuf.min(setup.sndbuf);
        let pair = PeerPair {
            a: TestPeer::new(&setup, start),
            b: TestPeer::new(&setup, start),
            now: Instant::now(),
        };
        RandomExchange { rng, kind, pair, given: Default::default(), largest, count: 0 }
    }

    fn below(&mut self, n: usize) -> usize {
        self.rng.next_u32() as usize % n
    }

    fn size(&mut self) -> usize {
        let most = [10, 100, 700, 3000, 20_000, self.largest][self.below(6)];
        self.below(most.min(self.largest) + 1)
    }

    fn payload(&mut self) -> Vec<u8> {
        self.count = self.count.wrapping_add(1);
        let size = self.size();
        bytes(size, self.count)
    }

    fn step(&mut self, side: usize) {
        match self.below(12) {
            0..=2 => self.give(side),
            3..=4 => self.take(side),
            5 => {
                let cork = self.below(4) == 0;
                self.side(side).connection.cork(cork);
            }
            6 => self.side(side).blocks.most = [0, 3, 100_000][self.rng.next_u32() as usize % 3],
            7 => self.side(side).post(),
            what => {
                let n = self.below(6);
                let last = self.below(2) == 0;
                let (a, b) = (&mut self.pair.a, &mut self.pair.b);
                let (own, peer) = if side == 0 { (a, b) } else { (b, a) };
                for _ in 0..n {
                    match what {
                        8 | 9 => own.transmit(peer, self.pair.now, last),
                        10 => own.deliver(),
                        // A SEND completes when the peer has received it.
                        _ => peer.wire.is_empty() && own.complete(peer),
                    };
                }
            }
        }
        self.take_events(side);
    }

    fn side(&mut self, side: usize) -> &mut TestPeer {
        if side == 0 { &mut self.pair.a } else { &mut self.pair.b }
    }

    fn give(&mut self, side: usize) {
        let bytes = self.payload();
        if self.given[side].parts.is_some() {
            return self.give_part(side);
        }
        if self.below(4) == 0 && self.give_at_once(side, &bytes) {
            return;
        }
        match self.below(5) {
            0 if self.below(2) == 0 => self.lend_together(side, &bytes),
            0 => self.lend(side, &bytes),
            1 if self.kind == ConnectionKind::SeqPacket && !bytes.is_empty() => {
                self.given[side].parts = Some((bytes, 0));
                self.give_part(side);
            }
            _ if self.kind == ConnectionKind::Stream => {
                if let Ok(n) = self.side(side).write(&bytes) {
                    self.given[side].bytes.extend(&bytes[..n]);
                }
            }
            _ => match self.side(side).send(&bytes) {
                Ok(()) => self.given[side].messages.push_back(bytes),
                Err(CallError::Blocked(_)) => {}
                Err(error) => panic!("{error}"),
            },
        }
    }

    fn give_at_once(&mut self, side: usize, bytes: &[u8]) -> bool {
        let (a, b) = (&mut self.pair.a, &mut self.pair.b);
        let (own, peer) = if side == 0 { (a, b) } else { (b, a) };
        let sent = own.send_at_once(peer, self.kind, bytes);
        if sent {
            match self.kind {
                ConnectionKind::Stream => self.given[side].bytes.extend(bytes),
                ConnectionKind::SeqPacket => self.given[side].messages.push_back(bytes.to_vec()),
            }
        }
        sent
    }

    fn give_part(&mut self, side: usize) {
        let Some((message, at)) = self.given[side].parts.take() else { return };
        let end = at + self.below(message.len() - at + 1);
        let slices = [IoSlice::new(&message[at..end])];
        let own = self.side(side);
        let n = match own.connection.send_part(message.len() as u64, &slices, &mut own.blocks) {
            Ok(n) => n,
            Err(CallError::Blocked(_)) => 0,
            Err(error) => panic!("{error}"),
        };
        if at + n == message.len() {
            self.given[side].messages.push_back(message);
        } else {
            self.given[side].parts = Some((message, at + n));
        }
    }

    /// A block to lend, which the device may be unable to reach.
    fn block(&mut self, side: usize, len: usize) -> Option<VecBlock> {
        self.side(side).blocks.apart = self.below(3) == 0;
        self.side(side).blocks.take(len.max(1), Purpose::Send)
    }

    /// Lends blocks together: their bytes are cut anywhere, and some blocks may be empty.
    fn lend_together(&mut self, side: usize, bytes: &[u8]) {
        let (mut blocks, mut left) = (Vec::new(), bytes);
        for last in (0..1 + self.below(20)).rev().map(|more| more == 0) {
            let (piece, rest) = left.split_at(if last { left.len() } else { self.below(left.len() + 1) });
            let Some(mut block) = self.block(side, piece.len()) else { return };
            block.bytes_mut()[..piece.len()].copy_from_slice(piece);
            blocks.push((block, piece.len()));
            left = rest;
        }
        let count = blocks.len() as u64;
        if let Ok(Ticket(first)) = self.side(side).connection.send_blocks(&mut blocks) {
            assert!((first..first + count).all(|ticket| self.given[side].lent.insert(Ticket(ticket))));
            self.lent(side, bytes);
        }
    }

    fn lent(&mut self, side: usize, bytes: &[u8]) {
        match self.kind {
            ConnectionKind::Stream => self.given[side].bytes.extend(bytes),
            ConnectionKind::SeqPacket => self.given[side].messages.push_back(bytes.to_vec()),
        }
    }

    fn lend(&mut self, side: usize, bytes: &[u8]) {
        let Some(mut block) = self.block(side, bytes.len()) else { return };
        block.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
        let own = self.side(side);
        if let Ok(ticket) = own.connection.send_block(block, bytes.len()) {
            assert!(self.given[side].lent.insert(ticket));
            self.lent(side, bytes);
        }
    }

    fn take(&mut self, side: usize) {
        if self.below(3) == 0 && !self.given[side].chunks.is_empty() {
            let (block, charge) = self.given[side].chunks.remove(0);
            drop(block);
            return self.side(side).connection.give_back(charge);
        }
        let how = self.below(3);
        if self.kind == ConnectionKind::Stream {
            return if how == 0 { self.take_chunk(side) } else { self.take_bytes(side) };
        }
        match how {
            _ if !self.given[side].chunk.is_empty() => self.take_chunk(side),
            _ if !self.given[side].taking.is_empty() => self.take_part(side),
            0 => self.take_chunk(side),
            1 => self.take_part(side),
            _ => {
                if let Some(message) = self.side(side).recv() {
                    assert!(self.given[1 - side].messages.pop_front() == Some(message));
                }
            }
        }
    }

    fn take_bytes(&mut self, side: usize) {
        let mut buffer = vec![0; self.size() + 1];
        if let Ok(n) = self.side(side).connection.read(&mut buffer) {
            assert!(self.given[1 - side].bytes.drain(..n).eq(buffer[..n].iter().copied()));
        }
    }

    fn take_part(&mut self, side: usize) {
        let mut buffer = vec![0; self.size() + 1];
        let Ok(Some(part)) = self.side(side).connection.recv_part(&mut buffer) else { return };
        let mut message = std::mem::take(&mut self.given[side].taking);
        message.extend_from_slice(&buffer[..part.len]);
        if part.last {
            assert_eq!(part.total, message.len() as u64);
            assert!(self.given[1 - side].messages.pop_front() == Some(message));
        } else {
            self.given[side].taking = message;
        }
    }

    fn take_chunk(&mut self, side: usize) {
        let own = self.side(side);
        let Ok(Some(chunk)) = own.connection.recv_chunk(&mut own.blocks) else { return };
        let bytes = chunk.block.bytes()[chunk.range.clone()].to_vec();
        self.given[side].chunks.push((chunk.block, chunk.charge));
        if self.kind == ConnectionKind::Stream {
            assert!(self.given[1 - side].bytes.drain(..bytes.len()).eq(bytes));
            return;
        }
        let mut message = std::mem::take(&mut self.given[side].chunk);
        assert_eq!(chunk.first, message.is_empty());
        message.extend(bytes);
        if chunk.last {
            assert!(self.given[1 - side].messages.pop_front() == Some(message));
        } else {
            self.given[side].chunk = message;
        }
    }

    fn take_events(&mut self, side: usize) {
        for event in self.side(side).take_events() {
            match event {
                ConnectionEvent::Returned { ticket, sent, .. } => {
                    assert!(sent && self.given[side].lent.remove(&ticket), "a lent block comes back once");
                }
                ConnectionEvent::PeerClosed | ConnectionEvent::Closed => {}
                ConnectionEvent::Failed(cause) => panic!("{cause}"),
            }
        }
    }

    fn unhinder(&mut self) {
        for side in [0, 1] {
            self.side(side).blocks.most = 100_000;
            self.side(side).connection.cork(false);
        }
    }

    /// Lets everything proceed and arrive.
    fn finish(&mut self) {
        self.unhinder();
        for _ in 0..20_000 {
            self.pair.settle();
            for side in [0, 1] {
                if self.given[side].parts.is_some() {
                    self.give_part(side);
                }
                self.take(side);
                self.take_events(side);
            }
            let over = |oracle: &Oracle| {
                oracle.messages.is_empty()
                    && oracle.bytes.is_empty()
                    && oracle.parts.is_none()
                    && oracle.chunks.is_empty()
                    && oracle.lent.is_empty()
            };
            if self.given.iter().all(over) {
                return self.pair.settle();
            }
        }
        panic!("stalled");
    }

    fn conserved(&mut self) {
        let (left_a, posted_a) = self.pair.a.connection.credits();
        let (left_b, posted_b) = self.pair.b.connection.credits();
        if self.pair.a.rc {
            // At rest: the peer's posted receives, less those that it has not announced.
            assert!(left_a <= posted_b && left_b <= posted_a);
            for (posted, left) in [(posted_a, left_b), (posted_b, left_a)] {
                assert!(posted - left < posted / 2, "{posted} posted of which the peer knows {left}");
            }
            assert_eq!(self.pair.a.receives as u32, posted_a);
            assert_eq!(self.pair.b.receives as u32, posted_b);
        }
        for side in [0, 1] {
            assert_eq!(self.side(side).connection.receive_charges(), (0, 0));
            assert!(self.side(side).connection.writable());
        }
    }

    /// Shuts both halves with data in flight; everything arrives, and then the end.
    fn close(&mut self) {
        self.unhinder();
        for side in [0, 1] {
            while self.given[side].parts.is_some() {
                self.give_part(side);
                self.pair.settle();
                self.take(1 - side);
                self.take_events(side);
            }
        }
        let first = self.below(2);
        self.side(first).connection.shutdown_write();
        if self.below(2) == 0 {
            self.pair.turn();
        }
        self.side(1 - first).connection.shutdown_write();
        self.finish();
        for side in [0, 1] {
            let end = self.side(side).connection.recv_part(&mut [0]);
            let end = if self.kind == ConnectionKind::Stream {
                self.side(side).connection.read(&mut [0])
            } else {
                end.map(|_| 0)
            };
            assert_eq!(end, Ok(0));
            assert!(self.side(side).connection.is_closed());
        }
        assert_eq!((self.pair.a.blocks.out(), self.pair.b.blocks.out()), (0, 0));
    }
}

fn run(seeds: std::ops::Range<u64>, steps: usize) {
    for seed in seeds {
        let result = std::panic::catch_unwind(|| {
            let mut simulation = RandomExchange::new(seed);
            for round in 0..4 {
                // Each side's program pauses at times.
                let asleep = simulation.below(4);
                for _ in 0..steps / 4 {
                    let side = simulation.below(2);
                    if asleep != side || simulation.below(50) == 0 {
                        simulation.step(side);
                    }
                }
                if round == 1 {
                    simulation.finish();
                    simulation.conserved();
                }
            }
            simulation.close();
        });
        assert!(result.is_ok(), "seed {seed}");
    }
}

#[test]
fn everything_arrives_whatever_the_order_of_events() {
    run(0..150, 1500);
}

/// The same for longer, or for the seeds that `SEEDS=first..end` names: `cargo test --release --
/// --ignored`.
#[test]
#[ignore = "takes minutes"]
fn everything_arrives_for_a_long_time() {
    let seeds = std::env::var("SEEDS").unwrap_or("1000..40000".into());
    let (first, end) = seeds.split_once("..").expect("SEEDS=first..end");
    run(first.parse().unwrap()..end.parse().unwrap(), 3000);
}
