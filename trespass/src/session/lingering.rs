//! The end of a connection that the program has dropped: what is left to send, the half-close, and
//! the reset of a peer that goes on writing. It makes no system call and reads no clock, so that the
//! simulator runs it in virtual time.

use std::task::Waker;
use std::time::{Duration, Instant};

use crate::session::schedule::NextTurn;

/// After the last byte a TCP socket stays this long, until the peer has closed its half.
const AFTER_LAST_BYTE: Duration = Duration::from_secs(10);

/// A connection that the program has dropped.
pub(crate) trait DroppedConnection {
    /// Bounds the work of each [progress](Self::progress), because a peer that goes on sending must not
    /// keep the thread from others.
    fn limit_turns(&mut self);

    /// Receives and sends as far as possible without waiting.
    fn progress(&mut self);

    /// Whether nothing is left to do before an event. The waker is called for what makes no event.
    fn may_sleep(&mut self, waker: &Waker) -> bool;

    /// When it has work to do without an event.
    fn next_deadline(&self) -> Option<Instant>;

    /// Whether data has arrived that the program has not taken.
    fn has_unread(&self) -> bool;

    /// Sends written bytes, and accepts no more.
    fn close(&mut self);

    /// Ends the connection at once. The peer gets a reset.
    fn abort(&mut self);

    /// Tells the peer's kernel that no more bytes come.
    fn half_close(&mut self);

    fn is_tcp(&self) -> bool;

    /// Whether it has failed, also by [`abort`](Self::abort).
    fn has_failed(&self) -> bool;

    /// After a failure: whether the peer has been told, or cannot be. A device may send the RESET late,
    /// and only as long as the queue pair exists.
    fn has_told_peer(&self) -> bool;

    /// Whether both sides have closed it.
    fn is_closed(&self) -> bool;

    /// Whether the peer's device or this side's kernel has all bytes.
    fn is_delivered(&self) -> bool;

    /// The data bytes that have arrived.
    fn bytes_received(&self) -> u64;

    /// Whether it needs no more turns. A TCP socket that still gets bytes, even the peer's FIN frame,
    /// would send a reset, and the peer could lose what it has not read.
    fn has_ended(&self) -> bool {
        if self.has_failed() {
            return self.has_told_peer();
        }
        self.is_closed() || (self.is_delivered() && !self.is_tcp())
    }
}

/// The state of a connection after its drop.
pub(crate) struct LingeringClose {
    /// The end of the time that is left; `None` without limit, and after a failure, because the driver
    /// limits the time of a RESET.
    until: Option<Instant>,
    /// The data bytes that had arrived when all bytes were sent. `None` before.
    received: Option<u64>,
    /// The time was over before.
    expired: bool,
}

/// The outcome of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CloseProgress {
    Waits,
    Ended,
    /// The linger time was over before all bytes were sent.
    Expired,
}

/// Takes what has arrived, and closes. Resets the peer if the linger time is zero, or, as over TCP (RFC
/// 1122, 4.2.2.13), if the program has not read all. If both sides have ended, nothing is reset.
pub(crate) fn close_or_reset(connection: &mut impl DroppedConnection, linger: Duration) {
    connection.limit_turns();
    connection.progress();
    if linger.is_zero() || connection.has_unread() {
        connection.abort();
    } else {
        connection.close();
    }
}

impl LingeringClose {
    /// [Closes or resets](close_or_reset) a connection. Returns `None` if nothing is left to do.
    pub(crate) fn begin(
        connection: &mut impl DroppedConnection,
        linger: Duration,
        now: Instant,
    ) -> Option<Self> {
        close_or_reset(connection, linger);
        connection.progress();
        let until = now.checked_add(linger);
        (!connection.has_ended()).then_some(Self { until, received: None, expired: false })
    }

    /// Whether the peer's device or this side's kernel had all bytes in an earlier turn.
    pub(crate) fn is_delivered(&self) -> bool {
        self.received.is_some()
    }

    /// Continues like [`turn`](Self::turn). Also returns when the next turn is due.
    pub(crate) fn turn_of_task(
        &mut self,
        connection: &mut impl DroppedConnection,
        waker: &Waker,
        now: Instant,
    ) -> (CloseProgress, NextTurn) {
        let progress = self.turn(connection, now);
        let next = match progress {
            CloseProgress::Waits => self.next_turn(connection, waker, now),
            CloseProgress::Ended | CloseProgress::Expired => NextTurn::Never,
        };
        (progress, next)
    }

    /// Continues after events, or when the time is over.
    pub(crate) fn turn(&mut self, connection: &mut impl DroppedConnection, now: Instant) -> CloseProgress {
        connection.progress();
        if !connection.has_failed() && self.ends_in_order(connection, now) {
            return CloseProgress::Ended;
        }
        if connection.has_failed() {
            self.until = None;
        }
        match connection.has_ended() {
            false => CloseProgress::Waits,
            true if self.expired => CloseProgress::Expired,
            true => CloseProgress::Ended,
        }
    }

    /// Ends this side's half when all is sent, and aborts when the peer must be reset. Returns whether
    /// the connection needs no more turns.
    fn ends_in_order(&mut self, connection: &mut impl DroppedConnection, now: Instant) -> bool {
        if self.received.is_none() && connection.is_delivered() {
            connection.half_close();
            self.received = Some(connection.bytes_received());
            let latest = now + AFTER_LAST_BYTE;
            self.until = Some(self.until.map_or(latest, |until| until.min(latest)));
        }
        if connection.has_ended() {
            return true;
        }
        let late = self.until.is_some_and(|until| now >= until);
        match self.received {
            // As over TCP, a peer that writes to a closed connection gets a reset.
            Some(before) if connection.bytes_received() > before => connection.abort(),
            Some(_) => return late,
            None if late => {
                self.expired = true;
                connection.abort();
            }
            None => (),
        }
        false
    }

    /// When the next turn is due, after one that [waits](CloseProgress::Waits).
    pub(crate) fn next_turn(
        &self,
        connection: &mut impl DroppedConnection,
        waker: &Waker,
        now: Instant,
    ) -> NextTurn {
        if !connection.may_sleep(waker) || connection.has_ended() {
            return NextTurn::At(now);
        }
        connection.next_deadline().into_iter().chain(self.until).min().into()
    }
}
