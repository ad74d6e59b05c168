//! Endpoints: synchronous ids with all that belongs to them.

use std::ffi::c_int;
use std::slice;

use rdma_mummy_sys::types::*;

use super::id::{self, destroy_id, id_of};
use super::queue_pair::{create_classic, destroy_qp};
use super::resolve::{bind_addr, resolve_addr, resolve_route};
use super::shared_queue::destroy_srq;
use super::{event, finish};
use crate::platform::errno;

/// How long an address or a route may take.
const TIMEOUT_MS: c_int = 2000;

/// The result of a C function.
fn result(number: c_int) -> Result<(), c_int> {
    if number == 0 { Ok(()) } else { Err(errno::of(&std::io::Error::last_os_error())) }
}

pub(super) unsafe extern "C" fn create_ep(
    id: *mut *mut rdma_cm_id,
    info: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> c_int {
    let create = || {
        // SAFETY: the caller's information is valid.
        unsafe {
            let (ps, qp_type) = ((*info).ai_port_space, (*info).ai_qp_type);
            let (ps, qp_type) = (rdma_port_space(ps as u32), ibv_qp_type(qp_type as u32));
            let made = id::create(std::ptr::null_mut(), std::ptr::null_mut(), ps, qp_type)?;
            if !attr.is_null() {
                (*attr).qp_type = qp_type;
            }
            let is_passive = (*info).ai_flags & RAI_PASSIVE as c_int != 0;
            let prepared =
                if is_passive { passive(made, info, pd, attr) } else { active(made, info, pd, attr) };
            match prepared {
                Ok(()) => Ok(made),
                Err(error) => {
                    destroy_ep(made);
                    Err(error)
                }
            }
        }
    };
    // SAFETY: the caller's place is valid.
    finish(create().map(|made| unsafe { id.write(made) }))
}

/// # Safety
///
/// - `id` is live, `info` valid, and the others valid or null.
unsafe fn passive(
    id: *mut rdma_cm_id,
    info: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> Result<(), c_int> {
    // SAFETY: `id` is live, `info` valid, and the others valid or null, by the contract of
    // `passive`.
    unsafe {
        result(bind_addr(id, (*info).ai_src_addr))?;
        if !pd.is_null() {
            (*id).pd = pd;
        }
        id_of(id).settings().template = attr.as_ref().copied();
    }
    Ok(())
}

/// # Safety
///
/// - `id` is live, `info` valid, and the others valid or null.
unsafe fn active(
    id: *mut rdma_cm_id,
    info: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> Result<(), c_int> {
    // SAFETY: `id` is live, `info` valid, and the others valid or null, by the contract of
    // `active`.
    unsafe {
        let info = &*info;
        result(resolve_addr(id, info.ai_src_addr, info.ai_dst_addr, TIMEOUT_MS))?;
        if info.ai_route_len == 0 {
            result(resolve_route(id, TIMEOUT_MS))?;
        } else {
            let (level, name) = (RDMA_OPTION_IB as c_int, RDMA_OPTION_IB_PATH as c_int);
            result(id::set_option(id, level, name, info.ai_route, info.ai_route_len))?;
            event::complete(id)?;
        }
        if let Some(attr) = attr.as_mut() {
            create_classic(id, pd, attr)?;
        }
        if info.ai_connect_len != 0 {
            let data = slice::from_raw_parts(info.ai_connect.cast_const().cast(), info.ai_connect_len);
            id_of(id).settings().connect_data = data.to_vec();
        }
    }
    Ok(())
}

pub(super) unsafe extern "C" fn destroy_ep(id: *mut rdma_cm_id) {
    // SAFETY: the caller's live id, not used after this.
    unsafe {
        if !(*id).qp.is_null() {
            destroy_qp(id);
        }
        if !(*id).srq.is_null() {
            destroy_srq(id);
        }
        if destroy_id(id) != 0 {
            log::warn!("an endpoint could not be destroyed: {}", std::io::Error::last_os_error());
        }
    }
}

/// Waits for a connection request; its event is kept in the new id.
pub(super) unsafe extern "C" fn get_request(listener: *mut rdma_cm_id, id: *mut *mut rdma_cm_id) -> c_int {
    let get = || {
        // SAFETY: the caller's live id.
        unsafe {
            let state = id_of(listener);
            if !state.is_synchronous() {
                return Err(libc::EINVAL);
            }
            event::acknowledge_held(listener);
            let event = event::next((*listener).channel)?;
            let made = request(listener, event);
            if made.is_err() {
                (*listener).event = event;
            }
            made
        }
    };
    // SAFETY: the caller's place is valid.
    finish(get().map(|made| unsafe { id.write(made) }))
}

/// # Safety
///
/// - `listener` is live, and `event` one of it.
unsafe fn request(listener: *mut rdma_cm_id, event: *mut rdma_cm_event) -> Result<*mut rdma_cm_id, c_int> {
    // SAFETY: `listener` is live, and `event` one of it, by the contract of `request`.
    unsafe {
        event::outcome(event)?;
        if (*event).event != rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_REQUEST {
            return Err(libc::EINVAL);
        }
        let (id, template) = ((*event).id, id_of(listener).settings().template);
        if let Some(mut attr) = template {
            create_classic(id, (*listener).pd, &mut attr)?;
        }
        (*id).event = event;
        Ok(id)
    }
}
