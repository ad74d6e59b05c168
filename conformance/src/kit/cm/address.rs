//! Socket addresses in the form that C takes.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use libc::{AF_INET, AF_INET6, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage};

/// A socket address that is passed by pointer.
pub(super) struct SocketAddress(sockaddr_storage);

impl SocketAddress {
    pub(super) fn of(address: SocketAddr) -> Self {
        // SAFETY: the struct has integers only, for which zero is a valid value.
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
                // SAFETY: `sockaddr_storage` has the size and alignment of every address type.
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
                // SAFETY: `sockaddr_storage` has the size and alignment of every address type.
                unsafe { place.cast::<sockaddr_in6>().write(raw) };
            }
        }
        Self(storage)
    }

    /// An address of an unknown family.
    pub(super) fn of_family(family: u16) -> Self {
        // SAFETY: the struct has integers only, for which zero is a valid value.
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

/// Reads an address; `None` if its family is neither IPv4 nor IPv6.
///
/// # Safety
///
/// - `address` is null, or points to an address that is as long as its family requires.
pub(super) unsafe fn read(address: *const sockaddr) -> Option<SocketAddr> {
    if address.is_null() {
        return None;
    }
    // SAFETY: not null (checked above), so that it points to an address, which begins with its
    // family.
    match i32::from(unsafe { (*address).sa_family }) {
        AF_INET => {
            // SAFETY: the family is IPv4, and the caller guarantees the length for it (`# Safety`).
            let raw = unsafe { address.cast::<sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(raw.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddrV4::new(ip, u16::from_be(raw.sin_port)).into())
        }
        AF_INET6 => {
            // SAFETY: the family is IPv6, and the caller guarantees the length for it (`# Safety`).
            let raw = unsafe { address.cast::<sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(raw.sin6_addr.s6_addr);
            let (flow, scope) = (u32::from_be(raw.sin6_flowinfo), raw.sin6_scope_id);
            Some(SocketAddrV6::new(ip, u16::from_be(raw.sin6_port), flow, scope).into())
        }
        _ => None,
    }
}
