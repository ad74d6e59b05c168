//! Queue pair states and types, and the tables of attributes that each change of state requires and
//! allows.

use rdma_mummy_sys::types::ibv_qp_state as S;

use super::QueuePairAttributeMask as M;
use crate::ibverbs::types::QueuePairType;

c_enum! {
    /// The state of a queue pair (`ibv_qp_state`).
    pub struct QueuePairState(u32) {
        /// New, or reset.
        Reset = S::IBV_QPS_RESET.0,
        /// Receives can be posted.
        Init = S::IBV_QPS_INIT.0,
        /// The pair processes incoming packets.
        ReadyToReceive = S::IBV_QPS_RTR.0,
        /// Fully operational.
        ReadyToSend = S::IBV_QPS_RTS.0,
        /// The send queue stops after the requests in progress.
        SendQueueDrained = S::IBV_QPS_SQD.0,
        /// The send queue stopped after an error (UC and UD).
        SendQueueError = S::IBV_QPS_SQE.0,
        /// All posted requests are flushed.
        Error = S::IBV_QPS_ERR.0,
        /// The state is not known.
        Unknown = S::IBV_QPS_UNKNOWN.0,
    }
}

display_as_debug!(QueuePairState);

/// The attributes that a change of state requires and allows, in addition to the state itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Transition {
    pub(super) required: M,
    pub(super) optional: M,
}

/// The union of masks, usable in a constant table.
const fn all(masks: &[M]) -> M {
    let mut bits = 0;
    let mut n = 0;
    while n < masks.len() {
        bits |= masks[n].bits();
        n += 1;
    }
    M::from_bits_retain(bits)
}

const NONE: M = M::empty();
const CONNECTED_INIT: M = all(&[M::PartitionKeyIndex, M::Port, M::AccessFlags]);
const DATAGRAM_INIT: M = all(&[M::PartitionKeyIndex, M::Port, M::QueueKey]);
const UC_TO_RTR: M =
    all(&[M::AddressVector, M::PathMtu, M::DestinationQueuePairNumber, M::ReceiveQueuePacketSequenceNumber]);
const RC_TO_RTR: M = all(&[UC_TO_RTR, M::MaxDestinationReadAtomic, M::MinResponderNotReadyTimer]);
const RC_TO_RTS: M = all(&[
    M::Timeout,
    M::RetryCount,
    M::ResponderNotReadyRetryCount,
    M::SendQueuePacketSequenceNumber,
    M::MaxReadAtomic,
]);
const UC_IN_RTS: M = all(&[M::CurrentState, M::AlternatePath, M::AccessFlags, M::PathMigrationState]);
const RC_IN_RTS: M = all(&[UC_IN_RTS, M::MinResponderNotReadyTimer]);
const UD_IN_RTS: M = all(&[M::CurrentState, M::QueueKey]);
const UC_IN_SQD: M =
    all(&[M::AddressVector, M::AlternatePath, M::AccessFlags, M::PartitionKeyIndex, M::PathMigrationState]);
const RC_IN_SQD: M = all(&[
    UC_IN_SQD,
    M::Port,
    M::Timeout,
    M::RetryCount,
    M::ResponderNotReadyRetryCount,
    M::MaxReadAtomic,
    M::MaxDestinationReadAtomic,
    M::MinResponderNotReadyTimer,
]);

/// In an extended reliable connection, the sending end has a reliable pair's attributes as a
/// requester, and the receiving end those as a responder (annex A14).
const XRC_SEND_IN_SQD: M =
    all(&[UC_IN_SQD, M::Port, M::Timeout, M::RetryCount, M::ResponderNotReadyRetryCount, M::MaxReadAtomic]);
const XRC_RECEIVE_TO_RTS: M = all(&[M::Timeout, M::SendQueuePacketSequenceNumber]);
const XRC_RECEIVE_IN_SQD: M =
    all(&[UC_IN_SQD, M::Port, M::Timeout, M::MaxDestinationReadAtomic, M::MinResponderNotReadyTimer]);

/// The attributes for a queue pair of type `qp_type` that goes from `current` to `next`; `None` if
/// it cannot. They come from the InfiniBand specification (10.3.1, and the modifiers of 11.2.5.2).
///
/// It is consulted only after a failure, so that success costs nothing.
pub(super) fn transition(
    qp_type: QueuePairType,
    current: QueuePairState,
    next: QueuePairState,
) -> Option<Transition> {
    use QueuePairState as Q;
    #[cfg(any(feature = "mlx5", feature = "efa"))]
    if qp_type.is_of_driver() {
        return of_drivers(qp_type, current, next);
    }
    const INIT: [M; 5] = [CONNECTED_INIT, CONNECTED_INIT, DATAGRAM_INIT, CONNECTED_INIT, CONNECTED_INIT];
    const IN_RTS: [M; 5] = [RC_IN_RTS, UC_IN_RTS, UD_IN_RTS, UC_IN_RTS, RC_IN_RTS];
    // The columns are RC, UC, UD, XRC_SEND, XRC_RECV.
    let (required, optional): ([M; 5], [M; 5]) = match (current, next) {
        (Q::Reset | Q::Init | Q::ReadyToReceive | Q::ReadyToSend, Q::Reset) => ([NONE; 5], [NONE; 5]),
        (Q::SendQueueDrained | Q::SendQueueError | Q::Error, Q::Reset) => ([NONE; 5], [NONE; 5]),
        (Q::Init | Q::ReadyToReceive | Q::ReadyToSend, Q::Error) => ([NONE; 5], [NONE; 5]),
        (Q::SendQueueDrained | Q::SendQueueError | Q::Error, Q::Error) => ([NONE; 5], [NONE; 5]),
        (Q::Reset, Q::Init) => (INIT, [NONE; 5]),
        (Q::Init, Q::Init) => ([NONE; 5], INIT),
        (Q::Init, Q::ReadyToReceive) => {
            let connected = all(&[M::AlternatePath, M::AccessFlags, M::PartitionKeyIndex]);
            let datagram = all(&[M::PartitionKeyIndex, M::QueueKey]);
            (
                [RC_TO_RTR, UC_TO_RTR, NONE, UC_TO_RTR, RC_TO_RTR],
                [connected, connected, datagram, connected, connected],
            )
        }
        (Q::ReadyToReceive, Q::ReadyToSend) => {
            let psn = M::SendQueuePacketSequenceNumber;
            ([RC_TO_RTS, psn, psn, RC_TO_RTS, XRC_RECEIVE_TO_RTS], IN_RTS)
        }
        (Q::ReadyToSend | Q::SendQueueDrained, Q::ReadyToSend) => ([NONE; 5], IN_RTS),
        (Q::ReadyToSend, Q::SendQueueDrained) => ([NONE; 5], [M::EnableSendQueueDrainedAsyncNotify; 5]),
        (Q::SendQueueDrained, Q::SendQueueDrained) => {
            let datagram = all(&[M::PartitionKeyIndex, M::QueueKey]);
            ([NONE; 5], [RC_IN_SQD, UC_IN_SQD, datagram, XRC_SEND_IN_SQD, XRC_RECEIVE_IN_SQD])
        }
        (Q::SendQueueError, Q::ReadyToSend) => {
            // Reliable pairs do not have the state SQE.
            let unreliable = all(&[M::CurrentState, M::AccessFlags]);
            ([NONE; 5], [NONE, unreliable, UD_IN_RTS, NONE, NONE])
        }
        _ => return None,
    };
    let column = match qp_type {
        QueuePairType::ReliableConnection => 0,
        QueuePairType::UnreliableConnection => 1,
        QueuePairType::UnreliableDatagram => 2,
        QueuePairType::XrcSend => 3,
        QueuePairType::XrcReceive => 4,
        _ => return None,
    };
    Some(Transition { required: required[column], optional: optional[column] })
}

/// The same for driver-specific types, following Linux's drivers.
#[cfg(any(feature = "mlx5", feature = "efa"))]
fn of_drivers(qp_type: QueuePairType, current: QueuePairState, next: QueuePairState) -> Option<Transition> {
    use QueuePairState as Q;
    use QueuePairType as T;
    let (required, optional) = match (qp_type, current, next) {
        (T::ScalableReliableDatagram, ..) => {
            let mut found = transition(T::UnreliableDatagram, current, next)?;
            if (current, next) == (Q::ReadyToReceive, Q::ReadyToSend) {
                found.optional |= M::ResponderNotReadyRetryCount;
            }
            return Some(found);
        }
        (T::DcInitiator, _, Q::Reset) => (NONE, NONE),
        (T::DcInitiator, Q::Reset, Q::Init) => (all(&[M::PartitionKeyIndex, M::Port]), NONE),
        (T::DcInitiator, Q::Init, Q::Init) => (NONE, all(&[M::PartitionKeyIndex, M::Port])),
        (T::DcInitiator, Q::Init, Q::ReadyToReceive) => {
            (M::PathMtu, all(&[M::PartitionKeyIndex, M::AddressVector]))
        }
        (T::DcInitiator, Q::ReadyToReceive, Q::ReadyToSend) => (RC_TO_RTS, M::MinResponderNotReadyTimer),
        (T::DcInitiator, Q::ReadyToSend, Q::ReadyToSend) => (NONE, M::MinResponderNotReadyTimer),
        (T::DcInitiator, Q::Init | Q::ReadyToReceive | Q::ReadyToSend | Q::Error, Q::Error) => (NONE, NONE),
        (T::DcTarget, Q::Reset, Q::Init) => (CONNECTED_INIT, NONE),
        (T::DcTarget, Q::Init, Q::ReadyToReceive) => {
            (all(&[M::MinResponderNotReadyTimer, M::AddressVector, M::PathMtu]), NONE)
        }
        _ => return None,
    };
    Some(Transition { required, optional })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_way_up_needs_what_the_manual_says() {
        use QueuePairState as Q;
        let rc = |from, to| transition(QueuePairType::ReliableConnection, from, to);
        assert_eq!(rc(Q::Reset, Q::Init).unwrap().required, CONNECTED_INIT);
        assert!(rc(Q::Init, Q::ReadyToReceive).unwrap().required.contains(M::MinResponderNotReadyTimer));
        assert!(rc(Q::ReadyToReceive, Q::ReadyToSend).unwrap().required.contains(M::Timeout));
        assert_eq!(rc(Q::Reset, Q::ReadyToSend), None);
        assert_eq!(rc(Q::Reset, Q::Error), None);
        let uc = transition(QueuePairType::UnreliableConnection, Q::SendQueueError, Q::ReadyToSend);
        assert!(uc.unwrap().optional.contains(M::AccessFlags));
        let ud = transition(QueuePairType::UnreliableDatagram, Q::Reset, Q::Init).unwrap();
        assert!(ud.required.contains(M::QueueKey) && !ud.required.contains(M::AccessFlags));
        let of = |qp_type, from, to| transition(qp_type, from, to).unwrap().required;
        let timer = M::MinResponderNotReadyTimer;
        assert!(!of(QueuePairType::XrcSend, Q::Init, Q::ReadyToReceive).contains(timer));
        assert!(of(QueuePairType::XrcReceive, Q::Init, Q::ReadyToReceive).contains(timer));
        assert!(of(QueuePairType::XrcSend, Q::ReadyToReceive, Q::ReadyToSend).contains(M::RetryCount));
        assert!(!of(QueuePairType::XrcReceive, Q::ReadyToReceive, Q::ReadyToSend).contains(M::RetryCount));
        assert_eq!(transition(QueuePairType::from_raw(99), Q::Reset, Q::Init), None);
    }

    #[test]
    #[cfg(all(feature = "mlx5", feature = "efa"))]
    fn drivers_types_need_what_their_drivers_say() {
        use QueuePairState as Q;
        use QueuePairType as T;
        let target = transition(T::DcTarget, Q::Init, Q::ReadyToReceive).unwrap();
        assert!(target.required.contains(M::AddressVector | M::MinResponderNotReadyTimer));
        assert_eq!(transition(T::DcTarget, Q::ReadyToReceive, Q::ReadyToSend), None);
        let initiator = |from, to| transition(T::DcInitiator, from, to);
        assert!(!initiator(Q::Reset, Q::Init).unwrap().required.contains(M::AccessFlags));
        assert_eq!(initiator(Q::Init, Q::ReadyToReceive).unwrap().required, M::PathMtu);
        assert!(initiator(Q::ReadyToReceive, Q::ReadyToSend).unwrap().required.contains(M::MaxReadAtomic));
        assert_eq!(initiator(Q::Reset, Q::Error), None);
        let srd = |from, to| transition(T::ScalableReliableDatagram, from, to).unwrap();
        assert!(srd(Q::Reset, Q::Init).required.contains(M::QueueKey));
        assert!(srd(Q::ReadyToReceive, Q::ReadyToSend).optional.contains(M::ResponderNotReadyRetryCount));
        assert!(!srd(Q::ReadyToSend, Q::ReadyToSend).optional.contains(M::ResponderNotReadyRetryCount));
    }
}
