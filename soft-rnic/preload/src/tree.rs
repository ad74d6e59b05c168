//! The tree that `soft-rnic run` has made, and paths in it.

use core::ffi::{CStr, c_char, c_int, c_long};
use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use crate::path::{LONGEST, redirected, tree_prefix};

/// The tree's path, in memory that [`find`] never frees; its length, which is 0 until the path is
/// there.
static TREE: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());
static LENGTH: AtomicUsize = AtomicUsize::new(0);

/// A tree's longest path; a longer one is not used.
const LONGEST_TREE: usize = 200;

/// The folder of device nodes, within the tree.
const NODES: &[u8] = b"/dev/infiniband/";

/// Stands for a device node: a character device that everybody can read and write.
const NODE: &CStr = c"/dev/null";

/// Reads the tree's path from the environment. It is copied, because the program may change its
/// environment.
pub(crate) fn find() {
    // SAFETY: this has no conditions.
    if unsafe { libc::getauxval(libc::AT_SECURE) } != 0 {
        return;
    }
    // SAFETY: the name ends with a NUL. This runs once, before the program's first thread; the
    // result is read before anybody changes the environment.
    let value = unsafe { libc::getenv(c"SOFT_RNIC_FILES".as_ptr()) };
    if value.is_null() {
        return;
    }
    // SAFETY: the environment's values end with a NUL.
    let path = unsafe { CStr::from_ptr(value) }.to_bytes();
    if path.first() != Some(&b'/') || path.len() > LONGEST_TREE {
        return;
    }
    // SAFETY: the copy of a string is a string. Only its beginning is ever read.
    let copy = unsafe { libc::strdup(value) };
    if !copy.is_null() {
        TREE.store(copy.cast(), Ordering::Relaxed);
        LENGTH.store(path.len(), Ordering::Release);
    }
}

/// The tree's path; empty if there is none.
fn tree() -> &'static [u8] {
    match LENGTH.load(Ordering::Acquire) {
        0 => &[],
        // SAFETY: `find` has stored a pointer to this many bytes before the length, and nobody
        // changes or frees them.
        length => unsafe { core::slice::from_raw_parts(TREE.load(Ordering::Relaxed), length) },
    }
}

/// Room for a changed path, on the caller's stack.
pub(crate) struct Room(MaybeUninit<[u8; LONGEST]>);

impl Room {
    #[inline]
    pub(crate) fn new() -> Self {
        Self(MaybeUninit::uninit())
    }

    /// The path to use instead of this one, which lives as long as both.
    ///
    /// # Safety
    ///
    /// The path is null or ends with a NUL.
    #[inline]
    pub(crate) unsafe fn place(&mut self, path: *const c_char) -> *const c_char {
        // SAFETY: the caller guarantees that the path ends with a NUL, so that its first byte is
        // readable.
        if path.is_null() || unsafe { *path } != b'/' as c_char {
            return path;
        }
        // SAFETY: the caller guarantees that the path ends with a NUL.
        match unsafe { self.in_tree(path) } {
            Some(_) if self.is_node() => NODE.as_ptr(),
            Some(changed) => changed,
            None => path,
        }
    }

    /// The same for functions that return the path: a node stays one of the tree.
    ///
    /// # Safety
    ///
    /// The path ends with a NUL.
    pub(crate) unsafe fn in_tree(&mut self, path: *const c_char) -> Option<*const c_char> {
        // SAFETY: the caller guarantees that the path ends with a NUL.
        let path = unsafe { CStr::from_ptr(path) }.to_bytes();
        // The paths of nearly all calls end here.
        if !path.starts_with(b"/dev/")
            && !path.starts_with(b"/sys/")
            && !path.starts_with(b"//")
            && !path.starts_with(b"/./")
        {
            return None;
        }
        let out = self.0.write([0; LONGEST]);
        redirected(path, tree(), out).map(|_| out.as_ptr().cast())
    }

    /// Whether the path that was written here names a device node of the tree.
    fn is_node(&self) -> bool {
        // SAFETY: `in_tree` has written all bytes before.
        let path = unsafe { self.0.assume_init_ref() };
        let below = path[tree().len()..].strip_prefix(NODES);
        below.is_some_and(|name| name[0] != 0) && is_file(path.as_ptr().cast())
    }
}

/// Whether a file exists and is no folder. Keeps `errno`.
fn is_file(path: *const c_char) -> bool {
    let mut state = MaybeUninit::<libc::statx>::zeroed();
    // SAFETY: the path ends with a NUL, and the struct is large enough for the kernel. The call is
    // not one of this library.
    let result = kept_errno(|| unsafe {
        libc::syscall(
            libc::SYS_statx,
            c_long::from(libc::AT_FDCWD),
            path,
            libc::AT_SYMLINK_NOFOLLOW,
            libc::STATX_TYPE,
            state.as_mut_ptr(),
        )
    });
    // SAFETY: all bytes were initialised, and every value is valid for integers.
    let mode = c_int::from(unsafe { state.assume_init() }.stx_mode) as libc::mode_t;
    result == 0 && mode & libc::S_IFMT == libc::S_IFREG
}

/// Runs a function and restores `errno`.
fn kept_errno<T>(function: impl FnOnce() -> T) -> T {
    // SAFETY: the location is the calling thread's `errno`, valid while the thread lives.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: `place` is valid, because the thread lives.
    let before = unsafe { *place };
    let result = function();
    // SAFETY: `place` is valid, because the thread lives.
    unsafe { *place = before };
    result
}

/// Removes the tree's path from the beginning of a result, which may be null.
///
/// # Safety
///
/// The text is null, or ends with a NUL and is writable.
pub(crate) unsafe fn shown(text: *mut c_char) -> *mut c_char {
    if text.is_null() {
        return text;
    }
    // SAFETY: the caller guarantees that the text ends with a NUL.
    let bytes = unsafe { CStr::from_ptr(text) }.to_bytes_with_nul();
    let (length, drop) = (bytes.len(), tree_prefix(bytes, tree()));
    if drop > 0 {
        // SAFETY: `length` bytes from `text` on are writable, and both ranges lie within them.
        unsafe { ptr::copy(text.add(drop), text, length - drop) };
    }
    text
}
