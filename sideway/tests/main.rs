//! The integration tests of sideway that run under the standard harness. One program, because each costs seconds to link.
//!
//! The allocator counts what a thread allocates, which some of the tests ask for.

#[cfg_attr(feature = "soft", macro_use)]
extern crate test_harness;

#[macro_use]
mod support;

mod documents;
mod fake;
#[cfg(feature = "soft")]
mod gone;
mod seed;
mod soundness;
#[cfg(all(feature = "soft", feature = "mlx5", feature = "efa"))]
mod vendors;

#[global_allocator]
static ALLOCATOR: support::counting_allocator::CountingAllocator =
    support::counting_allocator::CountingAllocator;
