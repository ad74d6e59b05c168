//! How many operations of a kind there were, and how long they took, for the periodic summary.

use std::fmt::Display;
use std::time::Duration;

use hdrhistogram::Histogram;

/// The operations of one kind that have succeeded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OperationCounts {
    /// Their number.
    pub count: u64,
    /// The program's bytes that they have moved.
    pub bytes: u64,
}

impl OperationCounts {
    pub(crate) fn with_each(self, other: Self, combine: impl Fn(u64, u64) -> u64) -> Self {
        Self { count: combine(self.count, other.count), bytes: combine(self.bytes, other.bytes) }
    }
}

/// What a program does with a connection, or with windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OperationKind {
    Send,
    Receive,
    Put,
    Get,
    Atomic,
}

impl OperationKind {
    fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Receive => "receive",
            Self::Put => "put",
            Self::Get => "get",
            Self::Atomic => "atomic",
        }
    }
}

/// The bytes that a call of a stream has moved, unless it has read the end or written nothing.
pub(crate) fn moved(len: &usize) -> Option<usize> {
    (*len > 0).then_some(*len)
}

/// Longer durations count as this one, which limits the histogram to 19 KiB.
const LONGEST: Duration = Duration::from_secs(3600);

/// Durations are exact to a hundredth.
const SIGNIFICANT_DIGITS: u8 = 2;

/// The operations of one kind: totals, and the durations since the last summary.
#[derive(Debug)]
pub(crate) struct OperationTimes {
    kind: OperationKind,
    total: OperationCounts,
    reported: OperationCounts,
    /// In nanoseconds. It grows to the longest duration.
    durations: Histogram<u32>,
}

impl OperationTimes {
    pub(crate) fn new(kind: OperationKind) -> Self {
        let durations = Histogram::new(SIGNIFICANT_DIGITS).expect("at most five digits");
        Self { kind, total: OperationCounts::default(), reported: OperationCounts::default(), durations }
    }

    pub(crate) fn record(&mut self, bytes: usize, took: Duration) {
        self.total.count += 1;
        self.total.bytes += bytes as u64;
        self.durations += took.min(LONGEST).as_nanos() as u64;
    }

    pub(crate) fn total(&self) -> OperationCounts {
        self.total
    }

    /// Begins the next interval. Returns the values of the last one, unless it had no operations.
    pub(crate) fn take_interval(&mut self) -> Option<OperationInterval> {
        let news = self.total.with_each(self.reported, |now, then| now - then);
        if news.count == 0 {
            return None;
        }
        let quantile = |quantile| Duration::from_nanos(self.durations.value_at_quantile(quantile));
        let (p50, p99) = (quantile(0.5), quantile(0.99));
        self.durations.reset();
        self.reported = self.total;
        Some(OperationInterval { kind: self.kind, news, total: self.total, p50, p99 })
    }
}

/// The operations of one kind in an interval.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OperationInterval {
    kind: OperationKind,
    news: OperationCounts,
    total: OperationCounts,
    p50: Duration,
    p99: Duration,
}

impl OperationInterval {
    pub(crate) fn log(&self, every: Duration, connection: &impl Display) {
        let micros = |duration: Duration| duration.as_nanos() as f64 / 1e3;
        tracing::debug!(
            %connection,
            operation = %self.kind.name(),
            count = self.news.count,
            bytes = self.news.bytes,
            p50_us = micros(self.p50),
            p99_us = micros(self.p99),
            total_count = self.total.count,
            total_bytes = self.total.bytes,
            "operations in the last {every:?}",
        );
    }
}

#[cfg(test)]
mod tests {
    use tracing::level_filters::LevelFilter;

    use super::*;
    use crate::config::log::captured;

    const EVERY: Duration = Duration::from_secs(20);

    fn line(times: &mut OperationTimes) -> String {
        let interval = times.take_interval();
        captured(LevelFilter::DEBUG, || interval.iter().for_each(|interval| interval.log(EVERY, &"a - b")))
    }

    /// The number after `name=`.
    fn field(line: &str, name: &str) -> f64 {
        let name = format!("{name}=");
        let value = line.split_whitespace().find_map(|word| word.strip_prefix(&name));
        value.expect(line).parse().expect(line)
    }

    #[test]
    fn a_line_has_the_counts_and_percentiles_of_its_interval() {
        let mut times = OperationTimes::new(OperationKind::Put);
        for micros in 1..=200 {
            times.record(100, Duration::from_micros(micros));
        }
        let first = line(&mut times);
        assert!(first.contains(": operations in the last 20s connection=a - b operation=put "), "{first}");
        assert!(first.contains(" count=200 bytes=20000 "), "{first}");
        assert!(first.contains(" total_count=200 total_bytes=20000\n"), "{first}");
        for (name, micros) in [("p50_us", 100.0), ("p99_us", 198.0)] {
            assert!((micros..micros * 1.01).contains(&field(&first, name)), "{name}: {first}");
        }
        // Later ones do not contain the durations of the first.
        times.record(0, Duration::from_secs(2));
        times.record(7, Duration::from_secs(3));
        let second = line(&mut times);
        assert!(second.contains(" count=2 bytes=7 "), "{second}");
        assert!(second.contains(" total_count=202 total_bytes=20007\n"), "{second}");
        for (name, micros) in [("p50_us", 2e6), ("p99_us", 3e6)] {
            assert!((micros..micros * 1.01).contains(&field(&second, name)), "{name}: {second}");
        }
    }

    #[test]
    fn an_interval_without_operations_has_no_line() {
        let mut times = OperationTimes::new(OperationKind::Atomic);
        assert!(times.take_interval().is_none());
        times.record(8, Duration::ZERO);
        assert!(times.take_interval().is_some_and(|interval| interval.p99 == Duration::ZERO));
        assert!(times.take_interval().is_none());
        assert_eq!(times.total(), OperationCounts { count: 1, bytes: 8 });
    }

    #[test]
    fn every_duration_needs_bounded_memory() {
        let mut times = OperationTimes::new(OperationKind::Get);
        for nanos in (0..64).map(|bit| 1 << bit) {
            times.record(1, Duration::from_nanos(nanos));
        }
        times.record(1, Duration::MAX);
        assert!(times.durations.distinct_values() * size_of::<u32>() <= 19 << 10);
        let interval = times.take_interval().expect("operations");
        assert!(interval.p99 >= LONGEST && interval.p99 < LONGEST + LONGEST / 100, "{interval:?}");
    }
}
