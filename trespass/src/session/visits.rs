//! Visits of the service thread to a connection, or to a worker, in which no call is. They send what
//! the program has left behind.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{OnceLock, Weak};
use std::time::{Duration, Instant};

use mio::event::Event;

use crate::process::CallGate;
use crate::session::service::{NextTurn, Place, ServiceTask, Task};

/// The pause before the first visit, in which most programs make the next call.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
/// The shortest pause between visits, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(100)];
/// The time without progress for each part of a pause.
const PATIENCE: u32 = 8;

/// What the service thread visits.
pub(crate) trait Visited: Send + Sync + Sized + 'static {
    /// Keeps calls and visits apart.
    fn gate(&self) -> &CallGate;

    fn visits(&self) -> &Visits<Self>;

    /// Continues as far as possible without waiting. Returns whether anything has moved, and `None`
    /// once nothing is left.
    ///
    /// # Safety
    ///
    /// The caller has begun a visit through the [gate](Self::gate), which ends later.
    unsafe fn visit(&self) -> Option<bool>;
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
        self.are_wanted.store(true, Ordering::SeqCst);
        if self.is_due.swap(true, Ordering::SeqCst) {
            return;
        }
        if let Some(task) = self.task.get() {
            return task.restart();
        }
        let task = VisitTask { owner: owner.clone(), moved: None };
        match ServiceTask::start(|_| Ok(task)) {
            Ok(task) => drop(self.task.set(task)), // Nobody else sets it.
            Err(error) => {
                self.is_due.store(false, Ordering::SeqCst);
                tracing::debug!(%error, "what is left behind needs the program's calls");
            }
        }
    }

    /// Ends the visits. Calls see to the rest.
    #[inline]
    pub(crate) fn end(&self) {
        if self.are_wanted() {
            self.are_wanted.store(false, Ordering::SeqCst);
        }
    }

    #[inline]
    pub(crate) fn are_wanted(&self) -> bool {
        self.are_wanted.load(Ordering::Relaxed)
    }

    /// Whether the task has more to do although a call is in. Otherwise the next request restarts it.
    fn go_on(&self) -> bool {
        if self.are_wanted.load(Ordering::SeqCst) {
            return true;
        }
        self.is_due.store(false, Ordering::SeqCst);
        // A request stores `are_wanted` before it looks at `is_due`.
        self.are_wanted.load(Ordering::SeqCst) && !self.is_due.swap(true, Ordering::SeqCst)
    }
}

/// Visits one owner.
struct VisitTask<T> {
    owner: Weak<T>,
    /// The last time when something moved. `None` before the first visit after a request.
    moved: Option<Instant>,
}

impl<T: Visited> VisitTask<T> {
    /// Returns whether anything has moved, and `None` if no visit is needed.
    fn visit(&self) -> Option<bool> {
        // A dropped owner finishes by itself.
        let owner = self.owner.upgrade()?;
        let Some(_visit) = owner.gate().begin_visit() else { return owner.visits().go_on().then_some(false) };
        // SAFETY: the visit has begun, and ends at the end of this function.
        let moved = unsafe { owner.visit() };
        if moved.is_none() {
            // A later call sees this, because it begins after the visit.
            owner.visits().end();
            owner.visits().is_due.store(false, Ordering::SeqCst);
        }
        moved
    }
}

impl<T: Visited> Task for VisitTask<T> {
    fn turn(&mut self, _: &Place, _: &[&Event], now: Instant) -> NextTurn {
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

    fn failed(&mut self, _: &Place) {
        if let Some(owner) = self.owner.upgrade() {
            owner.visits().is_due.store(false, Ordering::SeqCst);
        }
    }
}
