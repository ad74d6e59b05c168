//! The buffer pool: registered memory for messages, in blocks of a few sizes.
//!
//! A [`Pool`] allocates memory in large chunks, carves them into blocks of a few sizes, and lends
//! these. It starts with [`PoolConfig::initial`] bytes, grows as needed, and never exceeds
//! [`PoolConfig::max`]. An empty pool is not an error: the caller waits for a block, and so does
//! the peer ([`Pool::wake_when_free`]).
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
//! Slots ([`PoolConfig::slot_size`]) carry frames. Blocks of 64 KiB, 256 KiB and 1 MiB are staged:
//! a peer may be told their key, and read them. Slots lie in memory that no peer can read, because
//! they hold other peers' data. Each kind is guaranteed an eighth of the maximum.
//!
//! # Threads
//!
//! Clones share a pool. A thread that takes slots caches some (at most 64, and all threads together
//! at most an eighth of the maximum), so that taking and dropping one there needs no lock and no
//! atomic operation. A block may be dropped in any thread. A thread should call [`Pool::flush`]
//! before it sleeps for long.
//!
//! # Devices
//!
//! With the feature `rdma` a pool has one protection domain, from the start (`Pool::with_domain`),
//! or from the first connection that needs it (`Pool::register`); until then it is ordinary memory.
//! Connections over another device use another pool with the same configuration, unless the program
//! has [given](crate::Builder::pool) them this one.

mod adopted;
mod block;
mod cache;
mod chunk;
mod classes;
mod config;
mod core;
#[cfg(all(test, feature = "rdma", not(miri), not(loom)))]
mod device_tests;
#[cfg(feature = "rdma")]
mod domain_set;
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
pub(crate) use self::cache::flush_thread;
pub(crate) use self::classes::BlockUse;
use self::classes::Class;
pub use self::classes::LARGEST_BLOCK;
pub use self::config::{HugePages, PoolConfig};
#[cfg(test)]
pub(crate) use self::core::DOES_NOT_GROW;
use self::core::PoolCore;
#[cfg(feature = "rdma")]
pub(crate) use self::domain_set::{DomainSet, note_failure};
pub use self::high_water::HighWater;
pub use self::stats::{AdoptedStats, ClassStats, PoolStats};

/// The reason why the system or a device refused a request.
type Source = Box<dyn std::error::Error + Send + Sync>;

/// Memory for messages. Clones share the same pool.
///
/// Dropping the last clone frees the memory, except for chunks with lent blocks, which are freed
/// when these return.
#[derive(Clone)]
pub struct Pool {
    core: Arc<PoolCore>,
    _handle: Arc<CloseGuard>,
    /// Whether this handle belongs to a connection that needs no device.
    needs_no_device: bool,
}

/// Closes the pool when the last clone is dropped. Blocks have none of these, but keep the core.
struct CloseGuard(Arc<PoolCore>);

impl Drop for CloseGuard {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Pool {
    /// Creates a pool without a protection domain.
    ///
    /// # Errors
    ///
    /// The configuration is contradictory, or the system has too little memory.
    pub fn new(config: &PoolConfig) -> Result<Self, PoolError> {
        config.check()?;
        PoolCore::new(config, None).map(Self::of)
    }

    /// Creates a pool whose memory is registered in a protection domain.
    ///
    /// # Errors
    ///
    /// The errors of [`new`](Self::new), or the prewarmed memory cannot be registered.
    #[cfg(feature = "rdma")]
    pub fn with_domain(config: &PoolConfig, domain: &ProtectionDomain) -> Result<Self, PoolError> {
        Self::with_domains(config, &domain.into())
    }

    /// Like [`with_domain`](Self::with_domain), for the devices of connections over several.
    #[cfg(feature = "rdma")]
    pub(crate) fn with_domains(config: &PoolConfig, domains: &DomainSet) -> Result<Self, PoolError> {
        config.check()?;
        PoolCore::new(config, Some(domains.clone())).map(Self::of)
    }

    fn of(core: Arc<PoolCore>) -> Self {
        Self { _handle: Arc::new(CloseGuard(core.clone())), core, needs_no_device: false }
    }

    /// The same pool for a connection over TCP. If only registration limits the pool, such a
    /// connection may use unregistered memory beyond it.
    pub(crate) fn without_device(self) -> Self {
        Self { needs_no_device: true, ..self }
    }

    /// That unregistered memory, if this handle may use it.
    #[cold]
    fn plain(&self) -> Option<&Self> {
        if self.needs_no_device { self.core.plain() } else { None }
    }

    /// Whether the device currently refuses registrations.
    #[cfg(feature = "rdma")]
    pub(crate) fn is_refused(&self) -> bool {
        self.core.is_refused()
    }

    /// Registers the memory in a protection domain: everything that was carved into blocks at once,
    /// including lent blocks, and the rest when it is needed. It does nothing if the memory is
    /// registered there already.
    ///
    /// # Errors
    ///
    /// The pool has another domain, or the memory cannot be registered; the pool is unchanged then.
    #[cfg(feature = "rdma")]
    pub fn register(&self, domain: &ProtectionDomain) -> Result<(), PoolError> {
        self.register_in(&domain.into())
    }

    /// Like [`register`](Self::register), for the devices of connections over several. A pool of
    /// one of these devices, or of others as well, has other domains.
    #[cfg(feature = "rdma")]
    pub(crate) fn register_in(&self, domains: &DomainSet) -> Result<(), PoolError> {
        self.core.register_with(domains)
    }

    /// Whether a connection over one device can use the pool's primary keys.
    #[cfg(feature = "rdma")]
    pub(crate) fn has_primary(&self, domains: &DomainSet) -> bool {
        let is_first = |known: &DomainSet| known.position(domains.primary()) == Some(0);
        domains.domains().len() == 1 && self.core.domains().is_some_and(|known| is_first(&known))
    }

    /// Notes that the device of that domain has failed; returns whether the pool uses it. If the
    /// pool has other devices, the connections that use the pool go on over those.
    #[cfg(feature = "rdma")]
    pub(crate) fn give_up(&self, domain: &ProtectionDomain) -> bool {
        self.core.give_up(domain)
    }

    /// Whether a device of it has failed, so that new connections need another pool.
    pub(crate) fn is_given_up(&self) -> bool {
        self.core.given_up.load(Relaxed)
    }

    /// The protection domain that the memory is registered in.
    #[cfg(feature = "rdma")]
    pub fn domain(&self) -> Option<ProtectionDomain> {
        self.core.domains().map(|domains| domains.primary().clone())
    }

    /// Identifies its domains; 0 if it has none.
    pub(crate) fn domain_id(&self) -> usize {
        self.core.domains().map_or(0, |domains| domains.identity())
    }

    /// Takes a block of at least `size` bytes: a slot, if that is large enough. `None` if the pool
    /// is exhausted, or if `size` exceeds [`LARGEST_BLOCK`].
    #[inline]
    pub fn take(&self, size: usize) -> Option<Block> {
        self.take_for(size, BlockUse::Sending)
    }

    /// Like [`take`](Self::take), for either side.
    #[inline]
    pub(crate) fn take_for(&self, size: usize, block_use: BlockUse) -> Option<Block> {
        let raw = if size <= self.slot_size() {
            cache::pop(Arc::as_ptr(&self.core), block_use).or_else(|| self.core.lend(Class::slot(block_use)))
        } else {
            self.core.lend(Class::staged(size, block_use)?)
        };
        // SAFETY: the core has just lent it, or the cache returned it: blocks in a cache are lent
        // and not used (`cache::push`).
        let block = raw.map(|raw| unsafe { Block::new(raw) });
        block.or_else(|| self.plain()?.take_for(size, block_use))
    }

    /// A slot for a receive that stays posted while its connection exists. `None` if arriving data
    /// would then find too little memory.
    pub(crate) fn take_standing(&self) -> Option<Block> {
        // SAFETY: the core has just lent it.
        self.core.lend_standing().map(|raw| unsafe { Block::new(raw) })
    }

    /// Like [`take`](Self::take), but never a slot: a block that a peer may read once it is told
    /// the key.
    pub fn take_staged(&self, size: usize) -> Option<Block> {
        let raw = self.core.lend(Class::staged(size, BlockUse::Sending)?)?;
        // SAFETY: the core has just lent it.
        Some(unsafe { Block::new(raw) })
    }

    /// Makes a block of the program's memory: it can be sent like any other, has any length, and
    /// returns unchanged; [`Block::into_vec`] makes a vector of it again. It is not part of the
    /// pool's memory, and does not count towards [`PoolConfig::max`].
    ///
    /// Over RDMA it is registered when it is first sent, unless it is so short that a copy is
    /// cheaper. It stays registered after it has returned, within [`PoolConfig::registrations`], so
    /// that sending it again costs nothing more. Adopting therefore pays off for memory that is
    /// sent more than once. Until its registration ends, a peer that was told its key can read it,
    /// like any sent block.
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

    /// Size of a slot in bytes.
    #[inline]
    pub fn slot_size(&self) -> usize {
        self.core.limits.slot_size
    }

    /// Wakes a waker once when blocks return. A caller that has found the pool empty calls this,
    /// then tries once more, because a block may have returned in between, and only then sleeps.
    pub fn wake_when_free(&self, waker: &Waker) {
        self.wait(waker);
    }

    /// Registers a waker for later returns; gives the number of returns so far.
    fn wait(&self, waker: &Waker) -> u64 {
        self.core.wait(waker) + self.plain().map_or(0, |plain| plain.wait(waker))
    }

    /// Registers a waker; returns whether any block has returned since `seen`, the count of the
    /// last call, so that another try makes sense.
    pub(crate) fn wake_when_more(&self, waker: &Waker, seen: &mut u64) -> bool {
        let returns = self.wait(waker);
        std::mem::replace(seen, returns) != returns
    }

    /// Registers a function that is called when usage reaches the high-water mark, and when it has
    /// fallen by a tenth of the maximum below it. The thread that takes or returns a block then
    /// calls it without any lock of the pool held, so it may use the pool. It must not panic, because
    /// a drop may call it, and not drop a [`Listener`](crate::Listener), whose thread may call it. It
    /// must not use a connection: a call of that connection may be what calls it.
    ///
    /// Slots in threads' caches do not count as in use. Threads check the mark when they access the
    /// shared part, so usage may exceed it by some slots when the function is called.
    pub fn on_high_water(&self, call: impl Fn(HighWater) + Send + Sync + 'static) {
        self.core.watch(Arc::new(call));
    }

    /// Returns the slots in this thread's cache to the pool.
    pub fn flush(&self) {
        cache::flush(&self.core);
        if let Some(plain) = self.core.plain.get() {
            cache::flush(&plain.core);
        }
    }

    /// The configuration that it was created with.
    pub fn config(&self) -> &PoolConfig {
        &self.core.config
    }

    /// Statistics of the pool.
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

/// The reason why a pool cannot be created or registered.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// The prewarmed memory is a part of the initial memory.
    #[error(
        "the pool's prewarm {prewarm} is more than its initial {initial} bytes; prewarm less, or begin with more"
    )]
    PrewarmAboveInitial {
        /// Bytes to be prewarmed.
        prewarm: usize,
        /// Initial bytes.
        initial: usize,
    },
    /// The initial memory exceeds the maximum.
    #[error("the pool's initial {initial} is more than its max {max} bytes; begin with less, or allow more")]
    InitialAboveMax {
        /// Initial bytes.
        initial: usize,
        /// The maximum in bytes.
        max: usize,
    },
    /// The maximum has no room for each kind of memory.
    #[error("the pool's max of {max} bytes is too small: the least is {} bytes", PoolConfig::LEAST_MAX)]
    MaxTooSmall {
        /// The maximum in bytes.
        max: usize,
    },
    /// The reservations for receiving exceed the maximum.
    #[error(
        "the pool's max of {max} bytes is too small: receiving has {slots} bytes of slots and {staged} bytes of larger blocks for \
         itself, and so the least is {least} bytes"
    )]
    NoRoomToReceive {
        /// The maximum in bytes.
        max: usize,
        /// The smallest possible maximum.
        least: usize,
        /// Bytes reserved for slots.
        slots: usize,
        /// Bytes reserved for larger blocks.
        staged: usize,
    },
    /// The slot size is out of range, or not a multiple of 64.
    #[error(
        "the slot size {slot_size} is not a multiple of 64 from {} to {}",
        classes::SMALLEST_SLOT,
        classes::LARGEST_SLOT
    )]
    SlotSize {
        /// Size of a slot in bytes.
        slot_size: usize,
    },
    /// The mark is not a valid percentage.
    #[error("the high-water mark of {high_water} % is not from 1 % to 100 %")]
    HighWater {
        /// Percentage of the maximum.
        high_water: u8,
    },
    /// Huge pages are required, and none are available.
    #[error("without the feature `rdma` there are no huge pages: do not require them")]
    NoHugePages,
    /// The system refuses the memory.
    #[error("there is no memory of {bytes} bytes for the pool: {source}")]
    Memory {
        /// The requested bytes.
        bytes: usize,
        /// The reason.
        source: Source,
    },
    /// The device refuses the registration.
    #[error("{bytes} bytes of the pool cannot be registered: {source}")]
    Register {
        /// The bytes to be registered.
        bytes: usize,
        /// The reason.
        source: Source,
    },
    /// The pool has no protection domain, so nothing can be registered.
    #[error("the pool has no protection domain, so no device can reach the memory")]
    NoDomain,
    /// The pool has another protection domain already.
    #[error("the pool is registered in another protection domain; make another pool for this one")]
    OtherDomain,
}

debug_as_text!(PoolError);
