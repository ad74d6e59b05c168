//! Verbs of completion channels and their events.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use rdma_mummy_sys::types::*;

use super::completion_queue::cq_of;
use super::context::context_of;
use super::{admit, failure, minus_one, null, number};
use crate::objects::c_object::CObject;
use crate::objects::channel::CompletionChannel;
use crate::objects::use_ref::CountsUses;
use crate::platform::errno;

type ChannelObject = CObject<ibv_comp_channel, Arc<CompletionChannel>>;

/// The channel of a pointer.
///
/// # Safety
///
/// - `channel` is live while the reference is used.
pub(crate) unsafe fn channel_of<'a>(channel: *mut ibv_comp_channel) -> &'a Arc<CompletionChannel> {
    // SAFETY: every channel of this crate is a `ChannelObject`, and the caller guarantees that it
    // is live.
    unsafe { ChannelObject::state(channel) }
}

pub(super) unsafe extern "C" fn create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    // SAFETY: `ibv_create_comp_channel` requires an open context.
    let state = unsafe { context_of(context) };
    admit!(state, CreateCompChannel, null);
    if let Err(error) = state.check_process() {
        return null(error);
    }
    match CompletionChannel::create(&state) {
        Ok(channel) => {
            let c = ibv_comp_channel { context, fd: channel.descriptor(), refcnt: 0 };
            ChannelObject::create(c, channel)
        }
        Err(error) => null(errno::refused("ibv_create_comp_channel", &error)),
    }
}

pub(super) unsafe extern "C" fn destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    // SAFETY: `ibv_destroy_comp_channel` requires a live channel.
    let state = unsafe { channel_of(channel) };
    admit!(state.context(), DestroyCompChannel, failure);
    if state.users().is_used() {
        return number(Err(libc::EBUSY));
    }
    // SAFETY: `create` of the same type made the object, and `ibv_destroy_comp_channel` forbids any
    // later use.
    drop(unsafe { ChannelObject::destroy(channel) });
    0
}

pub(super) unsafe extern "C" fn get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    // SAFETY: `ibv_get_cq_event` requires a live channel.
    let state = unsafe { channel_of(channel) };
    if let Err(error) = state.context().check_process() {
        return minus_one(error);
    }
    match state.take() {
        Ok(handle) => {
            // SAFETY: `ibv_get_cq_event` requires valid result pointers. The queue lives until the
            // event is acknowledged.
            unsafe {
                cq.write(handle.as_ptr());
                cq_context.write((&raw const (*handle.as_ptr()).cq_context).read());
            }
            0
        }
        Err(error) => minus_one(errno::of(&error)),
    }
}

pub(super) unsafe extern "C" fn ack_cq_events(cq: *mut ibv_cq, events: c_uint) {
    if events != 0 {
        // SAFETY: the queue lives until its events are acknowledged, which `ibv_ack_cq_events` does
        // only now.
        unsafe { cq_of(cq) }.acks().acknowledge(events);
    }
}
