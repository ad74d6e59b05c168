//! Placement of memory on one NUMA node (`mbind`).

use std::ffi::{c_int, c_ulong};
use std::io;
use std::ptr::NonNull;

use crate::error::{Error, ErrorKind};
use rustix::io::Errno;
use rustix::mm::Advice;

/// The call that failed.
pub(super) enum Failure {
    Bind(Errno),
    Populate(Errno),
}

#[cold]
pub(super) fn error(failure: Failure, node: u32, len: usize) -> Error {
    let error = match failure {
        Failure::Bind(Errno::INVAL) => {
            let with_memory = nodes_with_memory();
            return Error::not_called("mbind", ErrorKind::NotFound, format!(
                "there is no NUMA node {node} with memory for this process; these have memory: {with_memory}"
            ))
            .with("node", node);
        }
        Failure::Bind(errno) => Error::os("mbind", errno.into())
            .remedy("a container may need CAP_SYS_NICE, or a seccomp profile that allows mbind"),
        Failure::Populate(errno) => Error::os("madvise", errno.into())
            .of_kind(ErrorKind::OutOfMemory)
            .reason("the NUMA node has not enough memory left")
            .remedy(format!(
                "see /sys/devices/system/node/node{node}/, for huge pages its folder hugepages/"
            )),
    };
    error.with("len", len).with("node", node)
}

fn nodes_with_memory() -> String {
    std::fs::read_to_string("/sys/devices/system/node/has_memory")
        .map_or_else(|_| "unknown".to_owned(), |list| list.trim().to_owned())
}

/// Places all pages of a mapping on a node, and faults them in.
///
/// Huge pages are reserved on any node that has some. If this node has none left, the first access
/// would otherwise raise a signal.
///
/// # Safety
///
/// The caller must own the mapping of `len` bytes from `start` on, which consists of whole pages.
pub(super) unsafe fn bind(start: NonNull<u8>, len: usize, node: u32) -> Result<(), Failure> {
    const WORD: usize = c_ulong::BITS as usize;
    // More nodes than any kernel supports.
    let mut nodes = [0 as c_ulong; 1024 / WORD];
    let place = nodes.get_mut(node as usize / WORD).ok_or(Failure::Bind(Errno::INVAL))?;
    *place |= 1 << (node as usize % WORD);
    // The kernel subtracts one from this number.
    let bits = nodes.len() * WORD + 1;
    // SAFETY: the caller guarantees that it owns the pages. The kernel only reads the node mask.
    let result = unsafe {
        libc::syscall(libc::SYS_mbind, start.as_ptr(), len, libc::MPOL_BIND, nodes.as_ptr(), bits, 0 as c_int)
    };
    if result != 0 {
        let errno = io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL);
        return Err(Failure::Bind(Errno::from_raw_os_error(errno)));
    }
    // SAFETY: faulting in the caller's own pages loses no data.
    match unsafe { rustix::mm::madvise(start.as_ptr().cast(), len, Advice::LinuxPopulateWrite) } {
        // Kernels before Linux 5.14 fault them in at the first access.
        Ok(()) | Err(Errno::INVAL) => Ok(()),
        Err(errno) => Err(Failure::Populate(errno)),
    }
}
