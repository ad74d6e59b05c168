//! The device's clock: nanoseconds of the system's monotonic clock.

use rustix::time::{ClockId, Timespec, clock_gettime};

/// Ticks of the device's clock per millisecond, the unit of `hca_core_clock`.
pub(crate) const TICKS_A_MILLISECOND: u64 = 1_000_000;

fn nanoseconds(clock: ClockId) -> u64 {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(clock);
    (tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(tv_nsec as u64)
}

/// The current time in nanoseconds, from an arbitrary start.
pub(crate) fn now() -> u64 {
    nanoseconds(ClockId::Monotonic)
}

/// Converts a moment of the device's clock to wall-clock time, in nanoseconds since 1970.
pub(crate) fn wall(moment: u64) -> u64 {
    let since = now().wrapping_sub(moment);
    nanoseconds(ClockId::Realtime).wrapping_sub(since)
}
