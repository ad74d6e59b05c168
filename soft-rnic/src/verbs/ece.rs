//! Enhanced connection establishment: options that both ends of a connection agree on in addition
//! to the specification.
//!
//! Two ends of this device need to agree on the layout of the segments through which they reach
//! each other. The options are the versions of that layout, one bit each. If an end knows none of
//! the other's versions, no option is left, and it will not reach the other end.

use std::ffi::c_int;
use std::sync::atomic::Ordering::Relaxed;

use rdma_mummy_sys::types::*;

use super::{admit, failure, number};
use crate::queue_pair::c_object::qp_of;
use crate::shared::segment::ECE_OPTIONS;

/// The first bytes of the devices' MAC addresses. They are locally administered and belong to no
/// vendor.
const VENDOR: u32 = 0x02_736f;

pub(super) unsafe extern "C" fn query_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    // SAFETY: `ibv_query_ece` requires a live queue pair.
    let qp = unsafe { qp_of(qp) };
    admit!(qp.context, QueryEce, failure);
    let current = ibv_ece { vendor_id: VENDOR, options: qp.ece.load(Relaxed), comp_mask: 0 };
    // SAFETY: `ibv_query_ece` requires a valid result pointer.
    unsafe { ece.write(current) };
    0
}

/// Removes the options that this device does not know, and returns the rest.
pub(super) unsafe extern "C" fn set_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    // SAFETY: `ibv_set_ece` requires a live queue pair and valid options.
    let (qp, wanted) = unsafe { (qp_of(qp), ece.read()) };
    admit!(qp.context, SetEce, failure);
    if wanted.comp_mask != 0 || wanted.vendor_id != VENDOR {
        return number(Err(libc::EINVAL));
    }
    let accepted = wanted.options & ECE_OPTIONS;
    qp.ece.store(accepted, Relaxed);
    // SAFETY: `ibv_set_ece` requires a live queue pair and valid options.
    unsafe { (*ece).options = accepted };
    0
}
