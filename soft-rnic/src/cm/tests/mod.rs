//! Tests of the state machine alone, with simulated time.

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
