//! A listener's work in the service thread: it accepts clients and runs their handshakes side by
//! side, so that a connect completes while the program does other things. The decision who has a
//! place is made in [`admission`](super::admission).

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use mio::event::Event;

use crate::config::Config;
use crate::pool::Pool;
use crate::session::acceptor::Acceptor;
use crate::session::admission::{ACCEPTOR, Admission, ListenerIo, MAX_WAITING, Stall, WayOut};
use crate::session::backlog::{AcceptedClient, Backlog, share_of_descriptors};
use crate::session::pending::PendingHandshake;
use crate::session::refusal::{Refusals, log_refused};
use crate::session::service::{NextTurn, Place, Task};
use crate::transport::pools::usable_pool;

/// The text for a client whose time is up before it has a place.
pub(crate) const NO_PLACE: &str = "other clients have all places of the listener: connect again";

/// A listener's acceptor and handshakes.
pub(crate) struct Listening {
    clients: Clients,
    admission: Admission<PendingHandshake>,
}

/// The source of a listener's clients, and where their connections go.
struct Clients {
    /// `None` after the end.
    acceptor: Option<Acceptor>,
    config: Config,
    pool: Pool,
    backlog: Arc<Backlog>,
    refusals: Refusals,
    /// The most accepted clients that have no place.
    most_waiting: usize,
}

/// The input and output of one turn.
struct TurnIo<'a> {
    clients: &'a mut Clients,
    place: &'a Place,
}

impl Listening {
    pub(crate) fn new(
        mut acceptor: Acceptor,
        config: &Config,
        pool: Pool,
        backlog: Arc<Backlog>,
        place: &Place,
    ) -> io::Result<Self> {
        acceptor.register(place.registry(), place.token(ACCEPTOR))?;
        let (acceptor, refusals) = (Some(acceptor), Refusals::new(config.takes_plain_tcp()));
        let (config, most_waiting) = (config.clone(), MAX_WAITING.min(share_of_descriptors()));
        let clients = Clients { acceptor, config, pool, backlog, refusals, most_waiting };
        Ok(Self { clients, admission: Admission::new() })
    }

    /// Closes the listening socket, and gives up the handshakes.
    pub(crate) fn close(&mut self, place: &Place) {
        let io = TurnIo { clients: &mut self.clients, place };
        for mut handshake in self.admission.take_all() {
            io.deregister(&mut handshake);
        }
        if let Some(mut acceptor) = self.clients.acceptor.take()
            && let Err(error) = acceptor.deregister(place.registry())
        {
            tracing::error!(%error, "a listening socket stays in the set of the service thread");
        }
        self.clients.backlog.close();
    }

    /// Closes a forked child's copy of the listening socket. All else is the parent's, and stays.
    pub(crate) fn close_in_child(&mut self) {
        match self.clients.acceptor.take() {
            Some(Acceptor::Tcp(socket)) => drop(socket),
            other => std::mem::forget(other),
        }
    }
}

impl TurnIo<'_> {
    fn deregister(&self, handshake: &mut PendingHandshake) {
        if let Err(error) = handshake.deregister(self.place.registry()) {
            tracing::error!(%error, "a descriptor stays in the set of the service thread");
        }
    }
}

impl ListenerIo for TurnIo<'_> {
    type Handshake = PendingHandshake;

    fn places(&self, running: usize) -> usize {
        self.clients.backlog.places(running)
    }

    fn most_waiting(&self) -> usize {
        self.clients.most_waiting
    }

    fn accept(&mut self) -> io::Result<Option<PendingHandshake>> {
        let Clients { acceptor, config, pool, backlog, .. } = &mut *self.clients;
        *pool = usable_pool(pool, config)?;
        let client = acceptor.as_mut().ok_or(ErrorKind::WouldBlock)?.accept()?;
        let (peer, kind) = (client.peer(), backlog.only_kind());
        let handshake = PendingHandshake::accepted(client, kind, config, pool, None);
        let handshake =
            handshake.inspect_err(|error| tracing::debug!(%peer, %error, "cannot begin its handshake"));
        Ok(handshake.ok().map(|mut handshake| {
            handshake.keep_first_message();
            if config.takes_plain_tcp() {
                handshake.allow_plain();
            }
            handshake
        }))
    }

    fn turn_away(&mut self, is_logged: bool) -> io::Result<()> {
        let Clients { acceptor, backlog, refusals, .. } = &mut *self.clients;
        let client = acceptor.as_mut().ok_or(ErrorKind::WouldBlock)?.accept()?;
        let text = backlog.busy_text();
        log_turned_away(client.peer(), &text, is_logged);
        client.turn_away(text, refusals);
        Ok(())
    }

    fn accepted(&mut self, outcome: io::Result<()>) {
        match outcome {
            Ok(()) => self.clients.backlog.works(),
            Err(error) => self.clients.backlog.fail(error),
        }
    }

    fn register(&mut self, at: usize, handshake: &mut PendingHandshake) -> io::Result<()> {
        handshake.register(self.place.registry(), self.place.token(at))
    }

    fn progress(
        &mut self,
        at: usize,
        handshake: &mut PendingHandshake,
        now: Instant,
    ) -> Poll<io::Result<()>> {
        let Clients { config, pool, .. } = &*self.clients;
        handshake.progress(config, pool, now, self.place.registry(), self.place.token(at))
    }

    fn awaits_place(&self, handshake: &PendingHandshake) -> bool {
        handshake.keeps_message()
    }

    fn begin(&mut self, _: usize, handshake: &mut PendingHandshake) {
        handshake.begin();
    }

    fn stall(&self, handshake: &PendingHandshake) -> Option<Stall> {
        handshake.stall()
    }

    fn deadline(&self, handshake: &mut PendingHandshake) -> Instant {
        handshake.deadline(&self.clients.config)
    }

    fn way_out(&self, handshake: &PendingHandshake) -> WayOut {
        WayOut::new(handshake.has_committed(), handshake.uses_path())
    }

    fn parked(&mut self, _: usize, handshake: &mut PendingHandshake) {
        if let Err(error) = handshake.drop_spent_path(self.place.registry()) {
            tracing::error!(%error, "a descriptor stays in the set of the service thread");
        }
    }

    fn ended(&mut self, mut handshake: PendingHandshake, result: io::Result<()>) {
        self.deregister(&mut handshake);
        let peer = handshake.peer();
        let Clients { config, pool, backlog, refusals, .. } = &*self.clients;
        if let Err(error) = result {
            return handshake.refuse(&error, refusals);
        }
        let client = match handshake.is_plain() {
            true => handshake.into_plain().map(|socket| AcceptedClient::Plain(socket, peer)),
            false => handshake.finish(config, pool).map(Box::new).map(AcceptedClient::Connected),
        };
        match client {
            Ok(client) => backlog.push(client),
            Err(error) => log_refused(peer, &error),
        }
    }

    fn evicted(&mut self, mut handshake: PendingHandshake) {
        self.deregister(&mut handshake);
        handshake.evict(&self.clients.refusals);
    }

    fn turned_away(&mut self, mut handshake: PendingHandshake, is_logged: bool) {
        self.deregister(&mut handshake);
        let Clients { backlog, refusals, .. } = &*self.clients;
        let text = if backlog.is_full() { backlog.busy_text() } else { NO_PLACE.to_owned() };
        log_turned_away(handshake.peer(), &text, is_logged);
        handshake.turn_away(text, refusals);
    }
}

/// Logs the first of many clients that are turned away.
fn log_turned_away(peer: SocketAddr, text: &str, is_logged: bool) {
    if !is_logged {
        tracing::warn!(%peer, "a client is turned away, and others will be: {text}");
    }
}

impl Task for Listening {
    fn turn(&mut self, place: &Place, events: &[&Event], now: Instant) -> NextTurn {
        if self.clients.acceptor.is_none() {
            return NextTurn::Event;
        }
        let moved: Vec<usize> = events.iter().map(|event| place.number(event.token())).collect();
        self.admission.turn(&mut TurnIo { clients: &mut self.clients, place }, &moved, now)
    }

    fn failed(&mut self, place: &Place) {
        self.close(place);
    }
}
