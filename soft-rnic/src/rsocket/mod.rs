//! rsocket(7): sockets over the software device.
//!
//! A program calls `rsend` where it would call send(2). Both ends are of this crate, so what they say to each other is their
//! own (`message`), and is said by SENDs with credits (`window`): no message is sent without a receive for it.
//!
//! There is no thread: whoever calls sees to what has happened since (`socket`). What a program does not read stays in its
//! receives, and the other side runs out of credits, as it would with TCP.

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
