//! Thread domains: the program's promise that what is made in one is used by one thread at a time.
//!
//! A device may do without locks then (`man ibv_alloc_td`). This one does not: its locks cost next to nothing where nobody else
//! wants them. So a thread domain is something to count, and to be busy while a parent domain has it.

use std::ffi::c_int;
use std::sync::Arc;

use super::context::{Context, CountGuard};
use super::use_ref::{CountsUses, UseCount};

/// A thread domain.
#[derive(Debug)]
pub(crate) struct Td {
    counted: CountGuard,
    users: UseCount,
}

impl Td {
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
