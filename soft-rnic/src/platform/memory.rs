//! Shared mappings of memory files; under Miri and loom, private memory.

use core::ffi::CStr;
use core::ptr::NonNull;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
#[cfg(not(any(miri, loom)))]
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A mapping of zeroed memory whose content other processes may change at any time.
///
/// It begins at a page boundary. Only references to atomics ever point into it.
#[derive(Debug)]
pub(crate) struct FileMapping {
    base: NonNull<u8>,
    len: usize,
    #[cfg(not(any(miri, loom)))]
    file: Option<super::fork::OwnedFile>,
    #[cfg(not(any(miri, loom)))]
    process: super::fork::ForkGeneration,
}

/// The kinds of files that a program may register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BackingFile {
    /// Memory of another device, or memory that one may reach. It never shrinks; the system may
    /// refuse to copy from or to it on behalf of other processes.
    DmaBuf,
    /// A memory file (`memfd_create`).
    Memory,
}

/// A peer's description of a file that it shares.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerFile {
    /// Offset of the memory within the file, in bytes.
    pub(crate) offset: u64,
    pub(crate) len: usize,
    pub(crate) writable: bool,
    /// Whether the user trusts files that can shrink, too.
    pub(crate) unsealed: bool,
}

// SAFETY: a mapping belongs to the process and not to a thread; the holder decides which of its
// bytes are accessed.
unsafe impl Send for FileMapping {}
// SAFETY: a mapping belongs to the process, and the type's methods only return an address and a
// length.
unsafe impl Sync for FileMapping {}

impl FileMapping {
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

#[cfg(not(any(miri, loom)))]
impl FileMapping {
    /// Creates memory that cannot shrink or grow.
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

    /// Creates memory that cannot shrink or grow, and that this process alone can write: no process
    /// can map it for writing from now on, or write to the file.
    ///
    /// # Errors
    ///
    /// The errors of [`create`](Self::create); `EINVAL` before Linux 5.1.
    pub(crate) fn create_owned(name: &CStr, len: usize) -> io::Result<Self> {
        use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
        let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, len as u64)?;
        let memory = Self::map(file, 0, len, true)?;
        // The mapping above came before the seal, so it stays writable.
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
        let file = memory.file().ok_or(io::ErrorKind::NotFound)?;
        fcntl_add_seals(file, seals)?;
        Ok(memory)
    }

    /// Maps memory that a peer gave, if the file is long enough and cannot shrink: a file that
    /// shrinks would let the peer end this process with SIGBUS. Huge pages are refused, because a
    /// fault on them fails when none is left.
    ///
    /// # Errors
    ///
    /// It can shrink, is too short or is another kind of file (`EINVAL`), or the system cannot map
    /// it.
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
        // The mapping keeps the memory, and a descriptor for each would exhaust the limit.
        memory.file = None;
        Ok(memory)
    }

    /// Maps a file of the program for registration: a dma-buf, or a memory file that cannot shrink.
    ///
    /// # Errors
    ///
    /// `EBADF`: it is not open. `EINVAL`: it is another kind of file, or shorter than the range.
    /// `EOPNOTSUPP`: the processor cannot reach it. Other errors come from the system: `EACCES` or
    /// `EPERM` for a file that may not be written.
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
        // SAFETY: the number is not -1, and it is borrowed for one call, which fails if it is not
        // open. The code below uses the duplicate only, which no other code can close.
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
        // The mapping keeps the memory, and a descriptor for each region would exhaust the limit.
        memory.file = None;
        Ok((memory, kind))
    }

    fn map(file: OwnedFd, offset: u64, len: usize, writable: bool) -> io::Result<Self> {
        use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap};
        let protection = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a new mapping at an address that the system chooses replaces no other.
        let base = unsafe { mmap(core::ptr::null_mut(), len, protection, MapFlags::SHARED, &file, offset)? };
        let base = NonNull::new(base.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let file = Some(super::fork::OwnedFile::new(file));
        let memory = Self { base, len, file, process: super::fork::ForkGeneration::current() };
        // SAFETY: the range is the mapping that `mmap` just returned. A forked child has no part in
        // the device, so it does not inherit the mapping.
        unsafe { madvise(base.as_ptr().cast(), len, Advice::LinuxDontFork)? };
        Ok(memory)
    }

    /// The descriptor to hand to peers; `None` for a peer's memory, or if the program has closed
    /// it.
    pub(crate) fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref()?.get().ok()
    }

    /// Returns the pages of a range to the system; the range reads as zero afterwards.
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

    /// Zeroes a range of whole words, which keeps its pages. A hostile peer may write to them at the
    /// same time.
    ///
    /// # Errors
    ///
    /// `InvalidInput`: the range is not in the memory, or its ends are not those of words.
    pub(crate) fn clear(&self, offset: usize, len: usize) -> io::Result<()> {
        const WORD: usize = size_of::<AtomicU64>();
        let is_inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        if !is_inside || !offset.is_multiple_of(WORD) || !len.is_multiple_of(WORD) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: the words lie in the mapping, as was just checked, and are aligned, because the
        // mapping begins at a page. They are accessed as atomics only.
        let words = unsafe {
            let first = self.base.as_ptr().add(offset).cast::<AtomicU64>();
            core::slice::from_raw_parts(first, len / WORD)
        };
        words.iter().for_each(|word| word.store(0, Relaxed));
        Ok(())
    }
}

#[cfg(not(any(miri, loom)))]
impl Drop for FileMapping {
    fn drop(&mut self) {
        if !self.process.is_current() {
            // A forked child lacks the mapping: other memory may lie at that address, and another
            // file under that number.
            core::mem::forget(self.file.take());
            return;
        }
        // SAFETY: `map` made the mapping with this length, and no reference into it remains,
        // because each is bound to the life of `self`.
        if let Err(error) = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) } {
            log::error!("munmap of {} bytes at {:p} failed: {error}", self.len, self.base);
        }
    }
}

#[cfg(any(miri, loom))]
impl FileMapping {
    const ALIGN: usize = 4096;

    fn layout(len: usize) -> std::alloc::Layout {
        std::alloc::Layout::from_size_align(len, Self::ALIGN).expect("a small size")
    }

    /// Creates private memory.
    ///
    /// # Errors
    ///
    /// It never fails.
    pub(crate) fn create(_name: &CStr, len: usize) -> io::Result<Self> {
        // SAFETY: the layout's length is not zero, because every caller asks for at least a page.
        let base = unsafe { std::alloc::alloc_zeroed(Self::layout(len)) };
        Ok(Self { base: NonNull::new(base).ok_or(io::ErrorKind::OutOfMemory)?, len })
    }

    /// The same as [`create`](Self::create).
    ///
    /// # Errors
    ///
    /// It never fails.
    pub(crate) fn create_owned(name: &CStr, len: usize) -> io::Result<Self> {
        Self::create(name, len)
    }

    /// Fails, because no peer exists under Miri and loom.
    pub(crate) fn of_peer(_file: OwnedFd, _what: PeerFile) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Fails, because no file exists under Miri and loom.
    pub(crate) fn of_program(_: RawFd, _: u64, _: usize, _: bool) -> io::Result<(Self, BackingFile)> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Returns `None`, because no peer could receive it.
    pub(crate) fn file(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Zeroes a range.
    pub(crate) fn discard(&self, offset: usize, len: usize) -> io::Result<()> {
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: the check above keeps the range inside the allocation. Pages are discarded when
        // no thread accesses them any more: the plain write lets Miri report a thread that still
        // does.
        unsafe { self.base.as_ptr().add(offset).write_bytes(0, len) };
        Ok(())
    }

    /// The same, because here nothing returns to the system.
    pub(crate) fn clear(&self, offset: usize, len: usize) -> io::Result<()> {
        self.discard(offset, len)
    }
}

#[cfg(any(miri, loom))]
impl Drop for FileMapping {
    fn drop(&mut self) {
        // SAFETY: `create` allocated the memory with this layout.
        unsafe { std::alloc::dealloc(self.base.as_ptr(), Self::layout(self.len)) };
    }
}
