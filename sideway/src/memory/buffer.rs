//! Page-aligned memory: private, shared, or on huge pages.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use super::node;
use crate::error::Error;
use crate::ibverbs::device_context::DeviceContext;
use crate::limits::soft_limit;

/// The kind of memory, which determines how it is allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BufferKind {
    /// Memory of the program's allocator, like `malloc` in C.
    Private,
    /// An unnamed file (`memfd_create`) that never shrinks, mapped shared. A peer on this host can
    /// map it too, if it gets the file. A forked child sees the parent's writes, and the parent the
    /// child's.
    Shared,
    /// Like `Shared`, on huge pages (`MFD_HUGETLB`) of `page_size` bytes, which the system must
    /// have reserved. A device needs fewer translation entries for them. It never falls back to
    /// smaller pages.
    HugePages {
        /// The size of a huge page in bytes, usually 2 MiB or 1 GiB; the processor must support it.
        page_size: usize,
    },
}

impl BufferKind {
    /// Huge pages of 2 MiB, on x86-64, and on aarch64 with a page size of 4 KiB.
    pub const HUGE_2_MIB: Self = Self::HugePages { page_size: 2 << 20 };

    /// Huge pages of 1 GiB.
    pub const HUGE_1_GIB: Self = Self::HugePages { page_size: 1 << 30 };

    /// The best kind for a device: shared for a software device, private for others.
    pub fn for_device(context: &DeviceContext) -> Self {
        if context.is_soft() { Self::Shared } else { Self::Private }
    }
}

struct KindInWords(BufferKind);

impl fmt::Display for KindInWords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            BufferKind::Private => f.write_str("private memory"),
            BufferKind::Shared => f.write_str("shared memory"),
            BufferKind::HugePages { page_size } => {
                write!(f, "memory in huge pages of {} KiB", page_size / 1024)
            }
        }
    }
}

/// The remedy for a failed allocation.
struct Advice {
    kind: BufferKind,
    len: usize,
    errno: Errno,
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.errno == Errno::FBIG {
            let most = longest_file().unwrap_or(u64::MAX);
            return write!(
                f,
                "it is a memory file, and RLIMIT_FSIZE allows {most} bytes: raise it (ulimit -f), or use private \
                 memory"
            );
        }
        let BufferKind::HugePages { page_size } = self.kind else { return Ok(()) };
        let (kib, pages) = (page_size / 1024, self.len.div_ceil(page_size.max(1)));
        write!(
            f,
            "{pages} free ones are needed: as root, write how many there are to be to \
             /sys/kernel/mm/hugepages/hugepages-{kib}kB/nr_hugepages, or, where that is the default size, to \
             /proc/sys/vm/nr_hugepages"
        )
    }
}

/// Zeroed memory that starts at a page boundary. Dropping it frees it.
pub struct Buffer {
    start: NonNull<u8>,
    len: usize,
    backing: Backing,
}

/// How the memory was allocated, and so how it is freed.
enum Backing {
    Private(Layout),
    /// Private, but mapped, so that its NUMA policy does not stick to pages of the allocator.
    Anonymous {
        mapped: usize,
    },
    /// The file stays open while it is mapped, because a device passes it on.
    Shared {
        file: OwnedFd,
        mapped: usize,
        /// The huge page size as a power of two; 0 for normal pages.
        huge: u8,
    },
}

// SAFETY: the buffer is the memory's only owner, and hands out only a raw pointer to it.
unsafe impl Send for Buffer {}
// SAFETY: the memory belongs to the buffer alone, which gives out nothing but a raw pointer to it.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Allocates `len` bytes, at least one.
    ///
    /// # Errors
    ///
    /// Fails if less memory is left, if `len` is 0, or, for shared memory, if the limit of open
    /// files is reached.
    pub fn new(kind: BufferKind, len: usize) -> Result<Self, Error> {
        match kind {
            BufferKind::Private => Self::make(kind, len, "malloc", private),
            _ => Self::make(kind, len, "mmap", mapped),
        }
    }

    /// Allocates `len` bytes, at least one, on one NUMA node only, for example the device's
    /// (`/sys/class/infiniband/NAME/device/numa_node`). All pages are present when this returns.
    ///
    /// # Errors
    ///
    /// Fails if the node does not exist or has less memory left, or if the system does not allow
    /// the choice. Also fails as [`new`](Self::new) does.
    ///
    /// # References
    ///
    /// `man 2 mbind`
    pub fn on_node(kind: BufferKind, len: usize, node: u32) -> Result<Self, Error> {
        let buffer = Self::make(kind, len, "mmap", mapped)?;
        // SAFETY: the buffer owns this mapping, which consists of whole pages.
        unsafe { node::bind(buffer.start, buffer.mapped_len(), node) }
            .map_err(|failure| node::error(failure, node, len))?;
        Ok(buffer)
    }

    fn make(kind: BufferKind, len: usize, verb: &'static str, allocate: Allocate) -> Result<Self, Error> {
        match if len == 0 { Err(Errno::INVAL) } else { allocate(kind, len) } {
            Ok((start, backing)) => Ok(Self { start, len, backing }),
            Err(errno) => Err(Error::os(verb, errno.into())
                .of(KindInWords(kind).to_string())
                .with("len", len)
                .remedy(Advice { kind, len, errno }.to_string())),
        }
    }

    /// The size of the mapping in bytes; for allocator memory, the requested size.
    fn mapped_len(&self) -> usize {
        match self.backing {
            Backing::Private(_) => self.len,
            Backing::Anonymous { mapped } | Backing::Shared { mapped, .. } => mapped,
        }
    }

    /// The first byte. The pointer is valid for the whole buffer, as long as the buffer exists.
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// The length in bytes, never 0.
    #[expect(clippy::len_without_is_empty, reason = "no buffer is empty")]
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The kind of memory.
    pub fn kind(&self) -> BufferKind {
        match self.backing {
            Backing::Private(_) | Backing::Anonymous { .. } => BufferKind::Private,
            Backing::Shared { huge: 0, .. } => BufferKind::Shared,
            Backing::Shared { huge, .. } => BufferKind::HugePages { page_size: 1 << huge },
        }
    }

    /// The file that is mapped, if the memory is shared.
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        match &self.backing {
            Backing::Private(_) | Backing::Anonymous { .. } => None,
            Backing::Shared { file, .. } => Some(file.as_fd()),
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        match &self.backing {
            // SAFETY: the memory was allocated with this layout, and only this line frees it.
            Backing::Private(layout) => unsafe { dealloc(self.start.as_ptr(), *layout) },
            Backing::Anonymous { mapped } | Backing::Shared { mapped, .. } => {
                // SAFETY: `mapped` mapped it with this length, and only this line unmaps it.
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

/// Allocates memory from the system. The length is not 0.
type Allocate = fn(BufferKind, usize) -> Result<(NonNull<u8>, Backing), Errno>;

fn private(_: BufferKind, len: usize) -> Result<(NonNull<u8>, Backing), Errno> {
    let layout = Layout::from_size_align(len, page_size()).map_err(|_| Errno::NOMEM)?;
    // SAFETY: the layout's size is not 0.
    let start = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(Errno::NOMEM)?;
    Ok((start, Backing::Private(layout)))
}

/// Maps whole pages, so that a peer that maps the file gets no memory outside the buffer.
fn mapped(kind: BufferKind, len: usize) -> Result<(NonNull<u8>, Backing), Errno> {
    let page_size = match (kind, page_size()) {
        // The kernel would replace a smaller size by its default.
        (BufferKind::HugePages { page_size: huge }, base) if huge.is_power_of_two() && huge > base => huge,
        (BufferKind::HugePages { .. }, _) => return Err(Errno::INVAL),
        (_, base) => base,
    };
    let mapped = len.checked_next_multiple_of(page_size).ok_or(Errno::NOMEM)?;
    let size = i64::try_from(mapped).map_err(|_| Errno::NOMEM)?;
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let (start, backing) = if kind == BufferKind::Private {
        // SAFETY: the system chooses the address, so no existing mapping is replaced.
        let start =
            unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), mapped, access, MapFlags::PRIVATE) }?;
        (start, Backing::Anonymous { mapped })
    } else {
        // The system would end the process with SIGXFSZ.
        if longest_file().is_some_and(|most| size.cast_unsigned() > most) {
            return Err(Errno::FBIG);
        }
        let file = memfd(kind)?;
        rustix::fs::ftruncate(&file, size.cast_unsigned())?;
        // The seal keeps any holder of the file from truncating it under a process that maps it.
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK)?;
        // The mapping reserves the huge pages, so that missing ones are detected here.
        //
        // SAFETY: the system chooses the address, so the call replaces no existing mapping.
        let start = unsafe { rustix::mm::mmap(ptr::null_mut(), mapped, access, MapFlags::SHARED, &file, 0) }?;
        let huge = match kind {
            BufferKind::HugePages { page_size } => page_size.trailing_zeros() as u8,
            _ => 0,
        };
        (start, Backing::Shared { file, mapped, huge })
    };
    Ok((NonNull::new(start.cast()).ok_or(Errno::NOMEM)?, backing))
}

/// The longest file that this process may make, if that is limited.
fn longest_file() -> Option<u64> {
    soft_limit(rustix::process::Resource::Fsize)
}

/// A file that can be sealed and, if the kernel supports it (6.3), cannot be executed.
fn memfd(kind: BufferKind) -> Result<OwnedFd, Errno> {
    let mut flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    if let BufferKind::HugePages { page_size } = kind {
        flags |= MemfdFlags::HUGETLB
            | MemfdFlags::from_bits_retain(page_size.trailing_zeros() << libc::MFD_HUGE_SHIFT);
    }
    match rustix::fs::memfd_create(c"sideway", flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => rustix::fs::memfd_create(c"sideway", flags),
        made => made,
    }
}

pub(super) fn page_size() -> usize {
    // Miri has no auxiliary vector to read the page size from.
    if cfg!(miri) { 4096 } else { rustix::param::page_size() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    const KINDS: &[BufferKind] =
        if cfg!(miri) { &[BufferKind::Private] } else { &[BufferKind::Private, BufferKind::Shared] };

    /// The number of free huge pages of 2 MiB that the system has reserved.
    fn huge_pages_free() -> usize {
        std::fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages")
            .ok()
            .and_then(|text| text.trim().parse().ok())
            .unwrap_or(0)
    }

    #[test]
    fn a_buffer_is_aligned_zeroed_and_writable_to_its_last_byte() {
        for &kind in KINDS {
            for len in [1, 4096, 5000, 1 << 21] {
                let buffer = Buffer::new(kind, len).unwrap();
                assert_eq!((buffer.len(), buffer.kind()), (len, kind));
                assert_eq!(buffer.as_ptr().addr() % page_size(), 0);
                // SAFETY: the accesses are within the buffer.
                unsafe {
                    let last = buffer.as_ptr().add(len - 1);
                    assert_eq!((buffer.as_ptr().read_volatile(), last.read_volatile()), (0, 0));
                    last.write_volatile(200);
                    assert_eq!(last.read_volatile(), 200);
                }
            }
        }
    }

    /// In a child process, because a limit holds for all threads.
    #[test]
    #[cfg_attr(miri, ignore = "Miri has no processes")]
    fn a_limit_of_file_lengths_is_named() {
        use rustix::process::{Resource, Rlimit, setrlimit};
        const CHILD: &str = "SIDEWAY_TEST_FILE_LIMIT";
        if std::env::var_os(CHILD).is_some() {
            let limit = Rlimit { current: Some(1 << 20), maximum: None };
            setrlimit(Resource::Fsize, limit).expect("a lower limit");
            assert!(Buffer::new(BufferKind::Shared, 1 << 20).is_ok());
            let error = Buffer::new(BufferKind::Shared, 2 << 20).unwrap_err().to_string();
            assert!(error.contains("RLIMIT_FSIZE allows 1048576 bytes"), "{error}");
            assert!(Buffer::new(BufferKind::Private, 2 << 20).is_ok());
            return;
        }
        let mut child = std::process::Command::new(std::env::current_exe().expect("a path"));
        let name = "memory::buffer::tests::a_limit_of_file_lengths_is_named";
        let ended = child.args(["--exact", name]).env(CHILD, "1").output().expect("a process");
        let said = String::from_utf8_lossy(&ended.stdout);
        assert!(ended.status.success() && said.contains("1 passed"), "{:?}: {said}", ended.status);
    }

    #[test]
    fn impossible_lengths_fail_and_the_error_names_the_length() {
        for &kind in KINDS {
            for len in [0, usize::MAX, usize::MAX / 2, 1 << 60] {
                let error = Buffer::new(kind, len).unwrap_err();
                assert_eq!(error.argument("len"), Some(&*len.to_string()));
                assert_eq!(error.object(), Some(&*KindInWords(kind).to_string()));
                assert!(error.to_string().contains(&format!("len {len}")), "{error}");
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
        // SAFETY: the write is within the buffer.
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
        // More buffers than the address space could hold if they were not freed.
        for _ in 0..5000 {
            let buffer = Buffer::new(BufferKind::Shared, 1 << 36).unwrap();
            assert_eq!(buffer.len(), 1 << 36);
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no files without names")]
    fn huge_pages_are_there_or_an_error_says_how_to_get_them() {
        const LEN: usize = (2 << 20) + 5;
        match Buffer::new(BufferKind::HUGE_2_MIB, LEN) {
            Ok(buffer) => {
                assert_eq!((buffer.kind(), buffer.len()), (BufferKind::HUGE_2_MIB, LEN));
                assert_eq!(buffer.as_ptr().addr() % (2 << 20), 0);
                // SAFETY: the write is within the buffer.
                unsafe { buffer.as_ptr().add(LEN - 1).write_volatile(7) };
                assert_eq!(rustix::fs::fstat(buffer.file().unwrap()).unwrap().st_blksize, 2 << 20);
            }
            Err(error) => {
                assert!(huge_pages_free() < 2, "{error}");
                let text = error.to_string();
                assert!(text.contains("2 free ones are needed"), "{text}");
                for name in ["hugepages-2048kB/nr_hugepages", "/proc/sys/vm/nr_hugepages", "2048 KiB"] {
                    assert!(text.contains(name), "{text}");
                }
            }
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no files without names")]
    fn huge_pages_that_no_processor_has_are_an_error() {
        for page_size in [0, 1, 3, 4096, 5 << 20, 1 << 13, 1 << 62] {
            let kind = BufferKind::HugePages { page_size };
            let error = Buffer::new(kind, 4096).unwrap_err();
            assert_eq!(error.object(), Some(&*KindInWords(kind).to_string()));
            assert_eq!(error.argument("len"), Some("4096"));
            assert!(error.to_string().contains(&format!("{} KiB", page_size / 1024)), "{error}");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no nodes")]
    fn memory_of_a_node_lies_there() {
        for kind in [BufferKind::Private, BufferKind::Shared] {
            let buffer = match Buffer::on_node(kind, 10_000, 0) {
                // A kernel without NUMA, or a container that does not allow the choice.
                Err(error) if error.verb() == "mbind" => {
                    assert_eq!((error.argument("node"), error.argument("len")), (Some("0"), Some("10000")));
                    assert!(matches!(error.errno(), Some(libc::ENOSYS | libc::EPERM)), "{error}");
                    continue;
                }
                made => made.unwrap(),
            };
            assert_eq!((buffer.kind(), buffer.len()), (kind, 10_000));
            let start = format!("{:x} ", buffer.as_ptr().addr());
            let maps = std::fs::read_to_string("/proc/self/numa_maps").unwrap();
            let line = maps.lines().find(|line| line.trim_start_matches('0').starts_with(&start)).unwrap();
            // All pages are present.
            assert!(line.contains(" bind:0 ") && line.contains(" N0=3"), "{line}");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no nodes")]
    fn memory_of_a_node_that_is_not_there_is_an_error() {
        for node in [999, 1024, u32::MAX] {
            let error = Buffer::on_node(BufferKind::Shared, 4096, node).unwrap_err();
            assert_eq!((error.verb(), error.argument("node")), ("mbind", Some(&*node.to_string())));
            if error.kind() == ErrorKind::NotFound {
                assert!(error.to_string().contains(&format!("no NUMA node {node} ")), "{error}");
            } else {
                assert!(matches!(error.errno(), Some(libc::ENOSYS | libc::EPERM)), "{error}");
            }
        }
        let error = Buffer::on_node(BufferKind::Private, 0, 0).unwrap_err();
        assert_eq!((error.verb(), error.argument("len")), ("mmap", Some("0")), "{error}");
    }
}
