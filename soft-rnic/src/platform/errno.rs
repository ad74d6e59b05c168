//! This thread's `errno`, and errors as numbers.

use std::ffi::c_int;
use std::io;

/// Sets this thread's `errno`.
pub(crate) fn set(error: c_int) {
    // SAFETY: the location is this thread's own errno, valid for its life.
    unsafe { *libc::__errno_location() = error };
}

/// The number of an error; `EIO` for one that the system did not give.
pub(crate) fn of(error: &io::Error) -> c_int {
    error.raw_os_error().unwrap_or(match error.kind() {
        io::ErrorKind::OutOfMemory => libc::ENOMEM,
        io::ErrorKind::InvalidInput => libc::EINVAL,
        io::ErrorKind::TimedOut => libc::EBUSY,
        _ => libc::EIO,
    })
}
