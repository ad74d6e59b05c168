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
use crate::session::refusal::{Refusals, log_foreign, log_refused};
use crate::transport::{CqSlot, RdmaPath, WorkCompletion};
use crate::wire::{Kind, Preamble};

/// A handshake in progress.
pub(crate) struct PendingTcpHandshake {
    socket: TcpStream,
    peer: SocketAddr,
    kind: Kind,
    began: Instant,
    /// A worker's completion queue slot, until the path takes it.
    slot: Option<CqSlot>,
    /// `None` until TCP is connected.
    handshake: Option<TcpHandshake<RdmaPath>>,
    established: Option<Established<RdmaPath>>,
    protocol: ClientProtocol,
}

/// The protocol of an accepted client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClientProtocol {
    /// This crate's, or one that is refused.
    Own,
    /// Its first bytes tell.
    Unknown,
    /// Another one, which the program speaks. The client waits for a place.
    Plain,
    /// The same for a client that has its place.
    Admitted,
}

impl PendingTcpHandshake {
    /// The handshake of an accepted client.
    pub(super) fn accepted(
        socket: std::net::TcpStream,
        peer: SocketAddr,
        kind: Option<Kind>,
        config: &Config,
        pool: &Pool,
        slot: Option<CqSlot>,
    ) -> io::Result<Self> {
        let began = Instant::now();
        socket.set_nodelay(true)?;
        let own = kind.unwrap_or(Kind::Stream);
        let (mut terms, path) = config.offer(own, socket.local_addr()?, pool, slot);
        terms.takes_either_kind = kind.is_none();
        let handshake = Some(TcpHandshake::server(terms, path, began));
        let socket = TcpStream::from_std(socket);
        let protocol = ClientProtocol::Own;
        Ok(Self { socket, peer, kind: own, began, slot: None, handshake, established: None, protocol })
    }

    /// The handshake of a connecting client, whose time limit counts from `began`.
    pub(super) fn connecting(
        peer: SocketAddr,
        kind: Kind,
        began: Instant,
        config: &Config,
        slot: Option<CqSlot>,
    ) -> io::Result<Self> {
        let socket = config.start_tcp(peer)?;
        let protocol = ClientProtocol::Own;
        Ok(Self { socket, peer, kind, began, slot, handshake: None, established: None, protocol })
    }

    /// Handles a completion from the worker's completion queue.
    pub(super) fn completed(&mut self, completed: WorkCompletion) {
        if let Some(path) = self.handshake.as_mut().and_then(TcpHandshake::path) {
            path.completed(completed);
        }
    }

    /// Handles the failure of the worker's completion queue.
    pub(super) fn completion_queue_failed(&mut self, error: &io::Error) {
        if let Some(path) = self.handshake.as_mut().and_then(TcpHandshake::path) {
            path.completion_queue_failed(error);
        }
    }

    /// Closes the socket of a refused client, which has its answer.
    pub(super) fn refuse(self, error: &io::Error, refusals: &Refusals) {
        let (socket, peer) = (self.socket, self.peer);
        match self.handshake.as_ref().and_then(TcpHandshake::foreign_bytes) {
            Some(first) => log_foreign(peer, first, error),
            None => log_refused(peer, error),
        }
        // The data path is dropped after that, because a device may delay it.
        refusals.finish(socket);
    }

    /// Tells the client that the listener is busy, and closes its socket.
    pub(super) fn turn_away(mut self, text: String, refusals: &Refusals) {
        if self.protocol == ClientProtocol::Plain {
            // Any answer would be taken for the program's. Its unread bytes make this a reset.
            return;
        }
        if let Some(handshake) = &mut self.handshake {
            handshake.turn_away(&mut self.socket, text);
        }
        refusals.finish(self.socket);
    }

    /// Lets a client of another protocol through, with its bytes unread.
    pub(super) fn allow_plain(&mut self) {
        self.protocol = ClientProtocol::Unknown;
    }

    /// Whether the client has been let through.
    pub(super) fn is_plain(&self) -> bool {
        self.protocol == ClientProtocol::Admitted
    }

    /// The socket as the system accepted it.
    pub(super) fn into_plain(self) -> io::Result<std::net::TcpStream> {
        let socket = std::net::TcpStream::from(self.socket);
        socket.set_nonblocking(false)?;
        socket.set_nodelay(false)?;
        Ok(socket)
    }

    pub(super) fn keep_first_message(&mut self) {
        self.handshake.iter_mut().for_each(TcpHandshake::keep_first_message);
    }

    pub(super) fn keeps_message(&self) -> bool {
        self.protocol == ClientProtocol::Plain
            || self.handshake.as_ref().is_some_and(TcpHandshake::keeps_message)
    }

    pub(super) fn begin(&mut self) {
        if self.protocol == ClientProtocol::Plain {
            self.protocol = ClientProtocol::Admitted;
            return;
        }
        self.handshake.iter_mut().for_each(|handshake| handshake.begin(Instant::now));
    }

    pub(super) fn has_data_path(&self) -> bool {
        self.handshake.as_ref().is_some_and(TcpHandshake::has_path)
    }

    /// Closes a forked child's copy of the socket, and leaves all else to the parent.
    pub(super) fn forget_in_child(self) {
        let Self { socket, slot, handshake, established, .. } = self;
        drop(socket);
        std::mem::forget((slot, handshake, established));
    }

    pub(super) fn began(&self) -> Instant {
        self.began
    }

    pub(super) fn last_step(&self) -> Option<Instant> {
        self.handshake.as_ref().and_then(TcpHandshake::last_step)
    }

    /// Whether the client may be established.
    pub(super) fn has_committed(&self) -> bool {
        self.handshake.as_ref().is_some_and(TcpHandshake::has_sent_ready)
    }

    /// Whether it may use a queue pair.
    pub(super) fn uses_path(&self) -> bool {
        self.handshake.as_ref().is_some_and(TcpHandshake::uses_path)
    }

    /// Gives back a queue pair that it does not use.
    pub(super) fn drop_spent_path(&mut self, registry: &Registry) -> io::Result<()> {
        let Some(handshake) = self.handshake.as_mut().filter(|handshake| !handshake.uses_path()) else {
            return Ok(());
        };
        let watched = handshake.path().map_or(Ok(()), |path| path.unwatch(registry));
        handshake.drop_spent_path();
        watched
    }

    /// When to continue at the latest.
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
        let path = self.handshake.as_mut().and_then(TcpHandshake::path);
        let path = path.map_or(Ok(()), |path| path.unwatch(registry));
        registry.deregister(&mut self.socket).and(path)
    }

    /// Continues as far as possible without waiting. Later events are reported under the socket's
    /// token.
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
        if self.protocol == ClientProtocol::Unknown {
            match protocol(&self.socket) {
                // The handshake reports that its time is up.
                ClientProtocol::Unknown if now < handshake.waits_for().deadline => return Poll::Pending,
                ClientProtocol::Unknown => {}
                known => self.protocol = known,
            }
        }
        match self.protocol {
            ClientProtocol::Plain => return Poll::Pending,
            ClientProtocol::Admitted => return Poll::Ready(Ok(())),
            ClientProtocol::Own | ClientProtocol::Unknown => {}
        }
        if handshake.keeps_message() && has_ended(&self.socket) {
            handshake.closed();
        }
        loop {
            let result = handshake.progress(&mut self.socket, Instant::now);
            if result.is_pending()
                && let Some(path) = handshake.probing()
            {
                match path.watch(registry, token) {
                    // A completion may have arrived just before the queue pair was armed.
                    Ok(true) => continue,
                    Ok(false) => {}
                    // The probe's timeout gives the path up.
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

    /// Checks whether TCP is connected.
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

    /// Makes the connection of a finished handshake, which is no longer registered.
    pub(super) fn finish(self, config: &Config, pool: &Pool) -> io::Result<Connection> {
        let established = self.established.ok_or(ErrorKind::NotConnected)?;
        let socket = std::net::TcpStream::from(self.socket);
        config.set_keepalive(&socket)?;
        Connection::new(socket, established, config, pool)
    }
}

/// The protocol that a client's first bytes tell, which stay unread.
fn protocol(socket: &TcpStream) -> ClientProtocol {
    let mut first = [0; 4];
    match socket.peek(&mut first) {
        Ok(count) if count > 0 => match Preamble::begins_with(&first[..count]) {
            Some(true) => ClientProtocol::Own,
            Some(false) => ClientProtocol::Plain,
            None => ClientProtocol::Unknown,
        },
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
            ClientProtocol::Unknown
        }
        // The handshake reports the end.
        _ => ClientProtocol::Own,
    }
}

/// Whether the peer has closed its side, and has sent nothing before. A client in that state has given
/// up, because it sends nothing between its HELLO and the listener's.
fn has_ended(socket: &TcpStream) -> bool {
    match socket.peek(&mut [0]) {
        Ok(count) => count == 0,
        Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
    }
}
