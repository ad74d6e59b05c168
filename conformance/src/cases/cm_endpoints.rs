//! Synchronous identifiers (`man rdma_create_id`, `man rdma_create_ep`, `man rdma_get_request`),
//! and devices (`man rdma_get_devices`).

use std::process::Command;
use std::thread;

use libc::{ECONNREFUSED, EINVAL};
use rdma_mummy_sys::types::RAI_PASSIVE;
use rdma_mummy_sys::types::ibv_qp_state as State;
use rdma_mummy_sys::types::ibv_qp_type as Type;

use crate::kit::{
    CmDevice, CmId, Cq, Device, Flavour, Hints, Info, Kind, Node, Outcome, Param, QpInit, Space, Suite,
    TestDevice, TestTarget, Wr, pattern,
};

pub(crate) fn cases(suite: &mut Suite) {
    cases!(suite:
        a_synchronous_identifier_waits_for_its_results,
        a_synchronous_failure_is_an_error_number,
        a_synchronous_rejection_is_a_refusal,
        a_synchronous_identifier_becomes_asynchronous,
        an_asynchronous_identifier_becomes_synchronous,
        only_synchronous_listeners_are_asked_for_requests,
        two_endpoints_connect_and_talk,
        an_endpoint_has_its_queue_pair,
        a_listening_endpoint_makes_pairs_for_its_requests,
        an_endpoint_that_leads_nowhere_is_not_made,
        a_datagram_endpoint_finds_the_other,
        the_list_has_the_device,
        an_identifier_of_a_device_without_a_guid_has_no_context,
    );
}

const TCP: Space = Space::RDMA_PS_TCP;

/// The fault that makes the software device's node GUID zero.
const NO_GUID: (&str, &str) = ("SOFT_RNIC_FAULTS", "node_guid=0");

/// An address to listen at, with a port that the library chooses.
fn passive(cm_device: &CmDevice, space: Space) -> Info {
    let hints = Hints { flags: RAI_PASSIVE, space: Some(space), ..Hints::default() };
    cm_device.cm.info(Some(&cm_device.ip.to_string()), Some("0"), Some(&hints)).unwrap()
}

/// An address to connect to.
fn active(cm_device: &CmDevice, space: Space, port: u16) -> Info {
    let hints = Hints { space: Some(space), ..Hints::default() };
    cm_device.cm.info(Some(&cm_device.ip.to_string()), Some(&port.to_string()), Some(&hints)).unwrap()
}

/// A synchronous listener created by `rdma_create_ep`.
fn listener(cm_device: &CmDevice, space: Space, init: Option<&QpInit>) -> CmId {
    let id = cm_device.cm.endpoint(&passive(cm_device, space), None, init).unwrap();
    id.listen(4).unwrap();
    id
}

/// Attributes of a pair whose completion queues the library creates.
fn init(device: &Device, qp_type: Type) -> QpInit {
    let cq = Cq::of(device, 1, Flavour::Classic, None);
    let mut init = QpInit::new(qp_type, &cq, &cq);
    (init.send_cq, init.recv_cq) = (None, None);
    init
}

/// "While operating synchronously, calls that result in an event will block until the operation
/// completes. The event will be returned to the user through the rdma_cm_id structure."
fn a_synchronous_identifier_waits_for_its_results(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let id = cm_device.cm.synchronous_id(TCP).unwrap();
    assert!(id.event().is_none());
    id.resolve_addr(None, cm_device.at(7471), 2000).unwrap();
    assert_eq!(id.device().name(), cm_device.device);
    let event = id.event().expect("the event is in the identifier");
    assert_eq!((event.kind, event.status), (Kind::RDMA_CM_EVENT_ADDR_RESOLVED, 0));
    id.resolve_route(2000).unwrap();
    assert_eq!(id.event().unwrap().kind, Kind::RDMA_CM_EVENT_ROUTE_RESOLVED);
    Ok(())
}

fn a_synchronous_failure_is_an_error_number(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let Some(nobody) = cm_device.nobody() else { skip!("the device has no IPv4 address") };
    let id = cm_device.cm.synchronous_id(TCP).unwrap();
    let error = id.resolve_addr(Some(cm_device.at(0)), nobody, 200).unwrap_err();
    assert!([libc::ETIMEDOUT, libc::EHOSTUNREACH, libc::ENETUNREACH].contains(&error), "{error}");
    assert_eq!(id.event().unwrap().kind, Kind::RDMA_CM_EVENT_ADDR_ERROR);
    Ok(())
}

fn a_synchronous_rejection_is_a_refusal(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let bound = cm_device.bound(TCP);
    let id = cm_device.cm.synchronous_id(TCP).unwrap();
    id.resolve_addr(None, cm_device.at(bound.id.src_port()), 2000).unwrap();
    id.resolve_route(2000).unwrap();
    assert_eq!(id.connect(Some(&Param::nowhere())), Err(ECONNREFUSED));
    assert_eq!(id.event().unwrap().kind, Kind::RDMA_CM_EVENT_REJECTED);
    Ok(())
}

/// "Users that wish asynchronous operation must migrate the rdma_cm_id to a user created event
/// channel."
fn a_synchronous_identifier_becomes_asynchronous(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let id = cm_device.cm.synchronous_id(TCP).unwrap();
    id.resolve_addr(None, cm_device.at(7471), 2000).unwrap();
    let channel = cm_device.channel();
    id.migrate(Some(&channel)).unwrap();
    assert!(id.event().is_none() && id.is_of(&channel));
    id.resolve_route(2000).unwrap();
    assert!(channel.expect_good(Kind::RDMA_CM_EVENT_ROUTE_RESOLVED).is_for(&id));
    Ok(())
}

/// `man rdma_migrate_id`: "If the channel parameter is NULL, the specified rdma_cm_id will be
/// placed into synchronous operation mode."
fn an_asynchronous_identifier_becomes_synchronous(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let end = cm_device.create_id(TCP);
    end.id.migrate(None).unwrap();
    end.id.resolve_addr(None, cm_device.at(7471), 2000).unwrap();
    assert!(end.id.has_verbs() && end.channel.is_quiet());
    assert_eq!(end.id.event().unwrap().kind, Kind::RDMA_CM_EVENT_ADDR_RESOLVED);
    assert_eq!(end.id.migrate(None), Err(EINVAL), "it is synchronous");
    Ok(())
}

/// `man rdma_get_request`: "... the listening rdma_cm_id must be synchronous."
fn only_synchronous_listeners_are_asked_for_requests(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    assert_eq!(cm_device.listener(TCP).id.get_request().err(), Some(EINVAL));
    Ok(())
}

fn sends(from: &Node, to: &Node, seed: u8) {
    from.mr.buf.set(1024, &pattern(seed, 100));
    from.done(Wr::send(1).sge(from.mr.at(1024, 100)));
    assert_eq!(to.recv_cq.ok().len, 100);
    assert_eq!(to.mr.buf.get(0, 100), pattern(seed, 100));
}

fn two_endpoints_connect_and_talk(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let listener = listener(&cm_device, TCP, None);
    let port = listener.src_port();
    let server = thread::spawn(move || {
        let id = listener.get_request().unwrap();
        let event = id.event().expect("the request is in the new identifier");
        assert_eq!(event.kind, Kind::RDMA_CM_EVENT_CONNECT_REQUEST);
        assert_eq!(event.private_data[..3], [1, 2, 3]);
        let node = id.node(&CmDevice::options());
        node.recv(1, 0, 256);
        id.accept(Some(&Param::of(0).with(&[4]))).unwrap();
        assert_eq!(id.event().unwrap().kind, Kind::RDMA_CM_EVENT_ESTABLISHED);
        (node, id, listener)
    });
    let client = cm_device.cm.endpoint(&active(&cm_device, TCP, port), None, None).unwrap();
    let node = client.node(&CmDevice::options());
    node.recv(1, 0, 256);
    client.connect(Some(&Param::of(0).with(&[1, 2, 3]))).unwrap();
    let event = client.event().expect("the answer is in the identifier");
    assert_eq!((event.kind, event.private_data[0]), (Kind::RDMA_CM_EVENT_ESTABLISHED, 4));
    let (server_node, server, _listener) = server.join().unwrap();
    sends(&node, &server_node, 1);
    sends(&server_node, &node, 2);
    // Each disconnect waits for the other.
    let other = thread::spawn(move || server.disconnect());
    client.disconnect().unwrap();
    assert_eq!(client.event().unwrap().kind, Kind::RDMA_CM_EVENT_DISCONNECTED);
    other.join().unwrap().unwrap();
    Ok(())
}

/// "rdma_create_ep will automatically create a QP on the rdma_cm_id if qp_init_attr is not NULL."
fn an_endpoint_has_its_queue_pair(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let init = init(&dut.open(), Type::IBV_QPT_RC);
    let id = cm_device.cm.endpoint(&active(&cm_device, TCP, 7471), None, Some(&init)).unwrap();
    assert!(id.has_qp() && id.has_queues() && id.has_verbs() && id.path().is_some());
    assert_eq!((id.dst_port(), id.kind().1), (7471, Type::IBV_QPT_RC));
    let without = cm_device.cm.endpoint(&active(&cm_device, TCP, 7471), None, None).unwrap();
    assert!(!without.has_qp() && without.path().is_some());
    Ok(())
}

/// "When a new connection request is retrieved by calling rdma_get_request, the rdma_cm_id
/// associated with the new connection will automatically be associated with a QP using the pd and
/// qp_init_attr parameters."
fn a_listening_endpoint_makes_pairs_for_its_requests(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let init = init(&dut.open(), Type::IBV_QPT_RC);
    let listener = listener(&cm_device, TCP, Some(&init));
    let client = cm_device.resolved(TCP, cm_device.at(listener.src_port()));
    let node = client.id.node(&CmDevice::options());
    client.id.connect(Some(&Param::of(0))).unwrap();
    let server = listener.get_request().unwrap();
    assert!(server.has_qp() && server.has_queues());
    let accepting = thread::spawn(move || {
        server.accept(None).unwrap();
        server
    });
    let seen = client.channel.expect_good(Kind::RDMA_CM_EVENT_ESTABLISHED);
    let server = accepting.join().unwrap();
    assert_eq!(seen.conn.qp_num, server.qp_num());
    assert_eq!(node.qp.state(), State::IBV_QPS_RTS);
    Ok(())
}

fn an_endpoint_that_leads_nowhere_is_not_made(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let Some(nobody) = cm_device.nobody() else { skip!("the device has no IPv4 address") };
    let hints = Hints { space: Some(TCP), source: Some(cm_device.at(0)), ..Hints::default() };
    let info = cm_device.cm.info(Some(&nobody.ip().to_string()), Some("7471"), Some(&hints)).unwrap();
    let error = cm_device.cm.endpoint(&info, None, None).unwrap_err();
    assert!([libc::ETIMEDOUT, libc::EHOSTUNREACH, libc::ENETUNREACH].contains(&error), "{error}");
    Ok(())
}

fn a_datagram_endpoint_finds_the_other(dut: &TestDevice) -> Outcome {
    const UDP: Space = Space::RDMA_PS_UDP;
    let cm_device = CmDevice::of(dut)?;
    let init = init(&dut.open(), Type::IBV_QPT_UD);
    let listener = listener(&cm_device, UDP, Some(&init));
    let port = listener.src_port();
    let server = thread::spawn(move || {
        let id = listener.get_request().unwrap();
        id.accept(None).unwrap();
        (id.qp_num(), id, listener)
    });
    let client = cm_device.cm.endpoint(&active(&cm_device, UDP, port), None, Some(&init)).unwrap();
    client.connect(None).unwrap();
    let event = client.event().unwrap();
    let (number, ..) = server.join().unwrap();
    assert_eq!((event.kind, event.ud.qp_num), (Kind::RDMA_CM_EVENT_ESTABLISHED, number));
    Ok(())
}

/// "Returns an array of all available RDMA devices."
fn the_list_has_the_device(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let names = cm_device.cm.devices().unwrap();
    let mut expected: Vec<_> = Device::listed(dut.provider).into_iter().map(|device| device.name).collect();
    let mut sorted = names.clone();
    sorted.sort_unstable();
    expected.sort_unstable();
    assert_eq!(sorted, expected);
    assert_eq!(cm_device.cm.devices().unwrap(), names, "the same twice");
    Ok(())
}

/// librdmacm finds an identifier's device by its GUID, and zero means no device. The identifier
/// then has no context, with (new releases) or without (old ones) an error in the event.
fn an_identifier_of_a_device_without_a_guid_has_no_context(dut: &TestDevice) -> Outcome {
    if dut.target == TestTarget::System {
        skip!("the device has a GUID");
    }
    let cm_device = CmDevice::of(dut)?;
    if std::env::var(NO_GUID.0).is_ok_and(|faults| faults == NO_GUID.1) {
        let end = cm_device.create_id(TCP);
        end.id.resolve_addr(None, cm_device.at(7471), 2000).unwrap();
        let seen = end.channel.event().copy_and_ack();
        let expected = [Kind::RDMA_CM_EVENT_ADDR_ERROR, Kind::RDMA_CM_EVENT_ADDR_RESOLVED];
        assert!(expected.contains(&seen.kind) && !end.id.has_verbs(), "{seen:?}");
        let bound = cm_device.bound(TCP);
        assert!(!bound.id.has_verbs() && bound.id.src_port() != 0);
        return Ok(());
    }
    // The GUID belongs to the process, so that a second process has the zero GUID.
    let case = "cm_endpoints::an_identifier_of_a_device_without_a_guid_has_no_context";
    let name = format!("{}::{case}", dut.target.part());
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &name])
        .env(NO_GUID.0, NO_GUID.1)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
    Ok(())
}
