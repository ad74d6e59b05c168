//! A bounded cache of registrations of adopted memory ([`Pool::adopt`](super::Pool::adopt)).
//!
//! Registering memory for each message costs more than a copy, and keeping every registration pins
//! memory without bound. A block is therefore registered when it is first lent, and stays
//! registered after its return, while all registered blocks that are not lent stay below a limit;
//! the least recently lent one is deregistered first. No registration can become stale, because the
//! block owns its memory: it is neither freed nor reused while it is registered, and its
//! registration ends with the block.

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Source;
use super::chunk::Chunk;
use super::classes::RegistrationKind;
use super::memory::DomainSet;
use super::stats::AdoptedStats;
use crate::process::Process;

/// Below this size a copy is cheaper than a registration.
const LEAST: usize = 16 << 10;

/// The registrations of a pool's adopted blocks. Its lock is held while one is made or ended.
pub(super) struct Registrations {
    /// A forked child ends none, because the parent has them, and perhaps locked them at the fork.
    process: Process,
    /// The most bytes that may be registered and not lent.
    most: usize,
    state: Mutex<RegistrationState>,
}

#[derive(Default)]
pub(super) struct RegistrationState {
    domains: Option<DomainSet>,
    /// Registered blocks that are not lent, the least recently lent one first. Each lives, because
    /// it leaves this list before it ends.
    idle: VecDeque<IdleRegistration>,
    stats: AdoptedStats,
}

struct IdleRegistration(NonNull<Chunk>);

// SAFETY: the pointer leads to a chunk, which is Sync.
unsafe impl Send for IdleRegistration {}

impl Registrations {
    pub(super) fn new(most: usize, domains: Option<DomainSet>) -> Self {
        Self {
            process: Process::current(),
            most,
            state: Mutex::new(RegistrationState { domains, ..RegistrationState::default() }),
        }
    }

    /// Whether this process is a forked child of the one that made them.
    pub(super) fn are_of_parent(&self) -> bool {
        !self.process.is_current()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, RegistrationState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the domains for later registrations.
    #[cfg(feature = "rdma")]
    pub(super) fn set_domains(&self, domains: &DomainSet) {
        self.lock().domains = Some(domains.clone());
    }

    pub(super) fn stats(&self) -> AdoptedStats {
        self.lock().stats
    }

    /// Prepares lending a block to a connection over the devices of these domains. A block that
    /// cannot be registered, is too short, or is registered with other devices stays as it is, and
    /// its bytes are copied.
    pub(super) fn lend(&self, chunk: &Chunk, wanted: usize) {
        if chunk.len() < LEAST {
            return;
        }
        let mut state = self.lock();
        let domains = state.domains.clone().filter(|domains| domains.identity() == wanted);
        let Some(domains) = domains else { return };
        if state.remove(chunk) || chunk.is_registered() {
            state.stats.reused += 1;
            return;
        }
        match state.register(chunk, &domains) {
            Ok(()) => state.stats.made += 1,
            Err(cause) => {
                state.stats.refused += 1;
                tracing::debug!(
                    "{} adopted bytes are copied, as they cannot be registered: {cause}",
                    chunk.len()
                );
            }
        }
    }

    /// Notes that a block has returned to the program.
    pub(super) fn returned(&self, chunk: &Chunk) {
        if !chunk.is_registered() {
            return;
        }
        let mut state = self.lock();
        // A block that was lent to a connection without a device never left the list.
        state.remove(chunk);
        let idle = IdleRegistration(NonNull::from(chunk));
        // A block above the limit displaces no other, because it cannot stay.
        if chunk.len() > self.most {
            state.idle.push_front(idle)
        } else {
            state.idle.push_back(idle)
        }
        state.shrink(self.most);
    }

    /// Ends the registration of a block that is about to end.
    pub(super) fn end(&self, chunk: &Chunk) -> Result<(), Source> {
        if self.are_of_parent() {
            return Err("the process has forked, and the memory belongs to its parent".into());
        }
        let mut state = self.lock();
        state.remove(chunk);
        state.end(chunk)
    }
}

impl RegistrationState {
    /// Removes a block from the list; returns whether it was there.
    fn remove(&mut self, chunk: &Chunk) -> bool {
        let at = self.idle.iter().rposition(|idle| std::ptr::eq(idle.0.as_ptr(), chunk));
        at.and_then(|at| self.idle.remove(at)).is_some()
    }

    /// Registers a block that is not idle. To make room, it ends the registrations of those that are.
    fn register(&mut self, chunk: &Chunk, domains: &DomainSet) -> Result<(), Source> {
        self.end(chunk)?;
        let mut registered = chunk.register(domains, RegistrationKind::PeerReadable);
        if registered.is_err() && !self.idle.is_empty() {
            self.shrink(0);
            registered = chunk.register(domains, RegistrationKind::PeerReadable);
        }
        if chunk.has_region() {
            self.stats.registered += chunk.len();
        }
        registered
    }

    /// Ends the registration of a block, also of one that only some devices have ended.
    fn end(&mut self, chunk: &Chunk) -> Result<(), Source> {
        if chunk.has_region() {
            chunk.deregister()?;
            self.stats.registered -= chunk.len();
        }
        Ok(())
    }

    /// Ends registrations until the rest has at most `most` bytes.
    fn shrink(&mut self, most: usize) {
        // SAFETY: an idle chunk lives: `end` removes it from the list, under this lock, before it
        // ends.
        let chunk = |idle: &IdleRegistration| -> &Chunk { unsafe { idle.0.as_ref() } };
        let mut bytes: usize = self.idle.iter().map(|idle| chunk(idle).len()).sum();
        while bytes > most
            && let Some(idle) = self.idle.pop_front()
        {
            let chunk = chunk(&idle);
            bytes -= chunk.len();
            match self.end(chunk) {
                Ok(()) => self.stats.ended += 1,
                // It stays registered until it ends, which tries again.
                Err(cause) => tracing::error!("{} adopted bytes stay registered: {cause}", chunk.len()),
            }
        }
    }
}
