//! Ctrl-C, and being asked to end.
//!
//! A signal is noticed wherever a side waits. A loop that never waits notices nothing, so after a moment the thread that
//! takes signals ends the run itself, with what is known by then.

use std::io;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::error::Error;
use crate::report::Output;

/// How long the run may take to end by itself.
const GRACE: Duration = Duration::from_secs(1);

/// The signal that came; 0 before any has.
static SIGNAL: AtomicI32 = AtomicI32::new(0);

/// Where what is known goes, once somebody watches.
static OUTPUT: Mutex<Option<Output>> = Mutex::new(None);

/// A signal has asked this process to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("interrupted{}", if *.signal == SIGTERM { " by SIGTERM" } else { "" })]
pub struct Interrupted {
    /// The signal's number.
    pub signal: i32,
}

impl Interrupted {
    /// What the process exits with, as shells have it.
    pub fn exit_code(self) -> u8 {
        u8::try_from(128 + self.signal).unwrap_or(u8::MAX)
    }
}

/// Whether no signal has come.
///
/// # Errors
///
/// One has.
pub fn check() -> Result<(), Interrupted> {
    match SIGNAL.load(Ordering::Relaxed) {
        0 => Ok(()),
        signal => Err(Interrupted { signal }),
    }
}

fn current() -> MutexGuard<'static, Option<Output>> {
    OUTPUT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From now on SIGINT and SIGTERM end the run, and what is known by then goes to `output`, the one that was given
/// last. The second one does so at once.
///
/// # Errors
///
/// The system does not let this process handle signals.
pub fn watch(output: &Output) -> io::Result<()> {
    let before = current().replace(output.clone());
    if before.is_some() {
        // The thread of the run before is this one's, too.
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
        // The run may be ending at this moment: whoever comes second finds nothing to write.
        let _ = output.finish(Err(Error::Interrupted(interrupted)));
        eprintln!("stride-perf: {interrupted}");
        std::process::exit(interrupted.exit_code().into());
    })?;
    Ok(())
}
