//! `cargo xtask softroce`: runs a command on a machine with an RDMA device.
//!
//! The device is the kernel's SoftRoCE in a virtual machine with a separate kernel, rdma-core and
//! perftest, so that the host's release and kernel do not matter. With `--host` it is the host's
//! own device.
//!
//! The command's environment:
//!
//! | variable | meaning |
//! | --- | --- |
//! | `PATH` | begins with the workspace's programs and examples |
//! | `SOFTROCE_RDMA_CORE` | `old`, `new`, `newest` or `host` |
//! | `SOFTROCE_DEVICE` | the RDMA device; a guest has `rxe0`, and `rxe1` behind a veth pair |
//! | `SOFTROCE_GID_INDEX` | the index of the device's RoCE v2 GID, in a guest |
//! | `SOFTROCE_ADDRESS` | the address that a client connects to |
//! | `SOFTROCE_PEER_DEVICE`, `SOFTROCE_PEER_ADDRESS` | the second device, in a guest |
//! | `SOFTROCE_EMULATED` | set in a guest whose processor is emulated: long tests do less there |
//! | `SOFTROCE_OUT` | a folder that the command may write and the host sees |
//! | `SIDEWAY_PROVIDER`, `SIDEWAY_TEST_REQUIRE_DEVICE` | `system`, `1`: a test that finds no device fails |

mod accelerator;
mod demo;
mod environment;
mod folders;
mod glibc;
mod host;
mod host_tools;
mod machine;
mod programs;
mod shell;
mod suite;
mod user_space;
mod vm;

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;

use folders::Folders;
use user_space::RdmaCore;

pub(crate) use environment::Job;
pub(crate) use machine::TestMachine;
pub(crate) use programs::{Profile, Programs};

/// The machine and the time limit.
#[derive(clap::Args)]
pub(crate) struct MachineArgs {
    /// The guest's rdma-core: 44 on kernel 6.1, 56 on kernel 6.12, or the newest of Debian's
    /// unstable release
    #[arg(long, value_enum, default_value_t = RdmaCore::Old)]
    rdma_core: RdmaCore,

    /// Use the host's own RDMA device instead of a virtual machine
    #[arg(long, conflicts_with_all = ["rdma_core", "cpus", "share", "counted"])]
    host: bool,

    /// Virtual CPUs of the guest [default: 2; new: 4, because its SoftRoCE needs more CPUs than
    /// busy threads]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    cpus: Option<u32>,

    /// Emulate a guest of one CPU in which every instruction takes one nanosecond, so that its
    /// clock counts instructions and a busy host does not matter
    #[arg(long, conflicts_with = "cpus")]
    counted: bool,

    /// Share one more folder of the host with the guest, read-only at the same path (repeatable)
    #[arg(long, value_name = "DIR")]
    share: Vec<PathBuf>,

    /// Stop after this many seconds, boot included, with exit code 124
    #[arg(long, value_name = "SECONDS", default_value_t = 1800, value_parser = clap::value_parser!(u64).range(1..))]
    timeout: u64,
}

impl MachineArgs {
    /// The guest's name.
    pub(crate) fn rdma_core(&self) -> &'static str {
        if self.host { "host" } else { self.rdma_core.name() }
    }

    /// The command-line flags for this machine.
    pub(crate) fn flag(&self) -> String {
        match self {
            Self { host: true, .. } => "--host".to_owned(),
            Self { counted, .. } => {
                format!("--rdma-core {}{}", self.rdma_core(), if *counted { " --counted" } else { "" })
            }
        }
    }

    /// Whether the guest's clock counts instructions.
    pub(crate) fn is_counted(&self) -> bool {
        self.counted
    }

    /// The machine, the programs for it (not built yet) and a job without a command.
    pub(crate) fn prepare(&self, root: &Path, profile: Profile) -> Result<(TestMachine, Programs, Job)> {
        let folders = Folders::new(root)?;
        let time_limit = Duration::from_secs(self.timeout);
        let machine = if self.host {
            TestMachine::host(time_limit)?
        } else {
            let cpus = self.cpus.unwrap_or(match self.rdma_core {
                _ if self.counted => 1,
                RdmaCore::New | RdmaCore::Newest => 4,
                RdmaCore::Old => 2,
            });
            TestMachine::guest(&folders, self.rdma_core, cpus, self.counted, time_limit)?
        };
        let programs = Programs::new(&folders, &machine, profile);
        let mut job = Job::new(&folders, &machine, &programs)?;
        for folder in &self.share {
            job.share(folder)?;
        }
        Ok((machine, programs, job))
    }
}

/// The arguments of `cargo xtask softroce`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    machine: MachineArgs,

    /// Use the programs of the last build
    #[arg(long, conflicts_with = "suite")]
    no_build: bool,

    #[command(flatten)]
    suite: suite::SuiteArgs,

    /// The command and its arguments; the default is a demonstration. With --suite: arguments of
    /// the tests
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// Runs the command, the tests or the demonstration, and returns its exit code.
pub(crate) fn run(root: &Path, args: &Args) -> Result<ExitCode> {
    let profile = if args.suite.suite { Profile::Dev } else { Profile::Release };
    let (machine, programs, mut job) = args.machine.prepare(root, profile)?;
    if args.suite.suite {
        return args.suite.run(&machine, &programs, job, &args.command);
    }
    if !args.no_build {
        programs.build()?;
    }
    job.command = if args.command.is_empty() { demo::SCRIPT.to_owned() } else { shell::join(&args.command) };
    let report = machine.run(&job, &mut io::stdout(), &mut io::stderr())?;
    Ok(report.outcome.exit_code())
}
