//! The functions that this library replaces.

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::mem;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::tree::{self, Room, shown};

/// What a function returns that the C library lacks, with `ENOSYS`. Programs call such a function
/// only if they look its name up (`statx`).
trait Failed {
    const FAILED: Self;
}

impl Failed for c_int {
    const FAILED: Self = -1;
}

impl Failed for isize {
    const FAILED: Self = -1;
}

impl<T> Failed for *mut T {
    const FAILED: Self = ptr::null_mut();
}

/// A function of the C library, which is looked up when this library is loaded.
pub(crate) struct Real {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Real {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self { name, address: AtomicPtr::new(ptr::null_mut()) }
    }

    /// The next definition after this library's; null if there is none.
    #[inline]
    pub(crate) fn get(&self) -> *mut c_void {
        let address = self.address.load(Ordering::Relaxed);
        if address.is_null() { self.look_up() } else { address }
    }

    /// Looks the function up. Constructors of other libraries may run before this library's, so
    /// that a call may come before that.
    #[cold]
    fn look_up(&self) -> *mut c_void {
        // SAFETY: the name ends with a NUL.
        let address = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.address.store(address, Ordering::Relaxed);
        address
    }
}

/// Defines a C function for each line. The parameter with the name in the first line is the path.
macro_rules! calls {
    ($path:ident; $(fn $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty;)*) => {
        /// The C library's functions of these names.
        #[allow(non_camel_case_types)]
        struct Reals { $($name: Real),* }

        static REALS: Reals = Reals {
            $($name: Real::new(
                // SAFETY: the text ends with the only NUL in it, because identifiers have none.
                unsafe { CStr::from_bytes_with_nul_unchecked(concat!(stringify!($name), "\0").as_bytes()) }
            )),*
        };

        fn look_all_up() {
            $(REALS.$name.get();)*
        }

        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($arg: $ty),*) -> $ret {
                let real = REALS.$name.get();
                if real.is_null() {
                    // SAFETY: the location is the calling thread's `errno`, valid while it lives.
                    unsafe { *libc::__errno_location() = libc::ENOSYS };
                    return <$ret as Failed>::FAILED;
                }
                // SAFETY: the C library defines a function of this name with these parameters.
                let real = unsafe {
                    mem::transmute::<*mut c_void, unsafe extern "C" fn($($ty),*) -> $ret>(real)
                };
                let mut room = Room::new();
                // SAFETY: the caller of the C function guarantees that the path ends with a NUL.
                let $path = unsafe { room.place($path) };
                // SAFETY: the caller meets the conditions of the C function, and the changed path
                // lives until it returns.
                unsafe { real($($arg),*) }
            }
        )*
    };
}

type Path = *const c_char;
type Any = *mut c_void;

// C declares `open` with a variable number of arguments. On the supported processors the Linux ABI
// passes an integer third argument of such a function like that of any other.
calls! {
    path;
    fn open(path: Path, flags: c_int, mode: c_uint) -> c_int;
    fn open64(path: Path, flags: c_int, mode: c_uint) -> c_int;
    fn __open_2(path: Path, flags: c_int) -> c_int;
    fn __open64_2(path: Path, flags: c_int) -> c_int;
    fn openat(dir: c_int, path: Path, flags: c_int, mode: c_uint) -> c_int;
    fn openat64(dir: c_int, path: Path, flags: c_int, mode: c_uint) -> c_int;
    fn __openat_2(dir: c_int, path: Path, flags: c_int) -> c_int;
    fn __openat64_2(dir: c_int, path: Path, flags: c_int) -> c_int;
    fn fopen(path: Path, mode: Path) -> Any;
    fn fopen64(path: Path, mode: Path) -> Any;
    fn freopen(path: Path, mode: Path, file: Any) -> Any;
    fn freopen64(path: Path, mode: Path, file: Any) -> Any;
    fn opendir(path: Path) -> Any;
    fn scandir(path: Path, list: Any, filter: Any, order: Any) -> c_int;
    fn scandir64(path: Path, list: Any, filter: Any, order: Any) -> c_int;
    fn chdir(path: Path) -> c_int;
    fn access(path: Path, mode: c_int) -> c_int;
    fn eaccess(path: Path, mode: c_int) -> c_int;
    fn euidaccess(path: Path, mode: c_int) -> c_int;
    fn faccessat(dir: c_int, path: Path, mode: c_int, flags: c_int) -> c_int;
    fn stat(path: Path, to: Any) -> c_int;
    fn stat64(path: Path, to: Any) -> c_int;
    fn lstat(path: Path, to: Any) -> c_int;
    fn lstat64(path: Path, to: Any) -> c_int;
    fn fstatat(dir: c_int, path: Path, to: Any, flags: c_int) -> c_int;
    fn fstatat64(dir: c_int, path: Path, to: Any, flags: c_int) -> c_int;
    fn __xstat(version: c_int, path: Path, to: Any) -> c_int;
    fn __xstat64(version: c_int, path: Path, to: Any) -> c_int;
    fn __lxstat(version: c_int, path: Path, to: Any) -> c_int;
    fn __lxstat64(version: c_int, path: Path, to: Any) -> c_int;
    fn __fxstatat(version: c_int, dir: c_int, path: Path, to: Any, flags: c_int) -> c_int;
    fn __fxstatat64(version: c_int, dir: c_int, path: Path, to: Any, flags: c_int) -> c_int;
    fn statx(dir: c_int, path: Path, flags: c_int, mask: c_uint, to: Any) -> c_int;
    fn readlink(path: Path, to: *mut c_char, size: usize) -> isize;
    fn readlinkat(dir: c_int, path: Path, to: *mut c_char, size: usize) -> isize;
    fn __readlink_chk(path: Path, to: *mut c_char, size: usize, room_of_to: usize) -> isize;
    fn __readlinkat_chk(dir: c_int, path: Path, to: *mut c_char, size: usize, room_of_to: usize) -> isize;
    fn getxattr(path: Path, name: Path, to: Any, size: usize) -> isize;
    fn lgetxattr(path: Path, name: Path, to: Any, size: usize) -> isize;
    fn listxattr(path: Path, to: *mut c_char, size: usize) -> isize;
    fn llistxattr(path: Path, to: *mut c_char, size: usize) -> isize;
    fn statfs(path: Path, to: Any) -> c_int;
    fn statfs64(path: Path, to: Any) -> c_int;
    fn statvfs(path: Path, to: Any) -> c_int;
    fn statvfs64(path: Path, to: Any) -> c_int;
    fn inotify_add_watch(fd: c_int, path: Path, mask: c_uint) -> c_int;
    fn glob(path: Path, flags: c_int, failed: Any, to: Any) -> c_int;
    fn glob64(path: Path, flags: c_int, failed: Any, to: Any) -> c_int;
}

static REALPATH: Real = Real::new(c"realpath");

/// Resolves a path like the C library's `realpath`. A result in the tree becomes the path that the
/// tree stands for.
///
/// # Safety
///
/// `path` is null or ends with a NUL; `to` is null or has `PATH_MAX` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn realpath(path: Path, to: *mut c_char) -> *mut c_char {
    let real = REALPATH.get();
    if real.is_null() {
        return ptr::null_mut();
    }
    // SAFETY: the C library defines the function with these parameters.
    let real = unsafe {
        mem::transmute::<*mut c_void, unsafe extern "C" fn(Path, *mut c_char) -> *mut c_char>(real)
    };
    let mut room = Room::new();
    // SAFETY: the caller guarantees the path.
    let changed = if path.is_null() { None } else { unsafe { room.in_tree(path) } };
    match changed {
        // SAFETY: the caller meets the conditions of the C function, and the changed path lives
        // until it returns. Its result is a writable text.
        Some(changed) => unsafe { shown(real(changed, to)) },
        // SAFETY: the caller meets the conditions of the C function.
        None => unsafe { real(path, to) },
    }
}

/// `realpath` with the size of the caller's array, which the compiler knows.
///
/// # Safety
///
/// As for `realpath`.
#[unsafe(no_mangle)]
unsafe extern "C" fn __realpath_chk(path: Path, to: *mut c_char, size: usize) -> *mut c_char {
    if size < libc::PATH_MAX as usize {
        // The C library's function would end the program, too.
        // SAFETY: this has no conditions.
        unsafe { libc::abort() };
    }
    // SAFETY: the caller guarantees the path, and the size shows that `to` has `PATH_MAX` bytes.
    unsafe { realpath(path, to) }
}

/// `realpath` with memory that the caller frees.
///
/// # Safety
///
/// As for `realpath`.
#[unsafe(no_mangle)]
unsafe extern "C" fn canonicalize_file_name(path: Path) -> *mut c_char {
    // SAFETY: the caller guarantees that the path is null or ends with a NUL.
    unsafe { realpath(path, ptr::null_mut()) }
}

/// Runs when the library is loaded. Every function is looked up now, because `dlsym` takes a lock
/// that another thread may hold when the program forks.
extern "C" fn load() {
    look_all_up();
    REALPATH.get();
    crate::libraries::find();
    tree::find();
}

#[used]
#[unsafe(link_section = ".init_array")]
static LOAD: extern "C" fn() = load;
