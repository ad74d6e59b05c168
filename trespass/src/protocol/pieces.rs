//! Blocks whose bytes go together, in one frame or as one source, and blocks whose bytes go in several frames.

use std::mem;
use std::sync::{Arc, OnceLock};

use super::block::Block;
use super::machine::Ticket;

/// Lists that are kept to be used again.
const LISTS: usize = 32;

/// The first `len` bytes of a block, and whose it is.
#[derive(Debug)]
pub(crate) struct BlockPiece<B> {
    pub(crate) block: B,
    pub(crate) len: usize,
    /// `None`: it is the connection's own.
    pub(crate) ticket: Option<Ticket>,
}

impl<B: Block> BlockPiece<B> {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.block.bytes()[..self.len]
    }
}

/// One piece or several, in their order. One alone needs no list.
#[derive(Debug)]
pub(crate) struct BlockPieces<B> {
    first: BlockPiece<B>,
    more: Vec<BlockPiece<B>>,
}

impl<B: Block> BlockPieces<B> {
    /// A block of the connection's own.
    pub(crate) fn own(block: B, len: usize) -> Self {
        BlockPiece { block, len, ticket: None }.into()
    }

    /// How many.
    pub(crate) fn count(&self) -> usize {
        1 + self.more.len()
    }

    /// Bytes of all.
    pub(crate) fn len(&self) -> usize {
        self.iter().map(|piece| piece.len).sum()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &BlockPiece<B>> + Clone {
        std::iter::once(&self.first).chain(&self.more)
    }

    #[cfg_attr(not(feature = "rdma"), allow(dead_code, reason = "nothing is lost without a device"))]
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut BlockPiece<B>> {
        std::iter::once(&mut self.first).chain(&mut self.more)
    }

    /// Appends one, to a list that was used before if there is any.
    pub(crate) fn push(&mut self, piece: BlockPiece<B>, lists: &mut RecycledLists<B>) {
        if self.more.capacity() == 0 {
            self.more = lists.more.pop().unwrap_or_default();
        }
        self.more.push(piece);
    }

    /// Hands on each, and keeps the list.
    pub(crate) fn part(mut self, lists: &mut RecycledLists<B>, mut each: impl FnMut(BlockPiece<B>)) {
        each(self.first);
        self.more.drain(..).for_each(each);
        if self.more.capacity() > 0 && lists.more.len() < LISTS {
            lists.more.push(self.more);
        }
    }
}

impl<B> From<BlockPiece<B>> for BlockPieces<B> {
    fn from(first: BlockPiece<B>) -> Self {
        Self { first, more: Vec::new() }
    }
}

/// A lent block that is in several frames.
#[derive(Debug)]
struct SharedBlock<B> {
    /// `None`: it has come back, and this is kept for another.
    piece: Option<BlockPiece<B>>,
    /// What comes back in place of the block, which a device never gives back.
    copy: OnceLock<B>,
}

impl<B> SharedBlock<B> {
    /// What comes back.
    fn take(&mut self) -> Option<BlockPiece<B>> {
        let mut piece = self.piece.take()?;
        if let Some(copy) = self.copy.take() {
            mem::forget(mem::replace(&mut piece.block, copy));
        }
        Some(piece)
    }
}

impl<B> Default for SharedBlock<B> {
    fn default() -> Self {
        Self { piece: None, copy: OnceLock::new() }
    }
}

impl<B> Drop for SharedBlock<B> {
    /// What a device never gives back is nobody's, whoever was the last to have a share of it.
    fn drop(&mut self) {
        drop(self.take());
    }
}

/// Bytes of a lent block that has others elsewhere: those of one frame, or all that are still to be in frames.
///
/// The block is there, and nobody writes to it, as long as there is any share of it. All of them are with one connection and its driver, and
/// the last that is [parted](Self::part) with gives it back.
#[derive(Debug)]
pub(crate) struct BlockShare<B> {
    shared: Arc<SharedBlock<B>>,
    at: usize,
    len: usize,
}

impl<B: Block> BlockShare<B> {
    /// All of a piece.
    pub(crate) fn of(piece: BlockPiece<B>, lists: &mut RecycledLists<B>) -> Self {
        let (at, len) = (0, piece.len);
        let mut shared = lists.shared.pop().unwrap_or_default();
        Arc::get_mut(&mut shared).expect("what is kept has one owner").piece = Some(piece);
        Self { shared, at, len }
    }

    /// The first `len` bytes of it, and the rest, if there is any.
    pub(crate) fn split(self, len: usize) -> (Self, Option<Self>) {
        let left = self.len - len;
        let rest =
            (left > 0).then(|| Self { shared: Arc::clone(&self.shared), at: self.at + len, len: left });
        (Self { len, ..self }, rest)
    }

    pub(crate) fn block(&self) -> &B {
        &self.shared.piece.as_ref().expect("it comes back with its last share").block
    }

    /// Where in the block its bytes begin.
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.block().bytes()[self.at..self.at + self.len]
    }

    /// A device never gives the block back: a copy comes back in its place. Whether there is one.
    #[cfg_attr(not(feature = "rdma"), allow(dead_code, reason = "nothing is lost without a device"))]
    pub(crate) fn lose(&self, copy: impl FnOnce(&B) -> Option<B>) -> bool {
        self.shared.copy.get().is_some()
            || copy(self.block()).is_some_and(|copy| self.shared.copy.set(copy).is_ok())
    }

    /// Nobody needs it any more. Of the last of a block gives what comes back.
    pub(crate) fn part(mut self, lists: &mut RecycledLists<B>) -> Option<BlockPiece<B>> {
        let piece = Arc::get_mut(&mut self.shared)?.take();
        lists.shared.push(self.shared);
        piece
    }
}

/// What was used and is used again: lists that pieces had, and places of shared blocks, of which there are no more than there were lent blocks
/// at one time.
pub(crate) struct RecycledLists<B> {
    more: Vec<Vec<BlockPiece<B>>>,
    shared: Vec<Arc<SharedBlock<B>>>,
}

impl<B> Default for RecycledLists<B> {
    fn default() -> Self {
        Self { more: Vec::new(), shared: Vec::new() }
    }
}
