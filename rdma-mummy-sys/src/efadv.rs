//! The inline functions of `infiniband/efadv.h`, by their C names.
//!
//! What [`verbs`](crate::verbs) says of parameters, failures and older libraries holds here too: the operations of
//! [`efadv_qp`] and [`efadv_cq`] are there as far as the queue pair or queue was created with the flags for them.

use core::ffi::c_int;

use crate::types::*;

/// Gives the device hints on the request that was begun last (`efadv_wr_processing_hint`).
///
/// # Safety
///
/// - `efadv_qp` belongs to a live extended queue pair of an EFA device, which has an open batch of work requests, and no
///   other thread is posting to it.
/// - It was created with `EFADV_WR_EX_WITH_PROCESSING_HINTS`. So `wr_set_processing_hints` is there and not null.
#[inline]
pub unsafe fn efadv_wr_set_processing_hints(efadv_qp: *mut efadv_qp, hints: u32) {
    // SAFETY: the caller guarantees (`# Safety`) that `efadv_qp` belongs to a live extended queue
    // pair of an EFA device, which has an open batch of work requests, and no other thread is posting
    // to it; it was created with `EFADV_WR_EX_WITH_PROCESSING_HINTS`.
    unsafe { operation!(efadv_qp, efadv_qp, wr_set_processing_hints)(efadv_qp, hints) }
}

/// The GID that the message of the current completion came from: 0, or an error number where the device does not say,
/// because it knows the sender by an address handle.
///
/// # Safety
///
/// - `efadv_cq` belongs to a live extended completion queue of an EFA device, whose cursor is on a completion, and no other
///   thread is polling it.
/// - It was created with `EFADV_WC_EX_WITH_SGID`. So `wc_read_sgid` is there and not null.
/// - `sgid` is valid for writing.
#[inline]
pub unsafe fn efadv_wc_read_sgid(efadv_cq: *mut efadv_cq, sgid: *mut ibv_gid) -> c_int {
    // SAFETY: the caller guarantees (`# Safety`) that `efadv_cq` belongs to a live extended
    // completion queue of an EFA device, whose cursor is on a completion, and no other thread is
    // polling it; it was created with `EFADV_WC_EX_WITH_SGID`; `sgid` is valid for writing.
    unsafe { operation!(efadv_cq, efadv_cq, wc_read_sgid)(efadv_cq, sgid) }
}

/// Whether the current completion took no receive: that of an RDMA WRITE with immediate data, on a pair that was created
/// with `EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV`.
///
/// # Safety
///
/// - `efadv_cq` belongs to a live extended completion queue of an EFA device, whose cursor is on a completion, and no other
///   thread is polling it.
/// - It was created with `EFADV_WC_EX_WITH_IS_UNSOLICITED`. So `wc_is_unsolicited` is there and not null.
#[inline]
pub unsafe fn efadv_wc_is_unsolicited(efadv_cq: *mut efadv_cq) -> bool {
    // SAFETY: the caller guarantees (`# Safety`) that `efadv_cq` belongs to a live extended
    // completion queue of an EFA device, whose cursor is on a completion, and no other thread is
    // polling it; it was created with `EFADV_WC_EX_WITH_IS_UNSOLICITED`.
    unsafe { operation!(efadv_cq, efadv_cq, wc_is_unsolicited)(efadv_cq) }
}
