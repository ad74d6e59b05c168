//! Blocks whose bytes go together: in one frame, or as one source.

use super::block::Block;
use super::connection::Ticket;

/// Lists that are kept to be used again.
const LISTS: usize = 32;

/// The first `len` bytes of a block, and whose it is.
#[derive(Debug)]
pub(crate) struct Piece<B> {
    pub(crate) block: B,
    pub(crate) len: usize,
    /// `None`: it is the connection's own.
    pub(crate) ticket: Option<Ticket>,
}

impl<B: Block> Piece<B> {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.block.bytes()[..self.len]
    }
}

/// One piece or several, in their order. One alone needs no list.
#[derive(Debug)]
pub(crate) struct Pieces<B> {
    first: Piece<B>,
    more: Vec<Piece<B>>,
}

impl<B: Block> Pieces<B> {
    /// A block of the connection's own.
    pub(crate) fn own(block: B, len: usize) -> Self {
        Piece { block, len, ticket: None }.into()
    }

    /// How many.
    pub(crate) fn count(&self) -> usize {
        1 + self.more.len()
    }

    /// Bytes of all.
    pub(crate) fn len(&self) -> usize {
        self.iter().map(|piece| piece.len).sum()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Piece<B>> + Clone {
        std::iter::once(&self.first).chain(&self.more)
    }

    #[cfg_attr(not(feature = "rdma"), allow(dead_code, reason = "nothing is lost without a device"))]
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Piece<B>> {
        std::iter::once(&mut self.first).chain(&mut self.more)
    }

    /// Appends one, to a list that was used before if there is any.
    pub(crate) fn push(&mut self, piece: Piece<B>, lists: &mut Lists<B>) {
        if self.more.capacity() == 0 {
            self.more = lists.0.pop().unwrap_or_default();
        }
        self.more.push(piece);
    }

    /// Hands on each, and keeps the list.
    pub(crate) fn part(mut self, lists: &mut Lists<B>, mut each: impl FnMut(Piece<B>)) {
        each(self.first);
        self.more.drain(..).for_each(each);
        if self.more.capacity() > 0 && lists.0.len() < LISTS {
            lists.0.push(self.more);
        }
    }
}

impl<B> From<Piece<B>> for Pieces<B> {
    fn from(first: Piece<B>) -> Self {
        Self { first, more: Vec::new() }
    }
}

/// Lists that pieces had, empty.
pub(crate) struct Lists<B>(Vec<Vec<Piece<B>>>);

impl<B> Default for Lists<B> {
    fn default() -> Self {
        Self(Vec::new())
    }
}
