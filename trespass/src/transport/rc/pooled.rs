//! Blocks of a [`Pool`](crate::pool::Pool) that is registered in the domain of the connection's [`RdmaDevice`](super::RdmaDevice).

use super::DeviceBlock;
use crate::pool::Block;

// SAFETY: a block's bytes are its owner's alone and stay where they are as long as it is out; that is what `Block` is.
unsafe impl DeviceBlock for Block {
    fn address(&self) -> *mut u8 {
        self.as_ptr()
    }

    fn lkey(&self) -> Option<u32> {
        Block::lkey(self)
    }
}
