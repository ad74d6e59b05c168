//! `cargo xtask bench`: performance as ratios within one interleaved run.
//!
//! Machines are shared and noisy. Therefore each figure is the ratio of two programs that ran one
//! after the other, and next to it stands the ratio of one program to itself from the same run.
//! Only commands that count instructions instead of time are gates.

mod build;
mod callgrind;
mod cm;
mod document;
mod mux;
mod overhead;
mod perftest;
mod programs;
mod rails;
mod report;
mod rounds;
mod soft;
mod statistics;
mod threads;
mod trespass;
mod windows;

use std::io;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;

use crate::softroce::{MachineArgs, Profile};
pub(crate) use build::rustc;
use document::Section;
use report::report;

/// The script that runs in the guest.
const SCRIPT: &str = include_str!("softroce.sh");

/// The arguments of `cargo xtask bench`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: BenchCommand,
}

#[derive(clap::Subcommand)]
enum BenchCommand {
    /// stride-perf against perftest, over SoftRoCE in the guest whose kernel runs it best (6.1)
    Softroce(SoftroceArgs),
    /// The CPU seconds of first builds from a fresh clone of HEAD, and the size of stride-perf
    Build(build::Args),
    /// sideway against C, in instructions over the software device: a gate
    Overhead(overhead::Args),
    /// The software device against the machine without it
    Soft(soft::Args),
    /// stride-perf against perftest, over the software device
    #[command(alias = "stride")]
    Perftest(perftest::Args),
    /// Two threads of stride-perf against one, over the software device
    Threads(threads::Args),
    /// Connections through the connection manager
    Cm(cm::Args),
    /// Requests and answers of a mux, with 1 to 256 in flight
    Mux(mux::Args),
    /// One trespass connection over several software devices against one device
    Rails(rails::Args),
    /// trespass against perftest and against itself over TCP, over the software device
    Trespass(trespass::Args),
    /// One-sided operations on windows against the same verbs, over the software device
    Windows(windows::Args),
}

#[derive(clap::Args)]
struct SoftroceArgs {
    #[command(flatten)]
    machine: MachineArgs,

    /// The number of rounds (perftest, stride-perf, perftest again) for each row
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..))]
    pairs: u32,

    /// Only bandwidths and message rates, or only latencies, which a guest with one processor
    /// cannot measure
    #[arg(long, value_parser = ["bw", "lat"])]
    only: Option<String>,

    /// Print the result without writing it to docs/generated/performance
    #[arg(long)]
    dry_run: bool,
}

pub(crate) fn run(root: &Path, args: &Args) -> Result<ExitCode> {
    match &args.command {
        BenchCommand::Softroce(args) => softroce(root, args),
        BenchCommand::Build(args) => build::run(root, args),
        BenchCommand::Overhead(args) => overhead::run(root, args),
        BenchCommand::Soft(args) => soft::run(root, args),
        BenchCommand::Perftest(args) => perftest::run(root, args),
        BenchCommand::Threads(args) => threads::run(root, args),
        BenchCommand::Cm(args) => cm::run(root, args),
        BenchCommand::Mux(args) => mux::run(root, args),
        BenchCommand::Rails(args) => rails::run(root, args),
        BenchCommand::Trespass(args) => trespass::run(root, args),
        BenchCommand::Windows(args) => windows::run(root, args),
    }
}

fn softroce(root: &Path, args: &SoftroceArgs) -> Result<ExitCode> {
    let (machine, programs, mut job) = args.machine.prepare(root, Profile::Release)?;
    programs.build()?;
    let only = args.only.as_deref().unwrap_or_default();
    job.command = format!("PAIRS={}\nONLY={only}\n{SCRIPT}", args.pairs);
    let mut output = Vec::new();
    let ran = machine.run(&job, &mut output, &mut io::stderr())?;
    let (perftest, body) = report(&String::from_utf8_lossy(&output))?;
    print!("{body}");
    if !args.dry_run {
        let intro = format!(
            "{}, on {}, {perftest}, stride-perf {}.{} Medians of {} rounds; in brackets the 95 % bootstrap interval of the geometric \
             mean.\n\n    cargo xtask bench softroce {}{} --pairs {}",
            document::today(),
            machine.title(&ran),
            env!("CARGO_PKG_VERSION"),
            if args.machine.is_counted() {
                " The guest's clock counts instructions, the kernel's with them: 1,000 are a microsecond."
            } else {
                ""
            },
            args.pairs,
            args.machine.flag(),
            if only.is_empty() { String::new() } else { format!(" --only {only}") },
            args.pairs,
        );
        let (name, title) = (format!("softroce {only}"), format!("stride-perf against perftest {only}"));
        Section { name: name.trim_end(), title: title.trim_end(), intro: &intro, body: &body }.write(root)?;
    }
    Ok(ran.outcome.exit_code())
}
