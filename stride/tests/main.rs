//! The integration tests of stride-perf that run under the standard harness. One program, because each costs seconds to link.

mod command_line;
mod common;
mod leaks;
mod messages;
mod parity;
mod ping;
mod results;
mod signals;
mod suite;
mod tcp;
