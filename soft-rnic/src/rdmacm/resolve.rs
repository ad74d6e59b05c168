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

/// Of `packet_life_time_selector` and its like: exactly so much.
const EXACTLY: u8 = 2;

/// Writes what is known of the id's way to where C sees it.
///
/// # Safety
///
/// - `id` is live, and nobody else writes to it.
pub(super) unsafe fn refresh(id: *mut rdma_cm_id) -> Result<(), c_int> {
    // SAFETY: `id` is live, and nobody else writes to it, by the contract of `refresh`.
    let state = unsafe { id_of(id) };
    let route = state.manager.route(state.number())?;
    // SAFETY: `id` is live, and nobody else writes to it, by the contract of `refresh`.
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
        // A device without a GUID is none to librdmacm.
        if path.device.guid != 0 {
            bind_to(id, &DefaultPd::of(path.device)?);
        }
        if route.resolved {
            set_path(c, path_record(&path, &route));
        }
    }
    Ok(())
}

/// Gives the id its device, and the protection domain that is used where the program gives none.
///
/// # Safety
///
/// - `id` is live, and nobody else writes to it.
unsafe fn bind_to(id: *mut rdma_cm_id, domain: &Arc<DefaultPd>) {
    // SAFETY: `id` is live, and nobody else writes to it, by the contract of `bind_to`.
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
/// - `route` is that of a live id, and nobody else writes to it.
unsafe fn set_path(route: *mut rdma_route, record: ibv_sa_path_rec) {
    // SAFETY: `route` is that of a live id, and nobody else writes to it, by the contract of
    // `set_path`. A record that is there already keeps its place: the program may look at it.
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
        // SAFETY: the caller's live id and address.
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
        // SAFETY: the caller's live id, and addresses that are null or readable.
        unsafe {
            let state = id_of(id);
            let to = socket_address::read(destination)?;
            let from = if source.is_null() { None } else { Some(socket_address::read(source)?) };
            // Its event may be taken by another thread before this one goes on, which then writes the same.
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
    // A route is found at once.
    let resolve = || {
        // SAFETY: the caller's live id.
        unsafe {
            let state = id_of(id);
            state.manager.resolve_route(state.number())?;
            event::complete(id)
        }
    };
    finish(resolve())
}

/// As the kernel takes it, a negative time is a very long one.
fn timeout(milliseconds: c_int) -> Duration {
    Duration::from_millis(u64::from(milliseconds as u32))
}

pub(super) unsafe extern "C" fn get_src_port(id: *mut rdma_cm_id) -> __be16 {
    // SAFETY: the caller's live id.
    unsafe { socket_address::port((&raw const (*id).route.addr.__bindgen_anon_1).cast()) }
}

pub(super) unsafe extern "C" fn get_dst_port(id: *mut rdma_cm_id) -> __be16 {
    // SAFETY: the caller's live id.
    unsafe { socket_address::port((&raw const (*id).route.addr.__bindgen_anon_2).cast()) }
}
