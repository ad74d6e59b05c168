//! `cmtime`: how long the steps of making and ending a connection take.
//!
//! Either side can be rdma-core's program: of releases 52 to 58, where both sides go through the steps together and agree by TCP on
//! when; or of an earlier one, where the server only answers.

pub mod client;
pub mod earlier;
pub mod run;
pub mod server;
pub mod steps;
pub mod sync;

pub use run::{Route, RunContext, StepOptions};
pub use sync::Sync;
