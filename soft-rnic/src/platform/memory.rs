//! Shared mappings of memory files; under Miri and loom, private memory.

use core::ffi::CStr;
use core::ptr::NonNull;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};

/// A mapping of zeroed memory, whose content others may change at any time.
///
/// It begins at a page. There is never a reference to it but to atomics.
#[derive(Debug)]
pub(crate) struct Memory {
    base: NonNull<u8>,
    len: usize,
    #[cfg(not(any(miri, loom)))]
    file: Option<super::fork::OwnedFile>,
    #[cfg(not(any(miri, loom)))]
    process: super::fork::ForkGeneration,
}

/// What a file of the program's is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BackingFile {
    /// Memory of another device, or that one may reach. It never shrinks; the system may not copy from or to it for others.
    DmaBuf,
    /// A memory file.
    Memory,
}

/// What a peer says that its file is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerFile {
    /// Where in the file the memory begins.
    pub(crate) offset: u64,
    pub(crate) len: usize,
    pub(crate) writable: bool,
    /// The user trusts files that can shrink, too.
    pub(crate) unsealed: bool,
}

// SAFETY: a mapping belongs to the process, not to a thread; what is done with its bytes is up to the holder.
unsafe impl Send for Memory {}
// SAFETY: a mapping belongs to the process, not to a thread; what is done with its bytes is up to
// the holder; the type itself gives out an address and a length only.
unsafe impl Sync for Memory {}

impl Memory {
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

#[cfg(not(any(miri, loom)))]
impl Memory {
    /// New memory that cannot shrink or grow.
    ///
    /// # Errors
    ///
    /// The system has no file descriptor or address space for it.
    pub(crate) fn create(name: &CStr, len: usize) -> io::Result<Self> {
        use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
        let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, len as u64)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Self::map(file, 0, len, true)
    }

    /// Maps memory that a peer gave, if the file is long enough and cannot shrink: one that could would let
    /// the peer end this process with SIGBUS. So would one of huge pages, of which there may be none left.
    ///
    /// # Errors
    ///
    /// It can shrink, is too short or no such file (`EINVAL`), or the system cannot map it.
    pub(crate) fn of_peer(file: OwnedFd, what: PeerFile) -> io::Result<Self> {
        use rustix::fs::{SealFlags, fcntl_get_seals, fstat, fstatfs};
        const TMPFS: u64 = 0x0102_1994;
        let PeerFile { offset, len, writable, unsealed } = what;
        let sealed = unsealed || fcntl_get_seals(&file)?.contains(SealFlags::SHRINK);
        let plain = fstatfs(&file)?.f_type as u64 == TMPFS;
        let long = u64::try_from(fstat(&file)?.st_size).unwrap_or(0);
        let fits = offset.checked_add(len as u64).is_some_and(|end| end <= long);
        if !sealed || !plain || !fits || len == 0 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut memory = Self::map(file, offset, len, writable)?;
        // The mapping keeps the memory; a descriptor for each would be many.
        memory.file = None;
        Ok(memory)
    }

    /// Maps a file of the program's that is to be registered: a dma-buf, or a memory file that cannot shrink.
    ///
    /// # Errors
    ///
    /// `EBADF`: it is not open. `EINVAL`: it is neither, or not so long. `EOPNOTSUPP`: the processor cannot reach it. Others
    /// as the system says: `EACCES` or `EPERM` for a file that may not be written.
    pub(crate) fn of_program(
        file: RawFd,
        offset: u64,
        len: usize,
        writable: bool,
    ) -> io::Result<(Self, BackingFile)> {
        use rustix::fs::{SealFlags, fcntl_get_seals, fstat, fstatfs};
        const TMPFS: u64 = 0x0102_1994;
        /// `DMA_BUF_MAGIC`
        const DMA_BUF: u64 = 0x444d_4142;
        if file < 0 {
            return Err(io::Error::from_raw_os_error(libc::EBADF));
        }
        // SAFETY: it is not -1, and borrowed for one call, which fails if it is not open. All that follows is about the copy,
        // which nobody else can close.
        let file = unsafe { BorrowedFd::borrow_raw(file) }.try_clone_to_owned()?;
        let kind = match fstatfs(&file)?.f_type as u64 {
            DMA_BUF => BackingFile::DmaBuf,
            TMPFS if fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK)) => {
                BackingFile::Memory
            }
            TMPFS => {
                log::warn!("a memory file is not registered: it could shrink (F_SEAL_SHRINK is not set)");
                return Err(io::ErrorKind::InvalidInput.into());
            }
            _ => return Err(io::ErrorKind::InvalidInput.into()),
        };
        let long = u64::try_from(fstat(&file)?.st_size).unwrap_or(0);
        let fits = offset.checked_add(len as u64).is_some_and(|end| end <= long);
        if !fits || len == 0 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut memory =
            Self::map(file, offset, len, writable).map_err(|error| match error.raw_os_error() {
                Some(libc::ENODEV) => io::Error::from_raw_os_error(libc::EOPNOTSUPP),
                _ => error,
            })?;
        // The mapping keeps the memory; a descriptor for each region would be many.
        memory.file = None;
        Ok((memory, kind))
    }

    fn map(file: OwnedFd, offset: u64, len: usize, writable: bool) -> io::Result<Self> {
        use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap};
        let protection = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a new mapping where the system finds room.
        let base = unsafe { mmap(core::ptr::null_mut(), len, protection, MapFlags::SHARED, &file, offset)? };
        let base = NonNull::new(base.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let file = Some(super::fork::OwnedFile::new(file));
        let memory = Self { base, len, file, process: super::fork::ForkGeneration::current() };
        // SAFETY: the mapping that was just made. A forked child has no part in the device, so it gets none of it.
        unsafe { madvise(base.as_ptr().cast(), len, Advice::LinuxDontFork)? };
        Ok(memory)
    }

    /// The descriptor to hand to peers; `None` for a peer's memory, or if the program has closed it.
    pub(crate) fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref()?.get().ok()
    }

    /// Gives the pages of a range back to the system; they are zero afterwards.
    pub(crate) fn discard(&self, offset: usize, len: usize) -> io::Result<()> {
        use rustix::fs::{FallocateFlags, fallocate};
        let Some(file) = &self.file else { return Ok(()) };
        Ok(fallocate(
            file.get()?,
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            offset as u64,
            len as u64,
        )?)
    }
}

#[cfg(not(any(miri, loom)))]
impl Drop for Memory {
    fn drop(&mut self) {
        if !self.process.is_current() {
            // A forked child does not have the mapping: something else may lie there, and under the descriptor.
            core::mem::forget(self.file.take());
            return;
        }
        // SAFETY: the mapping was made by `map` with this length, and nothing refers to it any more: references are
        // bound to the life of `self`.
        if let Err(error) = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) } {
            log::error!("munmap of {} bytes at {:p} failed: {error}", self.len, self.base);
        }
    }
}

#[cfg(any(miri, loom))]
impl Memory {
    const ALIGN: usize = 4096;

    fn layout(len: usize) -> std::alloc::Layout {
        std::alloc::Layout::from_size_align(len, Self::ALIGN).expect("a small size")
    }

    /// New memory.
    ///
    /// # Errors
    ///
    /// There is none.
    pub(crate) fn create(_name: &CStr, len: usize) -> io::Result<Self> {
        // SAFETY: the length is not zero.
        let base = unsafe { std::alloc::alloc_zeroed(Self::layout(len)) };
        Ok(Self { base: NonNull::new(base).ok_or(io::ErrorKind::OutOfMemory)?, len })
    }

    /// There are no peers.
    pub(crate) fn of_peer(_file: OwnedFd, _what: PeerFile) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// There are no files.
    pub(crate) fn of_program(_: RawFd, _: u64, _: usize, _: bool) -> io::Result<(Self, BackingFile)> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// There are no peers.
    pub(crate) fn file(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Zeroes a range.
    pub(crate) fn discard(&self, offset: usize, len: usize) -> io::Result<()> {
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: inside of the allocation, as was checked. Pages are given back when nobody looks at them any more: that
        // this is no atomic access lets Miri say so if somebody does.
        unsafe { self.base.as_ptr().add(offset).write_bytes(0, len) };
        Ok(())
    }
}

#[cfg(any(miri, loom))]
impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated by `create` with this layout.
        unsafe { std::alloc::dealloc(self.base.as_ptr(), Self::layout(self.len)) };
    }
}
