//! Completion channels, asynchronous events and the device's clock.

use std::collections::VecDeque;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, OnceLock};

use sideway::sys::types::*;

use super::completion::Cq;
use super::device::world_of;
use super::{FakeWorld, refuses, set_errno};

/// -1, with this `errno`.
fn refuse(error: c_int) -> c_int {
    set_errno(error);
    -1
}

/// One for all contexts; it is never readable.
pub(super) fn async_fd() -> c_int {
    static FD: OnceLock<c_int> = OnceLock::new();
    // SAFETY: makes a descriptor.
    *FD.get_or_init(|| unsafe { libc::eventfd(0, 0) })
}

#[repr(C)]
struct Channel {
    c: ibv_comp_channel,
    world: Arc<FakeWorld>,
    fired: Mutex<VecDeque<usize>>,
}

pub(super) unsafe extern "C" fn create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    // SAFETY: the context is open.
    let world = unsafe { world_of(context) };
    if let Some(null) = refuses(world.lies.create_comp_channel) {
        return null;
    }
    world.born();
    // SAFETY: makes a descriptor.
    let fd = world.lies.channel_fd.unwrap_or_else(|| unsafe { libc::eventfd(0, libc::EFD_SEMAPHORE) });
    let c = ibv_comp_channel { context, fd, refcnt: 0 };
    Box::into_raw(Box::new(Channel { c, world, fired: Mutex::default() })).cast()
}

pub(super) unsafe extern "C" fn destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    let channel: *mut Channel = channel.cast();
    // SAFETY: the channel lives.
    let (world, users, fd) = unsafe { (Arc::clone(&(*channel).world), (*channel).c.refcnt, (*channel).c.fd) };
    world.check(users == 0, "a completion channel was destroyed before its queues");
    if !world.dies("channel") {
        return world.lies.destroy;
    }
    // SAFETY: nothing uses the channel any more; the descriptor is its own, or none.
    unsafe {
        drop(Box::from_raw(channel));
        libc::close(fd);
    }
    0
}

/// A queue is made with a channel, or goes.
pub(super) unsafe fn use_channel(channel: *mut ibv_comp_channel, by: c_int) {
    if !channel.is_null() {
        // SAFETY: the caller's channel lives.
        unsafe { (*channel).refcnt += by };
    }
}

/// Fires at once, as if a completion had come.
pub(super) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, _: c_int) -> c_int {
    // SAFETY: the queue lives, and its channel.
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
    // SAFETY: the channel lives, and the queue of an event; the places are valid.
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
    // SAFETY: the queue lives.
    let (world, mut state) = unsafe { Cq::of(cq) };
    world.acknowledgements.fetch_add(1, Relaxed);
    world.check(events <= state.unacknowledged, "more events are acknowledged than there were");
    state.unacknowledged = state.unacknowledged.saturating_sub(events);
}

pub(super) unsafe extern "C" fn resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    // SAFETY: the queue lives.
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
    // SAFETY: the queue lives, and the attributes are valid.
    unsafe {
        let world = Cq::of(cq).0;
        let moderate = (*attr).moderate;
        world.moderation.store(u64::from(moderate.cq_count) << 16 | u64::from(moderate.cq_period), Relaxed);
        world.lies.modify_cq
    }
}

/// Events about objects that live as long as the world.
pub(super) unsafe extern "C" fn get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    // SAFETY: the context is open.
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
    // SAFETY: the place is valid.
    unsafe { event.write(ibv_async_event { element, event_type: ibv_event_type(event_type) }) };
    0
}

pub(super) unsafe extern "C" fn ack_async_event(event: *mut ibv_async_event) {
    // SAFETY: the event is valid; whatever the union holds, a pointer is as long as its longest field.
    let address = unsafe { (*event).element.cq.addr() };
    super::world().async_acknowledged.lock().unwrap().push(address);
}

/// The ticks of `Faults::clock`.
pub(super) unsafe extern "C" fn query_rt_values(
    context: *mut ibv_context,
    values: *mut ibv_values_ex,
) -> c_int {
    // SAFETY: the context is open, and the values are valid.
    unsafe {
        let world = world_of(context);
        match world.lies.clock {
            Some([_, _, ticks]) => (*values).raw_clock.tv_nsec = ticks.cast_signed(),
            None => (*values).comp_mask = 0,
        }
        world.lies.query_rt_values
    }
}
