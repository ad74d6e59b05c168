//! The way of each call through the boundary: arguments in, results and failures out.

use std::any::Any;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::io::{IoSlice, IoSliceMut};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::{ptr, slice};

use crate::error::{self, CallFailure};

/// Runs the body of an exported function. A failure sets `errno` and the thread's error text.
///
/// A panic becomes `ENOTRECOVERABLE`, because a library must not end a program that could close this
/// connection and go on. A handle that was borrowed exclusively then stays poisoned
/// ([`Handle`](crate::handle::Handle)). Other state that the panic may have left half changed is
/// behind trespass's own locks, which is what `AssertUnwindSafe` relies on.
pub(crate) fn call<R: Returned>(body: impl FnOnce() -> Result<R, CallFailure>) -> R::C {
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => return value.into_c(),
        Ok(Err(failure)) => failure,
        Err(panic) => CallFailure::new(libc::ENOTRECOVERABLE, internal_error(&*panic)),
    };
    error::set(failure);
    R::FAILED
}

fn internal_error(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic");
    format!("internal error of trespass: {text}; please report it")
}

/// A result, with its form in C and the value that stands for a failure.
pub(crate) trait Returned {
    type C;
    const FAILED: Self::C;
    fn into_c(self) -> Self::C;
}

impl Returned for () {
    type C = c_int;
    const FAILED: c_int = -1;
    fn into_c(self) -> c_int {
        0
    }
}

/// A count of bytes or of events. No count exceeds `isize::MAX`, because no buffer does.
impl Returned for usize {
    type C = isize;
    const FAILED: isize = -1;
    fn into_c(self) -> isize {
        isize::try_from(self).unwrap_or(isize::MAX)
    }
}

/// A descriptor, a port or a set of flags: small and not negative.
impl Returned for c_int {
    type C = c_int;
    const FAILED: c_int = -1;
    fn into_c(self) -> c_int {
        self
    }
}

impl<T> Returned for *mut T {
    type C = *mut T;
    const FAILED: *mut T = ptr::null_mut();
    fn into_c(self) -> *mut T {
        self
    }
}

impl<T> Returned for *const T {
    type C = *const T;
    const FAILED: *const T = ptr::null();
    fn into_c(self) -> *const T {
        self
    }
}

/// The error of a null pointer.
pub(crate) fn null(name: &str) -> CallFailure {
    CallFailure::new(libc::EFAULT, format!("`{name}` is NULL"))
}

fn checked_length(name: &str, length: usize) -> Result<(), CallFailure> {
    if isize::try_from(length).is_err() {
        return Err(CallFailure::new(libc::EINVAL, format!("`{name}` cannot have {length} bytes")));
    }
    Ok(())
}

/// Bytes to read. Null is allowed for none.
///
/// # Safety
///
/// `start` is null or has `length` readable bytes, which stay unchanged for `'a`.
pub(crate) unsafe fn bytes<'a>(
    name: &str,
    start: *const c_void,
    length: usize,
) -> Result<&'a [u8], CallFailure> {
    checked_length(name, length)?;
    match (start.is_null(), length) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(null(name)),
        // SAFETY: by the caller; the pointer is not null and the length was checked.
        (false, _) => Ok(unsafe { slice::from_raw_parts(start.cast(), length) }),
    }
}

/// Bytes to write. Null is allowed for none.
///
/// # Safety
///
/// `start` is null or has `length` writable bytes, which nobody else uses for `'a`. They may have any
/// contents: what a C program left undefined is some byte for Rust.
pub(crate) unsafe fn bytes_mut<'a>(
    name: &str,
    start: *mut c_void,
    length: usize,
) -> Result<&'a mut [u8], CallFailure> {
    checked_length(name, length)?;
    match (start.is_null(), length) {
        (_, 0) => Ok(&mut []),
        (true, _) => Err(null(name)),
        // SAFETY: by the caller; the pointer is not null and the length was checked.
        (false, _) => Ok(unsafe { slice::from_raw_parts_mut(start.cast(), length) }),
    }
}

/// The most buffers of one vectored call: `IOV_MAX` of Linux.
const MOST_BUFFERS: c_int = 1024;

/// The entries of an array of buffers.
///
/// # Safety
///
/// `buffers` is null or has `count` entries, which stay unchanged for `'a`.
unsafe fn entries<'a>(buffers: *const libc::iovec, count: c_int) -> Result<&'a [libc::iovec], CallFailure> {
    if !(0..=MOST_BUFFERS).contains(&count) {
        let words = format!("a call has 0 to {MOST_BUFFERS} buffers, not {count}");
        return Err(CallFailure::new(libc::EINVAL, words));
    }
    match (buffers.is_null(), count) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(null("buffers")),
        // SAFETY: by the caller; `count` is not negative.
        (false, _) => Ok(unsafe { slice::from_raw_parts(buffers, count as usize) }),
    }
}

/// Buffers to read.
///
/// # Safety
///
/// That of [`entries`], and each entry is one of [`bytes`].
pub(crate) unsafe fn gathered<'a>(
    buffers: *const libc::iovec,
    count: c_int,
) -> Result<Vec<IoSlice<'a>>, CallFailure> {
    // SAFETY: the pointer has what this function demands of its caller.
    let entries = unsafe { entries(buffers, count) }?;
    // SAFETY: the pointer has what this function demands of its caller.
    entries
        .iter()
        .map(|entry| unsafe { bytes("iov_base", entry.iov_base, entry.iov_len) }.map(IoSlice::new))
        .collect()
}

/// Buffers to write.
///
/// # Safety
///
/// That of [`entries`], and each entry is one of [`bytes_mut`], so that no two overlap.
pub(crate) unsafe fn scattered<'a>(
    buffers: *const libc::iovec,
    count: c_int,
) -> Result<Vec<IoSliceMut<'a>>, CallFailure> {
    // SAFETY: the pointer has what this function demands of its caller.
    let entries = unsafe { entries(buffers, count) }?;
    let slices = entries.iter().map(|entry| {
        // SAFETY: the pointer has what this function demands of its caller.
        unsafe { bytes_mut("iov_base", entry.iov_base, entry.iov_len) }.map(IoSliceMut::new)
    });
    slices.collect()
}

/// A text.
///
/// # Safety
///
/// `text` is null or ends with a zero byte, and stays unchanged for `'a`.
pub(crate) unsafe fn text<'a>(name: &str, text: *const c_char) -> Result<&'a str, CallFailure> {
    if text.is_null() {
        return Err(null(name));
    }
    // SAFETY: the pointer has what this function demands of its caller.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| CallFailure::new(libc::EINVAL, format!("`{name}` is not UTF-8: {text:?}")))
}

/// Refuses a null pointer to a result, before the call does anything.
pub(crate) fn result<T>(name: &str, place: *mut T) -> Result<*mut T, CallFailure> {
    if place.is_null() { Err(null(name)) } else { Ok(place) }
}

/// A value that C counts as 0 and 1, or more.
pub(crate) fn flag(value: c_int) -> bool {
    value != 0
}
