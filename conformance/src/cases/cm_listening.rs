//! Listeners and their requests (`man rdma_listen`, `man rdma_reject`).

use std::net::Ipv4Addr;
use std::time::Duration;

use libc::{EADDRINUSE, EINVAL};
use rdma_mummy_sys::types::{RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR};

use crate::kit::{CmDevice, CmId, IdWithChannel, Kind, Outcome, Param, Space, Suite, TestDevice, pattern};

pub(crate) fn cases(suite: &mut Suite) {
    cases!(suite:
        a_listener_may_be_bound_to_nothing,
        an_identifier_listens_once,
        two_do_not_listen_at_one_port,
        a_request_brings_a_new_identifier,
        the_addresses_of_a_request_are_the_other_side_s,
        a_listener_at_every_address_hears_of_each_device,
        a_listener_at_one_address_does_not_hear_of_others,
        a_listener_at_another_address_of_the_device_does_not_hear,
        many_requests_arrive_at_one_listener,
        requests_beyond_the_backlog_wait,
        a_listener_goes_with_requests_that_nobody_took,
        a_request_outlives_its_listener,
        a_request_goes_with_its_identifier,
        nobody_listens,
        a_listener_that_is_gone_hears_nothing,
        a_listener_of_another_port_space_hears_nothing,
        a_request_is_rejected_with_private_data,
        a_rejection_without_data_is_padded,
        too_much_data_for_a_rejection_is_refused,
        a_rejection_for_its_options_has_a_reason_of_its_own,
        a_request_is_rejected_once,
        a_rejected_side_may_not_try_again,
        an_identifier_without_a_request_cannot_reject,
        a_listener_accepts_and_rejects_nothing,
    );
}

const TCP: Space = Space::RDMA_PS_TCP;

/// IBTA chapter 12, reasons of rejections: no such service.
const NO_SUCH_SERVICE: i32 = 8;

/// IBTA chapter 12, reasons of rejections: rejected by the consumer, which includes a destroyed
/// identifier.
const BY_THE_CONSUMER: i32 = 28;

/// IBTA chapter 12, reasons of rejections: unsupported vendor options.
const VENDOR_OPTIONS: i32 = 35;

/// The private data of a rejection (IBTA chapter 12, the message REJ).
const REJECTION: usize = 148;

/// Sends a request and does not wait for the reply.
fn ask(cm_device: &CmDevice, to: u16) -> IdWithChannel {
    let end = cm_device.resolved(TCP, cm_device.at(to));
    end.id.connect(Some(&Param::nowhere())).unwrap();
    end
}

fn is_rejected(end: &IdWithChannel, status: i32) {
    let seen = end.channel.expect(Kind::RDMA_CM_EVENT_REJECTED);
    assert!(seen.is_for(&end.id));
    assert_eq!(seen.status, status, "{seen:?}");
}

/// The kernel binds such a listener to a port at every address.
fn a_listener_may_be_bound_to_nothing(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let end = cm_device.create_id(TCP);
    end.id.listen(1).unwrap();
    assert_ne!(end.id.src_port(), 0);
    let client = ask(&cm_device, end.id.src_port());
    let seen = end.channel.expect_good(Kind::RDMA_CM_EVENT_CONNECT_REQUEST);
    seen.request().reject(&[]).unwrap();
    is_rejected(&client, BY_THE_CONSUMER);
    Ok(())
}

fn an_identifier_listens_once(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let end = cm_device.listener(TCP);
    assert_eq!(end.id.listen(1), Err(EINVAL));
    assert_eq!(end.id.bind(cm_device.at(0)), Err(EINVAL));
    Ok(())
}

fn two_do_not_listen_at_one_port(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let channel = cm_device.channel();
    let ids = [(); 2].map(|()| {
        let id = channel.id(TCP, 0).unwrap();
        id.set_option(RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &1_i32.to_ne_bytes()).unwrap();
        id.bind(cm_device.at(20_201)).unwrap();
        id
    });
    // Both share the port and try to listen: the kernel refuses the first while the second is
    // bound.
    assert_eq!(ids[0].listen(1), Err(EADDRINUSE));
    ids[1].destroy().unwrap();
    ids[0].listen(1).unwrap();
    Ok(())
}

/// `man rdma_get_cm_event`: "If the event type is RDMA_CM_EVENT_CONNECT_REQUEST, then this
/// references a new id for that communication."
fn a_request_brings_a_new_identifier(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let listener = cm_device.channel();
    let id = listener.id(TCP, 0x77).unwrap();
    id.bind(cm_device.at(0)).unwrap();
    id.listen(1).unwrap();
    let _client = ask(&cm_device, id.src_port());
    let seen = listener.expect_good(Kind::RDMA_CM_EVENT_CONNECT_REQUEST);
    assert_eq!(seen.listener, id.address());
    assert!(!seen.is_for(&id));
    let new = seen.request();
    assert_eq!((new.context(), new.kind()), (0x77, (TCP, id.kind().1, 1)), "as the listener's");
    assert!(new.is_of(&listener) && new.has_verbs() && !new.has_qp());
    assert_eq!(new.device().name(), cm_device.device);
    Ok(())
}

fn the_addresses_of_a_request_are_the_other_side_s(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let request = cm_device.request(TCP, &Param::nowhere());
    let (server, client) = (&request.server, &request.client.id);
    assert_eq!((server.local_addr(), server.peer_addr()), (client.peer_addr(), client.local_addr()));
    assert_eq!((server.src_port(), server.dst_port()), (client.dst_port(), client.src_port()));
    assert_eq!(server.src_port(), request.listener.id.src_port());
    assert_eq!(server.gids(), (cm_device.gid, cm_device.gid));
    assert!(server.path().is_some());
    Ok(())
}

/// "If the rdma_cm_id is bound to an RDMA port number only, the listen will occur across all RDMA
/// devices."
fn a_listener_at_every_address_hears_of_each_device(dut: &TestDevice) -> Outcome {
    let cm_devices = [CmDevice::of(dut)?, CmDevice::of_peer(dut)?];
    let listener = cm_devices[0].create_id(TCP);
    listener.id.bind((Ipv4Addr::UNSPECIFIED, 0).into()).unwrap();
    listener.id.listen(4).unwrap();
    for cm_device in &cm_devices {
        let client = ask(cm_device, listener.id.src_port());
        let new = listener.channel.expect_good(Kind::RDMA_CM_EVENT_CONNECT_REQUEST).request();
        assert_eq!(new.device().name(), cm_device.device);
        assert_eq!(new.local_addr(), client.id.peer_addr());
    }
    Ok(())
}

/// "If the rdma_cm_id is bound to a specific IP address, the listen will be restricted to that
/// address."
fn a_listener_at_one_address_does_not_hear_of_others(dut: &TestDevice) -> Outcome {
    let (cm_device, peer) = (CmDevice::of(dut)?, CmDevice::of_peer(dut)?);
    let listener = cm_device.listener(TCP);
    let client = peer.resolved(TCP, peer.at(listener.id.src_port()));
    client.id.connect(Some(&Param::nowhere())).unwrap();
    is_rejected(&client, NO_SUCH_SERVICE);
    assert!(listener.channel.is_quiet());
    Ok(())
}

/// The device has a listener at this port, but at another address.
fn a_listener_at_another_address_of_the_device_does_not_hear(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let Some(mut address) = cm_device.ipv6(dut) else { skip!("the device has no IPv6 address") };
    let listener = cm_device.listener(TCP);
    let client = cm_device.create_id(TCP);
    client.id.bind(address).unwrap();
    address.set_port(listener.id.src_port());
    client.resolve(address);
    client.id.connect(Some(&Param::nowhere())).unwrap();
    is_rejected(&client, BY_THE_CONSUMER);
    assert!(listener.channel.is_quiet());
    Ok(())
}

fn many_requests_arrive_at_one_listener(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let listener = cm_device.listener(TCP);
    let clients: Vec<_> = (0..10).map(|_| ask(&cm_device, listener.id.src_port())).collect();
    let mut ports: Vec<_> = clients
        .iter()
        .map(|_| listener.channel.expect_good(Kind::RDMA_CM_EVENT_CONNECT_REQUEST).request().dst_port())
        .collect();
    let mut expected: Vec<_> = clients.iter().map(|client| client.id.src_port()).collect();
    ports.sort_unstable();
    expected.sort_unstable();
    assert_eq!(ports, expected);
    clients.iter().for_each(|client| is_rejected(client, BY_THE_CONSUMER));
    Ok(())
}

/// The kernel drops requests beyond the backlog, and the client retries them.
fn requests_beyond_the_backlog_wait(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let listener = cm_device.bound(TCP);
    listener.id.listen(1).unwrap();
    let clients = [(); 2].map(|()| {
        let client = ask(&cm_device, listener.id.src_port());
        assert!(listener.channel.is_ready(Duration::from_secs(8)), "the first request");
        client
    });
    // Without a backlog the second request would have arrived long ago.
    assert!(!clients[1].channel.is_ready(Duration::from_millis(300)), "it waits");
    let mut servers: Vec<CmId> = Vec::new();
    for _ in &clients {
        let limit = Duration::from_secs(30);
        let seen = listener.channel.expect_within(limit, Kind::RDMA_CM_EVENT_CONNECT_REQUEST);
        servers.push(seen.request());
    }
    let mut ports = servers.iter().map(CmId::dst_port).collect::<Vec<_>>();
    ports.sort_unstable();
    let mut expected = clients.each_ref().map(|client| client.id.src_port());
    expected.sort_unstable();
    assert_eq!(ports, expected);
    Ok(())
}

fn a_listener_goes_with_requests_that_nobody_took(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let listener = cm_device.listener(TCP);
    let clients = [(); 3].map(|()| ask(&cm_device, listener.id.src_port()));
    assert!(listener.channel.is_ready(Duration::from_secs(8)));
    // All three requests have arrived by now, or are on their way.
    std::thread::sleep(Duration::from_millis(300));
    listener.id.destroy().unwrap();
    for client in &clients {
        let seen = client.channel.expect(Kind::RDMA_CM_EVENT_REJECTED);
        assert!([BY_THE_CONSUMER, NO_SUCH_SERVICE].contains(&seen.status), "{seen:?}");
    }
    assert!(listener.channel.is_quiet(), "its events are gone");
    Ok(())
}

fn a_request_outlives_its_listener(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let request = cm_device.request(TCP, &Param::nowhere());
    request.listener.id.destroy().unwrap();
    let answer = Param::nowhere();
    request.server.accept(Some(&answer)).unwrap();
    let seen = request.client.channel.expect_good(Kind::RDMA_CM_EVENT_CONNECT_RESPONSE);
    assert_eq!(seen.conn.qp_num, answer.qp_num);
    request.client.id.establish().unwrap();
    let seen = request.listener.channel.expect_good(Kind::RDMA_CM_EVENT_ESTABLISHED);
    assert!(seen.is_for(&request.server));
    Ok(())
}

fn a_request_goes_with_its_identifier(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let request = cm_device.request(TCP, &Param::nowhere());
    request.server.destroy().unwrap();
    is_rejected(&request.client, BY_THE_CONSUMER);
    Ok(())
}

/// `man rdma_get_cm_event`: RDMA_CM_EVENT_REJECTED: "Indicates that a connection request or
/// response was rejected by the remote end point."
fn nobody_listens(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let bound = cm_device.bound(TCP);
    let client = ask(&cm_device, bound.id.src_port());
    let seen = client.channel.expect(Kind::RDMA_CM_EVENT_REJECTED);
    assert_eq!(seen.status, NO_SUCH_SERVICE, "bound is not listening: {seen:?}");
    assert!(bound.channel.is_quiet());
    Ok(())
}

fn a_listener_that_is_gone_hears_nothing(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let listener = cm_device.listener(TCP);
    let port = listener.id.src_port();
    listener.id.destroy().unwrap();
    is_rejected(&ask(&cm_device, port), NO_SUCH_SERVICE);
    assert!(listener.channel.is_quiet());
    Ok(())
}

fn a_listener_of_another_port_space_hears_nothing(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let listener = cm_device.listener(Space::RDMA_PS_UDP);
    is_rejected(&ask(&cm_device, listener.id.src_port()), NO_SUCH_SERVICE);
    assert!(listener.channel.is_quiet());
    Ok(())
}

/// "If the underlying RDMA transport supports private data in the reject message, the specified
/// data will be passed to the remote side."
fn a_request_is_rejected_with_private_data(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    for len in [1, 56, REJECTION] {
        let request = cm_device.request(TCP, &Param::nowhere());
        request.server.reject(&pattern(3, len)).unwrap();
        let seen = request.client.channel.expect(Kind::RDMA_CM_EVENT_REJECTED);
        assert_eq!(seen.status, BY_THE_CONSUMER, "{seen:?}");
        let mut expected = pattern(3, len);
        expected.resize(REJECTION, 0);
        assert_eq!(seen.private_data, expected, "{len} bytes");
    }
    Ok(())
}

/// "The size of the private data buffer may be larger than the amount of private data sent by the
/// remote side. Any additional space in the buffer will be zeroed out."
fn a_rejection_without_data_is_padded(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let request = cm_device.request(TCP, &Param::nowhere());
    request.server.reject(&[]).unwrap();
    let seen = request.client.channel.expect(Kind::RDMA_CM_EVENT_REJECTED);
    assert_eq!(seen.private_data, [0; REJECTION]);
    Ok(())
}

fn too_much_data_for_a_rejection_is_refused(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let request = cm_device.request(TCP, &Param::nowhere());
    for len in [REJECTION + 1, 255] {
        assert_eq!(request.server.reject(&pattern(1, len)), Err(EINVAL), "{len}");
    }
    assert!(request.client.channel.is_quiet());
    request.server.reject(&pattern(1, REJECTION)).unwrap();
    is_rejected(&request.client, BY_THE_CONSUMER);
    Ok(())
}

fn a_rejection_for_its_options_has_a_reason_of_its_own(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let request = cm_device.request(TCP, &Param::nowhere());
    request.server.reject_ece(&pattern(1, 9)).unwrap();
    let seen = request.client.channel.expect(Kind::RDMA_CM_EVENT_REJECTED);
    assert_eq!((seen.status, &seen.private_data[..9]), (VENDOR_OPTIONS, &pattern(1, 9)[..]));
    Ok(())
}

fn a_request_is_rejected_once(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let request = cm_device.request(TCP, &Param::nowhere());
    request.server.reject(&[]).unwrap();
    is_rejected(&request.client, BY_THE_CONSUMER);
    assert_eq!(request.server.reject(&[]), Err(EINVAL), "rejected before");
    assert_eq!(request.server.accept(Some(&Param::nowhere())), Err(EINVAL), "rejected before");
    assert!(request.client.channel.is_quiet() && request.listener.channel.is_quiet());
    Ok(())
}

fn a_rejected_side_may_not_try_again(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let request = cm_device.request(TCP, &Param::nowhere());
    request.server.reject(&[]).unwrap();
    is_rejected(&request.client, BY_THE_CONSUMER);
    assert_eq!(request.client.id.connect(Some(&Param::nowhere())), Err(EINVAL));
    // Another identifier may connect.
    let again = ask(&cm_device, request.listener.id.src_port());
    request.listener.channel.expect_good(Kind::RDMA_CM_EVENT_CONNECT_REQUEST).request().reject(&[]).unwrap();
    is_rejected(&again, BY_THE_CONSUMER);
    Ok(())
}

fn an_identifier_without_a_request_cannot_reject(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    assert_eq!(cm_device.create_id(TCP).id.reject(&[]), Err(EINVAL), "new");
    assert_eq!(cm_device.bound(TCP).id.reject(&[]), Err(EINVAL), "bound");
    assert_eq!(cm_device.resolved(TCP, cm_device.at(7471)).id.reject(&[]), Err(EINVAL), "resolved");
    Ok(())
}

fn a_listener_accepts_and_rejects_nothing(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let listener = cm_device.listener(TCP);
    assert_eq!(listener.id.accept(Some(&Param::nowhere())), Err(EINVAL));
    assert_eq!(listener.id.reject(&[]), Err(EINVAL));
    Ok(())
}
