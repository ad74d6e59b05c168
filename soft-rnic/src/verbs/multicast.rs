//! Verbs that attach queue pairs to multicast groups and detach them.

use std::ffi::c_int;

use rdma_mummy_sys::types::*;

use super::{admit, failure, number};
use crate::objects::address_handle::gid_bytes;
use crate::queue_pair::c_object::qp_of;

pub(super) unsafe extern "C" fn attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int {
    if gid.is_null() {
        return number(Err(libc::EINVAL));
    }
    // SAFETY: `ibv_attach_mcast` requires a live queue pair and a valid GID.
    let (qp, gid) = unsafe { (qp_of(qp), gid_bytes(gid.read())) };
    admit!(qp.context, AttachMcast, failure);
    let rnic = qp.context.rnic();
    let result = qp.context.check_process();
    number(result.and_then(|()| rnic.groups().attach(qp, gid, lid, rnic.limits())))
}

pub(super) unsafe extern "C" fn detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int {
    if gid.is_null() {
        return number(Err(libc::EINVAL));
    }
    // SAFETY: `ibv_detach_mcast` requires a live queue pair and a valid GID.
    let (qp, gid) = unsafe { (qp_of(qp), gid_bytes(gid.read())) };
    admit!(qp.context, DetachMcast, failure);
    let result = qp.context.check_process();
    number(result.and_then(|()| qp.context.rnic().groups().detach(qp, gid, lid)))
}
