//! Polling: one poller at a time.

use std::mem;
use std::ops::{Deref, DerefMut};

use spin::Yield;
use spin::mutex::SpinMutex;

use super::sources::Cursor;
use super::{Cq, Cqe};

/// The poller's lock. It stays held from `ibv_start_poll` to `ibv_end_poll`, so it is not a guard's business alone.
#[derive(Debug)]
pub(super) struct PollLock {
    /// The program says that one thread polls at a time: the lock is not taken.
    single_threaded: bool,
    state: SpinMutex<Poller, Yield>,
}

/// What belongs to the one who polls.
#[derive(Debug, Default)]
pub(crate) struct Poller {
    cursor: Cursor,
    /// Whether the receives are asked first, this time.
    receives_first: bool,
    /// The completion that an extended poll stands at.
    pub(crate) current: Cqe,
}

/// The right to poll.
pub(crate) struct Turn<'a> {
    lock: &'a PollLock,
}

impl PollLock {
    pub(super) fn new(single_threaded: bool) -> Self {
        Self { single_threaded, state: SpinMutex::new(Poller::default()) }
    }

    #[inline]
    fn take(&self) -> Turn<'_> {
        if !self.single_threaded {
            mem::forget(self.state.lock());
        }
        Turn { lock: self }
    }
}

impl<'a> Turn<'a> {
    /// Keeps the right beyond this call, for [`Cq::resume`].
    #[inline]
    pub(crate) fn keep(self) {
        mem::forget(self);
    }
}

impl Deref for Turn<'_> {
    type Target = Poller;

    #[inline]
    fn deref(&self) -> &Poller {
        // SAFETY: a turn exists once: the lock is held for it, or the program promised to poll from one thread.
        unsafe { &*self.lock.state.as_mut_ptr() }
    }
}

impl DerefMut for Turn<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Poller {
        // SAFETY: as in `deref`.
        unsafe { &mut *self.lock.state.as_mut_ptr() }
    }
}

impl Drop for Turn<'_> {
    #[inline]
    fn drop(&mut self) {
        if !self.lock.single_threaded {
            // SAFETY: this turn holds the lock, whose guard was forgotten when it was taken.
            unsafe { self.lock.state.force_unlock() };
        }
    }
}

impl Cq {
    /// Whether there is nothing to poll, at a glance.
    #[inline]
    fn is_idle(&self) -> bool {
        self.own.len() == 0 && self.progress.is_empty() && !self.sources.have_news(self.entry())
    }

    /// Takes up to `room` completions; how many.
    #[inline]
    pub(crate) fn poll(&self, room: usize, sink: &mut impl FnMut(Cqe)) -> usize {
        if room == 0 || self.is_idle() {
            return 0;
        }
        self.collect(&mut self.poll.take(), room, sink)
    }

    /// Begins an extended poll: the first completion is the turn's current one. `None` if there is none.
    #[inline]
    pub(crate) fn start(&self) -> Option<Turn<'_>> {
        if self.is_idle() {
            return None;
        }
        let mut turn = self.poll.take();
        self.step(&mut turn).then_some(turn)
    }

    /// Moves an extended poll to the next completion; false if there is none.
    #[inline]
    pub(crate) fn advance(&self, turn: &mut Turn<'_>) -> bool {
        !self.is_idle() && self.step(turn)
    }

    #[inline(always)]
    fn step(&self, turn: &mut Turn<'_>) -> bool {
        if !self.progress.is_empty() {
            self.progress.make();
        }
        let poller = &mut **turn;
        let receives_first = poller.receives_first;
        let found = receives_first && self.next_receive(poller)
            || self.own.pop(&mut poller.current)
            || !receives_first && self.next_receive(poller);
        if found {
            poller.receives_first = !poller.receives_first;
            self.stamp(&mut poller.current);
        }
        found
    }

    #[inline]
    fn next_receive(&self, poller: &mut Poller) -> bool {
        let Poller { cursor, current, .. } = poller;
        self.sources.have_news(self.entry())
            && self.sources.take(self.entry(), cursor, 1, &mut |cqe| *current = cqe) != 0
    }

    /// Goes on with a turn that was [kept](Turn::keep).
    ///
    /// # Safety
    ///
    /// - The thread has a turn of this queue, kept, and resumes it once.
    #[inline]
    pub(crate) unsafe fn resume(&self) -> Turn<'_> {
        Turn { lock: &self.poll }
    }

    fn collect(&self, turn: &mut Turn<'_>, room: usize, sink: &mut impl FnMut(Cqe)) -> usize {
        if !self.progress.is_empty() {
            self.progress.make();
        }
        let mut stamped = |mut cqe| {
            self.stamp(&mut cqe);
            sink(cqe);
        };
        let poller = &mut **turn;
        let mut done = 0;
        for receives in [poller.receives_first, !poller.receives_first] {
            let left = room - done;
            if left == 0 {
                break;
            }
            done += if receives {
                self.sources.take(self.entry(), &mut poller.cursor, left, &mut stamped)
            } else {
                self.own.take(left, &mut stamped)
            };
        }
        if done == room {
            poller.receives_first = !poller.receives_first;
        }
        done
    }
}
