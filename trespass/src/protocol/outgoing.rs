//! What the program gave and the peer has not: the frames to be, in order, and the sources that the peer is to read.

mod giving;

use std::collections::VecDeque;

use super::block::{Block, Blocks, Purpose, Segment};
use super::connection::{Frame, Ticket};
use super::credit::{Credits, RESERVE};
use super::fault::ProtocolError;
use super::frame::{self, BLOCKED, COALESCED, FIRST, FrameType, HEADER_LEN, Head, Header, LAST};
use super::setup::{Kind, Setup};

/// Most lent blocks that may wait or be under way at once.
pub(crate) const LENT_MAX: usize = 1024;
/// Where the bytes of the first message of a batch lie: behind the header and its length.
const BATCH_FIRST: usize = HEADER_LEN + 4;
/// Bytes of the `total` in front of a message that does not fit one frame.
const TOTAL_LEN: usize = 8;

/// A frame to be.
enum Item<B> {
    /// Copied bytes, with room for the header in front of them.
    Packed(Packed<B>),
    /// A lent block that fits one frame.
    Lent { block: B, len: usize, ticket: Ticket },
    /// A block that the peer will read.
    Source { block: B, len: usize, ticket: Option<Ticket>, flags: u8, total: u64 },
    /// A lent block that does not fit one frame and cannot be read by the peer: copied into frames as they go.
    Cut { block: B, len: usize, at: usize, ticket: Ticket },
}

struct Packed<B> {
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

/// A source of which the peer knows.
struct Told<B> {
    block: B,
    #[cfg_attr(not(test), expect(dead_code, reason = "simulators alone serve READs"))]
    len: usize,
    ticket: Option<Ticket>,
}

/// A message that is being given in parts.
#[derive(Debug, Clone, Copy)]
struct Message {
    total: u64,
    left: u64,
}

/// The queue.
pub(crate) struct Outgoing<B> {
    items: VecDeque<Item<B>>,
    told: VecDeque<Told<B>>,
    kind: Kind,
    coalesce: bool,
    /// Largest payload of a frame.
    payload: usize,
    /// Size of a block that more may be added to.
    tail_size: usize,
    eager_max: usize,
    stage: usize,
    /// READ is agreed on, and the blocks can be read by a peer.
    read: bool,
    max_rts: usize,
    max_msg: u64,
    quota: usize,
    low_water: usize,
    /// Bytes of blocks with copied data, until they are sent, or read by the peer.
    charge: usize,
    /// What the last call that was refused for the quota wanted to add.
    refused: usize,
    lent: usize,
    /// The last block that was to be lent was refused, as there were too many.
    lent_refused: bool,
    in_flight: usize,
    corked: bool,
    parts: Option<Message>,
    /// Sources that the peer has read.
    released: u32,
    /// Sources told to the peer.
    sources: u32,
    /// Bytes in them.
    told_bytes: u64,
}

impl<B: Block> Outgoing<B> {
    pub(crate) fn new(setup: &Setup) -> Self {
        Outgoing {
            items: VecDeque::new(),
            told: VecDeque::new(),
            kind: setup.kind,
            coalesce: setup.coalesce,
            payload: setup.send_payload(),
            tail_size: setup.peer.slot_size as usize,
            eager_max: setup.peer.eager_max.min(setup.own.eager_max) as usize,
            stage: setup.stage,
            read: setup.read,
            max_rts: setup.max_rts(),
            max_msg: setup.max_msg(),
            quota: setup.sndbuf,
            low_water: setup.low_water,
            charge: 0,
            refused: 0,
            lent: 0,
            lent_refused: false,
            in_flight: 0,
            corked: false,
            parts: None,
            released: 0,
            sources: 0,
            told_bytes: 0,
        }
    }

    // What goes to the peer

    /// Whether everything given was handed to the link.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Frames handed to the link and not completed.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// For simulators: the bytes that a READ of the peer brings, if the range was told and not yet released.
    #[cfg(test)]
    pub(crate) fn source_bytes(&self, range: Segment) -> Option<&[u8]> {
        self.told.iter().find_map(|told| {
            let remote = told.block.remote().filter(|remote| remote.rkey == range.rkey)?;
            let at = usize::try_from(range.addr.checked_sub(remote.addr)?).ok()?;
            told.block.bytes()[..told.len].get(at..at.checked_add(range.len as usize)?)
        })
    }

    /// For tests of the totals' wrap.
    #[cfg(test)]
    pub(crate) fn start_at(&mut self, start: u32) {
        (self.sources, self.released) = (start, start);
    }

    /// Sources told and not read.
    pub(crate) fn unread(&self) -> usize {
        self.told.len()
    }

    /// Bytes that the peer was told to read.
    pub(crate) fn told_bytes(&self) -> u64 {
        self.told_bytes
    }

    /// A frame without data is handed to the link.
    pub(crate) fn count_control(&mut self) {
        self.in_flight += 1;
    }

    /// Begins a frame of its own for `len` bytes that the program still has: a message, or bytes of a stream. `None`: they have to be given, as
    /// others are before them, or they may not go now.
    #[inline]
    pub(crate) fn begin_short(
        &mut self,
        kind: Kind,
        len: usize,
        credits: &mut Credits,
    ) -> Option<[u8; HEADER_LEN]> {
        let alone = self.items.is_empty() && self.parts.is_none() && !self.corked && self.writable();
        if !alone
            || kind != self.kind
            || self.in_flight >= self.low_water
            || len > self.payload
            || !credits.allows_data()
        {
            return None;
        }
        self.in_flight += 1;
        let flags = if kind == Kind::SeqPacket { FIRST | LAST } else { 0 };
        let (seq, credit_total) = credits.spend();
        Some(Header { kind: FrameType::Data, flags, count: 0, seq, credit_total, len: len as u32 }.encode())
    }

    /// The next frame, if there is one, and it may go.
    pub(crate) fn next_frame(
        &mut self,
        credits: &mut Credits,
        blocks: &mut impl Blocks<Block = B>,
    ) -> Option<Frame<B>> {
        if !credits.allows_data() || self.held_back() {
            return None;
        }
        let cut = match self.items.front_mut()? {
            Item::Source { .. } if self.told.len() >= self.max_rts => return None,
            Item::Cut { block, len, at, .. } => {
                let prefix = if self.kind == Kind::SeqPacket && *at == 0 { TOTAL_LEN } else { 0 };
                let part = (*len - *at).min(self.payload - prefix);
                // The program may have lent all that there is to send from. One frame after the other goes nevertheless.
                let alone = self.in_flight == 0;
                Some((cut(block, *at, part, prefix, *len, alone, blocks)?, part + prefix))
            }
            _ => None,
        };
        self.in_flight += 1;
        let stops = credits.left() <= RESERVE + 1;
        let more = self.items.len() > 1 || matches!(self.items[0], Item::Cut { .. });
        let blocked = if stops && more && credits.is_counted() { BLOCKED } else { 0 };
        let mut header = |kind, flags, count, len: usize| {
            let (seq, credit_total) = credits.spend();
            Header { kind, flags: flags | blocked, count, seq, credit_total, len: len as u32 }
        };
        if let Some((block, len)) = cut {
            return Some(self.cut_frame(block, len, header));
        }
        Some(match self.items.pop_front()? {
            Item::Packed(packed) => packed.into_frame(header),
            Item::Lent { block, len, ticket } => {
                let flags = if self.kind == Kind::SeqPacket { FIRST | LAST } else { 0 };
                let head = Head::new(&header(FrameType::Data, flags, 0, len));
                Frame::Gather { head, block, len, ticket: Some(ticket) }
            }
            Item::Source { block, len, ticket, flags, total } => {
                let head = source_head(&block, len, flags, total, header);
                self.sources = self.sources.wrapping_add(1);
                self.told_bytes += len as u64;
                self.told.push_back(Told { block, len, ticket });
                Frame::Short(head)
            }
            Item::Cut { .. } => unreachable!("cut above"),
        })
    }

    /// Small writes gather in the last frame while enough others are under way to keep the link busy, or the program wants it so.
    fn held_back(&self) -> bool {
        let open = matches!(self.items.front(), Some(Item::Packed(Packed { open: true, .. })));
        open && self.items.len() == 1 && (self.corked || self.in_flight >= self.low_water)
    }

    /// The piece of `Cut` in front that was copied to `block`.
    fn cut_frame(
        &mut self,
        mut block: B,
        payload: usize,
        header: impl FnOnce(FrameType, u8, u16, usize) -> Header,
    ) -> Frame<B> {
        let mut flags = 0;
        if let Some(Item::Cut { len, at, .. }) = self.items.front_mut() {
            let prefix = if self.kind == Kind::SeqPacket && *at == 0 { TOTAL_LEN } else { 0 };
            flags |= if *at == 0 { FIRST } else { 0 };
            *at += payload - prefix;
            flags |= if at == len { LAST } else { 0 };
        }
        if self.kind == Kind::Stream {
            flags = 0;
        }
        self.charge += block.bytes().len();
        let header = header(FrameType::Data, flags, 0, payload);
        block.bytes_mut()[..HEADER_LEN].copy_from_slice(&header.encode());
        Frame::Whole { block, start: 0, end: HEADER_LEN + payload }
    }

    /// The lent block in front if all of it was copied to frames: it goes back to the program at once.
    pub(crate) fn cut_up(&mut self) -> Option<(Ticket, B)> {
        if !matches!(self.items.front(), Some(Item::Cut { len, at, .. }) if at == len) {
            return None;
        }
        let Some(Item::Cut { block, ticket, .. }) = self.items.pop_front() else { return None };
        self.lent -= 1;
        Some((ticket, block))
    }

    /// A frame has completed. Gives a lent block back.
    pub(crate) fn sent(&mut self, block: Option<B>, ticket: Option<Ticket>) -> Option<(Ticket, B)> {
        self.in_flight -= 1;
        self.release(block?, ticket)
    }

    /// The peer says that it has read `total` sources in all: how many that releases.
    pub(crate) fn rfin(&mut self, total: u32) -> Result<usize, ProtocolError> {
        let newly = total.wrapping_sub(self.released) as usize;
        if newly == 0 || newly > self.told.len() {
            return Err(ProtocolError::ReadTotal { total, told: self.sources, read: self.released });
        }
        self.released = total;
        Ok(newly)
    }

    /// Takes the oldest source, which was read. Gives a lent block back.
    pub(crate) fn source_read(&mut self) -> Option<(Ticket, B)> {
        let told = self.told.pop_front()?;
        self.release(told.block, told.ticket)
    }

    fn release(&mut self, block: B, ticket: Option<Ticket>) -> Option<(Ticket, B)> {
        match ticket {
            Some(ticket) => {
                self.lent -= 1;
                Some((ticket, block))
            }
            None => {
                self.charge -= block.bytes().len();
                None
            }
        }
    }

    /// The link is dead and no device touches anything: takes what waits, oldest first. `None`: that was all.
    pub(crate) fn abandon(&mut self) -> Option<Option<(Ticket, B)>> {
        if let Some(told) = self.told.pop_front() {
            return Some(self.release(told.block, told.ticket));
        }
        Some(match self.items.pop_front()? {
            Item::Packed(Packed { block, .. }) => self.release(block, None),
            Item::Lent { block, ticket, .. } | Item::Cut { block, ticket, .. } => {
                self.release(block, Some(ticket))
            }
            Item::Source { block, ticket, .. } => self.release(block, ticket),
        })
    }
}

impl<B: Block> Packed<B> {
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

/// Copies a piece of a lent block to a frame of its own.
fn cut<B: Block>(
    from: &B,
    at: usize,
    len: usize,
    prefix: usize,
    total: usize,
    alone: bool,
    blocks: &mut impl Blocks<Block = B>,
) -> Option<B> {
    let size = HEADER_LEN + prefix + len;
    let block = blocks.take(size, Purpose::Send);
    let mut block = block.or_else(|| alone.then(|| blocks.take(size, Purpose::Receive)).flatten())?;
    let payload = &mut block.bytes_mut()[HEADER_LEN..];
    payload[..prefix].copy_from_slice(&(total as u64).to_le_bytes()[..prefix]);
    payload[prefix..prefix + len].copy_from_slice(&from.bytes()[at..at + len]);
    Some(block)
}

/// The RTS for the first `len` bytes of a block.
fn source_head<B: Block>(
    block: &B,
    len: usize,
    flags: u8,
    total: u64,
    header: impl FnOnce(FrameType, u8, u16, usize) -> Header,
) -> Head {
    let remote = block.remote().unwrap_or(super::block::Remote { addr: 0, rkey: 0 });
    let segment = frame::encode_segment(Segment { addr: remote.addr, len: len as u32, rkey: remote.rkey });
    let prefix = if flags & (FIRST | LAST) == FIRST { TOTAL_LEN } else { 0 };
    let mut head = Head::new(&header(FrameType::Rts, flags, 1, prefix + 8 + segment.len()));
    head.push(&total.to_le_bytes()[..prefix]);
    head.push(&(len as u64).to_le_bytes());
    head.push(&segment);
    head
}
