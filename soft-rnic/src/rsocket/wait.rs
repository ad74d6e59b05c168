//! Waiting: for descriptors, and for other threads.
//!
//! A thread that waits for an rsocket sleeps on the rsocket's descriptors, and the thread that
//! wakes first processes the events. It may take the event that another sleeper waits for, so that
//! the other's descriptor stays silent. Therefore each sleeper registers its *waker* with the
//! socket, under the socket's lock, before it sleeps. A thread that changes anything wakes all
//! registered sleepers.

use std::cell::RefCell;
use std::ffi::c_int;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use crate::platform::errno;
use crate::platform::fork::{ForkGeneration, ForkSafeFd};

/// An eventfd that wakes one thread.
pub(super) struct ThreadWaker {
    file: ForkSafeFd,
    process: ForkGeneration,
}

thread_local! {
    static OWN: RefCell<Option<Arc<ThreadWaker>>> = const { RefCell::new(None) };
}

impl ThreadWaker {
    /// The calling thread's waker.
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
        // A full counter is as good, because the sleeper wakes anyway.
        let _ = self.file.get().and_then(|file| rustix::io::write(file, &1_u64.to_ne_bytes()));
    }

    /// Clears the wake-up, so that the next sleep does not end at once.
    fn reset(&self) {
        let _ = self.file.get().and_then(|file| rustix::io::read(file, &mut [0; 8]));
    }

    fn number(&self) -> RawFd {
        use std::os::fd::AsFd;
        self.file.as_fd().as_raw_fd()
    }
}

/// The wakers of the sleeping threads.
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

/// The time when a call stops waiting.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline(Option<Instant>);

impl Deadline {
    pub(super) const NEVER: Self = Self(None);

    /// `None`, or a time beyond what `Instant` can represent, means no deadline.
    pub(super) fn after(time: Option<Duration>) -> Self {
        Self(time.and_then(|time| Instant::now().checked_add(time)))
    }

    pub(super) fn has_passed(self) -> bool {
        self.0.is_some_and(|end| end <= Instant::now())
    }

    /// The remaining time in milliseconds for `poll`, rounded up.
    fn left(self) -> c_int {
        let Some(end) = self.0 else { return -1 };
        let left = end.saturating_duration_since(Instant::now());
        c_int::try_from(left.as_nanos().div_ceil(1_000_000)).unwrap_or(c_int::MAX)
    }
}

/// Sleeps until a descriptor is ready, the waker fires, or the deadline passes. Sets `revents` of
/// the descriptors.
///
/// # Errors
///
/// As poll(2): `EINTR` after a signal.
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

/// poll(2) on `fds`; returns the number of ready entries.
pub(super) fn poll(fds: &mut [libc::pollfd], milliseconds: c_int) -> Result<usize, c_int> {
    // SAFETY: the array has `fds.len()` entries.
    let ready = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, milliseconds) };
    usize::try_from(ready).map_err(|_| errno::of(&std::io::Error::last_os_error()))
}

/// Makes a descriptor of another owner non-blocking.
pub(super) fn make_nonblocking(fd: RawFd) -> Result<(), c_int> {
    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
    if fd < 0 {
        return Err(libc::EBADF);
    }
    // SAFETY: `fd` is not -1, and is borrowed only for these calls, which fail if it is not open.
    let file = unsafe { BorrowedFd::borrow_raw(fd) };
    let result = fcntl_getfl(file).and_then(|flags| fcntl_setfl(file, flags | OFlags::NONBLOCK));
    result.map_err(Errno::raw_os_error)
}
