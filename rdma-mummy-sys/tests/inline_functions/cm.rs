//! The inline functions of the connection manager's headers.

use core::ffi::{c_int, c_void};
use core::mem::offset_of;
use std::cell::RefCell;
use std::collections::VecDeque;

use rdma_mummy_sys::types::*;
use rdma_mummy_sys::{Verbs, rdmacm};

use super::fake::*;
use super::word::*;

/// An identifier with all objects of a connected one.
struct ConnectedId {
    context: FakeContext,
    qp: HeldObject<ibv_qp>,
    srq: HeldObject<ibv_srq>,
    send_cq: HeldObject<ibv_cq>,
    recv_cq: HeldObject<ibv_cq>,
    id: Fake<rdma_cm_id>,
}

impl ConnectedId {
    fn new(release: Release) -> Self {
        let context = FakeContext::shorter_by(release.verbs_context);
        let id = Fake::new();
        let (qp, srq) = (ibv_qp::on(&context), ibv_srq::on(&context));
        let (send_cq, recv_cq) = (ibv_cq::on(&context), ibv_cq::on(&context));
        set!(id, rdma_cm_id, pd = AbiWord::sample(50));
        set!(id, rdma_cm_id, qp = qp.ptr);
        set!(id, rdma_cm_id, send_cq = send_cq.ptr);
        set!(id, rdma_cm_id, recv_cq = recv_cq.ptr);
        set!(id, rdma_cm_id, send_cq_channel = AbiWord::sample(51));
        set!(id, rdma_cm_id, recv_cq_channel = AbiWord::sample(52));
        set!(context.0, verbs_context, context.ops.post_send = Some(post_send));
        set!(context.0, verbs_context, context.ops.post_recv = Some(post_recv));
        set!(context.0, verbs_context, context.ops.post_srq_recv = Some(post_srq_recv));
        set!(context.0, verbs_context, context.ops.poll_cq = Some(poll_cq));
        set!(context.0, verbs_context, context.ops.req_notify_cq = Some(req_notify_cq));
        Self { context, qp, srq, send_cq, recv_cq, id }
    }
}

thread_local! {
    /// The return values of the operations, in the order of the calls; 0 afterwards.
    static RESULTS: RefCell<VecDeque<c_int>> = const { RefCell::new(VecDeque::new()) };
}

fn next_result() -> c_int {
    RESULTS.with_borrow_mut(VecDeque::pop_front).unwrap_or(0)
}

fn will_return(results: &[c_int]) {
    RESULTS.with_borrow_mut(|queue| *queue = results.iter().copied().collect());
}

/// The entries of a request, as numbers.
///
/// # Safety
///
/// `list` points to `n` entries.
unsafe fn pieces(list: *const ibv_sge, n: c_int) -> Vec<u64> {
    // SAFETY: the list has this many entries (`# Safety`).
    let each = (0..n as usize).map(|at| unsafe { list.add(at).read() });
    each.flat_map(|piece| [piece.addr, piece.length.word(), piece.lkey.word()]).collect()
}

unsafe extern "C" fn post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad: *mut *mut ibv_send_wr) -> c_int {
    assert!(!bad.is_null());
    // SAFETY: the request is live and initialised, including the members that its operation does
    // not use.
    let (request, list) = unsafe { (*wr, pieces((*wr).sg_list, (*wr).num_sge)) };
    assert!(request.next.is_null());
    let mut words = vec![qp.word(), request.wr_id, u64::from(request.opcode.0), request.send_flags.word()];
    // SAFETY: every member of the union is initialised, because the function under test zeroes
    // those that it does not set.
    unsafe {
        let ud = request.wr.ud;
        words.extend([ud.ah.word(), ud.remote_qpn.word(), ud.remote_qkey.word()]);
    }
    words.extend(list);
    record("post_send", words);
    next_result()
}

unsafe extern "C" fn post_recv(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr) -> c_int {
    // SAFETY: the request is live and initialised.
    unsafe { record_recv("post_recv", qp.word(), wr, bad) }
}

unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the request is live and initialised.
    unsafe { record_recv("post_srq_recv", srq.word(), wr, bad) }
}

/// # Safety
///
/// The request is live and initialised.
unsafe fn record_recv(
    operation: &'static str,
    queue: u64,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    assert!(!bad.is_null());
    // SAFETY: the request is live and initialised (`# Safety`).
    let (request, list) = unsafe { (*wr, pieces((*wr).sg_list, (*wr).num_sge)) };
    assert!(request.next.is_null());
    record(operation, [vec![queue, request.wr_id], list].concat());
    next_result()
}

unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, n: c_int, wc: *mut ibv_wc) -> c_int {
    record("poll_cq", vec![cq.word(), n.word(), wc.word()]);
    next_result()
}

unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited: c_int) -> c_int {
    record("req_notify_cq", vec![cq.word(), solicited.word()]);
    next_result()
}

/// Returns an event of the completion queue that the channel was made for in [`ConnectedId`].
unsafe extern "C" fn get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    context: *mut *mut c_void,
) -> c_int {
    record("ibv_get_cq_event", vec![channel.word()]);
    // SAFETY: the caller gave valid pointers.
    unsafe {
        cq.write(EVENT_CQ.get());
        context.write(core::ptr::null_mut());
    }
    next_result()
}

thread_local! {
    static EVENT_CQ: std::cell::Cell<*mut ibv_cq> = const { std::cell::Cell::new(core::ptr::null_mut()) };
}

fn table() -> Verbs {
    Verbs {
        ibv_reg_mr: recorder!(ibv_reg_mr(
            pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int,
        ) -> *mut ibv_mr),
        ibv_dereg_mr: dereg_mr,
        ibv_get_cq_event: get_cq_event,
        ibv_ack_cq_events: recorder!(ibv_ack_cq_events(cq: *mut ibv_cq, n: u32)),
        ..Verbs::unsupported()
    }
}

unsafe extern "C" fn dereg_mr(mr: *mut ibv_mr) -> c_int {
    record("ibv_dereg_mr", vec![mr.word()]);
    next_result()
}

const WR_ID: u64 = 0x77_000;
/// The address of the entries, in a region of 0x100 bytes.
const START: u64 = 0x10_000;
const LKEY: u32 = 0x1234;

fn context() -> *mut c_void {
    AbiWord::sample(0x77)
}

fn region() -> Fake<ibv_mr> {
    let mr = Fake::new();
    set!(mr, ibv_mr, addr = <*mut c_void>::sample(0x10));
    set!(mr, ibv_mr, length = 0x100);
    set!(mr, ibv_mr, lkey = LKEY);
    mr
}

fn piece(n: u64) -> ibv_sge {
    ibv_sge { addr: START + n, length: 8, lkey: LKEY }
}

/// The destination of an RDMA request as numbers, read as the datagram's member of the union.
fn remote(addr: u64, rkey: u32) -> [u64; 3] {
    [addr, rkey.word(), 0]
}

/// Calls a posting function in each release, once with success and once with an error of the
/// device.
fn check_post(
    operation: &'static str,
    expected: &dyn Fn(&ConnectedId) -> Vec<u64>,
    post: &dyn Fn(*mut rdma_cm_id) -> c_int,
) {
    for release in RELEASES {
        let connected = ConnectedId::new(release);
        check_post_on(&connected, operation, &expected(&connected), post);
    }
}

fn check_post_on(
    connected: &ConnectedId,
    operation: &'static str,
    expected: &[u64],
    post: &dyn Fn(*mut rdma_cm_id) -> c_int,
) {
    for (result, returned, error) in [(0, 0, 0), (libc::ENOMEM, -1, libc::ENOMEM)] {
        will_return(&[result]);
        clear_errno();
        assert_eq!(post(connected.id.ptr()), returned);
        assert_eq!(errno(), error);
        assert_called(operation, expected);
    }
}

fn sent(
    opcode: ibv_wr_opcode,
    destination: [u64; 3],
    pieces: &[ibv_sge],
) -> impl Fn(&ConnectedId) -> Vec<u64> {
    let list: Vec<u64> =
        pieces.iter().flat_map(|piece| [piece.addr, piece.length.word(), piece.lkey.word()]).collect();
    move |connected| {
        let request = vec![connected.qp.ptr.word(), WR_ID, u64::from(opcode.0), 2];
        [request, destination.to_vec(), list.clone()].concat()
    }
}

const SEND: ibv_wr_opcode = ibv_wr_opcode::IBV_WR_SEND;
const READ: ibv_wr_opcode = ibv_wr_opcode::IBV_WR_RDMA_READ;
const WRITE: ibv_wr_opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE;
const NOWHERE: [u64; 3] = [0; 3];
/// A peer's address whose upper half is the datagram's second word, so that a mix-up would show.
const PEER: u64 = 0x1_2345_6789;

/// Checks each step of [`wait`], for a completion that arrives during the sleep.
fn check_wait(
    function: unsafe fn(&Verbs, *mut rdma_cm_id, *mut ibv_wc) -> c_int,
    cq_of: fn(&ConnectedId) -> *mut ibv_cq,
    channel: u64,
) {
    let lib = table();
    let wc = <*mut ibv_wc>::sample(9);
    let channel = <*mut ibv_comp_channel>::sample(channel).word();
    for release in RELEASES {
        let connected = ConnectedId::new(release);
        let cq = cq_of(&connected);
        EVENT_CQ.set(cq);
        let poll = ("poll_cq", vec![cq.word(), 1, wc.word()]);
        let arm = ("req_notify_cq", vec![cq.word(), 0]);
        let sleep = ("ibv_get_cq_event", vec![channel]);
        let acknowledge = ("ibv_ack_cq_events", vec![cq.word(), 1]);
        // Results of the steps, the returned value, `errno`, and the steps.
        let scripts = [
            (vec![1], 1, 0, vec![&poll]),
            (vec![-5], -1, -5, vec![&poll]),
            (vec![0, libc::EINVAL], -1, libc::EINVAL, vec![&poll, &arm]),
            (vec![0, 0, 1], 1, 0, vec![&poll, &arm, &poll]),
            (vec![0, 0, 0, -1], -1, 0, vec![&poll, &arm, &poll, &sleep]),
            (vec![0, 0, 0, 0, 1], 1, 0, vec![&poll, &arm, &poll, &sleep, &acknowledge, &poll]),
        ];
        for (results, returned, error, steps) in scripts {
            will_return(&results);
            clear_errno();
            // SAFETY: the identifier is live and has all objects of a connected one.
            assert_eq!(unsafe { function(&lib, connected.id.ptr(), wc) }, returned, "{results:?}");
            assert_eq!(errno(), error, "{results:?}");
            let done: Vec<_> = calls().into_iter().map(|call| (call.operation, call.arguments)).collect();
            let expected: Vec<_> = steps.into_iter().cloned().collect();
            assert_eq!(done, expected, "{results:?}");
        }
    }
}

/// Calls a function that registers memory.
fn check_register(
    function: unsafe fn(&Verbs, *mut rdma_cm_id, *mut c_void, usize) -> *mut ibv_mr,
    access: u64,
) {
    for release in RELEASES {
        let connected = ConnectedId::new(release);
        let addr = AbiWord::sample(3);
        // SAFETY: the identifier is live, the memory is not used.
        let mr = unsafe { function(&table(), connected.id.ptr(), addr, 4) };
        assert_eq!(mr, AbiWord::sample(RESULT));
        assert_called("ibv_reg_mr", &[<*mut ibv_pd>::sample(50).word(), addr.word(), 4, access]);
    }
}

tests! {
    fn rdma_get_local_addr() {
        let id = Fake::<rdma_cm_id>::new();
        // SAFETY: the identifier is live.
        let addr = unsafe { rdmacm::rdma_get_local_addr(id.ptr()) };
        assert_eq!(addr.addr() - id.ptr().addr(), offset_of!(rdma_cm_id, route));
        // SAFETY: the address has the size of the largest kind.
        unsafe { (*addr.cast::<libc::sockaddr_storage>()).ss_family = 10 };
        // SAFETY: the identifier is live and initialised.
        assert_eq!(unsafe { (*id.ptr()).route.addr.__bindgen_anon_1.src_sin6.sin6_family }, 10);
    }

    fn rdma_get_peer_addr() {
        let id = Fake::<rdma_cm_id>::new();
        // SAFETY: the identifier is live.
        let addr = unsafe { rdmacm::rdma_get_peer_addr(id.ptr()) };
        assert_eq!(addr.addr() - id.ptr().addr(), offset_of!(rdma_cm_id, route) + 128);
        // SAFETY: the address has the size of the largest kind.
        unsafe { (*addr.cast::<libc::sockaddr_storage>()).ss_family = 2 };
        // SAFETY: the identifier is live and initialised.
        assert_eq!(unsafe { (*id.ptr()).route.addr.__bindgen_anon_2.dst_sin.sin_family }, 2);
    }

    fn rdma_seterrno() {
        clear_errno();
        assert_eq!(rdmacm::rdma_seterrno(0), 0);
        assert_eq!(errno(), 0);
        assert_eq!(rdmacm::rdma_seterrno(libc::EAGAIN), -1);
        assert_eq!(errno(), libc::EAGAIN);
    }

    fn rdma_reg_msgs() {
        check_register(rdmacm::rdma_reg_msgs, 1);
    }

    fn rdma_reg_read() {
        check_register(rdmacm::rdma_reg_read, 1 | 1 << 2);
    }

    fn rdma_reg_write() {
        check_register(rdmacm::rdma_reg_write, 1 | 1 << 1);
    }

    fn rdma_dereg_mr() {
        let mr = AbiWord::sample(1);
        for (result, returned, error) in [(0, 0, 0), (libc::EBUSY, -1, libc::EBUSY)] {
            will_return(&[result]);
            clear_errno();
            // SAFETY: the recorder does not access the region.
            assert_eq!(unsafe { rdmacm::rdma_dereg_mr(&table(), mr) }, returned);
            assert_eq!(errno(), error);
            assert_called("ibv_dereg_mr", &[mr.word()]);
        }
    }

    fn rdma_post_recvv() {
        let mut list = [piece(0), piece(16)];
        let list = (&raw mut list).cast();
        let words = [WR_ID, START, 8, LKEY.word(), START + 16, 8, LKEY.word()];
        // SAFETY: the identifier is live, and the pieces are.
        let post = |id| unsafe { rdmacm::rdma_post_recvv(id, context(), list, 2) };
        for release in RELEASES {
            let connected = ConnectedId::new(release);
            let expected = [&[connected.qp.ptr.word()], &words[..]].concat();
            check_post_on(&connected, "post_recv", &expected, &post);
            set!(connected.id, rdma_cm_id, srq = connected.srq.ptr);
            let expected = [&[connected.srq.ptr.word()], &words[..]].concat();
            check_post_on(&connected, "post_srq_recv", &expected, &post);
            // The other operation would do as little without a queue pair.
            set!(connected.id, rdma_cm_id, qp = core::ptr::null_mut());
            check_post_on(&connected, "post_srq_recv", &expected, &post);
            assert!(!connected.context.ptr().is_null());
        }
    }

    fn rdma_post_sendv() {
        let mut list = [piece(0), piece(16)];
        let pointer = (&raw mut list).cast();
        check_post("post_send", &sent(SEND, NOWHERE, &[piece(0), piece(16)]), &|id| {
            // SAFETY: the identifier is live, and the pieces are.
            unsafe { rdmacm::rdma_post_sendv(id, context(), pointer, 2, 2) }
        });
    }

    fn rdma_post_readv() {
        let mut list = [piece(0), piece(16)];
        let pointer = (&raw mut list).cast();
        check_post("post_send", &sent(READ, remote(PEER, 0x55), &[piece(0), piece(16)]), &|id| {
            // SAFETY: the identifier is live, and the pieces are.
            unsafe { rdmacm::rdma_post_readv(id, context(), pointer, 2, 2, PEER, 0x55) }
        });
    }

    fn rdma_post_writev() {
        let mut list = [piece(0), piece(16)];
        let pointer = (&raw mut list).cast();
        check_post("post_send", &sent(WRITE, remote(PEER, 0x55), &[piece(0), piece(16)]), &|id| {
            // SAFETY: the identifier is live, and the pieces are.
            unsafe { rdmacm::rdma_post_writev(id, context(), pointer, 2, 2, PEER, 0x55) }
        });
    }

    fn rdma_post_recv() {
        let mr = region();
        let expected = |connected: &ConnectedId| vec![connected.qp.ptr.word(), WR_ID, START, 0x100, LKEY.word()];
        check_post("post_recv", &expected, &|id| {
            // SAFETY: identifier and region are live, and the piece is the whole region.
            unsafe { rdmacm::rdma_post_recv(id, context(), AbiWord::sample(0x10), 0x100, mr.ptr()) }
        });
    }

    fn rdma_post_send() {
        let mr = region();
        for (mr, lkey) in [(mr.ptr(), LKEY), (core::ptr::null_mut(), 0)] {
            check_post("post_send", &sent(SEND, NOWHERE, &[ibv_sge { lkey, ..piece(0) }]), &|id| {
                // SAFETY: identifier and region are live.
                unsafe { rdmacm::rdma_post_send(id, context(), AbiWord::sample(0x10), 8, mr, 2) }
            });
        }
    }

    fn rdma_post_read() {
        let mr = region();
        check_post("post_send", &sent(READ, remote(PEER, 0x55), &[piece(0)]), &|id| {
            // SAFETY: identifier and region are live.
            unsafe { rdmacm::rdma_post_read(id, context(), AbiWord::sample(0x10), 8, mr.ptr(), 2, PEER, 0x55) }
        });
    }

    fn rdma_post_write() {
        let mr = region();
        for (mr, lkey) in [(mr.ptr(), LKEY), (core::ptr::null_mut(), 0)] {
            check_post("post_send", &sent(WRITE, remote(PEER, 0x55), &[ibv_sge { lkey, ..piece(0) }]), &|id| {
                // SAFETY: identifier and region are live.
                unsafe { rdmacm::rdma_post_write(id, context(), AbiWord::sample(0x10), 8, mr, 2, PEER, 0x55) }
            });
        }
    }

    fn rdma_post_ud_send() {
        let mr = region();
        let ah = <*mut ibv_ah>::sample(4);
        let destination = [ah.word(), 0x66, 0x0123_4567];
        for (mr, lkey) in [(mr.ptr(), LKEY), (core::ptr::null_mut(), 0)] {
            check_post("post_send", &sent(SEND, destination, &[ibv_sge { lkey, ..piece(0) }]), &|id| {
                // SAFETY: identifier and region are live; the address handle is only handed on.
                unsafe { rdmacm::rdma_post_ud_send(id, context(), AbiWord::sample(0x10), 8, mr, 2, ah, 0x66) }
            });
        }
    }

    fn rdma_get_send_comp() {
        check_wait(rdmacm::rdma_get_send_comp, |connected| connected.send_cq.ptr, 51);
    }

    fn rdma_get_recv_comp() {
        check_wait(rdmacm::rdma_get_recv_comp, |connected| connected.recv_cq.ptr, 52);
    }
}
