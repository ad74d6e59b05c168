//! Address and route resolution (`man rdma_resolve_addr`, `man rdma_resolve_route`).

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use libc::EINVAL;

use crate::kit::{CmDevice, Kind, Outcome, Param, Space, Suite, TestDevice};

pub(crate) fn cases(suite: &mut Suite) {
    cases!(suite:
        an_address_is_resolved_and_names_a_device,
        a_route_is_resolved_and_has_a_path,
        a_source_address_is_kept,
        a_bound_identifier_keeps_its_port,
        a_source_that_is_not_local_is_refused,
        an_address_is_resolved_once,
        a_route_needs_an_address,
        a_route_is_resolved_once,
        a_connection_needs_a_route,
        a_resolved_identifier_is_bound,
        an_address_that_nobody_has_is_an_error,
        an_identifier_that_is_being_resolved_is_destroyed,
        resolving_forgets_no_port_space,
        a_listener_does_not_resolve,
        an_ipv6_address_is_resolved,
        the_other_device_is_found,
    );
}

const TCP: Space = Space::RDMA_PS_TCP;

/// The time limit for resolving, in milliseconds.
const LIMIT: i32 = 4000;

/// "After this call, the rdma_cm_id will be bound to an RDMA device."
fn an_address_is_resolved_and_names_a_device(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let end = cm_device.create_id(TCP);
    end.id.resolve_addr(None, cm_device.at(7471), LIMIT).unwrap();
    let seen = end.channel.expect_good(Kind::RDMA_CM_EVENT_ADDR_RESOLVED);
    assert!(seen.is_for(&end.id) && seen.listener == 0 && seen.private_data.is_empty(), "{seen:?}");
    assert_eq!(end.id.device().name(), cm_device.device);
    assert_eq!((end.id.peer_addr(), end.id.dst_port()), (Some(cm_device.at(7471)), 7471));
    assert_eq!(end.id.local_addr().map(|address| address.ip()), Some(cm_device.ip), "chosen by the route");
    assert_ne!(end.id.src_port(), 0);
    assert_eq!(end.id.kind().2, 1);
    Ok(())
}

fn a_route_is_resolved_and_has_a_path(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let end = cm_device.resolved(TCP, cm_device.at(7471));
    assert_eq!(end.id.gids(), (cm_device.gid, cm_device.gid));
    let path = end.id.path().expect("a resolved route has a path");
    let port = dut.open().port().unwrap();
    assert_eq!(u32::from(path.mtu), port.active_mtu.0, "the path is as good as the port");
    assert_eq!((u16::from_be(path.pkey), path.reversible != 0), (0xffff, true));
    Ok(())
}

/// "If a source address is given, the rdma_cm_id is bound to that address, the same as if
/// rdma_bind_addr were called."
fn a_source_address_is_kept(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let end = cm_device.create_id(TCP);
    end.id.resolve_addr(Some(cm_device.at(20_101)), cm_device.at(7471), LIMIT).unwrap();
    end.channel.expect_good(Kind::RDMA_CM_EVENT_ADDR_RESOLVED);
    assert_eq!(end.id.local_addr(), Some(cm_device.at(20_101)));
    let other = end.channel.id(TCP, 0).unwrap();
    assert_eq!(other.bind(cm_device.at(20_101)), Err(libc::EADDRINUSE));
    Ok(())
}

fn a_bound_identifier_keeps_its_port(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let end = cm_device.bound(TCP);
    let port = end.id.src_port();
    end.resolve(cm_device.at(7471));
    assert_eq!((end.id.src_port(), end.id.local_addr()), (port, Some(cm_device.at(port))));
    Ok(())
}

fn a_source_that_is_not_local_is_refused(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let end = cm_device.create_id(TCP);
    let source: SocketAddr = (Ipv4Addr::new(192, 0, 2, 1), 0).into();
    assert_eq!(end.id.resolve_addr(Some(source), cm_device.at(7471), LIMIT), Err(libc::EADDRNOTAVAIL));
    assert!(end.channel.is_quiet());
    Ok(())
}

fn an_address_is_resolved_once(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let end = cm_device.create_id(TCP);
    end.id.resolve_addr(None, cm_device.at(7471), LIMIT).unwrap();
    assert_eq!(end.id.resolve_addr(None, cm_device.at(7471), LIMIT), Err(EINVAL), "being resolved");
    end.channel.expect_good(Kind::RDMA_CM_EVENT_ADDR_RESOLVED);
    assert_eq!(end.id.resolve_addr(None, cm_device.at(7471), LIMIT), Err(EINVAL), "resolved");
    assert!(end.channel.is_quiet());
    Ok(())
}

/// "Users must have already resolved a destination address by calling rdma_resolve_addr before
/// calling this routine."
fn a_route_needs_an_address(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let end = cm_device.bound(TCP);
    assert_eq!(end.id.resolve_route(LIMIT), Err(EINVAL));
    assert!(end.channel.is_quiet());
    Ok(())
}

fn a_route_is_resolved_once(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let end = cm_device.resolved(TCP, cm_device.at(7471));
    assert_eq!(end.id.resolve_route(LIMIT), Err(EINVAL));
    assert!(end.channel.is_quiet());
    Ok(())
}

/// `man rdma_connect`: "Users must have resolved a route to the destination address."
fn a_connection_needs_a_route(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let end = cm_device.bound(TCP);
    assert_eq!(end.id.connect(Some(&Param::nowhere())), Err(EINVAL), "bound");
    end.id.resolve_addr(None, cm_device.at(7471), LIMIT).unwrap();
    end.channel.expect_good(Kind::RDMA_CM_EVENT_ADDR_RESOLVED);
    assert_eq!(end.id.connect(Some(&Param::nowhere())), Err(EINVAL), "address resolved");
    Ok(())
}

fn a_resolved_identifier_is_bound(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let end = cm_device.create_id(TCP);
    end.id.resolve_addr(None, cm_device.at(7471), LIMIT).unwrap();
    end.channel.expect_good(Kind::RDMA_CM_EVENT_ADDR_RESOLVED);
    assert_eq!(end.id.bind(cm_device.at(0)), Err(EINVAL));
    assert_eq!(end.id.listen(1), Err(EINVAL));
    Ok(())
}

/// `man rdma_get_cm_event`: RDMA_CM_EVENT_ADDR_ERROR: "Address resolution (rdma_resolve_addr)
/// failed."
fn an_address_that_nobody_has_is_an_error(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let Some(nobody) = cm_device.nobody() else { skip!("the device has no IPv4 address") };
    let end = cm_device.bound(TCP);
    end.id.resolve_addr(None, nobody, 300).unwrap();
    let seen = end.channel.expect(Kind::RDMA_CM_EVENT_ADDR_ERROR);
    let errors = [libc::ETIMEDOUT, libc::EHOSTUNREACH, libc::ENETUNREACH];
    assert!(errors.contains(&-seen.status), "a negative error number: {seen:?}");
    assert!(seen.is_for(&end.id));
    // The identifier is bound as before and can resolve another address.
    end.resolve(cm_device.at(7471));
    Ok(())
}

/// `man rdma_destroy_id`: "... and cancels any outstanding asynchronous operation."
fn an_identifier_that_is_being_resolved_is_destroyed(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let Some(nobody) = cm_device.nobody() else { skip!("the device has no IPv4 address") };
    let channel = cm_device.channel();
    for _ in 0..8 {
        let id = channel.id(TCP, 0).unwrap();
        id.resolve_addr(Some(cm_device.at(0)), nobody, 100).unwrap();
        id.destroy().unwrap();
    }
    assert!(!channel.is_ready(Duration::from_millis(300)), "an event of an identifier that is gone");
    Ok(())
}

fn resolving_forgets_no_port_space(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    for space in [TCP, Space::RDMA_PS_UDP] {
        let end = cm_device.resolved(space, cm_device.at(7471));
        assert_eq!(end.id.kind().0, space);
    }
    Ok(())
}

fn a_listener_does_not_resolve(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let end = cm_device.listener(TCP);
    assert_eq!(end.id.resolve_addr(None, cm_device.at(7471), LIMIT), Err(EINVAL));
    assert_eq!(end.id.resolve_route(LIMIT), Err(EINVAL));
    assert_eq!(end.id.connect(Some(&Param::nowhere())), Err(EINVAL));
    Ok(())
}

fn an_ipv6_address_is_resolved(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let Some(mut address) = cm_device.ipv6(dut) else { skip!("the device has no IPv6 address") };
    let source = address;
    address.set_port(7471);
    let end = cm_device.create_id(TCP);
    end.id.resolve_addr(Some(source), address, LIMIT).unwrap();
    end.channel.expect_good(Kind::RDMA_CM_EVENT_ADDR_RESOLVED);
    end.id.resolve_route(LIMIT).unwrap();
    end.channel.expect_good(Kind::RDMA_CM_EVENT_ROUTE_RESOLVED);
    assert_eq!(end.id.dst_port(), 7471);
    let SocketAddr::V6(address) = address else { unreachable!("asked for") };
    assert_eq!(end.id.gids(), (address.ip().octets(), address.ip().octets()));
    Ok(())
}

fn the_other_device_is_found(dut: &TestDevice) -> Outcome {
    let (cm_device, peer) = (CmDevice::of(dut)?, CmDevice::of_peer(dut)?);
    let end = cm_device.create_id(TCP);
    end.id.resolve_addr(Some(cm_device.at(0)), peer.at(7471), LIMIT).unwrap();
    end.channel.expect_good(Kind::RDMA_CM_EVENT_ADDR_RESOLVED);
    end.id.resolve_route(LIMIT).unwrap();
    end.channel.expect_good(Kind::RDMA_CM_EVENT_ROUTE_RESOLVED);
    assert_eq!(end.id.device().name(), cm_device.device);
    assert_eq!(end.id.gids(), (cm_device.gid, peer.gid));
    Ok(())
}
