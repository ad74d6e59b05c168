//! Threads that the device starts.

use std::io;
use std::thread::JoinHandle;

/// Starts a thread that runs none of the program's signal handlers.
///
/// # Errors
///
/// The system cannot create another thread.
pub(crate) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    // The new thread inherits this mask.
    let before = block_signals();
    let thread = std::thread::Builder::new().name(name.into()).spawn(work);
    restore_signals(&before);
    thread
}

fn block_signals() -> libc::sigset_t {
    // SAFETY: signal sets consist of integers, for which zero is a valid value.
    let (mut all, mut before) = unsafe { (core::mem::zeroed(), core::mem::zeroed()) };
    // SAFETY: both sets are valid places to write.
    unsafe {
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
    }
    before
}

fn restore_signals(before: &libc::sigset_t) {
    // SAFETY: `pthread_sigmask` filled the set in `block_signals`.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, core::ptr::null_mut()) };
}
