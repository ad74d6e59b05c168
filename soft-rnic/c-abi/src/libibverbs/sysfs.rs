//! Functions that read attributes below `/sys`; programs use them for facts that no verb reports.

use core::ffi::{CStr, c_char, c_int};
use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::OnceLock;

use crate::export::set_errno;

/// `ibv_get_sysfs_path()`: the mount point of sysfs, which is `SYSFS_PATH` or `/sys`.
#[unsafe(no_mangle)]
extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    static PATH: OnceLock<CString> = OnceLock::new();
    PATH.get_or_init(|| {
        let path = rdma_mummy_sys::secure_var_os("SYSFS_PATH").map(OsStringExt::into_vec).unwrap_or_default();
        let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
        CString::new(&path[..end]).ok().filter(|path| !path.is_empty()).unwrap_or_else(|| c"/sys".into())
    })
    .as_ptr()
}

/// `ibv_read_sysfs_file(dir, file, buf, size)`: reads an attribute without the newline at its end.
///
/// Returns the length of the text, or -1 with `errno` set: `ENAMETOOLONG` if text and NUL do not
/// fit.
///
/// # Safety
///
/// `dir` and `file` end with a NUL; `buf` has `size` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_read_sysfs_file(
    dir: *const c_char,
    file: *const c_char,
    buf: *mut c_char,
    size: usize,
) -> c_int {
    // SAFETY: the caller guarantees that both strings end with a NUL.
    let (dir, file) = unsafe { (CStr::from_ptr(dir), CStr::from_ptr(file)) };
    let path = [dir.to_bytes(), b"/", file.to_bytes()].concat();
    // Reads one byte more than fits, so that a longer text is detected; no attribute is longer than
    // a page.
    let mut text = Vec::new();
    let read = File::open(OsStr::from_bytes(&path))
        .and_then(|file| file.take(size as u64 + 1).read_to_end(&mut text));
    if let Err(error) = read {
        set_errno(error.raw_os_error().unwrap_or(libc::EIO));
        return -1;
    }
    if text.last() == Some(&b'\n') {
        text.pop();
    }
    let Some(length) = c_int::try_from(text.len()).ok().filter(|_| text.len() < size) else {
        set_errno(libc::ENAMETOOLONG);
        return -1;
    };
    text.push(0);
    // SAFETY: the text with its NUL has at most `size` bytes, and the caller guarantees that `buf`
    // has as many; `buf` cannot overlap a vector that this function allocated.
    unsafe { buf.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), text.len()) };
    length
}
