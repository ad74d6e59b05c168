//! The receive queue: bytes or messages that arrived, in order, and sources still to be READ.

mod reads;

use std::collections::VecDeque;
use std::ops::Range;

use super::block::{Block, Blocks, Purpose, Segment};
use super::call_buffer::CallBuffer;
use super::copying::copy;
use super::failure::ProtocolError;
use super::frame::{self, COALESCED, FIRST, FrameType, Header, LAST};
use super::setup::{ConnectionKind, ConnectionSetup};

/// The result of `recv_part`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReceivedPart {
    /// Bytes written to the buffer.
    pub(crate) len: usize,
    /// Whether they end the message.
    pub(crate) last: bool,
    /// Length of the whole message.
    pub(crate) total: u64,
}

/// Received bytes in the block in which they arrived.
#[derive(Debug)]
pub(crate) struct Chunk<B> {
    /// The block. The program drops it, or keeps it for a while, and then calls
    /// `give_back(charge)`.
    pub(crate) block: B,
    /// The range of the bytes within the block.
    pub(crate) range: Range<usize>,
    /// The amount charged against the receive buffer until `give_back`.
    pub(crate) charge: usize,
    /// SeqPacket: whether it begins a message.
    #[cfg_attr(not(test), allow(dead_code, reason = "the sockets take a message from its beginning"))]
    pub(crate) first: bool,
    /// SeqPacket: whether it ends a message.
    pub(crate) last: bool,
    /// SeqPacket: length of the whole message.
    pub(crate) total: u64,
}

/// A READ to post.
#[derive(Debug)]
pub(crate) struct ReadRequest<B> {
    /// Number of the READ, counted from 0.
    pub(crate) id: u64,
    /// The destination block.
    pub(crate) into: B,
    /// The source; `len` bytes go to the start of `into`.
    pub(crate) from: Segment,
}

/// Data of the program that has arrived, or is announced.
struct QueueItem<B> {
    bytes: ItemBytes<B>,
    /// The amount charged against the quota.
    charge: usize,
    first: bool,
    last: bool,
    /// Length of the message, in its first item.
    total: u64,
    /// Whether it is the last range of an RTS.
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
    /// A range whose READ is not posted yet.
    Wanted(Segment),
    /// A posted READ.
    Reading {
        id: u64,
        len: u32,
    },
    /// A range that will not be read, because the program takes no more data.
    Nothing,
}

/// A message that is arriving, or being taken in parts.
#[derive(Debug, Clone, Copy)]
struct MessageProgress {
    total: u64,
    got: u64,
}

/// Where several queue pairs share READs, one has this part of the longest READ, but not less than
/// [`SHORT_READ`] for that reason.
const READ_PARTS: usize = 8;
const SHORT_READ: usize = 64 << 10;
const PAGE: usize = 4096;

/// The receive queue.
pub(crate) struct Incoming<B> {
    items: VecDeque<QueueItem<B>>,
    kind: ConnectionKind,
    max_msg: u64,
    quota: usize,
    /// The most bytes of a READ, now and in any case.
    piece: usize,
    longest_read: usize,
    /// Size of a block that always becomes available eventually.
    slot: usize,
    max_rts: u32,
    max_reads: usize,
    /// The devices for which an RTS of the peer has keys.
    peer_devices: usize,
    /// Items at the front whose bytes have arrived.
    ready: usize,
    /// Whole messages among them.
    complete: usize,
    /// Index of the first item that is `Wanted`, or the length.
    next_wanted: usize,
    /// SeqPacket: the message that the next frame continues.
    arriving: Option<MessageProgress>,
    /// SeqPacket: the message that the program takes in parts.
    taking: Option<MessageProgress>,
    /// Bytes of blocks in `items`, including those that READs fill.
    queued: usize,
    /// Bytes of blocks that the program holds.
    held: usize,
    reads_sent: u64,
    reads_done: u64,
    /// RTS frames received, and those of them that were read completely.
    sources: u32,
    sources_read: u32,
    rfin_due: bool,
    /// Whether the program takes no more data, so that arriving data is dropped.
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
            longest_read: setup.read_piece,
            slot: setup.own.slot_size as usize,
            max_rts: setup.max_rts() as u32,
            max_reads: setup.reads(),
            peer_devices: setup.peer_devices,
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

    // Arriving data

    /// Whether a waiting call takes the bytes of a DATA frame. It does if the queue is empty and
    /// they are exactly what it waits for; they are then counted as received and taken.
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

    /// Handles a DATA frame: its header, its block, and the range of its payload. Returns the block
    /// if none of it is kept.
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

    /// Once half the quota is used, copies the bytes of a frame behind the previous ones if their
    /// block has room, and returns the frame's block. Otherwise a peer with small frames, because
    /// its slots are small, could fill the quota with almost empty blocks. A message that should
    /// fit would then never become complete.
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

    /// Handles an RTS frame.
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
        let (bytes, segments) = frame::decode_source(header.count, rest, self.peer_devices)?;
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
                let wanted = Segment { addr: segment.addr + u64::from(at), len, ..segment };
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

    /// Handles FIN: no data of the program follows.
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

    /// Reads and checks the total at the start of a message.
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

    /// Counts `len` bytes of a message; returns whether they begin and end it.
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

    /// Advances `ready` over the items that have arrived. A source counts as read when everything
    /// before it has arrived.
    fn settle(&mut self) {
        while let Some(item) = self.items.get_mut(self.ready) {
            match item.bytes {
                ItemBytes::Wanted(_) | ItemBytes::Reading { .. } => break,
                ItemBytes::Batch { left, .. } => self.complete += usize::from(left),
                ItemBytes::Here { .. } | ItemBytes::Nothing => self.complete += usize::from(item.last),
            }
            if std::mem::take(&mut item.ends_source) {
                self.sources_read = self.sources_read.wrapping_add(1);
                self.rfin_due = true;
            }
            self.ready += 1;
        }
    }

    // READs

    /// The next READ, if a range is wanted, its READ is allowed, and memory is available.
    pub(crate) fn next_read(&mut self, blocks: &mut impl Blocks<Block = B>) -> Option<ReadRequest<B>> {
        let from = match self.items.get(self.next_wanted)?.bytes {
            ItemBytes::Wanted(segment) if !self.discarding => segment,
            _ => return None,
        };
        if self.reads_under_way() >= self.max_reads || !self.may_read() {
            return None;
        }
        // Slots are reserved for receiving: without a larger block it continues in pieces of a
        // slot.
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

    /// Cuts the next wanted range at `room`, and leaves the rest for another READ. Returns the
    /// first part.
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

    /// Whether the program takes no more data.
    pub(crate) fn is_discarding(&self) -> bool {
        self.discarding
    }

    /// Changes the number of READs that may be posted at a time.
    pub(crate) fn set_max_reads(&mut self, reads: usize) {
        self.max_reads = reads;
    }

    /// Changes the length of READs of sources that are announced from now on: shorter ones keep
    /// several queue pairs busy with the few sources that fit the sender's buffer.
    pub(crate) fn divide_reads(&mut self, divided: bool) {
        let part = (self.longest_read / READ_PARTS).next_multiple_of(PAGE);
        let part = part.max(SHORT_READ).min(self.longest_read);
        self.piece = if divided { part } else { self.longest_read };
    }

    /// READs that are posted and not completed.
    pub(crate) fn reads_under_way(&self) -> usize {
        (self.reads_sent - self.reads_done) as usize
    }

    /// Within the quota any range may be read. Above it, only two may: the item that everything
    /// else waits for, and the rest of the message at the front if it can be taken as a whole. The
    /// data that fills the quota lies behind these and cannot be taken before them.
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

    /// Handles the completion of a READ. READs of one queue pair complete in the order in which they
    /// were posted, those of several in any order.
    pub(crate) fn read_done(&mut self, id: u64, block: B) {
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
        self.settle();
    }

    /// Whether no range is to be read, and no RFIN is due.
    #[inline(always)]
    pub(crate) fn is_quiet(&self) -> bool {
        !self.rfin_due && self.next_wanted == self.items.len()
    }

    /// The number of sources read, if the peer has not been told.
    pub(crate) fn rfin_due(&self) -> Option<u32> {
        self.rfin_due.then_some(self.sources_read)
    }

    /// Notes that the RFIN is sent.
    pub(crate) fn rfin_sent(&mut self) {
        self.rfin_due = false;
    }

    /// Whether every announced source was read.
    pub(crate) fn all_read(&self) -> bool {
        self.sources == self.sources_read
    }

    /// Whether data has arrived, or was announced, that the program has not taken.
    pub(crate) fn has_unread(&self) -> bool {
        !self.discarding && (self.queued > 0 || !self.items.is_empty())
    }

    // Quota

    fn charge(&self) -> usize {
        self.queued + self.held
    }

    /// Whether the receive of a data frame may be reposted. Within the quota it may; above it, only
    /// while the arriving data belongs to the message at the front, and that message can be taken
    /// as a whole. Twice the quota bounds the memory that a peer with tiny frames can use.
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

    /// Whether the arriving message is the one at the front.
    fn in_front(&self) -> bool {
        self.items.iter().all(|item| !item.last)
    }

    /// The program has dropped data that it held.
    pub(crate) fn give_back(&mut self, charge: usize) {
        self.held = self.held.saturating_sub(charge);
    }

    /// The program takes no more data: drops the queue, and all data that arrives from now on.
    /// Posted READs keep their place until they complete.
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
        // Sources count as read in order, so a source that will not be read waits for the READs of
        // those before it.
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

    /// Memory charged against the receive buffer: queued, and held by the program.
    #[cfg(test)]
    pub(crate) fn charges(&self) -> (usize, usize) {
        (self.queued, self.held)
    }

    fn source_read(&mut self) {
        self.sources_read = self.sources_read.wrapping_add(1);
        self.rfin_due = true;
    }
}
