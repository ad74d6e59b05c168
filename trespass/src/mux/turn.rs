//! The turn to connect, which tasks of any runtime await.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

/// A lock that one task has at a time. The end of a turn wakes all that wait, so that none is lost
/// if a woken one is dropped. They wait seldom, and then most of them need no turn.
#[derive(Default)]
pub(super) struct ConnectTurn(Mutex<State>);

#[derive(Default)]
struct State {
    is_taken: bool,
    next: u64,
    waiting: BTreeMap<u64, Waker>,
}

/// The turn of a task, which ends with the drop.
pub(super) struct TurnGuard<'a>(&'a ConnectTurn);

/// The place of a task that waits. A drop takes its waker back.
struct Place<'a> {
    turn: &'a ConnectTurn,
    number: u64,
}

impl ConnectTurn {
    /// No call of the program runs while it is locked.
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn try_take(&self) -> Option<TurnGuard<'_>> {
        let is_taken = std::mem::replace(&mut self.state().is_taken, true);
        (!is_taken).then(|| TurnGuard(self))
    }

    pub(super) async fn take(&self) -> TurnGuard<'_> {
        let place = Place { turn: self, number: self.next_number() };
        poll_fn(|context| {
            let waker = context.waker().clone();
            let mut state = self.state();
            if !std::mem::replace(&mut state.is_taken, true) {
                return Poll::Ready(TurnGuard(self));
            }
            let former = state.waiting.insert(place.number, waker);
            drop(state);
            // It may run code of the program.
            drop(former);
            Poll::Pending
        })
        .await
    }

    fn next_number(&self) -> u64 {
        let mut state = self.state();
        state.next += 1;
        state.next
    }
}

impl Drop for TurnGuard<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.is_taken = false;
        let woken = std::mem::take(&mut state.waiting);
        drop(state);
        woken.into_values().for_each(Waker::wake);
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let waker = self.turn.state().waiting.remove(&self.number);
        drop(waker);
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Wake};

    use super::*;

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_dropped_wait_holds_up_nobody() {
        let (turn, wakes) = (ConnectTurn::default(), Arc::new(Wakes::default()));
        let waker = Waker::from(wakes.clone());
        let mut context = Context::from_waker(&waker);
        let first = turn.try_take().expect("nobody has the turn");
        assert!(turn.try_take().is_none());
        let mut third = pin!(turn.take());
        {
            let mut second = pin!(turn.take());
            let mut dropped = Box::pin(turn.take());
            assert!(second.as_mut().poll(&mut context).is_pending());
            assert!(dropped.as_mut().poll(&mut context).is_pending());
            assert!(third.as_mut().poll(&mut context).is_pending());
            drop(dropped);
            assert_eq!(turn.state().waiting.len(), 2);
            drop(first);
            assert_eq!(wakes.0.load(Ordering::Relaxed), 2, "all that wait are woken");
            // The second is dropped before it runs.
        }
        let Poll::Ready(guard) = third.as_mut().poll(&mut context) else { panic!("the turn is lost") };
        let mut fourth = pin!(turn.take());
        assert!(fourth.as_mut().poll(&mut context).is_pending());
        assert!(fourth.as_mut().poll(&mut context).is_pending());
        drop(guard);
        assert_eq!(wakes.0.load(Ordering::Relaxed), 3, "one waits, with its last waker");
        assert!(fourth.as_mut().poll(&mut context).is_ready());
        assert!(turn.try_take().is_some(), "the drop of the guard has ended the turn");
    }
}
