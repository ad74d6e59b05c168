//! Queue pairs of identifiers (`man rdma_create_qp`, `man rdma_init_qp_attr`, `man
//! rdma_create_srq`).

use libc::EINVAL;
use rdma_mummy_sys::types::ibv_qp_attr_mask as Mask;
use rdma_mummy_sys::types::ibv_qp_state as State;
use rdma_mummy_sys::types::{ibv_access_flags, ibv_qp_type};

use crate::kit::{
    CmDevice, Cq, Flavour, Kind, NodeOptions, Outcome, Param, QpInit, Space, Suite, TestDevice,
};

pub(crate) fn cases(suite: &mut Suite) {
    cases!(suite:
        attributes_of_init_are_there_with_a_device,
        attributes_of_later_states_come_with_the_answer,
        attributes_of_a_request_s_own_side,
        attributes_without_a_device_are_refused,
        a_pair_is_made_in_init,
        an_identifier_has_one_pair,
        a_pair_needs_a_device_s_own_domain,
        a_pair_is_made_by_extended_attributes,
        the_library_makes_queues_of_its_own,
        a_shared_receive_queue_belongs_to_an_identifier,
        a_shared_receive_queue_needs_a_type,
    );
}

const TCP: Space = Space::RDMA_PS_TCP;

fn options() -> NodeOptions {
    CmDevice::options()
}

fn attributes_of_init_are_there_with_a_device(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let end = cm_device.bound(TCP);
    let (attr, mask) = end.id.qp_attr(State::IBV_QPS_INIT).unwrap();
    let expected =
        Mask::IBV_QP_STATE.0 | Mask::IBV_QP_PKEY_INDEX.0 | Mask::IBV_QP_PORT.0 | Mask::IBV_QP_ACCESS_FLAGS.0;
    assert_eq!((mask, attr.port_num, attr.pkey_index), (expected, 1, 0));
    let end = cm_device.bound(Space::RDMA_PS_UDP);
    let (attr, mask) = end.id.qp_attr(State::IBV_QPS_INIT).unwrap();
    let expected =
        Mask::IBV_QP_STATE.0 | Mask::IBV_QP_PKEY_INDEX.0 | Mask::IBV_QP_PORT.0 | Mask::IBV_QP_QKEY.0;
    assert_eq!((mask, attr.port_num, attr.qkey), (expected, 1, rdma_mummy_sys::types::RDMA_UDP_QKEY));
    Ok(())
}

fn attributes_of_later_states_come_with_the_answer(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let param = Param { responder_resources: 2, initiator_depth: 1, retry_count: 5, ..Param::nowhere() };
    let request = cm_device.request(TCP, &param);
    let client = &request.client.id;
    assert_eq!(client.qp_attr(State::IBV_QPS_RTR).err(), Some(EINVAL), "nobody has answered");
    let answer = Param { responder_resources: 1, initiator_depth: 2, rnr_retry_count: 6, ..Param::nowhere() };
    request.server.accept(Some(&answer)).unwrap();
    request.client.channel.expect_good(Kind::RDMA_CM_EVENT_CONNECT_RESPONSE);
    let (attr, mask) = client.qp_attr(State::IBV_QPS_RTR).unwrap();
    let rtr = Mask::IBV_QP_STATE.0
        | Mask::IBV_QP_AV.0
        | Mask::IBV_QP_PATH_MTU.0
        | Mask::IBV_QP_DEST_QPN.0
        | Mask::IBV_QP_RQ_PSN.0
        | Mask::IBV_QP_MAX_DEST_RD_ATOMIC.0
        | Mask::IBV_QP_MIN_RNR_TIMER.0;
    assert_eq!(mask, rtr);
    assert_eq!((attr.dest_qp_num, attr.max_dest_rd_atomic, attr.min_rnr_timer), (answer.qp_num, 2, 0));
    assert_eq!((attr.path_mtu, attr.ah_attr.is_global), (dut.open().port().unwrap().active_mtu, 1));
    assert_eq!(crate::kit::raw_gid(&attr.ah_attr.grh.dgid), cm_device.gid);
    let (attr, mask) = client.qp_attr(State::IBV_QPS_RTS).unwrap();
    let rts = Mask::IBV_QP_STATE.0
        | Mask::IBV_QP_SQ_PSN.0
        | Mask::IBV_QP_TIMEOUT.0
        | Mask::IBV_QP_RETRY_CNT.0
        | Mask::IBV_QP_RNR_RETRY.0
        | Mask::IBV_QP_MAX_QP_RD_ATOMIC.0;
    assert_eq!(mask, rts);
    assert_eq!((attr.retry_cnt, attr.rnr_retry, attr.max_rd_atomic), (5, 6, 1), "rnr: as the answer says");
    assert_ne!(attr.timeout, 0, "a lost packet is noticed");
    Ok(())
}

fn attributes_of_a_request_s_own_side(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let param = Param { responder_resources: 2, initiator_depth: 1, ..Param::nowhere() };
    let request = cm_device.request(TCP, &param);
    let (init, _) = request.server.qp_attr(State::IBV_QPS_INIT).unwrap();
    assert_ne!(init.qp_access_flags & ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0, 0);
    // The attributes of the request, before anything was accepted.
    let (rtr, _) = request.server.qp_attr(State::IBV_QPS_RTR).unwrap();
    assert_eq!((rtr.dest_qp_num, rtr.ah_attr.port_num), (param.qp_num, 1));
    // Each side starts at the packet sequence number that it sent to the other.
    request.server.accept(Some(&Param::nowhere())).unwrap();
    request.client.channel.expect_good(Kind::RDMA_CM_EVENT_CONNECT_RESPONSE);
    let (server_rts, _) = request.server.qp_attr(State::IBV_QPS_RTS).unwrap();
    let (client_rtr, _) = request.client.id.qp_attr(State::IBV_QPS_RTR).unwrap();
    let (client_rts, _) = request.client.id.qp_attr(State::IBV_QPS_RTS).unwrap();
    assert_eq!((client_rtr.rq_psn, client_rts.sq_psn), (server_rts.sq_psn, rtr.rq_psn));
    Ok(())
}

fn attributes_without_a_device_are_refused(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let end = cm_device.create_id(TCP);
    assert_eq!(end.id.qp_attr(State::IBV_QPS_INIT).err(), Some(EINVAL));
    let bound = cm_device.bound(TCP);
    assert_eq!(bound.id.qp_attr(State(99)).err(), Some(EINVAL), "no such state");
    Ok(())
}

/// `man rdma_create_qp`: "QPs allocated to an rdma_cm_id are automatically transitioned by the
/// librdmacm through their states."
fn a_pair_is_made_in_init(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let end = cm_device.bound(TCP);
    let node = end.id.node(&options());
    assert_eq!((node.qp.state(), end.id.qp_num()), (State::IBV_QPS_INIT, node.qp.num()));
    let datagrams = cm_device.bound(Space::RDMA_PS_UDP);
    let node = datagrams.id.node(&NodeOptions::ud(Flavour::Classic));
    assert_eq!(node.qp.state(), State::IBV_QPS_RTS);
    drop(node);
    assert!(!datagrams.id.has_qp());
    Ok(())
}

fn an_identifier_has_one_pair(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let end = cm_device.bound(TCP);
    let node = end.id.node(&options());
    let init = QpInit::new(ibv_qp_type::IBV_QPT_RC, &node.send_cq, &node.recv_cq);
    assert_eq!(end.id.create_qp(Some(&node.pd), &init, false).err(), Some(EINVAL));
    let (pd, device) = (node.pd.clone(), node.device.clone());
    drop((init, node));
    // A new queue pair may be created when the old one is gone.
    let cq = Cq::of(&device, 4, Flavour::Classic, None);
    let init = QpInit::new(ibv_qp_type::IBV_QPT_RC, &cq, &cq);
    end.id.create_qp(Some(&pd), &init, false).unwrap();
    Ok(())
}

fn a_pair_needs_a_device_s_own_domain(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let end = cm_device.bound(TCP);
    let (device, other) = (end.id.device(), dut.open());
    let cq = Cq::of(&device, 4, Flavour::Classic, None);
    let init = QpInit::new(ibv_qp_type::IBV_QPT_RC, &cq, &cq);
    assert_eq!(end.id.create_qp(Some(&other.pd()), &init, false).err(), Some(EINVAL));
    // Without a domain the library uses its own.
    end.id.create_qp(None, &init, false).unwrap();
    Ok(())
}

fn a_pair_is_made_by_extended_attributes(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let end = cm_device.bound(TCP);
    let device = end.id.device();
    let cq = Cq::of(&device, 4, Flavour::Classic, None);
    let init = QpInit::new(ibv_qp_type::IBV_QPT_RC, &cq, &cq);
    for pd in [None, Some(device.pd())] {
        let qp = end.id.create_qp(pd.as_ref(), &init, true).unwrap();
        assert_eq!(qp.state(), State::IBV_QPS_INIT);
        assert!(qp.granted().max_send_wr >= 16, "what was granted is told");
    }
    Ok(())
}

/// `man rdma_create_qp`: "Any send or receive completion queues not specified ... will be
/// allocated."
fn the_library_makes_queues_of_its_own(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let end = cm_device.bound(TCP);
    let cq = Cq::of(&end.id.device(), 4, Flavour::Classic, None);
    let mut init = QpInit::new(ibv_qp_type::IBV_QPT_RC, &cq, &cq);
    (init.send_cq, init.recv_cq) = (None, None);
    let qp = end.id.create_qp(None, &init, false).unwrap();
    assert!(end.id.has_queues());
    drop(qp);
    assert!(!end.id.has_queues(), "they go with the pair");
    Ok(())
}

/// `man rdma_create_srq`: "Allocate a shared receive queue associated with the specified
/// rdma_cm_id."
fn a_shared_receive_queue_belongs_to_an_identifier(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let end = cm_device.bound(TCP);
    let device = end.id.device();
    for pd in [None, Some(device.pd())] {
        let srq = end.id.create_srq(pd.as_ref(), 8).unwrap();
        assert!(srq.granted().max_wr >= 8);
        let cq = Cq::of(&device, 4, Flavour::Classic, None);
        let init = QpInit::new(ibv_qp_type::IBV_QPT_RC, &cq, &cq);
        let qp = end.id.create_qp(pd.as_ref(), &init, false).unwrap();
        drop(qp);
        drop(srq);
    }
    Ok(())
}

fn a_shared_receive_queue_needs_a_type(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    assert_eq!(cm_device.bound(TCP).id.srq_without_type(0), EINVAL);
    Ok(())
}
