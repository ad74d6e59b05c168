//! Connections (`man rdma_connect`, `man rdma_accept`, `man rdma_establish`, `man
//! rdma_init_qp_attr`).

use libc::EINVAL;
use rdma_mummy_sys::types::ibv_event_type;
use rdma_mummy_sys::types::ibv_qp_attr_mask as Mask;
use rdma_mummy_sys::types::ibv_qp_state as State;

use crate::kit::{
    CmDevice, CmId, ConnectRequest, IdWithChannel, Kind, Node, NodeOptions, Outcome, Param, QpChange, Space,
    Suite, TestDevice, Wr, pattern,
};

pub(crate) fn cases(suite: &mut Suite) {
    cases!(suite:
        the_parameters_of_a_request_arrive,
        the_parameters_of_an_answer_arrive,
        private_data_of_a_request_arrive,
        private_data_of_an_answer_arrive,
        too_much_private_data_of_a_request_is_refused,
        too_much_private_data_of_an_answer_rejects_it,
        more_reads_than_the_device_has_are_refused,
        the_greatest_depths_are_the_device_s,
        a_connection_needs_a_queue_pair_or_parameters,
        a_connection_without_parameters_has_the_library_s,
        a_request_is_made_once,
        an_answer_is_given_once,
        both_sides_are_told_of_the_connection,
        data_flow_between_pairs_that_the_library_moved,
        the_library_moves_its_pairs_through_their_states,
        a_pair_of_the_program_s_own_is_moved_by_hand,
        a_pair_of_the_program_s_own_meets_one_of_the_library_s,
        a_connection_is_established_once,
        the_library_establishes_with_its_own_pair,
        an_identifier_that_did_not_connect_cannot_establish,
        an_early_message_establishes,
        two_devices_connect,
        an_ipv6_connection_carries_data,
        one_thread_connects_to_itself_many_times,
        a_queue_pair_of_another_connection_is_stale,
    );
}

const TCP: Space = Space::RDMA_PS_TCP;

/// The private data that a program can put into a request. The message has 92 bytes (IBTA chapter
/// 12), 36 of which carry the addresses (annex A11, RDMA IP CM service).
const REQUEST: usize = 56;

/// The private data of a reply (IBTA chapter 12, the message REP).
const ANSWER: usize = 196;

/// IBTA chapter 12, reasons of rejections: rejected by the consumer.
const BY_THE_CONSUMER: i32 = 28;

/// IBTA chapter 12, reasons of rejections: stale connection.
const STALE: i32 = 10;

fn options() -> NodeOptions {
    CmDevice::options()
}

fn padded(bytes: &[u8], len: usize) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes.resize(len, 0);
    bytes
}

/// Establishes a connection without real queue pairs.
fn established(request: &ConnectRequest) {
    request.server.accept(Some(&Param::nowhere())).unwrap();
    request.client.channel.expect_good(Kind::RDMA_CM_EVENT_CONNECT_RESPONSE);
    request.client.id.establish().unwrap();
    let seen = request.listener.channel.expect_good(Kind::RDMA_CM_EVENT_ESTABLISHED);
    assert!(seen.is_for(&request.server));
}

/// Changes the states of a pair that the identifier does not know, with the identifier's
/// attributes.
fn move_by_hand(id: &CmId, node: &Node) {
    for state in [State::IBV_QPS_INIT, State::IBV_QPS_RTR, State::IBV_QPS_RTS] {
        let (attr, mask) = id.qp_attr(state).unwrap();
        assert_eq!(attr.qp_state, state);
        assert_eq!(node.qp.modify(QpChange { attr, mask }), 0, "{state:?}");
    }
}

fn the_parameters_of_a_request_arrive(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let param = Param {
        responder_resources: 3,
        initiator_depth: 2,
        flow_control: 1,
        retry_count: 5,
        rnr_retry_count: 6,
        srq: 1,
        ..Param::nowhere()
    };
    let request = cm_device.request(TCP, &param);
    let conn = &request.seen.conn;
    // The reads that one side may start are the reads that the other must answer.
    assert_eq!((conn.responder_resources, conn.initiator_depth), (2, 3), "{conn:?}");
    assert_eq!((conn.retry_count, conn.rnr_retry_count, conn.flow_control), (5, 6, 1), "{conn:?}");
    assert_eq!((conn.srq, conn.qp_num), (1, param.qp_num), "{conn:?}");
    Ok(())
}

fn the_parameters_of_an_answer_arrive(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let param = Param { responder_resources: 4, initiator_depth: 4, ..Param::nowhere() };
    let request = cm_device.request(TCP, &param);
    let answer = Param {
        responder_resources: 3,
        initiator_depth: 2,
        flow_control: 1,
        rnr_retry_count: 6,
        srq: 1,
        ..Param::nowhere()
    };
    request.server.accept(Some(&answer)).unwrap();
    let seen = request.client.channel.expect_good(Kind::RDMA_CM_EVENT_CONNECT_RESPONSE);
    assert!(seen.is_for(&request.client.id));
    let conn = &seen.conn;
    assert_eq!((conn.responder_resources, conn.initiator_depth), (2, 3), "{conn:?}");
    assert_eq!((conn.rnr_retry_count, conn.flow_control, conn.srq), (6, 1, 1), "{conn:?}");
    assert_eq!(conn.qp_num, answer.qp_num);
    Ok(())
}

/// "The length of the private data provided by the user is limited to 56 bytes for RDMA_PS_TCP";
/// they arrive padded.
fn private_data_of_a_request_arrive(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    for len in [0, 1, 17, REQUEST - 1, REQUEST] {
        let request = cm_device.request(TCP, &Param::nowhere().with(&pattern(7, len)));
        assert_eq!(request.seen.private_data, padded(&pattern(7, len), REQUEST), "{len} bytes");
    }
    Ok(())
}

/// `man rdma_accept`: "The length of the private data provided by the user is limited to 196 bytes
/// for RDMA_PS_TCP."
fn private_data_of_an_answer_arrive(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    for len in [0, 1, 100, ANSWER] {
        let request = cm_device.request(TCP, &Param::nowhere());
        request.server.accept(Some(&Param::nowhere().with(&pattern(9, len)))).unwrap();
        let seen = request.client.channel.expect_good(Kind::RDMA_CM_EVENT_CONNECT_RESPONSE);
        assert_eq!(seen.private_data, padded(&pattern(9, len), ANSWER), "{len} bytes");
    }
    Ok(())
}

fn too_much_private_data_of_a_request_is_refused(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let listener = cm_device.listener(TCP);
    let client = cm_device.resolved(TCP, cm_device.at(listener.id.src_port()));
    for len in [REQUEST + 1, 220, 255] {
        assert_eq!(client.id.connect(Some(&Param::nowhere().with(&pattern(1, len)))), Err(EINVAL), "{len}");
    }
    assert!(listener.channel.is_quiet());
    // The client may still connect.
    client.id.connect(Some(&Param::nowhere())).unwrap();
    listener.channel.expect_good(Kind::RDMA_CM_EVENT_CONNECT_REQUEST);
    Ok(())
}

/// The kernel rejects a request if it cannot send the reply.
fn too_much_private_data_of_an_answer_rejects_it(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let request = cm_device.request(TCP, &Param::nowhere());
    assert_eq!(request.server.accept(Some(&Param::nowhere().with(&pattern(1, ANSWER + 1)))), Err(EINVAL));
    let seen = request.client.channel.expect(Kind::RDMA_CM_EVENT_REJECTED);
    assert_eq!(seen.status, BY_THE_CONSUMER, "{seen:?}");
    Ok(())
}

/// "This value must be less than or equal to the local RDMA device attribute max_qp_rd_atom."
fn more_reads_than_the_device_has_are_refused(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let attr = dut.open().query().unwrap();
    let (Ok(responder), Ok(initiator)) =
        (u8::try_from(attr.max_qp_rd_atom + 1), u8::try_from(attr.max_qp_init_rd_atom + 1))
    else {
        skip!("the device has no limit that a parameter could exceed");
    };
    if responder == 255 || initiator == 255 {
        skip!("the device has no limit that a parameter could exceed");
    }
    let client = cm_device.resolved(TCP, cm_device.at(7471));
    let too_many = [
        Param { responder_resources: responder, ..Param::nowhere() },
        Param { initiator_depth: initiator, ..Param::nowhere() },
    ];
    for param in &too_many {
        assert_eq!(client.id.connect(Some(param)), Err(EINVAL), "{param:?}");
    }
    let request = cm_device.request(TCP, &Param::nowhere());
    for param in &too_many {
        assert_eq!(request.server.accept(Some(param)), Err(EINVAL), "{param:?}");
    }
    // Neither request was sent.
    established(&request);
    Ok(())
}

/// RDMA_MAX_RESP_RES and RDMA_MAX_INIT_DEPTH of `rdma_cma.h`.
fn the_greatest_depths_are_the_device_s(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let attr = dut.open().query().unwrap();
    let limit = |value: i32| u8::try_from(value).unwrap_or(u8::MAX);
    let param = Param { responder_resources: 255, initiator_depth: 255, ..Param::nowhere() };
    let request = cm_device.request(TCP, &param);
    let conn = &request.seen.conn;
    assert_eq!(
        (conn.responder_resources, conn.initiator_depth),
        (limit(attr.max_qp_init_rd_atom), limit(attr.max_qp_rd_atom)),
        "{conn:?}"
    );
    Ok(())
}

fn a_connection_needs_a_queue_pair_or_parameters(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let client = cm_device.resolved(TCP, cm_device.at(7471));
    assert_eq!(client.id.connect(None), Err(EINVAL));
    Ok(())
}

/// `man rdma_accept`: "If the conn_param parameter is NULL, the values reported in the connection
/// request event are used."
fn a_connection_without_parameters_has_the_library_s(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let listener = cm_device.listener(TCP);
    let client = cm_device.resolved(TCP, cm_device.at(listener.id.src_port()));
    let client_node = client.id.node(&options());
    client.id.connect(None).unwrap();
    let seen = listener.channel.expect_good(Kind::RDMA_CM_EVENT_CONNECT_REQUEST);
    assert_eq!((seen.conn.retry_count, seen.conn.rnr_retry_count), (7, 7), "{seen:?}");
    assert_eq!(seen.conn.qp_num, client_node.qp.num());
    let request = seen.conn.clone();
    let server = seen.request();
    let server_node = server.node(&options());
    server.accept(None).unwrap();
    let seen = client.channel.expect_good(Kind::RDMA_CM_EVENT_ESTABLISHED);
    assert_eq!(
        (seen.conn.responder_resources, seen.conn.initiator_depth),
        (request.initiator_depth, request.responder_resources)
    );
    assert_eq!((seen.conn.qp_num, seen.conn.rnr_retry_count), (server_node.qp.num(), 7));
    listener.channel.expect_good(Kind::RDMA_CM_EVENT_ESTABLISHED);
    Ok(())
}

fn a_request_is_made_once(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let request = cm_device.request(TCP, &Param::nowhere());
    assert_eq!(request.client.id.connect(Some(&Param::nowhere())), Err(EINVAL), "asked");
    established(&request);
    assert_eq!(request.client.id.connect(Some(&Param::nowhere())), Err(EINVAL), "connected");
    assert_eq!(request.server.connect(Some(&Param::nowhere())), Err(EINVAL), "the passive side");
    Ok(())
}

fn an_answer_is_given_once(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let request = cm_device.request(TCP, &Param::nowhere());
    established(&request);
    assert_eq!(request.server.accept(Some(&Param::nowhere())), Err(EINVAL));
    Ok(())
}

fn both_sides_are_told_of_the_connection(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let pair = cm_device.pair(&options());
    assert!(pair.client_seen.is_for(&pair.client.id) && pair.server_seen.is_for(&pair.server));
    assert_eq!((pair.client_seen.listener, pair.server_seen.listener), (0, 0));
    assert_eq!(pair.client_seen.conn.qp_num, pair.server_node.qp.num());
    assert_eq!(pair.server_seen.private_data, [], "what the active side says last has none");
    assert!(pair.client.channel.is_quiet() && pair.listener.channel.is_quiet());
    Ok(())
}

fn data_flow_between_pairs_that_the_library_moved(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let pair = cm_device.pair(&options());
    pair.talks();
    let (a, b) = (&pair.client_node, &pair.server_node);
    // Both sides agreed on one outstanding read in each direction.
    for (from, to) in [(a, b), (b, a)] {
        to.mr.buf.set(4096, &pattern(5, 64));
        from.done(Wr::read(1, to.mr.remote(4096)).sge(from.mr.at(8192, 64)));
        assert_eq!(from.mr.buf.get(8192, 64), pattern(5, 64));
    }
    Ok(())
}

fn the_library_moves_its_pairs_through_their_states(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let listener = cm_device.listener(TCP);
    let client = cm_device.resolved(TCP, cm_device.at(listener.id.src_port()));
    let client_node = client.id.node(&options());
    assert_eq!(client_node.qp.state(), State::IBV_QPS_INIT, "made");
    client.id.connect(Some(&Param::of(0))).unwrap();
    let server = listener.channel.expect_good(Kind::RDMA_CM_EVENT_CONNECT_REQUEST).request();
    let server_node = server.node(&options());
    assert_eq!(client_node.qp.state(), State::IBV_QPS_INIT, "asked");
    server.accept(Some(&Param::of(0))).unwrap();
    assert_eq!(server_node.qp.state(), State::IBV_QPS_RTS, "accepted");
    assert!(client.channel.is_ready(std::time::Duration::from_secs(8)));
    assert_eq!(client_node.qp.state(), State::IBV_QPS_INIT, "the answer has come, and nobody has looked");
    client.channel.expect_good(Kind::RDMA_CM_EVENT_ESTABLISHED);
    assert_eq!(client_node.qp.state(), State::IBV_QPS_RTS, "connected");
    let (attr, _) = client_node.qp.query(Mask::IBV_QP_DEST_QPN.0 | Mask::IBV_QP_RETRY_CNT.0).unwrap();
    assert_eq!((attr.dest_qp_num, attr.retry_cnt), (server_node.qp.num(), 7));
    listener.channel.expect_good(Kind::RDMA_CM_EVENT_ESTABLISHED);
    Ok(())
}

/// "If a QP has not been created on the rdma_cm_id, this function should be called by the active
/// side to complete the connection, after getting connect response event. This will trigger a
/// connection established event on the passive side."
fn a_pair_of_the_program_s_own_is_moved_by_hand(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let listener = cm_device.listener(TCP);
    let client = cm_device.resolved(TCP, cm_device.at(listener.id.src_port()));
    let a = client.id.own_node(&options());
    client.id.connect(Some(&Param::of(a.qp.num()))).unwrap();
    let server = listener.channel.expect_good(Kind::RDMA_CM_EVENT_CONNECT_REQUEST).request();
    let b = server.own_node(&options());
    move_by_hand(&server, &b);
    server.accept(Some(&Param::of(b.qp.num()))).unwrap();
    let seen = client.channel.expect_good(Kind::RDMA_CM_EVENT_CONNECT_RESPONSE);
    assert_eq!(seen.conn.qp_num, b.qp.num());
    move_by_hand(&client.id, &a);
    assert!(listener.channel.is_quiet(), "not established yet");
    client.id.establish().unwrap();
    let seen = listener.channel.expect_good(Kind::RDMA_CM_EVENT_ESTABLISHED);
    assert!(seen.is_for(&server));
    assert!(client.channel.is_quiet(), "the active side is not told what it did");
    b.recv(1, 0, 64);
    a.mr.buf.set(0, &pattern(2, 64));
    a.done(Wr::send(1).sge(a.mr.at(0, 64)));
    assert_eq!(b.recv_cq.ok().len, 64);
    assert_eq!(b.mr.buf.get(0, 64), pattern(2, 64));
    Ok(())
}

fn a_pair_of_the_program_s_own_meets_one_of_the_library_s(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let listener = cm_device.listener(TCP);
    let client = cm_device.resolved(TCP, cm_device.at(listener.id.src_port()));
    let a = client.id.node(&options());
    client.id.connect(Some(&Param::of(0))).unwrap();
    let server = listener.channel.expect_good(Kind::RDMA_CM_EVENT_CONNECT_REQUEST).request();
    let b = server.own_node(&options());
    move_by_hand(&server, &b);
    b.recv(1, 0, 64);
    server.accept(Some(&Param::of(b.qp.num()))).unwrap();
    client.channel.expect_good(Kind::RDMA_CM_EVENT_ESTABLISHED);
    listener.channel.expect_good(Kind::RDMA_CM_EVENT_ESTABLISHED);
    a.done(Wr::send(1).sge(a.mr.at(0, 8)));
    b.recv_cq.ok();
    Ok(())
}

fn a_connection_is_established_once(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let request = cm_device.request(TCP, &Param::nowhere());
    established(&request);
    assert_eq!(request.client.id.establish(), Err(EINVAL));
    assert_eq!(request.server.establish(), Err(EINVAL), "the passive side");
    assert!(request.listener.channel.is_quiet());
    Ok(())
}

/// "This function should not be used on an rdma_cm_id on which a QP has been created."
fn the_library_establishes_with_its_own_pair(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let pair = cm_device.pair(&options());
    assert_eq!(pair.client.id.establish(), Err(EINVAL));
    pair.talks();
    Ok(())
}

/// An identifier with an unanswered request is not tried here: the kernel would send a rejection
/// and wait for its request to time out.
fn an_identifier_that_did_not_connect_cannot_establish(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    assert_eq!(cm_device.resolved(TCP, cm_device.at(7471)).id.establish(), Err(EINVAL), "resolved");
    assert_eq!(cm_device.listener(TCP).id.establish(), Err(EINVAL), "listening");
    Ok(())
}

/// `man rdma_notify`: "This routine forces the connection into an established state ... Calling
/// this routine ensures the delivery of the RDMA_CM_EVENT_ESTABLISHED event". EISCONN means that
/// the connection is in that state already.
fn an_early_message_establishes(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let request = cm_device.request(TCP, &Param::nowhere());
    request.server.accept(Some(&Param::nowhere())).unwrap();
    request.client.channel.expect_good(Kind::RDMA_CM_EVENT_CONNECT_RESPONSE);
    request.server.notify(ibv_event_type::IBV_EVENT_COMM_EST).unwrap();
    let seen = request.listener.channel.expect_good(Kind::RDMA_CM_EVENT_ESTABLISHED);
    assert!(seen.is_for(&request.server));
    assert_eq!(request.server.notify(ibv_event_type::IBV_EVENT_COMM_EST), Err(libc::EISCONN));
    request.client.id.establish().unwrap();
    assert!(request.listener.channel.is_quiet(), "told once");
    Ok(())
}

fn two_devices_connect(dut: &TestDevice) -> Outcome {
    let (cm_device, peer) = (CmDevice::of(dut)?, CmDevice::of_peer(dut)?);
    let listener = peer.listener(TCP);
    let client = cm_device.bound(TCP);
    client.resolve(peer.at(listener.id.src_port()));
    let node = client.id.node(&options());
    client.id.connect(Some(&Param::of(0))).unwrap();
    let seen = listener.channel.expect_good(Kind::RDMA_CM_EVENT_CONNECT_REQUEST);
    let pair = ConnectRequest::of(seen, client, listener).accepted(node, &options(), &Param::of(0));
    assert_eq!(pair.client.id.device().name(), cm_device.device);
    assert_eq!(pair.server.device().name(), peer.device);
    pair.talks();
    Ok(())
}

fn an_ipv6_connection_carries_data(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let Some(address) = cm_device.ipv6(dut) else { skip!("the device has no IPv6 address") };
    let listener = cm_device.create_id(TCP);
    listener.id.bind(address).unwrap();
    listener.id.listen(1).unwrap();
    let client = cm_device.create_id(TCP);
    client.id.bind(address).unwrap();
    let mut to = address;
    to.set_port(listener.id.src_port());
    client.resolve(to);
    let node = client.id.node(&options());
    client.id.connect(Some(&Param::of(0).with(&pattern(1, 56)))).unwrap();
    let seen = listener.channel.expect_good(Kind::RDMA_CM_EVENT_CONNECT_REQUEST);
    assert_eq!(seen.private_data, pattern(1, 56));
    let pair = ConnectRequest::of(seen, client, listener).accepted(node, &options(), &Param::of(0));
    assert_eq!(pair.server.peer_addr().map(|address| address.ip()), Some(address.ip()));
    pair.talks();
    Ok(())
}

fn one_thread_connects_to_itself_many_times(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let listener = cm_device.listener(TCP);
    let mut sides: Vec<(IdWithChannel, CmId)> = Vec::new();
    for n in 0..20 {
        let client = cm_device.resolved(TCP, cm_device.at(listener.id.src_port()));
        let (question, answer) = (Param::nowhere().with(&[n]), Param::nowhere());
        client.id.connect(Some(&question)).unwrap();
        let seen = listener.channel.expect_good(Kind::RDMA_CM_EVENT_CONNECT_REQUEST);
        assert_eq!((seen.private_data[0], seen.conn.qp_num), (n, question.qp_num));
        let server = seen.request();
        server.accept(Some(&answer)).unwrap();
        let seen = client.channel.expect_good(Kind::RDMA_CM_EVENT_CONNECT_RESPONSE);
        assert_eq!(seen.conn.qp_num, answer.qp_num);
        client.id.establish().unwrap();
        assert!(listener.channel.expect_good(Kind::RDMA_CM_EVENT_ESTABLISHED).is_for(&server));
        sides.push((client, server));
    }
    Ok(())
}

/// IBTA chapter 12, stale connections: a request from a queue pair that belongs to another
/// connection is rejected.
fn a_queue_pair_of_another_connection_is_stale(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let param = Param::nowhere();
    let request = cm_device.request(TCP, &param);
    let other = cm_device.resolved(TCP, cm_device.at(request.listener.id.src_port()));
    other.id.connect(Some(&param)).unwrap();
    let seen = other.channel.expect(Kind::RDMA_CM_EVENT_REJECTED);
    assert_eq!(seen.status, STALE, "{seen:?}");
    Ok(())
}
