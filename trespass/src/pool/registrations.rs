//! Memory that programs have handed over ([`Pool::adopt`](super::Pool::adopt)), and its registrations.
//!
//! Whoever registers memory for each message pays more than a copy costs, and whoever keeps every registration pins memory without a
//! bound. So a block is registered when it is first lent, and stays so when it has come back, as long as all that are not lent have no
//! more than so many bytes; the one that was lent the longest ago goes first. There is nothing to be guessed about the memory: the block
//! owns it, so it is neither freed nor anything else while it is registered, and its registration ends with the block.

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Source;
use super::chunk::Chunk;
use super::classes::RegistrationKind;
use super::memory::{PoolDomain, identity};
use super::stats::AdoptedStats;

/// To copy less costs less than to register it.
const LEAST: usize = 16 << 10;

/// The registrations of a pool's adopted blocks. Its lock is held while one is made or ended.
pub(super) struct Registrations {
    /// Bytes that may be registered and not lent.
    most: usize,
    state: Mutex<RegistrationState>,
}

#[derive(Default)]
struct RegistrationState {
    domain: Option<PoolDomain>,
    /// Those that are registered and not lent, the one that was lent the longest ago first. Each lives: it leaves before it ends.
    idle: VecDeque<IdleRegistration>,
    stats: AdoptedStats,
}

struct IdleRegistration(NonNull<Chunk>);

// SAFETY: it is a pointer to a chunk, and a chunk is Sync.
unsafe impl Send for IdleRegistration {}

impl Registrations {
    pub(super) fn new(most: usize, domain: Option<PoolDomain>) -> Self {
        Self { most, state: Mutex::new(RegistrationState { domain, ..RegistrationState::default() }) }
    }

    fn lock(&self) -> MutexGuard<'_, RegistrationState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on there is something to register with.
    #[cfg(feature = "rdma")]
    pub(super) fn set_domain(&self, domain: &PoolDomain) {
        self.lock().domain = Some(domain.clone());
    }

    pub(super) fn stats(&self) -> AdoptedStats {
        self.lock().stats
    }

    /// A block is about to be lent, to a connection over the device of this domain. If it cannot be registered, or is not worth it, it stays as
    /// it is, and is copied; as is what is another device's.
    pub(super) fn lend(&self, chunk: &Chunk, wanted: usize) {
        if chunk.len() < LEAST {
            return;
        }
        let mut state = self.lock();
        let domain = state.domain.clone().filter(|domain| identity(domain) == wanted);
        let Some(domain) = domain else { return };
        if state.remove(chunk) || chunk.lkey().is_some() {
            state.stats.reused += 1;
            return;
        }
        let mut registered = chunk.register(&domain, RegistrationKind::PeerReadable);
        if registered.is_err() && !state.idle.is_empty() {
            state.shrink(0);
            registered = chunk.register(&domain, RegistrationKind::PeerReadable);
        }
        match registered {
            Ok(()) => {
                state.stats.made += 1;
                state.stats.registered += chunk.len();
            }
            Err(cause) => {
                state.stats.refused += 1;
                tracing::debug!(
                    "{} adopted bytes are copied, as they cannot be registered: {cause}",
                    chunk.len()
                );
            }
        }
    }

    /// It has come back to the program.
    pub(super) fn returned(&self, chunk: &Chunk) {
        if chunk.lkey().is_none() {
            return;
        }
        let mut state = self.lock();
        // Where it was lent to a connection that needs no registration it never left.
        state.remove(chunk);
        let idle = IdleRegistration(NonNull::from(chunk));
        // What can never stay makes no other go.
        if chunk.len() > self.most {
            state.idle.push_front(idle)
        } else {
            state.idle.push_back(idle)
        }
        state.shrink(self.most);
    }

    /// It is about to end, and its registration ends.
    pub(super) fn end(&self, chunk: &Chunk) -> Result<(), Source> {
        let mut state = self.lock();
        state.remove(chunk);
        if chunk.lkey().is_some() {
            chunk.deregister()?;
            state.stats.registered -= chunk.len();
        }
        Ok(())
    }
}

impl RegistrationState {
    /// Takes one out of those that are not lent. Whether it was one.
    fn remove(&mut self, chunk: &Chunk) -> bool {
        let at = self.idle.iter().rposition(|idle| std::ptr::eq(idle.0.as_ptr(), chunk));
        at.and_then(|at| self.idle.remove(at)).is_some()
    }

    /// Ends registrations until the rest has no more than so many bytes.
    fn shrink(&mut self, most: usize) {
        // SAFETY: what is idle lives: `end` takes a chunk out, under this lock, before it ends.
        let chunk = |idle: &IdleRegistration| -> &Chunk { unsafe { idle.0.as_ref() } };
        let mut bytes: usize = self.idle.iter().map(|idle| chunk(idle).len()).sum();
        while bytes > most
            && let Some(idle) = self.idle.pop_front()
        {
            let chunk = chunk(&idle);
            bytes -= chunk.len();
            match chunk.deregister() {
                Ok(()) => {
                    self.stats.ended += 1;
                    self.stats.registered -= chunk.len();
                }
                // It stays registered until it ends, and tries again then.
                Err(cause) => tracing::error!("{} adopted bytes stay registered: {cause}", chunk.len()),
            }
        }
    }
}
