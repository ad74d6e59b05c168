//! Shared mappings of memory files; under Miri and loom, private memory.

use core::ffi::CStr;
use core::ptr::NonNull;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
#[cfg(not(any(miri, loom)))]
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

#[cfg(not(any(miri, loom)))]
use super::limits;

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

/// Who may write to a memory file after the process that creates it has sealed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Writers {
    /// Nobody: no process can map it for writing, or write to the file.
    Owner,
    Peers,
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
        limits::check_file_length(len)?;
        let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, len as u64)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Self::map(file, 0, len, true)
    }

    /// Creates memory that cannot shrink, and whose file [`lengthen`](Self::lengthen) makes longer.
    /// It is left out of core dumps.
    ///
    /// # Errors
    ///
    /// The errors of [`create`](Self::create); `EINVAL` before Linux 5.1 for [`Writers::Owner`].
    pub(crate) fn create_growing(name: &CStr, len: usize, writers: Writers) -> io::Result<Self> {
        use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
        limits::check_file_length(len)?;
        let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, len as u64)?;
        // This mapping comes before the seal, so it stays writable, and so does what continues it.
        let memory = Self::map(file, 0, len, true)?;
        memory.leave_out_of_dumps();
        let mut seals = SealFlags::SHRINK | SealFlags::SEAL;
        seals.set(SealFlags::FUTURE_WRITE, writers == Writers::Owner);
        fcntl_add_seals(memory.file().ok_or(io::ErrorKind::NotFound)?, seals)?;
        Ok(memory)
    }

    /// Makes the file longer. The mapping keeps its length.
    ///
    /// # Errors
    ///
    /// The program has closed the file, or a limit forbids the length.
    pub(crate) fn lengthen(&self, len: usize) -> io::Result<()> {
        limits::check_file_length(len)?;
        let file = self.file().ok_or(io::ErrorKind::NotFound)?;
        // Another process may have made it longer, and it never shrinks.
        if u64::try_from(rustix::fs::fstat(file)?.st_size).is_ok_and(|there| there >= len as u64) {
            return Ok(());
        }
        Ok(rustix::fs::ftruncate(file, len as u64)?)
    }

    /// Maps the `len` bytes of the file that follow this mapping, with the same permissions. It
    /// needs no descriptor, because the kernel duplicates a shared mapping whose old length is 0
    /// (mremap(2)).
    ///
    /// # Errors
    ///
    /// The file ends before that, or the system has no address space for it.
    pub(crate) fn following(&self, len: usize) -> io::Result<Self> {
        use rustix::mm::{Advice, MremapFlags, madvise, mremap, munmap};
        let page = rustix::param::page_size();
        let process = super::fork::ForkGeneration::current();
        if self.process != process {
            return Err(io::ErrorKind::NotFound.into());
        }
        let last = self.base.as_ptr().wrapping_add(self.len - page);
        // SAFETY: the old length is 0, so that this mapping stays as it is, and the kernel makes a
        // new one at an address of its choice.
        let copy = unsafe { mremap(last.cast(), 0, page + len, MremapFlags::MAYMOVE) }
            .map_err(|errno| limits::unmappable(errno, page + len))?;
        // SAFETY: the new mapping begins with a second view of the last page, which only this
        // function knows; the rest lies behind it.
        let base = unsafe {
            munmap(copy, page)?;
            copy.cast::<u8>().add(page)
        };
        let base = NonNull::new(base).ok_or(io::ErrorKind::OutOfMemory)?;
        let memory = Self { base, len, file: None, process };
        // SAFETY: the range is the new mapping.
        unsafe { madvise(base.as_ptr().cast(), len, Advice::LinuxDontFork)? };
        memory.leave_out_of_dumps();
        check_backed(base.as_ptr().wrapping_add(len - page))?;
        Ok(memory)
    }

    /// A core dump of untouched pages would allocate them.
    fn leave_out_of_dumps(&self) {
        use rustix::mm::{Advice, madvise};
        // SAFETY: the range is this mapping, and the advice changes no byte.
        if let Err(error) = unsafe { madvise(self.base.as_ptr().cast(), self.len, Advice::LinuxDontDump) } {
            log::debug!("MADV_DONTDUMP: {error}");
        }
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
        memory.leave_out_of_dumps();
        // A descriptor for each would exhaust the limit.
        drop(memory.take_file());
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
        // A descriptor for each region would exhaust the limit.
        drop(memory.take_file());
        Ok((memory, kind))
    }

    fn map(file: OwnedFd, offset: u64, len: usize, writable: bool) -> io::Result<Self> {
        use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap};
        let protection = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a new mapping at an address that the system chooses replaces no other.
        let base = unsafe { mmap(core::ptr::null_mut(), len, protection, MapFlags::SHARED, &file, offset) };
        let base = base.map_err(|errno| limits::unmappable(errno, len))?;
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

    /// Takes the file out. The mapping keeps the memory.
    pub(crate) fn take_file(&mut self) -> Option<super::fork::OwnedFile> {
        self.file.take()
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
}

/// Zeroes a range of whole words, which keeps its pages. A hostile peer may write to them at the
/// same time.
///
/// # Errors
///
/// `InvalidInput`: its ends are not those of words.
///
/// # Safety
///
/// The range lies in a mapping, and only atomics and raw copies access it.
#[cfg(not(any(miri, loom)))]
pub(crate) unsafe fn clear(place: NonNull<u8>, len: usize) -> io::Result<()> {
    const WORD: usize = size_of::<AtomicU64>();
    if !place.addr().get().is_multiple_of(WORD) || !len.is_multiple_of(WORD) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: the caller guarantees the range, and it was just checked to consist of words.
    let words = unsafe { core::slice::from_raw_parts(place.cast::<AtomicU64>().as_ptr(), len / WORD) };
    words.iter().for_each(|word| word.store(0, Relaxed));
    Ok(())
}

/// The length of a file, in bytes.
///
/// # Errors
///
/// The system cannot tell.
#[cfg(not(any(miri, loom)))]
pub(crate) fn length_of(file: &OwnedFd) -> io::Result<u64> {
    Ok(u64::try_from(rustix::fs::fstat(file)?.st_size).unwrap_or(0))
}

/// Checks that a page of a mapping is backed by its file: an access behind the file's end would end
/// the process with SIGBUS.
#[cfg(not(any(miri, loom)))]
fn check_backed(page: *mut u8) -> io::Result<()> {
    use rustix::mm::{Advice, madvise};
    // SAFETY: the advice changes no byte.
    match unsafe { madvise(page.cast(), rustix::param::page_size(), Advice::LinuxPopulateRead) } {
        // Before Linux 5.14.
        Err(rustix::io::Errno::INVAL) => {}
        done => return Ok(done?),
    }
    let mut byte = 0u8;
    let here = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let there = libc::iovec { iov_base: page.cast(), iov_len: 1 };
    // SAFETY: the call writes one byte, which is on the stack; it reads the page as it would another
    // process's, and fails where the page is not backed.
    let read = unsafe { libc::process_vm_readv(libc::getpid(), &raw const here, 1, &raw const there, 1, 0) };
    if read == 1 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Whether [`FileMapping::following`] works here. It does in Linux, and not in some emulators.
#[cfg(not(any(miri, loom)))]
pub(crate) fn can_continue_mappings() -> bool {
    static CAN: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    if let Some(can) = CAN.get() {
        return *can;
    }
    let page = rustix::param::page_size();
    let memory = FileMapping::create_growing(c"soft-rnic", page, Writers::Peers);
    let Ok(memory) = memory.and_then(|memory| memory.lengthen(2 * page).map(|()| memory)) else {
        // A lack of resources says nothing of the system.
        return true;
    };
    let can = match memory.following(page) {
        Ok(_) => true,
        // QEMU's emulator returns ENOMEM, too, although other mappings can be made.
        Err(error) if error.kind() == io::ErrorKind::OutOfMemory => {
            match FileMapping::create(c"soft-rnic", 2 * page) {
                Ok(_) => false,
                Err(_) => return true,
            }
        }
        Err(_) => false,
    };
    *CAN.get_or_init(|| can)
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
    pub(crate) fn create_growing(name: &CStr, len: usize, _writers: Writers) -> io::Result<Self> {
        Self::create(name, len)
    }

    /// Fails, because private memory does not grow.
    pub(crate) fn lengthen(&self, _len: usize) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Fails, because private memory does not grow.
    pub(crate) fn following(&self, _len: usize) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
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

    /// Returns `None`, because there is no file.
    pub(crate) fn take_file(&mut self) -> Option<super::fork::OwnedFile> {
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
}

/// Zeroes a range. The plain write lets Miri report a thread that still accesses it.
///
/// # Errors
///
/// It never fails.
///
/// # Safety
///
/// The range lies in a mapping.
#[cfg(any(miri, loom))]
pub(crate) unsafe fn clear(place: NonNull<u8>, len: usize) -> io::Result<()> {
    // SAFETY: the caller guarantees the range.
    unsafe { place.as_ptr().write_bytes(0, len) };
    Ok(())
}

/// Fails, because no file exists under Miri and loom.
#[cfg(any(miri, loom))]
pub(crate) fn length_of(_file: &OwnedFd) -> io::Result<u64> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(any(miri, loom))]
pub(crate) fn can_continue_mappings() -> bool {
    false
}

#[cfg(any(miri, loom))]
impl Drop for FileMapping {
    fn drop(&mut self) {
        // SAFETY: `create` allocated the memory with this layout.
        unsafe { std::alloc::dealloc(self.base.as_ptr(), Self::layout(self.len)) };
    }
}
