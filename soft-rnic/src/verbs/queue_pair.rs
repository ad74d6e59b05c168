//! Verbs of queue pairs and shared receive queues: creating, modifying, querying, destroying,
//! posting.

use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;

use rdma_mummy_sys::Verbs;
use rdma_mummy_sys::types::*;

use super::{admit, failure, number};
use crate::faults::Call;
use crate::objects::acks::Acks;
use crate::objects::c_object::CObject;
use crate::objects::completion::Cq;
use crate::objects::event::EventElement;
use crate::objects::protection_domain::Pd;
use crate::objects::xrc_domain::Xrcd;
use crate::platform::errno;
use crate::queue_pair::c_object::{QpObject, QpState, qp_of};
use crate::queue_pair::xrc::OpenedQp;
use crate::queue_pair::{Qp, QpInit, Srq, post_ex};

type SrqObject = CObject<ibv_srq, SrqState>;

/// The private state of a shared receive queue's C object.
pub(super) struct SrqState {
    srq: Arc<Srq>,
    /// The receiver behind the queue, if it belongs to an XRC domain.
    receiver: Option<Arc<Qp>>,
}

/// The shared receive queue of a pointer.
///
/// # Safety
///
/// `srq` is a live shared receive queue of this device.
#[inline]
unsafe fn srq_of<'a>(srq: *mut ibv_srq) -> &'a Arc<Srq> {
    // SAFETY: the caller guarantees a live queue, which `create_srq` or `create_srq_ex` made.
    &unsafe { SrqObject::state(srq) }.srq
}

/// The receiver behind a shared receive queue, if it belongs to an XRC domain.
///
/// # Safety
///
/// - `srq` is live while the reference is used.
pub(super) unsafe fn receiver_of<'a>(srq: *mut ibv_srq) -> Option<&'a Arc<Qp>> {
    // SAFETY: the caller guarantees that `srq` is live while the reference is used.
    unsafe { SrqObject::state(srq) }.receiver.as_ref()
}

/// The acknowledgements of a queue pair, or of the handle that `ibv_open_qp` made.
///
/// # Safety
///
/// - `qp` is live while the reference is used.
pub(super) unsafe fn qp_acks<'a>(qp: *mut ibv_qp) -> &'a Acks {
    // SAFETY: the caller guarantees that `qp` is live; its struct is extended, as in `qp_of`.
    let state = unsafe { QpObject::state(qp.cast()) };
    state.opened.as_ref().map_or(state.qp.acks(), |opened| opened.acks())
}

/// The acknowledgements of a shared receive queue.
///
/// # Safety
///
/// - `srq` is live while the reference is used.
pub(super) unsafe fn srq_acks<'a>(srq: *mut ibv_srq) -> &'a Acks {
    // SAFETY: the caller guarantees that `srq` is live while the reference is used.
    unsafe { srq_of(srq) }.acks()
}

/// Adds the exported functions to a table.
pub(super) const fn add_to(table: Verbs) -> Verbs {
    Verbs {
        ibv_create_qp: create_qp,
        ibv_modify_qp: modify_qp,
        ibv_query_qp: query_qp,
        ibv_destroy_qp: destroy_qp,
        ibv_qp_to_qp_ex: Some(qp_to_qp_ex),
        ibv_create_srq: create_srq,
        ibv_modify_srq: modify_srq,
        ibv_query_srq: query_srq,
        ibv_destroy_srq: destroy_srq,
        ..table
    }
}

/// Sets the operations in the table of a context.
pub(super) fn install(verbs: &mut verbs_context) {
    verbs.context.ops.post_send = Some(post_send);
    verbs.context.ops.post_recv = Some(post_recv);
    verbs.context.ops.post_srq_recv = Some(post_srq_recv);
    verbs.create_qp_ex = Some(create_qp_ex);
    verbs.create_srq_ex = Some(create_srq_ex);
}

fn null<T>(error: c_int) -> *mut T {
    errno::set(error);
    ptr::null_mut()
}

pub(super) unsafe extern "C" fn create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    // SAFETY: `ibv_create_qp` requires a live protection domain and valid attributes. The extended
    // attributes begin with the classic ones.
    unsafe {
        let comp_mask = ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD.0;
        let mut attr = ibv_qp_init_attr_ex { pd, comp_mask, ..Default::default() };
        (attr.qp_context, attr.send_cq, attr.recv_cq) =
            ((*init).qp_context, (*init).send_cq, (*init).recv_cq);
        (attr.srq, attr.cap, attr.qp_type) = ((*init).srq, (*init).cap, (*init).qp_type);
        attr.sq_sig_all = (*init).sq_sig_all;
        let qp = create((*pd).context, &mut attr);
        if !qp.is_null() {
            (*init).cap = attr.cap;
        }
        qp
    }
}

pub(super) unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    init: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    // SAFETY: `ibv_create_qp_ex` requires an open context and valid attributes, whose objects are
    // live.
    unsafe { create(context, &mut *init) }
}

/// The attributes that `ibv_query_qp` accepts: all of them.
const KNOWN_QUERY: u32 = (ibv_qp_attr_mask::IBV_QP_RATE_LIMIT.0 << 1) - 1;

/// The extended attributes that the mask may name.
const KNOWN_ATTRIBUTES: u32 = ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD.0
    | ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_XRCD.0
    | ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_CREATE_FLAGS.0
    | ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS.0;

/// The flags that a queue pair may be created with. Connected queue pairs ignore this one, which
/// concerns a sender's copies of multicast messages.
const KNOWN_FLAGS: u32 = ibv_qp_create_flags::IBV_QP_CREATE_BLOCK_SELF_MCAST_LB.0;

/// Creates a queue pair with its C part.
///
/// # Safety
///
/// The context is open, and the objects in the attributes are live ones of it.
unsafe fn create(context: *mut ibv_context, init: &mut ibv_qp_init_attr_ex) -> *mut ibv_qp {
    // SAFETY: the caller guarantees that the context is open.
    admit!(unsafe { super::context::context_of(context) }, CreateQp, null);
    let has = |bit: ibv_qp_init_attr_mask| init.comp_mask & bit.0 != 0;
    let create_flags =
        if has(ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_CREATE_FLAGS) { init.create_flags } else { 0 };
    if init.comp_mask & !KNOWN_ATTRIBUTES != 0 || create_flags & !KNOWN_FLAGS != 0 {
        return null(libc::EOPNOTSUPP);
    }
    let extended = has(ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS);
    let operations = if extended { init.send_ops_flags } else { 0 };
    let known = [
        ibv_qp_type::IBV_QPT_RC,
        ibv_qp_type::IBV_QPT_UC,
        ibv_qp_type::IBV_QPT_UD,
        ibv_qp_type::IBV_QPT_XRC_SEND,
        ibv_qp_type::IBV_QPT_XRC_RECV,
    ];
    if !known.contains(&init.qp_type) || operations & !post_ex::operations_of(init.qp_type) != 0 {
        return null(libc::EOPNOTSUPP);
    }
    // SAFETY: the caller guarantees that the objects in the attributes are live ones of the
    // context.
    let plan = unsafe { plan(context, init, create_flags) };
    match plan.and_then(grant) {
        Ok(qp) => {
            init.cap = qp.caps;
            enter(context, init, qp, extended, operations)
        }
        Err(error) => null(error),
    }
}

/// Collects the parts of a queue pair. An XRC initiator has no receives. An XRC target has no
/// queues, and takes the protection domain from its XRC domain.
///
/// # Safety
///
/// As [`create`].
unsafe fn plan(
    context: *mut ibv_context,
    init: &ibv_qp_init_attr_ex,
    create_flags: u32,
) -> Result<QpInit, c_int> {
    let has = |bit: ibv_qp_init_attr_mask| init.comp_mask & bit.0 != 0;
    let (initiator, target) =
        (init.qp_type == ibv_qp_type::IBV_QPT_XRC_SEND, init.qp_type == ibv_qp_type::IBV_QPT_XRC_RECV);
    let with_xrcd = has(ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_XRCD) && !init.xrcd.is_null();
    let with_pd = has(ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD) && !init.pd.is_null();
    let complete = with_pd && !init.send_cq.is_null() && (initiator || !init.recv_cq.is_null());
    let has_all = if target { with_xrcd } else { complete };
    if !has_all || ((initiator || target) && !init.srq.is_null()) {
        return Err(libc::EINVAL);
    }
    // SAFETY: the caller guarantees a live shared receive queue. One of an XRC domain takes
    // messages by its number only.
    if !init.srq.is_null() && unsafe { receiver_of(init.srq) }.is_some() {
        return Err(libc::EINVAL);
    }
    // SAFETY: the caller guarantees that the objects in the attributes are live ones of the
    // context.
    unsafe {
        let xrcd = target.then(|| Arc::clone(super::xrc::xrcd_of(init.xrcd)));
        let (pd, send_cq, recv_cq) = match &xrcd {
            Some(xrcd) => (Arc::clone(xrcd.pd()), Arc::clone(xrcd.cq()), Arc::clone(xrcd.cq())),
            None => {
                let receives = if initiator { init.send_cq } else { init.recv_cq };
                (
                    Arc::clone(super::protection_domain::pd_of(init.pd)),
                    Arc::clone(super::completion_queue::cq_of(init.send_cq)),
                    Arc::clone(super::completion_queue::cq_of(receives)),
                )
            }
        };
        let mut caps = init.cap;
        if initiator || target {
            (caps.max_recv_wr, caps.max_recv_sge) = (0, 0);
        }
        if target {
            caps = ibv_qp_cap::default();
        }
        Ok(QpInit {
            context: super::context::context_of(context),
            pd,
            send_cq,
            recv_cq,
            srq: if init.srq.is_null() { None } else { Some(Arc::clone(srq_of(init.srq))) },
            xrcd,
            qp_type: init.qp_type,
            caps,
            sq_sig_all: init.sq_sig_all != 0,
            create_flags,
        })
    }
}

/// Checks the capacities and creates the queue pair.
fn grant(mut plan: QpInit) -> Result<Arc<Qp>, c_int> {
    let rnic = Arc::clone(plan.context.rnic());
    let (limits, caps) = (rnic.limits(), &mut plan.caps);
    if plan.srq.is_some() {
        (caps.max_recv_wr, caps.max_recv_sge) = (0, 0);
    }
    let within = caps.max_send_wr <= limits.max_qp_wr
        && caps.max_recv_wr <= limits.max_qp_wr
        && caps.max_send_sge <= limits.max_sge
        && caps.max_recv_sge <= limits.max_sge
        && caps.max_inline_data <= limits.max_inline_data;
    if !within {
        return Err(libc::EINVAL);
    }
    Qp::create(&rnic, plan).map_err(|error| errno::refused("ibv_create_qp", &error))
}

/// Creates the C part.
fn enter(
    context: *mut ibv_context,
    init: &ibv_qp_init_attr_ex,
    qp: Arc<Qp>,
    extended: bool,
    operations: u64,
) -> *mut ibv_qp {
    let qp_base = ibv_qp {
        context,
        qp_context: init.qp_context,
        pd: init.pd,
        send_cq: init.send_cq,
        recv_cq: init.recv_cq,
        srq: init.srq,
        handle: qp.number.index,
        qp_num: qp.number.qpn,
        state: ibv_qp_state::IBV_QPS_RESET,
        qp_type: init.qp_type,
        ..ibv_qp::default()
    };
    let mut ex = ibv_qp_ex { qp_base, ..ibv_qp_ex::default() };
    if extended {
        post_ex::install(&mut ex, operations);
    }
    let state = QpState { qp: Arc::clone(&qp), opened: None, extended };
    let object: *mut ibv_qp = QpObject::create(ex, state).cast();
    qp.set_handle(object);
    object
}

/// Creates the C part of a handle that `ibv_open_qp` made.
pub(super) fn enter_opened(
    context: *mut ibv_context,
    qp_context: *mut core::ffi::c_void,
    opened: Arc<OpenedQp>,
) -> *mut ibv_qp {
    let qp = Arc::clone(opened.qp());
    let qp_base = ibv_qp {
        context,
        qp_context,
        handle: qp.number.index,
        qp_num: qp.number.qpn,
        state: qp.state(),
        qp_type: qp.qp_type,
        ..ibv_qp::default()
    };
    let ex = ibv_qp_ex { qp_base, ..ibv_qp_ex::default() };
    let state = QpState { qp, opened: Some(Arc::clone(&opened)), extended: false };
    let object: *mut ibv_qp = QpObject::create(ex, state).cast();
    opened.set_handle(object);
    object
}

pub(super) unsafe extern "C" fn qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    // SAFETY: `ibv_qp_to_qp_ex` requires a live queue pair.
    let extended = unsafe { QpObject::state(qp.cast()) }.extended;
    if extended { qp.cast() } else { ptr::null_mut() }
}

pub(super) unsafe extern "C" fn modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    // SAFETY: `ibv_modify_qp` requires a live queue pair and valid attributes. The library alone
    // writes the state.
    unsafe {
        let state = qp_of(qp);
        admit!(state.context, ModifyQp, failure);
        match state.modify(&*attr, mask as u32) {
            Ok(()) => {
                if mask as u32 & ibv_qp_attr_mask::IBV_QP_STATE.0 != 0 {
                    (*qp).state = (*attr).qp_state;
                }
                0
            }
            Err(error) => {
                errno::set(error);
                error
            }
        }
    }
}

pub(super) unsafe extern "C" fn query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    if mask as u32 & !KNOWN_QUERY != 0 {
        errno::set(libc::EOPNOTSUPP);
        return libc::EOPNOTSUPP;
    }
    // SAFETY: `ibv_query_qp` requires a live queue pair and valid result pointers.
    unsafe {
        admit!(qp_of(qp).context, QueryQp, failure);
        *init = ibv_qp_init_attr { qp_context: (*qp).qp_context, ..ibv_qp_init_attr::default() };
        if let Err(error) = qp_of(qp).query(&mut *attr, &mut *init) {
            return number(Err(error));
        }
        (*qp).state = (*attr).qp_state;
    }
    0
}

pub(super) unsafe extern "C" fn destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: `ibv_destroy_qp` requires a live queue pair, and forbids any use after a success.
    unsafe {
        let (state, opened) = (Arc::clone(qp_of(qp)), QpObject::state(qp.cast()).opened.clone());
        admit!(state.context, DestroyQp, failure);
        let ended = if state.xrcd.is_some() { state.close(opened.as_ref()) } else { state.destroy() };
        if let Err(error) = ended {
            errno::set(error);
            return error;
        }
        match &opened {
            None => {
                state.set_handle(ptr::null_mut());
                let is_it = |element: &EventElement| matches!(element, EventElement::Qp(other) if Arc::ptr_eq(other, &state));
                state.context.events().forget(is_it);
                state.acks().wait();
            }
            Some(opened) => {
                opened.set_handle(ptr::null_mut());
                let is_it = |element: &EventElement| matches!(element, EventElement::Opened(other) if Arc::ptr_eq(other, opened));
                opened.context().events().forget(is_it);
                opened.acks().wait();
            }
        }
        drop(QpObject::destroy(qp.cast()));
    }
    0
}

/// Reports the refused request in `bad`.
///
/// # Safety
///
/// `bad` is valid for writing.
unsafe fn refused<W>(result: Result<(), (c_int, *mut W)>, bad: *mut *mut W) -> c_int {
    match result {
        Ok(()) => 0,
        Err((error, wr)) => {
            // SAFETY: the caller guarantees that `bad` is valid for writing.
            unsafe { *bad = wr };
            error
        }
    }
}

pub(super) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: `ibv_post_send` requires a live queue pair, a valid list and a valid `bad` pointer.
    unsafe { refused(qp_of(qp).post_sends(wr), bad) }
}

pub(super) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: `ibv_post_recv` requires a live queue pair, a valid list and a valid `bad` pointer.
    unsafe { refused(qp_of(qp).post_receives(wr), bad) }
}

pub(super) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: `ibv_post_srq_recv` requires a live queue, a valid list and a valid `bad` pointer.
    unsafe {
        let state = srq_of(srq);
        match state.context().admit(Call::PostSrqRecv) {
            Ok(()) => refused(state.post(wr), bad),
            Err(error) => refused(Err((error, wr)), bad),
        }
    }
}

pub(super) unsafe extern "C" fn create_srq(pd: *mut ibv_pd, init: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    // SAFETY: `ibv_create_srq` requires a live protection domain and valid attributes.
    unsafe {
        let (context, srq_context) = ((*pd).context, (*init).srq_context);
        new_srq(context, super::protection_domain::pd_of(pd), pd, srq_context, &mut (*init).attr, None)
    }
}

pub(super) unsafe extern "C" fn create_srq_ex(
    context: *mut ibv_context,
    init: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    use ibv_srq_init_attr_mask as M;
    let known = M::IBV_SRQ_INIT_ATTR_TYPE.0
        | M::IBV_SRQ_INIT_ATTR_PD.0
        | M::IBV_SRQ_INIT_ATTR_XRCD.0
        | M::IBV_SRQ_INIT_ATTR_CQ.0;
    // SAFETY: `ibv_create_srq_ex` requires an open context and valid attributes, whose objects are
    // live.
    unsafe {
        let has = |bit: M| (*init).comp_mask & bit.0 != 0;
        let srq_type =
            if has(M::IBV_SRQ_INIT_ATTR_TYPE) { (*init).srq_type } else { ibv_srq_type::IBV_SRQT_BASIC };
        let xrc = srq_type == ibv_srq_type::IBV_SRQT_XRC;
        if (*init).comp_mask & !known != 0 || !(xrc || srq_type == ibv_srq_type::IBV_SRQT_BASIC) {
            return null(libc::EOPNOTSUPP);
        }
        let with_xrcd = has(M::IBV_SRQ_INIT_ATTR_XRCD) && !(*init).xrcd.is_null();
        let with_cq = has(M::IBV_SRQ_INIT_ATTR_CQ) && !(*init).cq.is_null();
        let whole = has(M::IBV_SRQ_INIT_ATTR_PD) && !(*init).pd.is_null();
        if !whole || (xrc && !(with_xrcd && with_cq)) {
            return null(libc::EINVAL);
        }
        let pd = (*init).pd;
        let ends =
            xrc.then(|| (super::completion_queue::cq_of((*init).cq), super::xrc::xrcd_of((*init).xrcd)));
        let (srq_context, attr) = ((*init).srq_context, &mut (*init).attr);
        new_srq(context, super::protection_domain::pd_of(pd), pd, srq_context, attr, ends)
    }
}

fn new_srq(
    context: *mut ibv_context,
    pd: &Arc<Pd>,
    pd_handle: *mut ibv_pd,
    srq_context: *mut core::ffi::c_void,
    attr: &mut ibv_srq_attr,
    xrc: Option<(&Arc<Cq>, &Arc<Xrcd>)>,
) -> *mut ibv_srq {
    admit!(pd.context(), CreateSrq, null);
    let rnic = pd.context().rnic();
    let limits = rnic.limits();
    if attr.max_wr == 0 || attr.max_wr > limits.max_srq_wr || attr.max_sge > limits.max_srq_sge {
        return null(libc::EINVAL);
    }
    let max_sge = attr.max_sge.max(1);
    let made = Srq::create(rnic, pd.context(), pd, attr.max_wr, max_sge).and_then(|srq| {
        let receiver = xrc.map(|(cq, xrcd)| Qp::receive_for(&srq, cq, xrcd)).transpose();
        if receiver.is_err() {
            // The program has not seen the queue.
            let _ = srq.destroy();
        }
        Ok((srq, receiver?))
    });
    match made {
        Ok((srq, receiver)) => {
            attr.max_sge = max_sge;
            let c =
                ibv_srq { context, srq_context, pd: pd_handle, handle: srq.index(), ..ibv_srq::default() };
            let object = SrqObject::create(c, SrqState { srq: Arc::clone(&srq), receiver });
            srq.set_handle(object);
            object
        }
        Err(error) => null(errno::refused("ibv_create_srq", &error)),
    }
}

pub(super) unsafe extern "C" fn modify_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) -> c_int {
    // SAFETY: `ibv_modify_srq` requires a live queue.
    let state = unsafe { srq_of(srq) };
    admit!(state.context(), ModifySrq, failure);
    // SAFETY: `ibv_modify_srq` requires valid attributes.
    match state.modify(unsafe { &*attr }, mask as u32) {
        Ok(()) => 0,
        Err(error) => {
            errno::set(error);
            error
        }
    }
}

pub(super) unsafe extern "C" fn query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    // SAFETY: `ibv_query_srq` requires a live queue and a valid result pointer.
    unsafe {
        let state = srq_of(srq);
        admit!(state.context(), QuerySrq, failure);
        number(state.query(&mut *attr))
    }
}

pub(super) unsafe extern "C" fn destroy_srq(srq: *mut ibv_srq) -> c_int {
    // SAFETY: `ibv_destroy_srq` requires a live queue, and forbids any use after a success.
    unsafe {
        let (state, receiver) = (Arc::clone(srq_of(srq)), receiver_of(srq));
        admit!(state.context(), DestroySrq, failure);
        // The receiver uses the queue, so it is destroyed first. If that fails, both stay.
        if let Some(error) = receiver.and_then(|receiver| receiver.destroy().err()) {
            errno::set(error);
            return error;
        }
        if let Err(error) = state.destroy() {
            errno::set(error);
            return error;
        }
        state.set_handle(ptr::null_mut());
        state
            .context()
            .events()
            .forget(|element| matches!(element, EventElement::Srq(other) if Arc::ptr_eq(other, &state)));
        state.acks().wait();
        drop(SrqObject::destroy(srq));
    }
    0
}
