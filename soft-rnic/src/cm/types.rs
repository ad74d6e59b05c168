//! The types between the connection manager and librdmacm's functions: ids, events, parameters.

use std::ffi::c_int;
use std::fmt;
use std::net::SocketAddr;

use arrayvec::ArrayVec;
use rdma_mummy_sys::types::{ibv_ah_attr, rdma_port_space};

use crate::objects::device::Device;

/// The longest private data of any call or event.
pub(crate) const MAX_DATA: usize = 255;

/// Private data.
pub(crate) type PrivateData = ArrayVec<u8, MAX_DATA>;

/// An id: a stale number is nobody's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct IdNumber(pub(crate) u64);

/// An id's membership of a multicast group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct JoinNumber(pub(crate) u64);

/// A port space: ports of different ones have nothing to do with each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub(crate) enum PortSpace {
    Tcp,
    Udp,
    Ib,
    Ipoib,
}

impl PortSpace {
    /// The C constant's space.
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

/// What one side tells the other when it connects or accepts.
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
    /// Of datagrams, on accepting: the key, if it is not the usual one (0).
    pub(crate) qkey: u32,
}

/// Enhanced connection establishment: what the two ends' devices agree on beyond the specification.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ece {
    pub(crate) vendor_id: u32,
    pub(crate) options: u32,
}

/// What happened: the numbers are those of `enum rdma_cm_event_type`, of which some never happen here: routes are always found, and
/// addresses stay; the last three are [written](super::ConnectionManager::write) by the library's half; whether a queue pair follows its connection is seen by the library only.
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

/// How to send datagrams to the other side, or to a group.
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

/// What comes along with an event.
#[derive(Clone, Debug, Default)]
pub(crate) enum EventDetails {
    #[default]
    Nothing,
    /// Of a connection. Private data has the length of the message's field, as the kernel's has: what the other side gave, then
    /// zeros.
    Connection(ConnParams),
    /// Of datagrams.
    Datagram { private_data: PrivateData, address: UdAddress },
    /// What the program gave with an event of its own.
    Argument(u64),
}

/// Something that happened to an id.
#[derive(Clone, Debug)]
pub(crate) struct CmEvent {
    /// To which id; to the listener, of a connection request.
    pub(crate) id: IdNumber,
    /// What [`ConnectionManager::create`](super::ConnectionManager::create) or `set_uid` was told of it.
    pub(crate) uid: u64,
    pub(crate) kind: CmEventKind,
    pub(crate) status: c_int,
    pub(crate) details: EventDetails,
    pub(crate) ece: Ece,
    /// Of a connection request: the id that was made for it. It is on the listener's channel, has uid 0 and so no events
    /// before `set_uid`. Who takes the event has to destroy it.
    pub(crate) request: Option<IdNumber>,
    /// Of multicast: which membership, and what [`ConnectionManager::join`](super::ConnectionManager::join) was told of it.
    pub(crate) join: Option<(JoinNumber, u64)>,
}

/// Where an id is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CmPath {
    pub(crate) device: &'static Device,
    /// From 1.
    pub(crate) port: u8,
    pub(crate) sgid: [u8; 16],
    pub(crate) sgid_index: u8,
    pub(crate) pkey: u16,
}

/// What is known of an id's way. Addresses without a port have port 0.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CmRoute {
    pub(crate) source: Option<SocketAddr>,
    pub(crate) destination: Option<SocketAddr>,
    /// None as long as the id is bound to no address of a device.
    pub(crate) path: Option<CmPath>,
    /// Once the address is resolved.
    pub(crate) dgid: Option<[u8; 16]>,
    /// The route is resolved: there is a path record, of which this is what is not constant. `ibv_mtu`.
    pub(crate) resolved: bool,
    pub(crate) mtu: u8,
    pub(crate) traffic_class: u8,
    pub(crate) hop_limit: u8,
    /// 4.096 us times two to the power of this.
    pub(crate) packet_life_time: u8,
}
