//! Registration of memory at a raw address, of a dma-buf, and of device memory.

use std::ffi::c_int;
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};

use rdma_mummy_sys::types::ibv_mr;
use rdma_mummy_sys::verbs;

use super::{KeptAlive, MemoryKind, MemoryRegion};
use crate::ibverbs::device_memory::DeviceMemory;
use crate::ibverbs::protection_domain::ProtectionDomain;
use crate::ibverbs::{AccessFlags, Unsupported};
use crate::limits::soft_limit;
use crate::memory::BufferKind;

/// The attributes of a registration, kept for the region and for errors.
pub(in crate::ibverbs) struct RegistrationRequest<'a> {
    pub(in crate::ibverbs) ptr: *mut u8,
    pub(in crate::ibverbs) len: usize,
    pub(in crate::ibverbs) iova: u64,
    pub(in crate::ibverbs) access: AccessFlags,
    pub(in crate::ibverbs) kind: MemoryKind<'a>,
}

impl ProtectionDomain {
    /// Registers memory with the device (`ibv_reg_mr`).
    ///
    /// With [`AccessFlags::OnDemand`] no page is pinned, if the device supports it
    /// ([`odp_caps`](crate::ibverbs::device_attr::DeviceAttr::odp_caps)).
    /// [`advise_mr`](Self::advise_mr) makes pages present beforehand.
    ///
    /// # Safety
    ///
    /// The following must hold from now until the region has been deregistered. Dropping the region
    /// deregisters it, unless that fails, which [`close`](MemoryRegion::close) reports and a drop
    /// only logs.
    ///
    /// - The `len` bytes at `ptr` stay allocated and, unless `access` allows no writing at all,
    ///   writable.
    /// - No Rust reference to any of them is used while the device may write to them. The device
    ///   may write while a receive, a READ or an atomic into them is outstanding. With
    ///   `RemoteWrite` or `RemoteAtomic`, it may write as long as any peer knows the key. With
    ///   `MemoryWindowBind` and `LocalWrite`, it may write while a
    ///   [window](crate::ibverbs::memory_window) is bound to them.
    /// - No `&mut` to them is used while the device may read them. Use raw pointers, with volatile
    ///   or atomic accesses if a peer may race.
    /// - With [`AccessFlags::HugeTlb`], the memory lies on huge pages as long as it is registered.
    /// - With [`AccessFlags::OnDemand`] on the kernel's SoftRoCE, all that is said here holds for
    ///   every page with any of the bytes. Linux, up to at least 7.2, copies there from and to the
    ///   beginning of a page, whatever the address in the request. Only messages of one packet
    ///   that begin where a page begins arrive whole.
    ///
    /// # Errors
    ///
    /// Fails if the memory cannot be pinned or mapped; the error says whether the limit of locked
    /// memory is the reason. Also fails if the device does not support a permission in `access`
    /// ([`Unsupported`]).
    ///
    /// # References
    ///
    /// `man ibv_reg_mr`
    pub unsafe fn reg_mr(
        &self,
        ptr: *mut u8,
        len: usize,
        access: AccessFlags,
    ) -> Result<MemoryRegion, RegisterMemoryRegionError> {
        let lib = self.context().provider().verbs();
        // SAFETY: `self` keeps the domain alive, and the caller keeps the memory allocated.
        let mr = unsafe { verbs::ibv_reg_mr(lib, self.as_raw().as_ptr(), ptr.cast(), len, flags(access)) };
        let asked =
            RegistrationRequest { ptr, len, iova: ptr.addr() as u64, access, kind: MemoryKind::Program };
        // SAFETY: the library made the region just now, or returned null.
        unsafe { MemoryRegion::of_raw(self, mr, asked, "ibv_reg_mr") }
    }

    /// Registers memory under other addresses (`ibv_reg_mr_iova`): local entries and peers use
    /// addresses from `iova` on.
    ///
    /// `iova` must have the same offset within a page as `ptr`. On mlx5, the contract of
    /// [`setup_sge`](crate::ibverbs::queue_pair::LocalBufferHandle::setup_sge) restricts what may
    /// be received or read into such memory.
    ///
    /// # Safety
    ///
    /// The contract of [`reg_mr`](Self::reg_mr) applies.
    ///
    /// # Errors
    ///
    /// Fails as [`reg_mr`](Self::reg_mr) does; a library before rdma-core 25 is [`Unsupported`].
    /// Fails with [`AccessFlags::OnDemand`] on the kernel's SoftRoCE, which would use memory of the
    /// kernel.
    ///
    /// # References
    ///
    /// `man ibv_reg_mr_iova`
    pub unsafe fn reg_mr_iova(
        &self,
        ptr: *mut u8,
        len: usize,
        iova: u64,
        access: AccessFlags,
    ) -> Result<MemoryRegion, RegisterMemoryRegionError> {
        check_on_demand(self, len, access)?;
        let (lib, pd) = (self.context().provider().verbs(), self.as_raw().as_ptr());
        // SAFETY: `self` keeps the domain alive, and the caller keeps the memory allocated.
        let mr = unsafe { verbs::ibv_reg_mr_iova(lib, pd, ptr.cast(), len, iova, flags(access)) };
        let asked = RegistrationRequest { ptr, len, iova, access, kind: MemoryKind::Program };
        // SAFETY: the library made the region just now, or returned null.
        unsafe { MemoryRegion::of_raw(self, mr, asked, "ibv_reg_mr_iova") }
    }

    /// Registers the whole address space of this process on demand: an *implicit* region.
    ///
    /// It calls `ibv_reg_mr` with a null address, `SIZE_MAX` and [`AccessFlags::OnDemand`], which
    /// is added to `access`.
    ///
    /// # Safety
    ///
    /// The contract of [`reg_mr`](Self::reg_mr) applies to all memory that a request with one of
    /// the region's keys names, while the request is outstanding. With `RemoteWrite` or
    /// `RemoteAtomic`, a peer that knows the key may name any memory. No program can guarantee the
    /// contract for a peer that it does not trust.
    ///
    /// # Errors
    ///
    /// Fails as [`reg_mr`](Self::reg_mr) does. Devices without
    /// [`SupportImplicit`](crate::ibverbs::device_attr::OnDemandPagingGeneral) have no implicit
    /// regions, and some with it have none for remote access: ask by registering.
    ///
    /// # References
    ///
    /// `man ibv_reg_mr`
    pub unsafe fn reg_mr_implicit(
        &self,
        access: AccessFlags,
    ) -> Result<MemoryRegion, RegisterMemoryRegionError> {
        // SAFETY: the caller guarantees the memory that requests name; the registration itself
        // accesses none.
        unsafe { self.reg_mr(ptr::null_mut(), usize::MAX, access | AccessFlags::OnDemand) }
    }

    /// Registers memory of a dma-buf, which another device or its driver exported
    /// (`ibv_reg_dmabuf_mr`).
    ///
    /// The region has `length` bytes from `offset` in the dma-buf, addressed from `iova` on. `iova`
    /// must have the same offset within a page as `offset`. The descriptor may be closed
    /// afterwards. `access` may contain `LocalWrite`, `RemoteWrite`, `RemoteRead`, `RemoteAtomic`
    /// and `RelaxedOrdering`.
    ///
    /// It is safe because the kernel keeps the memory, which is not part of any Rust value. A
    /// program that maps the file and makes a reference to it must guarantee that nobody writes
    /// there, as for every file. On mlx5, the contract of
    /// [`setup_sge`](crate::ibverbs::queue_pair::LocalBufferHandle::setup_sge) restricts what may
    /// be received or read into it.
    ///
    /// # Errors
    ///
    /// Fails if the descriptor is not a dma-buf, or if that has fewer bytes. Fails as
    /// [`Unsupported`] if the device cannot reach it or does not support dma-bufs, or if the
    /// library is older than rdma-core 34.
    ///
    /// # References
    ///
    /// `man ibv_reg_dmabuf_mr`
    pub fn reg_dmabuf_mr(
        &self,
        fd: BorrowedFd<'_>,
        offset: u64,
        length: usize,
        iova: u64,
        access: AccessFlags,
    ) -> Result<MemoryRegion, RegisterMemoryRegionError> {
        let lib = self.context().provider().verbs();
        let register = lib
            .ibv_reg_dmabuf_mr()
            .map_err(|symbol| Unsupported::missing(self.context(), DMA_BUFS, symbol))?;
        // SAFETY: `self` keeps the domain alive, and the borrow keeps the descriptor open during
        // the call.
        let mr =
            unsafe { register(self.as_raw().as_ptr(), offset, length, iova, fd.as_raw_fd(), flags(access)) };
        let asked =
            RegistrationRequest { ptr: ptr::null_mut(), len: length, iova, access, kind: MemoryKind::DmaBuf };
        // SAFETY: the library made the region just now, or returned null.
        unsafe { MemoryRegion::of_raw(self, mr, asked, "ibv_reg_dmabuf_mr") }
    }

    /// Registers `length` bytes of device memory, from `offset` on (`ibv_reg_dm_mr`). Requests
    /// address them by their offset in the region: [`AccessFlags::ZeroBased`], which the verb
    /// requires, is added to `access`.
    ///
    /// It is safe because the region keeps the memory, to which no Rust reference can be made. On
    /// mlx5, the contract of
    /// [`setup_sge`](crate::ibverbs::queue_pair::LocalBufferHandle::setup_sge) restricts what may
    /// be received or read into it.
    ///
    /// # Errors
    ///
    /// Fails if the memory belongs to another context or has fewer bytes, or if the device refuses.
    ///
    /// # References
    ///
    /// `man ibv_alloc_dm`
    pub fn reg_dm_mr(
        &self,
        dm: &DeviceMemory,
        offset: u64,
        length: usize,
        access: AccessFlags,
    ) -> Result<MemoryRegion, RegisterMemoryRegionError> {
        let access = access | AccessFlags::ZeroBased;
        if dm.context() != self.context() {
            return Err(RegisterMemoryRegionError::OtherContext);
        }
        if !dm.has(offset, length) {
            return Err(RegisterMemoryRegionError::OutOfBounds { offset, length, dm_length: dm.len() });
        }
        let (pd, raw) = (self.as_raw().as_ptr(), dm.as_raw().as_ptr());
        // SAFETY: the borrows keep domain and memory alive, and both belong to one context.
        let mr = unsafe { verbs::ibv_reg_dm_mr(pd, raw, offset, length, access.bits()) };
        let kind = MemoryKind::Device(dm);
        let asked = RegistrationRequest { ptr: ptr::null_mut(), len: length, iova: 0, access, kind };
        // SAFETY: the library made the region just now, or returned null.
        unsafe { MemoryRegion::of_raw(self, mr, asked, "ibv_reg_dm_mr") }
    }
}

/// Refuses permissions with which a region that safe code registers would be another one than the
/// memory that was given.
pub(crate) fn check_access(
    pd: &ProtectionDomain,
    memory: &'static str,
    kind: Option<BufferKind>,
    len: usize,
    access: AccessFlags,
) -> Result<(), RegisterMemoryRegionError> {
    check_on_demand(pd, len, access)?;
    check_huge_pages(memory, kind, len, access)
}

/// Refuses [`AccessFlags::OnDemand`] on a device that takes other bytes of such memory than a
/// request names.
pub(super) fn check_on_demand(
    pd: &ProtectionDomain,
    len: usize,
    access: AccessFlags,
) -> Result<(), RegisterMemoryRegionError> {
    match access.contains(AccessFlags::OnDemand) && pd.context().quirks().misplaces_on_demand {
        true => Err(RegisterMemoryRegionError::OnDemandMisplaced { len }),
        false => Ok(()),
    }
}

/// Refuses [`AccessFlags::HugeTlb`] for memory that safe code registers, unless it is of a kind that
/// lies on huge pages. For other memory the kernel would round the bounds to huge pages, so that
/// the region has memory around it that its owner has not given.
fn check_huge_pages(
    memory: &'static str,
    kind: Option<BufferKind>,
    len: usize,
    access: AccessFlags,
) -> Result<(), RegisterMemoryRegionError> {
    let on_huge_pages = matches!(kind, Some(BufferKind::HugePages { .. }));
    match access.contains(AccessFlags::HugeTlb) && !on_huge_pages {
        true => Err(RegisterMemoryRegionError::NotOnHugePages { memory, len }),
        false => Ok(()),
    }
}

pub(super) fn flags(access: AccessFlags) -> c_int {
    access.bits().cast_signed()
}

const DMA_BUFS: &str = "regions of dma-bufs";

impl MemoryRegion {
    /// # Safety
    ///
    /// `mr` must be null, or a region that was made just now with the attributes in `asked`, and
    /// that nothing else owns.
    pub(in crate::ibverbs) unsafe fn of_raw(
        pd: &ProtectionDomain,
        mr: *mut ibv_mr,
        asked: RegistrationRequest<'_>,
        verb: &'static str,
    ) -> Result<Self, RegisterMemoryRegionError> {
        let RegistrationRequest { ptr, len, iova, access, kind } = asked;
        let Some(mr) = NonNull::new(mr) else {
            let source = io::Error::last_os_error();
            return Err(RegisterMemoryRegionError::new(pd, verb, len, access, source));
        };
        // SAFETY: the library returned a live region, and every release's struct has these fields.
        let (lkey, rkey) = unsafe { ((*mr.as_ptr()).lkey, (*mr.as_ptr()).rkey) };
        let is_dma_buf = matches!(kind, MemoryKind::DmaBuf);
        let mut keeps = KeptAlive::default();
        match kind {
            MemoryKind::Device(dm) => keeps.dm = Some(dm.clone()),
            MemoryKind::Provider(buffer) => keeps.buffer = Some(buffer.clone()),
            MemoryKind::Program | MemoryKind::DmaBuf => {}
        }
        Ok(Self { mr, ptr, len, iova, access, lkey, rkey, is_dma_buf, pd: pd.clone(), keeps })
    }
}

/// Memory could not be registered.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum RegisterMemoryRegionError {
    /// The device, or its library, has no such regions, or not with such permissions.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// CUDA failed, or its driver exports no dma-buf.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Cuda(#[from] crate::memory::cuda::CudaError),
    /// The library refused to register memory of a GPU.
    #[cfg(feature = "cuda")]
    #[error(
        "cannot register {len} bytes of a GPU with {access:?}: {source}; can the NIC reach the GPU (`nvidia-smi topo -m`)?"
    )]
    Gpu {
        /// The length in bytes.
        len: usize,
        /// The access flags that were asked for.
        access: AccessFlags,
        /// The error number of `ibv_reg_dmabuf_mr`.
        source: io::Error,
    },
    /// The memory on the device, or the DMA handle, is of another context than the domain.
    #[error("the device memory, or the DMA handle, is of another context than the protection domain")]
    OtherContext,
    /// The provider has allocated the buffer in another domain.
    #[error("the buffer was allocated in another protection domain")]
    OtherDomain,
    /// The provider's buffer has not so many bytes there.
    #[error("{length} bytes at {offset} are not in a buffer of {buffer_len} bytes")]
    OutOfBuffer {
        /// Where they were to begin.
        offset: usize,
        /// How many were to be registered.
        length: usize,
        /// The length of the buffer in bytes.
        buffer_len: usize,
    },
    /// The memory on the device has not so many bytes there.
    #[error("{length} bytes at {offset} are not in device memory of {dm_length} bytes")]
    OutOfBounds {
        /// Where they were to begin.
        offset: u64,
        /// How many were to be registered.
        length: usize,
        /// The length of the device memory in bytes.
        dm_length: usize,
    },
    /// Safe code asked for [`AccessFlags::HugeTlb`], and it is not known that the memory lies on
    /// huge pages.
    #[error(
        "cannot register {len} bytes with HugeTlb: {memory} need not lie on huge pages, and the region could \
         have memory around it; leave the flag out, or register a `Buffer` of `BufferKind::HugePages` with \
         `reg_buffer`"
    )]
    NotOnHugePages {
        /// What the memory is, in words.
        memory: &'static str,
        /// How many bytes were to be registered.
        len: usize,
    },
    /// Safe code asked for [`AccessFlags::OnDemand`], or other addresses with it, on the kernel's
    /// SoftRoCE.
    #[error(
        "cannot register {len} bytes with OnDemand: the kernel's SoftRoCE copies such memory from and to the \
         beginning of its pages, whatever the address; leave the flag out, or see the contract of `reg_mr`, which \
         is unsafe"
    )]
    OnDemandMisplaced {
        /// How many bytes were to be registered.
        len: usize,
    },
    /// The process may not lock that much memory.
    #[error(
        "cannot register {len} bytes: the limit of locked memory (RLIMIT_MEMLOCK) is {limit} bytes and the \
         process may not exceed it; raise it with `ulimit -l unlimited` or in /etc/security/limits.conf ({source})"
    )]
    MemoryLockLimit {
        /// How many bytes were to be registered.
        len: usize,
        /// The limit, in bytes, for all of the process's registered memory.
        limit: u64,
        /// The error number of the registering call (`ibv_reg_mr`, for example).
        source: io::Error,
    },
    /// `ibv_reg_mr`, or one of its kin, failed.
    #[error("cannot register {len} bytes with {access:?}: {source}{}", NeedsLocalWrite(*.access))]
    Ibverbs {
        /// How many bytes were to be registered.
        len: usize,
        /// The permissions.
        access: AccessFlags,
        /// The error number of the registering call (`ibv_reg_mr`, for example).
        source: io::Error,
    },
}

debug_as_text!(RegisterMemoryRegionError);

/// What is missing among permissions that no device accepts; nothing if they are complete.
pub(super) struct NeedsLocalWrite(pub(super) AccessFlags);

impl fmt::Display for NeedsLocalWrite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let writing = self.0 & (AccessFlags::RemoteWrite | AccessFlags::RemoteAtomic);
        if writing.is_empty() || self.0.contains(AccessFlags::LocalWrite) {
            return Ok(());
        }
        write!(f, "; {writing:?} needs LocalWrite in addition")
    }
}

impl RegisterMemoryRegionError {
    #[cold]
    fn new(
        pd: &ProtectionDomain,
        verb: &'static str,
        len: usize,
        access: AccessFlags,
        source: io::Error,
    ) -> Self {
        if Unsupported::is_meant_by(&source) {
            let what = match verb {
                "ibv_reg_dmabuf_mr" => DMA_BUFS.to_owned(),
                "ibv_reg_dm_mr" => "regions of device memory".to_owned(),
                "ibv_reg_buf_mr" => format!("regions of its provider's memory with {access:?}"),
                "ibv_reg_mr_ex" => format!("regions as described, with {access:?}"),
                "ibv_reg_mr_iova" => format!("regions with addresses of their own and {access:?}"),
                _ if len == usize::MAX => format!("regions of all the address space with {access:?}"),
                _ => format!("regions with {access:?}"),
            };
            return Unsupported::new(pd.context(), verb, what).into();
        }
        // Memory of a device or of another owner does not count as locked.
        let lockable = matches!(verb, "ibv_reg_mr" | "ibv_reg_mr_iova" | "ibv_reg_buf_mr" | "ibv_reg_mr_ex");
        let limited = matches!(source.raw_os_error(), Some(libc::ENOMEM | libc::EAGAIN | libc::EPERM));
        match memory_lock_limit() {
            Some(limit) if limited && lockable => Self::MemoryLockLimit { len, limit, source },
            _ => Self::Ibverbs { len, access, source },
        }
    }
}

/// The limit of locked memory (`RLIMIT_MEMLOCK`), unless it is infinite.
fn memory_lock_limit() -> Option<u64> {
    soft_limit(rustix::process::Resource::Memlock).filter(|_| !may_lock_any_memory())
}

/// Whether the kernel exempts this process from the limit (`CAP_IPC_LOCK`).
fn may_lock_any_memory() -> bool {
    const CAP_IPC_LOCK: u32 = 14;
    std::fs::read_to_string("/proc/self/status")
        .ok()
        .and_then(|status| {
            let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?.trim().to_owned();
            u64::from_str_radix(&mask, 16).ok()
        })
        .is_some_and(|mask| mask & 1 << CAP_IPC_LOCK != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_buffers_on_huge_pages_are_registered_as_such() {
        let check = |kind, access| check_huge_pages("it", kind, 64, access).is_ok();
        let huge = AccessFlags::LocalWrite | AccessFlags::HugeTlb;
        assert!(check(Some(BufferKind::HUGE_2_MIB), huge) && check(Some(BufferKind::HUGE_1_GIB), huge));
        for kind in [None, Some(BufferKind::Private), Some(BufferKind::Shared)] {
            assert!(check(kind, AccessFlags::LocalWrite) && !check(kind, huge), "{kind:?}");
        }
    }
}
