//! Work requests: the protocol's frames and READs as scatter/gather entries, inline data and
//! immediate data.

use std::io::IoSlice;
use std::slice;

use sideway::ibverbs::queue_pair::{LocalBufferHandle, PostSendGuard, ScatterGatherEntry, WorkRequestHandle};

use super::DeviceBlock;
use super::queue_pair::HeaderBuffers;
use crate::protocol::frame::{HEADER_LEN, Head, Immediate};
use crate::protocol::{Block, BlockPieces, BlockShare, Frame, GATHER_MAX, Segment, TransmitItem};

/// Bytes in a block.
#[derive(Clone, Copy)]
pub(super) struct LocalSegment {
    lkey: u32,
    address: *const u8,
    len: usize,
}

impl LocalSegment {
    const NONE: Self = Self { lkey: 0, address: std::ptr::null(), len: 0 };

    fn of(block: &impl DeviceBlock, start: usize, end: usize) -> Self {
        let end = end.min(block.bytes().len());
        let start = start.min(end);
        // Memory that is not registered has no key: the device refuses 0.
        Self {
            lkey: block.lkey().unwrap_or(0),
            address: block.address().wrapping_add(start),
            len: end - start,
        }
    }

    fn entry(self) -> ScatterGatherEntry {
        ScatterGatherEntry::new(self.lkey, self.address as u64, self.len as u32)
    }

    /// # Safety
    ///
    /// The block is there, and nobody writes to it, as long as the bytes are used.
    unsafe fn bytes<'a>(self) -> &'a [u8] {
        // SAFETY: `of` makes segments that lie within their block. The block is there, and nobody writes to it, by this function's
        // contract.
        unsafe { slice::from_raw_parts(self.address, self.len) }
    }
}

/// What a frame has behind its head. Pieces without bytes are left out: to some devices a length of 0 is 2 GiB.
pub(super) struct GatherList {
    pieces: [LocalSegment; GATHER_MAX],
    count: usize,
}

impl GatherList {
    fn of<B: DeviceBlock>(pieces: &BlockPieces<B>) -> Self {
        let mut list = Self { pieces: [LocalSegment::NONE; GATHER_MAX], count: 0 };
        let full = pieces.iter().filter(|piece| piece.len > 0);
        for (place, piece) in list.pieces.iter_mut().zip(full) {
            *place = LocalSegment::of(&piece.block, 0, piece.len);
            list.count += 1;
        }
        list
    }

    fn of_share<B: DeviceBlock>(share: &BlockShare<B>) -> Self {
        let mut list = Self { pieces: [LocalSegment::NONE; GATHER_MAX], count: 1 };
        list.pieces[0] = LocalSegment::of(share.block(), share.at(), share.at() + share.len());
        list
    }

    fn pieces(&self) -> &[LocalSegment] {
        &self.pieces[..self.count]
    }

    fn len(&self) -> usize {
        self.pieces().iter().map(|piece| piece.len).sum()
    }
}

/// What a request is made of, while the block that it is of is on its way to the send queue.
#[expect(clippy::large_enum_variant, reason = "one at a time, on the stack")]
pub(super) enum RequestPayload {
    /// With what stands for the frame's header, which is then not among the parts.
    Frame(FrameParts, Option<Immediate>),
    Read {
        from: Segment,
        into: LocalSegment,
    },
    Probe,
}

/// What of a frame is to be sent.
pub(super) enum FrameParts {
    Short(Head),
    Whole(LocalSegment),
    Gather(Head, GatherList),
}

/// Most bytes behind a header in the same block that is left out. Of a long frame it would be one packet of many, if any, and what is then sent
/// begins 16 bytes behind a page's beginning, so that a device that copies packet by packet crosses pages. A header that lies in no block is
/// always left out: the frame may need all of the peer's slot.
const HEADERLESS_MAX: usize = 4096;

/// What stands for a frame's header, where both sides know of that, and how many bytes of the frame are left out for it.
fn without_header<B: Block>(frame: &Frame<B>, immediate: bool) -> (Option<Immediate>, usize) {
    let stays = matches!(frame, Frame::Whole { .. }) && frame.len() > HEADER_LEN + HEADERLESS_MAX;
    let immediate = if immediate && !stays { frame.immediate() } else { None };
    (immediate, if immediate.is_some() { HEADER_LEN } else { 0 })
}

/// Bytes of a frame that are in no block, and have to be put somewhere to be sent, as they do not go into the request itself.
pub(super) fn needs_head<B: Block>(frame: &Frame<B>, immediate: bool, inline: usize) -> bool {
    let head = match frame {
        Frame::Short(head) | Frame::Gather { head, .. } | Frame::Part { head, .. } => head.bytes().len(),
        Frame::Whole { .. } => return false,
    };
    let (_, left_out) = without_header(frame, immediate);
    head > left_out && frame.len() - left_out > inline
}

impl RequestPayload {
    /// `immediate`: whether that may stand for a header.
    pub(super) fn of<B: DeviceBlock>(transmit: &TransmitItem<B>, immediate: bool) -> Self {
        let frame = match transmit {
            TransmitItem::Send(frame) => frame,
            TransmitItem::Read(read) => {
                let into = LocalSegment::of(&read.into, 0, read.from.len as usize);
                return Self::Read { from: read.from, into };
            }
            TransmitItem::Probe => return Self::Probe,
        };
        let (immediate, left_out) = without_header(frame, immediate);
        let parts = match frame {
            Frame::Short(head) => FrameParts::Short(head.behind(left_out)),
            Frame::Whole { block, start, end } => {
                FrameParts::Whole(LocalSegment::of(block, start + left_out, *end))
            }
            Frame::Gather { head, pieces } => {
                FrameParts::Gather(head.behind(left_out), GatherList::of(pieces))
            }
            Frame::Part { head, share } => {
                FrameParts::Gather(head.behind(left_out), GatherList::of_share(share))
            }
        };
        Self::Frame(parts, immediate)
    }

    /// Of the frame, or of what is sent of it, that is the first `end` bytes of a block.
    pub(super) fn whole(block: &impl DeviceBlock, end: usize, immediate: Option<Immediate>) -> Self {
        Self::Frame(FrameParts::Whole(LocalSegment::of(block, 0, end)), immediate)
    }

    /// Makes it the request `id`.
    ///
    /// # Safety
    ///
    /// From now until the request, or a later one of the same queue, has completed: its block is there, nobody writes to it, and if it is
    /// filled nobody looks at it. There is a place for the request in the queue, and so one for its head in `heads`, which are kept as
    /// long.
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
                // SAFETY: this function's contract is that of `FrameParts::append`, for the same request, block and place in `heads`.
                unsafe { parts.append(send, id, heads) };
            }
            Self::Read { from, into } => {
                // SAFETY: the block that the READ fills is there until the request has completed, and nobody looks at it, by this
                // function's contract (`PostedSends` keeps it).
                unsafe { request.setup_read(from.rkey, from.addr).setup_sge_list(&[into.entry()]) };
            }
            // Of no bytes: neither key nor address counts.
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

    /// Makes it what the request `id` sends.
    ///
    /// # Safety
    ///
    /// From now until the request, or a later one of the same queue, has completed: the blocks are there, and nobody writes to them. There
    /// is a place for the request in the queue, and so one for its head in `heads`, which are kept as long.
    unsafe fn append<G: PostSendGuard, B: DeviceBlock>(
        self,
        send: LocalBufferHandle<'_, G>,
        id: u64,
        heads: &HeaderBuffers<B>,
    ) {
        match self {
            // What has no bytes has no piece either.
            _ if self.is_empty() => drop(send),
            Self::Short(head) if head.bytes().len() <= heads.inline => send.setup_inline_data(head.bytes()),
            Self::Short(head) => {
                // SAFETY: the request `id` is about to be posted, and no request under way has its place in `heads`, by this function's
                // contract.
                let head = unsafe { heads.write(id, head.bytes()) };
                // SAFETY: the queue pair keeps the heads as long as requests are under way. This place is written again only for a later
                // request, which cannot be posted before this one has completed.
                unsafe { send.setup_sge_list(&[head]) };
            }
            Self::Whole(piece) if piece.len <= heads.inline => {
                // SAFETY: the block is there and nobody writes to it, by this function's contract.
                send.setup_inline_data(unsafe { piece.bytes() });
            }
            // SAFETY: the block is there and nobody writes to it until the request has completed, by this function's contract.
            Self::Whole(piece) => unsafe { send.setup_sge_list(&[piece.entry()]) },
            Self::Gather(head, list) if head.bytes().len() + list.len() <= heads.inline => {
                let mut slices = [IoSlice::new(&[]); 1 + GATHER_MAX];
                slices[0] = IoSlice::new(head.bytes());
                for (slice, piece) in slices[1..].iter_mut().zip(list.pieces()) {
                    // SAFETY: the block is there and nobody writes to it, by this function's contract.
                    *slice = IoSlice::new(unsafe { piece.bytes() });
                }
                send.setup_inline_data_list(&slices[..=list.count]);
            }
            Self::Gather(head, list) => {
                let mut entries = [LocalSegment::NONE.entry(); 1 + GATHER_MAX];
                let first = usize::from(!head.bytes().is_empty());
                if first == 1 {
                    // SAFETY: the request `id` is about to be posted, and no request under way has its place in `heads`, by this
                    // function's contract.
                    entries[0] = unsafe { heads.write(id, head.bytes()) };
                }
                for (entry, piece) in entries[first..].iter_mut().zip(list.pieces()) {
                    *entry = piece.entry();
                }
                // SAFETY: the blocks are there and nobody writes to them until the request has completed, by this function's contract; the
                // place in `heads` is written again only for a later request.
                unsafe { send.setup_sge_list(&entries[..first + list.count]) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::block::testing::VecBlocks;
    use crate::protocol::frame::{FIRST, FrameType, Header, LAST};
    use crate::protocol::{Blocks, Purpose};

    /// What is left out of a frame of data of so many bytes.
    fn left_out(len: usize, immediate: bool) -> usize {
        let mut block = VecBlocks::new(1).take(HEADER_LEN + len, Purpose::Send).unwrap();
        let kind = FrameType::Data;
        let header = Header { kind, flags: FIRST | LAST, count: 0, seq: 0, credit_total: 0, len: len as u32 };
        block.bytes_mut()[..HEADER_LEN].copy_from_slice(&header.encode());
        let (stands, left_out) =
            without_header(&Frame::Whole { block, start: 0, end: HEADER_LEN + len }, immediate);
        assert_eq!(stands.is_some(), left_out > 0);
        left_out
    }

    #[test]
    fn a_long_frame_of_lent_blocks_is_sent_without_its_header() {
        let block = VecBlocks::new(1).take(2 * HEADERLESS_MAX, Purpose::Send).unwrap();
        let (kind, len) = (FrameType::Data, 2 * HEADERLESS_MAX as u32);
        let header = Header { kind, flags: FIRST | LAST, count: 0, seq: 0, credit_total: 0, len };
        let frame = Frame::Gather { head: Head::new(&header), pieces: BlockPieces::own(block, len as usize) };
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
