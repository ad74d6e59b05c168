//! The turns of calls through `&` of one connection: a lock, the call that sleeps without it, and the
//! calls that wait until they are told.
//!
//! A call that ends its turn, or waits, wakes the others if it has found what they may wait for,
//! because no event will. `models` runs this file under loom with a modelled poller.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

#[cfg(loom)]
use loom::sync::{Condvar, Mutex, MutexGuard, atomic::AtomicU32};
#[cfg(not(loom))]
use std::sync::{Condvar, Mutex, MutexGuard, atomic::AtomicU32};

/// The turns of a connection.
pub(crate) struct Turns {
    turn: Mutex<Turn>,
    /// Calls that wait for their turn.
    queued: AtomicU32,
    /// The turn has changed, for calls that wait while another sleeps.
    turned: Condvar,
}

/// The calls that wait, which only the call that has the turn sees.
#[derive(Default)]
pub(crate) struct Turn {
    sleeper: Option<Sleeper>,
    /// Calls that wait until they are told.
    waiting: usize,
    /// Each of these calls has found this in vain, or was told since.
    told: Findings,
}

/// A turn that a call has.
pub(crate) type TurnGuard<'a> = MutexGuard<'a, Turn>;

/// The call that sleeps for events.
struct Sleeper {
    /// When it wakes by itself.
    until: Option<Instant>,
    woken: bool,
}

/// The state of a connection, as far as calls wait for it to change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Findings {
    pub(crate) has_failed: bool,
    pub(crate) frames_received: u64,
    /// Queued bytes, and lent blocks.
    pub(crate) queued: usize,
    pub(crate) lent: usize,
    pub(crate) is_flushed: bool,
    pub(crate) is_delivered: bool,
    /// Returned blocks that no call has taken.
    pub(crate) returned: usize,
}

impl Turns {
    pub(crate) fn new() -> Self {
        Self { turn: Mutex::default(), queued: AtomicU32::new(0), turned: Condvar::new() }
    }

    /// Waits for the turn. A call that spins sees that.
    pub(crate) fn next(&self) -> TurnGuard<'_> {
        self.queued.fetch_add(1, Ordering::Relaxed);
        // A call that panics leaves the connection as a call through `&mut` would.
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.queued.fetch_sub(1, Ordering::Relaxed);
        turn
    }

    /// Whether a call waits for its turn.
    #[inline]
    pub(crate) fn is_wanted(&self) -> bool {
        self.queued.load(Ordering::Relaxed) > 0
    }

    /// Sleeps until `until` at the latest, while others have turns, and takes the turn
    /// again.
    pub(crate) fn sleep<'a, R>(
        &'a self,
        mut turn: TurnGuard<'a>,
        found: Findings,
        until: Option<Instant>,
        sleep: impl FnOnce() -> R,
    ) -> (TurnGuard<'a>, R) {
        self.tell(&mut turn, found, || ());
        turn.sleeper = Some(Sleeper { until, woken: false });
        drop(turn);
        let slept = sleep();
        let mut turn = self.next();
        turn.sleeper = None;
        (turn, slept)
    }

    /// Waits while another call sleeps, until this one is told of what others have
    /// found. Returns whether that was before the end of `timeout`.
    pub(crate) fn wait<'a>(
        &self,
        mut turn: TurnGuard<'a>,
        found: Findings,
        timeout: Option<Duration>,
        notify: impl FnOnce(),
    ) -> (TurnGuard<'a>, bool) {
        self.tell(&mut turn, found, notify);
        turn.waiting += 1;
        let (mut turn, in_time) = match timeout {
            None => (self.turned.wait(turn).unwrap_or_else(PoisonError::into_inner), true),
            Some(timeout) => {
                let waited = self.turned.wait_timeout(turn, timeout);
                let (turn, result) = waited.unwrap_or_else(PoisonError::into_inner);
                (turn, !result.timed_out())
            }
        };
        turn.waiting -= 1;
        (turn, in_time)
    }

    /// Ends a turn: tells the others, and wakes the sleeper by `notify` if it sleeps beyond the
    /// deadline.
    pub(crate) fn end(&self, turn: &mut Turn, found: Findings, deadline: Option<Instant>, notify: impl Fn()) {
        self.tell(turn, found, &notify);
        let is_late = |sleeper: &Sleeper| {
            deadline.is_some_and(|deadline| sleeper.until.is_none_or(|until| deadline < until))
        };
        match &turn.sleeper {
            Some(sleeper) if is_late(sleeper) => {
                if turn.wake_sleeper() {
                    notify();
                }
            }
            Some(_) => (),
            // One of them sleeps next.
            None => self.wake_waiting(turn),
        }
    }

    /// Has the others try again, if this turn has found anything new. Otherwise two calls could tell
    /// each other for ever.
    fn tell(&self, turn: &mut Turn, found: Findings, notify: impl FnOnce()) {
        if std::mem::replace(&mut turn.told, found) != found {
            self.wake_all(turn, notify);
        }
    }

    /// Has the others try again.
    pub(crate) fn wake_all(&self, turn: &mut Turn, notify: impl FnOnce()) {
        if turn.wake_sleeper() {
            notify();
        }
        self.wake_waiting(turn);
    }

    fn wake_waiting(&self, turn: &Turn) {
        if turn.waiting > 0 {
            self.turned.notify_all();
        }
    }
}

impl Turn {
    /// Whether another call sleeps or waits.
    pub(crate) fn has_others(&self) -> bool {
        self.has_sleeper() || self.has_waiting()
    }

    /// Whether other calls wait until they are told.
    #[inline]
    pub(crate) fn has_waiting(&self) -> bool {
        self.waiting > 0
    }

    /// Whether a call sleeps.
    pub(crate) fn has_sleeper(&self) -> bool {
        self.sleeper.is_some()
    }

    /// Whether there is a sleeper to wake. It counts as woken from then on.
    pub(crate) fn wake_sleeper(&mut self) -> bool {
        self.sleeper.as_mut().is_some_and(|sleeper| !std::mem::replace(&mut sleeper.woken, true))
    }
}

/// The turns in every order that loom finds: `RUSTFLAGS='--cfg loom' cargo test --lib models::`.
#[cfg(all(test, loom))]
mod models {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    use super::*;
    use crate::session::connection::Direction;

    /// A device with completions, and a set of descriptors that is readable while it has some, or
    /// after the waker has fired.
    #[derive(Default)]
    struct Poller {
        state: Mutex<PollerState>,
        changed: Condvar,
    }

    #[derive(Default)]
    struct PollerState {
        completions: Vec<Direction>,
        woken: bool,
    }

    impl Poller {
        fn complete(&self, direction: Direction) {
            self.state.lock().unwrap().completions.push(direction);
            self.changed.notify_all();
        }

        fn notify(&self) {
            self.state.lock().unwrap().woken = true;
            self.changed.notify_all();
        }

        fn take(&self) -> Vec<Direction> {
            std::mem::take(&mut self.state.lock().unwrap().completions)
        }

        fn sleep(&self) {
            let mut state = self.state.lock().unwrap();
            while state.completions.is_empty() && !state.woken {
                state = self.changed.wait(state).unwrap();
            }
            state.woken = false;
        }
    }

    /// A connection, of which loom sees it if two calls are in it at a time.
    struct Shared {
        turns: Turns,
        poller: Poller,
        connection: UnsafeCell<Connection>,
    }

    #[derive(Default)]
    struct Connection {
        /// Received frames in all, and those that no call has taken.
        received: u64,
        unread: u64,
        /// Room for a call that writes.
        room: u64,
        /// A call has the poller.
        poller_is_taken: bool,
    }

    impl Connection {
        /// Takes the completions of all calls.
        fn poll(&mut self, poller: &Poller) {
            for completion in poller.take() {
                match completion {
                    Direction::Read => (self.received, self.unread) = (self.received + 1, self.unread + 1),
                    Direction::Write => self.room += 1,
                }
            }
        }

        fn found(&self) -> Findings {
            Findings { frames_received: self.received, queued: self.room as usize, ..Findings::default() }
        }

        fn try_call(&mut self, direction: Direction) -> bool {
            let own = match direction {
                Direction::Read => &mut self.unread,
                Direction::Write => &mut self.room,
            };
            let has = *own > 0;
            *own -= u64::from(has);
            has
        }
    }

    impl Shared {
        fn new() -> Arc<Self> {
            let (poller, connection) = (Poller::default(), UnsafeCell::new(Connection::default()));
            Arc::new(Self { turns: Turns::new(), poller, connection })
        }

        fn with<R>(&self, act: impl FnOnce(&mut Connection) -> R) -> R {
            // SAFETY: the caller has the turn, and loom checks that no other thread is in the cell.
            self.connection.with_mut(|connection| act(unsafe { &mut *connection }))
        }

        /// A call that takes one frame, or writes one.
        fn call(&self, direction: Direction) {
            let mut turn = self.turns.next();
            loop {
                let done = self.with(|connection| {
                    connection.poll(&self.poller);
                    connection.try_call(direction)
                });
                if done {
                    break;
                }
                let is_taken =
                    self.with(|connection| std::mem::replace(&mut connection.poller_is_taken, true));
                let found = self.with(|connection| connection.found());
                if is_taken {
                    turn = self.turns.wait(turn, found, None, || self.poller.notify()).0;
                    continue;
                }
                turn = self.turns.sleep(turn, found, None, || self.poller.sleep()).0;
                self.with(|connection| connection.poller_is_taken = false);
            }
            if turn.has_others() {
                let found = self.with(|connection| {
                    connection.poll(&self.poller);
                    connection.found()
                });
                self.turns.end(&mut turn, found, None, || self.poller.notify());
            }
        }
    }

    /// A model with few preemptions, because there are too many orders with any number.
    fn bounded() -> loom::model::Builder {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model
    }

    /// Two calls, and completions for both. loom reports a call that sleeps for ever.
    fn calls_return(calls: [Direction; 2], completions: [Direction; 2]) {
        bounded().check(move || {
            let shared = Shared::new();
            let calling = calls.map(|direction| {
                let shared = shared.clone();
                thread::spawn(move || shared.call(direction))
            });
            completions.into_iter().for_each(|completion| shared.poller.complete(completion));
            calling.into_iter().for_each(|call| call.join().unwrap());
            assert!(shared.with(|connection| connection.unread + connection.room) == 0);
        });
    }

    #[test]
    fn a_reader_sleeps_while_the_writer_takes_its_completion() {
        calls_return([Direction::Read, Direction::Write], [Direction::Read, Direction::Write]);
    }

    #[test]
    fn a_writer_sleeps_while_the_reader_takes_its_completion() {
        calls_return([Direction::Read, Direction::Write], [Direction::Write, Direction::Read]);
    }

    #[test]
    fn two_readers_take_each_others_frames() {
        calls_return([Direction::Read; 2], [Direction::Read; 2]);
    }

    /// The sleeper finds what the other call waits for, and sleeps on.
    #[test]
    fn a_waiting_call_goes_on_while_the_sleeper_sleeps_on() {
        bounded().check(|| {
            let shared = Shared::new();
            let [reader, writer] = [Direction::Read, Direction::Write].map(|direction| {
                let shared = shared.clone();
                thread::spawn(move || shared.call(direction))
            });
            shared.poller.complete(Direction::Write);
            writer.join().unwrap();
            shared.poller.complete(Direction::Read);
            reader.join().unwrap();
        });
    }
}
