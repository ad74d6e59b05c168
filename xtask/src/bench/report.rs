//! What the pairs say.

use std::fmt;

use super::samples::{Measure, Row, Samples};

/// The result of a run.
#[derive(Debug)]
pub(super) struct Report {
    lines: Vec<Line>,
    geometric_mean: f64,
    noise: f64,
    pairs: u32,
}

#[derive(Debug)]
struct Line {
    measure: Measure,
    bytes: u64,
    perftest: f64,
    stride: f64,
    ratio: f64,
    noise: f64,
}

impl Report {
    pub(super) fn new(samples: &Samples, pairs: u32) -> Self {
        let lines: Vec<Line> =
            samples.rows.iter().filter(|row| !row.triples.is_empty()).map(Line::new).collect();
        let mean = lines.iter().map(|line| line.ratio.ln()).sum::<f64>() / lines.len().max(1) as f64;
        let noise = lines.iter().map(|line| line.noise).sum::<f64>() / lines.len().max(1) as f64;
        Self { lines, geometric_mean: mean.exp(), noise, pairs }
    }

    /// Whether the geometric mean lies within the noise of 1.00, or is better.
    fn is_within_noise(&self) -> bool {
        self.geometric_mean >= 1.0 - self.noise
    }
}

impl Line {
    fn new(row: &Row) -> Self {
        let column =
            |value: fn(&super::samples::Triple) -> f64| median(row.triples.iter().map(value).collect());
        Self {
            measure: row.measure,
            bytes: row.bytes,
            perftest: column(|t| t.perftest),
            stride: column(|t| t.stride),
            ratio: median(row.ratios()),
            // How far a pair of perftest and itself is from equal, in the middle.
            noise: median(row.noise_ratios().iter().map(|ratio| ratio.ln().abs()).collect()),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| test | bytes | perftest | stride-perf | unit | ratio | noise |")?;
        writeln!(f, "| --- | ---: | ---: | ---: | --- | ---: | ---: |")?;
        for line in &self.lines {
            let (test, unit) = match line.measure {
                Measure::Bandwidth => ("write bw", "Gb/s"),
                Measure::Latency => ("write lat, median", "us"),
            };
            writeln!(
                f,
                "| {test} | {} | {:.4} | {:.4} | {unit} | {:.3} | {:.1} % |",
                line.bytes,
                line.perftest,
                line.stride,
                line.ratio,
                100.0 * line.noise
            )?;
        }
        let verdict =
            if self.is_within_noise() { "within it, or better" } else { "worse than the noise explains" };
        writeln!(
            f,
            "\nGeometric mean of the ratios: {:.3} (above 1 is better); noise of perftest against itself: {:.1} %: \
             {verdict}. Medians of {} interleaved pairs a row.",
            self.geometric_mean,
            100.0 * self.noise,
            self.pairs
        )
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[n / 2],
        n => (values[n / 2 - 1] + values[n / 2]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> Samples {
        Samples::parse(
            "perftest 6\nsample bw 64 1 1.1 1.02\nsample bw 64 1 1.1 0.98\nsample lat 2 10 10 10\n",
        )
        .unwrap()
    }

    #[test]
    fn the_mean_is_held_against_the_noise() {
        let report = Report::new(&samples(), 5);
        assert!((report.geometric_mean - 1.1f64.sqrt()).abs() < 1e-9, "{report:?}");
        assert!(report.noise > 0.005 && report.noise < 0.02, "{report:?}");
        assert!(report.is_within_noise());
    }
}
