//! Whether memory that a program registers is there.

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
