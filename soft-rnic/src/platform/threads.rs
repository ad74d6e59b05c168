//! Threads of the device's own.

use std::io;
use std::thread::JoinHandle;

/// Starts a thread on which no signal handler of the program's runs.
///
/// # Errors
///
/// The system has no thread left.
pub(crate) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    // The new one inherits this mask.
    let before = block_signals();
    let thread = std::thread::Builder::new().name(name.into()).spawn(work);
    restore_signals(&before);
    thread
}

fn block_signals() -> libc::sigset_t {
    // SAFETY: plain integers, for which zero is a value.
    let (mut all, mut before) = unsafe { (core::mem::zeroed(), core::mem::zeroed()) };
    // SAFETY: both sets are there to be written.
    unsafe {
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
    }
    before
}

fn restore_signals(before: &libc::sigset_t) {
    // SAFETY: a set that `pthread_sigmask` gave.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, core::ptr::null_mut()) };
}
