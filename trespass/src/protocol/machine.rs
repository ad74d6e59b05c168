//! The protocol's state machine of one connection: the calls of the program and of the transport.
//! [`receiving`] takes frames in, [`transmitting`] chooses what goes out next.

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
use super::failure::{CallError, FailureCause, InvalidSetup, ProtocolError};
use super::frame::HEADER_LEN;
use super::incoming::{Chunk, Incoming, ReceivedPart};
use super::keepalive::KeepaliveProber;
use super::outgoing::{LendSummary, Outgoing, PeerWindow};
use super::pieces::{BlockPiece, PieceOwner, Ticket};
use super::posted_sends::CompletedTransmit;
use super::setup::{ConnectionKind, ConnectionSetup, LinkType};

/// An event for the program.
#[derive(Debug)]
pub(crate) enum ConnectionEvent<B> {
    /// A lent block returns. `sent` means that the peer has all of it; otherwise the connection
    /// failed first.
    Returned { ticket: Ticket, block: B, sent: bool },
    /// The peer will send no more data.
    PeerClosed,
    /// The connection failed.
    Failed(FailureCause),
    /// Both sides have closed, and everything has arrived.
    Closed,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ConnectionCounters {
    pub(crate) frames_sent: u64,
    pub(crate) frames_received: u64,
    /// Payload of DATA frames sent.
    pub(crate) bytes_sent: u64,
    /// Bytes announced to the peer for READs.
    pub(crate) bytes_announced: u64,
    /// Payload of DATA frames received.
    pub(crate) bytes_received: u64,
    /// CREDIT frames sent.
    pub(crate) credits_sent: u64,
    /// READs posted.
    pub(crate) reads: u64,
    /// Bytes that READs brought.
    pub(crate) bytes_read: u64,
    pub(crate) probes: u64,
}

/// The frames after which a peer that keeps them for repetition is told that they have arrived: so
/// many small ones, or a quarter of that. A long one occupies a block of the peer.
const ACKNOWLEDGE_EVERY: u32 = 32;
const LONG_COUNTS: u32 = 4;
/// The most bytes of a small frame, without its header. A peer that keeps it needs no block for it.
pub(crate) const SMALL_FRAME: usize = 512;

/// The protocol state of a connection.
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
    acknowledge_agreed: bool,
    /// Frames that the peer says it has received.
    acknowledged: u64,
    /// The frames since the peer was last told, with long ones counted [`LONG_COUNTS`] times.
    untold: u32,
    /// The number of received frames that this side has told the peer.
    told_received: u32,
    /// Whether the peer must still be told, because the program takes nothing more.
    acknowledgement_due: bool,
    wants_memory: bool,
    /// Whether it has failed, and the device holds nothing of it any more.
    drained: bool,
    /// Whether the peer did not have all data when the connection failed.
    left_undelivered: bool,
    counters: ConnectionCounters,
}

impl<B: Block> ProtocolMachine<B> {
    /// Creates a connection after its handshake.
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
            acknowledge_agreed: setup.acknowledge && setup.link == LinkType::Rc,
            acknowledged: 0,
            untold: 0,
            told_received: 0,
            acknowledgement_due: false,
            wants_memory: false,
            drained: false,
            left_undelivered: false,
            counters: ConnectionCounters::default(),
        })
    }

    /// Starts all cumulative totals at `start`, to test their wrap.
    #[cfg(test)]
    pub(crate) fn starting_at(setup: &ConnectionSetup, start: u32) -> Result<Self, InvalidSetup> {
        let mut connection = ProtocolMachine::new(setup)?;
        connection.credits = Credits::starting_at(start, setup.link, setup.own.window(), setup.peer.window());
        connection.outgoing.start_at(start);
        connection.incoming.start_at(start);
        Ok(connection)
    }

    /// For simulators: the bytes that a READ of the peer brings. `None` means that the range is
    /// not, or no longer, readable for the peer.
    #[cfg(test)]
    pub(crate) fn source_bytes(&self, range: Segment) -> Option<&[u8]> {
        self.outgoing.source_bytes(range)
    }

    /// Credits, for invariants: the peer's receives that this side may still use, and the receives
    /// posted here and unused.
    #[cfg(test)]
    pub(crate) fn credits(&self) -> (u32, u32) {
        (self.credits.left(), self.credits.outstanding())
    }

    // The program's side: sending

    /// Stream: copies as many bytes as fit.
    pub(crate) fn write(
        &mut self,
        slices: &[IoSlice<'_>],
        blocks: &mut impl Blocks<Block = B>,
    ) -> Result<usize, CallError> {
        self.check_writing()?;
        self.outgoing.write(slices, self.peer_window(), blocks)
    }

    /// Whether `len` bytes of a stream, or a message, would be lent to the peer instead of sent, as
    /// far as is known without polling.
    #[cfg_attr(not(feature = "rdma"), allow(dead_code, reason = "nothing is lent over TCP"))]
    #[inline]
    pub(crate) fn would_lend(&self, len: usize) -> bool {
        self.outgoing.would_lend(len, self.peer_window())
    }

    #[inline]
    fn peer_window(&self) -> PeerWindow {
        PeerWindow {
            free: self.credits.left_for_data(),
            heard: self.counters.bytes_received + self.counters.bytes_read,
        }
    }

    /// SeqPacket: copies a whole message, or nothing.
    pub(crate) fn send(
        &mut self,
        slices: &[IoSlice<'_>],
        blocks: &mut impl Blocks<Block = B>,
    ) -> Result<(), CallError> {
        self.check_writing()?;
        self.outgoing.send(slices, self.peer_window(), blocks)
    }

    /// SeqPacket: copies the next bytes of a message of `total` bytes, as many as fit. Until the
    /// message is complete, no other message can be sent.
    pub(crate) fn send_part(
        &mut self,
        total: u64,
        slices: &[IoSlice<'_>],
        blocks: &mut impl Blocks<Block = B>,
    ) -> Result<usize, CallError> {
        self.check_writing()?;
        self.outgoing.send_part(total, slices, self.peer_window(), blocks)
    }

    /// Whether enough frames are in flight that further data waits and shares a frame with later
    /// data.
    #[cfg_attr(not(feature = "rdma"), allow(dead_code, reason = "a socket takes all that it has room for"))]
    #[inline]
    pub(crate) fn is_busy(&self) -> bool {
        self.outgoing.is_busy()
    }

    /// Whether `len` bytes in the program's memory, a message or bytes of the stream, may become a
    /// separate frame now. Otherwise the program must call [`send`](Self::send) or
    /// [`write`](Self::write), which report the reason if that fails.
    #[inline]
    pub(crate) fn allows_single_frame(&self, kind: ConnectionKind, len: usize) -> bool {
        self.closing.is_untouched()
            && (kind == ConnectionKind::SeqPacket || len > 0)
            && self.outgoing.allows_single_frame(kind, len, &self.credits)
    }

    /// Starts that frame, for which the driver has room; returns its header. `block` is the size of
    /// the block that holds a copy of the bytes, which returns when the frame has completed; 0 if
    /// no copy was made.
    #[inline]
    pub(crate) fn begin_single_frame(&mut self, len: usize, block: usize) -> [u8; HEADER_LEN] {
        self.counters.frames_sent += 1;
        self.counters.bytes_sent += len as u64;
        self.outgoing.begin_single_frame(len, block, &mut self.credits)
    }

    /// Sends the first `len` bytes of a block: a message, or bytes of the stream. The block returns
    /// by [`ConnectionEvent::Returned`].
    pub(crate) fn send_block(&mut self, block: B, len: usize) -> Result<Ticket, (B, CallError)> {
        let len = len.min(block.bytes().len());
        let load = self.outgoing.weigh(std::iter::once((&block, len)));
        match self.check_writing().and_then(|()| self.outgoing.check_lending(&load)) {
            Ok(()) => Ok(self.lend(std::iter::once((block, len)), &load)),
            Err(error) => Err((block, error)),
        }
    }

    /// Sends the first bytes of several blocks: one message, or bytes of the stream. Each block
    /// returns by a separate event; their tickets are consecutive, and the first is returned.
    /// Refused blocks stay in the list.
    pub(crate) fn send_blocks(&mut self, blocks: &mut Vec<(B, usize)>) -> Result<Ticket, CallError> {
        self.check_writing()?;
        blocks.iter_mut().for_each(|(block, len)| *len = block.bytes().len().min(*len));
        let load = self.outgoing.weigh(blocks.iter().map(|(block, len)| (block, *len)));
        self.outgoing.check_lending(&load)?;
        Ok(self.lend(blocks.drain(..), &load))
    }

    /// Lends blocks. Returns the first one's ticket.
    fn lend(&mut self, blocks: impl Iterator<Item = (B, usize)>, load: &LendSummary) -> Ticket {
        let (first, next, events) = (self.next_ticket, &mut self.next_ticket, &mut self.events);
        // An empty block is part of no frame, except in the frame of an empty message.
        let empty_message = load.full == 0 && self.outgoing.has_messages();
        let empty_block = empty_message && !self.outgoing.copies();
        let pieces = blocks.filter_map(|(block, len)| {
            let ticket = Ticket(*next);
            *next += 1;
            if len > 0 || (empty_block && ticket.0 == first) {
                return Some(BlockPiece { block, len, owner: PieceOwner::Program(ticket) });
            }
            events.push_back(ConnectionEvent::Returned { ticket, block, sent: true });
            None
        });
        self.outgoing.lend(pieces, load);
        if empty_message && !empty_block {
            self.outgoing.push_empty_message();
        }
        Ticket(first)
    }

    /// SeqPacket: for the message that is sent in parts, the bytes given so far, and its length.
    pub(crate) fn sending(&self) -> Option<(u64, u64)> {
        self.outgoing.parts_given()
    }

    /// Holds back data that does not fill a frame, until uncorked, flushed or shut down, or for 200
    /// ms.
    pub(crate) fn cork(&mut self, corked: bool) {
        self.outgoing.cork(corked);
    }

    pub(crate) fn is_corked(&self) -> bool {
        self.outgoing.is_corked()
    }

    /// Makes the connection send all given data as soon as possible.
    pub(crate) fn flush(&mut self) {
        self.outgoing.close_tail();
    }

    /// Whether given data, or the end of it, is waiting for credits, memory or room. Data that the
    /// program holds back does not count.
    pub(crate) fn has_unsent(&self) -> bool {
        (self.outgoing.has_unsent() || self.closing.fin_due()) && self.closing.failed().is_none()
    }

    /// Whether the peer needs nothing more of this side's memory: everything is acknowledged and
    /// read, and its end was announced.
    pub(crate) fn is_delivered(&self) -> bool {
        !self.closing.fin_due()
            && self.outgoing.is_empty()
            && self.outgoing.in_flight() == 0
            && self.outgoing.unread() == 0
            && !(self.acknowledgement_due && self.credits.allows_control())
    }

    /// Whether the peer did not have all data when the connection failed. Later that is not known,
    /// because a failure returns all blocks.
    pub(crate) fn left_undelivered(&self) -> bool {
        self.left_undelivered
    }

    /// The bytes in the send queue.
    pub(crate) fn queued(&self) -> usize {
        self.outgoing.queued()
    }

    /// Whether a sending call would not block. (It may still block for lack of memory.)
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

    // The program's side: receiving

    /// Stream: takes bytes. 0 means that the peer has sent all its data.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> Result<usize, CallError> {
        let result = self.incoming.read(buffer);
        self.taken(result)
    }

    /// Stream: copies received bytes, which stay to be read.
    pub(crate) fn peek(&mut self, buffer: &mut [u8]) -> Result<usize, CallError> {
        let seen = self.incoming.peek(buffer);
        self.taken(seen)
    }

    /// SeqPacket: takes the whole message at the front. `None` means that the peer has sent all its
    /// data.
    pub(crate) fn recv(&mut self, buffer: &mut [u8]) -> Result<Option<usize>, CallError> {
        let result = self.incoming.recv(buffer);
        self.taken(result)
    }

    /// SeqPacket: takes the arrived part of the message at the front. `None` means that the peer
    /// has sent all its data.
    pub(crate) fn recv_part(&mut self, buffer: &mut [u8]) -> Result<Option<ReceivedPart>, CallError> {
        let result = self.incoming.recv_part(buffer);
        self.taken(result)
    }

    /// Takes the bytes at the front with their block; for a message of several blocks, the next of
    /// them. `None` means that the peer has sent all its data.
    pub(crate) fn recv_chunk(
        &mut self,
        blocks: &mut impl Blocks<Block = B>,
    ) -> Result<Option<Chunk<B>>, CallError> {
        let result = self.incoming.chunk(blocks);
        self.taken(result)
    }

    /// The program no longer holds the memory that [`Chunk::charge`] counts.
    pub(crate) fn give_back(&mut self, charge: usize) {
        self.incoming.give_back(charge);
        self.replace_slots();
    }

    /// SeqPacket: the length of the message at the front, if any part of it has arrived.
    #[cfg(test)]
    pub(crate) fn message_len(&self) -> Option<u64> {
        self.incoming.message_len()
    }

    /// SeqPacket: whether a part has arrived of a message longer than `more_than`, and no longer
    /// than `at_most`.
    pub(crate) fn begins_with(&self, more_than: usize, at_most: usize) -> bool {
        self.incoming.begins_with(more_than as u64, at_most as u64)
    }

    /// SeqPacket: for the message that is taken in parts, the bytes taken so far, and its length.
    pub(crate) fn receiving(&self) -> Option<(u64, u64)> {
        self.incoming.parts_taken()
    }

    /// SeqPacket: whether the message at the front can be taken as a whole.
    pub(crate) fn message_complete(&self) -> bool {
        self.incoming.message_complete()
    }

    /// Whether a receiving call would not block.
    pub(crate) fn readable(&self) -> bool {
        self.closing.failed().is_some() || self.incoming.readable()
    }

    /// Whether the connection is as a new one: both directions are open, nothing that has arrived is
    /// unread, and no message is sent or received in part.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.closing.is_untouched()
            && !self.incoming.readable()
            && !self.incoming.has_unread()
            && self.sending().is_none()
            && self.receiving().is_none()
    }

    /// Whether data has arrived, or was announced, that the program has not taken.
    pub(crate) fn has_unread(&self) -> bool {
        self.incoming.has_unread()
    }

    /// Delivers arrived data even after a failure; afterwards the failure takes the place of
    /// "nothing yet".
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

    // The program's side: closing

    /// Ends this side's data. The peer sees the end after all given data. Within a message that is
    /// sent in parts this aborts the connection.
    pub(crate) fn shutdown_write(&mut self) {
        if self.outgoing.parts_given().is_some() {
            return self.abort();
        }
        self.outgoing.close_tail();
        self.closing.shut();
    }

    /// Takes no more data: drops arrived and arriving data.
    pub(crate) fn shutdown_read(&mut self) {
        self.incoming.discard();
        self.replace_slots();
    }

    /// The program gives and takes nothing more. The peer learns which of its frames have arrived,
    /// also those that came after this side's FIN.
    pub(crate) fn finish(&mut self) {
        self.shutdown_write();
        self.shutdown_read();
        self.acknowledgement_due = self.acknowledge_agreed
            && self.closing.awaits_data_after_fin()
            && self.told_received != self.credits.received();
    }

    /// Closes both halves; given data is still sent, for at most the linger time.
    #[cfg_attr(
        not(test),
        allow(dead_code, reason = "the sockets wait by themselves, until all is delivered")
    )]
    pub(crate) fn close(&mut self, now: Instant) {
        self.finish();
        self.closing.close(now);
    }

    /// Ends the connection at once; the peer learns of it by RESET if that can be sent.
    pub(crate) fn abort(&mut self) {
        self.fail(FailureCause::Aborted, true);
    }

    /// The cause of the failure, if it failed.
    pub(crate) fn failure(&self) -> Option<&FailureCause> {
        self.closing.failed()
    }

    /// Whether both sides have closed it in order.
    pub(crate) fn is_closed(&self) -> bool {
        self.closing.is_closed()
    }

    /// Frames sent of which neither the device nor the peer says that they have arrived. Frames
    /// complete in order.
    fn unacknowledged(&self) -> usize {
        if self.outgoing.copies() {
            // They complete in any order.
            return self.credits.sent_after(self.received_by_peer()) as usize;
        }
        let of_peer = self.counters.frames_sent - self.acknowledged;
        self.outgoing.in_flight().min(usize::try_from(of_peer).unwrap_or(usize::MAX))
    }

    /// Whether the peer has the oldest frame in flight. After a failure the device does not say.
    fn oldest_has_arrived(&self) -> bool {
        self.closing.failed().is_none() || self.unacknowledged() < self.outgoing.in_flight()
    }

    fn fail(&mut self, cause: FailureCause, tell_peer: bool) {
        let undelivered = !self.outgoing.is_delivered(self.unacknowledged());
        if self.closing.fail(cause.clone(), tell_peer) {
            self.left_undelivered = undelivered;
            self.events.push_back(ConnectionEvent::Failed(cause));
        }
    }

    // The driver's side: sending

    /// Whether frames are sent without the header if [immediate data](super::Frame::immediate) can carry
    /// it.
    #[cfg_attr(not(feature = "rdma"), allow(dead_code, reason = "TCP has no immediate data"))]
    #[inline]
    pub(crate) fn uses_immediate(&self) -> bool {
        self.immediate_agreed
    }

    // The driver's side: completions; `receiving` handles frames

    /// Handles the completion of a posted item.
    pub(crate) fn done(&mut self, done: CompletedTransmit<B>) {
        match done {
            CompletedTransmit::Sent(pieces) => {
                self.prober.worked();
                let sent = self.oldest_has_arrived();
                self.outgoing.sent(pieces, returning(&mut self.events, sent));
                self.settle();
            }
            CompletedTransmit::Part(share) => {
                self.prober.worked();
                let sent = self.oldest_has_arrived();
                self.outgoing.sent_part(share, returning(&mut self.events, sent));
                self.settle();
            }
            // After a failure a READ may have brought nothing, so its block does not hold the
            // peer's data.
            CompletedTransmit::Read { .. } if self.closing.failed().is_some() => {}
            CompletedTransmit::Read { id, block } => {
                self.prober.heard();
                self.incoming.read_done(id, block);
            }
            CompletedTransmit::Probe => self.prober.answered(),
        }
    }

    // For a driver with several queue pairs

    /// Whether the program gives and takes nothing more.
    pub(crate) fn is_finishing(&self) -> bool {
        (self.closing.is_shut() && self.incoming.is_discarding()) || self.closing.failed().is_some()
    }

    /// Handles the completion of a frame whose block, of `memory` bytes, stays with the driver.
    /// `copied` bytes of the program are in it.
    pub(crate) fn sent_and_kept(&mut self, copied: usize, memory: usize) {
        self.prober.worked();
        self.outgoing.sent_and_kept(copied, memory);
        self.settle();
    }

    /// The number below which the peer's connection, not only its device, has received every frame.
    pub(crate) fn received_by_peer(&self) -> u32 {
        let sent = self.credits.sent();
        let of_credits = self.credits.sent_after(self.credits.received_by_peer());
        let said = self.counters.frames_sent - self.acknowledged;
        sent.wrapping_sub(u32::try_from(said).map_or(of_credits, |said| said.min(of_credits)))
    }

    /// The sequence number of the next frame to send.
    #[cfg(test)]
    pub(crate) fn next_number(&self) -> u32 {
        self.credits.sent()
    }

    /// Fails the connection, because the peer has broken the protocol of the rails.
    pub(crate) fn violated(&mut self, error: ProtocolError) {
        self.fail(FailureCause::Protocol(error), true);
    }

    /// Counts a received frame of this length, which the peer keeps until it is told of it. It is
    /// told soon if these frames are many.
    #[inline]
    pub(crate) fn count_kept(&mut self, len: usize) {
        self.untold += if len > SMALL_FRAME { LONG_COUNTS } else { 1 };
        self.acknowledgement_due |= self.untold >= ACKNOWLEDGE_EVERY;
    }

    /// The sequence number of the next frame to receive.
    pub(crate) fn expected(&self) -> u32 {
        self.credits.received()
    }

    /// The receives that frames from the expected one on may use.
    pub(crate) fn receives_outstanding(&self) -> u32 {
        self.credits.outstanding()
    }

    /// Changes the number of READs that may be posted at a time.
    pub(crate) fn set_max_reads(&mut self, reads: usize) {
        self.incoming.set_max_reads(reads);
    }

    /// Sets whether READs are divided, because several queue pairs share them.
    pub(crate) fn divide_reads(&mut self, divided: bool) {
        self.incoming.divide_reads(divided);
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

    /// The link is no longer usable. If both sides are done, the only loss is the device's
    /// confirmation that the peer has the last frame. A peer that has it may exit before its device
    /// can confirm that, so this is an orderly end and no failure.
    fn lose(&mut self, cause: FailureCause) {
        self.close_if_all_is_said();
        self.fail(cause, false);
    }

    /// The link has failed, or its peer is gone.
    pub(crate) fn failed(&mut self, cause: FailureCause) {
        self.lose(cause);
        self.closing.reset_sent();
    }

    /// After a failure: the device holds nothing of this connection, the peer can read none of it,
    /// and all completions were handed in. Every lent block returns.
    pub(crate) fn drained(&mut self) {
        self.drained = true;
        self.outgoing.abandon(returning(&mut self.events, false));
    }

    /// After a failure, before [`drained`](Self::drained): the peer may still read sources. Their memory
    /// is never used again, and lenders get a copy in its place.
    #[cfg(any(feature = "rdma", test))]
    pub(crate) fn lose_sources(&mut self, copy: impl FnMut(&B) -> Option<B>) {
        self.outgoing.lose_sources(copy);
    }

    /// Handles the passing of time.
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

    /// The time of the next call of `tick`.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        if self.closing.failed().is_some() || self.closing.is_closed() {
            return None;
        }
        let cork = self.outgoing.cork_ends();
        [self.closing.deadline(), self.prober.deadline(), cork].into_iter().flatten().min()
    }

    /// Whether an event is waiting for the program.
    #[inline]
    pub(crate) fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// The next event for the program.
    #[inline]
    pub(crate) fn take_event(&mut self) -> Option<ConnectionEvent<B>> {
        self.events.pop_front()
    }

    /// Memory charged against the receive buffer: queued, and held by the program.
    #[cfg(test)]
    pub(crate) fn receive_charges(&self) -> (usize, usize) {
        self.incoming.charges()
    }

    /// The counters of the connection.
    pub(crate) fn counters(&self) -> ConnectionCounters {
        ConnectionCounters { bytes_announced: self.outgoing.announced_bytes(), ..self.counters }
    }

    /// Whether the last `transmit` ended for lack of a block.
    pub(crate) fn wants_memory(&self) -> bool {
        self.wants_memory
    }
}

/// Returns lent blocks to the program.
fn returning<B>(events: &mut VecDeque<ConnectionEvent<B>>, sent: bool) -> impl FnMut(Ticket, B) {
    move |ticket, block| events.push_back(ConnectionEvent::Returned { ticket, block, sent })
}
