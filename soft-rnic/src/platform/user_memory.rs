//! Checks that memory which a program registers is mapped, and makes its pages present.

use std::io;

/// Fails with `EFAULT` if a page of the range is not mapped, as registration does on a real device,
/// which pins the pages.
///
/// Under Miri every range counts as mapped.
pub(crate) fn check_mapped(address: usize, length: usize) -> io::Result<()> {
    if cfg!(any(miri, loom)) || length == 0 {
        return Ok(());
    }
    let page = rustix::param::page_size();
    let first = address & !(page - 1);
    let end = address + length;
    /// Pages per system call.
    const PAGES: usize = 1 << 12;
    let mut residency = [0u8; PAGES];
    for start in (first..end).step_by(PAGES * page) {
        let length = (end - start).min(PAGES * page);
        // SAFETY: the call reads no memory of the range, and writes one byte per page into the
        // array, which has one for each.
        let result = unsafe { libc::mincore(start as *mut _, length, residency.as_mut_ptr()) };
        if result != 0 {
            let error = io::Error::last_os_error();
            // ENOMEM is mincore's answer for a range that contains an unmapped page.
            let unmapped = error.raw_os_error() == Some(libc::ENOMEM);
            return Err(if unmapped { io::Error::from_raw_os_error(libc::EFAULT) } else { error });
        }
    }
    Ok(())
}

/// Makes the pages of a range present for reading or writing. Before Linux 5.14 this does nothing.
///
/// # Errors
///
/// `EFAULT`: part of the range is not mapped, or not with this permission. Other errors come from
/// the system.
pub(crate) fn populate(address: *mut u8, length: usize, write: bool) -> io::Result<()> {
    use rustix::mm::{Advice, madvise};
    if cfg!(any(miri, loom)) || length == 0 {
        return Ok(());
    }
    let before = address.addr() & (rustix::param::page_size() - 1);
    let advice = if write { Advice::LinuxPopulateWrite } else { Advice::LinuxPopulateRead };
    let first = address.wrapping_sub(before);
    // SAFETY: the advice changes no byte, and no code relies on which pages are present.
    match unsafe { madvise(first.cast(), length + before, advice) } {
        Ok(()) | Err(rustix::io::Errno::INVAL) => {
            // The system answers EINVAL both for missing permissions and for an unknown advice.
            Ok(())
        }
        Err(rustix::io::Errno::NOMEM) => Err(io::Error::from_raw_os_error(libc::EFAULT)),
        Err(errno) => Err(errno.into()),
    }
}
