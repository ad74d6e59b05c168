//! Closing sockets that hold descriptors of strangers.
//!
//! Any user may connect to an abstract socket name and send descriptors. The kernel closes those
//! that nobody received in the thread that closes the socket. One of them may be a TCP connection
//! with unsent data that lingers for as long as the stranger wants (`SO_LINGER`). So the closing
//! thread would stop.
//!
//! Therefore a thread with a copy of the table of descriptors closes them by its end: the copy
//! keeps each socket open while this process closes its own descriptor of it, which is quick then.
//! The kernel does not wait for a lingering connection of a thread that ends.

use std::sync::mpsc::channel;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::fork::OwnedFile;
use super::threads;

/// The most sockets that wait. No connection is made or accepted while as many wait.
const MOST: usize = 1024;
/// The interval at which the end of a thread is looked for.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// The sockets that wait, and the thread that closes them, which ends when none waits.
#[derive(Debug)]
pub(super) struct Closer {
    waiting: Vec<OwnedFile>,
    is_running: bool,
}

static CLOSER: Mutex<Closer> = Mutex::new(Closer { waiting: Vec::new(), is_running: false });

impl Closer {
    /// The only one. A fork holds this lock, so that the child finds a consistent queue.
    pub(super) fn lock() -> MutexGuard<'static, Self> {
        CLOSER.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Called in a forked child, which has none of its parent's threads.
    pub(super) fn forget_thread(&mut self) {
        self.is_running = false;
    }
}

/// Whether the queue of waiting sockets is full, so that no more should be opened.
pub(super) fn is_full() -> bool {
    Closer::lock().waiting.len() >= MOST
}

/// Closes the socket, and the descriptors that it holds, without a wait for either.
pub(super) fn close(file: OwnedFile) {
    let mut closer = Closer::lock();
    closer.waiting.push(file);
    if core::mem::replace(&mut closer.is_running, true) {
        return;
    }
    drop(closer);
    if let Err(error) = threads::spawn("soft-rnic-close", close_all) {
        log::warn!("connections of other users stay open until the next one: no thread: {error}");
        Closer::lock().is_running = false;
    }
}

fn close_all() {
    loop {
        let mut closer = Closer::lock();
        let files = core::mem::take(&mut closer.waiting);
        closer.is_running = !files.is_empty();
        drop(closer);
        if files.is_empty() {
            return;
        }
        close_by_copy(files);
    }
}

/// Closes the files while a second thread has a copy of the table, then lets that thread end.
fn close_by_copy(files: Vec<OwnedFile>) {
    let (report, copied) = channel();
    let (go, end) = channel::<()>();
    let keeper = threads::spawn("soft-rnic-close", move || {
        let _ = report.send(copy_table().then(rustix::thread::gettid));
        // Ends with an error when the files are closed.
        let _ = end.recv();
    });
    let keeper = keeper.and_then(|_| copied.recv().map_err(std::io::Error::other));
    if !matches!(keeper, Ok(Some(_))) {
        log::debug!("connections of other users may be closed slowly: the table cannot be copied");
    }
    drop(files);
    drop(go);
    if let Ok(Some(thread)) = keeper {
        while exists(thread) {
            std::thread::sleep(LOOK_AGAIN);
        }
    }
}

/// Gives the calling thread a copy of the table of descriptors. False where a filter of system
/// calls forbids both ways.
fn copy_table() -> bool {
    const NOTHING: libc::c_uint = libc::c_uint::MAX;
    // SAFETY: the range contains no descriptor, so this only copies the table, for this thread
    // alone. The thread uses no descriptor afterwards.
    unsafe {
        libc::syscall(libc::SYS_close_range, NOTHING, NOTHING, libc::CLOSE_RANGE_UNSHARE) == 0
            || libc::unshare(libc::CLONE_FILES) == 0
    }
}

/// Whether a thread of this process has not ended yet, which includes closing its table.
fn exists(thread: rustix::thread::Pid) -> bool {
    let (process, thread) = (rustix::process::getpid(), thread.as_raw_nonzero().get());
    // SAFETY: signal 0 is sent to nobody.
    unsafe { libc::syscall(libc::SYS_tgkill, process.as_raw_nonzero().get(), thread, 0) == 0 }
}

#[cfg(all(test, not(any(miri, loom))))]
mod tests {
    use super::*;

    #[test]
    fn a_copy_keeps_a_file_open_until_its_thread_ends() {
        let (one, other) = rustix::pipe::pipe().expect("two descriptors");
        close(OwnedFile::new(one));
        // A pipe without a reader fails each write.
        let deadline = std::time::Instant::now() + Duration::from_secs(20);
        while rustix::io::write(&other, b"x").is_ok() {
            assert!(std::time::Instant::now() < deadline, "it stays open");
            std::thread::sleep(LOOK_AGAIN);
        }
    }
}
