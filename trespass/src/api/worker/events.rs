//! What a worker reports, and how it names connections.

use std::io;
use std::net::SocketAddr;

#[expect(unused_imports, reason = "the documentation names it")]
use super::Worker;
use crate::session::buffers::Completion;
use crate::session::readiness::Readiness;

/// Identifies a connection or a listener of a worker. The key of a closed one is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    pub(super) index: u32,
    pub(super) generation: u32,
}

impl Key {
    /// The key as a number, for another language or the program's own tables. None is 0.
    #[must_use]
    pub fn to_bits(self) -> u64 {
        // No worker has 2^32 connections, so that this cannot wrap.
        (u64::from(self.generation) << 32 | u64::from(self.index)).wrapping_add(1)
    }

    /// The key of a number that [`to_bits`](Self::to_bits) has returned. The calls of a worker refuse
    /// one that was made up as they refuse one that has ended.
    #[must_use]
    pub fn from_bits(bits: u64) -> Self {
        let bits = bits.wrapping_sub(1);
        Self { index: bits as u32, generation: (bits >> 32) as u32 }
    }
}

/// An event that [`Worker::poll`] reports.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// A client has connected.
    Accepted {
        /// The listener that accepted it.
        listener: Key,
        /// The listener's [tag](Worker::set_tag). The connection has it too, until it is given
        /// another.
        tag: u64,
        /// The new connection.
        key: Key,
        /// The client's address.
        peer: SocketAddr,
    },
    /// A connection that the worker made is established.
    Connected {
        /// The connection.
        key: Key,
        /// Its [tag](Worker::set_tag).
        tag: u64,
    },
    /// A connection attempt failed, and its key is no longer valid. Or a listener cannot accept now,
    /// for example because no descriptors are free. It goes on by itself, and its key stays valid.
    Failed {
        /// The connection or the listener.
        key: Key,
        /// Its [tag](Worker::set_tag).
        tag: u64,
        /// The reason.
        error: io::Error,
    },
    /// Calls can make progress. Each [`poll`](Worker::poll) reports it until they have made it. Room to
    /// write is reported only after a refused write.
    Ready {
        /// The connection.
        key: Key,
        /// Its [tag](Worker::set_tag).
        tag: u64,
        /// The calls that can make progress.
        readiness: Readiness,
    },
    /// The send of a lent block is complete.
    Completed {
        /// The connection.
        key: Key,
        /// Its [tag](Worker::set_tag).
        tag: u64,
        /// The block.
        completion: Completion,
    },
}
