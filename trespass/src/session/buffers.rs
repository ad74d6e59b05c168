//! Zero-copy buffers: blocks lent to a connection, and received data in the blocks where it
//! arrived.

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::pool::{Block, LARGEST_BLOCK, Pool};
use crate::protocol::{self, Chunk};
use crate::session::wake::WakeHandle;

/// Identifies a lent block, or several sent together, until a [`Completion`] returns them. A
/// connection's tickets count upwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub(crate) u64);

impl Ticket {
    /// The ticket as a number.
    #[must_use]
    pub fn to_bits(self) -> u64 {
        self.0
    }
}

/// A lent block that returns. Each block returns exactly once, even if the connection fails.
#[derive(Debug)]
#[non_exhaustive]
pub struct Completion {
    /// The ticket of the send.
    pub ticket: Ticket,
    /// The block, to reuse or drop.
    pub block: Block,
    /// Whether its bytes were sent: over RDMA to the peer's memory, over TCP to the kernel. `false`
    /// means that the connection failed first.
    pub sent: bool,
    /// Blocks of this ticket that have not returned yet, in any order. 0 ends the ticket.
    pub left: usize,
}

/// The error text of an empty pool.
pub(crate) const NO_BLOCK: &str = "the pool has no such block now";

/// Takes a block of a pool for the program.
pub(crate) fn take(pool: &Pool, len: usize) -> io::Result<Block> {
    pool.take(len).ok_or_else(|| {
        if len > LARGEST_BLOCK {
            let words = format!(
                "no block has {len} bytes: the largest has {LARGEST_BLOCK}; send several by send_blocks, or send a copy"
            );
            io::Error::new(io::ErrorKind::InvalidInput, words)
        } else {
            io::Error::new(io::ErrorKind::WouldBlock, NO_BLOCK)
        }
    })
}

/// The error of a refused send, with the block.
#[derive(thiserror::Error)]
#[error("{error}")]
#[non_exhaustive]
pub struct SendRefused {
    /// The reason.
    #[source]
    pub error: io::Error,
    /// The block that was not sent. The program may send it again.
    pub block: Block,
}

debug_as_text!(SendRefused);

impl From<SendRefused> for io::Error {
    fn from(refused: SendRefused) -> Self {
        refused.error
    }
}

/// A received part of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Part {
    /// Bytes in this part.
    pub len: usize,
    /// Whether the message ends with this part.
    pub last: bool,
    /// Bytes in the whole message.
    pub total: u64,
}

/// The progress of a message that is sent or received in parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// Bytes of the message that were transferred.
    pub done: u64,
    /// Bytes in the whole message.
    pub total: u64,
}

impl Progress {
    pub(crate) fn of((done, total): (u64, u64)) -> Self {
        Self { done, total }
    }
}

impl From<protocol::ReceivedPart> for Part {
    fn from(part: protocol::ReceivedPart) -> Self {
        Self { len: part.len, last: part.last, total: part.total }
    }
}

/// Bytes of received buffers that the program has dropped. The connection's next turn credits them.
#[derive(Debug, Default)]
pub(crate) struct ReturnedBytes {
    charge: AtomicUsize,
    /// The connection receives nothing before a buffer is returned.
    waiting: AtomicBool,
    /// Wakes the connection's owner.
    wake_handle: Mutex<Option<Arc<WakeHandle>>>,
}

impl ReturnedBytes {
    pub(crate) fn set_wake_handle(&self, wake_handle: &Arc<WakeHandle>) {
        *self.wake_handle.lock().unwrap_or_else(PoisonError::into_inner) = Some(wake_handle.clone());
    }

    /// Wakes nobody any more.
    pub(crate) fn clear_wake_handle(&self) {
        *self.wake_handle.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Whether no bytes were returned since the last [`take`](Self::take).
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.charge.load(Ordering::Relaxed) == 0
    }

    /// Takes the bytes that were returned since the last call.
    #[inline]
    pub(crate) fn take(&self) -> usize {
        if self.is_empty() { 0 } else { self.charge.swap(0, Ordering::SeqCst) }
    }

    /// Arranges a wake-up at the next return. False if one has happened already.
    ///
    /// The SeqCst order places either the store to `waiting` or the one to `charge` first. So
    /// either this call sees the return, or the return sees that it must wake.
    pub(crate) fn wake_at_next(&self) -> bool {
        self.waiting.store(true, Ordering::SeqCst);
        self.charge.load(Ordering::SeqCst) == 0
    }

    fn give(&self, charge: usize) {
        self.charge.fetch_add(charge, Ordering::SeqCst);
        if self.waiting.swap(false, Ordering::SeqCst)
            && let Some(wake_handle) = &*self.wake_handle.lock().unwrap_or_else(PoisonError::into_inner)
        {
            wake_handle.notify();
        }
    }
}

/// Received bytes, or a message, in the blocks where they arrived. They count against the receive
/// buffer, so holding many of them blocks the peer, and dropping one continues.
pub struct RecvBuf {
    first: Option<ReceivedPiece>,
    more: Vec<ReceivedPiece>,
    len: usize,
    charge: usize,
    returns: Arc<ReturnedBytes>,
}

struct ReceivedPiece {
    block: Block,
    range: Range<usize>,
}

impl RecvBuf {
    pub(crate) fn new(returns: &Arc<ReturnedBytes>) -> Self {
        Self { first: None, more: Vec::new(), len: 0, charge: 0, returns: returns.clone() }
    }

    pub(crate) fn push(&mut self, chunk: Chunk<Block>) {
        self.len += chunk.range.len();
        self.charge += chunk.charge;
        let piece = ReceivedPiece { block: chunk.block, range: chunk.range };
        if self.first.is_none() { self.first = Some(piece) } else { self.more.push(piece) }
    }

    /// The total length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the length is 0: the end of a stream, or an empty message.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes in one or several pieces, in order.
    pub fn chunks(&self) -> impl Iterator<Item = &[u8]> {
        self.first.iter().chain(&self.more).map(|piece| &piece.block.bytes()[piece.range.clone()])
    }

    /// The bytes, if they are contiguous.
    #[must_use]
    pub fn as_slice(&self) -> Option<&[u8]> {
        match (&self.first, self.more.is_empty()) {
            (None, _) => Some(&[]),
            (Some(piece), true) => Some(&piece.block.bytes()[piece.range.clone()]),
            _ => None,
        }
    }

    /// Copies the bytes.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.len);
        self.chunks().for_each(|chunk| bytes.extend_from_slice(chunk));
        bytes
    }
}

impl fmt::Debug for RecvBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RecvBuf({} bytes in {} pieces)", self.len, self.chunks().count())
    }
}

impl Drop for RecvBuf {
    fn drop(&mut self) {
        // Frees the blocks first, so that data which the return admits finds them free.
        self.first = None;
        self.more.clear();
        if self.charge > 0 {
            self.returns.give(self.charge);
        }
    }
}
