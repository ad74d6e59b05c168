//! The way to another side (`man rdma_resolve_addr`, `man rdma_resolve_route`).

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use libc::EINVAL;

use crate::harness::{Outcome, Rig, Suite};
use crate::kit::{Kind, Param, Site, Space};

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

/// How long resolving may take, in milliseconds.
const LIMIT: i32 = 4000;

/// "After this call, the rdma_cm_id will be bound to an RDMA device."
fn an_address_is_resolved_and_names_a_device(rig: &Rig) -> Outcome {
    let site = Site::of(rig)?;
    let side = site.side(TCP);
    side.id.resolve_addr(None, site.at(7471), LIMIT).unwrap();
    let seen = side.channel.expect_good(Kind::RDMA_CM_EVENT_ADDR_RESOLVED);
    assert!(seen.is_for(&side.id) && seen.listener == 0 && seen.private_data.is_empty(), "{seen:?}");
    assert_eq!(side.id.device().name(), site.device);
    assert_eq!((side.id.peer_addr(), side.id.dst_port()), (Some(site.at(7471)), 7471));
    assert_eq!(side.id.local_addr().map(|address| address.ip()), Some(site.ip), "chosen by the route");
    assert_ne!(side.id.src_port(), 0);
    assert_eq!(side.id.kind().2, 1);
    Ok(())
}

fn a_route_is_resolved_and_has_a_path(rig: &Rig) -> Outcome {
    let site = Site::of(rig)?;
    let side = site.resolved(TCP, site.at(7471));
    assert_eq!(side.id.gids(), (site.gid, site.gid));
    let path = side.id.path().expect("a resolved route has a path");
    let port = rig.open().port().unwrap();
    assert_eq!(u32::from(path.mtu), port.active_mtu.0, "the path is as good as the port");
    assert_eq!((u16::from_be(path.pkey), path.reversible != 0), (0xffff, true));
    Ok(())
}

/// "If a source address is given, the rdma_cm_id is bound to that address, the same as if rdma_bind_addr were called."
fn a_source_address_is_kept(rig: &Rig) -> Outcome {
    let site = Site::of(rig)?;
    let side = site.side(TCP);
    side.id.resolve_addr(Some(site.at(20_101)), site.at(7471), LIMIT).unwrap();
    side.channel.expect_good(Kind::RDMA_CM_EVENT_ADDR_RESOLVED);
    assert_eq!(side.id.local_addr(), Some(site.at(20_101)));
    let other = side.channel.id(TCP, 0).unwrap();
    assert_eq!(other.bind(site.at(20_101)), Err(libc::EADDRINUSE));
    Ok(())
}

fn a_bound_identifier_keeps_its_port(rig: &Rig) -> Outcome {
    let site = Site::of(rig)?;
    let side = site.bound(TCP);
    let port = side.id.src_port();
    side.resolve(site.at(7471));
    assert_eq!((side.id.src_port(), side.id.local_addr()), (port, Some(site.at(port))));
    Ok(())
}

fn a_source_that_is_not_local_is_refused(rig: &Rig) -> Outcome {
    let site = Site::of(rig)?;
    let side = site.side(TCP);
    let source: SocketAddr = (Ipv4Addr::new(192, 0, 2, 1), 0).into();
    assert_eq!(side.id.resolve_addr(Some(source), site.at(7471), LIMIT), Err(libc::EADDRNOTAVAIL));
    assert!(side.channel.is_quiet());
    Ok(())
}

fn an_address_is_resolved_once(rig: &Rig) -> Outcome {
    let site = Site::of(rig)?;
    let side = site.side(TCP);
    side.id.resolve_addr(None, site.at(7471), LIMIT).unwrap();
    assert_eq!(side.id.resolve_addr(None, site.at(7471), LIMIT), Err(EINVAL), "being resolved");
    side.channel.expect_good(Kind::RDMA_CM_EVENT_ADDR_RESOLVED);
    assert_eq!(side.id.resolve_addr(None, site.at(7471), LIMIT), Err(EINVAL), "resolved");
    assert!(side.channel.is_quiet());
    Ok(())
}

/// "Users must have already resolved a destination address by calling rdma_resolve_addr before calling this routine."
fn a_route_needs_an_address(rig: &Rig) -> Outcome {
    let site = Site::of(rig)?;
    let side = site.bound(TCP);
    assert_eq!(side.id.resolve_route(LIMIT), Err(EINVAL));
    assert!(side.channel.is_quiet());
    Ok(())
}

fn a_route_is_resolved_once(rig: &Rig) -> Outcome {
    let site = Site::of(rig)?;
    let side = site.resolved(TCP, site.at(7471));
    assert_eq!(side.id.resolve_route(LIMIT), Err(EINVAL));
    assert!(side.channel.is_quiet());
    Ok(())
}

/// `man rdma_connect`: "Users must have resolved a route to the destination address."
fn a_connection_needs_a_route(rig: &Rig) -> Outcome {
    let site = Site::of(rig)?;
    let side = site.bound(TCP);
    assert_eq!(side.id.connect(Some(&Param::nowhere())), Err(EINVAL), "bound");
    side.id.resolve_addr(None, site.at(7471), LIMIT).unwrap();
    side.channel.expect_good(Kind::RDMA_CM_EVENT_ADDR_RESOLVED);
    assert_eq!(side.id.connect(Some(&Param::nowhere())), Err(EINVAL), "address resolved");
    Ok(())
}

fn a_resolved_identifier_is_bound(rig: &Rig) -> Outcome {
    let site = Site::of(rig)?;
    let side = site.side(TCP);
    side.id.resolve_addr(None, site.at(7471), LIMIT).unwrap();
    side.channel.expect_good(Kind::RDMA_CM_EVENT_ADDR_RESOLVED);
    assert_eq!(side.id.bind(site.at(0)), Err(EINVAL));
    assert_eq!(side.id.listen(1), Err(EINVAL));
    Ok(())
}

/// `man rdma_get_cm_event`: RDMA_CM_EVENT_ADDR_ERROR: "Address resolution (rdma_resolve_addr) failed."
fn an_address_that_nobody_has_is_an_error(rig: &Rig) -> Outcome {
    let site = Site::of(rig)?;
    let Some(nobody) = site.nobody() else { skip!("the device has no IPv4 address") };
    let side = site.bound(TCP);
    side.id.resolve_addr(None, nobody, 300).unwrap();
    let seen = side.channel.expect(Kind::RDMA_CM_EVENT_ADDR_ERROR);
    let errors = [libc::ETIMEDOUT, libc::EHOSTUNREACH, libc::ENETUNREACH];
    assert!(errors.contains(&-seen.status), "a negative error number: {seen:?}");
    assert!(seen.is_for(&side.id));
    // It is bound as before, and finds another.
    side.resolve(site.at(7471));
    Ok(())
}

/// `man rdma_destroy_id`: "... and cancels any outstanding asynchronous operation."
fn an_identifier_that_is_being_resolved_is_destroyed(rig: &Rig) -> Outcome {
    let site = Site::of(rig)?;
    let Some(nobody) = site.nobody() else { skip!("the device has no IPv4 address") };
    let channel = site.channel();
    for _ in 0..8 {
        let id = channel.id(TCP, 0).unwrap();
        id.resolve_addr(Some(site.at(0)), nobody, 100).unwrap();
        id.destroy().unwrap();
    }
    assert!(!channel.is_ready(Duration::from_millis(300)), "an event of an identifier that is gone");
    Ok(())
}

fn resolving_forgets_no_port_space(rig: &Rig) -> Outcome {
    let site = Site::of(rig)?;
    for space in [TCP, Space::RDMA_PS_UDP] {
        let side = site.resolved(space, site.at(7471));
        assert_eq!(side.id.kind().0, space);
    }
    Ok(())
}

fn a_listener_does_not_resolve(rig: &Rig) -> Outcome {
    let site = Site::of(rig)?;
    let side = site.listener(TCP);
    assert_eq!(side.id.resolve_addr(None, site.at(7471), LIMIT), Err(EINVAL));
    assert_eq!(side.id.resolve_route(LIMIT), Err(EINVAL));
    assert_eq!(side.id.connect(Some(&Param::nowhere())), Err(EINVAL));
    Ok(())
}

fn an_ipv6_address_is_resolved(rig: &Rig) -> Outcome {
    let site = Site::of(rig)?;
    let Some(mut address) = site.ipv6(rig) else { skip!("the device has no IPv6 address") };
    let source = address;
    address.set_port(7471);
    let side = site.side(TCP);
    side.id.resolve_addr(Some(source), address, LIMIT).unwrap();
    side.channel.expect_good(Kind::RDMA_CM_EVENT_ADDR_RESOLVED);
    side.id.resolve_route(LIMIT).unwrap();
    side.channel.expect_good(Kind::RDMA_CM_EVENT_ROUTE_RESOLVED);
    assert_eq!(side.id.dst_port(), 7471);
    let SocketAddr::V6(address) = address else { unreachable!("asked for") };
    assert_eq!(side.id.gids(), (address.ip().octets(), address.ip().octets()));
    Ok(())
}

fn the_other_device_is_found(rig: &Rig) -> Outcome {
    let (site, peer) = (Site::of(rig)?, Site::of_peer(rig)?);
    let side = site.side(TCP);
    side.id.resolve_addr(Some(site.at(0)), peer.at(7471), LIMIT).unwrap();
    side.channel.expect_good(Kind::RDMA_CM_EVENT_ADDR_RESOLVED);
    side.id.resolve_route(LIMIT).unwrap();
    side.channel.expect_good(Kind::RDMA_CM_EVENT_ROUTE_RESOLVED);
    assert_eq!(side.id.device().name(), site.device);
    assert_eq!(side.id.gids(), (site.gid, peer.gid));
    Ok(())
}
