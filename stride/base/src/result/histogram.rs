//! The distribution of latencies in result files.

use std::fmt::Write;

use serde::{Deserialize, Serialize};

/// Lines of HdrHistogram's percentile output per halving of the distance to 100 %.
const LINES_PER_HALVING: u32 = 5;

/// All samples, to one part in a thousand.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Distribution {
    /// Latency in microseconds and number of samples, in ascending order: the middle of each bucket
    /// that is not empty.
    pub buckets_us: Vec<(f64, u64)>,
}

impl Distribution {
    /// The number of samples.
    pub fn count(&self) -> u64 {
        self.buckets_us.iter().map(|(_, count)| count).sum()
    }

    /// The sample at a rank, and the number of samples up to it.
    fn at_rank(&self, rank: u64) -> (f64, u64) {
        let mut below = 0;
        for (us, count) in &self.buckets_us {
            below += count;
            if below >= rank {
                return (*us, below);
            }
        }
        (self.buckets_us.last().map_or(0.0, |last| last.0), below)
    }

    /// The text format of HdrHistogram's plotting tools (`.hgrm`), in microseconds.
    pub fn to_hgrm(&self) -> String {
        let count = self.count();
        let mut text = format!(
            "{:>12} {:>14} {:>10} {:>14}\n\n",
            "Value", "Percentile", "TotalCount", "1/(1-Percentile)"
        );
        for quantile in quantiles(count) {
            let (us, below) = self.at_rank((quantile * count as f64).ceil().max(1.0) as u64);
            let _ = write!(text, "{us:12.3} {quantile:14.12} {below:10}");
            if quantile < 1.0 {
                let _ = write!(text, " {:14.2}", 1.0 / (1.0 - quantile));
            }
            text.push('\n');
        }
        let (mean, stdev) = self.moments();
        let max = self.buckets_us.last().map_or(0.0, |last| last.0);
        let _ = writeln!(text, "#[Mean    = {mean:12.3}, StdDeviation   = {stdev:12.3}]");
        let _ = writeln!(text, "#[Max     = {max:12.3}, Total count    = {count:12}]");
        let _ = writeln!(text, "#[Buckets = {:12}, SubBuckets     = {:12}]", self.buckets_us.len(), 1);
        text
    }

    fn moments(&self) -> (f64, f64) {
        let count = self.count().max(1) as f64;
        let mean = self.buckets_us.iter().map(|(us, n)| us * *n as f64).sum::<f64>() / count;
        let square = self.buckets_us.iter().map(|(us, n)| (us - mean).powi(2) * *n as f64).sum::<f64>();
        (mean, (square / count).sqrt())
    }
}

/// The quantiles to print: 0, then equal steps to a half, as many to three quarters, and so on
/// until one sample is left; then 1.
fn quantiles(count: u64) -> Vec<f64> {
    let mut quantiles = Vec::new();
    let (mut from, mut left) = (0.0, 1.0);
    while left * count as f64 >= 1.0 {
        let step = left / 2.0 / f64::from(LINES_PER_HALVING);
        quantiles.extend((0..LINES_PER_HALVING).map(|line| from + step * f64::from(line)));
        left /= 2.0;
        from = 1.0 - left;
    }
    quantiles.push(1.0);
    quantiles
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_hdr_histograms() {
        let distribution = Distribution { buckets_us: vec![(1.0, 2), (2.5, 1), (10.0, 1)] };
        let text = distribution.to_hgrm();
        let mut lines = text.lines();
        assert_eq!(lines.next(), Some("       Value     Percentile TotalCount 1/(1-Percentile)"));
        assert_eq!(lines.next(), Some(""));
        let rows: Vec<Vec<f64>> = lines
            .clone()
            .take_while(|line| !line.starts_with('#'))
            .map(|line| line.split_whitespace().map(|word| word.parse().unwrap()).collect())
            .collect();
        assert_eq!(rows[0], [1.0, 0.0, 2.0, 1.0]);
        assert_eq!(rows[5], [1.0, 0.5, 2.0, 2.0]);
        assert_eq!(rows[6], [2.5, 0.55, 3.0, 2.22]);
        assert_eq!(rows.last().unwrap(), &[10.0, 1.0, 4.0]);
        assert!(rows.is_sorted_by(|a, b| a[1] < b[1] && a[0] <= b[0]), "{text}");
        assert!(text.contains("#[Max     =       10.000, Total count    =            4]"), "{text}");
        assert!(text.contains("#[Mean    =        3.625, StdDeviation   ="), "{text}");
    }

    #[test]
    fn no_samples_are_no_lines_but_the_last() {
        assert_eq!(Distribution { buckets_us: Vec::new() }.to_hgrm().lines().count(), 2 + 1 + 3);
    }
}
