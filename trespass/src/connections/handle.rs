//! A lent connection.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::thread;
use std::time::Instant;

use super::state::Permit;
use crate::session::caller::ConnectionOwner;
use crate::session::connection::Direction;

/// The kinds of connection that a pool lends: [`Stream`](crate::Stream) and
/// [`SeqPacket`](crate::SeqPacket), and those of `trespass::tokio` with the feature `tokio`.
pub trait Pooled: Sealed {}

impl<C: Sealed> Pooled for C {}

/// What a pool needs of a connection. No other crate can name it.
pub trait Sealed: Sized {
    /// Whether calls wait in the system, and not in a task.
    #[doc(hidden)]
    const BLOCKS: bool;

    #[doc(hidden)]
    fn owner(&self) -> Owner<'_>;

    /// Whether nothing shows that it differs from a new one.
    #[doc(hidden)]
    fn is_at_rest(&self) -> bool {
        // A forked child has no connection.
        self.owner().0.shared().and_then(|mut caller| caller.is_at_rest()).unwrap_or(false)
    }
}

/// Hides the connection's owner from the trait's interface.
#[doc(hidden)]
pub struct Owner<'a>(pub(super) &'a ConnectionOwner);

impl fmt::Debug for Owner<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Owner({})", self.0.info)
    }
}

/// Gives a connection the settings that a new one has. Returns whether it is fit for another use.
fn restore<C: Sealed>(connection: &C) -> bool {
    if !connection.is_at_rest() {
        return false;
    }
    let Owner(owner) = connection.owner();
    if C::BLOCKS {
        owner.timeouts.set_nonblocking(false);
    }
    owner.set_linger(None);
    let timeouts = [Direction::Read, Direction::Write].map(|direction| owner.timeouts.set(direction, None));
    let uncorked = owner.shared().and_then(|mut caller| caller.cork(false));
    uncorked.is_ok() && timeouts.iter().all(Result::is_ok)
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
        if self.broken || thread::panicking() || !restore(&connection) {
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
