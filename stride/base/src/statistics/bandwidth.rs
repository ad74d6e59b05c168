//! Bandwidth and message rate.

use super::Timer;

/// Bandwidth by perftest's definition: all messages, over the time from before the first post to
/// after the last completion.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BandwidthSummary {
    /// The duration in seconds.
    pub seconds: f64,
    /// 10^9 bits per second.
    pub gigabits_per_second: f64,
    /// 10^6 messages per second.
    pub million_messages_per_second: f64,
}

impl BandwidthSummary {
    /// Computes the figures for `messages` of `size` bytes that took `ticks`.
    pub fn new(size: u64, messages: u64, ticks: u64, timer: &Timer) -> Self {
        Self::over(size, messages, ticks.max(1) as f64 * timer.nanoseconds_per_tick())
    }

    fn over(size: u64, messages: u64, nanoseconds: f64) -> Self {
        let messages_per_nanosecond = messages as f64 / nanoseconds;
        Self {
            seconds: nanoseconds / 1e9,
            gigabits_per_second: messages_per_nanosecond * size as f64 * 8.0,
            million_messages_per_second: messages_per_nanosecond * 1000.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_decimal() {
        // 1000 messages of 1250 bytes are 10^7 bits; in 1 ms that is 10 Gb/s and a million messages
        // a second.
        let summary = BandwidthSummary::over(1250, 1000, 1e6);
        assert!((summary.gigabits_per_second - 10.0).abs() < 1e-9, "{summary:?}");
        assert!((summary.million_messages_per_second - 1.0).abs() < 1e-9, "{summary:?}");
        assert!((summary.seconds - 0.001).abs() < 1e-12, "{summary:?}");
    }

    #[test]
    fn counts_beyond_32_bits_do_not_wrap() {
        let summary = BandwidthSummary::over(1 << 31, 1 << 33, 1e9);
        assert!((summary.gigabits_per_second / (8.0 * 2f64.powi(64) / 1e9) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn no_time_is_no_division_by_zero() {
        assert!(BandwidthSummary::new(1, 1, 0, &Timer::new()).gigabits_per_second.is_finite());
    }
}
