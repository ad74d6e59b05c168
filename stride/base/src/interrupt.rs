//! Handling of SIGINT and SIGTERM.
//!
//! Every wait notices a signal. A loop that never waits does not, so after a moment the thread that
//! receives signals ends the run itself, and prints the results so far.

use std::io;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::error::Error;
use crate::report::Output;

/// The time that a run has to end by itself after a signal.
const GRACE: Duration = Duration::from_secs(1);

/// The signal that arrived; 0 before any has.
static SIGNAL: AtomicI32 = AtomicI32::new(0);

/// The output for the results so far, once [`watch`] was called.
static OUTPUT: Mutex<Option<Output>> = Mutex::new(None);

/// A signal asked this process to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("interrupted{}", if *.signal == SIGTERM { " by SIGTERM" } else { "" })]
pub struct Interrupted {
    /// The signal's number.
    pub signal: i32,
}

impl Interrupted {
    /// The exit status that shells use for a process that a signal ended.
    pub fn exit_code(self) -> u8 {
        u8::try_from(128 + self.signal).unwrap_or(u8::MAX)
    }
}

/// Fails if a signal has arrived.
///
/// # Errors
///
/// The signal.
pub fn check() -> Result<(), Interrupted> {
    match SIGNAL.load(Ordering::Relaxed) {
        0 => Ok(()),
        signal => Err(Interrupted { signal }),
    }
}

fn current() -> MutexGuard<'static, Option<Output>> {
    OUTPUT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes SIGINT and SIGTERM end the run and print the results so far to `output`, the one that was
/// given last. A second signal ends the process at once.
///
/// # Errors
///
/// The system does not let this process handle signals.
pub fn watch(output: &Output) -> io::Result<()> {
    let before = current().replace(output.clone());
    if before.is_some() {
        // The thread of an earlier run serves this one, too.
        return Ok(());
    }
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        let Some(signal) = signals.forever().next() else { return };
        SIGNAL.store(signal, Ordering::Relaxed);
        let start = Instant::now();
        while start.elapsed() < GRACE && signals.pending().next().is_none() {
            thread::sleep(Duration::from_millis(20));
        }
        let interrupted = Interrupted { signal };
        let Some(mut output) = current().clone() else { return };
        // The run may end at this moment; the later of the two finds nothing left to write.
        let _ = output.finish(Err(Error::Interrupted(interrupted)));
        eprintln!("stride-perf: {interrupted}");
        std::process::exit(interrupted.exit_code().into());
    })?;
    Ok(())
}
