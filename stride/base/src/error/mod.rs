//! The errors that end a run early.

mod session;
mod workload;

use std::io;

use sideway::ibverbs::completion::{CreateCompletionQueueError, PollCompletionQueueError};
use sideway::ibverbs::connect::{ChoosePathError, ConnectError};
use sideway::ibverbs::device::FindDeviceError;
use sideway::ibverbs::memory_region::RegisterMemoryRegionError;
use sideway::ibverbs::queue_pair::{CreateQueuePairError, PostRecvError, PostSendError};
use sideway::ibverbs::srq::CreateSharedReceiveQueueError;
use sideway::provider::ProviderError;

use crate::buffers::AllocationError;
use crate::control::ControlError;
use crate::device::DeviceError;
use crate::interrupt::Interrupted;
use crate::memory::MemoryError;
use crate::placement::PlacementError;
use crate::plan::PlanError;
use crate::report::ExpectationsError;
use crate::result::FilesError;

pub use session::{
    DEEPEST_SUITE, LONGEST_PING_INTERVAL, NoSecretError, PingError, SECRET_VARIABLE, SuiteError,
};
pub use workload::{CmError, CompletionError, ExplainedCompletionError, ValidationError, XrcError};

/// The reason why a run prints no (more) figures. Its text names the value, the limit and the
/// remedy.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
#[non_exhaustive]
pub enum Error {
    /// The test cannot be run as described.
    Plan(#[from] PlanError),
    /// An expectation concerns a figure that the test does not produce.
    Expectations(#[from] ExpectationsError),
    /// A file for results cannot be created.
    Target(#[from] FilesError),
    /// Some results could not be written to their files.
    #[error("{0}")]
    Files(String),
    /// The user asked for a secret that cannot be read.
    Secret(#[from] NoSecretError),
    /// The options do not fit `ping`.
    Ping(#[from] PingError),
    /// A suite cannot be run, or some of its tests failed.
    Suite(#[from] SuiteError),
    /// The system does not let this process handle signals.
    #[error("cannot have signals handled: {0}")]
    Signals(io::Error),
    /// A signal asked this process to end.
    Interrupted(#[from] Interrupted),
    /// The control connection failed, or the peer refused.
    Control(#[from] ControlError),
    /// The device or its port is unsuitable.
    Device(#[from] DeviceError),
    /// The provider of devices cannot be loaded.
    Provider(#[from] ProviderError),
    /// A call of the RDMA library failed; the text names it.
    Verb(#[from] sideway::Error),
    /// No device has the given name.
    FindDevice(#[from] FindDeviceError),
    /// The port has no usable GID.
    ChoosePath(#[from] ChoosePathError),
    /// The system has too little memory.
    Allocation(#[from] AllocationError),
    /// The device or GPU has no such memory, or its bytes cannot be copied.
    Memory(#[from] MemoryError),
    /// The device does not register the memory.
    MemoryRegion(#[from] RegisterMemoryRegionError),
    /// The device creates no completion queue.
    CompletionQueue(#[from] CreateCompletionQueueError),
    /// The device creates no shared receive queue.
    SharedReceiveQueue(#[from] CreateSharedReceiveQueueError),
    /// The device creates no queue pair.
    QueuePair(#[from] CreateQueuePairError),
    /// The queue pair cannot be connected.
    Connect(#[from] ConnectError),
    /// The device does not support extended connections.
    Xrc(#[from] XrcError),
    /// rdma_cm cannot connect the queue pairs.
    Manager(#[from] CmError),
    /// The device refuses a send request.
    PostSend(#[from] PostSendError),
    /// The device refuses a receive.
    PostRecv(#[from] PostRecvError),
    /// Polling the completion queue failed.
    Poll(#[from] PollCompletionQueueError),
    /// The device's clock cannot be read.
    #[error("{0}: leave --clock out, or choose another device with -d")]
    Clock(sideway::Error),
    /// A message completed with an error.
    Completion(#[from] CompletionError),
    /// A message completed with an error, whose cause is known.
    Explained(Box<ExplainedCompletionError>),
    /// A message arrived with different content.
    Validation(#[from] ValidationError),
    /// A thread cannot be started or pinned.
    Placement(#[from] PlacementError),
    /// The GID index exceeds every table.
    #[error(
        "-x {given} is above the last index that a GID table can have, 255: give one of those that show_gids lists"
    )]
    GidIndex {
        /// The index that the user gave.
        given: u32,
    },
    /// The server runs a test of queue pairs, which cannot measure messages.
    #[error(
        "{server} is stride-perf, but for queue pairs (serve, or another test), which takes no messages: run `stride-perf msg` there"
    )]
    ServesPairs {
        /// Host and port.
        server: String,
    },
    /// The sides measure trespass by different types.
    #[error(
        "{server} measures {} and this side {}: give --api mux to both sides or to neither",
        if *.is_mux { "messages" } else { "requests of a mux" },
        if *.is_mux { "requests of a mux" } else { "messages" }
    )]
    OtherApi {
        /// Host and port.
        server: String,
        /// Whether this side has a mux.
        is_mux: bool,
    },
    /// trespass could not connect.
    #[error(transparent)]
    Messages(io::Error),
    /// trespass refuses the configuration.
    Config(#[from] trespass::ConfigError),
    /// Writing the table failed.
    #[error("cannot write the table to standard output: {0}")]
    Output(#[from] io::Error),
}

impl Error {
    /// Whether the peer already knows that the test is over.
    pub fn is_known_to_peer(&self) -> bool {
        matches!(self, Self::Control(error) if error.is_known_to_peer())
    }

    /// The signal that ended this process, if one did.
    pub fn interrupted(&self) -> Option<Interrupted> {
        match self {
            Self::Interrupted(interrupted) | Self::Control(ControlError::Interrupted(interrupted)) => {
                Some(*interrupted)
            }
            _ => None,
        }
    }

    /// The text in one line, even if the library below used several.
    pub fn one_line(&self) -> String {
        let text = self.to_string();
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        // The peer may have sent some of the text, which must not control the terminal.
        words.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
    }
}
