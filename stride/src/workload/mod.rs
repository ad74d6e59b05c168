//! Moving messages, and taking the time.
//!
//! The client's side of a workload measures; the server's side answers, which for one-sided operations
//! mostly means to hold still. Nothing in a measured loop allocates or enters the kernel, except that a side
//! which waits long looks whether its peer is still there ([`Watch`]).

mod bandwidth;
mod chain;
mod channel;
mod completion;
mod device_clock;
mod latency;
mod manager;
mod messages;
mod notes;
mod open_loop;
mod pace;
mod post;
mod progress;
mod request;
mod resources;
mod schedule;
mod side;
mod sleep;
mod stream;
mod team;
mod validate;
mod watch;
mod xrc;

use chain::Chain;
use channel::{Channel, Job, Receiver, Sender};
pub use completion::CompletionError;
use completion::Completions;
pub use manager::{Manager, ManagerError, Meeting};
pub use messages::Messages;
use notes::Notes;
use pace::{Pace, Phase};
pub use progress::{Passed, Progress};
pub use side::{Arrived, Side, Workload};
pub use stream::Stream;
pub use team::{Sides, Team};
pub use validate::ValidationError;
pub use watch::{Outlook, Watch};
pub use xrc::{Target, XrcError};
