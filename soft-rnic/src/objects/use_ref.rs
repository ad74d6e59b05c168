//! A counted reference to an object. An object in use cannot be destroyed.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

/// How many objects use this one.
#[derive(Debug, Default)]
pub(crate) struct UseCount(AtomicU32);

impl UseCount {
    pub(crate) fn is_used(&self) -> bool {
        self.0.load(Relaxed) != 0
    }
}

/// An object that other objects use.
pub(crate) trait CountsUses {
    fn users(&self) -> &UseCount;
}

/// One use of an object, until it is released or dropped.
#[derive(Debug)]
pub(crate) struct UseRef<T: CountsUses> {
    object: Arc<T>,
    released: AtomicBool,
}

impl<T: CountsUses> UseRef<T> {
    pub(crate) fn new(object: &Arc<T>) -> Self {
        object.users().0.fetch_add(1, Relaxed);
        Self { object: Arc::clone(object), released: AtomicBool::new(false) }
    }

    pub(crate) fn get(&self) -> &Arc<T> {
        &self.object
    }

    /// Ends the use, although other references may keep this value alive for a while.
    pub(crate) fn release(&self) {
        if !self.released.swap(true, Relaxed) {
            self.object.users().0.fetch_sub(1, Relaxed);
        }
    }
}

impl<T: CountsUses> Deref for UseRef<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.object
    }
}

impl<T: CountsUses> Drop for UseRef<T> {
    fn drop(&mut self) {
        self.release();
    }
}
