//! Blocks: the pieces of a pool that are lent out.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use super::cache;
use super::chunk::Chunk;
use super::core::PoolCore;
use super::registrations::Registrations;

/// A block that is lent, or in a thread's cache: a `Block` without its drop.
#[derive(Clone, Copy)]
pub(super) struct RawBlock {
    pub(super) start: NonNull<u8>,
    pub(super) chunk: NonNull<Chunk>,
}

/// A piece of a [`Pool`](super::Pool), with exclusive access to its bytes. Dropping it, in any
/// thread, returns it to the pool.
///
/// The bytes are those that its last owner left there: they are not zeroed.
pub struct Block(RawBlock);

// SAFETY: a block is the only access to its bytes, and `drop` may return it from any thread.
unsafe impl Send for Block {}
// SAFETY: a shared block gives shared access to its bytes only.
unsafe impl Sync for Block {}

impl Block {
    /// # Safety
    ///
    /// The pool has just lent the block, and no other code uses or returns it.
    #[inline]
    pub(super) unsafe fn new(raw: RawBlock) -> Self {
        Self(raw)
    }

    /// A block of memory that belongs to no pool. A device can reach it only while `registrations`
    /// has it registered.
    pub(super) fn adopted(memory: Vec<u8>, registrations: Option<Arc<Registrations>>) -> Self {
        Self(Chunk::alone(memory.into(), registrations))
    }

    /// Prepares lending: registers the memory for the devices of these domains
    /// ([`Pool::domain_id`](super::Pool::domain_id)), if possible.
    pub(crate) fn lend(&self, domain: usize) {
        if let Some(registrations) = self.chunk().registrations() {
            registrations.lend(self.chunk(), domain);
        }
    }

    /// Whether its memory is registered in these domains
    /// ([`Pool::domain_id`](super::Pool::domain_id)); its keys are invalid in any others.
    #[inline]
    pub(super) fn is_registered_in(&self, domain: usize) -> bool {
        self.chunk().is_registered_in(domain)
    }

    /// Notes that it has returned from being lent.
    pub(crate) fn returned(&self) {
        if let Some(registrations) = self.chunk().registrations() {
            registrations.returned(self.chunk());
        }
    }

    /// Returns the vector that was [adopted](super::Pool::adopt).
    ///
    /// # Errors
    ///
    /// The block comes back if it belongs to a pool, or if the device does not deregister it.
    pub fn into_vec(self) -> Result<Vec<u8>, Self> {
        if !self.chunk().core.is_null() {
            return Err(self);
        }
        let raw = ManuallyDrop::new(self).0;
        // SAFETY: a chunk without a core belongs to its only block. The block is not dropped, and
        // is used again only if it comes back.
        unsafe { Chunk::reclaim(raw.chunk) }.map_err(|cause| {
            tracing::error!("adopted memory stays registered, and with its block: {cause}");
            Self(raw)
        })
    }

    #[inline]
    fn chunk(&self) -> &Chunk {
        // SAFETY: a `Block` is lent until its drop (`Block::new`), and `PoolState::close` and
        // `PoolState::take_back` free a chunk only when none of its blocks is lent.
        unsafe { self.0.chunk.as_ref() }
    }

    /// The block's length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "none is empty but who has adopted nothing")]
    #[inline]
    pub fn len(&self) -> usize {
        self.chunk().block_size()
    }

    /// The block's bytes.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the bytes belong to this block alone, were zeroed at allocation, and stay while
        // the block is lent.
        unsafe { slice::from_raw_parts(self.0.start.as_ptr(), self.len()) }
    }

    /// The block's bytes, for writing.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the bytes belong to this block alone and stay while it is lent (`Block::new`);
        // `&mut self` makes this the only reference to them.
        unsafe { slice::from_raw_parts_mut(self.0.start.as_ptr(), self.len()) }
    }

    /// Whether the peer's processor, rather than hardware, reads it for the peer, over each device.
    #[inline]
    pub(super) fn is_read_by_processors(&self) -> bool {
        self.chunk().is_read_by_processors()
    }

    /// The address of the first byte, for a device, and for a peer that may read the block
    /// ([`rkey`](Self::rkey)).
    ///
    /// A program that has a device write there must keep the block, and read no byte of it, until
    /// the operation has ended by its completion or by the end of the queue pair. Dropping the
    /// block earlier would give the memory to another owner too soon.
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        self.0.start.as_ptr()
    }

    /// The local key, if the memory is registered: a pool's is if the pool has a domain; adopted
    /// memory is while it is sent, and may stay registered afterwards.
    #[inline]
    pub fn lkey(&self) -> Option<u32> {
        self.chunk().lkey()
    }

    /// The remote key with which a peer may read the block. Slots have none, and neither does a
    /// pool without a domain.
    ///
    /// The key covers all blocks of the same chunk, so a peer that has it can read those, too.
    #[inline]
    pub fn rkey(&self) -> Option<u32> {
        self.chunk().rkey()
    }
}

/// Keys for the devices of a connection over several.
impl Block {
    /// The local key for a device of the pool, by its index; `None` if the memory is not registered
    /// with it.
    #[cfg_attr(not(feature = "rdma"), allow(dead_code, reason = "no device sends it"))]
    #[inline]
    pub(crate) fn lkey_of(&self, device: usize) -> Option<u32> {
        self.chunk().lkey_of(device)
    }

    /// The remote key for a device of the pool, by its index.
    #[inline]
    pub(crate) fn rkey_of(&self, device: usize) -> Option<u32> {
        self.chunk().rkey_of(device)
    }
}

impl AsRef<[u8]> for Block {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

impl AsMut<[u8]> for Block {
    #[inline]
    fn as_mut(&mut self) -> &mut [u8] {
        self.bytes_mut()
    }
}

impl Drop for Block {
    #[inline]
    fn drop(&mut self) {
        let chunk = self.chunk();
        // SAFETY: a `Block` is lent until this drop (`Block::new`), `slots_of` belongs to its
        // chunk, and no code uses `self.0` after a push.
        if !unsafe { cache::push(chunk.slots_of(), chunk.class().block_use(), self.0) } {
            give_back(self.0);
        }
    }
}

/// Out of line, so that a drop is small.
#[inline(never)]
fn give_back(raw: RawBlock) {
    // SAFETY: `raw` is lent until this function returns it, and its chunk lives as long
    // (`PoolState::close` frees whole chunks only).
    let core = unsafe { raw.chunk.as_ref() }.core;
    if core.is_null() {
        // SAFETY: a chunk without a core belongs to its only block; `raw` is not used again.
        return unsafe { Chunk::free(raw.chunk) };
    }
    // SAFETY: the block is lent, so the core lives; `raw` is not used again.
    unsafe {
        PoolCore::give_back(core, cache::excess(core).chain([raw]));
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Block({:p}, {} bytes)", self.0.start, self.len())
    }
}
