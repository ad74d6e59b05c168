//! Address handles: where the datagrams of an unreliable datagram queue pair go.
//!
//! A connected pair has one address; a datagram pair names one with each send
//! ([`setup_ud_address`](super::queue_pair::WorkRequestHandle::setup_ud_address)). It is made from
//! [attributes](ProtectionDomain::create_ah), or, to answer, from the completion of a datagram that came in
//! ([`create_ah_from_wc`](ProtectionDomain::create_ah_from_wc)).
//!
//! The first [`GlobalRoutingHeader::LEN`] bytes of what a datagram pair receives are not the message's: they are where the
//! [global routing header](GlobalRoutingHeader) goes, if there is one.
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
//! // To oneself: a peer would have told its GID.
//! let mut attr = AddressHandleAttribute::new();
//! attr.setup_port(1).setup_grh_dest_gid(&path.gid().unwrap()).setup_grh_src_gid_index(path.gid_index().unwrap());
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
/// # When it may go
///
/// A list that names it borrows it until the list is posted. After that it is the device that counts: some copy the address
/// when a send is posted (mlx5, hns, soft0), others look it up in the handle's own object when they send (SoftRoCE, EFA,
/// irdma). Of one that is gone by then, the send fails, or goes wherever the object leads now. So keep a handle until the
/// sends that name it have completed. It is never a matter of memory safety.
pub struct AddressHandle {
    ah: NonNull<ibv_ah>,
    pd: ProtectionDomain,
}

// SAFETY: a handle is only read once it is made, and destroyed by its one owner.
unsafe impl Send for AddressHandle {}
// SAFETY: a handle is only read once it is made, and destroyed by its one owner.
unsafe impl Sync for AddressHandle {}

impl ProtectionDomain {
    /// Makes an address handle (`ibv_create_ah`), for the datagram queue pairs of this domain.
    ///
    /// It may look for a route to the destination, which takes as long as address resolution does.
    ///
    /// # Errors
    ///
    /// The attributes name a port or GID index that is not there, or no GID on RoCE (`EINVAL`); there is no route; or the device
    /// has no datagrams ([`Unsupported`]).
    ///
    /// # References
    ///
    /// `man ibv_create_ah`
    pub fn create_ah(&self, attr: &AddressHandleAttribute) -> Result<AddressHandle, Error> {
        let mut raw = *attr.raw();
        let create = self.context().provider().verbs().ibv_create_ah;
        // SAFETY: the domain lives, and the attributes are this function's own copy.
        match NonNull::new(unsafe { create(self.as_raw().as_ptr(), &raw mut raw) }) {
            Some(ah) => Ok(AddressHandle { ah, pd: self.clone() }),
            None => Err(self.create_ah_error(*attr, io::Error::last_os_error())),
        }
    }

    /// Makes an address handle to whoever sent a datagram (`ibv_create_ah_from_wc`, by its two halves:
    /// [`init_ah_from_wc`](DeviceContext::init_ah_from_wc) and [`create_ah`](Self::create_ah)).
    ///
    /// # Errors
    ///
    /// As those of both halves.
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
    /// The address of whoever sent a datagram that was received at `port_num` (`ibv_init_ah_from_wc`).
    ///
    /// `grh` is the header that came with it, copied out of the receive's memory; on InfiniBand there may be none.
    ///
    /// # Errors
    ///
    /// The completion is not that of a datagram, or came with a header and none was given; or the header's destination is no
    /// GID of the port.
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
        // SAFETY: the context is open, and the completion, the header and the attributes are this function's own.
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
    /// The domain that it belongs to.
    pub fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// The C object. Using it is as unsafe as in C, and it must not be destroyed.
    #[inline]
    pub fn as_raw(&self) -> NonNull<ibv_ah> {
        self.ah
    }

    /// Destroys it now (`ibv_destroy_ah`), and says how that went, which a drop only logs.
    ///
    /// # Errors
    ///
    /// The device did not let go of it. The handle comes back with the error.
    ///
    /// # References
    ///
    /// `man ibv_create_ah`
    pub fn close(self) -> Result<(), ConsumeError<Self>> {
        let handle = ManuallyDrop::new(self);
        // SAFETY: the handle lives, and is taken apart below only if this succeeded.
        match unsafe { handle.destroy() } {
            Ok(()) => {
                // SAFETY: the handle's own drop does not run, so this is the only one of the domain's.
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
    /// The handle lives; if this succeeds it does not any more.
    unsafe fn destroy(&self) -> io::Result<()> {
        // SAFETY: the caller says that the handle lives.
        super::check(unsafe { (self.pd.context().provider().verbs().ibv_destroy_ah)(self.ah.as_ptr()) })
    }
}

impl Drop for AddressHandle {
    fn drop(&mut self) {
        // SAFETY: the handle lives until here.
        if let Err(error) = unsafe { self.destroy() } {
            log::error!("ibv_destroy_ah failed for {:p}: {error}", self.ah);
            // The handle is still there, so what it depends on has to stay.
            std::mem::forget(self.pd.clone());
        }
    }
}

impl fmt::Debug for AddressHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AddressHandle").field("pd", &self.pd).finish_non_exhaustive()
    }
}

/// What a completion says of the sender of a datagram.
///
/// Each kind of completion makes one. An [extended queue](super::completion::ExtendedCompletionQueue) has to be made with the
/// fields `Slid`, `Sl` and `DlidPathBits` for the way back on InfiniBand; RoCE needs none of them.
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

    /// The number of the sender's queue pair; `None` if the queue was not made with this field.
    pub fn src_qp(&self) -> Option<u32> {
        self.src_qp
    }

    fn to_raw(self) -> ibv_wc {
        ibv_wc {
            wc_flags: self.flags.bits(),
            src_qp: self.src_qp.unwrap_or(0),
            // LIDs have 16 bits, but for those of Omni-Path, which C's field does not hold either.
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

/// The global routing header of a datagram (`ibv_grh`), as it lies before the message in the receive's memory: a value, copied
/// out of memory that a device writes to.
///
/// On RoCE it is the packet's own IP header: of IPv6 all 40 bytes, of IPv4 the last 20, with nothing of meaning before it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct GlobalRoutingHeader {
    bytes: [u8; Self::LEN],
}

impl GlobalRoutingHeader {
    /// How long it is. That much of each of a datagram pair's receives is not the message's, header or none.
    pub const LEN: usize = size_of::<ibv_grh>();

    /// A header that was copied out of the receive's memory.
    pub const fn from_bytes(bytes: [u8; Self::LEN]) -> Self {
        Self { bytes }
    }

    /// Copies a header out of the memory of a receive.
    ///
    /// # Safety
    ///
    /// - [`LEN`](Self::LEN) bytes from `start` on are readable, and initialised.
    /// - The receive has completed, and the memory is not given to the device again meanwhile.
    pub unsafe fn read(start: *const u8) -> Self {
        // SAFETY: the caller guarantees (`# Safety`) that `LEN` bytes from `start` on are readable,
        // and initialised; the receive has completed, and the memory is not given to the device again
        // meanwhile; volatile, as a device has written.
        Self { bytes: std::array::from_fn(|n| unsafe { start.add(n).read_volatile() }) }
    }

    /// As it came.
    pub const fn bytes(&self) -> &[u8; Self::LEN] {
        &self.bytes
    }

    fn to_raw(self) -> ibv_grh {
        const { assert!(size_of::<ibv_grh>() == Self::LEN) };
        // SAFETY: the header is plain data of this size, of which any bytes are a value.
        unsafe { ptr::read_unaligned((&raw const self.bytes).cast()) }
    }

    fn byte_range<const N: usize>(&self, at: usize) -> [u8; N] {
        std::array::from_fn(|n| self.bytes[at + n])
    }

    /// The IPv4 header in the second half, by its checksum, as the first half may be anything. SoftRoCE leaves the checksum
    /// to a network card that there is none of: then it is 0, and a UDP header that is in no IPv6 header has to do.
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

    /// The sender's GID; of an IPv4 header that which stands for the address.
    pub fn sgid(&self) -> Gid {
        self.gid(12, 8)
    }

    /// The destination's GID: one of the receiver's, or a group's.
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

    /// The traffic class; of an IPv4 header the type of service.
    pub fn traffic_class(&self) -> u8 {
        match self.ipv4() {
            Some(header) => header[1],
            None => (u32::from_be_bytes(self.byte_range(0)) >> 20) as u8,
        }
    }

    /// The flow label; an IPv4 header has none, which is 0.
    pub fn flow_label(&self) -> u32 {
        if self.is_ipv4() { 0 } else { u32::from_be_bytes(self.byte_range(0)) & 0xf_ffff }
    }

    /// How many routers the packet might still have passed.
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
        // Of another protocol, or as the bytes of addresses of IPv6, it is none.
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
        // SAFETY: the bytes are this test's own.
        assert_eq!(unsafe { GlobalRoutingHeader::read(bytes.as_ptr()) }, grh);
        let raw = grh.to_raw();
        assert_eq!((raw.hop_limit, Gid::from(raw.dgid)), (3, grh.dgid()));
    }
}
