//! What is done at the end of the process.
//!
//! # Safety
//!
//! The C library keeps a pointer to a function, which is there as long as this library: where that is unloaded before, the function runs then.

/// Has `last` run when the process ends in order.
pub(crate) fn at_exit(last: extern "C" fn()) {
    if cfg!(any(miri, loom)) {
        return;
    }
    // SAFETY: the function is this library's (head of this file).
    if unsafe { libc::atexit(last) } != 0 {
        log::debug!("the end of the process will not be noticed: atexit has no memory");
    }
}
