//! The tests of the examples that run under the standard harness. One program, because each costs
//! seconds to link.

mod common;
mod events;
mod faults;
mod liveness;
mod programs;
mod sockets;
mod threads;
mod unanswered;
