//! What the test programs share. Each of them uses a part of it.
#![allow(dead_code, unreachable_pub, unused_macros)]

pub mod counting_allocator;
pub mod errors;
pub mod fake;
#[macro_use]
pub mod flavour;
