//! One endpoint of the simulation: its connection, its memory, and the driver that moves frames
//! between the connection and the modelled link.

use super::link::{DeviceWork, RcLink, ReceiveCompletion};
use super::memory::{BlockOwner, SimBlock, SimMemory};
use super::monitor::{HEADER, WireHeader, WireMonitor};
use super::plan::SimPlan;
use super::rng::SimRng;
use super::shared_receives::SharedReceives;
use super::tcp::{ReadResult, TcpLink};
use crate::protocol::frame::Immediate;
use crate::protocol::{
    self, Block, BlockPiece, Blocked, CallError, Chunk, CompletedTransmit, ConnectionEvent, ConnectionKind,
    ConnectionSetup, FailureCause, Frame, PostedSends, ProtocolMachine, Purpose, ReceivedPart, Ticket,
    TransmitItem,
};
use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::time::Instant;

/// The result of a program's call.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CallOutcome<T> {
    Done(T),
    Blocked(Blocked),
    /// The connection refuses this call, so the program must make another one.
    Refused(CallError),
    Dead(FailureCause),
}

/// How a connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum EndReason {
    Closed,
    Failed(FailureCause),
}

/// The modelled link between the ends.
pub(super) enum SimTransport {
    Rc(Box<RcLink>, Box<WireMonitor>),
    Tcp(TcpLink),
}

/// One end of the connection.
pub(super) struct SimEndpoint {
    which: usize,
    pub(super) connection: ProtocolMachine<SimBlock>,
    pub(super) memory: SimMemory,
    queue: PostedSends<SimBlock>,
    /// The other users of a shared receive queue, if the end uses one.
    shared: Option<SharedReceives>,
    slot_size: usize,
    gather: usize,
    /// The blocks of the lent sends that have not completed, by ticket.
    tickets: HashMap<Ticket, u64>,
    pub(super) tickets_given: u64,
    pub(super) tickets_done: u64,
    pub(super) ending: Option<EndReason>,
    /// The peer has sent FIN.
    pub(super) peer_closed: bool,
    /// The queue pair is destroyed, or the socket closed.
    torn_down: bool,
    /// The process was killed, so the end does nothing any more.
    pub(super) killed: bool,
    /// The turns left after a failure, in which a RESET can still get out.
    grace: usize,
    /// The program has dropped the connection, whose queue pair stays until a RESET is acknowledged.
    dropped: bool,
    /// The device has failed a request.
    broken: bool,
    /// A block that the connection gave back, to be posted again.
    spare: Option<SimBlock>,
    /// For TCP: bytes that the socket has not taken yet, and the beginning of an incomplete frame.
    unsent: Vec<u8>,
    partial: Vec<u8>,
}

impl SimEndpoint {
    pub(super) fn new(which: usize, plan: &SimPlan) -> Self {
        let setup = plan.setup(which);
        let memory = SimMemory::new(plan.pool, plan.kept(which));
        memory.keep_private(plan.private);
        memory.keep_apart(plan.apart);
        let connection = ProtocolMachine::starting_at(&setup, plan.first_total);
        Self {
            which,
            connection: connection.expect("the plan is valid"),
            memory,
            queue: PostedSends::new(plan.send_depth),
            shared: plan.shared.map(|more| SharedReceives::new(more, plan.limits[which].window().first)),
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
            dropped: false,
            broken: false,
            spare: None,
            unsent: Vec::new(),
            partial: Vec::new(),
        }
    }

    // The driver

    /// Prepares the connection as a driver does before the first frame.
    pub(super) fn begin(&mut self, transport: &mut SimTransport, now: Instant) {
        self.connection.tick(now);
        if let SimTransport::Rc(link, monitor) = transport {
            self.post_receives(link, monitor, usize::MAX);
            assert_eq!(
                self.connection.slots_wanted(),
                0,
                "the pool is too small for the receives of the handshake"
            );
        }
    }

    /// Drops the connection and its driver's state. A killed end never drains its queues.
    pub(super) fn finish_and_check(&mut self) -> SimMemory {
        while let Some(done) = self.queue.drain() {
            release(&self.memory, &done);
        }
        self.memory.release_all_sources();
        self.connection =
            ProtocolMachine::new(&ConnectionSetup::new(ConnectionKind::Stream, protocol::LinkType::Rc))
                .expect("the defaults work");
        self.spare = None;
        self.memory.clone()
    }

    /// A progress counter: it grows with every event.
    pub(super) fn moved(&self) -> u64 {
        let counters = self.connection.counters();
        let ended = u64::from(self.ending.is_some()) + u64::from(self.torn_down);
        counters.frames_sent + counters.frames_received + counters.reads + self.tickets_done + ended
    }

    /// The state of the end, for a failure message.
    pub(super) fn state(&self) -> String {
        let counters = self.connection.counters();
        format!(
            "{}: {counters:?}, {} tickets outstanding, {} slots wanted, room {}, readable {}, writable {}, memory {:?}, \
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

    /// Stops the other users of the shared receive queue.
    pub(super) fn pause_others(&mut self) {
        self.shared.iter_mut().for_each(SharedReceives::pause);
    }

    /// One turn of the driver: takes completions and bytes, then posts work requests and bytes.
    /// Chance limits the number of each, and chooses the queue that comes first.
    pub(super) fn turn(&mut self, transport: &mut SimTransport, now: Instant, rng: &mut SimRng) {
        if self.killed {
            return;
        }
        let most = if rng.one_in(2) { usize::MAX } else { rng.within(0..6) };
        match transport {
            _ if self.torn_down => {}
            SimTransport::Rc(link, monitor) => {
                self.take_completions(link, monitor, most, rng);
                self.shared.iter_mut().for_each(|shared| shared.act(rng));
                let most = if rng.one_in(8) { rng.within(0..4) } else { usize::MAX };
                self.post_receives(link, monitor, most);
                self.post_sends(link, monitor, now);
            }
            SimTransport::Tcp(tcp) => {
                self.take_bytes(tcp, most, rng);
                self.give_bytes(tcp, now);
            }
        }
        self.take_events();
        self.end_if_due(transport, rng);
    }

    fn take_completions(
        &mut self,
        link: &mut RcLink,
        monitor: &mut WireMonitor,
        most: usize,
        rng: &mut SimRng,
    ) {
        for _ in 0..most {
            let mut one = rng.one_in(2) && self.take_received(link, monitor);
            one = one || self.take_sent(link) || self.take_received(link, monitor);
            if !one {
                return;
            }
        }
    }

    fn take_received(&mut self, link: &mut RcLink, monitor: &mut WireMonitor) -> bool {
        let Some(ReceiveCompletion { block, len, immediate }) = link.poll_received(self.which) else {
            return false;
        };
        match immediate {
            None => monitor.receives(self.which, &block.bytes()[..len], &self.memory),
            Some(immediate) => monitor.receives_bare(self.which, immediate.0),
        }
        self.shared.iter_mut().for_each(SharedReceives::spend);
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
                panic!("{} reports a protocol violation of its honest peer: {error}", self.which)
            }
        }
    }

    fn take_sent(&mut self, link: &mut RcLink) -> bool {
        let Some(sent) = link.poll_sent(self.which) else { return false };
        if sent.failed {
            let cause = FailureCause::Completion {
                what: "a work request",
                status: 12,
                vendor: 0,
                hint: "it is a test".into(),
            };
            self.connection.failed(cause);
            self.broken = true;
            return true;
        }
        while let Some(mut done) = self.queue.complete(sent.id) {
            release(&self.memory, &done);
            if let CompletedTransmit::Read { block, .. } = &mut done {
                block.device_write(0, &sent.data);
            }
            self.connection.done(done);
        }
        true
    }

    fn post_receives(&mut self, link: &mut RcLink, monitor: &mut WireMonitor, most: usize) {
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
        monitor.posts(self.which, posted);
        self.connection.slots_posted(posted);
    }

    fn post_sends(&mut self, link: &mut RcLink, monitor: &mut WireMonitor, now: Instant) {
        let mut next = self.pull(now, self.queue.room());
        while let Some(transmit) = next {
            // Pull the next transmit before posting this one, because only then is it known whether
            // this is the last.
            let work = self.work(&transmit, monitor);
            let after = self.pull(now, self.queue.room() - 1);
            let (id, signaled) = self.queue.push(transmit, after.is_none());
            link.post(self.which, id, signaled, work);
            next = after;
        }
    }

    fn pull(&mut self, now: Instant, room: usize) -> Option<TransmitItem<SimBlock>> {
        let quiet = self.connection.is_quiet();
        let next = self.connection.transmit(now, &mut self.memory, room);
        assert!(!quiet || next.is_none(), "a quiet connection has data to transmit");
        next
    }

    /// The work request for `transmit`. The device owns its blocks from now on.
    fn work(&mut self, transmit: &TransmitItem<SimBlock>, monitor: &mut WireMonitor) -> DeviceWork {
        match transmit {
            TransmitItem::Send(frame) => {
                let bytes = frame_bytes(frame);
                monitor.sends(self.which, &bytes, &self.memory);
                let blocks = self.post_blocks(frame);
                monitor.accounts[self.which].parts += u64::from(matches!(frame, Frame::Part { .. }));
                match frame.immediate().filter(|_| self.connection.uses_immediate()) {
                    Some(immediate) => DeviceWork::Send(bytes[HEADER..].to_vec(), Some(immediate), blocks),
                    None => DeviceWork::Send(bytes, None, blocks),
                }
            }
            TransmitItem::Read(read) => {
                let len = read.from.len as usize;
                assert!(
                    len <= read.into.len(),
                    "I17: a READ of {len} bytes into a block of {}",
                    read.into.len()
                );
                monitor.reads(self.which, read.from.addr, len as u64);
                read.into.set_owner(BlockOwner::Receiving);
                DeviceWork::Read { addr: read.from.addr, rkey: read.from.rkeys.of(0), len }
            }
            TransmitItem::Probe => DeviceWork::Probe,
        }
    }

    /// The blocks that contain a frame's bytes. The device owns them from now on.
    fn post_blocks(&self, frame: &Frame<SimBlock>) -> Vec<u64> {
        match frame {
            Frame::Short(_) => Vec::new(),
            Frame::Whole { block, .. } => {
                block.set_owner(BlockOwner::Sending);
                vec![block.id()]
            }
            Frame::Gather { pieces, .. } => {
                assert!(pieces.count() <= self.gather, "{} pieces in a frame", pieces.count());
                let post = |piece: &BlockPiece<SimBlock>| {
                    assert!(piece.len == 0 || piece.block.is_reachable(0), "{:?} is sent", piece.block);
                    piece.block.set_owner(BlockOwner::Sending);
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

    fn take_bytes(&mut self, tcp: &mut TcpLink, most: usize, rng: &mut SimRng) {
        for _ in 0..most.min(64) {
            // Like a socket's driver, read no further than the end of the frame.
            let wanted = if self.partial.len() < HEADER {
                HEADER - self.partial.len()
            } else {
                HEADER + WireHeader::read(&self.partial).payload() - self.partial.len()
            };
            if wanted == 0 {
                if !self.take_frame() {
                    return;
                }
                continue;
            }
            match tcp.read(self.which, wanted, rng) {
                ReadResult::Bytes(bytes) => self.partial.extend_from_slice(&bytes),
                ReadResult::Nothing => return,
                ReadResult::End => return self.connection.failed(FailureCause::PeerGone),
                ReadResult::Reset => {
                    return self.connection.failed(reset("recv"));
                }
            }
        }
    }

    /// Gives a complete frame to the connection; returns `false` if the connection takes none or
    /// memory is short.
    fn take_frame(&mut self) -> bool {
        if self.connection.slots_wanted() == 0 {
            return false;
        }
        let Some(mut block) = self.memory.block(self.partial.len(), Purpose::Receive) else { return false };
        block.device_write(0, &self.partial);
        let len = self.partial.len();
        self.receives(block, len, None);
        self.partial.clear();
        true
    }

    fn give_bytes(&mut self, tcp: &mut TcpLink, now: Instant) {
        loop {
            match tcp.write(self.which, &self.unsent) {
                Some(len) => self.unsent = self.unsent.split_off(len),
                None => {
                    return self.connection.failed(reset("send"));
                }
            }
            if !self.unsent.is_empty() {
                return;
            }
            let Some(transmit) = self.pull(now, 1) else { return };
            let TransmitItem::Send(frame) = &transmit else { panic!("only frames go over TCP") };
            self.unsent = frame_bytes(frame);
            self.connection.done(CompletedTransmit::from(transmit));
        }
    }

    fn take_events(&mut self) {
        while let Some(event) = self.connection.take_event() {
            match event {
                ConnectionEvent::Returned { ticket, block, .. } => self.completes(ticket, &block),
                ConnectionEvent::PeerClosed => {
                    assert!(!self.peer_closed, "{}: the peer's close is reported twice", self.which);
                    self.peer_closed = true;
                }
                ConnectionEvent::Failed(cause) => self.ends(EndReason::Failed(cause)),
                ConnectionEvent::Closed => self.ends(EndReason::Closed),
            }
        }
    }

    fn completes(&mut self, ticket: Ticket, block: &SimBlock) {
        let id = self.tickets.remove(&ticket);
        assert_eq!(id, Some(block.id()), "I9: {}: {ticket:?} completes, but is not outstanding", self.which);
        assert!(!self.memory.is_sending(block.id()), "I10: {}: {block:?} comes back too early", self.which);
        self.tickets_done += 1;
    }

    fn ends(&mut self, ending: EndReason) {
        assert_eq!(self.ending, None, "I9: {} ends a second time, now {ending:?}", self.which);
        self.ending = Some(ending);
    }

    fn end_if_due(&mut self, transport: &mut SimTransport, rng: &mut SimRng) {
        match self.ending {
            None => {}
            _ if self.torn_down => {}
            // The bytes that the socket has not taken must still be written.
            Some(EndReason::Closed) if !self.unsent.is_empty() => {}
            Some(EndReason::Closed) => self.tear_down(transport),
            Some(EndReason::Failed(_)) if self.dropped && matches!(transport, SimTransport::Rc(..)) => {
                let told = self.queue.is_empty() || self.broken;
                told.then(|| self.tear_down(transport));
            }
            Some(EndReason::Failed(_)) if self.grace == 0 => self.grace = rng.within(1..12),
            Some(EndReason::Failed(_)) => {
                self.grace -= 1;
                if self.grace == 0 {
                    self.tear_down(transport);
                }
            }
        }
    }

    /// Destroys the queue pair or closes the socket, and returns the posted blocks to the
    /// connection.
    fn tear_down(&mut self, transport: &mut SimTransport) {
        self.torn_down = true;
        match transport {
            SimTransport::Rc(link, _) => link.destroy(self.which),
            SimTransport::Tcp(tcp) => tcp.close(self.which),
        }
        self.memory.release_all_sources();
        while let Some(done) = self.queue.drain() {
            release(&self.memory, &done);
            self.connection.done(done);
        }
        if matches!(self.ending, Some(EndReason::Failed(_))) {
            self.connection.drained();
        }
        self.take_events();
        assert!(self.tickets.is_empty(), "I9: {}: {} tickets never complete", self.which, self.tickets.len());
    }

    /// The program drops the connection.
    pub(super) fn drop_program(&mut self) {
        self.connection.cork(false);
        self.dropped = true;
    }

    /// Destroys the queue pair or closes the socket of a connection that the service thread has
    /// finished.
    pub(super) fn drop_finished(&mut self, transport: &mut SimTransport) {
        self.take_events();
        if !self.torn_down {
            self.tear_down(transport);
        }
        if let SimTransport::Tcp(tcp) = transport {
            tcp.drop_socket(self.which);
        }
    }

    /// The bootstrap socket reports that the peer is gone. Frames that have arrived are handled
    /// first.
    pub(super) fn observe_peer_gone(&mut self, transport: &mut SimTransport, rng: &mut SimRng) {
        if let (SimTransport::Rc(link, monitor), None, false) = (&mut *transport, &self.ending, self.killed) {
            self.take_completions(link, monitor, usize::MAX, rng);
            self.connection.failed(FailureCause::PeerGone);
        }
        self.take_events();
        self.end_if_due(transport, rng);
    }

    /// Whether the queue pair or socket is gone.
    pub(super) fn is_gone(&self) -> bool {
        self.torn_down || self.killed
    }

    /// Its number.
    pub(super) fn which(&self) -> usize {
        self.which
    }

    /// Whether the device or the socket has all that the connection has to send.
    pub(super) fn is_flushed(&self) -> bool {
        self.is_written() && !self.connection.has_unsent()
    }

    /// Whether the socket has taken all that the connection gave.
    pub(super) fn is_written(&self) -> bool {
        self.unsent.is_empty()
    }

    // The program

    pub(super) fn write(&mut self, slices: &[IoSlice]) -> CallOutcome<usize> {
        outcome(self.connection.write(slices, &mut self.memory))
    }

    pub(super) fn send(&mut self, slices: &[IoSlice]) -> CallOutcome<()> {
        outcome(self.connection.send(slices, &mut self.memory))
    }

    pub(super) fn send_part(&mut self, total: u64, bytes: &[u8]) -> CallOutcome<usize> {
        outcome(self.connection.send_part(total, &[IoSlice::new(bytes)], &mut self.memory))
    }

    pub(super) fn send_block(&mut self, block: SimBlock, len: usize) -> CallOutcome<()> {
        let id = block.id();
        match self.connection.send_block(block, len) {
            Ok(ticket) => {
                self.tickets_given += 1;
                assert_eq!(self.tickets.insert(ticket, id), None, "I9: {ticket:?} is given twice");
                CallOutcome::Done(())
            }
            Err((_, error)) => outcome(Err(error)),
        }
    }

    /// Refused blocks stay in the list.
    pub(super) fn send_blocks(&mut self, blocks: &mut Vec<(SimBlock, usize)>) -> CallOutcome<()> {
        let ids: Vec<_> = blocks.iter().map(|(block, _)| block.id()).collect();
        match self.connection.send_blocks(blocks) {
            Ok(Ticket(first)) => {
                assert!(blocks.is_empty(), "taken blocks are left in the list");
                self.tickets_given += ids.len() as u64;
                for (ticket, id) in (first..).map(Ticket).zip(ids) {
                    assert_eq!(self.tickets.insert(ticket, id), None, "I9: {ticket:?} is given twice");
                }
                CallOutcome::Done(())
            }
            Err(error) => {
                assert_eq!(blocks.len(), ids.len(), "refused blocks are missing from the list");
                outcome(Err(error))
            }
        }
    }

    pub(super) fn read(&mut self, buffer: &mut [u8]) -> CallOutcome<usize> {
        outcome(self.connection.read(buffer))
    }

    /// Reads in the way that suits the connection's kind; returns messages as bytes.
    pub(super) fn take_bytes_left(&mut self, buffer: &mut [u8]) -> CallOutcome<usize> {
        match self.connection.read(buffer) {
            Err(CallError::WrongKind) => {
                let part = self.connection.recv_part(buffer);
                outcome(part.map(|part| part.map_or(0, |part| part.len.max(1))))
            }
            other => outcome(other),
        }
    }

    pub(super) fn recv(&mut self, buffer: &mut [u8]) -> CallOutcome<Option<usize>> {
        outcome(self.connection.recv(buffer))
    }

    pub(super) fn recv_part(&mut self, buffer: &mut [u8]) -> CallOutcome<Option<ReceivedPart>> {
        outcome(self.connection.recv_part(buffer))
    }

    pub(super) fn recv_chunk(&mut self) -> CallOutcome<Option<Chunk<SimBlock>>> {
        outcome(self.connection.recv_chunk(&mut self.memory))
    }
}

fn outcome<T>(result: Result<T, CallError>) -> CallOutcome<T> {
    match result {
        Ok(value) => CallOutcome::Done(value),
        Err(CallError::Blocked(why)) => CallOutcome::Blocked(why),
        Err(CallError::Failed(cause)) => CallOutcome::Dead(cause),
        Err(other) => CallOutcome::Refused(other),
    }
}

/// The bytes of a frame on the wire.
fn frame_bytes(frame: &Frame<SimBlock>) -> Vec<u8> {
    frame.parts().collect::<Vec<_>>().concat()
}

/// Marks the blocks of `done` as no longer used by the device.
fn release(memory: &SimMemory, done: &CompletedTransmit<SimBlock>) {
    match done {
        CompletedTransmit::Sent(pieces) => {
            let pieces = pieces.iter().flat_map(|pieces| pieces.iter());
            pieces.for_each(|piece| memory.set_owner(piece.block.id(), BlockOwner::Local));
        }
        CompletedTransmit::Part(share) => memory.release(share.block().id()),
        CompletedTransmit::Read { block, .. } => memory.set_owner(block.id(), BlockOwner::Local),
        CompletedTransmit::Probe => {}
    }
}

/// The error of a call on a socket that the peer has reset.
fn reset(what: &'static str) -> FailureCause {
    let error = io::Error::from(io::ErrorKind::ConnectionReset);
    FailureCause::Io { what, kind: error.kind(), error: error.to_string() }
}
