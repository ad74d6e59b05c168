//! The terms of one side of a handshake: what its configuration wants and can take.

use std::time::Duration;

use crate::config::Config;
use crate::config::environment::TRANSPORT;
use crate::protocol::FIRST_SLOTS_MIN;
use crate::wire::{Cause, Features, Kind, Limits, MINOR, Policy, Unavailable};

/// What one side brings to a handshake.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    /// What it wants to carry.
    pub(crate) kind: Kind,
    /// What it wants of RDMA.
    pub(crate) policy: Policy,
    /// What it can do.
    pub(crate) features: Features,
    /// What it can take.
    pub(crate) limits: Limits,
    /// Receive slots that it begins with, if not with all.
    pub(crate) first_slots: Option<u32>,
    /// What its program wants the peer to know.
    pub(crate) user_data: Vec<u8>,
    /// How long the data path may take to prove itself.
    pub(crate) probe_timeout: Duration,
    /// How long everything may take.
    pub(crate) deadline: Duration,
    /// The minor version, which tests change.
    pub(crate) minor: u8,
}

impl Config {
    /// What this side brings to a handshake.
    pub(crate) fn terms(&self, kind: Kind) -> Terms {
        let mut features = Features::WINDOWS;
        for (wanted, feature) in [
            (self.rendezvous, Features::READ),
            (self.coalescing, Features::COALESCE),
            (self.immediate, Features::IMMEDIATE),
            (self.srq, Features::SHARED_RECEIVE),
        ] {
            if wanted {
                features = features.with(feature);
            }
        }
        Terms {
            kind,
            policy: self.policy,
            features,
            limits: self.limits(),
            first_slots: self.srq.then_some(FIRST_SLOTS_MIN),
            user_data: self.user_data.clone(),
            probe_timeout: self.probe_timeout,
            deadline: self.handshake_deadline,
            minor: MINOR,
        }
    }

    /// What this side can take.
    pub(crate) fn limits(&self) -> Limits {
        Limits {
            slot_size: self.slot_size,
            rx_slots: self.rx_slots,
            eager_max: self.eager_max,
            max_rts: self.max_rts,
            rd_atomic_in: self.rd_atomic,
            rd_atomic_out: self.rd_atomic,
            max_msg: self.max_msg,
        }
    }

    /// Why no data path is even looked for, if that is so.
    pub(crate) fn without_rdma(&self) -> Option<Unavailable> {
        if self.policy == Policy::TcpOnly {
            let detail = if self.policy_of_environment { format!("{TRANSPORT}=tcp") } else { String::new() };
            return Some(Unavailable::new(Cause::TcpOnly, detail));
        }
        (!cfg!(feature = "rdma")).then(|| Unavailable::new(Cause::BuiltWithout, ""))
    }
}
