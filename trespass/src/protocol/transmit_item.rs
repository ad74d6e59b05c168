//! The work that the protocol gives to a transport: a frame to send, a READ or a probe.

use super::block::Block;
use super::frame::{FrameType, Head, Immediate};
use super::incoming::ReadRequest;
use super::pieces::{BlockPiece, BlockPieces, BlockShare};

/// A frame to send.
#[derive(Debug)]
pub(crate) enum Frame<B> {
    /// At most 64 bytes, in no block: sent inline, or from memory of the driver.
    Short(Head),
    /// Bytes `start..end` of the block. `copied` of them are the program's, copied.
    Whole { block: B, start: usize, end: usize, copied: usize },
    /// `head`, and behind it bytes of lent blocks.
    Gather { head: Head, pieces: BlockPieces<B> },
    /// `head`, and behind it some of the bytes of a lent block that does not fit one frame.
    Part { head: Head, share: BlockShare<B> },
}

impl<B: Block> Frame<B> {
    /// Where its header is, and what of it lies there with it.
    fn head(&self) -> &[u8] {
        match self {
            Frame::Short(head) | Frame::Gather { head, .. } | Frame::Part { head, .. } => head.bytes(),
            Frame::Whole { block, start, end, .. } => &block.bytes()[*start..*end],
        }
    }

    fn pieces(&self) -> Option<&BlockPieces<B>> {
        if let Frame::Gather { pieces, .. } = self { Some(pieces) } else { None }
    }

    fn share(&self) -> Option<&BlockShare<B>> {
        if let Frame::Part { share, .. } = self { Some(share) } else { None }
    }

    /// Its bytes, part by part.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &[u8]> {
        let pieces = self.pieces().into_iter().flat_map(BlockPieces::iter).map(BlockPiece::bytes);
        std::iter::once(self.head()).chain(pieces).chain(self.share().map(BlockShare::bytes))
    }

    /// Number of its bytes.
    pub(crate) fn len(&self) -> usize {
        self.head().len()
            + self.pieces().map_or(0, BlockPieces::len)
            + self.share().map_or(0, BlockShare::len)
    }

    /// What stands for its header in immediate data, if that can be.
    #[cfg_attr(not(feature = "rdma"), allow(dead_code, reason = "TCP has no immediate data"))]
    pub(crate) fn immediate(&self) -> Option<Immediate> {
        Immediate::of(self.head())
    }

    pub(crate) fn is_rts(&self) -> bool {
        self.head()[0] == FrameType::Rts as u8
    }
}

/// What the driver is to post.
#[derive(Debug)]
pub(crate) enum TransmitItem<B> {
    /// A frame: one SEND.
    Send(Frame<B>),
    /// A READ of the peer's memory.
    Read(ReadRequest<B>),
    /// A WRITE of no bytes, which the peer's program does not notice. Its completion shows that the
    /// peer is alive.
    Probe,
}
