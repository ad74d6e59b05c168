//! A fake librdmacm: identifiers of one process connect to each other by port.
//!
//! It is as strict as the strictest release of the C library. An event is acknowledged once, and
//! not read afterwards. An identifier is destroyed only after its events are acknowledged. The
//! device is closed as soon as neither an identifier nor a list refers to it. If some release
//! dereferences a pointer without a check, a null pointer there is a violation.

mod connections;
mod events;
mod ids;
mod multicast;
mod names;

use std::collections::{HashMap, VecDeque};
use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use libc::{sockaddr, sockaddr_storage};
use sideway::sys::RdmaCm;
use sideway::sys::types::*;

use self::connections::*;
use self::events::*;
use self::ids::*;
use self::multicast::*;
use self::names::*;
use super::{FakeWorld, set_errno, world};

/// `RDMA_CM_EVENT_*`, by their usual names.
pub use sideway::sys::types::rdma_cm_event_type as E;

/// The state of the connection manager.
#[derive(Debug, Default)]
pub struct Cm {
    state: Mutex<State>,
    changed: Condvar,
    /// The errno with which the next function of an identifier fails.
    pub fails_next: AtomicI32,
    /// The number of calls that accessed an identifier.
    pub calls: AtomicU64,
    /// The number of calls of `rdma_disconnect`.
    pub disconnects: AtomicU64,
    /// The options that were set: levels, names and values.
    pub options: Mutex<Vec<(i32, i32, Vec<u8>)>>,
    /// The addresses that were passed: their first 32 bytes.
    pub addresses: Mutex<Vec<[u8; 32]>>,
    /// The parameters of `rdma_connect` and `rdma_accept`, and their private data.
    pub parameters: Mutex<Vec<(rdma_conn_param_values, Vec<u8>)>>,
}

/// All fields of `rdma_conn_param` except the pointer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(non_camel_case_types)]
pub struct rdma_conn_param_values {
    pub qp_num: u32,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub flow_control: u8,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    pub srq: u8,
}

#[derive(Debug, Default)]
struct State {
    channels: HashMap<usize, ChannelState>,
    ids: HashMap<usize, IdState>,
    memberships: u64,
    /// The identifier of each unacknowledged event.
    events: HashMap<usize, usize>,
    /// The device's context, and its number of references.
    context: Option<(usize, usize)>,
}

#[derive(Debug, Default)]
struct ChannelState {
    queue: VecDeque<Pending>,
    /// Whether a thread runs a function for the channel or one of its identifiers.
    busy: bool,
}

#[derive(Debug, Default)]
struct IdState {
    reported: u32,
    completed: u32,
    has_device: bool,
    port: u16,
    listens: bool,
    requested: bool,
    /// Whether its peer is gone. Then the kernel accepts `rdma_disconnect`, but sends no event.
    parted: bool,
    peer: Option<usize>,
    /// The multicast groups, with the number of each membership.
    groups: Vec<([u8; 8], u64)>,
}

/// A pending event.
#[derive(Clone, Debug, Default)]
pub struct Pending {
    id: usize,
    pub kind: u32,
    pub status: i32,
    pub data: Vec<u8>,
    /// The event has a length, but no data.
    pub null_data: bool,
    pub values: rdma_conn_param_values,
    pub qkey: u32,
    pub argument: Option<u64>,
    /// The membership that it points to.
    membership: Option<u64>,
    from: Option<usize>,
}

#[repr(C)]
struct Channel {
    c: rdma_event_channel,
    world: Arc<FakeWorld>,
}

#[repr(C)]
struct Id {
    c: rdma_cm_id,
    world: Arc<FakeWorld>,
}

#[repr(C)]
struct Event {
    c: rdma_cm_event,
    data: [u8; 256],
    world: Arc<FakeWorld>,
}

impl Cm {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether librdmacm opened this context.
    pub(super) fn owns(&self, context: *mut ibv_context) -> bool {
        self.state().context.is_some_and(|(owned, _)| owned == context.addr())
    }

    /// The numbers of channels, identifiers, events and references to the device.
    pub fn live(&self) -> [usize; 4] {
        let state = self.state();
        [
            state.channels.len(),
            state.ids.len(),
            state.events.len(),
            state.context.map_or(0, |(_, count)| count),
        ]
    }

    /// The number of groups that an identifier is in.
    pub fn groups(&self, id: *mut rdma_cm_id) -> usize {
        self.state().ids[&id.addr()].groups.len()
    }

    /// Queues an event of an identifier.
    pub fn push(&self, id: *mut rdma_cm_id, kind: E, about: impl FnOnce(&mut Pending)) {
        let mut event = Pending { id: id.addr(), kind: kind.0, ..Pending::default() };
        about(&mut event);
        self.state().push(event);
    }

    /// Queues an event of the last multicast group that an identifier has joined.
    pub fn push_to_group(&self, id: *mut rdma_cm_id, kind: E) {
        let membership = self.state().ids[&id.addr()].groups.last().map(|(_, membership)| *membership);
        self.push(id, kind, |event| (event.membership, event.argument) = (membership, Some(0)));
    }

    /// Queues a connection request to a listening identifier.
    pub fn push_request(&self, listener: *mut rdma_cm_id, data: &[u8]) {
        self.push(listener, E::RDMA_CM_EVENT_CONNECT_REQUEST, |event| event.data = data.to_vec());
    }
}

fn to_pointer<T>(address: usize) -> *mut T {
    ptr::with_exposed_provenance_mut(address)
}

impl State {
    fn push(&mut self, event: Pending) {
        let id: *mut Id = to_pointer(event.id);
        if !self.ids.contains_key(&event.id) {
            return;
        }
        // SAFETY: the test passes a live identifier, whose channel is alive too.
        let channel: *mut Channel = unsafe { (&raw const (*id).c.channel).read() }.cast();
        if let Some(state) = self.channels.get_mut(&channel.addr()) {
            state.queue.push_back(event);
            // SAFETY: the caller passes a live channel, as C requires.
            ring(unsafe { (*channel).c.fd });
        }
    }

    fn tell(&mut self, id: Option<usize>, kind: E, status: i32, data: &[u8], values: rdma_conn_param_values) {
        if let Some(id) = id {
            let data = data.to_vec();
            self.push(Pending {
                id,
                kind: kind.0,
                status,
                data,
                values,
                qkey: 0x0123_4567,
                ..Pending::default()
            });
        }
    }

    /// Adds a reference to the device, and opens it for the first one.
    fn take_device(&mut self) -> *mut ibv_context {
        // SAFETY: the fake accepts any device pointer.
        let made = || (unsafe { super::device::open_device(ptr::null_mut()) }.expose_provenance(), 0);
        let (context, count) = self.context.get_or_insert_with(made);
        *count += 1;
        to_pointer(*context)
    }

    /// Removes a reference to the device. Returns the context to close after the last one.
    fn put_device(&mut self) -> Option<usize> {
        let (context, count) = self.context.as_mut()?;
        *count -= 1;
        let gone = (*count == 0).then_some(*context);
        if gone.is_some() {
            self.context = None;
        }
        gone
    }

    fn with_device(&mut self, id: *mut Id) {
        let address = id.addr();
        // SAFETY: the caller passes a live identifier, as C requires.
        let world = unsafe { Arc::clone(&(*id).world) };
        if world.lies.cm_no_guid || self.ids[&address].has_device {
            return;
        }
        let context = self.take_device();
        self.ids.get_mut(&address).unwrap().has_device = true;
        // SAFETY: the identifier is alive, and `begin` excludes other calls for it.
        unsafe {
            (*id).c.verbs = context;
            (*id).c.port_num = 1;
            (*id).c.route.addr.addr.ibaddr.sgid.raw = [7; 16];
            (*id).c.route.addr.addr.ibaddr.pkey = 0xffff;
        }
    }
}

/// Closes the context that `put_device` returned.
fn close(context: Option<usize>) {
    if let Some(context) = context {
        // SAFETY: nothing refers to the context any more, so it is closed once.
        unsafe { super::device::close_device(to_pointer(context)) };
    }
}

/// A guard that records that a thread runs a function.
struct Inside(Arc<FakeWorld>, usize);

impl Inside {
    fn enter(world: &Arc<FakeWorld>, channel: *mut rdma_event_channel) -> Self {
        // Functions without an argument use the same world in this thread.
        super::WORLD.set(Arc::clone(world));
        let mut state = world.cm.state();
        match state.channels.get_mut(&channel.addr()) {
            None => world.violation("a function of a channel that is gone"),
            Some(channel) => {
                world.check(!channel.busy, "two threads are in librdmacm for one channel");
                channel.busy = true;
            }
        }
        Self(Arc::clone(world), channel.addr())
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        if let Some(channel) = self.0.cm.state().channels.get_mut(&self.1) {
            channel.busy = false;
        }
    }
}

fn fail(error: c_int) -> c_int {
    set_errno(error);
    -1
}

/// Starts a function of an identifier.
///
/// # Safety
///
/// The identifier must be alive.
unsafe fn begin(id: *mut rdma_cm_id) -> (*mut Id, Arc<FakeWorld>, Inside, c_int) {
    let id: *mut Id = id.cast();
    // SAFETY: the caller passes a live identifier, as C requires.
    let (world, channel) = unsafe { (Arc::clone(&(*id).world), (*id).c.channel) };
    world.check(world.cm.state().ids.contains_key(&id.addr()), "a function of an identifier that is gone");
    world.cm.calls.fetch_add(1, Relaxed);
    let inside = Inside::enter(&world, channel);
    // Gives other threads a chance to enter, if nothing excludes them.
    std::thread::yield_now();
    let error = match world.cm.fails_next.swap(0, Relaxed) {
        0 => world.lies.cm,
        error => error,
    };
    (id, world, inside, error)
}

/// # Safety
///
/// The address must be valid as in C.
unsafe fn note_address(world: &FakeWorld, address: *const sockaddr) -> [u8; 32] {
    // SAFETY: the shortest address has 16 bytes; others are read up to the length of their family.
    let bytes = unsafe {
        let mut bytes = [0; 32];
        let family = (*address).sa_family;
        let length = if i32::from(family) == libc::AF_INET { 16 } else { 28 };
        address.cast::<u8>().copy_to_nonoverlapping(bytes.as_mut_ptr(), length);
        bytes
    };
    world.cm.addresses.lock().unwrap().push(bytes);
    bytes
}

fn port_of(address: &[u8; 32]) -> u16 {
    u16::from_be_bytes([address[2], address[3]])
}

/// A descriptor that is readable while events are pending, except under Miri, which does not wait
/// for descriptors.
fn new_descriptor() -> c_int {
    if cfg!(miri) {
        let mut ends = [-1; 2];
        // SAFETY: the array has room for two descriptors, of which one is closed at once.
        unsafe {
            libc::pipe(ends.as_mut_ptr());
            libc::close(ends[1]);
        }
        return ends[0];
    }
    // SAFETY: the call has no preconditions.
    unsafe { libc::eventfd(0, libc::EFD_SEMAPHORE) }
}

fn ring(fd: c_int) {
    if !cfg!(miri) {
        // SAFETY: the call has no preconditions.
        unsafe { libc::eventfd_write(fd, 1) };
    }
}

fn unring(fd: c_int) {
    let mut count = 0;
    if !cfg!(miri) {
        // SAFETY: the caller passes a valid pointer, as C requires.
        unsafe { libc::eventfd_read(fd, &raw mut count) };
    }
}

pub(super) fn table() -> RdmaCm {
    RdmaCm {
        rdma_create_event_channel: create_event_channel,
        rdma_destroy_event_channel: destroy_event_channel,
        rdma_create_id: create_id,
        rdma_destroy_id: destroy_id,
        rdma_get_cm_event: get_cm_event,
        rdma_ack_cm_event: ack_cm_event,
        rdma_bind_addr: bind_addr,
        rdma_resolve_addr: resolve_addr,
        rdma_resolve_route: resolve_route,
        rdma_listen: listen,
        rdma_connect: connect,
        rdma_accept: accept,
        rdma_establish: Some(establish),
        rdma_reject: reject,
        rdma_reject_ece: Some(reject),
        rdma_disconnect: disconnect,
        rdma_notify: notify,
        rdma_set_option: set_option,
        rdma_migrate_id: migrate_id,
        rdma_join_multicast_ex: join_multicast_ex,
        rdma_leave_multicast: leave_multicast,
        rdma_init_qp_attr: Some(init_qp_attr),
        rdma_set_local_ece: Some(ece),
        rdma_get_remote_ece: Some(ece),
        rdma_write_cm_event: Some(write_cm_event),
        rdma_resolve_addrinfo: Some(resolve_addrinfo),
        rdma_query_addrinfo: Some(query_addrinfo),
        rdma_getaddrinfo: getaddrinfo,
        rdma_freeaddrinfo: freeaddrinfo,
        rdma_get_devices: get_devices,
        rdma_free_devices: free_devices,
        ..RdmaCm::unsupported()
    }
}

/// The table without functions that are newer than the first releases.
pub(super) fn old_table() -> RdmaCm {
    RdmaCm {
        rdma_establish: None,
        rdma_reject_ece: None,
        rdma_init_qp_attr: None,
        rdma_set_local_ece: None,
        rdma_get_remote_ece: None,
        rdma_write_cm_event: None,
        rdma_resolve_addrinfo: None,
        rdma_query_addrinfo: None,
        ..table()
    }
}
