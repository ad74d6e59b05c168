//! Events of the connection manager.

use std::fmt;

use rdma_mummy_sys::types::*;

use super::{Cm, CmChannel, CmId, Kind, check};

/// An event that has to be acknowledged, which its drop does.
pub(crate) struct CmEvent {
    raw: *mut rdma_cm_event,
    channel: CmChannel,
    new: Option<CmId>,
}

// SAFETY: the event is its owner's alone, and may be acknowledged by any thread.
unsafe impl Send for CmEvent {}

impl Drop for CmEvent {
    fn drop(&mut self) {
        // SAFETY: an event that was got, acknowledged once.
        let acked = check(unsafe { (self.channel.cm().lib.rdma_ack_cm_event)(self.raw) });
        assert!(acked.is_ok() || std::thread::panicking(), "an event cannot be acknowledged: {acked:?}");
    }
}

/// What an event says about a connection.
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

/// What an event says about a datagram service.
#[derive(Clone, Copy)]
pub(crate) struct UdParam {
    pub(crate) ah_attr: ibv_ah_attr,
    pub(crate) qp_num: u32,
    pub(crate) qkey: u32,
}

/// All that an event said.
pub(crate) struct EventCopy {
    pub(crate) kind: Kind,
    pub(crate) name: String,
    pub(crate) status: i32,
    /// The address of the identifier that it is about, or of the new one.
    pub(crate) id: usize,
    /// The address of the listener, of a request.
    pub(crate) listener: usize,
    /// Bytes, or for events of a group the pointer that the join was given.
    pub(crate) private_data: Vec<u8>,
    pub(crate) context: usize,
    /// Of connections.
    pub(crate) conn: ConnParam,
    /// Of datagram services and groups.
    pub(crate) ud: UdParam,
    /// The identifier that came with a request.
    pub(crate) new: Option<CmId>,
}

impl fmt::Debug for EventCopy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} with status {}, {:?}, data {:x?}", self.name, self.status, self.conn, self.private_data)
    }
}

impl EventCopy {
    /// Whether it is about this identifier.
    pub(crate) fn is_for(&self, id: &CmId) -> bool {
        self.id == id.address()
    }

    /// The identifier of a request.
    pub(crate) fn request(mut self) -> CmId {
        self.new.take().expect("a request has a new identifier")
    }
}

impl CmEvent {
    /// Takes over an event that the library has just returned.
    pub(super) fn new(channel: &CmChannel, raw: *mut rdma_cm_event) -> Self {
        // SAFETY: an event that was got and not acknowledged.
        let (kind, id) = unsafe { ((*raw).event, (*raw).id) };
        let is_request = kind == Kind::RDMA_CM_EVENT_CONNECT_REQUEST;
        let new = is_request.then(|| CmId::of(channel.cm(), id, Some(channel), false));
        Self { raw, channel: channel.clone(), new }
    }

    pub(crate) fn kind(&self) -> Kind {
        // SAFETY: not acknowledged yet.
        unsafe { (*self.raw).event }
    }

    /// Copies what it says and acknowledges it.
    pub(crate) fn copy_and_ack(mut self) -> EventCopy {
        // SAFETY: not acknowledged yet.
        let mut seen = unsafe { read(self.channel.cm(), self.raw) };
        seen.new = self.new.take();
        seen
    }
}

/// Copies what an event says.
///
/// # Safety
///
/// - `raw` was got from this library and is not acknowledged.
pub(super) unsafe fn read(cm: Cm, raw: *const rdma_cm_event) -> EventCopy {
    // SAFETY: the caller's promise. Both members of the union are integers and a pointer, and begin alike.
    let (event, conn, ud) = unsafe { (&*raw, (*raw).param.conn, (*raw).param.ud) };
    let is_group =
        [Kind::RDMA_CM_EVENT_MULTICAST_JOIN, Kind::RDMA_CM_EVENT_MULTICAST_ERROR].contains(&event.event);
    let (data, len) = (conn.private_data.cast::<u8>(), usize::from(conn.private_data_len));
    let private_data = if is_group || data.is_null() {
        assert!(is_group || len == 0, "{len} bytes of private data at a null pointer");
        Vec::new()
    } else {
        // SAFETY: the event says how many bytes there are.
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
