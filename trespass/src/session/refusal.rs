//! Refused clients: the socket of each stays open until the client has read its answer.
//!
//! A socket that is closed with unread bytes, or gets bytes after its close, sends a reset, and the
//! client may lose the answer. So this side closes its half, and discards bytes until the client
//! closes the other one. Their number, their bytes and their time are bounded.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::Interest;
use mio::event::Event;
use mio::net::TcpStream;

use crate::session::service::{NextTurn, Place, ServiceTask, Task};

/// Sockets of refused clients that stay open at a time, for a listener or a worker. Others are
/// closed at once, which costs a client its answer only if its bytes arrive later.
const MAX_OPEN: usize = 128;

/// How long a refused client may take to read its answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// Bytes that are discarded, and the reads of one turn.
const MAX_DISCARDED: usize = 64 << 10;
const READS_A_TURN: u32 = 8;

/// The token of the socket, which no listener and no closed connection uses.
const SOCKET: usize = 1001;

/// The refused clients of a listener or a worker. Each of them has a clone.
#[derive(Clone, Default)]
pub(crate) struct Refusals(Arc<()>);

impl Refusals {
    /// Answers a client whose handshake does not begin.
    pub(crate) fn turn_away(&self, socket: std::net::TcpStream, peer: SocketAddr, answer: &[u8]) {
        let answered = socket.set_nonblocking(true).and_then(|()| {
            let mut socket = TcpStream::from_std(socket);
            // A new socket has room for an answer.
            socket.write_all(answer)?;
            Ok(socket)
        });
        match answered {
            Ok(socket) => self.finish(socket),
            Err(error) => tracing::debug!(%peer, %error, "a refused client gets no answer"),
        }
    }

    /// Closes the socket of a client that has got its answer.
    pub(crate) fn finish(&self, socket: TcpStream) {
        let (left, until) = (MAX_DISCARDED, Instant::now() + PATIENCE);
        let mut client = RefusedClient { socket, left, until, _counted: self.0.clone() };
        if client.socket.shutdown(Shutdown::Write).is_err() || client.discard().is_over() {
            return;
        }
        if Arc::strong_count(&self.0) - 1 > MAX_OPEN {
            return;
        }
        let started = ServiceTask::start(|place| {
            place.registry().register(&mut client.socket, place.token(SOCKET), Interest::READABLE)?;
            Ok(client)
        });
        match started {
            Ok(task) => task.detach(),
            Err(error) => tracing::debug!(%error, "a refused client may get a reset instead of its answer"),
        }
    }
}

/// A client that has got its answer.
struct RefusedClient {
    socket: TcpStream,
    /// Bytes that may still be discarded.
    left: usize,
    until: Instant,
    _counted: Arc<()>,
}

/// What a turn has left to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Discarded {
    /// Nothing: the client has closed, or it sends too much.
    All,
    /// The next bytes have not arrived.
    Arrived,
    /// More bytes have arrived.
    Some,
}

impl Discarded {
    fn is_over(self) -> bool {
        self == Self::All
    }
}

impl RefusedClient {
    fn discard(&mut self) -> Discarded {
        let mut waste = [0; 4096];
        for _ in 0..READS_A_TURN {
            match self.socket.read(&mut waste) {
                Ok(0) => return Discarded::All,
                Ok(count) if count > self.left => return Discarded::All,
                Ok(count) => self.left -= count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Discarded::Arrived,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Discarded::All,
            }
        }
        Discarded::Some
    }
}

impl Task for RefusedClient {
    fn turn(&mut self, place: &Place, _: &[&Event], now: Instant) -> NextTurn {
        match self.discard() {
            Discarded::Some if now < self.until => NextTurn::At(now),
            Discarded::Arrived if now < self.until => NextTurn::At(self.until),
            _ => {
                if let Err(error) = place.registry().deregister(&mut self.socket) {
                    tracing::debug!(%error, "a descriptor stays in the set");
                }
                NextTurn::Never
            }
        }
    }

    fn failed(&mut self, _: &Place) {}
}
