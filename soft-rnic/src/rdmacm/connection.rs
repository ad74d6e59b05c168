//! Connections: listening, asking, answering, ending.

use std::ffi::{c_int, c_void};
use std::slice;

use rdma_mummy_sys::types::*;

use super::id::{CmIdState, id_of, name};
use super::{ece, event, finish, queue_pair, resolve};
use crate::cm::{ConnParams, Ece, PrivateData};
use crate::objects::setup::ProcessSetup;

/// The reason of a rejection: the program's own.
const CONSUMER_DEFINED: u8 = 28;
/// What is told without parameters: as often as can be.
const RETRIES: u8 = 7;

pub(super) unsafe extern "C" fn listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    let listen = || {
        // SAFETY: the caller's live id.
        unsafe {
            let state = id_of(id);
            state.manager.listen(state.number(), backlog)?;
            // The port may have been chosen just now.
            resolve::refresh(id)
        }
    };
    finish(listen())
}

/// How many reads and atomics a queue pair can have under way, in either direction.
fn most_depth() -> u8 {
    ProcessSetup::get().map_or(u8::MAX, |setup| setup.limits.max_qp_rd_atom.min(u32::from(u8::MAX)) as u8)
}

/// The program's parameters, if they can be kept.
///
/// # Safety
///
/// - `id` is live, and `given` valid or null.
unsafe fn checked<'a>(
    id: *mut rdma_cm_id,
    given: *const rdma_conn_param,
) -> Result<Option<&'a rdma_conn_param>, c_int> {
    // SAFETY: `id` is live, and `given` valid or null, by the contract of `checked`.
    let (given, is_connected, has_qp) =
        unsafe { (given.as_ref(), (*id).ps == rdma_port_space::RDMA_PS_TCP, !(*id).qp.is_null()) };
    let Some(given) = given else {
        // Nobody says which queue pair it is about.
        return if has_qp { Ok(None) } else { Err(libc::EINVAL) };
    };
    let fits = |depth: u8, any: u32| u32::from(depth) == any || depth <= most_depth();
    let fit = fits(given.responder_resources, RDMA_MAX_RESP_RES)
        && fits(given.initiator_depth, RDMA_MAX_INIT_DEPTH);
    if is_connected && !fit { Err(libc::EINVAL) } else { Ok(Some(given)) }
}

/// What the other side is told. The depths are those that the id has.
///
/// # Safety
///
/// - `id` is live, `state` its own, and the private data readable.
unsafe fn parameters(
    id: *mut rdma_cm_id,
    state: &CmIdState,
    given: Option<&rdma_conn_param>,
) -> Result<ConnParams, c_int> {
    let settings = state.settings();
    let mut private_data = PrivateData::try_from(&settings.connect_data[..]).map_err(|_| libc::EINVAL)?;
    let mut told = ConnParams {
        responder_resources: settings.responder_resources,
        initiator_depth: settings.initiator_depth,
        flow_control: 1,
        retry_count: RETRIES,
        rnr_retry_count: RETRIES,
        ..ConnParams::default()
    };
    // SAFETY: `id` is live, `state` its own, and the private data readable, by the contract of
    // `parameters`.
    unsafe {
        if let Some(given) = given {
            let data = data(given.private_data, given.private_data_len);
            private_data.try_extend_from_slice(data).map_err(|_| libc::EINVAL)?;
            told.flow_control = given.flow_control;
            told.retry_count = given.retry_count;
            told.rnr_retry_count = given.rnr_retry_count;
            told.srq = given.srq != 0;
            told.qp_num = given.qp_num;
        }
        let qp = (*id).qp;
        if !qp.is_null() {
            told.qp_num = (*qp).qp_num;
            told.srq = !(*qp).srq.is_null();
        }
    }
    Ok(ConnParams { private_data, ..told })
}

/// The program's private data.
///
/// # Safety
///
/// - `data` is null, or readable for this length as long as the slice is used.
unsafe fn data<'a>(data: *const c_void, length: u8) -> &'a [u8] {
    if data.is_null() {
        return &[];
    }
    // SAFETY: `data` is null, or readable for this length as long as the slice is used, by the
    // contract of `data`.
    unsafe { slice::from_raw_parts(data.cast(), length.into()) }
}

pub(super) unsafe extern "C" fn connect(id: *mut rdma_cm_id, given: *mut rdma_conn_param) -> c_int {
    let connect = || {
        // SAFETY: the caller's live id, and parameters that are valid or null.
        unsafe {
            let (state, given) = (id_of(id), checked(id, given)?);
            let ece = {
                let mut settings = state.settings();
                settings.has_connect_error = false;
                let depth =
                    |depth: Option<u8>| depth.filter(|depth| *depth != u8::MAX).unwrap_or(most_depth());
                settings.initiator_depth = depth(given.map(|given| given.initiator_depth));
                settings.responder_resources = depth(given.map(|given| given.responder_resources));
                settings.local_ece
            };
            state.manager.connect(state.number(), &parameters(id, state, given)?, ece)?;
            state.settings().connect_data.clear();
            event::complete(id)
        }
    };
    finish(connect())
}

pub(super) unsafe extern "C" fn accept(id: *mut rdma_cm_id, given: *mut rdma_conn_param) -> c_int {
    let accept = || {
        // SAFETY: the caller's live id, and parameters that are valid or null.
        unsafe {
            let (state, given) = (id_of(id), checked(id, given)?);
            let is_datagram = queue_pair::is_datagram((*id).qp_type);
            let (responder_resources, initiator_depth, ece) = {
                let mut settings = state.settings();
                // What the other side asks for, as far as it can be had, or what the program says.
                let depth = |depth: Option<u8>, asked: u8| {
                    depth.filter(|depth| *depth != u8::MAX).unwrap_or(asked.min(most_depth()))
                };
                settings.initiator_depth =
                    depth(given.map(|given| given.initiator_depth), settings.initiator_depth);
                settings.responder_resources =
                    depth(given.map(|given| given.responder_resources), settings.responder_resources);
                // The answer names the vendor that was asked for.
                let ece =
                    Ece { vendor_id: settings.remote_ece.vendor_id, options: settings.local_ece.options };
                (settings.responder_resources, settings.initiator_depth, ece)
            };
            let told = parameters(id, state, given)?;
            if !is_datagram {
                queue_pair::to_ready(id, responder_resources, initiator_depth)?;
            }
            let accept = || state.manager.accept(state.number(), Some(&told), ece);
            if let Err(error) = name(id).and_then(|()| accept()) {
                queue_pair::to_error(id);
                return Err(error);
            }
            if is_datagram {
                // Nothing comes back; the request is done with.
                if state.is_synchronous() {
                    event::acknowledge_held(id);
                }
                return Ok(());
            }
            event::complete(id)
        }
    };
    finish(accept())
}

/// Takes the queue pair of the side that asked to where it can be used, and says so to the other side.
///
/// # Safety
///
/// - `id` is live, with a queue pair.
pub(super) unsafe fn respond(id: *mut rdma_cm_id, remote: Ece) -> Result<(), c_int> {
    // SAFETY: `id` is live, with a queue pair, by the contract of `respond`.
    unsafe {
        let state = id_of(id);
        state.settings().remote_ece = remote;
        let respond = || {
            if remote.vendor_id != 0 {
                ece::agree((*id).qp, remote)?;
            }
            queue_pair::to_ready(id, RDMA_MAX_RESP_RES as u8, RDMA_MAX_INIT_DEPTH as u8)?;
            state.manager.accept(state.number(), None, Ece::default())
        };
        let result = respond();
        if result.is_err() {
            queue_pair::to_error(id);
        }
        result
    }
}

pub(super) unsafe extern "C" fn establish(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: the caller's live id.
    unsafe {
        if !(*id).qp.is_null() {
            // That happens when its event is taken.
            return finish(Err(libc::EINVAL));
        }
        let state = id_of(id);
        finish(state.manager.accept(state.number(), None, Ece::default()))
    }
}

/// # Safety
///
/// - `id` is live, and the data readable.
pub(super) unsafe fn reject_for(
    id: *mut rdma_cm_id,
    reason: u8,
    private_data: *const c_void,
    length: u8,
) -> Result<(), c_int> {
    // SAFETY: `id` is live, and the data readable, by the contract of `reject_for`.
    unsafe {
        let state = id_of(id);
        state.manager.reject(state.number(), reason, data(private_data, length))
    }
}

pub(super) unsafe extern "C" fn reject(id: *mut rdma_cm_id, data: *const c_void, length: u8) -> c_int {
    // SAFETY: `id` is live, and the data readable, by the contract of the C function `reject`.
    finish(unsafe { reject_for(id, CONSUMER_DEFINED, data, length) })
}

pub(super) unsafe extern "C" fn disconnect(id: *mut rdma_cm_id) -> c_int {
    let disconnect = || {
        // SAFETY: the caller's live id.
        unsafe {
            let state = id_of(id);
            queue_pair::to_error(id);
            state.manager.disconnect(state.number())?;
            event::complete(id)
        }
    };
    finish(disconnect())
}

pub(super) unsafe extern "C" fn notify(id: *mut rdma_cm_id, event: ibv_event_type) -> c_int {
    // SAFETY: the caller's live id.
    let state = unsafe { id_of(id) };
    finish(state.manager.notify(state.number(), event.0))
}
