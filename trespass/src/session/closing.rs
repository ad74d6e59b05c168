//! Dropped connections, whose written bytes the service thread delivers.

use std::io;
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use mio::event::Event;

use crate::session::connection::Connection;
use crate::session::exit::UnsentBytes;
use crate::session::lingering::{CloseProgress, LingeringClose};
use crate::session::readiness::{Poller, Until};
use crate::session::service::{NextTurn, Place, ServiceTask, Task};
use crate::session::sleep::EventWait;

/// The error text of a connection that was reset at the end of its linger time.
pub(crate) const LINGER_EXPIRED: &str = "the peer did not take all within";

/// The token of the connection. No listener uses it, whose late event may come to a reused place.
const CONNECTION: usize = 1000;

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
    let Some(close) = LingeringClose::begin(&mut connection, linger, Instant::now()) else { return };
    let info = connection.info.clone();
    if let Err(error) = hand_over(connection, close, linger) {
        tracing::error!(connection = %info, %error, "what is not sent is lost: no thread can send it");
    }
}

fn hand_over(connection: Connection, close: LingeringClose, linger: Duration) -> io::Result<()> {
    connection.returns.clear_wake_handle();
    let unsent = Some(UnsentBytes::new()?);
    ServiceTask::start(|place| {
        let mut connection = connection;
        connection.register_at(place.registry(), place.token(CONNECTION))?;
        let waker = Arc::new(PlaceWaker(*place)).into();
        Ok(Closing { connection, close, linger, waker, unsent })
    })?
    .detach();
    Ok(())
}

/// A connection that the program has dropped.
struct Closing {
    connection: Connection,
    close: LingeringClose,
    linger: Duration,
    waker: Waker,
    /// `None` once all bytes are sent.
    unsent: Option<UnsentBytes>,
}

impl Closing {
    fn progress(&mut self, now: Instant) -> NextTurn {
        let (progress, next) = self.close.turn_of_task(&mut self.connection, &self.waker, now);
        if self.close.is_delivered() {
            self.unsent = None;
        }
        if progress == CloseProgress::Expired {
            tracing::warn!(connection = %self.connection.info, "{LINGER_EXPIRED} {:?}", self.linger);
        }
        next
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
