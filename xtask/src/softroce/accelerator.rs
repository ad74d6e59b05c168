//! KVM if it works, else software emulation; or emulation that counts instructions, for
//! measurements.

use std::fs::{self, File};
use std::io;
use std::time::Duration;

use super::environment::Job;
use super::folders::Folders;
use super::user_space::{RdmaCore, UserSpace};
use super::vm::{JobOutcome, Vm};

/// How QEMU runs the guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Accelerator {
    Kvm,
    Emulation,
    /// Every instruction takes one nanosecond of the guest's time, and nothing else takes any. So
    /// the guest's clock counts instructions, whatever else the machine does. Processors run in
    /// turn.
    Counting,
}

/// With KVM a guest boots in two or three seconds, so that one that takes longer is stuck.
const TRIAL: Duration = Duration::from_secs(15);

impl Accelerator {
    /// QEMU's arguments. The plain CPU is the fastest to emulate: SoftRoCE's checksums take twice
    /// as long with vector instructions.
    pub(super) fn arguments(self) -> [&'static str; 4] {
        match self {
            Self::Kvm => ["-accel", "kvm", "-cpu", "host"],
            Self::Emulation => ["-accel", "tcg,thread=multi", "-cpu", "qemu64,+rdrand"],
            Self::Counting => ["-icount", "shift=0,sleep=off", "-cpu", "qemu64,+rdrand"],
        }
    }

    /// The kernel's arguments. All emulated CPUs share one time stamp counter, which the kernel
    /// cannot know. Without the argument each reading of the clock would be a trap into QEMU.
    pub(super) fn kernel_arguments(self) -> &'static str {
        match self {
            Self::Kvm => "",
            Self::Emulation | Self::Counting => "tsc=reliable",
        }
    }

    /// The accelerator that works here. The existence of /dev/kvm proves nothing, because the
    /// machine may be virtual itself. Therefore a guest is booted once, and the result is kept
    /// until the next reboot.
    pub(super) fn choose(folders: &Folders, user_space: &UserSpace) -> Self {
        if File::options().read(true).write(true).open("/dev/kvm").is_err() {
            return Self::Emulation;
        }
        let memory = folders.cache.join("accelerator");
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        if let Some(known) = fs::read_to_string(&memory).ok().and_then(|text| Self::recall(&text, &boot)) {
            return known;
        }
        eprintln!("softroce: trying whether KVM works (once, {} s at most)", TRIAL.as_secs());
        let found = if Self::Kvm.boots(user_space) { Self::Kvm } else { Self::Emulation };
        eprintln!("softroce: {}", found.verdict());
        let _ = fs::write(memory, format!("{} {}\n", found.name(), boot.trim()));
        found
    }

    fn boots(self, user_space: &UserSpace) -> bool {
        let vm = Vm {
            rdma_core: RdmaCore::Old,
            user_space: user_space.clone(),
            console_copy: None,
            accelerator: self,
            cpus: 2,
            time_limit: TRIAL,
        };
        let job = Job::bare("true");
        vm.run(&job, &mut io::sink(), &mut io::sink())
            .is_ok_and(|report| report.outcome == JobOutcome::Exited(0))
    }

    fn name(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Emulation => "emulation",
            Self::Counting => "counting",
        }
    }

    fn verdict(self) -> &'static str {
        match self {
            Self::Kvm => "KVM works",
            Self::Emulation => "KVM boots no guest here; using software emulation",
            Self::Counting => "instructions are counted",
        }
    }

    /// The kept result, if it is from this boot of the machine.
    fn recall(memory: &str, boot: &str) -> Option<Self> {
        let (name, remembered) = memory.trim().split_once(' ')?;
        let known =
            [Self::Kvm, Self::Emulation].into_iter().find(|accelerator| accelerator.name() == name)?;
        (remembered == boot.trim()).then_some(known)
    }
}

#[cfg(test)]
mod tests {
    use super::Accelerator;

    #[test]
    fn an_outcome_is_remembered_for_one_boot() {
        assert_eq!(Accelerator::recall("kvm 1-2-3\n", "1-2-3\n"), Some(Accelerator::Kvm));
        assert_eq!(Accelerator::recall("emulation 1-2-3", "1-2-3\n"), Some(Accelerator::Emulation));
        assert_eq!(Accelerator::recall("kvm 1-2-3", "4-5-6"), None);
        assert_eq!(Accelerator::recall("", "4-5-6"), None);
    }
}
