//! What the program gave and the peer has not: the frames to be, in order, and the sources that the peer is to read.

mod writes;

pub(crate) use writes::LendSummary;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::block::{Block, Blocks, Purpose, RemoteAddress, Segment};
use super::copying::copy;
use super::credit::{Credits, RESERVE};
use super::failure::ProtocolError;
use super::frame::{
    self, BLOCKED, COALESCED, FIRST, FrameType, HEADER_LEN, Head, Header, LAST, SEGMENT_LEN, SEGMENTS_MAX,
    SOURCE_MAX,
};
use super::machine::{Frame, Ticket};
use super::pieces::{BlockPiece, BlockPieces, BlockShare, RecycledLists};
use super::setup::{ConnectionKind, ConnectionSetup, LinkType};

/// Most lent blocks that may wait or be under way at once.
pub(crate) const LENT_MAX: usize = 1024;
/// Where the bytes of the first message of a batch lie: behind the header and its length.
const BATCH_FIRST: usize = HEADER_LEN + 4;
/// How long a cork holds back at most what does not fill a frame.
pub(crate) const CORK: Duration = Duration::from_millis(200);
/// Bytes of the `total` in front of a message that does not fit one frame.
const TOTAL_LEN: usize = 8;
/// Most bytes of an RTS.
const RTS_MAX: usize = HEADER_LEN + TOTAL_LEN + 8 + SEGMENTS_MAX * SEGMENT_LEN;

/// A frame to be.
enum QueueItem<B> {
    /// Copied bytes, with room for the header in front of them.
    Packed(PackedFrame<B>),
    /// Lent blocks that fit one frame.
    Lent { pieces: BlockPieces<B>, message: MessagePosition },
    /// Blocks that the peer will read.
    /// One block may be too long for one RTS, and is told of in several: from `at` on is what has not been.
    Source { pieces: BlockPieces<B>, at: usize, message: MessagePosition },
    /// What is to go of a lent block that does not fit one frame and cannot be read by the peer.
    Long { left: BlockShare<B>, message: MessagePosition },
    /// The same of one that is out of the device's reach: copied into frames as they go.
    Cut { piece: BlockPiece<B>, at: usize, message: MessagePosition },
}

/// What of a message an item is: whether the first of it, and the last, and how long the message is. Of a stream, nothing.
#[derive(Debug, Clone, Copy, Default)]
struct MessagePosition {
    flags: u8,
    total: u64,
}

impl MessagePosition {
    /// What stands in front of the bytes: the total, in the first frame of a message that has several.
    fn prefix(&self) -> usize {
        if self.flags & (FIRST | LAST) == FIRST { TOTAL_LEN } else { 0 }
    }

    /// What is in front of so many of its bytes that lie elsewhere.
    fn head(&self, len: usize, header: impl FnOnce(FrameType, u8, u16, usize) -> Header) -> Head {
        let prefix = self.prefix();
        let mut head = Head::new(&header(FrameType::Data, self.flags, 0, prefix + len));
        head.push(&self.total.to_le_bytes()[..prefix]);
        head
    }
}

struct PackedFrame<B> {
    block: B,
    /// Where the bytes end; more may follow up to `limit` while `open`.
    end: usize,
    limit: usize,
    open: bool,
    what: Packing,
}

enum Packing {
    /// Bytes from HEADER_LEN; if `total`, the first 8 of them are the message's length.
    Bytes { flags: u8, total: bool },
    /// Whole messages from HEADER_LEN, as COALESCED has them.
    Batch { count: u16, first_len: usize },
}

/// A message that is being given in parts.
#[derive(Debug, Clone, Copy)]
struct PartialMessage {
    total: u64,
    left: u64,
}

/// The queue.
pub(crate) struct Outgoing<B> {
    items: VecDeque<QueueItem<B>>,
    /// Sources of which the peer knows. A block that is told of in several is with the last of them.
    announced: VecDeque<Option<BlockPieces<B>>>,
    lists: RecycledLists<B>,
    kind: ConnectionKind,
    coalesce: bool,
    /// Largest payload of a frame.
    payload: usize,
    /// The same of one whose header lies in no block, and is not sent where immediate data can stand for it.
    bare: usize,
    /// Size of a block that more may be added to.
    tail_size: usize,
    eager_max: usize,
    stage: usize,
    /// The system takes what is sent, from wherever it lies.
    tcp: bool,
    /// READ is agreed on, and the blocks can be read by a peer.
    read: bool,
    max_rts: usize,
    gather: usize,
    domain: usize,
    max_msg: u64,
    quota: usize,
    low_water: usize,
    /// Bytes of blocks with copied data, until they are sent, or read by the peer.
    charge: usize,
    /// What the last call that was refused for the quota wanted to add.
    refused: usize,
    lent: usize,
    /// How many blocks were to be lent when that was last refused, as there are too many; else 0.
    lent_refused: usize,
    in_flight: usize,
    corked: bool,
    /// When what the cork holds back goes all the same; nothing of that is known to be held back if there is no such time.
    cork_ends: Option<Instant>,
    parts: Option<PartialMessage>,
    /// Sources that the peer has read.
    released: u32,
    /// Sources told to the peer.
    sources: u32,
    /// Bytes in them.
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
            max_msg: setup.max_msg(),
            quota: setup.sndbuf,
            low_water: setup.low_water,
            charge: 0,
            refused: 0,
            lent: 0,
            lent_refused: 0,
            in_flight: 0,
            corked: false,
            cork_ends: None,
            parts: None,
            released: 0,
            sources: 0,
            announced_bytes: 0,
        }
    }

    // What goes to the peer

    /// Whether everything given was handed to the link.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Whether nothing is to be handed to the link now: nothing was given, or the program holds it back, and until when is known.
    #[inline]
    pub(crate) fn is_quiet(&self) -> bool {
        self.items.is_empty() || (self.cork_ends.is_some() && self.is_filling())
    }

    /// Whether something is to be handed to the link that the program does not hold back itself.
    pub(crate) fn has_unsent(&self) -> bool {
        let held = self.corked && self.is_filling();
        !(self.items.is_empty() || held)
    }

    /// When what a cork holds back goes all the same.
    pub(crate) fn cork_ends(&self) -> Option<Instant> {
        self.cork_ends
    }

    /// Lets what a cork has held back for long enough go.
    pub(crate) fn tick(&mut self, now: Instant) {
        if self.cork_ends.is_some_and(|end| now >= end) {
            self.close_tail();
        }
    }

    /// Whether so many frames are under way that what does not fill one waits.
    #[inline]
    pub(crate) fn is_busy(&self) -> bool {
        self.in_flight >= self.low_water
    }

    /// Frames handed to the link and not completed.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// For simulators: the bytes that a READ of the peer brings, if the range was told and not yet released.
    #[cfg(test)]
    pub(crate) fn source_bytes(&self, range: Segment) -> Option<&[u8]> {
        let begun = match self.items.front() {
            Some(QueueItem::Source { pieces, at: 1.., .. }) => Some(pieces),
            _ => None,
        };
        self.announced.iter().flatten().chain(begun).flat_map(BlockPieces::iter).find_map(|piece| {
            let remote = piece.block.remote().filter(|remote| remote.rkey == range.rkey)?;
            let at = usize::try_from(range.addr.checked_sub(remote.addr)?).ok()?;
            piece.bytes().get(at..at.checked_add(range.len as usize)?)
        })
    }

    /// For tests of the totals' wrap.
    #[cfg(test)]
    pub(crate) fn start_at(&mut self, start: u32) {
        (self.sources, self.released) = (start, start);
    }

    /// Sources told and not read.
    pub(crate) fn unread(&self) -> usize {
        self.announced.len()
    }

    /// Bytes that the peer was told to read.
    pub(crate) fn announced_bytes(&self) -> u64 {
        self.announced_bytes
    }

    /// A frame without data is handed to the link.
    pub(crate) fn count_control(&mut self) {
        self.in_flight += 1;
    }

    /// Whether `len` bytes that the program still has, a message or bytes of a stream, may be a frame of their own now. Else they have to be
    /// given, as others are before them, or they may not go now.
    #[inline]
    pub(crate) fn allows_single_frame(&self, kind: ConnectionKind, len: usize, credits: &Credits) -> bool {
        let alone = self.items.is_empty() && self.parts.is_none() && !self.corked && self.writable();
        alone
            && kind == self.kind
            && !self.is_busy()
            && len <= self.bare
            && (kind == ConnectionKind::Stream || len as u64 <= self.max_msg)
            && credits.allows_data()
    }

    /// Begins that frame. `block`: the size of the one that they were copied to, if they were.
    #[inline]
    pub(crate) fn begin_single_frame(
        &mut self,
        len: usize,
        block: usize,
        credits: &mut Credits,
    ) -> [u8; HEADER_LEN] {
        self.in_flight += 1;
        self.charge += block;
        let flags = if self.kind == ConnectionKind::SeqPacket { FIRST | LAST } else { 0 };
        let (seq, credit_total) = credits.spend();
        Header { kind: FrameType::Data, flags, count: 0, seq, credit_total, len: len as u32 }.encode()
    }

    /// The next frame, if there is one, and it may go.
    pub(crate) fn next_frame(
        &mut self,
        now: Instant,
        credits: &mut Credits,
        blocks: &mut impl Blocks<Block = B>,
    ) -> Option<Frame<B>> {
        if !credits.allows_data() || self.held_back(now) {
            return None;
        }
        // The program may have lent all that there is to send from. One frame after the other goes nevertheless.
        let mut spare = FallbackBlocks { blocks, alone: self.in_flight == 0 };
        let own = match self.items.front()? {
            QueueItem::Source { .. } if self.announced.len() >= self.max_rts => return None,
            QueueItem::Source { pieces, at, message } => match Rts::of(pieces, *at, message).len() {
                ..=Head::MAX => None,
                len => Some(spare.take(len)?),
            },
            QueueItem::Cut { piece, at, message } => {
                let cut = FrameCut::of(*at, piece.len - at, message, self.payload);
                Some(cut.copy(piece, *at, &mut spare)?)
            }
            _ => None,
        };
        self.in_flight += 1;
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
                QueueItem::Packed(_) | QueueItem::Lent { .. } => false,
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
            self.charge += block.bytes().len();
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
                let frame = rts.into_frame(own, header);
                if let Frame::Whole { block, .. } = &frame {
                    self.charge += block.bytes().len();
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
            QueueItem::Cut { .. } => unreachable!("cut above"),
        })
    }

    /// Small writes gather in the last frame while enough others are under way to keep the link busy, or the program wants it so.
    fn held_back(&mut self, now: Instant) -> bool {
        if self.corked && self.is_filling() {
            self.cork_ends.get_or_insert(now + CORK);
            return true;
        }
        self.is_filling() && self.is_busy()
    }

    /// Whether the only frame is one that more may be added to.
    fn is_filling(&self) -> bool {
        self.items.len() == 1
            && matches!(self.items.front(), Some(QueueItem::Packed(PackedFrame { open: true, .. })))
    }

    /// The lent block in front if all of it was copied to frames: it goes back to the program at once.
    pub(crate) fn cut_up(&mut self, each: impl FnMut(Ticket, B)) {
        if matches!(self.items.front(), Some(QueueItem::Cut { piece, at, .. }) if *at == piece.len)
            && let Some(QueueItem::Cut { piece, .. }) = self.items.pop_front()
        {
            self.release(piece.into(), each);
        }
    }

    /// A frame has completed. Gives lent blocks back.
    pub(crate) fn sent(&mut self, pieces: Option<BlockPieces<B>>, each: impl FnMut(Ticket, B)) {
        self.in_flight -= 1;
        if let Some(pieces) = pieces {
            self.release(pieces, each);
        }
    }

    /// The same of a frame that had a share of a lent block, which comes back with the last of them.
    pub(crate) fn sent_part(&mut self, share: BlockShare<B>, each: impl FnMut(Ticket, B)) {
        self.in_flight -= 1;
        self.release_share(share, each);
    }

    fn release_share(&mut self, share: BlockShare<B>, each: impl FnMut(Ticket, B)) {
        if let Some(piece) = share.part(&mut self.lists) {
            self.release(piece.into(), each);
        }
    }

    /// The peer says that it has read `total` sources in all: how many that releases.
    pub(crate) fn rfin(&mut self, total: u32) -> Result<usize, ProtocolError> {
        let newly = total.wrapping_sub(self.released) as usize;
        if newly == 0 || newly > self.announced.len() {
            return Err(ProtocolError::ReadTotal { total, told: self.sources, read: self.released });
        }
        self.released = total;
        Ok(newly)
    }

    /// Takes the oldest source, which was read. Gives lent blocks back.
    pub(crate) fn source_read(&mut self, each: impl FnMut(Ticket, B)) {
        if let Some(Some(announced)) = self.announced.pop_front() {
            self.release(announced, each);
        }
    }

    fn release(&mut self, pieces: BlockPieces<B>, mut each: impl FnMut(Ticket, B)) {
        let (lent, charge) = (&mut self.lent, &mut self.charge);
        pieces.part(&mut self.lists, |BlockPiece { block, ticket, .. }| match ticket {
            Some(ticket) => {
                *lent -= 1;
                each(ticket, block);
            }
            None => *charge -= block.bytes().len(),
        });
    }

    /// The link is dead and no device touches anything: takes all that waits, oldest first. Gives lent blocks back.
    pub(crate) fn abandon(&mut self, mut each: impl FnMut(Ticket, B)) {
        while let Some(announced) = self.announced.pop_front() {
            announced.into_iter().for_each(|announced| self.release(announced, &mut each));
        }
        while let Some(item) = self.items.pop_front() {
            match item {
                QueueItem::Packed(PackedFrame { block, end, .. }) => {
                    self.release(BlockPieces::own(block, end), &mut each)
                }
                QueueItem::Lent { pieces, .. } | QueueItem::Source { pieces, .. } => {
                    self.release(pieces, &mut each)
                }
                QueueItem::Long { left, .. } => self.release_share(left, &mut each),
                QueueItem::Cut { piece, .. } => self.release(piece.into(), &mut each),
            }
        }
    }
}

impl<B: Block> PackedFrame<B> {
    fn into_frame(mut self, header: impl FnOnce(FrameType, u8, u16, usize) -> Header) -> Frame<B> {
        let (start, end, flags, count) = match self.what {
            // A message that is alone goes without the length in front of it, and one that turned out to fit one frame without its total: the
            // header lies over them.
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
        Frame::Whole { block: self.block, start, end }
    }
}

/// Blocks for frames of the connection's own.
struct FallbackBlocks<'a, P> {
    blocks: &'a mut P,
    /// Nothing else is under way.
    alone: bool,
}

impl<P: Blocks> FallbackBlocks<'_, P> {
    fn take(&mut self, size: usize) -> Option<P::Block> {
        let block = self.blocks.take(size, Purpose::Send);
        block.or_else(|| self.alone.then(|| self.blocks.take(size, Purpose::Receive)).flatten())
    }
}

/// The next frame of a lent block that is in several: how much of it, and whether that is the last.
struct FrameCut {
    len: usize,
    ends: bool,
    place: MessagePosition,
}

impl FrameCut {
    /// Of one of which `left` bytes, from `at` on, are still to go.
    fn of(at: usize, left: usize, message: &MessagePosition, payload: usize) -> Self {
        let mut flags = message.flags & if at == 0 { FIRST | LAST } else { LAST };
        if left > payload {
            flags &= !LAST;
        }
        let place = MessagePosition { flags, ..*message };
        let len = left.min(payload - place.prefix());
        Self { len, ends: len == left, place }
    }

    /// Copies it to a block, behind where the header will be.
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
        Frame::Whole { block, start: 0, end: head.bytes().len() + self.len }
    }
}

/// An RTS: for all of the pieces, or for what fits one of a block that is too long.
struct Rts<'a, B> {
    pieces: &'a BlockPieces<B>,
    at: usize,
    /// Bytes that it tells of, and whether nothing is left to be told then.
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

    /// Bytes of it.
    fn len(&self) -> usize {
        HEADER_LEN + self.message.prefix() + 8 + self.pieces.count() * SEGMENT_LEN
    }

    /// A short frame, or, where it is too long for that, one in a block.
    fn into_frame(
        self,
        own: Option<B>,
        header: impl FnOnce(FrameType, u8, u16, usize) -> Header,
    ) -> Frame<B> {
        let Self { pieces, at, message, .. } = self;
        let len = self.len();
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
            let RemoteAddress { addr, rkey } =
                piece.block.remote().unwrap_or(RemoteAddress { addr: 0, rkey: 0 });
            // Only what is alone is told of from somewhere, and not to its end.
            let len = (piece.len - at).min(self.bytes) as u32;
            put(&frame::encode_segment(Segment { addr: addr + at as u64, len, rkey }));
        }
        match own {
            None => Frame::Short(Head::of(&rts[..len])),
            Some(mut block) => {
                block.bytes_mut()[..len].copy_from_slice(&rts[..len]);
                Frame::Whole { block, start: 0, end: len }
            }
        }
    }
}
