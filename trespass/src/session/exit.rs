//! The end of the process: what its connections have accepted is still sent.
//!
//! The service thread sends what dropped connections have left. When the process ends by a return
//! from `main` or by [`std::process::exit`], a function registered with `atexit` ends all calls, has
//! the service thread close the connections that the program has not dropped, and waits until all
//! bytes are sent, for a limited time.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use crate::session::service;

/// How long the end of the process waits for calls that use a connection to leave it.
const LIMIT_OF_CALLS: Duration = Duration::from_secs(1);

/// How often it looks.
pub(super) const LOOK: Duration = Duration::from_millis(1);

/// What the end of the process closes: a connection, or a worker.
pub(crate) trait CloseAtExit: Send + Sync {
    /// Closes it, if no call uses it. Then no call ever will, because calls have ended
    /// ([`end_calls`](crate::process::end_calls)). Otherwise wakes the call. Returns whether nothing is
    /// left to close.
    fn close_at_exit(&self) -> bool;
}

/// The connections of a process that its end waits for.
#[derive(Default)]
pub(crate) struct OpenAtExit {
    counts: Mutex<Counts>,
    changed: Condvar,
    /// How long the end waits for all together, in milliseconds.
    timeout: AtomicU64,
    /// The end has begun, and the service thread closes the connections.
    closes: AtomicBool,
}

#[derive(Default)]
struct Counts {
    /// Connections that were closed, with unsent bytes or an unsent reset.
    unsent: usize,
    /// Those that the program has not dropped, and its workers, with free places.
    live: Vec<Option<Weak<dyn CloseAtExit>>>,
    free: Vec<usize>,
    /// When the closing began.
    closes_since: Option<Instant>,
}

impl OpenAtExit {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes the connections that no call uses. The service thread calls this. Returns whether it
    /// must be called again soon.
    pub(super) fn close_some(&self) -> bool {
        if !self.closes.load(Ordering::Acquire) {
            return false;
        }
        let live: Vec<_> = {
            let mut counts = self.counts();
            counts.closes_since.get_or_insert_with(Instant::now);
            counts.live.iter().enumerate().filter_map(|(at, cell)| Some((at, cell.clone()?))).collect()
        };
        let closed: Vec<usize> = live
            .into_iter()
            .filter(|(_, cell)| cell.upgrade().is_none_or(|cell| cell.close_at_exit()))
            .map(|(at, _)| at)
            .collect();
        let mut counts = self.counts();
        for at in closed {
            counts.live[at] = None;
        }
        let all = counts.live.iter().all(Option::is_none);
        let late = counts.closes_since.is_some_and(|since| since.elapsed() >= LIMIT_OF_CALLS);
        if all || late {
            self.closes.store(false, Ordering::Release);
            self.changed.notify_all();
        }
        !(all || late)
    }
}

/// An open connection in the list.
pub(crate) struct LiveEntry {
    list: &'static OpenAtExit,
    at: usize,
}

/// Has the end of the process close a connection or a worker, if its program has not.
pub(crate) fn add<T: CloseAtExit + 'static>(cell: &Arc<T>, timeout: Duration) -> Option<LiveEntry> {
    // Without the service nobody could send its bytes.
    let list = service::open_at_exit().ok()?;
    list.timeout.fetch_max(timeout.as_millis() as u64, Ordering::Relaxed);
    at_exit::register();
    let mut counts = list.counts();
    let at = counts.free.pop().unwrap_or_else(|| {
        counts.live.push(None);
        counts.live.len() - 1
    });
    let cell: Weak<T> = Arc::downgrade(cell);
    counts.live[at] = Some(cell);
    Some(LiveEntry { list, at })
}

impl Drop for LiveEntry {
    fn drop(&mut self) {
        let mut counts = self.list.counts();
        counts.live[self.at] = None;
        counts.free.push(self.at);
    }
}

/// Counts a closed connection until all of its bytes are sent.
pub(crate) struct UnsentBytes(&'static OpenAtExit);

impl UnsentBytes {
    pub(crate) fn new() -> io::Result<Self> {
        let list = service::open_at_exit()?;
        at_exit::register();
        list.counts().unsent += 1;
        Ok(Self(list))
    }
}

impl Drop for UnsentBytes {
    fn drop(&mut self) {
        self.0.counts().unsent -= 1;
        self.0.changed.notify_all();
    }
}

#[cfg(unix)]
mod at_exit {
    use std::panic::catch_unwind;
    use std::sync::atomic::Ordering;
    use std::sync::{MutexGuard, Once, PoisonError, TryLockError};
    use std::thread;
    use std::time::{Duration, Instant};

    use super::{Counts, OpenAtExit};
    use crate::process;
    use crate::session::service;

    /// Registers the function. The first connection calls this, so that the wait comes before the end
    /// of the device that carries it.
    pub(super) fn register() {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            // SAFETY: the C library calls the function at the end of the process, or when it
            // unloads this library. The function uses only statics of this library, and lets no
            // panic out.
            if unsafe { libc::atexit(at_exit) } != 0 {
                tracing::error!(
                    "the end of the process will not wait for unsent bytes: atexit has no memory"
                );
            }
        });
    }

    extern "C" fn at_exit() {
        // Nobody can be told of a panic.
        let _ = catch_unwind(finish);
        process::has_ended();
    }

    /// Closes all connections, and waits until their bytes are sent, within the limit.
    fn finish() {
        // A forked child has no service until it makes a connection.
        let Some(list) = service::waited_for_at_exit() else { return };
        let timeout = Duration::from_millis(list.timeout.load(Ordering::Relaxed));
        let until = Instant::now() + timeout;
        let Some(counts) = lock_until(list, until) else { return };
        let live = counts.live.iter().flatten().count();
        drop(counts);
        if live > 0 {
            if process::end_calls() {
                list.closes.store(true, Ordering::Release);
                service::end_sleeps();
                service::wake();
            } else {
                say(format_args!(
                    "{live} open connections or workers may lose bytes: the system has no membarrier"
                ));
            }
        }
        let Some(mut counts) = lock_until(list, until) else { return };
        while counts.unsent > 0 || list.closes.load(Ordering::Acquire) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let (unsent, open) = (counts.unsent, counts.live.iter().flatten().count());
                return say(format_args!(
                    "{unsent} connections had unsent bytes or resets after {timeout:?}, and {open} were not closed"
                ));
            }
            counts = list.changed.wait_timeout(counts, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Locks with a bound, because the thread that has the lock may never run again.
    fn lock_until(list: &OpenAtExit, until: Instant) -> Option<MutexGuard<'_, Counts>> {
        loop {
            match list.counts.try_lock() {
                Ok(counts) => return Some(counts),
                Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) if Instant::now() >= until => return None,
                Err(TryLockError::WouldBlock) => thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    /// Writes to standard error without its lock, which a thread may have for ever.
    fn say(what: std::fmt::Arguments<'_>) {
        let text = format!("trespass: {what}\n");
        // SAFETY: the text lives for the call and has this length. A failure can be told to nobody.
        let _ = unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
    }
}

#[cfg(not(unix))]
mod at_exit {
    /// The end of the process waits for nobody here.
    pub(super) fn register() {}
}
