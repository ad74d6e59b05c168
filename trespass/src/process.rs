//! The process that connections and listeners belong to: forks, and its end.
//!
//! A child has copies of their descriptors. Its epoll sets, timers and queue pairs are the same
//! kernel objects as the parent's, so that the child must not touch them.

use std::io;
use std::ptr;
use std::sync::atomic::Ordering;
use std::sync::atomic::{AtomicBool as StdAtomicBool, AtomicPtr, AtomicU32 as StdAtomicU32, AtomicUsize};
use std::thread;
use std::time::Duration;

#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, AtomicU32};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, AtomicU32};

/// The number of forks between the first process and this one.
static FORKS: StdAtomicU32 = StdAtomicU32::new(0);

/// The process whose calls may begin: the number of forks, or [`ENDED`].
#[cfg(not(loom))]
static MAY_CALL: AtomicU32 = AtomicU32::new(0);

#[cfg(loom)]
loom::lazy_static! {
    static ref MAY_CALL: AtomicU32 = AtomicU32::new(0);
}

/// No call may begin, because the process ends.
const ENDED: u32 = u32::MAX;

/// Identifies a process among its parents and children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process(u32);

impl Process {
    /// The calling process.
    pub(crate) fn current() -> Self {
        watch();
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// Whether this is the calling process.
    #[inline]
    pub(crate) fn is_current(self) -> bool {
        self.0 == FORKS.load(Ordering::Relaxed)
    }

    /// The error of a call in a forked child.
    #[cold]
    pub(crate) fn error(what: &str) -> io::Error {
        if MAY_CALL.load(Ordering::Relaxed) == ENDED {
            let words = format!("the process ends, and with it this {what}");
            return io::Error::new(io::ErrorKind::ConnectionAborted, words);
        }
        let words = format!(
            "this {what} belongs to the process that made it, which has forked: make another one in the child"
        );
        io::Error::new(io::ErrorKind::NotConnected, words)
    }
}

/// A static value of which a forked child makes its own. In its copy of the parent's, a thread that
/// the child does not have may hold a lock for ever. No value is freed, so that references stay valid.
pub(crate) struct PerProcess<T: 'static>(AtomicPtr<(Process, T)>);

impl<T> PerProcess<T> {
    pub(crate) const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }
}

/// Any thread may store the value, and all get it.
impl<T: Send + Sync> PerProcess<T> {
    /// The value of this process, if it has made one.
    pub(crate) fn made(&self) -> Option<&'static T> {
        // SAFETY: the pointer is null, or comes from a box that `set` stored and nobody frees.
        let stored = unsafe { self.0.load(Ordering::Acquire).as_ref() };
        stored.filter(|(process, _)| process.is_current()).map(|(_, value)| value)
    }

    /// Stores the value and returns it. The error is the one that another thread of this process has
    /// stored.
    pub(crate) fn set(&self, value: T) -> Result<&'static T, &'static T> {
        let new = Box::into_raw(Box::new((Process::current(), value)));
        let mut seen = self.0.load(Ordering::Acquire);
        loop {
            if let Some(made) = self.made() {
                // SAFETY: the pointer comes from the box above, and nobody else has got it.
                drop(unsafe { Box::from_raw(new) });
                return Err(made);
            }
            match self.0.compare_exchange(seen, new, Ordering::AcqRel, Ordering::Acquire) {
                // SAFETY: the pointer comes from the box above, and nobody frees it from now on.
                Ok(_) => return Ok(unsafe { &(*new).1 }),
                Err(now) => seen = now,
            }
        }
    }

    /// The value of this process, which is made first if it has none.
    pub(crate) fn get(&self) -> &'static T
    where
        T: Default,
    {
        self.made().unwrap_or_else(|| self.set(T::default()).unwrap_or_else(|made| made))
    }
}

/// Marks a connection as in use while a call runs.
///
/// A call stores its mark and then reads whether calls may begin. [`end_calls`] and a visit of the
/// service thread do both the other way round. The barriers between make sure that one of them sees
/// the other.
pub(crate) struct CallGate {
    in_use: AtomicBool,
    process: Process,
    /// [`VISITED`] during a visit, else `between_visits`.
    admits: AtomicU32,
    /// The process, or [`TIMED`].
    between_visits: u32,
}

/// No call may begin, because the service thread is in the connection.
const VISITED: u32 = ENDED - 1;

/// No call begins at once, so that those that are not timed need no other test.
const TIMED: u32 = ENDED - 2;

impl CallGate {
    pub(crate) fn new() -> Self {
        Self::of(Process::current(), false)
    }

    /// If `is_timed`, [`enters_at_once`](Self::enters_at_once) is false for each call.
    pub(crate) fn timed(is_timed: bool) -> Self {
        Self::of(Process::current(), is_timed)
    }

    fn of(process: Process, is_timed: bool) -> Self {
        let between_visits = if is_timed { TIMED } else { process.0 };
        let admits = AtomicU32::new(between_visits);
        Self { in_use: AtomicBool::new(false), process, admits, between_visits }
    }

    pub(crate) fn is_timed(&self) -> bool {
        self.between_visits == TIMED
    }

    /// Begins a call. A visit of the service thread ends first. If it fails, `else_in_use` is the mark
    /// from now on.
    #[inline]
    pub(crate) fn enter(&self, else_in_use: bool) -> io::Result<()> {
        if self.enters_at_once() { Ok(()) } else { self.enter_late(else_in_use) }
    }

    /// Begins a call, unless there is a visit, the process is another one or calls are timed. Then
    /// [`enter`](Self::enter) follows.
    #[inline]
    pub(crate) fn enters_at_once(&self) -> bool {
        self.mark();
        // Acquire, because the call sees what the last visit has done.
        self.admits.load(Ordering::Acquire) == MAY_CALL.load(Ordering::Relaxed)
    }

    #[cold]
    fn enter_late(&self, else_in_use: bool) -> io::Result<()> {
        let mut pauses = 0;
        loop {
            if self.process.0 != MAY_CALL.load(Ordering::Relaxed) {
                self.leave(else_in_use);
                return Err(Process::error("connection"));
            }
            if self.admits.load(Ordering::Acquire) != VISITED {
                return Ok(());
            }
            self.leave(else_in_use);
            visit_pause(&mut pauses);
            self.mark();
        }
    }

    #[inline]
    fn mark(&self) {
        self.in_use.store(true, Ordering::Relaxed);
        barrier::of_calls();
    }

    /// Continues a call that has slept and has not left. A visit cannot have begun.
    pub(crate) fn resume(&self) -> io::Result<()> {
        self.mark();
        if self.process.0 == MAY_CALL.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.leave(false);
        Err(Process::error("connection"))
    }

    /// Ends a call.
    #[inline]
    pub(crate) fn leave(&self, in_use: bool) {
        self.in_use.store(in_use, Ordering::Release);
    }

    /// Begins a visit of the service thread, if no call is in.
    pub(crate) fn begin_visit(&self) -> Option<GateVisit<'_>> {
        if self.in_use.load(Ordering::Relaxed) {
            return None;
        }
        // The first time this takes longer than a call should wait.
        barrier::prepare();
        self.admits.store(VISITED, Ordering::Relaxed);
        let visit = GateVisit(self);
        (barrier::of_all_threads() && !self.in_use.load(Ordering::Acquire)).then_some(visit)
    }

    /// Whether no call is in the connection, after [`end_calls`]: then none will be. The service thread
    /// asks, which is in no visit then.
    pub(crate) fn is_left_for_ever(&self) -> bool {
        MAY_CALL.load(Ordering::Relaxed) == ENDED && !self.in_use.load(Ordering::Acquire)
    }

    /// Whether a forked child's copy is of the middle of a visit.
    pub(crate) fn is_visited(&self) -> bool {
        self.admits.load(Ordering::Acquire) == VISITED
    }

    #[inline]
    pub(crate) fn is_of_this_process(&self) -> bool {
        self.process.is_current()
    }
}

/// A visit of the service thread. No call begins before it is dropped.
pub(crate) struct GateVisit<'a>(&'a CallGate);

impl Drop for GateVisit<'_> {
    fn drop(&mut self) {
        let CallGate { admits, between_visits, .. } = self.0;
        admits.store(*between_visits, Ordering::Release);
    }
}

/// Waits for the service thread. A yield does not let a thread of lower priority run.
#[cfg(not(loom))]
fn visit_pause(pauses: &mut u32) {
    const YIELDS: u32 = 20;
    *pauses += 1;
    if *pauses <= YIELDS { thread::yield_now() } else { thread::sleep(Duration::from_micros(20)) }
}

#[cfg(loom)]
fn visit_pause(_: &mut u32) {
    loom::thread::yield_now();
}

/// The thread that ends the process.
static ENDING_THREAD: AtomicUsize = AtomicUsize::new(0);

/// The end of the process waits for nothing more.
static HAS_ENDED: StdAtomicBool = StdAtomicBool::new(false);

/// Has every later call of a connection fail. Returns whether the system has a barrier for this.
#[cfg(unix)]
pub(crate) fn end_calls() -> bool {
    ENDING_THREAD.store(current_thread(), Ordering::Relaxed);
    let before = MAY_CALL.swap(ENDED, Ordering::Relaxed);
    let done = barrier::of_all_threads();
    if !done {
        MAY_CALL.store(before, Ordering::Relaxed);
    }
    done
}

/// Lets the threads go on that wait for the end.
#[cfg(unix)]
pub(crate) fn has_ended() {
    HAS_ENDED.store(true, Ordering::Relaxed);
}

/// If the process ends, waits for that, so that a thread of the program sees no error. The thread that
/// ends the process does not wait. The others wait a second longer than it does, in case it waits
/// for them.
#[cold]
pub(crate) fn wait_for_end() {
    let ends = MAY_CALL.load(Ordering::Relaxed) == ENDED;
    if !ends || ENDING_THREAD.load(Ordering::Relaxed) == current_thread() {
        return;
    }
    while !HAS_ENDED.load(Ordering::Relaxed) {
        thread::sleep(Duration::from_millis(5));
    }
    thread::sleep(Duration::from_secs(1));
}

/// Ends a call that slept when the process began to end, because the end has taken what it used.
#[cold]
pub(crate) fn leave_to_end() -> ! {
    wait_for_end();
    // Somebody waits for this thread after the connections were closed.
    if cfg!(panic = "unwind") {
        std::panic::resume_unwind(Box::new("the process ends"));
    }
    loop {
        thread::park();
    }
}

/// The calling thread, without a thread-local variable, which has ended before an `atexit` function
/// runs.
#[cfg(unix)]
pub(crate) fn current_thread() -> usize {
    // SAFETY: the call has no preconditions.
    unsafe { libc::pthread_self() as usize }
}

#[cfg(not(unix))]
pub(crate) fn current_thread() -> usize {
    0
}

/// Whether the system has a barrier for all threads, which visits and the end of the process need.
pub(crate) fn has_barrier() -> bool {
    barrier::exists()
}

/// The two sides of a barrier between all calls and the end of the process. Calls are many, so the
/// system makes it a full barrier in their threads (membarrier(2)).
#[cfg(all(any(target_os = "linux", target_os = "android"), not(any(miri, loom))))]
mod barrier {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicBool, Ordering, compiler_fence};

    use rustix::thread::{MembarrierCommand, membarrier, membarrier_query};

    #[inline]
    pub(super) fn of_calls() {
        compiler_fence(Ordering::SeqCst);
    }

    /// Registers the process, which takes long.
    pub(super) fn prepare() {
        static ONCE: AtomicBool = AtomicBool::new(false);
        if !ONCE.load(Ordering::Relaxed) {
            ONCE.store(true, Ordering::Relaxed);
            // An error comes again from `of_all_threads`.
            let _ = membarrier(MembarrierCommand::RegisterPrivateExpedited);
        }
    }

    pub(super) fn exists() -> bool {
        static EXISTS: OnceLock<bool> = OnceLock::new();
        *EXISTS.get_or_init(|| {
            let supported = membarrier_query();
            supported.contains_command(MembarrierCommand::PrivateExpedited)
                || supported.contains_command(MembarrierCommand::Global)
        })
    }

    pub(super) fn of_all_threads() -> bool {
        // `Global` takes longer, and works where the others do not.
        let expedited = || membarrier(MembarrierCommand::PrivateExpedited);
        let registered =
            || membarrier(MembarrierCommand::RegisterPrivateExpedited).and_then(|()| expedited());
        expedited().or_else(|_| registered()).or_else(|_| membarrier(MembarrierCommand::Global)).is_ok()
    }
}

#[cfg(not(all(any(target_os = "linux", target_os = "android"), not(any(miri, loom)))))]
mod barrier {
    use std::sync::atomic::Ordering;
    #[cfg(not(loom))]
    use std::sync::atomic::fence;

    #[cfg(loom)]
    use loom::sync::atomic::fence;

    #[inline]
    pub(super) fn of_calls() {
        fence(Ordering::SeqCst);
    }

    pub(super) fn prepare() {}

    pub(super) fn exists() -> bool {
        true
    }

    pub(super) fn of_all_threads() -> bool {
        fence(Ordering::SeqCst);
        true
    }
}

/// The number of a descriptor.
#[cfg(unix)]
pub(crate) type Descriptor = std::os::fd::RawFd;
#[cfg(not(unix))]
pub(crate) type Descriptor = std::convert::Infallible;

/// Closes a forked child's copy of a descriptor whose owner was forgotten.
#[cfg(unix)]
pub(crate) fn close_copy(descriptor: Descriptor) {
    // SAFETY: its owner in this process was forgotten, so that nobody uses or closes it again.
    let error = unsafe { libc::close(descriptor) };
    if error != 0 {
        tracing::debug!(descriptor, "a copied descriptor cannot be closed");
    }
}

/// Processes do not fork here.
#[cfg(not(unix))]
pub(crate) fn close_copy(descriptor: Descriptor) {
    match descriptor {}
}

#[cfg(all(unix, not(miri)))]
fn watch() {
    extern "C" fn in_child() {
        let forks = FORKS.fetch_add(1, Ordering::Relaxed) + 1;
        MAY_CALL.store(forks, Ordering::Relaxed);
    }
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        // SAFETY: the function lives as long as this library, and only changes atomic numbers,
        // which a child may do between fork and exec.
        let error = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        if error != 0 {
            let error = io::Error::from_raw_os_error(error);
            tracing::error!(%error, "a forked child will disturb the connections of its parent");
        }
    });
}

#[cfg(not(all(unix, not(miri))))]
fn watch() {}

/// Runs `act` in a forked child. Returns whether it has returned `true` within 20 s. It must take no
/// lock that other threads of this process may hold.
#[cfg(all(test, unix, not(miri), not(loom)))]
pub(crate) fn passes_in_child(act: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child calls `act` and ends. The C library hands the allocator's locks over to it.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "{}", io::Error::last_os_error());
    if child == 0 {
        // SAFETY: these calls have no preconditions. The first one ends a child that waits.
        unsafe {
            libc::alarm(20);
            libc::_exit(i32::from(!act()));
        }
    }
    let mut status = 0;
    // SAFETY: the process is a child of this one, and `status` lives for the call.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    status == 0
}

/// The gate, in every order that loom finds: `RUSTFLAGS='--cfg loom' cargo test --lib models::`.
#[cfg(all(test, loom))]
mod models {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicBool;
    use loom::thread;

    use super::*;

    /// A connection, of which loom sees it if two threads are in it at a time.
    struct Guarded {
        gate: CallGate,
        connection: UnsafeCell<u32>,
    }

    impl Guarded {
        fn new() -> Arc<Self> {
            Self::of(false)
        }

        fn of(is_timed: bool) -> Arc<Self> {
            Arc::new(Self { gate: CallGate::of(Process(0), is_timed), connection: UnsafeCell::new(0) })
        }

        /// A call. Returns whether it was in the connection.
        fn call(&self) -> bool {
            let enters = self.gate.enter(false).is_ok();
            if enters {
                // SAFETY: loom checks that no other thread is in the cell.
                self.connection.with_mut(|calls| unsafe { *calls += 1 });
                self.gate.leave(false);
            }
            enters
        }
    }

    #[test]
    fn a_call_and_the_end_do_not_meet() {
        loom::model(|| {
            let guarded = Guarded::new();
            let closes = Arc::new(AtomicBool::new(false));
            let calling = {
                let guarded = guarded.clone();
                thread::spawn(move || u32::from(guarded.call()) + u32::from(guarded.call()))
            };
            // The service thread, which closes after the ending thread has told it.
            let closing = {
                let (guarded, closes) = (guarded.clone(), closes.clone());
                thread::spawn(move || {
                    let left = closes.load(Ordering::Acquire) && guarded.gate.is_left_for_ever();
                    // SAFETY: loom checks that no other thread is in the cell.
                    left.then(|| guarded.connection.with_mut(|calls| unsafe { *calls }))
                })
            };
            assert!(end_calls());
            closes.store(true, Ordering::Release);
            let (calls, seen) = (calling.join().unwrap(), closing.join().unwrap());
            assert!(seen.is_none_or(|seen| seen == calls), "a call came after the end, or was not seen");
        });
    }

    #[test]
    fn a_call_and_a_visit_do_not_meet() {
        visit_while_the_owner_calls(false);
    }

    #[test]
    fn a_timed_call_and_a_visit_do_not_meet() {
        visit_while_the_owner_calls(true);
    }

    /// The service thread visits while the owner makes calls.
    fn visit_while_the_owner_calls(is_timed: bool) {
        loom::model(move || {
            let guarded = Guarded::of(is_timed);
            let serving = {
                let guarded = guarded.clone();
                thread::spawn(move || {
                    let visit = guarded.gate.begin_visit();
                    visit.is_some_and(|_visit| {
                        // SAFETY: loom checks that no other thread is in the cell.
                        guarded.connection.with_mut(|calls| unsafe { *calls += 1 });
                        true
                    })
                })
            };
            assert!(guarded.call() && guarded.call());
            let visits = u32::from(serving.join().unwrap());
            // SAFETY: the other thread has ended.
            assert_eq!(guarded.connection.with(|calls| unsafe { *calls }), 2 + visits);
        });
    }

    /// A call sleeps and has not left, so that no visit begins.
    #[test]
    fn a_call_that_sleeps_keeps_visits_out() {
        loom::model(|| {
            let guarded = Guarded::new();
            assert!(guarded.gate.enter(false).is_ok());
            let serving = {
                let guarded = guarded.clone();
                thread::spawn(move || assert!(guarded.gate.begin_visit().is_none()))
            };
            assert!(guarded.gate.resume().is_ok());
            serving.join().unwrap();
            guarded.gate.leave(false);
        });
    }

    /// The process ends while the service thread visits. Later the same thread closes.
    #[test]
    fn a_call_a_visit_and_the_end_do_not_meet() {
        loom::model(|| {
            let guarded = Guarded::new();
            let closes = Arc::new(AtomicBool::new(false));
            let serving = {
                let (guarded, closes) = (guarded.clone(), closes.clone());
                thread::spawn(move || {
                    let visit = guarded.gate.begin_visit();
                    if let Some(_visit) = visit {
                        // SAFETY: loom checks that no other thread is in the cell.
                        guarded.connection.with_mut(|calls| unsafe { *calls += 1 });
                    }
                    let left = closes.load(Ordering::Acquire) && guarded.gate.is_left_for_ever();
                    // SAFETY: loom checks that no other thread is in the cell.
                    left.then(|| guarded.connection.with_mut(|calls| unsafe { *calls }))
                })
            };
            let calling = {
                let guarded = guarded.clone();
                thread::spawn(move || guarded.call())
            };
            assert!(end_calls());
            closes.store(true, Ordering::Release);
            let (called, seen) = (calling.join().unwrap(), serving.join().unwrap());
            // SAFETY: the other threads have ended.
            let in_all = guarded.connection.with(|calls| unsafe { *calls });
            assert!(in_all >= u32::from(called) && seen.is_none_or(|seen| seen == in_all));
        });
    }

    #[test]
    fn no_call_begins_after_the_end() {
        loom::model(|| {
            let guarded = Guarded::new();
            assert!(guarded.call() && end_calls());
            assert!(!guarded.call() && guarded.gate.is_left_for_ever());
        });
    }
}
