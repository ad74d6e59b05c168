//! Addresses of identifiers (`man rdma_bind_addr`, `man rdma_getaddrinfo`, `man
//! rdma_get_src_port`).

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use libc::{AF_INET, AF_INET6, EADDRINUSE, EADDRNOTAVAIL, EINVAL};
use rdma_mummy_sys::types::{RAI_NUMERICHOST, RAI_PASSIVE, RDMA_OPTION_ID, ibv_qp_type};
use rdma_mummy_sys::types::{RDMA_OPTION_ID_AFONLY, RDMA_OPTION_ID_REUSEADDR};

use crate::kit::{CmChannel, CmDevice, CmId, Hints, Outcome, Space, Suite, TestDevice};

pub(crate) fn cases(suite: &mut Suite) {
    cases!(suite:
        an_identifier_without_an_address_has_none,
        binding_chooses_a_port_and_a_device,
        a_chosen_port_is_read_back,
        chosen_ports_differ,
        a_port_in_use_is_refused,
        a_port_is_free_again_when_its_identifier_is_gone,
        port_spaces_have_ports_of_their_own,
        a_port_at_two_addresses_is_two,
        a_port_at_every_address_is_at_each,
        a_port_can_be_shared_by_those_who_all_agree,
        an_address_that_is_not_local_is_refused,
        an_address_of_an_unknown_family_is_refused,
        an_identifier_binds_once,
        every_address_is_no_device,
        every_ipv6_address_takes_the_ipv4_port_too,
        an_ipv6_socket_alone_leaves_the_ipv4_port,
        an_ipv6_address_names_a_device,
        a_node_is_looked_up,
        a_service_alone_is_a_place_to_listen,
        hints_choose_the_kind_of_service,
        hints_alone_are_copied,
        a_source_in_the_hints_is_kept,
        a_name_that_is_no_number_is_refused_where_numbers_are_wanted,
        nothing_to_look_up_is_refused,
    );
}

const TCP: Space = Space::RDMA_PS_TCP;

/// The first of the ports that cases choose themselves; they are below the ephemeral ports.
const PORT: u16 = 20_000;

fn id(channel: &CmChannel) -> CmId {
    channel.id(TCP, 0).unwrap()
}

fn everywhere(port: u16) -> SocketAddr {
    (Ipv4Addr::UNSPECIFIED, port).into()
}

fn everywhere_v6(port: u16) -> SocketAddr {
    (Ipv6Addr::UNSPECIFIED, port).into()
}

fn an_identifier_without_an_address_has_none(dut: &TestDevice) -> Outcome {
    let end = CmDevice::of(dut)?.create_id(TCP);
    assert_eq!((end.id.local_addr(), end.id.peer_addr()), (None, None));
    assert_eq!((end.id.src_port(), end.id.dst_port()), (0, 0));
    Ok(())
}

/// "If binding to a specific local address, the rdma_cm_id will also be bound to a local RDMA
/// device."
fn binding_chooses_a_port_and_a_device(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let end = cm_device.bound(TCP);
    let port = end.id.src_port();
    assert_ne!(port, 0, "\"If used to bind to port 0, the rdma_cm will select an available port\"");
    assert_eq!(end.id.local_addr(), Some(cm_device.at(port)));
    let peer = end.id.peer_addr();
    assert!(peer.is_none_or(|peer| peer.ip().is_unspecified()) && end.id.dst_port() == 0, "{peer:?}");
    assert_eq!(end.id.device().name(), cm_device.device);
    assert_eq!((end.id.kind().2, end.id.gids().0), (1, cm_device.gid), "the device's port and its GID");
    Ok(())
}

fn a_chosen_port_is_read_back(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let end = cm_device.create_id(TCP);
    end.id.bind(cm_device.at(PORT + 1)).unwrap();
    assert_eq!((end.id.src_port(), end.id.local_addr()), (PORT + 1, Some(cm_device.at(PORT + 1))));
    Ok(())
}

fn chosen_ports_differ(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let channel = cm_device.channel();
    let ids: Vec<_> = (0..100).map(|_| id(&channel)).collect();
    let mut ports: Vec<_> = ids
        .iter()
        .map(|id| {
            id.bind(cm_device.at(0)).unwrap();
            id.src_port()
        })
        .collect();
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), ids.len());
    Ok(())
}

fn a_port_in_use_is_refused(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let end = cm_device.bound(TCP);
    let other = id(&end.channel);
    assert_eq!(other.bind(cm_device.at(end.id.src_port())), Err(EADDRINUSE));
    // The failed identifier has no address yet and may choose another.
    other.bind(cm_device.at(0)).unwrap();
    Ok(())
}

fn a_port_is_free_again_when_its_identifier_is_gone(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let channel = cm_device.channel();
    for _ in 0..3 {
        let id = id(&channel);
        id.bind(cm_device.at(PORT + 2)).unwrap();
        id.listen(1).unwrap();
        id.destroy().unwrap();
    }
    Ok(())
}

fn port_spaces_have_ports_of_their_own(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let end = cm_device.bound(TCP);
    let other = end.channel.id(Space::RDMA_PS_UDP, 0).unwrap();
    other.bind(cm_device.at(end.id.src_port())).unwrap();
    assert_eq!(other.src_port(), end.id.src_port());
    Ok(())
}

fn a_port_at_two_addresses_is_two(dut: &TestDevice) -> Outcome {
    let (cm_device, peer) = (CmDevice::of(dut)?, CmDevice::of_peer(dut)?);
    let channel = cm_device.channel();
    let (here, there) = (id(&channel), id(&channel));
    here.bind(cm_device.at(PORT + 3)).unwrap();
    there.bind(peer.at(PORT + 3)).unwrap();
    assert_eq!(
        (here.device().name(), there.device().name()),
        (cm_device.device.as_str(), peer.device.as_str())
    );
    Ok(())
}

/// The kernel reports `EADDRINUSE` if the port is taken at the same address, and another error if
/// it is taken at all addresses, or would be.
fn a_port_at_every_address_is_at_each(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let channel = cm_device.channel();
    let (all, one) = (id(&channel), id(&channel));
    all.bind(everywhere(PORT + 4)).unwrap();
    assert_eq!(one.bind(cm_device.at(PORT + 4)), Err(EADDRNOTAVAIL));
    all.destroy().unwrap();
    let all = id(&channel);
    one.bind(cm_device.at(PORT + 4)).unwrap();
    assert_eq!(all.bind(everywhere(PORT + 4)), Err(EADDRNOTAVAIL));
    Ok(())
}

/// `man rdma_set_option`: RDMA_OPTION_ID_REUSEADDR "will allow other users to bind to that same
/// address". As with sockets, every identifier must set the option, and none may listen.
fn a_port_can_be_shared_by_those_who_all_agree(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let channel = cm_device.channel();
    let share = |id: &CmId| {
        id.set_option(RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &1_i32.to_ne_bytes()).unwrap();
    };
    let (first, second, third) = (id(&channel), id(&channel), id(&channel));
    share(&first);
    share(&second);
    first.bind(cm_device.at(PORT + 5)).unwrap();
    second.bind(cm_device.at(PORT + 5)).unwrap();
    assert_eq!(third.bind(cm_device.at(PORT + 5)), Err(EADDRINUSE), "one who does not agree");
    first.listen(1).unwrap_err();
    second.destroy().unwrap();
    first.listen(1).unwrap();
    let fourth = id(&channel);
    share(&fourth);
    assert_eq!(fourth.bind(cm_device.at(PORT + 5)), Err(EADDRINUSE), "beside a listener");
    Ok(())
}

fn an_address_that_is_not_local_is_refused(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let end = cm_device.create_id(TCP);
    let address = (Ipv4Addr::new(192, 0, 2, 1), PORT + 6).into();
    assert_eq!(end.id.bind(address), Err(EADDRNOTAVAIL));
    assert_eq!((end.id.src_port(), end.id.has_verbs()), (0, false));
    end.id.bind(cm_device.at(PORT + 6)).unwrap();
    Ok(())
}

fn an_address_of_an_unknown_family_is_refused(dut: &TestDevice) -> Outcome {
    let end = CmDevice::of(dut)?.create_id(TCP);
    for family in [libc::AF_UNIX, libc::AF_UNSPEC, 99] {
        assert_eq!(end.id.bind_family(family as u16), Err(EINVAL), "{family}");
    }
    Ok(())
}

fn an_identifier_binds_once(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let end = cm_device.bound(TCP);
    let port = end.id.src_port();
    assert_eq!(end.id.bind(cm_device.at(0)), Err(EINVAL));
    assert_eq!(end.id.bind(everywhere(PORT + 7)), Err(EINVAL));
    assert_eq!(end.id.src_port(), port);
    Ok(())
}

/// "The address may be wildcarded."
fn every_address_is_no_device(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let end = cm_device.create_id(TCP);
    end.id.bind(everywhere(0)).unwrap();
    assert!(!end.id.has_verbs());
    assert_ne!(end.id.src_port(), 0);
    assert_eq!(end.id.local_addr(), Some(everywhere(end.id.src_port())));
    Ok(())
}

/// As with sockets, IPV6_V6ONLY is off by default.
fn every_ipv6_address_takes_the_ipv4_port_too(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let channel = cm_device.channel();
    let (all, one) = (id(&channel), id(&channel));
    all.bind(everywhere_v6(PORT + 8)).unwrap();
    assert_eq!(all.local_addr(), Some(everywhere_v6(PORT + 8)));
    assert_eq!(one.bind(everywhere(PORT + 8)), Err(EADDRNOTAVAIL));
    Ok(())
}

/// `man rdma_set_option`: RDMA_OPTION_ID_AFONLY: "Set IPV6_V6ONLY socket."
fn an_ipv6_socket_alone_leaves_the_ipv4_port(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let channel = cm_device.channel();
    let (six, four) = (id(&channel), id(&channel));
    for id in [&six, &four] {
        id.set_option(RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &1_i32.to_ne_bytes()).unwrap();
    }
    six.bind(everywhere_v6(PORT + 9)).unwrap();
    four.bind(everywhere(PORT + 9)).unwrap();
    Ok(())
}

fn an_ipv6_address_names_a_device(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let Some(address) = cm_device.ipv6(dut) else { skip!("the device has no IPv6 address") };
    let end = cm_device.create_id(TCP);
    end.id.bind(address).unwrap();
    assert_eq!(end.id.device().name(), cm_device.device);
    assert_eq!(end.id.local_addr().map(|address| address.ip()), Some(address.ip()));
    assert_ne!(end.id.src_port(), 0);
    Ok(())
}

fn a_node_is_looked_up(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let info = cm_device.cm.info(Some(&cm_device.ip.to_string()), Some("7471"), None).unwrap();
    assert_eq!(info.destination(), Some(cm_device.at(7471)));
    assert_eq!((info.source(), info.flags() & RAI_PASSIVE), (None, 0));
    assert_eq!((info.qp_type(), info.space()), (ibv_qp_type::IBV_QPT_RC, TCP));
    assert_eq!(info.family(), if cm_device.ip.is_ipv4() { AF_INET } else { AF_INET6 });
    Ok(())
}

/// "If RAI_PASSIVE is specified, the call will resolve address information for use on the passive
/// side of a connection."
fn a_service_alone_is_a_place_to_listen(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let hints = Hints { flags: RAI_PASSIVE, space: Some(TCP), ..Hints::default() };
    let info = cm_device.cm.info(None, Some("7471"), Some(&hints)).unwrap();
    let source = info.source().unwrap();
    assert!(source.ip().is_unspecified() && source.port() == 7471, "{source}");
    assert_eq!((info.flags() & RAI_PASSIVE, info.destination()), (RAI_PASSIVE, None));
    // With a node, the address to listen at is the node's.
    let info = cm_device.cm.info(Some(&cm_device.ip.to_string()), Some("7471"), Some(&hints)).unwrap();
    assert_eq!(info.source(), Some(cm_device.at(7471)));
    Ok(())
}

fn hints_choose_the_kind_of_service(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    for (space, qp_type) in [(TCP, ibv_qp_type::IBV_QPT_RC), (Space::RDMA_PS_UDP, ibv_qp_type::IBV_QPT_UD)] {
        let hints = Hints { space: Some(space), ..Hints::default() };
        let info = cm_device.cm.info(Some(&cm_device.ip.to_string()), Some("7471"), Some(&hints)).unwrap();
        assert_eq!((info.space(), info.qp_type()), (space, qp_type));
        let hints = Hints { qp_type: Some(qp_type), ..Hints::default() };
        let info = cm_device.cm.info(Some(&cm_device.ip.to_string()), Some("7471"), Some(&hints)).unwrap();
        assert_eq!((info.space(), info.qp_type()), (space, qp_type));
    }
    Ok(())
}

/// "If node is not given, rdma_getaddrinfo will attempt to resolve the RDMA addressing information
/// based on the hints."
fn hints_alone_are_copied(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let hints = Hints {
        family: AF_INET,
        qp_type: Some(ibv_qp_type::IBV_QPT_RC),
        space: Some(TCP),
        source: Some(cm_device.at(0)),
        destination: Some(cm_device.at(7471)),
        ..Hints::default()
    };
    let info = cm_device.cm.info(None, None, Some(&hints)).unwrap();
    assert_eq!((info.source(), info.destination()), (hints.source, hints.destination));
    assert_eq!((info.family(), info.space()), (AF_INET, TCP));
    assert_eq!(info.qp_type(), ibv_qp_type::IBV_QPT_RC);
    Ok(())
}

fn a_source_in_the_hints_is_kept(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let hints = Hints { space: Some(TCP), source: Some(cm_device.at(0)), ..Hints::default() };
    let info = cm_device.cm.info(Some(&cm_device.ip.to_string()), Some("7471"), Some(&hints)).unwrap();
    assert_eq!((info.source(), info.destination()), (Some(cm_device.at(0)), Some(cm_device.at(7471))));
    Ok(())
}

/// "RAI_NUMERICHOST: If specified, then the node parameter, if provided, must be a numerical
/// network address."
fn a_name_that_is_no_number_is_refused_where_numbers_are_wanted(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let hints = Hints { flags: RAI_NUMERICHOST, space: Some(TCP), ..Hints::default() };
    let refused = cm_device.cm.info(Some("no-number.invalid"), Some("7471"), Some(&hints)).unwrap_err();
    assert_eq!(refused.0, libc::EAI_NONAME, "{refused:?}");
    let refused = cm_device.cm.info(Some(&cm_device.ip.to_string()), Some("no-service"), None).unwrap_err();
    assert!([libc::EAI_SERVICE, libc::EAI_NONAME].contains(&refused.0), "{refused:?}");
    Ok(())
}

/// "Either node, service, or hints must be provided."
fn nothing_to_look_up_is_refused(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let refused = cm_device.cm.info(None, None, None).unwrap_err();
    assert_eq!((refused.0, refused.1), (-1, EINVAL));
    Ok(())
}
