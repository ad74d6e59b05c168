//! Implements [`DeviceBlock`](super::DeviceBlock) for blocks of a [`Pool`](crate::pool::Pool) that
//! is registered with the connection's [`RdmaDevice`](super::RdmaDevice).

use super::DeviceBlock;
use crate::pool::Block;

// SAFETY: while a `Block` is taken from its pool, its bytes belong to its owner alone and do not
// move. The pool guarantees both (`crate::pool::Block`).
unsafe impl DeviceBlock for Block {
    fn address(&self) -> *mut u8 {
        self.as_ptr()
    }

    fn lkey(&self) -> Option<u32> {
        Block::lkey(self)
    }

    fn lkey_of(&self, device: usize) -> Option<u32> {
        Block::lkey_of(self, device)
    }
}
