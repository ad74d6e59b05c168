//! The connection manager: everything that can fail does, and says with what.

use std::net::SocketAddr;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;

use sideway::ibverbs::ece::Ece;
use sideway::ibverbs::event::AsyncEventType;
use sideway::ibverbs::queue_pair::QueuePairState;
use sideway::rdmacm::{
    AcceptError, Address, AddressInfoFlags, AddressInfoHints, BindAddrError, ConnectError,
    ConnectionEceError, ConnectionParameter, CreateEventChannelError, DisconnectError, EstablishError,
    EventChannel, GetAddressInfoError, GetDeviceContextError, GetDevicesError, GetEventError,
    GetQueuePairAttributeError, Identifier, IdentifierState, JoinFlags, JoinMulticastError, ListenError,
    NoDevice, PortSpace, PrivateDataTooLong, RejectError, ResolveAddrError, ResolveRouteError,
    SetOptionError, WriteEventError, get_devices_of, getaddrinfo_of,
};
use sideway::sys::{LoadError, Provider, Verbs};

use super::cm_events::{SECOND, addr, listening, lying, next, requested, resolved};
use super::control::{ERRNOS, assert_says, is_unsupported};
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
        assert_eq!(error.port_space, PortSpace::Udp);
        let (_fake, channel) = lying(|l| l.cm_get_event = expected);
        if expected == libc::EAGAIN {
            continue;
        }
        for error in [channel.get_cm_event().unwrap_err(), channel.try_get_cm_event().unwrap_err()] {
            assert_says(&error, expected);
            assert!(matches!(error, GetEventError::Rdmacm { call: "rdma_get_cm_event", .. }));
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
    // SAFETY: the functions do nothing.
    let bare = *BARE.get_or_init(|| unsafe { Provider::from_tables("bare", Verbs::unsupported(), None) });
    let error = EventChannel::from_provider(bare).unwrap_err();
    assert!(matches!(error, CreateEventChannelError::Library(LoadError::NotProvided { .. })), "{error}");
    assert!(matches!(get_devices_of(bare), Err(GetDevicesError::Library(_))));
    let hints = AddressInfoHints::new();
    assert!(matches!(getaddrinfo_of(bare, None, None, &hints), Err(GetAddressInfoError::Library(_))));
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

/// Calls each function of an identifier once, with every number.
fn each_fails<T, E: std::error::Error>(
    state: impl Fn(&EventChannel) -> Identifier,
    call: impl Fn(&Identifier) -> Result<T, E>,
    look: impl Fn(&E, i32),
) {
    for expected in ERRNOS {
        let (fake, channel) = lying(|_| {});
        let id = state(&channel);
        let before = id.state();
        fake.world.cm.fails_next.store(expected, Relaxed);
        let Err(error) = call(&id) else { panic!("{expected} is no error") };
        // What the system lacks is said without its number.
        if !(is_unsupported(expected) && error.to_string().starts_with("the system has no ")) {
            assert_says(&error, expected);
        }
        look(&error, expected);
        assert_eq!(id.state(), before, "{error}");
        // And it goes on as if nothing had been.
        assert_eq!(fake.world.cm.live()[2], 0);
    }
}

fn new(channel: &EventChannel) -> Identifier {
    channel.create_id(PortSpace::Tcp).unwrap()
}

fn ready(channel: &EventChannel) -> Identifier {
    resolved(channel, PortSpace::Tcp, "192.0.2.1:7")
}

#[test]
fn functions_of_identifiers_can_fail() {
    let to = || addr("192.0.2.1:7");
    each_fails(
        new,
        |id| id.bind_addr(to()),
        |error, errno| match error {
            BindAddrError::Rdmacm { address, .. } => assert_eq!(*address, to()),
            other => panic!("{errno}: {other}"),
        },
    );
    each_fails(
        new,
        |id| id.resolve_addr(None, to(), SECOND),
        |error, errno| match error {
            ResolveAddrError::Rdmacm { destination, source_address: None, timeout: SECOND, .. } => {
                assert_eq!(*destination, to());
            }
            other => panic!("{errno}: {other}"),
        },
    );
    each_fails(
        ready,
        |id| id.resolve_route(SECOND),
        |error, errno| match error {
            ResolveRouteError::State { state: IdentifierState::RouteResolved, .. } => {
                assert_eq!(errno, libc::EINVAL)
            }
            ResolveRouteError::Rdmacm { destination, timeout: SECOND, .. } => {
                assert_eq!(*destination, Some(to()))
            }
            other => panic!("{errno}: {other}"),
        },
    );
    each_fails(
        new,
        |id| id.listen(5),
        |error, errno| match error {
            ListenError::Rdmacm { address: None, backlog: 5, .. } => {}
            other => panic!("{errno}: {other}"),
        },
    );
    let parameter = *ConnectionParameter::new().setup_qp_number(5);
    each_fails(
        ready,
        |id| id.connect(&parameter),
        |error, errno| match error {
            ConnectError::Rdmacm { peer, parameter: given, .. } => {
                assert_eq!((peer, **given), (&Some(to()), parameter));
            }
            other => panic!("{errno}: {other}"),
        },
    );
    each_fails(
        ready,
        |id| id.accept(&parameter),
        |error, errno| match error {
            AcceptError::State { state: IdentifierState::RouteResolved, .. } => {
                assert_eq!(errno, libc::EINVAL)
            }
            AcceptError::Rdmacm { peer, parameter: given, .. } => {
                assert_eq!((peer, **given), (&Some(to()), parameter));
            }
            other => panic!("{errno}: {other}"),
        },
    );
    let reject = |error: &RejectError, errno: i32| match error {
        RejectError::State { state: IdentifierState::RouteResolved, .. } => assert_eq!(errno, libc::EINVAL),
        RejectError::Rdmacm { peer, .. } => assert_eq!(*peer, Some(to())),
        other => panic!("{errno}: {other}"),
    };
    each_fails(ready, |id| id.reject(b"no"), reject);
    each_fails(
        ready,
        |id| id.reject_ece(b"no"),
        |error, errno| match error {
            RejectError::Unsupported(lacking) => {
                assert_eq!((lacking.verb, is_unsupported(errno)), ("rdma_reject_ece", true))
            }
            other => reject(other, errno),
        },
    );
    each_fails(ready, Identifier::establish, |error, errno| match error {
        EstablishError::State { state: IdentifierState::RouteResolved, .. } => {
            assert_eq!(errno, libc::EINVAL)
        }
        EstablishError::Unsupported(_) => assert!(is_unsupported(errno)),
        EstablishError::Rdmacm { peer, .. } => assert_eq!(*peer, Some(to())),
        other => panic!("{errno}: {other}"),
    });
    each_fails(ready, Identifier::disconnect, |error, errno| match error {
        DisconnectError::State { state: IdentifierState::RouteResolved, .. } => {
            assert_eq!(errno, libc::EINVAL)
        }
        DisconnectError::Rdmacm { peer, .. } => assert_eq!(*peer, Some(to())),
        other => panic!("{errno}: {other}"),
    });
    each_fails(
        ready,
        |id| id.notify(AsyncEventType::CommunicationEstablished),
        |error, _| {
            assert_eq!(error.event, AsyncEventType::CommunicationEstablished);
        },
    );
}

#[test]
fn what_came_later_can_fail_or_not_be_there() {
    let init = QueuePairState::Init;
    each_fails(
        ready,
        |id| id.get_qp_attr(init),
        |error, errno| match error {
            GetQueuePairAttributeError::Unsupported(_) => assert!(is_unsupported(errno)),
            GetQueuePairAttributeError::Rdmacm { queue_pair, identifier, .. } => {
                assert_eq!((*queue_pair, *identifier), (init, IdentifierState::RouteResolved));
            }
            other => panic!("{errno}: {other}"),
        },
    );
    let ece = Ece { vendor_id: 1, options: 2 };
    each_fails(new, |id| id.set_local_ece(ece), |_, _| {});
    each_fails(new, Identifier::get_remote_ece, |_, _| {});
    each_fails(
        new,
        |id| id.write_user_event(1, 2),
        |error, errno| match error {
            WriteEventError::Unsupported(_) => assert!(is_unsupported(errno)),
            WriteEventError::Rdmacm { status: 1, argument: 2, .. } => {}
            other => panic!("{errno}: {other}"),
        },
    );
    each_fails(
        new,
        |id| id.set_type_of_service(9),
        |error, errno| match error {
            SetOptionError::Unsupported { level: 0, name: 0, .. } => assert!(is_unsupported(errno)),
            SetOptionError::Rdmacm { value, .. } => assert_eq!(value[..], [9]),
            other => panic!("{errno}: {other}"),
        },
    );
    let group = || addr("239.0.0.1:0");
    each_fails(
        ready,
        |id| id.join_multicast(group(), JoinFlags::FullMember, 1),
        |error, errno| match error {
            JoinMulticastError::Unsupported(_) => assert!(is_unsupported(errno)),
            JoinMulticastError::Rdmacm { group: given, .. } => assert_eq!(*given, group()),
            other => panic!("{errno}: {other}"),
        },
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
    assert!(
        matches!(id.set_local_ece(ece), Err(ConnectionEceError::Unsupported(lacking)) if lacking.missing.is_some())
    );
}

/// Numbers that mean something.
#[test]
fn addresses_that_are_not_to_be_had_say_so() {
    let bind = |errno: i32, address: Address| {
        let (fake, channel) = lying(|_| {});
        let id = new(&channel);
        fake.world.cm.fails_next.store(errno, Relaxed);
        id.bind_addr(address).unwrap_err()
    };
    let to = || addr("198.51.100.1:80");
    assert!(
        matches!(bind(libc::EADDRINUSE, to()), BindAddrError::AddressInUse { address, .. } if address == to())
    );
    for errno in [libc::EADDRNOTAVAIL, libc::ENODEV] {
        let error = bind(errno, to());
        assert!(matches!(&error, BindAddrError::NotLocal { address, .. } if *address == to()), "{error}");
        assert!(error.to_string().contains("198.51.100.1:80"), "{error}");
    }
    assert!(matches!(bind(libc::EAFNOSUPPORT, to()), BindAddrError::AddressFamily { .. }));
    let (fake, channel) = lying(|_| {});
    let id = new(&channel);
    id.bind_addr(to()).unwrap();
    fake.world.cm.fails_next.store(libc::EINVAL, Relaxed);
    assert!(matches!(id.bind_addr(to()), Err(BindAddrError::State { state: IdentifierState::Bound, .. })));
    fake.world.cm.fails_next.store(libc::EADDRINUSE, Relaxed);
    assert!(matches!(id.listen(1), Err(ListenError::AddressInUse { address, .. }) if address == Some(to())));
    id.listen(1).unwrap();
    fake.world.cm.fails_next.store(libc::EINVAL, Relaxed);
    assert!(matches!(id.listen(1), Err(ListenError::State { state: IdentifierState::Listening, .. })));
    fake.world.cm.fails_next.store(libc::EINVAL, Relaxed);
    let error = id.resolve_addr(None, to(), SECOND).unwrap_err();
    assert!(matches!(error, ResolveAddrError::State { state: IdentifierState::Listening, .. }), "{error}");
    fake.world.cm.fails_next.store(libc::EADDRNOTAVAIL, Relaxed);
    let error = new(&channel).resolve_addr(Some(to()), to(), SECOND).unwrap_err();
    assert!(matches!(error, ResolveAddrError::NotLocal { source_address, .. } if source_address == to()));
    fake.world.cm.fails_next.store(libc::EAFNOSUPPORT, Relaxed);
    let error = new(&channel).resolve_addr(None, to(), SECOND).unwrap_err();
    assert!(matches!(error, ResolveAddrError::AddressFamily { destination, .. } if destination == to()));
}

#[test]
fn private_data_that_is_too_long_says_how_long_it_can_be() {
    let with = |length: usize| *ConnectionParameter::new().setup_private_data(&vec![1; length]);
    let too_long = |length, limit| PrivateDataTooLong { length, limit };
    let (fake, channel) = lying(|_| {});
    // What C cannot say is not given to it.
    let id = ready(&channel);
    let calls = fake.world.cm.calls.load(Relaxed);
    for length in [256, 1000] {
        assert!(
            matches!(id.connect(&with(length)), Err(ConnectError::PrivateData(e)) if e == too_long(length, 56))
        );
        assert!(
            matches!(id.accept(&with(length)), Err(AcceptError::PrivateData(e)) if e == too_long(length, 196))
        );
        let data = vec![0; length];
        assert!(matches!(id.reject(&data), Err(RejectError::PrivateData(e)) if e == too_long(length, 148)));
        assert!(
            matches!(id.reject_ece(&data), Err(RejectError::PrivateData(e)) if e == too_long(length, 148))
        );
    }
    assert_eq!(fake.world.cm.calls.load(Relaxed), calls);
    // What it can is the library's to judge: another transport carries more.
    id.connect(&with(255)).unwrap();
    next(&channel, sideway::rdmacm::EventType::Rejected);
    let refuse = || fake.world.cm.fails_next.store(libc::EINVAL, Relaxed);
    let id = ready(&channel);
    refuse();
    assert!(matches!(id.connect(&with(57)), Err(ConnectError::PrivateData(e)) if e == too_long(57, 56)));
    refuse();
    assert!(matches!(id.connect(&with(56)), Err(ConnectError::Rdmacm { .. })));
    refuse();
    assert!(matches!(id.accept(&with(197)), Err(AcceptError::PrivateData(e)) if e == too_long(197, 196)));
    refuse();
    assert!(matches!(id.reject(&[0; 149]), Err(RejectError::PrivateData(e)) if e == too_long(149, 148)));
    let datagram = resolved(&channel, PortSpace::Udp, "192.0.2.1:7");
    refuse();
    assert!(
        matches!(datagram.connect(&with(181)), Err(ConnectError::PrivateData(e)) if e == too_long(181, 180))
    );
    refuse();
    assert!(
        matches!(datagram.accept(&with(137)), Err(AcceptError::PrivateData(e)) if e == too_long(137, 136))
    );
    let error = datagram.connect(&with(300)).unwrap_err();
    assert_eq!(error.to_string(), "cannot connect: 300 bytes of private data are too many: 180 at most");
}

#[test]
fn answers_in_the_wrong_state_say_so() {
    let (_fake, channel) = lying(|_| {});
    let (active, listener, request) = requested(&channel, &[]);
    let parameter = ConnectionParameter::new();
    let id = request.into_cm_id();
    id.accept(&parameter).unwrap();
    assert!(matches!(
        id.accept(&parameter),
        Err(AcceptError::State { state: IdentifierState::Connecting, .. })
    ));
    assert!(matches!(id.reject(&[]), Err(RejectError::State { state: IdentifierState::Connecting, .. })));
    drop((active, listener, id));
    let (_fake, channel) = lying(|_| {});
    let idle = ready(&channel);
    assert!(matches!(
        idle.establish(),
        Err(EstablishError::State { state: IdentifierState::RouteResolved, .. })
    ));
    assert!(matches!(
        idle.disconnect(),
        Err(DisconnectError::State { state: IdentifierState::RouteResolved, .. })
    ));
}

/// Some releases of librdmacm look at the device without asking whether there is one, and crash: they are not called.
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
        let expected = NoDevice::NotYet { local, state };
        assert!(matches!(id.resolve_route(SECOND), Err(ResolveRouteError::NoDevice(e)) if e == expected));
        assert!(matches!(id.connect(&parameter), Err(ConnectError::NoDevice(e)) if e == expected));
        assert!(matches!(id.accept(&parameter), Err(AcceptError::NoDevice(e)) if e == expected));
        assert!(matches!(id.disconnect(), Err(DisconnectError::NoDevice(e)) if e == expected));
        let init = QueuePairState::Init;
        assert!(
            matches!(id.get_qp_attr(init), Err(GetQueuePairAttributeError::NoDevice(e)) if e == expected)
        );
        let group = addr("239.0.0.1:0");
        let error = id.join_multicast(group, JoinFlags::FullMember, 0).unwrap_err();
        assert!(matches!(error, JoinMulticastError::NoDevice(e) if e == expected));
        assert!(matches!(id.get_device_context(), Err(GetDeviceContextError::NoDevice(e)) if e == expected));
        // The event of the route that this resolves has the library look at the device.
        let error = id.set_option(1, 1, &[0; 72]).unwrap_err();
        assert!(matches!(error, SetOptionError::NoDevice(e) if e == expected));
    }
    assert!(fake.world.cm.options.lock().unwrap().is_empty());
}

/// librdmacm knows a device by its node GUID, and takes 0 for none: it reports success, and leaves `verbs` null.
#[test]
fn a_device_whose_guid_is_zero_is_missed_and_named() {
    let (_fake, channel) = lying(|l| l.cm_no_guid = true);
    let id = new(&channel);
    id.resolve_addr(None, addr("192.0.2.1:7"), SECOND).unwrap();
    let event = next(&channel, sideway::rdmacm::EventType::AddressResolved);
    assert!(event.error().is_none(), "as the library says");
    let error = id.get_device_context().unwrap_err();
    let GetDeviceContextError::NoDevice(lacking @ NoDevice::NoGuid { state, .. }) = &error else {
        panic!("{error}")
    };
    assert_eq!(*state, IdentifierState::AddressResolved);
    assert!(error.to_string().contains("node GUID is 0") && error.to_string().contains("MAC"), "{error}");
    assert!(matches!(id.resolve_route(SECOND), Err(ResolveRouteError::NoDevice(e)) if e == *lacking));
    // Likewise where the address is the device's own.
    let id = new(&channel);
    id.bind_addr(addr("192.0.2.1:7")).unwrap();
    assert!(matches!(id.get_device_context(), Err(GetDeviceContextError::NoDevice(NoDevice::NoGuid { .. }))));
    // And where somebody else asks.
    let listener = listening(&channel, PortSpace::Tcp, 8);
    _fake.world.cm.push_request(listener.as_raw().as_ptr(), b"");
    let request = next(&channel, sideway::rdmacm::EventType::ConnectRequest);
    let error = request.cm_id().accept(&ConnectionParameter::new()).unwrap_err();
    assert!(matches!(
        error,
        AcceptError::NoDevice(NoDevice::NoGuid { state: IdentifierState::Requested, .. })
    ));
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
        assert!(
            matches!(error, GetAddressInfoError::NotFound { code: found, .. } if found == code),
            "{error}"
        );
        assert!(error.to_string().contains("`peer`, service `7`"), "{error}");
    }
    let _fake = Fake::new();
    let error = getaddrinfo_of(provider(), Some("pe\0er"), None, &hints).unwrap_err();
    assert_eq!(error.to_string(), "`pe\\u{0}er` is no name: it has a zero byte in it");
    // What does that in librdmacm is not safe.
    let mut hints = hints.clone();
    hints.setup_flags(AddressInfoFlags::SubnetAdministrator);
    let error = getaddrinfo_of(provider(), None, Some("7"), &hints).unwrap_err();
    assert!(matches!(error, GetAddressInfoError::Unsupported(_)), "{error}");
}

/// They fit where errors are returned.
#[test]
fn addresses_are_values() {
    let v4: SocketAddr = "192.0.2.1:7".parse().unwrap();
    assert_eq!(Address::from((v4.ip(), 7)), Address::from(v4));
    assert_eq!((addr("[::1]:9").port(), addr("[::1]:9").family()), (Some(9), 10));
}
