//! `dlopen` of libibverbs and librdmacm, also of copies with other names.
//!
//! Python wheels carry copies of both with a hash in their names. Programs that are linked to such
//! a copy use the preloaded library's functions, because the loader looks there first. Those that
//! open a copy by its name, and look functions up in it, would find the copy's.

use core::arch::naked_asm;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, Ordering};

use crate::calls::Real;
use crate::path::replaced_library;

static DLOPEN: Real = Real::new(c"dlopen");

/// The longest path of one of this project's libraries.
const LONGEST: usize = libc::PATH_MAX as usize;

/// A path that [`find`] writes, and nobody afterwards.
struct LibraryPath(core::cell::UnsafeCell<[u8; LONGEST]>);

// SAFETY: `find` writes it before the program's first thread begins, and publishes that in `FOUND`.
unsafe impl Sync for LibraryPath {}

static PATHS: [LibraryPath; 2] = [const { LibraryPath(core::cell::UnsafeCell::new([0; LONGEST])) }; 2];
const NAMES: [&[u8]; 2] = [b"libibverbs.so.1\0", b"librdmacm.so.1\0"];
static FOUND: AtomicBool = AtomicBool::new(false);

/// Looks for the libraries beside this one.
pub(crate) fn find() {
    DLOPEN.get();
    let mut own = MaybeUninit::<libc::Dl_info>::zeroed();
    let address = (&raw const FOUND).cast::<c_void>();
    // SAFETY: the address is in this library, and the struct is writable.
    let found = unsafe { libc::dladdr(address, own.as_mut_ptr()) } != 0;
    // SAFETY: null pointers are valid in this struct, and `dladdr` writes valid ones.
    let file = unsafe { own.assume_init() }.dli_fname;
    if !found || file.is_null() {
        return;
    }
    // SAFETY: `dladdr` returns a name that ends with a NUL.
    let file = unsafe { CStr::from_ptr(file) }.to_bytes();
    let Some(slash) = file.iter().rposition(|byte| *byte == b'/') else { return };
    let folder = &file[..=slash];
    for (path, name) in PATHS.iter().zip(NAMES) {
        if folder.len() + name.len() > LONGEST {
            return;
        }
        // SAFETY: nobody reads the bytes before `FOUND` is set, and only this function writes them,
        // once, when the library is loaded.
        let path = unsafe { &mut *path.0.get() };
        path[..folder.len()].copy_from_slice(folder);
        path[folder.len()..folder.len() + name.len()].copy_from_slice(name);
    }
    FOUND.store(true, Ordering::Release);
}

/// The library to open for this name.
///
/// # Safety
///
/// The name is null or ends with a NUL.
unsafe extern "C" fn chosen(name: *const c_char, real: &mut *mut c_void) -> *const c_char {
    *real = DLOPEN.get();
    if name.is_null() || !FOUND.load(Ordering::Acquire) {
        return name;
    }
    // SAFETY: the caller guarantees that the name ends with a NUL.
    let Some(ours) = replaced_library(unsafe { CStr::from_ptr(name) }.to_bytes()) else { return name };
    let place = NAMES.iter().position(|name| *name == ours);
    place.map_or(name, |place| PATHS[place].0.get().cast_const().cast())
}

/// `dlopen`. The C library takes the calling library from the return address, and looks into that
/// one's `RUNPATH`. So this function leaves the return address of its caller on the stack, and
/// jumps.
///
/// # Safety
///
/// As for the C library's function.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void {
    naked_asm!(
        "endbr64",
        "sub rsp, 24",
        "mov [rsp], rsi",
        "lea rsi, [rsp + 8]",
        "call {chosen}",
        "mov rdi, rax",
        "mov rsi, [rsp]",
        "mov rax, [rsp + 8]",
        "add rsp, 24",
        "test rax, rax",
        "je 2f",
        "jmp rax",
        "2: ret",
        chosen = sym chosen,
    )
}

/// See above.
///
/// # Safety
///
/// As for the C library's function.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void {
    naked_asm!(
        "stp x29, x30, [sp, #-32]!",
        "str x1, [sp, #16]",
        "add x1, sp, #24",
        "bl {chosen}",
        "ldp x1, x16, [sp, #16]",
        "ldp x29, x30, [sp], #32",
        "cbz x16, 2f",
        "br x16",
        "2: mov x0, xzr",
        "ret",
        chosen = sym chosen,
    )
}
