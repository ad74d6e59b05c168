//! Work requests: what the protocol gives, as the device takes it.

use std::io::IoSlice;
use std::slice;

use sideway::ibverbs::queue_pair::{PostSendGuard, ScatterGatherEntry, WorkRequestHandle};

use super::DeviceBlock;
use super::pair::Heads;
use crate::protocol::frame::Head;
use crate::protocol::{Frame, GATHER_MAX, Pieces, Segment, Transmit};

/// Bytes in a block.
#[derive(Clone, Copy)]
pub(super) struct Piece {
    lkey: u32,
    address: *const u8,
    len: usize,
}

impl Piece {
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
        // SAFETY: the piece is within its block; the rest is the caller's promise.
        unsafe { slice::from_raw_parts(self.address, self.len) }
    }
}

/// What a frame has behind its head. Pieces without bytes are left out: to some devices a length of 0 is 2 GiB.
pub(super) struct List {
    pieces: [Piece; GATHER_MAX],
    count: usize,
}

impl List {
    fn of<B: DeviceBlock>(pieces: &Pieces<B>) -> Self {
        let mut list = Self { pieces: [Piece::NONE; GATHER_MAX], count: 0 };
        let full = pieces.iter().filter(|piece| piece.len > 0);
        for (place, piece) in list.pieces.iter_mut().zip(full) {
            *place = Piece::of(&piece.block, 0, piece.len);
            list.count += 1;
        }
        list
    }

    fn pieces(&self) -> &[Piece] {
        &self.pieces[..self.count]
    }

    fn len(&self) -> usize {
        self.pieces().iter().map(|piece| piece.len).sum()
    }
}

/// What a request is made of, while the block that it is of is on its way to the send queue.
pub(super) enum Payload {
    Short(Head),
    Whole(Piece),
    Gather(Head, List),
    Read { from: Segment, into: Piece },
    Probe,
}

impl Payload {
    pub(super) fn of<B: DeviceBlock>(transmit: &Transmit<B>) -> Self {
        match transmit {
            Transmit::Send(Frame::Short(head)) => Self::Short(*head),
            Transmit::Send(Frame::Whole { block, start, end }) => Self::Whole(Piece::of(block, *start, *end)),
            Transmit::Send(Frame::Gather { head, pieces }) => Self::Gather(*head, List::of(pieces)),
            Transmit::Read(read) => {
                Self::Read { from: read.from, into: Piece::of(&read.into, 0, read.from.len as usize) }
            }
            Transmit::Probe => Self::Probe,
        }
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
        heads: &Heads<B>,
    ) {
        match self {
            Self::Short(head) if head.bytes().len() <= heads.inline => {
                request.setup_send().setup_inline_data(head.bytes());
            }
            Self::Short(head) => {
                // SAFETY: the caller has a place for it.
                let head = unsafe { heads.write(id, head.bytes()) };
                // SAFETY: the heads are kept, and this one is written again only for a request that has its place later.
                unsafe { request.setup_send().setup_sge_list(&[head]) };
            }
            Self::Whole(piece) if piece.len <= heads.inline => {
                // SAFETY: the block is there, and stays as it is.
                request.setup_send().setup_inline_data(unsafe { piece.bytes() });
            }
            // SAFETY: the block is there, and stays as it is, until the request has completed.
            Self::Whole(piece) => unsafe { request.setup_send().setup_sge_list(&[piece.entry()]) },
            Self::Gather(head, list) if head.bytes().len() + list.len() <= heads.inline => {
                let mut slices = [IoSlice::new(&[]); 1 + GATHER_MAX];
                slices[0] = IoSlice::new(head.bytes());
                for (slice, piece) in slices[1..].iter_mut().zip(list.pieces()) {
                    // SAFETY: the block is there, and stays as it is.
                    *slice = IoSlice::new(unsafe { piece.bytes() });
                }
                request.setup_send().setup_inline_data_list(&slices[..=list.count]);
            }
            Self::Gather(head, list) => {
                // SAFETY: the caller has a place for it.
                let head = unsafe { heads.write(id, head.bytes()) };
                let mut entries = [head; 1 + GATHER_MAX];
                for (entry, piece) in entries[1..].iter_mut().zip(list.pieces()) {
                    *entry = piece.entry();
                }
                // SAFETY: as for a head, and for a whole block.
                unsafe { request.setup_send().setup_sge_list(&entries[..=list.count]) };
            }
            Self::Read { from, into } => {
                // SAFETY: the block is there until the request has completed, and nobody looks at it.
                unsafe { request.setup_read(from.rkey, from.addr).setup_sge_list(&[into.entry()]) };
            }
            // Of no bytes: neither key nor address counts.
            Self::Probe => drop(request.setup_write(0, 0)),
        }
    }
}
