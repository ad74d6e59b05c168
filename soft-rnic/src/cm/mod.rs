//! The connection manager: what the kernel does behind librdmacm.
//!
//! [`Manager`] has the shape of the kernel's commands (`rdma/rdma_user_cm.h`), and knows no struct of `rdma_cma.h`. An
//! *id* is a number; what happens to it is queued at its [`Channel`]. Errors are error numbers; statuses of events are
//! negative ones, or reasons of a rejection (InfiniBand specification, 12.6.7.2), as the kernel's are.

mod bell;
mod fabric;
#[cfg(any(fuzzing, all(test, not(loom))))]
pub(crate) mod hostile;
mod manager;
mod message;
mod ports;
mod slab;
mod switch;
#[cfg(all(test, not(loom)))]
mod tests;
mod transport;
mod types;
mod world;

pub(crate) use manager::{Channel, Manager};
pub(crate) use types::{
    Data, Details, Ece, Event, IdNumber, JoinNumber, Kind, Parameters, Path, PortSpace, Route,
};
pub(crate) use world::Ear;
