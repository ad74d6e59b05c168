//! The measured loops: moving messages and taking times.
//!
//! The client's side of a workload measures; the server's side answers, which for one-sided
//! operations mostly means to do nothing. Code in a measured loop neither allocates nor enters the
//! kernel, except that a side which waits long checks whether its peer still lives ([`Watch`]).

#![deny(unsafe_code)]

mod bandwidth;
mod chain;
mod channel;
mod cm_connector;
mod completion;
mod device_clock;
mod latency;
mod messages;
mod mux_requests;
mod open_loop;
mod phase_clock;
mod post;
mod request;
mod resources;
mod sample_times;
mod schedule;
mod side;
mod sleep;
mod tcp_messages;
mod threads;
mod validate;
mod watch;
mod xrc;

use chain::Chain;
use channel::{MeasuredLoop, Receiver, Sender, TestChannel};
pub use cm_connector::CmConnector;
use completion::{AnyCompletions, Completions};
pub use messages::Messages;
use phase_clock::{PhaseClock, TestPhase};
use sample_times::SampleTimes;
pub use side::{MessageCounts, UnconnectedSide, Workload};
pub use stride_base::progress::{TestProgress, ThreadProgress};
pub use tcp_messages::TcpMessages;
pub use threads::{MeasuringThreads, UnconnectedSides};
pub use watch::{PeerWatch, Watch};
