//! Accepting connections.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, ToSocketAddrs};
use std::task::Poll;
use std::time::{Duration, Instant};

use mio::Token;

use crate::arrivals::Arrival;
use crate::builder::{Builder, Config};
use crate::connect::{lasting, pool_of};
use crate::door::Door;
use crate::engine::{Patience, Side, waited_enough};
use crate::lane::Lane;
use crate::pool::Pool;
use crate::readiness::{Bell, Until};
use crate::seq_packet::SeqPacket;
use crate::stream::Stream;
use crate::wire::Kind;

/// Handshakes that may be under way at a time. Whoever else comes waits in the system's queue.
const ARRIVALS: usize = 128;

/// The key of what listens; arrivals have those below.
const DOOR: Token = Token(ARRIVALS);

/// Accepts connections, used as [`std::net::TcpListener`] is; also where they begin with rdma_cm ([`Builder::bootstrap`]).
///
/// All of its work is done in the calls to accept, on their thread. The handshakes of several clients go on side by side, each
/// with a deadline ([`Builder::handshake_deadline`]), so that a client which says nothing, or nothing sensible, holds up nobody. What
/// was wrong with a client is told to the trace; the listener goes on.
///
/// A listener accepts either streams or messages. A client of the other kind is rejected with words.
pub struct Listener {
    door: Door,
    local: SocketAddr,
    config: Config,
    pool: Pool,
    bell: Bell,
    arrivals: Vec<Option<Arrival>>,
    ready: VecDeque<Lane>,
    patience: Patience,
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

    pub(crate) fn new(mut door: Door, config: &Config) -> io::Result<Self> {
        let local = door.local_addr()?;
        let bell = Bell::new(ARRIVALS)?;
        door.register(bell.registry(), DOOR)?;
        Ok(Self {
            door,
            local,
            pool: pool_of(config)?,
            config: config.clone(),
            bell,
            arrivals: Vec::new(),
            ready: VecDeque::new(),
            patience: Patience::default(),
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
        self.patience.set_nonblocking(nonblocking);
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
        self.patience.set(Side::Read, timeout)
    }

    /// What [`set_accept_timeout`](Self::set_accept_timeout) has set.
    ///
    /// # Errors
    ///
    /// None: it is a result as [`std::net`] has it.
    pub fn accept_timeout(&self) -> io::Result<Option<Duration>> {
        Ok(self.patience.get(Side::Read))
    }

    /// Accepts a stream, and says whose.
    ///
    /// # Errors
    ///
    /// The system cannot accept, for want of descriptors for example; nobody has come in time
    /// ([`set_accept_timeout`](Self::set_accept_timeout)). The next call may.
    pub fn accept(&mut self) -> io::Result<(Stream, SocketAddr)> {
        let lane = self.accept_kind(Kind::Stream)?;
        let peer = lane.about.peer;
        Ok((Stream::new(lane)?, peer))
    }

    /// Accepts a connection for messages, and says whose.
    ///
    /// # Errors
    ///
    /// As [`accept`](Self::accept).
    pub fn accept_seq_packet(&mut self) -> io::Result<(SeqPacket, SocketAddr)> {
        let lane = self.accept_kind(Kind::SeqPacket)?;
        let peer = lane.about.peer;
        Ok((SeqPacket::new(lane)?, peer))
    }

    /// Streams, one after the other, without end.
    pub fn incoming(&mut self) -> Incoming<'_> {
        Incoming(self)
    }

    fn accept_kind(&mut self, kind: Kind) -> io::Result<Lane> {
        let outcome = self.wait_for(kind);
        if self.bell.is_handed_out() {
            let at = self.next_deadline();
            let will_wake = self.bell.wake_at(at);
            // Who has to wait for room is taken in when it is time.
            let may_accept = self.may_accept && !(will_wake && self.is_full());
            if may_accept || !self.ready.is_empty() {
                self.bell.ring();
            }
        }
        outcome
    }

    fn wait_for(&mut self, kind: Kind) -> io::Result<Lane> {
        let patience = self.patience.begin(Side::Read);
        let mut looks_again = true;
        loop {
            self.take_in(kind)?;
            if let Some(at) = self.ready.iter().position(|lane| lane.about.kind == kind)
                && let Some(lane) = self.ready.remove(at)
            {
                return Ok(lane);
            }
            if !looks_again {
                return Err(waited_enough(patience));
            }
            // When time is up there is a last look at what has happened. What goes on happening, of clients that are never done, is
            // no reason to look for longer.
            let over = patience.is_over();
            let until = patience.or(self.next_deadline());
            let happened = self.sleep(until)?;
            looks_again = !over || happened && matches!(patience, Until::Now);
        }
    }

    /// Sleeps, and goes on with those handshakes that something happened to. Whether something did.
    fn sleep(&mut self, until: Until) -> io::Result<bool> {
        let (mut happened, mut moved) = (false, [false; ARRIVALS]);
        let may_accept = &mut self.may_accept;
        self.bell.wait(until, |event| {
            happened = true;
            match event.token() {
                DOOR => *may_accept = true,
                Token(at) => moved[at] = true,
            }
        })?;
        let now = Instant::now();
        for (at, moved) in moved.into_iter().enumerate().take(self.arrivals.len()) {
            let late =
                self.arrivals[at].as_mut().is_some_and(|arrival| arrival.deadline(&self.config) <= now);
            if moved || late {
                self.go_on(at);
            }
        }
        Ok(happened)
    }

    /// Accepts whoever waits, as long as there is room.
    fn take_in(&mut self, kind: Kind) -> io::Result<()> {
        while self.may_accept {
            let Some(at) = self.room() else { return Ok(()) };
            let visitor = match self.door.accept() {
                Ok(visitor) => visitor,
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
            let peer = visitor.peer();
            self.pool = lasting(&self.pool, &self.config)?;
            let arrival = Arrival::accepted(visitor, kind, &self.config, &self.pool, None)
                .and_then(|mut arrival| arrival.register(self.bell.registry(), Token(at)).map(|()| arrival));
            match arrival {
                Ok(arrival) => self.arrivals[at] = Some(arrival),
                Err(error) => tracing::debug!(%peer, %error, "cannot begin its handshake"),
            }
            self.go_on(at);
        }
        Ok(())
    }

    /// A place for one more, if there is one, or somebody has had his chance.
    fn room(&mut self) -> Option<usize> {
        if let Some(free) = self.arrivals.iter().position(Option::is_none) {
            return Some(free);
        }
        if self.arrivals.len() < ARRIVALS {
            self.arrivals.push(None);
            return Some(self.arrivals.len() - 1);
        }
        let (slowest, chance) = (0..ARRIVALS)
            .filter_map(|at| self.arrivals[at].as_ref().map(|arrival| (at, arrival.chance())))
            .min_by_key(|(_, chance)| *chance)?;
        (chance <= Instant::now()).then(|| {
            if let Some(arrival) = self.leave(slowest) {
                tracing::debug!(peer = %arrival.peer(), "makes room for others: its handshake takes too long");
            }
            slowest
        })
    }

    /// Whether there is no room, and everybody is to have his chance yet.
    fn is_full(&self) -> bool {
        let now = Instant::now();
        let waits =
            |arrival: &Option<Arrival>| arrival.as_ref().is_some_and(|arrival| arrival.chance() > now);
        self.arrivals.len() == ARRIVALS && self.arrivals.iter().all(waits)
    }

    fn leave(&mut self, at: usize) -> Option<Arrival> {
        let mut arrival = self.arrivals[at].take()?;
        if let Err(error) = arrival.deregister(self.bell.registry()) {
            tracing::error!(%error, "a descriptor stays in the set of its listener");
        }
        Some(arrival)
    }

    /// Goes on with a handshake.
    fn go_on(&mut self, at: usize) {
        let Some(arrival) = &mut self.arrivals[at] else { return };
        let peer = arrival.peer();
        let (now, registry) = (Instant::now(), self.bell.registry());
        let Poll::Ready(result) = arrival.progress(&self.config, &self.pool, now, registry, Token(at)) else {
            return;
        };
        let Some(arrival) = self.leave(at) else { return };
        match result.and_then(|()| arrival.finish(&self.config, &self.pool)) {
            Ok(lane) => self.ready.push_back(lane),
            Err(error) => tracing::info!(%peer, %error, "a client is not accepted"),
        }
    }

    /// When something is to be done whatever happens.
    fn next_deadline(&mut self) -> Option<Instant> {
        let room =
            self.may_accept.then(|| self.arrivals.iter().flatten().map(Arrival::chance).min()).flatten();
        let late = self.arrivals.iter_mut().flatten().map(|arrival| arrival.deadline(&self.config)).min();
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
        self.bell.hand_out()
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
