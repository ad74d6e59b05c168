//! The traits of [compio-buf](https://docs.rs/compio-buf) for memory of a [`Pool`], with the feature
//! `compio`.
//!
//! A runtime whose input and output end by completions takes buffers by value. It writes a [`Block`],
//! or received bytes, to a file or a socket without a copy
//! (`completion_buffers::received_bytes_are_written_where_they_arrived`,
//! `completion_buffers::a_block_is_written_and_sent`).
//!
//! In the other direction it fills a `Vec`, which [`Pool::adopt`] makes a block without a copy
//! (`completion_buffers::bytes_that_were_read_are_sent_where_they_are`). Blocks have no `IoBufMut`:
//! its safe method `as_uninit` lets a caller put uninitialised bytes where [`Block::bytes`] reads.
//!
//! [`Pool`]: crate::Pool
//! [`Pool::adopt`]: crate::Pool::adopt

use compio_buf::{IoBuf, IoVectoredBuf};

use crate::{Block, RecvBuf};

/// With the feature `compio`. The bytes are the whole block: `slice(..len)` is a part of it.
impl IoBuf for Block {
    fn as_init(&self) -> &[u8] {
        self.bytes()
    }
}

/// With the feature `compio`. A runtime writes the pieces in order.
impl IoVectoredBuf for RecvBuf {
    fn iter_slice(&self) -> impl Iterator<Item = &[u8]> {
        self.chunks()
    }
}
