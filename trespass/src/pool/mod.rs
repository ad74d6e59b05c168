//! The memory that messages travel in.
//!
//! A [`Pool`] makes memory in large chunks, carves them into blocks of a few sizes, and lends these. It has what [`PoolConfig::initial`]
//! says at once, grows when it has to, and never has more than [`PoolConfig::max`]. A pool that is empty is not an error: there is
//! no block now, so whoever wanted one waits, and with it the peer ([`Pool::wake_when_free`]).
//!
//! ```
//! use trespass::pool::{Pool, PoolConfig};
//!
//! let mut config = PoolConfig::default();
//! config.max = 64 << 20;
//! let pool = Pool::new(&config)?;
//! let mut block = pool.take(5).ok_or("nothing is left now")?;
//! block.bytes_mut()[..5].copy_from_slice(b"hello");
//! assert_eq!(pool.stats().in_use, block.len());
//! drop(block);
//! assert_eq!(pool.stats().in_use, 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Sizes
//!
//! Slots ([`PoolConfig::slot_size`]) carry frames. Blocks of 64 KiB, 256 KiB and 1 MiB are staged: a peer may be told their key, and
//! read them. Slots lie in memory that no peer can read, as what they hold came from other peers. Neither kind takes the last
//! eighth of the maximum from the other.
//!
//! # Threads
//!
//! A pool is shared by cloning it. A thread that takes slots keeps some (at most 64, and all threads together at most an eighth of the
//! maximum), so taking and dropping one there needs no lock and no atomic operation. A block may be dropped in any thread. A
//! thread that goes to sleep for long calls [`Pool::flush`].
//!
//! # Devices
//!
//! With the feature `rdma` a pool has one protection domain, from the start (`Pool::with_domain`), or from when the
//! first connection comes that needs it (`Pool::register`); until then it is memory like any other. Connections over another device
//! have another pool, which is made with the same configuration, unless the program has [given](crate::Builder::pool) them this one.

mod adopted;
mod block;
mod cache;
mod chunk;
mod classes;
mod config;
mod core;
#[cfg(feature = "rdma")]
mod exposed;
mod high_water;
mod lending;
#[cfg_attr(feature = "rdma", path = "memory_registered.rs")]
#[cfg_attr(not(feature = "rdma"), path = "memory_plain.rs")]
mod memory;
mod registrations;
mod state;
mod stats;
mod streaming;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Waker;

#[cfg(feature = "rdma")]
use sideway::ibverbs::protection_domain::ProtectionDomain;

pub use self::block::Block;
pub(crate) use self::classes::BlockUse;
use self::classes::Class;
pub use self::classes::LARGEST_BLOCK;
pub use self::config::{HugePages, PoolConfig};
#[cfg(test)]
pub(crate) use self::core::DOES_NOT_GROW;
use self::core::PoolCore;
pub use self::high_water::HighWater;
pub use self::stats::{AdoptedStats, ClassStats, PoolStats};

/// Why the system, or a device, does not give what was asked for.
type Source = Box<dyn std::error::Error + Send + Sync>;

/// Memory for messages. Clones are the same pool.
///
/// When the last clone is gone the memory is freed, but for chunks of which a block is still out: these follow.
#[derive(Clone)]
pub struct Pool {
    core: Arc<PoolCore>,
    _handle: Arc<CloseGuard>,
    /// Of a connection that needs no device.
    needs_no_device: bool,
}

/// Closes the pool when the last clone is gone. Blocks have none, but keep the core.
struct CloseGuard(Arc<PoolCore>);

impl Drop for CloseGuard {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Pool {
    /// Makes a pool that no device knows of, yet.
    ///
    /// # Errors
    ///
    /// The configuration contradicts itself, or there is no such memory.
    pub fn new(config: &PoolConfig) -> Result<Self, PoolError> {
        config.check()?;
        PoolCore::new(config, None).map(Self::of)
    }

    /// Makes a pool whose memory is registered in a protection domain.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new), or what is prewarmed cannot be registered.
    #[cfg(feature = "rdma")]
    pub fn with_domain(config: &PoolConfig, domain: &ProtectionDomain) -> Result<Self, PoolError> {
        config.check()?;
        PoolCore::new(config, Some(domain.clone())).map(Self::of)
    }

    fn of(core: Arc<PoolCore>) -> Self {
        Self { _handle: Arc::new(CloseGuard(core.clone())), core, needs_no_device: false }
    }

    /// The same pool, for a connection over TCP: where the device has refused to register more, and that is all that is missing, there is memory
    /// beside it that no device knows.
    pub(crate) fn without_device(self) -> Self {
        Self { needs_no_device: true, ..self }
    }

    /// That memory, as far as it may be had through this handle.
    #[cold]
    fn plain(&self) -> Option<&Self> {
        if self.needs_no_device { self.core.plain() } else { None }
    }

    /// Whether the device registers no more for now.
    #[cfg(feature = "rdma")]
    pub(crate) fn is_refused(&self) -> bool {
        self.core.is_refused()
    }

    /// Has the memory be registered in a protection domain: all of which blocks were made, now, also those that are out; and
    /// the rest when it is needed. Nothing happens if it is that already.
    ///
    /// # Errors
    ///
    /// The pool has another domain, or the memory cannot be registered. Then it is as before.
    #[cfg(feature = "rdma")]
    pub fn register(&self, domain: &ProtectionDomain) -> Result<(), PoolError> {
        self.core.register_with(domain)
    }

    /// The device of that domain has failed. Whether it is this pool's.
    #[cfg(feature = "rdma")]
    pub(crate) fn give_up(&self, domain: &ProtectionDomain) -> bool {
        self.core.give_up(domain)
    }

    /// Whether its device has failed: nothing of it can be registered any more.
    pub(crate) fn is_given_up(&self) -> bool {
        self.core.given_up.load(Relaxed)
    }

    /// The protection domain that the memory is registered in.
    #[cfg(feature = "rdma")]
    pub fn domain(&self) -> Option<ProtectionDomain> {
        self.core.domain()
    }

    /// Names its domain, if it has one; else 0.
    pub(crate) fn domain_id(&self) -> usize {
        self.core.domain().as_ref().map_or(0, memory::identity)
    }

    /// Takes a block of at least `size` bytes: a slot, if that is enough. None if there is none now, and there cannot be more; nor are
    /// there any of more than [`LARGEST_BLOCK`] bytes.
    #[inline]
    pub fn take(&self, size: usize) -> Option<Block> {
        self.take_for(size, BlockUse::Sending)
    }

    /// As [`take`](Self::take), for either side.
    #[inline]
    pub(crate) fn take_for(&self, size: usize, block_use: BlockUse) -> Option<Block> {
        let raw = if size <= self.slot_size() {
            cache::pop(Arc::as_ptr(&self.core), block_use).or_else(|| self.core.lend(Class::slot(block_use)))
        } else {
            self.core.lend(Class::staged(size, block_use)?)
        };
        // SAFETY: the core has lent it just now, or the cache gave it out: a cache has blocks that are out and that nobody uses
        // (`cache::push`).
        let block = raw.map(|raw| unsafe { Block::new(raw) });
        block.or_else(|| self.plain()?.take_for(size, block_use))
    }

    /// A slot to receive into as long as a connection is there. None if what arrives would then find too little.
    pub(crate) fn take_standing(&self) -> Option<Block> {
        // SAFETY: it was lent just now.
        self.core.lend_standing().map(|raw| unsafe { Block::new(raw) })
    }

    /// As [`take`](Self::take), but never a slot: a block that a peer may read, when it is told the key.
    pub fn take_staged(&self, size: usize) -> Option<Block> {
        let raw = self.core.lend(Class::staged(size, BlockUse::Sending)?)?;
        // SAFETY: it was lent just now.
        Some(unsafe { Block::new(raw) })
    }

    /// Makes a block of memory that the program has, as it is: it can be sent as any other, of any length, and comes back the same;
    /// [`Block::into_vec`] makes a vector of it again. It is not of the pool's memory, and no part of [`PoolConfig::max`].
    ///
    /// Over RDMA it is registered when it is first sent, unless it is so short that a copy costs less. It stays registered when it has
    /// come back, so that sending it again costs nothing more, within [`PoolConfig::registrations`]: it pays to adopt memory that is sent more
    /// than once. Until its registration ends, a peer that it was told to can read it, as with all that is sent from.
    ///
    /// ```
    /// use trespass::{Pool, PoolConfig};
    ///
    /// let pool = Pool::new(&PoolConfig::default())?;
    /// let mut block = pool.adopt(vec![7; 3 << 20]);
    /// block.bytes_mut()[0] = 8;
    /// assert_eq!(block.len(), 3 << 20);
    /// let bytes = block.into_vec().map_err(|_| "a block of the pool's own memory")?;
    /// assert_eq!(bytes[..2], [8, 7]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn adopt(&self, bytes: Vec<u8>) -> Block {
        Block::adopted(bytes, Some(self.core.registrations.clone()))
    }

    /// How many bytes a slot has.
    #[inline]
    pub fn slot_size(&self) -> usize {
        self.core.limits.slot_size
    }

    /// Has a waker be woken, once, when blocks come back. Whoever has found the pool empty calls this, then takes once more, as one
    /// may have come back in between, and sleeps only then.
    pub fn wake_when_free(&self, waker: &Waker) {
        self.wait(waker);
    }

    /// How often something has come back so far: later returns wake the waker.
    fn wait(&self, waker: &Waker) -> u64 {
        self.core.wait(waker) + self.plain().map_or(0, |plain| plain.wait(waker))
    }

    /// The same. Whether something has come back since `seen`, which is what the last call saw: then it is worth a try.
    pub(crate) fn wake_when_more(&self, waker: &Waker, seen: &mut u64) -> bool {
        let returns = self.wait(waker);
        std::mem::replace(seen, returns) != returns
    }

    /// Has a function be called when the pool reaches its high-water mark, and when it has a tenth of the maximum more left
    /// again. It is called by the thread that takes or gives back a block then, without any lock held, and so may use the pool.
    /// It must not panic, as a drop may call it.
    ///
    /// What threads keep is not in use. They look at the mark when they go to the shared part, so it may be passed by some slots
    /// when it is told.
    pub fn on_high_water(&self, call: impl Fn(HighWater) + Send + Sync + 'static) {
        self.core.watch(Arc::new(call));
    }

    /// Gives what this thread keeps to all threads.
    pub fn flush(&self) {
        cache::flush(&self.core);
        if let Some(plain) = self.core.plain.get() {
            cache::flush(&plain.core);
        }
    }

    /// What it was made with.
    pub fn config(&self) -> &PoolConfig {
        &self.core.config
    }

    /// What there is, and what is in use.
    pub fn stats(&self) -> PoolStats {
        self.core.stats()
    }
}

/// Whether both are the same pool.
impl PartialEq for Pool {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.core, &other.core)
    }
}

impl Eq for Pool {}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pool").field(&self.stats()).finish()
    }
}

/// There is no such pool.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// What is to be prewarmed is part of what is there at first.
    #[error(
        "the pool's prewarm {prewarm} is more than its initial {initial} bytes; prewarm less, or begin with more"
    )]
    PrewarmAboveInitial {
        /// Bytes to be prewarmed.
        prewarm: usize,
        /// Bytes to be there at first.
        initial: usize,
    },
    /// It would begin with more than it may have.
    #[error("the pool's initial {initial} is more than its max {max} bytes; begin with less, or allow more")]
    InitialAboveMax {
        /// Bytes to be there at first.
        initial: usize,
        /// Bytes that there may be.
        max: usize,
    },
    /// Such a pool would have no room for each kind of memory.
    #[error("the pool's max of {max} bytes is too small: the least is {} bytes", PoolConfig::LEAST_MAX)]
    MaxTooSmall {
        /// Bytes that there may be.
        max: usize,
    },
    /// What receiving is to have for itself does not fit.
    #[error(
        "the pool's max of {max} bytes is too small: receiving has {slots} bytes of slots and {staged} bytes of larger blocks for \
         itself, and so the least is {least} bytes"
    )]
    NoRoomToReceive {
        /// Bytes that there may be.
        max: usize,
        /// What there must be.
        least: usize,
        /// Of them, for slots.
        slots: usize,
        /// Of them, for larger blocks.
        staged: usize,
    },
    /// Slots are not so small, so large, or so odd.
    #[error(
        "the slot size {slot_size} is not a multiple of 64 from {} to {}",
        classes::SMALLEST_SLOT,
        classes::LARGEST_SLOT
    )]
    SlotSize {
        /// Bytes of a slot.
        slot_size: usize,
    },
    /// The mark is not in the pool.
    #[error("the high-water mark of {high_water} % is not from 1 % to 100 %")]
    HighWater {
        /// Per cent of the maximum.
        high_water: u8,
    },
    /// They were required.
    #[error("without the feature `rdma` there are no huge pages: do not require them")]
    NoHugePages,
    /// The system has none.
    #[error("there is no memory of {bytes} bytes for the pool: {source}")]
    Memory {
        /// How many were to be made.
        bytes: usize,
        /// Why not.
        source: Source,
    },
    /// The device does not take it.
    #[error("{bytes} bytes of the pool cannot be registered: {source}")]
    Register {
        /// How many were to be registered.
        bytes: usize,
        /// Why not.
        source: Source,
    },
    /// Nothing can be registered without one.
    #[error("the pool has no protection domain, so no device can reach the memory")]
    NoDomain,
    /// A pool has one domain.
    #[error("the pool is registered in another protection domain; make another pool for this one")]
    OtherDomain,
}
