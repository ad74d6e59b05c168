//! One end: its connection, its memory, and the driver between the connection and the modelled link.

use super::chance::Chance;
use super::link::{Link, Received, Work};
use super::memory::{Memory, SimBlock, Use};
use super::plan::Plan;
use super::shared::Shared;
use super::tcp::{Read, Tcp};
use super::watch::{HEADER, Header, Watch};
use crate::protocol::frame::Immediate;
use crate::protocol::{
    self, Block, Blocked, CallError, Cause, Chunk, Done, Event, Frame, Kind, Part, Piece, ProtocolMachine,
    Purpose, SendQueue, Setup, Ticket, Transmit,
};
use std::collections::HashMap;
use std::io::IoSlice;
use std::time::Instant;

/// What a call of the program came to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome<T> {
    Done(T),
    Blocked(Blocked),
    /// Not this call; another one does it.
    Refused(CallError),
    Dead(Cause),
}

/// How an end ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    Closed,
    Failed(Cause),
}

/// What joins the ends.
pub(super) enum Wire {
    Rc(Box<Link>, Box<Watch>),
    Tcp(Tcp),
}

/// One end of the connection.
pub(super) struct End {
    which: usize,
    pub(super) connection: ProtocolMachine<SimBlock>,
    pub(super) memory: Memory,
    queue: SendQueue<SimBlock>,
    /// What it shares its receives with, if it does.
    shared: Option<Shared>,
    slot_size: usize,
    gather: usize,
    /// Tickets that have not completed, with their blocks.
    tickets: HashMap<Ticket, u64>,
    pub(super) tickets_given: u64,
    pub(super) tickets_done: u64,
    pub(super) ending: Option<Ending>,
    /// The peer said FIN.
    pub(super) peer_closed: bool,
    /// The queue pair, or socket, is no more.
    torn_down: bool,
    /// It was killed: it does nothing any more.
    pub(super) killed: bool,
    /// Turns that it still takes after a failure, so that a RESET may get out.
    grace: usize,
    /// A block that the connection gave back, to be posted again.
    spare: Option<SimBlock>,
    /// On TCP: bytes that the socket did not take, and bytes of a frame that has not come whole.
    unsent: Vec<u8>,
    partial: Vec<u8>,
}

impl End {
    pub(super) fn new(which: usize, plan: &Plan) -> Self {
        let setup = plan.setup(which);
        let memory = Memory::new(plan.pool, plan.kept(which));
        memory.keep_private(plan.private);
        memory.keep_apart(plan.apart);
        let connection = ProtocolMachine::starting_at(&setup, plan.first_total);
        Self {
            which,
            connection: connection.expect("a plan that works"),
            memory,
            queue: SendQueue::new(plan.send_depth),
            shared: plan.shared.map(|more| Shared::new(more, plan.limits[which].window().first)),
            slot_size: plan.limits[which].slot_size as usize,
            gather: setup.gather,
            tickets: HashMap::new(),
            tickets_given: 0,
            tickets_done: 0,
            ending: None,
            peer_closed: false,
            torn_down: false,
            killed: false,
            grace: 0,
            spare: None,
            unsent: Vec::new(),
            partial: Vec::new(),
        }
    }

    // The driver

    /// What a driver does before the first frame.
    pub(super) fn begin(&mut self, wire: &mut Wire, now: Instant) {
        self.connection.tick(now);
        if let Wire::Rc(link, watch) = wire {
            self.post_receives(link, watch, usize::MAX);
            assert_eq!(
                self.connection.slots_wanted(),
                0,
                "the pool is too small for the receives of the handshake"
            );
        }
    }

    /// Drops the connection and what its driver had. A killed one never saw its queues drained.
    pub(super) fn bury(&mut self) -> Memory {
        while let Some(done) = self.queue.drain() {
            release(&self.memory, &done);
        }
        self.memory.absolve_all();
        self.connection =
            ProtocolMachine::new(&Setup::new(Kind::Stream, protocol::Link::Rc)).expect("the defaults work");
        self.spare = None;
        self.memory.clone()
    }

    /// Grows whenever something happens.
    pub(super) fn moved(&self) -> u64 {
        let counters = self.connection.counters();
        let ended = u64::from(self.ending.is_some()) + u64::from(self.torn_down);
        counters.frames_sent + counters.frames_received + counters.reads + self.tickets_done + ended
    }

    /// How things stand, for a failure.
    pub(super) fn state(&self) -> String {
        let counters = self.connection.counters();
        format!(
            "{}: {counters:?}, {} tickets under way, {} slots wanted, room {}, readable {}, writable {}, memory {:?}, \
             ending {:?}, gone {}",
            self.which,
            self.tickets.len(),
            self.connection.slots_wanted(),
            self.queue.room(),
            self.connection.readable(),
            self.connection.writable(),
            self.memory.out(),
            self.ending,
            self.is_gone(),
        )
    }

    /// Who shares receives with it does nothing from now on.
    pub(super) fn hush_others(&mut self) {
        self.shared.iter_mut().for_each(Shared::hush);
    }

    /// One turn of the driver: completions and bytes in, work requests and bytes out. It takes all of them, or as few as chance has
    /// it, from either queue first.
    pub(super) fn turn(&mut self, wire: &mut Wire, now: Instant, chance: &mut Chance) {
        if self.killed {
            return;
        }
        let most = if chance.one_in(2) { usize::MAX } else { chance.within(0..6) };
        match wire {
            _ if self.torn_down => {}
            Wire::Rc(link, watch) => {
                self.take_completions(link, watch, most, chance);
                self.shared.iter_mut().for_each(|shared| shared.stir(chance));
                let most = if chance.one_in(8) { chance.within(0..4) } else { usize::MAX };
                self.post_receives(link, watch, most);
                self.post_sends(link, watch, now);
            }
            Wire::Tcp(tcp) => {
                self.take_bytes(tcp, most, chance);
                self.give_bytes(tcp, now);
            }
        }
        self.take_events();
        self.end_if_due(wire, chance);
    }

    fn take_completions(&mut self, link: &mut Link, watch: &mut Watch, most: usize, chance: &mut Chance) {
        for _ in 0..most {
            let mut one = chance.one_in(2) && self.take_received(link, watch);
            one = one || self.take_sent(link) || self.take_received(link, watch);
            if !one {
                return;
            }
        }
    }

    fn take_received(&mut self, link: &mut Link, watch: &mut Watch) -> bool {
        let Some(Received { block, len, immediate }) = link.poll_received(self.which) else { return false };
        match immediate {
            None => watch.receives(self.which, &block.bytes()[..len], &self.memory),
            Some(immediate) => watch.receives_bare(self.which, immediate.0),
        }
        self.shared.iter_mut().for_each(Shared::spend);
        self.spare = self.receives(block, len, immediate);
        true
    }

    fn receives(&mut self, block: SimBlock, len: usize, immediate: Option<Immediate>) -> Option<SimBlock> {
        let taken = match immediate {
            None => self.connection.received(block, len),
            Some(immediate) => self.connection.received_bare(block, len, immediate),
        };
        match taken {
            Ok(spare) => spare,
            Err(error) => {
                panic!("{} takes its honest peer for one that breaks the protocol: {error}", self.which)
            }
        }
    }

    fn take_sent(&mut self, link: &mut Link) -> bool {
        let Some(sent) = link.poll_sent(self.which) else { return false };
        if sent.failed {
            let cause = Cause::Completion { what: "a work request", status: 12, vendor: 0 };
            self.connection.failed(cause);
            return true;
        }
        while let Some(mut done) = self.queue.complete(sent.id) {
            release(&self.memory, &done);
            if let Done::Read { block, .. } = &mut done {
                block.land(0, &sent.data);
            }
            self.connection.done(done);
        }
        true
    }

    fn post_receives(&mut self, link: &mut Link, watch: &mut Watch, most: usize) {
        let wanted = self.connection.slots_wanted().min(most);
        let wanted = self.shared.as_ref().map_or(wanted, |shared| shared.allows(wanted));
        let mut posted = 0;
        while posted < wanted {
            let Some(block) =
                self.spare.take().or_else(|| self.memory.block(self.slot_size, Purpose::Receive))
            else {
                break;
            };
            link.post_receive(self.which, block);
            posted += 1;
        }
        self.spare = None;
        self.shared.iter_mut().for_each(|shared| shared.grant(posted));
        watch.posts(self.which, posted);
        self.connection.slots_posted(posted);
    }

    fn post_sends(&mut self, link: &mut Link, watch: &mut Watch, now: Instant) {
        let mut next = self.pull(now, self.queue.room());
        while let Some(transmit) = next {
            // The next is pulled before this one is posted: only then it is known whether this is the last.
            let work = self.work(&transmit, watch);
            let after = self.pull(now, self.queue.room() - 1);
            let (id, signaled) = self.queue.push(transmit, after.is_none());
            link.post(self.which, id, signaled, work);
            next = after;
        }
    }

    fn pull(&mut self, now: Instant, room: usize) -> Option<Transmit<SimBlock>> {
        let quiet = self.connection.is_quiet();
        let next = self.connection.transmit(now, &mut self.memory, room);
        assert!(!quiet || next.is_none(), "nobody would have asked for what there is to be sent");
        next
    }

    /// What the device is asked to do for `transmit`; its block is the device's from now on.
    fn work(&mut self, transmit: &Transmit<SimBlock>, watch: &mut Watch) -> Work {
        match transmit {
            Transmit::Send(frame) => {
                let bytes = frame_bytes(frame);
                watch.sends(self.which, &bytes, &self.memory);
                let blocks = self.post_blocks(frame);
                watch.books[self.which].parts += u64::from(matches!(frame, Frame::Part { .. }));
                match frame.immediate().filter(|_| self.connection.uses_immediate()) {
                    Some(immediate) => Work::Send(bytes[HEADER..].to_vec(), Some(immediate), blocks),
                    None => Work::Send(bytes, None, blocks),
                }
            }
            Transmit::Read(read) => {
                let len = read.from.len as usize;
                assert!(
                    len <= read.into.len(),
                    "I17: a READ of {len} bytes into a block of {}",
                    read.into.len()
                );
                watch.reads(self.which, read.from.addr, len as u64);
                read.into.hand(Use::Receiving);
                Work::Read { addr: read.from.addr, rkey: read.from.rkey, len }
            }
            Transmit::Probe => Work::Probe,
        }
    }

    /// The blocks in which a frame's bytes lie; they are the device's from now on.
    fn post_blocks(&self, frame: &Frame<SimBlock>) -> Vec<u64> {
        match frame {
            Frame::Short(_) => Vec::new(),
            Frame::Whole { block, .. } => {
                block.hand(Use::Sending);
                vec![block.id()]
            }
            Frame::Gather { pieces, .. } => {
                assert!(pieces.count() <= self.gather, "{} pieces in a frame", pieces.count());
                let post = |piece: &Piece<SimBlock>| {
                    assert!(piece.len == 0 || piece.block.is_reachable(0), "{:?} is sent", piece.block);
                    piece.block.hand(Use::Sending);
                    piece.block.id()
                };
                pieces.iter().map(post).collect()
            }
            Frame::Part { share, .. } => {
                assert!(share.block().is_reachable(0), "{:?} is sent", share.block());
                self.memory.share(share.block().id());
                vec![share.block().id()]
            }
        }
    }

    fn take_bytes(&mut self, tcp: &mut Tcp, most: usize, chance: &mut Chance) {
        for _ in 0..most.min(64) {
            // Like a driver of a socket it reads no further than to the frame's end.
            let wanted = if self.partial.len() < HEADER {
                HEADER - self.partial.len()
            } else {
                HEADER + Header::read(&self.partial).payload() - self.partial.len()
            };
            if wanted == 0 {
                if !self.take_frame() {
                    return;
                }
                continue;
            }
            match tcp.read(self.which, wanted, chance) {
                Read::Bytes(bytes) => self.partial.extend_from_slice(&bytes),
                Read::Nothing => return,
                Read::End => return self.connection.failed(Cause::PeerGone),
                Read::Reset => {
                    let kind = std::io::ErrorKind::ConnectionReset;
                    return self.connection.failed(Cause::Io { what: "recv", kind });
                }
            }
        }
    }

    /// Gives the connection the frame that is whole, if it takes one and there is memory.
    fn take_frame(&mut self) -> bool {
        if self.connection.slots_wanted() == 0 {
            return false;
        }
        let Some(mut block) = self.memory.block(self.partial.len(), Purpose::Receive) else { return false };
        block.land(0, &self.partial);
        let len = self.partial.len();
        self.receives(block, len, None);
        self.partial.clear();
        true
    }

    fn give_bytes(&mut self, tcp: &mut Tcp, now: Instant) {
        loop {
            match tcp.write(self.which, &self.unsent) {
                Some(len) => self.unsent = self.unsent.split_off(len),
                None => {
                    let kind = std::io::ErrorKind::ConnectionReset;
                    return self.connection.failed(Cause::Io { what: "send", kind });
                }
            }
            if !self.unsent.is_empty() {
                return;
            }
            let Some(transmit) = self.pull(now, 1) else { return };
            let Transmit::Send(frame) = &transmit else { panic!("only frames go over TCP") };
            self.unsent = frame_bytes(frame);
            self.connection.done(Done::from(transmit));
        }
    }

    fn take_events(&mut self) {
        while let Some(event) = self.connection.take_event() {
            match event {
                Event::Returned { ticket, block, .. } => self.completes(ticket, &block),
                Event::PeerClosed => {
                    assert!(!self.peer_closed, "{}: the peer's close is told twice", self.which);
                    self.peer_closed = true;
                }
                Event::Failed(cause) => self.ends(Ending::Failed(cause)),
                Event::Closed => self.ends(Ending::Closed),
            }
        }
    }

    fn completes(&mut self, ticket: Ticket, block: &SimBlock) {
        let id = self.tickets.remove(&ticket);
        assert_eq!(id, Some(block.id()), "I9: {}: {ticket:?} completes that is not under way", self.which);
        assert!(!self.memory.is_sending(block.id()), "I10: {}: {block:?} comes back too early", self.which);
        self.tickets_done += 1;
    }

    fn ends(&mut self, ending: Ending) {
        assert_eq!(self.ending, None, "I9: {} ends a second time, now {ending:?}", self.which);
        self.ending = Some(ending);
    }

    fn end_if_due(&mut self, wire: &mut Wire, chance: &mut Chance) {
        match self.ending {
            None => {}
            _ if self.torn_down => {}
            // What the socket has not taken must still go.
            Some(Ending::Closed) if !self.unsent.is_empty() => {}
            Some(Ending::Closed) => self.tear_down(wire),
            Some(Ending::Failed(_)) if self.grace == 0 => self.grace = chance.within(1..12),
            Some(Ending::Failed(_)) => {
                self.grace -= 1;
                if self.grace == 0 {
                    self.tear_down(wire);
                }
            }
        }
    }

    /// Destroys the queue pair or closes the socket, and gives the connection back what was posted.
    fn tear_down(&mut self, wire: &mut Wire) {
        self.torn_down = true;
        match wire {
            Wire::Rc(link, _) => link.destroy(self.which),
            Wire::Tcp(tcp) => tcp.close(self.which),
        }
        self.memory.absolve_all();
        while let Some(done) = self.queue.drain() {
            release(&self.memory, &done);
            self.connection.done(done);
        }
        if matches!(self.ending, Some(Ending::Failed(_))) {
            self.connection.drained();
        }
        self.take_events();
        assert!(self.tickets.is_empty(), "I9: {}: {} tickets never complete", self.which, self.tickets.len());
    }

    /// The socket that the connection began with says that the peer is gone. What has arrived is taken first.
    pub(super) fn hears_that_peer_is_gone(&mut self, wire: &mut Wire, chance: &mut Chance) {
        if let (Wire::Rc(link, watch), None, false) = (&mut *wire, &self.ending, self.killed) {
            self.take_completions(link, watch, usize::MAX, chance);
            self.connection.failed(Cause::PeerGone);
        }
        self.take_events();
        self.end_if_due(wire, chance);
    }

    /// Whether its queue pair or socket is gone.
    pub(super) fn is_gone(&self) -> bool {
        self.torn_down || self.killed
    }

    // The program

    pub(super) fn write(&mut self, slices: &[IoSlice]) -> Outcome<usize> {
        outcome(self.connection.write(slices, &mut self.memory))
    }

    pub(super) fn send(&mut self, slices: &[IoSlice]) -> Outcome<()> {
        outcome(self.connection.send(slices, &mut self.memory))
    }

    pub(super) fn send_part(&mut self, total: u64, bytes: &[u8]) -> Outcome<usize> {
        outcome(self.connection.send_part(total, &[IoSlice::new(bytes)], &mut self.memory))
    }

    pub(super) fn send_block(&mut self, block: SimBlock, len: usize) -> Outcome<()> {
        let id = block.id();
        match self.connection.send_block(block, len) {
            Ok(ticket) => {
                self.tickets_given += 1;
                assert_eq!(self.tickets.insert(ticket, id), None, "I9: {ticket:?} is given twice");
                Outcome::Done(())
            }
            Err((_, error)) => outcome(Err(error)),
        }
    }

    /// What is refused is still in the list.
    pub(super) fn send_blocks(&mut self, blocks: &mut Vec<(SimBlock, usize)>) -> Outcome<()> {
        let ids: Vec<_> = blocks.iter().map(|(block, _)| block.id()).collect();
        match self.connection.send_blocks(blocks) {
            Ok(Ticket(first)) => {
                assert!(blocks.is_empty(), "blocks that were taken are left");
                self.tickets_given += ids.len() as u64;
                for (ticket, id) in (first..).map(Ticket).zip(ids) {
                    assert_eq!(self.tickets.insert(ticket, id), None, "I9: {ticket:?} is given twice");
                }
                Outcome::Done(())
            }
            Err(error) => {
                assert_eq!(blocks.len(), ids.len(), "blocks that were refused are gone");
                outcome(Err(error))
            }
        }
    }

    pub(super) fn read(&mut self, buffer: &mut [u8]) -> Outcome<usize> {
        outcome(self.connection.read(buffer))
    }

    /// Whichever this kind of connection has; messages are taken as bytes.
    pub(super) fn take_bytes_left(&mut self, buffer: &mut [u8]) -> Outcome<usize> {
        match self.connection.read(buffer) {
            Err(CallError::WrongKind) => {
                let part = self.connection.recv_part(buffer);
                outcome(part.map(|part| part.map_or(0, |part| part.len.max(1))))
            }
            other => outcome(other),
        }
    }

    pub(super) fn recv(&mut self, buffer: &mut [u8]) -> Outcome<Option<usize>> {
        outcome(self.connection.recv(buffer))
    }

    pub(super) fn recv_part(&mut self, buffer: &mut [u8]) -> Outcome<Option<Part>> {
        outcome(self.connection.recv_part(buffer))
    }

    pub(super) fn recv_chunk(&mut self) -> Outcome<Option<Chunk<SimBlock>>> {
        outcome(self.connection.recv_chunk(&mut self.memory))
    }
}

fn outcome<T>(result: Result<T, CallError>) -> Outcome<T> {
    match result {
        Ok(value) => Outcome::Done(value),
        Err(CallError::Blocked(why)) => Outcome::Blocked(why),
        Err(CallError::Failed(cause)) => Outcome::Dead(cause),
        Err(other) => Outcome::Refused(other),
    }
}

/// The frame as it stands on the wire.
fn frame_bytes(frame: &Frame<SimBlock>) -> Vec<u8> {
    frame.parts().collect::<Vec<_>>().concat()
}

/// A device does not touch the block of `done` any more.
fn release(memory: &Memory, done: &Done<SimBlock>) {
    match done {
        Done::Sent(pieces) => {
            let pieces = pieces.iter().flat_map(|pieces| pieces.iter());
            pieces.for_each(|piece| memory.hand(piece.block.id(), Use::Local));
        }
        Done::Part(share) => memory.release(share.block().id()),
        Done::Read { block, .. } => memory.hand(block.id(), Use::Local),
        Done::Probe => {}
    }
}
