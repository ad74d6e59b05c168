//! Checks and populates memory that a program registers.

use std::io;

/// Fails with `EFAULT` if a page of the range is not mapped, as registration does on a real device, which pins the pages.
///
/// Under Miri every range counts as there.
pub(crate) fn check_mapped(address: usize, length: usize) -> io::Result<()> {
    if cfg!(any(miri, loom)) || length == 0 {
        return Ok(());
    }
    let page = rustix::param::page_size();
    let first = address & !(page - 1);
    let end = address + length;
    /// Pages that are asked about at a time.
    const PAGES: usize = 1 << 12;
    let mut residency = [0u8; PAGES];
    for start in (first..end).step_by(PAGES * page) {
        let length = (end - start).min(PAGES * page);
        // SAFETY: the call reads no memory of the range, and writes a byte a page into the array, which has as many.
        let result = unsafe { libc::mincore(start as *mut _, length, residency.as_mut_ptr()) };
        if result != 0 {
            let error = io::Error::last_os_error();
            // The page tables are what is asked about; a range without mapping is ENOMEM in the manual.
            let unmapped = error.raw_os_error() == Some(libc::ENOMEM);
            return Err(if unmapped { io::Error::from_raw_os_error(libc::EFAULT) } else { error });
        }
    }
    Ok(())
}

/// Makes the pages of a range present, to be read or to be written. Where the system cannot (Linux before 5.14), nothing happens.
///
/// # Errors
///
/// `EFAULT`: part of it is not mapped, or not so. Others as the system says.
pub(crate) fn populate(address: *mut u8, length: usize, write: bool) -> io::Result<()> {
    use rustix::mm::{Advice, madvise};
    if cfg!(any(miri, loom)) || length == 0 {
        return Ok(());
    }
    let before = address.addr() & (rustix::param::page_size() - 1);
    let advice = if write { Advice::LinuxPopulateWrite } else { Advice::LinuxPopulateRead };
    let first = address.wrapping_sub(before);
    // SAFETY: the advice changes no byte, and which pages are present is nobody's to rely on.
    match unsafe { madvise(first.cast(), length + before, advice) } {
        Ok(()) | Err(rustix::io::Errno::INVAL) => {
            // The system says EINVAL of permissions that do not fit as well as of what it does not know.
            Ok(())
        }
        Err(rustix::io::Errno::NOMEM) => Err(io::Error::from_raw_os_error(libc::EFAULT)),
        Err(errno) => Err(errno.into()),
    }
}
