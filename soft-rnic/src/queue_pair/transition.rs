//! The permitted state transitions of a queue pair, with the attributes that each requires and
//! allows (`ibv_modify_qp(3)`; InfiniBand specification 11.2.5.2, table "QP State Transition
//! Properties").

use rdma_mummy_sys::types::{ibv_qp_attr_mask, ibv_qp_state, ibv_qp_type};

type AttrMask = u32;

const STATE: AttrMask = ibv_qp_attr_mask::IBV_QP_STATE.0;
const CUR_STATE: AttrMask = ibv_qp_attr_mask::IBV_QP_CUR_STATE.0;
const NOTIFY: AttrMask = ibv_qp_attr_mask::IBV_QP_EN_SQD_ASYNC_NOTIFY.0;
const ACCESS: AttrMask = ibv_qp_attr_mask::IBV_QP_ACCESS_FLAGS.0;
const PKEY: AttrMask = ibv_qp_attr_mask::IBV_QP_PKEY_INDEX.0;
const PORT: AttrMask = ibv_qp_attr_mask::IBV_QP_PORT.0;
const QKEY: AttrMask = ibv_qp_attr_mask::IBV_QP_QKEY.0;
const AV: AttrMask = ibv_qp_attr_mask::IBV_QP_AV.0;
const MTU: AttrMask = ibv_qp_attr_mask::IBV_QP_PATH_MTU.0;
const TIMEOUT: AttrMask = ibv_qp_attr_mask::IBV_QP_TIMEOUT.0;
const RETRY: AttrMask = ibv_qp_attr_mask::IBV_QP_RETRY_CNT.0;
const RNR_RETRY: AttrMask = ibv_qp_attr_mask::IBV_QP_RNR_RETRY.0;
const RQ_PSN: AttrMask = ibv_qp_attr_mask::IBV_QP_RQ_PSN.0;
const READS: AttrMask = ibv_qp_attr_mask::IBV_QP_MAX_QP_RD_ATOMIC.0;
const ALTERNATE: AttrMask = ibv_qp_attr_mask::IBV_QP_ALT_PATH.0;
const RNR_TIMER: AttrMask = ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER.0;
const SQ_PSN: AttrMask = ibv_qp_attr_mask::IBV_QP_SQ_PSN.0;
const DEST_READS: AttrMask = ibv_qp_attr_mask::IBV_QP_MAX_DEST_RD_ATOMIC.0;
const MIGRATION: AttrMask = ibv_qp_attr_mask::IBV_QP_PATH_MIG_STATE.0;
const DEST_QPN: AttrMask = ibv_qp_attr_mask::IBV_QP_DEST_QPN.0;

/// The attributes that a transition must and may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TransitionMasks {
    needed: AttrMask,
    allowed: AttrMask,
}

const fn rule(needed: AttrMask, allowed: AttrMask) -> Option<TransitionMasks> {
    Some(TransitionMasks { needed, allowed })
}

/// The mask without the attributes that the kernel drops before the driver of a device sees them
/// (`modify_qp_mask` in `uverbs_cmd.c`): those of the side that an XRC queue pair is not. Programs
/// name them, because a reliable connection needs them. Their values are not checked either.
pub(crate) fn without_ignored(qp_type: ibv_qp_type, mask: AttrMask) -> AttrMask {
    match qp_type {
        ibv_qp_type::IBV_QPT_XRC_SEND => mask & !(DEST_READS | RNR_TIMER),
        ibv_qp_type::IBV_QPT_XRC_RECV => mask & !(READS | RETRY | RNR_RETRY),
        _ => mask,
    }
}

/// Whether a queue pair of this type may make the transition with these attributes.
pub(crate) fn is_allowed(qp_type: ibv_qp_type, from: ibv_qp_state, to: ibv_qp_state, mask: AttrMask) -> bool {
    if mask & CUR_STATE != 0 && from.0 < ibv_qp_state::IBV_QPS_RTR.0 {
        return false;
    }
    find(qp_type, from, to).is_some_and(|rule| {
        mask & rule.needed == rule.needed && mask & !(rule.needed | rule.allowed | STATE) == 0
    })
}

fn find(qp_type: ibv_qp_type, from: ibv_qp_state, to: ibv_qp_state) -> Option<TransitionMasks> {
    use ibv_qp_state as S;
    match qp_type {
        ibv_qp_type::IBV_QPT_XRC_SEND | ibv_qp_type::IBV_QPT_XRC_RECV => {
            return find_xrc(qp_type == ibv_qp_type::IBV_QPT_XRC_RECV, from, to);
        }
        _ => {}
    }
    let reliable = qp_type == ibv_qp_type::IBV_QPT_RC;
    let datagram = qp_type == ibv_qp_type::IBV_QPT_UD;
    match (from, to) {
        (S::IBV_QPS_RESET, S::IBV_QPS_ERR) => None,
        (_, S::IBV_QPS_RESET | S::IBV_QPS_ERR) => rule(0, 0),
        (S::IBV_QPS_RESET, S::IBV_QPS_INIT) => initial(datagram),
        (S::IBV_QPS_INIT, S::IBV_QPS_INIT) => {
            initial(datagram).map(|initial| TransitionMasks { needed: 0, allowed: initial.needed })
        }
        (S::IBV_QPS_INIT, S::IBV_QPS_RTR) if datagram => rule(0, PKEY | QKEY),
        (S::IBV_QPS_INIT, S::IBV_QPS_RTR) if reliable => {
            rule(AV | MTU | DEST_QPN | RQ_PSN | DEST_READS | RNR_TIMER, ALTERNATE | ACCESS | PKEY)
        }
        (S::IBV_QPS_INIT, S::IBV_QPS_RTR) => rule(AV | MTU | DEST_QPN | RQ_PSN, ALTERNATE | ACCESS | PKEY),
        (S::IBV_QPS_RTR, S::IBV_QPS_RTS) if datagram => rule(SQ_PSN, CUR_STATE | QKEY),
        (S::IBV_QPS_RTR, S::IBV_QPS_RTS) if reliable => rule(
            TIMEOUT | RETRY | RNR_RETRY | SQ_PSN | READS,
            CUR_STATE | ALTERNATE | ACCESS | RNR_TIMER | MIGRATION,
        ),
        (S::IBV_QPS_RTR, S::IBV_QPS_RTS) => rule(SQ_PSN, CUR_STATE | ALTERNATE | ACCESS | MIGRATION),
        (S::IBV_QPS_RTS | S::IBV_QPS_SQD, S::IBV_QPS_RTS) => running(datagram, reliable),
        (S::IBV_QPS_RTS, S::IBV_QPS_SQD) => rule(0, NOTIFY),
        (S::IBV_QPS_SQD, S::IBV_QPS_SQD) => drained(datagram, reliable),
        (S::IBV_QPS_SQE, S::IBV_QPS_RTS) if datagram => rule(0, CUR_STATE | QKEY),
        (S::IBV_QPS_SQE, S::IBV_QPS_RTS) if !reliable => rule(0, CUR_STATE | ACCESS),
        _ => None,
    }
}

/// Extended reliable connections (annex A14). The initiator has the requester's attributes of a
/// reliable connection, the target the responder's. The target acknowledges, so it has a timeout.
fn find_xrc(target: bool, from: ibv_qp_state, to: ibv_qp_state) -> Option<TransitionMasks> {
    use ibv_qp_state as S;
    let path = ALTERNATE | ACCESS;
    let timer = if target { RNR_TIMER } else { 0 };
    match (from, to) {
        (S::IBV_QPS_RESET, S::IBV_QPS_ERR) => None,
        (_, S::IBV_QPS_RESET | S::IBV_QPS_ERR) => rule(0, 0),
        (S::IBV_QPS_RESET, S::IBV_QPS_INIT) => initial(false),
        (S::IBV_QPS_INIT, S::IBV_QPS_INIT) => {
            initial(false).map(|initial| TransitionMasks { needed: 0, allowed: initial.needed })
        }
        (S::IBV_QPS_INIT, S::IBV_QPS_RTR) => {
            let responder = if target { DEST_READS | RNR_TIMER } else { 0 };
            rule(AV | MTU | DEST_QPN | RQ_PSN | responder, path | PKEY)
        }
        (S::IBV_QPS_RTR, S::IBV_QPS_RTS) => {
            let requester = if target { 0 } else { RETRY | RNR_RETRY | READS };
            rule(TIMEOUT | SQ_PSN | requester, CUR_STATE | path | timer | MIGRATION)
        }
        (S::IBV_QPS_RTS | S::IBV_QPS_SQD, S::IBV_QPS_RTS) => rule(0, CUR_STATE | path | MIGRATION | timer),
        (S::IBV_QPS_RTS, S::IBV_QPS_SQD) => rule(0, NOTIFY),
        (S::IBV_QPS_SQD, S::IBV_QPS_SQD) => {
            let side = if target { DEST_READS | RNR_TIMER } else { RETRY | RNR_RETRY | READS };
            rule(0, PORT | AV | TIMEOUT | side | path | PKEY | MIGRATION)
        }
        _ => None,
    }
}

fn initial(datagram: bool) -> Option<TransitionMasks> {
    rule(PKEY | PORT | if datagram { QKEY } else { ACCESS }, 0)
}

fn running(datagram: bool, reliable: bool) -> Option<TransitionMasks> {
    match (datagram, reliable) {
        (true, _) => rule(0, CUR_STATE | QKEY),
        (_, true) => rule(0, CUR_STATE | ACCESS | ALTERNATE | MIGRATION | RNR_TIMER),
        _ => rule(0, CUR_STATE | ACCESS | ALTERNATE | MIGRATION),
    }
}

fn drained(datagram: bool, reliable: bool) -> Option<TransitionMasks> {
    match (datagram, reliable) {
        (true, _) => rule(0, PKEY | QKEY),
        (_, true) => rule(
            0,
            PORT | AV
                | TIMEOUT
                | RETRY
                | RNR_RETRY
                | READS
                | DEST_READS
                | ALTERNATE
                | ACCESS
                | PKEY
                | RNR_TIMER
                | MIGRATION,
        ),
        _ => rule(0, AV | ALTERNATE | ACCESS | PKEY | MIGRATION),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ibv_qp_state as S;

    #[test]
    fn rc_reaches_rts_by_the_usual_transitions() {
        let rc = ibv_qp_type::IBV_QPT_RC;
        assert!(is_allowed(rc, S::IBV_QPS_RESET, S::IBV_QPS_INIT, STATE | PKEY | PORT | ACCESS));
        assert!(!is_allowed(rc, S::IBV_QPS_RESET, S::IBV_QPS_INIT, STATE | PKEY | PORT | QKEY));
        let receive = STATE | AV | MTU | DEST_QPN | RQ_PSN | DEST_READS | RNR_TIMER;
        assert!(is_allowed(rc, S::IBV_QPS_INIT, S::IBV_QPS_RTR, receive));
        assert!(!is_allowed(rc, S::IBV_QPS_INIT, S::IBV_QPS_RTR, receive & !AV));
        assert!(!is_allowed(rc, S::IBV_QPS_INIT, S::IBV_QPS_RTR, receive | QKEY));
        assert!(!is_allowed(rc, S::IBV_QPS_RESET, S::IBV_QPS_RTR, receive));
        let send = STATE | TIMEOUT | RETRY | RNR_RETRY | SQ_PSN | READS;
        assert!(is_allowed(rc, S::IBV_QPS_RTR, S::IBV_QPS_RTS, send));
        assert!(!is_allowed(rc, S::IBV_QPS_INIT, S::IBV_QPS_RTS, send));
    }

    const TYPES: [ibv_qp_type; 5] = [
        ibv_qp_type::IBV_QPT_RC,
        ibv_qp_type::IBV_QPT_UC,
        ibv_qp_type::IBV_QPT_UD,
        ibv_qp_type::IBV_QPT_XRC_SEND,
        ibv_qp_type::IBV_QPT_XRC_RECV,
    ];

    #[test]
    fn an_xrc_pair_ignores_the_attributes_of_the_other_side() {
        let [receive, send] = [DEST_READS | RNR_TIMER, READS | RETRY | RNR_RETRY];
        let all = STATE | AV | TIMEOUT | receive | send;
        assert_eq!(without_ignored(ibv_qp_type::IBV_QPT_XRC_SEND, all), all & !receive);
        assert_eq!(without_ignored(ibv_qp_type::IBV_QPT_XRC_RECV, all), all & !send);
        for qp_type in [ibv_qp_type::IBV_QPT_RC, ibv_qp_type::IBV_QPT_UC, ibv_qp_type::IBV_QPT_UD] {
            assert_eq!(without_ignored(qp_type, all), all);
        }
    }

    #[test]
    fn every_state_ends_in_reset_or_error() {
        for from in 0..=6 {
            for qp_type in TYPES {
                for to in [S::IBV_QPS_RESET, S::IBV_QPS_ERR] {
                    let from_reset_to_error = from == 0 && to == S::IBV_QPS_ERR;
                    assert_eq!(is_allowed(qp_type, ibv_qp_state(from), to, STATE), !from_reset_to_error);
                    assert!(!is_allowed(qp_type, ibv_qp_state(from), to, STATE | PKEY));
                }
            }
        }
    }
}
