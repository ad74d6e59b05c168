//! A C struct and its private state in one allocation.

use std::marker::PhantomData;

/// The C struct, followed by the private state.
///
/// The program may write to the C part at any time, so no reference to it ever exists.
#[repr(C)]
pub(crate) struct CObject<C, S> {
    c: C,
    state: S,
    /// Not `Send`, because the C program may use the object on any thread.
    not_send: PhantomData<*mut ()>,
}

impl<C, S> CObject<C, S> {
    /// Creates an object and returns the program's pointer to it. It lives until
    /// [`destroy`](Self::destroy).
    pub(crate) fn create(c: C, state: S) -> *mut C {
        Box::into_raw(Box::new(Self { c, state, not_send: PhantomData })).cast()
    }

    /// The private state of an object.
    ///
    /// # Safety
    ///
    /// - `c` came from [`create`](Self::create) of the same types, and the object is not destroyed
    ///   while the reference is used.
    #[inline]
    pub(crate) unsafe fn state<'a>(c: *mut C) -> &'a S {
        // SAFETY: the C part is the first field of a `CObject`, and the pointer is valid for all of
        // it (contract of `state`). The reference covers the private state alone, which only this
        // crate accesses, by shared references.
        unsafe { &(*c.cast::<Self>()).state }
    }

    /// Frees an object and returns its state.
    ///
    /// # Safety
    ///
    /// - `c` came from [`create`](Self::create) of the same types, and is not used after this.
    pub(crate) unsafe fn destroy(c: *mut C) -> S {
        // SAFETY: `create` boxed it, and the caller guarantees that nobody uses it any more.
        unsafe { Box::from_raw(c.cast::<Self>()) }.state
    }
}
