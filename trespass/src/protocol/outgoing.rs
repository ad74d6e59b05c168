//! The send queue: frames still to go, in order, and the sources that the peer is to READ.

mod writes;

pub(crate) use writes::LendSummary;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::block::{Block, Blocks, Purpose, RemoteAddress, RemoteKeys, Segment};
use super::copying::copy;
use super::credit::{Credits, RESERVE};
use super::failure::ProtocolError;
use super::frame::{
    self, BLOCKED, COALESCED, FIRST, FrameType, HEADER_LEN, Head, Header, LAST, SEGMENT_LEN_MAX,
    SEGMENTS_MAX, SOURCE_MAX, segment_len,
};
use super::pieces::{BlockPiece, BlockPieces, BlockShare, PieceOwner, RecycledLists, Ticket};
use super::setup::{ConnectionKind, ConnectionSetup, LinkType};
use super::transmit_item::Frame;

/// The most lent blocks that may be waiting or in flight at once.
pub(crate) const LENT_MAX: usize = 1024;
/// Frames in flight whose blocks may be almost empty: what TCP's driver holds for a full socket.
const SPARSE_FRAMES: usize = 32;
/// Offset of the first message of a batch, after the header and the message's length.
const BATCH_FIRST: usize = HEADER_LEN + 4;
/// The longest time for which a cork holds back a partial frame.
pub(crate) const CORK: Duration = Duration::from_millis(200);
/// Length of the `total` before a message that does not fit one frame.
const TOTAL_LEN: usize = 8;
/// An RTS without its ranges, in bytes: the header, the message's total, and the number of bytes.
const RTS_HEAD: usize = HEADER_LEN + TOTAL_LEN + 8;
/// The longest RTS in bytes.
const RTS_MAX: usize = RTS_HEAD + SEGMENTS_MAX * SEGMENT_LEN_MAX;

/// A future frame.
enum QueueItem<B> {
    /// Copied bytes, with room for the header before them.
    Packed(PackedFrame<B>),
    /// Lent blocks that fit one frame.
    Lent { pieces: BlockPieces<B>, message: MessagePosition },
    /// Blocks that the peer will read. A block that is too long for one RTS is announced in
    /// several; `at` is the start of the part not announced yet.
    Source { pieces: BlockPieces<B>, at: usize, message: MessagePosition },
    /// The unsent rest of a lent block that does not fit one frame and that the peer cannot read.
    Long { left: BlockShare<B>, message: MessagePosition },
    /// The same for a block that the device cannot reach: it is copied into frames as they are
    /// sent.
    Cut { piece: BlockPiece<B>, at: usize, message: MessagePosition },
    /// An empty message, whose block has returned.
    Empty,
}

/// The position of an item in its message: first, last, and the message's length. Unused for a
/// stream.
#[derive(Debug, Clone, Copy, Default)]
struct MessagePosition {
    flags: u8,
    total: u64,
}

impl MessagePosition {
    /// Bytes before the payload: the total, in the first frame of a message with several.
    fn prefix(&self) -> usize {
        if self.flags & (FIRST | LAST) == FIRST { TOTAL_LEN } else { 0 }
    }

    /// The part of the frame before `len` bytes that lie elsewhere.
    fn head(&self, len: usize, header: impl FnOnce(FrameType, u8, u16, usize) -> Header) -> Head {
        let prefix = self.prefix();
        let mut head = Head::new(&header(FrameType::Data, self.flags, 0, prefix + len));
        head.push(&self.total.to_le_bytes()[..prefix]);
        head
    }
}

struct PackedFrame<B> {
    block: B,
    /// The end of the bytes; more may follow up to `limit` while `open`.
    end: usize,
    limit: usize,
    open: bool,
    /// It is sent as soon as possible, full or not.
    due: bool,
    /// The program's bytes in it.
    copied: usize,
    what: Packing,
}

enum Packing {
    /// Bytes from HEADER_LEN on; with `total`, the first 8 of them are the message's length.
    Bytes { flags: u8, total: bool },
    /// Whole messages from HEADER_LEN on, in the COALESCED format.
    Batch { count: u16, first_len: usize },
}

/// A message that is sent in parts.
#[derive(Debug, Clone, Copy)]
struct PartialMessage {
    total: u64,
    left: u64,
}

impl PartialMessage {
    /// Bytes that its rest needs in frames.
    fn frame_bytes(self) -> usize {
        let prefix = if self.left == self.total { TOTAL_LEN } else { 0 };
        usize::try_from(self.left).unwrap_or(usize::MAX).saturating_add(prefix)
    }
}

/// What is known of the peer when the program writes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PeerWindow {
    /// Its free receives for data.
    pub(crate) free: usize,
    /// The bytes that it has sent so far.
    pub(crate) heard: u64,
}

/// The send queue.
pub(crate) struct Outgoing<B> {
    items: VecDeque<QueueItem<B>>,
    /// Announced sources. A block that is announced in several parts belongs to the last of them.
    announced: VecDeque<Option<BlockPieces<B>>>,
    lists: RecycledLists<B>,
    kind: ConnectionKind,
    coalesce: bool,
    /// The largest payload of a frame.
    payload: usize,
    /// The largest payload of a frame whose header lies in no block, and is not sent if immediate
    /// data can carry it.
    bare: usize,
    /// Size of a block to which more bytes may be added.
    tail_size: usize,
    eager_max: usize,
    stage: usize,
    /// Whether the link is TCP, which sends from any memory.
    tcp: bool,
    /// Whether READ is agreed, and the peer can read the blocks.
    read: bool,
    max_rts: usize,
    gather: usize,
    domain: usize,
    /// Whether frames hold copies only, and lent blocks are sources or copied.
    copies: bool,
    /// The devices for which an RTS has keys, and the most ranges that it then has.
    devices: usize,
    segments: usize,
    max_msg: u64,
    quota: usize,
    /// The memory from which on no block is added. The blocks of a full queue are half full at least,
    /// unless they hold messages of a few bytes, or one each because the peer knows no COALESCED.
    memory_max: usize,
    /// The bytes that must fit before a write begins another frame. Otherwise a queue that is almost
    /// full of sources, which the peer READs late, would send a few bytes in each frame.
    least_room: usize,
    low_water: usize,
    /// The program's bytes that are copied, until they are sent, or read by the peer.
    charge: usize,
    /// Bytes of the connection's blocks, most of which hold such bytes.
    memory: usize,
    /// The bytes that the last call refused for the quota wanted to add.
    refused: usize,
    lent: usize,
    /// The number of blocks in the last call refused for too many blocks; else 0.
    lent_refused: usize,
    /// What the peer had sent when a write last exceeded its free receives.
    outran: Option<u64>,
    in_flight: usize,
    /// Control frames handed to the link after the last data. Frames complete in order.
    control_behind: usize,
    corked: bool,
    /// The time at which corked data is sent anyway; `None` if no data is known to be held back.
    cork_ends: Option<Instant>,
    parts: Option<PartialMessage>,
    /// Sources that the peer has read.
    released: u32,
    /// Sources announced to the peer.
    sources: u32,
    /// Bytes in announced sources.
    announced_bytes: u64,
}

impl<B: Block> Outgoing<B> {
    pub(crate) fn new(setup: &ConnectionSetup) -> Self {
        Outgoing {
            items: VecDeque::new(),
            announced: VecDeque::new(),
            lists: RecycledLists::default(),
            kind: setup.kind,
            coalesce: setup.coalesce,
            payload: setup.send_payload(),
            bare: setup.send_bare(),
            tail_size: setup.peer.slot_size as usize,
            eager_max: setup.peer.eager_max.min(setup.own.eager_max) as usize,
            stage: setup.stage,
            tcp: setup.link == LinkType::Tcp,
            read: setup.read,
            max_rts: setup.max_rts(),
            gather: setup.gather,
            domain: setup.domain,
            copies: setup.copies,
            devices: setup.own_devices,
            segments: SEGMENTS_MAX
                .min((setup.peer.slot_size as usize - RTS_HEAD) / segment_len(setup.own_devices)),
            max_msg: setup.max_msg(),
            quota: setup.sndbuf,
            memory_max: 2 * setup.sndbuf + SPARSE_FRAMES * setup.peer.slot_size as usize,
            least_room: (setup.peer.slot_size as usize).min(setup.sndbuf / 16),
            low_water: setup.low_water,
            charge: 0,
            memory: 0,
            refused: 0,
            lent: 0,
            lent_refused: 0,
            outran: None,
            in_flight: 0,
            control_behind: 0,
            corked: false,
            cork_ends: None,
            parts: None,
            released: 0,
            sources: 0,
            announced_bytes: 0,
        }
    }

    // Data on its way to the peer

    /// Whether all given data was handed to the link.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Whether nothing is to be handed to the link now: the queue is empty, or the program holds it
    /// back until a known time.
    #[inline(always)]
    pub(crate) fn is_quiet(&self) -> bool {
        self.items.is_empty() || (self.cork_ends.is_some() && self.is_filling())
    }

    /// Whether data is to be handed to the link that the program does not hold back.
    pub(crate) fn has_unsent(&self) -> bool {
        let held = self.corked && self.is_filling();
        !(self.items.is_empty() || held)
    }

    /// The time at which corked data is sent anyway.
    pub(crate) fn cork_ends(&self) -> Option<Instant> {
        self.cork_ends
    }

    /// Releases data that a cork has held back for long enough.
    pub(crate) fn tick(&mut self, now: Instant) {
        if self.cork_ends.is_some_and(|end| now >= end) {
            self.close_tail();
        }
    }

    /// Whether enough frames are in flight that a partial frame waits.
    #[inline]
    pub(crate) fn is_busy(&self) -> bool {
        self.in_flight >= self.low_water
    }

    /// Frames handed to the link and not completed.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// For simulators: the bytes that a READ of the peer brings, if the range was announced and not
    /// yet released.
    #[cfg(test)]
    pub(crate) fn source_bytes(&self, range: Segment) -> Option<&[u8]> {
        let begun = match self.items.front() {
            Some(QueueItem::Source { pieces, at: 1.., .. }) => Some(pieces),
            _ => None,
        };
        self.announced.iter().flatten().chain(begun).flat_map(BlockPieces::iter).find_map(|piece| {
            let remote = piece.block.remote().filter(|remote| remote.rkeys == range.rkeys)?;
            let at = usize::try_from(range.addr.checked_sub(remote.addr)?).ok()?;
            piece.bytes().get(at..at.checked_add(range.len as usize)?)
        })
    }

    /// For tests of the totals' wrap.
    #[cfg(test)]
    pub(crate) fn start_at(&mut self, start: u32) {
        (self.sources, self.released) = (start, start);
    }

    /// Sources announced and not read.
    pub(crate) fn unread(&self) -> usize {
        self.announced.len()
    }

    /// Bytes announced to the peer.
    pub(crate) fn announced_bytes(&self) -> u64 {
        self.announced_bytes
    }

    /// Whether the peer has all data, and has read all sources, if `unacknowledged` frames may not have
    /// arrived. It may lack control frames.
    pub(crate) fn is_delivered(&self, unacknowledged: usize) -> bool {
        self.items.is_empty() && self.announced.is_empty() && unacknowledged <= self.control_behind
    }

    /// Counts a control frame that is handed to the link.
    pub(crate) fn count_control(&mut self) {
        self.in_flight += 1;
        self.control_behind += 1;
    }

    /// Whether `len` bytes in the program's memory, a message or bytes of a stream, may become a
    /// separate frame now. Otherwise they must be queued, because other data precedes them or they
    /// may not be sent now.
    #[inline]
    pub(crate) fn allows_single_frame(&self, kind: ConnectionKind, len: usize, credits: &Credits) -> bool {
        let alone = self.items.is_empty() && self.parts.is_none() && !self.corked && self.writable();
        alone
            && kind == self.kind
            && !self.is_busy()
            && len <= self.bare.min(self.quota - self.charge)
            && (kind == ConnectionKind::Stream || len as u64 <= self.max_msg)
            && credits.allows_data()
    }

    /// Starts that frame. `block` is the size of the block that holds a copy of the bytes, if any.
    #[inline]
    pub(crate) fn begin_single_frame(
        &mut self,
        len: usize,
        block: usize,
        credits: &mut Credits,
    ) -> [u8; HEADER_LEN] {
        self.in_flight += 1;
        self.control_behind = 0;
        if block > 0 {
            self.charge += len;
            self.memory += block;
        }
        let flags = if self.kind == ConnectionKind::SeqPacket { FIRST | LAST } else { 0 };
        let (seq, credit_total) = credits.spend();
        Header { kind: FrameType::Data, flags, count: 0, seq, credit_total, len: len as u32 }.encode()
    }

    /// The next frame that may be sent, if any.
    pub(crate) fn next_frame(
        &mut self,
        now: Instant,
        credits: &mut Credits,
        blocks: &mut impl Blocks<Block = B>,
    ) -> Option<Frame<B>> {
        if !credits.allows_data() || self.held_back(now) {
            return None;
        }
        // The program may have lent all memory for sending. One frame at a time is sent
        // nevertheless.
        let mut spare = FallbackBlocks { blocks, alone: self.in_flight == 0 };
        let own = match self.items.front()? {
            QueueItem::Source { .. } if self.announced.len() >= self.max_rts => return None,
            QueueItem::Source { pieces, at, message } => {
                match Rts::of(pieces, *at, message).len(self.devices) {
                    ..=Head::MAX => None,
                    len => Some(spare.take(len)?),
                }
            }
            QueueItem::Cut { piece, at, message } => {
                let cut = FrameCut::of(*at, piece.len - at, message, self.payload);
                Some(cut.copy(piece, *at, &mut spare)?)
            }
            _ => None,
        };
        self.in_flight += 1;
        self.control_behind = 0;
        let stops = credits.left() <= RESERVE + 1;
        let more = self.items.len() > 1
            || match &self.items[0] {
                QueueItem::Cut { piece, at, message } => {
                    !FrameCut::of(*at, piece.len - at, message, self.payload).ends
                }
                QueueItem::Long { left, message } => {
                    !FrameCut::of(left.at(), left.len(), message, self.bare).ends
                }
                QueueItem::Source { pieces, at, message } => !Rts::of(pieces, *at, message).ends,
                QueueItem::Packed(_) | QueueItem::Lent { .. } | QueueItem::Empty => false,
            };
        let blocked = if stops && more && credits.is_counted() { BLOCKED } else { 0 };
        let header = |kind, flags, count, len: usize| {
            let (seq, credit_total) = credits.spend();
            Header { kind, flags: flags | blocked, count, seq, credit_total, len: len as u32 }
        };
        if let Some(QueueItem::Cut { piece, at, message }) = self.items.front_mut() {
            let block = own?;
            let cut = FrameCut::of(*at, piece.len - *at, message, self.payload);
            *at += cut.len;
            self.memory += block.bytes().len();
            return Some(cut.into_frame(block, header));
        }
        Some(match self.items.pop_front()? {
            QueueItem::Packed(packed) => packed.into_frame(header),
            QueueItem::Lent { pieces, message } => {
                Frame::Gather { head: message.head(pieces.len(), header), pieces }
            }
            QueueItem::Long { left, message } => {
                let cut = FrameCut::of(left.at(), left.len(), &message, self.bare);
                let (share, left) = left.split(cut.len);
                if let Some(left) = left {
                    self.items.push_front(QueueItem::Long { left, message });
                }
                Frame::Part { head: cut.place.head(cut.len, header), share }
            }
            QueueItem::Source { pieces, at, message } => {
                let rts = Rts::of(&pieces, at, &message);
                let (len, ends) = (rts.bytes, rts.ends);
                let frame = rts.into_frame(own, self.devices, header);
                if let Frame::Whole { block, .. } = &frame {
                    self.memory += block.bytes().len();
                }
                self.sources = self.sources.wrapping_add(1);
                self.announced_bytes += len as u64;
                if ends {
                    self.announced.push_back(Some(pieces));
                } else {
                    self.announced.push_back(None);
                    self.items.push_front(QueueItem::Source { pieces, at: at + len, message });
                }
                frame
            }
            QueueItem::Empty => {
                let message = MessagePosition { flags: FIRST | LAST, total: 0 };
                Frame::Short(message.head(0, header))
            }
            QueueItem::Cut { .. } => unreachable!("cut above"),
        })
    }

    /// Small writes gather in the last frame while enough others are in flight to keep the link
    /// busy, or while the program corks.
    fn held_back(&mut self, now: Instant) -> bool {
        if self.corked && self.is_filling() {
            self.cork_ends.get_or_insert(now + CORK);
            return true;
        }
        self.is_filling() && self.is_busy()
    }

    /// Whether the only frame is one that waits for more bytes.
    fn is_filling(&self) -> bool {
        self.items.len() == 1
            && matches!(
                self.items.front(),
                Some(QueueItem::Packed(PackedFrame { open: true, due: false, .. }))
            )
    }

    /// Returns the lent block at the front to the program as soon as all of it was copied to
    /// frames.
    pub(crate) fn cut_up(&mut self, each: impl FnMut(Ticket, B)) {
        if matches!(self.items.front(), Some(QueueItem::Cut { piece, at, .. }) if *at == piece.len)
            && let Some(QueueItem::Cut { piece, .. }) = self.items.pop_front()
        {
            self.release(piece.into(), each);
        }
    }

    /// Handles the completion of a frame; returns lent blocks.
    pub(crate) fn sent(&mut self, pieces: Option<BlockPieces<B>>, each: impl FnMut(Ticket, B)) {
        self.in_flight -= 1;
        if let Some(pieces) = pieces {
            self.release(pieces, each);
        }
    }

    /// Handles the completion of a frame whose block, of `memory` bytes, stays with the driver.
    /// `copied` bytes of the program are in it.
    pub(crate) fn sent_and_kept(&mut self, copied: usize, memory: usize) {
        self.in_flight -= 1;
        self.charge -= copied;
        self.memory -= memory;
    }

    /// The same for a frame with a share of a lent block, which returns with the last share.
    pub(crate) fn sent_part(&mut self, share: BlockShare<B>, each: impl FnMut(Ticket, B)) {
        self.in_flight -= 1;
        self.release_share(share, each);
    }

    fn release_share(&mut self, share: BlockShare<B>, each: impl FnMut(Ticket, B)) {
        if let Some(piece) = share.part(&mut self.lists) {
            self.release(piece.into(), each);
        }
    }

    /// Handles the peer's RFIN with `total` sources read; returns how many that releases.
    pub(crate) fn rfin(&mut self, total: u32) -> Result<usize, ProtocolError> {
        let newly = total.wrapping_sub(self.released) as usize;
        if newly == 0 || newly > self.announced.len() {
            return Err(ProtocolError::ReadTotal { total, told: self.sources, read: self.released });
        }
        self.released = total;
        Ok(newly)
    }

    /// Removes the oldest source, which was read; returns lent blocks.
    pub(crate) fn source_read(&mut self, each: impl FnMut(Ticket, B)) {
        if let Some(Some(announced)) = self.announced.pop_front() {
            self.release(announced, each);
        }
    }

    fn release(&mut self, pieces: BlockPieces<B>, mut each: impl FnMut(Ticket, B)) {
        let (lent, charge, memory) = (&mut self.lent, &mut self.charge, &mut self.memory);
        pieces.part(&mut self.lists, |BlockPiece { block, owner, .. }| match owner {
            PieceOwner::Program(ticket) => {
                *lent -= 1;
                each(ticket, block);
            }
            PieceOwner::Connection { copied } => {
                *charge -= copied;
                *memory -= block.bytes().len();
            }
        });
    }

    /// The peer may read sources after the link has ended: puts copies in their place, and leaks their
    /// blocks.
    #[cfg(any(feature = "rdma", test))]
    pub(crate) fn lose_sources(&mut self, mut copy: impl FnMut(&B) -> Option<B>) {
        for announced in &mut self.announced {
            if announced.as_mut().is_some_and(|pieces| !pieces.lose(&mut copy)) {
                std::mem::forget(announced.take());
            }
        }
        for item in &mut self.items {
            if let QueueItem::Source { pieces, .. } = item
                && !pieces.lose(&mut copy)
            {
                std::mem::forget(std::mem::replace(item, QueueItem::Empty));
            }
        }
    }

    /// The link has ended and no device touches any block: removes everything that waits, oldest
    /// first; returns lent blocks.
    pub(crate) fn abandon(&mut self, mut each: impl FnMut(Ticket, B)) {
        while let Some(announced) = self.announced.pop_front() {
            announced.into_iter().for_each(|announced| self.release(announced, &mut each));
        }
        while let Some(item) = self.items.pop_front() {
            match item {
                QueueItem::Packed(PackedFrame { block, end, copied, .. }) => {
                    self.release(BlockPieces::own(block, end, copied), &mut each)
                }
                QueueItem::Lent { pieces, .. } | QueueItem::Source { pieces, .. } => {
                    self.release(pieces, &mut each)
                }
                QueueItem::Long { left, .. } => self.release_share(left, &mut each),
                QueueItem::Cut { piece, .. } => self.release(piece.into(), &mut each),
                QueueItem::Empty => {}
            }
        }
    }
}

impl<B: Block> PackedFrame<B> {
    fn into_frame(mut self, header: impl FnOnce(FrameType, u8, u16, usize) -> Header) -> Frame<B> {
        let (start, end, flags, count) = match self.what {
            // A single message is sent without the length before it, and one that turned out to fit
            // one frame without its total: the header overwrites them.
            Packing::Batch { count: 1, first_len } => {
                (BATCH_FIRST - HEADER_LEN, BATCH_FIRST + first_len, FIRST | LAST, 0)
            }
            Packing::Batch { count, .. } => (0, self.end, COALESCED, count),
            Packing::Bytes { flags, total } if total && flags == FIRST | LAST => {
                (TOTAL_LEN, self.end, flags, 0)
            }
            Packing::Bytes { flags, .. } => (0, self.end, flags, 0),
        };
        let header = header(FrameType::Data, flags, count, end - start - HEADER_LEN);
        self.block.bytes_mut()[start..start + HEADER_LEN].copy_from_slice(&header.encode());
        Frame::Whole { block: self.block, start, end, copied: self.copied }
    }
}

/// Blocks for the connection's frames.
struct FallbackBlocks<'a, P> {
    blocks: &'a mut P,
    /// Whether nothing else is in flight.
    alone: bool,
}

impl<P: Blocks> FallbackBlocks<'_, P> {
    fn take(&mut self, size: usize) -> Option<P::Block> {
        let block = self.blocks.take(size, Purpose::Send);
        block.or_else(|| self.alone.then(|| self.blocks.take(size, Purpose::Receive)).flatten())
    }
}

/// The next frame of a lent block that spans several: its length, and whether it is the last.
struct FrameCut {
    len: usize,
    ends: bool,
    place: MessagePosition,
}

impl FrameCut {
    /// Cuts a block with `left` unsent bytes from `at` on.
    fn of(at: usize, left: usize, message: &MessagePosition, payload: usize) -> Self {
        let mut flags = message.flags & if at == 0 { FIRST | LAST } else { LAST };
        if left > payload {
            flags &= !LAST;
        }
        let place = MessagePosition { flags, ..*message };
        let len = left.min(payload - place.prefix());
        Self { len, ends: len == left, place }
    }

    /// Copies the bytes to a block, after the place of the header.
    fn copy<P: Blocks>(
        &self,
        piece: &BlockPiece<P::Block>,
        at: usize,
        spare: &mut FallbackBlocks<'_, P>,
    ) -> Option<P::Block> {
        let prefix = self.place.prefix();
        let mut block = spare.take(HEADER_LEN + prefix + self.len)?;
        let payload = &mut block.bytes_mut()[HEADER_LEN..];
        copy(&mut payload[prefix..prefix + self.len], &piece.bytes()[at..at + self.len]);
        Some(block)
    }

    fn into_frame<B: Block>(
        self,
        mut block: B,
        header: impl FnOnce(FrameType, u8, u16, usize) -> Header,
    ) -> Frame<B> {
        let head = self.place.head(self.len, header);
        block.bytes_mut()[..head.bytes().len()].copy_from_slice(head.bytes());
        Frame::Whole { block, start: 0, end: head.bytes().len() + self.len, copied: 0 }
    }
}

/// An RTS for all of the pieces, or for the next part of a single block that is too long.
struct Rts<'a, B> {
    pieces: &'a BlockPieces<B>,
    at: usize,
    /// The bytes that it announces, and whether it announces the last of them.
    bytes: usize,
    ends: bool,
    message: MessagePosition,
}

impl<'a, B: Block> Rts<'a, B> {
    fn of(pieces: &'a BlockPieces<B>, at: usize, message: &MessagePosition) -> Self {
        let left = pieces.len() - at;
        let bytes = left.min(SOURCE_MAX as usize);
        let (ends, mut flags) = (bytes == left, message.flags);
        if at > 0 {
            flags &= !FIRST;
        }
        if !ends {
            flags &= !LAST;
        }
        Self { pieces, at, bytes, ends, message: MessagePosition { flags, ..*message } }
    }

    /// Length of the RTS in bytes.
    fn len(&self, devices: usize) -> usize {
        HEADER_LEN + self.message.prefix() + 8 + self.pieces.count() * segment_len(devices)
    }

    /// A short frame, or one in a block if it is too long for that.
    fn into_frame(
        self,
        own: Option<B>,
        devices: usize,
        header: impl FnOnce(FrameType, u8, u16, usize) -> Header,
    ) -> Frame<B> {
        let Self { pieces, at, message, .. } = self;
        let len = self.len(devices);
        let header = header(FrameType::Rts, message.flags, pieces.count() as u16, len - HEADER_LEN);
        let (mut rts, mut end) = ([0; RTS_MAX], 0);
        let mut put = |bytes: &[u8]| {
            rts[end..end + bytes.len()].copy_from_slice(bytes);
            end += bytes.len();
        };
        put(&header.encode());
        put(&message.total.to_le_bytes()[..message.prefix()]);
        put(&(self.bytes as u64).to_le_bytes());
        for piece in pieces.iter() {
            let unknown = RemoteAddress { addr: 0, rkeys: RemoteKeys::default() };
            let RemoteAddress { addr, rkeys } = piece.block.remote().unwrap_or(unknown);
            // Only a single block is announced in parts.
            let len = (piece.len - at).min(self.bytes) as u32;
            let segment = Segment { addr: addr + at as u64, len, rkeys };
            put(&frame::encode_segment(&segment)[..segment_len(devices)]);
        }
        match own {
            None => Frame::Short(Head::of(&rts[..len])),
            Some(mut block) => {
                block.bytes_mut()[..len].copy_from_slice(&rts[..len]);
                Frame::Whole { block, start: 0, end: len, copied: 0 }
            }
        }
    }
}
