//! `cmtime`: the time of each step of opening and closing a connection.
//!
//! Either side can be rdma-core's program. In releases 52 to 58 both sides synchronise by TCP
//! before each step; in earlier releases the server only answers.

pub mod client;
pub mod earlier;
pub mod run;
pub mod server;
pub mod steps;
pub mod sync;

pub use run::{Route, RunContext, StepOptions};
pub use sync::Sync;
