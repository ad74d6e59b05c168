//! Registration of dma-bufs through the data-direct engine (`mlx5dv_reg_dmabuf_mr`).

use std::ffi::{c_char, c_int};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::PathBuf;
use std::ptr::NonNull;

use rdma_mummy_sys::types::MLX5DV_REG_DMABUF_ACCESS_DATA_DIRECT;

use super::DirectVerbs;
use crate::direct::{self, check};
use crate::error::Error;
use crate::ibverbs::memory_region::MemoryRegion;
use crate::ibverbs::protection_domain::ProtectionDomain;
use crate::ibverbs::{AccessFlags, Unsupported};

c_flags! {
    /// How the device accesses a dma-buf (`mlx5dv_reg_dmabuf_mr`).
    pub struct DmabufAccess(u32) {
        /// Access through the device's data-direct engine, which bypasses the root complex and uses
        /// the full speed of a GPU's link.
        DataDirect = MLX5DV_REG_DMABUF_ACCESS_DATA_DIRECT.0,
    }
}

/// A part of a dma-buf, and its address in work requests.
#[derive(Clone, Copy, Debug)]
pub struct DmabufRange<'fd> {
    /// The dma-buf. The region keeps it; the descriptor may be closed afterwards.
    pub fd: BorrowedFd<'fd>,
    /// The start of the range in the dma-buf, in bytes.
    pub offset: u64,
    /// The length of the range in bytes.
    pub length: usize,
    /// The address of the first byte in work requests. It must have the same offset within a page
    /// as `offset`.
    pub iova: u64,
}

impl DirectVerbs {
    /// Registers a part of a dma-buf (`mlx5dv_reg_dmabuf_mr`), with options of mlx5 that
    /// `ibv_reg_dmabuf_mr` lacks.
    ///
    /// Work requests address the memory from `iova` on, which need not be an address of this
    /// process.
    ///
    /// # Safety
    ///
    /// - The contract of [`reg_mr`](ProtectionDomain::reg_mr) applies to all memory of this process
    ///   that maps the same dma-buf.
    /// - The library copies small messages from a completion to the address in the work request. It
    ///   does not if the queue pair was made with
    ///   [`DisableScatterToCqe`](super::QueuePairCreateFlags::DisableScatterToCqe), or with
    ///   `MLX5_SCATTER_TO_CQE=0` in the environment. So while the region's keys are used on other
    ///   pairs, the memory at `iova` in this process must be this memory.
    ///
    /// # Errors
    ///
    /// Fails as [`Unsupported`] if the library is too old, or if the device has no such engine or
    /// cannot map dma-bufs. Also fails if the range or the descriptor is wrong.
    ///
    /// # References
    ///
    /// `man mlx5dv_reg_dmabuf_mr`
    pub unsafe fn reg_dmabuf_mr(
        &self,
        pd: &ProtectionDomain,
        range: DmabufRange<'_>,
        access: AccessFlags,
        mlx5_access: DmabufAccess,
    ) -> Result<MemoryRegion, Error> {
        if pd.context() != self.context() {
            return Err(Error::other_context("mlx5dv_reg_dmabuf_mr", super::OTHER_DOMAIN));
        }
        let what = || format!("registration of dma-bufs with {mlx5_access:?}");
        let register = self.as_raw().mlx5dv_reg_dmabuf_mr();
        let register = register.map_err(|symbol| Unsupported::missing(self.context(), what(), symbol))?;
        let DmabufRange { fd, offset, length, iova } = range;
        let (flags, own) = (access.bits() as c_int, mlx5_access.bits() as c_int);
        // SAFETY: the borrow keeps the domain alive, which belongs to mlx5. The descriptor is open,
        // and the caller guarantees the memory.
        let mr = unsafe { register(pd.as_raw().as_ptr(), offset, length, iova, fd.as_raw_fd(), flags, own) };
        let Some(mr) = NonNull::new(mr) else {
            let source = io::Error::last_os_error();
            return Err(Error::of_device(self.context(), "mlx5dv_reg_dmabuf_mr", what(), source)
                .with("offset", format_args!("{offset:#x}"))
                .with("length", length)
                .with("iova", format_args!("{iova:#x}"))
                .debug("access", access)
                .debug("mlx5_access", mlx5_access));
        };
        // SAFETY: the library made the region just now in this domain, and the caller guarantees the
        // memory.
        Ok(unsafe { direct::memory_region(mr, pd, length, iova, access) })
    }

    /// The sysfs path of the device's data-direct engine (`mlx5dv_get_data_direct_sysfs_path`);
    /// `None` if it has none.
    ///
    /// # Errors
    ///
    /// Fails if the library is too old ([`Unsupported`]), or if it does not answer.
    ///
    /// # References
    ///
    /// `man mlx5dv_get_data_direct_sysfs_path`
    pub fn data_direct_sysfs_path(&self) -> Result<Option<PathBuf>, Error> {
        const WHAT: &str = "data-direct engine";
        let get = self.as_raw().mlx5dv_get_data_direct_sysfs_path();
        let get = get.map_err(|symbol| Unsupported::missing(self.context(), WHAT, symbol))?;
        let mut text = [0u8; libc::PATH_MAX as usize];
        let place: *mut c_char = text.as_mut_ptr().cast();
        // SAFETY: the context is open and belongs to mlx5, and `text` has the length that is
        // passed.
        let result = check(unsafe { get(self.context().as_raw().as_ptr(), place, text.len()) });
        match result {
            Ok(()) => {}
            Err(source) if source.raw_os_error() == Some(libc::ENODEV) => return Ok(None),
            Err(source) => {
                let verb = "mlx5dv_get_data_direct_sysfs_path";
                return Err(Error::of_device(self.context(), verb, WHAT, source));
            }
        }
        let length = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
        let below = String::from_utf8_lossy(&text[..length]);
        Ok(Some(PathBuf::from("/sys").join(below.trim_start_matches('/'))))
    }
}
