//! A simulated program: it writes the bytes that the oracle gives it, and shows the oracle the
//! bytes that it reads. Each action is one call, chosen at random.

use super::endpoint::{CallOutcome, SimEndpoint};
use super::memory::SimBlock;
use super::oracle::Oracle;
use super::plan::{KindUnderTest, ReadPolicy, SimPlan};
use super::rng::SimRng;
use crate::protocol::{Block, Blocked, CallError, Chunk, Purpose};
use std::collections::VecDeque;
use std::io::IoSlice;

/// The state of a program.
#[derive(Default)]
pub(super) struct SimProgram {
    /// For a message that is being sent in parts: the sent bytes, and its length.
    sending: Option<(u64, u64)>,
    /// The program shuts its direction down once no message is partially sent.
    pub(super) shuts: bool,
    pub(super) shut: bool,
    /// The sizes to send; the program sends nothing else.
    pub(super) script: Option<VecDeque<usize>>,
    /// The lengths of the received messages.
    pub(super) log: Vec<u64>,
    /// The program writes no more.
    pub(super) done_writing: bool,
    /// Overrides the workload's way of reading.
    pub(super) reader: Option<ReadPolicy>,
    /// Received blocks that the program has not given back.
    held: Vec<HeldBlock>,
    /// The program is receiving a message in parts.
    taking: bool,
    /// A call to read has reported the connection's failure.
    pub(super) knows_failure: bool,
    scratch: Vec<u8>,
}

/// A received block, with the checksum of its contents when it was taken.
struct HeldBlock {
    chunk: Chunk<SimBlock>,
    sum: u32,
}

/// The objects that an action uses.
pub(super) struct ActionContext<'a> {
    pub(super) plan: &'a SimPlan,
    pub(super) rng: &'a mut SimRng,
    pub(super) end: &'a mut SimEndpoint,
    /// The oracles of the bytes that this end writes, and of those that it reads.
    pub(super) out: &'a mut Oracle,
    pub(super) into: &'a mut Oracle,
}

impl SimProgram {
    /// Performs one random action.
    pub(super) fn act(&mut self, turn: &mut ActionContext, which: usize) {
        self.shut_if_due(turn);
        let workload = turn.plan.workload[which];
        let reader = self.reader.unwrap_or(workload.reader);
        let read = match reader {
            ReadPolicy::Eager => turn.rng.one_in(2),
            ReadPolicy::Slow => turn.rng.one_in(12),
            ReadPolicy::Stopped => false,
        };
        if !self.held.is_empty() && turn.rng.one_in(4) {
            self.release_one(turn);
        }
        if read {
            self.read(turn, which);
        } else if workload.corks && turn.rng.one_in(8) {
            let on = turn.rng.one_in(3);
            turn.end.connection.cork(on);
        } else if workload.writes {
            self.write(turn, which);
        }
    }

    pub(super) fn shut_if_due(&mut self, turn: &mut ActionContext) {
        let said_all = self.script.as_ref().is_none_or(VecDeque::is_empty);
        if self.shuts && !self.shut && self.sending.is_none() && said_all {
            (self.shut, self.done_writing) = (true, true);
            turn.end.connection.shutdown_write();
            turn.out.close();
        }
    }

    /// Reads, gives blocks back and completes messages, but begins no new one.
    pub(super) fn finish(&mut self, turn: &mut ActionContext, which: usize) {
        self.shut_if_due(turn);
        match turn.rng.within(0..4) {
            0 => self.release_one(turn),
            1 if self.script.is_some() => self.follow_script(turn, which),
            1 => self.go_on_sending(turn),
            _ => self.read(turn, which),
        }
    }

    /// Whether the program holds a received block.
    pub(super) fn holds(&self) -> bool {
        !self.held.is_empty()
    }

    /// Whether no message is partially sent.
    pub(super) fn is_between_messages(&self) -> bool {
        self.sending.is_none()
    }

    /// Grows `scratch` to at least `len` bytes. It never shrinks, because filling it each time
    /// would dominate the run time.
    fn scratch(&mut self, len: usize) {
        if self.scratch.len() < len {
            self.scratch = vec![0; len];
        }
    }

    /// Writes the next size of the script, by one call.
    fn follow_script(&mut self, turn: &mut ActionContext, which: usize) {
        if self.sending.is_some() {
            return self.go_on_sending(turn);
        }
        let Some(size) = self.script.as_mut().and_then(VecDeque::pop_front) else { return };
        let before = turn.out.given();
        self.write_size(turn, which, size);
        let given = (turn.out.given() - before) as usize;
        let left = match turn.plan.shape {
            KindUnderTest::Stream => size - given,
            KindUnderTest::Messages => size * usize::from(given == 0),
        };
        // An empty write to a stream counts as done, although it gives no bytes.
        if left > 0 || (given == 0 && turn.plan.shape == KindUnderTest::Messages) {
            self.script.get_or_insert_default().push_front(left);
        }
    }

    /// Makes one call that writes.
    pub(super) fn write(&mut self, turn: &mut ActionContext, which: usize) {
        if self.done_writing || self.shuts {
            return self.go_on_sending(turn);
        }
        let size = turn.plan.size(which, turn.rng);
        self.write_size(turn, which, size);
    }

    fn write_size(&mut self, turn: &mut ActionContext, which: usize, size: usize) {
        let workload = turn.plan.workload[which];
        let zero_copy = workload.zero_copy > 0 && turn.rng.one_in(workload.zero_copy);
        if self.sending.is_some() {
            self.go_on_sending(turn);
        } else if zero_copy && turn.rng.one_in(2) {
            self.send_blocks(turn, size);
        } else if zero_copy {
            self.send_block(turn, size);
        } else if turn.plan.shape == KindUnderTest::Stream {
            self.write_stream(turn, size);
        } else if workload.parts > 0 && turn.rng.one_in(workload.parts) {
            self.begin_parts(turn, size as u64);
        } else {
            self.send_message(turn, size);
        }
    }

    fn write_stream(&mut self, turn: &mut ActionContext, size: usize) {
        self.scratch(size);
        turn.out.fill_stream(&mut self.scratch[..size]);
        let slices = split(&self.scratch[..size], turn.rng);
        match turn.end.write(&slices) {
            CallOutcome::Done(len) => {
                assert!(len <= size, "write took {len} of {size} bytes");
                assert!(
                    len > 0 || size == 0,
                    "write took nothing of {size} bytes, but did not report that it is blocked"
                );
                turn.out.wrote(len);
            }
            CallOutcome::Refused(error) => panic!("write of {size} bytes is refused: {error}"),
            other => blocked_or_dead(turn.end, &other),
        }
    }

    fn send_message(&mut self, turn: &mut ActionContext, size: usize) {
        self.scratch(size);
        turn.out.fill_message(0, &mut self.scratch[..size]);
        let slices = split(&self.scratch[..size], turn.rng);
        match turn.end.send(&slices) {
            CallOutcome::Done(()) => turn.out.sent(size as u64),
            CallOutcome::Refused(CallError::AboveSendQuota { .. }) => self.begin_parts(turn, size as u64),
            CallOutcome::Refused(error) => panic!("send of {size} bytes is refused: {error}"),
            other => blocked_or_dead(turn.end, &other),
        }
    }

    fn begin_parts(&mut self, turn: &mut ActionContext, size: u64) {
        let part = turn.rng.within(0..size.min(100_000) as usize + 1);
        self.scratch(part);
        turn.out.fill_message(0, &mut self.scratch[..part]);
        match turn.end.send_part(size, &self.scratch[..part]) {
            CallOutcome::Done(len) => {
                assert!(len <= part, "send_part took {len} of {part} bytes");
                turn.out.sent(size);
                self.sending = Some((len as u64, size)).filter(|(done, all)| done < all);
            }
            CallOutcome::Refused(error) => panic!("send_part of {size} bytes is refused: {error}"),
            other => blocked_or_dead(turn.end, &other),
        }
    }

    fn go_on_sending(&mut self, turn: &mut ActionContext) {
        let Some((done, all)) = self.sending else { return };
        let part = turn.rng.within(1..(all - done).min(100_000) as usize + 1);
        self.scratch(part);
        turn.out.fill_rest(done, &mut self.scratch[..part]);
        match turn.end.send_part(all, &self.scratch[..part]) {
            CallOutcome::Done(len) => {
                assert!(len <= part, "send_part took {len} of {part} bytes");
                self.sending = Some((done + len as u64, all)).filter(|(done, all)| done < all);
            }
            CallOutcome::Refused(error) => panic!("send_part of {all} bytes is refused: {error}"),
            other => blocked_or_dead(turn.end, &other),
        }
    }

    fn send_block(&mut self, turn: &mut ActionContext, size: usize) {
        let Some(mut block) = turn.end.memory.block(room(size), Purpose::Send) else { return };
        match turn.plan.shape {
            KindUnderTest::Stream => turn.out.fill_stream(&mut block.bytes_mut()[..size]),
            KindUnderTest::Messages => turn.out.fill_message(0, &mut block.bytes_mut()[..size]),
        }
        match (turn.end.send_block(block, size), turn.plan.shape) {
            (CallOutcome::Done(()), KindUnderTest::Stream) => turn.out.wrote(size),
            (CallOutcome::Done(()), KindUnderTest::Messages) => turn.out.sent(size as u64),
            (CallOutcome::Refused(error), _) => panic!("send_block of {size} bytes is refused: {error}"),
            (other, _) => blocked_or_dead(turn.end, &other),
        }
    }

    /// Sends the same bytes from several blocks, some of which may be empty.
    fn send_blocks(&mut self, turn: &mut ActionContext, size: usize) {
        self.scratch(size);
        match turn.plan.shape {
            KindUnderTest::Stream => turn.out.fill_stream(&mut self.scratch[..size]),
            KindUnderTest::Messages => turn.out.fill_message(0, &mut self.scratch[..size]),
        }
        let (mut blocks, mut left) = (Vec::new(), &self.scratch[..size]);
        for more in (0..turn.rng.one_of(&[1, 2, 3, 9, 40])).rev() {
            // The last block takes the rest.
            let most = left.len().checked_div(more);
            let len = most.map_or(left.len(), |most| turn.rng.within(0..most + 1));
            let (piece, rest) = left.split_at(len);
            let Some(mut block) = turn.end.memory.block(room(len), Purpose::Send) else { return };
            block.bytes_mut()[..len].copy_from_slice(piece);
            blocks.push((block, len));
            left = rest;
        }
        match (turn.end.send_blocks(&mut blocks), turn.plan.shape) {
            (CallOutcome::Done(()), KindUnderTest::Stream) => turn.out.wrote(size),
            (CallOutcome::Done(()), KindUnderTest::Messages) => turn.out.sent(size as u64),
            (CallOutcome::Refused(error), _) => panic!("send_blocks of {size} bytes is refused: {error}"),
            (other, _) => blocked_or_dead(turn.end, &other),
        }
    }

    /// Makes one call that reads.
    pub(super) fn read(&mut self, turn: &mut ActionContext, which: usize) {
        let workload = turn.plan.workload[which];
        if workload.holds > 0 && self.held.len() < 64 && turn.rng.one_in(workload.holds) {
            self.take(turn);
        } else if turn.plan.shape == KindUnderTest::Stream {
            self.read_stream(turn);
        } else if self.taking || (workload.parts > 0 && turn.rng.one_in(workload.parts)) {
            self.receive_part(turn);
        } else {
            self.receive(turn);
        }
    }

    fn read_stream(&mut self, turn: &mut ActionContext) {
        let size = turn.rng.one_of(&[1, 7, 64, 1000, 5000, 70_000, 1 << 20]);
        self.scratch(size);
        let readable = turn.end.connection.readable();
        let outcome = turn.end.read(&mut self.scratch[..size]);
        assert!(
            readable || !matches!(outcome, CallOutcome::Done(_)),
            "I8: {outcome:?} although not readable"
        );
        match outcome {
            CallOutcome::Done(0) => turn.into.end(),
            CallOutcome::Done(len) => turn.into.read(&self.scratch[..len]),
            other => self.nothing_or_dead(turn.end, &other),
        }
    }

    fn receive(&mut self, turn: &mut ActionContext) {
        let size = turn.rng.one_of(&[0, 1, 1000, 4 << 20]);
        self.scratch(size);
        let readable = turn.end.connection.readable();
        let outcome = turn.end.recv(&mut self.scratch[..size]);
        assert!(
            readable || !matches!(outcome, CallOutcome::Done(_)),
            "I8: {outcome:?} although not readable"
        );
        match outcome {
            CallOutcome::Done(None) => turn.into.end(),
            CallOutcome::Done(Some(len)) => {
                turn.into.received(&self.scratch[..len], true);
                self.log.push(len as u64);
            }
            CallOutcome::Refused(CallError::BufferTooSmall { len, room }) => {
                assert_eq!(Some(len), turn.into.next_len(), "I5: the front message has the wrong length");
                assert!(len > room as u64, "{len} bytes do not fit {room}");
            }
            CallOutcome::Refused(CallError::AboveReceiveQuota { .. }) => self.receive_part(turn),
            other => self.nothing_or_dead(turn.end, &other),
        }
    }

    fn receive_part(&mut self, turn: &mut ActionContext) {
        let size = turn.rng.one_of(&[1, 100, 5000, 300_000]);
        self.scratch(size);
        match turn.end.recv_part(&mut self.scratch[..size]) {
            CallOutcome::Done(None) => turn.into.end(),
            CallOutcome::Done(Some(part)) => {
                assert_eq!(
                    Some(part.total),
                    turn.into.next_len(),
                    "I5: the front message has the wrong length"
                );
                self.taking = !part.last;
                turn.into.received(&self.scratch[..part.len], part.last);
                self.log.extend(part.last.then_some(part.total));
            }
            other => self.nothing_or_dead(turn.end, &other),
        }
    }

    /// Takes a received block and keeps it.
    fn take(&mut self, turn: &mut ActionContext) {
        match turn.end.recv_chunk() {
            CallOutcome::Done(None) => turn.into.end(),
            CallOutcome::Done(Some(chunk)) => {
                let bytes = &chunk.block.bytes()[chunk.range.clone()];
                match turn.plan.shape {
                    KindUnderTest::Stream => turn.into.read(bytes),
                    KindUnderTest::Messages => {
                        assert_eq!(chunk.first, !self.taking, "I5: a message begins at the wrong position");
                        self.taking = !chunk.last;
                        self.log.extend(turn.into.next_len().filter(|_| chunk.last));
                        turn.into.received(bytes, chunk.last);
                    }
                }
                let sum = crc32fast::hash(bytes);
                self.held.push(HeldBlock { chunk, sum });
            }
            CallOutcome::Blocked(Blocked::Memory) => {}
            other => self.nothing_or_dead(turn.end, &other),
        }
    }

    /// Like [`blocked_or_dead`], for a read.
    fn nothing_or_dead<T: std::fmt::Debug>(&mut self, end: &SimEndpoint, outcome: &CallOutcome<T>) {
        match outcome {
            CallOutcome::Blocked(Blocked::Nothing) => {
                assert!(
                    !end.connection.readable(),
                    "I8: nothing to read and the connection says that it is readable"
                );
            }
            CallOutcome::Dead(_) => {
                assert!(end.connection.readable(), "I8: dead and not readable");
                self.knows_failure = true;
            }
            other => panic!("a call to read gives {other:?}"),
        }
    }

    /// Gives one of the kept blocks back.
    pub(super) fn release_one(&mut self, turn: &mut ActionContext) {
        if self.held.is_empty() {
            return;
        }
        let HeldBlock { chunk, sum } = self.held.swap_remove(turn.rng.within(0..self.held.len()));
        let now = crc32fast::hash(&chunk.block.bytes()[chunk.range.clone()]);
        assert_eq!(now, sum, "I10: block {} changed while the program had it", chunk.block.id());
        drop(chunk.block);
        turn.end.connection.give_back(chunk.charge);
    }

    /// Drops all kept blocks, because the program was killed.
    pub(super) fn drop_all(&mut self) {
        self.held.clear();
    }
}

/// The size of a block that holds `len` bytes.
fn room(len: usize) -> usize {
    len.next_multiple_of(64).max(64)
}

/// Checks a write that did nothing: the connection must not be writable, unless memory is short, or
/// it must have failed.
fn blocked_or_dead<T: std::fmt::Debug>(end: &SimEndpoint, outcome: &CallOutcome<T>) {
    match outcome {
        CallOutcome::Blocked(Blocked::Memory) => {}
        CallOutcome::Blocked(Blocked::SendQuota) => {
            assert!(
                !end.connection.writable(),
                "I8: a write is blocked and the connection says that it is writable"
            );
        }
        CallOutcome::Dead(_) => assert!(end.connection.writable(), "I8: dead and not writable"),
        other => panic!("a call to write gives {other:?}"),
    }
}

/// Splits the bytes into one to four slices.
fn split<'a>(bytes: &'a [u8], rng: &mut SimRng) -> Vec<IoSlice<'a>> {
    let mut left = bytes;
    let mut pieces = Vec::new();
    for _ in 0..rng.within(0..4) {
        let (piece, rest) = left.split_at(rng.within(0..left.len() + 1));
        pieces.push(IoSlice::new(piece));
        left = rest;
    }
    pieces.push(IoSlice::new(left));
    pieces
}
