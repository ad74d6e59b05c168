//! The rate limit of a rule: one token bucket for each device, kept as a virtual finish time.
//!
//! A request reserves the time that its bytes take at the rate, and may execute when that time has
//! passed. A device whose requests execute late, because the thread did not run in time, lags by as
//! much, so that it makes up for the delay. All functions take the current time, so that tests
//! choose it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::config::MAX_DEVICES;

/// How much time without requests a device keeps.
pub(super) const BURST: Duration = Duration::from_millis(2);
/// How long a device that executes nothing remembers its lag.
const MEMORY: Duration = Duration::from_millis(10);
/// The largest lag. A process that was stopped for longer does not make up for all of it.
const LAG: Duration = Duration::from_secs(1);
/// The longest time that one request takes.
const LONGEST: Duration = Duration::from_secs(365 * 86_400);

/// The limit of one rule.
#[derive(Debug)]
pub(crate) struct RateLimit {
    bits_per_second: u64,
    devices: Mutex<[VirtualTime; MAX_DEVICES as usize]>,
}

/// The time of one device.
#[derive(Debug, Default)]
struct VirtualTime {
    /// When the requests that it has accepted are finished.
    finished: Option<Instant>,
    /// When it last executed a request, and by how much that was late.
    executed: Option<(Instant, Duration)>,
}

impl VirtualTime {
    /// The current time of the device.
    fn at(&self, now: Instant) -> Instant {
        let recent = |(when, _): &(Instant, Duration)| now.saturating_duration_since(*when) <= MEMORY;
        let lag = self.executed.filter(recent).map_or(Duration::ZERO, |(_, late)| late);
        now.checked_sub(lag).unwrap_or(now)
    }
}

impl RateLimit {
    pub(super) fn new(bits_per_second: u64) -> Arc<Self> {
        Arc::new(Self { bits_per_second, devices: Mutex::default() })
    }

    /// Accepts a request of this many bytes.
    pub(super) fn reserve(self: &Arc<Self>, device: u8, bytes: u64, now: Instant) -> Reservation {
        let lasting = self.lasting(bytes);
        let device = usize::from(device);
        let mut devices = self.devices();
        let time = &mut devices[device];
        let accepted = time.at(now);
        let earliest = accepted.checked_sub(BURST).unwrap_or(accepted);
        let finish = time.finished.map_or(earliest, |finished| finished.max(earliest)) + lasting;
        time.finished = Some(finish);
        Reservation { limit: Arc::clone(self), device, lasting, accepted, finish }
    }

    fn lasting(&self, bytes: u64) -> Duration {
        let nanoseconds = u128::from(bytes) * 8 * 1_000_000_000 / u128::from(self.bits_per_second.max(1));
        u64::try_from(nanoseconds).map_or(LONGEST, Duration::from_nanos).min(LONGEST)
    }

    fn devices(&self) -> MutexGuard<'_, [VirtualTime; MAX_DEVICES as usize]> {
        self.devices.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The time that one request has reserved. A dropped reservation returns it.
#[derive(Debug)]
pub(crate) struct Reservation {
    limit: Arc<RateLimit>,
    device: usize,
    lasting: Duration,
    /// The device's time when it accepted the request.
    accepted: Instant,
    finish: Instant,
}

impl Reservation {
    /// When the request may execute.
    pub(super) fn finish(&self) -> Instant {
        self.finish
    }

    /// Ends the reservation of a request that executes.
    pub(super) fn spend(mut self, now: Instant) {
        self.lasting = Duration::ZERO;
        let late = now.saturating_duration_since(self.finish.max(self.accepted)).min(LAG);
        self.limit.devices()[self.device].executed = Some((now, late));
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let time = &mut self.limit.devices()[self.device];
        time.finished = time.finished.and_then(|finished| finished.checked_sub(self.lasting));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MBIT: u64 = 1_000_000;

    /// Executes messages of this size on several devices for one second of simulated time. `late`
    /// is how late the thread is at each step. Returns the bytes of each device.
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
                    due.spend(now);
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
    #[cfg_attr(miri, ignore = "minutes, over safe code alone")]
    fn a_thread_that_runs_late_makes_up_for_it() {
        for size in [8, 65_536] {
            let limit = RateLimit::new(100 * MBIT);
            let late = |step: u64| Duration::from_millis(if step.is_multiple_of(20) { 30 } else { 1 });
            let [bytes] = executed([(0, &limit)], size, late);
            // The last delay may not be over yet: 30 ms are 375 kB.
            assert!((12_100_000..=12_525_000).contains(&bytes), "{bytes} bytes in messages of {size}");
        }
    }

    #[test]
    fn time_with_few_requests_is_no_credit() {
        let (limit, start) = (RateLimit::new(8 * MBIT), Instant::now() + Duration::from_secs(1));
        let mut now = start;
        for _ in 0..1000 {
            now += Duration::from_millis(1);
            limit.reserve(0, 8, now).spend(now);
        }
        // Behind the last of them, which takes eight microseconds.
        let finish = now + Duration::from_micros(10_008) - BURST;
        assert_eq!(limit.reserve(0, 10_000, now).finish(), finish);
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
            all.into_iter().for_each(|one| one.spend(now + Duration::from_millis(10)));
        }
        limit.reserve(0, u64::MAX, late).spend(late);
        assert!(limit.reserve(0, 1, late).finish() > late + LONGEST);
    }

    #[test]
    fn a_request_that_does_not_execute_returns_its_time() {
        let (limit, now) = (RateLimit::new(8 * MBIT), Instant::now() + Duration::from_secs(1));
        let spent = limit.reserve(0, 1000, now);
        let dropped = limit.reserve(0, 1_000_000, now);
        let behind = limit.reserve(0, 1000, now);
        spent.spend(now);
        assert_eq!(behind.finish(), now + Duration::from_millis(1002) - BURST);
        drop(dropped);
        assert_eq!(limit.reserve(0, 1000, now).finish(), now + Duration::from_millis(3) - BURST);
    }
}
