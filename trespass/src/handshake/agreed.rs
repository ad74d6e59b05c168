//! The result of the negotiation: the features and limits that both sides support, and the
//! protocol's setup from them.

use super::{Attempt, Terms};
use crate::config::Config;
use crate::protocol::{self, ConnectionSetup, Keepalive, LinkType};
use crate::wire::{Features, Hello, Kind, Limits};

/// The terms that both sides agreed on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Agreed {
    /// The attempt, and the role of this side.
    pub(crate) attempt: Attempt,
    /// The minor version that both sides speak.
    pub(crate) minor: u8,
    /// Streams or messages.
    pub(crate) kind: Kind,
    /// The features that both sides support.
    pub(crate) features: Features,
    /// The limits of this side.
    pub(crate) own: Limits,
    /// The limits of the peer, as far as this side uses them.
    pub(crate) peer: Limits,
    /// The initial receive slots of this side, and of the peer.
    pub(crate) first_slots: (u32, u32),
    /// The devices of this side, and of the peer, among which rails connect. 1 and 1 without rails.
    pub(crate) devices: (u8, u8),
    /// The bytes that the peer's program sent, unchecked.
    pub(crate) user_data: Vec<u8>,
}

impl Agreed {
    /// Combines both sides' terms.
    pub(super) fn new(attempt: Attempt, own: &Terms, peer: &Hello, user_data: Vec<u8>) -> Self {
        let mut features = own.features.and(peer.features);
        let used = usable(&own.limits, &peer.limits);
        if reads(&own.limits).min(reads(&used)) == 0 {
            features = features.without(Features::READ);
        }
        // Without ACKNOWLEDGE no frame could be let go of.
        let has_rails = features.has(Features::RAILS.with(Features::ACKNOWLEDGE));
        let devices = own.devices.zip(peer.devices).filter(|_| has_rails);
        if devices.is_none() {
            features = features.without(Features::RAILS);
        }
        // A peer that does not know the feature counts all slots as granted from the start.
        let first = |limits: &Limits, first: Option<u32>| {
            first.filter(|_| features.has(Features::WINDOWS)).unwrap_or(limits.rx_slots)
        };
        Self {
            devices: devices.unwrap_or((1, 1)),
            first_slots: (first(&own.limits, own.first_slots), first(&used, peer.first_slots)),
            attempt,
            minor: own.minor.min(peer.minor),
            kind: own.kind,
            features,
            own: own.limits,
            peer: used,
            user_data,
        }
    }

    /// The protocol's setup. It is valid whatever the peer sent.
    pub(crate) fn setup(&self, config: &Config, link: LinkType) -> ConnectionSetup {
        let kind = match self.kind {
            Kind::Stream => protocol::ConnectionKind::Stream,
            Kind::SeqPacket => protocol::ConnectionKind::SeqPacket,
        };
        ConnectionSetup {
            own: limits(&self.own, self.first_slots.0),
            peer: limits(&self.peer, self.first_slots.1),
            read: link == LinkType::Rc && self.features.has(Features::READ),
            coalesce: self.features.has(Features::COALESCE),
            immediate: self.features.has(Features::IMMEDIATE),
            acknowledge: self.features.has(Features::ACKNOWLEDGE),
            copies: self.features.has(Features::RAILS),
            own_devices: self.devices.0.into(),
            peer_devices: self.devices.1.into(),
            rcvbuf: config.rcvbuf,
            sndbuf: config.sndbuf,
            stage: config.staged_block as usize,
            read_piece: config.read_piece as usize,
            linger: config.linger,
            keepalive: config
                .keepalive
                .filter(|_| link == LinkType::Rc)
                .map(|idle| Keepalive { idle, timeout: idle }),
            ..ConnectionSetup::new(kind, link)
        }
    }
}

/// Lowers the peer's limits to what this side uses. A frame is never longer than this side's slots,
/// because its buffers have that size. The number of rendezvous is at most this side's own limit.
fn usable(own: &Limits, peer: &Limits) -> Limits {
    Limits {
        slot_size: peer.slot_size.min(own.slot_size),
        max_rts: peer.max_rts.min(own.max_rts),
        rd_atomic_in: peer.rd_atomic_in.min(own.rd_atomic_out),
        rd_atomic_out: peer.rd_atomic_out.min(own.rd_atomic_in),
        ..*peer
    }
}

/// READs in flight at a time.
fn reads(limits: &Limits) -> u16 {
    limits.max_rts.min(limits.rd_atomic_in.into()).min(limits.rd_atomic_out.into())
}

fn limits(told: &Limits, first_slots: u32) -> protocol::Limits {
    protocol::Limits {
        slot_size: told.slot_size,
        rx_slots: told.rx_slots,
        first_slots: Some(first_slots),
        eager_max: told.eager_max,
        max_msg: told.max_msg,
        rd_atomic: told.rd_atomic_in.min(told.rd_atomic_out).into(),
        max_rts: told.max_rts.into(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::fake::ATTEMPT;
    use super::*;
    use crate::config::tests::{ALLOWED, build};
    use crate::wire::properties;
    use crate::wire::{Cause, Unavailable};
    use crate::wire::{Policy, Role};

    proptest! {
        /// Any valid HELLO and any valid configuration make a valid setup.
        #[test]
        fn whatever_the_peer_says_the_protocol_takes(
            peer in properties::limits(), features: u64, which in 0..ALLOWED.len(),
        ) {
            let config = build(ALLOWED[which]).expect("allowed");
            for kind in [Kind::Stream, Kind::SeqPacket] {
                let own = config.terms(kind);
                let hello = Hello {
                    first_slots: None,
                    devices: None,
                    minor: 0,
                    features: Features(features),
                    conn_id: ATTEMPT.conn_id,
                    generation: 0,
                    role: Role::Server,
                    kind,
                    policy: Policy::Auto,
                    limits: peer,
                    path: Err(Unavailable::new(Cause::NoDevice, "")),
                    user_data: Vec::new(),
                };
                let agreed = Agreed::new(ATTEMPT, &own, &hello, Vec::new());
                for link in [LinkType::Rc, LinkType::Tcp] {
                    let setup = agreed.setup(&config, link);
                    prop_assert_eq!(setup.check(), Ok(()), "{:?}", setup);
                    prop_assert!(setup.peer.slot_size <= setup.own.slot_size.min(peer.slot_size));
                }
            }
        }
    }

    /// The initial slots count if both sides know the feature. Otherwise all slots are granted.
    #[test]
    fn a_peer_that_knows_no_windows_has_all_receives_from_the_start() {
        let config = build(|b| b.srq(true)).expect("allowed");
        let own = config.terms(Kind::Stream);
        for (knows, expected) in [(true, (5, 7)), (false, (56, 56))] {
            let features = if knows { own.features } else { own.features.without(Features::WINDOWS) };
            let hello = Hello {
                first_slots: Some(7),
                devices: None,
                minor: 0,
                features,
                conn_id: 0,
                generation: 0,
                role: Role::Client,
                kind: Kind::Stream,
                policy: Policy::Auto,
                limits: own.limits,
                path: Err(Unavailable::new(Cause::NoDevice, "")),
                user_data: Vec::new(),
            };
            let agreed = Agreed::new(ATTEMPT, &own, &hello, Vec::new());
            assert_eq!(agreed.first_slots, expected);
            let setup = agreed.setup(&config, LinkType::Rc);
            assert_eq!((setup.own.first_slots, setup.peer.first_slots), (Some(expected.0), Some(expected.1)));
        }
    }

    /// A device that answers no READs gets none.
    #[test]
    fn without_atomics_there_are_no_reads() {
        let config = build(|b| b).expect("allowed");
        let own = config.terms(Kind::Stream);
        let change: [fn(&mut Limits); 4] =
            [|_| {}, |l| l.rd_atomic_in = 0, |l| l.rd_atomic_out = 0, |l| l.max_rts = 0];
        for (index, change) in change.into_iter().enumerate() {
            let mut limits = own.limits;
            change(&mut limits);
            let hello = Hello {
                first_slots: None,
                devices: None,
                minor: 0,
                features: own.features,
                conn_id: 0,
                generation: 0,
                role: Role::Client,
                kind: Kind::Stream,
                policy: Policy::Auto,
                limits,
                path: Err(Unavailable::new(Cause::NoDevice, "")),
                user_data: Vec::new(),
            };
            let agreed = Agreed::new(ATTEMPT, &own, &hello, Vec::new());
            assert_eq!(agreed.features.has(Features::READ), index == 0);
        }
    }
}
