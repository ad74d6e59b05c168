//! The load of one rail: the bytes under way, and the rate at which they complete.

use std::time::{Duration, Instant};

/// The bytes that a request costs beside its data.
const OVERHEAD: u64 = 64;
/// The shortest time, and the fewest bytes, of a measurement. Shorter ones show the latency instead.
const SAMPLE_TIME: Duration = Duration::from_micros(500);
const SAMPLE_BYTES: u64 = 64 << 10;
/// A measurement counts the time with at least 8 KiB under way. With fewer bytes it would measure the
/// latency, too.
const FULL: u64 = 8 << 10;
/// How much slower than the fastest a rail may count.
const SLOWEST: f64 = 10.0;
/// A rail has little to do while at most 4 KiB are under way.
const LIGHT: u64 = 4 << 10;
/// The weight of a new measurement in the average.
const NEW: f64 = 0.25;

/// The bytes under way on a rail, and its measured rate.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RailLoad {
    under_way: u64,
    /// Bytes per second, averaged; `None` before the first measurement.
    rate: Option<f64>,
    /// Since when enough is under way, if it is, as far as that is not in `busy` yet.
    since: Option<Instant>,
    /// The time with enough under way, and the bytes completed in it, of this measurement.
    busy: Duration,
    completed: u64,
}

impl RailLoad {
    pub(super) fn rate(&self) -> Option<f64> {
        self.rate
    }

    /// Whether little is under way.
    #[inline]
    pub(super) fn is_light(&self) -> bool {
        self.under_way <= LIGHT
    }

    /// Whether the time counts, because enough is under way.
    #[inline]
    pub(super) fn is_measuring(&self) -> bool {
        self.since.is_some()
    }

    /// Whether the time counts from a request of this length on.
    #[inline]
    pub(super) fn starts_with(&self, len: usize) -> bool {
        self.since.is_none() && self.under_way + len as u64 + OVERHEAD >= FULL
    }

    /// Whether a request of this length alone is measured.
    pub(super) fn measures(len: usize) -> bool {
        len as u64 + OVERHEAD >= FULL
    }

    /// Counts a request that is posted. The time is needed if it [starts](Self::starts_with) to count.
    #[inline]
    pub(super) fn begin(&mut self, len: usize, now: Option<Instant>) {
        self.under_way += len as u64 + OVERHEAD;
        if self.under_way >= FULL {
            self.since = self.since.or(now);
        }
    }

    /// Counts a request that has completed while no time counts.
    #[inline]
    pub(super) fn end_unmeasured(&mut self, len: usize) {
        self.under_way = self.under_way.saturating_sub(len as u64 + OVERHEAD);
    }

    /// Counts a request that has completed.
    pub(super) fn end(&mut self, len: usize, now: Instant) {
        self.end_unmeasured(len);
        let Some(since) = self.since else { return };
        self.completed += len as u64 + OVERHEAD;
        self.busy += now.saturating_duration_since(since);
        self.since = (self.under_way >= FULL).then_some(now);
        if self.busy >= SAMPLE_TIME && self.completed >= SAMPLE_BYTES {
            let sample = self.completed as f64 / self.busy.as_secs_f64();
            self.rate = Some(self.rate.map_or(sample, |rate| rate + (sample - rate) * NEW));
            (self.busy, self.completed) = (Duration::ZERO, 0);
        }
    }

    /// The seconds until `len` more bytes would complete. `fastest` is the rate of the fastest rail:
    /// a rail that was not measured counts as fast, and none counts as slower than a part of it, so
    /// that a rail that was slow for a while is tried again.
    pub(super) fn time_for(&self, len: usize, fastest: f64) -> f64 {
        let rate = self.rate.unwrap_or(fastest).max(fastest / SLOWEST).max(1.0);
        (self.under_way + len as u64 + OVERHEAD) as f64 / rate
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A rail that always has work completes 64 KiB in each of these times.
    fn run(load: &mut RailLoad, now: &mut Instant, each: Duration, count: u32) {
        load.begin(65536, Some(*now));
        for _ in 0..count {
            load.begin(65536, Some(*now));
            *now += each;
            load.end(65536, *now);
        }
        *now += each;
        load.end(65536, *now);
    }

    #[test]
    fn the_rate_is_measured_while_a_rail_is_busy() {
        let (mut load, mut now) = (RailLoad::default(), Instant::now());
        run(&mut load, &mut now, Duration::from_millis(1), 50);
        let rate = load.rate().unwrap();
        assert!((60e6..70e6).contains(&rate), "{rate}");
        // An idle hour changes nothing.
        now += Duration::from_secs(3600);
        run(&mut load, &mut now, Duration::from_millis(1), 4);
        assert!((60e6..70e6).contains(&load.rate().unwrap()));
        // A slower rail is known after a few measurements.
        run(&mut load, &mut now, Duration::from_millis(10), 16);
        let rate = load.rate().unwrap();
        assert!((6e6..8e6).contains(&rate), "{rate}");
    }

    /// A rail that waits for a slower one is measured while it works.
    #[test]
    fn idle_time_does_not_count() {
        let (mut load, mut now) = (RailLoad::default(), Instant::now());
        for _ in 0..20 {
            load.begin(65536, Some(now));
            now += Duration::from_micros(100);
            load.end(65536, now);
            now += Duration::from_millis(10);
        }
        let rate = load.rate().unwrap();
        assert!((600e6..700e6).contains(&rate), "{rate}");
    }

    /// Few bytes under way show the latency of a rail.
    #[test]
    fn small_requests_measure_nothing() {
        let (mut load, mut now) = (RailLoad::default(), Instant::now());
        for _ in 0..10_000 {
            load.begin(8, Some(now));
            now += Duration::from_millis(1);
            load.end(8, now);
            now += Duration::from_millis(1);
        }
        assert_eq!(load.rate(), None);
        assert!(load.time_for(8, 1e6) < load.time_for(9, 1e6));
    }
}
