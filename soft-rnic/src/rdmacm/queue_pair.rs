//! Queue pairs of ids: `rdma_create_qp` with the objects that it needs, and the state transitions
//! of a connection.

use std::ffi::c_int;
use std::ptr;

use rdma_mummy_sys::types::*;
use rdma_mummy_sys::verbs;

use super::id::{CmIdState, id_of};
use super::{check, check_pointer, ece, finish, lib};
use crate::objects::setup::ProcessSetup;

/// The least inline capacity, in bytes, of an id's queue pair: the room of one scatter-gather
/// entry. Some programs send inline without asking for it.
const LEAST_INLINE: u32 = 16;

pub(super) fn is_datagram(qp_type: ibv_qp_type) -> bool {
    qp_type == ibv_qp_type::IBV_QPT_UD
}

/// Makes the id's completion queues with these lengths, each with a completion channel. A length of
/// 0 makes none.
///
/// # Safety
///
/// - `id` is live and bound to a device.
pub(super) unsafe fn create_cqs(id: *mut rdma_cm_id, send: u32, receive: u32) -> Result<(), c_int> {
    // SAFETY: the caller guarantees that `id` is live and bound to a device.
    let created = unsafe {
        let receive = create_cq(id, receive, &raw mut (*id).recv_cq_channel, &raw mut (*id).recv_cq);
        receive.and_then(|()| create_cq(id, send, &raw mut (*id).send_cq_channel, &raw mut (*id).send_cq))
    };
    if created.is_err() {
        // SAFETY: the caller guarantees that `id` is live; no queue pair uses the new queues yet.
        unsafe { destroy_cqs(id) };
    }
    created
}

/// # Safety
///
/// - `id` is live and bound to a device; `channel` and `cq` point to fields of it.
unsafe fn create_cq(
    id: *mut rdma_cm_id,
    length: u32,
    channel: *mut *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
) -> Result<(), c_int> {
    if length == 0 {
        return Ok(());
    }
    let length = c_int::try_from(length).map_err(|_| libc::EINVAL)?;
    // SAFETY: the caller guarantees that `id` is live and bound to a device, and that `channel` and
    // `cq` are its fields.
    unsafe {
        *channel = check_pointer((lib().ibv_create_comp_channel)((*id).verbs))?;
        *cq = check_pointer((lib().ibv_create_cq)((*id).verbs, length, id.cast(), *channel, 0))?;
    }
    Ok(())
}

/// Destroys the completion queues that the id owns, and their channels.
///
/// # Safety
///
/// - `id` is live, and no queue of it uses them.
pub(super) unsafe fn destroy_cqs(id: *mut rdma_cm_id) {
    // SAFETY: the caller guarantees that `id` is live, and that no queue of it uses them.
    unsafe {
        if (*id).qp_type == ibv_qp_type::IBV_QPT_XRC_RECV && !(*id).srq.is_null() {
            return; // The shared receive queue completes there.
        }
        let destroyed = |object: &str, error: c_int| {
            if error != 0 {
                // Some programs attach other ids' queue pairs to this queue, and rely on the
                // process exit.
                log::info!("the {object} of an id could not be destroyed: error {error}");
            }
        };
        for field in [&raw mut (*id).recv_cq, &raw mut (*id).send_cq] {
            let cq = field.replace(ptr::null_mut());
            if !cq.is_null() {
                destroyed("completion queue", (lib().ibv_destroy_cq)(cq));
            }
        }
        for field in [&raw mut (*id).recv_cq_channel, &raw mut (*id).send_cq_channel] {
            let channel = field.replace(ptr::null_mut());
            if !channel.is_null() {
                destroyed("completion channel", (lib().ibv_destroy_comp_channel)(channel));
            }
        }
    }
}

/// Makes the id's queue pair, and the objects that the program has left out.
///
/// # Safety
///
/// - `id` is live, `attr` is valid, and the objects that it names are live.
unsafe fn create(id: *mut rdma_cm_id, attr: &mut ibv_qp_init_attr_ex) -> Result<(), c_int> {
    const PD: u32 = ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD.0;
    const XRCD: u32 = ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_XRCD.0;
    // SAFETY: the caller guarantees that `id` is live, that `attr` is valid, and that the objects
    // it names are live.
    unsafe {
        let state = id_of(id);
        if !(*id).qp.is_null() || (*id).verbs.is_null() {
            return Err(libc::EINVAL);
        }
        if attr.comp_mask & PD == 0 || attr.pd.is_null() {
            attr.comp_mask |= PD;
            attr.pd = (*id).pd;
        } else if (*attr.pd).context != (*id).verbs {
            return Err(libc::EINVAL);
        }
        let differ =
            |own: *mut ibv_cq, given: *mut ibv_cq| !own.is_null() && !given.is_null() && own != given;
        if differ((*id).recv_cq, attr.recv_cq) || differ((*id).send_cq, attr.send_cq) {
            return Err(libc::EINVAL);
        }
        if (*id).qp_type == ibv_qp_type::IBV_QPT_XRC_RECV
            && (attr.comp_mask & XRCD == 0 || attr.xrcd.is_null())
        {
            attr.xrcd = xrcd(state)?;
            attr.comp_mask |= XRCD;
        }
        let length = |own: *mut ibv_cq, given: *mut ibv_cq, length| {
            if own.is_null() && given.is_null() { length } else { 0 }
        };
        let send = length((*id).send_cq, attr.send_cq, attr.cap.max_send_wr);
        let receive = length((*id).recv_cq, attr.recv_cq, attr.cap.max_recv_wr);
        create_cqs(id, send, receive)?;
        if attr.cap.max_send_wr != 0 {
            let possible = ProcessSetup::get().map_or(0, |setup| setup.limits.max_inline_data);
            attr.cap.max_inline_data = attr.cap.max_inline_data.max(LEAST_INLINE.min(possible));
        }
        if attr.send_cq.is_null() {
            attr.send_cq = (*id).send_cq;
        }
        if attr.recv_cq.is_null() {
            attr.recv_cq = (*id).recv_cq;
        }
        if attr.srq.is_null() {
            attr.srq = (*id).srq;
        }
        let made = create_and_prepare(id, state, attr);
        match made {
            Ok(qp) => {
                (*id).pd = (*qp).pd;
                (*id).qp = qp;
            }
            Err(_) => destroy_cqs(id),
        }
        made.map(drop)
    }
}

/// The default XRC domain of the id's device.
pub(super) fn xrcd(state: &CmIdState) -> Result<*mut ibv_xrcd, c_int> {
    let domain = state.settings().domain.clone();
    domain.ok_or(libc::EINVAL)?.xrcd()
}

/// # Safety
///
/// - `id` is live and bound to a device, `state` belongs to it, `attr` is valid, and the objects
///   that it names are live.
unsafe fn create_and_prepare(
    id: *mut rdma_cm_id,
    state: &CmIdState,
    attr: &mut ibv_qp_init_attr_ex,
) -> Result<*mut ibv_qp, c_int> {
    // SAFETY: the caller guarantees that `id` is live and bound to a device, that `state` belongs
    // to it, that `attr` is valid, and that the objects it names are live.
    unsafe {
        let qp = check_pointer(verbs::ibv_create_qp_ex(lib(), (*id).verbs, attr))?;
        let prepare = || {
            let remote = state.settings().remote_ece;
            state.settings().local_ece = ece::agree(qp, remote)?;
            modify(qp, init_attr(id, ibv_qp_state::IBV_QPS_INIT)?)?;
            if is_datagram((*id).qp_type) { start_datagrams(qp) } else { Ok(()) }
        };
        let prepared = prepare();
        if prepared.is_err() {
            (lib().ibv_destroy_qp)(qp);
        }
        prepared.map(|()| qp)
    }
}

/// Moves a datagram queue pair to RTS at once, because it needs no peer.
///
/// # Safety
///
/// - `qp` is live.
unsafe fn start_datagrams(qp: *mut ibv_qp) -> Result<(), c_int> {
    const STATE: c_int = ibv_qp_attr_mask::IBV_QP_STATE.0 as c_int;
    const SQ_PSN: c_int = ibv_qp_attr_mask::IBV_QP_SQ_PSN.0 as c_int;
    let to = |qp_state| ibv_qp_attr { qp_state, ..ibv_qp_attr::default() };
    // SAFETY: the caller guarantees that `qp` is live.
    unsafe {
        modify(qp, (to(ibv_qp_state::IBV_QPS_RTR), STATE))?;
        modify(qp, (to(ibv_qp_state::IBV_QPS_RTS), STATE | SQ_PSN))
    }
}

/// # Safety
///
/// - `qp` is live.
unsafe fn modify(qp: *mut ibv_qp, (mut attr, mask): (ibv_qp_attr, c_int)) -> Result<(), c_int> {
    // SAFETY: the caller guarantees that `qp` is live.
    check(unsafe { (lib().ibv_modify_qp)(qp, &raw mut attr, mask) })
}

/// The attributes, with their mask, that move the id's queue pair to a state.
///
/// # Safety
///
/// - `id` is live.
unsafe fn init_attr(id: *mut rdma_cm_id, to: ibv_qp_state) -> Result<(ibv_qp_attr, c_int), c_int> {
    // SAFETY: the caller guarantees that `id` is live.
    let state = unsafe { id_of(id) };
    let mut attr = ibv_qp_attr { qp_state: to, ..ibv_qp_attr::default() };
    let mask = state.manager.init_qp_attr(state.number(), &mut attr)?;
    Ok((attr, mask))
}

/// Moves the id's queue pair, if it has one, to RTS. [`RDMA_MAX_RESP_RES`] and
/// [`RDMA_MAX_INIT_DEPTH`] keep the depths that the two sides negotiated.
///
/// # Safety
///
/// - `id` is live.
pub(super) unsafe fn to_ready(
    id: *mut rdma_cm_id,
    responder_resources: u8,
    initiator_depth: u8,
) -> Result<(), c_int> {
    // SAFETY: the caller guarantees that `id` is live.
    unsafe {
        let qp = (*id).qp;
        if qp.is_null() {
            return Ok(());
        }
        // Repeat INIT, because the access flags depend on the negotiated parameters, unknown at
        // creation.
        modify(qp, init_attr(id, ibv_qp_state::IBV_QPS_INIT)?)?;
        let (mut attr, mask) = init_attr(id, ibv_qp_state::IBV_QPS_RTR)?;
        if u32::from(responder_resources) != RDMA_MAX_RESP_RES {
            attr.max_dest_rd_atomic = responder_resources;
        }
        modify(qp, (attr, mask))?;
        let (mut attr, mask) = init_attr(id, ibv_qp_state::IBV_QPS_RTS)?;
        if u32::from(initiator_depth) != RDMA_MAX_INIT_DEPTH {
            attr.max_rd_atomic = initiator_depth;
        }
        modify(qp, (attr, mask))
    }
}

/// Moves the id's queue pair, if it has one, to the error state. A failure only gets logged,
/// because such a queue pair is out of use already.
///
/// # Safety
///
/// - `id` is live.
pub(super) unsafe fn to_error(id: *mut rdma_cm_id) {
    const STATE: c_int = ibv_qp_attr_mask::IBV_QP_STATE.0 as c_int;
    let attr = ibv_qp_attr { qp_state: ibv_qp_state::IBV_QPS_ERR, ..ibv_qp_attr::default() };
    // SAFETY: the caller guarantees that `id` is live.
    unsafe {
        let qp = (*id).qp;
        if !qp.is_null()
            && let Err(error) = modify(qp, (attr, STATE))
        {
            log::debug!("the queue pair of an id could not be moved to the error state: error {error}");
        }
    }
}

pub(super) unsafe extern "C" fn create_qp_ex(id: *mut rdma_cm_id, attr: *mut ibv_qp_init_attr_ex) -> c_int {
    // SAFETY: `rdma_create_qp_ex` requires a live id, and valid attributes that nobody else uses.
    finish(unsafe { create(id, &mut *attr) })
}

/// # Safety
///
/// - `id` is live, `pd` is live or null, `attr` is valid, and the objects that it names are live.
pub(super) unsafe fn create_classic(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: &mut ibv_qp_init_attr,
) -> Result<(), c_int> {
    let mut extended = ibv_qp_init_attr_ex {
        qp_context: attr.qp_context,
        send_cq: attr.send_cq,
        recv_cq: attr.recv_cq,
        srq: attr.srq,
        cap: attr.cap,
        qp_type: attr.qp_type,
        sq_sig_all: attr.sq_sig_all,
        comp_mask: ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD.0,
        pd,
        ..ibv_qp_init_attr_ex::default()
    };
    // SAFETY: the caller guarantees that `id` is live, `pd` live or null, `attr` valid, and the
    // objects that it names live.
    let created = unsafe { create(id, &mut extended) };
    let ibv_qp_init_attr_ex { send_cq, recv_cq, srq, cap, .. } = extended;
    *attr = ibv_qp_init_attr { send_cq, recv_cq, srq, cap, ..*attr };
    created
}

pub(super) unsafe extern "C" fn create_qp(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: `rdma_create_qp` requires a live id, a protection domain that is live or null, and
    // valid attributes that nobody else uses.
    finish(unsafe { create_classic(id, pd, &mut *attr) })
}

pub(super) unsafe extern "C" fn destroy_qp(id: *mut rdma_cm_id) {
    // SAFETY: `rdma_destroy_qp` requires a live id, whose queue pair nobody uses any more.
    unsafe {
        let qp = (&raw mut (*id).qp).replace(ptr::null_mut());
        if !qp.is_null() {
            let error = (lib().ibv_destroy_qp)(qp);
            if error != 0 {
                log::warn!("the queue pair of an id could not be destroyed: error {error}");
            }
        }
        destroy_cqs(id);
    }
}

pub(super) unsafe extern "C" fn init_qp_attr(
    id: *mut rdma_cm_id,
    attr: *mut ibv_qp_attr,
    mask: *mut c_int,
) -> c_int {
    // SAFETY: `rdma_init_qp_attr` requires a live id, and that the attributes and the mask are
    // writable.
    finish(unsafe {
        init_attr(id, (*attr).qp_state).map(|(found, found_mask)| {
            attr.write(found);
            mask.write(found_mask);
        })
    })
}
