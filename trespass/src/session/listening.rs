//! A listener's work in the service thread: it accepts clients and runs their handshakes side by
//! side, so that a connect completes while the program does other things.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use mio::event::Event;

use crate::config::Config;
use crate::pool::Pool;
use crate::session::acceptor::Acceptor;
use crate::session::backlog::Backlog;
use crate::session::overflow::Overflow;
use crate::session::pending::PendingHandshake;
use crate::session::refusal::{Refusals, log_refused};
use crate::session::service::{NextTurn, Place, Task};
use crate::transport::pools::usable_pool;

/// Handshakes at a time. Other clients wait in the system's backlog.
const MAX_HANDSHAKES: usize = 128;

/// The token of the listening socket. Handshakes use the tokens below it.
const ACCEPTOR: usize = MAX_HANDSHAKES;

/// Clients accepted in one turn, so that other listeners have theirs.
const CLIENTS_A_TURN: usize = 32;

/// When to try again after the system could not accept, for example without free descriptors.
const RETRY: Duration = Duration::from_millis(50);

/// A listener's acceptor and handshakes.
pub(crate) struct Listening {
    /// `None` after the end.
    acceptor: Option<Acceptor>,
    config: Config,
    pool: Pool,
    handshakes: Vec<Option<PendingHandshake>>,
    backlog: Arc<Backlog>,
    overflow: Overflow,
    refusals: Refusals,
    may_accept: bool,
    /// The system has refused to accept, and is asked again then.
    retry_at: Option<Instant>,
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
        Ok(Self {
            acceptor: Some(acceptor),
            config: config.clone(),
            pool,
            handshakes: Vec::new(),
            backlog,
            overflow: Overflow::default(),
            refusals: Refusals::default(),
            may_accept: true,
            retry_at: None,
        })
    }

    /// Closes the listening socket, and gives up the handshakes.
    pub(crate) fn close(&mut self, place: &Place) {
        for at in 0..self.handshakes.len() {
            self.take_handshake(place, at);
        }
        if let Some(mut acceptor) = self.acceptor.take()
            && let Err(error) = acceptor.deregister(place.registry())
        {
            tracing::error!(%error, "a listening socket stays in the set of the service thread");
        }
        self.backlog.close();
    }

    /// Closes a forked child's copy of the listening socket. All else is the parent's, and stays.
    pub(crate) fn close_in_child(&mut self) {
        match self.acceptor.take() {
            Some(Acceptor::Tcp(socket)) => drop(socket),
            other => std::mem::forget(other),
        }
    }

    /// Accepts waiting clients while there are places, and turns others away when their time has
    /// come. Returns whether more wait.
    fn accept_pending(&mut self, place: &Place, now: Instant) -> bool {
        for _ in 0..CLIENTS_A_TURN {
            if !self.may_accept {
                return false;
            }
            let has_room = self.has_room();
            let accepted = if self.overflow.may_tell(self.is_full(), now) {
                self.turn_one_away()
            } else if has_room {
                self.accept_one(place)
            } else {
                return false;
            };
            match accepted {
                Ok(()) => self.backlog.works(),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.may_accept = false;
                    self.overflow.end_round(now);
                }
                // The client has disconnected again.
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset | ErrorKind::Interrupted
                    ) => {}
                Err(error) => {
                    self.backlog.fail(error);
                    self.retry_at = Some(Instant::now() + RETRY);
                    return false;
                }
            }
        }
        true
    }

    /// Accepts a client and begins its handshake. The error is the listener's own, or `WouldBlock`.
    fn accept_one(&mut self, place: &Place) -> io::Result<()> {
        self.pool = usable_pool(&self.pool, &self.config)?;
        let acceptor = self.acceptor.as_mut().ok_or(ErrorKind::WouldBlock)?;
        let client = acceptor.accept()?;
        let (peer, kind) = (client.peer(), self.backlog.only_kind());
        let mut handshake = match PendingHandshake::accepted(client, kind, &self.config, &self.pool, None) {
            Ok(handshake) => handshake,
            Err(error) => {
                tracing::debug!(%peer, %error, "cannot begin its handshake");
                return Ok(());
            }
        };
        let at = self.make_place(place);
        handshake.register(place.registry(), place.token(at))?;
        self.handshakes[at] = Some(handshake);
        self.progress_handshake(place, at);
        Ok(())
    }

    /// Accepts a client beyond the backlog, and tells it so.
    fn turn_one_away(&mut self) -> io::Result<()> {
        let acceptor = self.acceptor.as_mut().ok_or(ErrorKind::WouldBlock)?;
        let (client, text) = (acceptor.accept()?, self.backlog.busy_text());
        if self.overflow.has_told() {
            tracing::warn!(peer = %client.peer(), "a client is turned away, and others will be: {text}");
        }
        client.turn_away(text, &self.refusals);
        Ok(())
    }

    /// Whether all places have connections that the program must accept first.
    fn is_full(&self) -> bool {
        self.running_and_places().1 == 0
    }

    /// Whether another handshake may begin, in a free place or in that of a stalled one.
    fn has_room(&self) -> bool {
        let (running, places) = self.running_and_places();
        let may_replace = || self.first_stalled().is_some_and(|(_, stalled_at)| stalled_at <= Instant::now());
        running < places || places > 0 && may_replace()
    }

    /// The number of handshakes, and how many there may be.
    fn running_and_places(&self) -> (usize, usize) {
        let running = self.handshakes.iter().flatten().count();
        (running, self.backlog.places(running).min(MAX_HANDSHAKES))
    }

    /// A free place, after a stalled handshake has gone if there are too many.
    fn make_place(&mut self, place: &Place) -> usize {
        let (running, places) = self.running_and_places();
        if running >= places
            && let Some((stalled, _)) = self.first_stalled()
            && let Some(replaced) = self.take_handshake(place, stalled)
        {
            tracing::warn!(peer = %replaced.peer(), "makes room for others: its handshake does not go on");
        }
        self.handshakes.iter().position(Option::is_none).unwrap_or_else(|| {
            self.handshakes.push(None);
            self.handshakes.len() - 1
        })
    }

    /// The handshake that may be replaced first, and from when on.
    fn first_stalled(&self) -> Option<(usize, Instant)> {
        let places = self.handshakes.iter().enumerate();
        let stalled = places.filter_map(|(at, handshake)| Some((at, handshake.as_ref()?.stalled_at()?)));
        stalled.min_by_key(|(_, at)| *at)
    }

    fn take_handshake(&mut self, place: &Place, at: usize) -> Option<PendingHandshake> {
        let mut handshake = self.handshakes[at].take()?;
        if let Err(error) = handshake.deregister(place.registry()) {
            tracing::error!(%error, "a descriptor stays in the set of the service thread");
        }
        Some(handshake)
    }

    /// Continues a handshake.
    fn progress_handshake(&mut self, place: &Place, at: usize) {
        let Some(handshake) = self.handshakes.get_mut(at).and_then(Option::as_mut) else { return };
        let (peer, now) = (handshake.peer(), Instant::now());
        let (registry, token) = (place.registry(), place.token(at));
        let Poll::Ready(result) = handshake.progress(&self.config, &self.pool, now, registry, token) else {
            return;
        };
        let Some(handshake) = self.take_handshake(place, at) else { return };
        if let Err(error) = result {
            return handshake.refuse(&error, &self.refusals);
        }
        match handshake.finish(&self.config, &self.pool) {
            Ok(connection) => self.backlog.push(connection),
            Err(error) => log_refused(peer, &error),
        }
    }

    /// When the next timer expires.
    fn next_deadline(&mut self) -> Option<Instant> {
        // With a place, or with a full backlog, nobody waits for another's place.
        let (running, places) = self.running_and_places();
        let may_accept = self.may_accept && self.retry_at.is_none();
        let all_run = may_accept && places > 0 && running >= places;
        let stalled = all_run.then(|| self.first_stalled()).flatten().map(|(_, at)| at);
        let round = if may_accept && places == 0 { self.overflow.round_at() } else { None };
        let late = self.handshakes.iter_mut().flatten().map(|handshake| handshake.deadline(&self.config));
        late.chain(stalled).chain(round).chain(self.retry_at).min()
    }
}

impl Task for Listening {
    fn turn(&mut self, place: &Place, events: &[&Event], now: Instant) -> NextTurn {
        if self.acceptor.is_none() {
            return NextTurn::Event;
        }
        let moved: Vec<usize> = events.iter().map(|event| place.number(event.token())).collect();
        self.may_accept |= moved.contains(&ACCEPTOR);
        if self.retry_at.is_some_and(|at| at <= now) {
            self.retry_at = None;
        }
        for at in 0..self.handshakes.len() {
            let is_late =
                self.handshakes[at].as_mut().is_some_and(|handshake| handshake.deadline(&self.config) <= now);
            if is_late || moved.binary_search(&at).is_ok() {
                self.progress_handshake(place, at);
            }
        }
        let more = self.retry_at.is_none() && self.accept_pending(place, now);
        if more { NextTurn::At(now) } else { self.next_deadline().into() }
    }

    fn failed(&mut self, place: &Place) {
        self.close(place);
    }
}
