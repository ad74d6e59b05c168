//! Rails: the queue pairs of one connection, each between two devices.
//!
//! [`engine::Rails`] is a layer between the protocol of a connection and a driver with several
//! queue pairs. Like the protocol it does no input or output, and gets the time from its caller.
//!
//! - Each request goes over the rail that would complete it first ([`load`]).
//! - A received frame waits until those before it have arrived over the other rails ([`order`]).
//! - A sent frame is kept until the peer's process has counted it ([`sent`]), because a device that
//!   has acknowledged it may die before that.
//! - When a rail fails, each side moves its queue pair to the error state, and says over another
//!   rail how many SENDs have arrived. Only then does the other side repeat the rest. A queue pair
//!   delivers in order, so that this number says which have arrived, and none arrives twice.
//! - A READ is repeated once its queue pair was stopped. If the device has not returned the block,
//!   the READ gets another one.
//! - A rail comes back with a new queue pair and a proven path, after a time that grows with its
//!   failures ([`backoff`]).
//!
//! The messages for that are in [`message`]. They are not part of the connection's sequence of
//! frames, and use additional receives.

#![forbid(unsafe_code)]

mod backoff;
mod engine;
mod load;
mod message;
mod order;
mod rail;
mod sent;

pub(crate) use self::engine::moving::RailItem;
pub(crate) use self::engine::{PeerOffer, RailCommand, RailCounters, Rails, RailsSetup};
pub(crate) use self::rail::RailCause;
#[cfg(test)]
pub(crate) use self::rail::RailState;
