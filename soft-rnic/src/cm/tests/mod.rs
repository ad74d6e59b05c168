//! Tests state machine the switch alone, with simulated time.

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
