//! A reference that counts as a use: what is used cannot be destroyed.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

/// How many objects use this one.
#[derive(Debug, Default)]
pub(crate) struct Users(AtomicU32);

impl Users {
    pub(crate) fn is_used(&self) -> bool {
        self.0.load(Relaxed) != 0
    }
}

/// An object that others use.
pub(crate) trait Used {
    fn users(&self) -> &Users;
}

/// A use of an object, until it is ended or dropped.
#[derive(Debug)]
pub(crate) struct Held<T: Used>(Arc<T>, AtomicBool);

impl<T: Used> Held<T> {
    pub(crate) fn new(object: &Arc<T>) -> Self {
        object.users().0.fetch_add(1, Relaxed);
        Self(Arc::clone(object), AtomicBool::new(false))
    }

    /// Ends the use: the user is destroyed, though another thread may still be leaving it.
    pub(crate) fn end(&self) {
        if !self.1.swap(true, Relaxed) {
            self.0.users().0.fetch_sub(1, Relaxed);
        }
    }

    /// The object.
    pub(crate) fn get(&self) -> &Arc<T> {
        &self.0
    }
}

impl<T: Used> Deref for Held<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Used> Drop for Held<T> {
    fn drop(&mut self) {
        self.end();
    }
}
