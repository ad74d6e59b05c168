//! The pool's implementation of the protocol's block traits.

use super::classes::STAGED;
use super::{Block, BlockUse, Pool, streaming};
use crate::protocol::{self, Purpose, RemoteAddress, RemoteKeys, copying};

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
        let mut rkeys = RemoteKeys::one(self.rkey().unwrap_or_default());
        for (device, key) in rkeys.0.iter_mut().enumerate().skip(1) {
            *key = self.rkey_of(device).unwrap_or_default();
        }
        (rkeys != RemoteKeys::default()).then_some(RemoteAddress { addr, rkeys })
    }
}

/// [`Blocks::dense_size`](protocol::Blocks::dense_size) for the sizes of a pool's blocks.
fn dense_size(size: usize, slot_size: usize) -> usize {
    let smaller = || std::iter::once(slot_size).chain(STAGED).take_while(|smaller| *smaller < size).last();
    match STAGED.into_iter().find(|block| size <= *block) {
        Some(block) if size > slot_size && 2 * size < block => smaller().unwrap_or(size),
        _ => size,
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

    fn dense_size(&self, size: usize) -> usize {
        dense_size(size, self.slot_size())
    }

    /// The copy uses separate memory, because the pool may be permanently empty while the device
    /// holds its blocks.
    fn replace(&mut self, lost: &Block) -> Option<Block> {
        Some(Block::adopted(lost.bytes().to_vec(), None))
    }

    fn most(&self) -> Option<usize> {
        Some(self.config().max)
    }

    #[cfg(feature = "rdma")]
    fn is_refused(&self) -> bool {
        Self::is_refused(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_of_a_dense_size_is_half_full() {
        let (slot, kib) = (8 << 10, 1 << 10);
        for (size, dense) in [
            (1, 1),
            (slot, slot),
            (slot + 1, slot),
            (32 * kib - 1, slot),
            (32 * kib, 32 * kib),
            (64 * kib, 64 * kib),
            (64 * kib + 1, 64 * kib),
            (128 * kib - 1, 64 * kib),
            (128 * kib, 128 * kib),
            (300 * kib, 256 * kib),
            (600 * kib, 600 * kib),
            (1 << 20, 1 << 20),
        ] {
            assert_eq!(dense_size(size, slot), dense, "{size}");
        }
        // With slots as large as the first larger block there is nothing between them.
        assert_eq!(dense_size(70 * kib, 64 * kib), 64 * kib);
    }
}
