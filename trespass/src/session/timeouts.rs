//! The timeouts of a connection's calls, and whether they wait at all.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::session::connection::Direction;
use crate::session::readiness::Until;

/// The timeouts of a connection's calls.
#[derive(Debug, Default)]
pub(crate) struct Timeouts {
    nonblocking: AtomicBool,
    read: Timeout,
    write: Timeout,
}

impl Timeouts {
    pub(crate) fn set_nonblocking(&self, nonblocking: bool) {
        self.nonblocking.store(nonblocking, Relaxed);
    }

    pub(crate) fn is_nonblocking(&self) -> bool {
        self.nonblocking.load(Relaxed)
    }

    pub(crate) fn set(&self, direction: Direction, timeout: Option<Duration>) -> io::Result<()> {
        self.of(direction).set(checked_timeout(timeout)?);
        Ok(())
    }

    pub(crate) fn get(&self, direction: Direction) -> Option<Duration> {
        self.of(direction).get()
    }

    /// The deadline of a call that begins now.
    pub(super) fn begin(&self, direction: Direction) -> Until {
        if self.is_nonblocking() {
            Until::Now
        } else {
            Until::Event.or(self.get(direction).and_then(|timeout| Instant::now().checked_add(timeout)))
        }
    }

    fn of(&self, direction: Direction) -> &Timeout {
        match direction {
            Direction::Read => &self.read,
            Direction::Write => &self.write,
        }
    }
}

/// A timeout in nanoseconds. 0 is none, and the largest number stands for all longer ones.
#[derive(Debug, Default)]
struct Timeout(AtomicU64);

impl Timeout {
    fn set(&self, timeout: Option<Duration>) {
        let nanos = timeout.map_or(0, |timeout| u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX));
        self.0.store(nanos, Relaxed);
    }

    fn get(&self) -> Option<Duration> {
        match self.0.load(Relaxed) {
            0 => None,
            u64::MAX => Some(Duration::MAX),
            nanos => Some(Duration::from_nanos(nanos)),
        }
    }
}

/// Refuses a timeout of zero, as [`std::net`] does.
pub(crate) fn checked_timeout(timeout: Option<Duration>) -> io::Result<Option<Duration>> {
    if timeout.is_some_and(|timeout| timeout.is_zero()) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "a timeout of zero is none: set_nonblocking(true) makes calls that do not wait, and None waits for ever",
        ));
    }
    Ok(timeout)
}
