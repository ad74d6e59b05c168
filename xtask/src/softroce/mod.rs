//! `cargo xtask softroce`: runs a command where there is an RDMA device.
//!
//! The device is the kernel's SoftRoCE in a virtual machine that brings its own
//! kernel, rdma-core and perftest, so that neither the host's release nor its
//! kernel matters; with `--host` it is the host's own.
//!
//! What the command finds, wherever it runs:
//!
//! | variable | is |
//! | --- | --- |
//! | `PATH` | begins with the workspace's programs and examples |
//! | `SOFTROCE_RDMA_CORE` | `old`, `new` or `host` |
//! | `SOFTROCE_DEVICE` | the RDMA device; a guest has `rxe0`, and `rxe1` behind a veth pair |
//! | `SOFTROCE_GID_INDEX` | the index of the device's RoCE v2 GID, in a guest |
//! | `SOFTROCE_ADDRESS` | the address that a client connects to |
//! | `SOFTROCE_PEER_DEVICE`, `SOFTROCE_PEER_ADDRESS` | the second device, in a guest |
//! | `SOFTROCE_OUT` | a folder that the command may write and the host sees |
//! | `SIDEWAY_PROVIDER`, `SIDEWAY_TEST_REQUIRE_DEVICE` | `system`, `1`: a test that finds no device fails |

mod accelerator;
mod demo;
mod environment;
mod folders;
mod glibc;
mod host;
mod host_tools;
mod place;
mod programs;
mod shell;
mod suite;
mod user_space;
mod vm;

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, ensure};

use environment::Job;
use folders::Folders;
use place::Place;
use programs::{Profile, Programs};
use user_space::RdmaCore;
use vm::Ending;

/// Runs a command, the tests or a demonstration over an RDMA device
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The guest's rdma-core: 44 on kernel 6.1, or 56 on kernel 6.12
    #[arg(long, value_enum, default_value_t = RdmaCore::Old)]
    rdma_core: RdmaCore,

    /// Use the host's own RDMA device instead of a virtual machine
    #[arg(long)]
    host: bool,

    /// Run the workspace's device tests; a COMMAND is then their arguments
    #[arg(long)]
    suite: bool,

    /// With --suite: only the test programs of this name (repeatable)
    #[arg(long, value_name = "NAME", requires = "suite")]
    test: Vec<String>,

    /// With --suite: not the test programs of this name (repeatable)
    #[arg(long, value_name = "NAME", requires = "suite")]
    skip: Vec<String>,

    /// With --suite: fail when fewer device tests than this ran
    #[arg(long, value_name = "COUNT", default_value_t = 1, requires = "suite")]
    at_least: u32,

    /// Stop after this long, boot included, with exit code 124 [default: 600, with --suite 1800]
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u64>,

    /// Virtual CPUs of the guest; `new` wants more than there are busy threads
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    cpus: u32,

    /// Show one more folder of the host to the guest, read-only at the same path (repeatable)
    #[arg(long, value_name = "DIR")]
    share: Vec<PathBuf>,

    /// Take the workspace's programs as they were built last time
    #[arg(long)]
    no_build: bool,

    /// The command and its arguments; none runs the demonstration
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

impl Args {
    fn time_limit(&self) -> Duration {
        Duration::from_secs(self.timeout.unwrap_or(if self.suite { 1800 } else { 600 }))
    }
}

/// Runs what the arguments ask for and hands back its exit code.
pub(crate) fn run(root: &Path, args: &Args) -> Result<ExitCode> {
    let folders = Folders::new(root)?;
    let place = if args.host {
        Place::host(args.time_limit())?
    } else {
        Place::guest(&folders, args.rdma_core, args.cpus, args.time_limit())?
    };
    let profile = if args.suite { Profile::Dev } else { Profile::Release };
    let programs = Programs::new(&folders, place.sysroot(), profile);

    let mut job = Job::new(&folders, &place, &programs)?;
    for folder in &args.share {
        job.share(folder)?;
    }
    if args.suite {
        let selection = suite::Selection { only: &args.test, skip: &args.skip };
        return suite::run(&place, &programs, job, &selection, &args.command, args.at_least);
    }
    if !args.no_build {
        programs.build()?;
    }
    job.command = if args.command.is_empty() { demo::SCRIPT.to_owned() } else { shell::join(&args.command) };
    let report = place.run(&job, &mut io::stdout(), &mut io::stderr())?;
    exit_code(&report.ending)
}

/// The chore's own exit code: the command's, or 124 as `timeout` has it.
fn exit_code(ending: &Ending) -> Result<ExitCode> {
    Ok(match ending {
        Ending::Exited(code) => {
            ensure!((0..=255).contains(code), "the command ended with the impossible exit code {code}");
            ExitCode::from(*code as u8)
        }
        Ending::TimedOut(limit) => {
            eprintln!(
                "softroce: stopped after the time limit of {} s (--timeout raises it)",
                limit.as_secs()
            );
            ExitCode::from(124)
        }
    })
}
