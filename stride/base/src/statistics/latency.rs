//! The distribution of latencies.

use hdrhistogram::Histogram;

use crate::result::Distribution;

/// Precision of the histogram: one part in a thousand.
const SIGNIFICANT_DIGITS: u8 = 3;

/// The longest sample in ticks (minutes at any rate of the counter); longer ones count as this
/// long.
const LONGEST_TICKS: u64 = 1 << 42;

/// Collects samples without allocating.
///
/// Percentiles come from a histogram, exact to 0.1 %; minimum, maximum and mean are exact.
#[derive(Clone, Debug)]
pub struct LatencyRecorder {
    histogram: Histogram<u64>,
    sum: u128,
    min: u64,
    max: u64,
}

/// A summary of samples, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LatencySummary {
    /// The minimum.
    pub min: f64,
    /// The arithmetic mean.
    pub avg: f64,
    /// The standard deviation.
    pub stdev: f64,
    /// The median.
    pub p50: f64,
    /// 90 of 100 samples are at most this.
    pub p90: f64,
    /// 99 of 100 samples are at most this.
    pub p99: f64,
    /// 999 of 1000 samples are at most this.
    pub p99_9: f64,
    /// 9999 of 10000 samples are at most this.
    pub p99_99: f64,
    /// The maximum.
    pub max: f64,
}

impl LatencyRecorder {
    /// A recorder without samples.
    pub fn new() -> Self {
        let histogram = Histogram::new_with_bounds(1, LONGEST_TICKS, SIGNIFICANT_DIGITS)
            .expect("the bounds and digits are constants that the histogram takes");
        Self { histogram, sum: 0, min: u64::MAX, max: 0 }
    }

    /// Discards all samples.
    pub fn clear(&mut self) {
        self.histogram.reset();
        (self.sum, self.min, self.max) = (0, u64::MAX, 0);
    }

    /// Adds a sample.
    #[inline]
    pub fn record(&mut self, ticks: u64) {
        self.histogram.saturating_record(ticks);
        self.sum += u128::from(ticks);
        self.min = self.min.min(ticks);
        self.max = self.max.max(ticks);
    }

    /// Adds another recorder's samples.
    pub fn add(&mut self, other: &Self) {
        self.histogram.add(&other.histogram).expect("all recorders have the same bounds");
        self.sum += other.sum;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }

    /// The number of samples.
    pub fn len(&self) -> u64 {
        self.histogram.len()
    }

    /// Whether the recorder has no samples.
    pub fn is_empty(&self) -> bool {
        self.histogram.is_empty()
    }

    /// Summarises the samples. A sample's length is `nanoseconds` per tick: half a tick's length if
    /// a sample is a round trip of which half counts. Without samples all figures are 0.
    pub fn summary(&self, nanoseconds: f64) -> LatencySummary {
        if self.is_empty() {
            return LatencySummary::default();
        }
        let us = |ticks: f64| ticks * nanoseconds / 1000.0;
        let percentile = |quantile| us(self.quantile(quantile) as f64);
        LatencySummary {
            min: us(self.min as f64),
            avg: us(self.mean()),
            stdev: us(self.deviation()),
            p50: percentile(0.50),
            p90: percentile(0.90),
            p99: percentile(0.99),
            p99_9: percentile(0.999),
            p99_99: percentile(0.9999),
            max: us(self.max as f64),
        }
    }

    /// All samples, at `nanoseconds` per tick, like [`summary`](Self::summary).
    pub fn distribution(&self, nanoseconds: f64) -> Distribution {
        let middle = |value| self.histogram.median_equivalent(value).clamp(self.min, self.max);
        let us = |value| middle(value) as f64 * nanoseconds / 1000.0;
        let buckets = self.histogram.iter_recorded();
        Distribution {
            buckets_us: buckets
                .map(|bucket| (us(bucket.value_iterated_to()), bucket.count_at_value()))
                .collect(),
        }
    }

    fn mean(&self) -> f64 {
        self.sum as f64 / self.len() as f64
    }

    /// Computed from the histogram's buckets around the exact mean.
    fn deviation(&self) -> f64 {
        let mean = self.mean();
        let squares = self.histogram.iter_recorded().map(|bucket| {
            let value =
                self.histogram.median_equivalent(bucket.value_iterated_to()).clamp(self.min, self.max);
            (value as f64 - mean).powi(2) * bucket.count_at_value() as f64
        });
        (squares.sum::<f64>() / self.len() as f64).sqrt()
    }

    /// The middle of the bucket that holds the quantile, limited to the exact extremes.
    fn quantile(&self, quantile: f64) -> u64 {
        let value = self.histogram.value_at_quantile(quantile);
        self.histogram.median_equivalent(value).clamp(self.min, self.max)
    }
}

impl Default for LatencyRecorder {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The nearest-rank percentile of sorted samples.
    fn oracle(sorted: &[u64], quantile: f64) -> f64 {
        let rank = (quantile * sorted.len() as f64).ceil() as usize;
        sorted[rank.clamp(1, sorted.len()) - 1] as f64
    }

    fn agrees(samples: &[u64]) {
        let mut recorder = LatencyRecorder::new();
        samples.iter().for_each(|sample| recorder.record(*sample));
        let mut sorted = samples.to_vec();
        sorted.sort_unstable();
        let summary = recorder.summary(1000.0);
        assert_eq!(summary.min, sorted[0] as f64);
        assert_eq!(summary.max, sorted[sorted.len() - 1] as f64);
        let mean = sorted.iter().map(|n| *n as f64).sum::<f64>() / sorted.len() as f64;
        assert!((summary.avg / mean - 1.0).abs() < 1e-9, "{} {mean}", summary.avg);
        let variance = sorted.iter().map(|n| (*n as f64 - mean).powi(2)).sum::<f64>() / sorted.len() as f64;
        assert!(
            (summary.stdev - variance.sqrt()).abs() <= mean * 0.001 + variance.sqrt() * 0.002,
            "{summary:?}"
        );
        let figures = [
            (summary.p50, 0.5),
            (summary.p90, 0.9),
            (summary.p99, 0.99),
            (summary.p99_9, 0.999),
            (summary.p99_99, 0.9999),
        ];
        for (figure, quantile) in figures {
            let exact = oracle(&sorted, quantile);
            assert!((figure - exact).abs() <= exact * 0.001, "{quantile}: {figure} for {exact}");
        }
        let distribution = recorder.distribution(1000.0);
        assert_eq!(distribution.count(), samples.len() as u64);
        assert!(distribution.buckets_us.is_sorted_by(|a, b| a.0 < b.0), "{distribution:?}");
        let (first, last) = (distribution.buckets_us[0].0, distribution.buckets_us.last().unwrap().0);
        assert!(first >= summary.min && last <= summary.max, "{summary:?} {distribution:?}");
    }

    /// A small generator, so that a failure is reproducible (Marsaglia's xorshift).
    fn noise(seed: u64) -> impl Iterator<Item = u64> {
        std::iter::successors(Some(seed), |x| {
            let x = x ^ (x << 13);
            let x = x ^ (x >> 7);
            Some(x ^ (x << 17))
        })
    }

    #[test]
    fn figures_agree_with_sorting() {
        agrees(&[7]);
        agrees(&[5, 5, 5, 5, 5]);
        agrees(&(1..=1000).collect::<Vec<_>>());
        agrees(&noise(1).map(|x| 7000 + x % 1000).take(5000).collect::<Vec<_>>());
        agrees(&noise(2).map(|x| 1 + (x % 1000) * (x % 977) * (x % 31)).take(5000).collect::<Vec<_>>());
        agrees(&noise(3).map(|x| 1 << (x % 40)).take(3000).collect::<Vec<_>>());
    }

    #[test]
    fn one_outlier_is_the_maximum_and_no_percentile() {
        let mut recorder = LatencyRecorder::new();
        (0..9999).for_each(|_| recorder.record(1000));
        recorder.record(LONGEST_TICKS * 8);
        let summary = recorder.summary(1.0);
        assert_eq!((summary.min, summary.p50, summary.p99_9), (1.0, 1.0, 1.0));
        assert_eq!(summary.max, LONGEST_TICKS as f64 * 8.0 / 1000.0);
    }

    #[test]
    fn threads_records_merge() {
        let samples: Vec<u64> = noise(7).map(|x| 1 << (x % 40)).take(3000).collect();
        let mut one = LatencyRecorder::new();
        samples.iter().for_each(|sample| one.record(*sample));
        let mut all = LatencyRecorder::new();
        for part in samples.chunks(700) {
            let mut recorder = LatencyRecorder::new();
            part.iter().for_each(|sample| recorder.record(*sample));
            all.add(&recorder);
        }
        all.add(&LatencyRecorder::new());
        assert_eq!((all.len(), all.summary(3.0)), (one.len(), one.summary(3.0)));
        assert_eq!(all.distribution(3.0), one.distribution(3.0));
    }

    #[test]
    fn nothing_recorded_is_zero() {
        let mut recorder = LatencyRecorder::new();
        assert_eq!((recorder.summary(1.0).max, recorder.summary(1.0).p90), (0.0, 0.0));
        recorder.record(0);
        recorder.record(3);
        assert_eq!((recorder.len(), recorder.summary(1000.0).min), (2, 0.0));
        recorder.clear();
        assert!(recorder.is_empty());
        assert_eq!(recorder.summary(1.0).min, 0.0);
    }
}
