//! Memory regions.

use std::fmt;
use std::io;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use rdma_mummy_sys::types::ibv_mr;
use rdma_mummy_sys::verbs;

use super::AccessFlags;
use super::protection_domain::ProtectionDomain;

/// Memory that is registered with a device (`ibv_mr`).
///
/// Dropping it deregisters the memory. It does not own the memory: see
/// [`reg_mr`](ProtectionDomain::reg_mr) for what its owner promises.
pub struct MemoryRegion {
    mr: NonNull<ibv_mr>,
    ptr: *mut u8,
    len: usize,
    lkey: u32,
    rkey: u32,
    pd: ProtectionDomain,
}

// SAFETY: a region is a pair of keys; the memory is only touched through raw pointers by unsafe code.
unsafe impl Send for MemoryRegion {}
// SAFETY: as above.
unsafe impl Sync for MemoryRegion {}

impl MemoryRegion {
    /// # Safety
    ///
    /// As [`ProtectionDomain::reg_mr`].
    pub(crate) unsafe fn register(
        pd: &ProtectionDomain,
        ptr: *mut u8,
        len: usize,
        access: AccessFlags,
    ) -> Result<Self, RegisterMemoryRegionError> {
        let lib = pd.context().provider().verbs();
        // SAFETY: the domain lives, and the caller keeps the memory allocated.
        let mr = unsafe {
            verbs::ibv_reg_mr(lib, pd.as_raw().as_ptr(), ptr.cast(), len, access.bits() as core::ffi::c_int)
        };
        let mr = NonNull::new(mr)
            .ok_or_else(|| RegisterMemoryRegionError::new(len, access, io::Error::last_os_error()))?;
        // SAFETY: the library returned a region; the fields are in every release's struct.
        let (lkey, rkey) = unsafe { ((*mr.as_ptr()).lkey, (*mr.as_ptr()).rkey) };
        Ok(Self { mr, ptr, len, lkey, rkey, pd: pd.clone() })
    }

    /// A region that a plug-in of direct verbs has made.
    ///
    /// # Safety
    ///
    /// `mr` was made just now in this domain, and nothing else deregisters it.
    #[cfg(feature = "mlx5")]
    pub(crate) unsafe fn of_raw(
        mr: NonNull<ibv_mr>,
        pd: &ProtectionDomain,
        ptr: *mut u8,
        len: usize,
    ) -> Self {
        // SAFETY: the caller gives a region that lives; the fields are in every release's struct.
        let (lkey, rkey) = unsafe { ((*mr.as_ptr()).lkey, (*mr.as_ptr()).rkey) };
        Self { mr, ptr, len, lkey, rkey, pd: pd.clone() }
    }

    /// The key by which local work requests name the region.
    #[inline]
    pub fn lkey(&self) -> u32 {
        self.lkey
    }

    /// The key by which a peer's work requests name the region.
    #[inline]
    pub fn rkey(&self) -> u32 {
        self.rkey
    }

    /// The first byte of the region.
    #[inline]
    pub fn get_ptr(&self) -> *mut u8 {
        self.ptr
    }

    /// How long the region is, in bytes.
    #[inline]
    pub fn region_len(&self) -> usize {
        self.len
    }

    /// The domain that the region belongs to.
    pub fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// The C object. Using it is as unsafe as in C, and it must not be deregistered.
    pub fn as_raw(&self) -> NonNull<ibv_mr> {
        self.mr
    }

    /// Deregisters the memory now (`ibv_dereg_mr`), and says how that went, which a drop only logs.
    ///
    /// # Errors
    ///
    /// The device did not let go of the memory. It stays registered, and the region comes back with the
    /// error: the memory must not be freed.
    pub fn close(self) -> Result<(), DeregisterMemoryRegionError> {
        let region = ManuallyDrop::new(self);
        // SAFETY: the region lives, and is taken apart below only if this succeeded.
        let result = unsafe { region.deregister() };
        match result {
            Ok(()) => {
                // SAFETY: the region's own drop does not run, so this is the only one of the domain's handle.
                drop(unsafe { core::ptr::read(&raw const region.pd) });
                Ok(())
            }
            Err(source) => {
                Err(DeregisterMemoryRegionError { region: ManuallyDrop::into_inner(region), source })
            }
        }
    }

    /// # Safety
    ///
    /// The region lives; if this succeeds it does not any more.
    unsafe fn deregister(&self) -> io::Result<()> {
        // SAFETY: the caller says that the region lives.
        super::check(unsafe { (self.pd.context().provider().verbs().ibv_dereg_mr)(self.mr.as_ptr()) })
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        // SAFETY: the region lives until here.
        if let Err(error) = unsafe { self.deregister() } {
            log::error!("ibv_dereg_mr failed, {} bytes at {:p} stay registered: {error}", self.len, self.ptr);
            // The region is still there, so what it depends on has to stay.
            std::mem::forget(self.pd.clone());
        }
    }
}

impl fmt::Debug for MemoryRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryRegion")
            .field("ptr", &self.ptr)
            .field("len", &self.len)
            .field("lkey", &format_args!("{:#x}", self.lkey))
            .field("rkey", &format_args!("{:#x}", self.rkey))
            .finish_non_exhaustive()
    }
}

/// Memory could not be deregistered.
#[derive(Debug, thiserror::Error)]
#[error("ibv_dereg_mr failed: {source}; the memory stays registered")]
pub struct DeregisterMemoryRegionError {
    /// The region, still registered.
    pub region: MemoryRegion,
    /// What the library said.
    pub source: io::Error,
}

/// Memory could not be registered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterMemoryRegionError {
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
        /// What the library said.
        source: io::Error,
    },
    /// `ibv_reg_mr` failed.
    #[error("cannot register {len} bytes with {access:?}: {source}")]
    Ibverbs {
        /// How many bytes were to be registered.
        len: usize,
        /// The permissions.
        access: AccessFlags,
        /// What the library said.
        source: io::Error,
    },
}

impl RegisterMemoryRegionError {
    #[cold]
    fn new(len: usize, access: AccessFlags, source: io::Error) -> Self {
        let limited = matches!(source.raw_os_error(), Some(libc::ENOMEM | libc::EAGAIN | libc::EPERM));
        match memory_lock_limit() {
            Some(limit) if limited => Self::MemoryLockLimit { len, limit, source },
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
