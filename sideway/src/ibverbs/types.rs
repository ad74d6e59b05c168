//! Types that many objects share: node GUIDs, transports and the types of queue pairs.

use std::fmt;

use rdma_mummy_sys::types::ibv_qp_type as T;

/// A globally unique identifier (EUI-64) of a node or port.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Guid(u64);

impl Guid {
    /// Converts from the network byte order that verbs use.
    pub const fn from_be(be: u64) -> Self {
        Self(u64::from_be(be))
    }

    /// The value in host byte order.
    pub const fn as_u64(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Guid {
    /// Prints the form `0002:c903:00a1:b2c3`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d] = [48, 32, 16, 0].map(|shift| (self.0 >> shift) & 0xffff);
        write!(f, "{a:04x}:{b:04x}:{c:04x}:{d:04x}")
    }
}

impl fmt::Debug for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Guid({self})")
    }
}

c_enum! {
    /// The transport protocol of a device (`ibv_transport_type`).
    pub struct TransportType(i32) {
        /// The library does not know the transport.
        Unspecified = -1,
        /// InfiniBand, and RoCE.
        InfiniBand = 0,
        /// RDMA over TCP (`IBV_TRANSPORT_IWARP`).
        Iwarp = 1,
        /// Cisco's usNIC (`IBV_TRANSPORT_USNIC`).
        Usnic = 2,
        /// usNIC over UDP.
        UsnicUdp = 3,
    }
}

c_enum! {
    /// The type of a queue pair (`ibv_qp_type`).
    pub struct QueuePairType(u32) {
        /// Connected; delivers every message in order, or the pair fails.
        ReliableConnection = T::IBV_QPT_RC.0,
        /// Connected; a message may be lost.
        UnreliableConnection = T::IBV_QPT_UC.0,
        /// Not connected; a message of one packet may be lost.
        UnreliableDatagram = T::IBV_QPT_UD.0,
        /// The sending end of an extended reliable connection ([`xrc`](crate::ibverbs::xrc)).
        XrcSend = T::IBV_QPT_XRC_SEND.0,
        /// Its receiving end, which is made as an [`XrcTarget`](super::queue_pair::XrcTarget).
        XrcReceive = T::IBV_QPT_XRC_RECV.0,
        /// Ethernet frames, which this crate does not wrap: making such a queue pair fails with
        /// [`Unsupported`](crate::ibverbs::Unsupported).
        RawPacket = T::IBV_QPT_RAW_PACKET.0,
        /// mlx5's dynamically connected initiator (in C: `IBV_QPT_DRIVER`), made by the feature
        /// `mlx5`.
        DcInitiator = of_driver(1),
        /// mlx5's dynamically connected target (in C: `IBV_QPT_DRIVER`), made by the feature
        /// `mlx5`.
        DcTarget = of_driver(2),
        /// EFA's scalable reliable datagrams (in C: `IBV_QPT_DRIVER`), made by the feature `efa`.
        ScalableReliableDatagram = of_driver(3),
    }
}

impl QueuePairType {
    /// The value of this type in C.
    pub(crate) const fn raw_c(self) -> u32 {
        self.raw() & 0xffff
    }

    /// Whether it is a driver-specific type, which `ibv_create_qp` does not make.
    pub(crate) fn is_of_driver(self) -> bool {
        self.raw_c() == T::IBV_QPT_DRIVER.0
    }

    /// Whether each of its send requests needs an address (`ibv_wr_set_ud_addr`).
    pub(crate) fn is_datagram(self) -> bool {
        self == Self::UnreliableDatagram || self == Self::ScalableReliableDatagram
    }
}

/// A number for a driver-specific type, in the bits above those of C. C has one value for all of
/// them, `IBV_QPT_DRIVER`, and tells them apart by the function that makes them.
const fn of_driver(number: u32) -> u32 {
    number << 16 | T::IBV_QPT_DRIVER.0
}

display_as_debug!(TransportType, QueuePairType);
into_integer!(TransportType => i32);
