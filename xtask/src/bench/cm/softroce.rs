//! Our cmtime compared with rdma-core's, in a guest.

use std::fmt::Write as _;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, ensure};

use super::SoftroceArgs;
use crate::bench::document::{Section, today};
use crate::bench::rounds::{NamedRounds, Round, parse};
use crate::bench::statistics::{interval, median};
use crate::softroce::Profile;

/// The script that runs in the guest.
const SCRIPT: &str = include_str!("softroce.sh");

/// The allowed cost of a step, as a multiple of C's.
const BOUND: f64 = 1.05;

pub(super) fn run(root: &Path, args: &SoftroceArgs, dry_run: bool) -> Result<ExitCode> {
    ensure!(
        args.machine.rdma_core() != "newest",
        "the newest rdma-core's cmtime has a controller (-C), and ours cannot connect to its server: use `--rdma-core old` or `new`"
    );
    let (machine, programs, mut job) = args.machine.prepare(root, Profile::Release)?;
    programs.build_example("rdma-examples", "cmtime")?;
    job.command = format!("PAIRS={}\nCONNECTIONS={}\n{SCRIPT}", args.pairs, args.connections);
    let mut output = Vec::new();
    let ran = machine.run(&job, &mut output, &mut io::stderr())?;
    let steps = parse(&String::from_utf8_lossy(&output))?;
    ensure!(!steps.is_empty(), "the guest measured nothing; see its messages above");
    let body = table(&steps)?;
    println!("{body}");
    if !dry_run {
        let title = machine.title(&ran);
        let intro = format!(
            "{}, on {title}, {} connections a run, against C's server. {} a connection, at the client: until all have done the \
             step; of what has no such time, each connection's own. Medians of {} rounds; missed is what is above the bound with its \
             whole interval.\n\n    cargo xtask bench cm softroce \
             {} --pairs {} --connections {}",
            today(),
            args.connections,
            match args.machine.is_counted() {
                true =>
                    "The guest's clock counts instructions, the kernel's with them: 1,000 are a microsecond. Microseconds",
                false => "Microseconds",
            },
            args.pairs,
            args.machine.flag(),
            args.pairs,
            args.connections
        );
        let name = format!("cm softroce {}", args.machine.rdma_core());
        let title = format!("cmtime against C's: {}", args.machine.rdma_core());
        Section { name: &name, title: &title, intro: &intro, body: &body }.write(root)?;
    }
    Ok(ran.outcome.exit_code())
}

/// The columns are our median as a multiple of the median of all C runs, and the median of the
/// second C runs as a multiple of that of the first. The bound is missed if the whole interval is
/// above it. An emulated guest needs many rounds before that is meaningful for the smallest steps.
fn table(steps: &[NamedRounds]) -> Result<String> {
    let mut table = String::from(
        "| step | C, us | ours, us | ours / C | 95 % interval | C / C | at most |\n\
         | --- | ---: | ---: | ---: | ---: | ---: | ---: |\n",
    );
    for NamedRounds { name, rounds } in steps {
        let ours = |rounds: &[Round]| median(rounds.iter().map(|round| round.ours).collect());
        let c = |rounds: &[Round]| {
            median(rounds.iter().flat_map(|round| [round.reference, round.again]).collect())
        };
        let times = interval(rounds, |rounds| ours(rounds) / c(rounds));
        let verdict = times.at_most(BOUND);
        let first = median(rounds.iter().map(|round| round.reference).collect());
        let again = median(rounds.iter().map(|round| round.again).collect());
        writeln!(
            table,
            "| {name} | {:.2} | {:.2} | {:.3}{verdict} | {:.3} to {:.3} | {:.3} | {BOUND:.2} |",
            c(rounds),
            ours(rounds),
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
        let round = "sample create_id 2.0 2.0 2.0\nsample connect 10 11 10\nsample bind 10 12 10\nsample bind 10 9 10\n";
        let said = [round, round, "sample create_id 2 2.2 2\n", round, "sample bind 10 12 10\n"].concat();
        let steps = parse(&said).unwrap();
        assert_eq!(steps.len(), 3);
        let table = table(&steps).unwrap();
        assert!(table.contains("| create id | 2.00 | 2.00 | 1.000 | 1.000 to 1.100 |"), "{table}");
        assert!(table.contains("| connect | 10.00 | 11.00 | 1.100 **missed** |"), "{table}");
        assert!(table.contains("| bind | 10.00 | 12.00 | 1.200 **undecided** | 0.900 to 1.200 |"), "{table}");
    }
}
