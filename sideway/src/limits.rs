//! The process's resource limits, for errors that one of them explains.

use std::fmt;
use std::io;

use rustix::process::{Resource, getrlimit};

/// The soft limit of a resource (`man getrlimit`); `None` if it is infinite, as all are under Miri.
pub(crate) fn soft_limit(resource: Resource) -> Option<u64> {
    if cfg!(miri) { None } else { getrlimit(resource).current }
}

/// What to do if a call failed because no file descriptor was left; nothing after other failures.
pub(crate) struct OpenFiles<'a>(pub(crate) &'a io::Error);

impl fmt::Display for OpenFiles<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.raw_os_error() {
            Some(libc::EMFILE) => {
                f.write_str("; this process has as many open files as it may have")?;
                if let Some(limit) = soft_limit(Resource::Nofile) {
                    write!(f, " ({limit})")?;
                }
                f.write_str(": raise the limit (`ulimit -n`, LimitNOFILE of a service), or close some")
            }
            Some(libc::ENFILE) => f.write_str(
                "; this system has as many open files as it may have: raise fs.file-max (`sysctl`)",
            ),
            _ => Ok(()),
        }
    }
}
