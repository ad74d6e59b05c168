//! The integration tests of sideway that run under the standard harness. They are one program,
//! because each program takes seconds to link.
//!
//! The allocator counts the allocations of each thread, because some of the tests check them.

#[cfg_attr(feature = "soft", macro_use)]
extern crate test_harness;

#[macro_use]
mod support;

mod documents;
mod fake;
#[cfg(feature = "soft")]
mod gone;
mod migration;
#[cfg(all(feature = "mlx5", feature = "efa"))]
mod plug_ins;
mod seed;
mod soundness;
#[cfg(all(feature = "soft", feature = "mlx5", feature = "efa"))]
mod vendors;

#[global_allocator]
static ALLOCATOR: support::counting_allocator::CountingAllocator =
    support::counting_allocator::CountingAllocator;
