//! Pointers to objects, error numbers and deadlines.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How long a wait may take.
pub(crate) const WAIT_LIMIT: Duration = Duration::from_secs(8);

/// Asks until there is an answer or the time is over.
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

/// The calling thread's error number.
pub(super) fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or_default()
}

/// An object of the library, until it is destroyed.
pub(super) struct RawHandle<T> {
    pointer: *mut T,
    live: AtomicBool,
    what: &'static str,
}

// SAFETY: the verbs may be called from any thread (`man 7 ibverbs`).
unsafe impl<T> Send for RawHandle<T> {}
// SAFETY: likewise; what is not thread-safe is locked by the owner.
unsafe impl<T> Sync for RawHandle<T> {}

impl<T> fmt::Debug for RawHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {:p}", self.what, self.pointer)
    }
}

impl<T> RawHandle<T> {
    /// Takes what a function returned; a null pointer is the error number.
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

    /// Destroys the object; where that fails it lives on.
    pub(super) fn end(&self, destroy: impl FnOnce(*mut T) -> i32) -> i32 {
        let result = destroy(self.get());
        self.live.store(result != 0, Ordering::SeqCst);
        result
    }

    /// Leaves the object to whoever destroys it otherwise.
    pub(super) fn forget(&self) {
        self.live.store(false, Ordering::SeqCst);
    }

    /// Destroys the object if that was not done, as the last of its owner's deeds.
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
