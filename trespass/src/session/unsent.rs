//! The number of dropped connections with unsent bytes, for which the end of the process waits.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::forks::Process;

/// The dropped connections of this process that have unsent bytes.
#[derive(Default)]
struct Unsent {
    /// The process that has counted. A forked child begins with none.
    process: Option<Process>,
    count: usize,
}

static UNSENT: Mutex<Unsent> = Mutex::new(Unsent { process: None, count: 0 });
static SENT: Condvar = Condvar::new();

fn unsent() -> MutexGuard<'static, Unsent> {
    UNSENT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts a connection until all of its bytes are sent.
pub(super) struct UnsentBytes(Process);

impl UnsentBytes {
    pub(super) fn new() -> Self {
        at_exit::register();
        let process = Process::current();
        let mut unsent = unsent();
        if unsent.process != Some(process) {
            *unsent = Unsent { process: Some(process), count: 0 };
        }
        unsent.count += 1;
        Self(process)
    }
}

impl Drop for UnsentBytes {
    fn drop(&mut self) {
        if self.0.is_current() {
            unsent().count -= 1;
            SENT.notify_all();
        }
    }
}

#[cfg(unix)]
mod at_exit {
    use std::io::{self, Write};
    use std::sync::{Once, PoisonError, TryLockError};
    use std::thread;
    use std::time::{Duration, Instant};

    use super::{Process, SENT, UNSENT};

    /// How long the end of the process waits for all connections together.
    const LIMIT: Duration = Duration::from_secs(10);

    /// Has the end of the process wait for the connections. The first of them calls this, so that
    /// the wait comes before the end of a device that was opened earlier.
    pub(super) fn register() {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            // SAFETY: the C library calls the function at the end of the process, or when it
            // unloads this library. The function uses only statics of this library, and does not
            // panic.
            if unsafe { libc::atexit(wait) } != 0 {
                tracing::error!(
                    "the end of the process will not wait for unsent bytes: atexit has no memory"
                );
            }
        });
    }

    /// Waits until no dropped connection has unsent bytes, within the limit.
    extern "C" fn wait() {
        // Where a fork has copied a locked lock, nobody unlocks it.
        let mut tries = 0..100;
        let mut unsent = loop {
            match UNSENT.try_lock() {
                Ok(unsent) => break unsent,
                Err(TryLockError::Poisoned(poisoned)) => break poisoned.into_inner(),
                Err(TryLockError::WouldBlock) if tries.next().is_none() => return,
                Err(TryLockError::WouldBlock) => thread::sleep(Duration::from_millis(1)),
            }
        };
        let until = Instant::now() + LIMIT;
        while unsent.count > 0 && unsent.process.is_some_and(Process::is_current) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let count = unsent.count;
                // Nobody can be told that this fails.
                let _ =
                    writeln!(io::stderr(), "trespass: {count} connections had unsent bytes after {LIMIT:?}");
                return;
            }
            unsent = SENT.wait_timeout(unsent, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

#[cfg(not(unix))]
mod at_exit {
    /// The end of the process waits for nobody here.
    pub(super) fn register() {}
}
