//! The connection manager: the counterpart of the kernel's `rdma_cm` behind librdmacm.
//!
//! [`Manager`] has the shape of the kernel's commands (`rdma/rdma_user_cm.h`), and uses no struct
//! of `rdma_cma.h`. An *id* is a number; its events are queued at its [`Channel`]. Errors are error
//! numbers. As in the kernel, the status of an event is a negative error number, or the reason of a
//! rejection (InfiniBand specification, 12.6.7.2).

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
