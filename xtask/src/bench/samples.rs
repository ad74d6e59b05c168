//! What the guest printed.

use anyhow::{Context, Result, bail};

/// What is measured, and whether more is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Measure {
    /// Gb/s.
    Bandwidth,
    /// The median, in us.
    Latency,
}

/// One pair and its control: perftest, stride-perf and perftest again, run one after the other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Triple {
    pub(super) perftest: f64,
    pub(super) stride: f64,
    pub(super) again: f64,
}

/// The pairs of one measurement with one message size.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) measure: Measure,
    pub(super) bytes: u64,
    pub(super) triples: Vec<Triple>,
}

/// Everything that was measured.
#[derive(Debug, Default)]
pub(super) struct Samples {
    /// perftest's version.
    pub(super) perftest: String,
    pub(super) rows: Vec<Row>,
}

impl Samples {
    /// Reads lines of the form `sample bw 64 PERFTEST STRIDE PERFTEST`, one a pair, and `perftest VERSION`.
    pub(super) fn parse(output: &str) -> Result<Self> {
        let mut samples = Self::default();
        for line in output.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words.as_slice() {
                ["sample", measure, bytes, perftest, stride, again] => {
                    let number = |word: &str| {
                        let number: f64 = word.parse().with_context(|| format!("not a number in: {line}"))?;
                        if number > 0.0 { Ok(number) } else { bail!("not a measurement: {line}") }
                    };
                    let triple = Triple {
                        perftest: number(perftest)?,
                        stride: number(stride)?,
                        again: number(again)?,
                    };
                    samples.row(measure, bytes)?.triples.push(triple);
                }
                ["perftest", version @ ..] => samples.perftest = format!("perftest {}", version.join(" ")),
                _ => bail!("unexpected output of the guest: {line}"),
            }
        }
        Ok(samples)
    }

    fn row(&mut self, measure: &str, bytes: &str) -> Result<&mut Row> {
        let measure = match measure {
            "bw" => Measure::Bandwidth,
            "lat" => Measure::Latency,
            other => bail!("unknown measurement {other}"),
        };
        let bytes: u64 = bytes.parse().context("not a message size")?;
        let found = self.rows.iter().position(|row| row.measure == measure && row.bytes == bytes);
        let index = found.unwrap_or_else(|| {
            self.rows.push(Row { measure, bytes, triples: Vec::new() });
            self.rows.len() - 1
        });
        Ok(&mut self.rows[index])
    }
}

impl Row {
    /// How much better stride-perf did, pair by pair: above 1 is better.
    pub(super) fn ratios(&self) -> Vec<f64> {
        self.triples.iter().map(|t| self.better(t.stride, t.perftest)).collect()
    }

    /// The same of perftest against itself: nothing but noise.
    pub(super) fn noise_ratios(&self) -> Vec<f64> {
        self.triples.iter().map(|t| self.better(t.again, t.perftest)).collect()
    }

    fn better(&self, this: f64, that: f64) -> f64 {
        match self.measure {
            Measure::Bandwidth => this / that,
            Measure::Latency => that / this,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_read_into_rows() {
        let text = "perftest 6.06\nsample bw 64 1.0 1.1 1.0\nsample lat 2 10 8 10\n";
        let samples = Samples::parse(text).unwrap();
        assert_eq!(samples.perftest, "perftest 6.06");
        assert_eq!(samples.rows.len(), 2);
        assert_eq!(samples.rows[0].ratios(), [1.1]);
        assert_eq!(samples.rows[1].ratios(), [1.25]);
        assert_eq!(samples.rows[1].noise_ratios(), [1.0]);
        assert!(Samples::parse("sample bw 64 1.0 0 1.0").is_err());
        assert!(Samples::parse("what is this").is_err());
    }
}
