//! `cargo xtask bench perftest`: stride-perf compared with the distribution's perftest, over the
//! software device. Each run has two processes, with the same `libibverbs.so.1`.
//!
//! For each size perftest, stride-perf and perftest again run interleaved, so that noise affects
//! all three. The ratio of the two perftest runs measures the noise. Both tools move their payload
//! over the same path, which the device counts. Instruction counts take no time, so they are a
//! gate: `.ci/run overhead`.

mod instructions;
pub(super) mod pair;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::Result;
use clap::ValueEnum;

use super::document::{Section, today};
use super::programs::{self, Programs};
use super::rounds::{self, Better, Round};
use super::soft::copy_path::CopyPath;
use super::statistics::median;
use pair::{LoadKind, Measure, Operation, Pairs, PerftestRun, Tool};

/// Every fourth power of two of perftest's -a.
const SIZES: [u64; 12] = [2, 8, 32, 128, 512, 2048, 8192, 32768, 131_072, 524_288, 2_097_152, 8_388_608];
/// The sizes for a run with several operations.
const FEWER_SIZES: [u64; 6] = [2, 64, 4096, 65536, 1_048_576, 8_388_608];
const QUICK_SIZES: [u64; 3] = [32, 8192, 2_097_152];

#[derive(clap::Args)]
pub(super) struct Args {
    /// The parts to measure [default: all]
    #[arg(value_name = "PART")]
    parts: Vec<BenchPart>,
    /// The operations [default: write for timed parts, all for instructions]. With several, six
    /// sizes are measured
    #[arg(long, value_name = "OPERATION", value_delimiter = ',')]
    operations: Vec<Operation>,
    /// The number of rounds for each size
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Smoke test: three sizes, one round, a tenth of the messages
    #[arg(long, conflicts_with = "rounds")]
    quick: bool,
    /// Use the programs of the last build
    #[arg(long)]
    no_build: bool,
    /// Print the result without writing it to docs/generated/performance
    #[arg(long)]
    dry_run: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum BenchPart {
    /// Bandwidth and message rate, both by shared memory
    BwDirect,
    /// The same with -l 64 -t 4096
    BwListsDirect,
    /// Latency, both by shared memory
    LatDirect,
    /// Bandwidth and message rate, both by process_vm_*
    BwVm,
    /// Latency, both by process_vm_*
    LatVm,
    /// Instructions a message: a gate
    Instructions,
}

pub(super) fn run(root: &Path, args: &Args) -> Result<ExitCode> {
    let programs = Programs::beside_perftest(root, args.no_build)?;
    let parts = if args.parts.is_empty() { BenchPart::value_variants() } else { &args.parts };
    let timed = if args.operations.is_empty() { &[Operation::Write] } else { &args.operations[..] };
    let mut missed = Vec::new();
    for part in parts {
        let Some((measure, load, path)) = part.measured() else {
            let verdict = instructions::compare(root, &programs, &args.operations)?;
            part.publish(root, args, None, "instructions a message", &verdict.table)?;
            missed.extend(verdict.missed);
            continue;
        };
        for operation in timed.iter().copied().filter(|operation| load.is_for(*operation)) {
            let flags: String = load.flags().iter().map(|flag| format!(" {flag}")).collect();
            let title = format!("{} {}{flags}, both {path}", operation.name(), measure.title());
            let body = compare(&programs, (operation, measure, load, path), args)?;
            part.publish(root, args, Some(operation), &title, &body)?;
        }
    }
    for missed in &missed {
        eprintln!("bench perftest: {missed}");
    }
    Ok(if missed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl BenchPart {
    fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// The timed parts.
    fn measured(self) -> Option<(Measure, LoadKind, CopyPath)> {
        match self {
            Self::BwDirect => Some((Measure::Bandwidth, LoadKind::Usual, CopyPath::Direct)),
            Self::BwListsDirect => Some((Measure::Bandwidth, LoadKind::Lists, CopyPath::Direct)),
            Self::LatDirect => Some((Measure::Latency, LoadKind::Usual, CopyPath::Direct)),
            Self::BwVm => Some((Measure::Bandwidth, LoadKind::Usual, CopyPath::Vm)),
            Self::LatVm => Some((Measure::Latency, LoadKind::Usual, CopyPath::Vm)),
            Self::Instructions => None,
        }
    }

    /// Prints a table, and writes it to the page unless it is a trial.
    fn publish(
        self,
        root: &Path,
        args: &Args,
        operation: Option<Operation>,
        what: &str,
        body: &str,
    ) -> Result<()> {
        println!("{what}\n\n{body}");
        if args.dry_run || args.quick {
            return Ok(());
        }
        let name = match operation {
            None | Some(Operation::Write) => format!("perftest {}", self.name()),
            Some(other) => format!("perftest {} --operations {}", self.name(), other.name()),
        };
        let version = programs::first_line(Command::new(programs::PERFTEST).arg("--version"));
        let (words, flags) = match self.measured() {
            Some(_) => (
                format!(
                    "{} processors. Medians of {} rounds; in brackets the 95 % bootstrap interval of the geometric mean; above 1 \
                     stride-perf is better.",
                    std::thread::available_parallelism()?,
                    args.rounds
                ),
                format!(" --rounds {}", args.rounds),
            ),
            None => (
                "Of the client's timed loop, counted by callgrind, setting up left out: of the program and the C library, \
                 without libibverbs.so.1, which is the software device and the same for both. What waiting for the peer \
                 costs is left out. stride-perf's loop calls nothing but the device, and may not take more \
                 than perftest's (`.ci/run overhead`)."
                    .to_owned(),
                String::new(),
            ),
        };
        let intro = format!(
            "{}, perftest {}, stride-perf {}. {words}\n\n    cargo xtask bench {name}{flags}",
            today(),
            version.trim_start_matches("Version: "),
            env!("CARGO_PKG_VERSION"),
        );
        let title = format!("stride-perf against perftest over soft0: {what}");
        Section { name: &name, title: &title, intro: &intro, body }.write(root)
    }
}

impl Measure {
    fn title(self) -> &'static str {
        match self {
            Self::Bandwidth => "bw",
            Self::Latency => "lat (median)",
        }
    }

    fn unit(self) -> &'static str {
        match self {
            Self::Bandwidth => "M messages/s",
            Self::Latency => "us",
        }
    }

    fn better(self) -> Better {
        match self {
            Self::Bandwidth => Better::More,
            Self::Latency => Better::Less,
        }
    }

    /// The number of messages for a run of about a tenth of a second.
    fn iterations(self, path: CopyPath, size: u64) -> u64 {
        let (base, limit) = match (self, path) {
            (Self::Bandwidth, CopyPath::Direct) => (100, 1_000_000),
            (Self::Bandwidth, _) => (600, 1_000_000),
            (Self::Latency, CopyPath::Direct) => (600, 100_000),
            (Self::Latency, _) => (2000, 100_000),
        };
        // The time of a message in nanoseconds: at 8 GB/s, or at 32 by shared memory from a cache;
        // for a latency in both directions.
        let message = match (self, path) {
            (Self::Bandwidth, CopyPath::Direct) => base + size / 32,
            (Self::Bandwidth, _) => base + size / 8,
            (Self::Latency, CopyPath::Direct) => base + size / 16,
            (Self::Latency, _) => base + size / 4,
        };
        (100_000_000 / message).clamp(150, limit)
    }
}

fn compare(
    programs: &Programs,
    (operation, measure, load, path): (Operation, Measure, LoadKind, CopyPath),
    args: &Args,
) -> Result<String> {
    let pairs = Pairs::new(programs)?;
    let (sizes, count, part): (&[u64], _, _) = match args.quick {
        true => (&QUICK_SIZES, 1, 10),
        false if args.operations.len() > 1 => (&FEWER_SIZES, args.rounds, 1),
        false => (&SIZES, args.rounds, 1),
    };
    let sizes = if operation == Operation::Atomic { &[8] } else { sizes };
    let mut rounds: BTreeMap<u64, Vec<Round>> = BTreeMap::new();
    for first in 0..count {
        for (size, position) in sizes.iter().copied().zip(first..) {
            let iterations = load.whole((measure.iterations(path, size) / part).max(150));
            let round = Round::take(position, |ours| {
                let tool = if ours { Tool::Stride } else { Tool::Perftest };
                pairs.figure(PerftestRun {
                    tool,
                    operation,
                    measure,
                    path,
                    load,
                    size,
                    iterations,
                    more: &[],
                })
            })?;
            rounds.entry(size).or_default().push(round);
        }
    }
    report(measure, |size| operation.path(path, size), &rounds)
}

fn report(
    measure: Measure,
    path: impl Fn(u64) -> CopyPath,
    rounds: &BTreeMap<u64, Vec<Round>>,
) -> Result<String> {
    let mut table = String::from(
        "| bytes | path of both | perftest | stride-perf | unit | stride-perf / perftest | perftest / perftest |\n\
         | ---: | --- | ---: | ---: | --- | ---: | ---: |\n",
    );
    let better = measure.better();
    for (size, rounds) in rounds {
        let column = |value: &dyn Fn(&Round) -> f64| median(rounds.iter().map(value).collect());
        writeln!(
            table,
            "| {size} | {} | {:.3} | {:.3} | {} | {:.3} | {:.3} |",
            path(*size),
            column(&|round| round.reference),
            column(&|round| round.ours),
            measure.unit(),
            column(&|round| round.times(better)),
            column(&|round| round.noise(better))
        )?;
    }
    // Rounds are independent: between two of one size lie those of all others.
    let all: Vec<Round> = rounds.values().flatten().copied().collect();
    writeln!(table, "\nGeometric mean: {}", rounds::verdict(&all, better))?;
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_slower_than_the_noise_is_missed() {
        let rounds = |stride: f64| {
            let round =
                move |noise: f64| Round { reference: 10.0, ours: stride * noise, again: 10.0 * noise };
            BTreeMap::from([(2, vec![round(1.0), round(0.98)]), (8, vec![round(1.01), round(1.0)])])
        };
        let report = |measure, stride| report(measure, |_| CopyPath::Direct, &rounds(stride)).unwrap();
        assert!(report(Measure::Bandwidth, 9.95).contains("overlaps"));
        assert!(report(Measure::Bandwidth, 8.0).contains("**missed**"));
        assert!(report(Measure::Latency, 8.0).contains("overlaps"));
        assert!(report(Measure::Latency, 12.0).contains("**missed**"));
    }

    #[test]
    fn runs_are_short_and_no_size_is_without_messages() {
        for size in SIZES {
            for (measure, load, path) in BenchPart::value_variants().iter().filter_map(|part| part.measured())
            {
                let messages = load.whole(measure.iterations(path, size));
                assert!((150..=1_000_000).contains(&messages), "{size} {messages}");
                assert!(messages * size <= 8 << 30 || load == LoadKind::Lists, "{size} {messages}");
            }
        }
    }
}
