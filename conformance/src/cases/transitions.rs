//! Queue pairs: state transitions, and the attributes of each.

use libc::{EINVAL, ENODATA};
use rdma_mummy_sys::types::ibv_qp_attr;
use rdma_mummy_sys::types::ibv_qp_attr_mask as Mask;
use rdma_mummy_sys::types::ibv_qp_state as State;
use rdma_mummy_sys::types::ibv_qp_type as Type;
use rdma_mummy_sys::types::ibv_wc_status as Status;

use crate::kit::{
    Flavour, Node, NodeOptions, Outcome, QpChange, STATES, Suite, TYPES, TestDevice, Wr, node, node_in, pair,
};

pub(crate) fn cases(suite: &mut Suite) {
    both!(suite:
        a_pair_goes_all_the_way_up,
    );
    cases!(suite:
        every_state_leads_to_error,
        every_state_leads_to_reset,
        states_cannot_be_skipped,
        states_do_not_lead_back,
        a_drained_pair_goes_only_on,
        no_pair_is_told_to_fail_to_send,
        unknown_states_are_refused,
        init_needs_each_of_its_attributes,
        rtr_needs_each_of_its_attributes,
        rts_needs_each_of_its_attributes,
        attributes_of_other_transitions_are_refused,
        attributes_of_other_types_are_refused,
        values_out_of_range_are_refused,
        more_reads_than_the_responder_has_room_for_are_refused,
        an_address_without_global_route_is_refused,
        a_wrong_current_state_is_refused,
        the_right_current_state_is_accepted,
        init_may_be_changed_in_init,
        rts_may_be_changed_in_rts,
        a_timer_may_be_changed_at_work,
        a_refused_change_changes_nothing,
        the_library_remembers_the_state,
    );
}

fn a_pair_goes_all_the_way_up(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let device = dut.open();
    for qp_type in TYPES {
        let node = Node::new(&device, &NodeOptions::new(qp_type, flavour));
        for state in [State::IBV_QPS_INIT, State::IBV_QPS_RTR, State::IBV_QPS_RTS] {
            assert_eq!(node.qp.modify(node.change_to(state)), 0, "{qp_type:?} to {state:?}");
            assert_eq!(node.qp.state(), state);
        }
    }
    Ok(())
}

/// From every state except RESET, where a pair has nothing to flush: the kernel's table refuses
/// that.
fn every_state_leads_to_error(dut: &TestDevice) -> Outcome {
    for qp_type in TYPES {
        let fresh = node(dut, qp_type);
        fresh.refuses(QpChange::to(State::IBV_QPS_ERR), "RESET to ERR");
        for state in &STATES[1..] {
            let state = *state;
            let node = node_in(dut, qp_type, state);
            node.go(State::IBV_QPS_ERR);
            assert_eq!(node.qp.state(), State::IBV_QPS_ERR, "{qp_type:?} from {state:?}");
        }
    }
    Ok(())
}

/// IBTA chapter 10, queue pair states, the diagram of states: to RESET from everywhere.
fn every_state_leads_to_reset(dut: &TestDevice) -> Outcome {
    for qp_type in TYPES {
        for state in STATES {
            let node = node_in(dut, qp_type, state);
            node.go(State::IBV_QPS_RESET);
            assert_eq!(node.qp.state(), State::IBV_QPS_RESET, "{qp_type:?} from {state:?}");
            assert_eq!(node.qp.modify(node.to_init()), 0);
        }
    }
    Ok(())
}

fn states_cannot_be_skipped(dut: &TestDevice) -> Outcome {
    for qp_type in TYPES {
        let node = node(dut, qp_type);
        node.refuses(node.change_to(State::IBV_QPS_RTR), "RESET to RTR");
        node.refuses(node.change_to(State::IBV_QPS_RTS), "RESET to RTS");
        node.refuses(node.change_to(State::IBV_QPS_SQD), "RESET to SQD");
        node.init();
        node.refuses(node.change_to(State::IBV_QPS_RTS), "INIT to RTS");
        node.refuses(node.change_to(State::IBV_QPS_SQD), "INIT to SQD");
        node.rtr(&node.peer());
        node.refuses(node.change_to(State::IBV_QPS_SQD), "RTR to SQD");
    }
    Ok(())
}

fn states_do_not_lead_back(dut: &TestDevice) -> Outcome {
    for qp_type in TYPES {
        let up = node_in(dut, qp_type, State::IBV_QPS_RTS);
        up.refuses(up.change_to(State::IBV_QPS_INIT), "RTS to INIT");
        up.refuses(up.change_to(State::IBV_QPS_RTR), "RTS to RTR");
        let ready = node_in(dut, qp_type, State::IBV_QPS_RTR);
        ready.refuses(ready.change_to(State::IBV_QPS_INIT), "RTR to INIT");
        ready.refuses(ready.change_to(State::IBV_QPS_RTR), "RTR to RTR");
        let failed = node_in(dut, qp_type, State::IBV_QPS_ERR);
        for state in [State::IBV_QPS_INIT, State::IBV_QPS_RTR, State::IBV_QPS_RTS, State::IBV_QPS_SQD] {
            failed.refuses(failed.change_to(state), "out of ERR");
        }
    }
    Ok(())
}

/// IBTA chapter 10, queue pair states, the diagram of states: transitions out of SQD.
fn a_drained_pair_goes_only_on(dut: &TestDevice) -> Outcome {
    for qp_type in TYPES {
        let drained = node_in(dut, qp_type, State::IBV_QPS_SQD);
        drained.refuses(drained.change_to(State::IBV_QPS_INIT), "SQD to INIT");
        drained.refuses(drained.change_to(State::IBV_QPS_RTR), "SQD to RTR");
        drained.go(State::IBV_QPS_RTS);
    }
    Ok(())
}

/// SQE is entered by an error only, never by a modify.
fn no_pair_is_told_to_fail_to_send(dut: &TestDevice) -> Outcome {
    for qp_type in TYPES {
        for state in STATES {
            let node = node_in(dut, qp_type, state);
            node.refuses(QpChange::to(State::IBV_QPS_SQE), &format!("{qp_type:?} from {state:?} to SQE"));
        }
    }
    Ok(())
}

fn unknown_states_are_refused(dut: &TestDevice) -> Outcome {
    for qp_type in TYPES {
        let node = node_in(dut, qp_type, State::IBV_QPS_RTS);
        for state in [State::IBV_QPS_UNKNOWN, State(8), State(255), State(u32::MAX)] {
            node.refuses(QpChange::to(state), &format!("{state:?}"));
        }
        assert_eq!(node.qp.cached_state(), State::IBV_QPS_RTS);
    }
    Ok(())
}

/// Omits each attribute of a change in turn.
fn needs_each(dut: &TestDevice, qp_type: Type, before: State, after: State, attributes: &[Mask]) {
    let node = node_in(dut, qp_type, before);
    let change = node.change_to(after);
    for mask in attributes {
        assert_ne!(change.mask & mask.0, 0, "{mask:?}");
        node.refuses(change.without(*mask), &format!("{qp_type:?} to {after:?} without {mask:?}"));
    }
    assert_eq!(node.qp.modify(change), 0);
}

/// `man ibv_modify_qp`, the table of required attributes.
fn init_needs_each_of_its_attributes(dut: &TestDevice) -> Outcome {
    let common = [Mask::IBV_QP_PKEY_INDEX, Mask::IBV_QP_PORT];
    let (reset, init) = (State::IBV_QPS_RESET, State::IBV_QPS_INIT);
    for qp_type in [Type::IBV_QPT_RC, Type::IBV_QPT_UC] {
        needs_each(dut, qp_type, reset, init, &[common[0], common[1], Mask::IBV_QP_ACCESS_FLAGS]);
    }
    needs_each(dut, Type::IBV_QPT_UD, reset, init, &[common[0], common[1], Mask::IBV_QP_QKEY]);
    Ok(())
}

fn rtr_needs_each_of_its_attributes(dut: &TestDevice) -> Outcome {
    let (init, rtr) = (State::IBV_QPS_INIT, State::IBV_QPS_RTR);
    let all = [
        Mask::IBV_QP_AV,
        Mask::IBV_QP_PATH_MTU,
        Mask::IBV_QP_DEST_QPN,
        Mask::IBV_QP_RQ_PSN,
        Mask::IBV_QP_MAX_DEST_RD_ATOMIC,
        Mask::IBV_QP_MIN_RNR_TIMER,
    ];
    needs_each(dut, Type::IBV_QPT_RC, init, rtr, &all);
    needs_each(dut, Type::IBV_QPT_UC, init, rtr, &all[..4]);
    Ok(())
}

fn rts_needs_each_of_its_attributes(dut: &TestDevice) -> Outcome {
    let (rtr, rts) = (State::IBV_QPS_RTR, State::IBV_QPS_RTS);
    let all = [
        Mask::IBV_QP_SQ_PSN,
        Mask::IBV_QP_TIMEOUT,
        Mask::IBV_QP_RETRY_CNT,
        Mask::IBV_QP_RNR_RETRY,
        Mask::IBV_QP_MAX_QP_RD_ATOMIC,
    ];
    needs_each(dut, Type::IBV_QPT_RC, rtr, rts, &all);
    for qp_type in [Type::IBV_QPT_UC, Type::IBV_QPT_UD] {
        needs_each(dut, qp_type, rtr, rts, &all[..1]);
    }
    Ok(())
}

fn attributes_of_other_transitions_are_refused(dut: &TestDevice) -> Outcome {
    let node = node(dut, Type::IBV_QPT_RC);
    node.refuses(node.to_init().with(Mask::IBV_QP_SQ_PSN, |_| {}), "SQ_PSN to INIT");
    node.refuses(node.to_init().with(Mask::IBV_QP_TIMEOUT, |_| {}), "TIMEOUT to INIT");
    node.init();
    let rtr = node.to_rtr(&node.peer());
    node.refuses(rtr.with(Mask::IBV_QP_SQ_PSN, |_| {}), "SQ_PSN to RTR");
    node.refuses(rtr.with(Mask::IBV_QP_PORT, |attr| attr.port_num = 1), "PORT to RTR");
    node.rtr(&node.peer());
    let rts = node.to_rts();
    node.refuses(rts.with(Mask::IBV_QP_RQ_PSN, |_| {}), "RQ_PSN to RTS");
    node.refuses(rts.with(Mask::IBV_QP_DEST_QPN, |_| {}), "DEST_QPN to RTS");
    node.rts();
    Ok(())
}

fn attributes_of_other_types_are_refused(dut: &TestDevice) -> Outcome {
    let connected = node(dut, Type::IBV_QPT_RC);
    connected.refuses(connected.to_init().with(Mask::IBV_QP_QKEY, |attr| attr.qkey = 1), "QKEY of RC");
    let datagram = node(dut, Type::IBV_QPT_UD);
    datagram.refuses(datagram.to_init().with(Mask::IBV_QP_ACCESS_FLAGS, |_| {}), "ACCESS_FLAGS of UD");
    datagram.init();
    let rtr = datagram.to_rtr(&datagram.peer());
    datagram.refuses(rtr.with(Mask::IBV_QP_DEST_QPN, |_| {}), "DEST_QPN of UD");
    let unreliable = node_in(dut, Type::IBV_QPT_UC, State::IBV_QPS_RTR);
    unreliable.refuses(unreliable.to_rts().with(Mask::IBV_QP_TIMEOUT, |_| {}), "TIMEOUT of UC");
    unreliable.refuses(unreliable.to_rts().with(Mask::IBV_QP_RETRY_CNT, |_| {}), "RETRY_CNT of UC");
    Ok(())
}

fn values_out_of_range_are_refused(dut: &TestDevice) -> Outcome {
    let fresh = node(dut, Type::IBV_QPT_RC);
    fresh.refuses(fresh.to_init().with(Mask::IBV_QP_PORT, |attr| attr.port_num = 0), "port 0");
    fresh.refuses(fresh.to_init().with(Mask::IBV_QP_PORT, |attr| attr.port_num = 200), "port 200");
    fresh.init();
    let rtr = fresh.to_rtr(&fresh.peer());
    fresh.refuses(rtr.with(Mask::IBV_QP_AV, |attr| attr.ah_attr.port_num = 200), "the path's port 200");
    let no_gid = |attr: &mut ibv_qp_attr| {
        (attr.ah_attr.is_global, attr.ah_attr.grh.sgid_index) = (1, 255);
    };
    let error = fresh.qp.modify(rtr.with(Mask::IBV_QP_AV, no_gid));
    assert!([EINVAL, ENODATA].contains(&error), "GID index 255: {error}");
    fresh.rtr(&fresh.peer());
    let beyond = |attr: &mut ibv_qp_attr| attr.max_rd_atomic = 255;
    fresh.refuses(fresh.to_rts().with(Mask::IBV_QP_MAX_QP_RD_ATOMIC, beyond), "255 reads as requester");
    Ok(())
}

/// IBTA chapter 11, modify queue pair: the device's `max_qp_rd_atom` limits the responder's
/// resources.
fn more_reads_than_the_responder_has_room_for_are_refused(dut: &TestDevice) -> Outcome {
    dut.not_softroce("does not look at max_dest_rd_atomic")?;
    let node = node_in(dut, Type::IBV_QPT_RC, State::IBV_QPS_INIT);
    let most = node.device.query().unwrap().max_qp_rd_atom;
    if most >= 255 {
        skip!("the device has room for {most} reads, and the attribute ends at 255");
    }
    let rtr = node.to_rtr(&node.peer());
    let beyond = |attr: &mut ibv_qp_attr| attr.max_dest_rd_atomic = most as u8 + 1;
    node.refuses(rtr.with(Mask::IBV_QP_MAX_DEST_RD_ATOMIC, beyond), "too many reads");
    Ok(())
}

/// A RoCE port addresses packets by GID only (IBTA annex A16, RoCE).
fn an_address_without_global_route_is_refused(dut: &TestDevice) -> Outcome {
    if dut.is_infiniband() {
        skip!("an InfiniBand link needs no global route");
    }
    for qp_type in [Type::IBV_QPT_RC, Type::IBV_QPT_UC] {
        let node = node_in(dut, qp_type, State::IBV_QPS_INIT);
        let rtr = node.to_rtr(&node.peer()).with(Mask::IBV_QP_AV, |attr| attr.ah_attr.is_global = 0);
        node.refuses(rtr, "no global route");
    }
    Ok(())
}

fn a_wrong_current_state_is_refused(dut: &TestDevice) -> Outcome {
    let node = node_in(dut, Type::IBV_QPT_RC, State::IBV_QPS_RTR);
    let claim = |state| node.to_rts().with(Mask::IBV_QP_CUR_STATE, |attr| attr.cur_qp_state = state);
    node.refuses(claim(State::IBV_QPS_INIT), "INIT claimed");
    node.refuses(claim(State::IBV_QPS_ERR), "ERR claimed");
    Ok(())
}

fn the_right_current_state_is_accepted(dut: &TestDevice) -> Outcome {
    let node = node_in(dut, Type::IBV_QPT_RC, State::IBV_QPS_RTR);
    let change = node.to_rts().with(Mask::IBV_QP_CUR_STATE, |attr| attr.cur_qp_state = State::IBV_QPS_RTR);
    assert_eq!(node.qp.modify(change), 0);
    assert_eq!(node.qp.state(), State::IBV_QPS_RTS);
    Ok(())
}

fn init_may_be_changed_in_init(dut: &TestDevice) -> Outcome {
    let node = node_in(dut, Type::IBV_QPT_RC, State::IBV_QPS_INIT);
    let access = |flags| {
        QpChange::to(State::IBV_QPS_INIT).with(Mask::IBV_QP_ACCESS_FLAGS, |attr| attr.qp_access_flags = flags)
    };
    assert_eq!(node.qp.modify(access(0)), 0);
    assert_eq!(node.qp.query(Mask::IBV_QP_ACCESS_FLAGS.0).unwrap().0.qp_access_flags & 0xe, 0);
    assert_eq!(node.qp.modify(access(crate::kit::EVERYTHING)), 0);
    Ok(())
}

fn rts_may_be_changed_in_rts(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &NodeOptions::rc(Flavour::Classic));
    let change =
        QpChange::to(State::IBV_QPS_RTS).with(Mask::IBV_QP_ACCESS_FLAGS, |attr| attr.qp_access_flags = 1);
    a.done(Wr::write(1, b.mr.remote(0)).sge(a.mr.at(0, 8)));
    assert_eq!(b.qp.modify(change), 0);
    let status = a.fails(Wr::write(2, b.mr.remote(0)).sge(a.mr.at(0, 8)));
    assert!([Status::IBV_WC_REM_ACCESS_ERR, Status::IBV_WC_REM_INV_REQ_ERR].contains(&status), "{status:?}");
    Ok(())
}

fn a_timer_may_be_changed_at_work(dut: &TestDevice) -> Outcome {
    let node = node_in(dut, Type::IBV_QPT_RC, State::IBV_QPS_RTS);
    let change =
        QpChange::to(State::IBV_QPS_RTS).with(Mask::IBV_QP_MIN_RNR_TIMER, |attr| attr.min_rnr_timer = 5);
    assert_eq!(node.qp.modify(change), 0);
    assert_eq!(node.qp.query(Mask::IBV_QP_MIN_RNR_TIMER.0).unwrap().0.min_rnr_timer, 5);
    Ok(())
}

fn a_refused_change_changes_nothing(dut: &TestDevice) -> Outcome {
    let node = node_in(dut, Type::IBV_QPT_RC, State::IBV_QPS_RTR);
    let bad = node
        .to_rts()
        .with(Mask::IBV_QP_TIMEOUT, |attr| attr.timeout = 3)
        .with(Mask::IBV_QP_MAX_QP_RD_ATOMIC, |attr| attr.max_rd_atomic = 255);
    node.refuses(bad, "255 reads");
    node.rts();
    assert_eq!(node.qp.query(Mask::IBV_QP_TIMEOUT.0).unwrap().0.timeout, node.options.timeout);
    Ok(())
}

fn the_library_remembers_the_state(dut: &TestDevice) -> Outcome {
    let node = node(dut, Type::IBV_QPT_RC);
    for state in [State::IBV_QPS_INIT, State::IBV_QPS_RTR, State::IBV_QPS_RTS, State::IBV_QPS_ERR] {
        assert_eq!(node.qp.modify(node.change_to(state)), 0);
        assert_eq!(node.qp.cached_state(), state);
    }
    Ok(())
}
