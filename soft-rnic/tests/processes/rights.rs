//! What a test lacks the right to do, and users without rights.

use std::os::fd::AsRawFd;
use std::process::Command;

use libtest_mimic::{Completion, Failed, Trial};

/// A user without privileges.
pub(crate) const NOBODY: u32 = 65534;

/// A test that is reported and ignored where it `lacks` something.
pub(crate) fn trial_unless(
    name: impl Into<String>,
    lacks: fn() -> Option<&'static str>,
    test: impl FnOnce() -> Result<(), Failed> + Send + 'static,
) -> Trial {
    let name = name.into();
    Trial::ignorable_test(name.clone(), move || match lacks() {
        Some(reason) => {
            test_harness::report_skip(&name, reason);
            Ok(Completion::ignored_with(reason))
        }
        None => test().map(|()| Completion::Completed),
    })
}

pub(crate) fn not_root() -> Option<&'static str> {
    (!rustix::process::geteuid().is_root()).then_some("only root can change its user and its rights")
}

pub(crate) fn no_user_namespaces() -> Option<&'static str> {
    let usable = Command::new("unshare").args(["-U", "-r", "true"]).status();
    (!usable.is_ok_and(|status| status.success())).then_some("unshare makes no user namespace here")
}

/// Senders take the descriptor of a receiver's channel by `pidfd_getfd`.
pub(crate) fn no_descriptors_of_others() -> Option<&'static str> {
    use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    if matches!(scope.trim(), "2" | "3") {
        return Some("Yama's ptrace_scope forbids the descriptors of other processes");
    }
    let taken = pidfd_open(getpid(), PidfdFlags::empty())
        .and_then(|own| pidfd_getfd(&own, own.as_raw_fd(), PidfdGetfdFlags::empty()));
    taken.is_err().then_some("the kernel (before 5.6) or a seccomp profile forbids pidfd_getfd")
}

pub(crate) fn become_nobody() {
    // SAFETY: the call accesses no memory.
    assert_eq!(unsafe { libc::setresuid(NOBODY, NOBODY, NOBODY) }, 0);
}
