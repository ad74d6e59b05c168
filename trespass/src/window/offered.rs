//! The owner's handle of a window.

use std::fmt;
use std::sync::Arc;

use super::connection::Shared;
use super::error::WindowError;
use super::key::WindowKey;
use super::memory::OfferedMemory;
use super::message::MOST_BYTES;
use crate::pool::Block;

/// Which code keeps a peer within what it was offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Protection {
    /// This process performs each operation itself, and checks its key, its range and its access.
    Process,
}

/// Memory of this side that the peer may reach. A drop revokes it.
///
/// The peer may change the bytes at any time. They are therefore copied, and never borrowed.
pub struct Window {
    shared: Arc<Shared>,
    key: WindowKey,
}

impl Window {
    pub(super) fn new(shared: Arc<Shared>, key: WindowKey) -> Self {
        Self { shared, key }
    }

    /// The key that names the window to the peer.
    #[must_use]
    pub fn key(&self) -> &WindowKey {
        &self.key
    }

    /// Which code keeps the peer within this window.
    #[must_use]
    pub fn protection(&self) -> Protection {
        Protection::Process
    }

    /// Copies bytes from an offset, by volatile reads.
    ///
    /// A read of at most 256 KiB finds a put of the peer whole or not at all, if that has at most 256
    /// KiB in one range. A longer read is done in parts.
    ///
    /// # Errors
    ///
    /// [`Range`](WindowError::Range).
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), WindowError> {
        let at = self.within(offset, into.len())?;
        // One at a time, so that the peer's operations do not wait for all of them.
        for (index, piece) in into.chunks_mut(MOST_BYTES).enumerate() {
            self.with(|memory| memory.read(at + index * MOST_BYTES, piece));
        }
        Ok(())
    }

    /// Copies bytes to an offset, by volatile writes. A get of the peer of at most 256 KiB in one range
    /// finds them whole or not at all, if they are at most 256 KiB. More are written in parts.
    ///
    /// # Errors
    ///
    /// [`Range`](WindowError::Range).
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), WindowError> {
        let at = self.within(offset, bytes.len())?;
        for (index, piece) in bytes.chunks(MOST_BYTES).enumerate() {
            self.with(|memory| memory.write(at + index * MOST_BYTES, piece));
        }
        Ok(())
    }

    /// Adds to the 8-byte number at an offset. Returns what it was. It is atomic among the peer's
    /// operations, too.
    ///
    /// # Errors
    ///
    /// [`Range`](WindowError::Range), [`Misaligned`](WindowError::Misaligned).
    pub fn fetch_add(&self, offset: u64, add: u64) -> Result<u64, WindowError> {
        let at = self.within(offset, 8)?;
        self.with(|memory| match memory.is_aligned(offset) {
            true => Ok(memory.fetch_add(at, add)),
            false => Err(WindowError::Misaligned { offset }),
        })
    }

    /// Takes the window back, and returns its block. From then on no peer reaches the memory, and
    /// operations with the key fail with [`Revoked`](WindowError::Revoked).
    #[must_use]
    pub fn revoke(self) -> Block {
        self.shared.table.revoke(&self.key).expect(OFFERED)
    }

    fn within(&self, offset: u64, len: usize) -> Result<usize, WindowError> {
        if self.key.contains(offset, len as u64) {
            Ok(offset as usize)
        } else {
            Err(WindowError::Range { offset, len: len as u64, window: self.key.len() })
        }
    }

    fn with<R>(&self, act: impl FnOnce(&mut OfferedMemory) -> R) -> R {
        self.shared.table.with(&self.key, act).expect(OFFERED)
    }
}

/// Only `revoke` and the drop take it out, and both end the handle.
const OFFERED: &str = "a window is offered as long as its handle lives";

impl Drop for Window {
    fn drop(&mut self) {
        drop(self.shared.table.revoke(&self.key));
    }
}

impl fmt::Debug for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WindowKey { region, generation, len, access, .. } = &self.key;
        write!(f, "Window({region} of generation {generation}, {len} bytes for {access})")
    }
}
