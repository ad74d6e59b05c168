//! The integration tests of stride-perf under the standard harness. They share one program, because
//! each program takes seconds to link.

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
