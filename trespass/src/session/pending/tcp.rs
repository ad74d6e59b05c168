//! A handshake in progress that began with a TCP connection.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::task::Poll;
use std::time::Instant;

use mio::net::TcpStream;
use mio::{Interest, Registry, Token};

use crate::config::Config;
use crate::error::ConnectError;
use crate::handshake::{Attempt, Established, TcpHandshake};
use crate::pool::Pool;
use crate::session::connection::Connection;
use crate::transport::{CqSlot, RdmaPath, WorkCompletion};
use crate::wire::Kind;

/// A handshake that is under way.
pub(crate) struct PendingTcpHandshake {
    socket: TcpStream,
    peer: SocketAddr,
    kind: Kind,
    began: Instant,
    /// Where it completes, if it is a worker's and has not yet got there.
    slot: Option<CqSlot>,
    /// `None`: TCP is not yet connected.
    handshake: Option<TcpHandshake<RdmaPath>>,
    established: Option<Established<RdmaPath>>,
}

impl PendingTcpHandshake {
    /// Of a client that was accepted.
    pub(super) fn accepted(
        socket: std::net::TcpStream,
        peer: SocketAddr,
        kind: Kind,
        config: &Config,
        pool: &Pool,
        slot: Option<CqSlot>,
    ) -> io::Result<Self> {
        let began = Instant::now();
        config.configure_socket(&socket)?;
        socket.set_nonblocking(true)?;
        let (terms, path) = config.offer(kind, socket.local_addr()?, pool, slot);
        let handshake = Some(TcpHandshake::server(terms, path, began));
        let socket = TcpStream::from_std(socket);
        Ok(Self { socket, peer, kind, began, slot: None, handshake, established: None })
    }

    /// Of a client of one's own.
    pub(super) fn connecting(peer: SocketAddr, kind: Kind, slot: Option<CqSlot>) -> io::Result<Self> {
        let (socket, began) = (TcpStream::connect(peer)?, Instant::now());
        Ok(Self { socket, peer, kind, began, slot, handshake: None, established: None })
    }

    /// Something of its path has completed in the worker's completion queue.
    pub(super) fn completed(&mut self, completed: WorkCompletion) {
        if let Some(path) = self.handshake.as_mut().and_then(TcpHandshake::path) {
            path.completed(completed);
        }
    }

    /// The worker's completion queue has failed.
    pub(super) fn completion_queue_failed(&mut self, error: &io::Error) {
        if let Some(path) = self.handshake.as_mut().and_then(TcpHandshake::path) {
            path.completion_queue_failed(error);
        }
    }

    pub(super) fn peer(&self) -> SocketAddr {
        self.peer
    }

    pub(super) fn began(&self) -> Instant {
        self.began
    }

    /// When to go on with it in any case.
    pub(super) fn deadline(&mut self, config: &Config) -> Instant {
        match &mut self.handshake {
            Some(handshake) => handshake.waits_for().deadline,
            None => self.began + config.handshake_deadline,
        }
    }

    pub(super) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        registry.register(&mut self.socket, token, Interest::READABLE | Interest::WRITABLE)
    }

    pub(super) fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        registry.deregister(&mut self.socket)
    }

    /// Goes on as far as it can without waiting. What it waits for then is reported under the key that its socket has.
    pub(super) fn progress(
        &mut self,
        config: &Config,
        pool: &Pool,
        now: Instant,
        registry: &Registry,
        token: Token,
    ) -> Poll<io::Result<()>> {
        let address = self.peer;
        if self.handshake.is_none() {
            match self.connect(config, pool, now) {
                Poll::Ready(Ok(())) => (),
                Poll::Ready(Err(source)) => {
                    return Poll::Ready(Err(ConnectError::Tcp { address, source }.into()));
                }
                Poll::Pending => return Poll::Pending,
            }
        }
        let Some(handshake) = &mut self.handshake else { return Poll::Pending };
        loop {
            let result = handshake.progress(&mut self.socket);
            if result.is_pending()
                && let Some(path) = handshake.probing()
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
                self.established = Some(established);
                Ok(())
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
        let (terms, path) = config.offer(self.kind, self.socket.local_addr()?, pool, self.slot.take());
        self.handshake = Some(TcpHandshake::client(terms, attempt, path, self.began));
        Poll::Ready(Ok(()))
    }

    /// Makes a connection of it. It is not registered any more.
    pub(super) fn finish(self, config: &Config, pool: &Pool) -> io::Result<Connection> {
        let established = self.established.ok_or(ErrorKind::NotConnected)?;
        let socket = std::net::TcpStream::from(self.socket);
        config.configure_socket(&socket)?;
        Connection::new(socket, established, config, pool)
    }
}
