//! Our cmtime against rdma-core's, in a guest.

use std::fmt::Write as _;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};

use super::Softroce;
use crate::bench::document::{Section, today};
use crate::bench::statistics::{Interval, interval, median};
use crate::softroce::Profile;

/// The script that runs in the guest.
const SCRIPT: &str = include_str!("softroce.sh");

/// What a step may cost, times what it costs C.
const BOUND: f64 = 1.05;

/// What a step took: C, ours, and C again, in turns.
#[derive(Debug, PartialEq)]
struct Step {
    name: String,
    turns: Vec<[f64; 3]>,
}

pub(super) fn run(root: &Path, args: &Softroce, dry_run: bool) -> Result<ExitCode> {
    let (place, programs, mut job) = args.place.prepare(root, Profile::Release)?;
    programs.build()?;
    job.command = format!("PAIRS={}\nCONNECTIONS={}\n{SCRIPT}", args.pairs, args.connections);
    let mut output = Vec::new();
    let ran = place.run(&job, &mut output, &mut io::stderr())?;
    let steps = parse(&String::from_utf8_lossy(&output))?;
    ensure!(!steps.is_empty(), "the guest measured nothing: its messages are above");
    let body = table(&steps)?;
    println!("{body}");
    if !dry_run {
        let title = place.title(&ran);
        let intro = format!(
            "{}, on {title}, {} connections a run, against C's server. Microseconds a connection, at the client: until all have done the \
             step; of what has no such time, each connection's own. Medians of {} turns; missed is what is above the bound with its \
             whole interval.\n\n    cargo xtask bench cm softroce \
             {} --pairs {} --connections {}",
            today(),
            args.connections,
            args.pairs,
            args.place.flag(),
            args.pairs,
            args.connections
        );
        let name = format!("cm softroce {}", args.place.rdma_core());
        let title = format!("cmtime against C's: {}", args.place.rdma_core());
        Section { name: &name, title: &title, intro: &intro, body: &body }.write(root)?;
    }
    Ok(ran.ending.exit_code())
}

/// Lines `sample STEP C OURS C`, with `_` for spaces in the step's name.
fn parse(output: &str) -> Result<Vec<Step>> {
    let mut steps: Vec<Step> = Vec::new();
    for line in output.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let ["sample", name, figures @ ..] = &words[..] else {
            bail!("unexpected output of the guest: {line}")
        };
        let figures: Vec<f64> = figures.iter().map(|word| word.parse()).collect::<Result<_, _>>()?;
        let turn: [f64; 3] = figures.try_into().ok().with_context(|| format!("not three figures: {line}"))?;
        let name = name.replace('_', " ");
        match steps.iter_mut().find(|step| step.name == name) {
            Some(step) => step.turns.push(turn),
            None => steps.push(Step { name, turns: vec![turn] }),
        }
    }
    Ok(steps)
}

/// The middle of our times, times the middle of all of C's; and the middle of C's second times, times that of its first. The bound is
/// missed where the whole interval is above it: an emulated guest needs many turns until that says something of the smallest steps.
fn table(steps: &[Step]) -> Result<String> {
    let mut table = String::from(
        "| step | C, us | ours, us | ours / C | 95 % interval | C / C | at most |\n\
         | --- | ---: | ---: | ---: | ---: | ---: | ---: |\n",
    );
    for Step { name, turns } in steps {
        let ours = |turns: &[[f64; 3]]| median(turns.iter().map(|turn| turn[1]).collect());
        let c = |turns: &[[f64; 3]]| median(turns.iter().flat_map(|turn| [turn[0], turn[2]]).collect());
        let times = interval(turns, |turns| ours(turns) / c(turns));
        let verdict = match times {
            Interval { low, .. } if low > BOUND => " **missed**",
            Interval { mean, .. } if mean > BOUND => " **undecided**",
            _ => "",
        };
        let first = median(turns.iter().map(|turn| turn[0]).collect());
        let again = median(turns.iter().map(|turn| turn[2]).collect());
        writeln!(
            table,
            "| {name} | {:.2} | {:.2} | {:.3}{verdict} | {:.3} to {:.3} | {:.3} | {BOUND:.2} |",
            c(turns),
            ours(turns),
            times.mean,
            times.low,
            times.high,
            again / first,
        )?;
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_costs_more_is_marked() {
        let turn = "sample create_id 2.0 2.0 2.0\nsample connect 10 11 10\nsample bind 10 12 10\nsample bind 10 9 10\n";
        let said = [turn, turn, "sample create_id 2 2.2 2\n", turn, "sample bind 10 12 10\n"].concat();
        let steps = parse(&said).unwrap();
        assert_eq!(steps.len(), 3);
        assert_eq!(steps[0].turns[..3], [[2.0, 2.0, 2.0], [2.0, 2.0, 2.0], [2.0, 2.2, 2.0]]);
        let table = table(&steps).unwrap();
        assert!(table.contains("| create id | 2.00 | 2.00 | 1.000 | 1.000 to 1.100 |"), "{table}");
        assert!(table.contains("| connect | 10.00 | 11.00 | 1.100 **missed** |"), "{table}");
        assert!(table.contains("| bind | 10.00 | 12.00 | 1.200 **undecided** | 0.900 to 1.200 |"), "{table}");
        assert!(parse("what").is_err() && parse("sample x 1 2").is_err());
    }
}
