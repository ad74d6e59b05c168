//! Interleaved measurements: reference, ours, and the reference again, so that noise affects all
//! three.

use anyhow::{Context, Result, bail};

use super::statistics::{Interval, bootstrap};

/// Whether a larger or a smaller figure is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Better {
    More,
    Less,
}

/// The three figures of one round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Round {
    pub(super) reference: f64,
    pub(super) ours: f64,
    pub(super) again: f64,
}

/// The rounds of a named row.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct NamedRounds {
    pub(super) name: String,
    pub(super) rounds: Vec<Round>,
}

/// The required result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Bound {
    /// At least this multiple of the reference.
    Times(f64),
    /// Better than the reference by more than the reference differs from itself.
    Better,
    /// Reported without a verdict.
    None,
}

impl Round {
    /// Measures all three; `figure` gets whether to measure ours. The order rotates with the
    /// position.
    pub(super) fn take(position: u32, mut figure: impl FnMut(bool) -> Result<f64>) -> Result<Self> {
        let mut figures = [0.0; 3];
        for step in 0..3 {
            let who = ((step + position) % 3) as usize;
            figures[who] = figure(who == 1)?;
        }
        let [reference, ours, again] = figures;
        Ok(Self { reference, ours, again })
    }

    /// Above 1 if ours is better than the mean of both references.
    pub(super) fn times(self, better: Better) -> f64 {
        better.than(self.ours, (self.reference * self.again).sqrt())
    }

    /// Above 1 if the second reference was better than the first.
    pub(super) fn noise(self, better: Better) -> f64 {
        better.than(self.again, self.reference)
    }
}

impl Better {
    /// Above 1 if `this` is better than `that`.
    fn than(self, this: f64, that: f64) -> f64 {
        match self {
            Self::More => this / that,
            Self::Less => that / this,
        }
    }
}

/// The geometric means of the ratios to the reference: our result, and the second reference run.
pub(super) fn compare(rounds: &[Round], better: Better) -> (Interval, Interval) {
    let mean = |ratio: fn(Round, Better) -> f64| {
        bootstrap(&rounds.iter().map(|round| vec![ratio(*round, better)]).collect::<Vec<_>>())
    };
    (mean(Round::times), mean(Round::noise))
}

/// The same as a sentence: whether ours overlaps or beats the reference's ratio to itself.
pub(super) fn verdict(rounds: &[Round], better: Better) -> String {
    let (ours, noise) = compare(rounds, better);
    let verdict = if ours.high >= noise.low { "overlaps or beats it" } else { "**missed**" };
    format!(
        "stride-perf / perftest {:.3} ({:.3} to {:.3}), perftest / perftest {:.3} ({:.3} to {:.3}): {verdict}.",
        ours.mean, ours.low, ours.high, noise.mean, noise.low, noise.high
    )
}

impl Bound {
    /// The mark in a table: empty, missed or undecided.
    pub(super) fn verdict(self, times: Interval, noise: Interval) -> &'static str {
        match self {
            Self::Times(bound) => times.at_least(bound),
            Self::Better if times.low > noise.high.max(1.0) => "",
            Self::Better if times.high < 1.0 => MISSED,
            Self::Better => UNDECIDED,
            Self::None => "",
        }
    }
}

impl std::fmt::Display for Bound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Times(bound) => write!(f, "{bound:.2}"),
            Self::Better => f.write_str("better"),
            Self::None => f.write_str("-"),
        }
    }
}

const MISSED: &str = " **missed**";
const UNDECIDED: &str = " **undecided**";

impl Interval {
    /// Empty if the figure reaches the bound, missed if the whole interval is below it.
    pub(super) fn at_least(self, bound: f64) -> &'static str {
        match self {
            Self { high, .. } if high < bound => MISSED,
            Self { mean, .. } if mean < bound => UNDECIDED,
            _ => "",
        }
    }

    /// Empty if the figure is within the bound, missed if the whole interval is above it.
    pub(super) fn at_most(self, bound: f64) -> &'static str {
        match self {
            Self { low, .. } if low > bound => MISSED,
            Self { mean, .. } if mean > bound => UNDECIDED,
            _ => "",
        }
    }
}

/// Parses lines `sample NAME REFERENCE OURS REFERENCE`, with `_` for spaces in the name.
pub(super) fn parse(output: &str) -> Result<Vec<NamedRounds>> {
    let mut all: Vec<NamedRounds> = Vec::new();
    for line in output.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let ["sample", name, figures @ ..] = &words[..] else {
            bail!("unexpected output of the guest: {line}")
        };
        let figures = figures.iter().map(|word| word.parse()).collect::<Result<Vec<f64>, _>>();
        let figures = figures.with_context(|| format!("not a figure: {line}"))?;
        let [reference, ours, again] =
            figures.try_into().ok().with_context(|| format!("not three figures: {line}"))?;
        let (name, round) = (name.replace('_', " "), Round { reference, ours, again });
        match all.iter_mut().find(|rounds| rounds.name == name) {
            Some(rounds) => rounds.rounds.push(round),
            None => all.push(NamedRounds { name, rounds: vec![round] }),
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_are_gathered_by_name_in_their_order() {
        let found = parse("sample b_c 1 2 3\nsample a 4 5 6\nsample b_c 7 8 9\n").unwrap();
        assert_eq!((found[0].name.as_str(), found[0].rounds.len(), found[1].rounds.len()), ("b c", 2, 1));
        assert_eq!(found[0].rounds[1], Round { reference: 7.0, ours: 8.0, again: 9.0 });
        assert!(parse("what").is_err() && parse("sample x 1 2").is_err() && parse("sample x 1 2 y").is_err());
    }

    #[test]
    fn each_of_the_three_is_taken_wherever_it_begins() {
        for position in 0..4 {
            let mut calls = Vec::new();
            let round = Round::take(position, |ours| {
                calls.push(ours);
                Ok(calls.len() as f64)
            });
            let round = round.unwrap();
            assert_eq!(calls.iter().filter(|ours| **ours).count(), 1);
            assert!(calls[round.ours as usize - 1], "{position}");
            assert_eq!(round.reference + round.ours + round.again, 6.0);
        }
    }

    #[test]
    fn better_is_what_noise_does_not_explain() {
        let rounds = |ours: f64| {
            [0.98, 1.0, 1.02, 0.99, 1.01].map(|noise| Round {
                reference: 1.0,
                ours: ours * noise,
                again: noise,
            })
        };
        let verdict = |ours, better| {
            let (times, noise) = compare(&rounds(ours), better);
            Bound::Better.verdict(times, noise)
        };
        assert_eq!((verdict(1.2, Better::More), verdict(0.8, Better::Less)), ("", ""));
        assert_eq!((verdict(0.8, Better::More), verdict(1.2, Better::Less)), (MISSED, MISSED));
        assert_eq!((verdict(1.0, Better::More), verdict(1.0, Better::Less)), (UNDECIDED, UNDECIDED));
    }

    #[test]
    fn a_bound_is_missed_by_the_whole_interval() {
        let interval = Interval { mean: 1.0, low: 0.9, high: 1.1 };
        assert_eq!([0.95, 1.05, 1.2].map(|bound| interval.at_least(bound)), ["", UNDECIDED, MISSED]);
        assert_eq!([1.05, 0.95, 0.8].map(|bound| interval.at_most(bound)), ["", UNDECIDED, MISSED]);
        assert_eq!(Bound::Times(1.2).verdict(interval, interval), MISSED);
        assert_eq!(Bound::None.verdict(interval, interval), "");
    }
}
