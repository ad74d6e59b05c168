//! The types that a program uses: sockets ([`Stream`], [`SeqPacket`]), listeners ([`Listener`]), and many of both on one thread
//! ([`Worker`]). What they share is in [`session`](crate::session).

mod common;
mod connect;
mod listener;
mod seq_packet;
mod stream;
mod worker;

pub use listener::{Incoming, Listener};
pub use seq_packet::SeqPacket;
pub use stream::Stream;
pub use worker::{Event, Key, Worker};
