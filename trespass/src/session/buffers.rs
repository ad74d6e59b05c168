//! Zero-copy buffers: blocks that are lent to a connection and come back, and received data in the
//! blocks in which it arrived.

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::pool::{Block, LARGEST_BLOCK, Pool};
use crate::protocol::{self, Chunk};
use crate::session::readiness::WakeHandle;

/// Names what was lent to a connection until it comes back by a [`Completion`]: a block, or several that went together. The tickets of a
/// connection count upwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub(crate) u64);

/// A block that was lent comes back. There is exactly one for each block, whatever becomes of the connection.
#[derive(Debug)]
#[non_exhaustive]
pub struct Completion {
    /// Which.
    pub ticket: Ticket,
    /// The block, to be used again or dropped.
    pub block: Block,
    /// Whether its bytes went out: over RDMA the peer's memory has them, over TCP the system's. Else the connection failed first.
    pub sent: bool,
    /// How many blocks of the same ticket are still to come back, in whatever order: with 0 the ticket is done with.
    pub left: usize,
}

/// What is said where there is no block for it.
pub(crate) const NO_BLOCK: &str = "the pool has no such block now";

/// A block of a pool, for a program.
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

/// A block that was not taken, and why.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
#[non_exhaustive]
pub struct SendRefused {
    /// Why.
    #[source]
    pub error: io::Error,
    /// The block.
    pub block: Block,
}

impl From<SendRefused> for io::Error {
    fn from(refused: SendRefused) -> Self {
        refused.error
    }
}

/// Of a message that is received in parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Part {
    /// Bytes of this part.
    pub len: usize,
    /// Whether the message ends with it.
    pub last: bool,
    /// Bytes of the whole message.
    pub total: u64,
}

/// How far a message has come that is sent or received in parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// Bytes of it that were taken, from its beginning.
    pub done: u64,
    /// Bytes of the whole message.
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

/// What programs have dropped of what they had received, to be told to the connection when it is next looked after.
#[derive(Debug, Default)]
pub(crate) struct ReturnedBytes {
    charge: AtomicUsize,
    /// The connection receives nothing before something is returned.
    waiting: AtomicBool,
    /// Who looks after the connection.
    wake_handle: Mutex<Option<Arc<WakeHandle>>>,
}

impl ReturnedBytes {
    pub(crate) fn set_wake_handle(&self, wake_handle: &Arc<WakeHandle>) {
        *self.wake_handle.lock().unwrap_or_else(PoisonError::into_inner) = Some(wake_handle.clone());
    }

    /// What was returned since.
    pub(crate) fn take(&self) -> usize {
        if self.charge.load(Ordering::Relaxed) == 0 { 0 } else { self.charge.swap(0, Ordering::SeqCst) }
    }

    /// Wakes the poller at the next return. False if there is one already.
    ///
    /// Either the store to `waiting` or the one to `charge` is first in the one order of all of these (SeqCst), so either this sees
    /// the return, or the return sees that it has to ring.
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

/// Bytes, or a message, in the blocks in which they arrived. They count against the connection's receive buffer, so a program that
/// keeps many of these stops its peer; dropping one lets it go on.
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

    /// How many bytes there are in all.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none: of a stream, its end; of messages, an empty one.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes, as they lie in memory: one piece or several, in their order.
    pub fn chunks(&self) -> impl Iterator<Item = &[u8]> {
        self.first.iter().chain(&self.more).map(|piece| &piece.block.bytes()[piece.range.clone()])
    }

    /// The bytes, if they lie in one piece.
    #[must_use]
    pub fn as_slice(&self) -> Option<&[u8]> {
        match (&self.first, self.more.is_empty()) {
            (None, _) => Some(&[]),
            (Some(piece), true) => Some(&piece.block.bytes()[piece.range.clone()]),
            _ => None,
        }
    }

    /// A copy of the bytes.
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
        // The blocks first, so that they are there for what the return lets come.
        self.first = None;
        self.more.clear();
        if self.charge > 0 {
            self.returns.give(self.charge);
        }
    }
}
