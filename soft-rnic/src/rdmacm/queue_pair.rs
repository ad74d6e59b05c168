//! Queue pairs of ids: making them with what they need, and taking them through their states.

use std::ffi::c_int;
use std::ptr;

use rdma_mummy_sys::types::*;
use rdma_mummy_sys::verbs;

use super::id::{CmIdState, id_of};
use super::{check, check_pointer, ece, finish, lib};
use crate::objects::setup::ProcessSetup;

/// What a queue pair of an id takes of inline data at least: one entry's room, which programs count on that ask for none.
const LEAST_INLINE: u32 = 16;

pub(super) fn is_datagram(qp_type: ibv_qp_type) -> bool {
    qp_type == ibv_qp_type::IBV_QPT_UD
}

/// Makes the completion queues of these lengths that the id is to have of its own, each with a channel.
///
/// # Safety
///
/// - `id` is live and bound to a device.
pub(super) unsafe fn create_cqs(id: *mut rdma_cm_id, send: u32, receive: u32) -> Result<(), c_int> {
    // SAFETY: `id` is live and bound to a device, by the contract of `create_cqs`.
    let created = unsafe {
        let receive = create_cq(id, receive, &raw mut (*id).recv_cq_channel, &raw mut (*id).recv_cq);
        receive.and_then(|()| create_cq(id, send, &raw mut (*id).send_cq_channel, &raw mut (*id).send_cq))
    };
    if created.is_err() {
        // SAFETY: `id` is live and bound to a device, by the contract of `create_cqs`.
        unsafe { destroy_cqs(id) };
    }
    created
}

/// # Safety
///
/// - `id` is live and bound to a device; the others are its fields.
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
    // SAFETY: `id` is live and bound to a device; the others are its fields, by the contract of
    // `create_cq`.
    unsafe {
        *channel = check_pointer((lib().ibv_create_comp_channel)((*id).verbs))?;
        *cq = check_pointer((lib().ibv_create_cq)((*id).verbs, length, id.cast(), *channel, 0))?;
    }
    Ok(())
}

/// Destroys the completion queues that the id has of its own, and their channels.
///
/// # Safety
///
/// - `id` is live, and nothing of it uses them.
pub(super) unsafe fn destroy_cqs(id: *mut rdma_cm_id) {
    // SAFETY: `id` is live, and nothing of it uses them, by the contract of `destroy_cqs`.
    unsafe {
        if (*id).qp_type == ibv_qp_type::IBV_QPT_XRC_RECV && !(*id).srq.is_null() {
            return; // The shared receive queue completes there.
        }
        let destroyed = |object: &str, error: c_int| {
            if error != 0 {
                // Some programs have queue pairs of other ids complete there, and count on the end of the process.
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

/// Makes the id's queue pair, and what of it the program has left out.
///
/// # Safety
///
/// - `id` is live, and `attr` valid; what it names is live.
unsafe fn create(id: *mut rdma_cm_id, attr: &mut ibv_qp_init_attr_ex) -> Result<(), c_int> {
    const PD: u32 = ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD.0;
    const XRCD: u32 = ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_XRCD.0;
    // SAFETY: `id` is live, and `attr` valid; what it names is live, by the contract of `create`.
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

/// The XRC domain of the id's device, for who gives none.
pub(super) fn xrcd(state: &CmIdState) -> Result<*mut ibv_xrcd, c_int> {
    let domain = state.settings().domain.clone();
    domain.ok_or(libc::EINVAL)?.xrcd()
}

/// # Safety
///
/// - `id` is live and bound to a device, `state` its own, and `attr` valid; what it names is live.
unsafe fn create_and_prepare(
    id: *mut rdma_cm_id,
    state: &CmIdState,
    attr: &mut ibv_qp_init_attr_ex,
) -> Result<*mut ibv_qp, c_int> {
    // SAFETY: `id` is live and bound to a device, `state` its own, and `attr` valid; what it names
    // is live, by the contract of `create_and_prepare`.
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

/// A queue pair for datagrams needs to know nobody: it is ready at once.
///
/// # Safety
///
/// - `qp` is live.
unsafe fn start_datagrams(qp: *mut ibv_qp) -> Result<(), c_int> {
    const STATE: c_int = ibv_qp_attr_mask::IBV_QP_STATE.0 as c_int;
    const SQ_PSN: c_int = ibv_qp_attr_mask::IBV_QP_SQ_PSN.0 as c_int;
    let to = |qp_state| ibv_qp_attr { qp_state, ..ibv_qp_attr::default() };
    // SAFETY: `qp` is live, by the contract of `start_datagrams`.
    unsafe {
        modify(qp, (to(ibv_qp_state::IBV_QPS_RTR), STATE))?;
        modify(qp, (to(ibv_qp_state::IBV_QPS_RTS), STATE | SQ_PSN))
    }
}

/// # Safety
///
/// - `qp` is live.
unsafe fn modify(qp: *mut ibv_qp, (mut attr, mask): (ibv_qp_attr, c_int)) -> Result<(), c_int> {
    // SAFETY: `qp` is live, by the contract of `modify`.
    check(unsafe { (lib().ibv_modify_qp)(qp, &raw mut attr, mask) })
}

/// What the id's queue pair needs to get to a state.
///
/// # Safety
///
/// - `id` is live.
unsafe fn init_attr(id: *mut rdma_cm_id, to: ibv_qp_state) -> Result<(ibv_qp_attr, c_int), c_int> {
    // SAFETY: `id` is live, by the contract of `init_attr`.
    let state = unsafe { id_of(id) };
    let mut attr = ibv_qp_attr { qp_state: to, ..ibv_qp_attr::default() };
    let mask = state.manager.init_qp_attr(state.number(), &mut attr)?;
    Ok((attr, mask))
}

/// Takes the id's queue pair, if it has one, to where it receives and sends. [`RDMA_MAX_RESP_RES`] and
/// [`RDMA_MAX_INIT_DEPTH`] leave what the two sides have told each other.
///
/// # Safety
///
/// - `id` is live.
pub(super) unsafe fn to_ready(
    id: *mut rdma_cm_id,
    responder_resources: u8,
    initiator_depth: u8,
) -> Result<(), c_int> {
    // SAFETY: `id` is live, by the contract of `to_ready`.
    unsafe {
        let qp = (*id).qp;
        if qp.is_null() {
            return Ok(());
        }
        // When it was made, less was known: access depends on what the sides agree on.
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

/// Takes the id's queue pair, if it has one, out of use. One that cannot be is so already.
///
/// # Safety
///
/// - `id` is live.
pub(super) unsafe fn to_error(id: *mut rdma_cm_id) {
    const STATE: c_int = ibv_qp_attr_mask::IBV_QP_STATE.0 as c_int;
    let attr = ibv_qp_attr { qp_state: ibv_qp_state::IBV_QPS_ERR, ..ibv_qp_attr::default() };
    // SAFETY: `id` is live, by the contract of `to_error`.
    unsafe {
        let qp = (*id).qp;
        if !qp.is_null()
            && let Err(error) = modify(qp, (attr, STATE))
        {
            log::debug!("an id's queue pair could not be taken to the error state: error {error}");
        }
    }
}

pub(super) unsafe extern "C" fn create_qp_ex(id: *mut rdma_cm_id, attr: *mut ibv_qp_init_attr_ex) -> c_int {
    // SAFETY: the caller's live id, and valid attributes that nobody else uses.
    finish(unsafe { create(id, &mut *attr) })
}

/// # Safety
///
/// - `id` is live, and `pd` live or null; `attr` is valid, and what it names is live.
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
    // SAFETY: `id` is live, and `pd` live or null; `attr` is valid, and what it names is live, by
    // the contract of `create_classic`.
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
    // SAFETY: the caller's live id, domain that is live or null, and valid attributes that nobody else uses.
    finish(unsafe { create_classic(id, pd, &mut *attr) })
}

pub(super) unsafe extern "C" fn destroy_qp(id: *mut rdma_cm_id) {
    // SAFETY: the caller's live id, whose queue pair nobody uses any more.
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
    // SAFETY: the caller's live id, and valid places.
    finish(unsafe {
        init_attr(id, (*attr).qp_state).map(|(found, found_mask)| {
            attr.write(found);
            mask.write(found_mask);
        })
    })
}
