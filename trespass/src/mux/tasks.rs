//! Calls that tasks of tokio await.
//!
//! A task of the mux moves its bytes. Calls wake it for what they queue, and it wakes them for what
//! has arrived. So what tasks queue before it runs shares a write.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use ::tokio::io::ReadBuf;

use super::core::{Arrived, State, Wire};
use super::engine::{WaitCause, WaitPlace};
use super::error::MuxError;
use super::handles::{Answers, Mux, PendingAnswer, Request, Sealed, Shared, TimeLimit, hand_over};
use super::payload::MuxBytes;
use crate::tokio::Stream;

/// Rounds of the task before others may run.
const MOST_ROUNDS: usize = 16;

/// A stream for the task that moves its bytes.
struct TaskWire<'a, 'b> {
    stream: &'a Stream,
    context: &'a mut Context<'b>,
}

impl Wire for TaskWire<'_, '_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let mut buffer = ReadBuf::new(buffer);
        match self.stream.poll_read_shared(self.context, &mut buffer) {
            Poll::Ready(read) => read.map(|()| Some(buffer.filled().len())),
            Poll::Pending => Ok(None),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<Option<usize>> {
        match self.stream.poll_write_shared(self.context, &[io::IoSlice::new(bytes)]) {
            Poll::Ready(written) => written.map(Some),
            Poll::Pending => Ok(None),
        }
    }
}

impl Sealed for Stream {
    fn start(shared: &Arc<Shared<Self>>) -> io::Result<()> {
        shared.stream.set_cork(false)?;
        ::tokio::spawn(drive(MuxTask(shared.clone())));
        Ok(())
    }

    fn send_queued(shared: &Shared<Self>) {
        shared.core.with(State::wake_driver);
    }

    fn closed(shared: &Shared<Self>) {
        shared.core.with(State::wake_driver);
    }
}

impl Shared<Stream> {
    /// Moves bytes until the mux has ended.
    fn poll_drive(&self, context: &mut Context<'_>) -> Poll<()> {
        self.core.with(|state| state.driver = Some(context.waker().clone()));
        for _ in 0..MOST_ROUNDS {
            let moved = self.core.pump(&mut TaskWire { stream: &self.stream, context });
            if self.core.with(|state| state.failure.is_some()) {
                if self.core.must_shut_down()
                    && let Err(error) = self.stream.shutdown_write()
                {
                    tracing::debug!(%error, "the end of a mux is not sent");
                }
                return Poll::Ready(());
            }
            if !moved {
                // What is queued now wakes the task. The drop of the stream sends what it has
                // taken.
                return if self.is_closed() { Poll::Ready(()) } else { Poll::Pending };
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// Waits for a look that finds a value.
    async fn wait_for<T>(
        &self,
        cause: WaitCause,
        mut look: impl FnMut(&mut State) -> Option<Result<T, MuxError>>,
    ) -> Result<T, MuxError> {
        let mut wait = Wait::new(self, cause);
        let found = poll_fn(|context| {
            let found = self.core.with(|state| {
                let found = look(state);
                if found.is_none() {
                    wait.go_on(state, context.waker());
                }
                found
            });
            found.map_or(Poll::Pending, Poll::Ready)
        })
        .await;
        self.after_queueing();
        found
    }
}

/// A wait of a task. A drop takes its waker back.
struct Wait<'a> {
    shared: &'a Shared<Stream>,
    cause: WaitCause,
    place: WaitPlace,
}

impl<'a> Wait<'a> {
    fn new(shared: &'a Shared<Stream>, cause: WaitCause) -> Self {
        Self { shared, cause, place: WaitPlace::default() }
    }

    /// Keeps the waker. What is queued is sent, also of a corked mux: the task may wait for its
    /// effect.
    fn go_on(&mut self, state: &mut State, waker: &Waker) {
        state.engine.wait(self.cause, &mut self.place, waker);
        if state.engine.has_output() {
            state.wake_driver();
        }
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        if self.place.is_taken() {
            drop(self.shared.core.with(|state| state.engine.stop_waiting(&mut self.place)));
        }
    }
}

/// Waits until a deadline. `None` means that it has passed.
async fn within<T>(deadline: Option<TimeLimit>, wait: impl Future<Output = T>) -> Option<T> {
    match deadline {
        Some(deadline) => ::tokio::time::timeout_at(deadline.at.into(), wait).await.ok(),
        None => Some(wait.await),
    }
}

/// The calls on a stream of `trespass::tokio`, which are awaited.
///
/// Deadlines need a runtime with time.
impl Mux<Stream> {
    /// Sends a request, and does not wait for its answers. While the peer has as many as it
    /// accepts, this waits.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before it is ready, nothing is sent.
    ///
    /// # Errors
    ///
    /// The connection has failed.
    pub async fn request<'a>(
        &self,
        bytes: impl Into<MuxBytes<'a>>,
    ) -> Result<PendingAnswer<Stream>, MuxError> {
        self.begin(bytes.into(), None, false).await.map(|id| PendingAnswer::new(&self.shared, id, None))
    }

    /// The same with a deadline for the last of its answers, which the peer knows.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before it is ready, nothing is sent.
    ///
    /// # Errors
    ///
    /// The connection has failed, or the peer had as many requests as it accepts until the
    /// deadline.
    pub async fn request_within<'a>(
        &self,
        bytes: impl Into<MuxBytes<'a>>,
        time: Duration,
    ) -> Result<PendingAnswer<Stream>, MuxError> {
        let deadline = TimeLimit::after(time);
        let id = self.begin(bytes.into(), deadline, false).await?;
        Ok(PendingAnswer::new(&self.shared, id, deadline))
    }

    /// Sends a message that has no answer. While the peer has as many requests as it accepts, this
    /// waits. A message counts as one until the peer's program has taken it.
    /// It also waits while 4 MiB of earlier messages are not sent.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before it is ready, nothing is sent.
    ///
    /// # Errors
    ///
    /// The connection has failed.
    pub async fn send_one_way<'a>(&self, bytes: impl Into<MuxBytes<'a>>) -> Result<(), MuxError> {
        self.begin(bytes.into(), None, true).await.map(drop)
    }

    async fn begin(
        &self,
        bytes: MuxBytes<'_>,
        deadline: Option<TimeLimit>,
        one_way: bool,
    ) -> Result<u64, MuxError> {
        let mut bytes = Some(bytes);
        let begun = self
            .shared
            .wait_for(WaitCause::Room { one_way }, |state| state.request(&mut bytes, deadline, one_way));
        match (within(deadline, begun).await, deadline) {
            (Some(begun), _) => begun,
            (None, Some(deadline)) => Err(deadline.passed()),
            (None, None) => unreachable!("a wait without a deadline has an end"),
        }
    }

    /// Waits for a request of the peer. Several tasks may wait. `None` means that the peer has
    /// closed the connection, and all its requests were taken.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe.
    ///
    /// # Errors
    ///
    /// The connection has failed.
    pub async fn next_request(&self) -> Result<Option<Request<Stream>>, MuxError> {
        let arrival = self.shared.wait_for(WaitCause::Arrival, |state| state.next_arrival());
        Ok(arrival.await?.map(|arrival| Request::new(&self.shared, arrival)))
    }

    /// Waits until all that was queued is sent, and no byte of it depends on this process, as
    /// [`Stream::drain`] does. It also waits until the peer's program has taken all one-way
    /// messages, so that a drop then loses none.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe.
    ///
    /// # Errors
    ///
    /// The connection has failed.
    pub async fn drain(&self) -> io::Result<()> {
        let core = &self.shared.core;
        let mut wait = Wait::new(&self.shared, WaitCause::Sent);
        let sent = poll_fn(|context| {
            let failure = core.with(|state| {
                wait.go_on(state, context.waker());
                state.failure.clone()
            });
            match failure {
                // The peer has ended after it had taken all.
                Some(MuxError::Closed) if core.is_sent() => Poll::Ready(Ok(true)),
                Some(failure) => Poll::Ready(Err(failure)),
                None if core.is_sent() => Poll::Ready(Ok(false)),
                None => Poll::Pending,
            }
        });
        match sent.await? {
            true => Ok(()),
            false => self.shared.stream.drain().await,
        }
    }
}

/// The task's hold on a mux. It also ends when the task never runs, or not to its end.
struct MuxTask(Arc<Shared<Stream>>);

impl Drop for MuxTask {
    fn drop(&mut self) {
        if !self.0.is_closed() {
            // Nobody else moves bytes.
            self.0.core.fail(MuxError::Connection {
                kind: io::ErrorKind::BrokenPipe,
                message: "the task that moves its bytes has ended, with its runtime or by a panic".into(),
            });
        }
    }
}

async fn drive(task: MuxTask) {
    poll_fn(|context| task.0.poll_drive(context)).await;
}

/// The calls on a stream of `trespass::tokio`, which are awaited.
impl PendingAnswer<Stream> {
    /// Waits for the first answer. If there are others, they are cancelled.
    ///
    /// # Cancel safety
    ///
    /// A drop of the future cancels the request. To wait again, use
    /// [`next_answer`](Self::next_answer).
    ///
    /// # Errors
    ///
    /// The deadline has passed, the peer gives no answer, or the connection has failed.
    pub async fn wait(mut self) -> Result<Vec<u8>, MuxError> {
        self.next_answer().await?.ok_or(MuxError::Unanswered)
    }

    /// Waits for the next answer. `None` means that all have arrived.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe.
    ///
    /// # Errors
    ///
    /// Those of [`wait`](Self::wait).
    pub async fn next_answer(&mut self) -> Result<Option<Vec<u8>>, MuxError> {
        if self.is_over {
            return Ok(None);
        }
        let (id, limit, partial) = (self.id, self.shared.core.max_message(), &mut self.partial);
        let found =
            self.shared.wait_for(WaitCause::Answer(id), |state| state.next_answer(id, partial, limit));
        match within(self.deadline, found).await {
            None => Err(self.pass_deadline()),
            Some(found) => {
                let is_message = self.found(found, |is_message| !is_message)?;
                Ok(is_message.then(|| std::mem::take(&mut self.partial)))
            }
        }
    }

    /// Waits for bytes of an answer, and appends them. A part may have any size.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe.
    ///
    /// # Errors
    ///
    /// Those of [`wait`](Self::wait).
    pub async fn next_part(&mut self, into: &mut Vec<u8>) -> Result<Arrived, MuxError> {
        if self.is_over {
            return Ok(Arrived::End);
        }
        if hand_over(&mut self.partial, into) {
            return Ok(Arrived::Part);
        }
        let id = self.id;
        let found = self.shared.wait_for(WaitCause::Answer(id), |state| state.next_part(id, into));
        match within(self.deadline, found).await {
            None => Err(self.pass_deadline()),
            Some(found) => self.found(found, |arrived| *arrived == Arrived::End),
        }
    }
}

/// The calls on a stream of `trespass::tokio`, which are awaited.
impl Request<Stream> {
    /// Waits for the whole request. A second call returns no bytes.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe.
    ///
    /// # Errors
    ///
    /// The peer has cancelled the request, it is too long, or the connection has failed.
    pub async fn bytes(&mut self) -> Result<Vec<u8>, MuxError> {
        let (id, limit, partial) = (self.arrival.id, self.shared.core.max_message(), &mut self.partial);
        let whole = self.shared.wait_for(WaitCause::Change(id), |state| state.next_body(id, partial, limit));
        whole.await?;
        Ok(std::mem::take(&mut self.partial))
    }

    /// Waits for bytes of the request, and appends them. A part may have any size.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe.
    ///
    /// # Errors
    ///
    /// The peer has cancelled the request, or the connection has failed.
    pub async fn next_part(&mut self, into: &mut Vec<u8>) -> Result<Arrived, MuxError> {
        if hand_over(&mut self.partial, into) {
            return Ok(Arrived::Part);
        }
        let id = self.arrival.id;
        let found = self.shared.wait_for(WaitCause::Change(id), |state| state.next_body_part(id, into));
        found.await
    }
}

/// The calls on a stream of `trespass::tokio`, which are awaited.
impl Answers<Stream> {
    /// Sends an answer. It waits until the one before is sent, for which the peer must have room:
    /// its program takes the answers, or leaves a window of them.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before it is ready, nothing is sent.
    ///
    /// # Errors
    ///
    /// The peer has cancelled the request, or the connection has failed.
    pub async fn send<'a>(&mut self, bytes: impl Into<MuxBytes<'a>>) -> Result<(), MuxError> {
        let request = &self.request;
        if request.arrival.one_way {
            return Ok(());
        }
        let (mut bytes, id) = (Some(bytes.into()), request.arrival.id);
        let sent =
            request.shared.wait_for(WaitCause::Change(id), |state| state.answer(id, &mut bytes, false));
        sent.await
    }

    /// Ends the answers, after a wait for the last one to be sent.
    ///
    /// # Cancel safety
    ///
    /// A drop of the future drops the request, which is an error at the peer.
    ///
    /// # Errors
    ///
    /// The peer has cancelled the request, or the connection has failed.
    pub async fn finish(mut self) -> Result<(), MuxError> {
        let request = &mut self.request;
        if request.arrival.one_way {
            return Ok(());
        }
        let id = request.arrival.id;
        let ended = request.shared.wait_for(WaitCause::Change(id), |state| state.end_answers(id));
        ended.await?;
        request.ended();
        Ok(())
    }
}
