//! The end of connections (`man rdma_disconnect`, `man rdma_destroy_id`).

use std::time::Duration;

use libc::EINVAL;
use rdma_mummy_sys::types::ibv_qp_state as State;
use rdma_mummy_sys::types::ibv_wc_status as Status;

use crate::kit::{
    CmChannel, CmDevice, CmId, ConnectedPair, EventCopy, Kind, Node, Outcome, Param, Recv, Space, Suite,
    TestDevice, Wr,
};

pub(crate) fn cases(suite: &mut Suite) {
    cases!(suite:
        the_active_side_disconnects,
        the_passive_side_disconnects,
        both_sides_disconnect_at_once,
        disconnecting_flushes_what_is_outstanding,
        the_other_side_s_pair_is_its_own,
        a_pair_of_the_program_s_own_is_left_alone,
        a_side_that_is_disconnected_may_say_so_again,
        an_unconnected_identifier_cannot_disconnect,
        a_side_that_is_destroyed_disconnects_the_other,
        a_passive_side_that_is_destroyed_disconnects_the_other,
        a_connection_outlives_its_listener,
        both_sides_may_go_at_once,
        the_time_of_waiting_ends,
        the_end_of_the_wait_is_not_waited_for,
        a_request_that_was_withdrawn_is_not_accepted,
        a_connection_that_was_not_established_ends_with_its_identifier,
        the_events_of_one_end_do_not_come_twice,
        a_port_connects_again_and_again,
    );
}

const TCP: Space = Space::RDMA_PS_TCP;

/// How long a connection may stay in TIMEWAIT, while the kernel waits for late packets.
const LINGER: Duration = Duration::from_secs(20);

fn pair(dut: &TestDevice) -> Result<ConnectedPair, crate::kit::Skip> {
    Ok(CmDevice::of(dut)?.pair(&CmDevice::options()))
}

/// The next event other than TIMEWAIT_EXIT.
fn disconnected(channel: &CmChannel, id: &CmId) -> EventCopy {
    let seen = channel.expect(Kind::RDMA_CM_EVENT_DISCONNECTED);
    assert!(seen.is_for(id));
    assert_eq!(seen.status, 0, "{seen:?}");
    seen
}

/// Disconnects one side first, then the other.
fn end(first: (&CmId, &CmChannel), second: (&CmId, &CmChannel)) {
    first.0.disconnect().unwrap();
    disconnected(second.1, second.0);
    second.0.disconnect().unwrap();
    disconnected(first.1, first.0);
}

fn in_error(node: &Node) {
    assert_eq!(node.qp.state(), State::IBV_QPS_ERR);
}

/// "After successfully disconnecting, an RDMA_CM_EVENT_DISCONNECTED event will be generated on both
/// sides of the connection."
fn the_active_side_disconnects(dut: &TestDevice) -> Outcome {
    let pair = pair(dut)?;
    end((&pair.client.id, &pair.client.channel), (&pair.server, &pair.listener.channel));
    in_error(&pair.client_node);
    in_error(&pair.server_node);
    Ok(())
}

fn the_passive_side_disconnects(dut: &TestDevice) -> Outcome {
    let pair = pair(dut)?;
    end((&pair.server, &pair.listener.channel), (&pair.client.id, &pair.client.channel));
    in_error(&pair.client_node);
    in_error(&pair.server_node);
    Ok(())
}

/// "This routine should be called by both the client and server side of a connection."
fn both_sides_disconnect_at_once(dut: &TestDevice) -> Outcome {
    let pair = pair(dut)?;
    pair.client.id.disconnect().unwrap();
    pair.server.disconnect().unwrap();
    disconnected(&pair.client.channel, &pair.client.id);
    disconnected(&pair.listener.channel, &pair.server);
    Ok(())
}

/// "... transitions any associated QP to the error state, which will flush any posted work requests
/// to the completion queue."
fn disconnecting_flushes_what_is_outstanding(dut: &TestDevice) -> Outcome {
    let pair = pair(dut)?;
    let node = &pair.client_node;
    for id in 0..3 {
        node.qp.recv(Recv::new(id).sge(node.mr.at(0, 8)));
    }
    pair.client.id.disconnect().unwrap();
    in_error(node);
    for id in 0..3 {
        let wc = node.recv_cq.one();
        assert_eq!((wc.id, wc.status), (id, Status::IBV_WC_WR_FLUSH_ERR));
    }
    node.post(Wr::send(9).sge(node.mr.at(0, 8)));
    assert_eq!(node.send_cq.one().status, Status::IBV_WC_WR_FLUSH_ERR);
    Ok(())
}

/// The event does not change the pair's state: the program disconnects when it is ready to.
fn the_other_side_s_pair_is_its_own(dut: &TestDevice) -> Outcome {
    let pair = pair(dut)?;
    pair.client.id.disconnect().unwrap();
    disconnected(&pair.listener.channel, &pair.server);
    assert_eq!(pair.server_node.qp.state(), State::IBV_QPS_RTS);
    pair.server.disconnect().unwrap();
    in_error(&pair.server_node);
    Ok(())
}

fn a_pair_of_the_program_s_own_is_left_alone(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let request = cm_device.request(TCP, &Param::nowhere());
    let node = request.server.own_node(&CmDevice::options());
    node.init();
    request.server.accept(Some(&Param::of(node.qp.num()))).unwrap();
    request.client.channel.expect_good(Kind::RDMA_CM_EVENT_CONNECT_RESPONSE);
    request.client.id.establish().unwrap();
    request.listener.channel.expect_good(Kind::RDMA_CM_EVENT_ESTABLISHED);
    end((&request.server, &request.listener.channel), (&request.client.id, &request.client.channel));
    assert_eq!(node.qp.state(), State::IBV_QPS_INIT);
    Ok(())
}

fn a_side_that_is_disconnected_may_say_so_again(dut: &TestDevice) -> Outcome {
    let pair = pair(dut)?;
    end((&pair.client.id, &pair.client.channel), (&pair.server, &pair.listener.channel));
    assert_eq!((pair.client.id.disconnect(), pair.server.disconnect()), (Ok(()), Ok(())));
    Ok(())
}

fn an_unconnected_identifier_cannot_disconnect(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    assert_eq!(cm_device.create_id(TCP).id.disconnect(), Err(EINVAL), "new");
    assert_eq!(cm_device.bound(TCP).id.disconnect(), Err(EINVAL), "bound");
    assert_eq!(cm_device.resolved(TCP, cm_device.at(7471)).id.disconnect(), Err(EINVAL), "resolved");
    Ok(())
}

fn a_side_that_is_destroyed_disconnects_the_other(dut: &TestDevice) -> Outcome {
    let ConnectedPair { client_node, server, client, listener, server_node, .. } = pair(dut)?;
    drop(client_node);
    client.id.destroy().unwrap();
    disconnected(&listener.channel, &server);
    server.disconnect().unwrap();
    in_error(&server_node);
    assert!(client.channel.is_quiet(), "an event of an identifier that is gone");
    Ok(())
}

fn a_passive_side_that_is_destroyed_disconnects_the_other(dut: &TestDevice) -> Outcome {
    let ConnectedPair { client_node, server, client, server_node, .. } = pair(dut)?;
    drop(server_node);
    server.destroy().unwrap();
    disconnected(&client.channel, &client.id);
    client.id.disconnect().unwrap();
    in_error(&client_node);
    Ok(())
}

fn a_connection_outlives_its_listener(dut: &TestDevice) -> Outcome {
    let pair = pair(dut)?;
    pair.listener.id.destroy().unwrap();
    pair.talks();
    end((&pair.client.id, &pair.client.channel), (&pair.server, &pair.listener.channel));
    Ok(())
}

fn both_sides_may_go_at_once(dut: &TestDevice) -> Outcome {
    let pair = pair(dut)?;
    let (client, server) = (pair.client.id.clone(), pair.server.clone());
    let channels = [pair.client.channel.clone(), pair.listener.channel.clone()];
    drop((pair.client_node, pair.server_node));
    let other = std::thread::spawn(move || client.destroy());
    server.destroy().unwrap();
    other.join().unwrap().unwrap();
    assert!(channels.iter().all(CmChannel::is_quiet), "an event of an identifier that is gone");
    Ok(())
}

/// `man rdma_get_cm_event`: RDMA_CM_EVENT_TIMEWAIT_EXIT: "The QP associated with a connection has
/// exited its timewait state and is now ready to be re-used."
fn the_time_of_waiting_ends(dut: &TestDevice) -> Outcome {
    let pair = pair(dut)?;
    end((&pair.client.id, &pair.client.channel), (&pair.server, &pair.listener.channel));
    for (channel, id) in [(&pair.client.channel, &pair.client.id), (&pair.listener.channel, &pair.server)] {
        let seen = channel.expect_within(LINGER, Kind::RDMA_CM_EVENT_TIMEWAIT_EXIT);
        assert!(seen.is_for(id));
        assert_eq!(seen.status, 0, "{seen:?}");
    }
    Ok(())
}

fn the_end_of_the_wait_is_not_waited_for(dut: &TestDevice) -> Outcome {
    let pair = pair(dut)?;
    end((&pair.client.id, &pair.client.channel), (&pair.server, &pair.listener.channel));
    let ConnectedPair { client_node, server_node, client, server, listener, .. } = pair;
    drop((client_node, server_node));
    client.id.destroy().unwrap();
    server.destroy().unwrap();
    let channels = [client.channel, listener.channel];
    assert!(
        !channels.iter().any(|channel| channel.is_ready(Duration::from_secs(3))),
        "identifiers that are gone"
    );
    Ok(())
}

fn a_request_that_was_withdrawn_is_not_accepted(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let request = cm_device.request(TCP, &Param::nowhere());
    request.client.id.destroy().unwrap();
    // The next event proves that the withdrawal has arrived before.
    let other = cm_device.resolved(TCP, cm_device.at(request.listener.id.src_port()));
    other.id.connect(Some(&Param::nowhere())).unwrap();
    let seen = request.listener.channel.expect_good(Kind::RDMA_CM_EVENT_CONNECT_REQUEST);
    assert_eq!(request.server.accept(Some(&Param::nowhere())), Err(EINVAL));
    assert_eq!(seen.request().dst_port(), other.id.src_port());
    assert!(request.listener.channel.is_quiet(), "the program has not taken the identifier on yet");
    Ok(())
}

fn a_connection_that_was_not_established_ends_with_its_identifier(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let request = cm_device.request(TCP, &Param::nowhere());
    request.server.accept(Some(&Param::nowhere())).unwrap();
    request.client.channel.expect_good(Kind::RDMA_CM_EVENT_CONNECT_RESPONSE);
    request.client.id.destroy().unwrap();
    let seen = request.listener.channel.expect(Kind::RDMA_CM_EVENT_REJECTED);
    assert!(seen.is_for(&request.server));
    assert_eq!(seen.status, BY_THE_CONSUMER, "{seen:?}");
    Ok(())
}

/// IBTA chapter 12, reasons of rejections: rejected by the consumer, which includes a destroyed
/// identifier.
const BY_THE_CONSUMER: i32 = 28;

fn the_events_of_one_end_do_not_come_twice(dut: &TestDevice) -> Outcome {
    let pair = pair(dut)?;
    end((&pair.client.id, &pair.client.channel), (&pair.server, &pair.listener.channel));
    for channel in [&pair.client.channel, &pair.listener.channel] {
        channel.expect_within(LINGER, Kind::RDMA_CM_EVENT_TIMEWAIT_EXIT);
        assert!(!channel.is_ready(Duration::from_millis(200)));
    }
    Ok(())
}

fn a_port_connects_again_and_again(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let listener = cm_device.listener(TCP);
    for _ in 0..10 {
        let client = cm_device.bound(TCP);
        client.resolve(cm_device.at(listener.id.src_port()));
        let node = client.id.node(&CmDevice::options());
        client.id.connect(Some(&Param::of(0))).unwrap();
        let server = listener.channel.expect_good(Kind::RDMA_CM_EVENT_CONNECT_REQUEST).request();
        let server_node = server.node(&CmDevice::options());
        server.accept(Some(&Param::of(0))).unwrap();
        client.channel.expect_good(Kind::RDMA_CM_EVENT_ESTABLISHED);
        listener.channel.expect_good(Kind::RDMA_CM_EVENT_ESTABLISHED);
        end((&client.id, &client.channel), (&server, &listener.channel));
        drop((node, server_node));
        server.destroy().unwrap();
    }
    Ok(())
}
