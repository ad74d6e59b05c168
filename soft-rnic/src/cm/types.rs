//! The types between the connection manager and librdmacm's functions: ids, events, parameters.

use std::ffi::c_int;
use std::fmt;
use std::net::SocketAddr;

use arrayvec::ArrayVec;
use rdma_mummy_sys::types::{ibv_ah_attr, rdma_port_space};

use crate::objects::device::Device;

/// The most private data of any call or event.
pub(crate) const MAX_DATA: usize = 255;

/// At most [`MAX_DATA`] bytes.
pub(crate) type PrivateData = ArrayVec<u8, MAX_DATA>;

/// An id. The number of a destroyed id is never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct IdNumber(pub(crate) u64);

/// An id's membership in a multicast group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct JoinNumber(pub(crate) u64);

/// A port space. Equal port numbers in different spaces are independent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub(crate) enum PortSpace {
    Tcp,
    Udp,
    Ib,
    Ipoib,
}

impl PortSpace {
    /// The space of a C constant.
    pub(crate) fn from_c(space: rdma_port_space) -> Option<Self> {
        Some(match space {
            rdma_port_space::RDMA_PS_TCP => Self::Tcp,
            rdma_port_space::RDMA_PS_UDP => Self::Udp,
            rdma_port_space::RDMA_PS_IB => Self::Ib,
            rdma_port_space::RDMA_PS_IPOIB => Self::Ipoib,
            _ => return None,
        })
    }
}

/// The parameters that one side sends to the other when it connects or accepts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ConnParams {
    pub(crate) private_data: PrivateData,
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    pub(crate) flow_control: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry_count: u8,
    pub(crate) srq: bool,
    pub(crate) qp_num: u32,
    /// On accepting for datagrams: the key; 0 selects the default.
    pub(crate) qkey: u32,
}

/// Enhanced connection establishment: options of the devices beyond the specification, agreed on by
/// both ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ece {
    pub(crate) vendor_id: u32,
    pub(crate) options: u32,
}

/// The type of an event, with the numbers of `enum rdma_cm_event_type`.
///
/// Some types never occur here, because routes are always found and addresses never change. The
/// library [writes](super::ConnectionManager::write) the last three. Only the library knows whether
/// a queue pair follows its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum CmEventKind {
    AddrResolved = 0,
    AddrError = 1,
    RouteResolved = 2,
    ConnectRequest = 4,
    ConnectResponse = 5,
    Unreachable = 7,
    Rejected = 8,
    Established = 9,
    Disconnected = 10,
    DeviceRemoval = 11,
    MulticastJoin = 12,
    MulticastError = 13,
    TimewaitExit = 15,
    AddrinfoResolved = 16,
    AddrinfoError = 17,
    User = 18,
}

/// How to send datagrams to the peer, or to a group.
#[derive(Clone, Copy, Default)]
pub(crate) struct UdAddress {
    pub(crate) ah_attr: ibv_ah_attr,
    pub(crate) qp_num: u32,
    pub(crate) qkey: u32,
}

impl fmt::Debug for UdAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { qp_num, qkey, .. } = self;
        f.debug_struct("UdAddress").field("qp_num", qp_num).field("qkey", qkey).finish_non_exhaustive()
    }
}

/// The data of an event.
#[derive(Clone, Debug, Default)]
pub(crate) enum EventDetails {
    #[default]
    Nothing,
    /// Data of a connection. As in the kernel, private data has the length of the message's field:
    /// the peer's data, then zeros.
    Connection(ConnParams),
    /// Data about datagrams.
    Datagram { private_data: PrivateData, address: UdAddress },
    /// The argument of an event that the program has written.
    Argument(u64),
}

/// An event of an id.
#[derive(Clone, Debug)]
pub(crate) struct CmEvent {
    /// The id; for a connection request, the listener.
    pub(crate) id: IdNumber,
    /// The value given to [`ConnectionManager::create`](super::ConnectionManager::create) or
    /// `set_uid`.
    pub(crate) uid: u64,
    pub(crate) kind: CmEventKind,
    pub(crate) status: c_int,
    pub(crate) details: EventDetails,
    pub(crate) ece: Ece,
    /// The id created for a connection request. It is on the listener's channel and has uid 0, so
    /// it raises no events before `set_uid`. The program that takes the event must destroy it.
    pub(crate) request: Option<IdNumber>,
    /// For multicast: the membership, and the value given to
    /// [`ConnectionManager::join`](super::ConnectionManager::join).
    pub(crate) join: Option<(JoinNumber, u64)>,
}

/// The device, port and GID that an id uses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CmPath {
    pub(crate) device: &'static Device,
    /// Starts at 1.
    pub(crate) port: u8,
    pub(crate) sgid: [u8; 16],
    pub(crate) sgid_index: u8,
    pub(crate) pkey: u16,
}

/// The route of an id, as far as it is known. Addresses without a port have port 0.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CmRoute {
    pub(crate) source: Option<SocketAddr>,
    pub(crate) destination: Option<SocketAddr>,
    /// `None` until the id is bound to an address of a device.
    pub(crate) path: Option<CmPath>,
    /// Known once the address is resolved.
    pub(crate) dgid: Option<[u8; 16]>,
    /// The route is resolved: a path record exists, of which the following fields are the variable
    /// part. `mtu` is an `ibv_mtu`.
    pub(crate) resolved: bool,
    pub(crate) mtu: u8,
    pub(crate) traffic_class: u8,
    pub(crate) hop_limit: u8,
    /// An exponent: the time is 4.096 us times two to the power of this.
    pub(crate) packet_life_time: u8,
}
