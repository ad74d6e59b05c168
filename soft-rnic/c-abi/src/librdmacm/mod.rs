//! The exports of `librdmacm.so.1`.
//!
//! The functions are in `libibverbs.so.1`, with the device, under names that begin with
//! `soft_rnic_`. Their symbol version node, `SOFT_RNIC_RDMACM`, makes the dynamic loader refuse any
//! other libibverbs. `librdmacm.so.1` is built from `forward.S`: a jump for each function. Both
//! libraries therefore share one device in a process, and calls with any number of arguments are
//! passed on unchanged.
//!
//! `cargo xtask bindings` generates `exports.rs`, `forwards.s` and the version script
//! `librdmacm.map`.

#[rustfmt::skip]
mod exports;

use core::ffi::{c_int, c_long, c_void};

use rdma_mummy_sys::RdmaCm;
use rdma_mummy_sys::types::*;

use crate::libibverbs::log;

/// The device's table of connection manager functions.
const DEVICE: RdmaCm = soft_rnic::rdmacm::table();

/// The exported table. It wraps the functions that a program may call first, so that they start the
/// logger.
pub(crate) const TABLE: RdmaCm =
    RdmaCm { rdma_create_event_channel, rdma_create_id, rdma_create_ep, rdma_get_devices, rsocket, ..DEVICE };

/// # Safety
///
/// This function and those below have the conditions of their table entries.
unsafe extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    log::begin();
    // SAFETY: the caller meets the conditions of the table's entry.
    unsafe { (DEVICE.rdma_create_event_channel)() }
}

unsafe extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    context: *mut c_void,
    ps: rdma_port_space,
) -> c_int {
    log::begin();
    // SAFETY: the caller meets the conditions of the table's entry.
    unsafe { (DEVICE.rdma_create_id)(channel, id, context, ps) }
}

unsafe extern "C" fn rdma_create_ep(
    id: *mut *mut rdma_cm_id,
    res: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    qp_init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    log::begin();
    // SAFETY: the caller meets the conditions of the table's entry.
    unsafe { (DEVICE.rdma_create_ep)(id, res, pd, qp_init_attr) }
}

unsafe extern "C" fn rdma_get_devices(num_devices: *mut c_int) -> *mut *mut ibv_context {
    log::begin();
    // SAFETY: the caller meets the conditions of the table's entry.
    unsafe { (DEVICE.rdma_get_devices)(num_devices) }
}

unsafe extern "C" fn rsocket(domain: c_int, type_: c_int, protocol: c_int) -> c_int {
    log::begin();
    // SAFETY: the caller meets the conditions of the table's entry.
    unsafe { (DEVICE.rsocket)(domain, type_, protocol) }
}

/// C declares it with variable arguments. The function reads three, because C passes a variable
/// integer argument like a fixed one.
#[unsafe(export_name = "soft_rnic_rfcntl")]
unsafe extern "C" fn rfcntl(socket: c_int, command: c_int, argument: c_long) -> c_int {
    // SAFETY: the caller meets the conditions of the table's entry.
    unsafe { soft_rnic::rdmacm::rfcntl(socket, command, argument) }
}
