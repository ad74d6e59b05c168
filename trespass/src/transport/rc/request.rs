//! Work requests: the protocol's frames and READs as scatter/gather entries, inline data and
//! immediate data.

use std::io::IoSlice;
use std::slice;
use std::time::Instant;

use sideway::ibverbs::queue_pair::{LocalBufferHandle, PostSendGuard, ScatterGatherEntry, WorkRequestHandle};

use super::DeviceBlock;
use super::queue_pair::HeaderBuffers;
use crate::protocol::frame::{HEADER_LEN, Head, Immediate};
use crate::protocol::{
    Block, BlockPieces, BlockShare, Blocks, Frame, GATHER_MAX, ProtocolMachine, TransmitItem,
};

/// A range of a block's memory, as a scatter/gather entry names it.
#[derive(Clone, Copy)]
pub(super) struct LocalSegment {
    lkey: u32,
    address: *const u8,
    len: usize,
}

/// The local key of a block for one of its devices. Most connections have one device, and a constant
/// index.
#[inline(always)]
pub(super) fn lkey(block: &impl DeviceBlock, device: usize) -> u32 {
    if device == 0 { block.lkey() } else { block.lkey_of(device) }.unwrap_or(0)
}

impl LocalSegment {
    const NONE: Self = Self { lkey: 0, address: std::ptr::null(), len: 0 };

    /// `device` is the index of the device that accesses it.
    #[inline(always)]
    fn of(block: &impl DeviceBlock, device: usize, start: usize, end: usize) -> Self {
        let end = end.min(block.bytes().len());
        let start = start.min(end);
        // Unregistered memory has no key; the device rejects key 0.
        Self { lkey: lkey(block, device), address: block.address().wrapping_add(start), len: end - start }
    }

    fn entry(self) -> ScatterGatherEntry {
        ScatterGatherEntry::new(self.lkey, self.address as u64, self.len as u32)
    }

    /// # Safety
    ///
    /// The block must live, and nobody may write to it, as long as the slice is used.
    unsafe fn bytes<'a>(self) -> &'a [u8] {
        // SAFETY: `of` makes only segments that lie within their block. By this function's contract
        // the block lives and nobody writes to it.
        unsafe { slice::from_raw_parts(self.address, self.len) }
    }
}

/// The pieces of a frame behind its head. Empty pieces are left out, because some devices read a
/// length of 0 as 2 GiB.
pub(super) struct GatherList {
    pieces: [LocalSegment; GATHER_MAX],
    count: usize,
}

impl GatherList {
    fn of<B: DeviceBlock>(pieces: &BlockPieces<B>, device: usize) -> Self {
        let mut list = Self { pieces: [LocalSegment::NONE; GATHER_MAX], count: 0 };
        let full = pieces.iter().filter(|piece| piece.len > 0);
        for (place, piece) in list.pieces.iter_mut().zip(full) {
            *place = LocalSegment::of(&piece.block, device, 0, piece.len);
            list.count += 1;
        }
        list
    }

    fn of_share<B: DeviceBlock>(share: &BlockShare<B>, device: usize) -> Self {
        let mut list = Self { pieces: [LocalSegment::NONE; GATHER_MAX], count: 1 };
        list.pieces[0] = LocalSegment::of(share.block(), device, share.at(), share.at() + share.len());
        list
    }

    fn pieces(&self) -> &[LocalSegment] {
        &self.pieces[..self.count]
    }

    fn len(&self) -> usize {
        self.pieces().iter().map(|piece| piece.len).sum()
    }
}

/// The content of a work request. It names the memory of a [`TransmitItem`]'s blocks, so that the
/// item itself can be moved into the send queue's records.
#[expect(clippy::large_enum_variant, reason = "one at a time, on the stack")]
pub(super) enum RequestPayload {
    /// A frame. The immediate data replaces its header, which is then not among the parts.
    Frame(FrameParts, Option<Immediate>),
    Read {
        addr: u64,
        rkey: u32,
        into: LocalSegment,
    },
    Probe,
}

/// The parts of a frame that are sent.
pub(super) enum FrameParts {
    Short(Head),
    Whole(LocalSegment),
    Gather(Head, GatherList),
}

/// How long a frame in one block may be, in bytes behind its header, to be sent without the header.
///
/// In a long frame the header costs at most one packet of many. Without it, the data would begin 16
/// bytes into a page, so a device that copies packet by packet would cross pages. A header outside
/// the block is always left out, because the frame may need the peer's whole slot.
pub(super) const HEADERLESS_MAX: usize = 4096;

/// The immediate data that replaces a frame's header, if both sides support that, and the number of
/// bytes left out of the frame.
fn without_header<B: Block>(frame: &Frame<B>, immediate: bool) -> (Option<Immediate>, usize) {
    let stays = matches!(frame, Frame::Whole { .. }) && frame.len() > HEADER_LEN + HEADERLESS_MAX;
    let immediate = if immediate && !stays { frame.immediate() } else { None };
    (immediate, if immediate.is_some() { HEADER_LEN } else { 0 })
}

/// Whether a frame needs a buffer of [`HeaderBuffers`] for bytes that lie in no block. It needs
/// none if the frame fits inline.
pub(super) fn needs_head<B: Block>(frame: &Frame<B>, immediate: bool, inline: usize) -> bool {
    let head = match frame {
        Frame::Short(head) | Frame::Gather { head, .. } | Frame::Part { head, .. } => head.bytes().len(),
        Frame::Whole { .. } => return false,
    };
    let (_, left_out) = without_header(frame, immediate);
    head > left_out && frame.len() - left_out > inline
}

impl RequestPayload {
    /// `immediate`: whether immediate data may replace a header. `devices`: the indices of this
    /// side's and of the peer's device.
    #[inline(always)]
    pub(super) fn of<B: DeviceBlock>(
        transmit: &TransmitItem<B>,
        immediate: bool,
        (device, peer_device): (usize, usize),
    ) -> Self {
        let frame = match transmit {
            TransmitItem::Send(frame) => frame,
            TransmitItem::Read(read) => {
                let into = LocalSegment::of(&read.into, device, 0, read.from.len as usize);
                return Self::Read { addr: read.from.addr, rkey: read.from.rkeys.of(peer_device), into };
            }
            TransmitItem::Probe => return Self::Probe,
        };
        let (immediate, left_out) = without_header(frame, immediate);
        let parts = match frame {
            Frame::Short(head) => FrameParts::Short(head.behind(left_out)),
            Frame::Whole { block, start, end, .. } => {
                FrameParts::Whole(LocalSegment::of(block, device, start + left_out, *end))
            }
            Frame::Gather { head, pieces } => {
                FrameParts::Gather(head.behind(left_out), GatherList::of(pieces, device))
            }
            Frame::Part { head, share } => {
                FrameParts::Gather(head.behind(left_out), GatherList::of_share(share, device))
            }
        };
        Self::Frame(parts, immediate)
    }

    /// A payload from the first `end` bytes of a block. They are the frame, or the frame without
    /// its header.
    pub(super) fn whole(block: &impl DeviceBlock, end: usize, immediate: Option<Immediate>) -> Self {
        Self::Frame(FrameParts::Whole(LocalSegment::of(block, 0, 0, end)), immediate)
    }

    /// Fills in the request `id`.
    ///
    /// # Safety
    ///
    /// The following must hold until the request, or a later one of the same queue, has completed.
    /// The block lives and nobody writes to it; if a READ fills it, nobody reads it either. `heads`
    /// lives. The send queue must have room for the request, so that its buffer in `heads` is free.
    pub(super) unsafe fn append<G: PostSendGuard, B: DeviceBlock>(
        self,
        request: WorkRequestHandle<'_, G>,
        id: u64,
        heads: &HeaderBuffers<B>,
    ) {
        match self {
            Self::Frame(parts, immediate) => {
                let send = match immediate {
                    Some(Immediate(immediate)) => request.setup_send_imm(immediate),
                    None => request.setup_send(),
                };
                // SAFETY: `FrameParts::append` has the same contract as this function. It gets the
                // same request, blocks and `heads`.
                unsafe { parts.append(send, id, heads) };
            }
            Self::Read { addr, rkey, into } => {
                // SAFETY: the block that the READ fills lives until the request has completed, and
                // nobody accesses it, by this function's contract. `PostedSends` keeps it.
                unsafe { request.setup_read(rkey, addr).setup_sge_list(&[into.entry()]) };
            }
            // A WRITE of 0 bytes: the device checks neither key nor address.
            Self::Probe => drop(request.setup_write(0, 0)),
        }
    }
}

impl FrameParts {
    fn is_empty(&self) -> bool {
        match self {
            Self::Short(head) => head.bytes().is_empty(),
            Self::Whole(piece) => piece.len == 0,
            Self::Gather(head, list) => head.bytes().is_empty() && list.count == 0,
        }
    }

    /// Fills in the send request `id`.
    ///
    /// # Safety
    ///
    /// The following must hold until the request, or a later one of the same queue, has completed.
    /// The blocks live and nobody writes to them. `heads` lives. The send queue must have room for
    /// the request, so that its buffer in `heads` is free.
    unsafe fn append<G: PostSendGuard, B: DeviceBlock>(
        self,
        send: LocalBufferHandle<'_, G>,
        id: u64,
        heads: &HeaderBuffers<B>,
    ) {
        match self {
            // A request without bytes has no scatter/gather entry either.
            _ if self.is_empty() => drop(send),
            Self::Short(head) if head.bytes().len() <= heads.inline => send.setup_inline_data(head.bytes()),
            Self::Short(head) => {
                // SAFETY: the request `id` is about to be posted, and no outstanding request uses
                // its buffer in `heads`, by this function's contract.
                let head = unsafe { heads.write(id, head.bytes()) };
                // SAFETY: `heads` lives until the request has completed, by this function's
                // contract. The buffer is written again only for a later request, which cannot be
                // posted before this one has completed.
                unsafe { send.setup_sge_list(&[head]) };
            }
            Self::Whole(piece) if piece.len <= heads.inline => {
                // SAFETY: the block lives and nobody writes to it, by this function's contract.
                send.setup_inline_data(unsafe { piece.bytes() });
            }
            // SAFETY: the block lives and nobody writes to it until the request has completed, by
            // this function's contract.
            Self::Whole(piece) => unsafe { send.setup_sge_list(&[piece.entry()]) },
            Self::Gather(head, list) if head.bytes().len() + list.len() <= heads.inline => {
                let mut slices = [IoSlice::new(&[]); 1 + GATHER_MAX];
                slices[0] = IoSlice::new(head.bytes());
                for (slice, piece) in slices[1..].iter_mut().zip(list.pieces()) {
                    // SAFETY: the block lives and nobody writes to it, by this function's contract.
                    *slice = IoSlice::new(unsafe { piece.bytes() });
                }
                send.setup_inline_data_list(&slices[..=list.count]);
            }
            Self::Gather(head, list) => {
                let mut entries = [LocalSegment::NONE.entry(); 1 + GATHER_MAX];
                let first = usize::from(!head.bytes().is_empty());
                if first == 1 {
                    // SAFETY: the request `id` is about to be posted, and no outstanding request
                    // uses its buffer in `heads`, by this function's contract.
                    entries[0] = unsafe { heads.write(id, head.bytes()) };
                }
                for (entry, piece) in entries[first..].iter_mut().zip(list.pieces()) {
                    *entry = piece.entry();
                }
                // SAFETY: the blocks live and nobody writes to them until the request has
                // completed, by this function's contract. The buffer in `heads` is written again
                // only for a later request.
                unsafe { send.setup_sge_list(&entries[..first + list.count]) };
            }
        }
    }
}

/// The source of items to post: the held item first, then the protocol.
pub(super) struct TransmitSource<'a, P: Blocks> {
    pub(super) protocol: &'a mut ProtocolMachine<P::Block>,
    pub(super) blocks: &'a mut P,
    pub(super) now: Instant,
    pub(super) held: &'a mut Option<TransmitItem<P::Block>>,
    pub(super) starved: &'a mut bool,
}

impl<P: Blocks<Block: DeviceBlock>> TransmitSource<'_, P> {
    /// The next item, if it can be posted now. An item that lacks memory for its head is held.
    pub(super) fn pull(
        &mut self,
        room: usize,
        heads: &mut HeaderBuffers<P::Block>,
    ) -> Option<TransmitItem<P::Block>> {
        if room == 0 || (self.held.is_none() && self.protocol.is_quiet()) {
            return None;
        }
        let next = self.held.take().or_else(|| self.protocol.transmit(self.now, self.blocks, room));
        let Some(transmit) = next else {
            *self.starved |= self.protocol.wants_memory();
            return None;
        };
        let needs_head = match &transmit {
            TransmitItem::Send(frame) => needs_head(frame, self.protocol.uses_immediate(), heads.inline),
            _ => false,
        };
        if needs_head && !heads.prepare(self.blocks) {
            *self.starved = true;
            *self.held = Some(transmit);
            return None;
        }
        Some(transmit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::block::testing::VecBlocks;
    use crate::protocol::frame::{FIRST, FrameType, Header, LAST};
    use crate::protocol::{Blocks, Purpose};

    /// The number of bytes left out of a frame with `len` bytes of data.
    fn left_out(len: usize, immediate: bool) -> usize {
        let mut block = VecBlocks::new(1).take(HEADER_LEN + len, Purpose::Send).unwrap();
        let kind = FrameType::Data;
        let header = Header { kind, flags: FIRST | LAST, count: 0, seq: 0, credit_total: 0, len: len as u32 };
        block.bytes_mut()[..HEADER_LEN].copy_from_slice(&header.encode());
        let (stands, left_out) =
            without_header(&Frame::Whole { block, start: 0, end: HEADER_LEN + len, copied: len }, immediate);
        assert_eq!(stands.is_some(), left_out > 0);
        left_out
    }

    #[test]
    fn a_long_frame_of_lent_blocks_is_sent_without_its_header() {
        let block = VecBlocks::new(1).take(2 * HEADERLESS_MAX, Purpose::Send).unwrap();
        let (kind, len) = (FrameType::Data, 2 * HEADERLESS_MAX as u32);
        let header = Header { kind, flags: FIRST | LAST, count: 0, seq: 0, credit_total: 0, len };
        let frame =
            Frame::Gather { head: Head::new(&header), pieces: BlockPieces::own(block, len as usize, 0) };
        assert_eq!(without_header(&frame, true).1, HEADER_LEN);
        assert!(!needs_head(&frame, true, 0), "nothing is left of the head");
        assert_eq!(without_header(&frame, false), (None, 0));
        assert!(needs_head(&frame, false, 272));
    }

    #[test]
    fn a_long_frame_keeps_its_header() {
        for len in [0, 1, HEADERLESS_MAX] {
            assert_eq!(left_out(len, true), HEADER_LEN, "{len} bytes");
            assert_eq!(left_out(len, false), 0, "{len} bytes to a peer that does not know of it");
        }
        for len in [HEADERLESS_MAX + 1, 2 * HEADERLESS_MAX] {
            assert_eq!(left_out(len, true), 0, "{len} bytes");
        }
    }
}
