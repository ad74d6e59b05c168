//! Forks: connections and listeners belong to the process that made them.
//!
//! A child has copies of their descriptors. Its epoll sets, timers and queue pairs are the same
//! kernel objects as the parent's, so that the child must not touch them.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};

/// The number of forks between the first process and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);

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
        io::Error::other(format!(
            "this {what} belongs to the process that made it, which has forked: make another one in the child"
        ))
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
        FORKS.fetch_add(1, Ordering::Relaxed);
    }
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        // SAFETY: the function lives as long as this library, and only changes an atomic number,
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
