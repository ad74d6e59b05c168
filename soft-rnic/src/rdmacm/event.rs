//! Events: taking them, what they do to their ids before the program sees them, acknowledging them.

use std::ffi::c_int;
use std::sync::Arc;

use rdma_mummy_sys::types::*;

use super::channel::channel_of;
use super::id::{self, CmIdState, id_of, of_uid};
use super::multicast::{self, Membership};
use super::{connection, finish, queue_pair, resolve};
use crate::cm::{CmEvent, CmEventKind, EventDetails, PrivateData};
use crate::objects::c_object::CObject;
use crate::platform::errno;

/// What belongs to an event, besides what C sees.
struct EventState {
    /// The id that waits for the acknowledgement: the listener, of a connection request.
    owner: *mut rdma_cm_id,
    membership: Option<Arc<Membership>>,
    /// What the C part points to.
    private_data: PrivateData,
}

type EventObject = CObject<rdma_cm_event, EventState>;

/// What is to be told, as it is made.
struct EventBuilder {
    c: rdma_cm_event,
    membership: Option<Arc<Membership>>,
}

/// Waits for an event that the program is to see, unless the channel's descriptor is non-blocking.
///
/// # Safety
///
/// - `channel` is live.
pub(super) unsafe fn next(channel: *mut rdma_event_channel) -> Result<*mut rdma_cm_event, c_int> {
    // SAFETY: `channel` is live, by the contract of `next`.
    let state = unsafe { channel_of(channel) };
    loop {
        let event = state.channel.take().map_err(|error| errno::of(&error))?;
        // SAFETY: it was just taken, so its id lives until it is acknowledged.
        if let Some(event) = unsafe { tell(event) } {
            return Ok(event);
        }
    }
}

/// Makes what C sees of an event; `None` if the program does not learn of it.
///
/// # Safety
///
/// - The event was taken from its channel just now.
unsafe fn tell(event: CmEvent) -> Option<*mut rdma_cm_event> {
    if event.uid == 0 {
        log::error!("an event ({:?}) of an id that nobody was told of is left out", event.kind);
        return None;
    }
    let owner = of_uid(event.uid);
    // SAFETY: ids are named by their address, and live until their events that were taken are acknowledged.
    let state = unsafe { id_of(owner) };
    let c = rdma_cm_event {
        id: owner,
        event: rdma_cm_event_type(event.kind as u32),
        status: event.status,
        ..rdma_cm_event::default()
    };
    let mut builder = EventBuilder { c, membership: None };
    // SAFETY: the id lives.
    if let Err(error) = unsafe { process(&mut builder, owner, state, &event) } {
        log::debug!("an event ({:?}) is not told: error {error}", event.kind);
        state.acknowledged.add();
        return None;
    }
    let EventBuilder { c, membership } = builder;
    let (param, private_data) = parameters(event.details, membership.as_deref());
    let c = rdma_cm_event { param, ..c };
    let told = EventObject::create(c, EventState { owner, membership, private_data });
    // SAFETY: it was made just now; its private data lies in it and is never changed.
    unsafe { point_to_data(told) };
    Some(told)
}

/// What an event does to its id before the program sees it, and what the program sees instead. An error: it sees nothing.
///
/// # Safety
///
/// - `owner` is live, and `state` its own.
unsafe fn process(
    builder: &mut EventBuilder,
    owner: *mut rdma_cm_id,
    state: &CmIdState,
    event: &CmEvent,
) -> Result<(), c_int> {
    let c = &mut builder.c;
    // SAFETY: `owner` is live, and `state` its own, by the contract of `process`, for all of these.
    unsafe {
        match event.kind {
            CmEventKind::AddrResolved => {
                otherwise(resolve::refresh(owner), c, rdma_cm_event_type::RDMA_CM_EVENT_ADDR_ERROR);
            }
            CmEventKind::RouteResolved => {
                otherwise(resolve::refresh(owner), c, rdma_cm_event_type::RDMA_CM_EVENT_ROUTE_ERROR);
            }
            CmEventKind::ConnectRequest => {
                c.id = request(owner, event)?;
                c.listen_id = owner;
            }
            CmEventKind::ConnectResponse if (*owner).qp.is_null() => state.settings().remote_ece = event.ece,
            CmEventKind::ConnectResponse => {
                c.event = rdma_cm_event_type::RDMA_CM_EVENT_ESTABLISHED;
                let result = connection::respond(owner, event.ece);
                state.settings().has_connect_error = result.is_err();
                otherwise(result, c, rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_ERROR);
            }
            CmEventKind::Rejected | CmEventKind::Disconnected if state.settings().has_connect_error => {
                return Err(libc::ECONNABORTED);
            }
            CmEventKind::Rejected => queue_pair::to_error(owner),
            CmEventKind::MulticastJoin | CmEventKind::MulticastError => {
                let (_, uid) = event.join.ok_or(libc::EPROTO)?;
                let membership = multicast::of_uid(uid);
                if event.kind == CmEventKind::MulticastJoin {
                    let result = multicast::joined(owner, &membership, &event.details);
                    otherwise(result, c, rdma_cm_event_type::RDMA_CM_EVENT_MULTICAST_ERROR);
                }
                builder.membership = Some(membership);
            }
            _ => {}
        }
    }
    Ok(())
}

/// Has another event in place of this, if something failed that belongs to it.
fn otherwise(result: Result<(), c_int>, c: &mut rdma_cm_event, event: rdma_cm_event_type) {
    if let Err(error) = result {
        c.event = event;
        c.status = -error;
    }
}

/// The id of a connection request, ready to be accepted.
///
/// # Safety
///
/// - `listener` is live.
unsafe fn request(listener: *mut rdma_cm_id, event: &CmEvent) -> Result<*mut rdma_cm_id, c_int> {
    let number = event.request.ok_or(libc::EPROTO)?;
    // SAFETY: `listener` is live, by the contract of `request`.
    let id = unsafe { id::create_for_request(listener, number) }?;
    // SAFETY: it was made just now.
    let state = unsafe { id_of(id) };
    {
        let mut settings = state.settings();
        settings.remote_ece = event.ece;
        if let EventDetails::Connection(parameters) = &event.details {
            settings.initiator_depth = parameters.initiator_depth;
            settings.responder_resources = parameters.responder_resources;
        }
    }
    // SAFETY: it was made just now.
    match unsafe { resolve::refresh(id) } {
        Ok(()) => Ok(id),
        Err(error) => {
            // SAFETY: nobody else knows of it.
            unsafe { id::discard(id) };
            Err(error)
        }
    }
}

/// What came along, but for the pointer to the private data.
fn parameters(
    details: EventDetails,
    membership: Option<&Membership>,
) -> (rdma_cm_event__bindgen_ty_1, PrivateData) {
    let mut param = rdma_cm_event__bindgen_ty_1::default();
    let private_data = match details {
        EventDetails::Nothing => PrivateData::new(),
        EventDetails::Argument(argument) => {
            param.arg = argument;
            PrivateData::new()
        }
        EventDetails::Connection(given) => {
            param.conn = rdma_conn_param {
                private_data_len: given.private_data.len() as u8,
                responder_resources: given.responder_resources,
                initiator_depth: given.initiator_depth,
                flow_control: given.flow_control,
                retry_count: given.retry_count,
                rnr_retry_count: given.rnr_retry_count,
                srq: given.srq.into(),
                qp_num: given.qp_num,
                ..rdma_conn_param::default()
            };
            given.private_data
        }
        EventDetails::Datagram { private_data, address } => {
            param.ud = rdma_ud_param {
                private_data_len: private_data.len() as u8,
                ah_attr: address.ah_attr,
                qp_num: address.qp_num,
                qkey: address.qkey,
                ..rdma_ud_param::default()
            };
            private_data
        }
    };
    if let Some(membership) = membership {
        // What the program gave to `rdma_join_multicast`.
        param.ud.private_data = membership.context;
    }
    (param, private_data)
}

/// # Safety
///
/// - `event` was made just now.
unsafe fn point_to_data(event: *mut rdma_cm_event) {
    // SAFETY: `event` was made just now, by the contract of `point_to_data`; both structs of the
    // union begin with the pointer.
    unsafe {
        let told = EventObject::state(event);
        if !told.private_data.is_empty() {
            (*event).param.conn.private_data = told.private_data.as_ptr().cast();
        }
    }
}

pub(super) unsafe extern "C" fn get_cm_event(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    if channel.is_null() || event.is_null() {
        return finish(Err(libc::EINVAL));
    }
    // SAFETY: the caller's live channel and valid place.
    finish(unsafe { next(channel).map(|next| event.write(next)) })
}

pub(super) unsafe extern "C" fn ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    if event.is_null() {
        return finish(Err(libc::EINVAL));
    }
    // SAFETY: the caller's event was not acknowledged before. Its owner and its membership live until this has counted.
    unsafe {
        let EventState { owner, membership, .. } = EventObject::destroy(event);
        if let Some(membership) = membership {
            membership.acknowledged.add();
        }
        id_of(owner).acknowledged.add();
    }
    0
}

/// Only programs' own events are written: whoever takes another trusts what it says.
pub(super) unsafe extern "C" fn write_cm_event(
    id: *mut rdma_cm_id,
    event: rdma_cm_event_type,
    status: c_int,
    argument: u64,
) -> c_int {
    if event != rdma_cm_event_type::RDMA_CM_EVENT_USER {
        return finish(Err(libc::EINVAL));
    }
    let write = || {
        // SAFETY: the caller's live id.
        let state = unsafe {
            // One of a request may have no name yet.
            id::name(id)?;
            id_of(id)
        };
        state.manager.write(state.number(), CmEventKind::User, status, argument)
    };
    finish(write())
}

/// Acknowledges the event that a synchronous id has kept.
///
/// # Safety
///
/// - `id` is live.
pub(super) unsafe fn acknowledge_held(id: *mut rdma_cm_id) {
    // SAFETY: `id` is live, by the contract of `acknowledge_held`; what is in the field is an event
    // that was not acknowledged.
    unsafe {
        let held = (&raw mut (*id).event).replace(std::ptr::null_mut());
        if !held.is_null() {
            ack_cm_event(held);
        }
    }
}

/// Waits for what comes of the call before, if the id is synchronous, and keeps the event in the id.
///
/// # Safety
///
/// - `id` is live.
pub(super) unsafe fn complete(id: *mut rdma_cm_id) -> Result<(), c_int> {
    // SAFETY: `id` is live, by the contract of `complete`.
    unsafe {
        if !id_of(id).is_synchronous() {
            return Ok(());
        }
        acknowledge_held(id);
        let event = next((*id).channel)?;
        (*id).event = event;
        outcome(event)
    }
}

/// Whether an event tells of a success.
///
/// # Safety
///
/// - `event` is live.
pub(super) unsafe fn outcome(event: *mut rdma_cm_event) -> Result<(), c_int> {
    // SAFETY: `event` is live, by the contract of `outcome`.
    match unsafe { ((*event).event, (*event).status) } {
        (_, 0) => Ok(()),
        (rdma_cm_event_type::RDMA_CM_EVENT_REJECTED, _) => Err(libc::ECONNREFUSED),
        (_, status) => Err(status.saturating_abs()),
    }
}
