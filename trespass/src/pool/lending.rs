//! A pool as the protocol sees it.

use super::{Block, Pool};
use crate::protocol::{self, Remote};

impl protocol::Block for Block {
    #[inline]
    fn bytes(&self) -> &[u8] {
        Self::bytes(self)
    }

    #[inline]
    fn bytes_mut(&mut self) -> &mut [u8] {
        Self::bytes_mut(self)
    }

    #[inline]
    fn remote(&self) -> Option<Remote> {
        let addr = self.as_ptr().addr() as u64;
        self.rkey().map(|rkey| Remote { addr, rkey })
    }
}

impl protocol::Blocks for Pool {
    type Block = Block;

    #[inline]
    fn take(&mut self, size: usize) -> Option<Block> {
        Self::take(self, size)
    }
}
