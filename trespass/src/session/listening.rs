//! A listener's work in the service thread: it accepts clients and runs their handshakes side by
//! side, so that a connect completes while the program does other things. The decision who has a
//! place is made in [`admission`](super::admission).

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use mio::event::Event;

use crate::config::Config;
use crate::pool::Pool;
use crate::session::acceptor::Acceptor;
use crate::session::admission::{ACCEPTOR, Admission, ListenerIo, Stall};
use crate::session::backlog::Backlog;
use crate::session::pending::PendingHandshake;
use crate::session::refusal::{Refusals, log_refused};
use crate::session::service::{NextTurn, Place, Task};
use crate::transport::pools::usable_pool;

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
        let (acceptor, refusals) = (Some(acceptor), Refusals::default());
        let clients = Clients { acceptor, config: config.clone(), pool, backlog, refusals };
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

    fn accept(&mut self) -> io::Result<Option<PendingHandshake>> {
        let Clients { acceptor, config, pool, backlog, .. } = &mut *self.clients;
        *pool = usable_pool(pool, config)?;
        let client = acceptor.as_mut().ok_or(ErrorKind::WouldBlock)?.accept()?;
        let (peer, kind) = (client.peer(), backlog.only_kind());
        let handshake = PendingHandshake::accepted(client, kind, config, pool, None);
        Ok(handshake.inspect_err(|error| tracing::debug!(%peer, %error, "cannot begin its handshake")).ok())
    }

    fn turn_away(&mut self, is_logged: bool) -> io::Result<()> {
        let Clients { acceptor, backlog, refusals, .. } = &mut *self.clients;
        let client = acceptor.as_mut().ok_or(ErrorKind::WouldBlock)?.accept()?;
        let text = backlog.busy_text();
        if !is_logged {
            tracing::warn!(peer = %client.peer(), "a client is turned away, and others will be: {text}");
        }
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

    fn stall(&self, handshake: &PendingHandshake) -> Option<Stall> {
        handshake.stall()
    }

    fn deadline(&self, handshake: &mut PendingHandshake) -> Instant {
        handshake.deadline(&self.clients.config)
    }

    fn ended(&mut self, mut handshake: PendingHandshake, result: io::Result<()>) {
        self.deregister(&mut handshake);
        let peer = handshake.peer();
        let Clients { config, pool, backlog, refusals, .. } = &*self.clients;
        if let Err(error) = result {
            return handshake.refuse(&error, refusals);
        }
        match handshake.finish(config, pool) {
            Ok(connection) => backlog.push(connection),
            Err(error) => log_refused(peer, &error),
        }
    }

    fn evicted(&mut self, mut handshake: PendingHandshake) {
        self.deregister(&mut handshake);
        handshake.evict(&self.clients.refusals);
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
