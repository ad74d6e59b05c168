//! Reference counting of a pool, by its handles and slices.

use std::cell::Cell;
use std::ops::Deref;
use std::ptr::NonNull;

use super::Inner;

/// A reference count like `Rc`, except that its drop does not take its own address. So a slice
/// stays in registers from the pool to the request.
pub(crate) struct Handle(NonNull<RefCounted>);

struct RefCounted {
    /// The number of handles. It cannot overflow, because leaking that number would take too long.
    handles: Cell<u64>,
    inner: Inner,
}

impl Handle {
    pub(super) fn new(inner: Inner) -> Self {
        Self(NonNull::from(Box::leak(Box::new(RefCounted { handles: Cell::new(1), inner }))))
    }

    #[inline]
    fn counted(&self) -> &RefCounted {
        // SAFETY: the box was leaked, and is rebuilt only when the last handle is dropped.
        unsafe { self.0.as_ref() }
    }

    /// Whether both refer to the same pool.
    #[inline]
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Deref for Handle {
    type Target = Inner;

    #[inline]
    fn deref(&self) -> &Inner {
        &self.counted().inner
    }
}

impl Clone for Handle {
    #[inline]
    fn clone(&self) -> Self {
        let handles = &self.counted().handles;
        handles.set(handles.get() + 1);
        Self(self.0)
    }
}

impl Drop for Handle {
    #[inline]
    fn drop(&mut self) {
        let handles = &self.counted().handles;
        let left = handles.get() - 1;
        handles.set(left);
        if left == 0 {
            // SAFETY: this was the last handle.
            unsafe { free(self.0) };
        }
    }
}

/// # Safety
///
/// No handle of it may exist any more.
#[cold]
#[inline(never)]
unsafe fn free(counted: NonNull<RefCounted>) {
    // SAFETY: the box was leaked when the pool was made, and only this line rebuilds it.
    drop(unsafe { Box::from_raw(counted.as_ptr()) });
}
