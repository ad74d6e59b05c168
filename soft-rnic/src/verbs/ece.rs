//! Enhanced connection establishment: what the two ends of a connection agree on beyond the specification.
//!
//! Between ends of this device there is one thing to agree on, the layout of the segments through which they reach one another:
//! its versions are the options, a bit each. An end that speaks none of the other's keeps no option, and will not reach it.

use std::ffi::c_int;
use std::sync::atomic::Ordering::Relaxed;

use rdma_mummy_sys::types::*;

use super::{admit, failure, number};
use crate::queue_pair::c_object::qp_of;
use crate::shared::segment::ECE_OPTIONS;

/// The beginning of the devices' MAC addresses: of no vendor, as it is locally administered.
const VENDOR: u32 = 0x02_736f;

pub(super) unsafe extern "C" fn query_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    // SAFETY: the caller's live queue pair.
    let qp = unsafe { qp_of(qp) };
    admit!(qp.context, QueryEce, failure);
    let current = ibv_ece { vendor_id: VENDOR, options: qp.ece.load(Relaxed), comp_mask: 0 };
    // SAFETY: the caller's place is valid.
    unsafe { ece.write(current) };
    0
}

/// The options that are not known here are taken away; what is left comes back.
pub(super) unsafe extern "C" fn set_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    // SAFETY: the caller's live queue pair and options.
    let (qp, wanted) = unsafe { (qp_of(qp), ece.read()) };
    admit!(qp.context, SetEce, failure);
    if wanted.comp_mask != 0 || wanted.vendor_id != VENDOR {
        return number(Err(libc::EINVAL));
    }
    let accepted = wanted.options & ECE_OPTIONS;
    qp.ece.store(accepted, Relaxed);
    // SAFETY: the caller's live queue pair and options.
    unsafe { (*ece).options = accepted };
    0
}
