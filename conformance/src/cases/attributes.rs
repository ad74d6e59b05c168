//! Attributes of a queue pair other than those of the usual transitions: alternate path, migration,
//! rate, capacity (`man ibv_modify_qp`; IBTA 11.2.5.2, modify queue pair).

use libc::{EINVAL, EOPNOTSUPP};
use rdma_mummy_sys::types::ibv_device_cap_flags as Cap;
use rdma_mummy_sys::types::ibv_mig_state as Migration;
use rdma_mummy_sys::types::ibv_qp_attr_mask as Mask;
use rdma_mummy_sys::types::ibv_qp_state as State;
use rdma_mummy_sys::types::ibv_qp_type as Type;

use crate::kit::{Node, Outcome, QpChange, SoftRoce, Suite, TestDevice, ah_attr, node_in};

pub(crate) fn cases(suite: &mut Suite) {
    cases!(suite:
        an_alternate_path_is_taken_where_paths_migrate,
        an_alternate_path_is_an_attribute_of_connections,
        a_path_is_armed_where_the_device_can_migrate,
        a_path_that_has_migrated_stays_so,
        a_rate_is_limited_where_the_device_can,
        a_pair_is_resized_where_the_device_can,
        a_drained_pair_takes_another_path_and_other_timers,
        a_drained_pair_says_so,
        the_key_of_a_datagram_pair_is_changed_at_work,
        unknown_attributes_are_refused,
    );
}

fn at_work(dut: &TestDevice, qp_type: Type) -> Node {
    node_in(dut, qp_type, State::IBV_QPS_RTS)
}

/// A change without a state transition.
fn change() -> QpChange {
    QpChange::to(State::IBV_QPS_RTS)
}

/// An alternate path equal to the primary one.
fn alternate(node: &Node) -> QpChange {
    change().with(Mask::IBV_QP_ALT_PATH, |attr| {
        attr.alt_ah_attr = ah_attr(&node.device, node.gid.0);
        attr.alt_port_num = 1;
        attr.alt_pkey_index = 0;
        attr.alt_timeout = 12;
    })
}

fn is_refused(node: &Node, what: &str, change: QpChange, errors: &[i32]) {
    let error = node.qp.modify(change);
    assert!(errors.contains(&error), "{what}: {error}");
    assert_eq!(node.qp.state(), State::IBV_QPS_RTS, "{what}");
}

/// IBTA: automatic path migration is an option of the device, `IBV_DEVICE_AUTO_PATH_MIG`.
fn migrates(node: &Node) -> bool {
    node.device.query().unwrap().device_cap_flags & Cap::IBV_DEVICE_AUTO_PATH_MIG.0 != 0
}

/// A device without path migration, and every Ethernet port, has no alternate paths.
fn an_alternate_path_is_taken_where_paths_migrate(dut: &TestDevice) -> Outcome {
    dut.not_softroce("says that it migrates paths, and its kernel takes none on Ethernet")?;
    for qp_type in [Type::IBV_QPT_RC, Type::IBV_QPT_UC] {
        let node = at_work(dut, qp_type);
        if !migrates(&node) {
            is_refused(&node, "an alternate path", alternate(&node), &[EINVAL, EOPNOTSUPP]);
            continue;
        }
        assert_eq!(node.qp.modify(alternate(&node)), 0);
        let (attr, _) = node.qp.query(Mask::IBV_QP_ALT_PATH.0).unwrap();
        assert_eq!((attr.alt_port_num, attr.alt_timeout, attr.alt_pkey_index), (1, 12, 0));
        assert_eq!(attr.alt_ah_attr.grh.sgid_index, node.gid.1);
    }
    Ok(())
}

fn an_alternate_path_is_an_attribute_of_connections(dut: &TestDevice) -> Outcome {
    let node = at_work(dut, Type::IBV_QPT_UD);
    is_refused(&node, "a datagram pair's path", alternate(&node), &[EINVAL, EOPNOTSUPP]);
    Ok(())
}

fn a_path_is_armed_where_the_device_can_migrate(dut: &TestDevice) -> Outcome {
    dut.not_softroce("takes any migration state, and migrates nothing")?;
    let node = at_work(dut, Type::IBV_QPT_RC);
    if migrates(&node) {
        skip!("{} migrates paths", dut.name);
    }
    for state in [Migration::IBV_MIG_REARM, Migration::IBV_MIG_ARMED, Migration(7)] {
        let arm = change().with(Mask::IBV_QP_PATH_MIG_STATE, |attr| attr.path_mig_state = state);
        is_refused(&node, "arming", arm, &[EINVAL, EOPNOTSUPP]);
    }
    Ok(())
}

fn a_path_that_has_migrated_stays_so(dut: &TestDevice) -> Outcome {
    let node = at_work(dut, Type::IBV_QPT_RC);
    let migrated = Migration::IBV_MIG_MIGRATED;
    let stay = change().with(Mask::IBV_QP_PATH_MIG_STATE, |attr| attr.path_mig_state = migrated);
    assert_eq!(node.qp.modify(stay), 0);
    assert_eq!(node.qp.query(Mask::IBV_QP_PATH_MIG_STATE.0).unwrap().0.path_mig_state, migrated);
    Ok(())
}

/// `packet_pacing_caps` of the extended attributes.
fn a_rate_is_limited_where_the_device_can(dut: &TestDevice) -> Outcome {
    let node = at_work(dut, Type::IBV_QPT_RC);
    if node.device.query_ex(None).is_ok_and(|attr| attr.packet_pacing_caps.qp_rate_limit_max != 0) {
        skip!("{} limits rates", dut.name);
    }
    let limit = change().with(Mask::IBV_QP_RATE_LIMIT, |attr| attr.rate_limit = 1000);
    is_refused(&node, "a rate", limit, &[EINVAL, EOPNOTSUPP]);
    Ok(())
}

/// `IBV_DEVICE_RESIZE_MAX_WR`.
fn a_pair_is_resized_where_the_device_can(dut: &TestDevice) -> Outcome {
    let node = at_work(dut, Type::IBV_QPT_RC);
    if node.device.query().unwrap().device_cap_flags & Cap::IBV_DEVICE_RESIZE_MAX_WR.0 != 0 {
        skip!("{} resizes pairs", dut.name);
    }
    let more = change().with(Mask::IBV_QP_CAP, |attr| {
        attr.cap = node.qp.granted();
        attr.cap.max_send_wr += 1;
    });
    let now = || node.qp.query(Mask::IBV_QP_CAP.0).unwrap().0.cap.max_send_wr;
    let before = now();
    is_refused(&node, "another capacity", more, &[EINVAL, EOPNOTSUPP]);
    assert_eq!(now(), before);
    Ok(())
}

/// IBTA, the table of transitions: SQD to SQD.
fn a_drained_pair_takes_another_path_and_other_timers(dut: &TestDevice) -> Outcome {
    dut.not_since(SoftRoce::New, "says of a pair that nothing was sent through that it drains")?;
    let node = at_work(dut, Type::IBV_QPT_RC);
    node.go(State::IBV_QPS_SQD);
    let changed = QpChange::to(State::IBV_QPS_SQD)
        .with(Mask::IBV_QP_AV, |attr| attr.ah_attr = ah_attr(&node.device, node.gid.0))
        .with(Mask::IBV_QP_TIMEOUT, |attr| attr.timeout = 15)
        .with(Mask::IBV_QP_RETRY_CNT, |attr| attr.retry_cnt = 3)
        .with(Mask::IBV_QP_RNR_RETRY, |attr| attr.rnr_retry = 2)
        .with(Mask::IBV_QP_MAX_QP_RD_ATOMIC, |attr| attr.max_rd_atomic = 2)
        .with(Mask::IBV_QP_PKEY_INDEX, |attr| attr.pkey_index = 0);
    assert_eq!(node.qp.modify(changed), 0);
    let asked = Mask::IBV_QP_TIMEOUT.0 | Mask::IBV_QP_RETRY_CNT.0 | Mask::IBV_QP_RNR_RETRY.0;
    let (attr, _) = node.qp.query(asked).unwrap();
    assert_eq!((attr.timeout, attr.retry_cnt, attr.rnr_retry), (15, 3, 2));
    assert_eq!(node.qp.modify(change()), 0);
    Ok(())
}

fn a_drained_pair_says_so(dut: &TestDevice) -> Outcome {
    dut.not_since(SoftRoce::New, "says of a pair that nothing was sent through that it drains")?;
    let node = at_work(dut, Type::IBV_QPT_RC);
    node.go(State::IBV_QPS_SQD);
    // A device may drain an empty queue after the call, as Linux 6.1 does.
    node.drained();
    assert_eq!(node.qp.state(), State::IBV_QPS_SQD);
    Ok(())
}

fn the_key_of_a_datagram_pair_is_changed_at_work(dut: &TestDevice) -> Outcome {
    let node = at_work(dut, Type::IBV_QPT_UD);
    assert_eq!(node.qp.modify(change().with(Mask::IBV_QP_QKEY, |attr| attr.qkey = 0x55)), 0);
    assert_eq!(node.qp.query(Mask::IBV_QP_QKEY.0).unwrap().0.qkey, 0x55);
    let connected = at_work(dut, Type::IBV_QPT_RC);
    is_refused(&connected, "a key", change().with(Mask::IBV_QP_QKEY, |attr| attr.qkey = 1), &[EINVAL]);
    Ok(())
}

fn unknown_attributes_are_refused(dut: &TestDevice) -> Outcome {
    let node = at_work(dut, Type::IBV_QPT_RC);
    is_refused(&node, "bit 30", change().with(Mask(1 << 30), |_| {}), &[EINVAL, EOPNOTSUPP]);
    Ok(())
}
