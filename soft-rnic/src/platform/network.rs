//! The IP addresses of this host.

use std::net::{IpAddr, Ipv6Addr};

/// An IP address of this host and the index of its network interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HostAddress {
    /// IPv4 addresses in IPv4-mapped form, `::ffff:a.b.c.d`.
    pub(crate) address: Ipv6Addr,
    pub(crate) interface: u32,
}

/// The addresses of this host's interfaces in a stable order. The list is empty if the system
/// refuses to show them.
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
    in_order(interfaces.iter().map(|interface| (interface.ip(), interface.index.unwrap_or(0))))
}

/// Without loopback addresses, and without link-local ones of IPv6, which mean nothing without an
/// interface.
fn in_order(addresses: impl Iterator<Item = (IpAddr, u32)>) -> Vec<HostAddress> {
    let mut addresses: Vec<_> = addresses
        .filter(|(address, _)| match address {
            IpAddr::V4(address) => !address.is_loopback(),
            IpAddr::V6(address) => !address.is_loopback() && !address.is_unicast_link_local(),
        })
        .map(|(address, interface)| HostAddress {
            address: match address {
                IpAddr::V4(address) => address.to_ipv6_mapped(),
                IpAddr::V6(address) => address,
            },
            interface,
        })
        .collect();
    // IPv4 first, because programs choose the first GID that fits; link-local ones last.
    let rank = |host: &HostAddress| match host.address.to_ipv4_mapped() {
        Some(address) if address.is_link_local() => 2,
        Some(_) => 0,
        None => 1,
    };
    addresses.sort_by_key(|host| (rank(host), host.interface, host.address));
    addresses.dedup_by_key(|host| host.address);
    addresses
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_with_one_meaning_are_gids_and_link_local_ones_last() {
        let given = [
            "169.254.7.7",
            "fe80::1",
            "127.0.0.1",
            "fd00::2",
            "::1",
            "192.0.2.2",
            "2001:db8::1",
            "192.0.2.2",
        ];
        let found = in_order(given.iter().map(|text| (text.parse().unwrap(), 4)));
        let shown: Vec<_> = found.iter().map(|host| host.address.to_string()).collect();
        assert_eq!(shown, ["::ffff:192.0.2.2", "2001:db8::1", "fd00::2", "::ffff:169.254.7.7"]);
    }
}
