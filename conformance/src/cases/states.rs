//! Queue pairs: making them, and their states.

use std::collections::HashSet;

use libc::{EINVAL, ENODATA, ENOMEM, EOPNOTSUPP};
use rdma_mummy_sys::types::ibv_mtu as Mtu;
use rdma_mummy_sys::types::ibv_qp_attr_mask as Mask;
use rdma_mummy_sys::types::ibv_qp_state as State;
use rdma_mummy_sys::types::ibv_qp_type as Type;
use rdma_mummy_sys::types::ibv_wc_status as Status;

use crate::harness::{Outcome, Rig, Suite, Target};
use crate::kit::{Change, Flavour, Node, Options, PATIENCE, Qp, QpInit, Recv, Wr, pair, raw_gid, until};

pub(crate) fn cases(suite: &mut Suite) {
    both!(suite:
        pairs_of_every_type_are_made,
        a_pair_has_at_least_what_was_asked_for,
        a_pair_beyond_the_limits_is_refused,
        a_new_pair_is_in_reset,
        a_pair_goes_all_the_way_up,
    );
    cases!(suite:
        pair_numbers_are_unique,
        a_pair_number_is_not_used_again_at_once,
        a_pair_without_a_completion_queue_is_refused,
        a_pair_of_an_unknown_type_is_refused,
        extended_operations_of_another_type_are_refused,
        unknown_extended_operations_are_refused,
        a_classic_pair_has_the_extended_interface_or_not,
        a_query_returns_what_was_set,
        unknown_attributes_of_a_query_are_refused,
        a_query_returns_how_the_pair_was_made,
        a_pair_of_datagrams_tells_its_key,
        a_pair_goes_up_without_sending,
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
        a_pair_drains_and_goes_on,
        a_pair_drained_takes_new_attributes,
        requests_posted_while_drained_wait,
        reset_forgets_what_was_posted,
        a_pair_in_reset_takes_no_requests,
        a_pair_in_reset_takes_no_receives,
        a_pair_in_init_takes_receives_only,
        a_pair_in_rtr_receives_but_does_not_send,
        a_pair_is_destroyed_with_work_outstanding,
        a_pair_in_any_state_is_destroyed,
        many_pairs_are_made,
    );
}

const TYPES: [Type; 3] = [Type::IBV_QPT_RC, Type::IBV_QPT_UC, Type::IBV_QPT_UD];

fn node(rig: &Rig, qp_type: Type) -> Node {
    Node::new(&rig.open(), &Options::new(qp_type, Flavour::Classic))
}

/// A node in this state, connected to itself.
fn node_in(rig: &Rig, qp_type: Type, state: State) -> Node {
    let node = node(rig, qp_type);
    let path = [State::IBV_QPS_INIT, State::IBV_QPS_RTR, State::IBV_QPS_RTS];
    let steps = match state {
        State::IBV_QPS_RESET => 0,
        State::IBV_QPS_INIT | State::IBV_QPS_ERR => 1,
        State::IBV_QPS_RTR => 2,
        _ => 3,
    };
    for step in &path[..steps] {
        assert_eq!(node.qp.modify(node.change_to(*step)), 0, "{step:?}");
    }
    if [State::IBV_QPS_ERR, State::IBV_QPS_SQD].contains(&state) {
        node.go(state);
    }
    if state == State::IBV_QPS_SQD {
        node.drained();
    }
    node
}

impl Node {
    /// The usual change to one of the states on the way up.
    fn change_to(&self, state: State) -> Change {
        match state {
            State::IBV_QPS_INIT => self.to_init(),
            State::IBV_QPS_RTR => self.to_rtr(&self.peer()),
            State::IBV_QPS_RTS => self.to_rts(),
            other => Change::to(other),
        }
    }

    /// Waits until the send queue has finished what was begun.
    fn drained(&self) {
        let mask = Mask::IBV_QP_STATE.0;
        let drained = until(PATIENCE, || (self.qp.query(mask).unwrap().0.sq_draining == 0).then_some(()));
        assert!(drained.is_some(), "the send queue does not drain");
    }

    fn refuses(&self, change: Change, what: &str) {
        let before = self.qp.state();
        assert_eq!(self.qp.modify(change), EINVAL, "{what}");
        assert_eq!(self.qp.state(), before, "{what}");
    }
}

fn pairs_of_every_type_are_made(rig: &Rig, flavour: Flavour) -> Outcome {
    let device = rig.open();
    for qp_type in TYPES {
        let node = Node::new(&device, &Options::new(qp_type, flavour));
        assert!(node.qp.num() > 1 && node.qp.num() < 1 << 24, "{:#x}", node.qp.num());
        assert_eq!(node.qp.destroy(), 0);
    }
    Ok(())
}

/// Tries to make a pair with these capabilities.
fn make(rig: &Rig, flavour: Flavour, set: impl FnOnce(&mut QpInit)) -> Result<Qp, i32> {
    let device = rig.open();
    let cq = device.cq(16);
    let mut init = QpInit { flavour, ..QpInit::new(Type::IBV_QPT_RC, &cq, &cq) };
    set(&mut init);
    Qp::new(&device.pd(), &init)
}

fn a_pair_has_at_least_what_was_asked_for(rig: &Rig, flavour: Flavour) -> Outcome {
    let most = rig.open().query().unwrap();
    for (wr, sge, inline) in [(1, 1, 0), (100, 3, 32), (1000, most.max_sge as u32, 0)] {
        let qp = make(rig, flavour, |init| {
            (init.cap.max_send_wr, init.cap.max_recv_wr) = (wr, wr + 1);
            (init.cap.max_send_sge, init.cap.max_recv_sge) = (sge, sge);
            init.cap.max_inline_data = inline;
        });
        let cap = qp.unwrap().granted();
        assert!(cap.max_send_wr >= wr && cap.max_recv_wr > wr, "{cap:?}");
        assert!(cap.max_send_sge >= sge && cap.max_recv_sge >= sge, "{cap:?}");
        assert!(cap.max_inline_data >= inline, "{cap:?}");
    }
    Ok(())
}

fn a_pair_beyond_the_limits_is_refused(rig: &Rig, flavour: Flavour) -> Outcome {
    let most = rig.open().query().unwrap();
    let (wr, sge) = (most.max_qp_wr as u32 + 1, most.max_sge as u32 + 1);
    let too_much: [fn(&mut QpInit, u32, u32); 5] = [
        |init, wr, _| init.cap.max_send_wr = wr,
        |init, wr, _| init.cap.max_recv_wr = wr,
        |init, _, sge| init.cap.max_send_sge = sge,
        |init, _, sge| init.cap.max_recv_sge = sge,
        |init, _, _| init.cap.max_inline_data = 1 << 20,
    ];
    for (n, set) in too_much.into_iter().enumerate() {
        let error = make(rig, flavour, |init| set(init, wr, sge)).err();
        assert!([Some(EINVAL), Some(ENOMEM)].contains(&error), "limit {n}: {error:?}");
    }
    Ok(())
}

fn a_new_pair_is_in_reset(rig: &Rig, flavour: Flavour) -> Outcome {
    let qp = Node::new(&rig.open(), &Options::rc(flavour)).qp;
    assert_eq!((qp.state(), qp.cached_state()), (State::IBV_QPS_RESET, State::IBV_QPS_RESET));
    Ok(())
}

fn a_pair_goes_all_the_way_up(rig: &Rig, flavour: Flavour) -> Outcome {
    let device = rig.open();
    for qp_type in TYPES {
        let node = Node::new(&device, &Options::new(qp_type, flavour));
        for state in [State::IBV_QPS_INIT, State::IBV_QPS_RTR, State::IBV_QPS_RTS] {
            assert_eq!(node.qp.modify(node.change_to(state)), 0, "{qp_type:?} to {state:?}");
            assert_eq!(node.qp.state(), state);
        }
    }
    Ok(())
}

fn pair_numbers_are_unique(rig: &Rig) -> Outcome {
    let contexts = [rig.open(), rig.open()];
    let nodes: Vec<_> =
        (0..60).map(|n| Node::new(&contexts[n % 2], &Options::rc(Flavour::Classic))).collect();
    let numbers: HashSet<_> = nodes.iter().map(|node| node.qp.num()).collect();
    assert_eq!(numbers.len(), 60);
    Ok(())
}

/// Late packets of the last pair of that number would meet the next one's.
fn a_pair_number_is_not_used_again_at_once(rig: &Rig) -> Outcome {
    let device = rig.open();
    let number = || Node::new(&device, &Options::rc(Flavour::Classic)).qp.num();
    let numbers: HashSet<_> = (0..8).map(|_| number()).collect();
    assert_eq!(numbers.len(), 8, "{numbers:?}");
    Ok(())
}

/// `man ibv_create_qp`: a queue pair has two completion queues.
fn a_pair_without_a_completion_queue_is_refused(rig: &Rig) -> Outcome {
    if rig.target == Target::System {
        skip!("libibverbs follows the null pointer and crashes");
    }
    for (send, recv) in [(false, true), (true, false), (false, false)] {
        let made = make(rig, Flavour::Classic, |init| {
            init.send_cq = init.send_cq.take().filter(|_| send);
            init.recv_cq = init.recv_cq.take().filter(|_| recv);
        });
        assert_eq!(made.err(), Some(EINVAL), "send {send}, receive {recv}");
    }
    Ok(())
}

fn a_pair_of_an_unknown_type_is_refused(rig: &Rig) -> Outcome {
    for number in [0, 77, 1000] {
        let error = make(rig, Flavour::Classic, |init| init.qp_type = Type(number)).err();
        assert!([Some(EINVAL), Some(EOPNOTSUPP)].contains(&error), "type {number}: {error:?}");
    }
    Ok(())
}

/// `man ibv_wr_post`: which operations there are depends on the type.
fn extended_operations_of_another_type_are_refused(rig: &Rig) -> Outcome {
    use rdma_mummy_sys::types::ibv_qp_create_send_ops_flags as Ops;
    for (qp_type, ops) in [
        (Type::IBV_QPT_UD, Ops::IBV_QP_EX_WITH_RDMA_WRITE),
        (Type::IBV_QPT_UD, Ops::IBV_QP_EX_WITH_RDMA_READ),
        (Type::IBV_QPT_UC, Ops::IBV_QP_EX_WITH_RDMA_READ),
        (Type::IBV_QPT_UC, Ops::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD),
        (Type::IBV_QPT_RC, Ops::IBV_QP_EX_WITH_TSO),
    ] {
        let made = make(rig, Flavour::Extended, |init| {
            init.qp_type = qp_type;
            init.ops = Some(ops.0.into());
        });
        let error = made.err();
        assert!([Some(EINVAL), Some(EOPNOTSUPP)].contains(&error), "{ops:?} of {qp_type:?}: {error:?}");
    }
    Ok(())
}

fn unknown_extended_operations_are_refused(rig: &Rig) -> Outcome {
    let error = make(rig, Flavour::Extended, |init| init.ops = Some(1 << 50)).err();
    assert!([Some(EINVAL), Some(EOPNOTSUPP)].contains(&error), "{error:?}");
    Ok(())
}

/// `man ibv_wr_post`: a pair that was made with `send_ops_flags` has it; what others get is the device's choice.
fn a_classic_pair_has_the_extended_interface_or_not(rig: &Rig) -> Outcome {
    assert!(make(rig, Flavour::Extended, |_| {}).unwrap().is_extended());
    let _either = make(rig, Flavour::Classic, |_| {}).unwrap().is_extended();
    Ok(())
}

/// All attributes of `ibv_modify_qp`, but the rate limit.
const KNOWN: u32 = (Mask::IBV_QP_DEST_QPN.0 << 1) - 1;

fn unknown_attributes_of_a_query_are_refused(rig: &Rig) -> Outcome {
    let error = node(rig, Type::IBV_QPT_RC).qp.query(KNOWN | 1 << 30).err();
    assert!([Some(EINVAL), Some(EOPNOTSUPP)].contains(&error), "{error:?}");
    Ok(())
}

fn a_query_returns_what_was_set(rig: &Rig) -> Outcome {
    let options = Options::rc(Flavour::Classic).set(|options| {
        (options.timeout, options.retry_cnt, options.rnr_retry, options.min_rnr_timer) = (17, 5, 3, 11);
        (options.rd_atomic, options.dest_rd_atomic) = (2, 6);
        options.mtu = Mtu::IBV_MTU_512;
    });
    let (a, b) = pair(rig, &options);
    let (attr, _) = a.qp.query(KNOWN).unwrap();
    assert_eq!((attr.qp_state, attr.path_mtu), (State::IBV_QPS_RTS, Mtu::IBV_MTU_512));
    assert_eq!((attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer), (17, 5, 3, 11));
    assert_eq!(attr.dest_qp_num, b.qp.num());
    assert_eq!((attr.sq_psn, attr.rq_psn), (a.options.psn, b.options.psn));
    assert_eq!((attr.port_num, attr.pkey_index), (1, 0));
    assert_eq!(attr.qp_access_flags & 0xf, crate::kit::EVERYTHING);
    assert_eq!((attr.ah_attr.is_global, attr.ah_attr.grh.sgid_index), (1, a.gid.1));
    assert_eq!(raw_gid(&attr.ah_attr.grh.dgid), b.gid.0);
    // A device may round these up.
    assert!(attr.max_rd_atomic >= 2 && attr.max_dest_rd_atomic >= 6, "{}", attr.max_rd_atomic);
    Ok(())
}

fn a_query_returns_how_the_pair_was_made(rig: &Rig) -> Outcome {
    let node = node(rig, Type::IBV_QPT_RC);
    let (attr, init) = node.qp.query(Mask::IBV_QP_CAP.0).unwrap();
    let (granted, asked) = (node.qp.granted(), &node.options.cap);
    assert_eq!(init.qp_type, Type::IBV_QPT_RC);
    assert_eq!((init.send_cq.addr(), init.recv_cq.addr()), (node.send_cq.address(), node.recv_cq.address()));
    assert!(init.cap.max_send_wr >= asked.max_send_wr && attr.cap.max_recv_wr >= asked.max_recv_wr);
    assert_eq!((attr.cap.max_send_sge, attr.cap.max_recv_sge), (granted.max_send_sge, granted.max_recv_sge));
    assert!(init.srq.is_null() && init.sq_sig_all == 0);
    Ok(())
}

fn a_pair_of_datagrams_tells_its_key(rig: &Rig) -> Outcome {
    let node = node_in(rig, Type::IBV_QPT_UD, State::IBV_QPS_RTS);
    assert_eq!(node.qp.query(Mask::IBV_QP_QKEY.0).unwrap().0.qkey, crate::kit::QKEY);
    let change = Change::to(State::IBV_QPS_RTS).with(Mask::IBV_QP_QKEY, |attr| attr.qkey = 5);
    assert_eq!(node.qp.modify(change), 0);
    assert_eq!(node.qp.query(Mask::IBV_QP_QKEY.0).unwrap().0.qkey, 5);
    Ok(())
}

/// IBTA chapter 10, queue pair states, ready to receive: a pair in RTR receives, and needs not go further.
fn a_pair_goes_up_without_sending(rig: &Rig) -> Outcome {
    let (a, b) = (node(rig, Type::IBV_QPT_RC), node(rig, Type::IBV_QPT_RC));
    a.connect(&b.peer());
    b.init();
    b.rtr(&a.peer());
    b.recv(1, 0, 64);
    a.done(Wr::send(2).sge(a.mr.at(0, 8)));
    assert_eq!(b.recv_cq.ok().id, 1);
    a.done(Wr::read(3, b.mr.remote(0)).sge(a.mr.at(0, 8)));
    assert_eq!(b.qp.state(), State::IBV_QPS_RTR);
    Ok(())
}

/// All states that a pair gets into by being told to.
const ALL_STATES: [State; 6] = [
    State::IBV_QPS_RESET,
    State::IBV_QPS_INIT,
    State::IBV_QPS_RTR,
    State::IBV_QPS_RTS,
    State::IBV_QPS_SQD,
    State::IBV_QPS_ERR,
];

/// To ERR from everywhere but RESET, where a pair has nothing to flush: the kernel's table refuses that.
fn every_state_leads_to_error(rig: &Rig) -> Outcome {
    for qp_type in TYPES {
        let fresh = node(rig, qp_type);
        fresh.refuses(Change::to(State::IBV_QPS_ERR), "RESET to ERR");
        for state in &ALL_STATES[1..] {
            let state = *state;
            let node = node_in(rig, qp_type, state);
            node.go(State::IBV_QPS_ERR);
            assert_eq!(node.qp.state(), State::IBV_QPS_ERR, "{qp_type:?} from {state:?}");
        }
    }
    Ok(())
}

/// IBTA chapter 10, queue pair states, the diagram of states: to RESET from everywhere.
fn every_state_leads_to_reset(rig: &Rig) -> Outcome {
    for qp_type in TYPES {
        for state in ALL_STATES {
            let node = node_in(rig, qp_type, state);
            node.go(State::IBV_QPS_RESET);
            assert_eq!(node.qp.state(), State::IBV_QPS_RESET, "{qp_type:?} from {state:?}");
            assert_eq!(node.qp.modify(node.to_init()), 0);
        }
    }
    Ok(())
}

fn states_cannot_be_skipped(rig: &Rig) -> Outcome {
    for qp_type in TYPES {
        let node = node(rig, qp_type);
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

fn states_do_not_lead_back(rig: &Rig) -> Outcome {
    for qp_type in TYPES {
        let up = node_in(rig, qp_type, State::IBV_QPS_RTS);
        up.refuses(up.change_to(State::IBV_QPS_INIT), "RTS to INIT");
        up.refuses(up.change_to(State::IBV_QPS_RTR), "RTS to RTR");
        let ready = node_in(rig, qp_type, State::IBV_QPS_RTR);
        ready.refuses(ready.change_to(State::IBV_QPS_INIT), "RTR to INIT");
        ready.refuses(ready.change_to(State::IBV_QPS_RTR), "RTR to RTR");
        let failed = node_in(rig, qp_type, State::IBV_QPS_ERR);
        for state in [State::IBV_QPS_INIT, State::IBV_QPS_RTR, State::IBV_QPS_RTS, State::IBV_QPS_SQD] {
            failed.refuses(failed.change_to(state), "out of ERR");
        }
    }
    Ok(())
}

/// As above, out of SQD.
fn a_drained_pair_goes_only_on(rig: &Rig) -> Outcome {
    for qp_type in TYPES {
        let drained = node_in(rig, qp_type, State::IBV_QPS_SQD);
        drained.refuses(drained.change_to(State::IBV_QPS_INIT), "SQD to INIT");
        drained.refuses(drained.change_to(State::IBV_QPS_RTR), "SQD to RTR");
        drained.go(State::IBV_QPS_RTS);
    }
    Ok(())
}

/// SQE is what becomes of a pair, not what it is told to be.
fn no_pair_is_told_to_fail_to_send(rig: &Rig) -> Outcome {
    for qp_type in TYPES {
        for state in ALL_STATES {
            let node = node_in(rig, qp_type, state);
            node.refuses(Change::to(State::IBV_QPS_SQE), &format!("{qp_type:?} from {state:?} to SQE"));
        }
    }
    Ok(())
}

fn unknown_states_are_refused(rig: &Rig) -> Outcome {
    for qp_type in TYPES {
        let node = node_in(rig, qp_type, State::IBV_QPS_RTS);
        for state in [State::IBV_QPS_UNKNOWN, State(8), State(255), State(u32::MAX)] {
            node.refuses(Change::to(state), &format!("{state:?}"));
        }
        assert_eq!(node.qp.cached_state(), State::IBV_QPS_RTS);
    }
    Ok(())
}

/// Leaves each attribute of a change out in turn.
fn needs_each(rig: &Rig, qp_type: Type, before: State, after: State, attributes: &[Mask]) {
    let node = node_in(rig, qp_type, before);
    let change = node.change_to(after);
    for mask in attributes {
        assert_ne!(change.mask & mask.0, 0, "{mask:?}");
        node.refuses(change.without(*mask), &format!("{qp_type:?} to {after:?} without {mask:?}"));
    }
    assert_eq!(node.qp.modify(change), 0);
}

/// `man ibv_modify_qp`, the table of required attributes.
fn init_needs_each_of_its_attributes(rig: &Rig) -> Outcome {
    let common = [Mask::IBV_QP_PKEY_INDEX, Mask::IBV_QP_PORT];
    let (reset, init) = (State::IBV_QPS_RESET, State::IBV_QPS_INIT);
    for qp_type in [Type::IBV_QPT_RC, Type::IBV_QPT_UC] {
        needs_each(rig, qp_type, reset, init, &[common[0], common[1], Mask::IBV_QP_ACCESS_FLAGS]);
    }
    needs_each(rig, Type::IBV_QPT_UD, reset, init, &[common[0], common[1], Mask::IBV_QP_QKEY]);
    Ok(())
}

fn rtr_needs_each_of_its_attributes(rig: &Rig) -> Outcome {
    let (init, rtr) = (State::IBV_QPS_INIT, State::IBV_QPS_RTR);
    let all = [
        Mask::IBV_QP_AV,
        Mask::IBV_QP_PATH_MTU,
        Mask::IBV_QP_DEST_QPN,
        Mask::IBV_QP_RQ_PSN,
        Mask::IBV_QP_MAX_DEST_RD_ATOMIC,
        Mask::IBV_QP_MIN_RNR_TIMER,
    ];
    needs_each(rig, Type::IBV_QPT_RC, init, rtr, &all);
    needs_each(rig, Type::IBV_QPT_UC, init, rtr, &all[..4]);
    Ok(())
}

fn rts_needs_each_of_its_attributes(rig: &Rig) -> Outcome {
    let (rtr, rts) = (State::IBV_QPS_RTR, State::IBV_QPS_RTS);
    let all = [
        Mask::IBV_QP_SQ_PSN,
        Mask::IBV_QP_TIMEOUT,
        Mask::IBV_QP_RETRY_CNT,
        Mask::IBV_QP_RNR_RETRY,
        Mask::IBV_QP_MAX_QP_RD_ATOMIC,
    ];
    needs_each(rig, Type::IBV_QPT_RC, rtr, rts, &all);
    for qp_type in [Type::IBV_QPT_UC, Type::IBV_QPT_UD] {
        needs_each(rig, qp_type, rtr, rts, &all[..1]);
    }
    Ok(())
}

fn attributes_of_other_transitions_are_refused(rig: &Rig) -> Outcome {
    let node = node(rig, Type::IBV_QPT_RC);
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

fn attributes_of_other_types_are_refused(rig: &Rig) -> Outcome {
    let connected = node(rig, Type::IBV_QPT_RC);
    connected.refuses(connected.to_init().with(Mask::IBV_QP_QKEY, |attr| attr.qkey = 1), "QKEY of RC");
    let datagram = node(rig, Type::IBV_QPT_UD);
    datagram.refuses(datagram.to_init().with(Mask::IBV_QP_ACCESS_FLAGS, |_| {}), "ACCESS_FLAGS of UD");
    datagram.init();
    let rtr = datagram.to_rtr(&datagram.peer());
    datagram.refuses(rtr.with(Mask::IBV_QP_DEST_QPN, |_| {}), "DEST_QPN of UD");
    let unreliable = node_in(rig, Type::IBV_QPT_UC, State::IBV_QPS_RTR);
    unreliable.refuses(unreliable.to_rts().with(Mask::IBV_QP_TIMEOUT, |_| {}), "TIMEOUT of UC");
    unreliable.refuses(unreliable.to_rts().with(Mask::IBV_QP_RETRY_CNT, |_| {}), "RETRY_CNT of UC");
    Ok(())
}

fn values_out_of_range_are_refused(rig: &Rig) -> Outcome {
    let fresh = node(rig, Type::IBV_QPT_RC);
    fresh.refuses(fresh.to_init().with(Mask::IBV_QP_PORT, |attr| attr.port_num = 0), "port 0");
    fresh.refuses(fresh.to_init().with(Mask::IBV_QP_PORT, |attr| attr.port_num = 200), "port 200");
    fresh.init();
    let rtr = fresh.to_rtr(&fresh.peer());
    fresh.refuses(rtr.with(Mask::IBV_QP_AV, |attr| attr.ah_attr.port_num = 200), "the path's port 200");
    let error = fresh.qp.modify(rtr.with(Mask::IBV_QP_AV, |attr| attr.ah_attr.grh.sgid_index = 255));
    assert!([EINVAL, ENODATA].contains(&error), "GID index 255: {error}");
    fresh.rtr(&fresh.peer());
    let beyond = |attr: &mut rdma_mummy_sys::types::ibv_qp_attr| attr.max_rd_atomic = 255;
    fresh.refuses(fresh.to_rts().with(Mask::IBV_QP_MAX_QP_RD_ATOMIC, beyond), "255 reads as requester");
    Ok(())
}

/// IBTA chapter 11, modify queue pair: the responder's resources are limited by what the device says,
/// `max_qp_rd_atom`.
fn more_reads_than_the_responder_has_room_for_are_refused(rig: &Rig) -> Outcome {
    rig.not_softroce("does not look at max_dest_rd_atomic")?;
    let node = node_in(rig, Type::IBV_QPT_RC, State::IBV_QPS_INIT);
    let most = node.device.query().unwrap().max_qp_rd_atom;
    if most >= 255 {
        skip!("the device has room for {most} reads, and the attribute ends at 255");
    }
    let rtr = node.to_rtr(&node.peer());
    let beyond = |attr: &mut rdma_mummy_sys::types::ibv_qp_attr| attr.max_dest_rd_atomic = most as u8 + 1;
    node.refuses(rtr.with(Mask::IBV_QP_MAX_DEST_RD_ATOMIC, beyond), "too many reads");
    Ok(())
}

/// A RoCE port has no other way to say where a packet goes (IBTA annex A16, RoCE).
fn an_address_without_global_route_is_refused(rig: &Rig) -> Outcome {
    for qp_type in [Type::IBV_QPT_RC, Type::IBV_QPT_UC] {
        let node = node_in(rig, qp_type, State::IBV_QPS_INIT);
        let rtr = node.to_rtr(&node.peer()).with(Mask::IBV_QP_AV, |attr| attr.ah_attr.is_global = 0);
        node.refuses(rtr, "no global route");
    }
    Ok(())
}

fn a_wrong_current_state_is_refused(rig: &Rig) -> Outcome {
    let node = node_in(rig, Type::IBV_QPT_RC, State::IBV_QPS_RTR);
    let claim = |state| node.to_rts().with(Mask::IBV_QP_CUR_STATE, |attr| attr.cur_qp_state = state);
    node.refuses(claim(State::IBV_QPS_INIT), "INIT claimed");
    node.refuses(claim(State::IBV_QPS_ERR), "ERR claimed");
    Ok(())
}

fn the_right_current_state_is_accepted(rig: &Rig) -> Outcome {
    let node = node_in(rig, Type::IBV_QPT_RC, State::IBV_QPS_RTR);
    let change = node.to_rts().with(Mask::IBV_QP_CUR_STATE, |attr| attr.cur_qp_state = State::IBV_QPS_RTR);
    assert_eq!(node.qp.modify(change), 0);
    assert_eq!(node.qp.state(), State::IBV_QPS_RTS);
    Ok(())
}

fn init_may_be_changed_in_init(rig: &Rig) -> Outcome {
    let node = node_in(rig, Type::IBV_QPT_RC, State::IBV_QPS_INIT);
    let access = |flags| {
        Change::to(State::IBV_QPS_INIT).with(Mask::IBV_QP_ACCESS_FLAGS, |attr| attr.qp_access_flags = flags)
    };
    assert_eq!(node.qp.modify(access(0)), 0);
    assert_eq!(node.qp.query(Mask::IBV_QP_ACCESS_FLAGS.0).unwrap().0.qp_access_flags & 0xe, 0);
    assert_eq!(node.qp.modify(access(crate::kit::EVERYTHING)), 0);
    Ok(())
}

fn rts_may_be_changed_in_rts(rig: &Rig) -> Outcome {
    let (a, b) = pair(rig, &Options::rc(Flavour::Classic));
    let change =
        Change::to(State::IBV_QPS_RTS).with(Mask::IBV_QP_ACCESS_FLAGS, |attr| attr.qp_access_flags = 1);
    a.done(Wr::write(1, b.mr.remote(0)).sge(a.mr.at(0, 8)));
    assert_eq!(b.qp.modify(change), 0);
    let status = a.fails(Wr::write(2, b.mr.remote(0)).sge(a.mr.at(0, 8)));
    assert!([Status::IBV_WC_REM_ACCESS_ERR, Status::IBV_WC_REM_INV_REQ_ERR].contains(&status), "{status:?}");
    Ok(())
}

fn a_timer_may_be_changed_at_work(rig: &Rig) -> Outcome {
    let node = node_in(rig, Type::IBV_QPT_RC, State::IBV_QPS_RTS);
    let change =
        Change::to(State::IBV_QPS_RTS).with(Mask::IBV_QP_MIN_RNR_TIMER, |attr| attr.min_rnr_timer = 5);
    assert_eq!(node.qp.modify(change), 0);
    assert_eq!(node.qp.query(Mask::IBV_QP_MIN_RNR_TIMER.0).unwrap().0.min_rnr_timer, 5);
    Ok(())
}

fn a_refused_change_changes_nothing(rig: &Rig) -> Outcome {
    let node = node_in(rig, Type::IBV_QPT_RC, State::IBV_QPS_RTR);
    let bad = node
        .to_rts()
        .with(Mask::IBV_QP_TIMEOUT, |attr| attr.timeout = 3)
        .with(Mask::IBV_QP_MAX_QP_RD_ATOMIC, |attr| attr.max_rd_atomic = 255);
    node.refuses(bad, "255 reads");
    node.rts();
    assert_eq!(node.qp.query(Mask::IBV_QP_TIMEOUT.0).unwrap().0.timeout, node.options.timeout);
    Ok(())
}

fn the_library_remembers_the_state(rig: &Rig) -> Outcome {
    let node = node(rig, Type::IBV_QPT_RC);
    for state in [State::IBV_QPS_INIT, State::IBV_QPS_RTR, State::IBV_QPS_RTS, State::IBV_QPS_ERR] {
        assert_eq!(node.qp.modify(node.change_to(state)), 0);
        assert_eq!(node.qp.cached_state(), state);
    }
    Ok(())
}

/// IBTA chapter 10, queue pair states, send queue drain: SQD finishes what was begun, and RTS goes on.
fn a_pair_drains_and_goes_on(rig: &Rig) -> Outcome {
    let (a, b) = pair(rig, &Options::rc(Flavour::Classic));
    a.done(Wr::write(1, b.mr.remote(0)).sge(a.mr.at(0, 8)));
    a.go(State::IBV_QPS_SQD);
    a.drained();
    assert_eq!(a.qp.state(), State::IBV_QPS_SQD);
    a.recv(2, 0, 64);
    b.done(Wr::send(3).sge(b.mr.at(0, 8)));
    assert_eq!(a.recv_cq.ok().id, 2, "receiving goes on");
    a.go(State::IBV_QPS_RTS);
    a.done(Wr::write(4, b.mr.remote(0)).sge(a.mr.at(0, 8)));
    Ok(())
}

fn a_pair_drained_takes_new_attributes(rig: &Rig) -> Outcome {
    let (a, b) = pair(rig, &Options::rc(Flavour::Classic));
    a.go(State::IBV_QPS_SQD);
    a.drained();
    let change = Change::to(State::IBV_QPS_SQD)
        .with(Mask::IBV_QP_RETRY_CNT, |attr| attr.retry_cnt = 2)
        .with(Mask::IBV_QP_TIMEOUT, |attr| attr.timeout = 18);
    assert_eq!(a.qp.modify(change), 0);
    let (attr, _) = a.qp.query(Mask::IBV_QP_TIMEOUT.0).unwrap();
    assert_eq!((attr.retry_cnt, attr.timeout), (2, 18));
    a.drained();
    a.go(State::IBV_QPS_RTS);
    a.done(Wr::write(4, b.mr.remote(0)).sge(a.mr.at(0, 8)));
    Ok(())
}

/// IBTA chapter 10, queue pair states, send queue drain: requests posted in SQD are queued and not begun.
fn requests_posted_while_drained_wait(rig: &Rig) -> Outcome {
    rig.not_softroce("does not take up the requests that were posted in SQD")?;
    let (a, b) = pair(rig, &Options::rc(Flavour::Classic));
    a.go(State::IBV_QPS_SQD);
    a.drained();
    a.mr.buf.set(0, &[1; 8]);
    a.post(Wr::write(1, b.mr.remote(0)).sge(a.mr.at(0, 8)));
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert!(a.send_cq.is_empty());
    assert_eq!(b.mr.buf.get(0, 8), [0; 8]);
    a.go(State::IBV_QPS_RTS);
    assert_eq!(a.send_cq.ok().id, 1);
    assert_eq!(b.mr.buf.get(0, 8), [1; 8]);
    Ok(())
}

/// IBTA chapter 10, queue pair states, reset: it forgets all requests, without completions.
fn reset_forgets_what_was_posted(rig: &Rig) -> Outcome {
    let (a, b) = pair(rig, &Options::rc(Flavour::Classic));
    b.recv(1, 0, 64);
    b.go(State::IBV_QPS_RESET);
    b.connect(&a.peer());
    assert!(b.recv_cq.is_empty());
    b.recv(2, 0, 64);
    a.done(Wr::send(3).sge(a.mr.at(0, 8)));
    assert_eq!(b.recv_cq.ok().id, 2);
    Ok(())
}

/// The refusal of a request that a pair does not take in its state; SoftRoCE does not say which it was.
fn refusal(rig: &Rig) -> Result<(), (i32, usize)> {
    Err((EINVAL, rig.expects(0, usize::MAX)))
}

/// `man ibv_post_send`; IBTA 11.4.1.1, post send request: an immediate error.
fn a_pair_in_reset_takes_no_requests(rig: &Rig) -> Outcome {
    let node = node(rig, Type::IBV_QPT_RC);
    assert_eq!(node.qp.post(&[Wr::send(1).sge(node.mr.at(0, 8))]), refusal(rig));
    assert!(node.send_cq.is_empty());
    Ok(())
}

/// `man ibv_post_recv`; IBTA 11.4.1.2, post receive request: an immediate error.
fn a_pair_in_reset_takes_no_receives(rig: &Rig) -> Outcome {
    let node = node(rig, Type::IBV_QPT_RC);
    assert_eq!(node.qp.recv_list(&[Recv::new(1)]), refusal(rig));
    assert!(node.recv_cq.is_empty());
    Ok(())
}

fn a_pair_in_init_takes_receives_only(rig: &Rig) -> Outcome {
    let node = node_in(rig, Type::IBV_QPT_RC, State::IBV_QPS_INIT);
    node.recv(1, 0, 64);
    assert!(node.recv_cq.is_empty());
    node.rtr(&node.peer());
    node.rts();
    node.done(Wr::send(2).sge(node.mr.at(0, 8)));
    assert_eq!(node.recv_cq.ok().id, 1);
    let node = node_in(rig, Type::IBV_QPT_RC, State::IBV_QPS_INIT);
    assert_eq!(node.qp.post(&[Wr::send(1).sge(node.mr.at(0, 8))]), refusal(rig));
    Ok(())
}

fn a_pair_in_rtr_receives_but_does_not_send(rig: &Rig) -> Outcome {
    let node = node_in(rig, Type::IBV_QPT_RC, State::IBV_QPS_RTR);
    assert_eq!(node.qp.post(&[Wr::send(1).sge(node.mr.at(0, 8))]), refusal(rig));
    node.recv(1, 0, 64);
    assert!(node.recv_cq.is_empty());
    Ok(())
}

fn a_pair_is_destroyed_with_work_outstanding(rig: &Rig) -> Outcome {
    let (a, b) = pair(rig, &Options::rc(Flavour::Classic));
    for id in 0..5 {
        a.post(Wr::send(id).sge(a.mr.at(0, 8)));
        a.recv(id, 0, 64);
    }
    assert_eq!(a.qp.destroy(), 0);
    assert_eq!((a.send_cq.destroy(), a.recv_cq.destroy(), a.mr.dereg(), a.pd.dealloc()), (0, 0, 0, 0));
    assert_eq!(b.qp.state(), State::IBV_QPS_RTS);
    Ok(())
}

fn a_pair_in_any_state_is_destroyed(rig: &Rig) -> Outcome {
    for qp_type in TYPES {
        for state in ALL_STATES {
            assert_eq!(node_in(rig, qp_type, state).qp.destroy(), 0, "{qp_type:?} in {state:?}");
        }
    }
    Ok(())
}

fn many_pairs_are_made(rig: &Rig) -> Outcome {
    let device = rig.open();
    let (pd, cq) = (device.pd(), device.cq(16));
    let init = QpInit::new(Type::IBV_QPT_RC, &cq, &cq);
    let pairs: Vec<_> = (0..200).map(|_| Qp::new(&pd, &init).unwrap()).collect();
    assert!(pairs.iter().all(|qp| qp.destroy() == 0));
    Ok(())
}
