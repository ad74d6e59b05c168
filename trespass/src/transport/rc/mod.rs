//! The RDMA transport: frames as SENDs over a reliable connected (RC) queue pair, rendezvous as
//! READs.
//!
//! - [`device`] finds the device, the port and the address for a socket; a device is opened once a process.
//! - [`queue_pair`] is a queue pair, and what was posted to it; [`cq_dispatcher`] is where completions come from, for one pair or for all of a worker's.
//!   With it may be a receive queue that they share: [`shared_recv_queue`] is that queue, a [`Ledger`](crate::protocol::Ledger) says who may use how much of it.
//! - [`path`] makes one, connects it, and proves that data comes through it: what the handshake asks for.
//! - [`cm_queue_pair`] does the same for a connection of the connection manager's.
//! - [`control_channel`] is what a connection began with, and keeps: its end is the peer's end.
//! - [`driver`] turns what the protocol gives into work requests, and completions into what the protocol takes; [`request`] is such a request.
//!
//! # Memory
//!
//! One rule keeps the device from memory that belongs to somebody else: a block that a request names, or a share of it, is moved into the
//! [`queue_pair`]'s queues before the request is posted, and comes out of them only when the request's own completion, or a later one of the same queue,
//! has been polled. Where that never comes the block is forgotten, not freed. A block that several requests send has a
//! [`BlockShare`](crate::protocol::BlockShare) for each, and as long as there is one the block is there, and nobody writes to it.

mod cm_queue_pair;
mod control_channel;
mod cq_dispatcher;
mod device;
mod driver;
mod path;
mod pooled;
mod queue_pair;
mod request;
mod shared_recv_queue;
#[cfg(test)]
mod tests;
mod wr_id;

pub(crate) use cm_queue_pair::CmQueuePair;
pub(crate) use control_channel::CmChannel;
pub(crate) use cq_dispatcher::{CqSlot, WorkCompletion, WorkerCq};
pub(crate) use device::{RdmaDevice, find, named_device};
pub(crate) use driver::RcDriver;
pub(crate) use path::{QpParameters, RcPath};

use crate::protocol::Block;

/// A block that a device can reach.
///
/// # Safety
///
/// From [`address`](Self::address) on there is memory of as many bytes as [`bytes`](Block::bytes) has, at that place until the block is
/// dropped, wherever the block is moved; nobody uses it until then who has neither the block nor a reference to it.
pub(crate) unsafe trait DeviceBlock: Block {
    /// The first byte.
    fn address(&self) -> *mut u8;

    /// The key for requests of this side, if the memory is registered.
    fn lkey(&self) -> Option<u32>;
}
