//! Copies to and from the memory of another process: `process_vm_writev` and `process_vm_readv`.

use core::mem::MaybeUninit;
use std::io;

use libc::iovec;

use super::copy::tail_len;

/// The most ranges that one call takes on either side.
pub(crate) const MAX_RANGES: usize = 256;
/// Most calls have no more ranges, so that a short list suffices.
const FEW: usize = 16;

/// The most bytes of a range that callers pass. One call moves less than 2 GiB (`MAX_RW_COUNT` of
/// the kernel), however much its ranges have.
pub(crate) const MAX_BYTES: usize = 1 << 30;

/// In place of the number of this process.
const OWN: libc::pid_t = 0;

/// Whether the bytes of one call become visible in the order of its local ranges. On x86-64 they
/// do, because the processor does not reorder the stores of one range after those of the next
/// (docs/internals/soft-rnic-ordering.md).
pub(crate) const ORDERED: bool = cfg!(target_arch = "x86_64");

/// The memory of another process.
///
/// A process number may come to name another program (`exec`) or another process. So each call's
/// first range is one byte of the peer's [identity page](super::identity_page). The kernel looks the
/// process up once in a call, and stops at the first range that is not mapped. If the page is gone,
/// the call therefore fails before it touches anything else.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Vm {
    pid: libc::pid_t,
    identity: u64,
}

/// The reason why a call copied nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VmError {
    /// `ESRCH`: the process has ended. `EFAULT` at its identity page: its number names another
    /// program or process now.
    Gone,
    /// The first of its addresses is not mapped, or not for this.
    Fault,
    /// `EPERM`, `ENOSYS`: the system forbids this process the access.
    Forbidden(i32),
    /// Any other error: `EINVAL`, `ENOMEM`.
    Failed(i32),
}

impl VmError {
    #[cold]
    fn last() -> Self {
        match io::Error::last_os_error().raw_os_error().unwrap_or(0) {
            libc::ESRCH | libc::EFAULT => Self::Gone,
            error @ (libc::EPERM | libc::EACCES | libc::ENOSYS) => Self::Forbidden(error),
            error => Self::Failed(error),
        }
    }
}

/// A range of this process's memory.
pub(crate) fn local(at: *const u8, len: usize) -> iovec {
    iovec { iov_base: at.cast_mut().cast(), iov_len: len }
}

/// A range of the other process's memory. The system treats both lists as streams of bytes. It
/// looks up each range of the other process separately, which is most of the cost of a short call.
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
    /// The memory of this process, with this address of its identity page.
    pub(crate) fn own(identity: u64) -> Self {
        Self { pid: OWN, identity }
    }

    /// The memory of the process with this number and this address of its identity page; `None` if
    /// the number is not valid.
    pub(crate) fn of(pid: u32, identity: u64) -> Option<Self> {
        libc::pid_t::try_from(pid).ok().filter(|pid| *pid > 0).map(|pid| Self { pid, identity })
    }

    /// Copies local ranges to remote ones, in order. A short count means that the next byte
    /// faulted. Neither list may be longer than [`MAX_RANGES`].
    ///
    /// # Errors
    ///
    /// The system copied nothing.
    ///
    /// # Safety
    ///
    /// The local ranges are readable until the call returns. The remote ranges are memory that the
    /// other process has offered for this, which must hold even if the other process is this one.
    #[inline]
    pub(crate) unsafe fn write(self, local: &[iovec], remote: &[iovec]) -> Result<usize, VmError> {
        // SAFETY: the caller guarantees readable local ranges and offered remote ones, which is all
        // that `process_vm_writev` needs.
        unsafe { self.call_with(libc::process_vm_writev, local, remote) }
    }

    /// Copies remote ranges to local ones, as [`write`](Self::write) does in the other direction.
    ///
    /// # Errors
    ///
    /// The system copied nothing.
    ///
    /// # Safety
    ///
    /// The local ranges are writable until the call returns, and no references to them exist. The
    /// remote ranges meet the conditions of [`write`](Self::write).
    #[inline]
    pub(crate) unsafe fn read(self, local: &[iovec], remote: &[iovec]) -> Result<usize, VmError> {
        // SAFETY: the caller guarantees writable local ranges and offered remote ones, which is all
        // that `process_vm_readv` needs.
        unsafe { self.call_with(libc::process_vm_readv, local, remote) }
    }

    /// Copies `len` bytes of this process's memory, whose `Vm` this is, to a range that may be
    /// unmapped. The [ordered tail](super::copy::tail_len) becomes visible last.
    ///
    /// # Errors
    ///
    /// `Fault` if part of the destination is not mapped or not writable; a part of the bytes may
    /// then be there.
    ///
    /// # Safety
    ///
    /// `from` is valid for reads of `len` bytes. The program has offered the destination.
    pub(crate) unsafe fn write_own(self, to: *mut u8, from: *const u8, len: usize) -> Result<(), VmError> {
        // SAFETY: the caller guarantees the bytes, and has offered the range.
        unsafe { self.copy_own(libc::process_vm_writev, ordered_parts(to, len), from, to) }
    }

    /// Copies `len` bytes of a range of this process that may be unmapped, in the same order.
    ///
    /// # Errors
    ///
    /// `Fault` if part of the source is not mapped or not readable; a part of the bytes may then be
    /// there.
    ///
    /// # Safety
    ///
    /// `to` is valid for writes of `len` bytes, and no references to them exist. The program has
    /// offered the source.
    pub(crate) unsafe fn read_own(self, to: *mut u8, from: *const u8, len: usize) -> Result<(), VmError> {
        // SAFETY: the caller guarantees the bytes, and has offered the range.
        unsafe { self.copy_own(libc::process_vm_readv, ordered_parts(to, len), to, from) }
    }

    /// Copies these parts of a range, one call for each, between `sure` and an `offered` range.
    ///
    /// # Safety
    ///
    /// The conditions of [`write_own`](Self::write_own) or [`read_own`](Self::read_own), whichever
    /// `copy` implements.
    unsafe fn copy_own(
        self,
        copy: CopyRanges,
        parts: impl Iterator<Item = (usize, usize)>,
        sure: *const u8,
        offered: *const u8,
    ) -> Result<(), VmError> {
        for (offset, len) in parts {
            let local = [local(sure.wrapping_add(offset), len)];
            let remote = [remote(offered.wrapping_add(offset).addr() as u64, len)];
            // SAFETY: the caller guarantees both ranges; this is a part of them.
            let moved = unsafe { self.call_with(copy, &local, &remote)? };
            // A short count is a fault of the next byte.
            if moved != len {
                return Err(VmError::Fault);
            }
        }
        Ok(())
    }

    /// Whether every page of a range of this process, whose `Vm` this is, can be read.
    pub(crate) fn reaches_own(self, at: *const u8, len: usize) -> bool {
        let page = rustix::param::page_size();
        let Some(end) = at.addr().checked_add(len) else { return false };
        let first = at.addr() & !(page - 1);
        (first..end).step_by(MAX_RANGES * page).all(|start| {
            let mut bytes = [0u8; MAX_RANGES];
            let pages = (start..end).step_by(page).take(MAX_RANGES);
            let remote: Vec<_> = pages.map(|place| remote(place as u64, 1)).collect();
            let local = [local(bytes.as_mut_ptr(), remote.len())];
            // SAFETY: the array has a byte for each range. The kernel reads the ranges, and reports
            // those that have no memory.
            unsafe { self.read(&local, &remote) == Ok(remote.len()) }
        })
    }

    /// # Safety
    ///
    /// The conditions of [`write`](Self::write) or [`read`](Self::read), whichever `copy`
    /// implements.
    #[inline]
    unsafe fn call_with(self, copy: CopyRanges, local: &[iovec], remote: &[iovec]) -> Result<usize, VmError> {
        // SAFETY: the caller meets the conditions of this function, and `call` has the same.
        unsafe {
            if local.len().max(remote.len()) <= FEW {
                self.call::<{ FEW + 1 }>(copy, local, remote)
            } else {
                self.call::<{ MAX_RANGES + 1 }>(copy, local, remote)
            }
        }
    }

    /// Makes the call with lists of up to `ROOM` ranges, the identity page's included.
    ///
    /// # Safety
    ///
    /// The conditions of [`write`](Self::write) or [`read`](Self::read), whichever `copy`
    /// implements.
    unsafe fn call<const ROOM: usize>(
        self,
        copy: CopyRanges,
        local: &[iovec],
        remote: &[iovec],
    ) -> Result<usize, VmError> {
        let mut byte = 0u8;
        let mut locals = [const { MaybeUninit::uninit() }; ROOM];
        let mut remotes = [const { MaybeUninit::uninit() }; ROOM];
        let here = iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
        let local = behind(&mut locals, here, local);
        let remote = behind(&mut remotes, self::remote(self.identity, 1), remote);
        let (locals, remotes) = (local.len() as libc::c_ulong, remote.len() as libc::c_ulong);
        // The number of this process names its first thread, which may have ended before others.
        // SAFETY: the call accesses no memory.
        let pid = if self.pid == OWN { unsafe { libc::gettid() } } else { self.pid };
        // SAFETY: the lists have the stated lengths. The first local range is `byte`, and the caller
        // guarantees the others.
        let copied = unsafe { copy(pid, local.as_ptr(), locals, remote.as_ptr(), remotes, 0) };
        match usize::try_from(copied).map_err(|_| VmError::last())? {
            // The identity page is there, and the next range is not.
            0 | 1 => Err(VmError::Fault),
            copied => Ok(copied - 1),
        }
    }
}

/// Divides `len` bytes for the address `to` into parts that one call moves each: their offsets and
/// lengths. Each part is visible before the next one is copied.
fn ordered_parts(to: *const u8, len: usize) -> impl Iterator<Item = (usize, usize)> {
    use core::sync::atomic::{Ordering, fence};
    let tail = tail_len(to.addr(), len);
    let body = len - tail;
    let chunks = (0..body).step_by(MAX_BYTES).map(move |offset| (offset, MAX_BYTES.min(body - offset)));
    chunks.chain((tail > 0).then_some((body, tail))).inspect(|_| fence(Ordering::Release))
}

/// The list `first, rest...`, written to `room`. It must not be longer than that.
fn behind<'a, const ROOM: usize>(
    room: &'a mut [MaybeUninit<iovec>; ROOM],
    first: iovec,
    rest: &[iovec],
) -> &'a [iovec] {
    room[0].write(first);
    for (place, range) in room[1..=rest.len()].iter_mut().zip(rest) {
        place.write(*range);
    }
    // SAFETY: the first `rest.len() + 1` places were just written.
    unsafe { core::slice::from_raw_parts(room.as_ptr().cast(), rest.len() + 1) }
}

/// Allows peers to reach this process's memory: Yama's scope 1 otherwise allows it to a process's
/// ancestors only.
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

/// The likely reason why the system forbids access to another process's memory.
pub(crate) fn reason(pid: u32) -> &'static str {
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    let namespace = |who: String| std::fs::read_link(format!("/proc/{who}/ns/user"));
    match (namespace("self".into()), namespace(pid.to_string())) {
        _ if matches!(scope.trim(), "2" | "3") => "Yama's ptrace_scope forbids it",
        (Ok(own), Ok(other)) if own != other => "it is in another user namespace",
        // A process may read the link under the same conditions as the memory.
        (Ok(_), Err(_)) => "it is in another user namespace, is not dumpable, or has more capabilities",
        _ => "a security policy forbids it (seccomp, an LSM)",
    }
}
