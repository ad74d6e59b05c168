//! Datagram services (`man rdma_connect`, `man rdma_accept` with RDMA_PS_UDP): a client looks up
//! the service's queue pair.

use libc::EINVAL;
use rdma_mummy_sys::types::RDMA_UDP_QKEY;

use crate::kit::{
    Ah, CmDevice, Flavour, Kind, Node, NodeOptions, Outcome, Param, Space, Suite, TestDevice, Wr, pattern,
};

pub(crate) fn cases(suite: &mut Suite) {
    cases!(suite:
        private_data_of_a_lookup_arrive,
        private_data_of_a_lookup_s_answer_arrive,
        too_much_private_data_of_a_lookup_is_refused,
        too_much_private_data_of_its_answer_is_refused,
        an_answer_tells_the_queue_pair_and_its_key,
        the_passive_side_hears_no_more,
        a_lookup_leads_to_the_other_side,
        a_pair_of_a_datagram_service_is_ready,
        a_lookup_is_rejected,
        a_lookup_that_nobody_listens_for,
        a_lookup_of_a_connection_s_port,
        a_lookup_goes_with_its_listener,
        a_lookup_is_answered_once,
        many_lookups_are_answered,
        a_service_on_another_device_is_found,
    );
}

const UDP: Space = Space::RDMA_PS_UDP;

/// The private data that a program can put into a request. The message has 216 bytes (IBTA chapter
/// 12, SIDR), 36 of which carry the addresses.
const REQUEST: usize = 180;

/// The private data of a reply.
const ANSWER: usize = 136;

/// IBTA chapter 12, SIDR status: the service does not exist.
const UNSUPPORTED: i32 = 1;

/// IBTA chapter 12, SIDR status: rejected by the service.
const REJECTED: i32 = 2;

/// The bytes before the message in each receive's memory.
const GRH: usize = 40;

fn padded(bytes: &[u8], len: usize) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes.resize(len, 0);
    bytes
}

fn options() -> NodeOptions {
    NodeOptions::ud(Flavour::Classic)
}

/// "... or 180 bytes for RDMA_PS_UDP."
fn private_data_of_a_lookup_arrive(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    for len in [0, 1, 100, REQUEST] {
        let request = cm_device.request(UDP, &Param::default().with(&pattern(1, len)));
        assert_eq!(request.seen.private_data, padded(&pattern(1, len), REQUEST), "{len} bytes");
        assert_eq!(request.seen.listener, request.listener.id.address());
        assert_eq!(request.server.peer_addr(), request.client.id.local_addr());
        request.server.reject(&[]).unwrap();
        request.client.channel.expect(Kind::RDMA_CM_EVENT_UNREACHABLE);
    }
    Ok(())
}

/// `man rdma_accept`: "... or 136 bytes for RDMA_PS_UDP."
fn private_data_of_a_lookup_s_answer_arrive(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    for len in [0, 1, 100, ANSWER] {
        let request = cm_device.request(UDP, &Param::default());
        request.server.accept(Some(&Param::of(0x1234).with(&pattern(2, len)))).unwrap();
        let seen = request.client.channel.expect_good(Kind::RDMA_CM_EVENT_ESTABLISHED);
        assert_eq!(seen.private_data, padded(&pattern(2, len), ANSWER), "{len} bytes");
    }
    Ok(())
}

fn too_much_private_data_of_a_lookup_is_refused(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let listener = cm_device.listener(UDP);
    let client = cm_device.resolved(UDP, cm_device.at(listener.id.src_port()));
    for len in [REQUEST + 1, 255] {
        let param = Param::default().with(&pattern(1, len));
        assert_eq!(client.id.connect(Some(&param)), Err(EINVAL), "{len}");
    }
    client.id.connect(Some(&Param::default())).unwrap();
    let server = listener.channel.expect_good(Kind::RDMA_CM_EVENT_CONNECT_REQUEST).request();
    server.reject(&[]).unwrap();
    client.channel.expect(Kind::RDMA_CM_EVENT_UNREACHABLE);
    Ok(())
}

fn too_much_private_data_of_its_answer_is_refused(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let request = cm_device.request(UDP, &Param::default());
    assert_eq!(request.server.accept(Some(&Param::of(1).with(&pattern(1, ANSWER + 1)))), Err(EINVAL));
    Ok(())
}

/// `man rdma_get_cm_event`, UD event data: "QP number of the remote endpoint", "QKey needed to send
/// data to the remote endpoint(s)", "Address information needed to send data to the remote
/// endpoint(s)."
fn an_answer_tells_the_queue_pair_and_its_key(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let request = cm_device.request(UDP, &Param::default());
    request.server.accept(Some(&Param::of(0x65_4321))).unwrap();
    let seen = request.client.channel.expect_good(Kind::RDMA_CM_EVENT_ESTABLISHED);
    assert!(seen.is_for(&request.client.id));
    assert_eq!((seen.ud.qp_num, seen.ud.qkey), (0x65_4321, RDMA_UDP_QKEY));
    assert_eq!((seen.ud.ah_attr.is_global, seen.ud.ah_attr.port_num), (1, 1));
    assert_eq!(crate::kit::raw_gid(&seen.ud.ah_attr.grh.dgid), cm_device.gid);
    Ok(())
}

fn the_passive_side_hears_no_more(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let request = cm_device.request(UDP, &Param::default());
    request.server.accept(Some(&Param::of(1))).unwrap();
    request.client.channel.expect_good(Kind::RDMA_CM_EVENT_ESTABLISHED);
    assert!(request.listener.channel.is_quiet());
    request.client.id.destroy().unwrap();
    assert!(
        !request.listener.channel.is_ready(std::time::Duration::from_millis(200)),
        "there is no connection"
    );
    Ok(())
}

/// The message of the first receive, after the header.
fn hears(node: &Node) -> Vec<u8> {
    let wc = node.recv_cq.ok();
    node.mr.buf.get(GRH, wc.len as usize - GRH)
}

fn a_lookup_leads_to_the_other_side(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let listener = cm_device.listener(UDP);
    let client = cm_device.resolved(UDP, cm_device.at(listener.id.src_port()));
    let a = client.id.node(&options());
    client.id.connect(Some(&Param::default())).unwrap();
    let server = listener.channel.expect_good(Kind::RDMA_CM_EVENT_CONNECT_REQUEST).request();
    let b = server.node(&options());
    b.recv(1, 0, 1024);
    server.accept(Some(&Param::default())).unwrap();
    let seen = client.channel.expect_good(Kind::RDMA_CM_EVENT_ESTABLISHED);
    assert_eq!(seen.ud.qp_num, b.qp.num());
    let ah = Ah::new(&a.pd, seen.ud.ah_attr).unwrap();
    a.mr.buf.set(2048, &pattern(4, 99));
    a.done(Wr::send(1).sge(a.mr.at(2048, 99)).to(&ah, seen.ud.qp_num, seen.ud.qkey));
    assert_eq!(hears(&b), pattern(4, 99));
    Ok(())
}

/// `man rdma_create_qp`: pairs for datagrams "will be transitioned into a ready to send state".
fn a_pair_of_a_datagram_service_is_ready(dut: &TestDevice) -> Outcome {
    use rdma_mummy_sys::types::{ibv_qp_attr_mask, ibv_qp_state};
    let cm_device = CmDevice::of(dut)?;
    let end = cm_device.bound(UDP);
    let node = end.id.node(&options());
    assert_eq!(node.qp.state(), ibv_qp_state::IBV_QPS_RTS);
    let (attr, _) = node.qp.query(ibv_qp_attr_mask::IBV_QP_QKEY.0).unwrap();
    assert_eq!(attr.qkey, RDMA_UDP_QKEY);
    Ok(())
}

/// `man rdma_get_cm_event`: RDMA_CM_EVENT_UNREACHABLE: "Generated on the active side to notify the
/// user that the remote server is not reachable or unable to respond to a connection request. If
/// this event is generated in response to a UD QP resolution request over InfiniBand, the event
/// status field will contain an errno, if negative, or the status result carried in the IB CM SIDR
/// REP message."
fn a_lookup_is_rejected(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    for len in [0, ANSWER] {
        let request = cm_device.request(UDP, &Param::default());
        request.server.reject(&pattern(3, len)).unwrap();
        let seen = request.client.channel.expect(Kind::RDMA_CM_EVENT_UNREACHABLE);
        assert!(seen.is_for(&request.client.id));
        assert_eq!((seen.status, &seen.private_data), (REJECTED, &padded(&pattern(3, len), ANSWER)));
    }
    Ok(())
}

fn a_lookup_that_nobody_listens_for(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let bound = cm_device.bound(UDP);
    let client = cm_device.resolved(UDP, cm_device.at(bound.id.src_port()));
    client.id.connect(Some(&Param::default())).unwrap();
    let seen = client.channel.expect(Kind::RDMA_CM_EVENT_UNREACHABLE);
    assert_eq!(seen.status, UNSUPPORTED, "{seen:?}");
    Ok(())
}

fn a_lookup_of_a_connection_s_port(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let listener = cm_device.listener(Space::RDMA_PS_TCP);
    let client = cm_device.resolved(UDP, cm_device.at(listener.id.src_port()));
    client.id.connect(Some(&Param::default())).unwrap();
    let seen = client.channel.expect(Kind::RDMA_CM_EVENT_UNREACHABLE);
    assert_eq!(seen.status, UNSUPPORTED, "{seen:?}");
    assert!(listener.channel.is_quiet());
    Ok(())
}

fn a_lookup_goes_with_its_listener(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let request = cm_device.request(UDP, &Param::default());
    request.server.destroy().unwrap();
    let seen = request.client.channel.expect(Kind::RDMA_CM_EVENT_UNREACHABLE);
    assert_eq!(seen.status, REJECTED, "{seen:?}");
    Ok(())
}

fn a_lookup_is_answered_once(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let request = cm_device.request(UDP, &Param::default());
    request.server.accept(Some(&Param::of(1))).unwrap();
    request.client.channel.expect_good(Kind::RDMA_CM_EVENT_ESTABLISHED);
    assert_eq!(request.server.accept(Some(&Param::of(1))), Err(EINVAL), "answered before");
    assert_eq!(request.client.id.connect(Some(&Param::default())), Err(EINVAL), "asked before");
    Ok(())
}

fn many_lookups_are_answered(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let listener = cm_device.listener(UDP);
    let mut sides = Vec::new();
    for n in 0..10 {
        let client = cm_device.resolved(UDP, cm_device.at(listener.id.src_port()));
        client.id.connect(Some(&Param::default().with(&[n]))).unwrap();
        let seen = listener.channel.expect_good(Kind::RDMA_CM_EVENT_CONNECT_REQUEST);
        assert_eq!(seen.private_data[0], n);
        let server = seen.request();
        server.accept(Some(&Param::of(100 + u32::from(n)))).unwrap();
        let seen = client.channel.expect_good(Kind::RDMA_CM_EVENT_ESTABLISHED);
        assert_eq!(seen.ud.qp_num, 100 + u32::from(n));
        sides.push((client, server));
    }
    Ok(())
}

fn a_service_on_another_device_is_found(dut: &TestDevice) -> Outcome {
    let (cm_device, peer) = (CmDevice::of(dut)?, CmDevice::of_peer(dut)?);
    let listener = peer.listener(UDP);
    let client = cm_device.bound(UDP);
    client.resolve(peer.at(listener.id.src_port()));
    let a = client.id.node(&options());
    client.id.connect(Some(&Param::default())).unwrap();
    let server = listener.channel.expect_good(Kind::RDMA_CM_EVENT_CONNECT_REQUEST).request();
    let b = server.node(&options());
    b.recv(1, 0, 1024);
    server.accept(Some(&Param::default())).unwrap();
    let seen = client.channel.expect_good(Kind::RDMA_CM_EVENT_ESTABLISHED);
    assert_eq!(crate::kit::raw_gid(&seen.ud.ah_attr.grh.dgid), peer.gid);
    let ah = Ah::new(&a.pd, seen.ud.ah_attr).unwrap();
    a.done(Wr::send(1).sge(a.mr.at(2048, 8)).to(&ah, seen.ud.qp_num, seen.ud.qkey));
    assert_eq!(hears(&b), [0; 8]);
    Ok(())
}
