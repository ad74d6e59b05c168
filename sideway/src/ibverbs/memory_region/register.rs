//! Registering memory at a raw address, a dma-buf's, and memory on the device.

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};

use rdma_mummy_sys::types::ibv_mr;
use rdma_mummy_sys::verbs;

use super::{KeptAlive, MemoryKind, MemoryRegion};
use crate::ibverbs::device_memory::DeviceMemory;
use crate::ibverbs::protection_domain::ProtectionDomain;
use crate::ibverbs::{AccessFlags, Unsupported};

/// What is registered, for the region and for the error.
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
    /// With [`AccessFlags::OnDemand`] no page is pinned, where the device has that
    /// ([`odp_caps`](crate::ibverbs::device_attr::DeviceAttr::odp_caps)); [`advise_mr`](Self::advise_mr) makes pages present beforehand.
    ///
    /// # Safety
    ///
    /// From now until the region has been deregistered, which dropping it does unless that fails
    /// ([`close`](MemoryRegion::close) says so, a drop only logs it):
    ///
    /// - the `len` bytes at `ptr` stay allocated (and, unless `access` allows no writing at all, writable);
    /// - no Rust reference to any of them is used while the device may write to them: that is, while a
    ///   receive, a READ or an atomic into them is outstanding, and, if `access` has `RemoteWrite` or
    ///   `RemoteAtomic`, as long as any peer knows the key, and, if it has `MemoryWindowBind` and `LocalWrite`, as long as
    ///   a [window](crate::ibverbs::memory_window) is bound to them; and no `&mut` to them is used while the device
    ///   may read them. Use raw pointers, with volatile or atomic accesses where a peer may race.
    /// - With [`AccessFlags::HugeTlb`], the memory lies on huge pages as long as it is registered.
    ///
    /// # Errors
    ///
    /// The memory cannot be pinned or mapped, and the error says whether the limit of locked memory is why; or the device has not
    /// what `access` asks for ([`Unsupported`]).
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
        // SAFETY: the domain lives, and the caller keeps the memory allocated.
        let mr = unsafe { verbs::ibv_reg_mr(lib, self.as_raw().as_ptr(), ptr.cast(), len, flags(access)) };
        let asked =
            RegistrationRequest { ptr, len, iova: ptr.addr() as u64, access, kind: MemoryKind::Program };
        // SAFETY: it was made just now.
        unsafe { MemoryRegion::of_raw(self, mr, asked, "ibv_reg_mr") }
    }

    /// Registers memory that requests name by addresses from `iova` on (`ibv_reg_mr_iova`): the local entries of this side, and a
    /// peer.
    ///
    /// `iova` has to have the same offset in a page as `ptr`.
    ///
    /// What may be received or read into such memory by pairs of mlx5 is part of the contract of
    /// [`setup_sge`](crate::ibverbs::queue_pair::LocalBufferHandle::setup_sge).
    ///
    /// # Safety
    ///
    /// As [`reg_mr`](Self::reg_mr).
    ///
    /// # Errors
    ///
    /// As [`reg_mr`](Self::reg_mr); a library before rdma-core 25 is [`Unsupported`].
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
        let (lib, pd) = (self.context().provider().verbs(), self.as_raw().as_ptr());
        // SAFETY: the domain lives, and the caller keeps the memory allocated.
        let mr = unsafe { verbs::ibv_reg_mr_iova(lib, pd, ptr.cast(), len, iova, flags(access)) };
        let asked = RegistrationRequest { ptr, len, iova, access, kind: MemoryKind::Program };
        // SAFETY: it was made just now.
        unsafe { MemoryRegion::of_raw(self, mr, asked, "ibv_reg_mr_iova") }
    }

    /// Registers all of this process's address space, on demand (`ibv_reg_mr` with a null address, `SIZE_MAX` and
    /// [`AccessFlags::OnDemand`], which is added to `access`): an *implicit* region.
    ///
    /// # Safety
    ///
    /// As [`reg_mr`](Self::reg_mr), for all memory that a request with one of the region's keys names, for as long as it is
    /// outstanding. With `RemoteWrite` or `RemoteAtomic` that is whatever memory a peer that knows the key likes to name: no program can
    /// promise that for a peer that it does not trust.
    ///
    /// # Errors
    ///
    /// As [`reg_mr`](Self::reg_mr): devices without
    /// [`SupportImplicit`](crate::ibverbs::device_attr::OnDemandPagingGeneral) have none.
    ///
    /// # References
    ///
    /// `man ibv_reg_mr`
    pub unsafe fn reg_mr_implicit(
        &self,
        access: AccessFlags,
    ) -> Result<MemoryRegion, RegisterMemoryRegionError> {
        // SAFETY: the caller answers for what requests name; registering touches nothing.
        unsafe { self.reg_mr(ptr::null_mut(), usize::MAX, access | AccessFlags::OnDemand) }
    }

    /// Registers memory of a dma-buf, which another device, or its driver, has exported (`ibv_reg_dmabuf_mr`).
    ///
    /// The region is of `length` bytes from `offset` in the dma-buf, which requests name by addresses from `iova` on: `iova` has to have
    /// the same offset in a page as `offset`. The descriptor may be closed afterwards. Of `access`, `LocalWrite`, `RemoteWrite`,
    /// `RemoteRead`, `RemoteAtomic` and `RelaxedOrdering` are allowed.
    ///
    /// It is safe: the kernel keeps the memory, which is nobody's Rust value. Whoever maps such a file, and makes a
    /// reference to it, promises that nobody writes there, as for every file. What may be received or read into it by pairs of
    /// mlx5 is part of the contract of [`setup_sge`](crate::ibverbs::queue_pair::LocalBufferHandle::setup_sge).
    ///
    /// # Errors
    ///
    /// The descriptor is of no dma-buf, or that has not so many bytes there; the device cannot reach it, or takes no dma-bufs
    /// ([`Unsupported`]); the library is older than rdma-core 34 ([`Unsupported`]).
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
        // SAFETY: the domain lives, and the descriptor is open during the call.
        let mr =
            unsafe { register(self.as_raw().as_ptr(), offset, length, iova, fd.as_raw_fd(), flags(access)) };
        let asked =
            RegistrationRequest { ptr: ptr::null_mut(), len: length, iova, access, kind: MemoryKind::DmaBuf };
        // SAFETY: it was made just now.
        unsafe { MemoryRegion::of_raw(self, mr, asked, "ibv_reg_dmabuf_mr") }
    }

    /// Registers part of the memory on the device (`ibv_reg_dm_mr`): `length` bytes from `offset` on. Requests name them by
    /// their offset in the region; [`AccessFlags::ZeroBased`] is added to `access`, as the function wants it.
    ///
    /// It is safe: the region keeps the memory, which no Rust reference can be made to. What may be received or read into it by pairs
    /// of mlx5 is part of the contract of [`setup_sge`](crate::ibverbs::queue_pair::LocalBufferHandle::setup_sge).
    ///
    /// # Errors
    ///
    /// The memory is of another context, or has not so many bytes there; or the device says no.
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
        // SAFETY: domain and memory live and are of one context.
        let mr = unsafe { verbs::ibv_reg_dm_mr(pd, raw, offset, length, access.bits()) };
        let kind = MemoryKind::Device(dm);
        let asked = RegistrationRequest { ptr: ptr::null_mut(), len: length, iova: 0, access, kind };
        // SAFETY: it was made just now.
        unsafe { MemoryRegion::of_raw(self, mr, asked, "ibv_reg_dm_mr") }
    }
}

pub(super) fn flags(access: AccessFlags) -> c_int {
    access.bits().cast_signed()
}

const DMA_BUFS: &str = "regions of dma-bufs";

impl MemoryRegion {
    /// # Safety
    ///
    /// `mr` was made just now, as was asked, and nothing else owns it; or it is null.
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
        // SAFETY: the library returned a region; the fields are in every release's struct.
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
#[derive(Debug, thiserror::Error)]
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
    #[error("cannot register {len} bytes with {access:?}: {source}")]
    Ibverbs {
        /// How many bytes were to be registered.
        len: usize,
        /// The permissions.
        access: AccessFlags,
        /// The error number of the registering call (`ibv_reg_mr`, for example).
        source: io::Error,
    },
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
        // Memory on a device, or another one's, is not locked.
        let lockable = matches!(verb, "ibv_reg_mr" | "ibv_reg_mr_iova" | "ibv_reg_buf_mr" | "ibv_reg_mr_ex");
        let limited = matches!(source.raw_os_error(), Some(libc::ENOMEM | libc::EAGAIN | libc::EPERM));
        match memory_lock_limit() {
            Some(limit) if limited && lockable => Self::MemoryLockLimit { len, limit, source },
            _ => Self::Ibverbs { len, access, source },
        }
    }
}

/// The limit of locked memory, if there is one.
fn memory_lock_limit() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid place.
    let result = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) };
    (result == 0 && limit.rlim_cur != libc::RLIM_INFINITY && !may_lock_any_memory()).then_some(limit.rlim_cur)
}

/// Whether the kernel does not apply the limit to this process (`CAP_IPC_LOCK`).
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
