//! Verbs that this device does not support: `EOPNOTSUPP`.

use std::ffi::c_int;

use rdma_mummy_sys::Verbs;
use rdma_mummy_sys::types::*;

use super::{minus_one, null, number};

macro_rules! refuse {
    ($(fn $name:ident($($arg:ty),*) $(-> $ret:ty = $answer:expr)?;)*) => {$(
        unsafe extern "C" fn $name($(_: $arg),*) $(-> $ret)? {
            $($answer)?
        }
    )*};
}

const ABSENT: c_int = libc::EOPNOTSUPP;

refuse! {
    fn dm_export_dmabuf_fd(*mut ibv_dm) -> c_int = minus_one(ABSENT);
    fn export_buf_dmabuf_fd(*mut ibv_buf) -> c_int = minus_one(ABSENT);
    fn alloc_dmah(*mut ibv_context, *mut ibv_dmah_init_attr) -> *mut ibv_dmah = null(ABSENT);
    fn dealloc_dmah(*mut ibv_dmah) -> c_int = number(Err(ABSENT));
    fn query_comp_cntr_caps(*mut ibv_context, *mut ibv_comp_cntr_caps, usize) -> c_int = number(Err(ABSENT));
    fn create_comp_cntr(*mut ibv_context, *mut ibv_comp_cntr_init_attr) -> *mut ibv_comp_cntr = null(ABSENT);
    fn of_comp_cntr(*mut ibv_comp_cntr) -> c_int = number(Err(ABSENT));
    fn change_comp_cntr(*mut ibv_comp_cntr, u64) -> c_int = number(Err(ABSENT));
    fn read_comp_cntr(*mut ibv_comp_cntr, *mut u64) -> c_int = number(Err(ABSENT));
    fn attach_comp_cntr(*mut ibv_qp, *mut ibv_comp_cntr, *mut ibv_qp_attach_comp_cntr_attr) -> c_int
        = number(Err(ABSENT));
    // The last bytes of a message are written last. The device promises nothing else about the
    // order of its bytes.
    fn query_qp_data_in_order(*mut ibv_qp, ibv_wr_opcode, u32) -> c_int = 0;
}

/// Adds the refusals to a table. (Functions that every library exports refuse by default.)
pub(super) const fn add_to(table: Verbs) -> Verbs {
    Verbs {
        ibv_dm_export_dmabuf_fd: Some(dm_export_dmabuf_fd),
        ibv_export_buf_dmabuf_fd: Some(export_buf_dmabuf_fd),
        ibv_alloc_dmah: Some(alloc_dmah),
        ibv_dealloc_dmah: Some(dealloc_dmah),
        _ibv_query_comp_cntr_caps: Some(query_comp_cntr_caps),
        ibv_create_comp_cntr: Some(create_comp_cntr),
        ibv_destroy_comp_cntr: Some(of_comp_cntr),
        ibv_set_comp_cntr: Some(change_comp_cntr),
        ibv_set_err_comp_cntr: Some(change_comp_cntr),
        ibv_inc_comp_cntr: Some(change_comp_cntr),
        ibv_inc_err_comp_cntr: Some(change_comp_cntr),
        ibv_read_comp_cntr: Some(read_comp_cntr),
        ibv_read_err_comp_cntr: Some(read_comp_cntr),
        ibv_qp_attach_comp_cntr: Some(attach_comp_cntr),
        ibv_query_qp_data_in_order: Some(query_qp_data_in_order),
        ..table
    }
}
