//! Socket addresses as C has them.

use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use libc::{sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage};

/// The address family of InfiniBand's own addresses, which programs of librdmacm may ask for and this device has none of.
const AF_IB: c_int = 27;

/// Reads an address.
///
/// # Errors
///
/// `EAFNOSUPPORT`: it is one of InfiniBand's own; `EINVAL`: it is none at all.
///
/// # Safety
///
/// - `address` is null, or readable for as long as its family says.
pub(crate) unsafe fn read(address: *const sockaddr) -> Result<SocketAddr, c_int> {
    if address.is_null() {
        return Err(libc::EINVAL);
    }
    // SAFETY: `address` is null, or readable for as long as its family says, by the contract of
    // `read`. The struct may lie anywhere.
    unsafe {
        match c_int::from((&raw const (*address).sa_family).read_unaligned()) {
            libc::AF_INET => {
                let address = address.cast::<sockaddr_in>().read_unaligned();
                let ip = Ipv4Addr::from_bits(u32::from_be(address.sin_addr.s_addr));
                Ok(SocketAddrV4::new(ip, u16::from_be(address.sin_port)).into())
            }
            libc::AF_INET6 => {
                let address = address.cast::<sockaddr_in6>().read_unaligned();
                let (ip, port) = (Ipv6Addr::from(address.sin6_addr.s6_addr), u16::from_be(address.sin6_port));
                Ok(SocketAddrV6::new(ip, port, address.sin6_flowinfo, address.sin6_scope_id).into())
            }
            AF_IB => Err(libc::EAFNOSUPPORT),
            _ => Err(libc::EINVAL),
        }
    }
}

/// Writes an address, and zeros behind it.
///
/// # Safety
///
/// - `to` is writable.
pub(crate) unsafe fn write(address: SocketAddr, to: *mut sockaddr_storage) {
    // SAFETY: the caller's place is as long as any address; zero is a value of each.
    unsafe {
        to.write_bytes(0, 1);
        match address.ip() {
            IpAddr::V4(ip) => {
                let to = to.cast::<sockaddr_in>();
                (*to).sin_family = libc::AF_INET as u16;
                (*to).sin_port = address.port().to_be();
                (*to).sin_addr.s_addr = ip.to_bits().to_be();
            }
            IpAddr::V6(ip) => {
                let to = to.cast::<sockaddr_in6>();
                (*to).sin6_family = libc::AF_INET6 as u16;
                (*to).sin6_port = address.port().to_be();
                (*to).sin6_addr.s6_addr = ip.octets();
                if let SocketAddr::V6(address) = address {
                    (*to).sin6_flowinfo = address.flowinfo();
                    (*to).sin6_scope_id = address.scope_id();
                }
            }
        }
    }
}

/// The port of an address, in the network's order; 0 if it has none.
///
/// # Safety
///
/// - `address` is readable.
pub(crate) unsafe fn port(address: *const sockaddr_storage) -> u16 {
    // SAFETY: `address` is readable, by the contract of `port`.
    unsafe { read(address.cast()) }.map_or(0, |address| address.port().to_be())
}
