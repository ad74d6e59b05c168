//! What the system is asked for.

#[allow(dead_code, reason = "the engine comes next")]
pub(crate) mod copy;
pub(crate) mod fork;
pub(crate) mod mappings;
pub(crate) mod memory;
pub(crate) mod process;
pub(crate) mod socket;
pub(crate) mod user;
#[allow(dead_code, reason = "the engine comes next")]
pub(crate) mod vm;
