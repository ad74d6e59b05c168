//! Thread domains: the program promises that one thread at a time uses the objects created in one.
//!
//! A device may omit locks then (`man ibv_alloc_td`). This device does not, because an uncontended
//! lock costs almost nothing. A thread domain is only counted, and is busy while a parent domain
//! uses it.

use std::ffi::c_int;
use std::sync::Arc;

use super::context::{Context, CountGuard};
use super::use_ref::{CountsUses, UseCount};

/// A thread domain (`ibv_td`).
#[derive(Debug)]
pub(crate) struct Td {
    counted: CountGuard,
    users: UseCount,
}

impl Td {
    /// Allocates a thread domain.
    ///
    /// # Errors
    ///
    /// As [`Context::count`].
    pub(crate) fn new(context: &Arc<Context>) -> Result<Arc<Self>, c_int> {
        let counted = context.count(|counts| &counts.td, u32::MAX)?;
        Ok(Arc::new(Self { counted, users: UseCount::default() }))
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        self.counted.context()
    }
}

impl CountsUses for Td {
    fn users(&self) -> &UseCount {
        &self.users
    }
}
