//! Handles of library objects, error numbers and waits with a deadline.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The default time limit of a wait.
pub(crate) const WAIT_LIMIT: Duration = Duration::from_secs(8);

/// Calls `ask` every 50 microseconds until it returns a value or the limit is over.
pub(crate) fn poll_until<T>(limit: Duration, mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + limit;
    loop {
        if let Some(answer) = ask() {
            return Some(answer);
        }
        if Instant::now() >= end {
            return None;
        }
        thread::sleep(Duration::from_micros(50));
    }
}

/// The calling thread's `errno`.
pub(super) fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or_default()
}

/// A pointer to a library object, usable until the object is destroyed.
pub(super) struct RawHandle<T> {
    pointer: *mut T,
    live: AtomicBool,
    what: &'static str,
}

// SAFETY: the verbs may be called from any thread (`man 7 ibverbs`).
unsafe impl<T> Send for RawHandle<T> {}
// SAFETY: the verbs may be called from any thread. Owners lock the few operations that are not
// thread-safe: extended posting and polling.
unsafe impl<T> Sync for RawHandle<T> {}

impl<T> fmt::Debug for RawHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {:p}", self.what, self.pointer)
    }
}

impl<T> RawHandle<T> {
    /// Takes over a returned pointer; a null pointer becomes the error number.
    pub(super) fn new(what: &'static str, pointer: *mut T) -> Result<Self, i32> {
        if pointer.is_null() {
            return Err(errno());
        }
        Ok(Self { pointer, live: AtomicBool::new(true), what })
    }

    pub(super) fn get(&self) -> *mut T {
        assert!(self.live.load(Ordering::SeqCst), "{} is used after its end", self.what);
        self.pointer
    }

    /// Destroys the object. If that fails, the object stays usable.
    pub(super) fn end(&self, destroy: impl FnOnce(*mut T) -> i32) -> i32 {
        let result = destroy(self.get());
        self.live.store(result != 0, Ordering::SeqCst);
        result
    }

    /// Gives up ownership: something else destroys the object.
    pub(super) fn forget(&self) {
        self.live.store(false, Ordering::SeqCst);
    }

    /// Destroys the object unless that is done already; called by the owner's drop, last.
    pub(super) fn drop(&self, destroy: impl FnOnce(*mut T) -> i32) {
        if !self.live.load(Ordering::SeqCst) {
            return;
        }
        let result = self.end(destroy);
        if result != 0 {
            let text = format!("{} cannot be destroyed: error {result}", self.what);
            if thread::panicking() {
                eprintln!("{text}");
            } else {
                panic!("{text}");
            }
        }
    }
}
