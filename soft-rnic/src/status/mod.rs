//! Statistics of a process: its open objects, and the paths that its payload takes.
//!
//! [`statistics`](crate::statistics) returns those of this process. [`processes`] asks all
//! reachable processes of this user: those that have, or had, a queue pair on a device that is
//! still open. `soft-rnic status` prints the answers.

mod ask;
mod packet;
mod unanswered;

use std::borrow::Cow;

use rdma_mummy_sys::types::{ibv_qp_state, ibv_qp_type};

pub use ask::{NoAnswer, Process, processes};
pub(crate) use packet::{STATUS_VERSION, decode, encode};
pub use unanswered::{Unanswered, unanswered};

use crate::config::Mode;

/// The open objects of a process, and what it has sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// When the process executes posted requests.
    pub mode: Mode,
    /// The devices that it has open.
    pub devices: Vec<OpenDevice>,
    /// Its queue pairs, counted by type and state.
    pub queue_pairs: Vec<QueuePairs>,
    /// How many shared receive queues it has.
    pub shared_receive_queues: u32,
    /// How many completion queues it has.
    pub completion_queues: u32,
    /// Its memory regions.
    pub regions: Regions,
    /// Its connection manager identifiers.
    pub identifiers: Identifiers,
    /// The messages that it has moved itself (sent and read), by the process at the other end, with
    /// the messages to itself first. Messages that another process moved are in the statistics of
    /// that process.
    pub peers: Vec<Peer>,
    /// How many peers did not fit into an answer from another process.
    pub more_peers: u32,
    /// The messages that it has moved to or from processes that have exited since.
    pub former: Traffic,
}

/// A device of which the process has open contexts.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OpenDevice {
    /// `soft0`, `soft1`, and so on.
    pub name: String,
    /// How many contexts of it are open.
    pub contexts: u32,
}

/// Queue pairs of one type in one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueuePairs {
    /// The type that all of them have.
    pub qp_type: ibv_qp_type,
    /// The state that all of them are in.
    pub state: ibv_qp_state,
    /// How many queue pairs have this type and state.
    pub count: u32,
}

impl QueuePairs {
    /// The abbreviation of the type, for example `RC`.
    pub fn type_name(&self) -> Cow<'static, str> {
        Cow::Borrowed(match self.qp_type {
            ibv_qp_type::IBV_QPT_RC => "RC",
            ibv_qp_type::IBV_QPT_UC => "UC",
            ibv_qp_type::IBV_QPT_UD => "UD",
            ibv_qp_type::IBV_QPT_XRC_SEND => "XRC_SEND",
            ibv_qp_type::IBV_QPT_XRC_RECV => "XRC_RECV",
            other => return Cow::Owned(format!("type {}", other.0)),
        })
    }

    /// The abbreviation of the state, for example `RTS`.
    pub fn state_name(&self) -> Cow<'static, str> {
        Cow::Borrowed(match self.state {
            ibv_qp_state::IBV_QPS_RESET => "RESET",
            ibv_qp_state::IBV_QPS_INIT => "INIT",
            ibv_qp_state::IBV_QPS_RTR => "RTR",
            ibv_qp_state::IBV_QPS_RTS => "RTS",
            ibv_qp_state::IBV_QPS_SQD => "SQD",
            ibv_qp_state::IBV_QPS_SQE => "SQE",
            ibv_qp_state::IBV_QPS_ERR => "ERR",
            other => return Cow::Owned(format!("state {}", other.0)),
        })
    }
}

/// Counts of memory regions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Regions {
    /// The number of regions.
    pub count: u32,
    /// Their total length in bytes. Bytes that two regions share count twice.
    pub bytes: u64,
}

/// Counts of connection manager identifiers (`rdma_cm_id`), including connection requests that the
/// program has not taken yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Identifiers {
    /// The number of identifiers.
    pub count: u32,
    /// How many of them listen.
    pub listening: u32,
    /// How many of them have an established connection.
    pub connected: u32,
}

/// A process that messages went to or came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Peer {
    /// Its process number in the pid namespace of the sender; `None` if it lives in another one.
    pub pid: Option<u32>,
    /// The messages to and from this process.
    pub traffic: Traffic,
}

/// Messages and bytes by the path that they took. A message whose pieces took several paths counts
/// for the slowest one; a message without payload is not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Traffic {
    /// Copied within the process.
    pub own: Moved,
    /// Short messages that travel in the slot of the receive.
    pub slot: Moved,
    /// Copied to or from memory that both processes map.
    pub direct: Moved,
    /// Copied by the kernel (`process_vm_writev` and `process_vm_readv`).
    pub vm: Moved,
    /// Copied by the service thread of the process that owns the memory.
    pub call: Moved,
    /// The number of system calls that moved `vm`. It is lower than the number of messages if one
    /// call moved several.
    pub vm_calls: u64,
}

/// Messages that took one path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Moved {
    /// The number of requests with payload.
    pub messages: u64,
    /// The total payload of those requests in bytes.
    pub bytes: u64,
}

impl Traffic {
    /// The paths by name, the fastest first.
    pub fn paths(&self) -> [(&'static str, Moved); 5] {
        [
            ("self", self.own),
            ("slot", self.slot),
            ("direct", self.direct),
            ("process_vm", self.vm),
            ("call", self.call),
        ]
    }

    pub(crate) fn add(&mut self, other: &Self) {
        for (sum, more) in [
            (&mut self.own, other.own),
            (&mut self.slot, other.slot),
            (&mut self.direct, other.direct),
            (&mut self.vm, other.vm),
            (&mut self.call, other.call),
        ] {
            sum.messages = sum.messages.wrapping_add(more.messages);
            sum.bytes = sum.bytes.wrapping_add(more.bytes);
        }
        self.vm_calls = self.vm_calls.wrapping_add(other.vm_calls);
    }

    fn messages(&self) -> u64 {
        self.paths().iter().fold(0, |sum, (_, moved)| sum.wrapping_add(moved.messages))
    }
}
