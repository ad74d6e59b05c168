//! Tests of the protocol: two connections that exchange their frames directly.

mod close;
mod cork;
mod flow;
mod hostile;
mod quota;
mod random;
mod transfer;
mod waiting;
mod window;

use std::collections::VecDeque;
use std::io::IoSlice;
use std::time::{Duration, Instant};

use super::block::testing::{VecBlock, VecBlocks};
use super::frame::{HEADER_LEN, Immediate};
use super::*;

/// A side: its connection, its memory, its end of the link.
struct TestPeer {
    connection: ProtocolMachine<VecBlock>,
    blocks: VecBlocks,
    queue: PostedSends<VecBlock>,
    events: Vec<ConnectionEvent<VecBlock>>,
    /// Frames on their way to this side.
    wire: VecDeque<Vec<u8>>,
    /// Posted work requests, oldest first: the id, and the range of a READ.
    posted: VecDeque<(u64, Option<Segment>)>,
    /// Receives that are posted and unused.
    receives: usize,
    slot: usize,
    rc: bool,
}

impl TestPeer {
    fn new(setup: &ConnectionSetup, start: u32) -> Self {
        let mut side = TestPeer {
            connection: ProtocolMachine::starting_at(setup, start).unwrap(),
            blocks: VecBlocks::new(100_000),
            queue: PostedSends::new(128),
            events: Vec::new(),
            wire: VecDeque::new(),
            posted: VecDeque::new(),
            receives: 0,
            slot: setup.own.slot_size as usize,
            rc: setup.link == LinkType::Rc,
        };
        side.post();
        side
    }

    fn post(&mut self) {
        if self.rc {
            let n = self.connection.slots_wanted();
            self.receives += n;
            self.connection.slots_posted(n);
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<usize, CallError> {
        self.connection.write(&[IoSlice::new(bytes)], &mut self.blocks)
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), CallError> {
        self.connection.send(&[IoSlice::new(bytes)], &mut self.blocks)
    }

    fn recv(&mut self) -> Option<Vec<u8>> {
        let mut buffer = vec![0; self.connection.message_len()? as usize];
        let len = self.connection.recv(&mut buffer).ok()??;
        buffer.truncate(len);
        Some(buffer)
    }

    fn read_all(&mut self) -> Vec<u8> {
        let (mut all, mut buffer) = (Vec::new(), [0; 3000]);
        while let Ok(len @ 1..) = self.connection.read(&mut buffer) {
            all.extend_from_slice(&buffer[..len]);
        }
        all
    }

    fn lend(&mut self, bytes: &[u8]) -> Ticket {
        let mut block = self.blocks.take(bytes.len().max(1), Purpose::Send).unwrap();
        block.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
        self.connection.send_block(block, bytes.len()).unwrap()
    }

    /// Lends blocks of these bytes together. Returns the first one's ticket.
    fn lend_together(&mut self, pieces: &[&[u8]]) -> Ticket {
        let lent = |bytes: &&[u8]| {
            let mut block = self.blocks.take(bytes.len().max(1), Purpose::Send).unwrap();
            block.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
            (block, bytes.len())
        };
        let mut blocks = pieces.iter().map(lent).collect();
        self.connection.send_blocks(&mut blocks).unwrap()
    }

    /// Takes the next item to post and puts it on the link.
    fn transmit(&mut self, peer: &mut TestPeer, now: Instant, last_of_turn: bool) -> bool {
        let room = self.queue.room();
        let quiet = self.connection.is_quiet();
        let Some(transmit) = self.connection.transmit(now, &mut self.blocks, room) else { return false };
        assert!(!quiet, "nobody would have asked for what there is to be sent");
        let mut range = None;
        match &transmit {
            TransmitItem::Send(frame) => {
                peer.wire.push_back(frame.parts().collect::<Vec<_>>().concat());
            }
            TransmitItem::Read(read) => range = Some(read.from),
            TransmitItem::Probe => {}
        }
        let (id, _) = self.queue.push(transmit, last_of_turn);
        self.posted.push_back((id, range));
        true
    }

    /// Sends bytes as a separate frame, as drivers do if possible: a few without a block, more in
    /// one.
    fn send_at_once(&mut self, peer: &mut TestPeer, kind: ConnectionKind, bytes: &[u8]) -> bool {
        if self.queue.room() == 0 || !self.connection.allows_single_frame(kind, bytes.len()) {
            return false;
        }
        let mut block = None;
        if bytes.len() > 100 {
            block = self.blocks.take(bytes.len(), Purpose::Send);
            if block.is_none() {
                return false;
            }
        }
        let header =
            self.connection.begin_single_frame(bytes.len(), block.as_ref().map_or(0, |b| b.bytes().len()));
        peer.wire.push_back([&header, bytes].concat());
        let block = block.map(|block| BlockPieces::own(block, bytes.len(), bytes.len()));
        self.posted.push_back((self.queue.push_single_frame(block), None));
        true
    }

    /// Takes a frame off the link.
    fn deliver(&mut self) -> bool {
        let Some(frame) = self.wire.pop_front() else { return false };
        if self.rc {
            assert!(self.receives > 0, "receiver not ready");
            assert!(frame.len() - self.left_out(&frame) <= self.slot, "a frame longer than the slot");
            self.receives -= 1;
        }
        self.feed(&frame).unwrap();
        true
    }

    /// Bytes of a frame's header that immediate data replaces. Drivers omit the header whenever
    /// they can, this code only when it must.
    fn left_out(&self, frame: &[u8]) -> usize {
        let must = self.rc && self.connection.uses_immediate() && frame.len() > self.slot;
        if must && Immediate::of(frame).is_some() { HEADER_LEN } else { 0 }
    }

    /// Hands in a frame.
    fn feed(&mut self, frame: &[u8]) -> Result<(), ProtocolError> {
        let sent = &frame[self.left_out(frame)..];
        let mut block = VecBlocks::new(1).take(sent.len().max(self.slot), Purpose::Receive).unwrap();
        block.bytes_mut()[..sent.len()].copy_from_slice(sent);
        let again = match Immediate::of(frame).filter(|_| sent.len() < frame.len()) {
            Some(immediate) => self.connection.received_bare(block, sent.len(), immediate)?,
            None => self.connection.received(block, sent.len())?,
        };
        if again.is_some() && self.rc && self.connection.slots_wanted() > 0 {
            self.receives += 1;
            self.connection.slots_posted(1);
        }
        Ok(())
    }

    /// Completes the oldest posted item.
    fn complete(&mut self, peer: &TestPeer) -> bool {
        let Some((id, range)) = self.posted.pop_front() else { return false };
        let mut done = self.queue.complete(id).unwrap();
        if let (CompletedTransmit::Read { block, .. }, Some(range)) = (&mut done, range) {
            let bytes = peer.connection.source_bytes(range).expect("a READ of what is the peer's to read");
            block.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
        }
        self.connection.done(done);
        while let Some(event) = self.connection.take_event() {
            self.events.push(event);
        }
        true
    }

    fn take_events(&mut self) -> Vec<ConnectionEvent<VecBlock>> {
        while let Some(event) = self.connection.take_event() {
            self.events.push(event);
        }
        std::mem::take(&mut self.events)
    }

    fn closed(&mut self) -> bool {
        self.take_events().iter().any(|event| matches!(event, ConnectionEvent::Closed))
    }
}

/// Both sides.
struct PeerPair {
    a: TestPeer,
    b: TestPeer,
    now: Instant,
}

fn setup(kind: ConnectionKind) -> ConnectionSetup {
    let mut setup = ConnectionSetup::new(kind, LinkType::Rc);
    setup.read = true;
    setup
}

impl PeerPair {
    fn new(setup: &ConnectionSetup) -> Self {
        PeerPair { a: TestPeer::new(setup, 0), b: TestPeer::new(setup, 0), now: Instant::now() }
    }

    /// One turn of both sides. Returns whether anything moved.
    fn turn(&mut self) -> bool {
        let mut moved = false;
        for swap in [false, true] {
            let (from, to) = if swap { (&mut self.b, &mut self.a) } else { (&mut self.a, &mut self.b) };
            from.post();
            while from.transmit(to, self.now, true) {
                moved = true;
            }
            while to.deliver() {
                moved = true;
            }
            while from.complete(to) {
                moved = true;
            }
        }
        moved
    }

    /// Takes turns until nothing moves, which must happen eventually.
    fn settle(&mut self) {
        for _ in 0..10_000 {
            if !self.turn() {
                return;
            }
        }
        panic!("the sides go on for ever");
    }

    /// The same, with a device of `a` that reports no completion.
    fn settle_but_for_completions_of_a(&mut self) {
        let mut moved = true;
        while moved {
            self.a.post();
            self.b.post();
            moved =
                self.a.transmit(&mut self.b, self.now, true) | self.b.transmit(&mut self.a, self.now, true);
            moved |= self.a.deliver() | self.b.deliver() | self.b.complete(&self.a);
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.a.connection.tick(self.now);
        self.b.connection.tick(self.now);
        self.settle();
    }
}

fn bytes(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i.wrapping_mul(31) as u8) ^ (i >> 8) as u8 ^ seed).collect()
}
