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
    /// RDMA devices perform operations, and check them. They reach the window over queue pairs of this
    /// connection alone, because its memory is registered in a protection domain that has these and
    /// the windows of this connection.
    Domain,
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
        if self.key.is_for_devices() { Protection::Domain } else { Protection::Process }
    }

    /// Copies bytes from an offset, by volatile reads.
    ///
    /// With [`Protection::Process`], a read of at most 256 KiB finds a put of the peer whole or not at
    /// all, if that has at most 256 KiB in one range. A longer read is done in parts.
    /// A put that a device performs may be found in part, until it has returned at the peer.
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

    /// Copies bytes to an offset, by volatile writes.
    ///
    /// With [`Protection::Process`], a get of the peer of at most 256 KiB in one range finds them whole
    /// or not at all, if they are at most 256 KiB. More are written in parts.
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
    /// [`Range`](WindowError::Range), [`Misaligned`](WindowError::Misaligned),
    /// [`AtomicsOfDevice`](WindowError::AtomicsOfDevice).
    pub fn fetch_add(&self, offset: u64, add: u64) -> Result<u64, WindowError> {
        if self.key.atomics != 0 {
            return Err(WindowError::AtomicsOfDevice);
        }
        let at = self.within(offset, 8)?;
        self.with(|memory| match memory.is_aligned(offset) {
            true => Ok(memory.fetch_add(at, add)),
            false => Err(WindowError::Misaligned { offset }),
        })
    }

    /// Takes the window back, and returns its block. From then on no peer reaches the memory, and
    /// operations with the key fail with [`Revoked`](WindowError::Revoked).
    ///
    /// It waits for no call of the peer. With [`Protection::Domain`] it ends the registration
    /// (`ibv_dereg_mr`), after which no device reaches the memory.
    ///
    /// # Errors
    ///
    /// [`StillRegistered`](WindowError::StillRegistered): the device does not end the registration, for
    /// example because a process of this host has stopped within a copy. The connection keeps the
    /// memory, and tries again with the next offer. Until then operations of the peer's device with the
    /// key may succeed.
    pub fn revoke(self) -> Result<Block, WindowError> {
        self.take().expect(OFFERED)
    }

    fn take(&self) -> Option<Result<Block, WindowError>> {
        let (memory, registered) = self.shared.table.revoke(&self.key)?;
        Some(self.shared.devices.end(memory, registered))
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
        if let Some(Err(error)) = self.take() {
            tracing::warn!(%error, "a window was dropped");
        }
    }
}

impl fmt::Debug for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WindowKey { region, generation, len, access, .. } = &self.key;
        write!(f, "Window({region} of generation {generation}, {len} bytes for {access})")
    }
}
