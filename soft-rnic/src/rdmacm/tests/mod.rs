//! The table, called as C programs call it.

mod connections;
mod endings;
mod endpoints;
mod groups;
mod names;
mod queues;

use std::ffi::{c_int, c_void};
use std::net::{Ipv4Addr, SocketAddr};
use std::ptr;

use libc::{sockaddr, sockaddr_storage};
use rdma_mummy_sys::types::*;
use rdma_mummy_sys::{RdmaCm, verbs};

use super::socket_address;
use crate::verbs::testing::{errno, table as verbs_table};

/// What an event is waited for at most; nothing here takes that long.
const PATIENCE_MS: c_int = 20_000;

/// The table, with the devices of tests.
fn cm() -> &'static RdmaCm {
    const TABLE: RdmaCm = super::table();
    verbs_table();
    &TABLE
}

/// An address as C has it.
fn c_address(address: SocketAddr) -> sockaddr_storage {
    // SAFETY: integers.
    let mut c = unsafe { core::mem::zeroed() };
    // SAFETY: the place is a local.
    unsafe { socket_address::write(address, &raw mut c) };
    c
}

fn loopback(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

/// A call that is to succeed.
#[track_caller]
fn good(result: c_int) {
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

/// A call that is to fail with this.
#[track_caller]
fn bad(result: c_int, error: c_int) {
    assert_eq!((result, errno()), (-1, error));
}

/// An event channel, until this is dropped.
struct TestChannel(*mut rdma_event_channel);

impl TestChannel {
    fn new() -> Self {
        // SAFETY: it takes nothing.
        let channel = unsafe { (cm().rdma_create_event_channel)() };
        assert_ne!(channel, ptr::null_mut(), "{}", std::io::Error::last_os_error());
        Self(channel)
    }

    fn id(&self, ps: rdma_port_space) -> *mut rdma_cm_id {
        let mut id = ptr::null_mut();
        // SAFETY: the channel is live.
        good(unsafe { (cm().rdma_create_id)(self.0, &raw mut id, ptr::null_mut(), ps) });
        id
    }

    fn is_readable(&self, milliseconds: c_int) -> bool {
        // SAFETY: the channel is live.
        let mut poll = libc::pollfd { fd: unsafe { (*self.0).fd }, events: libc::POLLIN, revents: 0 };
        // SAFETY: one descriptor.
        unsafe { libc::poll(&raw mut poll, 1, milliseconds) == 1 }
    }

    /// The next event, which must be this.
    #[track_caller]
    fn expect(&self, kind: rdma_cm_event_type) -> AckedEvent {
        assert!(self.is_readable(PATIENCE_MS), "{kind:?} never came");
        let mut event = ptr::null_mut();
        // SAFETY: the channel is live.
        good(unsafe { (cm().rdma_get_cm_event)(self.0, &raw mut event) });
        let got = AckedEvent(event);
        assert_eq!((got.kind(), got.status()), (kind, got.status()), "status {}", got.status());
        got
    }

    /// The next event, which must tell of this success; it is acknowledged.
    #[track_caller]
    fn done(&self, kind: rdma_cm_event_type) {
        assert_eq!(self.expect(kind).status(), 0);
    }
}

impl Drop for TestChannel {
    fn drop(&mut self) {
        // SAFETY: it was made in `new`, and its ids have gone.
        unsafe { (cm().rdma_destroy_event_channel)(self.0) };
    }
}

/// An event, acknowledged when this is dropped.
struct AckedEvent(*mut rdma_cm_event);

impl AckedEvent {
    fn kind(&self) -> rdma_cm_event_type {
        // SAFETY: it is not acknowledged.
        unsafe { (*self.0).event }
    }

    fn status(&self) -> c_int {
        // SAFETY: it is not acknowledged.
        unsafe { (*self.0).status }
    }

    fn id(&self) -> *mut rdma_cm_id {
        // SAFETY: it is not acknowledged.
        unsafe { (*self.0).id }
    }

    fn listener(&self) -> *mut rdma_cm_id {
        // SAFETY: it is not acknowledged.
        unsafe { (*self.0).listen_id }
    }

    fn conn(&self) -> rdma_conn_param {
        // SAFETY: it is not acknowledged; it is one of a connection.
        unsafe { (*self.0).param.conn }
    }

    fn ud(&self) -> rdma_ud_param {
        // SAFETY: it is not acknowledged; it is one of a connection; it is one of datagrams.
        unsafe { (*self.0).param.ud }
    }

    fn data(&self) -> Vec<u8> {
        let conn = self.conn();
        if conn.private_data.is_null() {
            return Vec::new();
        }
        // SAFETY: the event says so.
        unsafe { std::slice::from_raw_parts(conn.private_data.cast(), conn.private_data_len.into()) }.to_vec()
    }
}

impl Drop for AckedEvent {
    fn drop(&mut self) {
        // SAFETY: once.
        good(unsafe { (cm().rdma_ack_cm_event)(self.0) });
    }
}

/// Parameters with private data.
fn param(data: &[u8]) -> rdma_conn_param {
    rdma_conn_param {
        private_data: data.as_ptr().cast(),
        private_data_len: data.len() as u8,
        responder_resources: 2,
        initiator_depth: 1,
        retry_count: 7,
        rnr_retry_count: 7,
        ..rdma_conn_param::default()
    }
}

/// A listener at any port of this address.
fn listener(channel: &TestChannel, ps: rdma_port_space, address: SocketAddr) -> (*mut rdma_cm_id, u16) {
    let id = channel.id(ps);
    let mut address = c_address(address);
    // SAFETY: the id is live, and the address valid.
    unsafe {
        good((cm().rdma_bind_addr)(id, (&raw mut address).cast()));
        good((cm().rdma_listen)(id, 4));
        (id, u16::from_be((cm().rdma_get_src_port)(id)))
    }
}

/// An id with a resolved route to a port of this host.
fn routed(channel: &TestChannel, ps: rdma_port_space, port: u16) -> *mut rdma_cm_id {
    let id = channel.id(ps);
    let mut to = c_address(loopback(port));
    // SAFETY: the id is live, and the address valid.
    unsafe {
        good((cm().rdma_resolve_addr)(id, ptr::null_mut(), (&raw mut to).cast(), 2000));
        channel.done(rdma_cm_event_type::RDMA_CM_EVENT_ADDR_RESOLVED);
        good((cm().rdma_resolve_route)(id, 2000));
        channel.done(rdma_cm_event_type::RDMA_CM_EVENT_ROUTE_RESOLVED);
    }
    id
}

fn qp_attr(qp_type: ibv_qp_type) -> ibv_qp_init_attr {
    ibv_qp_init_attr {
        cap: ibv_qp_cap {
            max_send_wr: 4,
            max_recv_wr: 4,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 32,
        },
        qp_type,
        sq_sig_all: 1,
        ..ibv_qp_init_attr::default()
    }
}

/// Makes the id's queue pair, with queues of the id's own.
fn make_qp(id: *mut rdma_cm_id, qp_type: ibv_qp_type) {
    let mut attr = qp_attr(qp_type);
    // SAFETY: the id is live.
    good(unsafe { (cm().rdma_create_qp)(id, ptr::null_mut(), &raw mut attr) });
    // SAFETY: the id is live.
    unsafe {
        assert_eq!((attr.send_cq, attr.recv_cq), ((*id).send_cq, (*id).recv_cq));
        assert!(!(*id).qp.is_null() && !(*id).send_cq.is_null() && !(*id).recv_cq_channel.is_null());
    }
}

fn state_of(qp: *mut ibv_qp) -> ibv_qp_state {
    let (mut attr, mut init) = (ibv_qp_attr::default(), ibv_qp_init_attr::default());
    // SAFETY: the queue pair is live.
    let result = unsafe {
        (verbs_table().ibv_query_qp)(
            qp,
            &raw mut attr,
            ibv_qp_attr_mask::IBV_QP_STATE.0 as c_int,
            &raw mut init,
        )
    };
    assert_eq!(result, 0);
    attr.qp_state
}

/// Sends some bytes from one id's queue pair to the other's, and waits for both completions.
fn message(from: *mut rdma_cm_id, to: *mut rdma_cm_id) {
    use rdma_mummy_sys::rdmacm::*;
    let (lib, mut source, mut sink) = (verbs_table(), *b"over the connection", [0u8; 32]);
    // SAFETY: the ids have queue pairs; the buffers live until the completions have come.
    unsafe {
        let mr = rdma_reg_msgs(lib, to, sink.as_mut_ptr().cast(), sink.len());
        assert_ne!(mr, ptr::null_mut());
        good(rdma_post_recv(to, ptr::null_mut(), sink.as_mut_ptr().cast(), sink.len(), mr));
        let flags = ibv_send_flags::IBV_SEND_INLINE.0 as c_int;
        let source = source.as_mut_ptr().cast::<c_void>();
        good(rdma_post_send(from, ptr::null_mut(), source, 19, ptr::null_mut(), flags));
        let mut wc = ibv_wc::default();
        assert_eq!(rdma_get_recv_comp(lib, to, &raw mut wc), 1);
        assert_eq!((wc.status, wc.byte_len), (ibv_wc_status::IBV_WC_SUCCESS, 19));
        assert_eq!(rdma_get_send_comp(lib, from, &raw mut wc), 1);
        assert_eq!(wc.status, ibv_wc_status::IBV_WC_SUCCESS);
        good(rdma_dereg_mr(lib, mr));
    }
    assert_eq!(&sink[..19], b"over the connection");
}

/// Destroys an id with its queue pair.
fn destroy(id: *mut rdma_cm_id) {
    // SAFETY: the id is live, and its events are acknowledged.
    unsafe {
        if !(*id).qp.is_null() {
            (cm().rdma_destroy_qp)(id);
        }
        good((cm().rdma_destroy_id)(id));
    }
}

fn destroy_all(ids: &[*mut rdma_cm_id]) {
    ids.iter().for_each(|id| destroy(*id));
}

/// Two ends, connected, with a queue pair each: the active one, and the passive one.
fn connected(channel: &TestChannel) -> [*mut rdma_cm_id; 2] {
    use rdma_cm_event_type as CmEventKind;
    let (listener, port) = listener(channel, rdma_port_space::RDMA_PS_TCP, loopback(0));
    let active = routed(channel, rdma_port_space::RDMA_PS_TCP, port);
    make_qp(active, ibv_qp_type::IBV_QPT_RC);
    let mut asked = param(b"ask");
    // SAFETY: the ids are live, the parameters valid.
    let passive = unsafe {
        good((cm().rdma_connect)(active, &raw mut asked));
        let request = channel.expect(CmEventKind::RDMA_CM_EVENT_CONNECT_REQUEST);
        let passive = request.id();
        make_qp(passive, ibv_qp_type::IBV_QPT_RC);
        let mut answer = param(b"answer");
        good((cm().rdma_accept)(passive, &raw mut answer));
        passive
    };
    channel.done(CmEventKind::RDMA_CM_EVENT_ESTABLISHED);
    channel.done(CmEventKind::RDMA_CM_EVENT_ESTABLISHED);
    destroy(listener);
    [active, passive]
}

/// The bytes of an address in a GID.
fn gid_of(address: Ipv4Addr) -> ibv_gid {
    ibv_gid { raw: address.to_ipv6_mapped().octets() }
}

/// Polls a queue until something is in it.
fn poll(cq: *mut ibv_cq) -> ibv_wc {
    let mut wc = ibv_wc::default();
    loop {
        // SAFETY: the queue is live.
        match unsafe { verbs::ibv_poll_cq(cq, 1, &raw mut wc) } {
            0 => std::thread::yield_now(),
            found => {
                assert_eq!(found, 1);
                return wc;
            }
        }
    }
}
