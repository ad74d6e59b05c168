//! Creates and changes queues: completion queues, queue pairs, shared receive queues, work queues.

use core::ffi::c_int;
use core::ptr;

use crate::Verbs;
use crate::field::address;
use crate::table::Unsupported;
use crate::types::*;

context_functions! {
    /// Creates an extended completion queue.
    fn ibv_create_cq_ex(context: *mut ibv_context, cq_attr: *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex
        = create_cq_ex of context;

    /// Changes a completion queue's moderation: 0 or an error number.
    fn ibv_modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int = modify_cq of cq.context;

    /// Opens a queue pair that another process shares.
    fn ibv_open_qp(context: *mut ibv_context, qp_open_attr: *mut ibv_qp_open_attr) -> *mut ibv_qp
        = open_qp of context;

    /// Changes a queue pair's packet pacing: 0 or an error number.
    fn ibv_modify_qp_rate_limit(qp: *mut ibv_qp, attr: *mut ibv_qp_rate_limit_attr) -> c_int
        = modify_qp_rate_limit of qp.context;

    /// The number by which peers name a shared receive queue: 0 or an error number.
    fn ibv_get_srq_num(srq: *mut ibv_srq, srq_num: *mut u32) -> c_int = get_srq_num of srq.context;

    /// Changes a work queue: 0 or an error number.
    fn ibv_modify_wq(wq: *mut ibv_wq, wq_attr: *mut ibv_wq_attr) -> c_int = modify_wq of wq.context;

    /// Destroys a work queue: 0 or an error number.
    fn ibv_destroy_wq(wq: *mut ibv_wq) -> c_int = destroy_wq of wq.context;

    /// Creates a table that spreads packets over receive work queues.
    fn ibv_create_rwq_ind_table(
        context: *mut ibv_context,
        init_attr: *mut ibv_rwq_ind_table_init_attr,
    ) -> *mut ibv_rwq_ind_table = create_rwq_ind_table of context;

    /// Destroys a table of receive work queues: 0 or an error number.
    fn ibv_destroy_rwq_ind_table(rwq_ind_table: *mut ibv_rwq_ind_table) -> c_int
        = destroy_rwq_ind_table of rwq_ind_table.context;
}

/// Creates a queue pair with attributes that are newer than [`ibv_qp_init_attr`].
///
/// With no such attribute but a protection domain it calls the function of every library. Otherwise
/// it fails with `EOPNOTSUPP` if the context lacks the operation.
///
/// # Safety
///
/// - `context` is a live context of `lib`.
/// - `qp_init_attr_ex` is valid, and its objects belong to that context.
#[inline]
pub unsafe fn ibv_create_qp_ex(
    lib: &Verbs,
    context: *mut ibv_context,
    qp_init_attr_ex: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    // SAFETY: the attributes are a valid struct (`# Safety`).
    let (mask, pd) = unsafe { ((*qp_init_attr_ex).comp_mask, (*qp_init_attr_ex).pd) };
    if mask == ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD.0 {
        // SAFETY: the attributes are valid (`# Safety`), and begin with the classic ones.
        return unsafe { (lib.ibv_create_qp)(pd, qp_init_attr_ex.cast()) };
    }
    // SAFETY: the context is live (`# Safety`).
    match unsafe { verbs_get_ctx_op!(context, create_qp_ex) } {
        // SAFETY: the caller guarantees (`# Safety`) that `context` is a live context of `lib`. The
        // attributes are valid, and what they point to belongs to that context.
        Some(operation) => unsafe { operation(context, qp_init_attr_ex) },
        None => Unsupported::unsupported(0),
    }
}

/// Creates a shared receive queue with attributes that are newer than [`ibv_srq_init_attr`].
///
/// For a basic queue with no such attribute but a protection domain it calls the function of every
/// library. For another queue (XRC, tag matching) it fails with `EOPNOTSUPP` if the context lacks
/// the operation.
///
/// # Safety
///
/// - `context` is a live context of `lib`.
/// - `srq_init_attr_ex` is valid, and its objects belong to that context.
#[inline]
pub unsafe fn ibv_create_srq_ex(
    lib: &Verbs,
    context: *mut ibv_context,
    srq_init_attr_ex: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    const PD: u32 = ibv_srq_init_attr_mask::IBV_SRQ_INIT_ATTR_PD.0;
    const TYPE: u32 = ibv_srq_init_attr_mask::IBV_SRQ_INIT_ATTR_TYPE.0;
    // SAFETY: the attributes are a valid struct (`# Safety`).
    let (mask, srq_type, pd) =
        unsafe { ((*srq_init_attr_ex).comp_mask, (*srq_init_attr_ex).srq_type, (*srq_init_attr_ex).pd) };
    let is_basic = mask == PD || (mask == PD | TYPE && srq_type == ibv_srq_type::IBV_SRQT_BASIC);
    if is_basic {
        // SAFETY: the attributes are valid (`# Safety`), and begin with the classic ones.
        return unsafe { (lib.ibv_create_srq)(pd, srq_init_attr_ex.cast()) };
    }
    // SAFETY: the context is live (`# Safety`).
    match unsafe { verbs_get_ctx_op!(context, create_srq_ex) } {
        // SAFETY: the caller guarantees (`# Safety`) that `context` is a live context of `lib`. The
        // attributes are valid, and what they point to belongs to that context.
        Some(operation) => unsafe { operation(context, srq_init_attr_ex) },
        None => Unsupported::unsupported(0),
    }
}

/// Creates a work queue, from which queue pairs take their receive requests.
///
/// Fails with `EOPNOTSUPP` if the context lacks the operation.
///
/// # Safety
///
/// - `context` is a live context.
/// - `wq_init_attr` is valid, and its objects belong to that context.
#[inline]
pub unsafe fn ibv_create_wq(context: *mut ibv_context, wq_init_attr: *mut ibv_wq_init_attr) -> *mut ibv_wq {
    // SAFETY: the context is live (`# Safety`).
    let Some(operation) = (unsafe { verbs_get_ctx_op!(context, create_wq) }) else {
        return Unsupported::unsupported(0);
    };
    // SAFETY: the caller guarantees (`# Safety`) that `context` is live. `wq_init_attr` is valid,
    // and its objects belong to that context.
    let wq = unsafe { operation(context, wq_init_attr) };
    if wq.is_null() {
        return wq;
    }
    // SAFETY: the queue is new, so that nothing else uses it. The library leaves these fields to
    // its caller, and every release's struct has them.
    unsafe {
        address(wq, core::mem::offset_of!(ibv_wq, wq_context), |w| &w.wq_context)
            .write((*wq_init_attr).wq_context);
        address(wq, core::mem::offset_of!(ibv_wq, events_completed), |w| &w.events_completed).write(0);
        libc::pthread_mutex_init(
            address(wq, core::mem::offset_of!(ibv_wq, mutex), |w| &w.mutex),
            ptr::null(),
        );
        libc::pthread_cond_init(address(wq, core::mem::offset_of!(ibv_wq, cond), |w| &w.cond), ptr::null());
    }
    wq
}
