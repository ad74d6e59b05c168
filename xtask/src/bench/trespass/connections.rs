//! The rows about connections over the software device, each with its bound: what they cost beside
//! `std::net`, and beside the verbs that they need.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::bench::programs::Programs;
use crate::bench::statistics::{Interval, interval, median};

/// A measurement of `xtask/bench/src/bin/sockets`, and the rows that it prints.
struct Measurement {
    command: &'static str,
    /// Its arguments. The first is a count, which a smoke test divides.
    arguments: &'static [u32],
    rows: &'static [ConnectionRow],
}

#[derive(Clone, Copy)]
struct ConnectionRow {
    /// The name in the program's output.
    name: &'static str,
    title: &'static str,
    unit: Unit,
    against: Against,
    bound: Bound,
}

#[derive(Clone, Copy)]
enum Unit {
    Microseconds,
    Milliseconds,
    MillisecondsPerSecond,
    Percent,
}

/// The other figure of a ratio.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Against {
    /// `std::net`'s, after what the verbs alone take is subtracted from trespass's over RDMA.
    Std,
    /// trespass over RDMA without the measured condition.
    Itself(&'static str),
    Nothing,
}

/// The required result over RDMA.
#[derive(Clone, Copy)]
enum Bound {
    /// The ratio is at most this.
    Times(f64),
    /// The figure is at most this.
    AtMost(f64),
    /// The figure is at least this.
    AtLeast(f64),
    None,
}

/// The figures of a row in one round, by name.
type Sample = BTreeMap<String, f64>;

/// Connects of a round, one after the other.
const CONNECTS: u32 = 200;
/// Clients that connect at once.
pub(super) const STORM: u32 = 1000;
/// Dropped streams of a round.
pub(super) const DROPS: u32 = 50;
/// Connections that are open and idle, and for how long.
pub(super) const IDLE: u32 = 1000;
const IDLE_SECONDS: u32 = 5;
/// Peers that stop within their handshakes.
pub(super) const STOPPED: u32 = 100;

const MEASUREMENTS: [Measurement; 6] = [
    Measurement {
        command: "connect",
        arguments: &[CONNECTS],
        rows: &[
            row(
                "connect",
                "connect, 64-byte request, reply, close",
                Unit::Microseconds,
                Against::Std,
                Bound::Times(4.0),
            ),
            row(
                "connect-cpu",
                "connect, 64-byte request, reply, close: CPU time of both sides",
                Unit::Microseconds,
                Against::Std,
                Bound::None,
            ),
        ],
    },
    Measurement {
        command: "storm",
        arguments: &[STORM],
        rows: &[
            row(
                "storm-served",
                "storm: clients served",
                Unit::Percent,
                Against::Nothing,
                Bound::AtLeast(100.0),
            ),
            row(
                "storm-cpu",
                "storm: CPU time of both sides",
                Unit::Milliseconds,
                Against::Std,
                Bound::Times(4.0),
            ),
        ],
    },
    Measurement {
        command: "drop",
        arguments: &[DROPS],
        rows: &[
            drop_row("drop-empty", "drop, nothing written"),
            drop_row("drop-empty-slowest", "drop, nothing written, the slowest"),
            drop_row("drop-50000", "drop, 50,000 bytes written"),
            drop_row("drop-50000-slowest", "drop, 50,000 bytes written, the slowest"),
            drop_row("drop-full", "drop, as much written as fits"),
            drop_row("drop-full-slowest", "drop, as much written as fits, the slowest"),
        ],
    },
    Measurement {
        command: "flush",
        arguments: &[2000],
        rows: &[row(
            "flush",
            "64-byte request, flush, reply",
            Unit::Microseconds,
            Against::Itself("no flush"),
            Bound::None,
        )],
    },
    Measurement {
        command: "idle",
        arguments: &[IDLE, IDLE_SECONDS],
        rows: &[row(
            "idle",
            "idle connections: CPU time of both sides",
            Unit::MillisecondsPerSecond,
            Against::Nothing,
            Bound::AtMost(1.0),
        )],
    },
    Measurement {
        command: "hostile",
        arguments: &[CONNECTS, STOPPED],
        rows: &[
            hostile_row("hostile", "connect beside stopped peers", Bound::None),
            hostile_row(
                "hostile-slowest",
                "connect beside stopped peers, the slowest",
                Bound::AtMost(1000.0),
            ),
        ],
    },
];

const fn row(
    name: &'static str,
    title: &'static str,
    unit: Unit,
    against: Against,
    bound: Bound,
) -> ConnectionRow {
    ConnectionRow { name, title, unit, against, bound }
}

const fn drop_row(name: &'static str, title: &'static str) -> ConnectionRow {
    row(name, title, Unit::Microseconds, Against::Std, Bound::AtMost(1000.0))
}

const fn hostile_row(name: &'static str, title: &'static str, bound: Bound) -> ConnectionRow {
    row(name, title, Unit::Milliseconds, Against::Itself("no such peers"), bound)
}

/// Measures the rows with one of these words in their titles, or all. `None` if there is no such row.
pub(super) fn measure(
    programs: &Programs,
    rounds: u32,
    part: u32,
    words: &[String],
) -> Result<Option<String>> {
    let mut table = String::from(
        "| what | unit | `std::net` | trespass, TCP | trespass, RDMA | verbs alone | against | times | \
         reference against itself | bound |\n\
         | --- | --- | ---: | ---: | ---: | ---: | --- | ---: | ---: | ---: |\n",
    );
    let mut any = false;
    for Measurement { command, arguments, rows } in &MEASUREMENTS {
        let chosen: Vec<&ConnectionRow> =
            rows.iter().filter(|row| super::is_chosen(row.title, words)).collect();
        if chosen.is_empty() {
            continue;
        }
        any = true;
        let said = run(programs, command, arguments, rounds, part)?;
        for row in chosen {
            let samples = samples(&said, row.name)?;
            ensure!(samples.len() == rounds as usize, "{} samples of {}: {said}", samples.len(), row.name);
            writeln!(table, "{}", row.line(&samples)?)?;
        }
    }
    Ok(any.then_some(table))
}

fn run(programs: &Programs, name: &str, arguments: &[u32], rounds: u32, part: u32) -> Result<String> {
    let mut command = Command::new(programs.path("sockets"));
    command.arg(name);
    for (position, argument) in arguments.iter().enumerate() {
        let argument = if position == 0 { (argument / part).max(1) } else { *argument };
        command.arg(argument.to_string());
    }
    command.arg(rounds.to_string());
    programs.over_the_device(&mut command);
    command.env_remove("TRESPASS_TRANSPORT");
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output()?;
    ensure!(output.status.success(), "{command:?} failed ({})", output.status);
    Ok(String::from_utf8(output.stdout)?)
}

/// Parses the lines `sample ROW NAME=FIGURE ...` of a row.
fn samples(said: &str, row: &str) -> Result<Vec<Sample>> {
    let mut samples = Vec::new();
    for line in said.lines() {
        let mut words = line.split_whitespace();
        let (Some("sample"), Some(name)) = (words.next(), words.next()) else {
            bail!("unexpected output: {line}")
        };
        if name == row {
            let figure = |word: &str| {
                let (name, figure) = word.split_once('=')?;
                Some((name.to_owned(), figure.parse().ok()?))
            };
            let sample: Option<Sample> = words.map(figure).collect();
            samples.push(sample.with_context(|| format!("not figures: {line}"))?);
        }
    }
    Ok(samples)
}

impl ConnectionRow {
    fn line(&self, samples: &[Sample]) -> Result<String> {
        let Self { title, unit, bound, .. } = self;
        let column = |name: &str| {
            let figures: Vec<f64> = samples.iter().filter_map(|sample| sample.get(name).copied()).collect();
            if figures.is_empty() { "-".to_owned() } else { unit.show(bound.summary(&figures)) }
        };
        let (times, noise, against) = match self.against {
            Against::Nothing => (None, None, "-"),
            Against::Std => (Some(self.ratio(samples, "std")?), Some(noise(samples, "std")?), "`std::net`"),
            Against::Itself(without) => {
                (Some(self.ratio(samples, "reference")?), Some(noise(samples, "reference")?), without)
            }
        };
        let rdma =
            interval_of(samples, |sample| Ok(unit.scale(figure(sample, "rdma")?)), |all| bound.summary(all))?;
        let verdict = match (bound, times) {
            (Bound::Times(most), Some(times)) => times.at_most(*most),
            (Bound::AtMost(most), _) => rdma.at_most(*most),
            (Bound::AtLeast(least), _) => Interval { high: rdma.mean, ..rdma }.at_least(*least),
            (Bound::Times(_) | Bound::None, _) => "",
        };
        Ok(format!(
            "| {title} | {unit} | {} | {} | {}{} | {} | {against} | {}{} | {} | {bound} |",
            column("std"),
            column("tcp"),
            column("rdma"),
            if bound.is_ratio() { "" } else { verdict },
            column("alone"),
            show(times),
            if bound.is_ratio() { verdict } else { "" },
            show(noise),
        ))
    }

    /// trespass's figure over RDMA without that of the verbs alone, as a multiple of a reference that
    /// was measured twice.
    fn ratio(&self, samples: &[Sample], reference: &str) -> Result<Interval> {
        let ratio = |sample: &Sample| {
            let alone = sample.get("alone").copied().unwrap_or(0.0);
            let twice = figure(sample, reference)? * figure(sample, "again")?;
            Ok((figure(sample, "rdma")? - alone) / twice.sqrt())
        };
        interval_of(samples, ratio, median_of)
    }
}

fn noise(samples: &[Sample], reference: &str) -> Result<Interval> {
    interval_of(samples, |sample| Ok(figure(sample, "again")? / figure(sample, reference)?), median_of)
}

fn figure(sample: &Sample, name: &str) -> Result<f64> {
    sample.get(name).copied().with_context(|| format!("no figure {name} in {sample:?}"))
}

/// A value summarised over the rounds, with its interval.
fn interval_of(
    samples: &[Sample],
    value: impl Fn(&Sample) -> Result<f64>,
    summary: impl Fn(&[f64]) -> f64,
) -> Result<Interval> {
    let values = samples.iter().map(value).collect::<Result<Vec<f64>>>()?;
    Ok(interval(&values, summary))
}

fn median_of(values: &[f64]) -> f64 {
    median(values.to_vec())
}

fn show(interval: Option<Interval>) -> String {
    interval.map_or_else(
        || "-".to_owned(),
        |Interval { mean, low, high }| format!("{mean:.2} ({low:.2} to {high:.2})"),
    )
}

impl Unit {
    /// The program prints nanoseconds.
    fn scale(self, figure: f64) -> f64 {
        match self {
            Self::Microseconds => figure / 1e3,
            Self::Milliseconds | Self::MillisecondsPerSecond => figure / 1e6,
            Self::Percent => figure,
        }
    }

    fn show(self, figure: f64) -> String {
        let scaled = self.scale(figure);
        match self {
            Self::Percent | Self::Microseconds => format!("{scaled:.1}"),
            Self::Milliseconds | Self::MillisecondsPerSecond => format!("{scaled:.2}"),
        }
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Microseconds => "us",
            Self::Milliseconds => "ms",
            Self::MillisecondsPerSecond => "ms a second",
            Self::Percent => "%",
        })
    }
}

impl Bound {
    fn is_ratio(self) -> bool {
        matches!(self, Self::Times(_))
    }

    /// The figure of all rounds: the least where each round must reach the bound, else the median.
    fn summary(self, figures: &[f64]) -> f64 {
        match self {
            Self::AtLeast(_) => figures.iter().copied().fold(f64::INFINITY, f64::min),
            _ => median_of(figures),
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Times(most) => write!(f, "at most {most} times"),
            Self::AtMost(most) => write!(f, "at most {most}"),
            Self::AtLeast(least) => write!(f, "at least {least}"),
            Self::None => f.write_str("-"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row_of(name: &str) -> ConnectionRow {
        let mut rows = MEASUREMENTS.iter().flat_map(|measurement| measurement.rows);
        *rows.find(|row| row.name == name).unwrap()
    }

    #[test]
    fn samples_of_other_rows_are_passed_over() {
        let said = "sample a std=1 rdma=2.5\nsample b std=3\nsample a std=4 rdma=5\n";
        let found = samples(said, "a").unwrap();
        assert_eq!((found.len(), found[0]["rdma"], found[1]["std"]), (2, 2.5, 4.0));
        assert!(samples("what a\n", "a").is_err() && samples("sample a std\n", "a").is_err());
        assert!(samples("sample a std=x\n", "a").is_err());
    }

    #[test]
    fn verbs_alone_are_subtracted_before_the_comparison() {
        let line = |rdma: u32| {
            let said = format!("sample connect std=100000 tcp=300000 rdma={rdma} alone=50000 again=100000\n");
            row_of("connect").line(&samples(&said.repeat(3), "connect").unwrap()).unwrap()
        };
        let met = "| us | 100.0 | 300.0 | 440.0 | 50.0 | `std::net` | 3.90 (3.90 to 3.90) | 1.00 (1.00 to 1.00) | at most 4 times |";
        assert!(line(440_000).ends_with(met), "{}", line(440_000));
        assert!(line(460_000).contains("4.10 (4.10 to 4.10) **missed**"), "{}", line(460_000));
    }

    #[test]
    fn a_figure_is_judged_where_the_bound_is_no_ratio() {
        let line =
            |name: &str, said: &str| row_of(name).line(&samples(&said.repeat(3), name).unwrap()).unwrap();
        let served =
            |count: u32| line("storm-served", &format!("sample storm-served std=100 tcp=100 rdma={count}\n"));
        assert!(served(100).contains("| 100.0 | - | - | - | - | at least 100 |"), "{}", served(100));
        assert!(served(99).contains("| 99.0 **missed** |"), "{}", served(99));
        let dropped = |rdma: u32| {
            line("drop-empty", &format!("sample drop-empty std=5000 tcp=9000 rdma={rdma} again=5000\n"))
        };
        assert!(!dropped(999_000).contains("missed") && dropped(1_001_000).contains("1001.0 **missed**"));
    }

    #[test]
    fn one_round_that_serves_too_few_is_missed() {
        let said = "sample storm-served std=100 tcp=100 rdma=100\n".repeat(6)
            + "sample storm-served std=100 tcp=99 rdma=98.5\n";
        let line = row_of("storm-served").line(&samples(&said, "storm-served").unwrap()).unwrap();
        assert!(line.contains("| 100.0 | 99.0 | 98.5 **missed** |"), "{line}");
    }

    #[test]
    fn a_row_without_its_reference_is_an_error() {
        let samples = samples("sample flush rdma=1\n", "flush").unwrap();
        assert!(row_of("flush").line(&samples).is_err());
    }
}
