//! Copying to and from the memory of another process: `process_vm_writev` and `process_vm_readv`.

use std::io;

use libc::iovec;

/// How many ranges one call takes.
pub(crate) const MAX_RANGES: usize = 1024;

/// Whether what one call moves is seen in the order of its local ranges: x86-64 does not reorder the stores of one behind those of
/// the next (docs/soft-rnic-ordering.md).
pub(crate) const ORDERED: bool = cfg!(target_arch = "x86_64");

/// The memory of another process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Vm {
    pid: libc::pid_t,
}

/// Why nothing was copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VmError {
    /// `ESRCH`: the process has ended.
    Gone,
    /// `EFAULT`: the first of its addresses is not mapped, or not for this.
    Fault,
    /// `EPERM`, `ENOSYS`: this process may not.
    Forbidden(i32),
    /// Something else: `EINVAL`, `ENOMEM`.
    Failed(i32),
}

impl VmError {
    #[cold]
    fn last() -> Self {
        match io::Error::last_os_error().raw_os_error().unwrap_or(0) {
            libc::ESRCH => Self::Gone,
            libc::EFAULT => Self::Fault,
            error @ (libc::EPERM | libc::EACCES | libc::ENOSYS) => Self::Forbidden(error),
            error => Self::Failed(error),
        }
    }
}

/// A range of this process's memory.
pub(crate) fn local(at: *const u8, len: usize) -> iovec {
    iovec { iov_base: at.cast_mut().cast(), iov_len: len }
}

/// A range of the other process's memory. The system takes the ranges of the two sides as two streams of bytes, and looks up each
/// range of the other process's by itself, which is most of what a short call costs.
pub(crate) fn remote(address: u64, len: usize) -> iovec {
    iovec { iov_base: core::ptr::without_provenance_mut(address as usize), iov_len: len }
}

/// `process_vm_writev` or `process_vm_readv`.
type CopyRanges = unsafe extern "C" fn(
    libc::pid_t,
    *const iovec,
    libc::c_ulong,
    *const iovec,
    libc::c_ulong,
    libc::c_ulong,
) -> isize;

impl Vm {
    /// Of the process with this number; `None` if it is not one.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        libc::pid_t::try_from(pid).ok().filter(|pid| *pid > 0).map(|pid| Self { pid })
    }

    /// Copies local ranges to remote ones, in order. Fewer bytes than wanted means that the next one faulted.
    /// Neither list may be longer than [`MAX_RANGES`].
    ///
    /// # Errors
    ///
    /// Nothing was copied.
    ///
    /// # Safety
    ///
    /// The local ranges are readable for the length of the call. The remote ones are memory that the other
    /// process has offered for this, which holds even if the other process is this one.
    #[inline]
    pub(crate) unsafe fn write(self, local: &[iovec], remote: &[iovec]) -> Result<usize, VmError> {
        // SAFETY: the local ranges are readable for the length of the call. The remote ones are
        // memory that the other process has offered for this, which holds even if the other process
        // is this one, by the contract of `write`.
        unsafe { self.call(libc::process_vm_writev, local, remote) }
    }

    /// Copies remote ranges to local ones, as [`write`](Self::write) does the other way.
    ///
    /// # Errors
    ///
    /// Nothing was copied.
    ///
    /// # Safety
    ///
    /// The local ranges are writable for the length of the call, and no references to them exist.
    #[inline]
    pub(crate) unsafe fn read(self, local: &[iovec], remote: &[iovec]) -> Result<usize, VmError> {
        // SAFETY: the local ranges are writable for the length of the call, and no references to
        // them exist, by the contract of `read`.
        unsafe { self.call(libc::process_vm_readv, local, remote) }
    }

    /// # Safety
    ///
    /// What `copy` asks of the ranges.
    #[inline]
    unsafe fn call(self, copy: CopyRanges, local: &[iovec], remote: &[iovec]) -> Result<usize, VmError> {
        let (locals, remotes) = (local.len() as libc::c_ulong, remote.len() as libc::c_ulong);
        // SAFETY: the lists are as long as is said; the ranges are the caller's promise.
        let copied = unsafe { copy(self.pid, local.as_ptr(), locals, remote.as_ptr(), remotes, 0) };
        usize::try_from(copied).map_err(|_| VmError::last())
    }
}

/// Under Yama's scope 1 only a process's ancestors may reach its memory, unless it says otherwise.
pub(crate) fn allow_peers() {
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    if scope.trim() != "1" {
        return;
    }
    match rustix::process::set_ptracer(rustix::process::PTracer::Any) {
        Ok(()) => log::info!("Yama: this process lets the other processes of its user reach its memory"),
        Err(error) => log::warn!("PR_SET_PTRACER failed: {error}; peers may have to copy by a detour"),
    }
}

/// Why a process may not reach the memory of another, as far as can be seen.
pub(crate) fn reason(pid: u32) -> &'static str {
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    let namespace = |who: String| std::fs::read_link(format!("/proc/{who}/ns/user"));
    match (namespace("self".into()), namespace(pid.to_string())) {
        _ if matches!(scope.trim(), "2" | "3") => "Yama's ptrace_scope forbids it",
        (Ok(own), Ok(other)) if own != other => "it is in another user namespace",
        // The link itself may be read by whoever may reach the memory.
        (Ok(_), Err(_)) => "it is in another user namespace, is not dumpable, or has more capabilities",
        _ => "a security policy forbids it (seccomp, an LSM)",
    }
}
