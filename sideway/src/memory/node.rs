//! Memory of one NUMA node (`mbind`).

use std::ffi::{c_int, c_ulong};
use std::io;
use std::ptr::NonNull;

use crate::error::{Error, ErrorKind};
use rustix::io::Errno;
use rustix::mm::Advice;

/// Which of two calls failed.
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

/// Has all of a mapping lie on a node, and be there.
///
/// Huge pages are reserved wherever there are some: that the node has none left would otherwise be a signal, when they are first
/// touched.
///
/// # Safety
///
/// `len` bytes from `start` on are a mapping of the caller's, of whole pages.
pub(super) unsafe fn bind(start: NonNull<u8>, len: usize, node: u32) -> Result<(), Failure> {
    const WORD: usize = c_ulong::BITS as usize;
    // More than any kernel is built for.
    let mut nodes = [0 as c_ulong; 1024 / WORD];
    let place = nodes.get_mut(node as usize / WORD).ok_or(Failure::Bind(Errno::INVAL))?;
    *place |= 1 << (node as usize % WORD);
    // The kernel takes one off.
    let bits = nodes.len() * WORD + 1;
    // SAFETY: the caller says that the pages are its own; the kernel reads the nodes only.
    let result = unsafe {
        libc::syscall(libc::SYS_mbind, start.as_ptr(), len, libc::MPOL_BIND, nodes.as_ptr(), bits, 0 as c_int)
    };
    if result != 0 {
        let errno = io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL);
        return Err(Failure::Bind(Errno::from_raw_os_error(errno)));
    }
    // SAFETY: nothing is lost by touching pages that are the caller's own.
    match unsafe { rustix::mm::madvise(start.as_ptr().cast(), len, Advice::LinuxPopulateWrite) } {
        // Before Linux 5.14 they come when they are touched.
        Ok(()) | Err(Errno::INVAL) => Ok(()),
        Err(errno) => Err(Failure::Populate(errno)),
    }
}
