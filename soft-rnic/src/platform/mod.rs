//! What the system is asked for.

pub(crate) mod memory;
