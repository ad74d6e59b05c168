//! What the system is asked for.

pub(crate) mod copy;
pub(crate) mod fork;
pub(crate) mod mappings;
pub(crate) mod memory;
pub(crate) mod process;
pub(crate) mod socket;
pub(crate) mod user;
pub(crate) mod vm;
