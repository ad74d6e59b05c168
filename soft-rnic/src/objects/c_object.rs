//! An object's two parts in one allocation: what C sees, and what it does not.

use std::marker::PhantomData;

/// The C struct, and behind it the private state.
///
/// The program may write into the C part at any time, so there is never a reference to it.
#[repr(C)]
pub(crate) struct CObject<C, S> {
    c: C,
    state: S,
    /// Neither part moves between threads by itself; the C program does what it likes.
    not_send: PhantomData<*mut ()>,
}

impl<C, S> CObject<C, S> {
    /// Makes an object, and returns the pointer that the program gets. It lives until [`destroy`](Self::destroy).
    pub(crate) fn create(c: C, state: S) -> *mut C {
        Box::into_raw(Box::new(Self { c, state, not_send: PhantomData })).cast()
    }

    /// # Safety
    ///
    /// - `c` came from [`create`](Self::create) of the same types, and the object is not destroyed while the
    ///   reference is used.
    #[inline]
    pub(crate) unsafe fn state<'a>(c: *mut C) -> &'a S {
        // SAFETY: the C part is the first field of an `CObject`, and the pointer is good for all of it. The
        // reference covers the state alone, which only this crate reaches, by shared references.
        unsafe { &(*c.cast::<Self>()).state }
    }

    /// Frees an object; its state is returned.
    ///
    /// # Safety
    ///
    /// - `c` came from [`create`](Self::create) of the same types, and is not used after this.
    pub(crate) unsafe fn destroy(c: *mut C) -> S {
        // SAFETY: `create` boxed it, and nobody uses it any more.
        unsafe { Box::from_raw(c.cast::<Self>()) }.state
    }
}
