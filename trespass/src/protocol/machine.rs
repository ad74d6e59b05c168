//! One connection: what the program and the driver call. What comes in is taken in [`receiving`], what goes out next is in [`transmitting`].

mod receiving;
mod transmitting;

use std::collections::VecDeque;
use std::io::IoSlice;
use std::time::Instant;

#[cfg(test)]
use super::block::Segment;
use super::block::{Block, Blocks};
use super::close::CloseState;
use super::credit::Credits;
use super::failure::{CallError, FailureCause, InvalidSetup};
use super::frame::{FrameType, HEADER_LEN, Head, Immediate};
use super::incoming::{Chunk, Incoming, ReadRequest, ReceivedPart};
use super::keepalive::KeepaliveProber;
use super::outgoing::{LendSummary, Outgoing};
use super::pieces::{BlockPiece, BlockPieces, BlockShare};
use super::posted_sends::CompletedTransmit;
use super::setup::{ConnectionKind, ConnectionSetup, LinkType};

/// Names a lent block until its event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Ticket(pub(crate) u64);

/// A frame to send.
#[derive(Debug)]
pub(crate) enum Frame<B> {
    /// At most 64 bytes, in no block: sent inline, or from memory of the driver.
    Short(Head),
    /// Bytes `start..end` of the block.
    Whole { block: B, start: usize, end: usize },
    /// `head`, and behind it bytes of lent blocks.
    Gather { head: Head, pieces: BlockPieces<B> },
    /// `head`, and behind it some of the bytes of a lent block that does not fit one frame.
    Part { head: Head, share: BlockShare<B> },
}

impl<B: Block> Frame<B> {
    /// Where its header is, and what of it lies there with it.
    fn head(&self) -> &[u8] {
        match self {
            Frame::Short(head) | Frame::Gather { head, .. } | Frame::Part { head, .. } => head.bytes(),
            Frame::Whole { block, start, end } => &block.bytes()[*start..*end],
        }
    }

    fn pieces(&self) -> Option<&BlockPieces<B>> {
        if let Frame::Gather { pieces, .. } = self { Some(pieces) } else { None }
    }

    fn share(&self) -> Option<&BlockShare<B>> {
        if let Frame::Part { share, .. } = self { Some(share) } else { None }
    }

    /// Its bytes, part by part.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &[u8]> {
        let pieces = self.pieces().into_iter().flat_map(BlockPieces::iter).map(BlockPiece::bytes);
        std::iter::once(self.head()).chain(pieces).chain(self.share().map(BlockShare::bytes))
    }

    /// Number of its bytes.
    pub(crate) fn len(&self) -> usize {
        self.head().len()
            + self.pieces().map_or(0, BlockPieces::len)
            + self.share().map_or(0, BlockShare::len)
    }

    /// What stands for its header in immediate data, if that can be.
    #[cfg_attr(not(feature = "rdma"), allow(dead_code, reason = "TCP has no immediate data"))]
    pub(crate) fn immediate(&self) -> Option<Immediate> {
        Immediate::of(self.head())
    }

    fn is_rts(&self) -> bool {
        self.head()[0] == FrameType::Rts as u8
    }
}

/// What the driver is to post.
#[derive(Debug)]
pub(crate) enum TransmitItem<B> {
    /// A frame: one SEND.
    Send(Frame<B>),
    /// A READ of the peer's memory.
    Read(ReadRequest<B>),
    /// Nothing that the peer's program notices, but whose completion shows that the peer is there: a WRITE of no bytes.
    Probe,
}

/// What the program is to hear of.
#[derive(Debug)]
pub(crate) enum ConnectionEvent<B> {
    /// A lent block comes back. `sent`: the peer has all of it; else the connection failed first.
    Returned { ticket: Ticket, block: B, sent: bool },
    /// The peer will send no more.
    PeerClosed,
    /// The connection failed.
    Failed(FailureCause),
    /// Both sides have closed, and everything has arrived.
    Closed,
}

/// What has happened so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ConnectionCounters {
    pub(crate) frames_sent: u64,
    pub(crate) frames_received: u64,
    /// Payload of DATA frames.
    pub(crate) bytes_sent: u64,
    /// Bytes that the peer was told to READ.
    pub(crate) bytes_announced: u64,
    /// Payload of DATA frames.
    pub(crate) bytes_received: u64,
    /// Frames sent that were nothing but credits.
    pub(crate) credits_sent: u64,
    /// READs posted.
    pub(crate) reads: u64,
    /// Bytes that READs brought.
    pub(crate) bytes_read: u64,
    pub(crate) probes: u64,
}

/// A connection.
pub(crate) struct ProtocolMachine<B> {
    link: LinkType,
    receive_payload: usize,
    credits: Credits,
    outgoing: Outgoing<B>,
    incoming: Incoming<B>,
    closing: CloseState,
    prober: KeepaliveProber,
    events: VecDeque<ConnectionEvent<B>>,
    next_ticket: u64,
    read_agreed: bool,
    coalesce_agreed: bool,
    immediate_agreed: bool,
    wants_memory: bool,
    /// Failed, and nothing of it is with a device any more.
    drained: bool,
    counters: ConnectionCounters,
}

impl<B: Block> ProtocolMachine<B> {
    /// A connection whose handshake is done.
    pub(crate) fn new(setup: &ConnectionSetup) -> Result<Self, InvalidSetup> {
        setup.check()?;
        Ok(ProtocolMachine {
            link: setup.link,
            receive_payload: setup.receive_payload(),
            credits: Credits::new(setup.link, setup.own.window(), setup.peer.window()),
            outgoing: Outgoing::new(setup),
            incoming: Incoming::new(setup),
            closing: CloseState::new(setup.linger),
            prober: KeepaliveProber::new(setup.keepalive),
            events: VecDeque::new(),
            next_ticket: 0,
            read_agreed: setup.read,
            coalesce_agreed: setup.coalesce,
            immediate_agreed: setup.immediate && setup.link == LinkType::Rc,
            wants_memory: false,
            drained: false,
            counters: ConnectionCounters::default(),
        })
    }

    /// The same with all cumulative totals begun at `start`, to test their wrap.
    #[cfg(test)]
    pub(crate) fn starting_at(setup: &ConnectionSetup, start: u32) -> Result<Self, InvalidSetup> {
        let mut connection = ProtocolMachine::new(setup)?;
        connection.credits = Credits::starting_at(start, setup.link, setup.own.window(), setup.peer.window());
        connection.outgoing.start_at(start);
        connection.incoming.start_at(start);
        Ok(connection)
    }

    /// For simulators: the bytes that a READ of the peer brings. `None`: the range is not, or no longer, the peer's to read.
    #[cfg(test)]
    pub(crate) fn source_bytes(&self, range: Segment) -> Option<&[u8]> {
        self.outgoing.source_bytes(range)
    }

    /// Credits, for invariants: (the peer's receives that this side may still use, receives posted here and unused).
    #[cfg(test)]
    pub(crate) fn credits(&self) -> (u32, u32) {
        (self.credits.left(), self.credits.outstanding())
    }

    // The program: giving

    /// Stream: copies as many bytes as there is room for.
    pub(crate) fn write(
        &mut self,
        slices: &[IoSlice<'_>],
        blocks: &mut impl Blocks<Block = B>,
    ) -> Result<usize, CallError> {
        self.check_writing()?;
        self.outgoing.write(slices, blocks)
    }

    /// SeqPacket: copies a message, all of it or nothing.
    pub(crate) fn send(
        &mut self,
        slices: &[IoSlice<'_>],
        blocks: &mut impl Blocks<Block = B>,
    ) -> Result<(), CallError> {
        self.check_writing()?;
        self.outgoing.send(slices, blocks)
    }

    /// SeqPacket: copies the next bytes of a message of `total` bytes, as many as there is room for. Until all of it was given, no other
    /// message can be sent.
    pub(crate) fn send_part(
        &mut self,
        total: u64,
        slices: &[IoSlice<'_>],
        blocks: &mut impl Blocks<Block = B>,
    ) -> Result<usize, CallError> {
        self.check_writing()?;
        self.outgoing.send_part(total, slices, blocks)
    }

    /// Whether so much is under way that what comes next waits for it, and goes with what comes then.
    #[cfg_attr(not(feature = "rdma"), allow(dead_code, reason = "a socket takes all that it has room for"))]
    #[inline]
    pub(crate) fn is_busy(&self) -> bool {
        self.outgoing.is_busy()
    }

    /// Whether `len` bytes that the program still has, a message or bytes of the stream, may be a frame of their own now. Else they have to be
    /// given by [`send`](Self::send) or [`write`](Self::write), which say why, if that cannot be.
    #[inline]
    pub(crate) fn allows_single_frame(&self, kind: ConnectionKind, len: usize) -> bool {
        self.closing.is_untouched()
            && (kind == ConnectionKind::SeqPacket || len > 0)
            && self.outgoing.allows_single_frame(kind, len, &self.credits)
    }

    /// Begins that frame, for which the driver has room: its header. `block`: the size of the block that the bytes were copied to, which comes
    /// back when the frame has completed; 0: none is.
    #[inline]
    pub(crate) fn begin_single_frame(&mut self, len: usize, block: usize) -> [u8; HEADER_LEN] {
        self.counters.frames_sent += 1;
        self.counters.bytes_sent += len as u64;
        self.outgoing.begin_single_frame(len, block, &mut self.credits)
    }

    /// Sends the first `len` bytes of a block: a message, or bytes of the stream. The block comes back by [`ConnectionEvent::Returned`].
    pub(crate) fn send_block(&mut self, block: B, len: usize) -> Result<Ticket, (B, CallError)> {
        let len = len.min(block.bytes().len());
        let load = self.outgoing.weigh(std::iter::once((&block, len)));
        match self.check_writing().and_then(|()| self.outgoing.check_lending(&load)) {
            Ok(()) => Ok(self.lend(std::iter::once((block, len)), &load)),
            Err(error) => Err((block, error)),
        }
    }

    /// Sends the first bytes of several blocks: one message, or bytes of the stream. Each comes back by an event of its own; the tickets
    /// count on from the first, which is given. What is refused stays in the list.
    pub(crate) fn send_blocks(&mut self, blocks: &mut Vec<(B, usize)>) -> Result<Ticket, CallError> {
        self.check_writing()?;
        blocks.iter_mut().for_each(|(block, len)| *len = block.bytes().len().min(*len));
        let load = self.outgoing.weigh(blocks.iter().map(|(block, len)| (block, *len)));
        self.outgoing.check_lending(&load)?;
        Ok(self.lend(blocks.drain(..), &load))
    }

    /// Lends blocks. Gives the first one's ticket.
    fn lend(&mut self, blocks: impl Iterator<Item = (B, usize)>, load: &LendSummary) -> Ticket {
        let (first, next, events) = (self.next_ticket, &mut self.next_ticket, &mut self.events);
        // What has nothing to send is in no frame, but for the one of an empty message.
        let empty_message = load.full == 0 && self.outgoing.has_messages();
        let pieces = blocks.filter_map(|(block, len)| {
            let ticket = Ticket(*next);
            *next += 1;
            if len > 0 || (empty_message && ticket.0 == first) {
                return Some(BlockPiece { block, len, ticket: Some(ticket) });
            }
            events.push_back(ConnectionEvent::Returned { ticket, block, sent: true });
            None
        });
        self.outgoing.lend(pieces, load);
        Ticket(first)
    }

    /// SeqPacket: of the message that is being given in parts, how many bytes were given, and how many it has.
    pub(crate) fn sending(&self) -> Option<(u64, u64)> {
        self.outgoing.parts_given()
    }

    /// Holds back what does not fill a frame until uncorked, flushed or shut down, or for 200 ms.
    pub(crate) fn cork(&mut self, corked: bool) {
        self.outgoing.cork(corked);
    }

    pub(crate) fn is_corked(&self) -> bool {
        self.outgoing.is_corked()
    }

    /// What was given goes as soon as it can.
    pub(crate) fn flush(&mut self) {
        self.outgoing.close_tail();
    }

    /// Whether something that was given, or the end of it, has not been taken by the driver: for want of credits, of memory, or of room; not
    /// if the program holds it back itself.
    pub(crate) fn has_unsent(&self) -> bool {
        self.closing.failed().is_none() && (self.outgoing.has_unsent() || self.closing.fin_due())
    }

    /// Whether the peer needs nothing more of this side's memory: everything is acknowledged, and read, and its end was told.
    pub(crate) fn is_delivered(&self) -> bool {
        !self.closing.fin_due()
            && self.outgoing.is_empty()
            && self.outgoing.in_flight() == 0
            && self.outgoing.unread() == 0
    }

    /// Whether a call to give more would do something other than block. (For want of memory it may still.)
    pub(crate) fn writable(&self) -> bool {
        self.check_writing().is_err() || self.outgoing.writable()
    }

    fn check_writing(&self) -> Result<(), CallError> {
        match self.closing.failed() {
            Some(cause) => Err(CallError::Failed(cause.clone())),
            None if self.closing.is_shut() => Err(CallError::ShutDown),
            None => Ok(()),
        }
    }

    // The program: taking

    /// Stream: takes bytes. 0: the peer has sent all that it will.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> Result<usize, CallError> {
        let result = self.incoming.read(buffer);
        self.taken(result)
    }

    /// SeqPacket: takes the message at the front, whole. `None`: the peer has sent all that it will.
    pub(crate) fn recv(&mut self, buffer: &mut [u8]) -> Result<Option<usize>, CallError> {
        let result = self.incoming.recv(buffer);
        self.taken(result)
    }

    /// SeqPacket: takes what is here of the message at the front. `None`: the peer has sent all that it will.
    pub(crate) fn recv_part(&mut self, buffer: &mut [u8]) -> Result<Option<ReceivedPart>, CallError> {
        let result = self.incoming.recv_part(buffer);
        self.taken(result)
    }

    /// Takes the bytes at the front with the block that they lie in; for a message of several blocks, the next of them. `None`: the peer has
    /// sent all that it will.
    pub(crate) fn recv_chunk(
        &mut self,
        blocks: &mut impl Blocks<Block = B>,
    ) -> Result<Option<Chunk<B>>, CallError> {
        let result = self.incoming.chunk(blocks);
        self.taken(result)
    }

    /// The program no longer holds what [`Chunk::charge`] counts.
    pub(crate) fn give_back(&mut self, charge: usize) {
        self.incoming.give_back(charge);
        self.replace_slots();
    }

    /// SeqPacket: the length of the message at the front, of which all or a part is here.
    #[cfg(test)]
    pub(crate) fn message_len(&self) -> Option<u64> {
        self.incoming.message_len()
    }

    /// SeqPacket: whether there is something of a message that is longer than this, and no longer than that.
    pub(crate) fn begins_with(&self, more_than: usize, at_most: usize) -> bool {
        self.incoming.begins_with(more_than as u64, at_most as u64)
    }

    /// SeqPacket: of the message that is being taken in parts, how many bytes were taken, and how many it has.
    pub(crate) fn receiving(&self) -> Option<(u64, u64)> {
        self.incoming.parts_taken()
    }

    /// SeqPacket: whether the message at the front can be taken whole.
    pub(crate) fn message_complete(&self) -> bool {
        self.incoming.message_complete()
    }

    /// Whether a call to take something would do something other than block.
    pub(crate) fn readable(&self) -> bool {
        self.closing.failed().is_some() || self.incoming.readable()
    }

    /// What has arrived is given even after a failure; then the failure is told instead of "nothing yet".
    fn taken<T>(&mut self, result: Result<T, CallError>) -> Result<T, CallError> {
        self.replace_slots();
        match (&result, self.closing.failed()) {
            (Err(CallError::Blocked(_)), Some(cause)) => Err(CallError::Failed(cause.clone())),
            _ => result,
        }
    }

    fn replace_slots(&mut self) {
        if self.incoming.may_hold_more() {
            self.credits.release();
        }
    }

    // The program: ending

    /// No more will be given. The peer sees the end after all that was given. Within a message given in parts there is no such end: it aborts.
    pub(crate) fn shutdown_write(&mut self) {
        if self.outgoing.parts_given().is_some() {
            return self.abort();
        }
        self.outgoing.close_tail();
        self.closing.shut();
    }

    /// No more will be taken: what is here and what comes is dropped.
    pub(crate) fn shutdown_read(&mut self) {
        self.incoming.discard();
        self.replace_slots();
    }

    /// Ends both halves: what was given still goes, for at most the linger time.
    #[cfg_attr(
        not(test),
        allow(dead_code, reason = "the sockets wait by themselves, until all is delivered")
    )]
    pub(crate) fn close(&mut self, now: Instant) {
        self.shutdown_write();
        self.shutdown_read();
        self.closing.close(now);
    }

    /// Ends at once; the peer is told by RESET if that can go.
    pub(crate) fn abort(&mut self) {
        self.fail(FailureCause::Aborted, true);
    }

    /// Why it failed, if it did.
    pub(crate) fn failure(&self) -> Option<&FailureCause> {
        self.closing.failed()
    }

    /// Whether both sides have closed it, in good order.
    pub(crate) fn is_closed(&self) -> bool {
        self.closing.is_closed()
    }

    fn fail(&mut self, cause: FailureCause, tell_peer: bool) {
        if self.closing.fail(cause.clone(), tell_peer) {
            self.events.push_back(ConnectionEvent::Failed(cause));
        }
    }

    // The driver: out

    /// Whether frames go without the header for which [immediate data](Frame::immediate) can stand.
    #[cfg_attr(not(feature = "rdma"), allow(dead_code, reason = "TCP has no immediate data"))]
    #[inline]
    pub(crate) fn uses_immediate(&self) -> bool {
        self.immediate_agreed
    }

    // The driver: in; frames are in `receiving`

    /// Something posted has completed.
    pub(crate) fn done(&mut self, done: CompletedTransmit<B>) {
        match done {
            CompletedTransmit::Sent(pieces) => {
                self.prober.worked();
                let sent = self.closing.failed().is_none();
                self.outgoing.sent(pieces, returning(&mut self.events, sent));
                self.settle();
            }
            CompletedTransmit::Part(share) => {
                self.prober.worked();
                let sent = self.closing.failed().is_none();
                self.outgoing.sent_part(share, returning(&mut self.events, sent));
                self.settle();
            }
            // A READ that a failure ended may have brought nothing: what its block holds is not the peer's data.
            CompletedTransmit::Read { .. } if self.closing.failed().is_some() => {}
            CompletedTransmit::Read { id, block } => {
                self.prober.heard();
                self.incoming.read_done(id, block);
            }
            CompletedTransmit::Probe => self.prober.answered(),
        }
    }

    fn settle(&mut self) {
        if self.outgoing.in_flight() == 0 {
            self.close_if_all_is_said();
        }
    }

    fn close_if_all_is_said(&mut self) {
        if self.closing.settle() {
            self.events.push_back(ConnectionEvent::Closed);
        }
    }

    /// The link is of no use any more. If all is said, what is lost is at most the device's word that the peer has the last of it, and a
    /// peer that has it may be gone before its device can say so: that is the end, and no failure.
    fn lose(&mut self, cause: FailureCause) {
        self.close_if_all_is_said();
        self.fail(cause, false);
    }

    /// The link has failed, or its peer is gone.
    pub(crate) fn failed(&mut self, cause: FailureCause) {
        self.lose(cause);
        self.closing.reset_sent();
    }

    /// After a failure: nothing of this connection is with a device or can be read by the peer any more, and all completions were
    /// handed in. Every lent block comes back.
    pub(crate) fn drained(&mut self) {
        self.drained = true;
        self.outgoing.abandon(returning(&mut self.events, false));
    }

    /// Time has passed.
    pub(crate) fn tick(&mut self, now: Instant) {
        if let Some(cause) = self.closing.expired(now) {
            self.fail(cause, true);
        }
        if self.closing.failed().is_some() || self.closing.is_closed() {
            return;
        }
        self.outgoing.tick(now);
        if let Some(cause) = self.prober.tick(now, self.outgoing.in_flight() > 0) {
            self.lose(cause);
        }
    }

    /// When to call `tick` next.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        if self.closing.failed().is_some() || self.closing.is_closed() {
            return None;
        }
        let cork = self.outgoing.cork_ends();
        [self.closing.deadline(), self.prober.deadline(), cork].into_iter().flatten().min()
    }

    /// Whether there is something that the program is to hear of.
    #[inline]
    pub(crate) fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// What the program is to hear of next.
    #[inline]
    pub(crate) fn take_event(&mut self) -> Option<ConnectionEvent<B>> {
        self.events.pop_front()
    }

    /// Memory that counts against the receive buffer: queued, and held by the program.
    #[cfg(test)]
    pub(crate) fn receive_charges(&self) -> (usize, usize) {
        self.incoming.charges()
    }

    /// What has happened so far.
    pub(crate) fn counters(&self) -> ConnectionCounters {
        ConnectionCounters { bytes_announced: self.outgoing.announced_bytes(), ..self.counters }
    }

    /// Whether the last `transmit` ended for want of a block.
    pub(crate) fn wants_memory(&self) -> bool {
        self.wants_memory
    }
}

/// Gives lent blocks back to the program.
fn returning<B>(events: &mut VecDeque<ConnectionEvent<B>>, sent: bool) -> impl FnMut(Ticket, B) {
    move |ticket, block| events.push_back(ConnectionEvent::Returned { ticket, block, sent })
}
