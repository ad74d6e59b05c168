//! Queue pairs and shared receive queues. (A stand-in, until the real one is merged.)

use std::ffi::c_int;
use std::sync::Arc;

use rdma_mummy_sys::Verbs;
use rdma_mummy_sys::types::*;

use super::number;
use crate::objects::acks::Acks;
use crate::objects::object::Object;
use crate::queue_pair::{Qp, Srq};

/// # Safety
///
/// - `qp` is live while the reference is used.
pub(super) unsafe fn qp_acks<'a>(qp: *mut ibv_qp) -> &'a Acks {
    // SAFETY: every queue pair of this crate is such an object.
    unsafe { Object::<ibv_qp_ex, Arc<Qp>>::state(qp.cast()) }.acks()
}

/// # Safety
///
/// - `srq` is live while the reference is used.
pub(super) unsafe fn srq_acks<'a>(srq: *mut ibv_srq) -> &'a Acks {
    // SAFETY: every shared receive queue of this crate is such an object.
    unsafe { Object::<ibv_srq, Arc<Srq>>::state(srq) }.acks()
}

unsafe extern "C" fn post_send(_: *mut ibv_qp, _: *mut ibv_send_wr, _: *mut *mut ibv_send_wr) -> c_int {
    number(Err(libc::EOPNOTSUPP))
}

unsafe extern "C" fn post_recv(_: *mut ibv_qp, _: *mut ibv_recv_wr, _: *mut *mut ibv_recv_wr) -> c_int {
    number(Err(libc::EOPNOTSUPP))
}

unsafe extern "C" fn post_srq_recv(_: *mut ibv_srq, _: *mut ibv_recv_wr, _: *mut *mut ibv_recv_wr) -> c_int {
    number(Err(libc::EOPNOTSUPP))
}

/// The exported functions.
pub(super) const fn add_to(table: Verbs) -> Verbs {
    table
}

/// The operations of a context.
pub(super) fn install(verbs: &mut verbs_context) {
    verbs.context.ops.post_send = Some(post_send);
    verbs.context.ops.post_recv = Some(post_recv);
    verbs.context.ops.post_srq_recv = Some(post_srq_recv);
}
