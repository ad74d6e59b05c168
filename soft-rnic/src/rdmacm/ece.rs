//! Enhanced connection establishment.

use std::ffi::{c_int, c_void};

use rdma_mummy_sys::types::*;

use super::id::id_of;
use super::{connection, finish, lib};
use crate::cm::Ece;

/// The reason of a rejection: the vendor's options are not supported.
const VENDOR_OPTION_NOT_SUPPORTED: u8 = 35;

/// Whether the program's struct is one that is known here.
///
/// # Safety
///
/// - `ece` is readable or null.
unsafe fn is_known(ece: *const ibv_ece) -> bool {
    // SAFETY: `ece` is readable or null, by the contract of `is_known`.
    !ece.is_null() && unsafe { (*ece).comp_mask } == 0
}

pub(super) unsafe extern "C" fn set_local_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    // SAFETY: the caller's live id, and options that are valid or null.
    unsafe {
        // The library negotiates for a queue pair of its own.
        if !is_known(ece) || (*ece).vendor_id == 0 || !(*id).qp.is_null() {
            return finish(Err(libc::EINVAL));
        }
        id_of(id).settings().local_ece = Ece { vendor_id: (*ece).vendor_id, options: (*ece).options };
    }
    0
}

pub(super) unsafe extern "C" fn get_remote_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    // SAFETY: the caller's live id, and options that are valid or null.
    unsafe {
        if ece.is_null() || !(*id).qp.is_null() {
            return finish(Err(libc::EINVAL));
        }
        let Ece { vendor_id, options } = id_of(id).settings().remote_ece;
        ece.write(ibv_ece { vendor_id, options, comp_mask: 0 });
    }
    0
}

pub(super) unsafe extern "C" fn reject_ece(id: *mut rdma_cm_id, data: *const c_void, length: u8) -> c_int {
    // SAFETY: `id` is live, and the data readable, by the contract of the C function `reject_ece`.
    finish(unsafe { connection::reject_for(id, VENDOR_OPTION_NOT_SUPPORTED, data, length) })
}

/// What the queue pair's device can do.
///
/// # Safety
///
/// - `qp` is live.
pub(super) unsafe fn query(qp: *mut ibv_qp) -> Result<Ece, c_int> {
    let mut ece = ibv_ece::default();
    let Some(query_ece) = lib().ibv_query_ece else { return Ok(Ece::default()) };
    // SAFETY: `qp` is live, by the contract of `query`.
    match unsafe { query_ece(qp, &raw mut ece) } {
        0 => Ok(Ece { vendor_id: ece.vendor_id, options: ece.options }),
        libc::EOPNOTSUPP => Ok(Ece::default()),
        error => Err(error),
    }
}

/// Has the queue pair do what the peer offers, as far as it can; what both can do comes back. A peer that offers nothing is
/// left as it is.
///
/// # Safety
///
/// - `qp` is live.
pub(super) unsafe fn agree(qp: *mut ibv_qp, remote: Ece) -> Result<Ece, c_int> {
    // SAFETY: `qp` is live, by the contract of `agree`.
    unsafe {
        if remote.vendor_id == 0 {
            return query(qp);
        }
        let mut ece = ibv_ece { vendor_id: remote.vendor_id, options: remote.options, ..ibv_ece::default() };
        let Some(set_ece) = lib().ibv_set_ece else { return Ok(Ece::default()) };
        match set_ece(qp, &raw mut ece) {
            0 => query(qp),
            libc::EOPNOTSUPP => Ok(Ece::default()),
            error => Err(error),
        }
    }
}
