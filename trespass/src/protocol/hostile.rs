//! Fuzzing of the protocol: a peer that sends any frames, to a connection whose program reads and
//! writes.
//!
//! Nothing may panic. An invalid frame is an error and ends the connection. The protocol never asks
//! for more READs than were agreed, and all memory returns.
//!
//! The input starts with a byte of options (1 messages, 2 TCP, 4 READ, 8 headers in immediate
//! data). Then follow steps of one byte and its data. An even byte is a frame: its length (8 bits)
//! and that many bytes follow, and its sequence number is corrected unless bit 7 is set. With bit 6
//! set, over a queue pair, the first 4 bytes are immediate data. An odd byte is an act of the
//! program or of the driver. `trespass/fuzz` calls this with inputs of libFuzzer; the tests here
//! use seeded random bytes.

use std::io::IoSlice;
use std::sync::Arc;
use std::time::Instant;

use super::failure::ProtocolError;
use super::frame::{HEADER_LEN, Immediate};
use super::{
    Block, Blocks, CompletedTransmit, ConnectionKind, ConnectionSetup, LinkType, PostedSends,
    ProtocolMachine, Purpose, RemoteAddress, RemoteKeys, TransmitItem,
};

/// Size of a slot, and granularity of every larger block.
const SLOT: u32 = 512;

/// Runs one input, and panics if a requirement is violated.
#[cfg(fuzzing)]
pub fn hostile_frames(data: &[u8]) {
    run(data);
}

/// Returns whether the connection survived.
fn run(data: &[u8]) -> bool {
    let Some((&choices, mut steps)) = data.split_first() else { return true };
    let mut side = FuzzedConnection::new(choices);
    while let Some((&step, rest)) = steps.split_first() {
        steps = rest;
        if step % 2 == 1 {
            side.act(step >> 1);
            continue;
        }
        let Some((&len, rest)) = steps.split_first() else { break };
        let (frame, rest) = rest.split_at(usize::from(len).min(rest.len()));
        steps = rest;
        match frame.split_first_chunk::<4>().filter(|_| step & 0x40 != 0 && side.link == LinkType::Rc) {
            Some((immediate, payload)) => {
                side.arrive_bare(u32::from_le_bytes(*immediate), payload, step & 0x80 == 0);
            }
            None => side.arrive(frame, step & 0x80 == 0),
        }
    }
    let alive = side.connection.failure().is_none();
    side.end();
    alive
}

/// A connection, its driver and its program.
struct FuzzedConnection {
    connection: ProtocolMachine<CountedBlock>,
    memory: CountedBlocks,
    queue: PostedSends<CountedBlock>,
    posted: Vec<u64>,
    /// The number of frames received.
    frames: u32,
    reads: usize,
    most_reads: usize,
    link: LinkType,
    now: Instant,
}

impl FuzzedConnection {
    fn new(choices: u8) -> Self {
        let kind = if choices & 1 == 0 { ConnectionKind::Stream } else { ConnectionKind::SeqPacket };
        let link = if choices & 2 == 0 { LinkType::Rc } else { LinkType::Tcp };
        let mut setup = ConnectionSetup::new(kind, link);
        setup.read = link == LinkType::Rc && choices & 4 != 0;
        setup.immediate = choices & 8 != 0;
        for limits in [&mut setup.own, &mut setup.peer] {
            (limits.slot_size, limits.rx_slots, limits.max_msg) = (SLOT, 16, 1 << 16);
        }
        (setup.rcvbuf, setup.sndbuf, setup.stage, setup.read_piece) = (4096, 4096, 4096, 4096);
        let mut connection = ProtocolMachine::new(&setup).expect("a good setup");
        connection.slots_posted(connection.slots_wanted());
        let (memory, queue) = (CountedBlocks::default(), PostedSends::new(64));
        let now = Instant::now();
        Self {
            connection,
            memory,
            queue,
            posted: Vec::new(),
            frames: 0,
            reads: 0,
            most_reads: setup.reads(),
            link,
            now,
        }
    }

    fn arrive(&mut self, frame: &[u8], numbered: bool) {
        let mut block = self.block(frame);
        if numbered && frame.len() >= HEADER_LEN {
            block.bytes_mut()[4..8].copy_from_slice(&self.frames.to_le_bytes());
        }
        self.take(|connection| connection.received(block, frame.len()));
    }

    fn arrive_bare(&mut self, immediate: u32, payload: &[u8], numbered: bool) {
        let block = self.block(payload);
        let number = 0x1fff << 16;
        let immediate = if numbered { immediate & !number | self.frames << 16 & number } else { immediate };
        self.take(|connection| connection.received_bare(block, payload.len(), Immediate(immediate)));
    }

    fn block(&mut self, bytes: &[u8]) -> CountedBlock {
        let mut block =
            self.memory.take(bytes.len().max(SLOT as usize), Purpose::Receive).expect("there is enough");
        block.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
        block
    }

    fn take(
        &mut self,
        received: impl FnOnce(&mut ProtocolMachine<CountedBlock>) -> Result<Option<CountedBlock>, ProtocolError>,
    ) {
        let failed = self.connection.failure().is_some();
        match received(&mut self.connection) {
            Ok(_) => self.frames = self.frames.wrapping_add(1),
            Err(_) => assert!(!failed && self.connection.failure().is_some(), "an error is the end"),
        }
        let wanted = self.connection.slots_wanted();
        if self.link == LinkType::Rc {
            assert!(wanted <= 16, "{wanted} slots wanted");
            self.connection.slots_posted(wanted);
        }
    }

    fn act(&mut self, act: u8) {
        let mut buffer = [0; 700];
        match act % 8 {
            0 => drop(self.connection.read(&mut buffer)),
            1 => drop(self.connection.recv_part(&mut buffer)),
            2 => self
                .connection
                .write(&[IoSlice::new(&buffer[..usize::from(act)])], &mut self.memory)
                .map_or((), drop),
            3 => drop(self.connection.send(&[IoSlice::new(&buffer[..usize::from(act)])], &mut self.memory)),
            4 => self.complete(),
            5 => self.connection.shutdown_write(),
            6 => self.connection.tick(self.now),
            _ if act >= 64 => self.lend(act),
            _ => self.connection.flush(),
        }
        self.turn();
    }

    /// Lends blocks of the program: some that fit one frame, some that the peer will read, and some
    /// for which neither works.
    fn lend(&mut self, act: u8) {
        let block = |n: u8| {
            let len = [0, 40, 700, 5000][usize::from((act >> 3).wrapping_add(n) % 4)];
            self.memory.take(len, Purpose::Send).map(|block| (block, len))
        };
        let mut blocks: Vec<_> = (0..1 + act % 5).filter_map(block).collect();
        drop(self.connection.send_blocks(&mut blocks));
    }

    fn turn(&mut self) {
        for _ in 0..200 {
            let room = self.queue.room();
            let Some(transmit) = self.connection.transmit(self.now, &mut self.memory, room) else { return };
            if let TransmitItem::Read(read) = &transmit {
                assert!(read.from.len > 0);
                self.reads += 1;
                assert!(self.reads <= self.most_reads, "{} READs at once", self.reads);
            }
            self.posted.push(self.queue.push(transmit, true).0);
        }
        panic!("it sends without end");
    }

    fn complete(&mut self) {
        for id in std::mem::take(&mut self.posted) {
            let Some(done) = self.queue.complete(id) else { continue };
            if matches!(done, CompletedTransmit::Read { .. }) {
                self.reads -= 1;
            }
            self.connection.done(done);
        }
        while self.connection.take_event().is_some() {}
    }

    /// Ends the link.
    fn end(mut self) {
        self.connection.abort();
        self.turn();
        while let Some(done) = self.queue.drain() {
            self.connection.done(done);
        }
        self.connection.drained();
        while self.connection.take_event().is_some() {}
        let lent = Arc::clone(&self.memory.out);
        drop(self);
        assert_eq!(Arc::strong_count(&lent), 1, "memory that does not come back");
    }
}

/// Memory that counts blocks in use by their references.
#[derive(Default)]
struct CountedBlocks {
    out: Arc<()>,
}

struct CountedBlock {
    bytes: Vec<u8>,
    _out: Arc<()>,
}

impl Blocks for CountedBlocks {
    type Block = CountedBlock;

    fn take(&mut self, size: usize, _: Purpose) -> Option<CountedBlock> {
        // 64 KiB is the longest message, and the longest frame over TCP.
        assert!(size <= 1 << 19, "a block of {size} bytes");
        Some(CountedBlock { bytes: vec![0; size], _out: Arc::clone(&self.out) })
    }
}

impl Block for CountedBlock {
    fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    fn remote(&self) -> Option<RemoteAddress> {
        Some(RemoteAddress { addr: 4096, rkeys: RemoteKeys::one(1) })
    }
}

#[cfg(test)]
mod tests {
    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::{Rng, SeedableRng};

    use super::super::Segment;
    use super::super::frame::{FIRST, FrameType, Header, LAST, encode_segment, segment_len};
    use super::*;
    use crate::corpus;

    /// A frame as a step of an input.
    fn step(choices: u8, kind: FrameType, flags: u8, count: u16, payload: &[u8]) -> Vec<u8> {
        let len = payload.len() as u32;
        let credit_total = if choices & 2 == 0 { 16 } else { 0 };
        let header = Header { kind, flags, count, seq: 0, credit_total, len };
        [&[0, (HEADER_LEN + payload.len()) as u8][..], &header.encode(), payload].concat()
    }

    /// The frames of a correct peer: data, a source to read, and its end.
    fn good(choices: u8) -> Vec<u8> {
        let mut steps = vec![choices, 1, 2 << 1 | 1, 3 << 1 | 1, 71 << 1 | 1, 127 << 1 | 1];
        if choices & 10 == 8 {
            steps.extend([0x40, 9]);
            steps.extend((u32::from(FIRST | LAST) << 29 | 16).to_le_bytes());
            steps.extend(b"hello");
        } else {
            steps.extend(step(choices, FrameType::Data, FIRST | LAST, 0, b"hello"));
        }
        steps.extend([1, 1 << 1 | 1]);
        if choices & 6 == 4 {
            for (count, len) in [(1, 2000), (3, 700)] {
                let segment = Segment { addr: 4096, len, rkeys: RemoteKeys::one(7) };
                let mut payload = u64::from(count * len).to_le_bytes().to_vec();
                (0..count).for_each(|_| payload.extend(&encode_segment(&segment)[..segment_len(1)]));
                steps.extend(step(choices, FrameType::Rts, FIRST | LAST, count as u16, &payload));
                steps.extend([4 << 1 | 1, 4 << 1 | 1, 1, 1 << 1 | 1]);
            }
        }
        steps.extend(step(choices, FrameType::Fin, 0, 0, &[]));
        steps.extend([1, 1 << 1 | 1]);
        steps
    }

    /// The inputs that the other tests mutate do succeed.
    #[test]
    fn good_frames_are_taken() {
        for choices in 0..16 {
            assert!(run(&good(choices)), "{choices}");
        }
    }

    #[test]
    fn changed_frames_do_no_harm() {
        let mut rng = ChaCha8Rng::seed_from_u64(9);
        let mut alive = 0;
        for _ in 0..20_000 {
            let mut data = good(rng.next_u32() as u8 % 16);
            for _ in 0..rng.next_u32() % 4 {
                let at = 1 + rng.next_u32() as usize % (data.len() - 1);
                data[at] = rng.next_u32() as u8;
            }
            alive += usize::from(run(&data));
        }
        assert!((2_000..19_000).contains(&alive), "{alive} lived on: the changes are too bold, or too timid");
    }

    #[test]
    fn random_bytes_do_no_harm() {
        let mut rng = ChaCha8Rng::seed_from_u64(10);
        for _ in 0..20_000 {
            let mut data = vec![0; rng.next_u32() as usize % 300];
            rng.fill_bytes(&mut data);
            run(&data);
        }
    }

    /// Inputs that fuzzing found stay in the corpus.
    #[test]
    fn fuzzing_corpus_passes() {
        corpus::replay("frames", 16, |data| _ = run(data));
    }

    /// Rewrites the initial inputs of the corpus: `cargo test -p trespass write_the_corpus --
    /// --ignored`.
    #[test]
    #[ignore = "writes files"]
    fn write_the_corpus() {
        corpus::write("frames", (0..16).map(|choices| (format!("good_{choices}"), good(choices))));
    }
}
