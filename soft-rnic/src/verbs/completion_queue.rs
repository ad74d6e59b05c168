//! Verbs of completion queues.

use std::ffi::{c_int, c_void};
use std::sync::{Arc, LazyLock};

use rdma_mummy_sys::types::*;

use super::channel::channel_of;
use super::context::context_of;
use super::{admit, failure, minus_one, null, number};
use crate::faults;
use crate::objects::c_object::CObject;
use crate::objects::completion::{Cq, CqOptions, Cqe};
use crate::objects::use_ref::CountsUses;

/// Every queue is an extended one, which begins with the classic struct.
type CqObject = CObject<ibv_cq_ex, Arc<Cq>>;

/// The completion queue of a pointer.
///
/// # Safety
///
/// - `cq` is live while the reference is used.
#[inline]
pub(crate) unsafe fn cq_of<'a>(cq: *mut ibv_cq) -> &'a Arc<Cq> {
    // SAFETY: every queue of this crate is a `CqObject`, and the caller guarantees that it is live.
    unsafe { CqObject::state(cq.cast()) }
}

/// The number of completion vectors: one for each processor. The choice has no effect.
pub(super) fn comp_vectors() -> c_int {
    // std reads it from several files, and a queue is created for each connection.
    static PROCESSORS: LazyLock<c_int> = LazyLock::new(|| {
        std::thread::available_parallelism().map_or(1, |count| c_int::try_from(count.get()).unwrap_or(1))
    });
    *PROCESSORS
}

/// Creates a queue with its C part.
///
/// # Safety
///
/// - The context is open, and the channel null or live.
pub(super) unsafe fn create(
    context: *mut ibv_context,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: u32,
    options: CqOptions,
) -> Result<*mut ibv_cq_ex, c_int> {
    // SAFETY: the caller guarantees that the context is open.
    let state = unsafe { context_of(context) };
    state.check_process()?;
    admit!(state, CreateCq);
    // SAFETY: the caller guarantees that the channel, which is not null here, is live.
    let events = (!channel.is_null()).then(|| unsafe { channel_of(channel) });
    let other = events.is_some_and(|channel| !Arc::ptr_eq(channel.context(), &state));
    let most = state.rnic().limits().max_cqe;
    if other || comp_vector >= comp_vectors() as u32 || !(1..=most).contains(&options.capacity) {
        return Err(libc::EINVAL);
    }
    let cq = Cq::new(&state, events, options)?;
    let c = ibv_cq_ex {
        context,
        channel,
        cq_context,
        handle: cq.index(),
        cqe: options.capacity as c_int,
        ..ibv_cq_ex::default()
    };
    let handle = CqObject::create(c, Arc::clone(&cq));
    cq.set_handle(handle.cast());
    Ok(handle)
}

pub(super) unsafe extern "C" fn create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    let (Ok(capacity), Ok(comp_vector)) = (u32::try_from(cqe), u32::try_from(comp_vector)) else {
        return null(libc::EINVAL);
    };
    let options = CqOptions { capacity, ..CqOptions::default() };
    // SAFETY: `ibv_create_cq` requires an open context and a null or live channel.
    match unsafe { create(context, cq_context, channel, comp_vector, options) } {
        Ok(cq) => cq.cast(),
        Err(error) => null(error),
    }
}

/// Destroys a queue after waiting until the events that the program took are acknowledged.
pub(super) unsafe extern "C" fn destroy_cq(cq: *mut ibv_cq) -> c_int {
    // SAFETY: `ibv_destroy_cq` requires a live completion queue.
    let state = unsafe { cq_of(cq) };
    if let Err(error) = state.context().check_process() {
        return number(Err(error));
    }
    admit!(state.context(), DestroyCq, failure);
    if state.users().is_used() {
        return number(Err(libc::EBUSY));
    }
    state.retire();
    // SAFETY: `create` of the same type made the object, and `ibv_destroy_cq` forbids any later
    // use.
    drop(unsafe { CqObject::destroy(cq.cast()) });
    0
}

pub(super) unsafe extern "C" fn resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    // SAFETY: `ibv_resize_cq` requires a live completion queue.
    let state = unsafe { cq_of(cq) };
    if let Err(error) = state.context().check_process() {
        return number(Err(error));
    }
    admit!(state.context(), ResizeCq, failure);
    let most = state.context().rnic().limits().max_cqe;
    let capacity = u32::try_from(cqe).ok().filter(|capacity| (1..=most).contains(capacity));
    if !capacity.is_some_and(|capacity| state.resize(capacity)) {
        return number(Err(libc::EINVAL));
    }
    // SAFETY: `ibv_resize_cq` requires a live queue. The library alone writes the field.
    unsafe { (*cq).cqe = cqe };
    0
}

/// Sets the moderation of events.
pub(super) unsafe extern "C" fn modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int {
    const MODERATE: u32 = ibv_cq_attr_mask::IBV_CQ_ATTR_MODERATE.0;
    // SAFETY: `ibv_modify_cq` requires a live completion queue.
    let state = unsafe { cq_of(cq) };
    if let Err(error) = state.context().check_process() {
        return number(Err(error));
    }
    admit!(state.context(), ModifyCq, failure);
    // SAFETY: `ibv_modify_cq` requires valid attributes.
    let ibv_modify_cq_attr { attr_mask, moderate } = unsafe { attr.read() };
    if attr_mask & !MODERATE != 0 {
        return number(Err(libc::EINVAL));
    }
    if attr_mask & MODERATE != 0 {
        state.moderate(moderate.cq_count, moderate.cq_period);
    }
    0
}

impl Cqe {
    #[inline]
    fn to_wc(self) -> ibv_wc {
        ibv_wc {
            wr_id: self.wr_id,
            status: ibv_wc_status(self.status),
            opcode: ibv_wc_opcode(self.opcode),
            vendor_err: self.vendor_err,
            byte_len: self.byte_len,
            __bindgen_anon_1: ibv_wc__bindgen_ty_1 { imm_data: self.imm_data },
            qp_num: self.qp_num,
            src_qp: self.src_qp,
            wc_flags: self.wc_flags,
            pkey_index: self.pkey_index,
            slid: self.slid,
            sl: self.sl,
            dlid_path_bits: self.dlid_path_bits,
        }
    }
}

pub(super) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, room: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: `ibv_poll_cq` requires a live completion queue.
    let state = unsafe { cq_of(cq) };
    if state.is_forked() {
        return minus_one(libc::EIO);
    }
    let room = usize::try_from(room).unwrap_or(0);
    let mut next = wc;
    let count = state.poll(room, &mut |cqe| {
        // SAFETY: `ibv_poll_cq` requires room for `num_entries` completions, and `poll` passes no
        // more than that.
        unsafe {
            next.write(cqe.to_wc());
            next = next.add(1);
        }
    });
    if count == 0 && faults::active() && state.context().has_failed() {
        return minus_one(libc::EIO);
    }
    count as c_int
}

pub(super) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: `ibv_req_notify_cq` requires a live completion queue.
    let state = unsafe { cq_of(cq) };
    if state.is_forked() {
        return number(Err(libc::EIO));
    }
    admit!(state.context(), ReqNotifyCq, failure);
    state.arm(solicited_only != 0);
    0
}
