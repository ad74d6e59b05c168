//! What a message costs a program, in instructions: free of noise.

use std::fmt::Write as _;
use std::process::Command;

use anyhow::{Result, bail};

use super::pair::{Measure, Pairs, Run, Tool};
use crate::bench::callgrind::{Counts, TimedLoop};
use crate::bench::programs::Programs;
use crate::bench::soft::way::Way;

/// Messages of the shorter run; the longer one has twice as many.
const MESSAGES: u64 = 2000;

/// A message may wait for the peer, and waiting counts: of so many runs, the least...
const RUNS: u32 = 24;

/// ... once two differ by no more than this, per message.
const AGREEMENT: f64 = 0.25;

/// The bytes of a message.
const SIZE: u64 = 64;

/// The table, and what is missed.
pub(super) fn compare(programs: &Programs) -> Result<String> {
    let pairs = Pairs::new(programs)?;
    let mut table = String::from(
        "| 64-byte messages, direct | perftest | stride-perf | ratio | perftest, in all | stride-perf, in all | ratio |\n\
         | --- | ---: | ---: | ---: | ---: | ---: | ---: |\n",
    );
    for (title, measure) in [("write bw", Measure::Bandwidth), ("write lat", Measure::Latency)] {
        let a = count(programs, &pairs, Tool::Perftest, measure)?;
        let b = count(programs, &pairs, Tool::Stride, measure)?;
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

/// What the longer run has more, by message.
fn count(programs: &Programs, pairs: &Pairs<'_>, tool: Tool, measure: Measure) -> Result<TimedLoop> {
    let (mut short, mut long) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        for (iterations, loops) in [(MESSAGES, &mut short), (2 * MESSAGES, &mut long)] {
            if steady(loops).is_none() {
                let run = Run { tool, measure, way: Way::Direct, size: SIZE, iterations };
                let counts = callgrind(programs, pairs, run)?.more_than(&Counts::default(), MESSAGES);
                loops.push(counts.timed_loop(&tool.program(programs, measure), &programs.library())?);
            }
        }
        if let (Some(short), Some(long)) = (steady(&short), steady(&long)) {
            return Ok(TimedLoop { own: long.own - short.own, total: long.total - short.total });
        }
    }
    bail!(
        "{tool:?} {measure:?}: {RUNS} runs waited for each other for too long: run this on a calmer machine"
    )
}

/// The least of the runs, if another is as good.
fn steady(runs: &[TimedLoop]) -> Option<TimedLoop> {
    let mut runs = runs.to_vec();
    runs.sort_by(|a, b| a.own.total_cmp(&b.own));
    let [least, next, ..] = runs.as_slice() else { return None };
    (next.own - least.own <= AGREEMENT).then_some(*least)
}

fn callgrind(programs: &Programs, pairs: &Pairs<'_>, run: Run) -> Result<Counts> {
    let out = programs.folder().join(format!("callgrind.{}.out", std::process::id()));
    pairs.run(run, || {
        let mut valgrind = Command::new("valgrind");
        valgrind.args(["--quiet", "--tool=callgrind"]).arg(format!("--callgrind-out-file={}", out.display()));
        Some(valgrind)
    })?;
    let text = std::fs::read_to_string(&out)?;
    std::fs::remove_file(&out)?;
    Counts::parse(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waited_does_not_count() {
        let run = |own| TimedLoop { own, total: 10.0 * own };
        assert!(steady(&[run(50.0)]).is_none());
        assert!(steady(&[run(50.0), run(900.0), run(51.0)]).is_none());
        let least = steady(&[run(50.2), run(900.0), run(50.0), run(4000.0)]).unwrap();
        assert_eq!((least.own, least.total), (50.0, 500.0));
    }
}
