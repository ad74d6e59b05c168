//! What a test lacks the right to do, and users without rights.

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

pub(crate) fn become_nobody() {
    // SAFETY: the call accesses no memory.
    assert_eq!(unsafe { libc::setresuid(NOBODY, NOBODY, NOBODY) }, 0);
}
