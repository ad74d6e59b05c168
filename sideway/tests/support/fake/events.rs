//! Fake completion channels, asynchronous events and clock.

use std::collections::VecDeque;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, OnceLock};

use sideway::sys::types::*;

use super::completion::Cq;
use super::device::world_of;
use super::{FakeWorld, refuses, set_errno};

/// Sets `errno`, and returns -1.
fn refuse(error: c_int) -> c_int {
    set_errno(error);
    -1
}

/// The descriptor of all contexts, which is never readable.
pub(super) fn async_fd() -> c_int {
    static FD: OnceLock<c_int> = OnceLock::new();
    // SAFETY: the call has no preconditions.
    *FD.get_or_init(|| unsafe { libc::eventfd(0, 0) })
}

#[repr(C)]
struct Channel {
    c: ibv_comp_channel,
    world: Arc<FakeWorld>,
    fired: Mutex<VecDeque<usize>>,
}

pub(super) unsafe extern "C" fn create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    // SAFETY: the caller passes an open context, as C requires.
    let world = unsafe { world_of(context) };
    if let Some(null) = refuses(world.lies.create_comp_channel) {
        return null;
    }
    world.born();
    // SAFETY: the call has no preconditions.
    let fd = world.lies.channel_fd.unwrap_or_else(|| unsafe { libc::eventfd(0, libc::EFD_SEMAPHORE) });
    let c = ibv_comp_channel { context, fd, refcnt: 0 };
    Box::into_raw(Box::new(Channel { c, world, fired: Mutex::default() })).cast()
}

pub(super) unsafe extern "C" fn destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    let channel: *mut Channel = channel.cast();
    // SAFETY: the caller passes a live channel, as C requires.
    let (world, users, fd) = unsafe { (Arc::clone(&(*channel).world), (*channel).c.refcnt, (*channel).c.fd) };
    world.check(users == 0, "a completion channel was destroyed before its queues");
    if !world.dies("channel") {
        return world.lies.destroy;
    }
    // SAFETY: the channel was boxed, and its owner destroys it once. The descriptor belongs to it,
    // or is invalid.
    unsafe {
        drop(Box::from_raw(channel));
        libc::close(fd);
    }
    0
}

/// Counts a queue that is made with a channel, or destroyed.
pub(super) unsafe fn use_channel(channel: *mut ibv_comp_channel, by: c_int) {
    if !channel.is_null() {
        // SAFETY: the caller passes a live channel.
        unsafe { (*channel).refcnt += by };
    }
}

/// Sends an event at once, as if a completion had come.
pub(super) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, _: c_int) -> c_int {
    // SAFETY: the caller passes a live queue, which keeps its channel alive.
    unsafe {
        let world = Cq::of(cq).0;
        if world.lies.req_notify_cq != 0 {
            return world.lies.req_notify_cq;
        }
        let channel: *mut Channel = (*cq).channel.cast();
        world.check(!channel.is_null(), "ibv_req_notify_cq of a queue without a channel");
        (*channel).fired.lock().unwrap().push_back(cq.expose_provenance());
        libc::eventfd_write((*channel).c.fd, 1);
    }
    0
}

pub(super) unsafe extern "C" fn get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    // SAFETY: the caller passes a live channel and valid pointers. The queue of an event is alive
    // until it is acknowledged.
    unsafe {
        let channel: *mut Channel = channel.cast();
        let world = Arc::clone(&(*channel).world);
        let lies = &world.lies;
        if lies.get_cq_event != 0 {
            return refuse(lies.get_cq_event);
        }
        let mut count = 0;
        if libc::eventfd_read((*channel).c.fd, &raw mut count) != 0 {
            return -1;
        }
        let next = (*channel).fired.lock().unwrap().pop_front().unwrap();
        let found: *mut ibv_cq = ptr::with_exposed_provenance_mut(next);
        Cq::of(found).1.unacknowledged += 1;
        cq.write(found);
        cq_context.write(lies.event_context.map_or((*found).cq_context, ptr::without_provenance_mut));
    }
    0
}

pub(super) unsafe extern "C" fn ack_cq_events(cq: *mut ibv_cq, events: c_uint) {
    // SAFETY: the caller passes a live queue, as C requires.
    let (world, mut state) = unsafe { Cq::of(cq) };
    world.acknowledgements.fetch_add(1, Relaxed);
    world.check(events <= state.unacknowledged, "more events are acknowledged than there were");
    state.unacknowledged = state.unacknowledged.saturating_sub(events);
}

pub(super) unsafe extern "C" fn resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    // SAFETY: the caller passes a live queue, as C requires.
    unsafe {
        let (world, state) = Cq::of(cq);
        world.check(!state.open, "ibv_resize_cq while a poll is open");
        if world.lies.resize_cq == 0 {
            (*cq).cqe = cqe;
        }
        world.lies.resize_cq
    }
}

pub(super) unsafe extern "C" fn modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int {
    // SAFETY: the caller passes a live queue and valid attributes, as C requires.
    unsafe {
        let world = Cq::of(cq).0;
        let moderate = (*attr).moderate;
        world.moderation.store(u64::from(moderate.cq_count) << 16 | u64::from(moderate.cq_period), Relaxed);
        world.lies.modify_cq
    }
}

/// Returns events about objects that live as long as the world.
pub(super) unsafe extern "C" fn get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    // SAFETY: the caller passes an open context, as C requires.
    let world = unsafe { world_of(context) };
    let Some((event_type, address)) = world.async_events.lock().unwrap().pop_front() else {
        return refuse(if world.lies.get_async_event == 0 {
            libc::EAGAIN
        } else {
            world.lies.get_async_event
        });
    };
    let mut element = ibv_async_event__bindgen_ty_1::default();
    element.cq = ptr::with_exposed_provenance_mut(address);
    // SAFETY: the caller passes a valid pointer, as C requires.
    unsafe { event.write(ibv_async_event { element, event_type: ibv_event_type(event_type) }) };
    0
}

pub(super) unsafe extern "C" fn ack_async_event(event: *mut ibv_async_event) {
    // SAFETY: the caller passes a valid event. A pointer is as long as the union's longest member.
    let address = unsafe { (*event).element.cq.addr() };
    super::world().async_acknowledged.lock().unwrap().push(address);
}

/// The ticks of `Faults::clock`.
pub(super) unsafe extern "C" fn query_rt_values(
    context: *mut ibv_context,
    values: *mut ibv_values_ex,
) -> c_int {
    // SAFETY: the caller passes an open context and valid pointers, as C requires.
    unsafe {
        let world = world_of(context);
        match world.lies.clock {
            Some([_, _, ticks]) => (*values).raw_clock.tv_nsec = ticks.cast_signed(),
            None => (*values).comp_mask = 0,
        }
        world.lies.query_rt_values
    }
}
