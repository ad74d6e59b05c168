//! Waiting: for descriptors, and for other threads.
//!
//! Whoever waits for an rsocket sleeps on its descriptors, and whoever wakes first sees to what has happened. That may be
//! what another sleeper waits for, whose descriptor then says nothing any more. So each sleeper leaves its *bell* with the
//! socket, under the socket's lock, before it sleeps; who has changed anything rings all bells that it finds.

use std::cell::RefCell;
use std::ffi::c_int;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use crate::platform::errno;
use crate::platform::fork::{ForkGeneration, ForkSafeFd};

/// What a thread is woken by.
pub(super) struct ThreadWaker {
    file: ForkSafeFd,
    process: ForkGeneration,
}

thread_local! {
    static OWN: RefCell<Option<Arc<ThreadWaker>>> = const { RefCell::new(None) };
}

impl ThreadWaker {
    /// This thread's.
    ///
    /// # Errors
    ///
    /// The process has no descriptor left.
    pub(super) fn own() -> Result<Arc<Self>, c_int> {
        OWN.try_with(|own| {
            let mut own = own.borrow_mut();
            if let Some(waker) =
                own.as_ref().filter(|waker| waker.process.is_current() && waker.file.is_there())
            {
                return Ok(Arc::clone(waker));
            }
            let file = ForkSafeFd::open(|| eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK));
            let file = file.map_err(|error| errno::refused("eventfd", &error))?;
            let waker = Arc::new(Self { file, process: ForkGeneration::current() });
            *own = Some(Arc::clone(&waker));
            Ok(waker)
        })
        .unwrap_or(Err(libc::ENOMEM)) // The thread is ending.
    }

    fn wake(&self) {
        // Full is as good: the sleeper wakes.
        let _ = self.file.get().and_then(|file| rustix::io::write(file, &1_u64.to_ne_bytes()));
    }

    /// After waking, so that the next sleep is one.
    fn reset(&self) {
        let _ = self.file.get().and_then(|file| rustix::io::read(file, &mut [0; 8]));
    }

    fn number(&self) -> RawFd {
        use std::os::fd::AsFd;
        self.file.as_fd().as_raw_fd()
    }
}

/// The bells of those who sleep.
#[derive(Default)]
pub(super) struct SleeperList(Vec<Arc<ThreadWaker>>);

impl SleeperList {
    pub(super) fn add_sleeper(&mut self, waker: &Arc<ThreadWaker>) {
        self.0.push(Arc::clone(waker));
    }

    pub(super) fn remove_sleeper(&mut self, waker: &Arc<ThreadWaker>) {
        if let Some(at) = self.0.iter().position(|other| Arc::ptr_eq(other, waker)) {
            self.0.swap_remove(at);
        }
    }

    pub(super) fn wake_all(&self) {
        self.0.iter().for_each(|waker| waker.wake());
    }
}

/// When to wait no longer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline(Option<Instant>);

impl Deadline {
    pub(super) const NEVER: Self = Self(None);

    /// None is no end, and neither is one beyond all time.
    pub(super) fn after(time: Option<Duration>) -> Self {
        Self(time.and_then(|time| Instant::now().checked_add(time)))
    }

    pub(super) fn has_passed(self) -> bool {
        self.0.is_some_and(|end| end <= Instant::now())
    }

    /// In milliseconds, as `poll` has it: never too short.
    fn left(self) -> c_int {
        let Some(end) = self.0 else { return -1 };
        let left = end.saturating_duration_since(Instant::now());
        c_int::try_from(left.as_nanos().div_ceil(1_000_000)).unwrap_or(c_int::MAX)
    }
}

/// Sleeps until one of the descriptors has what is asked of it, the bell rings, or time is over. What the descriptors
/// have is in their `revents`.
///
/// # Errors
///
/// As of poll(2): `EINTR` after a signal.
pub(super) fn sleep(
    fds: &mut Vec<libc::pollfd>,
    waker: &ThreadWaker,
    deadline: Deadline,
) -> Result<(), c_int> {
    fds.push(libc::pollfd { fd: waker.number(), events: libc::POLLIN, revents: 0 });
    let result = poll(fds, deadline.left());
    if fds.pop().is_some_and(|waker| waker.revents != 0) {
        waker.reset();
    }
    result.map(drop)
}

/// As poll(2).
pub(super) fn poll(fds: &mut [libc::pollfd], milliseconds: c_int) -> Result<usize, c_int> {
    // SAFETY: so many entries are there.
    let ready = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, milliseconds) };
    usize::try_from(ready).map_err(|_| errno::of(&std::io::Error::last_os_error()))
}

/// Makes a descriptor that others read non-blocking.
pub(super) fn make_nonblocking(fd: RawFd) -> Result<(), c_int> {
    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
    if fd < 0 {
        return Err(libc::EBADF);
    }
    // SAFETY: it is not -1, and borrowed for these calls, which fail if it is not open.
    let file = unsafe { BorrowedFd::borrow_raw(fd) };
    let result = fcntl_getfl(file).and_then(|flags| fcntl_setfl(file, flags | OFlags::NONBLOCK));
    result.map_err(Errno::raw_os_error)
}
