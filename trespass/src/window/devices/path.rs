//! A path to one device of the owner. Queue pairs come and go on it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use super::DevicesOfSide;
use super::channel::{Channel, is_refusal};
use super::repeats::Repeats;
use super::serving::PathEnd;
use crate::transport::rc::one_sided::Initiator;
use crate::window::connection::{OperationTime, Shared};
use crate::window::error::WindowError;
use crate::window::message::{Operation, Status, WindowRequest};

/// The first pause after a failure. It doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const MOST_DOUBLED: u32 = 10;
/// A queue pair that has worked as long ends the count of failures.
const PROVEN: Duration = Duration::from_secs(10);
/// How long a thread serves the peer while another one opens the path, before it looks again.
pub(super) const TURN: Duration = Duration::from_millis(1);

pub(super) struct DevicePath {
    /// The owner's number of its device.
    device: u64,
    /// The index of this side's device.
    local: usize,
    repeats: Arc<Repeats>,
    state: Mutex<PathState>,
    /// Held while a queue pair is made, or the owner is asked to destroy one.
    opening: Mutex<()>,
}

#[derive(Default)]
struct PathState {
    channel: Option<Arc<Channel>>,
    /// Those that have failed, until the owner has destroyed the queue pairs that served them.
    failed: Vec<Arc<Channel>>,
    opened: Option<Instant>,
    failures: u32,
    not_before: Option<Instant>,
}

impl DevicePath {
    pub(super) fn new(device: u64, local: usize, repeats: Arc<Repeats>) -> Self {
        Self { device, local, repeats, state: Mutex::default(), opening: Mutex::default() }
    }

    pub(super) fn device(&self) -> u64 {
        self.device
    }

    /// The puts of this side that are performed again.
    pub(super) fn repeats(&self) -> &Arc<Repeats> {
        &self.repeats
    }

    fn lock(&self) -> MutexGuard<'_, PathState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its queue pairs.
    pub(super) fn channels(&self) -> Vec<Arc<Channel>> {
        let state = self.lock();
        state.channel.iter().chain(&state.failed).cloned().collect()
    }

    /// Calls with the queue pair, if there is one that works.
    #[inline]
    pub(super) fn with_open<R>(&self, call: impl FnOnce(&Arc<Channel>) -> R) -> Option<R> {
        let state = self.lock();
        state.channel.as_ref().filter(|channel| !channel.has_failed()).map(call)
    }

    /// Whether a put that was given up, or has failed, may still change the owner's memory.
    pub(super) fn must_settle(&self) -> bool {
        let state = self.lock();
        !state.failed.is_empty()
            || state.channel.as_ref().is_some_and(|channel| channel.must_settle() || channel.has_failed())
    }

    /// Whether a queue pair has failed that the owner may still serve.
    pub(super) fn has_failed(&self) -> bool {
        let mut state = self.lock();
        state.sort();
        !state.failed.is_empty()
    }

    /// The queue pair, which is made if there is none. `None` while that fails.
    pub(super) fn channel(
        &self,
        shared: &Shared,
        side: &DevicesOfSide,
        time: OperationTime,
    ) -> Result<Option<Arc<Channel>>, WindowError> {
        if let Some(usable) = self.lock().usable() {
            return Ok(usable);
        }
        let _opening = self.enter(shared, time)?;
        // Before anything else is performed, also by the owner's process: a late packet of an operation
        // whose outcome is unknown must not come after it.
        if !self.close_failed(shared, time)? {
            return Err(WindowError::NoPath);
        }
        if let Some(usable) = self.lock().usable() {
            return Ok(usable);
        }
        let opened = self.open(shared, side, time);
        let mut state = self.lock();
        match opened {
            Ok(Some(channel)) => {
                let channel = Arc::new(channel);
                state.opened = Some(Instant::now());
                state.channel = Some(Arc::clone(&channel));
                Ok(Some(channel))
            }
            Ok(None) => {
                state.pause();
                Ok(None)
            }
            Err(error) => {
                state.pause();
                Err(error)
            }
        }
    }

    /// Waits while another thread exchanges messages with the owner, which may take that one's time.
    fn enter(&self, shared: &Shared, time: OperationTime) -> Result<MutexGuard<'_, ()>, WindowError> {
        loop {
            match self.opening.try_lock() {
                Ok(opening) => return Ok(opening),
                Err(TryLockError::Poisoned(opening)) => return Ok(opening.into_inner()),
                Err(TryLockError::WouldBlock) if time.until.is_over() => return Err(time.is_over()),
                Err(TryLockError::WouldBlock) => shared.serve_within(OperationTime::after(Some(TURN)))?,
            }
        }
    }

    fn open(
        &self,
        shared: &Shared,
        side: &DevicesOfSide,
        time: OperationTime,
    ) -> Result<Option<Channel>, WindowError> {
        let refused = |why: &str| {
            tracing::debug!(device = side.ports.name(self.local), why, "no path for one-sided operations");
            None
        };
        let (mut initiator, own) = match Initiator::new(&side.ports, self.local) {
            Ok(made) => made,
            Err(error) => return Ok(refused(&error.detail)),
        };
        let request = WindowRequest::of_no_window(Operation::Open { device: self.device });
        let answer = shared.exchange(&request, &PathEnd(own).encode(), time)?;
        let (status, bytes) = Status::decode(&answer)?;
        let peer = match status {
            Status::Done { .. } => PathEnd::decode(bytes)?.0,
            Status::NoPath => return Ok(refused("the owner has none now")),
            _ => return Err(WindowError::Protocol { what: "an answer to another request" }),
        };
        if let Err(error) = initiator.connect(&side.ports, &peer) {
            return Ok(refused(&error.detail));
        }
        match Channel::new(initiator) {
            Ok(channel) => Ok(Some(channel)),
            Err(error) => Ok(refused(&error.to_string())),
        }
    }

    /// Has the owner destroy the queue pairs that served failed ones, so that no late packet of theirs
    /// changes its memory.
    pub(super) fn confirm_closed(&self, shared: &Shared, time: OperationTime) -> Result<(), WindowError> {
        let _opening = self.enter(shared, time)?;
        if self.close_failed(shared, time)? { Ok(()) } else { Err(WindowError::OutcomeUnknown) }
    }

    /// Returns false if one cannot be destroyed.
    fn close_failed(&self, shared: &Shared, time: OperationTime) -> Result<bool, WindowError> {
        let failed = {
            let mut state = self.lock();
            state.sort();
            state.failed.clone()
        };
        let mut all = true;
        for channel in failed {
            let (device, queue_pair) = (self.device, channel.queue_pair);
            let request = WindowRequest::of_no_window(Operation::Close { device, queue_pair });
            let answer = shared.exchange(&request, &[], time)?;
            // Without a path there is nothing to destroy.
            match Status::decode(&answer)?.0 {
                Status::Done { .. } | Status::NoPath => channel.set_closed(),
                _ => all = false,
            }
        }
        self.lock().failed.retain(|channel| !channel.is_closed());
        Ok(all)
    }
}

impl PathState {
    /// Moves a queue pair that has failed to the others.
    fn sort(&mut self) {
        let Some(channel) = self.channel.take_if(|channel| channel.has_failed()) else { return };
        let status = channel.failure();
        let worked = self.opened.take().is_some_and(|opened| opened.elapsed() >= PROVEN);
        tracing::info!(?status, "a queue pair for one-sided operations has failed");
        self.failed.push(channel);
        if worked {
            self.failures = 0;
        }
        // The owner has refused a key: its device and the path work.
        if !status.is_some_and(is_refusal) {
            self.pause();
        }
    }

    /// The queue pair, or none for now. `None` means that one is to be made.
    fn usable(&mut self) -> Option<Option<Arc<Channel>>> {
        self.sort();
        if let Some(channel) = &self.channel {
            return Some(Some(Arc::clone(channel)));
        }
        if !self.failed.is_empty() {
            return None;
        }
        self.not_before.is_some_and(|at| Instant::now() < at).then_some(None)
    }

    fn pause(&mut self) {
        let pause = FIRST_PAUSE * (1 << self.failures.min(MOST_DOUBLED));
        self.failures += 1;
        self.not_before = Instant::now().checked_add(pause);
    }
}
