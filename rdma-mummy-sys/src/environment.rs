//! The environment variables, except where the user who set them has fewer rights than the program.

use std::ffi::OsString;

/// The value of an environment variable; `None` in *secure execution*.
///
/// The kernel starts a program in secure execution (`AT_SECURE` in `getauxval(3)`) if the program
/// has more rights than the user who starts it: it is set-user-ID, set-group-ID, or has file
/// capabilities. That user must not choose what the program loads, reads or writes.
///
/// C's `secure_getenv(3)` does the same.
#[must_use]
pub fn secure_var_os(name: &str) -> Option<OsString> {
    if is_secure() { None } else { std::env::var_os(name) }
}

fn is_secure() -> bool {
    // SAFETY: `getauxval` only reads values that the kernel left at the start of the process.
    // (Miri lacks it.)
    !cfg!(miri) && unsafe { libc::getauxval(libc::AT_SECURE) } != 0
}
