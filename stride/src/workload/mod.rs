//! Moving messages, and taking the time.
//!
//! The client's side of a workload measures; the server's side answers, which for one-sided operations
//! mostly means to hold still. Nothing in a measured loop allocates or enters the kernel, except that a side
//! which waits long looks whether its peer is still there ([`Watch`]).

mod bandwidth;
mod completion;
mod latency;
mod messages;
mod notes;
mod side;
mod watch;
mod writer;

pub use completion::CompletionError;
use completion::Completions;
pub use messages::Messages;
use notes::Notes;
pub use side::{Side, Workload};
pub use watch::Watch;
use writer::{Channel, Job, Message, Payload, Target, Writer};
