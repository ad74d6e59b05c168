//! The terms of one side of a handshake, from its configuration.

use std::time::Duration;

use crate::config::Config;
use crate::config::environment::TRANSPORT;
use crate::handshake::HandshakeError;
use crate::protocol::FIRST_SLOTS_MIN;
use crate::wire::{Cause, Features, Kind, Limits, MINOR, Policy, Unavailable};

/// The terms that one side sends.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    /// Streams or messages.
    pub(crate) kind: Kind,
    /// A server takes the client's kind instead.
    pub(crate) takes_either_kind: bool,
    /// Whether RDMA may, must or must not be used.
    pub(crate) policy: Policy,
    /// The supported features.
    pub(crate) features: Features,
    /// The limits of this side.
    pub(crate) limits: Limits,
    /// The initial receive slots. `None` grants all.
    pub(crate) first_slots: Option<u32>,
    /// The devices of this side, if several.
    pub(crate) devices: Option<u8>,
    /// The bytes for the peer's program.
    pub(crate) user_data: Vec<u8>,
    /// The time limit of the probe.
    pub(crate) probe_timeout: Duration,
    /// The time limit of the handshake.
    pub(crate) deadline: Duration,
    /// The minor version, which tests change.
    pub(crate) minor: u8,
}

impl Terms {
    /// Checks the peer's kind, or takes it.
    pub(super) fn agree_on_kind(&mut self, peer: Kind) -> Result<(), HandshakeError> {
        if self.takes_either_kind {
            self.kind = peer;
        }
        let own = self.kind;
        if own == peer { Ok(()) } else { Err(HandshakeError::Kind { own, peer }) }
    }
}

impl Config {
    /// The terms of this configuration.
    pub(crate) fn terms(&self, kind: Kind) -> Terms {
        let mut features =
            Features::WINDOWS.with(Features::ATTEND).with(Features::ANNOUNCE).with(Features::ACKNOWLEDGE);
        for (wanted, feature) in [
            (self.rendezvous, Features::READ),
            (self.coalescing, Features::COALESCE),
            (self.immediate, Features::IMMEDIATE),
            (self.srq, Features::SHARED_RECEIVE),
            (self.control_keepalive.is_some(), Features::KEEP),
        ] {
            if wanted {
                features = features.with(feature);
            }
        }
        Terms {
            kind,
            takes_either_kind: false,
            policy: self.policy,
            features,
            limits: self.limits(),
            first_slots: self.srq.then_some(FIRST_SLOTS_MIN),
            devices: None,
            user_data: self.user_data.clone(),
            probe_timeout: self.probe_timeout,
            deadline: self.handshake_deadline,
            minor: MINOR,
        }
    }

    /// The limits of this configuration.
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

    /// Why RDMA is not tried.
    pub(crate) fn without_rdma(&self) -> Option<Unavailable> {
        if self.policy == Policy::TcpOnly {
            let detail = if self.policy_of_environment { format!("{TRANSPORT}=tcp") } else { String::new() };
            return Some(Unavailable::new(Cause::TcpOnly, detail));
        }
        (!cfg!(feature = "rdma")).then(|| Unavailable::new(Cause::BuiltWithout, ""))
    }
}
