//! Helpers shared by the test programs. Each of them uses only a part.
#![allow(dead_code, unreachable_pub, unused_macros)]

pub mod counting_allocator;
pub mod errors;
pub mod fake;
#[macro_use]
pub mod flavour;
pub mod permutations;
