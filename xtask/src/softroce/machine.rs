//! The machine of a job: a guest or the host.

use std::io::Write;
use std::time::Duration;

use anyhow::Result;

use super::accelerator::Accelerator;
use super::environment::Job;
use super::folders::Folders;
use super::host::HostMachine;
use super::host_tools;
use super::user_space::{RdmaCore, UserSpace};
use super::vm::{JobReport, Vm};

/// A machine with an RDMA device.
pub(crate) enum TestMachine {
    Guest(Vm),
    Host(HostMachine),
}

impl TestMachine {
    /// Prepares the guest: its user space and its accelerator.
    pub(super) fn guest(
        folders: &Folders,
        rdma_core: RdmaCore,
        cpus: u32,
        counted: bool,
        time_limit: Duration,
    ) -> Result<Self> {
        anyhow::ensure!(
            cfg!(target_arch = "x86_64"),
            "the guests are x86-64; on this machine use --host, which needs an RDMA device"
        );
        host_tools::require(host_tools::BOOT)?;
        let user_space = UserSpace::get(folders, rdma_core)?;
        let accelerator = match counted {
            true => Accelerator::Counting,
            false => Accelerator::choose(folders, &user_space),
        };
        let console_copy = Some(folders.cache.join("console.log"));
        Ok(Self::Guest(Vm { rdma_core, user_space, accelerator, cpus, console_copy, time_limit }))
    }

    /// The host, which must have an RDMA device.
    pub(super) fn host(time_limit: Duration) -> Result<Self> {
        Ok(Self::Host(HostMachine::find(time_limit)?))
    }

    /// The `SOFTROCE_*` variables that describe the machine to the command.
    pub(super) fn variables(&self) -> Vec<(&'static str, String)> {
        match self {
            Self::Guest(vm) => vm.variables(),
            Self::Host(host) => host.variables(),
        }
    }

    /// Runs the job, and passes its output on as it arrives.
    pub(crate) fn run<O, E>(&self, job: &Job, stdout: &mut O, stderr: &mut E) -> Result<JobReport>
    where
        O: Write + Send,
        E: Write + Send,
    {
        match self {
            Self::Guest(vm) => vm.run(job, stdout, stderr),
            Self::Host(host) => host.run(job, stdout, stderr),
        }
    }

    /// The title of the summary line, for example `softroce old (...)`.
    pub(crate) fn title(&self, report: &JobReport) -> String {
        match self {
            Self::Guest(vm) => format!(
                "softroce {} (rdma-core {}, kernel {})",
                vm.rdma_core.name(),
                report.rdma_core_version,
                report.kernel_version
            ),
            Self::Host(host) => format!("softroce host ({})", host.device),
        }
    }
}
