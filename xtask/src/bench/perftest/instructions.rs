//! What a message costs a program, in instructions: free of noise.

use std::fmt::Write as _;
use std::process::Command;

use anyhow::{Result, bail};
use clap::ValueEnum;

use super::pair::{Measure, Operation, Pairs, Run, Tool};
use crate::bench::callgrind::{Counts, TimedLoop};
use crate::bench::programs::Programs;
use crate::bench::soft::way::Way;

/// Messages of a run; of the longer one, where there are two, twice as many.
const MESSAGES: u64 = 4000;

/// A run in which a message waits for the peer neither seldom nor for long tells nothing: this many of them.
const RUNS: u32 = 8;

/// The bytes of a message.
const SIZE: u64 = 64;

/// The table, and what is missed.
pub(super) fn compare(programs: &Programs, operations: &[Operation]) -> Result<String> {
    let pairs = Pairs::new(programs)?;
    let mut table = String::from(
        "| 64-byte messages (atomics: 8), direct | perftest | stride-perf | ratio | perftest, in all | stride-perf, in all | ratio |\n\
         | --- | ---: | ---: | ---: | ---: | ---: | ---: |\n",
    );
    let operations = if operations.is_empty() { Operation::value_variants() } else { operations };
    let both = [Measure::Bandwidth, Measure::Latency];
    for (operation, measure) in
        operations.iter().flat_map(|operation| both.map(|measure| (*operation, measure)))
    {
        let title = format!("{} {}", operation.name(), measure.name());
        let a = count(programs, &pairs, Tool::Perftest, operation, measure)?;
        let b = count(programs, &pairs, Tool::Stride, operation, measure)?;
        let verdict = if b.own <= a.own { "" } else { " **missed**" };
        writeln!(
            table,
            "| {title} | {:.1} | {:.1} | {:.2}{verdict} | {:.1} | {:.1} | {:.2} |",
            a.own,
            b.own,
            b.own / a.own,
            a.total,
            b.total,
            b.total / a.total
        )?;
    }
    Ok(table)
}

/// By message. Of several counts, two must be the same.
fn count(
    programs: &Programs,
    pairs: &Pairs<'_>,
    tool: Tool,
    operation: Operation,
    measure: Measure,
) -> Result<TimedLoop> {
    let mut loops: Vec<TimedLoop> = Vec::new();
    let mut last = None;
    for _ in 0..RUNS {
        let run = |iterations| {
            let (way, size) = (Way::Direct, operation.size(SIZE));
            callgrind(programs, pairs, Run { tool, operation, measure, way, size, iterations })
        };
        let each = match measure {
            // Nothing waits here, and a poll is for many messages.
            Measure::Bandwidth => run(2 * MESSAGES)?.more_than(&run(MESSAGES)?, MESSAGES),
            // So many that the polls while the connection is made are few among them.
            Measure::Latency => run(5 * MESSAGES)?.more_than(&Counts::default(), 5 * MESSAGES),
        };
        match each.timed_loop(&tool.program(programs, operation, measure), &programs.library()) {
            Ok(timed) if loops.iter().any(|known| (known.own - timed.own).abs() < 0.5) => return Ok(timed),
            Ok(timed) => loops.push(timed),
            Err(error) => last = Some(error),
        }
    }
    bail!("{tool:?} {operation:?} {measure:?}: {RUNS} runs, and no two agree: {loops:?} {last:?}")
}

fn callgrind(programs: &Programs, pairs: &Pairs<'_>, run: Run) -> Result<Counts> {
    let out = programs.folder().join(format!("callgrind.{}.out", std::process::id()));
    pairs.run(run, || {
        let mut valgrind = Command::new("valgrind");
        valgrind.args(["--quiet", "--tool=callgrind"]).arg(format!("--callgrind-out-file={}", out.display()));
        if run.measure == Measure::Latency {
            valgrind.arg("--dump-instr=yes");
        }
        Some(valgrind)
    })?;
    let text = std::fs::read_to_string(&out)?;
    std::fs::remove_file(&out)?;
    Counts::parse(&text)
}
