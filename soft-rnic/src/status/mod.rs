//! Statistics: what a process has open, and which paths its payload takes.
//!
//! [`statistics`](crate::statistics) tells it of this process, [`processes`] of all processes of this user that others can
//! reach: those that have, or had, a queue pair on a device that is still open. `soft-rnic status` prints it.

mod ask;
mod packet;

use std::borrow::Cow;

use rdma_mummy_sys::types::{ibv_qp_state, ibv_qp_type};

pub use ask::{NoAnswer, Process, processes};
pub(crate) use packet::{STATUS_VERSION, decode, encode};

use crate::config::Mode;

/// What a process has open, and what it has sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// When its work is done.
    pub mode: Mode,
    /// The devices that it has open.
    pub devices: Vec<OpenDevice>,
    /// Its queue pairs, counted by type and state.
    pub queue_pairs: Vec<QueuePairs>,
    /// Its shared receive queues.
    pub shared_receive_queues: u32,
    /// Its completion queues.
    pub completion_queues: u32,
    /// Its memory regions.
    pub regions: Regions,
    /// Its identifiers of the connection manager.
    pub identifiers: Identifiers,
    /// What it has sent (and read) itself, by the process at the other end; to itself first. What another process
    /// moved is in that process's statistics.
    pub peers: Vec<Peer>,
    /// Peers that had no room in an answer from another process.
    pub more_peers: u32,
    /// What it has sent to processes that have ended since.
    pub former: Traffic,
}

/// A device that is open.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OpenDevice {
    /// `soft0`, and so on.
    pub name: String,
    /// How many times it is open.
    pub contexts: u32,
}

/// Queue pairs of one type in one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueuePairs {
    /// Their type.
    pub qp_type: ibv_qp_type,
    /// Their state.
    pub state: ibv_qp_state,
    /// How many.
    pub count: u32,
}

impl QueuePairs {
    /// The type's name, as `RC`.
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

    /// The state's name, as `RTS`.
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

/// Memory regions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Regions {
    /// How many.
    pub count: u32,
    /// Their bytes in all; what two regions share counts twice.
    pub bytes: u64,
}

/// Identifiers of the connection manager (`rdma_cm_id`), with those of connection requests that nobody has taken yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Identifiers {
    /// How many.
    pub count: u32,
    /// Those of them that listen.
    pub listening: u32,
    /// Those of them whose connection is established.
    pub connected: u32,
}

/// Whom payload goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Peer {
    /// Its process number, as the sender sees it; `None` if it has none there (it lives in another pid namespace).
    pub pid: Option<u32>,
    /// What has gone there.
    pub traffic: Traffic,
}

/// Messages and bytes by the path that they took. A message whose pieces took several counts for the slowest; one
/// without payload takes none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Traffic {
    /// Within the process.
    pub own: Moved,
    /// Short messages, which lie in the receive's slot.
    pub slot: Moved,
    /// Copied into, or out of, memory that both processes map.
    pub direct: Moved,
    /// `process_vm_writev` and `process_vm_readv`.
    pub vm: Moved,
    /// Copied by the service thread of the process whose memory it is.
    pub call: Moved,
    /// System calls that have moved `vm`: fewer than messages where a list was moved in one.
    pub vm_calls: u64,
}

/// What has gone one way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Moved {
    /// Requests with payload.
    pub messages: u64,
    /// Their bytes.
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
