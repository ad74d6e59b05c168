//! The device's clock: nanoseconds of the system's monotonic clock.

use rustix::time::{ClockId, Timespec, clock_gettime};

/// Ticks of the device's clock in a millisecond, which is the unit of `hca_core_clock`.
pub(crate) const TICKS_A_MILLISECOND: u64 = 1_000_000;

fn nanoseconds(clock: ClockId) -> u64 {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(clock);
    (tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(tv_nsec as u64)
}

/// The device's clock.
pub(crate) fn now() -> u64 {
    nanoseconds(ClockId::Monotonic)
}

/// The wall clock's time, in nanoseconds since 1970, at a moment of the device's clock.
pub(crate) fn wall(moment: u64) -> u64 {
    let since = now().wrapping_sub(moment);
    nanoseconds(ClockId::Realtime).wrapping_sub(since)
}
