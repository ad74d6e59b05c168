//! Forks: a child process does not inherit its parent's device.
//!
//! A child inherits descriptors, and while it holds them no peer notices that the parent died. The
//! child therefore closes the descriptors that represent the parent's life before any code of the
//! program runs there.

use std::cell::RefCell;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use super::file_table::{self, Closer};

/// The number of forks between the first process and this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ForkGeneration(u32);

static FORKS: AtomicU32 = AtomicU32::new(0);
static OPEN: Mutex<Vec<InheritableFd>> = Mutex::new(Vec::new());

thread_local! {
    /// The locks on the list and the closer, held from just before a fork to just after it, so that
    /// the child finds them consistent.
    static HELD: RefCell<Option<HeldLocks>> = const { RefCell::new(None) };
}

type HeldLocks = (MutexGuard<'static, Vec<InheritableFd>>, MutexGuard<'static, Closer>);

impl ForkGeneration {
    /// The generation of the calling process.
    pub(crate) fn current() -> Self {
        watch_forks();
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// Whether the calling process created this value, rather than inherited it through a fork.
    #[inline]
    pub(crate) fn is_current(self) -> bool {
        self.0 == FORKS.load(Ordering::Relaxed)
    }
}

/// A descriptor that a forked child must close.
#[derive(Clone, Copy, PartialEq, Eq)]
struct InheritableFd {
    fd: RawFd,
    what: FileIdentity,
}

/// Removes an entry from the list.
fn remove(list: &mut Vec<InheritableFd>, file: InheritableFd) {
    if let Some(place) = list.iter().position(|open| *open == file) {
        list.swap_remove(place);
    }
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
        // SAFETY: the three functions suit `pthread_atfork`: they take a lock that is never held
        // for long, and the child's function does not allocate.
        let error = unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
        if error != 0 {
            log::error!(
                "pthread_atfork failed with error {error}: a forked child will keep this device's sockets"
            );
        }
    });
}

extern "C" fn before() {
    let _ = HELD.try_with(|held| *held.borrow_mut() = Some((open_descriptors(), Closer::lock())));
}

extern "C" fn in_parent() {
    let _ = HELD.try_with(|held| held.borrow_mut().take());
}

extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    let _ = HELD.try_with(|held| {
        if let Some((mut open, mut closer)) = held.borrow_mut().take() {
            closer.forget_thread();
            for InheritableFd { fd, what } in open.drain(..) {
                // The program may have closed the descriptor and reused its number.
                if identity(fd) == Some(what) {
                    // SAFETY: the parent had the descriptor open at the fork, so this process has
                    // it too. Its owner does not close it in this process (see the drop of
                    // `Descriptor`).
                    unsafe { libc::close(fd) };
                }
            }
        }
    });
}

/// File system and inode, which tell a file from others that are open. Sockets and memory files
/// have distinct ones; all event counters and similar files share one.
type FileIdentity = (u64, u64);

/// The identity of the file under this number. It makes a system call only, so a forked child may
/// call it.
pub(crate) fn identity(fd: RawFd) -> Option<FileIdentity> {
    if cfg!(miri) {
        return Some((0, 0));
    }
    // SAFETY: `stat` consists of integers, for which zero is a valid value.
    let mut stat: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: `stat` is a valid place for the answer.
    (unsafe { libc::fstat(fd, &raw mut stat) } == 0).then_some((stat.st_dev, stat.st_ino))
}

/// An open file. A program may close descriptors that it does not know of (`closefrom`) and then
/// get their numbers for other files; those are neither used nor closed in place of this one.
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

    /// Its entry in the list.
    fn entry(&self) -> Option<InheritableFd> {
        self.what.map(|what| InheritableFd { fd: self.number(), what })
    }

    /// Whether the file is still open under its number.
    pub(crate) fn is_there(&self) -> bool {
        self.what.is_some() && identity(self.file.as_raw_fd()) == self.what
    }

    /// Returns the file if it is still open.
    ///
    /// # Errors
    ///
    /// `BADF`: the program has closed it.
    pub(crate) fn get(&self) -> rustix::io::Result<BorrowedFd<'_>> {
        if self.is_there() { Ok(self.file.as_fd()) } else { Err(rustix::io::Errno::BADF) }
    }

    /// Returns the file without checking that it is still open. It serves a program that reads the
    /// descriptor: the check would cost a second system call, and a program that reuses the number
    /// reads its own file.
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
            // SAFETY: this drop is the only place that drops the file.
            unsafe { ManuallyDrop::drop(&mut self.file) };
        } else {
            log::warn!("descriptor {} of the software device was closed by the program", self.number());
        }
    }
}

/// An open file that a forked child closes.
#[derive(Debug)]
pub(crate) struct ForkSafeFd {
    file: ManuallyDrop<OwnedFile>,
    process: ForkGeneration,
}

impl ForkSafeFd {
    /// Opens a file and records it. No fork can happen between the two, so `open` must not wait for
    /// anything.
    ///
    /// # Errors
    ///
    /// The error of `open`.
    pub(crate) fn open(open: impl FnOnce() -> rustix::io::Result<OwnedFd>) -> io::Result<Self> {
        let process = ForkGeneration::current();
        let mut list = open_descriptors();
        let file = OwnedFile::new(open()?);
        list.extend(file.entry());
        Ok(Self { file: ManuallyDrop::new(file), process })
    }

    /// Whether this process opened the file, rather than inherited it through a fork.
    pub(super) fn is_current(&self) -> bool {
        self.process.is_current()
    }

    /// Takes the file off the list, so that a forked child leaves it open. `None` if this process is
    /// that child.
    fn take_off(self) -> Option<OwnedFile> {
        let mut this = ManuallyDrop::new(self);
        if !this.process.is_current() {
            return None;
        }
        // SAFETY: `this` is not dropped, and this is the only place that takes its file.
        let file = unsafe { ManuallyDrop::take(&mut this.file) };
        file.entry().into_iter().for_each(|entry| remove(&mut open_descriptors(), entry));
        Some(file)
    }

    /// Closes a socket that strangers may have sent descriptors to, which wait in it
    /// ([`file_table`]). A forked child leaves it open: nobody learns from it that the parent lives.
    pub(super) fn close_by_copy(self) {
        self.take_off().into_iter().for_each(file_table::close);
    }

    /// Closes a socket without the lock that a fork waits for, because closing may take time.
    ///
    /// A fork may happen between closing the socket and removing its entry. The child recognises
    /// that the number is not this socket's any more, because each socket has an identity that no
    /// other file has.
    pub(super) fn close_unlocked(self) {
        let mut this = ManuallyDrop::new(self);
        if !this.process.is_current() {
            return;
        }
        let entry = this.file.entry();
        // SAFETY: `this` is not dropped, and this is the only place that drops its file.
        unsafe { ManuallyDrop::drop(&mut this.file) };
        entry.into_iter().for_each(|entry| remove(&mut open_descriptors(), entry));
    }

    /// See [`OwnedFile::is_there`].
    pub(crate) fn is_there(&self) -> bool {
        self.file.is_there()
    }

    /// See [`OwnedFile::get`].
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
        self.file.entry().into_iter().for_each(|entry| remove(&mut list, entry));
        // SAFETY: this drop is the only place that drops the file; it holds the lock, so that the
        // list never contains a closed descriptor.
        unsafe { ManuallyDrop::drop(&mut self.file) };
    }
}
