//! Verbs of memory windows.

use std::ffi::c_int;

use rdma_mummy_sys::types::*;

use super::protection_domain::pd_of;
use super::{admit, failure, null, number};
use crate::objects::memory_window::{Mw, MwObject, mw_of};
use crate::queue_pair::c_object::qp_of;

/// Sets the operations in the table of a context.
pub(super) fn install(verbs: &mut verbs_context) {
    verbs.context.ops.alloc_mw = Some(alloc_mw);
    verbs.context.ops.dealloc_mw = Some(dealloc_mw);
    verbs.context.ops.bind_mw = Some(bind_mw);
}

/// The next key: increments the part of the key that the program may choose (`ibv_inc_rkey`).
fn next_key(key: u32) -> u32 {
    key & !0xff | key.wrapping_add(1) & 0xff
}

unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, mw_type: ibv_mw_type) -> *mut ibv_mw {
    // SAFETY: `ibv_alloc_mw` requires a live protection domain.
    let state = unsafe { pd_of(pd) };
    admit!(state.context(), AllocMw, null);
    match Mw::allocate(state, mw_type) {
        Ok((mw, rkey)) => {
            // SAFETY: `ibv_alloc_mw` requires a live protection domain. The library alone writes
            // the field.
            let context = unsafe { (*pd).context };
            MwObject::create(ibv_mw { context, pd, rkey, handle: mw.index(), type_: mw_type }, mw)
        }
        Err(error) => null(error),
    }
}

unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    // SAFETY: `ibv_dealloc_mw` requires a live window.
    let state = unsafe { mw_of(mw) };
    admit!(state.context(), DeallocMw, failure);
    let result = state.deallocate();
    if result.is_ok() {
        // SAFETY: `create` made the object, and `ibv_dealloc_mw` forbids any later use.
        drop(unsafe { MwObject::destroy(mw) });
    }
    number(result)
}

/// Posts a request that binds a window of type 1. The window has its new key from then on (`man
/// ibv_bind_mw`).
unsafe extern "C" fn bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, bind: *mut ibv_mw_bind) -> c_int {
    // SAFETY: `ibv_bind_mw` requires a live window.
    let state = unsafe { mw_of(mw) };
    admit!(state.context(), BindMw, failure);
    if state.is_of_type_2() {
        return failure(libc::EINVAL);
    }
    // SAFETY: `ibv_bind_mw` requires a live queue pair, a live window and a valid request.
    unsafe {
        let ibv_mw_bind { wr_id, send_flags, bind_info } = *bind;
        let known = ibv_send_flags::IBV_SEND_FENCE.0
            | ibv_send_flags::IBV_SEND_SIGNALED.0
            | ibv_send_flags::IBV_SEND_SOLICITED.0;
        if send_flags & !known != 0 {
            return failure(libc::EINVAL);
        }
        let rkey = next_key((*mw).rkey);
        let mut wr = ibv_send_wr {
            wr_id,
            opcode: ibv_wr_opcode::IBV_WR_BIND_MW,
            send_flags,
            ..ibv_send_wr::default()
        };
        wr.__bindgen_anon_2.bind_mw = ibv_send_wr__bindgen_ty_4__bindgen_ty_1 { mw, rkey, bind_info };
        match qp_of(qp).post_sends(&raw mut wr) {
            Ok(()) => {
                (*mw).rkey = rkey;
                0
            }
            Err((error, _)) => failure(error),
        }
    }
}
