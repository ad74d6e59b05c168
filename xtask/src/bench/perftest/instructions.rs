//! The instructions that a message costs a program, which is free of noise and therefore a gate.
//!
//! Callgrind counts the client's timed loop: every instruction of the program and of the C library,
//! but none of `libibverbs.so.1`, which is the software device and the same for both tools.
//! Therefore the device's copy path does not matter; under callgrind it takes long to settle.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use super::pair::{LoadKind, Measure, Operation, Pairs, PerftestRun, Tool};
use crate::bench::callgrind::{InstructionCounts, LoopShape, TimedLoop};
use crate::bench::overhead::{BUDGET, Budget, disassembly};
use crate::bench::programs::Programs;
use crate::bench::soft::copy_path::CopyPath;

/// Messages of a run. If a row needs a second, longer run, that one has twice as many.
const MESSAGES: u64 = 2000;

/// The same for long lists: whole lists, and more messages than fit into the queue.
const LISTED: u64 = 128 * LoadKind::LIST;

/// The largest number of counts until two of them must agree.
const RUNS: u32 = 8;

/// The size of a message in bytes.
const SIZE: u64 = 64;

/// Options that must not add instructions to the timed loop.
const BESIDES: [&str; 2] = ["--threads=1", "--data-validation"];

/// A table, and the list of missed bounds.
#[derive(Debug, Default)]
pub(super) struct Verdict {
    pub(super) table: String,
    pub(super) missed: Vec<String>,
}

/// A row of the table.
#[derive(Clone, Copy, Debug)]
struct InstructionCase {
    operation: Operation,
    measure: Measure,
    load: LoadKind,
}

impl InstructionCase {
    fn all(operations: &[Operation]) -> Vec<Self> {
        let operations = if operations.is_empty() { Operation::value_variants() } else { operations };
        let mut cases = Vec::new();
        for operation in operations.iter().copied() {
            let load = if operation == Operation::Send { LoadKind::Received } else { LoadKind::Usual };
            cases.push(Self { operation, measure: Measure::Bandwidth, load });
            if operation == Operation::Write {
                cases.push(Self { operation, measure: Measure::Bandwidth, load: LoadKind::Lists });
            }
            let load = if operation == Operation::Send { LoadKind::Few } else { LoadKind::Usual };
            cases.push(Self { operation, measure: Measure::Latency, load });
        }
        cases
    }

    fn title(self) -> String {
        let words = [&[self.operation.name(), self.measure.name()], self.load.flags()].concat();
        words.join(" ")
    }

    /// Its name in the budget file.
    fn name(self) -> String {
        let lists = if self.load == LoadKind::Lists { "-lists" } else { "" };
        format!("{}-{}{lists}", self.operation.name(), self.measure.name())
    }

    /// The expected number of clock readings for each message.
    fn clock_readings(self) -> f64 {
        if self.measure == Measure::Latency { 1.0 } else { 0.0 }
    }
}

/// Counts the instructions of both tools, and compares them.
pub(super) fn compare(root: &Path, programs: &Programs, operations: &[Operation]) -> Result<Verdict> {
    let budget = Budget::read(root)?;
    let counter = Counter { programs, pairs: Pairs::new(programs)?, processors: apart()? };
    let mut verdict = Verdict::default();
    verdict.table.push_str(
        "| 64-byte messages (atomics: 8) | perftest | stride-perf | ratio | clock readings: perftest | stride-perf |\n\
         | --- | ---: | ---: | ---: | ---: | ---: |\n",
    );
    for case in InstructionCase::all(operations) {
        let theirs = counter.count(Tool::Perftest, case, &[])?;
        let ours = counter.count(Tool::Stride, case, &[])?;
        verdict.row(case, budget.of(&case.name()), &theirs, &ours)?;
    }
    if operations.is_empty() || operations.contains(&Operation::Write) {
        let case = InstructionCase {
            operation: Operation::Write,
            measure: Measure::Bandwidth,
            load: LoadKind::Usual,
        };
        let [plain, besides] = [&[], &BESIDES[..]].map(|more| counter.count(Tool::Stride, case, more));
        verdict.besides(plain?.0.own, besides?.0.own)?;
    }
    Ok(verdict)
}

/// The timed loop, and the number of clock readings for each message.
type Timed = (TimedLoop, f64);

impl Verdict {
    /// A row in which stride-perf needs more than perftest must have a budget.
    fn row(
        &mut self,
        case: InstructionCase,
        budget: Option<f64>,
        (a, theirs): &Timed,
        (b, readings): &Timed,
    ) -> Result<()> {
        let title = case.title();
        let verdict = match budget {
            _ if b.own <= a.own => String::new(),
            Some(budget) => format!(" **missed**, {budget:.0} at most"),
            None => " **missed**".to_owned(),
        };
        writeln!(
            self.table,
            "| {title} | {:.1} | {:.1} | {:.2}{verdict} | {theirs:.2} | {readings:.2} |",
            a.own,
            b.own,
            b.own / a.own,
        )?;
        let allowed = a.own.max(budget.unwrap_or_default());
        if b.own > allowed + 0.05 {
            self.missed.push(format!(
                "{title}: {:.2} instructions a message, perftest takes {:.2}, and {allowed:.2} are allowed ({BUDGET})",
                b.own, a.own
            ));
        }
        if (readings - case.clock_readings()).abs() > 0.01 {
            self.missed.push(format!(
                "{title}: the clock is read {readings:.3} times for each message instead of {}",
                case.clock_readings()
            ));
        }
        let calls = b.foreign.iter();
        self.missed.extend(calls.map(|(name, times)| {
            format!(
                "{title}: {name} is called {times:.3} times for each message; a measured loop may call the device only"
            )
        }));
        Ok(())
    }

    /// An option outside the loop must not be tested for each message.
    fn besides(&mut self, plain: f64, besides: f64) -> Result<()> {
        let flags = BESIDES.join(" ");
        writeln!(
            self.table,
            "\nWith {flags}, write bw takes {besides:.1} instructions a message; without, {plain:.1}."
        )?;
        if (besides - plain).abs() > 0.5 {
            self.missed.push(format!(
                "write bw {flags}: {besides:.2} instructions a message, and {plain:.2} without"
            ));
        }
        Ok(())
    }
}

impl Tool {
    /// Occasional instructions count in full for stride-perf, and not at all for perftest.
    fn charged(self, timed: TimedLoop) -> TimedLoop {
        match self {
            Self::Perftest => timed,
            Self::Stride => TimedLoop { own: timed.own + timed.by_chance, ..timed },
        }
    }

    /// A count that a second one confirms. Disturbances only add instructions. Therefore
    /// perftest's, which is the bound, must be the least of all; any of stride-perf's is at least
    /// the undisturbed one.
    fn agreed(self, counts: &[TimedLoop]) -> Option<&TimedLoop> {
        let least = counts.iter().map(|timed| timed.own).fold(f64::INFINITY, f64::min);
        let agree = |a: f64, b: f64| (a - b).abs() < 0.5;
        counts.iter().enumerate().find_map(|(at, timed)| {
            let is_candidate = self == Self::Stride || agree(timed.own, least);
            let is_confirmed = counts[at + 1..].iter().any(|other| agree(timed.own, other.own));
            (is_candidate && is_confirmed).then_some(timed)
        })
    }
}

struct Counter<'a> {
    programs: &'a Programs,
    pairs: Pairs<'a>,
    /// The processors of client and server.
    processors: [usize; 2],
}

impl Counter<'_> {
    /// By message.
    fn count(&self, tool: Tool, case: InstructionCase, more: &'static [&'static str]) -> Result<Timed> {
        let InstructionCase { operation, measure, load } = case;
        let program = tool.program(self.programs, operation, measure);
        let clock = disassembly::clock_readings(&program)?;
        let run = |iterations| {
            let (path, size) = (CopyPath::Direct, operation.size(SIZE));
            self.callgrind(PerftestRun { tool, operation, measure, path, load, size, iterations, more })
        };
        let messages = if load == LoadKind::Lists { LISTED } else { MESSAGES };
        let steady = LoopShape {
            list: if load == LoadKind::Lists { LoadKind::LIST } else { 1 },
            waits: measure == Measure::Latency,
        };
        let (mut counts, mut last) = (Vec::<TimedLoop>::new(), None);
        for _ in 0..RUNS {
            let each = match measure {
                Measure::Bandwidth => run(2 * messages)?.more_than(&run(messages)?, messages),
                Measure::Latency => run(2 * messages)?.more_than(&InstructionCounts::default(), 2 * messages),
            };
            match each.timed_loop(&program, &self.programs.library(), steady) {
                Ok(timed) => counts.push(tool.charged(timed)),
                Err(error) => last = Some(error),
            }
            if let Some(timed) = tool.agreed(&counts) {
                let readings = clock.iter().filter_map(|address| timed.times.get(address)).sum();
                return Ok((timed.clone(), readings));
            }
        }
        bail!(
            "{tool:?} {}: no two of {RUNS} counts agree: {:?}, and the last that failed: {last:?}",
            case.title(),
            counts.iter().map(|timed| timed.own).collect::<Vec<_>>()
        )
    }

    fn callgrind(&self, run: PerftestRun) -> Result<InstructionCounts> {
        let out: PathBuf = self.programs.folder().join(format!("callgrind.{}.out", std::process::id()));
        self.pairs.once(run, |side| {
            // On one processor both processes would wait for each other's time slices.
            let mut command = Command::new("taskset");
            command.args(["--cpu-list", &self.processors[side].to_string()]);
            if side == 1 {
                // The device's service thread, which maps the peer's memory, needs processor time
                // as well.
                command.args([
                    "valgrind",
                    "--quiet",
                    "--tool=callgrind",
                    "--dump-instr=yes",
                    "--fair-sched=try",
                ]);
                command.arg(format!("--callgrind-out-file={}", out.display()));
            }
            Some(command)
        })?;
        let text = read_and_remove(&out)?;
        InstructionCounts::parse(&text)
    }
}

/// The first and the last processor that this process may use.
fn apart() -> Result<[usize; 2]> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let list = list.context("/proc/self/status does not list the allowed processors")?.trim();
    let end = |word: Option<&str>| {
        let number: Result<usize, _> = word.unwrap_or_default().parse();
        number.with_context(|| format!("processors {list}"))
    };
    Ok([end(list.rsplit(['-', ',']).next())?, end(list.split(['-', ',']).next())?])
}

fn read_and_remove(path: &Path) -> Result<String> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    std::fs::remove_file(path)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timed(own: f64, readings: f64) -> Timed {
        (TimedLoop { own, ..TimedLoop::default() }, readings)
    }

    fn missed(theirs: f64, ours: &Timed, budget: Option<f64>) -> Vec<String> {
        let case =
            InstructionCase { operation: Operation::Write, measure: Measure::Latency, load: LoadKind::Usual };
        let mut verdict = Verdict::default();
        verdict.row(case, budget, &timed(theirs, 1.0), ours).unwrap();
        assert_eq!(verdict.table.contains("**missed**"), ours.0.own > theirs, "{}", verdict.table);
        verdict.missed
    }

    #[test]
    fn more_than_perftest_fails_unless_there_is_a_budget() {
        assert!(missed(68.0, &timed(68.0, 1.0), None).is_empty());
        assert_eq!(missed(68.0, &timed(69.0, 1.0), None).len(), 1);
        assert!(missed(68.0, &timed(69.0, 1.0), Some(69.0)).is_empty());
        assert_eq!(missed(68.0, &timed(70.0, 1.0), Some(69.0)).len(), 1);
    }

    #[test]
    fn another_clock_reading_fails_and_so_does_a_call() {
        assert!(missed(68.0, &timed(60.0, 2.0), None)[0].contains("the clock is read 2.000 times"));
        let mut calls = timed(60.0, 1.0);
        calls.0.foreign.insert("malloc".to_owned(), 1.0);
        assert!(missed(68.0, &calls, None)[0].contains("malloc is called 1.000 times for each message"));
    }

    #[test]
    fn a_count_must_be_confirmed() {
        let agreed = |tool: Tool, counts: &[f64]| {
            let counts: Vec<_> = counts.iter().map(|own| timed(*own, 1.0).0).collect();
            tool.agreed(&counts).map(|timed| timed.own)
        };
        for tool in [Tool::Perftest, Tool::Stride] {
            assert_eq!(agreed(tool, &[61.0]), None);
            assert_eq!(agreed(tool, &[61.0, 63.0, 59.0]), None);
            assert_eq!(agreed(tool, &[61.0, 59.0, 59.2]), Some(59.0));
        }
        assert_eq!(agreed(Tool::Perftest, &[61.0, 59.0, 61.0]), None);
        assert_eq!(agreed(Tool::Stride, &[61.0, 59.0, 61.0]), Some(61.0));
    }

    #[test]
    fn work_outside_the_loop_costs_the_loop_nothing() {
        let mut verdict = Verdict::default();
        verdict.besides(63.2, 63.2).unwrap();
        assert!(verdict.missed.is_empty());
        verdict.besides(63.2, 64.2).unwrap();
        assert_eq!(verdict.missed.len(), 1);
    }

    #[test]
    fn every_operation_is_counted_and_long_lists_once() {
        let names: Vec<_> = InstructionCase::all(&[]).into_iter().map(InstructionCase::name).collect();
        assert_eq!(names.len(), 9);
        assert!(
            ["write-bw-lists", "read-lat", "send-bw", "atomic-lat"]
                .iter()
                .all(|name| names.contains(&(*name).to_owned()))
        );
    }
}
