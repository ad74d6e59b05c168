//! The thread's `errno`, and errors as numbers.

use std::ffi::c_int;
use std::io;

use super::limits;

/// Sets the calling thread's `errno`.
pub(crate) fn set(error: c_int) {
    // SAFETY: the location is the calling thread's `errno`, valid while the thread lives.
    unsafe { *libc::__errno_location() = error };
}

/// The errno of an error; `EIO` for an error that did not come from the system.
pub(crate) fn of(error: &io::Error) -> c_int {
    error.raw_os_error().unwrap_or(match error.kind() {
        io::ErrorKind::OutOfMemory => libc::ENOMEM,
        io::ErrorKind::InvalidInput => libc::EINVAL,
        io::ErrorKind::TimedOut => libc::EBUSY,
        io::ErrorKind::FileTooLarge => libc::EFBIG,
        _ => libc::EIO,
    })
}

/// The errno of an error that made a call fail; if a resource limit was the cause, the log names
/// it.
pub(crate) fn refused(call: &str, error: &io::Error) -> c_int {
    use rustix::process::{Resource, getrlimit};
    let limit = |resource| getrlimit(resource).current.map_or("none".to_owned(), |most| most.to_string());
    let number = of(error);
    match number {
        libc::EMFILE => {
            let most = limit(Resource::Nofile);
            log::error!("{call}: {error}; this process may have {most} file descriptors (RLIMIT_NOFILE)");
        }
        libc::ENFILE => log::error!("{call}: {error}; raise the system's limit, fs.file-max"),
        libc::EAGAIN => log::error!("{call}: no thread could be made; {}", limits::why_no_thread()),
        // The error has a text, which its number lacks.
        _ if error.get_ref().is_some() => log::error!("{call}: {error}"),
        _ => log::debug!("{call}: {error}"),
    }
    number
}
