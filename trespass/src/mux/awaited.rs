//! Calls that are awaited, whatever the runtime.
//!
//! A task of the mux moves its bytes. Calls wake it for what they queue, and it wakes them for what
//! has arrived. So what tasks queue before it runs shares a write.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use super::core::{Arrived, State, Wire};
use super::engine::{WaitCause, WaitPlace};
use super::error::MuxError;
use super::handles::{Answers, Mux, MuxStream, PendingAnswer, Request, Sealed, Shared, TimeLimit, hand_over};
use super::payload::MuxBytes;

/// Rounds of the task before others may run.
const MOST_ROUNDS: usize = 16;

/// The streams whose calls on a mux are awaited: those of `trespass::tokio` and `trespass::local`,
/// with the features `tokio` and `local`.
pub trait AwaitedStream: MuxStream + InTask {}

impl<S: InTask> AwaitedStream for S {}

/// What a mux needs of a stream and its runtime. No other crate can name it.
pub trait InTask: Sized {
    /// The wait for a time.
    #[doc(hidden)]
    type Sleep: Future<Output = ()>;

    /// Whether this runtime can run the task of a mux. Gives the stream the settings of a new one.
    #[doc(hidden)]
    fn prepare(&self) -> io::Result<()>;

    /// Runs [`MuxTask::run`] in a task of this runtime.
    #[doc(hidden)]
    fn spawn(task: MuxTask<Self>);

    #[doc(hidden)]
    fn poll_read(&self, context: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>>;

    #[doc(hidden)]
    fn poll_write(&self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>>;

    #[doc(hidden)]
    fn shutdown_write(&self) -> io::Result<()>;

    /// Waits until no written byte depends on this process.
    #[doc(hidden)]
    fn drained(&self) -> impl Future<Output = io::Result<()>>;

    /// Fails if the task of the mux does not run while the caller waits.
    #[doc(hidden)]
    fn check_waits(&self) -> io::Result<()> {
        Ok(())
    }

    #[doc(hidden)]
    fn sleep_until(at: Instant) -> Self::Sleep;
}

/// A stream for the task that moves its bytes.
struct TaskWire<'a, 'b, S> {
    stream: &'a S,
    context: &'a mut Context<'b>,
}

impl<S: InTask> Wire for TaskWire<'_, '_, S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        unless_pending(self.stream.poll_read(self.context, buffer))
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<Option<usize>> {
        unless_pending(self.stream.poll_write(self.context, bytes))
    }
}

fn unless_pending(done: Poll<io::Result<usize>>) -> io::Result<Option<usize>> {
    match done {
        Poll::Ready(done) => done.map(Some),
        Poll::Pending => Ok(None),
    }
}

impl<S: InTask> Sealed for S {
    fn start(shared: &Arc<Shared<Self>>) -> io::Result<()> {
        shared.stream.prepare()?;
        S::spawn(MuxTask(shared.clone()));
        Ok(())
    }

    fn send_queued(shared: &Shared<Self>) {
        shared.core.with(State::wake_driver);
    }

    /// Where the task cannot run, the connection is of no use to the caller.
    fn look(shared: &Shared<Self>) {
        if let Err(error) = shared.stream.check_waits() {
            shared.core.fail(MuxError::of_connection(&error));
        }
    }

    fn closed(shared: &Shared<Self>) {
        shared.core.with(State::wake_driver);
    }
}

impl<S: InTask> Shared<S> {
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
        if self.is_closed() {
            // A peer that goes on sending does not keep the connection.
            self.core.write(&mut TaskWire { stream: &self.stream, context });
            return Poll::Ready(());
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
            found.map_or_else(|| self.pending(), Poll::Ready)
        })
        .await;
        self.after_queueing();
        found
    }

    /// Leaves the task waiting, if the task of the mux can wake it.
    fn pending<T>(&self) -> Poll<Result<T, MuxError>> {
        match self.stream.check_waits() {
            Ok(()) => Poll::Pending,
            Err(error) => Poll::Ready(Err(MuxError::of_connection(&error))),
        }
    }
}

/// A wait of a task. A drop takes its waker back.
struct Wait<'a, S> {
    shared: &'a Shared<S>,
    cause: WaitCause,
    place: WaitPlace,
}

impl<'a, S> Wait<'a, S> {
    fn new(shared: &'a Shared<S>, cause: WaitCause) -> Self {
        Self { shared, cause, place: WaitPlace::default() }
    }

    /// Keeps the waker. Queued frames are sent, even if the mux is corked, because the task may wait
    /// for their effect.
    fn go_on(&mut self, state: &mut State, waker: &Waker) {
        state.engine.wait(self.cause, &mut self.place, waker);
        if state.engine.has_output() {
            state.wake_driver();
        }
    }
}

impl<S> Drop for Wait<'_, S> {
    fn drop(&mut self) {
        if self.place.is_taken() {
            drop(self.shared.core.with(|state| state.engine.stop_waiting(&mut self.place)));
        }
    }
}

/// Waits until a deadline. `None` means that it has passed. A wait that finds something at once
/// needs no timer.
async fn within<S: InTask, T>(
    deadline: Option<TimeLimit>,
    wait: impl Future<Output = Result<T, MuxError>>,
) -> Option<Result<T, MuxError>> {
    let Some(deadline) = deadline else { return Some(wait.await) };
    let (mut wait, mut over) = (pin!(wait), pin!(async { S::sleep_until(deadline.at).await }));
    poll_fn(|context| match wait.as_mut().poll(context) {
        Poll::Ready(found) => Poll::Ready(Some(found)),
        Poll::Pending => over.as_mut().poll(context).map(|()| None),
    })
    .await
}

/// The calls on a stream of `trespass::tokio` or `trespass::local`, which are awaited.
///
/// In tokio, deadlines need a runtime with time.
impl<S: AwaitedStream> Mux<S> {
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
    pub async fn request<'a>(&self, bytes: impl Into<MuxBytes<'a>>) -> Result<PendingAnswer<S>, MuxError> {
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
    ) -> Result<PendingAnswer<S>, MuxError> {
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
        match (within::<S, _>(deadline, begun).await, deadline) {
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
    pub async fn next_request(&self) -> Result<Option<Request<S>>, MuxError> {
        let arrival = self.shared.wait_for(WaitCause::Arrival, |state| state.next_arrival());
        Ok(arrival.await?.map(|arrival| Request::new(&self.shared, arrival)))
    }

    /// Waits until all that was queued is sent, and no byte of it depends on this process, as
    /// [`Stream::drain`](crate::Stream::drain) does. It also waits until the peer's program has
    /// taken all one-way messages, so that a drop then loses none.
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
                None => self.shared.pending(),
            }
        });
        match sent.await? {
            true => Ok(()),
            false => self.shared.stream.drained().await,
        }
    }
}

/// The task's hold on a mux. It also ends when the task never runs, or not to its end.
#[doc(hidden)]
pub struct MuxTask<S: InTask>(Arc<Shared<S>>);

impl<S: InTask> MuxTask<S> {
    /// Moves the bytes of the mux.
    pub(super) async fn run(self) {
        poll_fn(|context| self.0.poll_drive(context)).await;
    }
}

impl<S: InTask> Drop for MuxTask<S> {
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

/// The calls on a stream of `trespass::tokio` or `trespass::local`, which are awaited.
impl<S: AwaitedStream> PendingAnswer<S> {
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
        match within::<S, _>(self.deadline, found).await {
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
        match within::<S, _>(self.deadline, found).await {
            None => Err(self.pass_deadline()),
            Some(found) => self.found(found, |arrived| *arrived == Arrived::End),
        }
    }
}

/// The calls on a stream of `trespass::tokio` or `trespass::local`, which are awaited.
impl<S: AwaitedStream> Request<S> {
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

/// The calls on a stream of `trespass::tokio` or `trespass::local`, which are awaited.
impl<S: AwaitedStream> Answers<S> {
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

#[cfg(test)]
mod tests {
    use std::future::{Ready, ready};

    use super::super::config::MuxConfig;
    use super::*;

    /// A stream whose task never runs.
    struct Silent;

    impl InTask for Silent {
        type Sleep = Ready<()>;

        fn prepare(&self) -> io::Result<()> {
            Ok(())
        }

        fn spawn(_: MuxTask<Self>) {}

        fn poll_read(&self, _: &mut Context<'_>, _: &mut [u8]) -> Poll<io::Result<usize>> {
            Poll::Pending
        }

        fn poll_write(&self, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
            Poll::Pending
        }

        fn shutdown_write(&self) -> io::Result<()> {
            Ok(())
        }

        fn drained(&self) -> impl Future<Output = io::Result<()>> {
            ready(Ok(()))
        }

        fn sleep_until(_: Instant) -> Ready<()> {
            ready(())
        }
    }

    /// A loop that waits for a request or for something else drops many waits.
    #[test]
    fn a_dropped_wait_takes_its_waker_back() {
        let shared = Shared::new(Silent, &MuxConfig::new());
        for _ in 0..100 {
            let mut wait = pin!(shared.wait_for(WaitCause::Arrival, State::next_arrival));
            assert!(wait.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        }
        let woken = shared.core.with(|state| {
            state.engine.wake_all();
            state.engine.take_woken().len()
        });
        assert_eq!(woken, 0);
    }
}
