//! The listener: it accepts connections, and drives the handshakes of its clients side by side.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, ToSocketAddrs};
use std::task::Poll;
use std::time::{Duration, Instant};

use mio::Token;

use crate::api::seq_packet::SeqPacket;
use crate::api::stream::Stream;
use crate::config::{Builder, Config};
use crate::pool::Pool;
use crate::session::acceptor::Acceptor;
use crate::session::blocking::{Timeouts, timed_out};
use crate::session::connection::Connection;
use crate::session::connection::Direction;
use crate::session::pending::PendingHandshake;
use crate::session::readiness::{Poller, Until};
use crate::transport::pools::{pool_of, usable_pool};
use crate::wire::Kind;

/// Handshakes that may be under way at a time. Whoever else comes waits in the system's queue.
const MAX_HANDSHAKES: usize = 128;

/// The key of what listens; handshakes have those below.
const ACCEPTOR: Token = Token(MAX_HANDSHAKES);

/// Accepts connections, used as [`std::net::TcpListener`] is; also where they begin with rdma_cm ([`Builder::bootstrap`]).
///
/// All of its work is done in the calls to accept, on their thread. The handshakes of several clients go on side by side, each
/// with a deadline ([`Builder::handshake_deadline`]), so that a client which says nothing, or nothing sensible, holds up nobody. What
/// was wrong with a client is told to the trace; the listener goes on.
///
/// A listener accepts either streams or messages. A client of the other kind is rejected with words.
pub struct Listener {
    acceptor: Acceptor,
    local: SocketAddr,
    config: Config,
    pool: Pool,
    poller: Poller,
    handshakes: Vec<Option<PendingHandshake>>,
    ready: VecDeque<Connection>,
    timeouts: Timeouts,
    may_accept: bool,
}

impl Listener {
    /// Listens, with everything at its start value.
    ///
    /// # Errors
    ///
    /// As [`std::net::TcpListener::bind`], and what the environment says is refused ([`Builder`]).
    pub fn bind(addr: impl ToSocketAddrs) -> io::Result<Self> {
        Builder::new().bind(addr)
    }

    pub(crate) fn new(mut acceptor: Acceptor, config: &Config) -> io::Result<Self> {
        let local = acceptor.local_addr()?;
        let poller = Poller::new(MAX_HANDSHAKES)?;
        acceptor.register(poller.registry(), ACCEPTOR)?;
        Ok(Self {
            acceptor,
            local,
            pool: pool_of(config)?,
            config: config.clone(),
            poller,
            handshakes: Vec::new(),
            ready: VecDeque::new(),
            timeouts: Timeouts::default(),
            may_accept: true,
        })
    }

    /// Where it listens.
    ///
    /// # Errors
    ///
    /// None: it is a result as [`std::net`] has it.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.local)
    }

    /// Whether accepting returns [`WouldBlock`](ErrorKind::WouldBlock) instead of waiting. What it accepts waits in any case, until
    /// it is told otherwise.
    ///
    /// # Errors
    ///
    /// None: it is a result as [`std::net`] has it.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.timeouts.set_nonblocking(nonblocking);
        Ok(())
    }

    /// How long accepting waits for a client whose handshake is done; `None`, as at the start, is for ever. When the time is up it fails as
    /// a read does whose time is up ([`Stream::set_read_timeout`]), and nobody is lost: who is in the middle of a handshake then is for the
    /// next call. What it accepts waits for ever in any case, until it is told otherwise.
    ///
    /// # Errors
    ///
    /// A time of zero is refused.
    pub fn set_accept_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.timeouts.set(Direction::Read, timeout)
    }

    /// What [`set_accept_timeout`](Self::set_accept_timeout) has set.
    ///
    /// # Errors
    ///
    /// None: it is a result as [`std::net`] has it.
    pub fn accept_timeout(&self) -> io::Result<Option<Duration>> {
        Ok(self.timeouts.get(Direction::Read))
    }

    /// Accepts a stream, and says whose.
    ///
    /// # Errors
    ///
    /// The system cannot accept, for want of descriptors for example; nobody has come in time
    /// ([`set_accept_timeout`](Self::set_accept_timeout)). The next call may.
    pub fn accept(&mut self) -> io::Result<(Stream, SocketAddr)> {
        let connection = self.accept_kind(Kind::Stream)?;
        let peer = connection.info.peer;
        Ok((Stream::new(connection)?, peer))
    }

    /// Accepts a connection for messages, and says whose.
    ///
    /// # Errors
    ///
    /// As [`accept`](Self::accept).
    pub fn accept_seq_packet(&mut self) -> io::Result<(SeqPacket, SocketAddr)> {
        let connection = self.accept_kind(Kind::SeqPacket)?;
        let peer = connection.info.peer;
        Ok((SeqPacket::new(connection)?, peer))
    }

    /// Streams, one after the other, without end.
    pub fn incoming(&mut self) -> Incoming<'_> {
        Incoming(self)
    }

    fn accept_kind(&mut self, kind: Kind) -> io::Result<Connection> {
        let outcome = self.wait_for(kind);
        if self.poller.is_exported() {
            let at = self.next_deadline();
            let will_wake = self.poller.wake_at(at);
            // Who has to wait for room is taken in when it is time.
            let may_accept = self.may_accept && !(will_wake && self.is_full());
            if may_accept || !self.ready.is_empty() {
                self.poller.wake();
            }
        }
        outcome
    }

    fn wait_for(&mut self, kind: Kind) -> io::Result<Connection> {
        let deadline = self.timeouts.begin(Direction::Read);
        let mut polls_again = true;
        loop {
            self.accept_pending(kind)?;
            if let Some(at) = self.ready.iter().position(|connection| connection.info.kind == kind)
                && let Some(connection) = self.ready.remove(at)
            {
                return Ok(connection);
            }
            if !polls_again {
                return Err(timed_out(deadline));
            }
            // When time is up there is a last look at what has happened. What goes on happening, of clients that are never done, is
            // no reason to look for longer.
            let over = deadline.is_over();
            let until = deadline.or(self.next_deadline());
            let happened = self.sleep(until)?;
            polls_again = !over || happened && matches!(deadline, Until::Now);
        }
    }

    /// Sleeps, and goes on with those handshakes that something happened to. Whether something did.
    fn sleep(&mut self, until: Until) -> io::Result<bool> {
        let (mut happened, mut moved) = (false, [false; MAX_HANDSHAKES]);
        let may_accept = &mut self.may_accept;
        self.poller.wait(until, |event| {
            happened = true;
            match event.token() {
                ACCEPTOR => *may_accept = true,
                Token(at) => moved[at] = true,
            }
        })?;
        let now = Instant::now();
        for (at, moved) in moved.into_iter().enumerate().take(self.handshakes.len()) {
            let late =
                self.handshakes[at].as_mut().is_some_and(|handshake| handshake.deadline(&self.config) <= now);
            if moved || late {
                self.progress_handshake(at);
            }
        }
        Ok(happened)
    }

    /// Accepts whoever waits, as long as there is room.
    fn accept_pending(&mut self, kind: Kind) -> io::Result<()> {
        while self.may_accept {
            let Some(at) = self.free_place() else { return Ok(()) };
            let client = match self.acceptor.accept() {
                Ok(client) => client,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.may_accept = false;
                    break;
                }
                // Of a client that has gone again.
                Err(error)
                    if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::Interrupted) =>
                {
                    continue;
                }
                Err(error) => return Err(error),
            };
            let peer = client.peer();
            self.pool = usable_pool(&self.pool, &self.config)?;
            let handshake = PendingHandshake::accepted(client, kind, &self.config, &self.pool, None)
                .and_then(|mut handshake| {
                    handshake.register(self.poller.registry(), Token(at)).map(|()| handshake)
                });
            match handshake {
                Ok(handshake) => self.handshakes[at] = Some(handshake),
                Err(error) => tracing::debug!(%peer, %error, "cannot begin its handshake"),
            }
            self.progress_handshake(at);
        }
        Ok(())
    }

    /// A place for one more, if there is one, or somebody has had his chance.
    fn free_place(&mut self) -> Option<usize> {
        if let Some(free) = self.handshakes.iter().position(Option::is_none) {
            return Some(free);
        }
        if self.handshakes.len() < MAX_HANDSHAKES {
            self.handshakes.push(None);
            return Some(self.handshakes.len() - 1);
        }
        let (slowest, grace_until) = (0..MAX_HANDSHAKES)
            .filter_map(|at| self.handshakes[at].as_ref().map(|handshake| (at, handshake.grace_until())))
            .min_by_key(|(_, grace_until)| *grace_until)?;
        (grace_until <= Instant::now()).then(|| {
            if let Some(handshake) = self.take_handshake(slowest) {
                tracing::debug!(peer = %handshake.peer(), "makes room for others: its handshake takes too long");
            }
            slowest
        })
    }

    /// Whether there is no room, and everybody is to have his chance yet.
    fn is_full(&self) -> bool {
        let now = Instant::now();
        let waits = |handshake: &Option<PendingHandshake>| {
            handshake.as_ref().is_some_and(|handshake| handshake.grace_until() > now)
        };
        self.handshakes.len() == MAX_HANDSHAKES && self.handshakes.iter().all(waits)
    }

    fn take_handshake(&mut self, at: usize) -> Option<PendingHandshake> {
        let mut handshake = self.handshakes[at].take()?;
        if let Err(error) = handshake.deregister(self.poller.registry()) {
            tracing::error!(%error, "a descriptor stays in the set of its listener");
        }
        Some(handshake)
    }

    /// Goes on with a handshake.
    fn progress_handshake(&mut self, at: usize) {
        let Some(handshake) = &mut self.handshakes[at] else { return };
        let peer = handshake.peer();
        let (now, registry) = (Instant::now(), self.poller.registry());
        let Poll::Ready(result) = handshake.progress(&self.config, &self.pool, now, registry, Token(at))
        else {
            return;
        };
        let Some(handshake) = self.take_handshake(at) else { return };
        match result.and_then(|()| handshake.finish(&self.config, &self.pool)) {
            Ok(connection) => self.ready.push_back(connection),
            Err(error) => tracing::info!(%peer, %error, "a client is not accepted"),
        }
    }

    /// When something is to be done whatever happens.
    fn next_deadline(&mut self) -> Option<Instant> {
        let room = self
            .may_accept
            .then(|| self.handshakes.iter().flatten().map(PendingHandshake::grace_until).min())
            .flatten();
        let late =
            self.handshakes.iter_mut().flatten().map(|handshake| handshake.deadline(&self.config)).min();
        room.into_iter().chain(late).min()
    }
}

/// The streams of [`Listener::incoming`].
#[derive(Debug)]
pub struct Incoming<'a>(&'a mut Listener);

impl Iterator for Incoming<'_> {
    type Item = io::Result<Stream>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.0.accept().map(|(stream, _)| stream))
    }
}

/// The descriptor to wait for: it is readable when a connection can be accepted, and may be so for nothing.
#[cfg(unix)]
impl std::os::fd::AsFd for Listener {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.poller.export_descriptor()
    }
}

#[cfg(unix)]
impl std::os::fd::AsRawFd for Listener {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        std::os::fd::AsFd::as_fd(self).as_raw_fd()
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Listener({})", self.local)
    }
}
