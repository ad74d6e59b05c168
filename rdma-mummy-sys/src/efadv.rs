//! The inline functions of `infiniband/efadv.h`, by their C names.
//!
//! The rules of [`verbs`](crate::verbs) about parameters, failures and older libraries apply here
//! too: [`efadv_qp`] and [`efadv_cq`] have an operation if the queue pair or queue was created with
//! its flag.

use core::ffi::c_int;

use crate::types::*;

/// Gives the device hints on the last request (`efadv_wr_processing_hint`).
///
/// # Safety
///
/// - `efadv_qp` belongs to a live extended queue pair of an EFA device. It has an open batch of
///   work requests, and no other thread is posting to it.
/// - It was created with `EFADV_WR_EX_WITH_PROCESSING_HINTS`, so that `wr_set_processing_hints`
///   exists and is not null.
#[inline]
pub unsafe fn efadv_wr_set_processing_hints(efadv_qp: *mut efadv_qp, hints: u32) {
    // SAFETY: the caller guarantees (`# Safety`) that the extended queue pair is live and has an
    // open batch, and no other thread posts to it. `EFADV_WR_EX_WITH_PROCESSING_HINTS` at its
    // creation makes the operation exist.
    unsafe { operation!(efadv_qp, efadv_qp, wr_set_processing_hints)(efadv_qp, hints) }
}

/// Reads the sender's GID of the current completion. The result is 0, or an error number if the
/// device knows the sender by an address handle only.
///
/// # Safety
///
/// - `efadv_cq` belongs to a live extended completion queue of an EFA device. Its cursor is on a
///   completion, and no other thread is polling it.
/// - It was created with `EFADV_WC_EX_WITH_SGID`, so that `wc_read_sgid` exists and is not null.
/// - `sgid` is valid for writing.
#[inline]
pub unsafe fn efadv_wc_read_sgid(efadv_cq: *mut efadv_cq, sgid: *mut ibv_gid) -> c_int {
    // SAFETY: the caller guarantees (`# Safety`) that the extended completion queue is live, its
    // cursor is on a completion, and no other thread polls it. `EFADV_WC_EX_WITH_SGID` at its
    // creation makes the operation exist. `sgid` is valid for writing.
    unsafe { operation!(efadv_cq, efadv_cq, wc_read_sgid)(efadv_cq, sgid) }
}

/// Whether the current completion consumed no receive. This occurs for an RDMA WRITE with immediate
/// data, on a pair that was created with `EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV`.
///
/// # Safety
///
/// - `efadv_cq` belongs to a live extended completion queue of an EFA device. Its cursor is on a
///   completion, and no other thread is polling it.
/// - It was created with `EFADV_WC_EX_WITH_IS_UNSOLICITED`, so that `wc_is_unsolicited` exists and
///   is not null.
#[inline]
pub unsafe fn efadv_wc_is_unsolicited(efadv_cq: *mut efadv_cq) -> bool {
    // SAFETY: the caller guarantees (`# Safety`) that the extended completion queue is live, its
    // cursor is on a completion, and no other thread polls it. `EFADV_WC_EX_WITH_IS_UNSOLICITED` at
    // its creation makes the operation exist.
    unsafe { operation!(efadv_cq, efadv_cq, wc_is_unsolicited)(efadv_cq) }
}
