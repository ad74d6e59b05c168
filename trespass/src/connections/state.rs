//! The state of a pool: its idle connections, its permits, and the queue of the calls that wait.
//!
//! A call needs a permit to have a connection or to make one. The idle connections and the permits
//! together are never more than the maximum. Whoever gives a permit back passes it, with its
//! connection, to the call that has waited longest. So no connection is idle while a call waits.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

/// The numbers of a pool, all of the same moment.
///
/// `made` is always `open` and `evicted` together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectionPoolStats {
    /// Connections that exist: idle ones, and those that handles have.
    pub open: usize,
    /// Connections that no handle has.
    pub idle: usize,
    /// Calls that wait because all connections are in use.
    pub waiting: usize,
    /// Connects that succeeded.
    pub made: u64,
    /// Connects that failed, one for each address that was tried and each name that did not resolve.
    pub failed: u64,
    /// Calls that got a connection which was made before.
    pub reused: u64,
    /// Connections that the pool has closed: idle for too long, not fit for another use, or discarded.
    pub evicted: u64,
}

/// The limits of a pool.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) minimum: usize,
    pub(super) maximum: usize,
    pub(super) idle_timeout: Option<Duration>,
}

/// A connection that no handle has.
#[derive(Debug)]
struct Idle<C> {
    connection: C,
    since: Instant,
}

/// A call that waits.
#[derive(Debug)]
struct Waiter {
    number: u64,
    waker: Waker,
}

#[derive(Debug)]
struct State<C> {
    /// Ordered by the time of the last use.
    idle: VecDeque<Idle<C>>,
    permits: usize,
    queue: VecDeque<Waiter>,
    /// The permits of calls that have not looked yet, each with the connection that came with it.
    granted: BTreeMap<u64, Option<Idle<C>>>,
    next_number: u64,
    made: u64,
    failed: u64,
    reused: u64,
    evicted: u64,
}

impl<C> State<C> {
    /// The connections of the pool. Those of granted permits count, too.
    fn open(&self) -> usize {
        usize::try_from(self.made - self.evicted).unwrap_or(usize::MAX)
    }

    /// Passes a permit on, or takes it back. Returns the call to wake.
    fn release(&mut self, connection: Option<Idle<C>>) -> Option<Waker> {
        if let Some(first) = self.queue.pop_front() {
            self.granted.insert(first.number, connection);
            return Some(first.waker);
        }
        self.permits -= 1;
        if let Some(idle) = connection {
            let place = self.idle.partition_point(|other| other.since <= idle.since);
            self.idle.insert(place, idle);
        }
        None
    }

    /// Takes the connections that were idle for too long.
    fn expire(&mut self, limits: Limits, now: Instant) -> Vec<C> {
        let mut expired = Vec::new();
        let Some(timeout) = limits.idle_timeout else { return expired };
        let is_over = |oldest: &Idle<C>| now.saturating_duration_since(oldest.since) >= timeout;
        while self.open() > limits.minimum && self.idle.front().is_some_and(is_over) {
            expired.extend(self.idle.pop_front().map(|oldest| oldest.connection));
            self.evicted += 1;
        }
        expired
    }
}

/// The part of a pool that its handles can reach.
#[derive(Debug)]
pub(super) struct Shared<C> {
    limits: Limits,
    state: Mutex<State<C>>,
}

/// A permit, with the idle connection that came with it, if there was one.
pub(super) type Granted<C> = (Permit<C>, Option<C>);

/// What a call gets that asks for a permit.
pub(super) enum Acquired<C> {
    Now(Granted<C>),
    Later(Place<C>),
}

impl<C> Shared<C> {
    pub(super) fn new(limits: Limits) -> Arc<Self> {
        let state = State {
            idle: VecDeque::new(),
            permits: 0,
            queue: VecDeque::new(),
            granted: BTreeMap::new(),
            next_number: 0,
            made: 0,
            failed: 0,
            reused: 0,
            evicted: 0,
        };
        Arc::new(Self { limits, state: Mutex::new(state) })
    }

    /// No call of the program runs while it is locked.
    fn lock(&self) -> MutexGuard<'_, State<C>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn limits(&self) -> Limits {
        self.limits
    }

    pub(super) fn stats(&self) -> ConnectionPoolStats {
        let state = self.lock();
        ConnectionPoolStats {
            open: state.open(),
            idle: state.idle.len(),
            waiting: state.queue.len(),
            made: state.made,
            failed: state.failed,
            reused: state.reused,
            evicted: state.evicted,
        }
    }

    pub(super) fn connect_failed(&self) {
        self.lock().failed += 1;
    }

    /// Closes the connections that were idle for too long.
    pub(super) fn expire(&self, now: Instant) {
        let expired = self.lock().expire(self.limits, now);
        // Closing takes system calls.
        drop(expired);
    }

    /// Takes a permit with the connection that was used last, or a place in the queue.
    pub(super) fn acquire(self: &Arc<Self>) -> Acquired<C> {
        let mut state = self.lock();
        if state.permits < self.limits.maximum {
            state.permits += 1;
            let idle = state.idle.pop_back().map(|idle| idle.connection);
            return Acquired::Now((Permit { shared: Arc::downgrade(self) }, idle));
        }
        let number = state.next_number;
        state.next_number += 1;
        // The first look brings the waker.
        state.queue.push_back(Waiter { number, waker: Waker::noop().clone() });
        Acquired::Later(Place { shared: self.clone(), number })
    }

    /// Takes a permit to make a connection, while the pool has less than its minimum.
    pub(super) fn acquire_missing(self: &Arc<Self>) -> Option<Permit<C>> {
        let mut state = self.lock();
        let missing =
            state.open() < self.limits.minimum && state.permits + state.idle.len() < self.limits.maximum;
        missing.then(|| {
            state.permits += 1;
            Permit { shared: Arc::downgrade(self) }
        })
    }

    /// Closes the idle connections of which `is_fit` is false.
    pub(super) fn retain(self: &Arc<Self>, is_fit: impl Fn(&C) -> bool) {
        let mut at = 0;
        loop {
            let mut state = self.lock();
            let Some(idle) = state.idle.remove(at) else { return };
            state.permits += 1;
            drop(state);
            let permit = Permit { shared: Arc::downgrade(self) };
            if is_fit(&idle.connection) {
                // It returns to where it was, unless calls have taken others, or it, since.
                permit.put_back(idle.connection, idle.since);
                at += 1;
            } else {
                permit.evict(idle.connection);
            }
        }
    }
}

/// A place in the queue. A drop leaves the queue, and passes on what was granted.
pub(super) struct Place<C> {
    shared: Arc<Shared<C>>,
    number: u64,
}

impl<C> Place<C> {
    /// Looks for a permit. Without one it wakes the waker later.
    pub(super) fn poll(&self, waker: &Waker) -> Poll<Granted<C>> {
        // Code of the program clones and drops wakers, and may use the pool. So it runs without the lock.
        let mut waker = waker.clone();
        let mut state = self.shared.lock();
        if let Some(idle) = state.granted.remove(&self.number) {
            let permit = Permit { shared: Arc::downgrade(&self.shared) };
            return Poll::Ready((permit, idle.map(|idle| idle.connection)));
        }
        if let Some(waiter) = state.queue.iter_mut().find(|waiter| waiter.number == self.number) {
            std::mem::swap(&mut waiter.waker, &mut waker);
        }
        drop(state);
        Poll::Pending
    }
}

impl<C> Drop for Place<C> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        let (woken, left) = match state.granted.remove(&self.number) {
            Some(connection) => (state.release(connection), None),
            None => {
                let at = state.queue.iter().position(|waiter| waiter.number == self.number);
                (None, at.and_then(|at| state.queue.remove(at)))
            }
        };
        drop(state);
        drop(left);
        woken.into_iter().for_each(Waker::wake);
    }
}

/// The right to have a connection of the pool. It does not keep the pool. A drop gives it back.
#[derive(Debug)]
pub(super) struct Permit<C> {
    shared: Weak<Shared<C>>,
}

impl<C> Permit<C> {
    /// Takes the idle connection that was used last.
    pub(super) fn idle(&self) -> Option<C> {
        self.shared.upgrade()?.lock().idle.pop_back().map(|idle| idle.connection)
    }

    fn count(&self, count: impl FnOnce(&mut State<C>)) {
        if let Some(shared) = self.shared.upgrade() {
            count(&mut shared.lock());
        }
    }

    pub(super) fn count_made(&self) {
        self.count(|state| state.made += 1);
    }

    pub(super) fn count_reused(&self) {
        self.count(|state| state.reused += 1);
    }

    pub(super) fn count_evicted(&self) {
        self.count(|state| state.evicted += 1);
    }

    /// Closes a connection, and keeps the permit.
    pub(super) fn evict(&self, connection: C) {
        self.count_evicted();
        drop(connection);
    }

    /// Gives a connection back with the permit. If the pool is gone, the connection is closed.
    pub(super) fn put_back(mut self, connection: C, since: Instant) {
        let shared = std::mem::take(&mut self.shared);
        if let Some(shared) = shared.upgrade() {
            let woken = shared.lock().release(Some(Idle { connection, since }));
            woken.into_iter().for_each(Waker::wake);
        }
    }
}

impl<C> Drop for Permit<C> {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            let woken = shared.lock().release(None);
            woken.into_iter().for_each(Waker::wake);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;
    use std::task::Wake;

    use super::*;

    /// A connection that counts the open ones.
    #[derive(Debug)]
    struct Counted {
        name: u32,
        open: Rc<Cell<usize>>,
    }

    impl Drop for Counted {
        fn drop(&mut self) {
            self.open.set(self.open.get() - 1);
        }
    }

    struct World {
        shared: Arc<Shared<Counted>>,
        open: Rc<Cell<usize>>,
        begin: Instant,
    }

    const SECOND: Duration = Duration::from_secs(1);

    impl World {
        fn new(minimum: usize, maximum: usize, idle_timeout: Option<Duration>) -> Self {
            let shared = Shared::new(Limits { minimum, maximum, idle_timeout });
            Self { shared, open: Rc::default(), begin: Instant::now() }
        }

        fn make(&self, permit: &Permit<Counted>, name: u32) -> Counted {
            permit.count_made();
            self.open.set(self.open.get() + 1);
            Counted { name, open: self.open.clone() }
        }

        fn now(&self) -> Granted<Counted> {
            let Acquired::Now(granted) = self.shared.acquire() else { panic!("the pool is exhausted") };
            granted
        }

        fn later(&self) -> Place<Counted> {
            let Acquired::Later(place) = self.shared.acquire() else { panic!("a permit is free") };
            place
        }

        /// Makes connections that have been idle since the seconds that name them.
        fn idle_since(&self, names: &[u32]) {
            let permits: Vec<_> = names.iter().map(|_| self.now().0).collect();
            for (permit, name) in permits.into_iter().zip(names) {
                let connection = self.make(&permit, *name);
                permit.put_back(connection, self.begin + SECOND * *name);
            }
        }

        fn names(&self) -> Vec<u32> {
            self.shared.lock().idle.iter().map(|idle| idle.connection.name).collect()
        }

        fn check(&self) {
            let stats = self.shared.stats();
            assert_eq!(stats.made, stats.open as u64 + stats.evicted);
            assert_eq!(stats.open, self.open.get());
        }
    }

    fn look<C>(place: &Place<C>) -> Option<Granted<C>> {
        match place.poll(Waker::noop()) {
            Poll::Ready(granted) => Some(granted),
            Poll::Pending => None,
        }
    }

    #[test]
    fn the_oldest_idle_connections_expire_down_to_the_minimum() {
        let world = World::new(1, 9, Some(SECOND * 10));
        world.idle_since(&[3, 1, 2, 7]);
        assert_eq!(world.names(), [1, 2, 3, 7]);
        world.shared.expire(world.begin + SECOND * 11 - Duration::from_nanos(1));
        assert_eq!(world.names(), [1, 2, 3, 7]);
        world.shared.expire(world.begin + SECOND * 12);
        assert_eq!(world.names(), [3, 7]);
        world.shared.expire(world.begin + SECOND * 1000);
        assert_eq!(world.names(), [7], "the minimum stays");
        let (permit, connection) = world.now();
        assert_eq!(connection.as_ref().map(|connection| connection.name), Some(7));
        world.check();
        drop((permit, connection));
    }

    #[test]
    fn the_connection_that_was_used_last_is_lent_first() {
        let world = World::new(0, 9, None);
        world.idle_since(&[1, 2]);
        let (_permit, connection) = world.now();
        assert_eq!(connection.map(|connection| connection.name), Some(2));
    }

    #[test]
    fn permits_pass_in_order_with_their_connections() {
        let world = World::new(0, 1, None);
        let (permit, none) = world.now();
        assert!(none.is_none());
        let connection = world.make(&permit, 1);
        let places = [world.later(), world.later(), world.later()];
        assert!(places.iter().all(|place| look(place).is_none()));
        permit.put_back(connection, world.begin);
        assert_eq!(world.shared.stats().idle, 0, "the first in the queue has it");
        assert!(look(&places[1]).is_none() && look(&places[2]).is_none());
        let [first, second, third] = places;
        let (permit, connection) = look(&first).expect("its turn");
        drop(second);
        permit.put_back(connection.expect("with the permit"), world.begin);
        let (permit, connection) = look(&third).expect("the second has left");
        permit.evict(connection.expect("with the permit"));
        world.check();
        drop(permit);
        assert!(world.now().1.is_none());
    }

    /// A task that looks at its pool when its last waker is dropped.
    struct LastLook(Arc<Shared<u32>>);

    impl Wake for LastLook {
        fn wake(self: Arc<Self>) {}
    }

    impl Drop for LastLook {
        fn drop(&mut self) {
            assert!(self.0.state.try_lock().is_ok(), "the pool is locked");
        }
    }

    #[test]
    fn a_replaced_waker_is_dropped_without_the_lock() {
        let shared = Shared::new(Limits { minimum: 0, maximum: 1, idle_timeout: None });
        let Acquired::Now(_granted) = shared.acquire() else { panic!("the pool is exhausted") };
        let Acquired::Later(place) = shared.acquire() else { panic!("a permit is free") };
        assert!(place.poll(&Arc::new(LastLook(shared)).into()).is_pending());
        assert!(place.poll(Waker::noop()).is_pending());
        assert!(place.poll(&Arc::new(LastLook(place.shared.clone())).into()).is_pending());
        drop(place);
    }

    #[test]
    fn a_grant_that_nobody_takes_is_passed_on() {
        let world = World::new(0, 1, None);
        let (permit, _) = world.now();
        let connection = world.make(&permit, 1);
        let (first, second) = (world.later(), world.later());
        permit.put_back(connection, world.begin);
        drop(first);
        let (permit, connection) = look(&second).expect("the grant of the first");
        assert_eq!(connection.as_ref().map(|connection| connection.name), Some(1));
        permit.put_back(connection.unwrap(), world.begin);
        assert_eq!(world.names(), [1]);
        let place = {
            let _granted = world.now();
            world.later()
        };
        drop(place);
        assert!(world.now().1.is_none(), "the dropped permit had taken the connection");
    }

    #[test]
    fn the_unfit_are_closed_and_the_others_keep_their_age() {
        let world = World::new(0, 4, Some(SECOND * 10));
        world.idle_since(&[1, 2, 3, 4]);
        world.shared.retain(|connection| connection.name % 2 == 0);
        assert_eq!(world.names(), [2, 4]);
        world.check();
        world.shared.expire(world.begin + SECOND * 12);
        assert_eq!(world.names(), [4]);
        world.check();
    }

    #[test]
    fn the_minimum_is_missing_until_it_is_made() {
        let world = World::new(2, 2, None);
        world.idle_since(&[1]);
        let permit = world.shared.acquire_missing().expect("one is missing");
        assert!(world.shared.acquire_missing().is_none(), "the maximum is reached");
        let connection = world.make(&permit, 2);
        permit.put_back(connection, world.begin);
        assert!(world.shared.acquire_missing().is_none());
        world.shared.retain(|connection| connection.name != 1);
        assert!(world.shared.acquire_missing().is_some());
        world.check();
    }

    #[test]
    fn values_that_outlive_the_pool_do_no_harm() {
        let World { shared, open, begin } = World::new(0, 2, None);
        let world = World { shared: shared.clone(), open: open.clone(), begin };
        let (made, pending) = (world.now().0, world.now().0);
        let connection = world.make(&made, 1);
        drop((world, shared));
        assert_eq!(open.get(), 1);
        pending.count_made();
        made.put_back(connection, begin);
        assert_eq!(open.get(), 0);
        drop(pending);
    }
}
