//! Connections until their request has arrived.
//!
//! Anything may connect to a server's port. Whoever sends no valid request is a stranger, which is
//! logged and forgotten. Each connection has a thread, so that none waits for another one's words,
//! and a place. While all places are taken, the connection that has had its place for longest makes
//! room for the next one. The thread that accepts connections neither reads nor writes them.

use std::collections::VecDeque;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, Scope, sleep};
use std::time::{Duration, Instant};

use super::steps;
use super::strangers::StrangerLog;
use crate::control::{
    ClosableTransport, ControlError, ControlLink, ControlListener, Greeting, LinkCloser, Secret, Tcp,
};
use crate::error::Error;
use crate::interrupt;
use crate::report::Output;

/// Connections without a request that are heard at the same time.
const PLACES: usize = 64;

/// The time without a request after which a connection makes room for another one.
const PATIENCE: Duration = Duration::from_millis(500);

/// How often a waiting thread checks for signals.
const SIGNAL_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// How often the accepting thread looks for a free place.
const PLACE_CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// A server's socket.
pub(super) trait Acceptor: Sync {
    /// The transport of accepted connections.
    type Wire: ClosableTransport;

    /// Returns the next client, if one connects within `limit`.
    ///
    /// # Errors
    ///
    /// A signal asked this process to end, or the system has no resources for a client.
    fn accept_within(&self, limit: Duration) -> Result<Option<ControlLink<Self::Wire>>, ControlError>;

    /// Ends a wait in another thread, if that is possible.
    fn shut_down(&self);
}

impl Acceptor for ControlListener {
    type Wire = Tcp;

    fn accept_within(&self, limit: Duration) -> Result<Option<ControlLink>, ControlError> {
        self.accept_within(limit)
    }

    fn shut_down(&self) {
        self.shut_down();
    }
}

/// The connections without a request.
#[derive(Debug, Default)]
pub(super) struct Arrivals(Mutex<ArrivalTable>);

#[derive(Debug, Default)]
struct ArrivalTable {
    /// The oldest first.
    places: VecDeque<Arrival>,
    next: u64,
    /// Nobody gets a place any more.
    is_over: bool,
}

#[derive(Debug)]
struct Arrival {
    number: u64,
    since: Instant,
    closer: Box<dyn LinkCloser>,
}

/// A connection's place, which becomes free when this is dropped.
#[derive(Debug)]
pub(super) struct ArrivalPlace<'a> {
    arrivals: &'a Arrivals,
    number: u64,
}

impl Arrivals {
    /// Gives every connection a place and to `begin`, until [`close_all`](Self::close_all) or a
    /// signal.
    ///
    /// # Errors
    ///
    /// The signal.
    pub(super) fn accept<'a, A: Acceptor>(
        &'a self,
        listener: &A,
        strangers: &StrangerLog,
        mut begin: impl FnMut(ControlLink<A::Wire>, ArrivalPlace<'a>),
    ) -> Result<(), Error> {
        let mut told = String::new();
        while !self.is_over() {
            match listener.accept_within(SIGNAL_CHECK_INTERVAL) {
                Ok(None) => {}
                Ok(Some(mut link)) => {
                    if let Some(place) = self.next_place(link.wire().closer())? {
                        begin(link, place);
                    }
                }
                Err(error @ ControlError::Interrupted(_)) => return Err(error.into()),
                Err(_) if self.is_over() => {}
                // It has disconnected already.
                Err(ControlError::Gone { .. }) => {}
                // For example, too many open files: when clients end, descriptors become free. The
                // same words are printed once, because this may go on for long.
                Err(error) => {
                    let words = error.to_string();
                    if words != told {
                        strangers.log(format_args!("warning: {words}"));
                        told = words;
                    }
                    sleep(SIGNAL_CHECK_INTERVAL);
                }
            }
        }
        Ok(())
    }

    /// Waits until a place is free, or its connection has had it for long enough. Returns none after
    /// [`close_all`](Self::close_all).
    fn next_place(&self, closer: Box<dyn LinkCloser>) -> Result<Option<ArrivalPlace<'_>>, Error> {
        loop {
            interrupt::check()?;
            let mut table = self.table();
            if table.is_over {
                return Ok(None);
            }
            let oldest = table.places.front().filter(|_| table.places.len() >= PLACES);
            let left =
                oldest.map_or(Duration::ZERO, |oldest| PATIENCE.saturating_sub(oldest.since.elapsed()));
            if left.is_zero() {
                if table.places.len() >= PLACES
                    && let Some(oldest) = table.places.pop_front()
                {
                    oldest.closer.close();
                }
                let number = table.next;
                table.next += 1;
                table.places.push_back(Arrival { number, since: Instant::now(), closer });
                return Ok(Some(ArrivalPlace { arrivals: self, number }));
            }
            drop(table);
            sleep(left.min(PLACE_CHECK_INTERVAL));
        }
    }

    /// Ends every connection that still has a place. From then on nobody gets one.
    fn close_all(&self) {
        let mut table = self.table();
        table.is_over = true;
        table.places.drain(..).for_each(|arrival| arrival.closer.close());
    }

    fn is_over(&self) -> bool {
        self.table().is_over
    }

    /// Each change of the table is complete before anything can panic.
    fn table(&self) -> MutexGuard<'_, ArrivalTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ArrivalPlace<'_> {
    /// Gives the place back after the request.
    ///
    /// # Errors
    ///
    /// The connection has made room for another one.
    pub(super) fn leave(&self, peer: &str) -> Result<(), ControlError> {
        let mut table = self.arrivals.table();
        let before = table.places.len();
        table.places.retain(|arrival| arrival.number != self.number);
        if table.places.len() < before { Ok(()) } else { Err(made_room(peer)) }
    }

    /// The reason why a connection failed: its end, if it had to make room for another one.
    pub(super) fn explain(&self, peer: &str, error: Error) -> Error {
        let is_kept = self.arrivals.table().places.iter().any(|arrival| arrival.number == self.number);
        if is_kept { error } else { made_room(peer).into() }
    }
}

fn made_room(peer: &str) -> ControlError {
    ControlError::MadeRoom { peer: peer.to_owned(), limit: PATIENCE }
}

impl Drop for ArrivalPlace<'_> {
    fn drop(&mut self) {
        self.arrivals.table().places.retain(|arrival| arrival.number != self.number);
    }
}

/// Waits for the first client with a valid request. From then on the system refuses others.
///
/// # Errors
///
/// A signal asked this process to end.
pub(super) fn first_request<A: Acceptor>(
    listener: A,
    secret: Option<&Secret>,
    output: &Output,
) -> Result<(ControlLink<A::Wire>, Greeting), Error> {
    let arrivals = Arrivals::default();
    let strangers = StrangerLog::new(output, "; waiting for another client");
    let (sender, requests) = channel();
    thread::scope(|scope| {
        let (listener, arrivals, strangers) = (&listener, &arrivals, &strangers);
        scope.spawn(move || {
            // The error is a signal, which this function's thread notices, too.
            let _ = arrivals.accept(listener, strangers, |link, place| {
                hear(scope, (link, place), secret, strangers, &sender);
            });
        });
        let first = loop {
            if let Err(interrupted) = interrupt::check() {
                break Err(interrupted.into());
            }
            match requests.recv_timeout(SIGNAL_CHECK_INTERVAL) {
                Ok(request) => break Ok(request),
                Err(RecvTimeoutError::Timeout) => {}
                // The accepting thread has noticed a signal.
                Err(RecvTimeoutError::Disconnected) => sleep(PLACE_CHECK_INTERVAL),
            }
        };
        arrivals.close_all();
        listener.shut_down();
        first
    })
}

/// Starts a thread that waits for a connection's request.
fn hear<'scope, W: ClosableTransport + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    (mut link, place): (ControlLink<W>, ArrivalPlace<'scope>),
    secret: Option<&'scope Secret>,
    strangers: &'scope StrangerLog,
    requests: &Sender<(ControlLink<W>, Greeting)>,
) {
    let requests = requests.clone();
    let begun = thread::Builder::new().spawn_scoped(scope, move || {
        let asked = steps::asked(&mut link, secret).map_err(|error| place.explain(link.peer(), error));
        match asked.and_then(|greeting| Ok(place.leave(link.peer()).map(|()| greeting)?)) {
            // A failure to send is ignored, because the receiver leaves with the first request.
            Ok(greeting) => drop(requests.send((link, greeting))),
            Err(_) if place.arrivals.is_over() => {}
            Err(error) => strangers.send_away(&mut link, &error),
        }
    });
    if let Err(error) = begun {
        strangers.log(format_args!("warning: no thread for a connection: {error}"));
    }
}
