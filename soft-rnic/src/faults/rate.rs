//! The rate limit of a rule: one token bucket for each device, kept as a virtual finish time.
//!
//! A request reserves the time that its bytes take at the rate, and may execute when that time has
//! passed. All functions take the current time, so that tests choose it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::config::MAX_DEVICES;

/// How much unused time a device keeps. Requests that execute late, because the program polled or
/// the timer ran late, catch up by as much.
pub(super) const BURST: Duration = Duration::from_millis(2);
/// The longest time that one request takes.
const LONGEST: Duration = Duration::from_secs(365 * 86_400);

/// The limit of one rule.
#[derive(Debug)]
pub(crate) struct RateLimit {
    bits_per_second: u64,
    /// For each device: when the requests that it has accepted are finished.
    finished: Mutex<[Option<Instant>; MAX_DEVICES as usize]>,
}

impl RateLimit {
    pub(super) fn new(bits_per_second: u64) -> Arc<Self> {
        Arc::new(Self { bits_per_second, finished: Mutex::default() })
    }

    /// Accepts a request of this many bytes.
    pub(super) fn reserve(self: &Arc<Self>, device: u8, bytes: u64, now: Instant) -> Reservation {
        let lasting = self.lasting(bytes);
        let mut devices = self.finished.lock().unwrap_or_else(PoisonError::into_inner);
        let earliest = now.checked_sub(BURST).unwrap_or(now);
        let device = usize::from(device);
        let finish = devices[device].map_or(earliest, |finished| finished.max(earliest)) + lasting;
        devices[device] = Some(finish);
        Reservation { limit: Arc::clone(self), device, lasting, finish }
    }

    fn lasting(&self, bytes: u64) -> Duration {
        let nanoseconds = u128::from(bytes) * 8 * 1_000_000_000 / u128::from(self.bits_per_second.max(1));
        u64::try_from(nanoseconds).map_or(LONGEST, Duration::from_nanos).min(LONGEST)
    }
}

/// The time that one request has reserved. A dropped reservation returns it.
#[derive(Debug)]
pub(crate) struct Reservation {
    limit: Arc<RateLimit>,
    device: usize,
    lasting: Duration,
    finish: Instant,
}

impl Reservation {
    /// When the request may execute.
    pub(super) fn finish(&self) -> Instant {
        self.finish
    }

    /// Ends the reservation of a request that executes.
    pub(super) fn spend(mut self) {
        self.lasting = Duration::ZERO;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut devices = self.limit.finished.lock().unwrap_or_else(PoisonError::into_inner);
        let finished = &mut devices[self.device];
        *finished = finished.and_then(|finished| finished.checked_sub(self.lasting));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MBIT: u64 = 1_000_000;

    /// Executes messages of this size on several devices for one second of simulated time. `late`
    /// is how late each executes, at most. Returns the bytes of each device.
    fn executed<const N: usize>(
        limits: [(u8, &Arc<RateLimit>); N],
        size: u64,
        late: impl Fn(u64) -> Duration,
    ) -> [u64; N] {
        let start = Instant::now() + BURST;
        let end = start + Duration::from_secs(1);
        let (mut now, mut bytes, mut steps) = (start, [0; N], 0);
        let reserve = |at: usize, now| limits[at].1.reserve(limits[at].0, size, now);
        let mut pending: [_; N] = std::array::from_fn(|at| Some(reserve(at, now)));
        loop {
            let first = pending.iter().flatten().map(Reservation::finish).min().expect("one is pending");
            steps += 1;
            now = now.max(first) + late(steps);
            if now >= end {
                return bytes;
            }
            for at in 0..N {
                while let Some(due) = pending[at].take_if(|due| due.finish() <= now) {
                    due.spend();
                    bytes[at] += size;
                    pending[at] = Some(reserve(at, now));
                }
            }
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "minutes, over safe code alone")]
    fn messages_of_every_size_average_to_the_rate() {
        for size in [8, 1000, 65_536, 1 << 20] {
            let limit = RateLimit::new(100 * MBIT);
            let late = |step: u64| Duration::from_micros(step * 7 % 500);
            let [bytes] = executed([(0, &limit)], size, late);
            // 100 Mb/s are 12.5 MB; the burst is 25 kB.
            let (least, most) = (12_500_000 - 25_000 - size, 12_500_000 + 25_000);
            assert!((least..=most).contains(&bytes), "{bytes} bytes in messages of {size}");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "minutes, over safe code alone")]
    fn two_devices_reach_the_sum_of_their_rates() {
        let (one, other) = (RateLimit::new(100 * MBIT), RateLimit::new(300 * MBIT));
        let late = |_| Duration::from_micros(200);
        let bytes = executed([(0, &one), (1, &other)], 4096, late);
        assert!(bytes[0].abs_diff(12_500_000) < 40_000, "{bytes:?}");
        assert!(bytes[1].abs_diff(37_500_000) < 100_000, "{bytes:?}");
        // One rule without a device limits each device.
        let bytes = executed([(2, &one), (3, &one)], 4096, late);
        assert!(bytes.iter().all(|bytes| bytes.abs_diff(12_500_000) < 40_000), "{bytes:?}");
        // Two queue pairs of one device share its rate.
        let bytes = executed([(4, &one), (4, &one)], 4096, late);
        assert!((bytes[0] + bytes[1]).abs_diff(12_500_000) < 40_000, "{bytes:?}");
        assert!(bytes[0].abs_diff(bytes[1]) < 40_000, "{bytes:?}");
    }

    #[test]
    fn bytes_take_no_less_than_their_time_without_the_burst() {
        let (limit, start) = (RateLimit::new(8 * MBIT), Instant::now() + Duration::from_secs(1));
        let late = start + Duration::from_secs(5);
        for now in [start, late] {
            // 8 Mb/s are a byte in a microsecond. A long idle time is no credit.
            let all: Vec<_> = (0..10).map(|_| limit.reserve(0, 1000, now)).collect();
            assert_eq!(all[0].finish(), now + Duration::from_millis(1) - BURST);
            assert_eq!(all[9].finish(), now + Duration::from_millis(10) - BURST);
            all.into_iter().for_each(Reservation::spend);
        }
        limit.reserve(0, u64::MAX, late).spend();
        assert!(limit.reserve(0, 1, late).finish() > late + LONGEST);
    }

    #[test]
    fn a_request_that_does_not_execute_returns_its_time() {
        let (limit, now) = (RateLimit::new(8 * MBIT), Instant::now() + Duration::from_secs(1));
        let spent = limit.reserve(0, 1000, now);
        let dropped = limit.reserve(0, 1_000_000, now);
        let behind = limit.reserve(0, 1000, now);
        spent.spend();
        assert_eq!(behind.finish(), now + Duration::from_millis(1002) - BURST);
        drop(dropped);
        assert_eq!(limit.reserve(0, 1000, now).finish(), now + Duration::from_millis(3) - BURST);
    }
}
