//! Events of the connection manager, copied into plain values.

use std::fmt;
use std::io;

use rdma_mummy_sys::types::{rdma_cm_event, rdma_cm_event_type as E, rdma_conn_param, rdma_ud_param};

use super::address::{Address, perhaps};
use super::identifier::Identifier;
use crate::ibverbs::address::{AddressHandleAttribute, Gid};

c_enum! {
    /// The type of an event (`rdma_cm_event_type`). Types that this crate does not know are passed
    /// through.
    pub struct EventType(u32) {
        /// The address is resolved, and the identifier has a device.
        AddressResolved = E::RDMA_CM_EVENT_ADDR_RESOLVED.0,
        /// The address could not be resolved.
        AddressError = E::RDMA_CM_EVENT_ADDR_ERROR.0,
        /// A path to the peer is known: the identifier can connect.
        RouteResolved = E::RDMA_CM_EVENT_ROUTE_RESOLVED.0,
        /// The route could not be resolved.
        RouteError = E::RDMA_CM_EVENT_ROUTE_ERROR.0,
        /// A peer requests a connection: the event has a new identifier.
        ConnectRequest = E::RDMA_CM_EVENT_CONNECT_REQUEST.0,
        /// The peer has accepted. Call [`establish`](Identifier::establish) when the queue pair is
        /// ready.
        ConnectResponse = E::RDMA_CM_EVENT_CONNECT_RESPONSE.0,
        /// The connection could not be made.
        ConnectError = E::RDMA_CM_EVENT_CONNECT_ERROR.0,
        /// The peer does not respond.
        Unreachable = E::RDMA_CM_EVENT_UNREACHABLE.0,
        /// The peer rejected the connection, or nobody listens at its port.
        Rejected = E::RDMA_CM_EVENT_REJECTED.0,
        /// The connection is established; for datagrams, the peer's queue pair is known.
        Established = E::RDMA_CM_EVENT_ESTABLISHED.0,
        /// The connection is closed.
        Disconnected = E::RDMA_CM_EVENT_DISCONNECTED.0,
        /// The device was removed: drop the identifier and all objects of the device.
        DeviceRemoval = E::RDMA_CM_EVENT_DEVICE_REMOVAL.0,
        /// The multicast group is joined.
        MulticastJoin = E::RDMA_CM_EVENT_MULTICAST_JOIN.0,
        /// The multicast group could not be joined, or no longer exists.
        MulticastError = E::RDMA_CM_EVENT_MULTICAST_ERROR.0,
        /// The network address has moved to another device.
        AddressChange = E::RDMA_CM_EVENT_ADDR_CHANGE.0,
        /// The queue pair of a closed connection may be used again.
        TimewaitExit = E::RDMA_CM_EVENT_TIMEWAIT_EXIT.0,
        /// The addresses that were [requested](Identifier::resolve_addrinfo) are available.
        AddressInfoResolved = E::RDMA_CM_EVENT_ADDRINFO_RESOLVED.0,
        /// The addresses that were requested could not be found.
        AddressInfoError = E::RDMA_CM_EVENT_ADDRINFO_ERROR.0,
        /// An event that the program [wrote](Identifier::write_user_event) itself.
        User = E::RDMA_CM_EVENT_USER.0,
        /// Internal to the library.
        Internal = E::RDMA_CM_EVENT_INTERNAL.0,
    }
}
display_as_debug!(EventType);

/// The status of an event: 0, a negative error number, or a number that depends on the transport.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct EventStatus(i32);

impl EventStatus {
    /// A status from its C value.
    pub const fn from_raw(raw: i32) -> Self {
        Self(raw)
    }

    /// The C value of the status.
    pub const fn raw(self) -> i32 {
        self.0
    }

    /// Whether the status is 0.
    pub const fn is_success(self) -> bool {
        self.0 == 0
    }

    /// The error, if it is a negative error number.
    pub fn error(self) -> Option<io::Error> {
        (self.0 < 0).then(|| io::Error::from_raw_os_error(self.0.saturating_neg()))
    }
}

impl fmt::Display for EventStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.error() {
            Some(error) => error.fmt(f),
            None => write!(f, "status {}", self.0),
        }
    }
}

c_enum! {
    /// The reason for a rejected connection on InfiniBand and RoCE (the IBTA's table of REJ
    /// reasons). Unknown numbers are passed through.
    pub struct RejectReason(u32) {
        /// The peer has no queue pair available.
        NoQueuePair = 1,
        /// The peer has no resources available.
        NoResources = 3,
        /// A message of this side did not reach the peer in time.
        Timeout = 4,
        /// The peer does not support the request.
        UnsupportedRequest = 5,
        /// The connection does not exist any more.
        InvalidCommunicationId = 6,
        /// The connection has another instance number.
        InvalidCommunicationInstance = 7,
        /// Nobody listens at the port.
        InvalidServiceId = 8,
        /// The listener uses another transport.
        InvalidTransportServiceType = 9,
        /// The peer still has a connection to the same queue pair.
        StaleConnection = 10,
        /// The peer's port has a different GID.
        PrimaryRemotePortGidRejected = 12,
        /// The peer's port has a different LID.
        PrimaryRemotePortLidRejected = 13,
        /// The connection manager is at another address.
        PortAndCmRedirection = 24,
        /// The port is at another address.
        PortRedirection = 25,
        /// The peer does not support the path's MTU.
        InvalidPathMtu = 26,
        /// The peer has too few responder resources.
        InsufficientResponderResources = 27,
        /// The peer's program rejected the connection: [`private_data`](Event::private_data) may
        /// contain the reason.
        ConsumerReject = 28,
        /// The peer does not accept the RNR retry count.
        RnrRetryCountReject = 29,
        /// The peer already knows the connection's identifier.
        DuplicateLocalCommunicationId = 30,
        /// The peer uses another version of the protocol.
        InvalidClassVersion = 31,
        /// The peer does not accept the flow label.
        InvalidFlowLabel = 32,
        /// The peer does not accept the vendor's options (ECE).
        VendorOptionNotSupported = 35,
    }
}
display_as_debug!(RejectReason);

/// Copies the private data of an event. Most events have none, and allocate nothing.
///
/// # Safety
///
/// `from` must be null, or readable for `length` bytes.
unsafe fn copy_private_data(from: *const core::ffi::c_void, length: u8) -> Box<[u8]> {
    if from.is_null() || length == 0 {
        return Box::default();
    }
    // SAFETY: `from` is not null, as checked above. So the caller guarantees (`# Safety`) that
    // `from` is readable for `length` bytes. The memory belongs to the event, so nobody writes to
    // it.
    unsafe { std::slice::from_raw_parts(from.cast::<u8>(), length.into()) }.into()
}

/// The peer's parameters of a connection (`rdma_conn_param`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnectionInfo {
    /// The maximum number of the peer's READs and atomics that this side must serve at a time.
    pub responder_resources: u8,
    /// The maximum number of READs and atomics that this side may have outstanding.
    pub initiator_depth: u8,
    /// Whether the sender uses flow control.
    pub flow_control: bool,
    /// The number of retries without acknowledgement; set in requests only.
    pub retry_count: u8,
    /// The number of retries while the receiver has no receive posted; 7 means no limit.
    pub rnr_retry_count: u8,
    /// Whether the peer's queue pair uses a shared receive queue.
    pub srq: bool,
    /// The number of the peer's queue pair.
    pub qp_num: u32,
}

/// The destination for datagrams to the peer (`rdma_ud_param`).
#[derive(Clone, Copy, Debug)]
pub struct DatagramInfo {
    /// The peer's address, for an [address
    /// handle](crate::ibverbs::protection_domain::ProtectionDomain::create_ah).
    pub address: AddressHandleAttribute,
    /// The number of the peer's queue pair.
    pub qp_num: u32,
    /// The Q_Key for datagrams to it.
    pub qkey: u32,
}

/// A multicast group that was joined.
#[derive(Clone, Copy, Debug)]
pub struct MulticastInfo {
    /// The group's address, for an [address
    /// handle](crate::ibverbs::protection_domain::ProtectionDomain::create_ah).
    pub address: AddressHandleAttribute,
    /// The queue pair number for datagrams to the group.
    pub qp_num: u32,
    /// The Q_Key for datagrams to the group.
    pub qkey: u32,
    /// The context that was given to [`join_multicast`](Identifier::join_multicast).
    pub context: usize,
}

impl MulticastInfo {
    /// The group's GID, for
    /// [`attach_mcast`](crate::ibverbs::queue_pair::QueuePairControl::attach_mcast).
    pub fn gid(&self) -> Gid {
        self.address.grh_dest_gid().unwrap_or_default()
    }

    /// The group's LID, for the same call; 0 except on InfiniBand.
    pub fn lid(&self) -> u16 {
        self.address.dest_lid()
    }
}

/// The parameters of an event, which depend on its type.
#[derive(Clone, Copy)]
pub(super) enum EventParameters {
    Nothing,
    Connection(ConnectionInfo),
    Datagram(DatagramInfo),
    Multicast(MulticastInfo),
    MulticastFailure { context: usize },
    User { argument: u64 },
}

/// The contents of a C event, copied out.
pub(super) struct EventContents {
    pub(super) event_type: EventType,
    pub(super) status: EventStatus,
    pub(super) parameters: EventParameters,
    pub(super) private_data: Box<[u8]>,
}

impl EventContents {
    /// The contents before any event was copied.
    pub(super) fn none() -> Self {
        Self {
            event_type: EventType::Internal,
            status: EventStatus(0),
            parameters: EventParameters::Nothing,
            private_data: Box::default(),
        }
    }

    /// Copies an event in place, because the contents take two cache lines. It reads only fields
    /// that the event's type has.
    ///
    /// # Safety
    ///
    /// The library must have returned `raw`, and it must not be acknowledged yet. `datagram` must
    /// say whether its identifier is for datagrams.
    #[inline]
    pub(super) unsafe fn copy(&mut self, raw: *const rdma_cm_event, datagram: bool) {
        // SAFETY: the caller guarantees (`# Safety`) a live event. Nobody writes to it, because
        // `take` holds the channel's lock. The whole union is initialised for every type, and its
        // members are integers and pointers.
        (self.event_type, self.status) =
            unsafe { (EventType::from_raw((*raw).event.0), EventStatus((*raw).status)) };
        match self.event_type {
            // The most frequent events of connections have no parameters.
            EventType::AddressResolved | EventType::RouteResolved => return,
            EventType::ConnectRequest | EventType::ConnectResponse | EventType::Established => {
                self.parameters = match datagram {
                    // SAFETY: as above, the event is alive, nobody writes to it, and the whole
                    // union is initialised.
                    true => EventParameters::Datagram(DatagramInfo::new(unsafe { &(*raw).param.ud })),
                    // SAFETY: as above, the event is alive, nobody writes to it, and the whole
                    // union is initialised.
                    false => EventParameters::Connection(ConnectionInfo::new(unsafe { &(*raw).param.conn })),
                };
            }
            EventType::Rejected | EventType::Disconnected => {}
            // The pointer is the token that was given to the join. The length field beside it has
            // no meaning.
            EventType::MulticastJoin => {
                // SAFETY: as above, the event is alive, nobody writes to it, and the whole union is
                // initialised.
                self.parameters = EventParameters::Multicast(MulticastInfo::new(unsafe { &(*raw).param.ud }));
                return;
            }
            EventType::MulticastError => {
                // SAFETY: as above, the event is alive, nobody writes to it, and the whole union is
                // initialised.
                let context = unsafe { (*raw).param.ud.private_data }.addr();
                self.parameters = EventParameters::MulticastFailure { context };
                return;
            }
            EventType::User => {
                // SAFETY: as above, the event is alive, nobody writes to it, and the whole union is
                // initialised.
                self.parameters = EventParameters::User { argument: unsafe { (*raw).param.arg } };
                return;
            }
            // For an unknown type, the valid member is not known.
            _ => return,
        }
        // SAFETY: the event is alive. The types that reach this point have private data of the
        // stated length, at the same offset in both members.
        self.private_data = unsafe {
            let conn = &raw const (*raw).param.conn;
            copy_private_data((*conn).private_data, (*conn).private_data_len)
        };
    }

    /// The token that was given to the library for a join, if this event belongs to a multicast
    /// group.
    pub(super) fn multicast_context(&mut self) -> Option<&mut usize> {
        match &mut self.parameters {
            EventParameters::Multicast(multicast) => Some(&mut multicast.context),
            EventParameters::MulticastFailure { context } => Some(context),
            _ => None,
        }
    }
}

const _: () = {
    use core::mem::offset_of;
    assert!(offset_of!(rdma_conn_param, private_data) == offset_of!(rdma_ud_param, private_data));
    assert!(offset_of!(rdma_conn_param, private_data_len) == offset_of!(rdma_ud_param, private_data_len));
};

impl ConnectionInfo {
    fn new(conn: &rdma_conn_param) -> Self {
        Self {
            responder_resources: conn.responder_resources,
            initiator_depth: conn.initiator_depth,
            flow_control: conn.flow_control != 0,
            retry_count: conn.retry_count,
            rnr_retry_count: conn.rnr_retry_count,
            srq: conn.srq != 0,
            qp_num: conn.qp_num,
        }
    }
}

impl DatagramInfo {
    fn new(ud: &rdma_ud_param) -> Self {
        let address = AddressHandleAttribute::from_raw(ud.ah_attr);
        Self { address, qp_num: ud.qp_num, qkey: ud.qkey }
    }
}

impl MulticastInfo {
    fn new(ud: &rdma_ud_param) -> Self {
        let DatagramInfo { address, qp_num, qkey } = DatagramInfo::new(ud);
        Self { address, qp_num, qkey, context: ud.private_data.addr() }
    }
}

/// An event of an identifier (`rdma_cm_event`), already acknowledged.
///
/// It is a plain value: everything in it is copied, and it keeps the identifier that it names
/// alive.
pub struct Event {
    pub(super) contents: EventContents,
    pub(super) id: Identifier,
    pub(super) listener: Option<Identifier>,
}

impl Event {
    /// The kind of event (`event` in C).
    pub fn event_type(&self) -> EventType {
        self.contents.event_type
    }

    /// The status of the event.
    pub fn status(&self) -> EventStatus {
        self.contents.status
    }

    /// The identifier of the event. A [`ConnectRequest`](EventType::ConnectRequest) has a new one:
    /// keep it to accept the connection. When its last handle is dropped, including the one in the
    /// event, the request is rejected.
    pub fn cm_id(&self) -> &Identifier {
        &self.id
    }

    /// The identifier of the event, by value.
    pub fn into_cm_id(self) -> Identifier {
        self.id
    }

    /// The listening identifier of a [`ConnectRequest`](EventType::ConnectRequest).
    pub fn listener_id(&self) -> Option<&Identifier> {
        self.listener.as_ref()
    }

    /// The peer's private data in a request, a response, an established connection, a rejection or
    /// a disconnection.
    ///
    /// InfiniBand and RoCE carry it in a field of fixed length, so zeros may follow the peer's
    /// data.
    pub fn private_data(&self) -> &[u8] {
        &self.contents.private_data
    }

    /// The peer's parameters of the connection: in a request, in a response, and when the
    /// connection is established.
    pub fn connection(&self) -> Option<&ConnectionInfo> {
        match &self.contents.parameters {
            EventParameters::Connection(connection) => Some(connection),
            _ => None,
        }
    }

    /// The destination for datagrams to the peer, for an identifier for datagrams. In a request,
    /// the fields describe the requester.
    pub fn datagram(&self) -> Option<&DatagramInfo> {
        match &self.contents.parameters {
            EventParameters::Datagram(datagram) => Some(datagram),
            _ => None,
        }
    }

    /// The multicast group that was joined.
    pub fn multicast(&self) -> Option<&MulticastInfo> {
        match &self.contents.parameters {
            EventParameters::Multicast(multicast) => Some(multicast),
            _ => None,
        }
    }

    /// The context that was given to [`join_multicast`](Identifier::join_multicast), also if the
    /// join failed.
    pub fn multicast_context(&self) -> Option<usize> {
        match &self.contents.parameters {
            EventParameters::Multicast(multicast) => Some(multicast.context),
            EventParameters::MulticastFailure { context } => Some(*context),
            _ => None,
        }
    }

    /// The argument of an event that the program [wrote](Identifier::write_user_event) itself.
    pub fn user_argument(&self) -> Option<u64> {
        match &self.contents.parameters {
            EventParameters::User { argument } => Some(*argument),
            _ => None,
        }
    }

    /// The reason for a rejected connection, if the transport reports it as a number (InfiniBand,
    /// RoCE).
    pub fn reject_reason(&self) -> Option<RejectReason> {
        let rejected = self.event_type() == EventType::Rejected;
        u32::try_from(self.status().raw()).ok().filter(|_| rejected).map(RejectReason::from_raw)
    }

    /// The error that the event reports, by its type or by its status.
    pub fn error(&self) -> Option<EventError> {
        let status = self.status();
        let local = || self.id.local_addr();
        let peer = || self.id.peer_addr();
        Some(match self.event_type() {
            EventType::AddressError => EventError::Address { local: local(), peer: peer(), status },
            EventType::RouteError => EventError::Route { local: local(), peer: peer(), status },
            EventType::Unreachable => EventError::Unreachable { peer: peer(), status },
            EventType::ConnectError => EventError::Connect { peer: peer(), status },
            EventType::Rejected => EventError::Rejected {
                peer: peer(),
                status,
                reason: self.reject_reason(),
                private_data: self.private_data().to_vec(),
            },
            EventType::DeviceRemoval => EventError::DeviceRemoved { local: local() },
            EventType::MulticastError => EventError::Multicast { local: local(), status },
            EventType::AddressInfoError => EventError::AddressInfo { status },
            _ if status.is_success() => return None,
            event_type => EventError::Other { event_type, status },
        })
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Event");
        out.field("event_type", &self.event_type())
            .field("status", &self.status().raw())
            .field("id", &self.id);
        match &self.contents.parameters {
            EventParameters::Nothing => {}
            EventParameters::Connection(info) => _ = out.field("connection", info),
            EventParameters::Datagram(info) => _ = out.field("datagram", info),
            EventParameters::Multicast(info) => _ = out.field("multicast", info),
            EventParameters::MulticastFailure { context } => _ = out.field("context", context),
            EventParameters::User { argument } => _ = out.field("argument", argument),
        }
        out.field("private_data", &self.private_data()).finish()
    }
}

/// What an event says went wrong.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EventError {
    /// The address was not resolved.
    #[error(
        "cannot resolve the address {}{}: {status}{}",
        perhaps(.peer),
        from(.local),
        missing_interface(.peer)
    )]
    Address {
        /// The local address, if one was given.
        local: Option<Address>,
        /// The peer's address, if the identifier has one.
        peer: Option<Address>,
        /// Why: `ETIMEDOUT` where nobody answered, for instance.
        status: EventStatus,
    },
    /// The route was not resolved.
    #[error("cannot resolve the route to {}{}: {status}", perhaps(.peer), from(.local))]
    Route {
        /// The local address, if the identifier is bound.
        local: Option<Address>,
        /// The peer's address, if the identifier has one.
        peer: Option<Address>,
        /// The status of the event: an error number, or a reason of the transport.
        status: EventStatus,
    },
    /// No answer came from the peer (`RDMA_CM_EVENT_UNREACHABLE`).
    #[error("{} does not answer: {status}", perhaps(.peer))]
    Unreachable {
        /// The peer's address, if the identifier has one.
        peer: Option<Address>,
        /// Why: an error number, or the status of a datagram service's answer.
        status: EventStatus,
    },
    /// The peer does not want to.
    #[error(
        "{} rejected the connection: {}",
        perhaps(.peer),
        why(.reason, .status)
    )]
    Rejected {
        /// The peer's address, if the identifier has one.
        peer: Option<Address>,
        /// The status as it came.
        status: EventStatus,
        /// The reason, where the transport has numbers for them.
        reason: Option<RejectReason>,
        /// What the peer's program has to say about it; zeros may follow.
        private_data: Vec<u8>,
    },
    /// The connection was not made.
    #[error("the connection to {} failed: {status}", perhaps(.peer))]
    Connect {
        /// The peer's address, if the identifier has one.
        peer: Option<Address>,
        /// The status of the event: an error number, or a reason of the transport.
        status: EventStatus,
    },
    /// The device was taken away.
    #[error("the device of {} was removed; drop the identifier and all that was made of the device", perhaps(.local))]
    DeviceRemoved {
        /// The local address, if the identifier is bound.
        local: Option<Address>,
    },
    /// The multicast group was not joined, or is gone.
    #[error("the multicast group could not be joined{}: {status}", from(.local))]
    Multicast {
        /// The local address, if the identifier is bound.
        local: Option<Address>,
        /// The status of the event: an error number, or a reason of the transport.
        status: EventStatus,
    },
    /// The names were not resolved.
    #[error("the names could not be resolved: {status}")]
    AddressInfo {
        /// The status of the event: an error number, or a reason of the transport.
        status: EventStatus,
    },
    /// An event that means no failure by its type came with a status.
    #[error("the event {event_type} came with {status}")]
    Other {
        /// The type of the event, which usually means success.
        event_type: EventType,
        /// The status, which is not 0.
        status: EventStatus,
    },
}

debug_as_text!(EventError);

/// The source address in words, or a placeholder.
fn from(source: &Option<Address>) -> String {
    source.as_ref().map_or_else(String::new, |source| format!(" from {source}"))
}

/// What the peer's address lacks if it is link-local and names no interface.
fn missing_interface(peer: &Option<Address>) -> String {
    let remedy = peer.as_ref().and_then(Address::missing_interface);
    remedy.map_or_else(String::new, |remedy| format!("; {remedy}"))
}

fn why(reason: &Option<RejectReason>, status: &EventStatus) -> String {
    match reason {
        Some(RejectReason::InvalidServiceId) => "nobody listens there (InvalidServiceId)".to_owned(),
        Some(reason) => reason.to_string(),
        None => status.to_string(),
    }
}
