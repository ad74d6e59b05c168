//! The integration tests of trespass that run under the standard harness. They are one program,
//! because each program takes seconds to link.
//!
//! A test that needs a process to itself begins with `alone!`. A process has one configuration of
//! the software device. Its faults, mappings and descriptors are counted for the whole process.

#[cfg(feature = "rdma")]
#[macro_use]
extern crate test_harness;

#[cfg(feature = "rdma")]
mod both_builds;
#[cfg(feature = "rdma")]
mod devices;
mod environment;
mod errors;
#[cfg(feature = "rdma")]
mod fault_table;
#[cfg(feature = "rdma")]
mod fork;
#[cfg(feature = "rdma")]
mod many;
#[cfg(feature = "rdma")]
mod pool_device;
#[cfg(feature = "rdma")]
#[path = "suite/proxy.rs"]
mod proxy;
#[cfg(feature = "rdma")]
mod soak;
mod tree;
