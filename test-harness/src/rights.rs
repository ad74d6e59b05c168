//! Copies of a test program that have more rights than the user who starts them.

use std::io;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::fs::{StatVfsMountFlags, XattrFlags};

use crate::report_skip;

/// The user who starts the program, and the one whose rights it gets.
const USER: u32 = 54_321;
const OTHER: u32 = 54_322;
/// The value of [`CAPABILITY_ATTRIBUTE`], in revision 2. It makes `CAP_NET_BIND_SERVICE` permitted and
/// effective.
const CAPABILITY: [u32; 5] = [0x0200_0001, 1 << 10, 0, 0, 0];

const CAPABILITY_ATTRIBUTE: &str = "security.capability";

/// How the program gets more rights than its user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grant {
    /// It is set-user-ID.
    SetUser,
    /// It has a file capability.
    Capability,
}

impl Grant {
    /// Both.
    pub const ALL: [Self; 2] = [Self::SetUser, Self::Capability];
}

/// A copy of a program, in a folder that every user can read. Dropping it deletes the folder.
#[derive(Debug)]
pub struct PrivilegedCopy(PathBuf);

impl PrivilegedCopy {
    /// Copies the running test program. `None` where this machine gives no program more rights; the
    /// reason is [reported](report_skip), as of a skipped part of `test`.
    ///
    /// # Panics
    ///
    /// If root cannot write to the folder for temporary files.
    #[must_use]
    pub fn new(test: &str, grant: Grant) -> Option<Self> {
        Self::of(&std::env::current_exe().expect("this program"), test, grant)
    }

    /// Copies a program, as [`new`](Self::new) copies this one.
    ///
    /// # Panics
    ///
    /// If there is no such program, or root cannot write to the folder for temporary files.
    #[must_use]
    pub fn of(program: &Path, test: &str, grant: Grant) -> Option<Self> {
        Self::make(program, grant).map_err(|reason| report_skip(&format!("{test} ({grant:?})"), reason)).ok()
    }

    fn make(program: &Path, grant: Grant) -> Result<Self, String> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        if !rustix::process::geteuid().is_root() {
            return Err("only root can give a program more rights than its user".into());
        }
        let base = std::env::temp_dir();
        let flags = rustix::fs::statvfs(&base).expect("a file system").f_flag;
        if flags.intersects(StatVfsMountFlags::NOSUID | StatVfsMountFlags::NOEXEC) {
            return Err(format!("{} is mounted nosuid or noexec", base.display()));
        }
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = base.join(format!("more-rights-{}-{number}", std::process::id()));
        std::fs::create_dir(&folder).expect("a folder");
        let copy = Self(folder);
        std::fs::copy(program, copy.program()).expect("a copy");
        set_mode(&copy.0, 0o755);
        match grant {
            Grant::SetUser => {
                chown(copy.program(), Some(OTHER), None).map_err(|error| error.to_string())?;
                set_mode(&copy.program(), 0o4755);
            }
            Grant::Capability => {
                let value: Vec<u8> = CAPABILITY.into_iter().flat_map(u32::to_le_bytes).collect();
                rustix::fs::setxattr(copy.program(), CAPABILITY_ATTRIBUTE, &value, XattrFlags::empty())
                    .map_err(|error| format!("a file cannot get a capability: {error}"))?;
                set_mode(&copy.program(), 0o755);
            }
        }
        Ok(copy)
    }

    fn program(&self) -> PathBuf {
        self.0.join("program")
    }

    /// The folder, for further files that the program shall find.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.0
    }

    /// Takes the rights from the copy, so that it has those of its user.
    ///
    /// # Panics
    ///
    /// If the file cannot be changed.
    pub fn revoke(&self) {
        match rustix::fs::removexattr(self.program(), CAPABILITY_ATTRIBUTE) {
            Ok(()) | Err(rustix::io::Errno::NODATA) => {}
            Err(error) => panic!("{error}"),
        }
        set_mode(&self.program(), 0o755);
    }

    /// Runs the copy as the user with fewer rights, after `prepare` has added arguments and
    /// variables.
    ///
    /// # Panics
    ///
    /// If it cannot be started.
    #[must_use]
    pub fn run(&self, prepare: impl FnOnce(&mut Command)) -> Output {
        let mut command = Command::new(self.program());
        command.uid(USER).gid(USER).current_dir("/");
        prepare(&mut command);
        for _ in 0..1000 {
            match command.output() {
                // A child that another thread has just forked still has the copy open for writing.
                Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                output => return output.expect("every user may run it"),
            }
        }
        panic!("the copy stays open for writing");
    }
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("a mode");
}

impl Drop for PrivilegedCopy {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("{} stays: {error}", self.0.display());
        }
    }
}
