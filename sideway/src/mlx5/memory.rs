//! dma-bufs through the data-direct engine.

use std::ffi::{c_char, c_int};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::PathBuf;
use std::ptr::NonNull;

use rdma_mummy_sys::types::MLX5DV_REG_DMABUF_ACCESS_DATA_DIRECT;

use super::DirectVerbs;
use crate::error::Error;
use crate::ibverbs::memory_region::MemoryRegion;
use crate::ibverbs::protection_domain::ProtectionDomain;
use crate::ibverbs::{AccessFlags, Unsupported, check};

c_flags! {
    /// How the device reaches a dma-buf (`mlx5dv_reg_dmabuf_mr`).
    pub struct DmabufAccess(u32) {
        /// By the data-direct engine that belongs to it: past the root complex, at the full speed of a GPU's link.
        DataDirect = MLX5DV_REG_DMABUF_ACCESS_DATA_DIRECT.0,
    }
}

/// A part of a dma-buf, and the address that work requests have for it.
#[derive(Clone, Copy, Debug)]
pub struct DmabufRange<'fd> {
    /// The dma-buf. The region keeps it; the descriptor itself may be closed then.
    pub fd: BorrowedFd<'fd>,
    /// Where in the dma-buf the range begins.
    pub offset: u64,
    /// How many bytes it has.
    pub length: usize,
    /// The address of its first byte in work requests. It lies in its page where `offset` does.
    pub iova: u64,
}

impl DirectVerbs {
    /// Registers a part of a dma-buf (`mlx5dv_reg_dmabuf_mr`), with what mlx5 has beyond `ibv_reg_dmabuf_mr`.
    ///
    /// Work requests name its memory by `iova`, which need not be an address of this process.
    ///
    /// # Safety
    ///
    /// What [`reg_mr`](ProtectionDomain::reg_mr) asks for goes for all memory of this process that the dma-buf is, in other
    /// mappings of it. And: the library copies small messages from a completion to the address that the work request names,
    /// unless the queue pair was made with [`DisableScatterToCqe`](super::QueuePairCreateFlags::DisableScatterToCqe), or with
    /// `MLX5_SCATTER_TO_CQE=0` in the environment. So as long as the region's keys are used on others, what lies at `iova` in this
    /// process is that memory.
    ///
    /// # Errors
    ///
    /// The library is too old, or the device has no such engine or cannot map dma-bufs ([`Unsupported`]); or the range or the
    /// descriptor is wrong.
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
        // SAFETY: the domain lives and is mlx5's, the descriptor is open, and the caller answers for the memory.
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
        // SAFETY: the region was made just now in this domain.
        Ok(unsafe { MemoryRegion::of_direct(mr, pd, length, iova, access) })
    }

    /// Where sysfs has the data-direct engine that belongs to the device (`mlx5dv_get_data_direct_sysfs_path`); `None` if there
    /// is none.
    ///
    /// # Errors
    ///
    /// The library is too old ([`Unsupported`]), or does not answer.
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
        // SAFETY: the context is open and mlx5's, and there is as much room as is said.
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
