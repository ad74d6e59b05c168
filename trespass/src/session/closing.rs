//! Dropped connections, whose written bytes the service thread delivers.

use std::io;
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use mio::event::Event;

use crate::session::connection::Connection;
use crate::session::exit::UnsentBytes;
use crate::session::readiness::{Poller, Until};
use crate::session::service::{NextTurn, Place, ServiceTask, Task};
use crate::session::sleep::EventWait;

/// The error text of a connection that was reset at the end of its linger time.
pub(crate) const LINGER_EXPIRED: &str = "the peer did not take all within";

/// The token of the connection. No listener uses it, whose late event may come to a reused place.
const CONNECTION: usize = 1000;

/// After the last byte a TCP socket stays this long, until the peer has closed its half.
const AFTER_LAST_BYTE: Duration = Duration::from_secs(10);

/// Closes a connection and never waits for its peer. The service thread sends the bytes that remain.
/// As over TCP (RFC 1122, 4.2.2.13), the connection is reset if the program has not read all
/// that has arrived.
/// Returns the program's set.
pub(crate) fn close(
    mut connection: Connection,
    poller: Option<Box<Poller>>,
    linger: Duration,
) -> Option<Box<Poller>> {
    let mut wait = EventWait::of(poller, &mut connection, None);
    if let Err(error) = wait.sleep(Until::Now) {
        tracing::debug!(connection = %connection.info, %error, "its last events are not known");
    }
    let (poller, _) = wait.take_events(&mut connection);
    connection.progress();
    if connection.has_unread() {
        connection.abort();
        return poller;
    }
    if let Some(poller) = &poller
        && let Err(error) = connection.deregister(poller)
    {
        tracing::debug!(connection = %connection.info, %error, "a descriptor stays in the set");
    }
    finish(connection, linger);
    poller
}

/// The same for a connection that is in no set.
pub(crate) fn finish(mut connection: Connection, linger: Duration) {
    if linger.is_zero() {
        return connection.abort();
    }
    connection.close();
    connection.progress();
    if connection.has_ended() {
        return;
    }
    let info = connection.info.clone();
    if let Err(error) = hand_over(connection, linger) {
        tracing::error!(connection = %info, %error, "what is not sent is lost: no thread can send it");
    }
}

fn hand_over(connection: Connection, linger: Duration) -> io::Result<()> {
    connection.returns.clear_wake_handle();
    let unsent = Some(UnsentBytes::new()?);
    ServiceTask::start(|place| {
        let mut connection = connection;
        connection.register_at(place.registry(), place.token(CONNECTION))?;
        let waker = Arc::new(PlaceWaker(*place)).into();
        let until = Instant::now().checked_add(linger);
        Ok(Closing { connection, linger, until, waker, unsent, received: 0 })
    })?
    .detach();
    Ok(())
}

/// A connection that the program has dropped.
struct Closing {
    connection: Connection,
    linger: Duration,
    /// The end of the linger time; `None` without limit.
    until: Option<Instant>,
    waker: Waker,
    /// `None` once all bytes are sent.
    unsent: Option<UnsentBytes>,
    /// The data bytes that had arrived by then.
    received: u64,
}

impl Closing {
    fn progress(&mut self, now: Instant) -> NextTurn {
        self.connection.progress();
        if self.unsent.is_some() && self.connection.is_delivered() {
            self.connection.half_close();
            self.unsent = None;
            self.received = self.connection.stats().bytes_received;
            let latest = now + AFTER_LAST_BYTE;
            self.until = Some(self.until.map_or(latest, |until| until.min(latest)));
        }
        if self.connection.has_ended() {
            return NextTurn::Never;
        }
        if self.unsent.is_none() && self.connection.stats().bytes_received > self.received {
            // As over TCP, a peer that writes to a closed connection gets a reset.
            self.connection.abort();
            return NextTurn::Never;
        }
        if self.until.is_some_and(|until| now >= until) {
            if self.unsent.is_some() {
                tracing::warn!(connection = %self.connection.info, "{LINGER_EXPIRED} {:?}", self.linger);
                self.connection.abort();
            }
            return NextTurn::Never;
        }
        if !self.connection.may_sleep(&self.waker) || self.connection.has_ended() {
            return NextTurn::At(now);
        }
        self.connection.next_deadline().into_iter().chain(self.until).min().into()
    }
}

impl Task for Closing {
    fn turn(&mut self, place: &Place, events: &[&Event], now: Instant) -> NextTurn {
        // A place may get a late event of its earlier task.
        let own = events.iter().filter(|event| place.number(event.token()) == CONNECTION);
        own.for_each(|event| self.connection.on_event((*event).into()));
        let next = self.progress(now);
        if next == NextTurn::Never
            && let Err(error) = self.connection.deregister_from(place.registry())
        {
            tracing::debug!(connection = %self.connection.info, %error, "a descriptor stays in the set");
        }
        next
    }

    fn failed(&mut self, _: &Place) {}
}

/// Asks for a turn of the task at the place, for example when memory is free.
struct PlaceWaker(Place);

impl Wake for PlaceWaker {
    fn wake(self: Arc<Self>) {
        self.0.wake();
    }
}
