//! Connection manager errors: every function fails, and the error contains the reason.

use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;

use sideway::ibverbs::ece::Ece;
use sideway::ibverbs::event::AsyncEventType;
use sideway::ibverbs::queue_pair::QueuePairState;
use sideway::rdmacm::{
    Address, AddressInfoFlags, AddressInfoHints, ConnectionParameter, EventChannel, Identifier,
    IdentifierState, JoinFlags, PortSpace, get_devices_of, getaddrinfo_of,
};
use sideway::sys::{LoadError, Provider, Verbs};
use sideway::{Error, ErrorKind};

use super::cm_events::{SECOND, addr, listening, lying, next, requested, resolved};
use super::control::{ERRNOS, assert_says, is_unsupported};
use super::support::errors::assert_error;
use super::support::fake::{Fake, old_provider, provider};

#[test]
fn channels_and_identifiers_can_fail() {
    for expected in ERRNOS {
        let _fake = Fake::lying(|l| l.cm_channel = expected);
        let error = EventChannel::from_provider(provider()).unwrap_err();
        assert_says(&error, expected);
        assert!(error.to_string().contains("modprobe rdma_ucm"), "{error}");
        let (_fake, channel) = lying(|l| l.cm_create = expected);
        let error = channel.create_id(PortSpace::Udp).unwrap_err();
        assert_says(&error, expected);
        assert_error(&error, ErrorKind::Os, &[("port_space", &PortSpace::Udp)]);
        let (_fake, channel) = lying(|l| l.cm_get_event = expected);
        if expected == libc::EAGAIN {
            continue;
        }
        for error in [channel.get_cm_event().unwrap_err(), channel.try_get_cm_event().unwrap_err()] {
            assert_says(&error, expected);
            assert_eq!((error.kind(), error.verb()), (ErrorKind::Os, "rdma_get_cm_event"));
        }
    }
    let fake = Fake::lying(|l| l.cm_channel_fd = Some(-1));
    let error = EventChannel::from_provider(provider()).unwrap_err();
    assert_says(&error, libc::EBADF);
    assert_eq!(fake.world.cm.live(), [0; 4]);
}

#[test]
fn a_provider_may_have_no_connection_manager() {
    static BARE: OnceLock<Provider> = OnceLock::new();
    // SAFETY: all functions in the table only return errors.
    let bare = *BARE.get_or_init(|| unsafe { Provider::from_tables("bare", Verbs::unsupported(), None) });
    let error = EventChannel::from_provider(bare).unwrap_err();
    let is_not_provided = |error: &Error| {
        assert_eq!(error.kind(), ErrorKind::Library, "{error}");
        let source = std::error::Error::source(error).and_then(|source| source.downcast_ref());
        assert!(matches!(source, Some(LoadError::NotProvided { .. })), "{error}");
    };
    is_not_provided(&error);
    is_not_provided(&get_devices_of(bare).unwrap_err());
    let hints = AddressInfoHints::new();
    is_not_provided(&getaddrinfo_of(bare, None, None, &hints).unwrap_err());
}

#[test]
fn an_event_that_is_not_there_is_an_error() {
    let (fake, channel) = lying(|l| l.cm_null_event = true);
    let id = channel.create_id(PortSpace::Tcp).unwrap();
    id.resolve_addr(None, addr("192.0.2.1:7"), SECOND).unwrap();
    assert_says(&channel.try_get_cm_event().unwrap_err(), libc::ENODATA);
    drop(id);
    assert_eq!(fake.world.cm.live()[1], 0);
}

/// Makes each function of an identifier fail once with every error number.
fn each_fails<T>(
    state: impl Fn(&EventChannel) -> Identifier,
    call: impl Fn(&Identifier) -> Result<T, Error>,
    look: impl Fn(&Error, i32),
) {
    for expected in ERRNOS {
        let (fake, channel) = lying(|_| {});
        let id = state(&channel);
        let before = id.state();
        fake.world.cm.fails_next.store(expected, Relaxed);
        let Err(error) = call(&id) else { panic!("{expected} is no error") };
        // Errors about missing features do not contain the number.
        if !(is_unsupported(expected) && error.to_string().starts_with("the system has no ")) {
            assert_says(&error, expected);
        }
        look(&error, expected);
        assert_eq!(id.state(), before, "{error}");
        // The identifier works afterwards.
        assert_eq!(fake.world.cm.live()[2], 0);
    }
}

fn new(channel: &EventChannel) -> Identifier {
    channel.create_id(PortSpace::Tcp).unwrap()
}

fn ready(channel: &EventChannel) -> Identifier {
    resolved(channel, PortSpace::Tcp, "192.0.2.1:7")
}

/// The identifier's state does not allow the call.
fn in_state(error: &Error, state: IdentifierState) {
    assert_error(error, ErrorKind::InvalidState, &[("state", &state)]);
}

/// The identifier's route is resolved, which is too late or too early for the call.
fn is_too_late(error: &Error) {
    in_state(error, IdentifierState::RouteResolved);
    assert_eq!(error.errno(), Some(libc::EINVAL), "{error}");
}

/// The library reports success for an identifier in this state, and names no device.
fn lacks_guid(error: &Error, state: IdentifierState) {
    assert_error(error, ErrorKind::NoDevice, &[("state", &state), ("lacks_guid", &true)]);
}

/// The kind of an error of a function that a system may lack.
fn kind_of(errno: i32) -> ErrorKind {
    if is_unsupported(errno) { ErrorKind::Unsupported } else { ErrorKind::Os }
}

#[test]
fn functions_of_identifiers_can_fail() {
    let to = || addr("192.0.2.1:7");
    let is_of = |error: &Error, parameter: &ConnectionParameter| {
        let parameter = format!("{parameter:?}");
        assert_error(error, ErrorKind::Os, &[("peer", &to()), ("parameter", &parameter)]);
    };
    each_fails(
        new,
        |id| id.bind_addr(to()),
        |error, _| assert_error(error, ErrorKind::Os, &[("address", &to())]),
    );
    each_fails(
        new,
        |id| id.resolve_addr(None, to(), SECOND),
        |error, _| {
            let timeout = format!("{SECOND:?}");
            let arguments: [(_, &dyn Display); 3] =
                [("destination", &to()), ("source", &"no address"), ("timeout", &timeout)];
            assert_error(error, ErrorKind::Os, &arguments);
        },
    );
    each_fails(
        ready,
        |id| id.resolve_route(SECOND),
        |error, errno| match errno {
            libc::EINVAL => is_too_late(error),
            _ => {
                let timeout = format!("{SECOND:?}");
                assert_error(error, ErrorKind::Os, &[("destination", &to()), ("timeout", &timeout)]);
            }
        },
    );
    each_fails(
        new,
        |id| id.listen(5),
        |error, _| assert_error(error, ErrorKind::Os, &[("address", &"no address"), ("backlog", &5)]),
    );
    let parameter = *ConnectionParameter::new().setup_qp_number(5);
    each_fails(ready, |id| id.connect(&parameter), |error, _| is_of(error, &parameter));
    each_fails(
        ready,
        |id| id.accept(&parameter),
        |error, errno| match errno {
            libc::EINVAL => is_too_late(error),
            _ => is_of(error, &parameter),
        },
    );
    let of_peer = |error: &Error, errno: i32| match errno {
        libc::EINVAL => is_too_late(error),
        _ => assert_error(error, ErrorKind::Os, &[("peer", &to())]),
    };
    each_fails(ready, |id| id.reject(b"no"), of_peer);
    each_fails(
        ready,
        |id| id.reject_ece(b"no"),
        |error, errno| {
            assert_eq!(error.verb(), "rdma_reject_ece");
            of_peer(error, errno);
        },
    );
    each_fails(ready, Identifier::establish, of_peer);
    each_fails(ready, Identifier::disconnect, of_peer);
    each_fails(
        ready,
        |id| id.notify(AsyncEventType::CommunicationEstablished),
        |error, _| {
            let event = AsyncEventType::CommunicationEstablished;
            assert_error(
                error,
                ErrorKind::Os,
                &[("event", &event), ("state", &IdentifierState::RouteResolved)],
            );
        },
    );
}

#[test]
fn functions_of_newer_libraries_fail_or_are_unsupported() {
    let init = QueuePairState::Init;
    each_fails(
        ready,
        |id| id.get_qp_attr(init),
        |error, errno| {
            let kind = kind_of(errno);
            let state = IdentifierState::RouteResolved;
            assert_error(error, kind, &[("queue_pair", &init), ("identifier", &state)]);
        },
    );
    let ece = Ece { vendor_id: 1, options: 2 };
    each_fails(new, |id| id.set_local_ece(ece), |_, _| {});
    each_fails(new, Identifier::get_remote_ece, |_, _| {});
    each_fails(
        new,
        |id| id.write_user_event(1, 2),
        |error, _| assert_error(error, ErrorKind::Os, &[("status", &1), ("argument", &"0x2")]),
    );
    each_fails(
        new,
        |id| id.set_type_of_service(9),
        |error, errno| {
            let arguments: [(_, &dyn Display); 3] = [("level", &0), ("name", &0), ("value", &"[09]")];
            assert_error(error, kind_of(errno), &arguments);
        },
    );
    let group = || addr("239.0.0.1:0");
    each_fails(
        ready,
        |id| id.join_multicast(group(), JoinFlags::FullMember, 1),
        |error, errno| assert_error(error, kind_of(errno), &[("group", &group())]),
    );
    let hints = AddressInfoHints::new();
    each_fails(new, |id| id.resolve_addrinfo(Some("peer"), None, &hints), |_, _| {});
    each_fails(new, Identifier::query_addrinfo, |_, _| {});

    let _fake = Fake::new();
    let channel = EventChannel::from_provider(old_provider()).unwrap();
    let id = ready(&channel);
    let said = [
        id.establish().unwrap_err().to_string(),
        id.reject_ece(b"").unwrap_err().to_string(),
        id.get_qp_attr(init).unwrap_err().to_string(),
        id.set_local_ece(ece).unwrap_err().to_string(),
        id.get_remote_ece().unwrap_err().to_string(),
        id.write_user_event(0, 0).unwrap_err().to_string(),
        id.resolve_addrinfo(None, None, &hints).unwrap_err().to_string(),
        id.query_addrinfo().unwrap_err().to_string(),
    ];
    for text in said {
        assert!(
            text.starts_with("the library has no ") && text.contains("librdmacm.so.1 does not export `rdma_"),
            "{text}"
        );
    }
    let error = id.set_local_ece(ece).unwrap_err();
    assert!(error.unsupported().is_some_and(|lacking| lacking.missing.is_some()), "{error}");
}

/// Error numbers with a known cause.
#[test]
fn addresses_that_are_not_to_be_had_say_so() {
    let bind = |errno: i32, address: Address| {
        let (fake, channel) = lying(|_| {});
        let id = new(&channel);
        fake.world.cm.fails_next.store(errno, Relaxed);
        id.bind_addr(address).unwrap_err()
    };
    let to = || addr("198.51.100.1:80");
    assert_error(&bind(libc::EADDRINUSE, to()), ErrorKind::AddressInUse, &[("address", &to())]);
    for errno in [libc::EADDRNOTAVAIL, libc::ENODEV] {
        let error = bind(errno, to());
        assert_error(&error, ErrorKind::AddressNotLocal, &[("address", &to())]);
        assert!(error.to_string().contains("198.51.100.1:80"), "{error}");
    }
    assert_error(&bind(libc::EAFNOSUPPORT, to()), ErrorKind::AddressFamily, &[]);
    let (fake, channel) = lying(|_| {});
    let id = new(&channel);
    id.bind_addr(to()).unwrap();
    fake.world.cm.fails_next.store(libc::EINVAL, Relaxed);
    in_state(&id.bind_addr(to()).unwrap_err(), IdentifierState::Bound);
    fake.world.cm.fails_next.store(libc::EADDRINUSE, Relaxed);
    assert_error(&id.listen(1).unwrap_err(), ErrorKind::AddressInUse, &[("address", &to())]);
    id.listen(1).unwrap();
    fake.world.cm.fails_next.store(libc::EINVAL, Relaxed);
    in_state(&id.listen(1).unwrap_err(), IdentifierState::Listening);
    fake.world.cm.fails_next.store(libc::EINVAL, Relaxed);
    let error = id.resolve_addr(None, to(), SECOND).unwrap_err();
    in_state(&error, IdentifierState::Listening);
    fake.world.cm.fails_next.store(libc::EADDRNOTAVAIL, Relaxed);
    let error = new(&channel).resolve_addr(Some(to()), to(), SECOND).unwrap_err();
    assert_error(&error, ErrorKind::AddressNotLocal, &[("source", &to())]);
    fake.world.cm.fails_next.store(libc::EAFNOSUPPORT, Relaxed);
    let error = new(&channel).resolve_addr(None, to(), SECOND).unwrap_err();
    assert_error(&error, ErrorKind::AddressFamily, &[("destination", &to())]);
}

#[test]
fn a_link_local_address_without_an_interface_says_what_it_lacks() {
    let (fake, channel) = lying(|_| {});
    let text = |address: &str, bind: bool| {
        let address: SocketAddr = address.parse().unwrap();
        fake.world.cm.fails_next.store(libc::EINVAL, Relaxed);
        let id = new(&channel);
        let result = if bind { id.bind_addr(address) } else { id.resolve_addr(None, address, SECOND) };
        result.unwrap_err().to_string()
    };
    for bind in [false, true] {
        let without = text("[fe80::1]:7", bind);
        let expected = "; a link-local address needs the interface that leads there: fe80::1%eth0";
        assert!(without.ends_with(expected), "{without}");
        assert!(!text("[fe80::1%3]:7", bind).contains("needs the interface"));
        assert!(!text("[2001:db8::1]:7", bind).contains("needs the interface"));
    }
    fake.world.cm.fails_next.store(libc::EADDRNOTAVAIL, Relaxed);
    let without: SocketAddr = "[fe80::1]:7".parse().unwrap();
    let error = new(&channel).bind_addr(without).unwrap_err();
    assert_error(&error, ErrorKind::AddressNotLocal, &[("address", &without)]);
    assert!(error.to_string().ends_with("that leads there: fe80::1%eth0"), "{error}");
}

#[test]
fn private_data_that_is_too_long_says_how_long_it_can_be() {
    let with = |length: usize| *ConnectionParameter::new().setup_private_data(&vec![1; length]);
    let too_long = |result: Result<(), Error>, length: usize, limit: usize| {
        let error = result.unwrap_err();
        assert_error(&error, ErrorKind::PrivateDataTooLong, &[("length", &length), ("limit", &limit)]);
    };
    let (fake, channel) = lying(|_| {});
    // A length that does not fit C's field never reaches the library.
    let id = ready(&channel);
    let calls = fake.world.cm.calls.load(Relaxed);
    for length in [256, 1000] {
        too_long(id.connect(&with(length)), length, 56);
        too_long(id.accept(&with(length)), length, 196);
        let data = vec![0; length];
        too_long(id.reject(&data), length, 148);
        too_long(id.reject_ece(&data), length, 148);
    }
    assert_eq!(fake.world.cm.calls.load(Relaxed), calls);
    // A length that fits is passed on, because another transport may carry more.
    id.connect(&with(255)).unwrap();
    next(&channel, sideway::rdmacm::EventType::Rejected);
    let refuse = || fake.world.cm.fails_next.store(libc::EINVAL, Relaxed);
    let id = ready(&channel);
    refuse();
    too_long(id.connect(&with(57)), 57, 56);
    refuse();
    assert_eq!(id.connect(&with(56)).unwrap_err().kind(), ErrorKind::Os);
    refuse();
    too_long(id.accept(&with(197)), 197, 196);
    refuse();
    too_long(id.reject(&[0; 149]), 149, 148);
    let datagram = resolved(&channel, PortSpace::Udp, "192.0.2.1:7");
    refuse();
    too_long(datagram.connect(&with(181)), 181, 180);
    refuse();
    too_long(datagram.accept(&with(137)), 137, 136);
    let error = datagram.connect(&with(300)).unwrap_err();
    let text = "rdma_connect was not called (length 300, limit 180): the private data is longer than the \
                message can carry";
    assert_eq!(error.to_string(), text);
}

#[test]
fn answers_in_the_wrong_state_say_so() {
    let (_fake, channel) = lying(|_| {});
    let (active, listener, request) = requested(&channel, &[]);
    let parameter = ConnectionParameter::new();
    let id = request.into_cm_id();
    id.accept(&parameter).unwrap();
    in_state(&id.accept(&parameter).unwrap_err(), IdentifierState::Connecting);
    in_state(&id.reject(&[]).unwrap_err(), IdentifierState::Connecting);
    drop((active, listener, id));
    let (_fake, channel) = lying(|_| {});
    let idle = ready(&channel);
    in_state(&idle.establish().unwrap_err(), IdentifierState::RouteResolved);
    in_state(&idle.disconnect().unwrap_err(), IdentifierState::RouteResolved);
}

/// Some releases of librdmacm dereference the device without a check, and crash. So these functions
/// are not called without a device.
#[test]
fn without_a_device_the_library_is_not_called() {
    let (fake, channel) = lying(|_| {});
    let parameter = ConnectionParameter::new();
    let idle = new(&channel);
    let any = new(&channel);
    any.bind_addr(addr("0.0.0.0:7")).unwrap();
    any.listen(1).unwrap();
    for (id, state, local) in
        [(&idle, IdentifierState::Idle, None), (&any, IdentifierState::Listening, Some(addr("0.0.0.0:7")))]
    {
        let local = local.map_or_else(|| "no address".to_owned(), |local: Address| local.to_string());
        let init = QueuePairState::Init;
        let group = addr("239.0.0.1:0");
        let errors = [
            id.resolve_route(SECOND).unwrap_err(),
            id.connect(&parameter).unwrap_err(),
            id.accept(&parameter).unwrap_err(),
            id.disconnect().unwrap_err(),
            id.get_qp_attr(init).map(drop).unwrap_err(),
            id.join_multicast(group, JoinFlags::FullMember, 0).unwrap_err(),
            id.get_device_context().map(drop).unwrap_err(),
            // The event of the route that this resolves has the library look at the device.
            id.set_option(1, 1, &[0; 72]).unwrap_err(),
        ];
        for error in errors {
            let arguments: [(_, &dyn Display); 3] =
                [("local", &local), ("state", &state), ("lacks_guid", &false)];
            assert_error(&error, ErrorKind::NoDevice, &arguments);
        }
    }
    assert!(fake.world.cm.options.lock().unwrap().is_empty());
}

/// librdmacm identifies a device by its node GUID, and treats 0 as no device: it reports success,
/// and leaves `verbs` null.
#[test]
fn a_device_whose_guid_is_zero_is_missed_and_named() {
    let (_fake, channel) = lying(|l| l.cm_no_guid = true);
    let id = new(&channel);
    id.resolve_addr(None, addr("192.0.2.1:7"), SECOND).unwrap();
    let event = next(&channel, sideway::rdmacm::EventType::AddressResolved);
    assert!(event.error().is_none(), "as the library says");
    let error = id.get_device_context().unwrap_err();
    lacks_guid(&error, IdentifierState::AddressResolved);
    assert!(error.to_string().contains("node GUID is 0") && error.to_string().contains("MAC"), "{error}");
    let of_route = id.resolve_route(SECOND).unwrap_err();
    lacks_guid(&of_route, IdentifierState::AddressResolved);
    assert_eq!(of_route.argument("local"), error.argument("local"));
    // The same if the address is the device's own.
    let id = new(&channel);
    id.bind_addr(addr("192.0.2.1:7")).unwrap();
    lacks_guid(&id.get_device_context().unwrap_err(), IdentifierState::Bound);
    // The same for the identifier of a request.
    let listener = listening(&channel, PortSpace::Tcp, 8);
    _fake.world.cm.push_request(listener.as_raw().as_ptr(), b"");
    let request = next(&channel, sideway::rdmacm::EventType::ConnectRequest);
    let error = request.cm_id().accept(&ConnectionParameter::new()).unwrap_err();
    lacks_guid(&error, IdentifierState::Requested);
}

#[test]
fn devices_can_fail() {
    for expected in ERRNOS {
        let (fake, channel) = lying(|l| l.cm_devices = expected);
        let id = ready(&channel);
        assert_says(&id.get_device_context().unwrap_err(), expected);
        assert_says(&get_devices_of(provider()).unwrap_err(), expected);
        assert_eq!(fake.world.cm.live()[3], 1);
    }
}

#[test]
#[cfg_attr(miri, ignore = "asks the C library what a code means")]
fn names_can_fail() {
    let hints = AddressInfoHints::new();
    let ask = |result: i32, errno: i32| {
        let _fake = Fake::lying(|l| l.cm_getaddrinfo = (result, errno));
        getaddrinfo_of(provider(), Some("peer"), Some("7"), &hints).unwrap_err()
    };
    assert_says(&ask(-1, libc::ENOMEM), libc::ENOMEM);
    assert_says(&ask(libc::EAI_SYSTEM, libc::EIO), libc::EIO);
    for code in [libc::EAI_NONAME, libc::EAI_BADFLAGS, -4711, 4711] {
        let error = ask(code, 0);
        assert_error(&error, ErrorKind::NotFound, &[("code", &code)]);
        assert!(error.to_string().contains("`peer`, service `7`"), "{error}");
    }
    let of_node = |node: &str| {
        let _fake = Fake::lying(|l| l.cm_getaddrinfo = (libc::EAI_NONAME, 0));
        getaddrinfo_of(provider(), Some(node), None, &hints).unwrap_err().to_string()
    };
    for (node, host) in
        [("peer:7000", "peer"), ("192.0.2.1:7000", "192.0.2.1"), ("[fe80::1%eth0]:7000", "fe80::1%eth0")]
    {
        let expected = format!("; a port is given apart from its host: node `{host}`, service `7000`");
        assert!(of_node(node).ends_with(&expected), "{}", of_node(node));
    }
    for node in ["peer", "2001:db8::7000", "peer:http", "peer:70000"] {
        assert!(!of_node(node).contains("given apart"), "{}", of_node(node));
    }
    let _fake = Fake::new();
    let error = getaddrinfo_of(provider(), Some("pe\0er"), None, &hints).unwrap_err();
    let text = "rdma_getaddrinfo was not called (name pe\\u{0}er): the name has a zero byte in it";
    assert_eq!(error.to_string(), text);
    // librdmacm's code for this flag is not thread-safe.
    let mut hints = hints.clone();
    hints.setup_flags(AddressInfoFlags::SubnetAdministrator);
    let error = getaddrinfo_of(provider(), None, Some("7"), &hints).unwrap_err();
    assert!(error.unsupported().is_some(), "{error}");
}

/// rdma-core's `rdma_resolve_addrinfo` leaves a code of `getaddrinfo` in errno, or -1.
#[test]
#[cfg_attr(miri, ignore = "asks the C library what a code means")]
fn a_name_that_is_not_found_in_the_call_is_said_in_words() {
    let resolve = |errno: i32| {
        let (_fake, channel) = lying(|l| l.cm = errno);
        let id = new(&channel);
        id.resolve_addrinfo(Some("peer:7000"), None, &AddressInfoHints::new()).unwrap_err()
    };
    for code in [libc::EAI_NONAME, libc::EAI_AGAIN] {
        let error = resolve(code);
        assert_error(&error, ErrorKind::NotFound, &[("code", &code)]);
        assert!(error.to_string().ends_with("node `peer`, service `7000`"), "{error}");
    }
    let error = resolve(-1);
    assert_error(&error, ErrorKind::Os, &[]);
    assert!(error.to_string().contains("the library gives no reason"), "{error}");
}

/// Addresses are small enough for error types.
#[test]
fn addresses_are_values() {
    let v4: SocketAddr = "192.0.2.1:7".parse().unwrap();
    assert_eq!(Address::from((v4.ip(), 7)), Address::from(v4));
    assert_eq!((addr("[::1]:9").port(), addr("[::1]:9").family()), (Some(9), 10));
}
