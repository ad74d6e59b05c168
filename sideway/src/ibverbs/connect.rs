//! Connecting two queue pairs: the endpoint data that both sides exchange, and the state changes up
//! to ready-to-send.
//!
//! 1. [`LocalPath::choose`] chooses the port's address, the LID on InfiniBand or a GID on RoCE, and
//!    gives the reason.
//! 2. Each side sends its [`Endpoint`] to the other, by any means.
//! 3. [`connect`] brings the queue pair up to ready-to-send, with the smaller of both MTUs, and
//!    with a global routing header if needed.
//!
//! With the feature `tcp`, `over_tcp` does steps 2 and 3 over a TCP connection of the two programs.
//!
//! In an [extended reliable connection](super::xrc), [`connect`] brings up the sending end, and
//! [`connect_xrc_target`] the receiving end.
//!
//! A datagram queue pair is not connected: [`activate_ud`] brings it up alone.
//! [`LocalPath::address_to`] makes the address of an [address handle](super::address_handle) from
//! the peer's endpoint.
//!
//! ```
//! # #[cfg(feature = "soft")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use sideway::ibverbs::device::DeviceList;
//! # let list = DeviceList::from_provider(sideway::ProviderChoice::Soft.select()?.provider())?;
//! # let context = list.first()?.open()?;
//! use sideway::ibverbs::connect::{ConnectOptions, Endpoint, LocalPath, connect};
//!
//! let path = LocalPath::choose(&context, 1, None)?;
//! println!("{}", path.reason());
//! let cq = context.create_cq_builder().build_generic()?;
//! let mut builder = context.alloc_pd()?.create_qp_builder();
//! builder.setup_send_cq(&cq).setup_recv_cq(&cq);
//! let (mut here, mut there) = (builder.build_generic()?, builder.build_generic()?);
//! // Each side sends its own endpoint to the other.
//! let (ours, theirs) = (Endpoint::new(&here, &path, 0x10), Endpoint::new(&there, &path, 0x20));
//! let connection = connect(&mut here, &path, &ours, &theirs, &ConnectOptions::default())?;
//! connect(&mut there, &path, &theirs, &ours, &ConnectOptions::default())?;
//! println!("{connection}");
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "soft"))]
//! # fn main() {}
//! ```

#[cfg(feature = "tcp")]
mod over_tcp;

use std::fmt;

use super::AccessFlags;
use super::address::{AddressHandleAttribute, Gid};
use super::port::{LinkLayer, Mtu};
use super::queue_pair::{
    ModifyQueuePairError, QueuePair, QueuePairAttribute, QueuePairState, QueuePairType, XrcTarget,
};

pub use super::local_path::{ChoosePathError, LocalPath};
#[cfg(feature = "tcp")]
pub use over_tcp::{OverTcpError, TcpPeer, over_tcp};

/// The data that one side sends to the other. A datagram queue pair also needs a Q_Key, on which
/// the programs agree themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The queue pair number.
    pub qp_number: u32,
    /// The sequence number of its first packet, 24 bits.
    pub packet_seq_num: u32,
    /// The port's LID; 0 on Ethernet.
    pub lid: u16,
    /// The port's GID, if one was chosen.
    pub gid: Option<Gid>,
    /// The port's MTU, in bytes.
    pub mtu: u32,
    /// Whether the port is on Ethernet (RoCE, iWARP).
    pub ethernet: bool,
}

impl Endpoint {
    /// The local endpoint, to be sent to the peer.
    pub fn new(qp: &impl QueuePair, path: &LocalPath, packet_seq_num: u32) -> Self {
        Self::of(qp.qp_number(), path, packet_seq_num)
    }

    /// The receiving end of an extended reliable connection, to be sent to the initiator's side.
    pub fn of_xrc_target(target: &XrcTarget, path: &LocalPath, packet_seq_num: u32) -> Self {
        Self::of(target.qp_number(), path, packet_seq_num)
    }

    fn of(qp_number: u32, path: &LocalPath, packet_seq_num: u32) -> Self {
        Self {
            qp_number,
            packet_seq_num: packet_seq_num & 0x00ff_ffff,
            lid: path.lid,
            gid: path.gid,
            mtu: path.mtu.bytes().unwrap_or(1024),
            ethernet: path.link_layer == LinkLayer::Ethernet,
        }
    }
}

impl LocalPath {
    /// The address of a peer, for an [address handle](super::address_handle). It uses the GID on
    /// Ethernet, across subnets, and if a port requires it; otherwise the LID.
    ///
    /// # Errors
    ///
    /// Fails if the two sides do not fit together: [`ConnectError`] gives the reason.
    pub fn address_to(
        &self,
        remote: &Endpoint,
        options: &ConnectOptions,
    ) -> Result<AddressHandleAttribute, ConnectError> {
        address(self, remote, options).map(|(attr, ..)| attr)
    }
}

/// The attributes of a connection. The defaults are the same as perftest's.
#[derive(Clone, Copy, Debug)]
pub struct ConnectOptions {
    /// What the peer may do to local memory.
    pub access_flags: AccessFlags,
    /// The index of the partition key.
    pub pkey_index: u16,
    /// The path MTU; by default the smaller of both ports' MTUs.
    pub mtu: Option<Mtu>,
    /// The maximum number of outstanding READs and atomics of this side.
    pub max_read_atomic: u8,
    /// The maximum number of the peer's READs and atomics that are served at a time.
    pub max_dest_read_atomic: u8,
    /// The acknowledgement timeout: 4.096 us x 2^n; 0 means no timeout.
    pub timeout: u8,
    /// The number of retries without acknowledgement, 0 to 7.
    pub retry_cnt: u8,
    /// The number of retries while the peer has no receive posted; 7 means no limit.
    pub rnr_retry: u8,
    /// How long the peer waits before a retry while no receive is posted here, as a code of
    /// `ibv_qp_attr`.
    pub min_rnr_timer: u8,
    /// The service level, 0 to 15.
    pub service_level: u8,
    /// The traffic class of the global routing header.
    pub traffic_class: u8,
    /// The number of routers that packets may pass.
    pub hop_limit: u8,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self {
            access_flags: AccessFlags::LocalWrite | AccessFlags::RemoteWrite | AccessFlags::RemoteRead,
            pkey_index: 0,
            mtu: None,
            max_read_atomic: 1,
            max_dest_read_atomic: 1,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            service_level: 0,
            traffic_class: 0,
            hop_limit: 0xff,
        }
    }
}

/// The result of [`connect`]: the MTU and the addressing that it chose.
#[derive(Clone, Debug)]
pub struct Connection {
    /// The path MTU.
    pub mtu: Mtu,
    /// Whether packets carry a global routing header.
    pub is_global: bool,
    /// The reason for the addressing, in words.
    pub reason: String,
}

impl fmt::Display for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MTU {}, {}", self.mtu, self.reason)
    }
}

/// A queue pair could not be connected.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// One side is on InfiniBand and the other on Ethernet.
    #[error("this side is on {}, the peer on {}: they cannot reach one another", layer(!.peer_ethernet), layer(*.peer_ethernet))]
    OtherLinkLayer {
        /// True: the peer is on Ethernet and this side on InfiniBand. False: the reverse.
        peer_ethernet: bool,
    },
    /// Global addressing is needed, and one side has no GID.
    #[error("{side} has no GID, which {why} needs: choose one with a GID index (`show_gids`)")]
    NoGid {
        /// `this side` or `the peer`.
        side: &'static str,
        /// What needs it.
        why: &'static str,
    },
    /// The type is not connected.
    #[error("queue pairs of type {qp_type} are not connected")]
    NotConnected {
        /// The queue pair's type.
        qp_type: QueuePairType,
    },
    /// The type is connected.
    #[error("queue pairs of type {qp_type} take no datagrams; they are connected")]
    NotDatagram {
        /// The queue pair's type.
        qp_type: QueuePairType,
    },
    /// A step on the way up failed.
    #[error("cannot bring the queue pair to {state}: {source}")]
    Modify {
        /// The state that it was to go to.
        state: QueuePairState,
        /// The failure of `ibv_modify_qp`.
        source: ModifyQueuePairError,
    },
}

debug_as_text!(ConnectError);

fn layer(ethernet: bool) -> &'static str {
    if ethernet { "Ethernet" } else { "InfiniBand" }
}

/// Brings a queue pair from reset to ready-to-send, connected to `remote`. The pair is RC, UC, or
/// the sending end of an extended reliable connection.
///
/// `local` is the endpoint that the peer received, `path` the path that it was made from.
///
/// # Errors
///
/// Fails if the two sides do not fit together, or if a state change failed: [`ConnectError`] gives
/// the reason.
pub fn connect(
    qp: &mut impl QueuePair,
    path: &LocalPath,
    local: &Endpoint,
    remote: &Endpoint,
    options: &ConnectOptions,
) -> Result<Connection, ConnectError> {
    let qp_type = qp.qp_type();
    use QueuePairType as T;
    if !matches!(qp_type, T::ReliableConnection | T::UnreliableConnection | T::XrcSend) {
        return Err(ConnectError::NotConnected { qp_type });
    }
    go_up(qp_type, |attr| qp.modify(attr), path, local, remote, options)
}

/// Brings the receiving end of an extended reliable connection from reset to ready-to-send,
/// connected to the initiator at `remote`.
///
/// `local` is the target's endpoint that the peer received, `path` the path that it was made from.
///
/// # Errors
///
/// Fails as [`connect`] does.
pub fn connect_xrc_target(
    target: &mut XrcTarget,
    path: &LocalPath,
    local: &Endpoint,
    remote: &Endpoint,
    options: &ConnectOptions,
) -> Result<Connection, ConnectError> {
    go_up(QueuePairType::XrcReceive, |attr| target.modify(attr), path, local, remote, options)
}

/// The state changes from reset to ready-to-send. An RC pair has the attributes of a responder and
/// of a requester; each end of an extended reliable connection has one of the two.
fn go_up(
    qp_type: QueuePairType,
    mut modify: impl FnMut(&QueuePairAttribute) -> Result<(), ModifyQueuePairError>,
    path: &LocalPath,
    local: &Endpoint,
    remote: &Endpoint,
    options: &ConnectOptions,
) -> Result<Connection, ConnectError> {
    use QueuePairType as T;
    let responds = matches!(qp_type, T::ReliableConnection | T::XrcReceive);
    let requests = matches!(qp_type, T::ReliableConnection | T::XrcSend);
    let (address, is_global, reason) = address(path, remote, options)?;
    let remote_mtu = Mtu::from_bytes(remote.mtu).unwrap_or(path.mtu);
    let mtu = options.mtu.unwrap_or(path.mtu.min(remote_mtu));
    let mut step = |state: QueuePairState, attr: &mut QueuePairAttribute| {
        modify(attr.setup_state(state)).map_err(|source| ConnectError::Modify { state, source })
    };

    let mut init = QueuePairAttribute::new();
    init.setup_pkey_index(options.pkey_index)
        .setup_port(path.port_num)
        .setup_access_flags(options.access_flags);
    step(QueuePairState::Init, &mut init)?;

    let mut to_receive = QueuePairAttribute::new();
    to_receive
        .setup_address_vector(&address)
        .setup_path_mtu(mtu)
        .setup_dest_qp_num(remote.qp_number)
        .setup_rq_psn(remote.packet_seq_num);
    if responds {
        to_receive
            .setup_max_dest_read_atomic(options.max_dest_read_atomic)
            .setup_min_rnr_timer(options.min_rnr_timer);
    }
    step(QueuePairState::ReadyToReceive, &mut to_receive)?;

    let mut to_send = QueuePairAttribute::new();
    to_send.setup_sq_psn(local.packet_seq_num);
    if responds || requests {
        to_send.setup_timeout(options.timeout);
    }
    if requests {
        to_send
            .setup_retry_cnt(options.retry_cnt)
            .setup_rnr_retry(options.rnr_retry)
            .setup_max_read_atomic(options.max_read_atomic);
    }
    step(QueuePairState::ReadyToSend, &mut to_send)?;
    Ok(Connection { mtu, is_global, reason })
}

/// Brings a UD queue pair from reset to ready-to-send.
///
/// It accepts datagrams that carry `qkey`, and numbers its own packets from `packet_seq_num` on. Of
/// the options it uses the partition key only.
///
/// # Errors
///
/// Fails if the pair is of another type, or if a state change failed: [`ConnectError`] gives the
/// reason.
pub fn activate_ud(
    qp: &mut impl QueuePair,
    path: &LocalPath,
    qkey: u32,
    packet_seq_num: u32,
    options: &ConnectOptions,
) -> Result<(), ConnectError> {
    let qp_type = qp.qp_type();
    if qp_type != QueuePairType::UnreliableDatagram {
        return Err(ConnectError::NotDatagram { qp_type });
    }
    let mut step = |state: QueuePairState, attr: &mut QueuePairAttribute| {
        qp.modify(attr.setup_state(state)).map_err(|source| ConnectError::Modify { state, source })
    };
    let mut init = QueuePairAttribute::new();
    init.setup_pkey_index(options.pkey_index).setup_port(path.port_num).setup_qkey(qkey);
    step(QueuePairState::Init, &mut init)?;
    step(QueuePairState::ReadyToReceive, &mut QueuePairAttribute::new())?;
    let mut to_send = QueuePairAttribute::new();
    step(QueuePairState::ReadyToSend, to_send.setup_sq_psn(packet_seq_num & 0x00ff_ffff))
}

/// The address vector to the peer. It uses the GID on Ethernet, across subnets, and if a port
/// requires it; otherwise the LID.
fn address(
    path: &LocalPath,
    remote: &Endpoint,
    options: &ConnectOptions,
) -> Result<(AddressHandleAttribute, bool, String), ConnectError> {
    let ethernet = path.link_layer == LinkLayer::Ethernet;
    if ethernet != remote.ethernet {
        return Err(ConnectError::OtherLinkLayer { peer_ethernet: remote.ethernet });
    }
    let mut attr = AddressHandleAttribute::new();
    attr.setup_port(path.port_num).setup_dest_lid(remote.lid).setup_service_level(options.service_level);
    let why = if ethernet {
        "RoCE"
    } else if path.grh_required {
        "a port with global routing headers"
    } else if path.gid.is_some() && remote.gid.is_some() {
        "a GID that was chosen on both sides"
    } else {
        return Ok((attr, false, format!("by LID {}: same InfiniBand subnet", remote.lid)));
    };
    let local_index = path.gid_index.ok_or(ConnectError::NoGid { side: "this side", why })?;
    let remote_gid = remote.gid.ok_or(ConnectError::NoGid { side: "the peer", why })?;
    attr.setup_grh_dest_gid(&remote_gid)
        .setup_grh_src_gid_index(local_index)
        .setup_grh_hop_limit(options.hop_limit)
        .setup_grh_traffic_class(options.traffic_class);
    Ok((attr, true, format!("by GID, from index {local_index} to {remote_gid}: {why} needs it")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(link_layer: LinkLayer, gid: Option<(u8, &str)>, grh_required: bool) -> LocalPath {
        LocalPath {
            port_num: 1,
            lid: 7,
            mtu: Mtu::Mtu4096,
            link_layer,
            gid_index: gid.map(|(index, _)| index),
            gid: gid.map(|(_, gid)| gid.parse().unwrap()),
            grh_required,
            reason: String::new(),
        }
    }

    fn endpoint(ethernet: bool, gid: Option<&str>) -> Endpoint {
        let gid = gid.map(|gid| gid.parse().unwrap());
        Endpoint { qp_number: 5, packet_seq_num: 9, lid: 3, gid, mtu: 1024, ethernet }
    }

    #[test]
    fn infiniband_goes_by_lid_unless_a_gid_is_needed() {
        let options = ConnectOptions::default();
        let (attr, is_global, _) =
            address(&path(LinkLayer::InfiniBand, None, false), &endpoint(false, None), &options).unwrap();
        assert!(!is_global);
        assert_eq!(attr.dest_lid(), 3);
        let required = path(LinkLayer::InfiniBand, Some((0, "fe80::1")), true);
        let (attr, is_global, _) = address(&required, &endpoint(false, Some("fe80::2")), &options).unwrap();
        assert!(is_global);
        assert_eq!((attr.dest_lid(), attr.grh_src_gid_index()), (3, Some(0)));
        let error = address(&required, &endpoint(false, None), &options).unwrap_err();
        assert!(matches!(error, ConnectError::NoGid { side: "the peer", .. }), "{error}");
    }

    #[test]
    fn roce_goes_by_gid_and_meets_roce_only() {
        let options = ConnectOptions::default();
        let roce = path(LinkLayer::Ethernet, Some((1, "::ffff:10.0.0.1")), false);
        let (attr, is_global, _) =
            address(&roce, &endpoint(true, Some("::ffff:10.0.0.2")), &options).unwrap();
        assert!(is_global);
        assert_eq!(attr.grh_src_gid_index(), Some(1));
        assert_eq!(attr.grh_dest_gid(), Some("::ffff:10.0.0.2".parse().unwrap()));
        let error = address(&roce, &endpoint(false, None), &options).unwrap_err();
        assert_eq!(
            error.to_string(),
            "this side is on Ethernet, the peer on InfiniBand: they cannot reach one another"
        );
    }

    #[test]
    fn an_endpoint_survives_its_journey() {
        let endpoint = endpoint(true, Some("::ffff:10.0.0.2"));
        let text = serde_json::to_string(&endpoint).unwrap();
        assert_eq!(serde_json::from_str::<Endpoint>(&text).unwrap(), endpoint);
    }
}
