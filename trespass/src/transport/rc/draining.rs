//! Queue pairs that nobody uses any more: draining, and destroying.
//!
//! A device returns their requests within microseconds, or never. It may wait with destroying them,
//! because a process of this host has stopped within a transfer, or because its firmware is busy.
//! Therefore the thread that drops a connection polls once, and leaves the rest to the [`Drainer`].

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The pause between two polls where nobody else drains. Outstanding requests complete within
/// microseconds, or never.
const POLL_INTERVAL: Duration = Duration::from_micros(50);

/// Queue pairs, and what they use. A drop before the last [`poll`](Self::poll) would free memory that
/// the device may access.
pub(crate) trait Draining: Send {
    /// Takes what has completed, and gives up what is late. Returns whether nothing is left, so that
    /// a drop destroys the queue pairs.
    fn poll(&mut self, now: Instant) -> bool;
}

/// Polls until nothing is left, and destroys, in another thread and in the order of the calls. Returns
/// what it cannot take.
pub(crate) type Drainer = fn(Box<dyn Draining>) -> Result<(), Box<dyn Draining>>;

/// Not a `OnceLock`, in which a forked child could wait for a thread that it does not have.
static DRAINER: AtomicPtr<Drainer> = AtomicPtr::new(ptr::null_mut());

/// Names the function that drains and destroys.
pub(crate) fn set_drainer(drainer: &'static Drainer) {
    DRAINER.store(ptr::from_ref(drainer).cast_mut(), Ordering::Release);
}

fn drainer() -> Option<&'static Drainer> {
    // SAFETY: the pointer is null, or comes from a static reference in `set_drainer`. Nobody writes
    // through it.
    unsafe { DRAINER.load(Ordering::Acquire).as_ref() }
}

/// Has queue pairs destroyed. The caller waits only if there is no other thread.
pub(super) fn drain(mut draining: impl Draining + 'static) {
    // Usually this takes their memory back.
    let mut is_free = draining.poll(Instant::now());
    let draining = Box::new(draining);
    let left = match drainer() {
        Some(drainer) => drainer(draining),
        None => Err(draining as Box<dyn Draining>),
    };
    if let Err(mut left) = left {
        while !is_free {
            thread::sleep(POLL_INTERVAL);
            is_free = left.poll(Instant::now());
        }
    }
}
