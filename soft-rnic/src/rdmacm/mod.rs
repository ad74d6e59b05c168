//! The functions of librdmacm, over the software device.
//!
//! This module is the library half of the connection manager: the structs that C programs see. `cm`
//! is the half that the kernel implements for real devices. A function returns 0, or -1 and
//! `errno`; internally it is a result with the error number.
//!
//! The kernel half names an id by its address (`CmEvent::uid`) and counts each event that the program
//! takes. An id is freed only after all its taken events are acknowledged. Therefore the address in
//! an event always belongs to a live id.

mod addrinfo;
mod channel;
mod connection;
pub(crate) mod device;
mod ece;
mod endpoint;
mod event;
mod id;
mod multicast;
mod names;
mod queue_pair;
mod resolve;
mod shared_queue;
pub(crate) mod socket_address;
mod strings;
#[cfg(all(test, not(loom)))]
mod tests;

use std::ffi::c_int;

use rdma_mummy_sys::{RdmaCm, Verbs};

use crate::platform::errno;
#[cfg(feature = "rsockets")]
use crate::rsocket;
#[cfg(feature = "rsockets")]
pub use crate::rsocket::rfcntl;

/// The function table of librdmacm.
///
/// With the feature `rsockets` it has stream rsockets: datagram sockets fail with `EOPNOTSUPP`, and
/// so do `repoll_create` and its relatives. Without it each of these functions does.
pub const fn table() -> RdmaCm {
    let table = RdmaCm {
        rdma_create_event_channel: channel::create_event_channel,
        rdma_destroy_event_channel: channel::destroy_event_channel,
        rdma_create_id: id::create_id,
        rdma_destroy_id: id::destroy_id,
        rdma_migrate_id: id::migrate_id,
        rdma_set_option: id::set_option,
        rdma_bind_addr: resolve::bind_addr,
        rdma_resolve_addr: resolve::resolve_addr,
        rdma_resolve_route: resolve::resolve_route,
        rdma_get_src_port: resolve::get_src_port,
        rdma_get_dst_port: resolve::get_dst_port,
        rdma_listen: connection::listen,
        rdma_connect: connection::connect,
        rdma_accept: connection::accept,
        rdma_reject: connection::reject,
        rdma_establish: Some(connection::establish),
        rdma_disconnect: connection::disconnect,
        rdma_notify: connection::notify,
        rdma_get_cm_event: event::get_cm_event,
        rdma_ack_cm_event: event::ack_cm_event,
        rdma_create_qp: queue_pair::create_qp,
        rdma_create_qp_ex: queue_pair::create_qp_ex,
        rdma_destroy_qp: queue_pair::destroy_qp,
        rdma_init_qp_attr: Some(queue_pair::init_qp_attr),
        rdma_create_srq: shared_queue::create_srq,
        rdma_create_srq_ex: shared_queue::create_srq_ex,
        rdma_destroy_srq: shared_queue::destroy_srq,
        rdma_create_ep: endpoint::create_ep,
        rdma_destroy_ep: endpoint::destroy_ep,
        rdma_get_request: endpoint::get_request,
        rdma_join_multicast: multicast::join_multicast,
        rdma_join_multicast_ex: multicast::join_multicast_ex,
        rdma_leave_multicast: multicast::leave_multicast,
        rdma_set_local_ece: Some(ece::set_local_ece),
        rdma_get_remote_ece: Some(ece::get_remote_ece),
        rdma_reject_ece: Some(ece::reject_ece),
        rdma_get_devices: device::get_devices,
        rdma_free_devices: device::free_devices,
        rdma_getaddrinfo: addrinfo::getaddrinfo,
        rdma_freeaddrinfo: addrinfo::freeaddrinfo,
        rdma_resolve_addrinfo: Some(names::resolve_addrinfo),
        rdma_query_addrinfo: Some(names::query_addrinfo),
        rdma_write_cm_event: Some(event::write_cm_event),
        rdma_event_str: strings::event_str,
        ..RdmaCm::unsupported()
    };
    #[cfg(feature = "rsockets")]
    let table = rsocket::add_to(table);
    table
}

/// The verbs table of the software device.
fn lib() -> &'static Verbs {
    const VERBS: Verbs = crate::verbs::table();
    &VERBS
}

/// Converts a result to the return value of a C function that sets `errno`.
fn finish(result: Result<(), c_int>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(error) => {
            errno::set(error);
            -1
        }
    }
}

/// Converts an error number that a verb returned.
fn check(number: c_int) -> Result<(), c_int> {
    if number == 0 { Ok(()) } else { Err(number) }
}

/// Converts a pointer that a verb returned; if it is null, the error is in `errno`.
fn check_pointer<T>(pointer: *mut T) -> Result<*mut T, c_int> {
    if pointer.is_null() { Err(errno::of(&std::io::Error::last_os_error())) } else { Ok(pointer) }
}
