//! The integration tests of trespass that run under the standard harness. One program, because each costs seconds to link.
//!
//! A test that needs a process without others begins with `alone!`: a process has one configuration of the software device, and its
//! faults, mappings and descriptors are counted for all of it.

#[cfg(feature = "rdma")]
#[macro_use]
extern crate test_harness;

#[cfg(feature = "rdma")]
mod both_builds;
#[cfg(feature = "rdma")]
mod devices;
mod environment;
#[cfg(feature = "rdma")]
mod many;
#[cfg(feature = "rdma")]
mod pool_device;
#[cfg(feature = "rdma")]
mod soak;
mod tree;
