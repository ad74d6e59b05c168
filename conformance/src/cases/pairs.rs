//! Queue pairs: creation, queries and destruction.

use std::collections::HashSet;

use libc::{EINVAL, ENOMEM, EOPNOTSUPP};
use rdma_mummy_sys::types::ibv_mtu as Mtu;
use rdma_mummy_sys::types::ibv_qp_attr_mask as Mask;
use rdma_mummy_sys::types::ibv_qp_state as State;
use rdma_mummy_sys::types::ibv_qp_type as Type;

use crate::kit::{
    Flavour, Node, NodeOptions, Outcome, Qp, QpChange, QpInit, STATES, Suite, TYPES, TestDevice, Wr, ah_attr,
    node, node_in, pair, raw_gid,
};

pub(crate) fn cases(suite: &mut Suite) {
    both!(suite:
        pairs_of_every_type_are_made,
        a_pair_has_at_least_what_was_asked_for,
        a_pair_beyond_the_limits_is_refused,
        a_new_pair_is_in_reset,
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
        a_pair_is_destroyed_with_work_outstanding,
        a_pair_in_any_state_is_destroyed,
        many_pairs_are_made,
    );
}

fn pairs_of_every_type_are_made(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let device = dut.open();
    for qp_type in TYPES {
        let node = Node::new(&device, &NodeOptions::new(qp_type, flavour));
        assert!(node.qp.num() > 1 && node.qp.num() < 1 << 24, "{:#x}", node.qp.num());
        assert_eq!(node.qp.destroy(), 0);
    }
    Ok(())
}

/// Tries to create a pair with these capabilities.
fn make(dut: &TestDevice, flavour: Flavour, set: impl FnOnce(&mut QpInit)) -> Result<Qp, i32> {
    let device = dut.open();
    let cq = device.cq(16);
    let mut init = QpInit { flavour, ..QpInit::new(Type::IBV_QPT_RC, &cq, &cq) };
    set(&mut init);
    Qp::new(&device.pd(), &init)
}

fn a_pair_has_at_least_what_was_asked_for(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let most = dut.open().query().unwrap();
    for (wr, sge, inline) in [(1, 1, 0), (100, 3, 32), (1000, most.max_sge as u32, 0)] {
        let qp = make(dut, flavour, |init| {
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

fn a_pair_beyond_the_limits_is_refused(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let most = dut.open().query().unwrap();
    let (wr, sge) = (most.max_qp_wr as u32 + 1, most.max_sge as u32 + 1);
    let too_much: [fn(&mut QpInit, u32, u32); 5] = [
        |init, wr, _| init.cap.max_send_wr = wr,
        |init, wr, _| init.cap.max_recv_wr = wr,
        |init, _, sge| init.cap.max_send_sge = sge,
        |init, _, sge| init.cap.max_recv_sge = sge,
        |init, _, _| init.cap.max_inline_data = 1 << 20,
    ];
    for (n, set) in too_much.into_iter().enumerate() {
        let error = make(dut, flavour, |init| set(init, wr, sge)).err();
        assert!([Some(EINVAL), Some(ENOMEM)].contains(&error), "limit {n}: {error:?}");
    }
    Ok(())
}

fn a_new_pair_is_in_reset(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let qp = Node::new(&dut.open(), &NodeOptions::rc(flavour)).qp;
    assert_eq!((qp.state(), qp.cached_state()), (State::IBV_QPS_RESET, State::IBV_QPS_RESET));
    Ok(())
}

fn pair_numbers_are_unique(dut: &TestDevice) -> Outcome {
    let contexts = [dut.open(), dut.open()];
    let nodes: Vec<_> =
        (0..60).map(|n| Node::new(&contexts[n % 2], &NodeOptions::rc(Flavour::Classic))).collect();
    let numbers: HashSet<_> = nodes.iter().map(|node| node.qp.num()).collect();
    assert_eq!(numbers.len(), 60);
    Ok(())
}

/// Otherwise late packets of the old pair would reach the new pair with its number.
fn a_pair_number_is_not_used_again_at_once(dut: &TestDevice) -> Outcome {
    let device = dut.open();
    let number = || Node::new(&device, &NodeOptions::rc(Flavour::Classic)).qp.num();
    let numbers: HashSet<_> = (0..8).map(|_| number()).collect();
    assert_eq!(numbers.len(), 8, "{numbers:?}");
    Ok(())
}

/// `man ibv_create_qp`: a queue pair has two completion queues.
fn a_pair_without_a_completion_queue_is_refused(dut: &TestDevice) -> Outcome {
    dut.not_on_system("libibverbs follows the null pointer and crashes")?;
    for (send, recv) in [(false, true), (true, false), (false, false)] {
        let made = make(dut, Flavour::Classic, |init| {
            init.send_cq = init.send_cq.take().filter(|_| send);
            init.recv_cq = init.recv_cq.take().filter(|_| recv);
        });
        assert_eq!(made.err(), Some(EINVAL), "send {send}, receive {recv}");
    }
    Ok(())
}

fn a_pair_of_an_unknown_type_is_refused(dut: &TestDevice) -> Outcome {
    for number in [0, 77, 1000] {
        let error = make(dut, Flavour::Classic, |init| init.qp_type = Type(number)).err();
        assert!([Some(EINVAL), Some(EOPNOTSUPP)].contains(&error), "type {number}: {error:?}");
    }
    Ok(())
}

/// `man ibv_wr_post`: the type of a pair determines its operations.
fn extended_operations_of_another_type_are_refused(dut: &TestDevice) -> Outcome {
    use rdma_mummy_sys::types::ibv_qp_create_send_ops_flags as Ops;
    for (qp_type, ops) in [
        (Type::IBV_QPT_UD, Ops::IBV_QP_EX_WITH_RDMA_WRITE),
        (Type::IBV_QPT_UD, Ops::IBV_QP_EX_WITH_RDMA_READ),
        (Type::IBV_QPT_UC, Ops::IBV_QP_EX_WITH_RDMA_READ),
        (Type::IBV_QPT_UC, Ops::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD),
        (Type::IBV_QPT_RC, Ops::IBV_QP_EX_WITH_TSO),
    ] {
        let made = make(dut, Flavour::Extended, |init| {
            init.qp_type = qp_type;
            init.ops = Some(ops.0.into());
        });
        let error = made.err();
        assert!([Some(EINVAL), Some(EOPNOTSUPP)].contains(&error), "{ops:?} of {qp_type:?}: {error:?}");
    }
    Ok(())
}

fn unknown_extended_operations_are_refused(dut: &TestDevice) -> Outcome {
    let error = make(dut, Flavour::Extended, |init| init.ops = Some(1 << 50)).err();
    assert!([Some(EINVAL), Some(EOPNOTSUPP)].contains(&error), "{error:?}");
    Ok(())
}

/// `man ibv_wr_post`: a pair that was created with `send_ops_flags` has the interface. For other
/// pairs the device decides.
fn a_classic_pair_has_the_extended_interface_or_not(dut: &TestDevice) -> Outcome {
    assert!(make(dut, Flavour::Extended, |_| {}).unwrap().is_extended());
    let _either = make(dut, Flavour::Classic, |_| {}).unwrap().is_extended();
    Ok(())
}

/// All attributes of `ibv_modify_qp` except the rate limit.
const KNOWN: u32 = (Mask::IBV_QP_DEST_QPN.0 << 1) - 1;

fn unknown_attributes_of_a_query_are_refused(dut: &TestDevice) -> Outcome {
    let error = node(dut, Type::IBV_QPT_RC).qp.query(KNOWN | 1 << 30).err();
    assert!([Some(EINVAL), Some(EOPNOTSUPP)].contains(&error), "{error:?}");
    Ok(())
}

fn a_query_returns_what_was_set(dut: &TestDevice) -> Outcome {
    let options = NodeOptions::rc(Flavour::Classic).set(|options| {
        (options.timeout, options.retry_cnt, options.rnr_retry, options.min_rnr_timer) = (17, 5, 3, 11);
        (options.rd_atomic, options.dest_rd_atomic) = (2, 6);
        options.mtu = Mtu::IBV_MTU_512;
    });
    let (a, b) = pair(dut, &options);
    let (attr, _) = a.qp.query(KNOWN).unwrap();
    assert_eq!((attr.qp_state, attr.path_mtu), (State::IBV_QPS_RTS, Mtu::IBV_MTU_512));
    assert_eq!((attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer), (17, 5, 3, 11));
    assert_eq!(attr.dest_qp_num, b.qp.num());
    assert_eq!((attr.sq_psn, attr.rq_psn), (a.options.psn, b.options.psn));
    assert_eq!((attr.port_num, attr.pkey_index), (1, 0));
    assert_eq!(attr.qp_access_flags & 0xf, crate::kit::EVERYTHING);
    let expected = ah_attr(&a.device, b.gid.0);
    assert_eq!((attr.ah_attr.is_global, attr.ah_attr.dlid), (expected.is_global, expected.dlid));
    assert_eq!((raw_gid(&attr.ah_attr.grh.dgid), attr.ah_attr.grh.sgid_index), (b.gid.0, a.gid.1));
    // A device may round these values up.
    assert!(attr.max_rd_atomic >= 2 && attr.max_dest_rd_atomic >= 6, "{}", attr.max_rd_atomic);
    Ok(())
}

fn a_query_returns_how_the_pair_was_made(dut: &TestDevice) -> Outcome {
    let node = node(dut, Type::IBV_QPT_RC);
    let (attr, init) = node.qp.query(Mask::IBV_QP_CAP.0).unwrap();
    let (granted, asked) = (node.qp.granted(), &node.options.cap);
    assert_eq!(init.qp_type, Type::IBV_QPT_RC);
    assert_eq!((init.send_cq.addr(), init.recv_cq.addr()), (node.send_cq.address(), node.recv_cq.address()));
    assert!(init.cap.max_send_wr >= asked.max_send_wr && attr.cap.max_recv_wr >= asked.max_recv_wr);
    assert_eq!((attr.cap.max_send_sge, attr.cap.max_recv_sge), (granted.max_send_sge, granted.max_recv_sge));
    assert!(init.srq.is_null() && init.sq_sig_all == 0);
    Ok(())
}

fn a_pair_of_datagrams_tells_its_key(dut: &TestDevice) -> Outcome {
    let node = node_in(dut, Type::IBV_QPT_UD, State::IBV_QPS_RTS);
    assert_eq!(node.qp.query(Mask::IBV_QP_QKEY.0).unwrap().0.qkey, crate::kit::QKEY);
    let change = QpChange::to(State::IBV_QPS_RTS).with(Mask::IBV_QP_QKEY, |attr| attr.qkey = 5);
    assert_eq!(node.qp.modify(change), 0);
    assert_eq!(node.qp.query(Mask::IBV_QP_QKEY.0).unwrap().0.qkey, 5);
    Ok(())
}

fn a_pair_is_destroyed_with_work_outstanding(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &NodeOptions::rc(Flavour::Classic));
    for id in 0..5 {
        a.post(Wr::send(id).sge(a.mr.at(0, 8)));
        a.recv(id, 0, 64);
    }
    assert_eq!(a.qp.destroy(), 0);
    assert_eq!((a.send_cq.destroy(), a.recv_cq.destroy(), a.mr.dereg(), a.pd.dealloc()), (0, 0, 0, 0));
    assert_eq!(b.qp.state(), State::IBV_QPS_RTS);
    Ok(())
}

fn a_pair_in_any_state_is_destroyed(dut: &TestDevice) -> Outcome {
    for qp_type in TYPES {
        for state in STATES {
            assert_eq!(node_in(dut, qp_type, state).qp.destroy(), 0, "{qp_type:?} in {state:?}");
        }
    }
    Ok(())
}

fn many_pairs_are_made(dut: &TestDevice) -> Outcome {
    let device = dut.open();
    let (pd, cq) = (device.pd(), device.cq(16));
    let init = QpInit::new(Type::IBV_QPT_RC, &cq, &cq);
    let pairs: Vec<_> = (0..200).map(|_| Qp::new(&pd, &init).unwrap()).collect();
    assert!(pairs.iter().all(|qp| qp.destroy() == 0));
    Ok(())
}
