//! Times that tasks wait for.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use super::runtime::current;

/// The tasks that wait for a time, in the order of their times.
#[derive(Default)]
pub(super) struct Timers(RefCell<State>);

#[derive(Default)]
struct State {
    waiting: BTreeMap<TimerKey, Waker>,
    /// The number of timers ever made.
    made: u64,
}

/// The time, and a number that no other timer has.
type TimerKey = (Instant, u64);

impl Timers {
    fn new_key(&self, at: Instant) -> TimerKey {
        let state = &mut *self.0.borrow_mut();
        state.made += 1;
        (at, state.made)
    }

    fn set(&self, key: TimerKey, waker: &Waker) {
        let is_known = self.0.borrow().waiting.get(&key).is_some_and(|known| known.will_wake(waker));
        if !is_known {
            let waker = waker.clone();
            // The replaced waker is dropped after the borrow, because it may be the last of its task.
            let replaced = self.0.borrow_mut().waiting.insert(key, waker);
            drop(replaced);
        }
    }

    fn remove(&self, key: TimerKey) {
        // The waker is dropped after the borrow, because it may be the last of its task.
        let removed = self.0.borrow_mut().waiting.remove(&key);
        drop(removed);
    }

    /// How long the thread may sleep. `None` if no task waits for a time.
    pub(super) fn time_left(&self) -> Option<Duration> {
        let (at, _) = *self.0.borrow().waiting.first_key_value()?.0;
        Some(at.saturating_duration_since(Instant::now()))
    }

    /// Takes the wakers of those whose time has come.
    pub(super) fn take_due(&self, due: &mut Vec<Waker>) {
        let waiting = &mut self.0.borrow_mut().waiting;
        if waiting.is_empty() {
            return;
        }
        let now = Instant::now();
        while let Some(first) = waiting.first_entry().filter(|first| first.key().0 <= now) {
            due.push(first.remove());
        }
    }
}

/// The future of [`sleep`] and [`sleep_until`]. It may be dropped at any time.
#[must_use = "a future does nothing unless it is awaited"]
pub struct Sleep {
    key: TimerKey,
    timers: Weak<Timers>,
}

/// Waits for that time to pass. A time that the clock cannot represent is never.
///
/// # Panics
///
/// Outside of [`Runtime::block_on`](super::Runtime::block_on).
pub fn sleep(time: Duration) -> Sleep {
    const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
    let now = Instant::now();
    sleep_until(now.checked_add(time).unwrap_or(now + CENTURY))
}

/// Waits until that time.
///
/// # Panics
///
/// Outside of [`Runtime::block_on`](super::Runtime::block_on).
pub fn sleep_until(at: Instant) -> Sleep {
    let timers = current().timers();
    Sleep { key: timers.new_key(at), timers: Rc::downgrade(&timers) }
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Some(timers) = self.timers.upgrade() else { return Poll::Pending };
        if self.key.0 <= Instant::now() {
            timers.remove(self.key);
            return Poll::Ready(());
        }
        timers.set(self.key, context.waker());
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(timers) = self.timers.upgrade() {
            timers.remove(self.key);
        }
    }
}

impl fmt::Debug for Sleep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Sleep").field(&self.key.0).finish()
    }
}

/// The time of [`timeout`] was over first.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not done within {0:?}")]
pub struct TimedOut(pub Duration);

debug_as_text!(TimedOut);

impl From<TimedOut> for io::Error {
    fn from(error: TimedOut) -> Self {
        Self::new(io::ErrorKind::TimedOut, error)
    }
}

/// Runs a future for that time at most. Then it is dropped.
///
/// # Errors
///
/// The time is over.
///
/// # Panics
///
/// Outside of [`Runtime::block_on`](super::Runtime::block_on).
pub async fn timeout<T>(time: Duration, future: impl Future<Output = T>) -> Result<T, TimedOut> {
    let (mut future, mut over) = (pin!(future), pin!(sleep(time)));
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(value) => Poll::Ready(Ok(value)),
        Poll::Pending => over.as_mut().poll(context).map(|()| Err(TimedOut(time))),
    })
    .await
}
