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

/// The library's state of an id, behind the C struct.
pub(super) struct CmIdState {
    pub(super) manager: Arc<ConnectionManager>,
    /// Written once, before another thread knows the id.
    number: AtomicU64,
    pub(super) acknowledged: Acknowledged,
    settings: Mutex<IdSettings>,
}

/// The mutable part of the state.
#[derive(Default)]
pub(super) struct IdSettings {
    /// The id was created without a channel: it has a private channel, and its calls wait for their
    /// events.
    pub(super) is_synchronous: bool,
    /// Holds the device and its default protection domain, once the id is bound to a device.
    pub(super) domain: Option<Arc<DefaultPd>>,
    pub(super) initiator_depth: u8,
    pub(super) responder_resources: u8,
    pub(super) local_ece: Ece,
    pub(super) remote_ece: Ece,
    /// The queue pair rejected the peer's response. The program does not see the events that follow
    /// from this.
    pub(super) has_connect_error: bool,
    /// For an endpoint: the private data from the address resolution, and (in `template`) the
    /// attributes for the queue pairs of connection requests.
    pub(super) connect_data: Vec<u8>,
    pub(super) template: Option<ibv_qp_init_attr>,
    pub(super) memberships: Vec<Arc<Membership>>,
    /// The latest result of `rdma_resolve_addrinfo`.
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

/// The number of acknowledged events of an id or a membership since its creation.
#[derive(Default)]
pub(super) struct Acknowledged {
    count: Mutex<AckCount>,
    changed: Condvar,
}

#[derive(Default)]
struct AckCount {
    events: u32,
    /// A thread waits, so acknowledging must make the system call that wakes it.
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
            // Notify while the lock is held, because the waiting thread frees `self` once it gets
            // the lock.
            self.changed.notify_all();
        }
    }

    /// Waits until `events` events are acknowledged.
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
/// - `id` is live while the reference is used.
pub(super) unsafe fn id_of<'a>(id: *mut rdma_cm_id) -> &'a CmIdState {
    // SAFETY: the caller guarantees that `id` is live while the reference is used; every id comes
    // from `make`.
    unsafe { IdObject::state(id) }
}

/// The number by which the kernel half names an id in its events: the id's address.
pub(super) fn uid_of(id: *mut rdma_cm_id) -> u64 {
    id.expose_provenance() as u64
}

/// The id that an event names: the inverse of [`uid_of`].
pub(super) fn of_uid(uid: u64) -> *mut rdma_cm_id {
    ptr::with_exposed_provenance_mut(uid as usize)
}

/// Makes an id without a number; it lives until [`free`].
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
/// - `id` is live, and nobody uses it afterwards.
unsafe fn free(id: *mut rdma_cm_id) {
    // SAFETY: the caller guarantees that `id` is live, and that nobody uses it afterwards. The path
    // record is null, or was boxed by `resolve`.
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

/// Creates an id. If `channel` is null, the id is synchronous and gets a private channel.
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
    // SAFETY: the caller guarantees that a given channel is live; a new one is.
    let on = unsafe { channel_of(channel) };
    let id = make(&on.manager, channel, context, ps, qp_type);
    // SAFETY: `make` returned a live id.
    let state = unsafe { id_of(id) };
    state.settings().is_synchronous = is_synchronous;
    match on.manager.create(&on.channel, uid_of(id), space, qp_type) {
        Ok(number) => {
            state.number.store(number.0, Relaxed);
            Ok(id)
        }
        Err(error) => {
            // SAFETY: no other thread knows the id.
            unsafe { free(id) };
            Err(error)
        }
    }
}

/// Makes the id of a connection request, with the listener's channel, context and type. If this
/// fails, it rejects the request.
///
/// # Safety
///
/// - `listener` is live.
pub(super) unsafe fn create_for_request(
    listener: *mut rdma_cm_id,
    request: IdNumber,
) -> Result<*mut rdma_cm_id, c_int> {
    // SAFETY: the caller guarantees that `listener` is live.
    let (like, c) = unsafe { (id_of(listener), &raw const *listener) };
    // SAFETY: the caller guarantees that `listener` is live; these fields do not change while it
    // listens.
    let id = unsafe { make(&like.manager, (*c).channel, (*c).context, (*c).ps, (*c).qp_type) };
    // SAFETY: `make` returned a live id.
    let state = unsafe { id_of(id) };
    state.number.store(request.0, Relaxed);
    let own_channel = || -> Result<(), c_int> {
        if like.is_synchronous() {
            // SAFETY: `make` returned a live id, and null is an allowed channel.
            unsafe { migrate(id, ptr::null_mut()) }
        } else {
            Ok(())
        }
    };
    // The kernel half holds back the id's events until the program accepts the request: see `name`.
    match own_channel() {
        Ok(()) => Ok(id),
        Err(error) => {
            let _ = state.manager.destroy(request); // It may be gone already.
            // SAFETY: no other thread knows the id, because it has had no event.
            unsafe { free(id) };
            Err(error)
        }
    }
}

/// Gives the kernel half the id's uid, so that it delivers the id's events. As with the real
/// kernel, the id of a connection request has no uid until the program accepts it. Earlier events
/// of the request show at the accept.
///
/// # Safety
///
/// - `id` is live.
pub(super) unsafe fn name(id: *mut rdma_cm_id) -> Result<(), c_int> {
    // SAFETY: the caller guarantees that `id` is live.
    let state = unsafe { id_of(id) };
    state.manager.set_uid(state.number(), uid_of(id))
}

/// Destroys the id of a connection request that the program has not seen.
///
/// # Safety
///
/// - `id` is live, and nobody uses it afterwards.
pub(super) unsafe fn discard(id: *mut rdma_cm_id) {
    // SAFETY: the caller guarantees that `id` is live, and that nobody uses it afterwards.
    if unsafe { destroy_id(id) } != 0 {
        log::warn!("the id of an unseen connection request could not be destroyed");
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
    // SAFETY: `rdma_create_id` requires that `channel` is live or null, and `id` writable.
    finish(unsafe { create(channel, context, ps, qp_type).map(|made| id.write(made)) })
}

/// `rdma_destroy_id`: returns when all taken events are acknowledged; it drops the events that were
/// not taken.
pub(super) unsafe extern "C" fn destroy_id(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: `rdma_destroy_id` requires a live id, which only the holders of its events still use.
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

/// Moves an id to another channel. If `channel` is null, the id becomes synchronous and gets a
/// private channel.
///
/// # Safety
///
/// - `id` is live, and `channel` live or null.
unsafe fn migrate(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> Result<(), c_int> {
    // SAFETY: the caller guarantees that `id` is live.
    let state = unsafe { id_of(id) };
    let was_synchronous = state.is_synchronous();
    let is_synchronous = channel.is_null();
    if was_synchronous && is_synchronous {
        return Err(libc::EINVAL);
    }
    let to = if is_synchronous { channel::create()? } else { channel };
    // SAFETY: `to` is the caller's live channel, or a new one.
    let taken = match state.manager.migrate(state.number(), unsafe { &channel_of(to).channel }) {
        Ok(taken) => taken,
        Err(error) => {
            if is_synchronous {
                // SAFETY: `channel::create` returned the channel just now, and no other thread
                // knows it.
                unsafe { destroy_event_channel(to) };
            }
            return Err(error);
        }
    };
    // SAFETY: the caller guarantees that `id` is live; a synchronous id is the only user of its
    // channel.
    unsafe {
        if was_synchronous {
            event::acknowledge_held(id);
            destroy_event_channel((*id).channel);
        }
        state.settings().is_synchronous = is_synchronous;
        (*id).channel = to;
    }
    // On return, no event from the old channel is still in use.
    state.acknowledged.wait(taken);
    Ok(())
}

pub(super) unsafe extern "C" fn migrate_id(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> c_int {
    // SAFETY: `rdma_migrate_id` requires that `id` is live, and `channel` live or null.
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
    // SAFETY: `rdma_set_option` requires a live id, and a value of `length` bytes.
    let (state, value) = unsafe {
        let value: &[u8] =
            if length == 0 { &[] } else { std::slice::from_raw_parts(value.cast_const().cast(), length) };
        (id_of(id), value)
    };
    finish(state.manager.set_option(state.number(), level, name, value))
}
