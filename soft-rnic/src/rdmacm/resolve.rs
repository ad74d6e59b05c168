//! `rdma_resolve_addr`, `rdma_resolve_route`, `rdma_bind_addr`: addresses and routes of ids.

use std::ffi::c_int;
use std::sync::Arc;
use std::time::Duration;

use libc::{sockaddr, sockaddr_storage};
use rdma_mummy_sys::types::*;

use super::device::DefaultPd;
use super::id::id_of;
use super::{event, finish, socket_address};
use crate::cm::{CmPath, CmRoute};

/// The selector value "exactly" in a path record, for example of `packet_life_time_selector`.
const EXACTLY: u8 = 2;

/// Copies the addresses, the device and the route that the kernel half knows into the C struct.
///
/// # Safety
///
/// - `id` is live, and nobody else writes to it.
pub(super) unsafe fn refresh(id: *mut rdma_cm_id) -> Result<(), c_int> {
    // SAFETY: the caller guarantees that `id` is live, and that nobody else writes to it.
    let state = unsafe { id_of(id) };
    let route = state.manager.route(state.number())?;
    // SAFETY: the caller guarantees that `id` is live, and that nobody else writes to it.
    unsafe {
        let c = &raw mut (*id).route;
        if let Some(source) = route.source {
            socket_address::write(source, (&raw mut (*c).addr.__bindgen_anon_1).cast());
        }
        if let Some(destination) = route.destination {
            socket_address::write(destination, (&raw mut (*c).addr.__bindgen_anon_2).cast());
        }
        let Some(path) = route.path else { return Ok(()) };
        (*id).port_num = path.port;
        (*c).addr.addr.ibaddr = rdma_ib_addr {
            sgid: ibv_gid { raw: path.sgid },
            dgid: ibv_gid { raw: route.dgid.unwrap_or_default() },
            pkey: path.pkey.to_be(),
        };
        // librdmacm ignores a device without a GUID.
        if path.device.guid != 0 {
            bind_to(id, &DefaultPd::of(path.device)?);
        }
        if route.resolved {
            set_path(c, path_record(&path, &route));
        }
    }
    Ok(())
}

/// Binds the id to a device, with its default protection domain.
///
/// # Safety
///
/// - `id` is live, and nobody else writes to it.
unsafe fn bind_to(id: *mut rdma_cm_id, domain: &Arc<DefaultPd>) {
    // SAFETY: the caller guarantees that `id` is live, and that nobody else writes to it.
    unsafe {
        id_of(id).settings().domain.get_or_insert_with(|| {
            (*id).verbs = domain.context();
            if (*id).pd.is_null() {
                (*id).pd = domain.pd();
            }
            Arc::clone(domain)
        });
    }
}

/// # Safety
///
/// - `route` belongs to a live id, and nobody else writes to it.
unsafe fn set_path(route: *mut rdma_route, record: ibv_sa_path_rec) {
    // SAFETY: the caller guarantees that `route` belongs to a live id, and that nobody else writes
    // to it. An existing record keeps its memory, because the program may hold a pointer to it.
    unsafe {
        if (*route).path_rec.is_null() {
            (*route).path_rec = Box::into_raw(Box::new(record));
            (*route).num_paths = 1;
        } else {
            (*route).path_rec.write(record);
        }
    }
}

fn path_record(path: &CmPath, route: &CmRoute) -> ibv_sa_path_rec {
    ibv_sa_path_rec {
        dgid: ibv_gid { raw: route.dgid.unwrap_or_default() },
        sgid: ibv_gid { raw: path.sgid },
        hop_limit: route.hop_limit,
        traffic_class: route.traffic_class,
        reversible: 1,
        numb_path: 1,
        pkey: path.pkey.to_be(),
        mtu_selector: EXACTLY,
        mtu: route.mtu,
        rate_selector: EXACTLY,
        rate: ibv_rate::IBV_RATE_100_GBPS.0 as u8,
        packet_life_time_selector: EXACTLY,
        packet_life_time: route.packet_life_time,
        ..ibv_sa_path_rec::default()
    }
}

pub(super) unsafe extern "C" fn bind_addr(id: *mut rdma_cm_id, address: *mut sockaddr) -> c_int {
    let bind = || {
        // SAFETY: `rdma_bind_addr` requires a live id and a readable address.
        unsafe {
            let (state, address) = (id_of(id), socket_address::read(address)?);
            state.manager.bind(state.number(), address)?;
            refresh(id)
        }
    };
    finish(bind())
}

pub(super) unsafe extern "C" fn resolve_addr(
    id: *mut rdma_cm_id,
    source: *mut sockaddr,
    destination: *mut sockaddr,
    timeout_ms: c_int,
) -> c_int {
    let resolve = || {
        // SAFETY: `rdma_resolve_addr` requires a live id, and addresses that are null or readable.
        unsafe {
            let state = id_of(id);
            let to = socket_address::read(destination)?;
            let from = if source.is_null() { None } else { Some(socket_address::read(source)?) };
            // Write the address first: another thread may take the event before this one continues,
            // and then writes the same.
            let place = (&raw mut (*id).route.addr.__bindgen_anon_2).cast::<sockaddr_storage>();
            let before = place.read();
            socket_address::write(to, place);
            if let Err(error) = state.manager.resolve_addr(state.number(), from, to, timeout(timeout_ms)) {
                place.write(before);
                return Err(error);
            }
            event::complete(id)
        }
    };
    finish(resolve())
}

pub(super) unsafe extern "C" fn resolve_route(id: *mut rdma_cm_id, _timeout_ms: c_int) -> c_int {
    // The route needs no query, so resolving it takes no time.
    let resolve = || {
        // SAFETY: `rdma_resolve_route` requires a live id.
        unsafe {
            let state = id_of(id);
            state.manager.resolve_route(state.number())?;
            event::complete(id)
        }
    };
    finish(resolve())
}

/// Like the kernel, treats a negative time as a very long one.
fn timeout(milliseconds: c_int) -> Duration {
    Duration::from_millis(u64::from(milliseconds as u32))
}

pub(super) unsafe extern "C" fn get_src_port(id: *mut rdma_cm_id) -> __be16 {
    // SAFETY: `rdma_get_src_port` requires a live id.
    unsafe { socket_address::port((&raw const (*id).route.addr.__bindgen_anon_1).cast()) }
}

pub(super) unsafe extern "C" fn get_dst_port(id: *mut rdma_cm_id) -> __be16 {
    // SAFETY: `rdma_get_dst_port` requires a live id.
    unsafe { socket_address::port((&raw const (*id).route.addr.__bindgen_anon_2).cast()) }
}
