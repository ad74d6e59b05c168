//! Connection parameters: the values that one end sends when it connects or accepts.

use std::fmt;

use rdma_mummy_sys::types::{RDMA_MAX_INIT_DEPTH, rdma_conn_param};

use super::identifier::PortSpace;
use crate::ibverbs::queue_pair::QueuePairControl;

/// The parameters that one end sends when it connects or accepts (`rdma_conn_param`).
///
/// By default, one READ or atomic at a time in each direction, and the maximum number of retries.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ConnectionParameter {
    private_data: Data,
    responder_resources: u8,
    initiator_depth: u8,
    flow_control: bool,
    retry_count: u8,
    rnr_retry_count: u8,
    srq: bool,
    qp_num: u32,
}

/// Private data to send: a copy of the bytes that fit, and the full length.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Data {
    length: usize,
    bytes: [u8; u8::MAX as usize],
}

impl Default for ConnectionParameter {
    fn default() -> Self {
        Self::new()
    }
}

impl ConnectionParameter {
    /// Requests the maximum number of READs and atomics of the device (`RDMA_MAX_RESP_RES`,
    /// `RDMA_MAX_INIT_DEPTH`).
    pub const DEVICE_MAXIMUM: u8 = RDMA_MAX_INIT_DEPTH as u8;

    /// The longest private data that C can express. A connection carries less: see
    /// [`setup_private_data`](Self::setup_private_data).
    pub const MAX_PRIVATE_DATA: usize = u8::MAX as usize;

    /// Default parameters, without a queue pair.
    pub fn new() -> Self {
        Self {
            private_data: Data { length: 0, bytes: [0; u8::MAX as usize] },
            responder_resources: 1,
            initiator_depth: 1,
            flow_control: false,
            retry_count: 7,
            rnr_retry_count: 7,
            srq: false,
            qp_num: 0,
        }
    }

    /// Sets the queue pair of this end: its number, and whether it uses a shared receive queue.
    pub fn setup_queue_pair(&mut self, queue_pair: &QueuePairControl) -> &mut Self {
        self.setup_qp_number(queue_pair.qp_number()).setup_srq(queue_pair.srq().is_some())
    }

    /// Sets the number of this end's queue pair.
    pub fn setup_qp_number(&mut self, qp_num: u32) -> &mut Self {
        self.qp_num = qp_num;
        self
    }

    /// Sets whether this end's queue pair uses a shared receive queue.
    pub fn setup_srq(&mut self, srq: bool) -> &mut Self {
        self.srq = srq;
        self
    }

    /// Sets data for the peer's program, which is copied.
    ///
    /// On InfiniBand and RoCE, a request of a connection carries 56 bytes, and one of a datagram
    /// service 180. Their responses carry 196 and 136 bytes. If the data is too long,
    /// [`connect`](super::Identifier::connect) and [`accept`](super::Identifier::accept) fail.
    pub fn setup_private_data(&mut self, data: &[u8]) -> &mut Self {
        let fits = data.len().min(Self::MAX_PRIVATE_DATA);
        self.private_data.length = data.len();
        self.private_data.bytes[..fits].copy_from_slice(&data[..fits]);
        self
    }

    /// Sets how many of the peer's READs and atomics this end serves at a time.
    pub fn setup_responder_resources(&mut self, responder_resources: u8) -> &mut Self {
        self.responder_resources = responder_resources;
        self
    }

    /// Sets the maximum number of outstanding READs and atomics of this end.
    pub fn setup_initiator_depth(&mut self, initiator_depth: u8) -> &mut Self {
        self.initiator_depth = initiator_depth;
        self
    }

    /// Sets whether this end uses flow control; the peer is informed.
    pub fn setup_flow_control(&mut self, flow_control: bool) -> &mut Self {
        self.flow_control = flow_control;
        self
    }

    /// Sets the number of retries without acknowledgement: 0 to 7.
    pub fn setup_retry_count(&mut self, retry_count: u8) -> &mut Self {
        self.retry_count = retry_count;
        self
    }

    /// Sets how often the peer retries while this end has no receive posted: 0 to 6, or 7 without
    /// limit.
    pub fn setup_rnr_retry_count(&mut self, rnr_retry_count: u8) -> &mut Self {
        self.rnr_retry_count = rnr_retry_count;
        self
    }

    /// The private data, cut off at the length that C can express.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data.bytes[..self.private_data.length.min(Self::MAX_PRIVATE_DATA)]
    }

    /// The full length of the private data that was given.
    pub(super) fn private_data_length(&self) -> usize {
        self.private_data.length
    }

    /// The C struct. It points to this value's data, so it must not outlive `self`.
    pub(super) fn raw(&self) -> rdma_conn_param {
        let data = self.private_data();
        rdma_conn_param {
            private_data: if data.is_empty() { core::ptr::null() } else { data.as_ptr().cast() },
            private_data_len: data.len() as u8,
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            flow_control: self.flow_control.into(),
            retry_count: self.retry_count,
            rnr_retry_count: self.rnr_retry_count,
            srq: self.srq.into(),
            qp_num: self.qp_num,
        }
    }
}

impl fmt::Debug for ConnectionParameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionParameter")
            .field("qp_num", &format_args!("{:#x}", self.qp_num))
            .field("srq", &self.srq)
            .field("responder_resources", &self.responder_resources)
            .field("initiator_depth", &self.initiator_depth)
            .field("flow_control", &self.flow_control)
            .field("retry_count", &self.retry_count)
            .field("rnr_retry_count", &self.rnr_retry_count)
            .field("private_data_length", &self.private_data.length)
            .finish()
    }
}

/// The message that carries private data.
#[derive(Clone, Copy)]
pub(super) enum CmMessage {
    Request,
    Reply,
    Reject,
}

/// The maximum length of a program's private data in a message on InfiniBand and RoCE: the
/// message's field, less the bytes that the connection manager writes there itself.
pub(super) fn private_data_limit(message: CmMessage, port_space: PortSpace, datagram: bool) -> usize {
    // The header contains IP addresses and ports; native InfiniBand services have none.
    let header = if port_space == PortSpace::Ib { 0 } else { 36 };
    match (message, datagram) {
        (CmMessage::Request, false) => 92 - header,
        (CmMessage::Request, true) => 216 - header,
        (CmMessage::Reply, false) => 196,
        (CmMessage::Reject, false) => 148,
        (CmMessage::Reply | CmMessage::Reject, true) => 136,
    }
}
