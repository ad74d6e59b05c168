//! A listener's work in the service thread: it accepts clients and runs their handshakes side by
//! side, so that a connect completes while the program does other things.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use crate::config::Config;
use crate::pool::Pool;
use crate::session::acceptor::Acceptor;
use crate::session::backlog::Backlog;
use crate::session::pending::PendingHandshake;
use crate::session::service::{Place, Task};
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

    /// Accepts waiting clients while there are places. Returns whether more wait.
    fn accept_pending(&mut self, place: &Place) -> bool {
        for _ in 0..CLIENTS_A_TURN {
            if !self.may_accept || !self.backlog.has_place() {
                return false;
            }
            let Some(at) = self.free_place(place) else { return false };
            let Some(acceptor) = &mut self.acceptor else { return false };
            let error = match acceptor.accept() {
                Ok(client) => {
                    let peer = client.peer();
                    if let Err(error) = self.begin(place, at, client) {
                        tracing::debug!(%peer, %error, "cannot begin its handshake");
                    }
                    continue;
                }
                Err(error) => error,
            };
            match error.kind() {
                ErrorKind::WouldBlock => self.may_accept = false,
                // The client has disconnected again.
                ErrorKind::ConnectionAborted | ErrorKind::Interrupted => (),
                _ => {
                    self.backlog.fail(error);
                    self.retry_at = Some(Instant::now() + RETRY);
                    return false;
                }
            }
        }
        true
    }

    fn begin(
        &mut self,
        place: &Place,
        at: usize,
        client: crate::session::acceptor::IncomingClient,
    ) -> io::Result<()> {
        self.pool = usable_pool(&self.pool, &self.config)?;
        let kind = self.backlog.only_kind();
        let mut handshake = PendingHandshake::accepted(client, kind, &self.config, &self.pool, None)?;
        handshake.register(place.registry(), place.token(at))?;
        self.handshakes[at] = Some(handshake);
        self.progress_handshake(place, at);
        Ok(())
    }

    /// A free place, or that of a handshake which may be replaced.
    fn free_place(&mut self, place: &Place) -> Option<usize> {
        if let Some(free) = self.handshakes.iter().position(Option::is_none) {
            return Some(free);
        }
        if self.handshakes.len() < MAX_HANDSHAKES {
            self.handshakes.push(None);
            return Some(self.handshakes.len() - 1);
        }
        let (stalled, since) = self.first_stalled()?;
        (since <= Instant::now()).then(|| {
            if let Some(handshake) = self.take_handshake(place, stalled) {
                tracing::warn!(peer = %handshake.peer(), "makes room for others: its handshake does not go on");
            }
            stalled
        })
    }

    /// The handshake that may be replaced first, and from when on.
    fn first_stalled(&self) -> Option<(usize, Instant)> {
        let places = self.handshakes.iter().enumerate();
        let stalled = places
            .filter_map(|(at, handshake)| handshake.as_ref().map(|handshake| (at, handshake.stalled_at())));
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
        match result.and_then(|()| handshake.finish(&self.config, &self.pool)) {
            Ok(connection) => self.backlog.push(connection),
            Err(error) => tracing::info!(%peer, %error, "a client is not accepted"),
        }
    }

    /// When the next timer expires.
    fn next_deadline(&mut self) -> Option<Instant> {
        // With a place, or with a full backlog, nobody waits for another's place.
        let is_full = self.handshakes.len() == MAX_HANDSHAKES && self.handshakes.iter().all(Option::is_some);
        let is_short = is_full && self.may_accept && self.backlog.has_place();
        let stalled = is_short.then(|| self.first_stalled()).flatten().map(|(_, at)| at);
        let late = self.handshakes.iter_mut().flatten().map(|handshake| handshake.deadline(&self.config));
        late.chain(stalled).chain(self.retry_at).min()
    }
}

impl Task for Listening {
    fn turn(&mut self, place: &Place, moved: &[usize], now: Instant) -> Option<Instant> {
        self.acceptor.as_ref()?;
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
        let more = self.retry_at.is_none() && self.accept_pending(place);
        if more { Some(now) } else { self.next_deadline() }
    }
}

impl Drop for Listening {
    /// After a panic of the task nobody else tells the program.
    fn drop(&mut self) {
        self.backlog.close();
    }
}
