//! Everything that ends a run early.

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
use crate::session::{NoSecretError, PingError};
use crate::suite::SuiteError;
use crate::workload::{CompletionError, ManagerError, ValidationError, XrcError};

/// Why there are no (more) figures. The text is for the user: what was asked for, the limit, the remedy.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
#[non_exhaustive]
pub enum Error {
    /// The test cannot be run.
    Plan(#[from] PlanError),
    /// A figure is expected that there will not be.
    Expectations(#[from] ExpectationsError),
    /// A file of results cannot be written.
    Target(#[from] FilesError),
    /// Some of the results could not be written.
    #[error("{0}")]
    Files(String),
    /// There is no secret, and the user wants one.
    Secret(#[from] NoSecretError),
    /// No ping does that.
    Ping(#[from] PingError),
    /// A suite cannot be run, or not all of it.
    Suite(#[from] SuiteError),
    /// Signals cannot be handled.
    #[error("cannot have signals handled: {0}")]
    Signals(io::Error),
    /// This process was asked to end.
    Interrupted(#[from] Interrupted),
    /// The two sides do not get on.
    Control(#[from] ControlError),
    /// The device or its port is not fit for use.
    Device(#[from] DeviceError),
    /// The devices' provider cannot be had.
    Provider(#[from] ProviderError),
    /// A call of the RDMA library failed; the text names it.
    Verb(#[from] sideway::Error),
    /// There is no such device.
    FindDevice(#[from] FindDeviceError),
    /// The port has no address to use.
    ChoosePath(#[from] ChoosePathError),
    /// No memory.
    Allocation(#[from] AllocationError),
    /// There is no such memory, or its bytes cannot be copied.
    Memory(#[from] MemoryError),
    /// The memory cannot be registered.
    MemoryRegion(#[from] RegisterMemoryRegionError),
    /// No completion queue.
    CompletionQueue(#[from] CreateCompletionQueueError),
    /// No receive queue for all.
    SharedReceiveQueue(#[from] CreateSharedReceiveQueueError),
    /// No queue pair.
    QueuePair(#[from] CreateQueuePairError),
    /// The queue pair cannot be connected.
    Connect(#[from] ConnectError),
    /// There are no extended connections.
    Xrc(#[from] XrcError),
    /// rdma_cm connects no queue pair.
    Manager(#[from] ManagerError),
    /// The device does not take a message.
    PostSend(#[from] PostSendError),
    /// The device does not take a receive.
    PostRecv(#[from] PostRecvError),
    /// The completion queue failed.
    Poll(#[from] PollCompletionQueueError),
    /// The device's clock cannot be read.
    #[error("{0}: leave --clock out, or choose another device with -d")]
    Clock(sideway::Error),
    /// A message was not delivered.
    Completion(#[from] CompletionError),
    /// A message was delivered changed.
    Validation(#[from] ValidationError),
    /// A thread cannot be had.
    Placement(#[from] PlacementError),
    /// There is no such GID index.
    #[error(
        "-x {given} is above the last index that a GID table can have, 255: give one of those that show_gids lists"
    )]
    GidIndex {
        /// What the user gave.
        given: u32,
    },
    /// The server does not measure messages.
    #[error(
        "{server} is stride-perf, but for queue pairs (serve, or another test), which takes no messages: run `stride-perf msg` there"
    )]
    ServesPairs {
        /// Host and port.
        server: String,
    },
    /// No connection of trespass came about.
    #[error(transparent)]
    Messages(io::Error),
    /// Trespass refuses the configuration.
    Config(#[from] trespass::ConfigError),
    /// The table has nowhere to go.
    #[error("cannot write the table to standard output: {0}")]
    Output(#[from] io::Error),
}

impl Error {
    /// Whether the peer knows already that the test is over.
    pub fn is_known_to_peer(&self) -> bool {
        matches!(self, Self::Control(error) if error.is_known_to_peer())
    }

    /// Whether this process was asked to end.
    pub fn interrupted(&self) -> Option<Interrupted> {
        match self {
            Self::Interrupted(interrupted) | Self::Control(ControlError::Interrupted(interrupted)) => {
                Some(*interrupted)
            }
            _ => None,
        }
    }

    /// The text in one line, whatever the libraries below put into theirs.
    pub fn one_line(&self) -> String {
        let text = self.to_string();
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        // What a peer sent may be among them, and is not to move the cursor.
        words.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
    }
}
