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

/// A use of an object, for as long as this lives or until it is given up.
///
/// A program may destroy what was used as soon as it has destroyed the user, of which some other thread may still have
/// a reference for a moment: so the end of a user gives its uses up, and does not leave that to its drop.
#[derive(Debug)]
pub(crate) struct Held<T: Used> {
    object: Arc<T>,
    given_up: AtomicBool,
}

impl<T: Used> Held<T> {
    pub(crate) fn new(object: &Arc<T>) -> Self {
        object.users().0.fetch_add(1, Relaxed);
        Self { object: Arc::clone(object), given_up: AtomicBool::new(false) }
    }

    /// The object.
    pub(crate) fn get(&self) -> &Arc<T> {
        &self.object
    }

    /// The object is not used any more, although it is there.
    pub(crate) fn give_up(&self) {
        if !self.given_up.swap(true, Relaxed) {
            self.object.users().0.fetch_sub(1, Relaxed);
        }
    }
}

impl<T: Used> Deref for Held<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.object
    }
}

impl<T: Used> Drop for Held<T> {
    fn drop(&mut self) {
        self.give_up();
    }
}
