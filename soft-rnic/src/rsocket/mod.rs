//! rsocket(7): sockets over the software device.
//!
//! A program calls `rsend` where it would call send(2). Both ends use this crate, so the wire
//! format is private (`message`). Data travels in SENDs under credit-based flow control (`window`),
//! so that each message finds a posted receive.
//!
//! No thread runs in the background: each call processes the events since the previous call
//! (`socket`). Bytes that the program does not read stay in the receive slots. The other side then
//! runs out of credits, as a TCP sender runs out of window.

mod calls;
mod connect;
mod iomap;
mod message;
mod options;
mod poll;
mod queues;
mod socket;
mod stream;
mod table;
#[cfg(all(test, not(loom)))]
mod tests;
mod transfer;
mod variadic;
mod wait;
mod window;

pub use calls::rfcntl;
use rdma_mummy_sys::RdmaCm;

/// Puts the functions into the table of librdmacm.
pub(crate) const fn add_to(table: RdmaCm) -> RdmaCm {
    variadic::add_to(calls::add_to(table))
}
