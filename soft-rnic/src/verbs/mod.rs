//! The functions of libibverbs for the software device.
//!
//! This layer handles the C side: pointers, error numbers, structs of the caller. The module
//! `objects` implements what the functions do.

pub(crate) mod address_handle;
#[cfg(all(any(test, fuzzing), not(loom)))]
pub(crate) mod bench;
pub(crate) mod channel;
pub(crate) mod completion_queue;
mod completion_queue_ex;
pub(crate) mod context;
mod device;
mod device_memory;
pub(crate) mod ece;
mod event;
mod import;
pub(crate) mod memory_region;
pub(crate) mod memory_window;
mod multicast;
mod port;
pub(crate) mod protection_domain;
pub(crate) mod queue_pair;
mod rate;
mod strings;
#[cfg(any(test, fuzzing))]
pub(crate) mod testing;
#[cfg(all(test, not(loom)))]
mod tests;
mod thread_domain;
mod unsupported;
mod xrc;

use std::ffi::c_int;
use std::ptr;

use rdma_mummy_sys::Verbs;

use crate::platform::errno;

/// The table of the functions that libibverbs exports.
pub const fn table() -> Verbs {
    queue_pair::add_to(unsupported::add_to(Verbs {
        ibv_wc_status_str: strings::wc_status_str,
        ibv_node_type_str: strings::node_type_str,
        ibv_port_state_str: strings::port_state_str,
        ibv_event_type_str: strings::event_type_str,
        ibv_wr_opcode_str: Some(strings::wr_opcode_str),
        ibv_rate_to_mult: rate::rate_to_mult,
        mult_to_ibv_rate: rate::mult_to_rate,
        ibv_rate_to_mbps: rate::rate_to_mbps,
        mbps_to_ibv_rate: rate::mbps_to_rate,
        ibv_get_device_list: device::get_device_list,
        ibv_free_device_list: device::free_device_list,
        ibv_get_device_name: device::get_device_name,
        ibv_get_device_guid: device::get_device_guid,
        ibv_get_device_index: Some(device::get_device_index),
        ibv_fork_init: device::fork_init,
        ibv_is_fork_initialized: Some(device::is_fork_initialized),
        ibv_open_device: context::open_device,
        ibv_close_device: context::close_device,
        ibv_query_device: context::query_device,
        ibv_get_async_event: event::get_async_event,
        ibv_ack_async_event: event::ack_async_event,
        ibv_query_port: port::query_port,
        ibv_query_port_speed: Some(port::query_port_speed),
        ibv_query_gid: port::query_gid,
        _ibv_query_gid_ex: Some(port::query_gid_ex),
        _ibv_query_gid_table: Some(port::query_gid_table),
        ibv_query_pkey: port::query_pkey,
        ibv_get_pkey_index: Some(port::get_pkey_index),
        ibv_resolve_eth_l2_from_gid: port::resolve_eth_l2_from_gid,
        ibv_alloc_pd: protection_domain::alloc_pd,
        ibv_dealloc_pd: protection_domain::dealloc_pd,
        ibv_import_device: Some(import::import_device),
        ibv_import_pd: Some(protection_domain::import_pd),
        ibv_unimport_pd: Some(protection_domain::unimport_pd),
        ibv_import_mr: Some(memory_region::import_mr),
        ibv_unimport_mr: Some(memory_region::unimport_mr),
        ibv_import_dm: Some(device_memory::import_dm),
        ibv_unimport_dm: Some(device_memory::unimport_dm),
        ibv_attach_mcast: multicast::attach_mcast,
        ibv_detach_mcast: multicast::detach_mcast,
        ibv_query_ece: Some(ece::query_ece),
        ibv_set_ece: Some(ece::set_ece),
        ibv_reg_mr: memory_region::reg_mr,
        ibv_reg_mr_iova: Some(memory_region::reg_mr_iova),
        ibv_reg_mr_iova2: Some(memory_region::reg_mr_iova2),
        ibv_reg_mr_ex: Some(memory_region::reg_mr_ex),
        ibv_reg_dmabuf_mr: Some(memory_region::reg_dmabuf_mr),
        ibv_rereg_mr: memory_region::rereg_mr,
        ibv_dereg_mr: memory_region::dereg_mr,
        ibv_alloc_buf: Some(memory_region::alloc_buf),
        ibv_free_buf: Some(memory_region::free_buf),
        ibv_reg_buf_mr: Some(memory_region::reg_buf_mr),
        ibv_create_ah: address_handle::create_ah,
        ibv_init_ah_from_wc: address_handle::init_ah_from_wc,
        ibv_create_ah_from_wc: address_handle::create_ah_from_wc,
        ibv_destroy_ah: address_handle::destroy_ah,
        ibv_create_comp_channel: channel::create_comp_channel,
        ibv_destroy_comp_channel: channel::destroy_comp_channel,
        ibv_get_cq_event: channel::get_cq_event,
        ibv_ack_cq_events: channel::ack_cq_events,
        ibv_create_cq: completion_queue::create_cq,
        ibv_resize_cq: completion_queue::resize_cq,
        ibv_destroy_cq: completion_queue::destroy_cq,
        ..Verbs::unsupported()
    }))
}

/// Returns an error from a verb if a fault rule or the device's failure forbids it.
macro_rules! admit {
    ($context:expr, $Call:ident, $refuse:path) => {
        if let Err(error) = $context.admit(crate::faults::Call::$Call) {
            return $refuse(error);
        }
    };
    ($context:expr, $Call:ident) => {
        $context.admit(crate::faults::Call::$Call)?
    };
}
pub(crate) use admit;

/// Sets `errno` and returns it.
fn failure(error: c_int) -> c_int {
    number(Err(error))
}

/// Sets `errno` and returns null.
fn null<T>(error: c_int) -> *mut T {
    errno::set(error);
    ptr::null_mut()
}

/// Converts to an error number, and sets `errno` to it.
fn number(result: Result<(), c_int>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(error) => {
            errno::set(error);
            error
        }
    }
}

/// Sets `errno` and returns -1.
fn minus_one(error: c_int) -> c_int {
    errno::set(error);
    -1
}

/// Writes the part of a struct that fits into `room`, and zeroes for the rest of `room`.
///
/// # Safety
///
/// - `to` is writable for `room` bytes.
unsafe fn write_prefix<T: Copy>(to: *mut T, room: usize, value: &T) {
    let known = room.min(size_of::<T>());
    // SAFETY: the caller guarantees `room` writable bytes, and `value` has at least `known` bytes.
    // An untyped copy may copy the padding of a C struct.
    unsafe {
        to.cast::<u8>().write_bytes(0, room);
        to.cast::<u8>().copy_from_nonoverlapping(ptr::from_ref(value).cast(), known);
    }
}
