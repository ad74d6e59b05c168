//! The poll lock: one thread polls a completion queue at a time.

use std::mem;
use std::ops::{Deref, DerefMut};

use spin::Yield;
use spin::mutex::SpinMutex;

use super::sources::SourceCursor;
use super::{Cq, Cqe};

/// The poller's lock. It stays held from `ibv_start_poll` to `ibv_end_poll`, across C calls, so a
/// Rust guard alone cannot hold it.
#[derive(Debug)]
pub(super) struct PollLock {
    /// Whether the program promised to poll from one thread, so that the lock is not taken.
    single_threaded: bool,
    state: SpinMutex<PollState, Yield>,
}

/// The state that the current poller owns.
#[derive(Debug, Default)]
pub(crate) struct PollState {
    cursor: SourceCursor,
    /// Whether this poll asks the receives first.
    receives_first: bool,
    /// The completion that an extended poll is at.
    pub(crate) current: Cqe,
}

/// The exclusive right to poll, until it is dropped.
pub(crate) struct PollGuard<'a> {
    lock: &'a PollLock,
}

impl PollLock {
    pub(super) fn new(single_threaded: bool) -> Self {
        Self { single_threaded, state: SpinMutex::new(PollState::default()) }
    }

    #[inline]
    fn take(&self) -> PollGuard<'_> {
        if !self.single_threaded {
            mem::forget(self.state.lock());
        }
        PollGuard { lock: self }
    }
}

impl<'a> PollGuard<'a> {
    /// Keeps the right beyond this call, for [`Cq::resume`].
    #[inline]
    pub(crate) fn keep(self) {
        mem::forget(self);
    }
}

impl Deref for PollGuard<'_> {
    type Target = PollState;

    #[inline]
    fn deref(&self) -> &PollState {
        // SAFETY: only one guard exists at a time: it holds the lock, or the program promised to
        // poll from one thread.
        unsafe { &*self.lock.state.as_mut_ptr() }
    }
}

impl DerefMut for PollGuard<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut PollState {
        // SAFETY: only one guard exists at a time: it holds the lock, or the program promised to
        // poll from one thread.
        unsafe { &mut *self.lock.state.as_mut_ptr() }
    }
}

impl Drop for PollGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        if !self.lock.single_threaded {
            // SAFETY: `PollLock::take` took the lock for this guard and forgot the lock's guard.
            unsafe { self.lock.state.force_unlock() };
        }
    }
}

impl Cq {
    /// A quick check, without a lock, whether a poll would find nothing.
    #[inline]
    fn is_idle(&self) -> bool {
        self.own.len() == 0 && self.progress.is_empty() && !self.sources.have_news(self.entry())
    }

    /// Takes up to `room` completions and returns how many.
    #[inline]
    pub(crate) fn poll(&self, room: usize, sink: &mut impl FnMut(Cqe)) -> usize {
        if room == 0 || self.is_idle() {
            return 0;
        }
        self.collect(&mut self.poll.take(), room, sink)
    }

    /// Begins an extended poll at the first completion. `None` if the queue is empty.
    #[inline]
    pub(crate) fn start(&self) -> Option<PollGuard<'_>> {
        if self.is_idle() {
            return None;
        }
        let mut guard = self.poll.take();
        self.step(&mut guard).then_some(guard)
    }

    /// Moves an extended poll to the next completion; false if the queue is empty.
    #[inline]
    pub(crate) fn advance(&self, guard: &mut PollGuard<'_>) -> bool {
        !self.is_idle() && self.step(guard)
    }

    #[inline(always)]
    fn step(&self, guard: &mut PollGuard<'_>) -> bool {
        if !self.progress.is_empty() {
            self.progress.make();
        }
        let poll_state = &mut **guard;
        let receives_first = poll_state.receives_first;
        let found = receives_first && self.next_receive(poll_state)
            || self.own.pop(&mut poll_state.current)
            || !receives_first && self.next_receive(poll_state);
        if found {
            poll_state.receives_first = !poll_state.receives_first;
            self.stamp(&mut poll_state.current);
        }
        found
    }

    #[inline]
    fn next_receive(&self, poll_state: &mut PollState) -> bool {
        let PollState { cursor, current, .. } = poll_state;
        self.sources.have_news(self.entry())
            && self.sources.take(self.entry(), self.is_counting(), cursor, 1, &mut |cqe| *current = cqe) != 0
    }

    /// Resumes a right to poll that was [kept](PollGuard::keep).
    ///
    /// # Safety
    ///
    /// - This thread has kept a guard of this queue, and resumes it once.
    #[inline]
    pub(crate) unsafe fn resume(&self) -> PollGuard<'_> {
        PollGuard { lock: &self.poll }
    }

    fn collect(&self, guard: &mut PollGuard<'_>, room: usize, sink: &mut impl FnMut(Cqe)) -> usize {
        if !self.progress.is_empty() {
            self.progress.make();
        }
        let mut stamped = |mut cqe| {
            self.stamp(&mut cqe);
            sink(cqe);
        };
        let poll_state = &mut **guard;
        let mut done = 0;
        for receives in [poll_state.receives_first, !poll_state.receives_first] {
            let left = room - done;
            if left == 0 {
                break;
            }
            done += if receives {
                self.sources.take(
                    self.entry(),
                    self.is_counting(),
                    &mut poll_state.cursor,
                    left,
                    &mut stamped,
                )
            } else {
                self.own.take(left, &mut stamped)
            };
        }
        if done == room {
            poll_state.receives_first = !poll_state.receives_first;
        }
        done
    }
}
