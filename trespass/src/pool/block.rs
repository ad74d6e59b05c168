//! A piece of a pool.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use super::cache;
use super::chunk::Chunk;
use super::core::PoolCore;
use super::registrations::Registrations;

/// A block that is out, or in a thread's hands: what a `Block` is without its drop.
#[derive(Clone, Copy)]
pub(super) struct RawBlock {
    pub(super) start: NonNull<u8>,
    pub(super) chunk: NonNull<Chunk>,
}

/// A piece of a [`Pool`](super::Pool): its owner alone has its bytes. Dropping it, in whatever thread, gives it back.
///
/// The bytes are those that whoever had it before has left there: they are not zeroed.
pub struct Block(RawBlock);

// SAFETY: a block is the only way to its bytes, and giving it back from another thread is what `drop` is made for.
unsafe impl Send for Block {}
// SAFETY: a shared block gives shared bytes only.
unsafe impl Sync for Block {}

impl Block {
    /// # Safety
    ///
    /// The block was lent just now, and nothing else will use it or give it back.
    #[inline]
    pub(super) unsafe fn new(raw: RawBlock) -> Self {
        Self(raw)
    }

    /// A block that no pool has. No device can reach it, but for registrations.
    pub(super) fn adopted(memory: Vec<u8>, registrations: Option<Arc<Registrations>>) -> Self {
        Self(Chunk::alone(memory.into(), registrations))
    }

    /// It is about to be lent: the device of this domain is to reach it, if it can.
    pub(crate) fn lend(&self, domain: usize) {
        if let Some(registrations) = self.chunk().registrations() {
            registrations.lend(self.chunk(), domain);
        }
    }

    /// Whether its memory is registered in this domain ([`Pool::domain_id`](super::Pool::domain_id)): its keys are good for nobody else.
    #[inline]
    pub(super) fn is_registered_in(&self, domain: usize) -> bool {
        self.chunk().is_registered_in(domain)
    }

    /// It has come back.
    pub(crate) fn returned(&self) {
        if let Some(registrations) = self.chunk().registrations() {
            registrations.returned(self.chunk());
        }
    }

    /// The vector that was [adopted](super::Pool::adopt).
    ///
    /// # Errors
    ///
    /// The block comes back: it is of a pool's own memory, or the device does not let it go.
    pub fn into_vec(self) -> Result<Vec<u8>, Self> {
        if !self.chunk().core.is_null() {
            return Err(self);
        }
        let raw = ManuallyDrop::new(self).0;
        // SAFETY: a chunk without a core is its only block's, which is not dropped, nor used again unless it comes back.
        unsafe { Chunk::reclaim(raw.chunk) }.map_err(|cause| {
            tracing::error!("adopted memory stays registered, and with its block: {cause}");
            Self(raw)
        })
    }

    #[inline]
    fn chunk(&self) -> &Chunk {
        // SAFETY: a `Block` is out until its drop (`Block::new`), and `PoolState::close` and `PoolState::take_back` free a chunk only
        // when none of its blocks is out.
        unsafe { self.0.chunk.as_ref() }
    }

    /// How many bytes there are.
    #[expect(clippy::len_without_is_empty, reason = "none is empty but who has adopted nothing")]
    #[inline]
    pub fn len(&self) -> usize {
        self.chunk().block_size()
    }

    /// The bytes.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the bytes are this block's alone, were zeroed when they were made, and stay as long as the block is out.
        unsafe { slice::from_raw_parts(self.0.start.as_ptr(), self.len()) }
    }

    /// The bytes, to be written.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the bytes are this block's alone and stay as long as it is out (`Block::new`); `&mut self` makes this the only
        // reference to them.
        unsafe { slice::from_raw_parts_mut(self.0.start.as_ptr(), self.len()) }
    }

    /// Whether what a peer reads of it, the peer's processor does.
    #[inline]
    pub(super) fn is_read_by_processors(&self) -> bool {
        self.chunk().is_read_by_processors()
    }

    /// The first byte, for a device, and as a peer names it if it may read the block ([`rkey`](Self::rkey)).
    ///
    /// Who has a device write there keeps the block, and looks at no byte of it, until that is over: with the completion, or the end
    /// of the queue pair. Dropping the block earlier would give the memory to somebody else meanwhile.
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        self.0.start.as_ptr()
    }

    /// The key for requests of this side, if the memory is registered: that of a pool is if it has a domain, and what was adopted, if it is
    /// being sent, or was before.
    #[inline]
    pub fn lkey(&self) -> Option<u32> {
        self.chunk().lkey()
    }

    /// The key with which a peer may read the block: there is none for slots, nor without a domain.
    ///
    /// It goes for all blocks of the same chunk, so a peer that has it can read those, too.
    #[inline]
    pub fn rkey(&self) -> Option<u32> {
        self.chunk().rkey()
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
        // SAFETY: a `Block` is out until this drop (`Block::new`), `slots_of` is its chunk's own, and nothing uses `self.0` after a push.
        if !unsafe { cache::push(chunk.slots_of(), chunk.class().block_use(), self.0) } {
            give_back(self.0);
        }
    }
}

/// Out of line, so that a drop is small.
#[inline(never)]
fn give_back(raw: RawBlock) {
    // SAFETY: `raw` is out until this function gives it back, and its chunk lives as long (`PoolState::close` frees whole chunks only).
    let core = unsafe { raw.chunk.as_ref() }.core;
    if core.is_null() {
        // SAFETY: a chunk without a core is its only block's; `raw` is not used again.
        return unsafe { Chunk::free(raw.chunk) };
    }
    // SAFETY: the block is out, so the core lives; `raw` is not used again.
    unsafe {
        PoolCore::give_back(core, cache::excess(core).chain([raw]));
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Block({:p}, {} bytes)", self.0.start, self.len())
    }
}
