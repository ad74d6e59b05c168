//! Device memory (`ibv_dm`), which this device allocates in host memory. Peers map it and copy to
//! and from it directly.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use super::context::{Context, CountGuard};
use super::use_ref::{CountsUses, UseCount};
use crate::node::ExportId;
use crate::platform::memory::FileMapping;
use crate::platform::{copy, errno};
use crate::shared::segment::PAGE;

/// The largest supported alignment: the memory begins at a page.
const MAX_LOG_ALIGN: u32 = PAGE.ilog2();
/// The processor copies words of this many bytes to and from device memory. Devices with such
/// memory have this rule (mlx5's `mlx5_access_dm`), so a program that breaks it must fail here too.
const COPY_UNIT: u64 = 4;

/// A piece of device memory.
#[derive(Debug)]
pub(crate) struct Dm {
    counted: CountGuard,
    number: u32,
    /// The length that the program asked for, in bytes. The memory consists of whole pages.
    length: usize,
    memory: Arc<FileMapping>,
    export: ExportId,
    users: UseCount,
    gone: AtomicBool,
}

impl Dm {
    /// Allocates device memory for `ibv_alloc_dm`.
    ///
    /// # Errors
    ///
    /// An errno: `EINVAL` for a length of 0 or an alignment above a page, `ENOMEM` if not enough
    /// device memory is left.
    pub(crate) fn allocate(
        context: &Arc<Context>,
        length: usize,
        log_align: u32,
    ) -> Result<Arc<Self>, c_int> {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        if length == 0 || log_align > MAX_LOG_ALIGN {
            return Err(libc::EINVAL);
        }
        let counted = context.count(|counts| &counts.dm, u32::MAX)?;
        context.take_device_memory(length)?;
        // Until the `Dm` exists, whose drop returns the bytes, an error must return them here.
        let made = Self::export(context, length).inspect_err(|_| context.return_device_memory(length));
        let (memory, export) = made?;
        let dm = Arc::new(Self {
            counted,
            number: NEXT.fetch_add(1, Relaxed),
            length,
            memory,
            export,
            users: UseCount::default(),
            gone: AtomicBool::new(false),
        });
        context.enter_device_memory(&dm);
        Ok(dm)
    }

    fn export(context: &Context, length: usize) -> Result<(Arc<FileMapping>, ExportId), c_int> {
        let refused = |error: std::io::Error| errno::refused("ibv_alloc_dm", &error);
        let whole = length.checked_next_multiple_of(PAGE).ok_or(libc::ENOMEM)?;
        let memory = Arc::new(FileMapping::create(c"soft-rnic device memory", whole).map_err(refused)?);
        let export = context.rnic().node().exports().add(Arc::clone(&memory)).map_err(refused)?;
        Ok((memory, export))
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        self.counted.context()
    }

    /// The number by which it can be imported.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// The pointer to a range.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the range is not within the memory.
    pub(crate) fn range(&self, offset: u64, length: usize) -> Result<*mut u8, c_int> {
        let offset = usize::try_from(offset).map_err(|_| libc::EINVAL)?;
        let inside = offset.checked_add(length).is_some_and(|end| end <= self.length);
        // The range is in bounds, so wrapping changes nothing.
        inside.then(|| self.memory.base().as_ptr().wrapping_add(offset)).ok_or(libc::EINVAL)
    }

    /// The pointer to a range that the processor copies.
    ///
    /// # Errors
    ///
    /// As mlx5: `EFAULT` if the range is not within the memory, `EINVAL` if its offset or length is
    /// no multiple of 4.
    fn copied_range(&self, offset: u64, length: usize) -> Result<*mut u8, c_int> {
        let at = self.range(offset, length).map_err(|_| libc::EFAULT)?;
        if offset.is_multiple_of(COPY_UNIT) && (length as u64).is_multiple_of(COPY_UNIT) {
            Ok(at)
        } else {
            Err(libc::EINVAL)
        }
    }

    /// Copies bytes of the program to a range.
    ///
    /// # Errors
    ///
    /// `EFAULT` if the range is not within the memory; `EINVAL` if its offset or length is no
    /// multiple of 4; `EIO` in a forked child.
    ///
    /// # Safety
    ///
    /// - `from` is readable for `length` bytes.
    pub(crate) unsafe fn write(&self, offset: u64, from: *const u8, length: usize) -> Result<(), c_int> {
        self.context().check_process()?;
        let to = self.copied_range(offset, length)?;
        // SAFETY: the caller guarantees `length` readable bytes, and `copied_range` has checked the
        // destination. The memory lives as long as this object. Others may access it concurrently
        // by raw pointers, as this does.
        unsafe { copy::copy_unordered(to, from, length) };
        Ok(())
    }

    /// Copies a range to bytes of the program.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write).
    ///
    /// # Safety
    ///
    /// - `to` is writable for `length` bytes.
    pub(crate) unsafe fn read(&self, to: *mut u8, offset: u64, length: usize) -> Result<(), c_int> {
        self.context().check_process()?;
        let from = self.copied_range(offset, length)?;
        // SAFETY: the caller guarantees `length` writable bytes, and `copied_range` has checked the
        // source. The memory lives as long as this object. Others may access it concurrently by raw
        // pointers, as this does.
        unsafe { copy::copy_unordered(to, from, length) };
        Ok(())
    }

    /// Frees the memory, for the pointer that allocated it or for an imported one.
    ///
    /// # Errors
    ///
    /// `EBUSY` if it has a memory region, `EINVAL` if it was freed before.
    pub(crate) fn free(&self) -> Result<(), c_int> {
        self.context().check_process()?;
        if self.users.is_used() {
            return Err(libc::EBUSY);
        }
        if self.gone.swap(true, Relaxed) {
            return Err(libc::EINVAL);
        }
        self.counted.count_out();
        self.context().return_device_memory(self.length);
        Ok(())
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Relaxed)
    }
}

impl CountsUses for Dm {
    fn users(&self) -> &UseCount {
        &self.users
    }
}

impl Drop for Dm {
    fn drop(&mut self) {
        if !self.is_gone() {
            self.context().return_device_memory(self.length);
        }
        self.context().rnic().node().exports().remove(self.export);
    }
}
