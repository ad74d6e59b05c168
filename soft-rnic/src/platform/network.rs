//! The IP addresses of this host.

use std::net::{IpAddr, Ipv6Addr};

/// An IP address of this host and the index of its network interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HostAddress {
    /// IPv4 addresses in IPv4-mapped form, `::ffff:a.b.c.d`.
    pub(crate) address: Ipv6Addr,
    pub(crate) interface: u32,
}

/// The addresses of this host's interfaces in a stable order, without loopback and link-local ones.
/// The list is empty if the system refuses to show them.
pub(crate) fn host_addresses() -> Vec<HostAddress> {
    if cfg!(miri) {
        return Vec::new();
    }
    let interfaces = if_addrs::get_if_addrs().unwrap_or_else(|error| {
        log::warn!(
            "the host's network addresses cannot be read, so the device has no GIDs for them: {error}"
        );
        Vec::new()
    });
    let mut addresses: Vec<_> = interfaces
        .iter()
        .filter(|interface| !interface.is_loopback() && !interface.is_link_local())
        .map(|interface| HostAddress {
            address: match interface.ip() {
                IpAddr::V4(address) => address.to_ipv6_mapped(),
                IpAddr::V6(address) => address,
            },
            interface: interface.index.unwrap_or(0),
        })
        .collect();
    // IPv4 first, because programs choose the first GID that fits.
    addresses.sort_by_key(|host| (host.address.to_ipv4_mapped().is_none(), host.interface, host.address));
    addresses.dedup_by_key(|host| host.address);
    addresses
}
