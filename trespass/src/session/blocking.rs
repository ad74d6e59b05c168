//! The blocking connection that [`Stream`](crate::Stream) and [`SeqPacket`](crate::SeqPacket) wrap:
//! calls, timeouts, spinning, sleeping and lingering.
//!
//! Every call is the same: try; if that has to wait, look for completions for a while ([`Builder::spin`](crate::Builder::spin)); take a
//! turn and try again; then sleep until the system reports something, and so on. There is no thread but the program's. A writer that waits receives meanwhile, and a reader that waits sends.

use std::cell::Cell;
use std::io;
use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

use mio::Token;

use crate::protocol::{CallBuffer, CallError};
use crate::session::connection::{Connection, Direction, Refused};
use crate::session::readiness::{Poller, Readiness, ReadinessState, Until};

/// The only connection's key in its set.
const CONNECTION: Token = Token(0);

/// What is said of a connection that was given up at its end.
pub(crate) const LINGER_EXPIRED: &str = "the peer did not take all within";

/// Between two looks at the clock, so many for completions.
const POLLS_PER_CLOCK_READ: u32 = 16;

/// What a call does until it need not wait.
trait CallAttempt<T> {
    /// Tries.
    fn attempt(&mut self, connection: &mut Connection) -> Result<T, Refused>;

    /// Looks for completions, and all that is to be done before if `all`.
    fn poll_once(&mut self, connection: &mut Connection, all: bool) -> PollOutcome<T> {
        if connection.poll_once(all) { PollOutcome::Moved } else { PollOutcome::Nothing }
    }
}

/// What a look has found.
enum PollOutcome<T> {
    Nothing,
    /// Something, so that it can be tried again.
    Moved,
    /// What the call waits for.
    Done(T),
}

impl<T, F: FnMut(&mut Connection) -> Result<T, Refused>> CallAttempt<T> for F {
    fn attempt(&mut self, connection: &mut Connection) -> Result<T, Refused> {
        self(connection)
    }
}

/// A call that fills a buffer, with whatever comes in one frame. `done` is what it returns then.
struct FillCall<'a, T, F> {
    buffer: &'a mut [u8],
    attempt: F,
    done: fn(usize) -> T,
}

impl<T, F: FnMut(&mut Connection, &mut [u8]) -> Result<T, Refused>> CallAttempt<T> for FillCall<'_, T, F> {
    fn attempt(&mut self, connection: &mut Connection) -> Result<T, Refused> {
        (self.attempt)(connection, self.buffer)
    }

    #[inline]
    fn poll_once(&mut self, connection: &mut Connection, all: bool) -> PollOutcome<T> {
        let mut sink = CallBuffer::new(self.buffer);
        let moved = connection.poll_into(all, &mut sink);
        match sink.taken() {
            Some(len) => PollOutcome::Done((self.done)(len)),
            None if moved => PollOutcome::Moved,
            None => PollOutcome::Nothing,
        }
    }
}

/// How calls wait.
#[derive(Debug, Default)]
pub(crate) struct Timeouts {
    nonblocking: Cell<bool>,
    read: Cell<Option<Duration>>,
    write: Cell<Option<Duration>>,
}

impl Timeouts {
    pub(crate) fn set_nonblocking(&self, nonblocking: bool) {
        self.nonblocking.set(nonblocking);
    }

    pub(crate) fn is_nonblocking(&self) -> bool {
        self.nonblocking.get()
    }

    pub(crate) fn set(&self, direction: Direction, timeout: Option<Duration>) -> io::Result<()> {
        if timeout.is_some_and(|timeout| timeout.is_zero()) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a timeout of zero is none: set_nonblocking(true) makes calls that do not wait, and None waits for ever",
            ));
        }
        self.cell(direction).set(timeout);
        Ok(())
    }

    pub(crate) fn get(&self, direction: Direction) -> Option<Duration> {
        self.cell(direction).get()
    }

    /// How long a call that begins now waits.
    pub(crate) fn begin(&self, direction: Direction) -> Until {
        if self.nonblocking.get() {
            Until::Now
        } else {
            Until::Event.or(self.get(direction).and_then(|timeout| Instant::now().checked_add(timeout)))
        }
    }

    fn cell(&self, direction: Direction) -> &Cell<Option<Duration>> {
        match direction {
            Direction::Read => &self.read,
            Direction::Write => &self.write,
        }
    }
}

/// A connection, what reports its events, and how its calls wait.
pub(crate) struct BlockingConnection {
    pub(crate) connection: Connection,
    pub(crate) timeouts: Timeouts,
    pub(crate) linger: Cell<Duration>,
    poller: Poller,
    readiness_state: ReadinessState,
}

impl BlockingConnection {
    pub(crate) fn new(mut connection: Connection) -> io::Result<Self> {
        let poller = Poller::new(1)?;
        connection.register(&poller, CONNECTION)?;
        let linger = Cell::new(connection.linger());
        Ok(Self {
            connection,
            timeouts: Timeouts::default(),
            linger,
            poller,
            readiness_state: ReadinessState::default(),
        })
    }

    /// Tries until it need not wait, or must not.
    pub(crate) fn call<T>(
        &mut self,
        direction: Direction,
        attempt: impl FnMut(&mut Connection) -> Result<T, Refused>,
    ) -> io::Result<T> {
        self.run_call(direction, attempt)
    }

    /// The same of a call that fills a buffer.
    pub(crate) fn fill<T>(
        &mut self,
        buffer: &mut [u8],
        attempt: impl FnMut(&mut Connection, &mut [u8]) -> Result<T, Refused>,
        done: fn(usize) -> T,
    ) -> io::Result<T> {
        self.run_call(Direction::Read, FillCall { buffer, attempt, done })
    }

    fn run_call<T>(&mut self, direction: Direction, mut call: impl CallAttempt<T>) -> io::Result<T> {
        let outcome = match call.attempt(&mut self.connection) {
            Err(Refused::Blocked) => self.wait_for(direction, call),
            Err(Refused::Failed(error)) => Err(error),
            Ok(value) => {
                self.connection.post();
                Ok(value)
            }
        };
        // A program that is never told to wait still has to hear of it when the system takes more.
        let left_behind = outcome.is_ok() && self.timeouts.is_nonblocking() && !self.try_flush();
        if left_behind && matches!(self.sleep(Until::Now), Ok(true)) {
            self.connection.progress();
        }
        if direction == Direction::Write {
            let refused = matches!(&outcome, Err(error) if error.kind() == io::ErrorKind::WouldBlock);
            self.readiness_state.set_write_refused(refused);
        }
        self.publish_readiness();
        outcome
    }

    /// Whether all that was written is on its way. Over a device that is known without a system call, once what has completed is taken and
    /// what is wanted then is posted: as by a turn, for the program may go and wait for the descriptor.
    fn try_flush(&mut self) -> bool {
        if !self.connection.is_flushed() {
            while self.connection.poll_once(true) {}
        }
        self.connection.is_flushed()
    }

    fn wait_for<T>(&mut self, direction: Direction, mut call: impl CallAttempt<T>) -> io::Result<T> {
        let until = self.timeouts.begin(direction);
        if direction == Direction::Read
            && !matches!(until, Until::Now)
            && self.connection.protocol.is_corked()
        {
            // Whoever waits for the peer writes nothing meanwhile, and may be waiting for the answer.
            self.connection.protocol.flush();
        }
        let (since, mut slept) = (Instant::now(), false);
        let outcome = loop {
            let now = if slept { Instant::now() } else { since };
            if let Some(outcome) = self.spin(now, until, &mut call) {
                break outcome;
            }
            self.connection.progress();
            match call.attempt(&mut self.connection) {
                Err(Refused::Blocked) => (),
                Err(Refused::Failed(error)) => break Err(error),
                Ok(value) => {
                    self.connection.post();
                    break Ok(value);
                }
            }
            slept = true;
            match self.sleep(until) {
                Err(error) => break Err(error),
                Ok(false) if until.is_over() => break Err(timed_out(until)),
                Ok(_) => (),
            }
        };
        if slept {
            self.connection.spin.slept(since.elapsed());
        } else {
            self.connection.spin.found_by_polling();
        }
        outcome
    }

    /// Looks for completions for a while, before a turn has the next one make an event and the thread sleeps: both cost more than what is
    /// waited for, where that comes soon. What came of the call, if that is known then.
    fn spin<T>(
        &mut self,
        mut now: Instant,
        limit: Until,
        call: &mut impl CallAttempt<T>,
    ) -> Option<io::Result<T>> {
        let time = self.connection.spin.time();
        if time.is_zero() || matches!(limit, Until::Now) {
            return None;
        }
        let (mut until, mut all) = (now + time, true);
        while now < until && !limit.has_passed_at(now) && !self.connection.has_work_due(now) {
            for _ in 0..POLLS_PER_CLOCK_READ {
                let outcome = match call.poll_once(&mut self.connection, all) {
                    PollOutcome::Nothing => {
                        // No pause of the processor's here: it would be longer than the look.
                        all = false;
                        continue;
                    }
                    PollOutcome::Moved => call.attempt(&mut self.connection),
                    PollOutcome::Done(value) => Ok(value),
                };
                all = true;
                match outcome {
                    Err(Refused::Blocked) => until = now + time,
                    Err(Refused::Failed(error)) => return Some(Err(error)),
                    Ok(value) => {
                        self.connection.post();
                        return Some(Ok(value));
                    }
                }
            }
            now = Instant::now();
        }
        None
    }

    /// Sleeps until something happens. Whether something did.
    fn sleep(&mut self, until: Until) -> io::Result<bool> {
        let awake = !self.connection.may_sleep(&self.poller);
        let until = if awake { Until::Now } else { until.or(self.connection.next_deadline()) };
        let (connection, mut happened) = (&mut self.connection, awake);
        self.poller.wait(until, |event| {
            connection.on_event(event);
            happened = true;
        })?;
        self.readiness_state.events_taken();
        Ok(happened)
    }

    /// Makes the program's descriptor show what a call would find.
    fn publish_readiness(&mut self) {
        if !self.poller.is_exported() {
            return;
        }
        if self.readiness_state.update(self.connection.readiness()) {
            self.poller.wake();
        }
        self.poller.wake_at(self.connection.next_deadline());
    }

    /// How much a call had better move at a time, so that the peer has its part in it meanwhile. One that may be given up when its time is
    /// over moves all or nothing.
    pub(crate) fn piece(&self, direction: Direction) -> usize {
        let whole = self.timeouts.is_nonblocking() || self.timeouts.get(direction).is_some();
        self.connection.piece.filter(|_| !whole).unwrap_or(usize::MAX)
    }

    /// After a write: what it took is on its way when it returns, if it may wait.
    pub(crate) fn finish_write<T>(&mut self, taken: T) -> io::Result<T> {
        // It was taken, so it counts; that time is up, or the connection broken, is for the next call to tell.
        let Self { timeouts, connection, .. } = self;
        // As a rule one look says that it is.
        if !(timeouts.is_nonblocking()
            || connection.is_flushed()
            || connection.poll_once(false) && connection.is_flushed())
        {
            if !self.connection.protocol.is_corked() {
                self.connection.protocol.flush();
            }
            if let Err(error) = self.wait_until_sent() {
                tracing::trace!(connection = %self.connection.info, %error, "taken, and not yet on its way");
            }
        }
        Ok(taken)
    }

    /// What a call would find now.
    pub(crate) fn readiness(&mut self) -> io::Result<Readiness> {
        loop {
            self.connection.progress();
            if !self.sleep(Until::Now)? {
                break;
            }
        }
        let ready = self.connection.readiness();
        self.readiness_state.set_write_refused(!ready.writable);
        self.publish_readiness();
        Ok(ready)
    }

    pub(crate) fn set_interest(&mut self, interest: Readiness) {
        self.readiness_state.set_interest(interest);
        self.publish_readiness();
    }

    /// Something was changed that may have to be sent.
    pub(crate) fn after_change(&mut self) {
        self.connection.post();
        self.publish_readiness();
    }

    /// Holds back what does not fill a frame, or no longer does.
    pub(crate) fn cork(&mut self, corked: bool) -> io::Result<()> {
        self.call(Direction::Write, |connection| {
            connection.protocol.cork(corked);
            Ok(())
        })?;
        self.finish_write(())
    }

    /// A half was shut down. The program may never call again, so the end goes as far as it can.
    pub(crate) fn after_shutdown(&mut self) {
        self.connection.progress();
        self.publish_readiness();
    }

    #[cfg(unix)]
    pub(crate) fn descriptor(&self) -> std::os::fd::BorrowedFd<'_> {
        self.poller.export_descriptor()
    }

    /// Waits until all that was written is on its way.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.connection.protocol.flush();
        self.wait_until_sent()
    }

    /// Waits until all is on its way but for what the program holds back.
    fn wait_until_sent(&mut self) -> io::Result<()> {
        self.call(Direction::Write, |connection| {
            connection.post();
            match connection.protocol.failure() {
                Some(cause) => {
                    let error = CallError::Failed(cause.clone());
                    Err(connection.refused(Direction::Write, error))
                }
                None if connection.is_flushed() => Ok(()),
                None => Err(Refused::Blocked),
            }
        })
    }
}

/// As [`std::net`] fails where time is up: with one kind on Windows, and another elsewhere.
pub(crate) fn timed_out(until: Until) -> io::Error {
    match until {
        Until::Deadline(_) if cfg!(windows) => io::ErrorKind::TimedOut.into(),
        _ => io::ErrorKind::WouldBlock.into(),
    }
}

impl BlockingConnection {
    /// Closes, and waits no longer than it lingers until what was written is on its way.
    fn close(&mut self) {
        let linger = self.linger.get();
        if linger.is_zero() {
            return self.connection.abort();
        }
        let until = Until::Event.or(Instant::now().checked_add(linger));
        self.connection.close();
        loop {
            self.connection.progress();
            if self.connection.is_over() {
                return;
            }
            match self.sleep(until) {
                Ok(happened) if happened || !until.is_over() => (),
                Ok(_) => break,
                Err(error) => {
                    tracing::warn!(connection = %self.connection.info, %error, "cannot wait for its end");
                    break;
                }
            }
        }
        tracing::debug!(connection = %self.connection.info, "{LINGER_EXPIRED} {linger:?}");
        self.connection.abort();
    }
}

/// Owns a blocking connection, and closes its connection at the end, unless that goes on elsewhere.
pub(crate) struct CloseOnDrop(Option<Box<BlockingConnection>>);

impl CloseOnDrop {
    pub(crate) fn new(connection: Connection) -> io::Result<Self> {
        Ok(Self(Some(Box::new(BlockingConnection::new(connection)?))))
    }

    /// Gives up the connection's own set: another one will report its events.
    pub(crate) fn into_connection(mut self) -> io::Result<Connection> {
        let BlockingConnection { mut connection, poller, linger, .. } = *self.0.take().expect(OPEN);
        connection.deregister(&poller)?;
        connection.set_linger(linger.get());
        Ok(connection)
    }
}

/// Only `into_connection` takes it, and ends its owner.
const OPEN: &str = "the owner has its connection as long as it lives";

impl Deref for CloseOnDrop {
    type Target = BlockingConnection;

    fn deref(&self) -> &BlockingConnection {
        self.0.as_ref().expect(OPEN)
    }
}

impl DerefMut for CloseOnDrop {
    fn deref_mut(&mut self) -> &mut BlockingConnection {
        self.0.as_mut().expect(OPEN)
    }
}

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        if let Some(blocking) = &mut self.0 {
            blocking.close();
        }
    }
}
