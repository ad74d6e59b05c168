//! Forks: a child has no part in its parent's device.
//!
//! A child inherits descriptors, and as long as it has them nobody notices that its parent died. So the descriptors
//! that stand for the parent's life are closed in the child, before anything of the program runs there.

use std::cell::RefCell;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

/// Which process this is, in a line of forks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Generation(u32);

static FORKS: AtomicU32 = AtomicU32::new(0);
static OPEN: Mutex<Vec<RawFd>> = Mutex::new(Vec::new());

thread_local! {
    /// Held from just before a fork to just after it, so that the child finds the list whole.
    static HELD: RefCell<Option<MutexGuard<'static, Vec<RawFd>>>> = const { RefCell::new(None) };
}

impl Generation {
    /// Of this process.
    pub(crate) fn current() -> Self {
        watch_forks();
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// Whether this process is the one that asked for it, not a child of that.
    #[inline]
    pub(crate) fn is_current(self) -> bool {
        self.0 == FORKS.load(Ordering::Relaxed)
    }
}

fn open_descriptors() -> MutexGuard<'static, Vec<RawFd>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn watch_forks() {
    static ONCE: Once = Once::new();
    if cfg!(any(miri, loom)) {
        return;
    }
    ONCE.call_once(|| {
        // SAFETY: the three functions are made for this: they take a lock that is held for short times only, and
        // the child's makes no allocation.
        let error = unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
        if error != 0 {
            log::error!(
                "pthread_atfork failed with error {error}: a forked child will keep this device's sockets"
            );
        }
    });
}

extern "C" fn before() {
    let _ = HELD.try_with(|held| *held.borrow_mut() = Some(open_descriptors()));
}

extern "C" fn in_parent() {
    let _ = HELD.try_with(|held| held.borrow_mut().take());
}

extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    let _ = HELD.try_with(|held| {
        if let Some(mut open) = held.borrow_mut().take() {
            for fd in open.drain(..) {
                // SAFETY: the parent had it open at the moment of the fork, so this process has it too, and whoever
                // owned it there does not close it here: see the drop of `Descriptor`.
                unsafe { libc::close(fd) };
            }
        }
    });
}

/// An open file that a forked child does not keep.
#[derive(Debug)]
pub(crate) struct Descriptor {
    file: ManuallyDrop<OwnedFd>,
    process: Generation,
}

impl Descriptor {
    /// Opens something. No fork comes between that and the note of it, so `open` must not wait for anything.
    ///
    /// # Errors
    ///
    /// What `open` said.
    pub(crate) fn open(open: impl FnOnce() -> rustix::io::Result<OwnedFd>) -> io::Result<Self> {
        let process = Generation::current();
        let mut list = open_descriptors();
        let file = open()?;
        list.push(file.as_raw_fd());
        Ok(Self { file: ManuallyDrop::new(file), process })
    }
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        if !self.process.is_current() {
            return;
        }
        let mut list = open_descriptors();
        let fd = self.file.as_raw_fd();
        if let Some(place) = list.iter().position(|open| *open == fd) {
            list.swap_remove(place);
        }
        // SAFETY: dropped here and nowhere else; under the lock, so that the list has no closed descriptor in it.
        unsafe { ManuallyDrop::drop(&mut self.file) };
    }
}
