//! Verbs of extended completion queues, whose completions are read one at a time and field by
//! field.

use std::ffi::{c_int, c_uint};
use std::sync::Arc;

use rdma_mummy_sys::types::*;

use super::completion_queue::{cq_of, create};
use super::null;
use crate::faults;
use crate::objects::completion::{Cq, CqOptions, PollGuard};
use crate::platform::clock;

use ibv_create_cq_wc_flags as Field;

/// The fields that a completion of this device can have.
const FIELDS: u32 = Field::IBV_WC_EX_WITH_BYTE_LEN.0
    | Field::IBV_WC_EX_WITH_IMM.0
    | Field::IBV_WC_EX_WITH_QP_NUM.0
    | Field::IBV_WC_EX_WITH_SRC_QP.0
    | Field::IBV_WC_EX_WITH_SLID.0
    | Field::IBV_WC_EX_WITH_SL.0
    | Field::IBV_WC_EX_WITH_DLID_PATH_BITS.0
    | TIMES;
const TIMES: u32 =
    Field::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP.0 | Field::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK.0;

pub(super) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    use ibv_cq_init_attr_mask as Mask;
    use ibv_create_cq_attr_flags as Flag;
    // SAFETY: `ibv_create_cq_ex` requires attributes that are valid up to `comp_mask`, and beyond
    // it the fields that the mask names.
    let attr = unsafe {
        let mask = (&raw const (*attr).comp_mask).read();
        ibv_cq_init_attr_ex {
            cqe: (&raw const (*attr).cqe).read(),
            cq_context: (&raw const (*attr).cq_context).read(),
            channel: (&raw const (*attr).channel).read(),
            comp_vector: (&raw const (*attr).comp_vector).read(),
            wc_flags: (&raw const (*attr).wc_flags).read(),
            comp_mask: mask,
            flags: if mask & Mask::IBV_CQ_INIT_ATTR_MASK_FLAGS.0 != 0 {
                (&raw const (*attr).flags).read()
            } else {
                0
            },
            ..ibv_cq_init_attr_ex::default()
        }
    };
    let known_flags = Flag::IBV_CREATE_CQ_ATTR_SINGLE_THREADED.0 | Flag::IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN.0;
    if attr.comp_mask & !(Mask::IBV_CQ_INIT_ATTR_MASK_FLAGS.0 | Mask::IBV_CQ_INIT_ATTR_MASK_PD.0) != 0 {
        return null(libc::EINVAL);
    }
    // A parent domain for a completion queue is not supported.
    let has_parent = attr.comp_mask & Mask::IBV_CQ_INIT_ATTR_MASK_PD.0 != 0;
    if has_parent || attr.flags & !known_flags != 0 || attr.wc_flags & !u64::from(FIELDS) != 0 {
        return null(libc::EOPNOTSUPP);
    }
    let requested = attr.wc_flags as u32;
    let options = CqOptions {
        capacity: attr.cqe,
        timestamps: requested & TIMES != 0,
        single_threaded: attr.flags & Flag::IBV_CREATE_CQ_ATTR_SINGLE_THREADED.0 != 0,
        ignore_overrun: attr.flags & Flag::IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN.0 != 0,
    };
    // SAFETY: `ibv_create_cq_ex` requires an open context and a null or live channel. The new queue
    // is not in use yet, so its operations may be set.
    unsafe {
        match create(context, attr.cq_context, attr.channel, attr.comp_vector, options) {
            Ok(cq) => {
                install(cq, requested);
                cq
            }
            Err(error) => null(error),
        }
    }
}

/// Sets the operations of a queue.
///
/// # Safety
///
/// - The queue is live, and nobody uses it yet.
unsafe fn install(cq: *mut ibv_cq_ex, requested: u32) {
    // SAFETY: the caller guarantees that the queue is live and not in use yet.
    unsafe {
        (*cq).start_poll = Some(start_poll);
        (*cq).next_poll = Some(next_poll);
        (*cq).end_poll = Some(end_poll);
        (*cq).read_opcode = Some(read_opcode);
        (*cq).read_vendor_err = Some(read_vendor_err);
        (*cq).read_wc_flags = Some(read_wc_flags);
    }
    macro_rules! readers {
        ($($flag:ident: $reader:ident),* $(,)?) => {$(
            if requested & Field::$flag.0 != 0 {
                // SAFETY: the caller guarantees that the queue is live and not in use yet.
                unsafe { (*cq).$reader = Some($reader) };
            }
        )*};
    }
    readers!(
        IBV_WC_EX_WITH_BYTE_LEN: read_byte_len,
        IBV_WC_EX_WITH_IMM: read_imm_data,
        IBV_WC_EX_WITH_QP_NUM: read_qp_num,
        IBV_WC_EX_WITH_SRC_QP: read_src_qp,
        IBV_WC_EX_WITH_SLID: read_slid,
        IBV_WC_EX_WITH_SL: read_sl,
        IBV_WC_EX_WITH_DLID_PATH_BITS: read_dlid_path_bits,
        IBV_WC_EX_WITH_COMPLETION_TIMESTAMP: read_completion_ts,
        IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK: read_completion_wallclock_ns,
    );
}

/// The queue behind an extended pointer.
///
/// # Safety
///
/// - The queue is live.
#[inline]
unsafe fn state<'a>(cq: *mut ibv_cq_ex) -> &'a Cq {
    // SAFETY: the caller guarantees that the queue is live.
    Arc::as_ref(unsafe { cq_of(cq.cast()) })
}

/// Copies the current completion's `wr_id` and status to the C struct, and keeps the right to poll
/// for the next call.
///
/// # Safety
///
/// - The queue is live.
#[inline]
unsafe fn show(cq: *mut ibv_cq_ex, guard: PollGuard<'_>) {
    let (wr_id, status) = (guard.current.wr_id, guard.current.status);
    guard.keep();
    // SAFETY: the caller guarantees that the queue is live. The library alone writes these fields.
    unsafe {
        (*cq).wr_id = wr_id;
        (*cq).status = ibv_wc_status(status);
    }
}

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: `ibv_start_poll` requires null or valid attributes.
    if !attr.is_null() && unsafe { (*attr).comp_mask } != 0 {
        return libc::EINVAL;
    }
    // SAFETY: `ibv_start_poll` requires a live completion queue.
    unsafe {
        if state(cq).is_forked() {
            return libc::EIO;
        }
        match state(cq).start() {
            Some(guard) => {
                show(cq, guard);
                0
            }
            None => nothing(state(cq)),
        }
    }
}

/// The error of a poll that finds no completion.
fn nothing(cq: &Cq) -> c_int {
    if faults::active() && cq.context().has_failed() { libc::EIO } else { libc::ENOENT }
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: `ibv_next_poll` requires a live queue and a started poll, whose guard was kept.
    unsafe {
        let state = state(cq);
        if state.is_forked() {
            return libc::EIO;
        }
        let mut guard = state.resume();
        if state.advance(&mut guard) {
            show(cq, guard);
            0
        } else {
            guard.keep();
            nothing(state)
        }
    }
}

unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    // SAFETY: `ibv_end_poll` requires a live queue and a started poll, whose guard was kept and is
    // dropped here.
    drop(unsafe { state(cq).resume() });
}

macro_rules! readers {
    ($($name:ident -> $ty:ty { |$cqe:ident| $value:expr })*) => {$(
        unsafe extern "C" fn $name(cq: *mut ibv_cq_ex) -> $ty {
            // SAFETY: the readers require a live queue and a started poll, whose guard was kept.
            let guard = unsafe { state(cq).resume() };
            let $cqe = guard.current;
            guard.keep();
            $value
        }
    )*};
}

readers! {
    read_opcode -> ibv_wc_opcode { |cqe| ibv_wc_opcode(cqe.opcode) }
    read_vendor_err -> u32 { |cqe| cqe.vendor_err }
    read_wc_flags -> c_uint { |cqe| cqe.wc_flags }
    read_byte_len -> u32 { |cqe| cqe.byte_len }
    read_imm_data -> __be32 { |cqe| cqe.imm_data }
    read_qp_num -> u32 { |cqe| cqe.qp_num }
    read_src_qp -> u32 { |cqe| cqe.src_qp }
    read_slid -> u32 { |cqe| cqe.slid.into() }
    read_sl -> u8 { |cqe| cqe.sl }
    read_dlid_path_bits -> u8 { |cqe| cqe.dlid_path_bits }
    read_completion_ts -> u64 { |cqe| cqe.timestamp }
    read_completion_wallclock_ns -> u64 { |cqe| clock::wall(cqe.timestamp) }
}
