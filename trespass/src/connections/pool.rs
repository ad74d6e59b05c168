//! A pool, and what its calls have in common, whether they block or are awaited.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::builder::ConnectionPoolBuilder;
use super::error::GetError;
use super::handle::{Pooled, PooledConnection};
use super::hosts::Hosts;
use super::retry::{self, Retry};
use super::state::{Acquired, ConnectionPoolStats, Granted, Limits, Permit, Shared};
use crate::config::Config;

/// A pool of connections of the kind `C`: [`Stream`](crate::Stream), [`SeqPacket`](crate::SeqPacket),
/// or one of `trespass::tokio` or `trespass::local`.
///
/// Threads and tasks share it by reference, or by clones, which are the same pool.
pub struct ConnectionPool<C> {
    pub(super) target: Arc<Target>,
    pub(super) shared: Arc<Shared<C>>,
}

/// What a pool connects to, and how.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) hosts: Hosts,
    pub(super) config: Config,
    pub(super) retry: Retry,
    pub(super) timeout: Duration,
}

impl<C: Pooled> ConnectionPool<C> {
    /// A builder of a pool for a service: an address, or a name as `HOST:PORT`.
    pub fn builder(host: impl ToString) -> ConnectionPoolBuilder<C> {
        ConnectionPoolBuilder::new(host.to_string())
    }

    pub(super) fn new(target: Target, limits: Limits) -> Self {
        Self { target: Arc::new(target), shared: Shared::new(limits) }
    }

    /// Begins a call.
    pub(super) fn acquire(&self) -> (Acquired<C>, Attempts) {
        let now = Instant::now();
        self.shared.expire(now);
        let attempts = Attempts { failed: 0, deadline: now.checked_add(self.target.timeout) };
        (self.shared.acquire(), attempts)
    }

    pub(super) fn exhausted(&self) -> GetError {
        GetError::Exhausted { maximum: self.shared.limits().maximum, timeout: self.target.timeout }
    }

    /// Lends an idle connection that is as a new one.
    pub(super) fn reuse(&self, (permit, mut found): Granted<C>) -> Result<PooledConnection<C>, Permit<C>> {
        while let Some(connection) = found {
            if connection.is_at_rest() {
                permit.count_reused();
                return Ok(PooledConnection::new(connection, permit));
            }
            permit.evict(connection);
            found = permit.idle();
        }
        Err(permit)
    }

    /// Lends a connection that was just made.
    pub(super) fn lend_new(permit: Permit<C>, connection: C) -> PooledConnection<C> {
        permit.count_made();
        PooledConnection::new(connection, permit)
    }

    /// Records that a host has accepted.
    pub(super) fn accepted(&self, host: usize, connection: C) -> C {
        self.target.hosts.accepted(host);
        connection
    }

    /// Records that a host did not resolve, or an address did not accept.
    pub(super) fn failed(&self, error: io::Error) -> io::Error {
        tracing::debug!(%error, "a host of the pool does not accept");
        self.shared.connect_failed();
        error
    }
}

impl<C> ConnectionPool<C> {
    pub(crate) fn maximum(&self) -> usize {
        self.shared.limits().maximum
    }

    /// The pool's numbers.
    #[must_use]
    pub fn stats(&self) -> ConnectionPoolStats {
        self.shared.stats()
    }
}

impl<C> Clone for ConnectionPool<C> {
    fn clone(&self) -> Self {
        Self { target: self.target.clone(), shared: self.shared.clone() }
    }
}

impl<C> fmt::Debug for ConnectionPool<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionPool").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

/// The error of hosts that have no addresses.
pub(super) fn no_address() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "the name has no addresses")
}

/// The attempts of one call.
#[derive(Debug)]
pub(super) struct Attempts {
    failed: u32,
    pub(super) deadline: Option<Instant>,
}

impl Attempts {
    /// The error of a call that makes one attempt.
    pub(super) fn only(source: io::Error) -> GetError {
        GetError::Connect { attempts: 1, source }
    }

    /// The pause before the next attempt, or the error of the call.
    pub(super) fn failed(&mut self, retry: Retry, source: io::Error) -> Result<Duration, GetError> {
        self.failed += 1;
        retry
            .pause_after(self.failed, Instant::now(), self.deadline, retry::random())
            .ok_or(GetError::Connect { attempts: self.failed, source })
    }
}
