//! The public types: [`Stream`] and [`SeqPacket`], their [`Listener`], and [`Worker`] for many
//! connections on one thread. [`session`](crate::session) has their common parts.

mod any_stream;
mod common;
mod connect;
mod connecting;
mod halves;
mod listener;
mod seq_packet;
mod stream;
mod worker;

pub use any_stream::AnyStream;
pub use connecting::Connecting;
pub use halves::{ReadHalf, RecvHalf, SendHalf, WriteHalf};
pub use listener::{Incoming, IntoIncoming, Listener};
pub use seq_packet::SeqPacket;
pub use stream::Stream;
pub use worker::{Event, Key, Worker, WorkerWaker};
