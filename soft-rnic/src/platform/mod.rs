//! What the system is asked for.

#[allow(dead_code, reason = "the engine comes next")]
pub(crate) mod copy;
pub(crate) mod memory;
