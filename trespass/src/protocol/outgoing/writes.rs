//! The program's calls that add data to the send queue: copied into frames, or lent.

use std::io::IoSlice;

use super::{
    LENT_MAX, MessagePosition, Outgoing, PackedFrame, Packing, PartialMessage, PeerWindow, QueueItem,
    TOTAL_LEN,
};
use crate::protocol::block::{Block, Blocks, Purpose};
use crate::protocol::copying::copy;
use crate::protocol::failure::{Blocked, CallError};
use crate::protocol::frame::{self, FIRST, HEADER_LEN, LAST, SOURCE_MAX};
use crate::protocol::pieces::{BlockPiece, BlockPieces, BlockShare};
use crate::protocol::setup::ConnectionKind;

/// The sum of blocks that are lent together.
pub(crate) struct LendSummary {
    count: usize,
    /// Blocks that are not empty.
    pub(crate) full: usize,
    total: u64,
    /// Whether all fit into one frame.
    in_one_frame: bool,
}

impl<B: Block> Outgoing<B> {
    /// Copies bytes of a stream, as many as fit.
    pub(crate) fn write(
        &mut self,
        slices: &[IoSlice<'_>],
        window: PeerWindow,
        blocks: &mut impl Blocks<Block = B>,
    ) -> Result<usize, CallError> {
        if self.kind != ConnectionKind::Stream {
            return Err(CallError::WrongKind);
        }
        let mut slices = Slices::new(slices);
        let wanted = slices.left;
        let eager = self.eager(wanted, wanted, window);
        let blocked = self.append(&mut slices, None, eager, false, blocks);
        self.accepted(wanted - slices.left, blocked)
    }

    /// Whether `len` bytes of a stream, or a message, would be lent.
    pub(crate) fn would_lend(&self, len: usize, window: PeerWindow) -> bool {
        let prefix = if self.has_messages() { TOTAL_LEN } else { 0 };
        len > self.eager_max && self.outruns(len + prefix, window)
    }

    /// The bytes that a call with `part` bytes puts in frames; those above are lent if possible.
    /// `len` bytes are left, of which these are the first.
    fn eager(&mut self, part: usize, len: usize, window: PeerWindow) -> usize {
        if part <= self.eager_max || !self.outruns(len, window) {
            return usize::MAX;
        }
        self.outran = Some(window.heard);
        self.eager_max
    }

    /// Whether `len` bytes are too many for frames. What the peer has free receives for goes in
    /// frames, because it no longer depends on this process. A bulk transfer is lent, because READs
    /// are faster: once a call did not fit, all are lent until the peer's program has sent something.
    fn outruns(&self, len: usize, window: PeerWindow) -> bool {
        self.read && (self.outran == Some(window.heard) || !self.fits_window(len, window.free))
    }

    /// Whether `len` bytes, and an RTS behind them, fit `free` receives with all that is queued.
    fn fits_window(&self, len: usize, free: usize) -> bool {
        let is_frame = |item: &_| matches!(item, QueueItem::Packed(_) | QueueItem::Lent { .. });
        self.items.len() + len.div_ceil(self.payload) < free && self.items.iter().all(is_frame)
    }

    /// Copies a whole message, or nothing.
    pub(crate) fn send(
        &mut self,
        slices: &[IoSlice<'_>],
        window: PeerWindow,
        blocks: &mut impl Blocks<Block = B>,
    ) -> Result<(), CallError> {
        let mut slices = Slices::new(slices);
        let len = slices.left;
        self.check_message(len as u64)?;
        if len > self.quota {
            return Err(CallError::AboveSendQuota { len: len as u64, quota: self.quota as u64 });
        }
        if self.charge > 0 && self.charge + len > self.quota {
            self.refused = len;
            // A caller that will wait for room must not wait for data that it has corked.
            self.close_tail();
            return Err(CallError::Blocked(Blocked::SendQuota));
        }
        if self.add_to_batch(&mut slices) {
            return Ok(());
        }
        self.close_tail();
        if self.memory >= self.memory_max {
            return Err(CallError::Blocked(Blocked::SendQuota));
        }
        let before = self.items.len();
        let blocked =
            if len <= self.payload { self.push_whole(&mut slices, blocks) } else { Some(Blocked::Memory) };
        let blocked = match blocked {
            // In several frames, if one is too small, or no block is free for a single one.
            Some(_) if HEADER_LEN + len > self.tail_size => {
                let message = PartialMessage { total: len as u64, left: len as u64 };
                let eager = self.eager(len, message.frame_bytes(), window);
                self.append(&mut slices, Some(message), eager, true, blocks)
            }
            blocked => blocked,
        };
        match blocked {
            None => self.refused = 0,
            Some(blocked) => {
                self.truncate(before);
                return Err(CallError::Blocked(blocked));
            }
        }
        Ok(())
    }

    /// Copies the next bytes of a message of `total` bytes, as many as fit.
    pub(crate) fn send_part(
        &mut self,
        total: u64,
        slices: &[IoSlice<'_>],
        window: PeerWindow,
        blocks: &mut impl Blocks<Block = B>,
    ) -> Result<usize, CallError> {
        let message = match self.parts {
            Some(message) if message.total != total => {
                return Err(CallError::PartOpen { left: message.left });
            }
            Some(message) => message,
            None => {
                self.check_message(total)?;
                if total == 0 {
                    return self.send(&[], window, blocks).map(|()| 0);
                }
                PartialMessage { total, left: total }
            }
        };
        let mut slices = Slices::new(slices);
        let wanted = slices.left;
        if wanted as u64 > message.left {
            return Err(CallError::PartTooLong { len: wanted as u64, left: message.left });
        }
        if self.parts.is_none() {
            self.close_tail();
        }
        let eager = self.eager(wanted, message.frame_bytes(), window);
        let blocked = self.append(&mut slices, Some(message), eager, false, blocks);
        let accepted = wanted - slices.left;
        if accepted > 0 {
            let left = message.left - accepted as u64;
            self.parts = (left > 0).then_some(PartialMessage { left, ..message });
        }
        self.accepted(accepted, blocked)
    }

    /// Whether the connection carries messages instead of bytes.
    pub(crate) fn has_messages(&self) -> bool {
        self.kind == ConnectionKind::SeqPacket
    }

    /// Sums up blocks and their lengths.
    pub(crate) fn weigh<'a>(&self, blocks: impl Iterator<Item = (&'a B, usize)>) -> LendSummary
    where
        B: 'a,
    {
        let mut load = LendSummary { count: 0, full: 0, total: 0, in_one_frame: true };
        for (block, len) in blocks {
            load.count += 1;
            load.full += usize::from(len > 0);
            load.total += len as u64;
            load.in_one_frame &= self.is_reachable(block, len);
        }
        load.in_one_frame &= load.total <= self.bare as u64 && load.full <= self.gather;
        load
    }

    /// Whether the blocks can be lent.
    pub(crate) fn check_lending(
        &mut self,
        &LendSummary { count, total, .. }: &LendSummary,
    ) -> Result<(), CallError> {
        if self.has_messages() {
            self.check_message(total)?;
        }
        if !(1..=LENT_MAX).contains(&count) {
            return Err(CallError::BlockCount { count, most: LENT_MAX });
        }
        self.lent_refused = if self.lent + count > LENT_MAX { count } else { 0 };
        if self.lent_refused > 0 { Err(CallError::Blocked(Blocked::SendQuota)) } else { Ok(()) }
    }

    /// Lends blocks of the program, without a copy if possible. As many as fit share one frame, and
    /// as many as an RTS has ranges share one RTS.
    pub(crate) fn lend(&mut self, pieces: impl Iterator<Item = BlockPiece<B>>, load: &LendSummary) {
        self.close_tail();
        let before = self.items.len();
        let prefix = if self.has_messages() && !load.in_one_frame { TOTAL_LEN } else { 0 };
        for piece in pieces {
            self.lent += 1;
            let room = |first: bool| self.bare - if first { prefix } else { 0 };
            let (first, second) = (room(self.items.len() <= before), room(self.items.len() <= before + 1));
            if self.items.len() > before && self.can_join(&piece, second) {
                if let Some(QueueItem::Lent { pieces, .. } | QueueItem::Source { pieces, .. }) =
                    self.items.back_mut()
                {
                    pieces.push(piece, &mut self.lists);
                }
                continue;
            }
            let message = MessagePosition { flags: 0, total: load.total };
            let reachable = self.is_reachable(&piece.block, piece.len);
            self.items.push_back(if piece.len <= first && reachable {
                QueueItem::Lent { pieces: piece.into(), message }
            } else if self.is_readable(&piece) {
                QueueItem::Source { pieces: piece.into(), at: 0, message }
            } else if reachable {
                QueueItem::Long { left: BlockShare::of(piece, &mut self.lists), message }
            } else {
                QueueItem::Cut { piece, at: 0, message }
            });
        }
        if self.has_messages() && self.items.len() > before {
            self.mark(before);
        }
    }

    /// Whether frames hold copies only.
    pub(crate) fn copies(&self) -> bool {
        self.copies
    }

    /// Queues an empty message that needs no block.
    pub(crate) fn push_empty_message(&mut self) {
        self.items.push_back(QueueItem::Empty);
    }

    /// Whether `len` bytes of a block can be sent without a copy.
    fn is_reachable(&self, block: &B, len: usize) -> bool {
        self.tcp || len == 0 || (!self.copies && block.is_reachable(self.domain))
    }

    fn is_readable(&self, piece: &BlockPiece<B>) -> bool {
        self.read && piece.block.is_reachable(self.domain) && piece.block.remote().is_some()
    }

    /// Whether a piece can join the last item of the queue, which has `room` bytes left if it is a
    /// frame.
    fn can_join(&self, piece: &BlockPiece<B>, room: usize) -> bool {
        match self.items.back() {
            Some(QueueItem::Lent { pieces, .. }) => {
                pieces.count() < self.gather
                    && pieces.len() + piece.len <= room
                    && self.is_reachable(&piece.block, piece.len)
            }
            Some(QueueItem::Source { pieces, .. }) => {
                pieces.count() < self.segments
                    && (pieces.len() + piece.len) as u64 <= SOURCE_MAX
                    && self.is_readable(piece)
            }
            _ => false,
        }
    }

    /// Marks the items appended since `before` as one message.
    fn mark(&mut self, before: usize) {
        let last = self.items.len() - 1;
        for (at, flag) in [(before, FIRST), (last, LAST)] {
            if let Some(
                QueueItem::Lent { message, .. }
                | QueueItem::Source { message, .. }
                | QueueItem::Long { message, .. }
                | QueueItem::Cut { message, .. },
            ) = self.items.get_mut(at)
            {
                message.flags |= flag;
            }
        }
    }

    /// Holds back partial frames for [`CORK`](super::CORK) at most, or releases them.
    pub(crate) fn cork(&mut self, corked: bool) {
        self.corked = corked;
        if !corked {
            self.close_tail();
        }
    }

    pub(crate) fn is_corked(&self) -> bool {
        self.corked
    }

    /// Sends all given data as soon as possible. Until then data may still be added to the last
    /// frame, so that the queue has no frames that are almost empty.
    pub(crate) fn close_tail(&mut self) {
        if let Some(QueueItem::Packed(tail)) = self.items.back_mut() {
            tail.due = true;
        }
        self.cork_ends = None;
    }

    /// What counts against the quota.
    pub(crate) fn queued(&self) -> usize {
        self.charge
    }

    /// Whether the queue has room for more.
    pub(crate) fn writable(&self) -> bool {
        self.charge + self.least_room <= self.quota
            && self.memory < self.memory_max
            && (self.lent_refused == 0 || self.lent + self.lent_refused <= LENT_MAX)
            && (self.refused == 0 || self.charge == 0 || self.charge + self.refused <= self.quota)
    }

    /// For the message that is sent in parts: the bytes given so far, and its length.
    pub(crate) fn parts_given(&self) -> Option<(u64, u64)> {
        self.parts.map(|PartialMessage { total, left }| (total - left, total))
    }

    fn check_message(&self, len: u64) -> Result<(), CallError> {
        if self.kind != ConnectionKind::SeqPacket {
            return Err(CallError::WrongKind);
        }
        if let Some(PartialMessage { left, .. }) = self.parts {
            return Err(CallError::PartOpen { left });
        }
        if len > self.max_msg {
            return Err(CallError::MessageTooLong { len, most: self.max_msg });
        }
        Ok(())
    }

    fn accepted(&self, accepted: usize, blocked: Option<Blocked>) -> Result<usize, CallError> {
        match blocked {
            Some(blocked) if accepted == 0 => Err(CallError::Blocked(blocked)),
            _ => Ok(accepted),
        }
    }

    /// Adds a small message to the frame that is being filled, if it exists and has room.
    fn add_to_batch(&mut self, slices: &mut Slices<'_>) -> bool {
        let Some(QueueItem::Packed(PackedFrame {
            block,
            end,
            limit,
            open: true,
            copied,
            what: Packing::Batch { count, .. },
            ..
        })) = self.items.back_mut()
        else {
            return false;
        };
        let next = *end + frame::batched_len(slices.left);
        if next > *limit || *count == u16::MAX {
            return false;
        }
        *count += 1;
        *copied += slices.left;
        self.charge += slices.left;
        put_batched(block, *end, next, slices);
        *end = next;
        true
    }

    /// Appends a message that fits one frame; more may be added to the frame if room is left.
    fn push_whole(
        &mut self,
        slices: &mut Slices<'_>,
        blocks: &mut impl Blocks<Block = B>,
    ) -> Option<Blocked> {
        let len = slices.left;
        let end = HEADER_LEN + frame::batched_len(len);
        let size = if self.coalesce { self.tail_size.max(HEADER_LEN + len) } else { HEADER_LEN + len };
        // A large block for one message is faster, if the memory that it wastes is not much.
        let sparse = self.memory - self.charge >= self.quota / 2;
        if sparse && size > self.tail_size && blocks.dense_size(size) < size {
            return Some(Blocked::Memory);
        }
        let Some(mut block) = blocks.take(size, Purpose::Send) else { return Some(Blocked::Memory) };
        let limit = block.bytes().len().min(HEADER_LEN + self.payload);
        let packed = if self.coalesce && end <= limit {
            put_batched(&mut block, HEADER_LEN, end, slices);
            let what = Packing::Batch { count: 1, first_len: len };
            PackedFrame { block, end, limit, open: true, due: false, copied: len, what }
        } else {
            slices.copy_to(&mut block.bytes_mut()[HEADER_LEN..HEADER_LEN + len]);
            let what = Packing::Bytes { flags: FIRST | LAST, total: false };
            PackedFrame { block, end: HEADER_LEN + len, limit, open: false, due: false, copied: len, what }
        };
        self.charge += len;
        self.memory += packed.block.bytes().len();
        self.items.push_back(QueueItem::Packed(packed));
        None
    }

    /// Copies bytes of a stream or of a message into frames, until they are used up, the queue is
    /// full, or no memory is left. More than `eager` bytes are lent if possible. A `whole` message is
    /// copied whatever the queue has.
    fn append(
        &mut self,
        slices: &mut Slices<'_>,
        mut message: Option<PartialMessage>,
        eager: usize,
        whole: bool,
        blocks: &mut impl Blocks<Block = B>,
    ) -> Option<Blocked> {
        while slices.left > 0 {
            let room = if whole { usize::MAX } else { self.quota.saturating_sub(self.charge) };
            if room > 0 && self.fill_tail(slices, &mut message, room) {
                continue;
            }
            if room < self.least_room || (!whole && self.memory >= self.memory_max) {
                self.close_tail();
                return Some(Blocked::SendQuota);
            }
            let wanted = slices.left.min(room);
            if self.read && wanted > eager && self.push_source(slices, &mut message, wanted, eager, blocks) {
                continue;
            }
            let first = message.is_some_and(|message| message.left == message.total);
            let prefix = if first { TOTAL_LEN } else { 0 };
            let size = (HEADER_LEN + prefix + wanted).min(HEADER_LEN + self.payload).max(self.tail_size);
            let block = blocks.take(blocks.dense_size(size), Purpose::Send);
            // Over TCP a frame is as large as a block, so a small block makes a small frame.
            let block = block
                .or_else(|| (size > self.tail_size).then(|| blocks.take(self.tail_size, Purpose::Send))?);
            let Some(mut block) = block else { return Some(Blocked::Memory) };
            if let (Some(message), true) = (message, first) {
                block.bytes_mut()[HEADER_LEN..HEADER_LEN + TOTAL_LEN]
                    .copy_from_slice(&message.total.to_le_bytes());
            }
            self.memory += block.bytes().len();
            let limit = block.bytes().len().min(HEADER_LEN + self.payload);
            let what = Packing::Bytes { flags: if first { FIRST } else { 0 }, total: first };
            let (end, copied) = (HEADER_LEN + prefix, 0);
            let packed = PackedFrame { block, end, limit, open: true, due: false, copied, what };
            self.items.push_back(QueueItem::Packed(packed));
        }
        None
    }

    /// Copies up to `room` bytes into the last frame of the queue, if it accepts bytes.
    fn fill_tail(
        &mut self,
        slices: &mut Slices<'_>,
        message: &mut Option<PartialMessage>,
        room: usize,
    ) -> bool {
        let Some(QueueItem::Packed(PackedFrame {
            block,
            end,
            limit,
            open: open @ true,
            copied,
            what: Packing::Bytes { flags, .. },
            ..
        })) = self.items.back_mut()
        else {
            return false;
        };
        let until = (*limit).min(end.saturating_add(room));
        let len = slices.copy_to(&mut block.bytes_mut()[*end..until]);
        *end += len;
        *copied += len;
        self.charge += len;
        if let Some(message) = message {
            message.left -= len as u64;
            if message.left == 0 {
                *flags |= LAST;
            }
            *open = message.left > 0;
        }
        *open &= end < limit;
        true
    }

    /// Copies up to `wanted` bytes into a block that the peer will read. Bytes that would leave the
    /// block half empty, or for which no such block is free, are sent by DATA.
    fn push_source(
        &mut self,
        slices: &mut Slices<'_>,
        message: &mut Option<PartialMessage>,
        wanted: usize,
        eager: usize,
        blocks: &mut impl Blocks<Block = B>,
    ) -> bool {
        let len = blocks.dense_size(wanted.min(self.stage));
        if len <= eager {
            return false;
        }
        let Some(mut block) = blocks.take(len, Purpose::Send) else { return false };
        if block.remote().is_none() {
            // A slot, which no peer may read, is used if little room is left; otherwise no block
            // may be read.
            self.read &= len <= self.tail_size;
            return false;
        }
        self.close_tail();
        slices.copy_each(len, |at, bytes| block.stage(at, bytes));
        self.charge += len;
        self.memory += block.bytes().len();
        let (mut flags, mut total) = (0, 0);
        if let Some(message) = message {
            flags |= if message.left == message.total { FIRST } else { 0 };
            message.left -= len as u64;
            flags |= if message.left == 0 { LAST } else { 0 };
            total = message.total;
        }
        let message = MessagePosition { flags, total };
        self.items.push_back(QueueItem::Source { pieces: BlockPieces::own(block, len, len), at: 0, message });
        true
    }

    /// Removes the items that an unfinished call has added.
    fn truncate(&mut self, len: usize) {
        while self.items.len() > len {
            match self.items.pop_back() {
                Some(QueueItem::Packed(PackedFrame { block, copied, .. })) => {
                    self.charge -= copied;
                    self.memory -= block.bytes().len();
                }
                Some(QueueItem::Source { pieces, .. }) => self.release(pieces, |_, _| ()),
                _ => break,
            }
        }
    }
}

/// Copies a message to `at..next` of a batch: its length, its bytes, zeros.
fn put_batched<B: Block>(block: &mut B, at: usize, next: usize, slices: &mut Slices<'_>) {
    let entry = &mut block.bytes_mut()[at..next];
    let len = slices.left;
    entry[..4].copy_from_slice(&(len as u32).to_le_bytes());
    slices.copy_to(&mut entry[4..4 + len]);
    entry[4 + len..].fill(0);
}

/// Bytes of the program that are still to be copied.
struct Slices<'a> {
    slices: &'a [IoSlice<'a>],
    at: usize,
    left: usize,
}

impl<'a> Slices<'a> {
    fn new(slices: &'a [IoSlice<'a>]) -> Self {
        Slices { slices, at: 0, left: slices.iter().map(|slice| slice.len()).sum() }
    }

    /// Copies as many bytes as fit.
    fn copy_to(&mut self, buffer: &mut [u8]) -> usize {
        self.copy_each(buffer.len(), |at, bytes| copy(&mut buffer[at..at + bytes.len()], bytes))
    }

    /// Passes up to `room` bytes to `put`, piece by piece, each with the number of bytes before it.
    fn copy_each(&mut self, room: usize, mut put: impl FnMut(usize, &[u8])) -> usize {
        let mut done = 0;
        while let [slice, rest @ ..] = self.slices {
            let len = (slice.len() - self.at).min(room - done);
            put(done, &slice[self.at..self.at + len]);
            done += len;
            self.at += len;
            if self.at < slice.len() {
                break;
            }
            (self.slices, self.at) = (rest, 0);
        }
        self.left -= done;
        done
    }
}
