//! Visits of the service thread to a connection, or to a worker, in which no call is. They send what
//! the program has left behind.

use std::sync::atomic::Ordering;
use std::sync::{OnceLock, Weak};
use std::time::{Duration, Instant};

#[cfg(loom)]
use loom::sync::atomic::AtomicBool;
#[cfg(not(loom))]
use std::sync::atomic::AtomicBool;

use mio::event::Event;

use crate::process::{self, CallGate};
use crate::session::service::{NextTurn, Place, ServiceTask, Task};
use crate::session::tasks::DueTasks;

/// The pause before the first visit, in which most programs make the next call.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
/// The shortest pause between visits, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(100)];
/// The time without progress for each part of a pause.
const PATIENCE: u32 = 8;

/// Whether the service thread can visit at all. A sandbox may forbid what keeps visits and calls apart.
pub(crate) fn are_possible() -> bool {
    process::has_barrier()
}

/// What the service thread visits.
pub(crate) trait Visited: Send + Sync + Sized + 'static {
    /// Keeps calls and visits apart.
    fn gate(&self) -> &CallGate;

    fn visits(&self) -> &Visits<Self>;

    /// Continues as far as possible without waiting.
    ///
    /// # Safety
    ///
    /// The caller has begun a visit through the [gate](Self::gate), which ends later.
    unsafe fn visit(&self) -> VisitEnd;
}

/// What a visit has done.
pub(crate) struct VisitEnd {
    /// Whether anything has moved. `None` once nothing is left.
    pub(crate) moved: Option<bool>,
    /// The tasks to wake after the visit, because they may call.
    pub(crate) due: Option<DueTasks>,
}

/// A visit that wakes no tasks.
impl From<Option<bool>> for VisitEnd {
    fn from(moved: Option<bool>) -> Self {
        Self { moved, due: None }
    }
}

/// Whether the service thread visits.
pub(crate) struct Visits<T: Visited> {
    are_wanted: AtomicBool,
    /// The task has a turn to come.
    is_due: AtomicBool,
    /// The first request makes it. A later one allocates nothing.
    task: OnceLock<ServiceTask<VisitTask<T>>>,
}

impl<T: Visited> Visits<T> {
    pub(crate) fn new() -> Self {
        Self { are_wanted: AtomicBool::new(false), is_due: AtomicBool::new(false), task: OnceLock::new() }
    }

    /// Has the service thread visit the owner of this value until nothing is left. A call of the owner
    /// asks, one at a time.
    pub(crate) fn request(&self, owner: &Weak<T>) {
        if !are_possible() || !self.needs_task() {
            return;
        }
        if let Some(task) = self.task.get() {
            return task.restart();
        }
        let task = VisitTask { owner: owner.clone(), moved: None };
        match ServiceTask::start(|_| Ok(task)) {
            Ok(task) => drop(self.task.set(task)), // Nobody else sets it.
            Err(error) => {
                self.lose_task();
                tracing::debug!(%error, "what is left behind needs the program's calls");
            }
        }
    }

    /// Notes that visits are wanted. Returns whether the caller must start the task.
    fn needs_task(&self) -> bool {
        self.are_wanted.store(true, Ordering::Relaxed);
        // A task that ends later sees that visits are wanted, because both change `is_due` by a swap.
        !self.is_due.swap(true, Ordering::AcqRel)
    }

    /// A request for a simulated service thread, which gets a task if it has none.
    #[cfg(test)]
    pub(crate) fn task_for(&self, owner: Weak<T>) -> Option<VisitTask<T>> {
        self.needs_task().then_some(VisitTask { owner, moved: None })
    }

    /// Ends the visits. Calls see to the rest.
    #[inline]
    pub(crate) fn end(&self) {
        if self.are_wanted() {
            self.are_wanted.store(false, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(crate) fn are_wanted(&self) -> bool {
        self.are_wanted.load(Ordering::Relaxed)
    }

    /// Whether the task has more to do although a call is in. Otherwise the next request restarts it.
    fn go_on(&self) -> bool {
        if self.are_wanted() {
            return true;
        }
        self.lose_task();
        // Again, because a request may have seen the task just before.
        self.are_wanted() && !self.is_due.swap(true, Ordering::AcqRel)
    }

    fn lose_task(&self) {
        self.is_due.swap(false, Ordering::AcqRel);
    }
}

/// Visits one owner. It reads no clock, so that the simulator runs it in virtual time.
pub(crate) struct VisitTask<T> {
    owner: Weak<T>,
    /// The last time when something moved. `None` before the first visit after a request.
    moved: Option<Instant>,
}

impl<T: Visited> VisitTask<T> {
    /// Returns whether anything has moved, and `None` if no visit is needed.
    fn visit(&self) -> Option<bool> {
        // A dropped owner finishes by itself.
        let owner = self.owner.upgrade()?;
        let Some(visit) = owner.gate().begin_visit() else { return owner.visits().go_on().then_some(false) };
        // SAFETY: the visit has begun, and is dropped below.
        let VisitEnd { moved, due } = unsafe { owner.visit() };
        if moved.is_none() {
            // A later call sees this, because it begins after the visit.
            owner.visits().end();
            owner.visits().lose_task();
        }
        drop(visit);
        if let Some(due) = due {
            due.wake();
        }
        moved
    }

    /// Visits, unless it is the first time. Returns when the next visit is due.
    pub(crate) fn turn_at(&mut self, now: Instant) -> NextTurn {
        let pause = match self.moved {
            None => {
                self.moved = Some(now);
                FIRST_PAUSE
            }
            Some(since) => match self.visit() {
                None => {
                    self.moved = None;
                    return NextTurn::Never;
                }
                Some(true) => {
                    self.moved = Some(now);
                    PAUSES[0]
                }
                Some(false) => (now.saturating_duration_since(since) / PATIENCE).clamp(PAUSES[0], PAUSES[1]),
            },
        };
        NextTurn::At(now + pause)
    }
}

impl<T: Visited> Task for VisitTask<T> {
    fn turn(&mut self, _: &Place, _: &[&Event], now: Instant) -> NextTurn {
        self.turn_at(now)
    }

    fn failed(&mut self, _: &Place) {
        if let Some(owner) = self.owner.upgrade() {
            owner.visits().lose_task();
        }
    }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use std::io::ErrorKind;
    #[cfg(unix)]
    use std::os::fd::AsFd;
    use std::{iter, thread};

    #[cfg(unix)]
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use crate::api::SeqPacket;
    use crate::config::Builder;
    use crate::wire::Policy;

    /// A visit reads less than has arrived, and sends all. No further event would start another one.
    #[test]
    fn visits_go_on_while_work_is_left() {
        const LEN: usize = 300_000;
        let builder = || Builder::new().policy(Policy::TcpOnly);
        let listener = builder().bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let sending = thread::spawn(move || {
            let (mut server, _) = listener.accept_seq_packet().unwrap();
            server.send(&[7; LEN]).unwrap(); // now the system has all
            server
        });
        let mut client: SeqPacket = builder().connect_seq_packet(addr).unwrap();
        let _server = sending.join().unwrap();
        let mut call = client.0.exclusive().unwrap();
        call.connection.set_most_calls(1);
        assert_eq!(call.send_left(), Some(true));
        call.connection.set_most_calls(u32::MAX);
        assert_eq!(call.send_left(), None);
        drop(call);
        client.set_nonblocking(true).unwrap();
        assert_eq!(client.recv(&mut [0; LEN]).unwrap(), LEN);
    }

    /// A visit may take the wake-up for free memory, for which the program waits.
    #[cfg(unix)]
    #[test]
    fn a_visit_shows_the_program_that_memory_is_free() {
        let builder = || Builder::new().policy(Policy::TcpOnly);
        let listener = builder().bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let accepting = thread::spawn(move || listener.accept_seq_packet().unwrap());
        let mut client: SeqPacket = builder().connect_seq_packet(addr).unwrap();
        let _server = accepting.join().unwrap();
        client.set_nonblocking(true).unwrap();
        let is_readable = |client: &SeqPacket| {
            let fd = client.as_fd();
            let mut list = [PollFd::new(&fd, PollFlags::IN)];
            poll(&mut list, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
        };
        let held: Vec<_> = iter::from_fn(|| client.buffer(1).ok()).collect();
        let mut refusals = 0;
        while refusals == 0 || is_readable(&client) {
            assert_eq!(client.send(b"message").unwrap_err().kind(), ErrorKind::WouldBlock);
            refusals += 1;
            assert!(refusals < 100, "readable without end");
        }
        drop(held);
        client.0.exclusive().unwrap().send_left();
        assert!(is_readable(&client));
        client.send(b"message").unwrap();
    }
}

/// Requests and the end of a task, in every order that loom finds:
/// `RUSTFLAGS='--cfg loom' cargo test --lib models::`.
#[cfg(all(test, loom))]
mod models {
    use std::sync::{Arc, Mutex};

    use loom::cell::UnsafeCell;
    use loom::thread::{self, JoinHandle};

    use super::*;

    /// A connection, of which loom sees it if two threads are in it at a time.
    struct Connection {
        gate: CallGate,
        visits: Visits<Self>,
        unsent: UnsafeCell<u32>,
        tasks: Mutex<Vec<JoinHandle<Option<VisitTask<Self>>>>>,
    }

    // SAFETY: loom ends the test if two threads are in the cell at a time. All else is `Sync`.
    unsafe impl Sync for Connection {}

    impl Visited for Connection {
        fn gate(&self) -> &CallGate {
            &self.gate
        }

        fn visits(&self) -> &Visits<Self> {
            &self.visits
        }

        unsafe fn visit(&self) -> VisitEnd {
            self.send();
            None.into()
        }
    }

    impl Connection {
        fn send(&self) {
            // SAFETY: loom checks that no other thread is in the cell.
            self.unsent.with_mut(|unsent| unsafe { *unsent = 0 });
        }

        /// A call that leaves a byte. Before, it may sleep and send what is left.
        fn call(self: &Arc<Self>, sleeps: bool) {
            self.gate.enter(false).unwrap();
            if sleeps {
                self.visits.end();
                self.send();
            }
            // SAFETY: loom checks that no other thread is in the cell.
            self.unsent.with_mut(|unsent| unsafe { *unsent += 1 });
            if self.visits.needs_task() {
                let task = VisitTask { owner: Arc::downgrade(self), moved: None };
                // Some turns come while there are calls, and the others after them.
                let turns = move || (0..2).all(|_| task.visit().is_some()).then_some(task);
                self.tasks.lock().unwrap().push(thread::spawn(turns));
            }
            self.gate.leave(false);
        }
    }

    /// Checks that tasks send what the calls have left, and end.
    fn all_is_sent(sleeps: [bool; 2]) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(4);
        model.check(move || {
            let connection = Arc::new(Connection {
                gate: CallGate::new(),
                visits: Visits::new(),
                unsent: UnsafeCell::new(0),
                tasks: Mutex::default(),
            });
            sleeps.into_iter().for_each(|sleeps| connection.call(sleeps));
            let tasks = std::mem::take(&mut *connection.tasks.lock().unwrap());
            let going_on: Vec<_> = tasks.into_iter().filter_map(|task| task.join().unwrap()).collect();
            assert!(going_on.len() <= 1, "two tasks at a time");
            going_on.into_iter().for_each(|task| while task.visit().is_some() {});
            // SAFETY: the other threads have ended.
            assert_eq!(connection.unsent.with(|unsent| unsafe { *unsent }), 0, "nobody sends it");
            assert!(connection.visits.needs_task(), "a later request starts no task");
        });
    }

    #[test]
    fn each_request_is_followed_by_a_visit() {
        all_is_sent([false, false]);
    }

    #[test]
    fn a_request_after_a_sleep_is_followed_by_a_visit() {
        all_is_sent([false, true]);
    }
}
