//! A connect in progress: a client's handshake, and the poller that reports its events.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
#[cfg(unix)]
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Instant;

use mio::Token;
use mio::event::Event;

use crate::config::Config;
use crate::pool::Pool;
use crate::process::Process;
use crate::session::connection::Connection;
use crate::session::pending::PendingHandshake;
use crate::session::readiness::{Poller, Until};
use crate::session::service::{self, NextTurn, Place, ServiceTask, Task};
use crate::session::wake::WakeHandle;
use crate::wire::Kind;

const _: () = {
    const fn is_send_and_sync<T: Send + Sync>() {}
    is_send_and_sync::<PendingConnect>();
};

/// The token of the one handshake in its poller.
const HANDSHAKE: Token = Token(0);

/// A connect in progress.
pub(crate) struct PendingConnect {
    /// `None` after the end.
    handshake: Option<PendingHandshake>,
    peer: SocketAddr,
    config: Config,
    pool: Pool,
    poller: Poller,
    process: Process,
    /// Whether the program has the poller's descriptor.
    exported: AtomicBool,
}

impl PendingConnect {
    /// Begins to connect, without waiting for the peer, for a program that gets the descriptor.
    pub(crate) fn start(config: &Config, peer: SocketAddr, kind: Kind, pool: &Pool) -> io::Result<Self> {
        let pending = Self::start_unexported(config, peer, kind, pool)?;
        pending.poller.add_waker()?;
        Ok(pending)
    }

    /// The same for a thread that [waits](Self::wait) at once.
    pub(crate) fn start_unexported(
        config: &Config,
        peer: SocketAddr,
        kind: Kind,
        pool: &Pool,
    ) -> io::Result<Self> {
        // Closes and destroys what even a failed connect leaves.
        if let Err(error) = service::prepare() {
            tracing::debug!(%error, "a drop with unsent bytes will need the service thread");
        }
        let poller = Poller::without_waker(1, WakeHandle::new())?;
        let mut handshake = PendingHandshake::connecting(peer, kind, config, None)?;
        handshake.register(poller.registry(), HANDSHAKE)?;
        Ok(Self {
            handshake: Some(handshake),
            peer,
            config: config.clone(),
            pool: pool.clone(),
            poller,
            process: Process::current(),
            exported: AtomicBool::new(false),
        })
    }

    pub(crate) fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// When to continue at the latest.
    pub(crate) fn deadline(&mut self) -> Instant {
        self.handshake.as_mut().map_or_else(Instant::now, |handshake| handshake.deadline(&self.config))
    }

    /// Continues without waiting. The result is returned once.
    pub(crate) fn poll(&mut self) -> Poll<io::Result<Connection>> {
        if !self.process.is_current() {
            return Poll::Ready(Err(Process::error("connection")));
        }
        // What arrives after this is a new event, for a program that waits for edges.
        self.poller.wait(Until::Now, |_| ())?;
        let result = self.progress();
        if result.is_pending() && *self.exported.get_mut() {
            let deadline = self.deadline();
            self.poller.wake_at(Some(deadline));
        }
        result
    }

    /// Waits for the result.
    pub(crate) fn wait(mut self) -> io::Result<Connection> {
        if !self.process.is_current() {
            return Err(Process::error("connection"));
        }
        loop {
            if let Poll::Ready(result) = self.progress() {
                return result;
            }
            let deadline = self.deadline();
            self.poller.wait(Until::Deadline(deadline), |_| ())?;
        }
    }

    fn progress(&mut self) -> Poll<io::Result<Connection>> {
        let Some(handshake) = &mut self.handshake else {
            let text = "the connect has ended, and its result was returned";
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidInput, text)));
        };
        let registry = self.poller.registry();
        let result = handshake.progress(&self.config, &self.pool, Instant::now(), registry, HANDSHAKE);
        let Poll::Ready(result) = result else { return Poll::Pending };
        let result = handshake.deregister(registry).and(result);
        Poll::Ready(match (result, self.handshake.take()) {
            (Ok(()), Some(handshake)) => handshake.finish(&self.config, &self.pool),
            (Err(error), Some(handshake)) => {
                give_up(handshake);
                Err(error)
            }
            (result, None) => result.and(Err(io::ErrorKind::NotConnected.into())),
        })
    }

    /// The poller's descriptor. The first export fires the waker, because earlier events are unknown
    /// to the program.
    #[cfg(unix)]
    pub(crate) fn descriptor(&self) -> std::os::fd::BorrowedFd<'_> {
        if !self.exported.swap(true, Ordering::Relaxed) {
            self.poller.wake();
        }
        self.poller.descriptor()
    }
}

impl Drop for PendingConnect {
    fn drop(&mut self) {
        let Some(mut handshake) = self.handshake.take() else { return };
        if !self.process.is_current() {
            return handshake.forget_in_child();
        }
        if let Err(error) = handshake.deregister(self.poller.registry()) {
            tracing::debug!(peer = %self.peer, %error, "a descriptor stays in the set");
        }
        give_up(handshake);
    }
}

/// Drops a handshake. The service thread drops one with a queue pair, because a device may delay
/// that.
fn give_up(handshake: PendingHandshake) {
    if !handshake.has_queue_pair() {
        return;
    }
    match ServiceTask::start(|_| Ok(GivenUp(Some(handshake)))) {
        Ok(task) => task.detach(),
        Err(error) => tracing::debug!(%error, "this thread ends the queue pair of a failed connect"),
    }
}

/// A handshake that is dropped in the first turn.
struct GivenUp(Option<PendingHandshake>);

impl Task for GivenUp {
    fn turn(&mut self, _: &Place, _: &[&Event], _: Instant) -> NextTurn {
        self.0 = None;
        NextTurn::Never
    }

    fn failed(&mut self, _: &Place) {}
}
