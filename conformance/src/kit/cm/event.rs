//! Events of the connection manager.

use std::fmt;

use rdma_mummy_sys::types::*;

use super::{Cm, CmChannel, CmId, Kind, check};

/// An event, acknowledged when it is dropped.
pub(crate) struct CmEvent {
    raw: *mut rdma_cm_event,
    channel: CmChannel,
    new: Option<CmId>,
}

// SAFETY: one owner holds the event, and any thread may acknowledge it.
unsafe impl Send for CmEvent {}

impl Drop for CmEvent {
    fn drop(&mut self) {
        // SAFETY: `new` took the event from the library, and nothing but this drop acknowledges it.
        let acked = check(unsafe { (self.channel.cm().lib.rdma_ack_cm_event)(self.raw) });
        assert!(acked.is_ok() || std::thread::panicking(), "an event cannot be acknowledged: {acked:?}");
    }
}

/// The connection parameters of an event (`rdma_conn_param`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ConnParam {
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    pub(crate) flow_control: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry_count: u8,
    pub(crate) srq: u8,
    pub(crate) qp_num: u32,
}

/// The datagram parameters of an event (`rdma_ud_param`).
#[derive(Clone, Copy)]
pub(crate) struct UdParam {
    pub(crate) ah_attr: ibv_ah_attr,
    pub(crate) qp_num: u32,
    pub(crate) qkey: u32,
}

/// A copy of an event, which outlives its acknowledgement.
pub(crate) struct EventCopy {
    pub(crate) kind: Kind,
    pub(crate) name: String,
    pub(crate) status: i32,
    /// The address of the identifier that received the event, or of the new one.
    pub(crate) id: usize,
    /// The address of the listener; of a request only.
    pub(crate) listener: usize,
    /// The private data; of a multicast event the context that the join was given.
    pub(crate) private_data: Vec<u8>,
    pub(crate) context: usize,
    /// Of connections only.
    pub(crate) conn: ConnParam,
    /// Of datagram services and groups only.
    pub(crate) ud: UdParam,
    /// The new identifier of a request.
    pub(crate) new: Option<CmId>,
}

impl fmt::Debug for EventCopy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} with status {}, {:?}, data {:x?}", self.name, self.status, self.conn, self.private_data)
    }
}

impl EventCopy {
    /// Whether this identifier received the event.
    pub(crate) fn is_for(&self, id: &CmId) -> bool {
        self.id == id.address()
    }

    /// Takes the new identifier of a request.
    pub(crate) fn request(mut self) -> CmId {
        self.new.take().expect("a request has a new identifier")
    }
}

impl CmEvent {
    /// Takes over an event that the library has just returned.
    pub(super) fn new(channel: &CmChannel, raw: *mut rdma_cm_event) -> Self {
        // SAFETY: the caller has just got the event from the library and has not acknowledged it.
        let (kind, id) = unsafe { ((*raw).event, (*raw).id) };
        let is_request = kind == Kind::RDMA_CM_EVENT_CONNECT_REQUEST;
        let new = is_request.then(|| CmId::of(channel.cm(), id, Some(channel), false));
        Self { raw, channel: channel.clone(), new }
    }

    pub(crate) fn kind(&self) -> Kind {
        // SAFETY: the event is acknowledged only when `self` is dropped.
        unsafe { (*self.raw).event }
    }

    /// Copies the event and acknowledges it.
    pub(crate) fn copy_and_ack(mut self) -> EventCopy {
        // SAFETY: the event is acknowledged only when `self` is dropped, at the end of this
        // function.
        let mut seen = unsafe { read(self.channel.cm(), self.raw) };
        seen.new = self.new.take();
        seen
    }
}

/// Copies an event.
///
/// # Safety
///
/// - `raw` came from this library and is not acknowledged yet.
pub(super) unsafe fn read(cm: Cm, raw: *const rdma_cm_event) -> EventCopy {
    // SAFETY: the event is not acknowledged (`# Safety`). Both members of the union are integers
    // and a pointer, and begin alike, so that each may be read.
    let (event, conn, ud) = unsafe { (&*raw, (*raw).param.conn, (*raw).param.ud) };
    let is_group =
        [Kind::RDMA_CM_EVENT_MULTICAST_JOIN, Kind::RDMA_CM_EVENT_MULTICAST_ERROR].contains(&event.event);
    let (data, len) = (conn.private_data.cast::<u8>(), usize::from(conn.private_data_len));
    let private_data = if is_group || data.is_null() {
        assert!(is_group || len == 0, "{len} bytes of private data at a null pointer");
        Vec::new()
    } else {
        // SAFETY: the pointer is not null (checked above), and the event gives the number of bytes.
        (0..len).map(|n| unsafe { data.add(n).read() }).collect()
    };
    EventCopy {
        kind: event.event,
        name: cm.event_name(event.event),
        status: event.status,
        id: event.id.addr(),
        listener: event.listen_id.addr(),
        private_data,
        context: conn.private_data.addr(),
        conn: ConnParam {
            responder_resources: conn.responder_resources,
            initiator_depth: conn.initiator_depth,
            flow_control: conn.flow_control,
            retry_count: conn.retry_count,
            rnr_retry_count: conn.rnr_retry_count,
            srq: conn.srq,
            qp_num: conn.qp_num,
        },
        ud: UdParam { ah_attr: ud.ah_attr, qp_num: ud.qp_num, qkey: ud.qkey },
        new: None,
    }
}
