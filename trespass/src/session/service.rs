//! The service thread of the process: it makes the progress that must not depend on the program's
//! calls. It starts with the first task and sleeps while nothing is due.
//!
//! A task is one part of the work, for example the handshakes of a listener. Each task has a range of
//! tokens for its descriptors, and each turn returns when the next is due.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use mio::event::Event;
use mio::{Events, Poll, Registry, Token, Waker};

use crate::pool::flush_thread;
use crate::process::{PerProcess, current_thread};
use crate::session::control_keepalive::ControlSockets;
#[cfg(feature = "rdma")]
use crate::session::draining;
use crate::session::exit::{self, OpenAtExit};
pub(crate) use crate::session::schedule::NextTurn;
use crate::session::schedule::Schedule;
#[cfg(any(target_os = "linux", target_os = "android"))]
use crate::session::sleep::Signals;
use crate::session::timers::Timers;

/// Tokens of a task.
const TOKENS: usize = 1 << 12;

/// The waker's token, beyond those of any task.
const WAKER: Token = Token(usize::MAX);

/// Events taken at a time. Further ones stay in the set.
pub(crate) const EVENTS: usize = 256;

/// How long the thread waits after the system could not report events.
const PAUSE: Duration = Duration::from_millis(100);

/// Work that the service thread does in turns.
pub(crate) trait Task: Send {
    /// Continues as far as possible without waiting, after these events. Returns when the next turn
    /// is due.
    fn turn(&mut self, place: &Place, events: &[&Event], now: Instant) -> NextTurn;

    /// A turn has panicked, and there will be no other.
    fn failed(&mut self, place: &Place);
}

/// Starts the thread, so that a task needs no more descriptors and threads later.
pub(crate) fn prepare() -> io::Result<()> {
    Service::get().map(drop)
}

/// The connections that the end of this process waits for.
pub(super) fn open_at_exit() -> io::Result<&'static OpenAtExit> {
    Service::get().map(|service| &service.open_at_exit)
}

/// The control connections that the service thread keeps.
pub(super) fn control_sockets() -> io::Result<&'static ControlSockets> {
    Service::get().map(|service| &service.control_sockets)
}

/// The connections of [`open_at_exit`], if this process has any, and the caller is not the service
/// thread, which must not wait for itself.
#[cfg(unix)]
pub(super) fn waited_for_at_exit() -> Option<&'static OpenAtExit> {
    let service = SERVICE.made()?;
    let thread = service.thread.load(Ordering::Relaxed);
    (thread != current_thread()).then_some(&service.open_at_exit)
}

/// The timers of this process.
pub(super) fn timers() -> io::Result<&'static Timers> {
    Service::get().map(|service| &service.timers)
}

/// The signals of sleeping calls.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn signals() -> Option<&'static Signals> {
    SERVICE.made().map(|service| &service.signals)
}

/// Ends every sleep of a call, because the process ends.
#[cfg(unix)]
pub(super) fn end_sleeps() {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    signals().into_iter().for_each(Signals::end_sleeps);
}

/// Wakes the service thread.
pub(super) fn wake() {
    if let Some(service) = SERVICE.made() {
        service.wake();
    }
}

/// A task's place in the service: its tokens.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    service: &'static Service,
    index: usize,
}

impl Place {
    pub(crate) fn registry(&self) -> &'static Registry {
        &self.service.registry
    }

    pub(crate) fn token(&self, number: usize) -> Token {
        debug_assert!(number < TOKENS);
        Token(self.index * TOKENS + number)
    }

    /// The number of a token of this place.
    pub(crate) fn number(&self, token: Token) -> usize {
        token.0 - self.index * TOKENS
    }

    /// Asks for a turn.
    pub(crate) fn wake(&self) {
        self.service.schedule().wake(self.index, Instant::now());
        self.service.wake();
    }
}

/// A task, which its owner or the thread may end.
type SharedTask = Arc<Mutex<dyn Task>>;

/// The tasks of a process. Its thread uses it as long as the process lives.
struct Service {
    registry: Registry,
    waker: Waker,
    schedule: Mutex<Schedule<SharedTask>>,
    open_at_exit: OpenAtExit,
    timers: Timers,
    #[cfg(any(target_os = "linux", target_os = "android"))]
    signals: Signals,
    control_sockets: ControlSockets,
    thread: AtomicUsize,
}

/// A forked child has no such thread, and starts its own.
static SERVICE: PerProcess<Service> = PerProcess::new();

impl Service {
    fn get() -> io::Result<&'static Self> {
        if let Some(service) = SERVICE.made() {
            return Ok(service);
        }
        let poll = Poll::new()?;
        let new = Self {
            registry: poll.registry().try_clone()?,
            waker: Waker::new(poll.registry(), WAKER)?,
            schedule: Mutex::default(),
            open_at_exit: OpenAtExit::default(),
            timers: Timers::new(),
            #[cfg(any(target_os = "linux", target_os = "android"))]
            signals: Signals::new()?,
            control_sockets: ControlSockets::new(),
            thread: AtomicUsize::new(0),
        };
        // The thread starts before a task can be added, and ends if another thread was faster.
        let (choose, chosen) = sync_channel::<&'static Self>(1);
        start_thread("trespass", move || {
            if let Ok(service) = chosen.recv() {
                service.run(poll);
            }
        })?;
        #[cfg(feature = "rdma")]
        draining::start()?;
        match SERVICE.set(new) {
            Ok(service) => {
                let _ = choose.send(service); // The thread waits for it.
                Ok(service)
            }
            Err(service) => Ok(service),
        }
    }

    fn wake(&self) {
        if let Err(error) = self.waker.wake() {
            tracing::error!(%error, "the service thread cannot be woken");
        }
    }

    fn schedule(&self) -> MutexGuard<'_, Schedule<SharedTask>> {
        // A turn that panics holds no lock of the service.
        self.schedule.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&'static self, mut poll: Poll) {
        self.thread.store(current_thread(), Ordering::Relaxed);
        let mut events = Events::with_capacity(EVENTS);
        let mut closes = false;
        loop {
            let due = self.schedule().next_due().into_iter().chain(self.timers.next()).min();
            let timeout = due.map(|due| due.saturating_duration_since(Instant::now()));
            let timeout = timeout.into_iter().chain(closes.then_some(exit::LOOK)).min();
            match poll.poll(&mut events, timeout) {
                Ok(()) => (),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    tracing::error!(%error, "the service thread cannot wait for events");
                    thread::sleep(PAUSE);
                }
            }
            let mut moved: Vec<&Event> = events.iter().filter(|event| event.token() != WAKER).collect();
            moved.sort_unstable_by_key(|event| event.token());
            self.turns(&moved);
            self.timers.fire(Instant::now());
            closes = self.closes_at_exit();
            flush_thread();
        }
    }

    /// Closes connections, if the process ends. Returns whether some are left.
    fn closes_at_exit(&self) -> bool {
        catch_unwind(AssertUnwindSafe(|| self.open_at_exit.close_some())).unwrap_or_else(|_| {
            tracing::error!("closing a connection has panicked");
            true
        })
    }

    /// Gives a turn to each task that has events or is due.
    fn turns(&'static self, moved: &[&Event]) {
        let now = Instant::now();
        let has_event =
            |index: usize| moved.binary_search_by_key(&index, |event| event.token().0 / TOKENS).is_ok();
        let with_turn = self.schedule().begin_round(has_event, now);
        for (index, task) in with_turn {
            let before = |end: usize| moved.partition_point(|event| event.token().0 < end);
            let events = &moved[before(index * TOKENS)..before((index + 1) * TOKENS)];
            self.turn(index, task, events);
        }
    }

    fn turn(&'static self, index: usize, task: Arc<Mutex<dyn Task>>, events: &[&Event]) {
        let place = Place { service: self, index };
        match catch_unwind(AssertUnwindSafe(|| lock(&*task).turn(&place, events, Instant::now()))) {
            Ok(next) => {
                self.schedule().end_turn(index, next);
                if next == NextTurn::Never && catch_unwind(AssertUnwindSafe(|| drop(task))).is_err() {
                    tracing::error!("the end of a task of the service thread has panicked");
                }
            }
            Err(_) => self.has_failed(&place, &task),
        }
    }

    fn has_failed(&'static self, place: &Place, task: &Arc<Mutex<dyn Task>>) {
        tracing::error!("a task of the service thread has panicked, and ends");
        {
            // Its place stays taken until its owner ends it, which may have happened.
            let mut schedule = self.schedule();
            if schedule.task(place.index).is_some_and(|own| Arc::ptr_eq(own, task)) {
                schedule.replace(place.index, Arc::new(Mutex::new(Reserved)));
            }
        }
        if catch_unwind(AssertUnwindSafe(|| lock(task).failed(place))).is_err() {
            tracing::error!("it has panicked again");
        }
    }
}

/// A task in the service, which its owner ends.
pub(crate) struct ServiceTask<T: Task + 'static> {
    place: Place,
    /// Filled when the task has been made.
    task: Arc<Mutex<Option<T>>>,
}

/// The turn of a task that is being made waits for it, so that it misses no event.
impl<T: Task> Task for Option<T> {
    fn turn(&mut self, place: &Place, events: &[&Event], now: Instant) -> NextTurn {
        self.as_mut().map_or(NextTurn::Event, |task| task.turn(place, events, now))
    }

    fn failed(&mut self, place: &Place) {
        if let Some(task) = self {
            task.failed(place);
        }
    }
}

impl<T: Task + 'static> ServiceTask<T> {
    /// Adds a task, which has its first turn soon.
    pub(crate) fn start(make: impl FnOnce(&Place) -> io::Result<T>) -> io::Result<Self> {
        let service = Service::get()?;
        let task = Arc::new(Mutex::new(None));
        let mut empty = lock(&task);
        let place = Place { service, index: service.schedule().add(task.clone()) };
        match make(&place) {
            Ok(made) => *empty = Some(made),
            Err(error) => {
                service.schedule().remove(place.index);
                return Err(error);
            }
        }
        drop(empty);
        place.wake();
        Ok(Self { place, task })
    }

    /// Gives a task that has ended a place again.
    pub(crate) fn restart(&self) {
        let service = self.place.service;
        let index = service.schedule().add(self.task.clone());
        Place { service, index }.wake();
    }

    /// Gives up the ownership: the task ends when a turn returns [`NextTurn::Never`].
    pub(crate) fn detach(self) {}

    #[cfg_attr(
        not(any(target_os = "linux", target_os = "android")),
        allow(dead_code, reason = "no descriptor shows room here")
    )]
    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    /// Whether this process started the task. A forked child has a copy that nobody runs.
    pub(crate) fn is_of_this_process(&self) -> bool {
        SERVICE.made().is_some_and(|service| ptr::eq(service, self.place.service))
    }

    /// Asks for a turn.
    pub(crate) fn wake(&self) {
        self.place.wake();
    }

    /// Waits for a turn in progress, then ends the task by a function.
    pub(crate) fn end(&self, end: impl FnOnce(&mut T, &Place)) {
        self.place.service.schedule().forget_due(self.place.index);
        if let Some(task) = &mut *lock(&self.task) {
            end(task, &self.place);
        }
        self.place.service.schedule().remove(self.place.index);
    }

    /// Calls a function with the task, if it is not locked. In a forked child the lock may be held
    /// for ever.
    pub(crate) fn in_child(&self, with: impl FnOnce(&mut T)) {
        if let Ok(mut task) = self.task.try_lock()
            && let Some(task) = &mut *task
        {
            with(task);
        }
    }
}

/// Holds the place of a task that has panicked, until its owner ends it.
struct Reserved;

impl Task for Reserved {
    fn turn(&mut self, _: &Place, _: &[&Event], _: Instant) -> NextTurn {
        NextTurn::Event
    }

    fn failed(&mut self, _: &Place) {}
}

/// After a panic a task is only ended.
fn lock<T: ?Sized>(task: &Mutex<T>) -> MutexGuard<'_, T> {
    task.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts a thread with the signals of others blocked, because the program's handlers expect its own
/// threads.
pub(crate) fn start_thread(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    stay_loaded();
    let named = thread::Builder::new().name(name.to_owned());
    let _unblocked_again = BlockedSignals::new();
    named.spawn(run).map(drop)
}

/// Keeps the shared library with this code loaded, because the thread runs in it until the process
/// ends. glibc does so by itself while the thread has thread-locals with destructors, which is up to
/// std. Code that belongs to the program itself stays anyway, and its file name opens nothing.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn stay_loaded() {
    // SAFETY: `info` is written before its name is read, because `dladdr` then returns a number other
    // than 0. The name is a string of the loader, which lives as long as this code is loaded. Without
    // loading anything, `dlopen` runs no code.
    unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        let own: fn() = stay_loaded;
        if libc::dladdr(own as *const libc::c_void, &raw mut info) != 0 && !info.dli_fname.is_null() {
            libc::dlopen(info.dli_fname, libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE);
        }
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn stay_loaded() {}

#[cfg(unix)]
struct BlockedSignals(libc::sigset_t);

#[cfg(unix)]
impl BlockedSignals {
    fn new() -> Self {
        // SAFETY: both sets live for the calls, which write them before they are read. Without an
        // error `before` is the thread's mask. These calls fail only for an invalid first argument.
        unsafe {
            let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
            libc::sigfillset(&raw mut all);
            // Those of the thread's own instructions reach a handler or a debugger.
            for own in [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS]
            {
                libc::sigdelset(&raw mut all, own);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
            Self(before)
        }
    }
}

#[cfg(unix)]
impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: the set is the mask that `new` got from the system, and lives for the call.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, ptr::null_mut()) };
    }
}

#[cfg(not(unix))]
struct BlockedSignals;

#[cfg(not(unix))]
impl BlockedSignals {
    fn new() -> Self {
        Self
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    /// Tells the time of each turn, and is due once that long after the first one.
    struct Reports(Sender<Instant>, Option<Duration>);

    impl Task for Reports {
        fn turn(&mut self, _: &Place, _: &[&Event], now: Instant) -> NextTurn {
            self.0.send(now).unwrap();
            self.1.take().map(|after| now + after).into()
        }

        fn failed(&mut self, _: &Place) {}
    }

    struct Panics(Sender<&'static str>);

    impl Task for Panics {
        fn turn(&mut self, _: &Place, _: &[&Event], _: Instant) -> NextTurn {
            panic!("as wanted")
        }

        fn failed(&mut self, _: &Place) {
            self.0.send("failed").unwrap();
        }
    }

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn a_task_has_a_turn_at_once_when_it_is_due_and_when_it_is_woken() {
        let (told, turns) = channel();
        let after = Duration::from_millis(30);
        let task = ServiceTask::start(|_| Ok(Reports(told, Some(after)))).unwrap();
        let first = turns.recv_timeout(LONG).unwrap();
        assert!(turns.recv_timeout(LONG).unwrap() >= first + after);
        task.wake();
        turns.recv_timeout(LONG).unwrap();
        task.end(|_, _| ());
        drop(task);
        assert!(turns.recv_timeout(LONG).is_err(), "the task is gone");
    }

    #[test]
    fn a_panic_ends_its_task_alone() {
        let (told, turns) = channel();
        let (tell, failed) = channel();
        let panics = ServiceTask::start(|_| Ok(Panics(tell))).unwrap();
        assert_eq!(failed.recv_timeout(LONG), Ok("failed"));
        let reports = ServiceTask::start(|_| Ok(Reports(told, None))).unwrap();
        assert_ne!(reports.place.index, panics.place.index, "its place is its owner's");
        panics.wake();
        panics.end(|_, _| ());
        for _ in 0..2 {
            turns.recv_timeout(LONG).unwrap();
            reports.wake();
        }
        assert!(failed.try_recv().is_err(), "it has had another turn");
    }

    /// A waker may outlive its task.
    #[test]
    fn a_late_wake_up_ends() {
        let (told, turns) = channel();
        let task = ServiceTask::start(|_| Ok(Reports(told, None))).unwrap();
        turns.recv_timeout(LONG).unwrap();
        let place = task.place;
        task.end(|_, _| ());
        place.wake();
        let until = Instant::now() + LONG;
        while place.service.schedule().due(place.index).is_some() {
            assert!(Instant::now() < until, "it stays due");
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_place_is_free_after_a_failed_start() {
        assert!(ServiceTask::<Panics>::start(|_| Err(io::ErrorKind::Other.into())).is_err());
    }

    #[cfg(unix)]
    #[test]
    fn the_caller_keeps_its_signal_mask() {
        let mask = || {
            // SAFETY: without a new set the call only writes the old one, which lives for the call.
            unsafe {
                let mut mask = std::mem::zeroed();
                libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), &raw mut mask);
                libc::sigismember(&raw const mask, libc::SIGTERM)
            }
        };
        let before = mask();
        start_thread("test", move || assert_eq!(mask(), 1)).unwrap();
        assert_eq!(mask(), before);
    }
}
