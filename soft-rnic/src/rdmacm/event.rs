//! Connection manager events: `rdma_get_cm_event` takes one from its channel, applies its effects
//! to its id, and returns it; `rdma_ack_cm_event` acknowledges it.

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

/// The library's state of an event, behind the C struct.
struct EventState {
    /// The id that counts the acknowledgement. For a connection request it is the listener.
    owner: *mut rdma_cm_id,
    membership: Option<Arc<Membership>>,
    /// The private data that the C struct points to.
    private_data: PrivateData,
}

type EventObject = CObject<rdma_cm_event, EventState>;

/// An event under construction.
struct EventBuilder {
    c: rdma_cm_event,
    membership: Option<Arc<Membership>>,
}

/// Waits for an event that the program sees. Does not wait if the channel's descriptor is
/// non-blocking.
///
/// # Safety
///
/// - `channel` is live.
pub(super) unsafe fn next(channel: *mut rdma_event_channel) -> Result<*mut rdma_cm_event, c_int> {
    // SAFETY: the caller guarantees that `channel` is live.
    let state = unsafe { channel_of(channel) };
    loop {
        let event = state.channel.take().map_err(|error| errno::of(&error))?;
        // SAFETY: `take` returned the event just now, so its id lives until the event is
        // acknowledged.
        if let Some(event) = unsafe { tell(event) } {
            return Ok(event);
        }
    }
}

/// Makes the C struct of an event. Returns `None` if the program must not see the event.
///
/// # Safety
///
/// - The event was just taken from its channel, and is not acknowledged.
unsafe fn tell(event: CmEvent) -> Option<*mut rdma_cm_event> {
    if event.uid == 0 {
        log::error!("dropping an event ({:?}) of an id that has no uid", event.kind);
        return None;
    }
    let owner = of_uid(event.uid);
    // SAFETY: a uid is the id's address, and the id lives until its taken events are acknowledged.
    let state = unsafe { id_of(owner) };
    let c = rdma_cm_event {
        id: owner,
        event: rdma_cm_event_type(event.kind as u32),
        status: event.status,
        ..rdma_cm_event::default()
    };
    let mut builder = EventBuilder { c, membership: None };
    // SAFETY: the id lives until this event is acknowledged, and `state` belongs to it.
    if let Err(error) = unsafe { process(&mut builder, owner, state, &event) } {
        log::debug!("dropping an event ({:?}): error {error}", event.kind);
        state.acknowledged.add();
        return None;
    }
    let EventBuilder { c, membership } = builder;
    let (param, private_data) = parameters(event.details, membership.as_deref());
    let c = rdma_cm_event { param, ..c };
    let told = EventObject::create(c, EventState { owner, membership, private_data });
    // SAFETY: `create` returned the event just now. The private data lies in its state and never
    // changes.
    unsafe { point_to_data(told) };
    Some(told)
}

/// Applies an event to its id before the program sees it, and changes the event if that fails.
///
/// # Errors
///
/// If the program must not see the event.
///
/// # Safety
///
/// - `owner` is live, and `state` belongs to it.
unsafe fn process(
    builder: &mut EventBuilder,
    owner: *mut rdma_cm_id,
    state: &CmIdState,
    event: &CmEvent,
) -> Result<(), c_int> {
    let c = &mut builder.c;
    // SAFETY: the caller guarantees for all these calls that `owner` is live, and that `state`
    // belongs to it.
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

/// Replaces the event by `event`, an error event, if the work that belongs to it failed.
fn otherwise(result: Result<(), c_int>, c: &mut rdma_cm_event, event: rdma_cm_event_type) {
    if let Err(error) = result {
        c.event = event;
        c.status = -error;
    }
}

/// Makes the id of a connection request, so that the program can accept it.
///
/// # Safety
///
/// - `listener` is live.
unsafe fn request(listener: *mut rdma_cm_id, event: &CmEvent) -> Result<*mut rdma_cm_id, c_int> {
    let number = event.request.ok_or(libc::EPROTO)?;
    // SAFETY: the caller guarantees that `listener` is live.
    let id = unsafe { id::create_for_request(listener, number) }?;
    // SAFETY: `create_for_request` returned a live id.
    let state = unsafe { id_of(id) };
    {
        let mut settings = state.settings();
        settings.remote_ece = event.ece;
        if let EventDetails::Connection(parameters) = &event.details {
            settings.initiator_depth = parameters.initiator_depth;
            settings.responder_resources = parameters.responder_resources;
        }
    }
    // SAFETY: the id is live, and no other thread knows it.
    match unsafe { resolve::refresh(id) } {
        Ok(()) => Ok(id),
        Err(error) => {
            // SAFETY: the id is live, and no other thread knows it.
            unsafe { id::discard(id) };
            Err(error)
        }
    }
}

/// The event's parameters, without the pointer to the private data, and the private data.
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
        // The context that the program gave to `rdma_join_multicast`.
        param.ud.private_data = membership.context;
    }
    (param, private_data)
}

/// # Safety
///
/// - `event` comes from `EventObject::create`, and nobody else uses it yet.
unsafe fn point_to_data(event: *mut rdma_cm_event) {
    // SAFETY: the caller guarantees that `event` is new and unshared. Both structs of the union
    // begin with the pointer.
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
    // SAFETY: `rdma_get_cm_event` requires a live channel and a writable `event`.
    finish(unsafe { next(channel).map(|next| event.write(next)) })
}

pub(super) unsafe extern "C" fn ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    if event.is_null() {
        return finish(Err(libc::EINVAL));
    }
    // SAFETY: `rdma_ack_cm_event` requires an event that is not yet acknowledged. Its owner and its
    // membership live until `acknowledged.add` has counted this event.
    unsafe {
        let EventState { owner, membership, .. } = EventObject::destroy(event);
        if let Some(membership) = membership {
            membership.acknowledged.add();
        }
        id_of(owner).acknowledged.add();
    }
    0
}

/// `rdma_write_cm_event`: accepts only `RDMA_CM_EVENT_USER`, because the receiving code trusts the
/// contents of all other events.
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
        // SAFETY: `rdma_write_cm_event` requires a live id.
        let state = unsafe {
            // The id of a connection request may have no uid yet.
            id::name(id)?;
            id_of(id)
        };
        state.manager.write(state.number(), CmEventKind::User, status, argument)
    };
    finish(write())
}

/// Acknowledges the event that a synchronous id holds, if any.
///
/// # Safety
///
/// - `id` is live.
pub(super) unsafe fn acknowledge_held(id: *mut rdma_cm_id) {
    // SAFETY: the caller guarantees that `id` is live; the field holds an unacknowledged event, or
    // null.
    unsafe {
        let held = (&raw mut (*id).event).replace(std::ptr::null_mut());
        if !held.is_null() {
            ack_cm_event(held);
        }
    }
}

/// If the id is synchronous, waits for the result of the previous call, and keeps its event in the
/// id.
///
/// # Safety
///
/// - `id` is live.
pub(super) unsafe fn complete(id: *mut rdma_cm_id) -> Result<(), c_int> {
    // SAFETY: the caller guarantees that `id` is live.
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

/// The result that an event reports: its status as an error number.
///
/// # Safety
///
/// - `event` is live.
pub(super) unsafe fn outcome(event: *mut rdma_cm_event) -> Result<(), c_int> {
    // SAFETY: the caller guarantees that `event` is live.
    match unsafe { ((*event).event, (*event).status) } {
        (_, 0) => Ok(()),
        (rdma_cm_event_type::RDMA_CM_EVENT_REJECTED, _) => Err(libc::ECONNREFUSED),
        (_, status) => Err(status.saturating_abs()),
    }
}
