//! The protocol without input or output: one connection, its frames, credits, queues and its end.
//!
//! A driver owns the link. After every call of the program and every batch of completions it takes one *turn*, in this order:
//!
//! 1. what completed: [`ProtocolMachine::received`] for each frame, or [`ProtocolMachine::received_for`] while a call waits, or if its header was in immediate data, [`ProtocolMachine::done`] for each [`CompletedTransmit`] that its [`PostedSends`] gives back;
//! 2. receives: post [`ProtocolMachine::slots_wanted`] blocks, as far as the pool gives them, and say so by [`ProtocolMachine::slots_posted`].
//!    Before the peer may send its first frame, all that the handshake has granted must be posted: the `rx_slots`, or `first_slots`.
//!    Later ones may be posted as there is room, but so many always have to be possible;
//! 3. [`ProtocolMachine::transmit`] until it gives `None`, each to be posted in that order. Pull one ahead of what is posted: the last of the
//!    turn must be signalled ([`PostedSends::push`]);
//! 4. [`ProtocolMachine::take_event`] until `None`; [`ProtocolMachine::readable`] and [`ProtocolMachine::writable`] then tell what to wake;
//! 5. when [`ProtocolMachine::next_deadline`] is reached, [`ProtocolMachine::tick`]. Call `tick` once at the start as well.
//!
//! A turn that could not get a block (`transmit` gave `None` for want of memory, or a receive could not be posted) must be taken again
//! when the pool has memory: [`ProtocolMachine::wants_memory`] and `slots_wanted` tell.
//!
//! The end: after [`ConnectionEvent::Closed`] the link can go at once. After [`ConnectionEvent::Failed`] the driver transmits what is left (a RESET) and
//! brings its queue pair to the error state; with all completions in, it hands in what [`PostedSends::drain`] gives and calls
//! [`ProtocolMachine::drained`], which gives back every block that the program has lent. Only then may the connection be dropped: until then the
//! device, or the peer, may still read its blocks.
//!
//! On TCP the same holds, without slots: `slots_wanted` is 0 when nothing more is to be read from the socket for now, else not 0.
//! [`ProtocolMachine::frame_len`] tells from a header how long the frame is, before a block is taken for it.

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

#[cfg(test)]
mod tests;

// Drivers without a device, and tests, use some of them only.
#[allow(unused_imports)]
pub(crate) use self::{
    block::{Block, Blocks, Purpose, RemoteAddress, Segment},
    call_buffer::CallBuffer,
    credit::FIRST_SLOTS_MIN,
    failure::{Blocked, CallError, FailureCause, InvalidSetup, ProtocolError},
    incoming::{Chunk, ReadRequest, ReceivedPart},
    ledger::{Lease, Ledger},
    machine::{ConnectionCounters, ConnectionEvent, Frame, ProtocolMachine, Ticket, TransmitItem},
    pieces::{BlockPiece, BlockPieces, BlockShare},
    posted_sends::{CompletedTransmit, PostedSends},
    setup::{ConnectionKind, ConnectionSetup, GATHER_MAX, Keepalive, Limits, LinkType},
};
