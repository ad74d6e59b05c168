//! The calls of [`Stream`](crate::Stream) and [`SeqPacket`](crate::SeqPacket): timeouts, spinning and
//! sleeping.
//!
//! Each call tries. If it must wait, it polls for completions for a while
//! ([`Builder::spin`](crate::Builder::spin)), takes a turn and tries again, then sleeps until the
//! system reports an event. The program's thread does all of it, so a writer that waits also
//! receives, and a reader that waits also sends.

use std::io;
use std::net::Shutdown;
use std::thread;
use std::time::{Duration, Instant};

use crate::protocol::CallBuffer;
use crate::session::caller::Caller;
use crate::session::connection::{Connection, Direction, Refused};
use crate::session::readiness::{Readiness, Until};
use crate::session::visits;
use crate::transport::PollScope;

/// How often a look for readiness takes events. A failed device may report some for ever.
const MOST_LOOKS: u32 = 16;

/// Polls of an empty completion queue between two reads of the clock: about a microsecond.
const POLLS_PER_CLOCK_READ: u32 = 32;

/// The same for polls that find something.
const MOVES_PER_CLOCK_READ: u32 = 16;

/// How often a thread that polls lets others run, because the scheduler may have placed the peer's
/// thread on the same processor.
const YIELD_INTERVAL: Duration = Duration::from_micros(10);

/// A call that is tried until it need not wait.
trait CallAttempt<T> {
    /// Tries the call.
    fn attempt(&mut self, connection: &mut Connection) -> Result<T, Refused>;

    /// Polls for completions.
    fn poll_once(&mut self, connection: &mut Connection, scope: PollScope) -> PollOutcome<T> {
        if connection.poll_once(scope) { PollOutcome::Moved } else { PollOutcome::Nothing }
    }
}

/// The result of a poll.
enum PollOutcome<T> {
    Nothing,
    /// Something moved, so that the call can be tried again.
    Moved,
    /// The result of the call.
    Done(T),
}

impl<T, F: FnMut(&mut Connection) -> Result<T, Refused>> CallAttempt<T> for F {
    fn attempt(&mut self, connection: &mut Connection) -> Result<T, Refused> {
        self(connection)
    }
}

/// A call that fills a buffer with the data of one frame. `done` makes its result.
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
    fn poll_once(&mut self, connection: &mut Connection, scope: PollScope) -> PollOutcome<T> {
        let mut sink = CallBuffer::new(self.buffer);
        let moved = connection.poll_into(scope, &mut sink);
        match sink.taken() {
            Some(len) => PollOutcome::Done((self.done)(len)),
            None if moved => PollOutcome::Moved,
            None => PollOutcome::Nothing,
        }
    }
}

impl Caller<'_> {
    /// Whether calls leave unsent bytes to the service thread: blocking ones, and those of a task, which
    /// may make no more. Without visits a task's next call sends them.
    fn leaves_unsent(&self) -> bool {
        !self.timeouts().is_nonblocking() || self.tasks.is_some() && visits::are_possible()
    }

    /// Closes one direction or both.
    pub(crate) fn shutdown(&mut self, how: Shutdown) -> io::Result<()> {
        let protocol = &mut self.connection.protocol;
        if matches!(how, Shutdown::Write | Shutdown::Both) {
            protocol.shutdown_write();
        }
        if matches!(how, Shutdown::Read | Shutdown::Both) {
            protocol.shutdown_read();
        }
        // The program may never call again.
        self.connection.progress();
        if self.leaves_unsent() && self.connection.is_sent_or_failed().is_err() {
            self.leave_unsent();
        }
        self.publish_readiness();
        self.wake_sleeper();
        Ok(())
    }

    /// Runs the call until it succeeds, fails or times out.
    pub(crate) fn call<T>(
        &mut self,
        direction: Direction,
        attempt: impl FnMut(&mut Connection) -> Result<T, Refused>,
    ) -> io::Result<T> {
        self.run_call(direction, direction == Direction::Write, attempt)
    }

    /// Runs a call that waits for completions of sends, and not for room.
    pub(crate) fn call_for_completion<T>(
        &mut self,
        attempt: impl FnMut(&mut Connection) -> Result<T, Refused>,
    ) -> io::Result<T> {
        self.run_call(Direction::Write, false, attempt)
    }

    /// Runs a call that fills a buffer.
    pub(crate) fn fill<T>(
        &mut self,
        buffer: &mut [u8],
        attempt: impl FnMut(&mut Connection, &mut [u8]) -> Result<T, Refused>,
        done: fn(usize) -> T,
    ) -> io::Result<T> {
        self.run_call(Direction::Read, false, FillCall { buffer, attempt, done })
    }

    /// Runs a call that reads and writes, for a mux. It waits for arrivals and for room. Returns
    /// false if the time is over. What it has written and could not send is left to the service
    /// thread.
    pub(crate) fn exchange(
        &mut self,
        until: Until,
        mut attempt: &mut dyn FnMut(&mut Connection) -> Result<(), Refused>,
    ) -> io::Result<bool> {
        let exchanged = match attempt(&mut self.connection) {
            Err(Refused::Blocked) => self.wait_for(Direction::Read, until, &mut attempt),
            Err(Refused::Failed(error)) => Err(error),
            Ok(()) => {
                self.connection.post();
                Ok(())
            }
        };
        let connection = &mut self.connection;
        if !(connection.is_flushed() || connection.poll_once(PollScope::ONCE) && connection.is_flushed()) {
            self.leave_if_unsent();
        }
        match exchanged {
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                Ok(false)
            }
            exchanged => exchanged.map(|()| true),
        }
    }

    fn run_call<T>(
        &mut self,
        direction: Direction,
        wants_room: bool,
        mut call: impl CallAttempt<T>,
    ) -> io::Result<T> {
        let outcome = match call.attempt(&mut self.connection) {
            Err(Refused::Blocked) => {
                let until = self.timeouts().begin(direction);
                self.wait_for(direction, until, &mut call)
            }
            Err(Refused::Failed(error)) => Err(error),
            Ok(value) => {
                self.connection.post();
                Ok(value)
            }
        };
        self.after_call(direction, wants_room, outcome.as_ref().err());
        outcome
    }

    /// Records and publishes what a call that ended with `error` leaves behind.
    fn after_call(&mut self, direction: Direction, wants_room: bool, error: Option<&io::Error>) {
        let succeeded = error.is_none();
        // A program in non-blocking mode must learn when the system takes more, although no call
        // was refused.
        let left_behind = succeeded && self.timeouts().is_nonblocking() && !self.try_flush();
        if left_behind && self.tasks.is_none() && matches!(self.sleep(Until::Now), Ok(true)) {
            self.connection.progress();
        }
        let would_block = error.is_some_and(|error| error.kind() == io::ErrorKind::WouldBlock);
        let refused = wants_room && would_block;
        let open = &mut **self;
        if let Some(tasks) = open.tasks.as_mut().filter(|_| would_block && direction == Direction::Write) {
            match wants_room {
                true => tasks.set_write_refused(),
                false => tasks.set_waits_for_sends(open.connection.sent_state()),
            }
        }
        if wants_room {
            // With several threads another one may be waiting for room.
            if refused || !self.is_shared() || self.readiness_state.has_shown_room() {
                self.readiness_state.set_write_refused(refused);
            }
        }
        if self.is_exported() {
            self.publish_after_call(direction, succeeded);
            self.publish_room(refused);
        }
    }

    /// Makes the program's descriptor match what calls can do, after a call that the program may not
    /// repeat until it would block.
    fn publish_after_call(&mut self, direction: Direction, succeeded: bool) {
        let open = &mut **self;
        if let Some(tasks) = &mut open.tasks {
            let connection = &open.connection;
            tasks.after_call(direction, connection.readiness(), connection.sent_state());
            self.wake_at_end();
            return self.publish(false);
        }
        if succeeded && direction == Direction::Read && !self.connection.readiness().readable {
            // As a refused call does, it replaces the receives and asks for the next event.
            if let Err(error) = self.sleep(Until::Now) {
                tracing::debug!(connection = %self.connection.info, %error, "its events are not known");
            }
            self.connection.progress();
        }
        let ready = self.connection.readiness();
        let rings = match succeeded {
            true => self.readiness_state.update_after_call(ready),
            false => self.readiness_state.update(ready),
        };
        self.publish(rings);
    }

    /// Whether all written bytes are sent. Over a device this needs no system call: it takes the
    /// completions and posts the receives, as a turn does, because the program may then wait for
    /// the descriptor.
    fn try_flush(&mut self) -> bool {
        if !self.connection.is_flushed() {
            while self.connection.poll_once(PollScope::All) {}
        }
        self.connection.is_flushed()
    }

    fn wait_for<T>(
        &mut self,
        direction: Direction,
        until: Until,
        call: &mut dyn CallAttempt<T>,
    ) -> io::Result<T> {
        if direction == Direction::Read
            && !matches!(until, Until::Now)
            && self.connection.protocol.is_corked()
        {
            // Sends held bytes, because the caller waits for the peer's answer to them.
            self.connection.protocol.flush();
        }
        let (since, mut slept) = (Instant::now(), false);
        let outcome = loop {
            let now = if slept { Instant::now() } else { since };
            // An event that brings no completion is not worth polling for more.
            let found = if slept { None } else { self.spin(now, self.connection.spin.time(), until, call) };
            if let Some(outcome) = found.or_else(|| self.take_arrived(now, direction, call)) {
                break outcome;
            }
            if self.tries_again() && !self.connection.has_work_due(now) {
                break Err(timed_out(until));
            }
            // Over TCP a read makes room in the kernel, so that more may come at once.
            let is_only_looking =
                matches!(until, Until::Now) && !self.another_sleeps() && !self.connection.is_tcp();
            if is_only_looking {
                // Before the next event is requested, so that nothing is left to look for after that.
                if let Err(error) = self.take_events() {
                    break Err(error);
                }
            }
            self.connection.progress();
            match call.attempt(&mut self.connection) {
                Err(Refused::Blocked) => (),
                Err(Refused::Failed(error)) => break Err(error),
                Ok(value) => {
                    self.connection.post();
                    if is_only_looking {
                        self.renew_memory_wake_up();
                    }
                    break Ok(value);
                }
            }
            slept = true;
            if is_only_looking {
                match self.may_sleep() {
                    true => break Err(timed_out(until)),
                    false => continue,
                }
            }
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

    /// Takes what has arrived, before the next event is requested. If nobody else waits for an event,
    /// none comes until a call waits again: otherwise the completions of what the program sends in
    /// answer would make one. Work that is due goes first, because a program whose calls always find
    /// something would not take a turn otherwise.
    fn take_arrived<T>(
        &mut self,
        now: Instant,
        direction: Direction,
        call: &mut dyn CallAttempt<T>,
    ) -> Option<io::Result<T>> {
        if self.connection.has_work_due(now) {
            return None;
        }
        loop {
            let outcome = match call.poll_once(&mut self.connection, PollScope::All) {
                PollOutcome::Nothing => return None,
                PollOutcome::Moved => call.attempt(&mut self.connection),
                PollOutcome::Done(value) => Ok(value),
            };
            // A call that is tried again may be given up before that, and others may wait.
            let is_given_up = self.tries_again() && matches!(outcome, Err(Refused::Blocked));
            if !is_given_up && self.waits_alone(direction) {
                self.connection.end_request_for_event();
            }
            match outcome {
                Err(Refused::Blocked) => (),
                Err(Refused::Failed(error)) => return Some(Err(error)),
                Ok(value) => {
                    self.connection.post();
                    return Some(Ok(value));
                }
            }
        }
    }

    /// Whether no other task and no other thread waits for an event of this connection, and the program
    /// does not wait for its descriptor.
    fn waits_alone(&self, direction: Direction) -> bool {
        match &self.tasks {
            Some(tasks) => direction == Direction::Read && !tasks.has_writers(),
            None => !self.is_exported() && !self.is_shared(),
        }
    }

    /// Asks again for the wake-up by memory. This call may have taken that of another task, and does not
    /// wait.
    fn renew_memory_wake_up(&mut self) {
        if self.is_exported() && self.connection.awaits_memory() && !self.is_armed() {
            // Memory is free already.
            self.ring();
        }
    }

    /// Polls for completions for a while before a turn arms the completion queue and the thread
    /// sleeps, because both cost more than a short wait. It polls for `first` until something moves.
    /// Returns the call's result if there is one.
    fn spin<T>(
        &mut self,
        mut now: Instant,
        first: Duration,
        limit: Until,
        call: &mut dyn CallAttempt<T>,
    ) -> Option<io::Result<T>> {
        let time = self.connection.spin.time();
        if time.is_zero() || matches!(limit, Until::Now) {
            return None;
        }
        let (mut until, mut scope) = (now + first, PollScope::All);
        let mut yields_at = now + YIELD_INTERVAL;
        while now < until && !limit.has_passed_at(now) && !self.connection.has_work_due(now) {
            if self.has_others() {
                return None;
            }
            if now >= yields_at {
                thread::yield_now();
                yields_at = now + YIELD_INTERVAL;
            }
            for _ in 0..MOVES_PER_CLOCK_READ {
                let outcome = match call.poll_once(&mut self.connection, scope) {
                    PollOutcome::Nothing if scope != PollScope::All => break,
                    PollOutcome::Nothing => {
                        // A pause instruction between polls would take longer than a poll.
                        scope = PollScope::Frame { polls: POLLS_PER_CLOCK_READ };
                        continue;
                    }
                    PollOutcome::Moved => call.attempt(&mut self.connection),
                    PollOutcome::Done(value) => Ok(value),
                };
                scope = PollScope::All;
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

    /// Makes the program's descriptor match what calls can do.
    fn publish_readiness(&mut self) {
        if self.is_exported() {
            let open = &mut **self;
            let ready = open.connection.readiness();
            let rings = match &mut open.tasks {
                Some(tasks) => tasks.publish(ready, open.connection.sent_state()),
                None => open.readiness_state.update(ready),
            };
            self.wake_at_end();
            self.publish(rings);
            self.publish_room(false);
        }
    }

    fn publish(&mut self, rings: bool) {
        if rings {
            self.ring();
        }
        let deadline = self.connection.next_deadline();
        if let Some(poller) = &mut self.poller {
            poller.wake_at(deadline);
        }
    }

    /// Finishes a write. One that blocks has the system or the device take the bytes, or leaves them to
    /// the service thread. The next call reports a failure.
    pub(crate) fn finish_write<T>(&mut self, taken: T) -> io::Result<T> {
        if self.timeouts().is_nonblocking() {
            self.leave_of_task();
            return Ok(taken);
        }
        let connection = &mut self.connection;
        // Usually one poll shows that they are sent.
        if !(connection.is_flushed() || connection.poll_once(PollScope::ONCE) && connection.is_flushed()) {
            // Over TCP it waits for the kernel, as a socket does.
            self.send_or_leave(self.connection.is_tcp());
        }
        Ok(taken)
    }

    /// Leaves what a task's call could not send.
    fn leave_of_task(&mut self) {
        if !self.connection.is_flushed() && self.leaves_unsent() {
            self.leave_if_unsent();
        }
    }

    /// Sends the written bytes. It waits if it is told to, and where the service thread cannot visit.
    /// Otherwise it only polls, because the peer's program may be busy. If bytes are left from earlier
    /// calls, it does neither.
    #[inline(never)]
    fn send_or_leave(&mut self, waits: bool) {
        if !self.connection.protocol.is_corked() {
            self.connection.protocol.flush();
        }
        let attempt = |connection: &mut Connection| {
            connection.post();
            connection.is_sent_or_failed()
        };
        let waits = waits || !visits::are_possible();
        if !self.left_unsent && waits {
            if let Err(error) = self.call_for_completion(attempt) {
                tracing::trace!(connection = %self.connection.info, %error, "taken, and not yet on its way");
            }
        } else if !self.left_unsent {
            let time = self.connection.spin.time();
            if self.spin(Instant::now(), time, Until::Event, &mut { attempt }).is_some() {
                self.connection.spin.found_by_polling();
            }
        }
        self.leave_if_unsent();
    }

    /// Runs a call that lends blocks. If it blocks, it leaves those to the service thread that the peer
    /// has no room for.
    pub(crate) fn lend<T>(
        &mut self,
        attempt: impl FnMut(&mut Connection) -> Result<T, Refused>,
    ) -> io::Result<T> {
        let taken = self.call(Direction::Write, attempt);
        if taken.is_ok() && self.leaves_unsent() && self.connection.has_unposted() {
            self.leave_unsent();
        }
        taken
    }

    /// Sends what a program has left behind, for the service thread. Returns whether anything has
    /// moved, and `None` once nothing is left.
    pub(crate) fn send_left(&mut self) -> Option<bool> {
        // Part of a frame over TCP changes only the number of calls.
        let seen = |connection: &Connection| (connection.findings(), connection.system_calls());
        let before = seen(&self.connection);
        // A peer that goes on sending does not keep the thread.
        self.connection.limit_turns(true);
        if let Err(error) = self.take_events() {
            tracing::debug!(connection = %self.connection.info, %error, "its events are not known");
        }
        self.connection.progress();
        // Asks again for the wake-ups that this visit has taken. Those for memory show as readiness.
        let has_more = !self.is_armed();
        self.connection.limit_turns(false);
        self.publish_readiness();
        let moved = seen(&self.connection) != before;
        if moved && self.is_exported() && self.timeouts().is_nonblocking() {
            // A refused flush, or a wait for a lent block, waits for this.
            match &mut self.tasks {
                Some(tasks) => tasks.wake_all(),
                None => self.ring(),
            }
        }
        self.left_unsent = self.connection.is_sent_or_failed().is_err();
        // Work that is left makes no event, for which the program may wait.
        (self.left_unsent || has_more).then_some(moved || has_more)
    }

    /// Takes the events that have come.
    fn look(&mut self) -> io::Result<()> {
        for _ in 0..MOST_LOOKS {
            self.connection.progress();
            if !self.sleep(Until::Now)? {
                break;
            }
        }
        Ok(())
    }

    /// The failure, if no call has reported it.
    pub(crate) fn take_error(&mut self) -> io::Result<Option<io::Error>> {
        self.look()?;
        self.publish_readiness();
        Ok(self.connection.take_error())
    }

    /// Whether another part of the program can use the connection as a new one. A failure, an end or
    /// bytes that have just come show without a call that reads.
    pub(crate) fn is_at_rest(&mut self) -> io::Result<bool> {
        self.look()?;
        self.publish_readiness();
        Ok(self.connection.is_at_rest())
    }

    /// The calls that can make progress.
    pub(crate) fn readiness(&mut self) -> io::Result<Readiness> {
        self.look()?;
        let ready = self.connection.readiness();
        self.readiness_state.set_write_refused(!ready.writable);
        if let Some(tasks) = self.tasks.as_mut().filter(|_| !ready.writable) {
            tasks.set_write_refused();
        }
        self.publish_readiness();
        self.publish_room(!ready.writable);
        Ok(ready)
    }

    pub(crate) fn set_interest(&mut self, interest: Readiness) {
        self.readiness_state.set_interest(interest);
        self.publish_readiness();
    }

    /// Sends what a change made due.
    pub(crate) fn after_change(&mut self) {
        self.connection.post();
        self.publish_readiness();
    }

    /// Starts or stops holding back partial frames.
    pub(crate) fn cork(&mut self, corked: bool) -> io::Result<()> {
        self.call(Direction::Write, |connection| {
            connection.protocol.cork(corked);
            Ok(())
        })?;
        self.finish_write(())
    }

    /// Sends all written bytes. In blocking mode, and for a task, it leaves those to the service thread
    /// that the transport does not take. As `TcpStream`'s it does not fail with the connection: the
    /// next call reports that.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.connection.protocol.flush();
        let leaves = self.leaves_unsent();
        let is_sent = self.call_for_completion(|connection| {
            connection.post();
            match connection.is_sent_or_failed() {
                Err(Refused::Blocked) if leaves => Ok(false),
                sent => sent.map(|()| true),
            }
        })?;
        match is_sent {
            true => (),
            false if self.timeouts().is_nonblocking() => self.leave_if_unsent(),
            false => self.send_or_leave(false),
        }
        Ok(())
    }

    /// Finds whether any written byte depends on this process. A call in non-blocking mode makes its
    /// descriptor readable once none does.
    #[cfg(all(unix, feature = "tokio"))]
    pub(crate) fn try_drain(&mut self) -> io::Result<()> {
        self.connection.protocol.flush();
        self.call_for_completion(Connection::is_drained)
    }

    /// Waits until no written byte depends on this process.
    pub(crate) fn drain(&mut self, deadline: Instant) -> io::Result<()> {
        self.connection.protocol.flush();
        let until = Until::Deadline(deadline);
        let drained = self.wait_for(Direction::Write, until, &mut Connection::is_drained);
        self.publish_readiness();
        match drained {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the peer's side does not hold all written bytes yet: is its program reading?",
            )),
            outcome => outcome,
        }
    }
}

/// The timeout error of [`std::net`], whose kind differs on Windows.
pub(crate) fn timed_out(until: Until) -> io::Error {
    match until {
        Until::Deadline(_) if cfg!(windows) => io::ErrorKind::TimedOut.into(),
        _ => io::ErrorKind::WouldBlock.into(),
    }
}
