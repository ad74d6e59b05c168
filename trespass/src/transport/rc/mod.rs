//! The RDMA transport: frames as SENDs over a reliable connected (RC) queue pair, rendezvous
//! transfers as READs.
//!
//! - [`device`] finds the device, the port and the GID for a socket. A process opens each device
//!   once.
//! - [`choice`] chooses the ports of a connection over several devices. It is a pure function.
//! - [`queue_pair`] is a queue pair with its outstanding requests.
//! - [`cq_dispatcher`] polls the completion queue of one queue pair, or of all those of a worker.
//! - [`completions`] handles a completion of a connection.
//! - [`draining`] destroys queue pairs that nobody uses any more.
//! - [`shared_recv_queue`] is a receive queue that several connections can share. A
//!   [`Ledger`](crate::protocol::Ledger) limits how much of it each may use.
//! - [`path`] creates a queue pair for the handshake, connects it, and proves that data passes
//!   through it.
//! - [`cm_queue_pair`] does the same for a connection of the connection manager.
//! - [`control_channel`] is the socket or identifier that a connection began with. Its end tells
//!   that the peer has gone.
//! - [`driver`] turns the protocol's output into work requests, and completions into its input.
//!   [`request`] is such a work request.
//!
//! # Memory
//!
//! One rule keeps the device away from memory that belongs to somebody else. A block that a request
//! names, or a share of it, moves into the records of its [`queue_pair`] before the request is
//! posted. It leaves them only when the completion of that request, or of a later one in the same
//! queue, was polled. If that completion never arrives, the block is leaked, not freed.
//!
//! If several requests send parts of one block, each has a
//! [`BlockShare`](crate::protocol::BlockShare). While any share exists, the block lives and nobody
//! writes to it.

mod choice;
mod close_phase;
mod cm_queue_pair;
mod completions;
mod control_channel;
mod cq_dispatcher;
mod device;
mod draining;
mod driver;
pub(crate) mod one_sided;
mod path;
mod pooled;
mod queue_pair;
mod rails_driver;
mod request;
pub(super) mod resources;
mod shared_recv_queue;
#[cfg(test)]
mod tests;
mod wr_id;

pub(crate) use cm_queue_pair::CmQueuePair;
pub(crate) use control_channel::CmControl;
pub(crate) use cq_dispatcher::{CqSlot, WorkCompletion, WorkerCq};
pub(crate) use device::{DevicePort, RdmaDevice, find, find_rails, named_device, port_addresses};
pub(crate) use draining::{Drainer, Draining, set_drainer};
pub(crate) use driver::RcDriver;
pub(crate) use path::{QpParameters, RailsOffer, RcPath};
pub(crate) use rails_driver::RailsDriver;

use crate::protocol::Block;

/// A block that a device can access.
///
/// # Safety
///
/// At [`address`](Self::address) begin as many bytes of memory as [`bytes`](Block::bytes) has. The
/// memory stays there until the block is dropped, even if the block is moved. Until then nobody
/// accesses it without owning or borrowing the block.
pub(crate) unsafe trait DeviceBlock: Block + 'static {
    /// The address of the first byte.
    fn address(&self) -> *mut u8;

    /// The local key of the memory region; `None` if the memory is not registered.
    fn lkey(&self) -> Option<u32>;

    /// The local key for a device of the connection, by its index; that of device 0 is
    /// [`lkey`](Self::lkey).
    #[allow(dead_code, reason = "for connections over several devices")]
    fn lkey_of(&self, device: usize) -> Option<u32> {
        if device == 0 { self.lkey() } else { None }
    }
}
