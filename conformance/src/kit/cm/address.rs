//! Addresses as C has them.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use libc::{AF_INET, AF_INET6, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage};

/// An address that a function takes by a pointer.
pub(super) struct SocketAddress(sockaddr_storage);

impl SocketAddress {
    pub(super) fn of(address: SocketAddr) -> Self {
        // SAFETY: integers: all zero is a valid value.
        let mut storage: sockaddr_storage = unsafe { std::mem::zeroed() };
        let place = &raw mut storage;
        match address {
            SocketAddr::V4(address) => {
                let raw = sockaddr_in {
                    sin_family: AF_INET as u16,
                    sin_port: address.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(address.ip().octets()) },
                    sin_zero: [0; 8],
                };
                // SAFETY: a storage has room for any address and is aligned for it.
                unsafe { place.cast::<sockaddr_in>().write(raw) };
            }
            SocketAddr::V6(address) => {
                let raw = sockaddr_in6 {
                    sin6_family: AF_INET6 as u16,
                    sin6_port: address.port().to_be(),
                    sin6_flowinfo: address.flowinfo().to_be(),
                    sin6_addr: libc::in6_addr { s6_addr: address.ip().octets() },
                    sin6_scope_id: address.scope_id(),
                };
                // SAFETY: likewise.
                unsafe { place.cast::<sockaddr_in6>().write(raw) };
            }
        }
        Self(storage)
    }

    /// An address of a family that nobody knows.
    pub(super) fn of_family(family: u16) -> Self {
        // SAFETY: integers: all zero is a valid value.
        let mut storage: sockaddr_storage = unsafe { std::mem::zeroed() };
        storage.ss_family = family;
        Self(storage)
    }

    pub(super) fn as_mut_ptr(&mut self) -> *mut sockaddr {
        (&raw mut self.0).cast()
    }

    pub(super) fn len(&self) -> u32 {
        let len = if i32::from(self.0.ss_family) == AF_INET {
            size_of::<sockaddr_in>()
        } else {
            size_of::<sockaddr_in6>()
        };
        len as u32
    }
}

/// Reads an address; none if its family is another.
///
/// # Safety
///
/// - `address` is null or points to an address that is as long as its family's.
pub(super) unsafe fn read(address: *const sockaddr) -> Option<SocketAddr> {
    if address.is_null() {
        return None;
    }
    // SAFETY: the caller's promise; every address begins with its family.
    match i32::from(unsafe { (*address).sa_family }) {
        AF_INET => {
            // SAFETY: the caller's promise.
            let raw = unsafe { address.cast::<sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(raw.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddrV4::new(ip, u16::from_be(raw.sin_port)).into())
        }
        AF_INET6 => {
            // SAFETY: the caller's promise.
            let raw = unsafe { address.cast::<sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(raw.sin6_addr.s6_addr);
            let (flow, scope) = (u32::from_be(raw.sin6_flowinfo), raw.sin6_scope_id);
            Some(SocketAddrV6::new(ip, u16::from_be(raw.sin6_port), flow, scope).into())
        }
        _ => None,
    }
}
