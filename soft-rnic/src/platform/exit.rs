//! Work at the end of the process.
//!
//! # Safety
//!
//! The C library keeps a pointer to a function, which stays valid while this library is loaded. If
//! the library is unloaded earlier, the C library runs the function at that moment.

/// Registers `last` to run when the process exits normally.
pub(crate) fn at_exit(last: extern "C" fn()) {
    if cfg!(any(miri, loom)) {
        return;
    }
    // SAFETY: the function is part of this library, whose unloading runs it (head of this file).
    if unsafe { libc::atexit(last) } != 0 {
        log::debug!("the end of the process will not be noticed: atexit has no memory");
    }
}
