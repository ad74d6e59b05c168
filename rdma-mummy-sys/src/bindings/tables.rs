// By `cargo xtask bindings` of rdma-core 65.0-1.1, bindgen 0.73.2, libclang 18.1.1. Do not edit.

//! One table of function pointers for each library.

use core::ffi::*;

use super::types::*;
use libc::{FILE, epoll_event, fd_set, iovec, msghdr, nfds_t, off_t, pollfd, sockaddr, socklen_t, ssize_t, timeval};

library_table! {
    #[doc = "The functions that libibverbs exports."]
    Verbs, "libibverbs.so.1", libc::EOPNOTSUPP;
    required {
        "IBVERBS_1.1" "1.1.6" fn ibv_wc_status_str(status: ibv_wc_status) -> *const c_char;
        "IBVERBS_1.0" "1.1.6" fn ibv_rate_to_mult(rate: ibv_rate) -> c_int;
        "IBVERBS_1.0" "1.1.6" fn mult_to_ibv_rate(mult: c_int) -> ibv_rate;
        "IBVERBS_1.1" "1.1.8" fn ibv_rate_to_mbps(rate: ibv_rate) -> c_int;
        "IBVERBS_1.1" "1.1.8" fn mbps_to_ibv_rate(mbps: c_int) -> ibv_rate;
        "IBVERBS_1.1" "1.1.6" fn ibv_get_device_list(num_devices: *mut c_int) -> *mut *mut ibv_device;
        "IBVERBS_1.1" "1.1.6" fn ibv_free_device_list(list: *mut *mut ibv_device);
        "IBVERBS_1.1" "1.1.6" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char;
        "IBVERBS_1.1" "1.1.6" fn ibv_get_device_guid(device: *mut ibv_device) -> __be64;
        "IBVERBS_1.1" "1.1.6" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context;
        "IBVERBS_1.1" "1.1.6" fn ibv_close_device(context: *mut ibv_context) -> c_int;
        "IBVERBS_1.1" "1.1.6" fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int;
        "IBVERBS_1.1" "1.1.6" fn ibv_ack_async_event(event: *mut ibv_async_event);
        "IBVERBS_1.1" "1.1.6" fn ibv_query_device(context: *mut ibv_context, device_attr: *mut ibv_device_attr) -> c_int;
        "IBVERBS_1.1" "1.1.6" fn ibv_query_port(context: *mut ibv_context, port_num: u8, port_attr: *mut _compat_ibv_port_attr) -> c_int;
        "IBVERBS_1.1" "1.1.6" fn ibv_query_gid(context: *mut ibv_context, port_num: u8, index: c_int, gid: *mut ibv_gid) -> c_int;
        "IBVERBS_1.1" "1.1.6" fn ibv_query_pkey(context: *mut ibv_context, port_num: u8, index: c_int, pkey: *mut __be16) -> c_int;
        "IBVERBS_1.1" "1.1.6" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;
        "IBVERBS_1.1" "1.1.6" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int;
        "IBVERBS_1.1" "1.1.6" fn ibv_reg_mr(pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int) -> *mut ibv_mr;
        "IBVERBS_1.1" "1.2.1" fn ibv_rereg_mr(mr: *mut ibv_mr, flags: c_int, pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int) -> c_int;
        "IBVERBS_1.1" "1.1.6" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int;
        "IBVERBS_1.0" "1.1.6" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel;
        "IBVERBS_1.0" "1.1.6" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int;
        "IBVERBS_1.1" "1.1.6" fn ibv_create_cq(context: *mut ibv_context, cqe: c_int, cq_context: *mut c_void, channel: *mut ibv_comp_channel, comp_vector: c_int) -> *mut ibv_cq;
        "IBVERBS_1.1" "1.1.6" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int;
        "IBVERBS_1.1" "1.1.6" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int;
        "IBVERBS_1.1" "1.1.6" fn ibv_get_cq_event(channel: *mut ibv_comp_channel, cq: *mut *mut ibv_cq, cq_context: *mut *mut c_void) -> c_int;
        "IBVERBS_1.1" "1.1.6" fn ibv_ack_cq_events(cq: *mut ibv_cq, nevents: c_uint);
        "IBVERBS_1.1" "1.1.6" fn ibv_create_srq(pd: *mut ibv_pd, srq_init_attr: *mut ibv_srq_init_attr) -> *mut ibv_srq;
        "IBVERBS_1.1" "1.1.6" fn ibv_modify_srq(srq: *mut ibv_srq, srq_attr: *mut ibv_srq_attr, srq_attr_mask: c_int) -> c_int;
        "IBVERBS_1.1" "1.1.6" fn ibv_query_srq(srq: *mut ibv_srq, srq_attr: *mut ibv_srq_attr) -> c_int;
        "IBVERBS_1.1" "1.1.6" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int;
        "IBVERBS_1.1" "1.1.6" fn ibv_create_qp(pd: *mut ibv_pd, qp_init_attr: *mut ibv_qp_init_attr) -> *mut ibv_qp;
        "IBVERBS_1.1" "1.1.6" fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, attr_mask: c_int) -> c_int;
        "IBVERBS_1.1" "1.1.6" fn ibv_query_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, attr_mask: c_int, init_attr: *mut ibv_qp_init_attr) -> c_int;
        "IBVERBS_1.1" "1.1.6" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int;
        "IBVERBS_1.1" "1.1.6" fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah;
        "IBVERBS_1.1" "1.1.6" fn ibv_init_ah_from_wc(context: *mut ibv_context, port_num: u8, wc: *mut ibv_wc, grh: *mut ibv_grh, ah_attr: *mut ibv_ah_attr) -> c_int;
        "IBVERBS_1.1" "1.1.6" fn ibv_create_ah_from_wc(pd: *mut ibv_pd, wc: *mut ibv_wc, grh: *mut ibv_grh, port_num: u8) -> *mut ibv_ah;
        "IBVERBS_1.1" "1.1.6" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int;
        "IBVERBS_1.1" "1.1.6" fn ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int;
        "IBVERBS_1.1" "1.1.6" fn ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int;
        "IBVERBS_1.1" "1.1.6" fn ibv_fork_init() -> c_int;
        "IBVERBS_1.1" "1.1.6" fn ibv_node_type_str(node_type: ibv_node_type) -> *const c_char;
        "IBVERBS_1.1" "1.1.6" fn ibv_port_state_str(port_state: ibv_port_state) -> *const c_char;
        "IBVERBS_1.1" "1.1.6" fn ibv_event_type_str(event: ibv_event_type) -> *const c_char;
        "IBVERBS_1.1" "1.2.0" fn ibv_resolve_eth_l2_from_gid(context: *mut ibv_context, attr: *mut ibv_ah_attr, eth_mac: *mut u8, vid: *mut u16) -> c_int;
    }
    optional {
        "" "" fn ibv_wr_opcode_str(opcode: ibv_wr_opcode) -> *const c_char;
        "IBVERBS_1.6" "24" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex;
        "IBVERBS_1.9" "30" fn ibv_get_device_index(device: *mut ibv_device) -> c_int;
        "IBVERBS_1.10" "31" fn ibv_import_device(cmd_fd: c_int) -> *mut ibv_context;
        "IBVERBS_1.10" "31" fn ibv_import_pd(context: *mut ibv_context, pd_handle: u32) -> *mut ibv_pd;
        "IBVERBS_1.10" "31" fn ibv_unimport_pd(pd: *mut ibv_pd);
        "IBVERBS_1.10" "31" fn ibv_import_mr(pd: *mut ibv_pd, mr_handle: u32) -> *mut ibv_mr;
        "IBVERBS_1.10" "31" fn ibv_unimport_mr(mr: *mut ibv_mr);
        "IBVERBS_1.13" "35" fn ibv_import_dm(context: *mut ibv_context, dm_handle: u32) -> *mut ibv_dm;
        "IBVERBS_1.13" "35" fn ibv_unimport_dm(dm: *mut ibv_dm);
        "IBVERBS_1.16" "62" fn ibv_query_port_speed(context: *mut ibv_context, port_num: u32, port_speed: *mut u64) -> c_int;
        "IBVERBS_1.11" "32" fn _ibv_query_gid_ex(context: *mut ibv_context, port_num: u32, gid_index: u32, entry: *mut ibv_gid_entry, flags: u32, entry_size: usize) -> c_int;
        "IBVERBS_1.11" "32" fn _ibv_query_gid_table(context: *mut ibv_context, entries: *mut ibv_gid_entry, max_entries: usize, flags: u32, entry_size: usize) -> isize;
        "IBVERBS_1.5" "20" fn ibv_get_pkey_index(context: *mut ibv_context, port_num: u8, pkey: __be16) -> c_int;
        "IBVERBS_1.8" "28" fn ibv_reg_mr_iova2(pd: *mut ibv_pd, addr: *mut c_void, length: usize, iova: u64, access: c_uint) -> *mut ibv_mr;
        "IBVERBS_1.7" "25" fn ibv_reg_mr_iova(pd: *mut ibv_pd, addr: *mut c_void, length: usize, iova: u64, access: c_int) -> *mut ibv_mr;
        "IBVERBS_1.12" "34" fn ibv_reg_dmabuf_mr(pd: *mut ibv_pd, offset: u64, length: usize, iova: u64, fd: c_int, access: c_int) -> *mut ibv_mr;
        "IBVERBS_1.15" "59" fn ibv_reg_mr_ex(pd: *mut ibv_pd, mr_init_attr: *mut ibv_mr_init_attr) -> *mut ibv_mr;
        "IBVERBS_1.16" "62" fn ibv_dm_export_dmabuf_fd(dm: *mut ibv_dm) -> c_int;
        "IBVERBS_1.18" "65" fn _ibv_query_comp_cntr_caps(context: *mut ibv_context, caps: *mut ibv_comp_cntr_caps, caps_size: usize) -> c_int;
        "IBVERBS_1.18" "65" fn ibv_create_comp_cntr(context: *mut ibv_context, cc_attr: *mut ibv_comp_cntr_init_attr) -> *mut ibv_comp_cntr;
        "IBVERBS_1.18" "65" fn ibv_destroy_comp_cntr(comp_cntr: *mut ibv_comp_cntr) -> c_int;
        "IBVERBS_1.18" "65" fn ibv_set_comp_cntr(comp_cntr: *mut ibv_comp_cntr, value: u64) -> c_int;
        "IBVERBS_1.18" "65" fn ibv_set_err_comp_cntr(comp_cntr: *mut ibv_comp_cntr, value: u64) -> c_int;
        "IBVERBS_1.18" "65" fn ibv_inc_comp_cntr(comp_cntr: *mut ibv_comp_cntr, amount: u64) -> c_int;
        "IBVERBS_1.18" "65" fn ibv_inc_err_comp_cntr(comp_cntr: *mut ibv_comp_cntr, amount: u64) -> c_int;
        "IBVERBS_1.18" "65" fn ibv_read_comp_cntr(comp_cntr: *mut ibv_comp_cntr, value: *mut u64) -> c_int;
        "IBVERBS_1.18" "65" fn ibv_read_err_comp_cntr(comp_cntr: *mut ibv_comp_cntr, value: *mut u64) -> c_int;
        "IBVERBS_1.17" "64" fn ibv_alloc_buf(pd: *mut ibv_pd, size: usize, buf: *mut *mut ibv_buf) -> *mut c_void;
        "IBVERBS_1.18" "65" fn ibv_export_buf_dmabuf_fd(buf: *mut ibv_buf) -> c_int;
        "IBVERBS_1.17" "64" fn ibv_free_buf(buf: *mut ibv_buf);
        "IBVERBS_1.17" "64" fn ibv_reg_buf_mr(pd: *mut ibv_pd, buf: *mut ibv_buf, addr: *mut c_void, length: usize, access: c_int) -> *mut ibv_mr;
        "IBVERBS_1.15" "59" fn ibv_alloc_dmah(context: *mut ibv_context, attr: *mut ibv_dmah_init_attr) -> *mut ibv_dmah;
        "IBVERBS_1.15" "59" fn ibv_dealloc_dmah(dmah: *mut ibv_dmah) -> c_int;
        "IBVERBS_1.18" "65" fn ibv_qp_attach_comp_cntr(qp: *mut ibv_qp, comp_cntr: *mut ibv_comp_cntr, attr: *mut ibv_qp_attach_comp_cntr_attr) -> c_int;
        "IBVERBS_1.14" "36" fn ibv_query_qp_data_in_order(qp: *mut ibv_qp, op: ibv_wr_opcode, flags: u32) -> c_int;
        "IBVERBS_1.13" "35" fn ibv_is_fork_initialized() -> ibv_fork_status;
        "IBVERBS_1.10" "31" fn ibv_set_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int;
        "IBVERBS_1.10" "31" fn ibv_query_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int;
    }
}

library_table! {
    #[doc = "The functions that librdmacm exports."]
    RdmaCm, "librdmacm.so.1", -1;
    required {
        "RDMACM_1.0" "1.0.15" fn rdma_create_event_channel() -> *mut rdma_event_channel;
        "RDMACM_1.0" "1.0.15" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel);
        "RDMACM_1.0" "1.0.15" fn rdma_create_id(channel: *mut rdma_event_channel, id: *mut *mut rdma_cm_id, context: *mut c_void, ps: rdma_port_space) -> c_int;
        "RDMACM_1.0" "1.0.15" fn rdma_create_ep(id: *mut *mut rdma_cm_id, res: *mut rdma_addrinfo, pd: *mut ibv_pd, qp_init_attr: *mut ibv_qp_init_attr) -> c_int;
        "RDMACM_1.0" "1.0.15" fn rdma_destroy_ep(id: *mut rdma_cm_id);
        "RDMACM_1.0" "1.0.15" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int;
        "RDMACM_1.0" "1.0.15" fn rdma_bind_addr(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int;
        "RDMACM_1.0" "1.0.15" fn rdma_resolve_addr(id: *mut rdma_cm_id, src_addr: *mut sockaddr, dst_addr: *mut sockaddr, timeout_ms: c_int) -> c_int;
        "RDMACM_1.0" "1.0.15" fn rdma_resolve_route(id: *mut rdma_cm_id, timeout_ms: c_int) -> c_int;
        "RDMACM_1.0" "1.0.15" fn rdma_create_qp(id: *mut rdma_cm_id, pd: *mut ibv_pd, qp_init_attr: *mut ibv_qp_init_attr) -> c_int;
        "RDMACM_1.0" "1.0.19" fn rdma_create_qp_ex(id: *mut rdma_cm_id, qp_init_attr: *mut ibv_qp_init_attr_ex) -> c_int;
        "RDMACM_1.0" "1.0.15" fn rdma_destroy_qp(id: *mut rdma_cm_id);
        "RDMACM_1.0" "1.0.15" fn rdma_connect(id: *mut rdma_cm_id, conn_param: *mut rdma_conn_param) -> c_int;
        "RDMACM_1.0" "1.0.15" fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int;
        "RDMACM_1.0" "1.0.15" fn rdma_get_request(listen: *mut rdma_cm_id, id: *mut *mut rdma_cm_id) -> c_int;
        "RDMACM_1.0" "1.0.15" fn rdma_accept(id: *mut rdma_cm_id, conn_param: *mut rdma_conn_param) -> c_int;
        "RDMACM_1.0" "1.0.15" fn rdma_reject(id: *mut rdma_cm_id, private_data: *const c_void, private_data_len: u8) -> c_int;
        "RDMACM_1.0" "1.0.15" fn rdma_notify(id: *mut rdma_cm_id, event: ibv_event_type) -> c_int;
        "RDMACM_1.0" "1.0.15" fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int;
        "RDMACM_1.0" "1.0.15" fn rdma_join_multicast(id: *mut rdma_cm_id, addr: *mut sockaddr, context: *mut c_void) -> c_int;
        "RDMACM_1.0" "1.0.15" fn rdma_leave_multicast(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int;
        "RDMACM_1.1" "16" fn rdma_join_multicast_ex(id: *mut rdma_cm_id, mc_join_attr: *mut rdma_cm_join_mc_attr_ex, context: *mut c_void) -> c_int;
        "RDMACM_1.0" "1.0.15" fn rdma_get_cm_event(channel: *mut rdma_event_channel, event: *mut *mut rdma_cm_event) -> c_int;
        "RDMACM_1.0" "1.0.15" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int;
        "RDMACM_1.0" "1.0.19" fn rdma_get_src_port(id: *mut rdma_cm_id) -> __be16;
        "RDMACM_1.0" "1.0.19" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> __be16;
        "RDMACM_1.0" "1.0.15" fn rdma_get_devices(num_devices: *mut c_int) -> *mut *mut ibv_context;
        "RDMACM_1.0" "1.0.15" fn rdma_free_devices(list: *mut *mut ibv_context);
        "RDMACM_1.0" "1.0.15" fn rdma_event_str(event: rdma_cm_event_type) -> *const c_char;
        "RDMACM_1.0" "1.0.15" fn rdma_set_option(id: *mut rdma_cm_id, level: c_int, optname: c_int, optval: *mut c_void, optlen: usize) -> c_int;
        "RDMACM_1.0" "1.0.15" fn rdma_migrate_id(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> c_int;
        "RDMACM_1.0" "1.0.15" fn rdma_getaddrinfo(node: *const c_char, service: *const c_char, hints: *const rdma_addrinfo, res: *mut *mut rdma_addrinfo) -> c_int;
        "RDMACM_1.0" "1.0.15" fn rdma_freeaddrinfo(res: *mut rdma_addrinfo);
        "RDMACM_1.0" "1.0.15" fn rdma_create_srq(id: *mut rdma_cm_id, pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> c_int;
        "RDMACM_1.0" "1.0.19" fn rdma_create_srq_ex(id: *mut rdma_cm_id, attr: *mut ibv_srq_init_attr_ex) -> c_int;
        "RDMACM_1.0" "1.0.15" fn rdma_destroy_srq(id: *mut rdma_cm_id);
        "RDMACM_1.0" "1.0.16" fn rsocket(domain: c_int, type_: c_int, protocol: c_int) -> c_int;
        "RDMACM_1.0" "1.0.16" fn rbind(socket: c_int, addr: *const sockaddr, addrlen: socklen_t) -> c_int;
        "RDMACM_1.0" "1.0.16" fn rlisten(socket: c_int, backlog: c_int) -> c_int;
        "RDMACM_1.0" "1.0.16" fn raccept(socket: c_int, addr: *mut sockaddr, addrlen: *mut socklen_t) -> c_int;
        "RDMACM_1.0" "1.0.16" fn rconnect(socket: c_int, addr: *const sockaddr, addrlen: socklen_t) -> c_int;
        "RDMACM_1.0" "1.0.16" fn rshutdown(socket: c_int, how: c_int) -> c_int;
        "RDMACM_1.0" "1.0.16" fn rclose(socket: c_int) -> c_int;
        "RDMACM_1.0" "1.0.16" fn rrecv(socket: c_int, buf: *mut c_void, len: usize, flags: c_int) -> isize;
        "RDMACM_1.0" "1.0.16" fn rrecvfrom(socket: c_int, buf: *mut c_void, len: usize, flags: c_int, src_addr: *mut sockaddr, addrlen: *mut socklen_t) -> isize;
        "RDMACM_1.0" "1.0.16" fn rrecvmsg(socket: c_int, msg: *mut msghdr, flags: c_int) -> isize;
        "RDMACM_1.0" "1.0.16" fn rsend(socket: c_int, buf: *const c_void, len: usize, flags: c_int) -> isize;
        "RDMACM_1.0" "1.0.16" fn rsendto(socket: c_int, buf: *const c_void, len: usize, flags: c_int, dest_addr: *const sockaddr, addrlen: socklen_t) -> isize;
        "RDMACM_1.0" "1.0.16" fn rsendmsg(socket: c_int, msg: *const msghdr, flags: c_int) -> isize;
        "RDMACM_1.0" "1.0.16" fn rread(socket: c_int, buf: *mut c_void, count: usize) -> isize;
        "RDMACM_1.0" "1.0.16" fn rreadv(socket: c_int, iov: *const iovec, iovcnt: c_int) -> isize;
        "RDMACM_1.0" "1.0.16" fn rwrite(socket: c_int, buf: *const c_void, count: usize) -> isize;
        "RDMACM_1.0" "1.0.16" fn rwritev(socket: c_int, iov: *const iovec, iovcnt: c_int) -> isize;
        "RDMACM_1.0" "1.0.16" fn rpoll(fds: *mut pollfd, nfds: nfds_t, timeout: c_int) -> c_int;
        "RDMACM_1.0" "1.0.16" fn rselect(nfds: c_int, readfds: *mut fd_set, writefds: *mut fd_set, exceptfds: *mut fd_set, timeout: *mut timeval) -> c_int;
        "RDMACM_1.0" "1.0.16" fn rgetpeername(socket: c_int, addr: *mut sockaddr, addrlen: *mut socklen_t) -> c_int;
        "RDMACM_1.0" "1.0.16" fn rgetsockname(socket: c_int, addr: *mut sockaddr, addrlen: *mut socklen_t) -> c_int;
        "RDMACM_1.0" "1.0.16" fn rsetsockopt(socket: c_int, level: c_int, optname: c_int, optval: *const c_void, optlen: socklen_t) -> c_int;
        "RDMACM_1.0" "1.0.16" fn rgetsockopt(socket: c_int, level: c_int, optname: c_int, optval: *mut c_void, optlen: *mut socklen_t) -> c_int;
        "RDMACM_1.0" "1.0.19" fn riomap(socket: c_int, buf: *mut c_void, len: usize, prot: c_int, flags: c_int, offset: off_t) -> off_t;
        "RDMACM_1.0" "1.0.19" fn riounmap(socket: c_int, buf: *mut c_void, len: usize) -> c_int;
        "RDMACM_1.0" "1.0.19" fn riowrite(socket: c_int, buf: *const c_void, count: usize, offset: off_t, flags: c_int) -> usize;
    }
    optional {
        "RDMACM_1.2" "23" fn rdma_establish(id: *mut rdma_cm_id) -> c_int;
        "RDMACM_1.3" "31" fn rdma_reject_ece(id: *mut rdma_cm_id, private_data: *const c_void, private_data_len: u8) -> c_int;
        "RDMACM_1.2" "23" fn rdma_init_qp_attr(id: *mut rdma_cm_id, qp_attr: *mut ibv_qp_attr, qp_attr_mask: *mut c_int) -> c_int;
        "RDMACM_1.3" "31" fn rdma_set_local_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int;
        "RDMACM_1.3" "31" fn rdma_get_remote_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int;
        "RDMACM_1.4" "60" fn rdma_resolve_addrinfo(id: *mut rdma_cm_id, node: *const c_char, service: *const c_char, hints: *const rdma_addrinfo) -> c_int;
        "RDMACM_1.4" "60" fn rdma_query_addrinfo(id: *mut rdma_cm_id, info: *mut *mut rdma_addrinfo) -> c_int;
        "RDMACM_1.4" "60" fn rdma_write_cm_event(id: *mut rdma_cm_id, event: rdma_cm_event_type, status: c_int, arg: u64) -> c_int;
        "RDMACM_1.0" "1.0.16" fn rfcntl(socket: c_int, cmd: c_int, ...) -> c_int;
        "RDMACM_1.5" "65" fn repoll_create(flags: c_int) -> c_int;
        "RDMACM_1.5" "65" fn repoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
        "RDMACM_1.5" "65" fn repoll_wait(epfd: c_int, events: *mut epoll_event, maxevents: c_int, timeout: c_int) -> c_int;
    }
}

library_table! {
    #[doc = "The direct verbs that libmlx5 exports."]
    Mlx5dv, "libmlx5.so.1", libc::EOPNOTSUPP;
    required {
        "MLX5_1.1" "14" fn mlx5dv_create_cq(context: *mut ibv_context, cq_attr: *mut ibv_cq_init_attr_ex, mlx5_cq_attr: *mut mlx5dv_cq_init_attr) -> *mut ibv_cq_ex;
        "MLX5_1.3" "16" fn mlx5dv_create_qp(context: *mut ibv_context, qp_attr: *mut ibv_qp_init_attr_ex, mlx5_qp_attr: *mut mlx5dv_qp_init_attr) -> *mut ibv_qp;
        "MLX5_1.0" "13" fn mlx5dv_query_device(ctx_in: *mut ibv_context, attrs_out: *mut mlx5dv_context) -> c_int;
        "MLX5_1.3" "16" fn mlx5dv_create_wq(context: *mut ibv_context, wq_init_attr: *mut ibv_wq_init_attr, mlx5_wq_attr: *mut mlx5dv_wq_init_attr) -> *mut ibv_wq;
        "MLX5_1.2" "15" fn mlx5dv_init_obj(obj: *mut mlx5dv_obj, obj_type: u64) -> c_int;
        "MLX5_1.2" "15" fn mlx5dv_set_context_attr(context: *mut ibv_context, type_: mlx5dv_set_ctx_attr_type, attr: *mut c_void) -> c_int;
    }
    optional {
        "MLX5_1.10" "24" fn mlx5dv_create_mkey(mkey_init_attr: *mut mlx5dv_mkey_init_attr) -> *mut mlx5dv_mkey;
        "MLX5_1.10" "24" fn mlx5dv_destroy_mkey(mkey: *mut mlx5dv_mkey) -> c_int;
        "MLX5_1.10" "24" fn mlx5dv_qp_ex_from_ibv_qp_ex(qp: *mut ibv_qp_ex) -> *mut mlx5dv_qp_ex;
        "MLX5_1.20" "36" fn _mlx5dv_mkey_check(mkey: *mut mlx5dv_mkey, err_info: *mut mlx5dv_mkey_err, err_info_size: usize) -> c_int;
        "MLX5_1.20" "36" fn mlx5dv_qp_cancel_posted_send_wrs(mqp: *mut mlx5dv_qp_ex, wr_id: u64) -> c_int;
        "MLX5_1.21" "37" fn mlx5dv_crypto_login(context: *mut ibv_context, login_attr: *mut mlx5dv_crypto_login_attr) -> c_int;
        "MLX5_1.21" "37" fn mlx5dv_crypto_login_query_state(context: *mut ibv_context, state: *mut mlx5dv_crypto_login_state) -> c_int;
        "MLX5_1.21" "37" fn mlx5dv_crypto_logout(context: *mut ibv_context) -> c_int;
        "MLX5_1.24" "42" fn mlx5dv_crypto_login_create(context: *mut ibv_context, login_attr: *mut mlx5dv_crypto_login_attr_ex) -> *mut mlx5dv_crypto_login_obj;
        "MLX5_1.24" "42" fn mlx5dv_crypto_login_query(crypto_login: *mut mlx5dv_crypto_login_obj, query_attr: *mut mlx5dv_crypto_login_query_attr) -> c_int;
        "MLX5_1.24" "42" fn mlx5dv_crypto_login_destroy(crypto_login: *mut mlx5dv_crypto_login_obj) -> c_int;
        "MLX5_1.21" "37" fn mlx5dv_dek_create(context: *mut ibv_context, init_attr: *mut mlx5dv_dek_init_attr) -> *mut mlx5dv_dek;
        "MLX5_1.21" "37" fn mlx5dv_dek_query(dek: *mut mlx5dv_dek, attr: *mut mlx5dv_dek_attr) -> c_int;
        "MLX5_1.21" "37" fn mlx5dv_dek_destroy(dek: *mut mlx5dv_dek) -> c_int;
        "MLX5_1.6" "20" fn mlx5dv_create_flow_matcher(context: *mut ibv_context, matcher_attr: *mut mlx5dv_flow_matcher_attr) -> *mut mlx5dv_flow_matcher;
        "MLX5_1.6" "20" fn mlx5dv_destroy_flow_matcher(matcher: *mut mlx5dv_flow_matcher) -> c_int;
        "MLX5_1.24" "42" fn mlx5dv_create_steering_anchor(context: *mut ibv_context, attr: *mut mlx5dv_steering_anchor_attr) -> *mut mlx5dv_steering_anchor;
        "MLX5_1.24" "42" fn mlx5dv_destroy_steering_anchor(sa: *mut mlx5dv_steering_anchor) -> c_int;
        "MLX5_1.25.1" "63" fn __mlx5dv_create_flow(matcher: *mut mlx5dv_flow_matcher, match_value: *mut mlx5dv_flow_match_parameters, num_actions: usize, actions_attr: *mut mlx5dv_flow_action_attr, attr_len: usize) -> *mut ibv_flow;
        "MLX5_1.5" "18" fn mlx5dv_create_flow_action_esp(ctx: *mut ibv_context, esp: *mut ibv_flow_action_esp_attr, mlx5_attr: *mut mlx5dv_flow_action_esp) -> *mut ibv_flow_action;
        "MLX5_1.7" "21" fn mlx5dv_create_flow_action_modify_header(ctx: *mut ibv_context, actions_sz: usize, actions: *mut u64, ft_type: mlx5_ib_uapi_flow_table_type) -> *mut ibv_flow_action;
        "MLX5_1.7" "21" fn mlx5dv_create_flow_action_packet_reformat(ctx: *mut ibv_context, data_sz: usize, data: *mut c_void, reformat_type: mlx5_ib_uapi_flow_action_packet_reformat_type, ft_type: mlx5_ib_uapi_flow_table_type) -> *mut ibv_flow_action;
        "MLX5_1.20" "36" fn mlx5dv_map_ah_to_qp(ah: *mut ibv_ah, qp_num: u32) -> c_int;
        "MLX5_1.10" "24" fn mlx5dv_alloc_dm(context: *mut ibv_context, dm_attr: *mut ibv_alloc_dm_attr, mlx5_dm_attr: *mut mlx5dv_alloc_dm_attr) -> *mut ibv_dm;
        "MLX5_1.19" "35" fn mlx5dv_dm_map_op_addr(dm: *mut ibv_dm, op: u8) -> *mut c_void;
        "MLX5_1.25" "54" fn mlx5dv_reg_dmabuf_mr(pd: *mut ibv_pd, offset: u64, length: usize, iova: u64, fd: c_int, access: c_int, mlx5_access: c_int) -> *mut ibv_mr;
        "MLX5_1.25" "54" fn mlx5dv_get_data_direct_sysfs_path(context: *mut ibv_context, buf: *mut c_char, buf_len: usize) -> c_int;
        "MLX5_1.4" "17" fn mlx5dv_get_clock_info(context: *mut ibv_context, clock_info: *mut mlx5dv_clock_info) -> c_int;
        "MLX5_1.8" "22" fn mlx5dv_is_supported(device: *mut ibv_device) -> bool;
        "MLX5_1.21" "37" fn mlx5dv_get_vfio_device_list(attr: *mut mlx5dv_vfio_context_attr) -> *mut *mut ibv_device;
        "MLX5_1.21" "37" fn mlx5dv_vfio_get_events_fd(ibctx: *mut ibv_context) -> c_int;
        "MLX5_1.21" "37" fn mlx5dv_vfio_process_events(context: *mut ibv_context) -> c_int;
        "MLX5_1.7" "21" fn mlx5dv_open_device(device: *mut ibv_device, attr: *mut mlx5dv_context_attr) -> *mut ibv_context;
        "MLX5_1.7" "21" fn mlx5dv_devx_obj_create(context: *mut ibv_context, in_: *const c_void, inlen: usize, out: *mut c_void, outlen: usize) -> *mut mlx5dv_devx_obj;
        "MLX5_1.7" "21" fn mlx5dv_devx_obj_query(obj: *mut mlx5dv_devx_obj, in_: *const c_void, inlen: usize, out: *mut c_void, outlen: usize) -> c_int;
        "MLX5_1.7" "21" fn mlx5dv_devx_obj_modify(obj: *mut mlx5dv_devx_obj, in_: *const c_void, inlen: usize, out: *mut c_void, outlen: usize) -> c_int;
        "MLX5_1.7" "21" fn mlx5dv_devx_obj_destroy(obj: *mut mlx5dv_devx_obj) -> c_int;
        "MLX5_1.27" "63" fn mlx5dv_devx_obj_export(obj: *mut mlx5dv_devx_obj, data: *mut c_void) -> c_int;
        "MLX5_1.27" "63" fn mlx5dv_devx_obj_import(context: *mut ibv_context, data: *mut c_void) -> *mut mlx5dv_devx_obj;
        "MLX5_1.27" "63" fn mlx5dv_devx_obj_unimport(obj: *mut mlx5dv_devx_obj);
        "MLX5_1.7" "21" fn mlx5dv_devx_general_cmd(context: *mut ibv_context, in_: *const c_void, inlen: usize, out: *mut c_void, outlen: usize) -> c_int;
        "MLX5_1.19" "35" fn _mlx5dv_query_port(context: *mut ibv_context, port_num: u32, info: *mut mlx5_ib_uapi_query_port, info_len: usize) -> c_int;
        "MLX5_1.7" "21" fn mlx5dv_devx_umem_reg(ctx: *mut ibv_context, addr: *mut c_void, size: usize, access: u32) -> *mut mlx5dv_devx_umem;
        "MLX5_1.19" "35" fn mlx5dv_devx_umem_reg_ex(ctx: *mut ibv_context, umem_in: *mut mlx5dv_devx_umem_in) -> *mut mlx5dv_devx_umem;
        "MLX5_1.7" "21" fn mlx5dv_devx_umem_dereg(umem: *mut mlx5dv_devx_umem) -> c_int;
        "MLX5_1.27" "63" fn mlx5dv_devx_umem_export(umem: *mut mlx5dv_devx_umem, data: *mut c_void) -> c_int;
        "MLX5_1.27" "63" fn mlx5dv_devx_umem_import(context: *mut ibv_context, data: *mut c_void) -> *mut mlx5dv_devx_umem;
        "MLX5_1.27" "63" fn mlx5dv_devx_umem_unimport(umem: *mut mlx5dv_devx_umem);
        "MLX5_1.7" "21" fn mlx5dv_devx_alloc_uar(context: *mut ibv_context, flags: u32) -> *mut mlx5dv_devx_uar;
        "MLX5_1.7" "21" fn mlx5dv_devx_free_uar(devx_uar: *mut mlx5dv_devx_uar);
        "MLX5_1.26" "62" fn mlx5dv_devx_uar_export_dmabuf_fd(devx_uar: *mut mlx5dv_devx_uar) -> c_int;
        "MLX5_1.12" "28" fn mlx5dv_alloc_var(context: *mut ibv_context, flags: u32) -> *mut mlx5dv_var;
        "MLX5_1.12" "28" fn mlx5dv_free_var(dv_var: *mut mlx5dv_var);
        "MLX5_1.27" "63" fn mlx5dv_var_export(dv_var: *mut mlx5dv_var, data: *mut c_void) -> c_int;
        "MLX5_1.27" "63" fn mlx5dv_var_import(context: *mut ibv_context, data: *mut c_void) -> *mut mlx5dv_var;
        "MLX5_1.27" "63" fn mlx5dv_var_unimport(dv_var: *mut mlx5dv_var);
        "MLX5_1.27" "63" fn _mlx5dv_get_export_sizes(sizes: *mut mlx5dv_export_sizes, sizes_len: usize);
        "MLX5_1.7" "21" fn mlx5dv_devx_query_eqn(context: *mut ibv_context, vector: u32, eqn: *mut u32) -> c_int;
        "MLX5_1.8" "22" fn mlx5dv_devx_cq_query(cq: *mut ibv_cq, in_: *const c_void, inlen: usize, out: *mut c_void, outlen: usize) -> c_int;
        "MLX5_1.8" "22" fn mlx5dv_devx_cq_modify(cq: *mut ibv_cq, in_: *const c_void, inlen: usize, out: *mut c_void, outlen: usize) -> c_int;
        "MLX5_1.8" "22" fn mlx5dv_devx_qp_query(qp: *mut ibv_qp, in_: *const c_void, inlen: usize, out: *mut c_void, outlen: usize) -> c_int;
        "MLX5_1.8" "22" fn mlx5dv_devx_qp_modify(qp: *mut ibv_qp, in_: *const c_void, inlen: usize, out: *mut c_void, outlen: usize) -> c_int;
        "MLX5_1.8" "22" fn mlx5dv_devx_srq_query(srq: *mut ibv_srq, in_: *const c_void, inlen: usize, out: *mut c_void, outlen: usize) -> c_int;
        "MLX5_1.8" "22" fn mlx5dv_devx_srq_modify(srq: *mut ibv_srq, in_: *const c_void, inlen: usize, out: *mut c_void, outlen: usize) -> c_int;
        "MLX5_1.8" "22" fn mlx5dv_devx_wq_query(wq: *mut ibv_wq, in_: *const c_void, inlen: usize, out: *mut c_void, outlen: usize) -> c_int;
        "MLX5_1.8" "22" fn mlx5dv_devx_wq_modify(wq: *mut ibv_wq, in_: *const c_void, inlen: usize, out: *mut c_void, outlen: usize) -> c_int;
        "MLX5_1.8" "22" fn mlx5dv_devx_ind_tbl_query(ind_tbl: *mut ibv_rwq_ind_table, in_: *const c_void, inlen: usize, out: *mut c_void, outlen: usize) -> c_int;
        "MLX5_1.8" "22" fn mlx5dv_devx_ind_tbl_modify(ind_tbl: *mut ibv_rwq_ind_table, in_: *const c_void, inlen: usize, out: *mut c_void, outlen: usize) -> c_int;
        "MLX5_1.9" "23" fn mlx5dv_devx_create_cmd_comp(context: *mut ibv_context) -> *mut mlx5dv_devx_cmd_comp;
        "MLX5_1.9" "23" fn mlx5dv_devx_destroy_cmd_comp(cmd_comp: *mut mlx5dv_devx_cmd_comp);
        "MLX5_1.9" "23" fn mlx5dv_devx_obj_query_async(obj: *mut mlx5dv_devx_obj, in_: *const c_void, inlen: usize, outlen: usize, wr_id: u64, cmd_comp: *mut mlx5dv_devx_cmd_comp) -> c_int;
        "MLX5_1.9" "23" fn mlx5dv_devx_get_async_cmd_comp(cmd_comp: *mut mlx5dv_devx_cmd_comp, cmd_resp: *mut mlx5_ib_uapi_devx_async_cmd_hdr, cmd_resp_len: usize) -> c_int;
        "MLX5_1.11" "25" fn mlx5dv_devx_create_event_channel(context: *mut ibv_context, flags: mlx5_ib_uapi_devx_create_event_channel_flags) -> *mut mlx5dv_devx_event_channel;
        "MLX5_1.11" "25" fn mlx5dv_devx_destroy_event_channel(event_channel: *mut mlx5dv_devx_event_channel);
        "MLX5_1.11" "25" fn mlx5dv_devx_subscribe_devx_event(event_channel: *mut mlx5dv_devx_event_channel, obj: *mut mlx5dv_devx_obj, events_sz: u16, events_num: *mut u16, cookie: u64) -> c_int;
        "MLX5_1.11" "25" fn mlx5dv_devx_subscribe_devx_event_fd(event_channel: *mut mlx5dv_devx_event_channel, fd: c_int, obj: *mut mlx5dv_devx_obj, event_num: u16) -> c_int;
        "MLX5_1.11" "25" fn mlx5dv_devx_get_event(event_channel: *mut mlx5dv_devx_event_channel, event_data: *mut mlx5_ib_uapi_devx_async_event_hdr, event_resp_len: usize) -> isize;
        "MLX5_1.10" "24" fn mlx5dv_dr_domain_create(ctx: *mut ibv_context, type_: mlx5dv_dr_domain_type) -> *mut mlx5dv_dr_domain;
        "MLX5_1.10" "24" fn mlx5dv_dr_domain_destroy(domain: *mut mlx5dv_dr_domain) -> c_int;
        "MLX5_1.10" "24" fn mlx5dv_dr_domain_sync(domain: *mut mlx5dv_dr_domain, flags: u32) -> c_int;
        "MLX5_1.14" "30" fn mlx5dv_dr_domain_set_reclaim_device_memory(dmn: *mut mlx5dv_dr_domain, enable: bool);
        "MLX5_1.20" "36" fn mlx5dv_dr_domain_allow_duplicate_rules(domain: *mut mlx5dv_dr_domain, allow: bool);
        "MLX5_1.10" "24" fn mlx5dv_dr_table_create(domain: *mut mlx5dv_dr_domain, level: u32) -> *mut mlx5dv_dr_table;
        "MLX5_1.10" "24" fn mlx5dv_dr_table_destroy(table: *mut mlx5dv_dr_table) -> c_int;
        "MLX5_1.10" "24" fn mlx5dv_dr_matcher_create(table: *mut mlx5dv_dr_table, priority: u16, match_criteria_enable: u8, mask: *mut mlx5dv_flow_match_parameters) -> *mut mlx5dv_dr_matcher;
        "MLX5_1.10" "24" fn mlx5dv_dr_matcher_destroy(matcher: *mut mlx5dv_dr_matcher) -> c_int;
        "MLX5_1.21" "37" fn mlx5dv_dr_matcher_set_layout(matcher: *mut mlx5dv_dr_matcher, layout: *mut mlx5dv_dr_matcher_layout) -> c_int;
        "MLX5_1.10" "24" fn mlx5dv_dr_rule_create(matcher: *mut mlx5dv_dr_matcher, value: *mut mlx5dv_flow_match_parameters, num_actions: usize, actions: *mut *mut mlx5dv_dr_action) -> *mut mlx5dv_dr_rule;
        "MLX5_1.10" "24" fn mlx5dv_dr_rule_destroy(rule: *mut mlx5dv_dr_rule) -> c_int;
        "MLX5_1.10" "24" fn mlx5dv_dr_action_create_dest_ibv_qp(ibqp: *mut ibv_qp) -> *mut mlx5dv_dr_action;
        "MLX5_1.10" "24" fn mlx5dv_dr_action_create_dest_table(table: *mut mlx5dv_dr_table) -> *mut mlx5dv_dr_action;
        "MLX5_1.10" "24" fn mlx5dv_dr_action_create_dest_vport(domain: *mut mlx5dv_dr_domain, vport: u32) -> *mut mlx5dv_dr_action;
        "MLX5_1.21" "37" fn mlx5dv_dr_action_create_dest_ib_port(domain: *mut mlx5dv_dr_domain, ib_port: u32) -> *mut mlx5dv_dr_action;
        "MLX5_1.15" "31" fn mlx5dv_dr_action_create_dest_devx_tir(devx_obj: *mut mlx5dv_devx_obj) -> *mut mlx5dv_dr_action;
        "MLX5_1.16" "32" fn mlx5dv_dr_action_create_dest_array(domain: *mut mlx5dv_dr_domain, num_dest: usize, dests: *mut *mut mlx5dv_dr_action_dest_attr) -> *mut mlx5dv_dr_action;
        "MLX5_1.10" "24" fn mlx5dv_dr_action_create_drop() -> *mut mlx5dv_dr_action;
        "MLX5_1.14" "30" fn mlx5dv_dr_action_create_default_miss() -> *mut mlx5dv_dr_action;
        "MLX5_1.10" "24" fn mlx5dv_dr_action_create_tag(tag_value: u32) -> *mut mlx5dv_dr_action;
        "MLX5_1.10" "24" fn mlx5dv_dr_action_create_flow_counter(devx_obj: *mut mlx5dv_devx_obj, offset: u32) -> *mut mlx5dv_dr_action;
        "MLX5_1.17" "33" fn mlx5dv_dr_action_create_aso(domain: *mut mlx5dv_dr_domain, devx_obj: *mut mlx5dv_devx_obj, offset: u32, flags: u32, return_reg_c: u8) -> *mut mlx5dv_dr_action;
        "MLX5_1.17" "33" fn mlx5dv_dr_action_modify_aso(action: *mut mlx5dv_dr_action, offset: u32, flags: u32, return_reg_c: u8) -> c_int;
        "MLX5_1.10" "24" fn mlx5dv_dr_action_create_packet_reformat(domain: *mut mlx5dv_dr_domain, flags: u32, reformat_type: mlx5_ib_uapi_flow_action_packet_reformat_type, data_sz: usize, data: *mut c_void) -> *mut mlx5dv_dr_action;
        "MLX5_1.10" "24" fn mlx5dv_dr_action_create_modify_header(domain: *mut mlx5dv_dr_domain, flags: u32, actions_sz: usize, actions: *mut __be64) -> *mut mlx5dv_dr_action;
        "MLX5_1.12" "28" fn mlx5dv_dr_action_create_flow_meter(attr: *mut mlx5dv_dr_flow_meter_attr) -> *mut mlx5dv_dr_action;
        "MLX5_1.12" "28" fn mlx5dv_dr_action_modify_flow_meter(action: *mut mlx5dv_dr_action, attr: *mut mlx5dv_dr_flow_meter_attr, modify_field_select: __be64) -> c_int;
        "MLX5_1.16" "32" fn mlx5dv_dr_action_create_flow_sampler(attr: *mut mlx5dv_dr_flow_sampler_attr) -> *mut mlx5dv_dr_action;
        "MLX5_1.17" "33" fn mlx5dv_dr_action_create_pop_vlan() -> *mut mlx5dv_dr_action;
        "MLX5_1.17" "33" fn mlx5dv_dr_action_create_push_vlan(domain: *mut mlx5dv_dr_domain, vlan_hdr: __be32) -> *mut mlx5dv_dr_action;
        "MLX5_1.24" "42" fn mlx5dv_dr_action_create_dest_root_table(table: *mut mlx5dv_dr_table, priority: u16) -> *mut mlx5dv_dr_action;
        "MLX5_1.10" "24" fn mlx5dv_dr_action_destroy(action: *mut mlx5dv_dr_action) -> c_int;
        "MLX5_1.12" "28" fn mlx5dv_dump_dr_domain(fout: *mut FILE, domain: *mut mlx5dv_dr_domain) -> c_int;
        "MLX5_1.12" "28" fn mlx5dv_dump_dr_table(fout: *mut FILE, table: *mut mlx5dv_dr_table) -> c_int;
        "MLX5_1.12" "28" fn mlx5dv_dump_dr_matcher(fout: *mut FILE, matcher: *mut mlx5dv_dr_matcher) -> c_int;
        "MLX5_1.12" "28" fn mlx5dv_dump_dr_rule(fout: *mut FILE, rule: *mut mlx5dv_dr_rule) -> c_int;
        "MLX5_1.13" "29" fn mlx5dv_pp_alloc(context: *mut ibv_context, pp_context_sz: usize, pp_context: *const c_void, flags: u32) -> *mut mlx5dv_pp;
        "MLX5_1.13" "29" fn mlx5dv_pp_free(pp: *mut mlx5dv_pp);
        "MLX5_1.14" "30" fn mlx5dv_query_qp_lag_port(qp: *mut ibv_qp, port_num: *mut u8, active_port_num: *mut u8) -> c_int;
        "MLX5_1.14" "30" fn mlx5dv_modify_qp_lag_port(qp: *mut ibv_qp, port_num: u8) -> c_int;
        "MLX5_1.17" "33" fn mlx5dv_modify_qp_udp_sport(qp: *mut ibv_qp, udp_sport: u16) -> c_int;
        "MLX5_1.21" "37" fn mlx5dv_dci_stream_id_reset(qp: *mut ibv_qp, stream_id: u16) -> c_int;
        "MLX5_1.17" "33" fn mlx5dv_sched_node_create(context: *mut ibv_context, sched_attr: *const mlx5dv_sched_attr) -> *mut mlx5dv_sched_node;
        "MLX5_1.17" "33" fn mlx5dv_sched_leaf_create(context: *mut ibv_context, sched_attr: *const mlx5dv_sched_attr) -> *mut mlx5dv_sched_leaf;
        "MLX5_1.17" "33" fn mlx5dv_sched_node_modify(node: *mut mlx5dv_sched_node, sched_attr: *const mlx5dv_sched_attr) -> c_int;
        "MLX5_1.17" "33" fn mlx5dv_sched_leaf_modify(leaf: *mut mlx5dv_sched_leaf, sched_attr: *const mlx5dv_sched_attr) -> c_int;
        "MLX5_1.17" "33" fn mlx5dv_sched_node_destroy(node: *mut mlx5dv_sched_node) -> c_int;
        "MLX5_1.17" "33" fn mlx5dv_sched_leaf_destroy(leaf: *mut mlx5dv_sched_leaf) -> c_int;
        "MLX5_1.17" "33" fn mlx5dv_modify_qp_sched_elem(qp: *mut ibv_qp, requestor: *const mlx5dv_sched_leaf, responder: *const mlx5dv_sched_leaf) -> c_int;
        "MLX5_1.18" "34" fn mlx5dv_reserved_qpn_alloc(ctx: *mut ibv_context, qpn: *mut u32) -> c_int;
        "MLX5_1.18" "34" fn mlx5dv_reserved_qpn_dealloc(ctx: *mut ibv_context, qpn: u32) -> c_int;
        "MLX5_1.22" "38" fn mlx5dv_dr_aso_other_domain_link(devx_obj: *mut mlx5dv_devx_obj, peer_dmn: *mut mlx5dv_dr_domain, dmn: *mut mlx5dv_dr_domain, flags: u32, return_reg_c: u8) -> c_int;
        "MLX5_1.22" "38" fn mlx5dv_dr_aso_other_domain_unlink(devx_obj: *mut mlx5dv_devx_obj, dmn: *mut mlx5dv_dr_domain) -> c_int;
        "MLX5_1.23" "40" fn mlx5dv_devx_alloc_msi_vector(ibctx: *mut ibv_context) -> *mut mlx5dv_devx_msi_vector;
        "MLX5_1.23" "40" fn mlx5dv_devx_free_msi_vector(msi: *mut mlx5dv_devx_msi_vector) -> c_int;
        "MLX5_1.23" "40" fn mlx5dv_devx_create_eq(ibctx: *mut ibv_context, in_: *const c_void, inlen: usize, out: *mut c_void, outlen: usize) -> *mut mlx5dv_devx_eq;
        "MLX5_1.23" "40" fn mlx5dv_devx_destroy_eq(eq: *mut mlx5dv_devx_eq) -> c_int;
    }
}

library_table! {
    #[doc = "The direct verbs that libefa exports."]
    Efadv, "libefa.so.1", libc::EOPNOTSUPP;
    required {
    }
    optional {
        "EFA_1.1" "26" fn efadv_query_device(ibvctx: *mut ibv_context, attr: *mut efadv_device_attr, inlen: u32) -> c_int;
        "EFA_1.5" "63" fn efadv_get_max_sq_depth(ibvctx: *mut ibv_context, attr: *mut efadv_sq_depth_attr, inlen: u32) -> c_int;
        "EFA_1.5" "63" fn efadv_get_max_rq_depth(ibvctx: *mut ibv_context, attr: *mut efadv_rq_depth_attr, inlen: u32) -> c_int;
        "EFA_1.1" "26" fn efadv_query_ah(ibvah: *mut ibv_ah, attr: *mut efadv_ah_attr, inlen: u32) -> c_int;
        "EFA_1.0" "24" fn efadv_create_driver_qp(ibvpd: *mut ibv_pd, attr: *mut ibv_qp_init_attr, driver_qp_type: u32) -> *mut ibv_qp;
        "EFA_1.1" "26" fn efadv_create_qp_ex(ibvctx: *mut ibv_context, attr_ex: *mut ibv_qp_init_attr_ex, efa_attr: *mut efadv_qp_init_attr, inlen: u32) -> *mut ibv_qp;
        "EFA_1.4" "59" fn efadv_query_qp_wqs(ibvqp: *mut ibv_qp, sq_attr: *mut efadv_wq_attr, rq_attr: *mut efadv_wq_attr, inlen: u32) -> c_int;
        "EFA_1.6" "64" fn efadv_qp_from_ibv_qp_ex(ibvqpx: *mut ibv_qp_ex) -> *mut efadv_qp;
        "EFA_1.2" "43" fn efadv_create_cq(ibvctx: *mut ibv_context, attr_ex: *mut ibv_cq_init_attr_ex, efa_attr: *mut efadv_cq_init_attr, inlen: u32) -> *mut ibv_cq_ex;
        "EFA_1.4" "59" fn efadv_query_cq(ibvcq: *mut ibv_cq, attr: *mut efadv_cq_attr, inlen: u32) -> c_int;
        "EFA_1.2" "43" fn efadv_cq_from_ibv_cq_ex(ibvcqx: *mut ibv_cq_ex) -> *mut efadv_cq;
        "EFA_1.7" "65" fn efadv_create_comp_cntr(ibvctx: *mut ibv_context, attr: *mut ibv_comp_cntr_init_attr, efa_attr: *mut efadv_comp_cntr_init_attr, inlen: u32) -> *mut ibv_comp_cntr;
        "EFA_1.3" "50" fn efadv_query_mr(ibvmr: *mut ibv_mr, attr: *mut efadv_mr_attr, inlen: u32) -> c_int;
    }
}
