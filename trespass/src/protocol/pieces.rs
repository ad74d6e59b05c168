//! Gather lists of blocks that one frame or one source carries, and shared blocks that several
//! frames carry.

use std::mem;
use std::sync::{Arc, OnceLock};

use super::block::Block;

/// The most lists that are kept for reuse.
const LISTS: usize = 32;

/// Identifies a lent block until its event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Ticket(pub(crate) u64);

/// The first `len` bytes of a block.
#[derive(Debug)]
pub(crate) struct BlockPiece<B> {
    pub(crate) block: B,
    pub(crate) len: usize,
    pub(crate) owner: PieceOwner,
}

/// The owner of a piece's block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PieceOwner {
    /// The program, which has lent it.
    Program(Ticket),
    /// The connection. `copied` bytes of the program are in it.
    Connection { copied: usize },
}

impl<B: Block> BlockPiece<B> {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.block.bytes()[..self.len]
    }
}

/// One or several pieces, in order. A single piece needs no list.
#[derive(Debug)]
pub(crate) struct BlockPieces<B> {
    first: BlockPiece<B>,
    more: Vec<BlockPiece<B>>,
}

impl<B: Block> BlockPieces<B> {
    /// A block of the connection, with `copied` bytes of the program.
    pub(crate) fn own(block: B, len: usize, copied: usize) -> Self {
        BlockPiece { block, len, owner: PieceOwner::Connection { copied } }.into()
    }

    /// The number of pieces.
    pub(crate) fn count(&self) -> usize {
        1 + self.more.len()
    }

    /// The sum of their lengths.
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

    /// Replaces each block by a copy, and leaks it. Returns false if there is no copy of one.
    #[cfg(any(feature = "rdma", test))]
    pub(crate) fn lose(&mut self, mut copy: impl FnMut(&B) -> Option<B>) -> bool {
        self.iter_mut().all(|piece| {
            let copy = copy(&piece.block);
            copy.map(|copy| mem::forget(mem::replace(&mut piece.block, copy))).is_some()
        })
    }

    /// The block of the first piece.
    pub(crate) fn into_block(self) -> B {
        self.first.block
    }

    /// Appends a piece, reusing a list if possible.
    pub(crate) fn push(&mut self, piece: BlockPiece<B>, lists: &mut RecycledLists<B>) {
        if self.more.capacity() == 0 {
            self.more = lists.more.pop().unwrap_or_default();
        }
        self.more.push(piece);
    }

    /// Passes on each piece, and keeps the list for reuse.
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

/// A lent block whose bytes are spread over several frames.
#[derive(Debug)]
struct SharedBlock<B> {
    /// `None` if it has returned, and this is kept for reuse.
    piece: Option<BlockPiece<B>>,
    /// The copy that returns in place of a block which a device never returns.
    copy: OnceLock<B>,
}

impl<B> SharedBlock<B> {
    /// The piece that returns to the program.
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
    /// A block that a device never returns is never freed, whichever share is dropped last.
    fn drop(&mut self) {
        drop(self.take());
    }
}

/// A share of a lent block: the bytes of one frame, or all bytes that are not in frames yet.
///
/// The block exists, and no code writes to it, while any share exists. All shares belong to one
/// connection and its driver, and [`part`](Self::part) of the last one returns the block.
#[derive(Debug)]
pub(crate) struct BlockShare<B> {
    shared: Arc<SharedBlock<B>>,
    at: usize,
    len: usize,
}

impl<B: Block> BlockShare<B> {
    /// A share of all bytes of a piece.
    pub(crate) fn of(piece: BlockPiece<B>, lists: &mut RecycledLists<B>) -> Self {
        let (at, len) = (0, piece.len);
        let mut shared = lists.shared.pop().unwrap_or_default();
        Arc::get_mut(&mut shared).expect("what is kept has one owner").piece = Some(piece);
        Self { shared, at, len }
    }

    /// Splits off the first `len` bytes; returns them and the rest, if any.
    pub(crate) fn split(self, len: usize) -> (Self, Option<Self>) {
        let left = self.len - len;
        let rest =
            (left > 0).then(|| Self { shared: Arc::clone(&self.shared), at: self.at + len, len: left });
        (Self { len, ..self }, rest)
    }

    pub(crate) fn block(&self) -> &B {
        &self.shared.piece.as_ref().expect("it comes back with its last share").block
    }

    /// Offset of its first byte in the block.
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.block().bytes()[self.at..self.at + self.len]
    }

    /// Replaces a block that a device never returns by a copy; returns whether a copy exists.
    #[cfg_attr(not(feature = "rdma"), allow(dead_code, reason = "nothing is lost without a device"))]
    pub(crate) fn lose(&self, copy: impl FnOnce(&B) -> Option<B>) -> bool {
        self.shared.copy.get().is_some()
            || copy(self.block()).is_some_and(|copy| self.shared.copy.set(copy).is_ok())
    }

    /// Ends a share. The last one returns the block, or its copy.
    pub(crate) fn part(mut self, lists: &mut RecycledLists<B>) -> Option<BlockPiece<B>> {
        let piece = Arc::get_mut(&mut self.shared)?.take();
        lists.shared.push(self.shared);
        piece
    }
}

/// Storage for reuse: lists of pieces, and places of shared blocks. It never holds more of them
/// than blocks were lent at one time.
pub(crate) struct RecycledLists<B> {
    more: Vec<Vec<BlockPiece<B>>>,
    shared: Vec<Arc<SharedBlock<B>>>,
}

impl<B> Default for RecycledLists<B> {
    fn default() -> Self {
        Self { more: Vec::new(), shared: Vec::new() }
    }
}
