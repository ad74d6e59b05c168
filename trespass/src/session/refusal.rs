//! Refused clients: the socket of each stays open until the client has read its answer.
//!
//! The answer depends on the client's protocol, which its first bytes tell. They may arrive late.
//!
//! A socket that is closed with unread bytes, or gets bytes after its close, sends a reset, and the
//! client may lose the answer. So this side closes its half, and discards bytes until the client
//! closes the other one. Their number, their bytes and their time are bounded.

use std::fmt::Display;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::Interest;
use mio::event::Event;
use mio::net::TcpStream;

use crate::session::backlog::share_of_descriptors;
use crate::session::service::{NextTurn, Place, ServiceTask, Task};
use crate::wire::foreign::{self, Shown};
use crate::wire::{PREAMBLE, Preamble};

/// Sockets of refused clients that stay open at a time, for a listener or a worker: an eighth of the
/// descriptors that the process may have, and no more than this. Others are closed at once, which
/// costs a client its answer only if its bytes arrive later.
const MAX_OPEN: usize = 1024;

/// The limit for this process.
fn most_open() -> usize {
    MAX_OPEN.min(share_of_descriptors())
}

/// How long a refused client may take to send its first bytes, and then to read its answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// Bytes that are discarded, and the reads of one turn.
const MAX_DISCARDED: usize = 64 << 10;
const READS_A_TURN: u32 = 8;

/// The token of the socket, which no listener and no closed connection uses.
const SOCKET: usize = 2001;

/// Logs why a client is refused.
pub(crate) fn log_refused(peer: SocketAddr, error: &dyn Display) {
    tracing::info!(%peer, %error, "a client is not accepted");
}

/// The same for a client of another protocol, with its first bytes.
pub(crate) fn log_foreign(peer: SocketAddr, first: &[u8], error: &dyn Display) {
    tracing::info!(%peer, first_bytes = %Shown(first), %error, "a client of another protocol is not accepted");
}

/// The refused clients of a listener or a worker. Each of them has a clone.
#[derive(Clone, Default)]
pub(crate) struct Refusals {
    counted: Arc<()>,
    /// The program speaks other protocols itself, so that clients of these get no answer here.
    takes_plain_tcp: bool,
}

impl Refusals {
    pub(crate) fn new(takes_plain_tcp: bool) -> Self {
        Self { counted: Arc::default(), takes_plain_tcp }
    }

    /// Answers a client whose handshake does not begin: in its own protocol if its first bytes show
    /// another one, else with `reject`. The bytes are waited for. A client of plain TCP is reset where
    /// the program takes such clients.
    pub(crate) fn turn_away(&self, socket: std::net::TcpStream, peer: SocketAddr, reject: &[u8]) {
        if let Err(error) = socket.set_nonblocking(true) {
            return tracing::debug!(%peer, %error, "a refused client gets no answer");
        }
        let mut client = self.client(TcpStream::from_std(socket));
        client.unanswered = Some(Unanswered { peer, reject: reject.into() });
        self.serve(client);
    }

    /// Closes the socket of a client that has got its answer.
    pub(crate) fn finish(&self, socket: TcpStream) {
        let mut client = self.client(socket);
        client.end_answer();
        self.serve(client);
    }

    fn client(&self, socket: TcpStream) -> RefusedClient {
        let until = Instant::now() + PATIENCE;
        let takes_plain_tcp = self.takes_plain_tcp;
        let _counted = self.counted.clone();
        RefusedClient { socket, unanswered: None, left: MAX_DISCARDED, until, takes_plain_tcp, _counted }
    }

    /// Hands a client to the service thread if it has more to do for it.
    fn serve(&self, mut client: RefusedClient) {
        let has_place = Arc::strong_count(&self.counted) - 1 <= most_open();
        if !has_place {
            client.until = Instant::now();
        }
        if client.progress(Instant::now()).is_over() || !has_place {
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

/// The bytes that tell a client's protocol, if they have arrived.
fn magic_of(first: &[u8]) -> Option<[u8; 4]> {
    first.first_chunk().copied()
}

/// The answer to a client whose first bytes are of another protocol.
fn foreign_answer(peer: SocketAddr, first: &[u8]) -> Option<&'static [u8]> {
    let magic = magic_of(first)?;
    let error = Preamble::check_magic(magic).err()?;
    log_foreign(peer, first, &error);
    Some(foreign::answer(magic))
}

/// The socket stays open until the client has closed it, because a reset could overtake the answer.
struct RefusedClient {
    socket: TcpStream,
    /// The answer that the client is still to get.
    unanswered: Option<Unanswered>,
    /// Bytes that may still be discarded.
    left: usize,
    /// When the client's next step is due: its first bytes, and then its close.
    until: Instant,
    takes_plain_tcp: bool,
    _counted: Arc<()>,
}

/// What a client gets that has not shown its protocol.
struct Unanswered {
    peer: SocketAddr,
    reject: Box<[u8]>,
}

/// What a turn has left to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refused {
    /// Nothing: the client has closed, or it sends too much.
    Over,
    /// The next bytes have not arrived.
    Waits,
    /// More bytes have arrived.
    HasMore,
}

impl Refused {
    fn is_over(self) -> bool {
        self == Self::Over
    }
}

impl RefusedClient {
    /// Answers the client if it can, and then discards what arrives.
    fn progress(&mut self, now: Instant) -> Refused {
        if self.unanswered.is_some() {
            let mut first = [0; PREAMBLE];
            // A client that has closed its half sends no more.
            let (arrived, may_follow) = match self.socket.peek(&mut first) {
                Ok(count) => (count, count > 0),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                    (0, true)
                }
                Err(_) => return Refused::Over,
            };
            let shows_protocol = magic_of(&first[..arrived]).is_some();
            if !shows_protocol && may_follow && now < self.until {
                return Refused::Waits;
            }
            if !self.answer(&first[..arrived], now) {
                return Refused::Over;
            }
        }
        self.discard()
    }

    /// Sends the answer that these first bytes ask for. Returns false if that fails.
    fn answer(&mut self, first: &[u8], now: Instant) -> bool {
        let Some(Unanswered { peer, reject }) = self.unanswered.take() else {
            return true;
        };
        self.until = now + PATIENCE;
        if self.takes_plain_tcp && Preamble::begins_with(first) == Some(false) {
            // Its unread bytes make the close a reset.
            return false;
        }
        // A new socket has room for an answer.
        match self.socket.write_all(foreign_answer(peer, first).unwrap_or(&reject)) {
            Ok(()) => self.end_answer(),
            Err(error) => {
                tracing::debug!(%peer, %error, "a refused client gets no answer");
                false
            }
        }
    }

    /// Tells the client that nothing follows. Returns false if that fails.
    fn end_answer(&mut self) -> bool {
        self.socket.shutdown(Shutdown::Write).is_ok()
    }

    fn discard(&mut self) -> Refused {
        let mut waste = [0; 4096];
        for _ in 0..READS_A_TURN {
            match self.socket.read(&mut waste) {
                Ok(0) => return Refused::Over,
                Ok(count) if count > self.left => return Refused::Over,
                Ok(count) => self.left -= count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Refused::Waits,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Refused::Over,
            }
        }
        Refused::HasMore
    }
}

impl Task for RefusedClient {
    fn turn(&mut self, place: &Place, _: &[&Event], now: Instant) -> NextTurn {
        match self.progress(now) {
            Refused::HasMore if now < self.until => NextTurn::At(now),
            Refused::Waits if now < self.until => NextTurn::At(self.until),
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

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream as StdStream};
    use std::task::Poll;
    use std::thread;

    use mio::Token;
    use tracing::level_filters::LevelFilter;

    use super::*;
    use crate::config::Config;
    use crate::config::log::captured;
    use crate::session::acceptor::IncomingClient;
    use crate::session::pending::PendingHandshake;
    use crate::session::readiness::{Poller, Until};
    use crate::transport::pools::pool_of;
    use crate::wire::Policy;

    /// A client that has sent these bytes, and its accepted socket.
    fn client(sent: &[u8]) -> (StdStream, StdStream, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = StdStream::connect(listener.local_addr().unwrap()).unwrap();
        client.write_all(sent).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let (server, peer) = listener.accept().unwrap();
        (client, server, peer)
    }

    fn read_to_end(mut client: StdStream) -> Vec<u8> {
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).expect("an orderly end");
        answer
    }

    /// Runs the handshake of a client that is refused.
    fn refuse(socket: StdStream, peer: SocketAddr) {
        let config = Config { policy: Policy::TcpOnly, ..Config::default() };
        let (pool, token) = (pool_of(&config).unwrap(), Token(0));
        let mut poller = Poller::new(1).unwrap();
        socket.set_nonblocking(true).unwrap();
        let incoming = IncomingClient::Tcp(socket, peer);
        let mut handshake = PendingHandshake::accepted(incoming, None, &config, &pool, None).unwrap();
        handshake.register(poller.registry(), token).unwrap();
        loop {
            match handshake.progress(&config, &pool, Instant::now(), poller.registry(), token) {
                Poll::Pending => poller.wait(Until::Deadline(handshake.deadline(&config)), |_| ()).unwrap(),
                Poll::Ready(result) => {
                    handshake.deregister(poller.registry()).unwrap();
                    return handshake.refuse(&result.unwrap_err(), &Refusals::default());
                }
            };
        }
    }

    #[test]
    fn the_log_shows_the_first_bytes_of_other_protocols_as_text() {
        for (sent, shown, named) in [
            (&b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..], "\"GET / HTTP/1.1\\r\\n\"", "an HTTP client does"),
            (b"SSH-2.0-x\r\n", "\"SSH-2.0-x\\r\\n\"", "an SSH program does"),
            (&[22, 3, 1, 2, 0], "\"\\x16\\x03\\x01\\x02\\x00\"", "a TLS client does"),
        ] {
            for turned_away in [false, true] {
                let (client, server, peer) = client(sent);
                let log = captured(LevelFilter::INFO, || match turned_away {
                    true => Refusals::default().turn_away(server, peer, b"busy"),
                    false => refuse(server, peer),
                });
                let begins = "trespass info: a client of another protocol is not accepted";
                assert!(log.starts_with(&format!("{begins} peer={peer} first_bytes={shown} ")), "{log}");
                assert!(log.contains(named) && log.ends_with("is that the right port?\n"), "{log}");
                assert_eq!(read_to_end(client), foreign::answer(*sent.first_chunk().unwrap()));
            }
        }
    }

    #[test]
    fn a_silent_client_is_turned_away_without_its_bytes() {
        for sent in [&b""[..], b"GE", b"TRSP"] {
            let (client, server, peer) = client(sent);
            Refusals::default().turn_away(server, peer, b"busy");
            assert_eq!(read_to_end(client), b"busy");
        }
    }

    /// The first bytes of a client may arrive after it was refused, and one by one.
    #[test]
    fn a_late_client_of_another_protocol_gets_its_answer() {
        let (mut client, server, peer) = client(b"");
        client.set_nodelay(true).unwrap();
        Refusals::default().turn_away(server, peer, b"busy");
        for byte in b"GET /" {
            client.write_all(&[*byte]).unwrap();
            thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(read_to_end(client), foreign::answer(*b"GET "));
    }

    /// A client that sends for ever, and one that stays, lose their sockets.
    #[test]
    fn refused_clients_are_bounded_in_bytes_and_time() {
        let refusals = Refusals::default();
        let (mut endless, server, peer) = client(b"");
        refusals.turn_away(server, peer, b"busy");
        let (_stays, server, peer) = client(b"");
        refusals.turn_away(server, peer, b"busy");
        let sending = thread::spawn(move || while endless.write_all(&[0; 4096]).is_ok() {});
        sending.join().unwrap();
        let until = Instant::now() + Duration::from_secs(20);
        while Arc::strong_count(&refusals.counted) > 1 {
            assert!(Instant::now() < until, "a socket stays open");
            thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn refused_clients_are_bounded_in_number() {
        let refusals = Refusals::default();
        let clients: Vec<_> = (0..most_open() + 5)
            .map(|_| {
                let (client, server, peer) = client(b"");
                refusals.turn_away(server, peer, b"busy");
                assert!(Arc::strong_count(&refusals.counted) <= most_open() + 1);
                client
            })
            .collect();
        clients.into_iter().for_each(|client| assert_eq!(read_to_end(client), b"busy"));
    }
}
