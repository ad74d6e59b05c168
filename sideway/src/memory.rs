//! Memory for messages: allocated, registered and freed in the right order.
//!
//! A [`Buffer`] is zeroed memory that begins at a page. [`reg_buffer`] makes it a [`RegisteredBuffer`], which ends
//! the registration before it frees the memory, and never frees what the device did not let go of:
//!
//! ```no_run
//! use sideway::ibverbs::AccessFlags;
//! use sideway::ibverbs::device::DeviceList;
//! use sideway::memory::{Buffer, BufferKind};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let context = DeviceList::new()?.first()?.open()?;
//! let pd = context.alloc_pd()?;
//! let buffer = Buffer::new(BufferKind::for_device(&context), 1 << 20)?;
//! let memory = pd.reg_buffer(buffer, AccessFlags::LocalWrite | AccessFlags::RemoteWrite)?;
//! println!("{} bytes at {:p}, rkey {:#x}", memory.len(), memory.as_ptr(), memory.rkey());
//! # Ok(())
//! # }
//! ```
//!
//! A device, or a peer through it, may write to registered memory at any time, so nothing here makes a reference
//! to it. What a program does with the pointer is up to its own unsafe code.
//!
//! # Which kind
//!
//! A NIC does not care where memory comes from. A software device (soft-rnic) that moves a message between two
//! processes copies it once and at memory speed if the receiver's memory can be mapped by the sender, which needs
//! [`BufferKind::Shared`]; everything else goes through the kernel. [`BufferKind::for_device`] chooses so.
//!
//! [`reg_buffer`]: crate::ibverbs::protection_domain::ProtectionDomain::reg_buffer

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fmt;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use crate::ibverbs::AccessFlags;
use crate::ibverbs::device_context::DeviceContext;
use crate::ibverbs::memory_region::{MemoryRegion, RegisterMemoryRegionError};
use crate::ibverbs::protection_domain::ProtectionDomain;

/// Where memory comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BufferKind {
    /// The program's allocator, as `malloc` in C.
    Private,
    /// A file without a name (`memfd_create`) that never shrinks, mapped shared: a peer on this host can map it,
    /// too, if it is given the file. A forked child sees the parent's writes, and the parent the child's.
    Shared,
}

impl BufferKind {
    /// What suits a device: shared for a software one, private for every other.
    pub fn for_device(context: &DeviceContext) -> Self {
        if context.is_soft() { Self::Shared } else { Self::Private }
    }
}

/// There is no such memory.
#[derive(Debug, thiserror::Error)]
#[error("cannot allocate {len} bytes of {} memory: {source}", match .kind {
    BufferKind::Private => "private",
    BufferKind::Shared => "shared",
})]
pub struct AllocateBufferError {
    /// How many bytes were asked for.
    pub len: usize,
    /// Of which kind.
    pub kind: BufferKind,
    /// What the system said.
    pub source: io::Error,
}

/// Zeroed memory that begins at a page.
///
/// Dropping it frees it.
pub struct Buffer {
    start: NonNull<u8>,
    len: usize,
    backing: Backing,
}

/// What the memory is freed with.
enum Backing {
    Private(Layout),
    /// The file stays open as long as it is mapped: a device passes it on.
    Shared {
        file: OwnedFd,
        mapped: usize,
    },
}

// SAFETY: the memory belongs to the buffer alone, which gives out nothing but a raw pointer to it.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Allocates `len` bytes, at least one.
    ///
    /// # Errors
    ///
    /// There is not so much memory, `len` is 0, or, for shared memory, the limit of open files is reached.
    pub fn new(kind: BufferKind, len: usize) -> Result<Self, AllocateBufferError> {
        let made = match kind {
            _ if len == 0 => Err(Errno::INVAL),
            BufferKind::Private => private(len),
            BufferKind::Shared => shared(len),
        };
        match made {
            Ok((start, backing)) => Ok(Self { start, len, backing }),
            Err(errno) => Err(AllocateBufferError { len, kind, source: errno.into() }),
        }
    }

    /// The first byte. The pointer may be used for all of the buffer, as long as the buffer lives.
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// How many bytes there are: never 0.
    #[expect(clippy::len_without_is_empty, reason = "no buffer is empty")]
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Where the memory comes from.
    pub fn kind(&self) -> BufferKind {
        match self.backing {
            Backing::Private(_) => BufferKind::Private,
            Backing::Shared { .. } => BufferKind::Shared,
        }
    }

    /// The file that is mapped, if the memory is shared.
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        match &self.backing {
            Backing::Private(_) => None,
            Backing::Shared { file, .. } => Some(file.as_fd()),
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        match &self.backing {
            // SAFETY: allocated with this layout, and freed here only.
            Backing::Private(layout) => unsafe { dealloc(self.start.as_ptr(), *layout) },
            Backing::Shared { mapped, .. } => {
                // SAFETY: mapped by `shared` with this length, and unmapped here only.
                if let Err(errno) = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), *mapped) } {
                    log::error!("munmap failed, {mapped} bytes at {:p} stay mapped: {errno}", self.start);
                }
            }
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({:?}, {:p}, {} bytes)", self.kind(), self.start, self.len)
    }
}

/// `len` is not 0.
fn private(len: usize) -> Result<(NonNull<u8>, Backing), Errno> {
    let layout = Layout::from_size_align(len, page_size()).map_err(|_| Errno::NOMEM)?;
    // SAFETY: the layout is not empty.
    let start = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(Errno::NOMEM)?;
    Ok((start, Backing::Private(layout)))
}

/// `len` is not 0. Whole pages are mapped, so that a peer maps nothing that is not the buffer's.
fn shared(len: usize) -> Result<(NonNull<u8>, Backing), Errno> {
    let mapped = len.checked_next_multiple_of(page_size()).ok_or(Errno::NOMEM)?;
    let size = i64::try_from(mapped).map_err(|_| Errno::NOMEM)?;
    let file = memfd()?;
    rustix::fs::ftruncate(&file, size.cast_unsigned())?;
    // Nobody, whoever has the file, can take the pages away from under who has mapped them.
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK)?;
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the system chooses the place, so nothing that was there is replaced.
    let start = unsafe { rustix::mm::mmap(ptr::null_mut(), mapped, access, MapFlags::SHARED, &file, 0) }?;
    let start = NonNull::new(start.cast()).ok_or(Errno::NOMEM)?;
    Ok((start, Backing::Shared { file, mapped }))
}

/// A file that can be sealed and, where the kernel knows of that (6.3), not be executed.
fn memfd() -> Result<OwnedFd, Errno> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    match rustix::fs::memfd_create(c"sideway", flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => rustix::fs::memfd_create(c"sideway", flags),
        made => made,
    }
}

fn page_size() -> usize {
    // Miri knows no auxiliary vector to ask.
    if cfg!(miri) { 4096 } else { rustix::param::page_size() }
}

/// A buffer that the device, and with its key a peer, can reach.
///
/// Dropping it ends the registration and frees the memory, in this order. Where the device does not let go of the
/// memory, because a peer may still be reaching it (`EBUSY` of a software device), that is logged and the memory is
/// leaked.
pub struct RegisteredBuffer {
    // Both are taken by the drop, and by `close`, which prevents the drop.
    region: ManuallyDrop<MemoryRegion>,
    buffer: ManuallyDrop<Buffer>,
}

impl RegisteredBuffer {
    pub(crate) fn register(
        pd: &ProtectionDomain,
        buffer: Buffer,
        access: AccessFlags,
    ) -> Result<Self, RegisterMemoryRegionError> {
        // SAFETY: the buffer is freed by `end` only, after the region is no more; no reference to its bytes is
        // made in this module, and nobody else can without a promise of their own.
        let region = unsafe { pd.reg_mr(buffer.as_ptr(), buffer.len(), access) }?;
        Ok(Self { region: ManuallyDrop::new(region), buffer: ManuallyDrop::new(buffer) })
    }

    /// The registration. It can be looked at, and only this buffer ends it.
    #[inline]
    pub fn region(&self) -> &MemoryRegion {
        &self.region
    }

    /// The memory.
    #[inline]
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// The first byte.
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        self.buffer.as_ptr()
    }

    /// How many bytes there are: never 0.
    #[expect(clippy::len_without_is_empty, reason = "no buffer is empty")]
    #[inline]
    pub fn len(&self) -> usize {
        self.buffer.len()
    }

    /// The key for local work requests.
    #[inline]
    pub fn lkey(&self) -> u32 {
        self.region.lkey()
    }

    /// The key for a peer's work requests.
    #[inline]
    pub fn rkey(&self) -> u32 {
        self.region.rkey()
    }

    /// Ends the registration now (`ibv_dereg_mr`), and gives the memory back.
    ///
    /// # Errors
    ///
    /// The device did not let go of the memory. Everything is as before, and comes back with the error: to try
    /// again later, or to leak.
    pub fn close(self) -> Result<Buffer, DeregisterBufferError> {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: the drop does not run, and nothing below looks at the fields of `this` again.
        let (region, buffer) =
            unsafe { (ManuallyDrop::take(&mut this.region), ManuallyDrop::take(&mut this.buffer)) };
        match region.close() {
            Ok(()) => Ok(buffer),
            Err(error) => {
                let (region, buffer) = (ManuallyDrop::new(error.region), ManuallyDrop::new(buffer));
                Err(DeregisterBufferError { buffer: Self { region, buffer }, source: error.source })
            }
        }
    }
}

impl Drop for RegisteredBuffer {
    fn drop(&mut self) {
        // SAFETY: this is the drop: the region is not used again.
        let region = unsafe { ManuallyDrop::take(&mut self.region) };
        match region.close() {
            // SAFETY: the device has let go of the memory, and this is the drop.
            Ok(()) => unsafe { ManuallyDrop::drop(&mut self.buffer) },
            Err(error) => {
                log::error!(
                    "ibv_dereg_mr failed: {}; {} bytes at {:p} stay registered and are leaked",
                    error.source,
                    self.buffer.len(),
                    self.buffer.as_ptr()
                );
                // Not a second try, which may wait as long as the first one did.
                std::mem::forget(error.region);
            }
        }
    }
}

impl fmt::Debug for RegisteredBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegisteredBuffer")
            .field("buffer", &*self.buffer)
            .field("region", &*self.region)
            .finish()
    }
}

/// A buffer could not be deregistered.
#[derive(Debug, thiserror::Error)]
#[error("ibv_dereg_mr failed: {source}; the memory stays registered")]
pub struct DeregisterBufferError {
    /// The buffer, still registered.
    pub buffer: RegisteredBuffer,
    /// What the library said.
    pub source: io::Error,
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: &[BufferKind] =
        if cfg!(miri) { &[BufferKind::Private] } else { &[BufferKind::Private, BufferKind::Shared] };

    #[test]
    fn a_buffer_is_aligned_zeroed_and_writable_to_its_last_byte() {
        for &kind in KINDS {
            for len in [1, 4096, 5000, 1 << 21] {
                let buffer = Buffer::new(kind, len).unwrap();
                assert_eq!((buffer.len(), buffer.kind()), (len, kind));
                assert_eq!(buffer.as_ptr().addr() % page_size(), 0);
                // SAFETY: within the buffer.
                unsafe {
                    let last = buffer.as_ptr().add(len - 1);
                    assert_eq!((buffer.as_ptr().read_volatile(), last.read_volatile()), (0, 0));
                    last.write_volatile(200);
                    assert_eq!(last.read_volatile(), 200);
                }
            }
        }
    }

    #[test]
    fn what_there_is_not_is_an_error_that_names_it() {
        for &kind in KINDS {
            for len in [0, usize::MAX, usize::MAX / 2, 1 << 60] {
                let error = Buffer::new(kind, len).unwrap_err();
                assert_eq!((error.len, error.kind), (len, kind));
                assert!(error.to_string().contains(&format!("{len} bytes")), "{error}");
            }
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no files without names")]
    fn shared_memory_is_a_file_that_cannot_shrink_mapped_shared() {
        let buffer = Buffer::new(BufferKind::Shared, 5000).unwrap();
        let file = buffer.file().unwrap();
        assert!(rustix::fs::fcntl_get_seals(file).unwrap().contains(SealFlags::SHRINK));
        assert_eq!(rustix::fs::ftruncate(file, 0), Err(Errno::PERM));
        let len = rustix::fs::fstat(file).unwrap().st_size.cast_unsigned();
        assert_eq!(len, 5000_u64.next_multiple_of(page_size() as u64));
        // SAFETY: within the buffer.
        unsafe { buffer.as_ptr().add(4999).write_volatile(7) };
        let mut seen = [0];
        rustix::io::pread(file, &mut seen, 4999).unwrap();
        assert_eq!(seen, [7]);
        let start = format!("{:x}-", buffer.as_ptr().addr());
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let line = maps.lines().find(|line| line.trim_start_matches('0').starts_with(&start)).unwrap();
        assert!(line.contains(" rw-s ") && line.contains("/memfd:sideway"), "{line}");
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no files without names")]
    fn shared_memory_is_given_back() {
        // More addresses than there are.
        for _ in 0..5000 {
            let buffer = Buffer::new(BufferKind::Shared, 1 << 36).unwrap();
            assert_eq!(buffer.len(), 1 << 36);
        }
    }
}
