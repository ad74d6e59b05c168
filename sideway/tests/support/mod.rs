//! What the test programs share. Each of them uses a part of it.
#![allow(dead_code, unreachable_pub)]

pub mod counting_allocator;
pub mod fake;
#[macro_use]
pub mod flavour;
