//! Waits for readiness of file descriptors that a C library owns.

use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

/// The end of a wait; `None` means never.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline(Option<Instant>);

impl Deadline {
    pub(crate) const NEVER: Self = Self(None);

    /// The deadline `timeout` from now; never, if the clock cannot represent it.
    pub(crate) fn after(timeout: Duration) -> Self {
        Self(Instant::now().checked_add(timeout))
    }

    fn left(self) -> Option<Timespec> {
        let left = self.0?.saturating_duration_since(Instant::now());
        // A time that the system cannot represent counts as never.
        Timespec::try_from(left).ok()
    }
}

/// Borrows a descriptor that the library keeps open as long as its object lives.
///
/// # Safety
///
/// The descriptor must stay open while the result is used.
pub(crate) unsafe fn descriptor<'a>(fd: RawFd) -> Option<BorrowedFd<'a>> {
    // A negative number is not a descriptor.
    //
    // SAFETY: the caller guarantees (`# Safety`) that the descriptor stays open while the result is
    // used.
    (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) })
}

/// Waits until one of the descriptors is ready; false if the deadline passes first.
pub(crate) fn wait(fds: &[BorrowedFd<'_>], deadline: Deadline) -> io::Result<bool> {
    let Some(first) = fds.first() else { return Ok(false) };
    let second = fds.get(1).unwrap_or(first);
    let mut list = [PollFd::new(first, PollFlags::IN), PollFd::new(second, PollFlags::IN)];
    wait_all(&mut list[..fds.len().min(2)], deadline)
}

/// Waits until one of the entries is ready, and marks those that are; false if the deadline passes
/// first.
pub(crate) fn wait_all(list: &mut [PollFd<'_>], deadline: Deadline) -> io::Result<bool> {
    loop {
        match poll(list, deadline.left().as_ref()) {
            Ok(ready) => return Ok(ready > 0),
            // A signal that the program handles does not end the wait.
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Makes reads of a descriptor block, or fail with `EAGAIN` instead.
pub(crate) fn set_nonblocking(fd: BorrowedFd<'_>, nonblocking: bool) -> io::Result<()> {
    let mut flags = fcntl_getfl(fd)?;
    flags.set(OFlags::NONBLOCK, nonblocking);
    Ok(fcntl_setfl(fd, flags)?)
}

/// Whether a verb's failure means that the device is gone.
pub(crate) fn is_device_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EIO | libc::ENODEV))
}
