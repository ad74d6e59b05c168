//! What a C program holds: a pointer to a tagged value, which threads borrow for a call.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};

use crate::boundary::null;
use crate::error::CallFailure;

/// A value that a C program holds by a pointer.
///
/// The tag tells the types of handles apart, and most closed ones from open ones. The lock is never
/// waited for. It keeps `&mut` of one thread apart from the calls of others, which then fail with
/// `EBUSY`: a C program cannot be asked to know which calls take `&mut`.
#[derive(Debug)]
#[repr(C)]
pub struct Handle<T> {
    tag: AtomicU32,
    value: RwLock<T>,
}

/// A type of handles.
pub trait Tagged {
    /// Four letters, different for each type.
    const TAG: u32;
    /// The name of the parameter, for errors.
    const NAME: &'static str;
}

/// The tag of a handle that was closed.
const CLOSED: u32 = u32::from_be_bytes(*b"DEAD");

impl<T: Tagged> Handle<T> {
    /// Moves a value to the C program.
    pub(crate) fn give(value: T) -> *mut Self {
        Box::into_raw(Box::new(Self { tag: AtomicU32::new(T::TAG), value: RwLock::new(value) }))
    }

    /// The handle that a C program passes.
    ///
    /// # Safety
    ///
    /// The pointer is null or of a handle that is not closed during `'a`.
    unsafe fn of<'a>(handle: *const Self) -> Result<&'a Self, CallFailure> {
        if handle.is_null() {
            return Err(null(T::NAME));
        }
        if !handle.is_aligned() {
            return Err(no_handle::<T>("is no handle"));
        }
        // SAFETY: by the caller. Another type's handle begins with its tag, too (`repr(C)`).
        let tag = unsafe { &(*handle).tag }.load(Ordering::Relaxed);
        if tag == T::TAG {
            // SAFETY: `give` has made it, by its tag.
            return Ok(unsafe { &*handle });
        }
        let what = if tag == CLOSED { "is closed" } else { "is another kind of handle, or none" };
        Err(no_handle::<T>(what))
    }

    /// Borrows the value for a call that other threads may make at the same time.
    ///
    /// # Safety
    ///
    /// That of [`of`](Self::of).
    pub(crate) unsafe fn shared<'a>(handle: *const Self) -> Result<RwLockReadGuard<'a, T>, CallFailure> {
        // SAFETY: the program passes memory as the functions of this crate demand (`crate`).
        let lock = unsafe { Self::of(handle) }?.value.try_read();
        lock.map_err(|error| refused::<T, _>(&error))
    }

    /// Borrows the value for a call that no other thread may make at the same time.
    ///
    /// # Safety
    ///
    /// That of [`of`](Self::of).
    pub(crate) unsafe fn exclusive<'a>(handle: *const Self) -> Result<RwLockWriteGuard<'a, T>, CallFailure> {
        // SAFETY: the program passes memory as the functions of this crate demand (`crate`).
        let lock = unsafe { Self::of(handle) }?.value.try_write();
        lock.map_err(|error| refused::<T, _>(&error))
    }

    /// Takes the value back, and ends the handle. A value that a panic has poisoned is taken, too, so
    /// that it can be dropped.
    ///
    /// # Safety
    ///
    /// That of [`of`](Self::of), and no other thread begins a call with the handle from now on.
    pub(crate) unsafe fn take(handle: *mut Self) -> Result<T, CallFailure> {
        // SAFETY: the program passes memory as the functions of this crate demand (`crate`).
        let place = unsafe { Self::of(handle) }?;
        if let Err(error @ TryLockError::WouldBlock) = place.value.try_write() {
            return Err(refused::<T, _>(&error));
        }
        place.tag.store(CLOSED, Ordering::Relaxed);
        // SAFETY: `give` has made it of a box. No other thread uses it: none has a lock, and none
        // begins a call.
        let handle = unsafe { Box::from_raw(handle) };
        Ok(handle.value.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }
}

fn no_handle<T: Tagged>(what: &str) -> CallFailure {
    CallFailure::new(libc::EBADF, format!("`{}` {what}", T::NAME))
}

fn refused<T: Tagged, G>(error: &TryLockError<G>) -> CallFailure {
    let name = T::NAME;
    match error {
        TryLockError::WouldBlock => {
            let words = format!("another thread is in a call with this `{name}` that shares it with none");
            CallFailure::new(libc::EBUSY, words)
        }
        TryLockError::Poisoned(_) => {
            let words = format!("an internal error has ended a call with this `{name}`: close it");
            CallFailure::new(libc::ENOTRECOVERABLE, words)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::{CStr, c_int};
    use std::thread;

    use super::*;
    use crate::boundary::call;
    use crate::error::trespass_error;

    #[derive(Debug)]
    struct Number(u32);

    impl Tagged for Number {
        const TAG: u32 = u32::from_be_bytes(*b"test");
        const NAME: &'static str = "number";
    }

    /// `errno` and the text of the thread's latest failure.
    fn latest() -> (c_int, String) {
        let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or_default();
        // SAFETY: the text ends with a zero byte and stays until the next failure.
        let text = unsafe { CStr::from_ptr(trespass_error()) };
        (errno, text.to_string_lossy().into_owned())
    }

    #[test]
    fn a_panic_is_an_error_and_leaves_a_handle_that_can_only_be_closed() {
        let handle = Handle::give(Number(7));
        let panics = || -> Result<(), CallFailure> {
            // SAFETY: the handle is open.
            let number = unsafe { Handle::exclusive(handle) }?;
            panic!("{} is odd", number.0);
        };
        assert_eq!(call(panics), -1);
        let (errno, text) = latest();
        assert_eq!(errno, libc::ENOTRECOVERABLE);
        assert_eq!(text, "internal error of trespass: 7 is odd; please report it");
        // SAFETY: the handle is open.
        assert_eq!(call(|| unsafe { Handle::shared(handle) }.map(|_| ())), -1);
        assert_eq!(latest().0, libc::ENOTRECOVERABLE);
        // SAFETY: the handle is open, and nothing uses it afterwards.
        assert_eq!(unsafe { Handle::take(handle) }.map(|number| number.0).ok(), Some(7));
    }

    #[test]
    fn a_handle_in_use_is_refused_and_not_closed() {
        let handle = Handle::give(Number(1));
        // SAFETY: the handle is open.
        let shared = unsafe { Handle::shared(handle) }.map_err(|_| ()).expect("it is open");
        // SAFETY: the handle is open.
        assert!(unsafe { Handle::shared(handle) }.is_ok());
        // SAFETY: the handle is open.
        let error = unsafe { Handle::exclusive(handle) }.err().map(|failure| failure.errno());
        assert_eq!(error, Some(libc::EBUSY));
        // SAFETY: the handle is open, and stays so because the call is refused.
        let error = unsafe { Handle::take(handle) }.err().map(|failure| failure.errno());
        assert_eq!(error, Some(libc::EBUSY));
        drop(shared);
        // SAFETY: the handle is open, and nothing uses it afterwards.
        assert!(unsafe { Handle::take(handle) }.is_ok());
    }

    #[test]
    fn each_thread_has_its_own_error() {
        // SAFETY: `of` refuses a null pointer before it reads it.
        let refused = || call(|| unsafe { Handle::<Number>::shared(std::ptr::null()) }.map(|_| ()));
        assert_eq!(refused(), -1);
        assert_eq!(latest(), (libc::EFAULT, "`number` is NULL".to_owned()));
        let other = thread::spawn(|| latest().1).join().expect("it does not panic");
        assert_eq!(other, "");
    }
}
