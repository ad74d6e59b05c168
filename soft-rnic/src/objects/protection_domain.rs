//! Protection domains: what belongs together.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::context::{Context, Counted};
use super::held::{Used, Users};

/// A protection domain. Its number is what peers and cards compare.
#[derive(Debug)]
pub(crate) struct Pd {
    counted: Counted,
    number: u32,
    users: Users,
}

impl Pd {
    /// # Errors
    ///
    /// As [`Context::count`].
    pub(crate) fn new(context: &Arc<Context>) -> Result<Arc<Self>, c_int> {
        /// Numbers are not used again: a key's card and a queue pair's must not agree by chance.
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let counted = context.count(|counts| &counts.pd, context.rnic().limits().max_pd)?;
        Ok(Arc::new(Self { counted, number: NEXT.fetch_add(1, Relaxed), users: Users::default() }))
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        self.counted.context()
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }
}

impl Used for Pd {
    fn users(&self) -> &Users {
        &self.users
    }
}
