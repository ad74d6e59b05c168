//! The direct verbs of EFA.

use core::ffi::c_int;

use rdma_mummy_sys::types::*;

use super::fake::*;
use super::word::*;

struct_cases! {
    QP_CASES, efadv_qp of efadv, shorter by |release| release.efadv_qp;
    efadv_wr_set_processing_hints(hints: u32) = wr_set_processing_hints;
}

struct_cases! {
    CQ_CASES, efadv_cq of efadv, shorter by |release| release.efadv_cq;
    efadv_wc_read_sgid(sgid: *mut ibv_gid) -> c_int = wc_read_sgid;
    efadv_wc_is_unsolicited() -> bool = wc_is_unsolicited;
}
