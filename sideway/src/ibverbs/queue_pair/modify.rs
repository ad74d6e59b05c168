//! Diagnosis of a failed `ibv_modify_qp`: which attribute, value or route is wrong.

use std::io;

use super::state::{Transition, transition};
use super::{QueuePairAttribute, QueuePairAttributeMask, QueuePairCapability, QueuePairState, QueuePairType};
use crate::error::Error;
use crate::ibverbs::Unsupported;
use crate::ibverbs::address::Gid;
use crate::ibverbs::device_attr::DeviceCapabilityFlags;
use crate::ibverbs::device_context::DeviceContext;

/// A queue pair could not be modified.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModifyQueuePairError {
    /// Attributes were set that this change of state does not take, or needed ones were not set.
    #[error(
        "cannot modify the queue pair from {cur_state:?} to {next_state:?}: {}",
        Diagnosis { invalid: *.invalid, needed: *.needed }
    )]
    InvalidAttributeMask {
        /// The state that the queue pair is in.
        cur_state: QueuePairState,
        /// The state that it was to go to.
        next_state: QueuePairState,
        /// Set, but not allowed.
        invalid: QueuePairAttributeMask,
        /// Needed, but not set.
        needed: QueuePairAttributeMask,
        /// The error number of `ibv_modify_qp`.
        source: io::Error,
    },
    /// A queue pair cannot go from the one state to the other.
    #[error("a queue pair cannot go from {cur_state:?} to {next_state:?} ({source})")]
    InvalidTransition {
        /// The state that the queue pair is in.
        cur_state: QueuePairState,
        /// The state that it was to go to.
        next_state: QueuePairState,
        /// The error number of `ibv_modify_qp`.
        source: io::Error,
    },
    /// The peer's address was not resolved in time.
    #[error(
        "no answer while resolving a route from local GID index {sgid_index} to {gid} ({source}): check that the \
         peer is up and that both GIDs are on the same network (`show_gids`); link-local ones often are not"
    )]
    ResolveRouteTimedout {
        /// The index of the local GID.
        sgid_index: u8,
        /// The peer's GID.
        gid: Gid,
        /// The error number of `ibv_modify_qp`.
        source: io::Error,
    },
    /// There is no route to the peer's address.
    #[error(
        "no route from local GID index {sgid_index} to {gid} ({source}): check the routing table, and choose a \
         GID of the peer's address family and network (`show_gids`)"
    )]
    NetworkUnreachable {
        /// The index of the local GID.
        sgid_index: u8,
        /// The peer's GID.
        gid: Gid,
        /// The error number of `ibv_modify_qp`.
        source: io::Error,
    },
    /// The device does not have what an attribute asks for.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// The connection manager has no attributes for the state
    /// ([`Identifier::modify_qp`](crate::rdmacm::Identifier::modify_qp)).
    #[error(transparent)]
    Identifier(#[from] Error),
    /// Less than the pair was made with: its handles rely on that.
    #[error("a queue pair that was made with {granted:?} is not made smaller, to {asked:?}")]
    CapabilityShrinks {
        /// What the pair was made with.
        granted: QueuePairCapability,
        /// The capability that was asked for.
        asked: QueuePairCapability,
    },
    /// A value beyond what the attribute can have.
    #[error("{attribute:?} is {value}, and can be {limit} at most ({source})")]
    ValueOutOfRange {
        /// The attribute whose value is too high.
        attribute: QueuePairAttributeMask,
        /// What it was to be.
        value: u32,
        /// What it can be.
        limit: u32,
        /// The error number of `ibv_modify_qp`.
        source: io::Error,
    },
    /// The library refused for another reason: a value that the device does not take, for instance.
    #[error("ibv_modify_qp failed with {mask:?} in state {cur_state:?}: {source}")]
    Ibverbs {
        /// The state that the queue pair is in.
        cur_state: QueuePairState,
        /// What was set.
        mask: QueuePairAttributeMask,
        /// The error number of `ibv_modify_qp`.
        source: io::Error,
    },
}

/// [`ModifyQueuePairError`], which has these variants itself.
#[deprecated(note = "use `ModifyQueuePairError`")]
pub type ModifyQueuePairErrorKind = ModifyQueuePairError;

impl ModifyQueuePairError {
    /// Finds the reason after `ibv_modify_qp` failed.
    #[cold]
    pub(super) fn diagnose(
        qp_type: QueuePairType,
        cur_state: QueuePairState,
        attr: &QueuePairAttribute,
        source: io::Error,
    ) -> Self {
        let mask = attr.mask();
        let next_state = attr.state().unwrap_or(cur_state);
        match source.raw_os_error() {
            // If the pair's state is not known, no transition can be blamed.
            Some(libc::EINVAL) if cur_state == QueuePairState::Unknown => {
                Self::Ibverbs { cur_state, mask, source }
            }
            Some(libc::EINVAL) => match transition(qp_type, cur_state, next_state) {
                None => Self::InvalidTransition { cur_state, next_state, source },
                Some(Transition { required, optional }) => {
                    let invalid = mask - required - optional - QueuePairAttributeMask::State;
                    let needed = required - mask;
                    if invalid.is_empty() && needed.is_empty() {
                        return Self::of_value(attr, cur_state, source);
                    }
                    Self::InvalidAttributeMask { cur_state, next_state, invalid, needed, source }
                }
            },
            Some(errno @ (libc::ETIMEDOUT | libc::ENETUNREACH | libc::EHOSTUNREACH)) => {
                let address = attr.address_vector().unwrap_or_default();
                let sgid_index = address.grh_src_gid_index().unwrap_or(0);
                let gid = address.grh_dest_gid().unwrap_or(Gid::ZERO);
                if errno == libc::ETIMEDOUT {
                    Self::ResolveRouteTimedout { sgid_index, gid, source }
                } else {
                    Self::NetworkUnreachable { sgid_index, gid, source }
                }
            }
            _ => Self::Ibverbs { cur_state, mask, source },
        }
    }
}

impl ModifyQueuePairError {
    /// Finds a value that no device accepts (`man ibv_modify_qp`; IBTA, the fields of packets), if
    /// there is one.
    fn of_value(attr: &QueuePairAttribute, cur_state: QueuePairState, source: io::Error) -> Self {
        use QueuePairAttributeMask as M;
        const PSN: u32 = 0xff_ffff;
        let raw = attr.raw();
        let limits = [
            (M::Timeout, raw.timeout.into(), 31),
            (M::RetryCount, raw.retry_cnt.into(), 7),
            (M::ResponderNotReadyRetryCount, raw.rnr_retry.into(), 7),
            (M::MinResponderNotReadyTimer, raw.min_rnr_timer.into(), 31),
            (M::DestinationQueuePairNumber, raw.dest_qp_num, PSN),
            (M::ReceiveQueuePacketSequenceNumber, raw.rq_psn, PSN),
            (M::SendQueuePacketSequenceNumber, raw.sq_psn, PSN),
            (M::AlternatePath, raw.alt_timeout.into(), 31),
            (M::PathMtu, raw.path_mtu.0, 5),
        ];
        let mask = attr.mask();
        match limits.into_iter().find(|(which, value, limit)| mask.contains(*which) && value > limit) {
            Some((attribute, value, limit)) => Self::ValueOutOfRange { attribute, value, limit, source },
            None => Self::Ibverbs { cur_state, mask, source },
        }
    }

    /// The capability that the device lacks for the change, if that is why it failed. The library's
    /// error number shows it. Otherwise the device's capabilities do, because kernels return
    /// `EINVAL` for attributes that no transition has.
    #[cold]
    pub(super) fn lacking(
        context: &DeviceContext,
        attr: &QueuePairAttribute,
        source: &io::Error,
    ) -> Option<Unsupported> {
        use DeviceCapabilityFlags as D;
        use QueuePairAttributeMask as M;
        let told = Unsupported::is_meant_by(source);
        if !told && source.raw_os_error() != Some(libc::EINVAL) {
            return None;
        }
        let device = context.query_device().ok();
        let flags = device.map_or(D::empty(), |device| D::from_bits_retain(device.device_cap_flags()));
        let paced = device.is_some_and(|device| device.packet_pacing_caps().qp_rate_limit_max != 0);
        let migrates = flags.contains(D::AutomaticPathMigration);
        let found = [
            (M::Capabilities, flags.contains(D::ResizeMaxWr), "resizing of queue pairs"),
            (M::RateLimit, paced, "rate limits (packet pacing)"),
            (M::PathMigrationState, migrates || !told, "automatic path migration"),
            (M::AlternatePath, migrates, "alternate paths"),
        ]
        .into_iter()
        .find(|(attribute, there, _)| attr.mask().contains(*attribute) && !there);
        let capability = found.map(|(.., capability)| capability.to_owned());
        let capability = capability.or_else(|| told.then(|| format!("change of {:?}", attr.mask())))?;
        Some(Unsupported::new(context, "ibv_modify_qp", capability))
    }
}

/// The remedy for a wrong mask: attributes to remove and to add.
struct Diagnosis {
    invalid: QueuePairAttributeMask,
    needed: QueuePairAttributeMask,
}

impl std::fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if !self.needed.is_empty() {
            write!(f, "set {:?}", self.needed)?;
        }
        if !self.invalid.is_empty() {
            let and = if self.needed.is_empty() { "" } else { " and " };
            write!(f, "{and}do not set {:?}", self.invalid)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ibverbs::address::AddressHandleAttribute;

    fn einval() -> io::Error {
        io::Error::from_raw_os_error(libc::EINVAL)
    }

    /// The first of the two error examples of the project's seed, word for word.
    #[test]
    fn a_wrong_mask_names_what_is_invalid_and_what_is_needed() {
        let mut attr = QueuePairAttribute::new();
        attr.setup_state(QueuePairState::ReadyToReceive)
            .setup_path_mtu(crate::ibverbs::port::Mtu::Mtu1024)
            .setup_dest_qp_num(1)
            .setup_rq_psn(1)
            .setup_port(1)
            .setup_address_vector(&AddressHandleAttribute::new());
        let rc = QueuePairType::ReliableConnection;
        let error = ModifyQueuePairError::diagnose(rc, QueuePairState::Init, &attr, einval());
        assert_eq!(
            format!("{error:?}"),
            "InvalidAttributeMask { cur_state: Init, next_state: ReadyToReceive, \
             invalid: QueuePairAttributeMask[Port], \
             needed: QueuePairAttributeMask[MinResponderNotReadyTimer, MaxDestinationReadAtomic], \
             source: Os { code: 22, kind: InvalidInput, message: \"Invalid argument\" } }"
        );
        assert_eq!(
            error.to_string(),
            "cannot modify the queue pair from Init to ReadyToReceive: set \
             QueuePairAttributeMask[MinResponderNotReadyTimer, MaxDestinationReadAtomic] and do not set \
             QueuePairAttributeMask[Port]"
        );
    }

    /// The second error example of the seed.
    #[test]
    fn a_route_that_times_out_names_both_ends() {
        let mut address = AddressHandleAttribute::new();
        let gid: Gid = "fe80:0000:0000:0000:fc6b:02ff:fea7:d4bf".parse().unwrap();
        address.setup_grh_dest_gid(&gid).setup_grh_src_gid_index(0);
        let mut attr = QueuePairAttribute::new();
        attr.setup_state(QueuePairState::ReadyToReceive).setup_address_vector(&address);
        let source = io::Error::from_raw_os_error(libc::ETIMEDOUT);
        let rc = QueuePairType::ReliableConnection;
        let error = ModifyQueuePairError::diagnose(rc, QueuePairState::Init, &attr, source);
        assert_eq!(
            format!("{error:?}"),
            "ResolveRouteTimedout { sgid_index: 0, gid: Gid { raw: [254, 128, 0, 0, 0, 0, 0, 0, 252, 107, 2, \
             255, 254, 167, 212, 191] }, source: Os { code: 110, kind: TimedOut, message: \"Connection timed \
             out\" } }"
        );
    }

    #[test]
    fn impossible_transitions_and_other_failures_are_told_apart() {
        let mut attr = QueuePairAttribute::new();
        attr.setup_state(QueuePairState::ReadyToSend);
        let rc = QueuePairType::ReliableConnection;
        let error = ModifyQueuePairError::diagnose(rc, QueuePairState::Reset, &attr, einval());
        assert!(matches!(error, ModifyQueuePairError::InvalidTransition { .. }), "{error:?}");
        attr.setup_state(QueuePairState::Error);
        let error = ModifyQueuePairError::diagnose(rc, QueuePairState::ReadyToSend, &attr, einval());
        assert!(matches!(error, ModifyQueuePairError::Ibverbs { .. }), "{error:?}");
        let unreachable = io::Error::from_raw_os_error(libc::ENETUNREACH);
        let error = ModifyQueuePairError::diagnose(rc, QueuePairState::Init, &attr, unreachable);
        assert!(matches!(error, ModifyQueuePairError::NetworkUnreachable { .. }), "{error:?}");
    }
}
