//! Forks: a child closes its parent's descriptors and has no part in its device.
//!
//! A child inherits descriptors, and as long as it has them nobody notices that its parent died. So the descriptors
//! that stand for the parent's life are closed in the child, before anything of the program runs there.

use std::cell::RefCell;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

/// Which process this is, in a line of forks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ForkGeneration(u32);

static FORKS: AtomicU32 = AtomicU32::new(0);
static OPEN: Mutex<Vec<InheritableFd>> = Mutex::new(Vec::new());

thread_local! {
    /// Held from just before a fork to just after it, so that the child finds the list whole.
    static HELD: RefCell<Option<MutexGuard<'static, Vec<InheritableFd>>>> = const { RefCell::new(None) };
}

impl ForkGeneration {
    /// Of this process.
    pub(crate) fn current() -> Self {
        watch_forks();
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// Whether this process is the one that asked for it, not a child of that.
    #[inline]
    pub(crate) fn is_current(self) -> bool {
        self.0 == FORKS.load(Ordering::Relaxed)
    }
}

/// A descriptor that a child is to close.
#[derive(Clone, Copy)]
struct InheritableFd {
    fd: RawFd,
    what: FileIdentity,
}

fn open_descriptors() -> MutexGuard<'static, Vec<InheritableFd>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn watch_forks() {
    static ONCE: Once = Once::new();
    if cfg!(any(miri, loom)) {
        return;
    }
    ONCE.call_once(|| {
        // SAFETY: the three functions are made for this: they take a lock that is held for short times only, and
        // the child's makes no allocation.
        let error = unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
        if error != 0 {
            log::error!(
                "pthread_atfork failed with error {error}: a forked child will keep this device's sockets"
            );
        }
    });
}

extern "C" fn before() {
    let _ = HELD.try_with(|held| *held.borrow_mut() = Some(open_descriptors()));
}

extern "C" fn in_parent() {
    let _ = HELD.try_with(|held| held.borrow_mut().take());
}

extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    let _ = HELD.try_with(|held| {
        if let Some(mut open) = held.borrow_mut().take() {
            for InheritableFd { fd, what } in open.drain(..) {
                // The program may have closed it, and opened something of its own.
                if identity(fd) == Some(what) {
                    // SAFETY: the parent had it open at the moment of the fork, so this process has it too, and whoever
                    // owned it there does not close it here: see the drop of `ForkSafeFd`.
                    unsafe { libc::close(fd) };
                }
            }
        }
    });
}

/// What tells a file from others that are open: file system and inode. Sockets and memory files have their own; all event
/// counters and their like have the same.
type FileIdentity = (u64, u64);

/// What is open under this number. Makes a system call only, so a child of a fork may call it.
pub(crate) fn identity(fd: RawFd) -> Option<FileIdentity> {
    if cfg!(miri) {
        return Some((0, 0));
    }
    // SAFETY: plain integers, for which zero is a value.
    let mut stat: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: the place for the answer is there.
    (unsafe { libc::fstat(fd, &raw mut stat) } == 0).then_some((stat.st_dev, stat.st_ino))
}

/// An open file. A program may close descriptors that it does not know of (`closefrom`), and get their numbers for files of its
/// own: those are neither used nor closed for this one.
#[derive(Debug)]
pub(crate) struct OwnedFile {
    file: ManuallyDrop<OwnedFd>,
    what: Option<FileIdentity>,
}

impl OwnedFile {
    pub(crate) fn new(file: OwnedFd) -> Self {
        let what = identity(file.as_raw_fd());
        Self { file: ManuallyDrop::new(file), what }
    }

    /// Whether it is still open.
    pub(crate) fn is_there(&self) -> bool {
        self.what.is_some() && identity(self.file.as_raw_fd()) == self.what
    }

    /// The file, if it is still open.
    ///
    /// # Errors
    ///
    /// `BADF`: the program has closed it.
    pub(crate) fn get(&self) -> rustix::io::Result<BorrowedFd<'_>> {
        if self.is_there() { Ok(self.file.as_fd()) } else { Err(rustix::io::Errno::BADF) }
    }

    /// The file, without a look whether it is still open: for the program's own wish to read from it, where the look would
    /// be a second system call, and what it reads by a number that it has given to something else is its own.
    pub(crate) fn unchecked(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    pub(crate) fn number(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

impl Drop for OwnedFile {
    fn drop(&mut self) {
        if self.is_there() {
            // SAFETY: dropped here and nowhere else.
            unsafe { ManuallyDrop::drop(&mut self.file) };
        } else {
            log::warn!("descriptor {} of the software device was closed by the program", self.number());
        }
    }
}

/// An open file that a forked child does not keep.
#[derive(Debug)]
pub(crate) struct ForkSafeFd {
    file: ManuallyDrop<OwnedFile>,
    process: ForkGeneration,
}

impl ForkSafeFd {
    /// Opens something. No fork comes between that and the note of it, so `open` must not wait for anything.
    ///
    /// # Errors
    ///
    /// What `open` said.
    pub(crate) fn open(open: impl FnOnce() -> rustix::io::Result<OwnedFd>) -> io::Result<Self> {
        let process = ForkGeneration::current();
        let mut list = open_descriptors();
        let file = OwnedFile::new(open()?);
        list.extend(file.what.map(|what| InheritableFd { fd: file.number(), what }));
        Ok(Self { file: ManuallyDrop::new(file), process })
    }

    /// As [`OwnedFile::is_there`].
    pub(crate) fn is_there(&self) -> bool {
        self.file.is_there()
    }

    /// As [`OwnedFile::get`].
    ///
    /// # Errors
    ///
    /// `BADF`: the program has closed it.
    pub(crate) fn get(&self) -> rustix::io::Result<BorrowedFd<'_>> {
        self.file.get()
    }
}

impl AsFd for ForkSafeFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.file.as_fd()
    }
}

impl Drop for ForkSafeFd {
    fn drop(&mut self) {
        if !self.process.is_current() {
            return;
        }
        let mut list = open_descriptors();
        let fd = self.file.number();
        if let Some(place) = list.iter().position(|open| open.fd == fd) {
            list.swap_remove(place);
        }
        // SAFETY: dropped here and nowhere else; under the lock, so that the list has no closed descriptor in it.
        unsafe { ManuallyDrop::drop(&mut self.file) };
    }
}
