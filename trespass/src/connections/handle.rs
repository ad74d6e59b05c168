//! A lent connection.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::thread;
use std::time::Instant;

use super::state::Permit;
use crate::session::caller::ConnectionOwner;
use crate::session::connection::Direction;

/// The kinds of connection that a pool lends: [`Stream`](crate::Stream) and
/// [`SeqPacket`](crate::SeqPacket), and those of `trespass::tokio` and `trespass::local` with the
/// features `tokio` and `local`.
pub trait Pooled: Sealed {}

impl<C: Sealed> Pooled for C {}

/// What a pool needs of a connection. No other crate can name it.
pub trait Sealed: Sized {
    /// Whether nothing shows that it differs from a new one.
    #[doc(hidden)]
    fn is_at_rest(&self) -> bool;

    /// Gives a connection the settings that a new one has. Returns whether it is fit for another use.
    #[doc(hidden)]
    fn restore(&self) -> bool;
}

/// The kinds of connection whose parameters are the pool's. Those of `trespass::local` have their
/// runtime's.
pub trait Configured: Sealed {}

/// [`Sealed::is_at_rest`] of a connection that a worker does not have.
pub(super) fn is_at_rest(owner: &ConnectionOwner) -> bool {
    // A forked child has no connection.
    owner.shared().and_then(|mut caller| caller.is_at_rest()).unwrap_or(false)
}

/// [`Sealed::restore`] of a connection that a worker does not have.
pub(super) fn restore(owner: &ConnectionOwner, blocks: bool) -> bool {
    if !is_at_rest(owner) {
        return false;
    }
    if blocks {
        owner.timeouts.set_nonblocking(false);
    }
    owner.set_linger(None);
    let timeouts = [Direction::Read, Direction::Write].map(|direction| owner.timeouts.set(direction, None));
    let uncorked = owner.shared().and_then(|mut caller| caller.cork(false));
    uncorked.is_ok() && timeouts.iter().all(Result::is_ok)
}

/// The place of a connection that was taken out of a pool. A drop frees it.
pub(crate) struct TakenPlace<C>(Permit<C>);

impl<C> Drop for TakenPlace<C> {
    fn drop(&mut self) {
        self.0.count_evicted();
    }
}

/// A connection that a pool has lent. A drop returns it.
///
/// See [the module](super#what-a-returned-connection-must-be) for what it must be then.
pub struct PooledConnection<C: Pooled> {
    /// `None` once it is on its way back.
    lent: Option<(C, Permit<C>)>,
    broken: bool,
}

impl<C: Pooled> PooledConnection<C> {
    pub(super) fn new(connection: C, permit: Permit<C>) -> Self {
        Self { lent: Some((connection, permit)), broken: false }
    }

    /// Closes the connection instead of returning it.
    pub fn discard(mut self) {
        self.broken = true;
    }

    /// Has the drop close the connection, for example after a call that failed or timed out, because a
    /// late answer would be the next call's.
    pub fn mark_broken(&mut self) {
        self.broken = true;
    }

    /// Takes [`mark_broken`](Self::mark_broken) back, for example after the whole answer has arrived.
    pub fn mark_usable(&mut self) {
        self.broken = false;
    }

    /// Takes the connection out of the pool, where it keeps its place.
    pub(crate) fn take_out(mut self) -> (C, TakenPlace<C>) {
        let (connection, permit) = self.lent.take().expect("only the drop takes it");
        (connection, TakenPlace(permit))
    }

    fn connection(&self) -> &C {
        let (connection, _) = self.lent.as_ref().expect("only the drop takes it");
        connection
    }
}

impl<C: Pooled> Deref for PooledConnection<C> {
    type Target = C;

    fn deref(&self) -> &C {
        self.connection()
    }
}

impl<C: Pooled> DerefMut for PooledConnection<C> {
    fn deref_mut(&mut self) -> &mut C {
        let (connection, _) = self.lent.as_mut().expect("only the drop takes it");
        connection
    }
}

impl<C: Pooled> Drop for PooledConnection<C> {
    fn drop(&mut self) {
        let Some((connection, permit)) = self.lent.take() else { return };
        if self.broken || thread::panicking() || !connection.restore() {
            permit.evict(connection);
        } else {
            permit.put_back(connection, Instant::now());
        }
    }
}

impl<C: Pooled + fmt::Debug> fmt::Debug for PooledConnection<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.connection().fmt(f)
    }
}
