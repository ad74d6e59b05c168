//! Connections of ids: `rdma_listen`, `rdma_connect`, `rdma_accept`, `rdma_reject`,
//! `rdma_disconnect` and their relatives.

use std::ffi::{c_int, c_void};
use std::slice;

use rdma_mummy_sys::types::*;

use super::id::{CmIdState, id_of, name};
use super::{ece, event, finish, queue_pair, resolve};
use crate::cm::{ConnParams, Ece, PrivateData};
use crate::objects::setup::ProcessSetup;

/// The reject reason of `rdma_reject` ("consumer reject" in the InfiniBand specification).
const CONSUMER_DEFINED: u8 = 28;
/// Retry counts that the peer receives if the program gives no parameters: the maximum, 7.
const RETRIES: u8 = 7;

pub(super) unsafe extern "C" fn listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    let listen = || {
        // SAFETY: `rdma_listen` requires a live id.
        unsafe {
            let state = id_of(id);
            state.manager.listen(state.number(), backlog)?;
            // The kernel half may have chosen the port just now.
            resolve::refresh(id)
        }
    };
    finish(listen())
}

/// The most RDMA reads and atomics that a queue pair can have outstanding, in either direction.
fn most_depth() -> u8 {
    ProcessSetup::get().map_or(u8::MAX, |setup| setup.limits.max_qp_rd_atom.min(u32::from(u8::MAX)) as u8)
}

/// Validates the program's parameters.
///
/// # Errors
///
/// `EINVAL` if a depth exceeds the device's limit, or if neither `given` nor the id names a queue
/// pair.
///
/// # Safety
///
/// - `id` is live, and `given` valid or null.
unsafe fn checked<'a>(
    id: *mut rdma_cm_id,
    given: *const rdma_conn_param,
) -> Result<Option<&'a rdma_conn_param>, c_int> {
    // SAFETY: the caller guarantees that `id` is live, and `given` valid or null.
    let (given, is_connected, has_qp) =
        unsafe { (given.as_ref(), (*id).ps == rdma_port_space::RDMA_PS_TCP, !(*id).qp.is_null()) };
    let Some(given) = given else {
        // Without parameters, only the id can say which queue pair connects.
        return if has_qp { Ok(None) } else { Err(libc::EINVAL) };
    };
    let fits = |depth: u8, any: u32| u32::from(depth) == any || depth <= most_depth();
    let fit = fits(given.responder_resources, RDMA_MAX_RESP_RES)
        && fits(given.initiator_depth, RDMA_MAX_INIT_DEPTH);
    if is_connected && !fit { Err(libc::EINVAL) } else { Ok(Some(given)) }
}

/// Assembles the parameters that the peer receives. The depths come from the id's settings.
///
/// # Safety
///
/// - `id` is live, `state` belongs to it, and the private data in `given` is readable.
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
    // SAFETY: the caller guarantees that `id` is live, that `state` belongs to it, and that the
    // private data is readable.
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

/// The program's private data as a slice.
///
/// # Safety
///
/// - `data` is null, or readable for `length` bytes while the slice is used.
unsafe fn data<'a>(data: *const c_void, length: u8) -> &'a [u8] {
    if data.is_null() {
        return &[];
    }
    // SAFETY: the caller guarantees that `data` is readable for `length` bytes while the slice is
    // used.
    unsafe { slice::from_raw_parts(data.cast(), length.into()) }
}

pub(super) unsafe extern "C" fn connect(id: *mut rdma_cm_id, given: *mut rdma_conn_param) -> c_int {
    let connect = || {
        // SAFETY: `rdma_connect` requires a live id, and parameters that are valid or null.
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
        // SAFETY: `rdma_accept` requires a live id, and parameters that are valid or null.
        unsafe {
            let (state, given) = (id_of(id), checked(id, given)?);
            let is_datagram = queue_pair::is_datagram((*id).qp_type);
            let (responder_resources, initiator_depth, ece) = {
                let mut settings = state.settings();
                // Use the program's depth if it gave one, else the peer's, limited to what the
                // device can do.
                let depth = |depth: Option<u8>, asked: u8| {
                    depth.filter(|depth| *depth != u8::MAX).unwrap_or(asked.min(most_depth()))
                };
                settings.initiator_depth =
                    depth(given.map(|given| given.initiator_depth), settings.initiator_depth);
                settings.responder_resources =
                    depth(given.map(|given| given.responder_resources), settings.responder_resources);
                // The answer names the vendor of the peer's request.
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
                // A datagram service gets no reply to its answer, so the request is finished.
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

/// Finishes a connection on the active side: moves the queue pair to RTS and sends the final CM
/// message to the peer.
///
/// # Safety
///
/// - `id` is live, and has a queue pair.
pub(super) unsafe fn respond(id: *mut rdma_cm_id, remote: Ece) -> Result<(), c_int> {
    // SAFETY: the caller guarantees that `id` is live, and has a queue pair.
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
    // SAFETY: `rdma_establish` requires a live id.
    unsafe {
        if !(*id).qp.is_null() {
            // An id with a queue pair is established when the program takes the response event.
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
    // SAFETY: the caller guarantees that `id` is live, and the data readable.
    unsafe {
        let state = id_of(id);
        state.manager.reject(state.number(), reason, data(private_data, length))
    }
}

pub(super) unsafe extern "C" fn reject(id: *mut rdma_cm_id, data: *const c_void, length: u8) -> c_int {
    // SAFETY: `rdma_reject` requires a live id and readable data.
    finish(unsafe { reject_for(id, CONSUMER_DEFINED, data, length) })
}

pub(super) unsafe extern "C" fn disconnect(id: *mut rdma_cm_id) -> c_int {
    let disconnect = || {
        // SAFETY: `rdma_disconnect` requires a live id.
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
    // SAFETY: `rdma_notify` requires a live id.
    let state = unsafe { id_of(id) };
    finish(state.manager.notify(state.number(), event.0))
}
