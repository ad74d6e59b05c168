//! What moves over the rails: the choice of a rail for each request, completions, arrivals, and
//! what is sent again.

use std::time::{Duration, Instant};

use super::super::load::RailLoad;
use super::super::message::RailFrame;
use super::super::order::ArrivedFrame;
use super::super::rail::{PostedRequest, Rail, UnconfirmedSend};
use super::Rails;
use crate::protocol::frame::{FrameType, HEADER_LEN, Head, Immediate};
use crate::protocol::{
    Block, Blocks, CallBuffer, CompletedTransmit, FailureCause, Frame, ProtocolError, ProtocolMachine,
    Purpose, ReadRequest, SMALL_FRAME, TransmitItem,
};

/// One choice in this many takes the rail that was not chosen for longest, so that a rail that has
/// become faster is found again. Requests that are too short for a measurement count apart.
const SAMPLE: u64 = 64;
/// The small frames after which their rail is chosen again, and one goes over another rail.
pub(super) const SMALL_IN_A_ROW: u32 = 64;
/// Small frames move to another rail that takes this part of the time.
const MUCH_FASTER: f64 = 2.0;

/// How long a RESET waits for the frames before it. Its sender waits as long for their completions,
/// and then gives them up.
const RESET_WAIT: Duration = Duration::from_millis(100);

/// What a driver posts to a rail.
#[derive(Debug)]
pub(crate) enum RailItem<B> {
    /// A message about a rail.
    Message(RailFrame),
    /// A frame or READ of the connection. A frame that is sent again has its number.
    Transmit(TransmitItem<B>),
    /// A probe of a rail that had no requests for a while.
    Probe,
}

impl<B: Block> RailItem<B> {
    /// The frame that carries a message.
    pub(crate) fn into_transmit(self) -> TransmitItem<B> {
        match self {
            Self::Message(frame) => TransmitItem::Send(Frame::Short(frame.encode())),
            Self::Transmit(transmit) => transmit,
            Self::Probe => TransmitItem::Probe,
        }
    }
}

impl<B: Block> Rails<B> {
    /// The rail for a frame of `len` bytes. Small frames stay on one rail as long as that has little
    /// under way: they arrive in order, and the peer polls this rail most.
    #[inline]
    pub(crate) fn choose_for_frame(&mut self, len: usize, has_room: impl Fn(usize) -> bool) -> Option<usize> {
        if len > HEADER_LEN + SMALL_FRAME {
            return self.choose(len, false, has_room);
        }
        let (at, rail) = (self.small, &self.rails[self.small]);
        if self.small_left > 0 && rail.is_up() && rail.load.is_light() && has_room(at) {
            self.small_left -= 1;
            return Some(at);
        }
        self.choose_for_small(len, has_room)
    }

    /// The rail for a small frame if the usual one has more under way or is down, or had many.
    #[inline(never)]
    fn choose_for_small(&mut self, len: usize, has_room: impl Fn(usize) -> bool) -> Option<usize> {
        let usual = &self.rails[self.small];
        if usual.is_up() && self.small_left > 0 {
            return self.choose(len, false, has_room);
        }
        let (best, fastest) = (self.best(len, false, &has_room)?, self.fastest());
        let time = |at: usize| self.rails[at].load.time_for(len, fastest);
        // Both sides begin with the first rail, and use the same one of equal ones.
        if !usual.is_up() || time(self.small) > MUCH_FASTER * time(best) {
            self.small = best;
        }
        self.small_left = SMALL_IN_A_ROW;
        let class = usize::from(RailLoad::measures(len));
        self.choices[class] += 1;
        self.rails[self.small].chosen[class] = self.choices[class];
        self.least_used(class, false, has_room)
    }

    /// The rail that was not chosen for the longest time, of short requests or of those that are
    /// measured.
    fn least_used(&mut self, class: usize, is_read: bool, has_room: impl Fn(usize) -> bool) -> Option<usize> {
        let (at, _) = self.takers(is_read, has_room).min_by_key(|(_, rail)| rail.chosen[class])?;
        self.choices[class] += 1;
        self.rails[at].chosen[class] = self.choices[class];
        Some(at)
    }

    /// The rate of the fastest rail.
    fn fastest(&self) -> f64 {
        self.rails.iter().filter_map(|rail| rail.load.rate()).fold(1.0, f64::max)
    }

    /// The rails that take a request now.
    fn takers(
        &self,
        is_read: bool,
        has_room: impl Fn(usize) -> bool,
    ) -> impl Iterator<Item = (usize, &Rail)> {
        let reads = self.setup.reads;
        let takes = move |(at, rail): &(usize, &Rail)| {
            rail.is_up() && has_room(*at) && !(is_read && rail.reads() >= reads)
        };
        self.rails.iter().enumerate().filter(takes)
    }

    /// The rail that would complete a request of `len` bytes first.
    fn best(&self, len: usize, is_read: bool, has_room: impl Fn(usize) -> bool) -> Option<usize> {
        let fastest = self.fastest();
        let time = |rail: &Rail| rail.load.time_for(len, fastest);
        let takers = self.takers(is_read, has_room);
        takers.min_by(|(_, one), (_, other)| time(one).total_cmp(&time(other))).map(|(at, _)| at)
    }

    /// The rail for a request of `len` bytes: the one that would complete it first. `has_room` tells
    /// whether a rail's send queue has room. `None` if no rail takes it now.
    pub(crate) fn choose(
        &mut self,
        len: usize,
        is_read: bool,
        has_room: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        let class = usize::from(RailLoad::measures(len));
        self.choices[class] += 1;
        if self.choices[class].is_multiple_of(SAMPLE) {
            return self.least_used(class, is_read, has_room);
        }
        let at = self.best(len, is_read, has_room)?;
        self.rails[at].chosen[class] = self.choices[class];
        Some(at)
    }

    /// The next message, frame or READ that must go before what the connection has: messages about
    /// rails first, then what is sent again.
    pub(crate) fn next_item(
        &mut self,
        blocks: &mut impl Blocks<Block = B>,
        starved: &mut bool,
        has_room: impl Fn(usize) -> bool,
    ) -> Option<(usize, RailItem<B>)> {
        if let Some((rail, frame)) = self.next_message(&has_room) {
            return Some((rail, RailItem::Message(frame)));
        }
        if let Some(rail) = self.rails.iter().position(|rail| rail.probe_is_due)
            && has_room(rail)
        {
            self.rails[rail].probe_is_due = false;
            return Some((rail, RailItem::Probe));
        }
        if self.sent.is_due()
            && let Some(rail) = self.choose(0, false, &has_room)
            && let Some((_, frame)) = self.sent.next_due(blocks, starved)
        {
            self.counters.frames_repeated += 1;
            return Some((rail, RailItem::Transmit(TransmitItem::Send(frame))));
        }
        let (rail, read) = self.next_read_again(blocks, starved, &has_room)?;
        self.counters.reads_repeated += 1;
        Some((rail, RailItem::Transmit(TransmitItem::Read(read))))
    }

    fn next_message(&mut self, has_room: &impl Fn(usize) -> bool) -> Option<(usize, RailFrame)> {
        let index = self.messages.iter().position(|(over, _)| match over {
            Some(rail) => has_room(*rail),
            None => true,
        })?;
        let rail = match self.messages[index].0 {
            Some(rail) => rail,
            None => self.choose(0, false, has_room)?,
        };
        self.messages.remove(index).map(|(_, frame)| (rail, frame))
    }

    fn next_read_again(
        &mut self,
        blocks: &mut impl Blocks<Block = B>,
        starved: &mut bool,
        has_room: &impl Fn(usize) -> bool,
    ) -> Option<(usize, ReadRequest<B>)> {
        let len = self.reads_again.front()?.1.len as usize;
        let rail = self.choose(len, true, has_room)?;
        let (_, _, into) = self.reads_again.front_mut()?;
        let into = into.take().or_else(|| blocks.take(len, Purpose::Receive));
        let Some(into) = into else {
            *starved = true;
            return None;
        };
        let (id, from, _) = self.reads_again.pop_front()?;
        Some((rail, ReadRequest { id, into, from }))
    }

    /// Records what the driver posts to a rail.
    pub(crate) fn posted(&mut self, rail: usize, item: &RailItem<B>, now: Instant) {
        let request = match item {
            RailItem::Message(_) => {
                self.rails[rail].post_message();
                PostedRequest::Message
            }
            RailItem::Transmit(TransmitItem::Send(frame)) => {
                let seq = seq_of(frame);
                self.sent.posted(seq, frame);
                self.rails[rail].unconfirmed.push_back(UnconfirmedSend::Frame(seq));
                PostedRequest::Frame { seq, len: frame.len() }
            }
            RailItem::Transmit(TransmitItem::Read(read)) => {
                PostedRequest::Read { id: read.id, from: read.from }
            }
            RailItem::Transmit(TransmitItem::Probe) | RailItem::Probe => PostedRequest::Probe,
        };
        self.rails[rail].post(request, || now);
    }

    /// Records a frame that the driver has posted to a rail from where its bytes are, and which has
    /// never been posted before. They are copied.
    #[inline]
    pub(crate) fn posted_small(
        &mut self,
        rail: usize,
        header: &[u8; HEADER_LEN],
        bytes: &[u8],
        now: impl FnOnce() -> Instant,
    ) {
        let [_, _, _, _, s0, s1, s2, s3, ..] = *header;
        let seq = u32::from_le_bytes([s0, s1, s2, s3]);
        self.sent.posted_small(seq, header, bytes);
        let rail = &mut self.rails[rail];
        rail.unconfirmed.push_back(UnconfirmedSend::Frame(seq));
        rail.post(PostedRequest::Frame { seq, len: HEADER_LEN + bytes.len() }, now);
    }

    /// Hands the oldest request of a rail to the connection, which has completed.
    pub(crate) fn completed(
        &mut self,
        rail: usize,
        done: CompletedTransmit<B>,
        protocol: &mut ProtocolMachine<B>,
        now: impl FnOnce() -> Instant,
    ) {
        match (self.rails[rail].complete(now), done) {
            (Some(PostedRequest::Frame { seq, .. }), CompletedTransmit::Sent(pieces)) => {
                let (report, pieces) = self.sent.completed(seq, pieces);
                if let Some(done) = report {
                    protocol.sent_and_kept(done.copied, done.memory);
                }
                drop(pieces);
            }
            (Some(PostedRequest::Message | PostedRequest::Probe), _) => {}
            (_, done) => protocol.done(done),
        }
    }

    /// Takes back the oldest request of a rail that is being stopped. It did not complete, and the
    /// device has returned its block.
    pub(crate) fn flushed(&mut self, rail: usize, done: CompletedTransmit<B>, now: Instant) {
        match (self.rails[rail].complete(|| now), done) {
            (Some(PostedRequest::Frame { seq, .. }), CompletedTransmit::Sent(pieces)) => {
                self.sent.flushed(seq, pieces);
            }
            (Some(PostedRequest::Read { id, from }), CompletedTransmit::Read { block, .. }) => {
                self.reads_again.push_back((id, from, Some(block)));
            }
            _ => {}
        }
    }

    /// The same for a request whose block the device may still use. A READ then needs another
    /// block, because a late response may arrive in the old one.
    pub(crate) fn lost(&mut self, rail: usize, done: &CompletedTransmit<B>, now: Instant) {
        match (self.rails[rail].complete(|| now), done) {
            (Some(PostedRequest::Frame { seq, .. }), CompletedTransmit::Sent(pieces)) => {
                let block = pieces.as_ref().and_then(|pieces| pieces.iter().next());
                self.sent.lost(seq, block.map_or(&[], |piece| piece.block.bytes()));
            }
            (Some(PostedRequest::Read { id, from }), _) => self.reads_again.push_back((id, from, None)),
            _ => {}
        }
    }

    /// Takes a frame that has arrived over a rail, and those that waited for it. Blocks that the
    /// connection does not keep go to `spare`.
    #[expect(clippy::too_many_arguments, reason = "what a completion brings, and where it goes")]
    pub(crate) fn received(
        &mut self,
        rail: usize,
        block: B,
        len: usize,
        immediate: Option<Immediate>,
        protocol: &mut ProtocolMachine<B>,
        sink: &mut CallBuffer<'_>,
        spare: &mut Vec<B>,
        now: impl FnOnce() -> Instant,
    ) {
        self.rails[rail].received = self.rails[rail].received.wrapping_add(1);
        let frame = &block.bytes()[..len.min(block.bytes().len())];
        if immediate.is_none() && RailFrame::is_in(frame) {
            let taken =
                RailFrame::decode(frame).and_then(|frame| self.take_message(rail, frame, protocol, now()));
            spare.push(block);
            if let Err(error) = taken {
                protocol.violated(error);
            }
            return;
        }
        let expected = protocol.expected();
        let ahead = number_ahead(frame, immediate, expected);
        // What is not ahead by less than the peer's credits is for the connection to judge.
        if ahead == 0 || ahead >= protocol.receives_outstanding() {
            self.hand_in(ArrivedFrame { block, len, immediate }, protocol, sink, spare);
            if ahead == 0 && protocol.expected() != expected {
                while let Some(next) = self.early.next() {
                    self.hand_in(next, protocol, &mut CallBuffer::default(), spare);
                }
            }
        } else {
            if immediate.is_none() && frame.first() == Some(&(FrameType::Reset as u8)) {
                self.reset_by.get_or_insert_with(|| now() + RESET_WAIT);
            }
            if self.early.keep(ahead as usize, ArrivedFrame { block, len, immediate }).is_err() {
                protocol.violated(ProtocolError::Sequence { expected, came: expected.wrapping_add(ahead) });
            }
        }
        protocol.count_kept(len);
        self.confirm(protocol);
    }

    fn hand_in(
        &mut self,
        ArrivedFrame { block, len, immediate }: ArrivedFrame<B>,
        protocol: &mut ProtocolMachine<B>,
        sink: &mut CallBuffer<'_>,
        spare: &mut Vec<B>,
    ) {
        if let Ok(Some(block)) = protocol.received_for(block, len, immediate, sink) {
            spare.push(block);
        }
    }

    /// Whether the peer has sent a RESET that waits for the frames before it.
    pub(crate) fn has_reset(&self) -> bool {
        self.reset_by.is_some()
    }

    /// Ends the connection by a RESET before which frames are missing for too long.
    pub(super) fn end_by_reset(&mut self, protocol: &mut ProtocolMachine<B>, now: Instant) {
        if self.reset_by.is_some_and(|until| now >= until) {
            self.reset_by = None;
            protocol.failed(FailureCause::PeerReset);
        }
    }

    /// Lets go of frames that the peer's process has, if it has said so of more than before.
    #[inline]
    pub(super) fn confirm(&mut self, protocol: &mut ProtocolMachine<B>) {
        let before = protocol.received_by_peer();
        if before != self.confirmed || self.confirmed_is_posted {
            self.confirm_all(before, protocol);
        }
    }

    #[inline(never)]
    fn confirm_all(&mut self, before: u32, protocol: &mut ProtocolMachine<B>) {
        self.confirmed = before;
        self.sent.acknowledged(before, |done| protocol.sent_and_kept(done.copied, done.memory));
        self.confirmed_is_posted = self.sent.has_before(before);
        for rail in &mut self.rails {
            rail.confirm(|seq| (before.wrapping_sub(seq) as i32) > 0);
        }
    }

    /// Drops what waits, because the connection has failed.
    pub(crate) fn abandon(&mut self) {
        self.early.clear();
        self.reset_by = None;
        self.reads_again.clear();
        self.messages.clear();
    }
}

/// The sequence number in a frame's header.
fn seq_of<B: Block>(frame: &Frame<B>) -> u32 {
    let head: Option<&[u8]> = frame.parts().next();
    let bytes = head.and_then(|head| head.get(4..8)).and_then(|bytes| bytes.first_chunk::<4>());
    u32::from_le_bytes(*bytes.expect("a frame begins with its header"))
}

/// How far a received frame is ahead of the expected one. A frame without a whole header counts as
/// expected.
fn number_ahead(frame: &[u8], immediate: Option<Immediate>, expected: u32) -> u32 {
    if let Some(immediate) = immediate {
        return immediate.header(expected, 0, 0).seq.wrapping_sub(expected);
    }
    match frame.first_chunk::<HEADER_LEN>() {
        Some([_, _, _, _, s0, s1, s2, s3, ..]) => {
            u32::from_le_bytes([*s0, *s1, *s2, *s3]).wrapping_sub(expected)
        }
        _ => 0,
    }
}

const _: () = assert!(Head::MAX >= HEADER_LEN + crate::wire::ENDPOINT_LEN);
