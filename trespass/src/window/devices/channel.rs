//! A queue pair with the operations that are outstanding. Several threads wait for theirs.

use std::mem;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sideway::ibverbs::completion::WorkCompletionStatus;

use super::path::DevicePath;
use super::repeats::Repeat;
use crate::pool::{Block, Pool};
use crate::process::Process;
use crate::session::readiness::Until;
use crate::transport::rc::one_sided::{
    Initiator, OneSidedOperation, OneSidedOutcome, OneSidedRequest, PerformedAlone, RefusedPost, ShortRequest,
};
use crate::window::connection::OperationTime;
use crate::window::error::WindowError;

/// The most bytes of a short operation.
pub(super) const AT_ONCE: usize = 4096;
/// Operations of devices between two looks for messages of the peer.
const OPERATIONS_A_LOOK: u32 = 256;
/// Polls before the clock is read.
const POLLS: u32 = 32;
/// How long a thread polls before it sleeps.
const SPIN: Duration = Duration::from_micros(50);
/// The longest sleep. An operation that another thread has found to have failed wakes nobody.
const NAP: Duration = Duration::from_millis(100);
/// The sleep between two polls of a completion queue that cannot be armed.
const UNARMED: Duration = Duration::from_millis(1);

/// A queue pair that was connected to a device of the owner.
pub(super) struct Channel {
    /// A forked child leaves the queue pair to its parent.
    process: Process,
    pub(super) queue_pair: u32,
    state: Mutex<LockedChannel>,
    ended: Condvar,
    /// The descriptor of the completion channel.
    completions: OwnedFd,
    has_failed: AtomicBool,
    /// The owner has destroyed the queue pair that served it.
    is_closed: AtomicBool,
    /// The ticket after the last put that was given up while it was outstanding. 0: none is.
    given_up: AtomicU64,
    /// Bytes that are outstanding.
    load: AtomicU64,
}

struct LockedChannel {
    initiator: Initiator,
    /// The oldest operation that is outstanding, and since when a thread knows that.
    oldest: Option<(u64, Instant)>,
    has_sleeper: bool,
    is_given_up: bool,
    /// A block for the next short operation.
    spare: Option<Block>,
    /// Operations since the last look for messages of the peer.
    operations: u32,
}

/// What a short operation has done by the time that it was posted and polled.
pub(super) enum AtOnce {
    /// It was performed. An atomic operation has found this number. Now and then the caller looks for
    /// messages of the peer.
    Done { found: u64, looks: bool },
    /// It is outstanding.
    UnderWay(DeviceTicket),
    /// It was not posted.
    NotPosted,
}

/// An operation that was posted. A drop gives it up, and its block goes back to the pool when the
/// device is done with it.
pub(crate) struct DeviceTicket {
    channel: Arc<Channel>,
    path: Arc<DevicePath>,
    number: u64,
    len: u64,
    is_put: bool,
    is_taken: bool,
    status: WorkCompletionStatus,
    /// The flushes before it.
    flushes: u64,
}

enum Waited {
    Over(OneSidedOutcome),
    TimeOver,
    /// The device does not end it.
    Hung,
}

impl Channel {
    pub(super) fn new(initiator: Initiator) -> std::io::Result<Self> {
        Ok(Self {
            process: Process::current(),
            queue_pair: initiator.qp_number(),
            completions: initiator.descriptor().try_clone_to_owned()?,
            state: Mutex::new(LockedChannel {
                initiator,
                oldest: None,
                has_sleeper: false,
                is_given_up: false,
                spare: None,
                operations: 0,
            }),
            ended: Condvar::new(),
            has_failed: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            given_up: AtomicU64::new(0),
            load: AtomicU64::new(0),
        })
    }

    fn lock(&self) -> MutexGuard<'_, LockedChannel> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Acquire)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    pub(super) fn set_closed(&self) {
        self.is_closed.store(true, Ordering::Release);
    }

    /// How its queue pair has failed.
    pub(super) fn failure(&self) -> Option<WorkCompletionStatus> {
        self.lock().initiator.failure()
    }

    /// Bytes that are outstanding, as far as completions were taken.
    pub(super) fn load(&self) -> u64 {
        if self.load.load(Ordering::Relaxed) > 0 {
            self.lock().poll(self);
        }
        self.load.load(Ordering::Relaxed)
    }

    /// Posts an operation, if that needs no wait.
    pub(super) fn post_at_once(
        self: &Arc<Self>,
        path: &Arc<DevicePath>,
        request: &OneSidedRequest<'_>,
        len: u64,
        block: Block,
    ) -> Result<DeviceTicket, Block> {
        let mut state = self.lock();
        match state.initiator.post(request, block) {
            Ok(number) => {
                self.load.fetch_add(len, Ordering::Relaxed);
                let is_put = request.operation == OneSidedOperation::Write;
                Ok(DeviceTicket::new(self, path, number, len, is_put))
            }
            Err(RefusedPost::NoRoom(block) | RefusedPost::Unsuited(block) | RefusedPost::Failed(block)) => {
                Err(block)
            }
        }
    }

    /// Posts an operation. The block comes back if the queue pair cannot perform it.
    pub(super) fn post(
        self: &Arc<Self>,
        path: &Arc<DevicePath>,
        request: &OneSidedRequest<'_>,
        len: u64,
        block: Block,
        time: OperationTime,
        timeout: Duration,
    ) -> Result<Result<DeviceTicket, Block>, (WindowError, Block)> {
        let (mut block, mut begun) = (block, None);
        let mut state = self.lock();
        loop {
            block = match state.initiator.post(request, block) {
                Ok(number) => {
                    self.load.fetch_add(len, Ordering::Relaxed);
                    let is_put = request.operation == OneSidedOperation::Write;
                    return Ok(Ok(DeviceTicket::new(self, path, number, len, is_put)));
                }
                Err(RefusedPost::NoRoom(block)) => block,
                Err(RefusedPost::Unsuited(block)) => return Ok(Err(block)),
                Err(RefusedPost::Failed(block)) => {
                    self.has_failed.store(true, Ordering::Release);
                    return Ok(Err(block));
                }
            };
            // Others have filled the send queue.
            let begun = *begun.get_or_insert_with(Instant::now);
            if !state.poll(self) {
                if state.hangs(timeout) {
                    self.give_up(&mut state);
                } else if time.until.is_over() {
                    return Err((time.is_over(), block));
                }
                state = self.rest(state, begun, time);
            }
        }
    }

    /// Performs a short operation if nothing else is outstanding.
    #[inline]
    pub(super) fn perform_at_once(
        self: &Arc<Self>,
        path: &Arc<DevicePath>,
        pool: &Pool,
        request: ShortRequest<'_>,
    ) -> AtOnce {
        let mut state = self.lock();
        let Some(block) = state.spare.take().or_else(|| pool.take(AT_ONCE)) else { return AtOnce::NotPosted };
        match state.initiator.perform_alone(request, block, POLLS) {
            PerformedAlone::Done(block) => {
                let found = block.bytes().first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
                state.spare = Some(block);
                AtOnce::Done { found, looks: state.looks() }
            }
            PerformedAlone::Refused(block) => {
                state.spare = Some(block);
                AtOnce::NotPosted
            }
            PerformedAlone::Posted(number) => {
                if state.initiator.failure().is_some() {
                    self.has_failed.store(true, Ordering::Release);
                }
                let len = request.bytes.len() as u64;
                self.load.fetch_add(len, Ordering::Relaxed);
                let is_put = request.operation == OneSidedOperation::Write;
                AtOnce::UnderWay(DeviceTicket::new(self, path, number, len, is_put))
            }
        }
    }

    /// Whether a put that was given up may be outstanding.
    pub(super) fn must_settle(&self) -> bool {
        self.given_up.load(Ordering::Acquire) != 0
    }

    /// Waits until no put that was given up is outstanding.
    pub(super) fn settle(&self, time: OperationTime, timeout: Duration) -> Result<(), WindowError> {
        let last = self.given_up.load(Ordering::Acquire);
        if last == 0 {
            return Ok(());
        }
        self.drain(time, timeout)?;
        // Another one may have been given up.
        let _ = self.given_up.compare_exchange(last, 0, Ordering::AcqRel, Ordering::Relaxed);
        Ok(())
    }

    /// Waits until all operations that are outstanding now have ended.
    pub(super) fn drain(&self, time: OperationTime, timeout: Duration) -> Result<(), WindowError> {
        let mut state = self.lock();
        let (before, begun) = (state.initiator.next_ticket(), Instant::now());
        loop {
            state.poll(self);
            if state.initiator.is_over_before(before) {
                return Ok(());
            }
            if state.hangs(timeout) || state.initiator.failure().is_some() {
                self.give_up(&mut state);
            } else if time.until.is_over() {
                return Err(time.is_over());
            }
            state = self.rest(state, begun, time);
        }
    }

    /// Ends all operations of a queue pair that has failed.
    fn give_up(&self, state: &mut LockedChannel) {
        self.has_failed.store(true, Ordering::Release);
        if !mem::replace(&mut state.is_given_up, true) {
            state.initiator.give_up();
            self.ended.notify_all();
        }
    }

    fn wait(&self, number: u64, time: OperationTime, timeout: Duration) -> Waited {
        let mut state = self.lock();
        for _ in 0..POLLS {
            state.poll(self);
            if let Some(outcome) = state.take(self, number) {
                return Waited::Over(outcome);
            }
        }
        let begun = Instant::now();
        loop {
            state.poll(self);
            if let Some(outcome) = state.take(self, number) {
                return Waited::Over(outcome);
            }
            if state.hangs(timeout) {
                return Waited::Hung;
            }
            if time.until.is_over() {
                return Waited::TimeOver;
            }
            state = self.rest(state, begun, time);
        }
    }

    /// Lets others have the lock for a while: polls again soon, sleeps until the next completion, or
    /// until another thread has found some.
    fn rest<'a>(
        &'a self,
        mut state: MutexGuard<'a, LockedChannel>,
        begun: Instant,
        time: OperationTime,
    ) -> MutexGuard<'a, LockedChannel> {
        if begun.elapsed() < SPIN {
            drop(state);
            std::hint::spin_loop();
            return self.lock();
        }
        let left = match time.until {
            Until::Deadline(at) => at.saturating_duration_since(Instant::now()),
            _ => NAP,
        };
        let nap = left.clamp(Duration::from_micros(1), NAP);
        if state.has_sleeper {
            return self.ended.wait_timeout(state, nap).unwrap_or_else(PoisonError::into_inner).0;
        }
        if !state.initiator.arm() {
            // No event comes, and the other threads need the lock.
            return self.ended.wait_timeout(state, UNARMED).unwrap_or_else(PoisonError::into_inner).0;
        }
        if state.poll(self) {
            return state;
        }
        state.has_sleeper = true;
        drop(state);
        let timeout = Timespec::try_from(nap).ok();
        // A signal ends the sleep early.
        let _ = poll(&mut [PollFd::new(&self.completions, PollFlags::IN)], timeout.as_ref());
        let mut state = self.lock();
        state.has_sleeper = false;
        state.initiator.take_event();
        state.poll(self);
        // One of them sleeps next, if this one has found what it waits for.
        self.ended.notify_all();
        state
    }
}

impl LockedChannel {
    /// Whether the oldest operation has been outstanding for this time. Calls that have less time each
    /// find that together.
    fn hangs(&mut self, timeout: Duration) -> bool {
        let oldest = self.initiator.oldest();
        match self.oldest {
            Some((ticket, since)) if oldest == Some(ticket) => since.elapsed() > timeout,
            _ => {
                self.oldest = oldest.map(|ticket| (ticket, Instant::now()));
                false
            }
        }
    }

    /// Takes completions. Returns whether there was one.
    fn poll(&mut self, channel: &Channel) -> bool {
        let any = self.initiator.poll();
        if self.initiator.failure().is_some() {
            channel.has_failed.store(true, Ordering::Release);
        }
        any
    }

    /// Counts an operation. Whether it is time to look for messages of the peer.
    fn looks(&mut self) -> bool {
        self.operations += 1;
        if self.operations < OPERATIONS_A_LOOK {
            return false;
        }
        self.operations = 0;
        true
    }

    /// Takes the end of an operation. If the queue pair has failed, that ends all.
    fn take(&mut self, channel: &Channel, number: u64) -> Option<OneSidedOutcome> {
        let outcome = self.initiator.take(number);
        if outcome.is_none() && self.initiator.failure().is_some() {
            channel.give_up(self);
            return self.initiator.take(number);
        }
        outcome
    }
}

impl DeviceTicket {
    fn new(channel: &Arc<Channel>, path: &Arc<DevicePath>, number: u64, len: u64, is_put: bool) -> Self {
        Self {
            channel: Arc::clone(channel),
            path: Arc::clone(path),
            number,
            len,
            is_put,
            is_taken: false,
            status: WorkCompletionStatus::Success,
            flushes: path.repeats().flushes(),
        }
    }

    /// Waits for the end of the operation. Returns its block, unless the device may still access that,
    /// and whether it was performed.
    pub(super) fn wait(
        &mut self,
        time: OperationTime,
        timeout: Duration,
    ) -> Result<(Option<Block>, bool), WindowError> {
        let outcome = match self.channel.wait(self.number, time, timeout) {
            Waited::Over(outcome) => outcome,
            Waited::TimeOver => return Err(time.is_over()),
            Waited::Hung => {
                tracing::warn!(queue_pair = self.channel.queue_pair, ?timeout, "a one-sided operation hangs");
                let mut state = self.channel.lock();
                self.channel.give_up(&mut state);
                match state.initiator.take(self.number) {
                    Some(outcome) => outcome,
                    None => return Err(WindowError::OutcomeUnknown),
                }
            }
        };
        self.is_taken = true;
        self.channel.load.fetch_sub(self.len, Ordering::Relaxed);
        self.status = outcome.status;
        let is_performed = outcome.status == WorkCompletionStatus::Success;
        if !is_performed {
            tracing::debug!(status = %outcome.status, "a one-sided operation failed");
        }
        Ok((outcome.block, is_performed))
    }

    /// Takes the block of an operation that was performed by now. Whether it is time to look for messages
    /// of the peer.
    pub(super) fn end_at_once(&mut self) -> Option<(Block, bool)> {
        let mut state = self.channel.lock();
        state.poll(&self.channel);
        let block = state.initiator.take_performed(self.number)?;
        let looks = state.looks();
        drop(state);
        self.is_taken = true;
        self.channel.load.fetch_sub(self.len, Ordering::Relaxed);
        Some((block, looks))
    }

    /// Whether the operation has ended, as far as completions were taken.
    pub(in crate::window) fn is_over(&self) -> bool {
        if !self.channel.process.is_current() {
            return false;
        }
        let mut state = self.channel.lock();
        state.poll(&self.channel);
        state.initiator.is_over(self.number)
    }

    /// Whether it is time to look for messages of the peer.
    pub(super) fn looks(&self) -> bool {
        self.channel.lock().looks()
    }

    /// Whether the owner's device has refused it, so that it was not performed. A device that fails in
    /// the midst of an operation may have performed it.
    pub(super) fn was_refused(&self) -> bool {
        is_refusal(self.status) && self.status != WorkCompletionStatus::RemoteOperationError
    }

    pub(super) fn is_put(&self) -> bool {
        self.is_put
    }

    /// Begins to perform a put again. `None` if a flush has begun since.
    pub(super) fn repeat(&self) -> Option<Repeat> {
        self.path.repeats().begin(self.flushes)
    }

    pub(super) fn path(&self) -> &DevicePath {
        &self.path
    }
}

/// Whether the owner's device has answered that it does not perform a request.
pub(super) fn is_refusal(status: WorkCompletionStatus) -> bool {
    matches!(
        status,
        WorkCompletionStatus::RemoteAccessError
            | WorkCompletionStatus::RemoteInvalidRequestError
            | WorkCompletionStatus::RemoteOperationError
    )
}

impl Drop for DeviceTicket {
    fn drop(&mut self) {
        if !self.channel.process.is_current() {
            // The last reference would destroy the queue pair.
            mem::forget((Arc::clone(&self.channel), Arc::clone(&self.path)));
            return;
        }
        if !self.is_taken {
            self.channel.load.fetch_sub(self.len, Ordering::Relaxed);
            let mut state = self.channel.lock();
            if self.is_put && !state.initiator.is_over(self.number) {
                self.channel.given_up.fetch_max(self.number + 1, Ordering::AcqRel);
            }
            state.initiator.abandon(self.number);
        }
    }
}
