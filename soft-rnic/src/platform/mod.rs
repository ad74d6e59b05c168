//! What the system is asked for.

pub(crate) mod clock;
pub(crate) mod errno;
pub(crate) mod memory;
pub(crate) mod network;
pub(crate) mod tokens;
pub(crate) mod user_memory;
