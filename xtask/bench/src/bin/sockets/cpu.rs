//! The CPU time of a process, and when its connections are closed.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use rustix::time::{ClockId, clock_gettime};

/// Closing takes at most the time that trespass lingers.
const CLOSED_WITHIN: Duration = Duration::from_secs(30);

/// The user and system time of all threads of this process, in nanoseconds, also of those that have
/// ended.
pub(crate) fn time() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// Waits until this process closes no more descriptors, because all of its dropped connections are
/// closed.
pub(crate) fn wait_for_closing() -> Result<()> {
    const UNCHANGED: Duration = Duration::from_millis(200);
    let (mut now, start) = (descriptors()?, Instant::now());
    loop {
        sleep(UNCHANGED);
        let before = std::mem::replace(&mut now, descriptors()?);
        if now == before {
            return Ok(());
        }
        ensure!(start.elapsed() < CLOSED_WITHIN, "descriptors are still closed after {CLOSED_WITHIN:?}");
    }
}

fn descriptors() -> Result<usize> {
    Ok(fs::read_dir("/proc/self/fd")?.count())
}
