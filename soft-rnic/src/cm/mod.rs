//! The connection manager: what the kernel does behind librdmacm.
//!
//! [`ConnectionManager`] has the shape of the kernel's commands (`rdma/rdma_user_cm.h`), and knows no struct of `rdma_cma.h`. An
//! *id* is a number; what happens to it is queued at its [`CmEventChannel`]. Errors are error numbers; statuses of events are
//! negative ones, or reasons of a rejection (InfiniBand specification, 12.6.7.2), as the kernel's are.

mod address_table;
mod channel_notifier;
#[cfg(any(fuzzing, all(test, not(loom))))]
pub(crate) mod hostile;
mod manager;
mod message;
mod node_transport;
mod ports;
mod slab;
mod state_machine;
#[cfg(all(test, not(loom)))]
mod tests;
mod transport;
mod types;

pub(crate) use manager::{CmEventChannel, ConnectionManager};
pub(crate) use types::{
    CmEvent, CmEventKind, CmPath, CmRoute, ConnParams, Ece, EventDetails, IdNumber, JoinNumber, PortSpace,
    PrivateData,
};
