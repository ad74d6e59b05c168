//! Shared receive queues of ids.

use std::ffi::c_int;
use std::ptr;

use rdma_mummy_sys::types::*;
use rdma_mummy_sys::verbs;

use super::id::id_of;
use super::queue_pair::{create_cqs, destroy_cqs, xrcd};
use super::{check_pointer, finish, lib};

/// # Safety
///
/// - `id` is live, and `attr` valid; what it names is live.
unsafe fn create(id: *mut rdma_cm_id, attr: &mut ibv_srq_init_attr_ex) -> Result<(), c_int> {
    use ibv_srq_init_attr_mask as Mask;
    let has = |mask: u32, of: Mask| mask & of.0 != 0;
    // SAFETY: `id` is live, and `attr` valid; what it names is live, by the contract of `create`.
    unsafe {
        if (*id).verbs.is_null() || !(*id).srq.is_null() || !has(attr.comp_mask, Mask::IBV_SRQ_INIT_ATTR_TYPE)
        {
            return Err(libc::EINVAL);
        }
        if !has(attr.comp_mask, Mask::IBV_SRQ_INIT_ATTR_PD) || attr.pd.is_null() {
            attr.pd = (*id).pd;
            attr.comp_mask |= Mask::IBV_SRQ_INIT_ATTR_PD.0;
        }
        if attr.srq_type == ibv_srq_type::IBV_SRQT_XRC {
            if !has(attr.comp_mask, Mask::IBV_SRQ_INIT_ATTR_XRCD) || attr.xrcd.is_null() {
                attr.xrcd = xrcd(id_of(id))?;
            }
            if !has(attr.comp_mask, Mask::IBV_SRQ_INIT_ATTR_CQ) || attr.cq.is_null() {
                create_cqs(id, 0, attr.attr.max_wr)?;
                attr.cq = (*id).recv_cq;
            }
            attr.comp_mask |= Mask::IBV_SRQ_INIT_ATTR_XRCD.0 | Mask::IBV_SRQ_INIT_ATTR_CQ.0;
        }
        match check_pointer(verbs::ibv_create_srq_ex(lib(), (*id).verbs, attr)) {
            Ok(srq) => {
                if (*id).pd.is_null() {
                    (*id).pd = attr.pd;
                }
                (*id).srq = srq;
                Ok(())
            }
            Err(error) => {
                destroy_cqs(id);
                Err(error)
            }
        }
    }
}

pub(super) unsafe extern "C" fn create_srq_ex(id: *mut rdma_cm_id, attr: *mut ibv_srq_init_attr_ex) -> c_int {
    // SAFETY: the caller's live id, and valid attributes that nobody else uses.
    finish(unsafe { create(id, &mut *attr) })
}

pub(super) unsafe extern "C" fn create_srq(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> c_int {
    use ibv_srq_init_attr_mask as Mask;
    // SAFETY: the caller's live id, domain that is live or null, and valid attributes that nobody else uses.
    unsafe {
        let is_extended = (*id).qp_type == ibv_qp_type::IBV_QPT_XRC_RECV;
        let mut extended = ibv_srq_init_attr_ex {
            srq_context: (*attr).srq_context,
            attr: (*attr).attr,
            comp_mask: Mask::IBV_SRQ_INIT_ATTR_TYPE.0 | Mask::IBV_SRQ_INIT_ATTR_PD.0,
            srq_type: if is_extended { ibv_srq_type::IBV_SRQT_XRC } else { ibv_srq_type::IBV_SRQT_BASIC },
            pd,
            ..ibv_srq_init_attr_ex::default()
        };
        let created = create(id, &mut extended);
        (*attr).attr = extended.attr;
        finish(created)
    }
}

pub(super) unsafe extern "C" fn destroy_srq(id: *mut rdma_cm_id) {
    // SAFETY: the caller's live id, whose queue nobody uses any more.
    unsafe {
        let srq = (&raw mut (*id).srq).replace(ptr::null_mut());
        if !srq.is_null() {
            let error = (lib().ibv_destroy_srq)(srq);
            if error != 0 {
                log::warn!("the shared receive queue of an id could not be destroyed: error {error}");
            }
        }
        destroy_cqs(id);
    }
}
