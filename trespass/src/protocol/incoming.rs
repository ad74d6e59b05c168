//! What arrived and was not yet taken: bytes or messages, in order, some of them still to be READ.

mod reads;

use std::collections::VecDeque;
use std::ops::Range;

use super::block::{Block, Blocks, Purpose, Segment};
use super::call_buffer::CallBuffer;
use super::copying::copy;
use super::failure::ProtocolError;
use super::frame::{self, COALESCED, FIRST, FrameType, Header, LAST};
use super::setup::{ConnectionKind, ConnectionSetup};

/// What `recv_part` gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReceivedPart {
    /// Bytes written to the buffer.
    pub(crate) len: usize,
    /// Whether the message ends with them.
    pub(crate) last: bool,
    /// Length of the whole message.
    pub(crate) total: u64,
}

/// Bytes received, in the block in which they arrived.
#[derive(Debug)]
pub(crate) struct Chunk<B> {
    /// The block; the program drops it, or keeps it, and then calls `give_back(charge)`.
    pub(crate) block: B,
    /// Where in it the bytes are.
    pub(crate) range: Range<usize>,
    /// What counts against the receive buffer until `give_back`.
    pub(crate) charge: usize,
    /// SeqPacket: it begins a message.
    #[cfg_attr(not(test), allow(dead_code, reason = "the sockets take a message from its beginning"))]
    pub(crate) first: bool,
    /// SeqPacket: it ends a message.
    pub(crate) last: bool,
    /// SeqPacket: bytes of the whole message.
    pub(crate) total: u64,
}

/// A READ to post.
#[derive(Debug)]
pub(crate) struct ReadRequest<B> {
    /// Number of the READ; they count from 0.
    pub(crate) id: u64,
    /// Where to.
    pub(crate) into: B,
    /// Where from; `len` bytes go to the start of `into`.
    pub(crate) from: Segment,
}

/// Bytes of the program, or a promise of them.
struct QueueItem<B> {
    bytes: ItemBytes<B>,
    /// Counts against the quota.
    charge: usize,
    first: bool,
    last: bool,
    /// Length of the message, in the item that begins it.
    total: u64,
    /// The last range of an RTS.
    ends_source: bool,
}

enum ItemBytes<B> {
    Here {
        block: B,
        at: usize,
        end: usize,
    },
    /// Whole messages.
    Batch {
        block: B,
        at: usize,
        skip: usize,
        end: usize,
        left: u16,
    },
    /// Not asked for yet.
    Wanted(Segment),
    /// A READ of so many bytes is under way.
    Reading {
        id: u64,
        len: u32,
    },
    /// Read for nobody: the program takes no more.
    Nothing,
}

/// A message that is arriving, or being taken in parts.
#[derive(Debug, Clone, Copy)]
struct MessageProgress {
    total: u64,
    got: u64,
}

/// The queue.
pub(crate) struct Incoming<B> {
    items: VecDeque<QueueItem<B>>,
    kind: ConnectionKind,
    max_msg: u64,
    quota: usize,
    piece: usize,
    /// Size of a block that there is sooner or later.
    slot: usize,
    max_rts: u32,
    max_reads: usize,
    /// Items at the front whose bytes are here.
    ready: usize,
    /// Whole messages among them.
    complete: usize,
    /// Index of the first item that is `Wanted`, or the length.
    next_wanted: usize,
    /// SeqPacket: what comes next belongs to this message.
    arriving: Option<MessageProgress>,
    /// SeqPacket: the program is taking this message in parts.
    taking: Option<MessageProgress>,
    /// Bytes of blocks in `items`, also of those that READs fill.
    queued: usize,
    /// Bytes of blocks that the program holds.
    held: usize,
    reads_sent: u64,
    reads_done: u64,
    /// RTS frames received, and those of them wholly read.
    sources: u32,
    sources_read: u32,
    rfin_due: bool,
    /// The program takes no more: what comes is dropped.
    discarding: bool,
    fin: bool,
}

impl<B: Block> Incoming<B> {
    pub(crate) fn new(setup: &ConnectionSetup) -> Self {
        Incoming {
            items: VecDeque::new(),
            kind: setup.kind,
            max_msg: setup.max_msg(),
            quota: setup.rcvbuf,
            piece: setup.read_piece,
            slot: setup.own.slot_size as usize,
            max_rts: setup.max_rts() as u32,
            max_reads: setup.reads(),
            ready: 0,
            complete: 0,
            next_wanted: 0,
            arriving: None,
            taking: None,
            queued: 0,
            held: 0,
            reads_sent: 0,
            reads_done: 0,
            sources: 0,
            sources_read: 0,
            rfin_due: false,
            discarding: false,
            fin: false,
        }
    }

    // What arrives

    /// Whether a call that waits has taken these bytes of a DATA frame, as nothing is before them and they are all that it waits for: then
    /// they have been here, and are gone again.
    #[inline]
    pub(crate) fn hands_over(&self, header: &Header, bytes: &[u8], sink: &mut CallBuffer<'_>) -> bool {
        let is_whole = match self.kind {
            ConnectionKind::Stream => header.flags & COALESCED == 0 && !bytes.is_empty(),
            ConnectionKind::SeqPacket => {
                header.flags & (FIRST | LAST | COALESCED) == FIRST | LAST
                    && bytes.len() as u64 <= self.max_msg
            }
        };
        let is_next = self.items.is_empty() && self.arriving.is_none() && self.taking.is_none();
        is_whole && is_next && !self.fin && !self.discarding && sink.take(bytes)
    }

    /// A DATA frame: its header, the block that it lies in, where its payload is. Gives the block back if nothing of it is kept.
    pub(crate) fn data(
        &mut self,
        header: &Header,
        block: B,
        payload: Range<usize>,
    ) -> Result<Option<B>, ProtocolError> {
        self.not_after_fin(header.kind)?;
        let (mut at, end) = (payload.start, payload.end);
        let charge = block.bytes().len();
        let item =
            |bytes, first, last, total| QueueItem { bytes, charge, first, last, total, ends_source: false };
        let item = if self.kind == ConnectionKind::Stream {
            if header.flags & COALESCED != 0 {
                return Err(ProtocolError::Flags { kind: header.kind, flags: header.flags });
            }
            if at == end {
                return Err(ProtocolError::Empty);
            }
            item(ItemBytes::Here { block, at, end }, false, false, 0)
        } else if header.flags & COALESCED != 0 {
            self.not_within()?;
            frame::check_batch(header.count, &block.bytes()[payload])?;
            item(ItemBytes::Batch { block, at, skip: 0, end, left: header.count }, true, true, 0)
        } else {
            let total = self.begin(header, &block.bytes()[payload])?;
            at += if total.is_some() { 8 } else { 0 };
            let len = (end - at) as u64;
            let (first, last) = self.advance(header, total, len)?;
            item(ItemBytes::Here { block, at, end }, first, last, total.unwrap_or(len))
        };
        if self.discarding {
            return Ok(match item.bytes {
                ItemBytes::Here { block, .. } | ItemBytes::Batch { block, .. } => Some(block),
                _ => None,
            });
        }
        let item = match self.join(item) {
            Ok(block) => return Ok(Some(block)),
            Err(item) => item,
        };
        self.queued += charge;
        self.push(item);
        Ok(None)
    }

    /// Once half the quota is used, copies the bytes of a frame behind those before them where their block has room, and gives back its own.
    /// Else a peer whose frames are small, as its own slots are, could fill the quota with blocks that are next to empty, so that a message
    /// that should fit never becomes whole.
    fn join(&mut self, item: QueueItem<B>) -> Result<B, QueueItem<B>> {
        if self.charge() < self.quota / 2 {
            return Err(item);
        }
        let begins = self.kind == ConnectionKind::SeqPacket && item.first;
        let (ItemBytes::Here { block, at, end }, Some(before), false) =
            (&item.bytes, self.items.back_mut(), begins)
        else {
            return Err(item);
        };
        let ItemBytes::Here { block: into, end: until, .. } = &mut before.bytes else { return Err(item) };
        let bytes = &block.bytes()[*at..*end];
        let Some(room) = into.bytes_mut().get_mut(*until..*until + bytes.len()) else { return Err(item) };
        copy(room, bytes);
        *until += bytes.len();
        before.last = item.last;
        if item.last && self.ready == self.items.len() {
            self.complete += 1;
        }
        match item.bytes {
            ItemBytes::Here { block, .. } => Ok(block),
            _ => unreachable!("it is here"),
        }
    }

    /// An RTS frame.
    pub(crate) fn source(&mut self, header: &Header, payload: &[u8]) -> Result<(), ProtocolError> {
        self.not_after_fin(header.kind)?;
        if self.sources.wrapping_sub(self.sources_read) >= self.max_rts {
            return Err(ProtocolError::TooManySources { most: self.max_rts });
        }
        let mut rest = payload;
        let mut total = None;
        if self.kind == ConnectionKind::SeqPacket {
            total = self.begin(header, payload)?;
            rest = &payload[if total.is_some() { 8 } else { 0 }..];
        }
        let (bytes, segments) = frame::decode_source(header.count, rest)?;
        let (mut first, mut last) = (false, false);
        if self.kind == ConnectionKind::SeqPacket {
            (first, last) = self.advance(header, total, bytes)?;
        }
        self.sources = self.sources.wrapping_add(1);
        let total = total.unwrap_or(bytes);
        let mut left = bytes;
        for segment in segments {
            let mut at = 0;
            while at < segment.len {
                let len = (segment.len - at).min(self.piece as u32);
                left -= u64::from(len);
                let wanted = Segment { addr: segment.addr + u64::from(at), len, rkey: segment.rkey };
                self.push(QueueItem {
                    bytes: ItemBytes::Wanted(wanted),
                    charge: 0,
                    first,
                    last: last && left == 0,
                    total: if first { total } else { 0 },
                    ends_source: left == 0,
                });
                first = false;
                at += len;
            }
        }
        if self.discarding {
            self.discard();
        }
        Ok(())
    }

    /// FIN: nothing of the program follows.
    pub(crate) fn fin(&mut self) -> Result<(), ProtocolError> {
        self.not_after_fin(FrameType::Fin)?;
        self.not_within()?;
        self.fin = true;
        Ok(())
    }

    fn not_after_fin(&self, kind: FrameType) -> Result<(), ProtocolError> {
        if self.fin { Err(ProtocolError::AfterFin { kind }) } else { Ok(()) }
    }

    fn not_within(&self) -> Result<(), ProtocolError> {
        match self.arriving {
            Some(MessageProgress { total, got }) => Err(ProtocolError::BeganWithin { got, total }),
            None => Ok(()),
        }
    }

    /// The total that a frame of a message begins with, checked.
    fn begin(&self, header: &Header, payload: &[u8]) -> Result<Option<u64>, ProtocolError> {
        if header.flags & FIRST == 0 {
            return if self.arriving.is_some() { Ok(None) } else { Err(ProtocolError::NotBegun) };
        }
        self.not_within()?;
        if header.flags & LAST != 0 {
            return Ok(None);
        }
        let (total, _) = frame::split_total(header.kind, payload)?;
        if total > self.max_msg {
            return Err(ProtocolError::MessageTooLong { total, most: self.max_msg });
        }
        Ok(Some(total))
    }

    /// Counts `len` bytes of a message, and tells whether they begin and end it.
    fn advance(
        &mut self,
        header: &Header,
        total: Option<u64>,
        len: u64,
    ) -> Result<(bool, bool), ProtocolError> {
        let (first, last) = (header.flags & FIRST != 0, header.flags & LAST != 0);
        if first && last {
            return if len > self.max_msg {
                Err(ProtocolError::MessageTooLong { total: len, most: self.max_msg })
            } else {
                Ok((true, true))
            };
        }
        if len == 0 {
            return Err(ProtocolError::Empty);
        }
        let mut message = match (total, self.arriving) {
            (Some(total), _) => MessageProgress { total, got: 0 },
            (None, Some(message)) => message,
            (None, None) => return Err(ProtocolError::NotBegun),
        };
        message.got = message.got.saturating_add(len);
        if message.got > message.total || last != (message.got == message.total) {
            return Err(ProtocolError::MessageLength { total: message.total, got: message.got });
        }
        self.arriving = (!last).then_some(message);
        Ok((first, last))
    }

    fn push(&mut self, item: QueueItem<B>) {
        if self.next_wanted == self.items.len() && !matches!(item.bytes, ItemBytes::Wanted(_)) {
            self.next_wanted += 1;
        }
        self.items.push_back(item);
        self.settle();
    }

    /// Moves `ready` over what is here.
    fn settle(&mut self) {
        while let Some(item) = self.items.get(self.ready) {
            match item.bytes {
                ItemBytes::Wanted(_) | ItemBytes::Reading { .. } => break,
                ItemBytes::Batch { left, .. } => self.complete += usize::from(left),
                ItemBytes::Here { .. } | ItemBytes::Nothing => self.complete += usize::from(item.last),
            }
            self.ready += 1;
        }
    }

    // READs

    /// The next READ, if there is something to read, and may be, and there is memory for it.
    pub(crate) fn next_read(&mut self, blocks: &mut impl Blocks<Block = B>) -> Option<ReadRequest<B>> {
        let from = match self.items.get(self.next_wanted)?.bytes {
            ItemBytes::Wanted(segment) if !self.discarding => segment,
            _ => return None,
        };
        if self.reads_under_way() >= self.max_reads || !self.may_read() {
            return None;
        }
        // Slots are what receiving has for itself: where there is no larger block it goes on with these, bit by bit.
        let slot = self.slot;
        let into = blocks
            .take(from.len as usize, Purpose::Receive)
            .or_else(|| blocks.take(slot.min(from.len as usize), Purpose::Receive))?;
        let from = self.cut_wanted(from, into.bytes().len());
        let id = self.reads_sent;
        self.reads_sent += 1;
        let item = &mut self.items[self.next_wanted];
        item.charge = into.bytes().len();
        item.bytes = ItemBytes::Reading { id, len: from.len };
        self.queued += item.charge;
        self.next_wanted += 1;
        while self.items.get(self.next_wanted).is_some_and(|item| !matches!(item.bytes, ItemBytes::Wanted(_)))
        {
            self.next_wanted += 1;
        }
        Some(ReadRequest { id, into, from })
    }

    /// Leaves what does not fit `room` of the range that is wanted next for the next READ. What is left for this one.
    fn cut_wanted(&mut self, from: Segment, room: usize) -> Segment {
        let Some(rest) = (from.len as usize).checked_sub(room).filter(|rest| *rest > 0) else { return from };
        let item = &mut self.items[self.next_wanted];
        let behind = QueueItem {
            bytes: ItemBytes::Wanted(Segment { addr: from.addr + room as u64, len: rest as u32, ..from }),
            charge: 0,
            first: false,
            last: std::mem::take(&mut item.last),
            total: 0,
            ends_source: std::mem::take(&mut item.ends_source),
        };
        self.items.insert(self.next_wanted + 1, behind);
        Segment { len: room as u32, ..from }
    }

    /// READs posted and not completed.
    pub(crate) fn reads_under_way(&self) -> usize {
        (self.reads_sent - self.reads_done) as usize
    }

    /// Within the quota anything may be read. Above it, the item that everything else waits for, and what makes the message at the front
    /// whole if that message can be taken whole at all: what fills the quota lies behind it and cannot go before it.
    fn may_read(&self) -> bool {
        self.charge() < self.quota
            || self.next_wanted == 0
            || (self.complete == 0
                && self.front_total() <= self.quota as u64
                && self.in_front_message(self.next_wanted))
    }

    fn in_front_message(&self, index: usize) -> bool {
        self.kind == ConnectionKind::SeqPacket && self.items.iter().take(index).all(|item| !item.last)
    }

    /// A READ has completed. READs of a queue pair complete in the order in which they were posted.
    pub(crate) fn read_done(&mut self, id: u64, block: B) {
        debug_assert_eq!(id, self.reads_done, "READs complete in order");
        self.reads_done += 1;
        let found = self
            .items
            .iter_mut()
            .find(|item| matches!(item.bytes, ItemBytes::Reading { id: at, .. } if at == id));
        let Some(item) = found else { return };
        let ItemBytes::Reading { len, .. } = item.bytes else { return };
        item.bytes = ItemBytes::Here { block, at: 0, end: len as usize };
        if self.discarding {
            self.discard();
            return;
        }
        if std::mem::take(&mut item.ends_source) {
            self.source_read();
        }
        self.settle();
    }

    /// Whether nothing is to be read, nor is the peer to be told what was.
    #[inline]
    pub(crate) fn is_quiet(&self) -> bool {
        !self.rfin_due && self.next_wanted == self.items.len()
    }

    /// Sources read in all, if the peer has not been told.
    pub(crate) fn rfin_due(&self) -> Option<u32> {
        self.rfin_due.then_some(self.sources_read)
    }

    /// The peer is being told.
    pub(crate) fn rfin_sent(&mut self) {
        self.rfin_due = false;
    }

    /// Whether every source told was read.
    pub(crate) fn all_read(&self) -> bool {
        self.sources == self.sources_read
    }

    // Quota

    fn charge(&self) -> usize {
        self.queued + self.held
    }

    /// Whether the receive of a frame of data may be replaced: within the quota, or above it as long as what arrives belongs to the
    /// message at the front, and that one can be taken whole. Twice the quota bounds what a peer of tiny frames can make of this.
    pub(crate) fn may_hold_more(&self) -> bool {
        if self.charge() < self.quota {
            return true;
        }
        let whole = self.arriving.is_some_and(|message| message.total <= self.quota as u64);
        whole
            && self.complete == 0
            && self.taking.is_none()
            && self.queued < 2 * self.quota
            && self.in_front()
    }

    /// Whether the message that is arriving is the one at the front.
    fn in_front(&self) -> bool {
        self.items.iter().all(|item| !item.last)
    }

    /// The program has dropped what it was given.
    pub(crate) fn give_back(&mut self, charge: usize) {
        self.held = self.held.saturating_sub(charge);
    }

    /// The program takes no more: drops what is here, and what comes from now on. READs under way keep their place until they are done.
    pub(crate) fn discard(&mut self) {
        self.discarding = true;
        self.taking = None;
        self.complete = 0;
        self.ready = 0;
        for item in &mut self.items {
            if !matches!(item.bytes, ItemBytes::Reading { .. }) {
                self.queued -= std::mem::take(&mut item.charge);
                item.bytes = ItemBytes::Nothing;
            }
        }
        // Sources count as read in their order, so one that is not going to be read waits for the READs of those before it.
        while let Some(QueueItem { bytes: ItemBytes::Nothing, ends_source, .. }) = self.items.front() {
            if *ends_source {
                self.source_read();
            }
            self.items.pop_front();
        }
        self.next_wanted = self.items.len();
    }

    /// For tests of the totals' wrap.
    #[cfg(test)]
    pub(crate) fn start_at(&mut self, start: u32) {
        (self.sources, self.sources_read) = (start, start);
    }

    /// Memory that counts against the receive buffer: queued, held by the program.
    #[cfg(test)]
    pub(crate) fn charges(&self) -> (usize, usize) {
        (self.queued, self.held)
    }

    fn source_read(&mut self) {
        self.sources_read = self.sources_read.wrapping_add(1);
        self.rfin_due = true;
    }
}
