//! The state machine by itself, with a time of its own.

mod addresses;
mod channels;
mod datagrams;
mod kit;
mod local;
mod messages;
mod network;
mod process;
mod random;

pub(super) use random::Random;
