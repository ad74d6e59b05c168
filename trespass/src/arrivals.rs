//! Handshakes that are under way on a thread that does other things: a listener's, or a worker's.
//!
//! Each costs one socket and one message's memory, and there are only so many. When there is no room for one more, the one that has
//! taken longest makes room, if it has had its chance: whoever is slow, or means no good, keeps nobody out.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::task::Poll;
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use mio::{Interest, Registry, Token};

use crate::builder::Config;
use crate::drivers::{Completed, Path, Seat};
use crate::error::ConnectError;
use crate::handshake::{Attempt, Bootstrap};
use crate::lane::Lane;
use crate::pool::Pool;
use crate::wire::Kind;

/// How long each may take whoever else comes.
const CHANCE: Duration = Duration::from_millis(200);

/// A handshake that is under way.
pub(crate) struct Arrival {
    socket: TcpStream,
    peer: SocketAddr,
    kind: Kind,
    began: Instant,
    /// Where it completes, if it is a worker's and has not yet got there.
    seat: Option<Seat>,
    /// `None`: TCP is not yet connected.
    shaking: Option<Bootstrap<Path>>,
}

impl Arrival {
    /// Of a client that was accepted.
    pub(crate) fn accepted(
        socket: std::net::TcpStream,
        peer: SocketAddr,
        kind: Kind,
        config: &Config,
        pool: &Pool,
        seat: Option<Seat>,
    ) -> io::Result<Self> {
        let began = Instant::now();
        config.prepare(&socket)?;
        socket.set_nonblocking(true)?;
        let (terms, path) = config.offer(kind, socket.local_addr()?, pool, seat);
        let shaking = Some(Bootstrap::server(terms, path, began));
        Ok(Self { socket: TcpStream::from_std(socket), peer, kind, began, seat: None, shaking })
    }

    /// Of a client of one's own.
    pub(crate) fn connecting(peer: SocketAddr, kind: Kind, seat: Seat) -> io::Result<Self> {
        let (socket, began) = (TcpStream::connect(peer)?, Instant::now());
        Ok(Self { socket, peer, kind, began, seat: Some(seat), shaking: None })
    }

    /// Something of its path has completed at the worker's desk.
    pub(crate) fn completed(&mut self, completed: Completed) {
        if let Some(path) = self.shaking.as_mut().and_then(Bootstrap::path) {
            path.completed(completed);
        }
    }

    /// The worker's desk is of no use any more.
    pub(crate) fn cut_off(&mut self, error: &io::Error) {
        if let Some(path) = self.shaking.as_mut().and_then(Bootstrap::path) {
            path.cut_off(error);
        }
    }

    pub(crate) fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// When it has had its chance.
    pub(crate) fn chance(&self) -> Instant {
        self.began + CHANCE
    }

    /// When to go on with it in any case.
    pub(crate) fn deadline(&mut self, config: &Config) -> Instant {
        match &mut self.shaking {
            Some(shaking) => shaking.wants().deadline,
            None => self.began + config.handshake_deadline,
        }
    }

    pub(crate) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        registry.register(&mut self.socket, token, Interest::READABLE | Interest::WRITABLE)
    }

    pub(crate) fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        registry.deregister(&mut self.socket)
    }

    /// Goes on as far as it can without waiting. What it waits for then is reported under the key that its socket has.
    pub(crate) fn progress(
        &mut self,
        config: &Config,
        pool: &Pool,
        now: Instant,
        registry: &Registry,
        token: Token,
    ) -> Poll<io::Result<Agreement>> {
        let address = self.peer;
        if self.shaking.is_none() {
            match self.connect(config, pool, now) {
                Poll::Ready(Ok(())) => (),
                Poll::Ready(Err(source)) => {
                    return Poll::Ready(Err(ConnectError::Tcp { address, source }.into()));
                }
                Poll::Pending => return Poll::Pending,
            }
        }
        let Some(shaking) = &mut self.shaking else { return Poll::Pending };
        loop {
            let result = shaking.progress(&mut self.socket);
            if result.is_pending()
                && let Some(path) = shaking.probing()
            {
                match path.watch(registry, token) {
                    // From now on what comes is reported; it may have come just before.
                    Ok(true) => continue,
                    Ok(false) => {}
                    // The path is given up when its time is over.
                    Err(error) => tracing::debug!(peer = %address, %error, "completions are not reported"),
                }
            }
            return result.map(|result| {
                let mut established = result.map_err(|source| ConnectError::Handshake { address, source })?;
                if let Ok(path) = &mut established.path {
                    path.unwatch(registry)?;
                }
                Ok(Agreement(established))
            });
        }
    }

    /// Sees whether TCP is connected by now.
    fn connect(&mut self, config: &Config, pool: &Pool, now: Instant) -> Poll<io::Result<()>> {
        if let Some(error) = self.socket.take_error()? {
            return Poll::Ready(Err(error));
        }
        match self.socket.peer_addr() {
            Ok(_) => (),
            Err(error) if error.kind() == ErrorKind::NotConnected => {
                let late = now >= self.began + config.handshake_deadline;
                return if late { Poll::Ready(Err(ErrorKind::TimedOut.into())) } else { Poll::Pending };
            }
            Err(error) => return Poll::Ready(Err(error)),
        }
        self.socket.set_nodelay(true)?;
        let attempt = Attempt::first()?;
        let (terms, path) = config.offer(self.kind, self.socket.local_addr()?, pool, self.seat.take());
        self.shaking = Some(Bootstrap::client(terms, attempt, path, self.began));
        Poll::Ready(Ok(()))
    }

    /// Makes a connection of it. It is not registered any more.
    pub(crate) fn finish(self, agreement: Agreement, config: &Config, pool: &Pool) -> io::Result<Lane> {
        let socket = std::net::TcpStream::from(self.socket);
        config.prepare(&socket)?;
        Lane::new(socket, agreement.0, config, pool)
    }
}

/// What both sides have agreed on.
pub(crate) struct Agreement(crate::handshake::Established<Path>);
