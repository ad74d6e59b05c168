//! Memory on the device, which here is memory of the device's making: peers map it, and copy to and from it directly.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use super::context::{Context, CountGuard};
use super::use_ref::{CountsUses, UseCount};
use crate::node::ExportId;
use crate::platform::memory::Memory;
use crate::platform::{copy, errno};
use crate::shared::segment::PAGE;

/// The greatest alignment that can be asked for: memory begins at a page.
const MAX_LOG_ALIGN: u32 = PAGE.ilog2();

/// Such memory.
#[derive(Debug)]
pub(crate) struct Dm {
    counted: CountGuard,
    number: u32,
    /// In bytes; the memory has whole pages.
    length: usize,
    memory: Arc<Memory>,
    export: ExportId,
    users: UseCount,
    gone: AtomicBool,
}

impl Dm {
    /// # Errors
    ///
    /// An errno: `EINVAL` for no bytes or an alignment beyond a page's; `ENOMEM` if there is not so much left.
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
        // What was taken is given back by the drop from here on, or here.
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

    fn export(context: &Context, length: usize) -> Result<(Arc<Memory>, ExportId), c_int> {
        let refused = |error: std::io::Error| errno::refused("ibv_alloc_dm", &error);
        let whole = length.checked_next_multiple_of(PAGE).ok_or(libc::ENOMEM)?;
        let memory = Arc::new(Memory::create(c"soft-rnic device memory", whole).map_err(refused)?);
        let export = context.rnic().node().exports().add(Arc::clone(&memory)).map_err(refused)?;
        Ok((memory, export))
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        self.counted.context()
    }

    /// By which it can be imported.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// A range of it.
    ///
    /// # Errors
    ///
    /// `EINVAL`: it has not so many bytes there.
    pub(crate) fn range(&self, offset: u64, length: usize) -> Result<*mut u8, c_int> {
        let offset = usize::try_from(offset).map_err(|_| libc::EINVAL)?;
        let inside = offset.checked_add(length).is_some_and(|end| end <= self.length);
        // In bounds, as was just checked.
        inside.then(|| self.memory.base().as_ptr().wrapping_add(offset)).ok_or(libc::EINVAL)
    }

    /// Copies bytes of the program's to a range.
    ///
    /// # Errors
    ///
    /// As [`range`](Self::range); `EIO` in a forked child.
    ///
    /// # Safety
    ///
    /// - `from` is readable for `length` bytes.
    pub(crate) unsafe fn write(&self, offset: u64, from: *const u8, length: usize) -> Result<(), c_int> {
        self.context().check_process()?;
        let to = self.range(offset, length)?;
        // SAFETY: the caller's bytes, and so many of the memory, which lives as long as this; others may access it too, by
        // raw pointers, as this does.
        unsafe { copy::copy_unordered(to, from, length) };
        Ok(())
    }

    /// Copies a range to bytes of the program's.
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
        let from = self.range(offset, length)?;
        // SAFETY: the caller's bytes, and so many of the memory, which lives as long as this;
        // others may access it too, by raw pointers, as this does.
        unsafe { copy::copy_unordered(to, from, length) };
        Ok(())
    }

    /// Gives the memory up, by whatever pointer: it may have been imported.
    ///
    /// # Errors
    ///
    /// `EBUSY` if a region of it is left, `EINVAL` if it was freed before.
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
