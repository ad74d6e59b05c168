// By `cargo xtask bindings` of rdma-core 65.0-1.1, bindgen 0.73.2, libclang 18.1.1. Do not edit.

//! The functions that programs call.

use core::ffi::*;

use libc::{epoll_event, fd_set, iovec, msghdr, nfds_t, off_t, pollfd, sockaddr, socklen_t, timeval};
use rdma_mummy_sys::types::*;

exports! {
    super::TABLE, "soft_rnic_";
    required {
        fn rdma_create_event_channel() -> *mut rdma_event_channel;
        fn rdma_destroy_event_channel(channel: *mut rdma_event_channel);
        fn rdma_create_id(channel: *mut rdma_event_channel, id: *mut *mut rdma_cm_id, context: *mut c_void, ps: rdma_port_space) -> c_int;
        fn rdma_create_ep(id: *mut *mut rdma_cm_id, res: *mut rdma_addrinfo, pd: *mut ibv_pd, qp_init_attr: *mut ibv_qp_init_attr) -> c_int;
        fn rdma_destroy_ep(id: *mut rdma_cm_id);
        fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int;
        fn rdma_bind_addr(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int;
        fn rdma_resolve_addr(id: *mut rdma_cm_id, src_addr: *mut sockaddr, dst_addr: *mut sockaddr, timeout_ms: c_int) -> c_int;
        fn rdma_resolve_route(id: *mut rdma_cm_id, timeout_ms: c_int) -> c_int;
        fn rdma_create_qp(id: *mut rdma_cm_id, pd: *mut ibv_pd, qp_init_attr: *mut ibv_qp_init_attr) -> c_int;
        fn rdma_create_qp_ex(id: *mut rdma_cm_id, qp_init_attr: *mut ibv_qp_init_attr_ex) -> c_int;
        fn rdma_destroy_qp(id: *mut rdma_cm_id);
        fn rdma_connect(id: *mut rdma_cm_id, conn_param: *mut rdma_conn_param) -> c_int;
        fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int;
        fn rdma_get_request(listen: *mut rdma_cm_id, id: *mut *mut rdma_cm_id) -> c_int;
        fn rdma_accept(id: *mut rdma_cm_id, conn_param: *mut rdma_conn_param) -> c_int;
        fn rdma_reject(id: *mut rdma_cm_id, private_data: *const c_void, private_data_len: u8) -> c_int;
        fn rdma_notify(id: *mut rdma_cm_id, event: ibv_event_type) -> c_int;
        fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int;
        fn rdma_join_multicast(id: *mut rdma_cm_id, addr: *mut sockaddr, context: *mut c_void) -> c_int;
        fn rdma_leave_multicast(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int;
        fn rdma_join_multicast_ex(id: *mut rdma_cm_id, mc_join_attr: *mut rdma_cm_join_mc_attr_ex, context: *mut c_void) -> c_int;
        fn rdma_get_cm_event(channel: *mut rdma_event_channel, event: *mut *mut rdma_cm_event) -> c_int;
        fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int;
        fn rdma_get_src_port(id: *mut rdma_cm_id) -> __be16;
        fn rdma_get_dst_port(id: *mut rdma_cm_id) -> __be16;
        fn rdma_get_devices(num_devices: *mut c_int) -> *mut *mut ibv_context;
        fn rdma_free_devices(list: *mut *mut ibv_context);
        fn rdma_event_str(event: rdma_cm_event_type) -> *const c_char;
        fn rdma_set_option(id: *mut rdma_cm_id, level: c_int, optname: c_int, optval: *mut c_void, optlen: usize) -> c_int;
        fn rdma_migrate_id(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> c_int;
        fn rdma_getaddrinfo(node: *const c_char, service: *const c_char, hints: *const rdma_addrinfo, res: *mut *mut rdma_addrinfo) -> c_int;
        fn rdma_freeaddrinfo(res: *mut rdma_addrinfo);
        fn rdma_create_srq(id: *mut rdma_cm_id, pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> c_int;
        fn rdma_create_srq_ex(id: *mut rdma_cm_id, attr: *mut ibv_srq_init_attr_ex) -> c_int;
        fn rdma_destroy_srq(id: *mut rdma_cm_id);
        fn rsocket(domain: c_int, type_: c_int, protocol: c_int) -> c_int;
        fn rbind(socket: c_int, addr: *const sockaddr, addrlen: socklen_t) -> c_int;
        fn rlisten(socket: c_int, backlog: c_int) -> c_int;
        fn raccept(socket: c_int, addr: *mut sockaddr, addrlen: *mut socklen_t) -> c_int;
        fn rconnect(socket: c_int, addr: *const sockaddr, addrlen: socklen_t) -> c_int;
        fn rshutdown(socket: c_int, how: c_int) -> c_int;
        fn rclose(socket: c_int) -> c_int;
        fn rrecv(socket: c_int, buf: *mut c_void, len: usize, flags: c_int) -> isize;
        fn rrecvfrom(socket: c_int, buf: *mut c_void, len: usize, flags: c_int, src_addr: *mut sockaddr, addrlen: *mut socklen_t) -> isize;
        fn rrecvmsg(socket: c_int, msg: *mut msghdr, flags: c_int) -> isize;
        fn rsend(socket: c_int, buf: *const c_void, len: usize, flags: c_int) -> isize;
        fn rsendto(socket: c_int, buf: *const c_void, len: usize, flags: c_int, dest_addr: *const sockaddr, addrlen: socklen_t) -> isize;
        fn rsendmsg(socket: c_int, msg: *const msghdr, flags: c_int) -> isize;
        fn rread(socket: c_int, buf: *mut c_void, count: usize) -> isize;
        fn rreadv(socket: c_int, iov: *const iovec, iovcnt: c_int) -> isize;
        fn rwrite(socket: c_int, buf: *const c_void, count: usize) -> isize;
        fn rwritev(socket: c_int, iov: *const iovec, iovcnt: c_int) -> isize;
        fn rpoll(fds: *mut pollfd, nfds: nfds_t, timeout: c_int) -> c_int;
        fn rselect(nfds: c_int, readfds: *mut fd_set, writefds: *mut fd_set, exceptfds: *mut fd_set, timeout: *mut timeval) -> c_int;
        fn rgetpeername(socket: c_int, addr: *mut sockaddr, addrlen: *mut socklen_t) -> c_int;
        fn rgetsockname(socket: c_int, addr: *mut sockaddr, addrlen: *mut socklen_t) -> c_int;
        fn rsetsockopt(socket: c_int, level: c_int, optname: c_int, optval: *const c_void, optlen: socklen_t) -> c_int;
        fn rgetsockopt(socket: c_int, level: c_int, optname: c_int, optval: *mut c_void, optlen: *mut socklen_t) -> c_int;
        fn riomap(socket: c_int, buf: *mut c_void, len: usize, prot: c_int, flags: c_int, offset: off_t) -> off_t;
        fn riounmap(socket: c_int, buf: *mut c_void, len: usize) -> c_int;
        fn riowrite(socket: c_int, buf: *const c_void, count: usize, offset: off_t, flags: c_int) -> usize;
    }
    optional {
        -1 => fn rdma_establish(id: *mut rdma_cm_id) -> c_int;
        -1 => fn rdma_reject_ece(id: *mut rdma_cm_id, private_data: *const c_void, private_data_len: u8) -> c_int;
        -1 => fn rdma_init_qp_attr(id: *mut rdma_cm_id, qp_attr: *mut ibv_qp_attr, qp_attr_mask: *mut c_int) -> c_int;
        -1 => fn rdma_set_local_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int;
        -1 => fn rdma_get_remote_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int;
        -1 => fn rdma_resolve_addrinfo(id: *mut rdma_cm_id, node: *const c_char, service: *const c_char, hints: *const rdma_addrinfo) -> c_int;
        -1 => fn rdma_query_addrinfo(id: *mut rdma_cm_id, info: *mut *mut rdma_addrinfo) -> c_int;
        -1 => fn rdma_write_cm_event(id: *mut rdma_cm_id, event: rdma_cm_event_type, status: c_int, arg: u64) -> c_int;
        -1 => fn repoll_create(flags: c_int) -> c_int;
        -1 => fn repoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
        -1 => fn repoll_wait(epfd: c_int, events: *mut epoll_event, maxevents: c_int, timeout: c_int) -> c_int;
    }
    refused {
    }
}
