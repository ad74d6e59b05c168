use std::net::{Ipv6Addr, TcpListener};

use super::*;
use crate::config::{Builder, ConfigError};
use crate::{Policy, Stream};

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn all() -> Vec<InterfaceAddress> {
    [
        ("lo", "127.0.0.1", 1),
        ("lo", "::1", 1),
        ("eth0", "fe80::1", 2),
        ("eth0", "2001:db8::1", 2),
        ("eth0", "169.254.7.7", 2),
        ("eth0", "192.0.2.1", 2),
        ("eth0", "192.0.2.2", 2),
        ("ib0", "fe80::2", 3),
    ]
    .into_iter()
    .map(|(interface, text, index)| InterfaceAddress { interface: interface.into(), ip: ip(text), index })
    .collect()
}

fn tcp() -> Builder {
    Builder::new().policy(Policy::TcpOnly)
}

fn built(builder: Builder) -> Config {
    builder.build().expect("allowed")
}

/// The name of the loopback interface, `lo` in Linux.
fn loopback() -> String {
    let found = InterfaceAddress::all().into_iter().find(|address| address.ip == ip("127.0.0.1"));
    found.expect("every host has it").interface
}

#[test]
fn an_interface_has_its_addresses_best_first() {
    let all = all();
    let addresses = |name| -> Vec<String> {
        let own = of_interface(&all, name).expect("it has addresses");
        own.iter().map(|address| address.with_port(7).to_string()).collect()
    };
    let best_first = ["192.0.2.1:7", "192.0.2.2:7", "[2001:db8::1]:7", "169.254.7.7:7", "[fe80::1%2]:7"];
    assert_eq!(addresses("eth0"), best_first);
    assert_eq!(addresses("ib0"), ["[fe80::2%3]:7"]);
    let error = of_interface(&all, "ib9").expect_err("there is none");
    assert_eq!(
        error.to_string(),
        "no network interface `ib9` has an address; those that have one are eth0, ib0, lo: correct `bind_interface`, \
         or give it one (`ip addr add`)"
    );
    assert_eq!(error.kind(), io::ErrorKind::AddrNotAvailable);
}

#[test]
fn a_client_prefers_an_address_as_local_as_the_peers() {
    let all = all();
    let best = |peer: &str| {
        let own = of_interface(&all, "eth0").expect("it has addresses").into_iter();
        let own = own.filter(|address| address.ip.is_ipv4() == ip(peer).is_ipv4());
        own.min_by_key(|address| address.rank_towards(ip(peer))).expect("one").ip.to_string()
    };
    assert_eq!(["192.0.2.9", "169.254.1.1"].map(best), ["192.0.2.1", "169.254.7.7"]);
    assert_eq!(["2001:db8::9", "fe80::9"].map(best), ["2001:db8::1", "fe80::1"]);
}

#[test]
fn clients_are_told_a_host_and_the_port() {
    let at = |text: &str| text.parse::<SocketAddr>().expect("an address");
    assert_eq!(advertised(Some("worker1"), at("0.0.0.0:7")), "worker1:7");
    assert_eq!(advertised(Some("worker1"), at("192.0.2.1:7")), "worker1:7");
    assert_eq!(advertised(Some("2001:db8::1"), at("[::]:7")), "[2001:db8::1]:7");
    assert_eq!(advertised(None, at("192.0.2.1:7")), "192.0.2.1:7");
    // The interface's index means nothing to another host.
    assert_eq!(advertised(None, at("[fe80::1%3]:7")), "[fe80::1]:7");
}

#[test]
#[cfg_attr(miri, ignore = "asks the system for its name")]
fn a_listener_at_all_addresses_tells_the_systems_name() {
    let told = advertised(None, (Ipv4Addr::UNSPECIFIED, 7).into());
    let (host, port) = told.rsplit_once(':').expect("a host and a port");
    assert!(!host.is_empty() && port == "7" && !host.contains("(none)"), "{told}");
    assert!(system_host_name().is_none_or(|name| name == host), "{told}");
}

#[test]
#[cfg_attr(miri, ignore = "asks for the host's addresses")]
fn the_configuration_names_the_address_of_a_listener() {
    let addresses = |builder: Builder| built(builder).bind_addrs().expect("known");
    let at = |text: &str| vec![text.parse::<SocketAddr>().expect("an address")];
    assert_eq!(addresses(tcp()), at("0.0.0.0:59999"));
    assert_eq!(addresses(tcp().port(7)), at("0.0.0.0:7"));
    assert_eq!(addresses(tcp().bind_host("::1").port(7)), at("[::1]:7"));
    assert_eq!(addresses(tcp().bind_interface(loopback())), at("127.0.0.1:59999"));
    // A host goes before the device, and two devices have no one address.
    assert_eq!(addresses(tcp().device("mlx5_9").bind_host("0.0.0.0")), at("0.0.0.0:59999"));
    assert_eq!(addresses(tcp().devices(["mlx5_8", "mlx5_9"])), at("0.0.0.0:59999"));
}

#[test]
#[cfg_attr(miri, ignore = "asks for the host's addresses")]
fn an_unknown_address_of_a_listener_is_an_error() {
    let error = |builder: Builder| builder.bind_configured().map(drop).expect_err("refused");
    let none = error(tcp().bind_interface("nosuch0"));
    assert_eq!(none.kind(), io::ErrorKind::AddrNotAvailable);
    let text = none.to_string();
    assert!(text.contains("`nosuch0`") && text.contains(&loopback()), "{text}");
    let inner = none.get_ref().and_then(|inner| inner.downcast_ref::<ConnectError>());
    assert!(
        matches!(inner, Some(ConnectError::LocalAddress(LocalAddressError::Interface { .. }))),
        "{inner:?}"
    );
    let text = error(tcp().device("mlx5_9")).to_string();
    assert!(text.starts_with("the address of device mlx5_9 is unknown: "), "{text}");
    assert!(text.ends_with("; set `bind_host` or `bind_interface`"), "{text}");
    let text = error(tcp().bind_host("192.0.2.77").port(0)).to_string();
    assert!(text.starts_with("cannot listen at 192.0.2.77:0: "), "{text}");
    let refused = error(tcp().bind_host("a b"));
    assert!(refused.get_ref().is_some_and(|inner| inner.is::<ConfigError>()), "{refused}");
}

#[test]
#[cfg_attr(miri, ignore = "opens sockets")]
fn a_listener_and_its_clients_use_the_configured_interface() {
    let builder = tcp().bind_interface(loopback()).port(0);
    let listener = builder.clone().hostname("127.0.0.1").bind_configured().expect("it listens");
    let local = listener.local_addr().expect("known");
    assert_eq!((local.ip(), listener.advertised_addr()), (ip("127.0.0.1"), local.to_string()));
    let client = builder.connect(&*listener.advertised_addr()).expect("it connects");
    let (server, peer) = listener.accept().expect("a client");
    assert_eq!(client.local_addr().expect("known"), peer);
    assert_eq!(peer.ip(), ip("127.0.0.1"));
    drop(server);
}

/// In Linux all addresses of 127.0.0.0/8 are local.
#[cfg(target_os = "linux")]
#[test]
#[cfg_attr(miri, ignore = "opens sockets")]
fn a_client_connects_from_the_configured_host() {
    let listener = tcp().bind("127.0.0.1:0").expect("it listens");
    let addr = listener.local_addr().expect("known");
    let from = |host: &str| tcp().bind_host(host).connect(addr).expect("it connects");
    let local = |stream: Stream| stream.local_addr().expect("known").ip();
    assert_eq!(local(from("127.0.0.77")), ip("127.0.0.77"));
    assert_eq!(listener.accept().expect("a client").1.ip(), ip("127.0.0.77"));
    // A wildcard address of either family leaves it to the routes.
    assert_eq!([local(from("0.0.0.0")), local(from("::"))], [ip("127.0.0.1"); 2]);

    let failed = |host: &str| tcp().bind_host(host).connect(addr).map(drop).expect_err("refused");
    let foreign = failed("192.0.2.77");
    assert_eq!(foreign.kind(), io::ErrorKind::AddrNotAvailable);
    assert!(foreign.to_string().starts_with("cannot connect from 192.0.2.77: "), "{foreign}");
    let family = failed("::1").to_string();
    assert!(family.starts_with("`::1` has no IPv4 address, and the peer is 127.0.0.1:"), "{family}");
    let unresolved = failed("no-such-host.invalid").to_string();
    assert!(
        unresolved.starts_with("`bind_host` = `no-such-host.invalid` cannot be resolved: "),
        "{unresolved}"
    );
}

/// A connect again by plain TCP has the same local address.
#[cfg(target_os = "linux")]
#[test]
#[cfg_attr(miri, ignore = "opens sockets")]
fn a_plain_connect_has_the_configured_address_too() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("it listens");
    let config = built(tcp().bind_host("127.0.0.78"));
    let stream = config.connect_tcp(listener.local_addr().expect("known")).expect("it connects");
    assert_eq!(stream.local_addr().expect("known").ip(), ip("127.0.0.78"));
    assert_eq!(listener.accept().expect("a client").1.ip(), ip("127.0.0.78"));
    let refused = config.connect_tcp((Ipv6Addr::LOCALHOST, 1).into()).expect_err("another family");
    assert!(matches!(refused, ConnectError::LocalAddress(LocalAddressError::Family { .. })), "{refused}");
}
