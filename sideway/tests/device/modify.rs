//! Tests of state changes: required and forbidden attributes, and the errors.

use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::address::{AddressHandleAttribute, Gid, GidEntry, GidType};
use sideway::ibverbs::completion::GenericCompletionQueue;
use sideway::ibverbs::device_attr::DeviceCapabilityFlags;
use sideway::ibverbs::port::Mtu;
use sideway::ibverbs::queue_pair::{
    AlternatePath, GenericQueuePair, MigrationState, ModifyQueuePairError, QueuePair, QueuePairAttribute,
    QueuePairAttributeMask as M, QueuePairCapability, QueuePairState as S, QueuePairType, RateLimit,
};

use crate::harness::{Outcome, Suite, TestDevice};
use crate::node::{AnyPair, Node, NodeOptions};

pub(crate) fn cases(suite: &mut Suite) {
    cases!(suite:
        reliable_pairs_say_what_is_missing,
        unreliable_pairs_say_what_is_missing,
        datagram_pairs_say_what_is_missing,
        reliable_pairs_say_what_is_too_much,
        unreliable_pairs_say_what_is_too_much,
        datagram_pairs_say_what_is_too_much,
        the_example_of_the_manual_is_diagnosed,
        impossible_transitions_are_named,
        a_value_out_of_range_is_an_error,
        an_unreachable_network_is_named,
        an_absent_peer_is_named,
        a_pair_in_use_can_be_changed,
        an_alternate_path_is_told_as_it_was_set,
        attributes_the_device_lacks_are_unsupported,
        a_value_that_no_device_takes_is_named,
        a_drained_pair_says_that_it_is,
    );
}

type AnyNode = Node<GenericQueuePair, GenericCompletionQueue>;

const RC: QueuePairType = QueuePairType::ReliableConnection;
const UC: QueuePairType = QueuePairType::UnreliableConnection;
const UD: QueuePairType = QueuePairType::UnreliableDatagram;

fn node(test_device: &TestDevice, qp_type: QueuePairType) -> AnyNode {
    AnyNode::new(
        &test_device.open(),
        test_device.port,
        &NodeOptions::with(|options| options.qp_type = qp_type),
    )
}

/// Sets these attributes to valid values, for a pair that is connected to itself.
fn attributes(node: &AnyNode, state: S, mask: M) -> QueuePairAttribute {
    let mut attr = QueuePairAttribute::new();
    attr.setup_state(state);
    let mut address = AddressHandleAttribute::new();
    address.setup_port(node.path.port_num()).setup_dest_lid(node.path.lid());
    if let (Some(gid), Some(index)) = (node.path.gid(), node.path.gid_index()) {
        address.setup_grh_dest_gid(&gid).setup_grh_src_gid_index(index).setup_grh_hop_limit(64);
    }
    for flag in mask.iter() {
        match flag {
            M::PartitionKeyIndex => attr.setup_pkey_index(0),
            M::Port => attr.setup_port(node.path.port_num()),
            M::AccessFlags => attr.setup_access_flags(AccessFlags::LocalWrite),
            M::QueueKey => attr.setup_qkey(0x1111),
            M::AddressVector => attr.setup_address_vector(&address),
            M::PathMtu => attr.setup_path_mtu(Mtu::Mtu1024),
            M::DestinationQueuePairNumber => attr.setup_dest_qp_num(node.qp.qp_number()),
            M::ReceiveQueuePacketSequenceNumber => attr.setup_rq_psn(1),
            M::SendQueuePacketSequenceNumber => attr.setup_sq_psn(1),
            M::MaxDestinationReadAtomic => attr.setup_max_dest_read_atomic(1),
            M::MaxReadAtomic => attr.setup_max_read_atomic(1),
            M::MinResponderNotReadyTimer => attr.setup_min_rnr_timer(12),
            M::Timeout => attr.setup_timeout(14),
            M::RetryCount => attr.setup_retry_cnt(7),
            M::ResponderNotReadyRetryCount => attr.setup_rnr_retry(7),
            other => panic!("{other:?} has no setter here"),
        };
    }
    attr
}

/// The states up to ready-to-send, each with its required attributes.
fn ladder(qp_type: QueuePairType) -> [(S, M); 3] {
    let connected = M::PartitionKeyIndex | M::Port | M::AccessFlags;
    let receive =
        M::AddressVector | M::PathMtu | M::DestinationQueuePairNumber | M::ReceiveQueuePacketSequenceNumber;
    let psn = M::SendQueuePacketSequenceNumber;
    match qp_type {
        RC => [
            (S::Init, connected),
            (S::ReadyToReceive, receive | M::MaxDestinationReadAtomic | M::MinResponderNotReadyTimer),
            (
                S::ReadyToSend,
                psn | M::Timeout | M::RetryCount | M::ResponderNotReadyRetryCount | M::MaxReadAtomic,
            ),
        ],
        UC => [(S::Init, connected), (S::ReadyToReceive, receive), (S::ReadyToSend, psn)],
        _ => [
            (S::Init, M::PartitionKeyIndex | M::Port | M::QueueKey),
            (S::ReadyToReceive, M::empty()),
            (S::ReadyToSend, psn),
        ],
    }
}

/// Goes through the states. `check` gets the next state, its required attributes, and a function
/// for the `(cur_state, next_state, invalid, needed)` of a failed step.
fn climb(node: &AnyNode, check: impl Fn(S, M, &dyn Fn(M) -> Option<(S, S, M, M)>)) {
    let mut current = S::Reset;
    for (next, needed) in ladder(node.qp.qp_type()) {
        check(current, needed, &|mask| match node.modify(&attributes(node, next, mask)) {
            Ok(()) => None,
            Err(ModifyQueuePairError::InvalidAttributeMask {
                cur_state,
                next_state,
                invalid,
                needed,
                source,
            }) => {
                assert_eq!(source.raw_os_error(), Some(libc::EINVAL));
                assert_eq!((cur_state, next_state), (current, next));
                assert_eq!(node.qp.state().unwrap(), current, "a failed change changes nothing");
                Some((cur_state, next_state, invalid, needed))
            }
            Err(error) => panic!("{current} to {next} with {mask:?}: {error}"),
        });
        node.modify(&attributes(node, next, needed)).unwrap();
        assert_eq!(node.qp.state().unwrap(), next);
        current = next;
    }
}

fn missing(test_device: &TestDevice, qp_type: QueuePairType) -> Outcome {
    let node = node(test_device, qp_type);
    climb(&node, |current, needed, attempt| {
        for without in needed.iter() {
            let (_, _, invalid, said) = attempt(needed - without).unwrap_or_else(|| {
                panic!("{qp_type} left {current} without {without:?}");
            });
            assert_eq!((invalid, said), (M::empty(), without));
        }
        if !needed.is_empty() {
            assert_eq!(attempt(M::empty()).unwrap().3, needed, "all of it at once");
        }
    });
    Ok(())
}

fn too_much(test_device: &TestDevice, qp_type: QueuePairType) -> Outcome {
    let node = node(test_device, qp_type);
    climb(&node, |current, needed, attempt| {
        // Attributes of another step, which are not optional in this one.
        for extra in [M::PathMtu, M::ReceiveQueuePacketSequenceNumber, M::Timeout, M::RetryCount] {
            if needed.contains(extra) {
                continue;
            }
            let Some((_, _, invalid, said)) = attempt(needed | extra) else {
                panic!("{qp_type} left {current} with {extra:?}");
            };
            assert_eq!((invalid, said), (extra, M::empty()));
        }
    });
    Ok(())
}

fn reliable_pairs_say_what_is_missing(test_device: &TestDevice) -> Outcome {
    missing(test_device, RC)
}

fn unreliable_pairs_say_what_is_missing(test_device: &TestDevice) -> Outcome {
    missing(test_device, UC)
}

fn datagram_pairs_say_what_is_missing(test_device: &TestDevice) -> Outcome {
    missing(test_device, UD)
}

fn reliable_pairs_say_what_is_too_much(test_device: &TestDevice) -> Outcome {
    too_much(test_device, RC)
}

fn unreliable_pairs_say_what_is_too_much(test_device: &TestDevice) -> Outcome {
    too_much(test_device, UC)
}

fn datagram_pairs_say_what_is_too_much(test_device: &TestDevice) -> Outcome {
    too_much(test_device, UD)
}

/// The mask contains the port, which is not allowed, and lacks the timer and the depth.
fn the_example_of_the_manual_is_diagnosed(test_device: &TestDevice) -> Outcome {
    let node = node(test_device, RC);
    let [(init, for_init), (receive, for_receive), _] = ladder(RC);
    node.modify(&attributes(&node, init, for_init)).unwrap();
    let forgotten = M::MinResponderNotReadyTimer | M::MaxDestinationReadAtomic;
    let attr = attributes(&node, receive, (for_receive - forgotten) | M::Port);
    let error = node.modify(&attr).unwrap_err();
    assert_eq!(
        format!("{error:?}"),
        "InvalidAttributeMask { cur_state: Init, next_state: ReadyToReceive, invalid: QueuePairAttributeMask[Port], \
         needed: QueuePairAttributeMask[MinResponderNotReadyTimer, MaxDestinationReadAtomic], source: Os { code: \
         22, kind: InvalidInput, message: \"Invalid argument\" } }"
    );
    Ok(())
}

fn impossible_transitions_are_named(test_device: &TestDevice) -> Outcome {
    let node = node(test_device, RC);
    let attempt = |from: S, to: S| {
        let error = node.modify(&attributes(&node, to, M::empty())).unwrap_err();
        let named = matches!(
            &error,
            ModifyQueuePairError::InvalidTransition { cur_state, next_state, .. }
                if (*cur_state, *next_state) == (from, to)
        );
        assert!(named, "{error}");
    };
    for to in [S::ReadyToReceive, S::ReadyToSend, S::SendQueueDrained] {
        attempt(S::Reset, to);
    }
    let [(_, for_init), (_, for_receive), _] = ladder(RC);
    node.modify(&attributes(&node, S::Init, for_init)).unwrap();
    for to in [S::ReadyToSend, S::SendQueueDrained, S::SendQueueError] {
        attempt(S::Init, to);
    }
    node.modify(&attributes(&node, S::ReadyToReceive, for_receive)).unwrap();
    for to in [S::Init, S::SendQueueDrained] {
        attempt(S::ReadyToReceive, to);
    }
    node.modify(&attributes(&node, S::Error, M::empty())).unwrap();
    for to in [S::Init, S::ReadyToReceive, S::ReadyToSend] {
        attempt(S::Error, to);
    }
    Ok(())
}

/// With a correct mask and a wrong value, the error must not blame the mask.
fn a_value_out_of_range_is_an_error(test_device: &TestDevice) -> Outcome {
    let node = node(test_device, RC);
    let mut attr = attributes(&node, S::Init, ladder(RC)[0].1);
    let error = node.modify(attr.setup_port(200)).unwrap_err();
    assert!(matches!(error, ModifyQueuePairError::Ibverbs { cur_state: S::Reset, .. }), "{error}");
    let error = node.modify(attr.setup_port(1).setup_state(S::from_raw(77))).unwrap_err();
    assert!(!error.to_string().is_empty());
    assert_eq!(node.qp.state().unwrap(), S::Reset);
    Ok(())
}

/// A node in the state before the address is resolved, and the attributes for the next state with
/// this address. `None` if the port has no RoCE address of this family.
fn towards(test_device: &TestDevice, address: &str) -> Option<(AnyNode, u8, Gid, QueuePairAttribute)> {
    let node = node(test_device, RC);
    let gid: Gid = address.parse().unwrap();
    let fits = |entry: &GidEntry| {
        entry.port_num() == u32::from(test_device.port)
            && entry.gid_type() == GidType::RoceV2
            && entry.gid().to_ipv4_mapped().is_some() == gid.to_ipv4_mapped().is_some()
    };
    let entry = node.context.query_gid_table().unwrap().into_iter().find(fits)?;
    let index = u8::try_from(entry.gid_index()).unwrap();
    let [(init, for_init), (receive, for_receive), _] = ladder(RC);
    node.modify(&attributes(&node, init, for_init)).unwrap();
    let mut vector = AddressHandleAttribute::new();
    vector
        .setup_port(test_device.port)
        .setup_grh_dest_gid(&gid)
        .setup_grh_src_gid_index(index)
        .setup_grh_hop_limit(9);
    let mut attr = attributes(&node, receive, for_receive);
    attr.setup_address_vector(&vector);
    Some((node, index, gid, attr))
}

fn an_unreachable_network_is_named(test_device: &TestDevice) -> Outcome {
    // A network reserved for documentation, to which only a default route can lead. It is IPv6
    // because the kernel treats every IPv4 address as on-link when it looks for a route through one
    // interface.
    let Some((node, index, expected, attr)) = towards(test_device, "2001:db8::1") else {
        skip!("the device has no RoCE address of IPv6");
    };
    match node.modify(&attr) {
        Err(ModifyQueuePairError::NetworkUnreachable { sgid_index, gid, source }) => {
            assert_eq!((sgid_index, gid), (index, expected), "{source}");
        }
        Err(error @ ModifyQueuePairError::ResolveRouteTimedout { .. }) => {
            skip!("this machine has a route to 2001:db8::1: {error}")
        }
        Ok(()) => skip!("this machine has a route to 2001:db8::1, or the device resolves no addresses"),
        Err(error) => panic!("{error}"),
    }
    Ok(())
}

fn an_absent_peer_is_named(test_device: &TestDevice) -> Outcome {
    let Some(ours) = node(test_device, RC).path.gid().and_then(|gid| gid.to_ipv4_mapped()) else {
        skip!("the device has no RoCE address");
    };
    // The same network, if its mask is not shorter than 24 bits.
    let [a, b, c, d] = ours.octets();
    let absent = format!("::ffff:{a}.{b}.{c}.{}", if d == 253 { 252 } else { 253 });
    let (node, index, expected, attr) = towards(test_device, &absent).unwrap();
    match node.modify(&attr) {
        Err(ModifyQueuePairError::ResolveRouteTimedout { sgid_index, gid, source }) => {
            assert_eq!((sgid_index, gid), (index, expected), "{source}");
            assert_eq!(source.kind(), std::io::ErrorKind::TimedOut);
        }
        Err(ModifyQueuePairError::NetworkUnreachable { gid, .. }) => assert_eq!(gid, expected),
        Err(error) => panic!("{error}"),
        Ok(()) => skip!("{absent} answers, or is not resolved by this device"),
    }
    Ok(())
}

fn a_pair_in_use_can_be_changed(test_device: &TestDevice) -> Outcome {
    let pair = AnyPair::new(test_device);
    let mut attr = QueuePairAttribute::new();
    pair.a.modify(attr.setup_min_rnr_timer(5).setup_access_flags(AccessFlags::RemoteRead)).unwrap();
    let (now, _) = pair.a.qp.query(M::MinResponderNotReadyTimer | M::AccessFlags).unwrap();
    assert_eq!(now.min_rnr_timer(), Some(5));
    assert!(now.access_flags().unwrap().contains(AccessFlags::RemoteRead));
    let mut attr = QueuePairAttribute::new();
    // SoftRoCE of later kernels accepts it.
    if let Err(error) = pair.a.modify(attr.setup_path_mtu(Mtu::Mtu512)) {
        let named = matches!(
            error,
            ModifyQueuePairError::InvalidAttributeMask { cur_state: S::ReadyToSend, invalid: M::PathMtu, .. }
        );
        assert!(named, "{error}");
    }
    Ok(())
}

fn an_alternate_path_is_told_as_it_was_set(test_device: &TestDevice) -> Outcome {
    let pair = AnyPair::new(test_device);
    let address_vector = attributes_to(&pair.a);
    let path = AlternatePath { address_vector, port: pair.a.path.port_num(), pkey_index: 0, timeout: 12 };
    let mut attr = QueuePairAttribute::new();
    attr.setup_alternate_path(&path).setup_path_mig_state(MigrationState::Migrated);
    assert!(format!("{attr:?}").contains("alternate_path"), "{attr:?}");
    assert_eq!(attr.alternate_path().map(|path| path.timeout), Some(12));
    match pair.a.modify(&attr) {
        Err(ModifyQueuePairError::Unsupported(error)) => {
            let device = pair.a.context.query_device().unwrap();
            let flags = DeviceCapabilityFlags::from_bits_retain(device.device_cap_flags());
            assert!(!flags.contains(DeviceCapabilityFlags::AutomaticPathMigration), "{error}");
            assert_eq!(error.verb, "ibv_modify_qp");
            assert_eq!(pair.a.qp.state().unwrap(), S::ReadyToSend);
            return Ok(());
        }
        // Kernels accept none on Ethernet, whatever the device reports.
        Err(ModifyQueuePairError::Ibverbs { source, .. })
            if source.raw_os_error() == Some(libc::EINVAL) && test_device.is_softroce() =>
        {
            assert_eq!(pair.a.qp.state().unwrap(), S::ReadyToSend);
            skip!("SoftRoCE says that it migrates paths, and takes none");
        }
        result => result.unwrap(),
    }
    let (now, _) = pair.a.qp.query(M::AlternatePath | M::PathMigrationState).unwrap();
    let told = now.alternate_path().unwrap();
    assert_eq!((told.port, told.pkey_index, told.timeout), (path.port, 0, 12));
    assert_eq!(told.address_vector.grh_dest_gid(), path.address_vector.grh_dest_gid());
    assert_eq!(now.path_mig_state(), Some(MigrationState::Migrated));
    assert!(now.rate_limit().is_none() && now.capability().is_none());
    Ok(())
}

/// An address vector that leads to the node itself.
fn attributes_to(node: &AnyNode) -> AddressHandleAttribute {
    attributes(node, S::ReadyToReceive, M::AddressVector).address_vector().unwrap()
}

fn attributes_the_device_lacks_are_unsupported(test_device: &TestDevice) -> Outcome {
    let pair = AnyPair::new(test_device);
    let device = pair.a.context.query_device().unwrap();
    let flags = DeviceCapabilityFlags::from_bits_retain(device.device_cap_flags());
    if !flags.contains(DeviceCapabilityFlags::ResizeMaxWr) {
        let mut attr = QueuePairAttribute::new();
        match pair.a.modify(attr.setup_capability(pair.a.qp.control().capability())) {
            Err(ModifyQueuePairError::Unsupported(error)) => {
                assert_eq!((error.verb, &*error.capability), ("ibv_modify_qp", "resizing of queue pairs"));
            }
            // SoftRoCE of later kernels accepts values that do not change.
            result => assert!(result.is_ok() && test_device.is_softroce(), "{result:?}"),
        }
    }
    let granted = pair.a.qp.control().capability();
    let less = QueuePairCapability { max_send_wr: granted.max_send_wr - 1, ..granted };
    let error = pair.a.modify(QueuePairAttribute::new().setup_capability(less)).unwrap_err();
    assert!(matches!(error, ModifyQueuePairError::CapabilityShrinks { .. }), "{error}");
    if device.packet_pacing_caps().qp_rate_limit_max == 0 {
        let mut attr = QueuePairAttribute::new();
        let error = pair.a.modify(attr.setup_rate_limit(1000)).unwrap_err();
        let ModifyQueuePairError::Unsupported(error) = error else { panic!("{error}") };
        assert_eq!(error.capability, "rate limits (packet pacing)");
        let limit = RateLimit { rate: 1000, ..RateLimit::default() };
        let error = pair.a.qp.control().modify_rate_limit(&limit).unwrap_err();
        assert!(error.unsupported().is_some(), "{error}");
        assert_eq!(error.verb(), "ibv_modify_qp_rate_limit");
    }
    assert_eq!(pair.a.qp.state().unwrap(), S::ReadyToSend);
    Ok(())
}

fn a_value_that_no_device_takes_is_named(test_device: &TestDevice) -> Outcome {
    let node = node(test_device, RC);
    let [(init, for_init), (receive, for_receive), (send, for_send)] = ladder(RC);
    node.modify(&attributes(&node, init, for_init)).unwrap();
    node.modify(&attributes(&node, receive, for_receive)).unwrap();
    let mut attr = attributes(&node, send, for_send);
    let error = match node.modify(attr.setup_timeout(32)) {
        Err(error) => error,
        Ok(()) => skip!("the device takes any timeout"),
    };
    let named = matches!(
        error,
        ModifyQueuePairError::ValueOutOfRange { attribute: M::Timeout, value: 32, limit: 31, .. }
    );
    assert!(named, "{error}");
    Ok(())
}

fn a_drained_pair_says_that_it_is(test_device: &TestDevice) -> Outcome {
    let pair = AnyPair::new(test_device);
    let mut attr = QueuePairAttribute::new();
    pair.a.modify(attr.setup_state(S::SendQueueDrained).setup_sqd_async_notify(true)).unwrap();
    assert_eq!(attr.sqd_async_notify(), Some(true));
    let (now, _) = pair.a.qp.query(M::State).unwrap();
    assert_eq!(now.state(), Some(S::SendQueueDrained));
    // SoftRoCE of later kernels reports for a while that an unused pair is draining.
    if !test_device.is_softroce() {
        assert_eq!(now.is_draining(), Some(false));
    }
    Ok(())
}
