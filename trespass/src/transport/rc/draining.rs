//! Queue pairs that nobody uses any more, until the device has returned their requests.
//!
//! A device returns them within microseconds, or never. The thread that drops a connection does not
//! wait for that: it polls once, and leaves the rest to the [`Drainer`].

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The pause between two polls where nobody else drains. Outstanding requests complete within
/// microseconds, or never.
const POLL_INTERVAL: Duration = Duration::from_micros(50);

/// Queue pairs with the completion queue that they use. A drop before the last [`poll`](Self::poll)
/// would free memory that the device may access.
pub(crate) trait Draining: Send {
    /// Takes what has completed, and gives up what is late. Returns whether nothing is left, so that
    /// a drop destroys the queue pairs.
    fn poll(&mut self, now: Instant) -> bool;
}

/// Polls until nothing is left, in another thread. Returns what it cannot take.
pub(crate) type Drainer = fn(Box<dyn Draining>) -> Result<(), Box<dyn Draining>>;

/// Not a `OnceLock`, in which a forked child could wait for a thread that it does not have.
static DRAINER: AtomicPtr<Drainer> = AtomicPtr::new(ptr::null_mut());

/// Names the function that drains what is not free when it is dropped.
pub(crate) fn set_drainer(drainer: &'static Drainer) {
    DRAINER.store(ptr::from_ref(drainer).cast_mut(), Ordering::Release);
}

fn drainer() -> Option<&'static Drainer> {
    // SAFETY: the pointer is null, or comes from a static reference in `set_drainer`. Nobody writes
    // through it.
    unsafe { DRAINER.load(Ordering::Acquire).as_ref() }
}

/// Destroys queue pairs, at once if they are free. The caller waits only if there is no other thread.
pub(super) fn drain(mut draining: impl Draining + 'static) {
    if draining.poll(Instant::now()) {
        return;
    }
    let draining = Box::new(draining);
    let left = match drainer() {
        Some(drainer) => drainer(draining),
        None => Err(draining as Box<dyn Draining>),
    };
    if let Err(mut left) = left {
        while !left.poll(Instant::now()) {
            thread::sleep(POLL_INTERVAL);
        }
    }
}
