//! The connection manager: the counterpart of the kernel's `rdma_cm` behind librdmacm.
//!
//! [`ConnectionManager`] has the shape of the kernel's commands (`rdma/rdma_user_cm.h`), and uses
//! no struct of `rdma_cma.h`. An *id* is a number; its events are queued at its [`CmEventChannel`].
//! Errors are error numbers. As in the kernel, the status of an event is a negative error number,
//! or the reason of a rejection (InfiniBand specification, 12.6.7.2).

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
