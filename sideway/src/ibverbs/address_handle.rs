//! Address handles: destinations for the datagrams of unreliable datagram (UD) queue pairs.
//!
//! A connected queue pair has one destination; a datagram queue pair names one with each send
//! ([`setup_ud_address`](super::queue_pair::WorkRequestHandle::setup_ud_address)). An address
//! handle is made from [attributes](ProtectionDomain::create_ah). To answer a datagram, make it
//! from the completion of the receive ([`create_ah_from_wc`](ProtectionDomain::create_ah_from_wc)).
//!
//! The first [`GlobalRoutingHeader::LEN`] bytes of each receive buffer are not part of the message.
//! The device puts the [global routing header](GlobalRoutingHeader) there, if the packet has one.
//!
//! ```
//! # #[cfg(feature = "soft")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use sideway::ibverbs::address::AddressHandleAttribute;
//! use sideway::ibverbs::connect::LocalPath;
//! use sideway::ibverbs::device::DeviceList;
//!
//! let list = DeviceList::from_provider(sideway::ProviderChoice::Soft.select()?.provider())?;
//! let context = list.first()?.open()?;
//! let path = LocalPath::choose(&context, 1, None)?;
//! let pd = context.alloc_pd()?;
//! // This example sends to itself; otherwise the peer sends its GID beforehand.
//! let mut attr = AddressHandleAttribute::new();
//! attr.setup_port(1)
//!     .setup_grh_dest_gid(&path.gid().unwrap())
//!     .setup_grh_src_gid_index(path.gid_index().unwrap());
//! let ah = pd.create_ah(&attr)?;
//! ah.close()?;
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "soft"))]
//! # fn main() {}
//! ```

use std::fmt;
use std::io;
use std::mem::ManuallyDrop;
use std::net::Ipv4Addr;
use std::ptr::{self, NonNull};

use rdma_mummy_sys::types::{ibv_ah, ibv_ah_attr, ibv_grh, ibv_wc};

use super::address::{AddressHandleAttribute, Gid};
use super::completion::{
    BasicWorkCompletion, ExtendedWorkCompletion, GenericWorkCompletion, WorkCompletionFlags,
    WorkCompletionStatus,
};
use super::device_context::DeviceContext;
use super::protection_domain::ProtectionDomain;
use crate::error::{ConsumeError, Error, ErrorKind};

/// An address handle (`ibv_ah`).
///
/// # When to drop it
///
/// A work request list that names the handle borrows it until the list is posted. After that, it
/// depends on the device. Some devices copy the address when a send is posted (mlx5, hns, soft0).
/// Others read the handle's own object when they send (SoftRoCE, EFA, irdma): if the handle is gone
/// by then, the send fails, or goes to wherever the object leads now. So keep a handle until the
/// sends that name it have completed. Dropping it early is never a matter of memory safety.
pub struct AddressHandle {
    ah: NonNull<ibv_ah>,
    pd: ProtectionDomain,
}

// SAFETY: `ibv_create_ah` fills the object, after which it is only read, and this type is its only
// owner, which destroys it once.
unsafe impl Send for AddressHandle {}
// SAFETY: no method changes the object through `&self`, and libibverbs allows posts that name it
// from several threads.
unsafe impl Sync for AddressHandle {}

impl ProtectionDomain {
    /// Makes an address handle (`ibv_create_ah`) for the datagram queue pairs of this domain.
    ///
    /// The kernel may look up a route to the destination, which takes as long as address resolution
    /// takes.
    ///
    /// # Errors
    ///
    /// Fails with `EINVAL` if the port or GID index does not exist, or if the destination has no
    /// GID on RoCE. Also fails if no route leads to the destination, or if the device does not
    /// support datagrams ([`Unsupported`](crate::ibverbs::Unsupported)).
    ///
    /// # References
    ///
    /// `man ibv_create_ah`
    pub fn create_ah(&self, attr: &AddressHandleAttribute) -> Result<AddressHandle, Error> {
        let mut raw = *attr.raw();
        let create = self.context().provider().verbs().ibv_create_ah;
        // SAFETY: `self` keeps the domain alive, and the attributes are this function's own copy.
        match NonNull::new(unsafe { create(self.as_raw().as_ptr(), &raw mut raw) }) {
            Some(ah) => Ok(AddressHandle { ah, pd: self.clone() }),
            None => Err(self.create_ah_error(*attr, io::Error::last_os_error())),
        }
    }

    /// Makes an address handle to the sender of a received datagram (`ibv_create_ah_from_wc`).
    ///
    /// It calls the two halves of that function:
    /// [`init_ah_from_wc`](DeviceContext::init_ah_from_wc) and [`create_ah`](Self::create_ah).
    ///
    /// # Errors
    ///
    /// Fails as these two functions do.
    ///
    /// # References
    ///
    /// `man ibv_create_ah_from_wc`
    pub fn create_ah_from_wc(
        &self,
        origin: impl Into<DatagramOrigin>,
        grh: Option<&GlobalRoutingHeader>,
        port_num: u8,
    ) -> Result<AddressHandle, Error> {
        self.create_ah(&self.context().init_ah_from_wc(origin, grh, port_num)?)
    }

    #[cold]
    fn create_ah_error(&self, attr: AddressHandleAttribute, source: io::Error) -> Error {
        const VERB: &str = "ibv_create_ah";
        let sgid_index = attr.grh_src_gid_index().unwrap_or(0);
        match (attr.grh_dest_gid(), source.raw_os_error()) {
            (Some(gid), Some(libc::ETIMEDOUT | libc::ENETUNREACH | libc::EHOSTUNREACH)) => {
                Error::os(VERB, source)
                    .of_kind(ErrorKind::NoRoute)
                    .with("sgid_index", sgid_index)
                    .with("gid", gid)
                    .reason("no route to the destination")
                    .remedy(
                        "check that the peer is up, and that both GIDs are of the same address family and on \
                         networks that are routed (`show_gids`)",
                    )
            }
            _ => Error::of_device(self.context(), VERB, "address handles", source)
                .debug("attr", attr)
                .remedy("RoCE needs a destination GID; port and GID index must exist"),
        }
    }
}

const INIT_AH: &str = "ibv_init_ah_from_wc";

impl DeviceContext {
    /// The address of the sender of a datagram that was received at `port_num`
    /// (`ibv_init_ah_from_wc`).
    ///
    /// `grh` is the header that came with the datagram, copied out of the receive buffer. On
    /// InfiniBand the datagram may have none.
    ///
    /// # Errors
    ///
    /// Fails if the completion is not of a received datagram, or if the datagram had a header and
    /// `grh` is `None`. Also fails if the header's destination is not a GID of the port.
    ///
    /// # References
    ///
    /// `man ibv_create_ah_from_wc`
    pub fn init_ah_from_wc(
        &self,
        origin: impl Into<DatagramOrigin>,
        grh: Option<&GlobalRoutingHeader>,
        port_num: u8,
    ) -> Result<AddressHandleAttribute, Error> {
        let origin = origin.into();
        if !origin.succeeded {
            return Err(Error::not_called(
                INIT_AH,
                ErrorKind::InvalidArgument,
                "the completion is of a work request that failed, so nothing was received",
            ));
        }
        if origin.has_grh() && grh.is_none() {
            return Err(Error::not_called(
                INIT_AH,
                ErrorKind::InvalidArgument,
                "the datagram came with a global routing header: give it, from the first 40 bytes of the \
                 receive's memory",
            )
            .with("grh", "none"));
        }
        let mut header = grh.copied().map_or_else(ibv_grh::default, GlobalRoutingHeader::to_raw);
        let mut wc = origin.to_raw();
        let mut attr = ibv_ah_attr::default();
        let init = self.provider().verbs().ibv_init_ah_from_wc;
        // SAFETY: `self` keeps the context open, and the completion, the header and the attributes
        // are this function's own.
        let result =
            unsafe { init(self.as_raw().as_ptr(), port_num, &raw mut wc, &raw mut header, &raw mut attr) };
        match super::check(result) {
            Ok(()) => Ok(AddressHandleAttribute::from_raw(attr)),
            Err(source) => Err(Error::of_device(self, INIT_AH, "addresses of completions", source)
                .with("port_num", port_num)
                .with("destination", Destination(grh.map(|grh| grh.dgid())))
                .remedy("the datagram's destination has to be a GID of that port")),
        }
    }
}

impl AddressHandle {
    /// The protection domain that it belongs to.
    pub fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// The C object, for verbs that this crate does not wrap. Using it is as unsafe as in C; do not
    /// destroy it.
    #[inline]
    pub fn as_raw(&self) -> NonNull<ibv_ah> {
        self.ah
    }

    /// Destroys the handle now (`ibv_destroy_ah`), and returns the error that a drop would only
    /// log.
    ///
    /// # Errors
    ///
    /// Fails if the device did not release the handle, which comes back with the error.
    ///
    /// # References
    ///
    /// `man ibv_create_ah`
    pub fn close(self) -> Result<(), ConsumeError<Self>> {
        let handle = ManuallyDrop::new(self);
        // SAFETY: the handle is alive because `self` owns it, and it is taken apart below only if
        // this call succeeded.
        match unsafe { handle.destroy() } {
            Ok(()) => {
                // SAFETY: `handle` is `ManuallyDrop`, so its own drop does not run, and this is the
                // only read of the domain.
                drop(unsafe { ptr::read(&raw const handle.pd) });
                Ok(())
            }
            Err(source) => Err(ConsumeError {
                object: ManuallyDrop::into_inner(handle),
                error: Error::os("ibv_destroy_ah", source).remedy("the address handle still exists"),
            }),
        }
    }

    /// # Safety
    ///
    /// The handle must be alive. If this succeeds, the handle is dead and must not be used again.
    unsafe fn destroy(&self) -> io::Result<()> {
        // SAFETY: the caller guarantees that the handle is alive.
        super::check(unsafe { (self.pd.context().provider().verbs().ibv_destroy_ah)(self.ah.as_ptr()) })
    }
}

impl Drop for AddressHandle {
    fn drop(&mut self) {
        // SAFETY: `self` owned the handle until here, and nothing uses it after the drop.
        if let Err(error) = unsafe { self.destroy() } {
            log::error!("ibv_destroy_ah failed for {:p}: {error}", self.ah);
            // The library still has the handle, so the domain that it depends on must stay alive
            // too.
            std::mem::forget(self.pd.clone());
        }
    }
}

impl fmt::Debug for AddressHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AddressHandle").field("pd", &self.pd).finish_non_exhaustive()
    }
}

/// What a completion says about the sender of a datagram.
///
/// Every kind of completion converts into it. For replies on InfiniBand, create an [extended
/// queue](super::completion::ExtendedCompletionQueue) with the fields `Slid`, `Sl` and
/// `DlidPathBits`. RoCE needs none of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramOrigin {
    succeeded: bool,
    flags: WorkCompletionFlags,
    src_qp: Option<u32>,
    slid: Option<u32>,
    sl: Option<u8>,
    dlid_path_bits: Option<u8>,
}

impl DatagramOrigin {
    /// Whether a global routing header came with the datagram.
    pub fn has_grh(&self) -> bool {
        self.flags.contains(WorkCompletionFlags::Grh)
    }

    /// The number of the sender's queue pair; `None` if the completion queue was created without
    /// this field.
    pub fn src_qp(&self) -> Option<u32> {
        self.src_qp
    }

    fn to_raw(self) -> ibv_wc {
        ibv_wc {
            wc_flags: self.flags.bits(),
            src_qp: self.src_qp.unwrap_or(0),
            // LIDs have 16 bits, except those of Omni-Path, which do not fit into C's field either.
            slid: self.slid.unwrap_or(0) as u16,
            sl: self.sl.unwrap_or(0),
            dlid_path_bits: self.dlid_path_bits.unwrap_or(0),
            ..ibv_wc::default()
        }
    }
}

macro_rules! origin_of {
    ($($Completion:ident),*) => {$(
        impl From<&$Completion<'_>> for DatagramOrigin {
            fn from(wc: &$Completion<'_>) -> Self {
                Self {
                    succeeded: wc.status() == WorkCompletionStatus::Success,
                    flags: wc.wc_flags(),
                    src_qp: wc.src_qp(),
                    slid: wc.slid(),
                    sl: wc.sl(),
                    dlid_path_bits: wc.dlid_path_bits(),
                }
            }
        }
    )*};
}

origin_of!(BasicWorkCompletion, ExtendedWorkCompletion, GenericWorkCompletion);

/// The global routing header of a datagram (`ibv_grh`), which precedes the message in the receive
/// buffer.
///
/// This is a copy, taken out of memory that a device writes to. On RoCE the 40 bytes are the
/// packet's own IP header. IPv6 fills all of them; IPv4 fills the last 20, and the bytes before it
/// have no meaning.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct GlobalRoutingHeader {
    bytes: [u8; Self::LEN],
}

impl GlobalRoutingHeader {
    /// The length of the header in bytes. Each receive buffer of a datagram queue pair starts with
    /// this much room, whether or not a header came.
    pub const LEN: usize = size_of::<ibv_grh>();

    /// A header whose bytes were already copied out of the receive buffer.
    pub const fn from_bytes(bytes: [u8; Self::LEN]) -> Self {
        Self { bytes }
    }

    /// Copies a header out of a receive buffer.
    ///
    /// # Safety
    ///
    /// - [`LEN`](Self::LEN) bytes from `start` on are readable and initialised.
    /// - The receive has completed, and the device does not get the memory again before this
    ///   returns.
    pub unsafe fn read(start: *const u8) -> Self {
        // SAFETY: the caller guarantees `LEN` readable, initialised bytes. The reads are volatile
        // because a device wrote the memory.
        Self { bytes: std::array::from_fn(|n| unsafe { start.add(n).read_volatile() }) }
    }

    /// The 40 bytes, unchanged.
    pub const fn bytes(&self) -> &[u8; Self::LEN] {
        &self.bytes
    }

    fn to_raw(self) -> ibv_grh {
        const { assert!(size_of::<ibv_grh>() == Self::LEN) };
        // SAFETY: `ibv_grh` is plain data of this size, for which all byte values are valid.
        unsafe { ptr::read_unaligned((&raw const self.bytes).cast()) }
    }

    fn byte_range<const N: usize>(&self, at: usize) -> [u8; N] {
        std::array::from_fn(|n| self.bytes[at + n])
    }

    /// The IPv4 header in the second half, if there is one. Its checksum identifies it, because the
    /// first half may hold anything. SoftRoCE leaves the checksum to a network card, and without
    /// one it is 0. Then a UDP header is enough, unless the first byte starts an IPv6 header.
    fn ipv4(&self) -> Option<[u8; 20]> {
        const UDP: u8 = 17;
        let header: [u8; 20] = self.byte_range(20);
        let unchecked = header[10..12] == [0; 2] && header[9] == UDP && self.bytes[0] >> 4 != 6;
        let words = header.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
        let sum: u32 = words.sum();
        (header[0] == 0x45 && (unchecked || (sum & 0xffff) + (sum >> 16) == 0xffff)).then_some(header)
    }

    /// Whether it is an IPv4 header (RoCE v2).
    pub fn is_ipv4(&self) -> bool {
        self.ipv4().is_some()
    }

    /// The sender's GID; for an IPv4 header, the GID that maps the IPv4 address.
    pub fn sgid(&self) -> Gid {
        self.gid(12, 8)
    }

    /// The destination's GID: one of the receiver's GIDs, or a multicast group.
    pub fn dgid(&self) -> Gid {
        self.gid(16, 24)
    }

    fn gid(&self, in_ipv4: usize, in_ipv6: usize) -> Gid {
        match self.ipv4() {
            Some(header) => {
                let address: [u8; 4] = std::array::from_fn(|n| header[in_ipv4 + n]);
                Gid::from(Ipv4Addr::from(address).to_ipv6_mapped())
            }
            None => Gid { raw: self.byte_range(in_ipv6) },
        }
    }

    /// The traffic class; for an IPv4 header, the type of service.
    pub fn traffic_class(&self) -> u8 {
        match self.ipv4() {
            Some(header) => header[1],
            None => (u32::from_be_bytes(self.byte_range(0)) >> 20) as u8,
        }
    }

    /// The flow label; 0 for an IPv4 header, which has none.
    pub fn flow_label(&self) -> u32 {
        if self.is_ipv4() { 0 } else { u32::from_be_bytes(self.byte_range(0)) & 0xf_ffff }
    }

    /// The number of routers that the packet could still have passed.
    pub fn hop_limit(&self) -> u8 {
        self.ipv4().map_or(self.bytes[7], |header| header[8])
    }
}

impl fmt::Debug for GlobalRoutingHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GlobalRoutingHeader")
            .field("sgid", &self.sgid())
            .field("dgid", &self.dgid())
            .field("traffic_class", &self.traffic_class())
            .field("flow_label", &self.flow_label())
            .field("hop_limit", &self.hop_limit())
            .finish()
    }
}

struct Destination(Option<Gid>);

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(gid) => gid.fmt(f),
            None => f.write_str("a LID"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 10.77.0.1 to 10.77.0.2, type of service 8, time to live 64.
    const IPV4: [u8; 20] = [0x45, 8, 0, 60, 0, 0, 0x40, 0, 64, 17, 0x26, 0x0d, 10, 77, 0, 1, 10, 77, 0, 2];

    fn header(at: usize, part: &[u8]) -> GlobalRoutingHeader {
        let mut bytes = [0xee; GlobalRoutingHeader::LEN];
        bytes[at..at + part.len()].copy_from_slice(part);
        GlobalRoutingHeader::from_bytes(bytes)
    }

    #[test]
    fn an_ipv4_header_lies_in_the_second_half() {
        let grh = header(20, &IPV4);
        assert!(grh.is_ipv4());
        assert_eq!(grh.sgid(), "::ffff:10.77.0.1".parse().unwrap());
        assert_eq!(grh.dgid(), "::ffff:10.77.0.2".parse().unwrap());
        assert_eq!((grh.traffic_class(), grh.flow_label(), grh.hop_limit()), (8, 0, 64));
        let mut wrong = IPV4;
        wrong[15] ^= 1;
        assert!(!header(20, &wrong).is_ipv4());
    }

    #[test]
    fn an_ipv4_header_may_lack_its_checksum() {
        let mut unchecked = IPV4;
        unchecked[10..12].fill(0);
        assert_eq!(header(20, &unchecked).sgid(), "::ffff:10.77.0.1".parse().unwrap());
        // A header of another protocol, or the same bytes as part of IPv6 addresses, is not an IPv4
        // header.
        let mut other = unchecked;
        other[9] = 6;
        assert!(!header(20, &other).is_ipv4());
        let mut bytes = *header(20, &unchecked).bytes();
        bytes[0] = 0x60;
        assert!(!GlobalRoutingHeader::from_bytes(bytes).is_ipv4());
    }

    #[test]
    fn an_ipv6_header_is_the_whole() {
        let mut bytes = [0; GlobalRoutingHeader::LEN];
        bytes[..4].copy_from_slice(&0x6121_2345_u32.to_be_bytes());
        bytes[7] = 3;
        bytes[23] = 1;
        bytes[39] = 2;
        let grh = GlobalRoutingHeader::from_bytes(bytes);
        assert_eq!((grh.sgid(), grh.dgid()), ("::1".parse().unwrap(), "::2".parse().unwrap()));
        assert_eq!((grh.traffic_class(), grh.flow_label(), grh.hop_limit()), (0x12, 0x12345, 3));
        // SAFETY: `bytes` is a local array of `LEN` bytes.
        assert_eq!(unsafe { GlobalRoutingHeader::read(bytes.as_ptr()) }, grh);
        let raw = grh.to_raw();
        assert_eq!((raw.hop_limit, Gid::from(raw.dgid)), (3, grh.dgid()));
    }
}
