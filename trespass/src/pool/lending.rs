//! The pool's implementation of the protocol's block traits.

use super::{Block, BlockUse, Pool, streaming};
use crate::protocol::{self, Purpose, RemoteAddress, copying};

impl protocol::Block for Block {
    #[inline]
    fn bytes(&self) -> &[u8] {
        Self::bytes(self)
    }

    #[inline]
    fn bytes_mut(&mut self) -> &mut [u8] {
        Self::bytes_mut(self)
    }

    fn stage(&mut self, at: usize, bytes: &[u8]) {
        let past_caches = self.is_read_by_processors();
        let to = &mut self.bytes_mut()[at..at + bytes.len()];
        if past_caches { streaming::copy(to, bytes) } else { copying::copy(to, bytes) }
    }

    #[inline]
    fn is_reachable(&self, domain: usize) -> bool {
        self.is_registered_in(domain)
    }

    #[inline]
    fn remote(&self) -> Option<RemoteAddress> {
        let addr = self.as_ptr().addr() as u64;
        self.rkey().map(|rkey| RemoteAddress { addr, rkey })
    }
}

impl protocol::Blocks for Pool {
    type Block = Block;

    #[inline]
    fn take(&mut self, size: usize, purpose: Purpose) -> Option<Block> {
        match purpose {
            Purpose::Send => self.take_for(size, BlockUse::Sending),
            Purpose::Receive => self.take_for(size, BlockUse::Receiving),
            Purpose::Stand => self.take_standing().filter(|block| block.len() >= size),
        }
    }

    /// The copy uses separate memory, because the pool may be permanently empty while the device
    /// holds its blocks.
    fn replace(&mut self, lost: &Block) -> Option<Block> {
        Some(Block::adopted(lost.bytes().to_vec(), None))
    }

    #[cfg(feature = "rdma")]
    fn is_refused(&self) -> bool {
        Self::is_refused(self)
    }
}
