// By `cargo xtask bindings` of rdma-core 65.0-1.1, bindgen 0.73.2, libclang 18.1.1. Do not edit.

//! The functions that programs call.

use core::ffi::*;

use rdma_mummy_sys::types::*;

exports! {
    super::TABLE, "";
    required {
        fn ibv_wc_status_str(status: ibv_wc_status) -> *const c_char;
        fn ibv_rate_to_mult(rate: ibv_rate) -> c_int;
        fn mult_to_ibv_rate(mult: c_int) -> ibv_rate;
        fn ibv_rate_to_mbps(rate: ibv_rate) -> c_int;
        fn mbps_to_ibv_rate(mbps: c_int) -> ibv_rate;
        fn ibv_get_device_list(num_devices: *mut c_int) -> *mut *mut ibv_device;
        fn ibv_free_device_list(list: *mut *mut ibv_device);
        fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char;
        fn ibv_get_device_guid(device: *mut ibv_device) -> __be64;
        fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context;
        fn ibv_close_device(context: *mut ibv_context) -> c_int;
        fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int;
        fn ibv_ack_async_event(event: *mut ibv_async_event);
        fn ibv_query_device(context: *mut ibv_context, device_attr: *mut ibv_device_attr) -> c_int;
        fn ibv_query_port(context: *mut ibv_context, port_num: u8, port_attr: *mut _compat_ibv_port_attr) -> c_int;
        fn ibv_query_gid(context: *mut ibv_context, port_num: u8, index: c_int, gid: *mut ibv_gid) -> c_int;
        fn ibv_query_pkey(context: *mut ibv_context, port_num: u8, index: c_int, pkey: *mut __be16) -> c_int;
        fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;
        fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int;
        fn ibv_reg_mr(pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int) -> *mut ibv_mr;
        fn ibv_rereg_mr(mr: *mut ibv_mr, flags: c_int, pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int) -> c_int;
        fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int;
        fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel;
        fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int;
        fn ibv_create_cq(context: *mut ibv_context, cqe: c_int, cq_context: *mut c_void, channel: *mut ibv_comp_channel, comp_vector: c_int) -> *mut ibv_cq;
        fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int;
        fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int;
        fn ibv_get_cq_event(channel: *mut ibv_comp_channel, cq: *mut *mut ibv_cq, cq_context: *mut *mut c_void) -> c_int;
        fn ibv_ack_cq_events(cq: *mut ibv_cq, nevents: c_uint);
        fn ibv_create_srq(pd: *mut ibv_pd, srq_init_attr: *mut ibv_srq_init_attr) -> *mut ibv_srq;
        fn ibv_modify_srq(srq: *mut ibv_srq, srq_attr: *mut ibv_srq_attr, srq_attr_mask: c_int) -> c_int;
        fn ibv_query_srq(srq: *mut ibv_srq, srq_attr: *mut ibv_srq_attr) -> c_int;
        fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int;
        fn ibv_create_qp(pd: *mut ibv_pd, qp_init_attr: *mut ibv_qp_init_attr) -> *mut ibv_qp;
        fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, attr_mask: c_int) -> c_int;
        fn ibv_query_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, attr_mask: c_int, init_attr: *mut ibv_qp_init_attr) -> c_int;
        fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int;
        fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah;
        fn ibv_init_ah_from_wc(context: *mut ibv_context, port_num: u8, wc: *mut ibv_wc, grh: *mut ibv_grh, ah_attr: *mut ibv_ah_attr) -> c_int;
        fn ibv_create_ah_from_wc(pd: *mut ibv_pd, wc: *mut ibv_wc, grh: *mut ibv_grh, port_num: u8) -> *mut ibv_ah;
        fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int;
        fn ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int;
        fn ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int;
        fn ibv_fork_init() -> c_int;
        fn ibv_node_type_str(node_type: ibv_node_type) -> *const c_char;
        fn ibv_port_state_str(port_state: ibv_port_state) -> *const c_char;
        fn ibv_event_type_str(event: ibv_event_type) -> *const c_char;
        fn ibv_resolve_eth_l2_from_gid(context: *mut ibv_context, attr: *mut ibv_ah_attr, eth_mac: *mut u8, vid: *mut u16) -> c_int;
    }
    optional {
        libc::EOPNOTSUPP => fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex;
        -1 => fn ibv_get_device_index(device: *mut ibv_device) -> c_int;
        libc::EOPNOTSUPP => fn ibv_import_device(cmd_fd: c_int) -> *mut ibv_context;
        libc::EOPNOTSUPP => fn ibv_import_pd(context: *mut ibv_context, pd_handle: u32) -> *mut ibv_pd;
        libc::EOPNOTSUPP => fn ibv_unimport_pd(pd: *mut ibv_pd);
        libc::EOPNOTSUPP => fn ibv_import_mr(pd: *mut ibv_pd, mr_handle: u32) -> *mut ibv_mr;
        libc::EOPNOTSUPP => fn ibv_unimport_mr(mr: *mut ibv_mr);
        libc::EOPNOTSUPP => fn ibv_import_dm(context: *mut ibv_context, dm_handle: u32) -> *mut ibv_dm;
        libc::EOPNOTSUPP => fn ibv_unimport_dm(dm: *mut ibv_dm);
        libc::EOPNOTSUPP => fn ibv_query_port_speed(context: *mut ibv_context, port_num: u32, port_speed: *mut u64) -> c_int;
        libc::EOPNOTSUPP => fn _ibv_query_gid_ex(context: *mut ibv_context, port_num: u32, gid_index: u32, entry: *mut ibv_gid_entry, flags: u32, entry_size: usize) -> c_int;
        libc::EOPNOTSUPP => fn _ibv_query_gid_table(context: *mut ibv_context, entries: *mut ibv_gid_entry, max_entries: usize, flags: u32, entry_size: usize) -> isize;
        -1 => fn ibv_get_pkey_index(context: *mut ibv_context, port_num: u8, pkey: __be16) -> c_int;
        libc::EOPNOTSUPP => fn ibv_reg_mr_iova2(pd: *mut ibv_pd, addr: *mut c_void, length: usize, iova: u64, access: c_uint) -> *mut ibv_mr;
        libc::EOPNOTSUPP => fn ibv_reg_mr_iova(pd: *mut ibv_pd, addr: *mut c_void, length: usize, iova: u64, access: c_int) -> *mut ibv_mr;
        libc::EOPNOTSUPP => fn ibv_reg_dmabuf_mr(pd: *mut ibv_pd, offset: u64, length: usize, iova: u64, fd: c_int, access: c_int) -> *mut ibv_mr;
        libc::EOPNOTSUPP => fn ibv_reg_mr_ex(pd: *mut ibv_pd, mr_init_attr: *mut ibv_mr_init_attr) -> *mut ibv_mr;
        -1 => fn ibv_dm_export_dmabuf_fd(dm: *mut ibv_dm) -> c_int;
        libc::EOPNOTSUPP => fn _ibv_query_comp_cntr_caps(context: *mut ibv_context, caps: *mut ibv_comp_cntr_caps, caps_size: usize) -> c_int;
        libc::EOPNOTSUPP => fn ibv_create_comp_cntr(context: *mut ibv_context, cc_attr: *mut ibv_comp_cntr_init_attr) -> *mut ibv_comp_cntr;
        libc::EOPNOTSUPP => fn ibv_destroy_comp_cntr(comp_cntr: *mut ibv_comp_cntr) -> c_int;
        libc::EOPNOTSUPP => fn ibv_set_comp_cntr(comp_cntr: *mut ibv_comp_cntr, value: u64) -> c_int;
        libc::EOPNOTSUPP => fn ibv_set_err_comp_cntr(comp_cntr: *mut ibv_comp_cntr, value: u64) -> c_int;
        libc::EOPNOTSUPP => fn ibv_inc_comp_cntr(comp_cntr: *mut ibv_comp_cntr, amount: u64) -> c_int;
        libc::EOPNOTSUPP => fn ibv_inc_err_comp_cntr(comp_cntr: *mut ibv_comp_cntr, amount: u64) -> c_int;
        libc::EOPNOTSUPP => fn ibv_read_comp_cntr(comp_cntr: *mut ibv_comp_cntr, value: *mut u64) -> c_int;
        libc::EOPNOTSUPP => fn ibv_read_err_comp_cntr(comp_cntr: *mut ibv_comp_cntr, value: *mut u64) -> c_int;
        libc::EOPNOTSUPP => fn ibv_alloc_buf(pd: *mut ibv_pd, size: usize, buf: *mut *mut ibv_buf) -> *mut c_void;
        -1 => fn ibv_export_buf_dmabuf_fd(buf: *mut ibv_buf) -> c_int;
        libc::EOPNOTSUPP => fn ibv_free_buf(buf: *mut ibv_buf);
        libc::EOPNOTSUPP => fn ibv_reg_buf_mr(pd: *mut ibv_pd, buf: *mut ibv_buf, addr: *mut c_void, length: usize, access: c_int) -> *mut ibv_mr;
        libc::EOPNOTSUPP => fn ibv_alloc_dmah(context: *mut ibv_context, attr: *mut ibv_dmah_init_attr) -> *mut ibv_dmah;
        libc::EOPNOTSUPP => fn ibv_dealloc_dmah(dmah: *mut ibv_dmah) -> c_int;
        libc::EOPNOTSUPP => fn ibv_qp_attach_comp_cntr(qp: *mut ibv_qp, comp_cntr: *mut ibv_comp_cntr, attr: *mut ibv_qp_attach_comp_cntr_attr) -> c_int;
        0 => fn ibv_query_qp_data_in_order(qp: *mut ibv_qp, op: ibv_wr_opcode, flags: u32) -> c_int;
        libc::EOPNOTSUPP => fn ibv_is_fork_initialized() -> ibv_fork_status;
        libc::EOPNOTSUPP => fn ibv_set_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int;
        libc::EOPNOTSUPP => fn ibv_query_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int;
    }
    refused {
    }
}
