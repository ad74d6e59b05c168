//! The handles of a mux: itself, a request that waits for its answers, and one of the peer.

use std::fmt;
use std::io;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::config::MuxConfig;
use super::core::{Core, State};
use super::engine::Arrival;
use super::error::MuxError;
use super::payload::MuxBytes;
use super::stats::MuxStats;
use crate::Stream;

/// The streams that a mux runs on: [`Stream`], and those of `trespass::tokio` and `trespass::local`
/// with the features `tokio` and `local`.
pub trait MuxStream: Sealed {}

impl<S: Sealed> MuxStream for S {}

/// What a mux needs of its stream. No other crate can name it.
pub trait Sealed: Sized {
    /// Prepares a new mux.
    #[doc(hidden)]
    fn start(shared: &Arc<Shared<Self>>) -> io::Result<()>;

    /// Sends what was queued, as far as that needs no wait.
    #[doc(hidden)]
    fn send_queued(shared: &Shared<Self>);

    /// Takes what has arrived, if no task does.
    #[doc(hidden)]
    fn look(_: &Shared<Self>) {}

    /// The last handle is gone.
    #[doc(hidden)]
    fn closed(_: &Shared<Self>) {}
}

/// A connection that handles share.
#[doc(hidden)]
pub struct Shared<S> {
    pub(super) core: Core,
    pub(super) stream: S,
    handles: AtomicUsize,
}

/// A reference of the program to a connection.
pub(super) struct Handle<S: Sealed>(Arc<Shared<S>>);

impl<S: Sealed> Handle<S> {
    pub(super) fn new(shared: Arc<Shared<S>>) -> Self {
        shared.handles.fetch_add(1, Ordering::Relaxed);
        Self(shared)
    }
}

impl<S: Sealed> Clone for Handle<S> {
    fn clone(&self) -> Self {
        Self::new(self.0.clone())
    }
}

impl<S: Sealed> Deref for Handle<S> {
    type Target = Shared<S>;

    fn deref(&self) -> &Shared<S> {
        &self.0
    }
}

impl<S: Sealed> Drop for Handle<S> {
    fn drop(&mut self) {
        if self.0.handles.fetch_sub(1, Ordering::AcqRel) == 1 {
            S::closed(&self.0);
        }
    }
}

impl<S: Sealed> Shared<S> {
    pub(super) fn new(stream: S, config: &MuxConfig) -> Arc<Self> {
        Arc::new(Self { core: Core::new(config), stream, handles: AtomicUsize::new(0) })
    }

    /// Whether the program has no handle, and gets none.
    #[cfg(any(all(unix, feature = "tokio"), feature = "local"))]
    pub(super) fn is_closed(&self) -> bool {
        self.handles.load(Ordering::Acquire) == 0
    }

    /// Sends what a call has queued, unless the mux is corked.
    pub(super) fn after_queueing(&self) {
        if self.core.wants_to_send() {
            S::send_queued(self);
        }
    }
}

impl<S> fmt::Debug for Shared<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.core.with(|state| {
            f.debug_struct("Mux")
                .field("stats", &state.engine.stats())
                .field("failure", &state.failure)
                .finish()
        })
    }
}

/// Many requests at a time on one stream. Both sides may make requests, and answer those of the
/// other.
///
/// Clones are the same mux. The connection is closed when the last one is dropped with all
/// requests.
pub struct Mux<S: MuxStream = Stream> {
    pub(super) shared: Handle<S>,
}

impl<S: MuxStream> Mux<S> {
    /// Takes a stream whose ends have read all that the other has written. The peer does the same.
    /// Each side has its own limits.
    ///
    /// A stream of `trespass::tokio` gets a task that moves its bytes, in the runtime of the
    /// caller. The calls on the mux work in any. One of `trespass::local` gets a task in its own
    /// runtime.
    ///
    /// # Errors
    ///
    /// The stream belongs to the parent of this process, or its runtime of `trespass::local` does
    /// not run here.
    ///
    /// # Panics
    ///
    /// The stream is one of `trespass::tokio`, and the caller is in no runtime.
    pub fn over(stream: S, config: &MuxConfig) -> io::Result<Self> {
        let shared = Handle::new(Shared::new(stream, config));
        S::start(&shared.0)?;
        shared.after_queueing();
        Ok(Self { shared })
    }

    /// Requests and one-way messages of this side that the peer has not ended.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.shared.core.with(|state| state.engine.in_flight())
    }

    /// Whether a request would wait for no other: the peer accepts one more.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.shared.core.with(|state| state.failure.is_none() && state.engine.can_request())
    }

    /// Whether the peer has as many requests as it accepts, and the requests in flight.
    pub(super) fn load(&self) -> (bool, u32) {
        self.shared.core.with(|state| (state.engine.is_full(), state.engine.in_flight()))
    }

    /// Why the mux is of no further use, as far as calls know.
    #[must_use]
    pub fn failure(&self) -> Option<MuxError> {
        self.shared.core.with(|state| state.failure.clone())
    }

    /// The mux's numbers.
    #[must_use]
    pub fn stats(&self) -> MuxStats {
        self.shared.core.with(|state| state.engine.stats())
    }

    /// Sets whether calls only queue small requests and answers, so that they share writes. They
    /// are sent once 64 KiB are queued, when a call waits, and when this is set to false.
    pub fn set_cork(&self, corked: bool) {
        self.shared.core.cork(corked);
        self.shared.after_queueing();
    }

    /// The stream. Do not read or write it.
    #[must_use]
    pub fn stream(&self) -> &S {
        &self.shared.stream
    }
}

impl<S: MuxStream> Clone for Mux<S> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone() }
    }
}

impl<S: MuxStream> fmt::Debug for Mux<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shared.fmt(f)
    }
}

/// Moves the begin of a message behind `into`, which an earlier call has left. Returns whether there
/// was any.
pub(super) fn hand_over(partial: &mut Vec<u8>, into: &mut Vec<u8>) -> bool {
    let has_any = !partial.is_empty();
    into.append(partial);
    has_any
}

/// The time that a request has.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimeLimit {
    pub(super) at: Instant,
    pub(super) after: Duration,
}

impl TimeLimit {
    /// `None` if the time is beyond that of the system.
    pub(super) fn after(time: Duration) -> Option<Self> {
        Some(Self { at: Instant::now().checked_add(time)?, after: time })
    }

    pub(super) fn passed(self) -> MuxError {
        MuxError::DeadlinePassed { after: self.after }
    }
}

/// A request that was sent, and waits for its answers. A drop cancels it.
pub struct PendingAnswer<S: MuxStream = Stream> {
    pub(super) shared: Handle<S>,
    pub(super) id: u64,
    pub(super) deadline: Option<TimeLimit>,
    /// What has arrived of the next answer.
    pub(super) partial: Vec<u8>,
    /// All answers were taken, or there are none.
    pub(super) is_over: bool,
}

impl<S: MuxStream> PendingAnswer<S> {
    pub(super) fn new(shared: &Handle<S>, id: u64, deadline: Option<TimeLimit>) -> Self {
        Self { shared: shared.clone(), id, deadline, partial: Vec::new(), is_over: false }
    }

    /// The number of the request, which is unique among those of this side.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Whether a call would not wait: something of the next answer, or the end, has arrived by calls
    /// on this mux, or the connection has failed.
    #[must_use]
    pub fn has_arrived(&self) -> bool {
        let arrived = |state: &mut State| state.failure.is_some() || state.engine.has_answer(self.id);
        self.is_over || self.shared.core.with(arrived)
    }

    /// Gives the request up because its deadline has passed.
    pub(super) fn pass_deadline(&mut self) -> MuxError {
        self.give_up();
        match self.deadline {
            Some(deadline) => deadline.passed(),
            None => MuxError::Cancelled,
        }
    }

    fn give_up(&mut self) {
        if !std::mem::replace(&mut self.is_over, true) {
            self.shared.core.with(|state| state.engine.cancel(self.id));
            self.shared.after_queueing();
        }
    }

    /// Records what a call has found.
    pub(super) fn found<T>(
        &mut self,
        found: Result<T, MuxError>,
        is_end: fn(&T) -> bool,
    ) -> Result<T, MuxError> {
        if found.as_ref().map_or(true, is_end) {
            self.give_up();
        }
        found
    }
}

impl<S: MuxStream> Drop for PendingAnswer<S> {
    fn drop(&mut self) {
        self.give_up();
    }
}

impl<S: MuxStream> fmt::Debug for PendingAnswer<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingAnswer").field("id", &self.id).field("deadline", &self.deadline).finish()
    }
}

/// A request of the peer. Any thread or task may answer it, in any order. A drop without an answer
/// is an error at the peer, unless it is a one-way message.
pub struct Request<S: MuxStream = Stream> {
    pub(super) shared: Handle<S>,
    pub(super) arrival: Arrival,
    /// What has arrived of it, while a call waits for the rest.
    pub(super) partial: Vec<u8>,
    is_held: bool,
}

impl<S: MuxStream> Request<S> {
    pub(super) fn new(shared: &Handle<S>, arrival: Arrival) -> Self {
        Self { shared: shared.clone(), arrival, partial: Vec::new(), is_held: true }
    }

    /// The number of the request among those of the peer.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.arrival.id
    }

    /// Whether the peer wants no answer. Then the answer is not sent.
    #[must_use]
    pub fn is_one_way(&self) -> bool {
        self.arrival.one_way
    }

    /// When the peer gives the request up. It has a resolution of a millisecond, and the way here
    /// is not counted.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.arrival.deadline
    }

    /// Whether the peer has cancelled the request, as far as calls know.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.shared.core.with(|state| state.engine.is_cancelled(self.arrival.id))
    }

    /// Sends the only answer. It does not wait until it is sent.
    ///
    /// # Errors
    ///
    /// The connection has failed, or the peer has cancelled the request.
    pub fn answer<'a>(mut self, bytes: impl Into<MuxBytes<'a>>) -> Result<(), MuxError> {
        if self.arrival.one_way {
            return Ok(());
        }
        let mut bytes = Some(bytes.into());
        let id = self.arrival.id;
        let answered = self.shared.core.with(|state| state.answer(id, &mut bytes, true));
        if matches!(answered, Some(Ok(()))) {
            self.is_held = false;
        }
        self.shared.after_queueing();
        answered.expect("no answer was given before")
    }

    /// Answers with any number of messages.
    #[must_use]
    pub fn answers(self) -> Answers<S> {
        Answers { request: self }
    }

    pub(super) fn ended(&mut self) {
        self.is_held = false;
    }
}

impl<S: MuxStream> Drop for Request<S> {
    fn drop(&mut self) {
        if self.is_held {
            self.shared.core.with(|state| state.engine.release(self.arrival.id));
            self.shared.after_queueing();
        }
    }
}

impl<S: MuxStream> fmt::Debug for Request<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.arrival.fmt(f)
    }
}

/// The answers to a request. A drop without [`finish`](Answers::finish) is an error at the peer.
#[derive(Debug)]
pub struct Answers<S: MuxStream = Stream> {
    pub(super) request: Request<S>,
}

impl<S: MuxStream> Answers<S> {
    /// Whether the peer has cancelled the request, as far as calls know.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.request.is_cancelled()
    }
}
