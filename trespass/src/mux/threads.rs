//! Calls that block.
//!
//! No thread of the mux moves its bytes: a call that waits does that, for all others, too. The
//! connection's turns choose it. A call that only sends takes a turn, and does not wait.

use std::io;
use std::net::{Shutdown, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::config::MuxConfig;
use super::core::{Arrived, Core, State, Wire};
use super::error::MuxError;
use super::handles::{Answers, Mux, PendingAnswer, Request, Sealed, Shared, TimeLimit, hand_over};
use super::payload::MuxBytes;
use crate::Stream;
use crate::session::connection::{Connection, Refused};
use crate::session::readiness::Until;

/// Moves of bytes between two reads of the clock.
const ROUNDS_PER_CLOCK_READ: u32 = 16;

impl Wire for &mut Connection {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        unless_blocked(Connection::read(self, buffer))
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<Option<usize>> {
        unless_blocked(self.write_now(&[io::IoSlice::new(bytes)]))
    }
}

fn unless_blocked(done: Result<usize, Refused>) -> io::Result<Option<usize>> {
    match done {
        Ok(count) => Ok(Some(count)),
        Err(Refused::Blocked) => Ok(None),
        Err(Refused::Failed(error)) => Err(error),
    }
}

impl Sealed for Stream {
    fn start(shared: &Arc<Shared<Self>>) -> io::Result<()> {
        shared.stream.set_nonblocking(false)?;
        shared.stream.set_cork(false)
    }

    fn look(shared: &Shared<Self>) {
        if let Err(error) = shared.wait_until(Until::Now, &mut |_| false) {
            shared.core.fail(error);
        }
    }

    fn closed(shared: &Shared<Self>) {
        shared.core.cork(false);
        shared.after_queueing();
    }

    fn send_queued(shared: &Shared<Self>) {
        let mut attempt = |mut connection: &mut Connection| {
            shared.core.write(&mut connection);
            Ok(())
        };
        if let Err(error) = shared.exchange(Until::Now, &mut attempt) {
            shared.core.fail(error);
        }
    }
}

impl Shared<Stream> {
    fn exchange(
        &self,
        until: Until,
        attempt: &mut dyn FnMut(&mut Connection) -> Result<(), Refused>,
    ) -> Result<bool, MuxError> {
        let exchanged = self.stream.0.shared().and_then(|mut caller| caller.exchange(until, attempt));
        if self.core.must_shut_down() {
            self.stream.shutdown(Shutdown::Both).map_err(|error| MuxError::of_connection(&error))?;
        }
        exchanged.map_err(|error| MuxError::of_connection(&error))
    }

    /// Moves bytes until `look` is true, which it returns, or the time is over.
    fn wait_until(&self, until: Until, look: &mut dyn FnMut(&Core) -> bool) -> Result<bool, MuxError> {
        let core = &self.core;
        if look(core) {
            // Credit that the call gives.
            self.after_queueing();
            return Ok(true);
        }
        let (mut rounds, mut found) = (0_u32, true);
        let in_time = self.exchange(until, &mut |mut connection| {
            loop {
                let moved = core.pump(&mut connection);
                if look(core) {
                    core.write(&mut connection);
                    return Ok(());
                }
                // A peer that goes on sending does not keep a call beyond its time.
                rounds += 1;
                if rounds % ROUNDS_PER_CLOCK_READ == 0 && until.is_over() {
                    found = false;
                    return Ok(());
                }
                if !moved && !core.can_write() {
                    return Err(Refused::Blocked);
                }
                // What was read and written makes room, of which no event tells.
                connection.progress();
            }
        })?;
        Ok(in_time && found)
    }

    /// The same for a look at the state that finds a value. `None` means that the time is over.
    pub(super) fn wait_for<T>(
        &self,
        until: Until,
        look: impl FnMut(&mut State) -> Option<Result<T, MuxError>>,
    ) -> Result<Option<T>, MuxError> {
        let (mut look, mut found) = (look, None);
        let in_time = self.wait_until(until, &mut |core| {
            found = core.with(&mut look);
            found.is_some()
        })?;
        match found {
            Some(found) if in_time => found.map(Some),
            _ => Ok(None),
        }
    }
}

fn until(deadline: Option<TimeLimit>) -> Until {
    Until::Event.or(deadline.map(|deadline| deadline.at))
}

/// The calls on a [`Stream`], which block.
impl Mux<Stream> {
    /// Connects with default parameters.
    ///
    /// # Errors
    ///
    /// Those of [`Stream::connect`].
    pub fn connect(addr: impl ToSocketAddrs) -> io::Result<Self> {
        Self::over(Stream::connect(addr)?, &MuxConfig::new())
    }

    /// Sends a request, and does not wait for its answers. While the peer has as many as it
    /// accepts, this waits.
    ///
    /// # Errors
    ///
    /// The connection has failed.
    pub fn request<'a>(&self, bytes: impl Into<MuxBytes<'a>>) -> Result<PendingAnswer, MuxError> {
        self.begin(bytes.into(), None, false).map(|id| PendingAnswer::new(&self.shared, id, None))
    }

    /// The same with a deadline for the last of its answers, which the peer knows.
    ///
    /// # Errors
    ///
    /// The connection has failed, or the peer had as many requests as it accepts until the
    /// deadline.
    pub fn request_within<'a>(
        &self,
        bytes: impl Into<MuxBytes<'a>>,
        time: Duration,
    ) -> Result<PendingAnswer, MuxError> {
        let deadline = TimeLimit::after(time);
        self.begin(bytes.into(), deadline, false).map(|id| PendingAnswer::new(&self.shared, id, deadline))
    }

    /// Sends a message that has no answer. While the peer has as many requests as it accepts, this
    /// waits. A message counts as one until the peer's program has taken it.
    /// It also waits while 4 MiB of earlier messages are not sent.
    ///
    /// # Errors
    ///
    /// The connection has failed.
    pub fn send_one_way<'a>(&self, bytes: impl Into<MuxBytes<'a>>) -> Result<(), MuxError> {
        self.begin(bytes.into(), None, true).map(drop)
    }

    /// The same until a deadline, at which it fails. Then nothing is sent.
    ///
    /// # Errors
    ///
    /// The connection has failed, or it had to wait until the deadline.
    pub fn send_one_way_within<'a>(
        &self,
        bytes: impl Into<MuxBytes<'a>>,
        time: Duration,
    ) -> Result<(), MuxError> {
        self.begin(bytes.into(), TimeLimit::after(time), true).map(drop)
    }

    fn begin(
        &self,
        bytes: MuxBytes<'_>,
        deadline: Option<TimeLimit>,
        one_way: bool,
    ) -> Result<u64, MuxError> {
        let mut bytes = Some(bytes);
        // A one-way message has the deadline of its call.
        let told = deadline.filter(|_| !one_way);
        let begun =
            self.shared.wait_for(until(deadline), |state| state.request(&mut bytes, told, one_way))?;
        match (begun, deadline) {
            (Some(id), _) => Ok(id),
            (None, Some(deadline)) => Err(deadline.passed()),
            (None, None) => Err(MuxError::Closed),
        }
    }

    /// Waits for a request of the peer. Several threads may wait. `None` means that the peer has
    /// closed the connection, and all its requests were taken.
    ///
    /// # Errors
    ///
    /// The connection has failed.
    pub fn next_request(&self) -> Result<Option<Request>, MuxError> {
        let arrival = self.shared.wait_for(Until::Event, State::next_arrival)?;
        Ok(arrival.flatten().map(|arrival| Request::new(&self.shared, arrival)))
    }

    /// The same until a deadline, at which it fails.
    ///
    /// # Errors
    ///
    /// The connection has failed, or no request came in time.
    pub fn next_request_within(&self, time: Duration) -> Result<Option<Request>, MuxError> {
        let deadline = TimeLimit::after(time);
        match (self.shared.wait_for(until(deadline), State::next_arrival)?, deadline) {
            (None, Some(deadline)) => Err(deadline.passed()),
            (arrival, _) => Ok(arrival.flatten().map(|arrival| Request::new(&self.shared, arrival))),
        }
    }

    /// Waits until all that was queued is sent, and no byte of it depends on this process, as
    /// [`Stream::drain`] does. It also waits until the peer's program has taken all one-way
    /// messages, so that a drop then loses none.
    ///
    /// # Errors
    ///
    /// The connection has failed, or the deadline has passed.
    pub fn drain(&self, deadline: Instant) -> io::Result<()> {
        let is_over = |core: &Core| core.is_sent() || core.with(|state| state.failure.is_some());
        let sent = self.shared.wait_until(Until::Deadline(deadline), &mut |core| is_over(core))?;
        match self.failure() {
            // The peer has ended after it had taken all.
            Some(MuxError::Closed) if self.shared.core.is_sent() => Ok(()),
            Some(failure) => Err(failure.into()),
            None if !sent => Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "messages of the mux wait for the peer's program to take them",
            )),
            None => self.shared.stream.drain(deadline),
        }
    }
}

/// The calls on a [`Stream`], which block.
impl PendingAnswer<Stream> {
    /// Waits for the first answer. If there are others, they are cancelled.
    ///
    /// # Errors
    ///
    /// The deadline has passed, the peer gives no answer, or the connection has failed.
    pub fn wait(mut self) -> Result<Vec<u8>, MuxError> {
        self.next_answer()?.ok_or(MuxError::Unanswered)
    }

    /// Waits for the next answer. `None` means that all have arrived.
    ///
    /// # Errors
    ///
    /// Those of [`wait`](Self::wait).
    pub fn next_answer(&mut self) -> Result<Option<Vec<u8>>, MuxError> {
        if self.is_over {
            return Ok(None);
        }
        let (shared, id, mut partial) = (self.shared.clone(), self.id, std::mem::take(&mut self.partial));
        let limit = shared.core.max_message();
        let found = shared.wait_for(until(self.deadline), |state| state.next_answer(id, &mut partial, limit));
        match self.found(found, |found| *found == Some(false))? {
            None => Err(self.pass_deadline()),
            Some(is_message) => Ok(is_message.then_some(partial)),
        }
    }

    /// Waits for bytes of an answer, and appends them. A part may have any size.
    ///
    /// # Errors
    ///
    /// Those of [`wait`](Self::wait).
    pub fn next_part(&mut self, into: &mut Vec<u8>) -> Result<Arrived, MuxError> {
        if self.is_over {
            return Ok(Arrived::End);
        }
        let (shared, id) = (self.shared.clone(), self.id);
        let found = shared.wait_for(until(self.deadline), |state| state.next_part(id, into));
        match self.found(found, |found| *found == Some(Arrived::End))? {
            None => Err(self.pass_deadline()),
            Some(arrived) => Ok(arrived),
        }
    }
}

/// The calls on a [`Stream`], which block.
impl Request<Stream> {
    /// Waits for the whole request. A second call returns no bytes.
    ///
    /// # Errors
    ///
    /// The peer has cancelled the request, it is too long, or the connection has failed.
    pub fn bytes(&mut self) -> Result<Vec<u8>, MuxError> {
        let (id, limit, partial) = (self.arrival.id, self.shared.core.max_message(), &mut self.partial);
        self.shared.wait_for(Until::Event, |state| state.next_body(id, partial, limit))?;
        Ok(std::mem::take(&mut self.partial))
    }

    /// Waits for bytes of the request, and appends them. A part may have any size.
    ///
    /// # Errors
    ///
    /// The peer has cancelled the request, or the connection has failed.
    pub fn next_part(&mut self, into: &mut Vec<u8>) -> Result<Arrived, MuxError> {
        self.part(into, None)
    }

    /// The same until a deadline, at which it fails. A later call goes on.
    ///
    /// # Errors
    ///
    /// The peer has cancelled the request, nothing more came in time, or the connection has failed.
    pub fn next_part_within(&mut self, into: &mut Vec<u8>, time: Duration) -> Result<Arrived, MuxError> {
        self.part(into, TimeLimit::after(time))
    }

    fn part(&mut self, into: &mut Vec<u8>, deadline: Option<TimeLimit>) -> Result<Arrived, MuxError> {
        if hand_over(&mut self.partial, into) {
            return Ok(Arrived::Part);
        }
        let id = self.arrival.id;
        let found = self.shared.wait_for(until(deadline), |state| state.next_body_part(id, into))?;
        match (found, deadline) {
            (None, Some(deadline)) => Err(deadline.passed()),
            (found, _) => found.ok_or(MuxError::Closed),
        }
    }
}

/// The calls on a [`Stream`], which block.
impl Answers<Stream> {
    /// Sends an answer. It waits until the one before is sent, for which the peer must have room:
    /// its program takes the answers, or leaves a window of them.
    ///
    /// # Errors
    ///
    /// The peer has cancelled the request, or the connection has failed.
    pub fn send<'a>(&mut self, bytes: impl Into<MuxBytes<'a>>) -> Result<(), MuxError> {
        let request = &self.request;
        if request.arrival.one_way {
            return Ok(());
        }
        let (mut bytes, id) = (Some(bytes.into()), request.arrival.id);
        request.shared.wait_for(Until::Event, |state| state.answer(id, &mut bytes, false)).map(drop)
    }

    /// Ends the answers, after a wait for the last one to be sent.
    ///
    /// # Errors
    ///
    /// The peer has cancelled the request, or the connection has failed.
    pub fn finish(mut self) -> Result<(), MuxError> {
        let request = &mut self.request;
        if request.arrival.one_way {
            return Ok(());
        }
        let id = request.arrival.id;
        request.shared.wait_for(Until::Event, |state| state.end_answers(id))?;
        request.ended();
        Ok(())
    }
}
