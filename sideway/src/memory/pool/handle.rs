//! Who keeps a pool: its handles and its slices.

use std::cell::Cell;
use std::ops::Deref;
use std::ptr::NonNull;

use super::Inner;

/// A count of references, as `Rc`, but that its drop takes no address of it: a slice then stays in registers from the pool to the
/// request.
pub(crate) struct Handle(NonNull<RefCounted>);

struct RefCounted {
    /// How many handles there are. It cannot overflow: there is no time for as many to be leaked.
    handles: Cell<u64>,
    inner: Inner,
}

impl Handle {
    pub(super) fn new(inner: Inner) -> Self {
        Self(NonNull::from(Box::leak(Box::new(RefCounted { handles: Cell::new(1), inner }))))
    }

    #[inline]
    fn counted(&self) -> &RefCounted {
        // SAFETY: it was a box, and is one again only when the last handle goes.
        unsafe { self.0.as_ref() }
    }

    /// Whether both are of the same pool.
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
/// There is no handle of it any more.
#[cold]
#[inline(never)]
unsafe fn free(counted: NonNull<RefCounted>) {
    // SAFETY: it was a box, and nobody else makes one of it.
    drop(unsafe { Box::from_raw(counted.as_ptr()) });
}
