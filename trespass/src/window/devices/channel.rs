//! A queue pair with the operations that are outstanding. Several threads wait for theirs.

use std::mem;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sideway::ibverbs::completion::WorkCompletionStatus;

use super::RevokedKeys;
use super::path::DevicePath;
use crate::pool::Block;
use crate::process::Process;
use crate::session::readiness::Until;
use crate::transport::rc::one_sided::{
    Initiator, OneSidedOperation, OneSidedOutcome, OneSidedRequest, RefusedPost,
};
use crate::window::connection::OperationTime;
use crate::window::error::WindowError;

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
    state: Mutex<ChannelState>,
    ended: Condvar,
    /// The descriptor of the completion channel.
    completions: OwnedFd,
    has_failed: AtomicBool,
    /// The owner has destroyed the queue pair that served it.
    is_closed: AtomicBool,
    /// Bytes that are outstanding.
    load: AtomicU64,
}

struct ChannelState {
    initiator: Initiator,
    /// The last generation of each region that the owner has revoked.
    revoked: RevokedKeys,
    /// A put before this ticket that has failed must not be performed again: a flush has returned.
    flushed: u64,
    /// The oldest operation that is outstanding, and since when a thread knows that.
    oldest: Option<(u64, Instant)>,
    has_sleeper: bool,
    is_given_up: bool,
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
}

enum Waited {
    Over(OneSidedOutcome),
    TimeOver,
    /// The device does not end it.
    Hung,
}

impl Channel {
    pub(super) fn new(initiator: Initiator) -> std::io::Result<Self> {
        let revoked = RevokedKeys::default();
        Ok(Self {
            process: Process::current(),
            queue_pair: initiator.qp_number(),
            completions: initiator.descriptor().try_clone_to_owned()?,
            state: Mutex::new(ChannelState {
                initiator,
                revoked,
                flushed: 0,
                oldest: None,
                has_sleeper: false,
                is_given_up: false,
            }),
            ended: Condvar::new(),
            has_failed: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            load: AtomicU64::new(0),
        })
    }

    fn lock(&self) -> MutexGuard<'_, ChannelState> {
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

    /// The key of a window must not be used any more.
    pub(super) fn revoke(&self, region: u32, generation: u32) {
        note_revoked(&mut self.lock().revoked, region, generation);
    }

    /// Whether an operation with such a key is outstanding, or the queue pair has failed: a late
    /// packet of an operation that has ended may then still reach the owner.
    pub(super) fn uses(&self, region: u32, generation: u32) -> bool {
        let mut state = self.lock();
        state.poll(self);
        state.initiator.failure().is_some() || state.initiator.uses(region, generation)
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
        let (region, generation) = request.window;
        let (mut block, mut begun) = (block, None);
        let mut state = self.lock();
        loop {
            if !state.revoked.is_empty()
                && state.revoked.get(&region).is_some_and(|last| generation <= *last)
            {
                return Err((WindowError::Revoked { region, generation }, block));
            }
            block = match state.initiator.post(request, block) {
                Ok(number) => {
                    self.load.fetch_add(len, Ordering::Relaxed);
                    let (channel, path) = (Arc::clone(self), Arc::clone(path));
                    let (is_put, status) =
                        (request.operation == OneSidedOperation::Write, WorkCompletionStatus::Success);
                    let is_taken = false;
                    return Ok(Ok(DeviceTicket { channel, path, number, len, is_put, is_taken, status }));
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

    /// Waits until all operations that are outstanding now have ended.
    pub(super) fn flush(&self, time: OperationTime, timeout: Duration) -> Result<(), WindowError> {
        let mut state = self.lock();
        let (before, begun) = (state.initiator.next_ticket(), Instant::now());
        loop {
            state.poll(self);
            if state.initiator.is_over_before(before) {
                state.flushed = state.flushed.max(before);
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
    fn give_up(&self, state: &mut ChannelState) {
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
        mut state: MutexGuard<'a, ChannelState>,
        begun: Instant,
        time: OperationTime,
    ) -> MutexGuard<'a, ChannelState> {
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

/// Notes that no key of this region, up to this generation, may be used.
pub(super) fn note_revoked(revoked: &mut RevokedKeys, region: u32, generation: u32) {
    let last = revoked.entry(region).or_default();
    *last = generation.max(*last);
}

impl ChannelState {
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

    /// Whether the operation has ended, as far as completions were taken.
    pub(in crate::window) fn is_over(&self) -> bool {
        if !self.channel.process.is_current() {
            return false;
        }
        let mut state = self.channel.lock();
        state.poll(&self.channel);
        state.initiator.is_over(self.number)
    }

    /// Whether the owner's device has refused it, so that it was not performed. A device that fails in
    /// the midst of an operation may have performed it.
    pub(super) fn was_refused(&self) -> bool {
        is_refusal(self.status) && self.status != WorkCompletionStatus::RemoteOperationError
    }

    pub(super) fn is_put(&self) -> bool {
        self.is_put
    }

    /// Whether a flush has returned after the operation had ended.
    pub(super) fn was_flushed(&self) -> bool {
        self.number < self.channel.lock().flushed
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
            self.channel.lock().initiator.abandon(self.number);
        }
    }
}
