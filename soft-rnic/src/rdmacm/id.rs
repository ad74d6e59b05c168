//! `rdma_cm_id`: creating, migrating and destroying identifiers.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use rdma_mummy_sys::types::*;

use super::channel::{self, channel_of, destroy_event_channel};
use super::device::DefaultPd;
use super::multicast::Membership;
use super::names::ResolvedNames;
use super::{event, finish};
use crate::cm::{ConnectionManager, Ece, IdNumber, PortSpace};
use crate::objects::c_object::CObject;

/// What belongs to an id, besides what C sees.
pub(super) struct CmIdState {
    pub(super) manager: Arc<ConnectionManager>,
    /// Written once, before anybody else knows of the id.
    number: AtomicU64,
    pub(super) acknowledged: Acknowledged,
    settings: Mutex<IdSettings>,
}

/// What changes.
#[derive(Default)]
pub(super) struct IdSettings {
    /// It was created without a channel: it has one of its own, and calls wait for their event.
    pub(super) is_synchronous: bool,
    /// Kept for its default protection domain, once the id is bound to a device.
    pub(super) domain: Option<Arc<DefaultPd>>,
    pub(super) initiator_depth: u8,
    pub(super) responder_resources: u8,
    pub(super) local_ece: Ece,
    pub(super) remote_ece: Ece,
    /// The queue pair did not take what the peer answered: what follows from that is not told.
    pub(super) has_connect_error: bool,
    /// Of an endpoint: private data that the address resolution gave, and what queue pairs of requests are made of.
    pub(super) connect_data: Vec<u8>,
    pub(super) template: Option<ibv_qp_init_attr>,
    pub(super) memberships: Vec<Arc<Membership>>,
    /// What `rdma_resolve_addrinfo` has found last.
    pub(super) names: ResolvedNames,
}

type IdObject = CObject<rdma_cm_id, CmIdState>;

impl CmIdState {
    pub(super) fn number(&self) -> IdNumber {
        IdNumber(self.number.load(Relaxed))
    }

    pub(super) fn settings(&self) -> MutexGuard<'_, IdSettings> {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_synchronous(&self) -> bool {
        self.settings().is_synchronous
    }
}

/// How many events of something were acknowledged since it was made.
#[derive(Default)]
pub(super) struct Acknowledged {
    count: Mutex<AckCount>,
    changed: Condvar,
}

#[derive(Default)]
struct AckCount {
    events: u32,
    /// Somebody waits. Nobody else is worth a system call.
    is_awaited: bool,
}

impl Acknowledged {
    fn lock(&self) -> MutexGuard<'_, AckCount> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self) {
        let mut count = self.lock();
        count.events = count.events.wrapping_add(1);
        if count.is_awaited {
            // Under the lock: who waits frees this as soon as it has it.
            self.changed.notify_all();
        }
    }

    /// Waits until so many are acknowledged.
    pub(super) fn wait(&self, events: u32) {
        let mut count = self.lock();
        while count.events < events {
            count.is_awaited = true;
            count = self.changed.wait(count).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// # Safety
///
/// - `id` is live for as long as the reference is used.
pub(super) unsafe fn id_of<'a>(id: *mut rdma_cm_id) -> &'a CmIdState {
    // SAFETY: `id` is live for as long as the reference is used, by the contract of `id_of`; every
    // id comes from `make`.
    unsafe { IdObject::state(id) }
}

/// By what the other half names an id.
pub(super) fn uid_of(id: *mut rdma_cm_id) -> u64 {
    id.expose_provenance() as u64
}

/// The id that an event names.
pub(super) fn of_uid(uid: u64) -> *mut rdma_cm_id {
    ptr::with_exposed_provenance_mut(uid as usize)
}

/// An id without a number; it lives until [`free`].
fn make(
    manager: &Arc<ConnectionManager>,
    channel: *mut rdma_event_channel,
    context: *mut c_void,
    ps: rdma_port_space,
    qp_type: ibv_qp_type,
) -> *mut rdma_cm_id {
    let c = rdma_cm_id { channel, context, ps, qp_type, ..rdma_cm_id::default() };
    let state = CmIdState {
        manager: Arc::clone(manager),
        number: AtomicU64::new(0),
        acknowledged: Acknowledged::default(),
        settings: Mutex::default(),
    };
    IdObject::create(c, state)
}

/// # Safety
///
/// - `id` is live, and not used after this.
unsafe fn free(id: *mut rdma_cm_id) {
    // SAFETY: `id` is live, and not used after this, by the contract of `free`. The path record is
    // one that `resolve` has boxed, or null.
    unsafe {
        let channel = (*id).channel;
        let path = (*id).route.path_rec;
        let state = IdObject::destroy(id);
        if !path.is_null() {
            drop(Box::from_raw(path));
        }
        if state.is_synchronous() {
            destroy_event_channel(channel);
        }
    }
}

/// Creates an id; without a channel it gets one of its own.
///
/// # Safety
///
/// - `channel` is live or null.
pub(super) unsafe fn create(
    channel: *mut rdma_event_channel,
    context: *mut c_void,
    ps: rdma_port_space,
    qp_type: ibv_qp_type,
) -> Result<*mut rdma_cm_id, c_int> {
    let space = PortSpace::from_c(ps).ok_or(libc::EINVAL)?;
    let is_synchronous = channel.is_null();
    let channel = if is_synchronous { channel::create()? } else { channel };
    // SAFETY: the caller's channel, or the new one.
    let on = unsafe { channel_of(channel) };
    let id = make(&on.manager, channel, context, ps, qp_type);
    // SAFETY: it was made just now.
    let state = unsafe { id_of(id) };
    state.settings().is_synchronous = is_synchronous;
    match on.manager.create(&on.channel, uid_of(id), space, qp_type) {
        Ok(number) => {
            state.number.store(number.0, Relaxed);
            Ok(id)
        }
        Err(error) => {
            // SAFETY: nobody else knows of it.
            unsafe { free(id) };
            Err(error)
        }
    }
}

/// Makes the id of a connection request, like its listener's. If that fails, the request is rejected.
///
/// # Safety
///
/// - `listener` is live.
pub(super) unsafe fn create_for_request(
    listener: *mut rdma_cm_id,
    request: IdNumber,
) -> Result<*mut rdma_cm_id, c_int> {
    // SAFETY: `listener` is live, by the contract of `create_for_request`.
    let (like, c) = unsafe { (id_of(listener), &raw const *listener) };
    // SAFETY: `listener` is live, by the contract of `create_for_request`; these are not changed
    // while it listens.
    let id = unsafe { make(&like.manager, (*c).channel, (*c).context, (*c).ps, (*c).qp_type) };
    // SAFETY: it was made just now.
    let state = unsafe { id_of(id) };
    state.number.store(request.0, Relaxed);
    let own_channel = || -> Result<(), c_int> {
        if like.is_synchronous() {
            // SAFETY: it is live.
            unsafe { migrate(id, ptr::null_mut()) }
        } else {
            Ok(())
        }
    };
    // Events of it come when the program has accepted it: see `name`.
    match own_channel() {
        Ok(()) => Ok(id),
        Err(error) => {
            let _ = state.manager.destroy(request); // It may be gone already, which is as good.
            // SAFETY: nobody else knows of it: it has had no event.
            unsafe { free(id) };
            Err(error)
        }
    }
}

/// Has events name the id. One of a connection request has none before the program takes it on, as in life: what befalls the request
/// till then shows when it is accepted.
///
/// # Safety
///
/// - `id` is live.
pub(super) unsafe fn name(id: *mut rdma_cm_id) -> Result<(), c_int> {
    // SAFETY: `id` is live, by the contract of `name`.
    let state = unsafe { id_of(id) };
    state.manager.set_uid(state.number(), uid_of(id))
}

/// Gives up the id of a request that the program was not told of.
///
/// # Safety
///
/// - `id` is live and not used after this.
pub(super) unsafe fn discard(id: *mut rdma_cm_id) {
    // SAFETY: `id` is live and not used after this, by the contract of `discard`.
    if unsafe { destroy_id(id) } != 0 {
        log::warn!("a connection request that could not be count is still there");
    }
}

pub(super) unsafe extern "C" fn create_id(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    context: *mut c_void,
    ps: rdma_port_space,
) -> c_int {
    let is_datagram = matches!(ps, rdma_port_space::RDMA_PS_UDP | rdma_port_space::RDMA_PS_IPOIB);
    let qp_type = if is_datagram { ibv_qp_type::IBV_QPT_UD } else { ibv_qp_type::IBV_QPT_RC };
    // SAFETY: the caller's channel is live or null, and its place valid.
    finish(unsafe { create(channel, context, ps, qp_type).map(|made| id.write(made)) })
}

/// Returns when all events that were taken are acknowledged; the others go with the id.
pub(super) unsafe extern "C" fn destroy_id(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: the caller's live id, which nobody else uses but those who have its events.
    unsafe {
        let state = id_of(id);
        let taken = match state.manager.destroy(state.number()) {
            Ok(taken) => taken,
            Err(error) => return finish(Err(error)),
        };
        event::acknowledge_held(id);
        state.acknowledged.wait(taken);
        free(id);
    }
    0
}

/// Moves an id to another channel; without one it gets its own, and is synchronous from then on.
///
/// # Safety
///
/// - `id` is live, and `channel` live or null.
unsafe fn migrate(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> Result<(), c_int> {
    // SAFETY: `id` is live, and `channel` live or null, by the contract of `migrate`.
    let state = unsafe { id_of(id) };
    let was_synchronous = state.is_synchronous();
    let is_synchronous = channel.is_null();
    if was_synchronous && is_synchronous {
        return Err(libc::EINVAL);
    }
    let to = if is_synchronous { channel::create()? } else { channel };
    // SAFETY: it is live.
    let taken = match state.manager.migrate(state.number(), unsafe { &channel_of(to).channel }) {
        Ok(taken) => taken,
        Err(error) => {
            if is_synchronous {
                // SAFETY: it was made just now, and nobody else knows of it.
                unsafe { destroy_event_channel(to) };
            }
            return Err(error);
        }
    };
    // SAFETY: the caller's id is live, and nobody uses the channel of a synchronous id but through the id.
    unsafe {
        if was_synchronous {
            event::acknowledge_held(id);
            destroy_event_channel((*id).channel);
        }
        state.settings().is_synchronous = is_synchronous;
        (*id).channel = to;
    }
    // What was taken from the old channel is not handled after this returns.
    state.acknowledged.wait(taken);
    Ok(())
}

pub(super) unsafe extern "C" fn migrate_id(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> c_int {
    // SAFETY: `id` is live, and `channel` live or null, by the contract of the C function
    // `migrate_id`.
    finish(unsafe { migrate(id, channel) })
}

pub(super) unsafe extern "C" fn set_option(
    id: *mut rdma_cm_id,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: usize,
) -> c_int {
    if value.is_null() && length != 0 {
        return finish(Err(libc::EINVAL));
    }
    // SAFETY: the caller's live id, and value of this length.
    let (state, value) = unsafe {
        let value: &[u8] =
            if length == 0 { &[] } else { std::slice::from_raw_parts(value.cast_const().cast(), length) };
        (id_of(id), value)
    };
    finish(state.manager.set_option(state.number(), level, name, value))
}
