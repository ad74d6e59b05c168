//! The sans-I/O protocol of one connection: framing, credits, rendezvous, keepalive and closing.
//!
//! A driver owns the link. After every call of the program and every batch of completions it takes
//! one *turn*, in this order:
//!
//! 1. Hand in completions: [`ProtocolMachine::received`] for each frame, or
//!    [`ProtocolMachine::received_for`] while a call waits, or if the header was in immediate data;
//!    and [`ProtocolMachine::done`] for each [`CompletedTransmit`] that its [`PostedSends`]
//!    returns.
//! 2. Post receives: [`ProtocolMachine::slots_wanted`] blocks, as far as the pool has them, and
//!    report them by [`ProtocolMachine::slots_posted`]. Before the peer may send its first frame,
//!    all receives that the handshake granted must be posted: the `rx_slots`, or `first_slots`.
//!    Later ones may be posted as room permits, but posting that many must always be possible.
//! 3. Call [`ProtocolMachine::transmit`] until it returns `None`, and post each item in that order.
//!    Fetch one item ahead of posting, because the last one of the turn must be signaled
//!    ([`PostedSends::push`]).
//! 4. Call [`ProtocolMachine::take_event`] until `None`; [`ProtocolMachine::readable`] and
//!    [`ProtocolMachine::writable`] then tell whom to wake.
//! 5. Call [`ProtocolMachine::tick`] when [`ProtocolMachine::next_deadline`] is reached, and once
//!    at the start.
//!
//! A turn that could not get a block (`transmit` returned `None` for lack of memory, or a receive
//! could not be posted) must be repeated when the pool has memory:
//! [`ProtocolMachine::wants_memory`] and `slots_wanted` tell.
//!
//! At the end: after [`ConnectionEvent::Closed`] the link can be closed at once. After
//! [`ConnectionEvent::Failed`] the driver transmits the rest (a RESET) and moves its queue pair to
//! the error state. With all completions in, it hands in the result of [`PostedSends::drain`] and
//! calls [`ProtocolMachine::drained`], which returns every block that the program has lent. Only
//! then may the connection be dropped, because until then the device or the peer may still read its
//! blocks.
//!
//! The same holds for TCP, without slots: `slots_wanted` is 0 if nothing more should be read from
//! the socket for now, else not 0. [`ProtocolMachine::frame_len`] gives the frame's length from its
//! header, before a block is taken for it.

#![forbid(unsafe_code)]

pub(crate) mod block;
mod call_buffer;
mod close;
pub(crate) mod copying;
mod credit;
pub(crate) mod failure;
pub(crate) mod frame;
#[cfg(any(test, fuzzing))]
pub(crate) mod hostile;
mod incoming;
mod keepalive;
mod ledger;
mod machine;
mod outgoing;
pub(crate) mod pieces;
mod posted_sends;
pub(crate) mod setup;
mod transmit_item;

#[cfg(test)]
mod tests;

// Drivers without a device, and tests, use some of these only.
#[allow(unused_imports)]
pub(crate) use self::{
    block::{Block, Blocks, DEVICES_MAX, Purpose, RemoteAddress, RemoteKeys, Segment},
    call_buffer::CallBuffer,
    credit::FIRST_SLOTS_MIN,
    failure::{Blocked, CallError, FailureCause, InvalidSetup, ProtocolError},
    incoming::{Chunk, ReadRequest, ReceivedPart},
    ledger::{Lease, Ledger},
    machine::{ConnectionCounters, ConnectionEvent, ProtocolMachine, SMALL_FRAME},
    pieces::{BlockPiece, BlockPieces, BlockShare, PieceOwner, Ticket},
    posted_sends::{CompletedTransmit, PostedSends},
    setup::{ConnectionKind, ConnectionSetup, GATHER_MAX, Keepalive, Limits, LinkType},
    transmit_item::{Frame, TransmitItem},
};
