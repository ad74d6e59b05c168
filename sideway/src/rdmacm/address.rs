//! Addresses of the connection manager: IP, InfiniBand (`AF_IB`), or an unknown family.

use std::fmt;
use std::mem::offset_of;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use libc::{sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage};

use crate::ibverbs::address::Gid;

/// The address family of InfiniBand (`AF_IB`).
const AF_IB: u16 = 27;

/// The size of an address after its family, in bytes.
const DATA: usize = size_of::<sockaddr_storage>() - size_of::<u16>();

/// The address of one end (`struct sockaddr`).
#[derive(Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Address {
    /// IP address and port.
    Inet(SocketAddr),
    /// GID and service (`AF_IB`).
    Ib(Box<IbAddress>),
    /// An address of a family that this crate does not know.
    Unknown(UnknownAddress),
}

/// What to do about a link-local IPv6 address that names no interface, such as `fe80::1`; `None` for
/// every other address.
///
/// The system cannot tell where such an address leads, so that no call takes it, neither of this
/// module nor of [`std::net`]. The usual text (`EINVAL`, "Invalid argument") does not name the cause.
///
/// ```
/// use sideway::rdmacm::missing_interface;
///
/// let remedy = missing_interface(&"[fe80::1]:7000".parse()?);
/// let expected = "a link-local address needs the interface that leads there: fe80::1%eth0";
/// assert_eq!(remedy.as_deref(), Some(expected));
/// assert_eq!(missing_interface(&"[fe80::1%2]:7000".parse()?), None);
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
pub fn missing_interface(address: &SocketAddr) -> Option<String> {
    match address {
        SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() && v6.scope_id() == 0 => {
            Some(format!("a link-local address needs the interface that leads there: {}%eth0", v6.ip()))
        }
        _ => None,
    }
}

impl Address {
    /// What to do about it if it is link-local and names no interface.
    pub(super) fn missing_interface(&self) -> Option<String> {
        match self {
            Self::Inet(address) => missing_interface(address),
            _ => None,
        }
    }
}

/// A native InfiniBand address (`struct sockaddr_ib`), in host byte order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct IbAddress {
    /// The partition key.
    pub pkey: u16,
    /// Traffic class and flow label.
    pub flowinfo: u32,
    /// The GID; all zero stands for any.
    pub gid: Gid,
    /// The service: a port space in the upper bits, and a port in the lower ones.
    pub service_id: u64,
    /// The bits of the service that are significant.
    pub service_id_mask: u64,
    /// The scope of a link-local GID.
    pub scope_id: u64,
}

/// An address of a family that this crate does not know.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct UnknownAddress {
    family: u16,
    data: Box<[u8; DATA]>,
}

impl UnknownAddress {
    /// The family (`sa_family`).
    pub fn family(&self) -> u16 {
        self.family
    }

    /// The bytes after the family, as in C, padded with zeros.
    pub fn data(&self) -> &[u8] {
        &*self.data
    }
}

impl Address {
    /// The IP address and port, if it has them.
    pub fn ip(&self) -> Option<SocketAddr> {
        match self {
            Self::Inet(address) => Some(*address),
            _ => None,
        }
    }

    /// The port (`rdma_get_src_port`, `rdma_get_dst_port`). For native InfiniBand addresses, it is
    /// the lowest 16 bits of the service.
    pub fn port(&self) -> Option<u16> {
        match self {
            Self::Inet(address) => Some(address.port()),
            Self::Ib(address) => Some(address.service_id as u16),
            Self::Unknown(_) => None,
        }
    }

    /// The family (`sa_family`).
    pub fn family(&self) -> u16 {
        match self {
            Self::Inet(SocketAddr::V4(_)) => libc::AF_INET as u16,
            Self::Inet(SocketAddr::V6(_)) => libc::AF_INET6 as u16,
            Self::Ib(_) => AF_IB,
            Self::Unknown(address) => address.family,
        }
    }
}

macro_rules! from_ip {
    ($($A:ty),*) => {$(
        impl From<$A> for Address {
            fn from(address: $A) -> Self {
                Self::Inet(address.into())
            }
        }
    )*};
}
from_ip!(SocketAddr, SocketAddrV4, SocketAddrV6, (IpAddr, u16), (Ipv4Addr, u16), (Ipv6Addr, u16));

impl From<IbAddress> for Address {
    fn from(address: IbAddress) -> Self {
        Self::Ib(Box::new(address))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Inet(address) => address.fmt(f),
            Self::Ib(address) => write!(f, "[{}] service {:#x}", address.gid, address.service_id),
            Self::Unknown(address) => write!(f, "an address of family {}", address.family),
        }
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Debug for UnknownAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnknownAddress").field("family", &self.family).finish_non_exhaustive()
    }
}

/// An optional address in words.
pub(super) fn perhaps(address: &Option<Address>) -> String {
    address.as_ref().map_or_else(|| "no address".to_owned(), Address::to_string)
}

/// An address for C. It is as large as the largest address, so that a library that reads more than
/// the family needs reads zeros.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) union RawAddress {
    /// Present for its size and alignment.
    _storage: sockaddr_storage,
    inet: sockaddr_in,
    inet6: sockaddr_in6,
    ib: SockaddrIb,
    bytes: [u8; size_of::<sockaddr_storage>()],
}

/// `struct sockaddr_ib`, with numbers in network byte order.
#[repr(C)]
#[derive(Clone, Copy)]
struct SockaddrIb {
    family: u16,
    pkey: u16,
    flowinfo: u32,
    gid: [u8; 16],
    sid: u64,
    sid_mask: u64,
    scope_id: u64,
}

const _: () = assert!(size_of::<SockaddrIb>() == 48 && offset_of!(SockaddrIb, sid) == 24);
const _: () = assert!(size_of::<RawAddress>() == size_of::<sockaddr_storage>());
const _: () = assert!(offset_of!(sockaddr_storage, ss_family) == 0);

impl RawAddress {
    pub(super) fn as_mut_ptr(&mut self) -> *mut sockaddr {
        (&raw mut *self).cast()
    }

    fn bytes(&self) -> &[u8; size_of::<sockaddr_storage>()] {
        // SAFETY: `From` and `copy_storage` initialise all bytes, and later writes go to fields in
        // place.
        unsafe { &self.bytes }
    }

    /// The address; `None` if the family is `AF_UNSPEC`.
    pub(super) fn get(&self) -> Option<Address> {
        let bytes = self.bytes();
        let family = u16::from_ne_bytes([bytes[0], bytes[1]]);
        // SAFETY: all bytes are initialised, and all byte values are valid for these structs.
        let (inet, inet6, ib) = unsafe { (self.inet, self.inet6, self.ib) };
        Some(match (i32::from(family), family) {
            (libc::AF_UNSPEC, _) => return None,
            (libc::AF_INET, _) => {
                let ip = Ipv4Addr::from(inet.sin_addr.s_addr.to_ne_bytes());
                Address::Inet(SocketAddrV4::new(ip, u16::from_be(inet.sin_port)).into())
            }
            (libc::AF_INET6, _) => {
                let (port, flow) = (u16::from_be(inet6.sin6_port), inet6.sin6_flowinfo);
                let ip = Ipv6Addr::from(inet6.sin6_addr.s6_addr);
                Address::Inet(SocketAddrV6::new(ip, port, flow, inet6.sin6_scope_id).into())
            }
            (_, AF_IB) => Address::from(IbAddress {
                pkey: u16::from_be(ib.pkey),
                flowinfo: u32::from_be(ib.flowinfo),
                gid: Gid { raw: ib.gid },
                service_id: u64::from_be(ib.sid),
                service_id_mask: u64::from_be(ib.sid_mask),
                scope_id: u64::from_be(ib.scope_id),
            }),
            _ => {
                let mut data = Box::new([0; DATA]);
                data.copy_from_slice(&bytes[2..]);
                Address::Unknown(UnknownAddress { family, data })
            }
        })
    }
}

impl From<&Address> for RawAddress {
    fn from(address: &Address) -> Self {
        let mut bytes = [0; size_of::<sockaddr_storage>()];
        bytes[..2].copy_from_slice(&address.family().to_ne_bytes());
        let mut put =
            |offset: usize, value: &[u8]| bytes[offset..offset + value.len()].copy_from_slice(value);
        match address {
            Address::Inet(SocketAddr::V4(address)) => {
                put(offset_of!(sockaddr_in, sin_port), &address.port().to_be_bytes());
                put(offset_of!(sockaddr_in, sin_addr), &address.ip().octets());
            }
            Address::Inet(SocketAddr::V6(address)) => {
                put(offset_of!(sockaddr_in6, sin6_port), &address.port().to_be_bytes());
                put(offset_of!(sockaddr_in6, sin6_flowinfo), &address.flowinfo().to_ne_bytes());
                put(offset_of!(sockaddr_in6, sin6_addr), &address.ip().octets());
                put(offset_of!(sockaddr_in6, sin6_scope_id), &address.scope_id().to_ne_bytes());
            }
            Address::Ib(address) => {
                put(offset_of!(SockaddrIb, pkey), &address.pkey.to_be_bytes());
                put(offset_of!(SockaddrIb, flowinfo), &address.flowinfo.to_be_bytes());
                put(offset_of!(SockaddrIb, gid), &address.gid.raw);
                put(offset_of!(SockaddrIb, sid), &address.service_id.to_be_bytes());
                put(offset_of!(SockaddrIb, sid_mask), &address.service_id_mask.to_be_bytes());
                put(offset_of!(SockaddrIb, scope_id), &address.scope_id.to_be_bytes());
            }
            Address::Unknown(address) => put(2, &*address.data),
        }
        Self { bytes }
    }
}

/// Copies an address out of memory that the library owns.
///
/// # Safety
///
/// `from` must be readable for a whole `sockaddr_storage` and initialised. Nobody may write to it
/// during the call.
pub(super) unsafe fn copy_storage(from: *const sockaddr_storage) -> RawAddress {
    // SAFETY: the caller guarantees (`# Safety`) that `from` is readable for a whole
    // `sockaddr_storage` and initialised, and that nobody writes to it. All byte values are valid.
    RawAddress { bytes: unsafe { from.cast::<[u8; size_of::<sockaddr_storage>()]>().read() } }
}

/// Copies an address of a known length out of memory that the library owns, cut off at the size of
/// a `sockaddr_storage`.
///
/// # Safety
///
/// `from` must be null, or readable for `length` bytes and initialised. Nobody may write to it
/// during the call.
pub(super) unsafe fn copy_bytes(from: *const sockaddr, length: usize) -> Option<Address> {
    if from.is_null() {
        return None;
    }
    let mut bytes = [0; size_of::<sockaddr_storage>()];
    let length = length.min(bytes.len());
    // SAFETY: `from` is not null, as checked above. So the caller guarantees (`# Safety`) that
    // `from` is readable for `length` bytes and initialised, and that nobody writes to it. `length`
    // was limited to the size of `bytes`.
    unsafe { from.cast::<u8>().copy_to_nonoverlapping(bytes.as_mut_ptr(), length) };
    RawAddress { bytes }.get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_back_as_they_went() {
        let gid = Gid { raw: std::array::from_fn(|n| n as u8) };
        let ib = IbAddress {
            pkey: 0xffff,
            flowinfo: 5,
            gid,
            service_id: 0x0106_0000 | 4711,
            service_id_mask: !0xffff,
            scope_id: 3,
        };
        let v4: SocketAddr = "192.0.2.1:4711".parse().unwrap();
        let v6 = SocketAddr::V6(SocketAddrV6::new("fe80::7".parse().unwrap(), 4711, 9, 2));
        let unknown = UnknownAddress { family: 4242, data: Box::new(std::array::from_fn(|n| n as u8)) };
        for address in [v4.into(), v6.into(), ib.into(), Address::Unknown(unknown.clone())] {
            let raw = RawAddress::from(&address);
            assert_eq!(raw.get(), Some(address.clone()));
            let port = if matches!(address, Address::Unknown(_)) { None } else { Some(4711) };
            assert_eq!(
                (address.port(), address.ip().is_some()),
                (port, address == v4.into() || address == v6.into())
            );
        }
        assert_eq!(RawAddress { bytes: [0; size_of::<sockaddr_storage>()] }.get(), None);
        assert_eq!(Address::Unknown(unknown).to_string(), "an address of family 4242");
    }

    #[test]
    fn an_address_is_in_network_byte_order() {
        let raw = RawAddress::from(&Address::from("192.0.2.1:4711".parse::<SocketAddr>().unwrap()));
        assert_eq!(raw.bytes()[2..8], [0x12, 0x67, 192, 0, 2, 1]);
    }

    #[test]
    fn a_short_address_is_not_read_beyond_its_end() {
        let short = [2u8, 0, 0x12, 0x67];
        // SAFETY: the pointer and the length belong to one array.
        let address = unsafe { copy_bytes(short.as_ptr().cast(), short.len()) };
        assert_eq!(address, Some("0.0.0.0:4711".parse::<SocketAddr>().unwrap().into()));
        // SAFETY: `copy_bytes` accepts a null pointer.
        assert_eq!(unsafe { copy_bytes(std::ptr::null(), 16) }, None);
    }
}
