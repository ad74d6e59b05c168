//! Asynchronous events.

use std::time::Duration;

use rdma_mummy_sys::types::*;

use super::Device;

/// An asynchronous event, acknowledged when it is dropped.
pub(crate) struct AsyncEvent {
    raw: ibv_async_event,
    device: Device,
}

// SAFETY: the event is a plain value, and no thread dereferences its pointers.
unsafe impl Send for AsyncEvent {}

impl Drop for AsyncEvent {
    fn drop(&mut self) {
        // SAFETY: `next` or `event_now` took the event from the library, and nothing but this drop
        // acknowledges it.
        unsafe { (self.device.lib().ibv_ack_async_event)(&raw mut self.raw) };
    }
}

impl AsyncEvent {
    pub(super) fn next(device: &Device, limit: Duration) -> Option<Self> {
        if !readable(device.async_fd(), limit) {
            return None;
        }
        let mut raw = ibv_async_event::default();
        // SAFETY: `RawHandle` checks that the context lives; the event is a local variable. The
        // descriptor is readable (checked above), so that the call does not block.
        let error = unsafe { (device.lib().ibv_get_async_event)(device.raw(), &raw mut raw) };
        assert_eq!(error, 0, "an event was announced");
        Some(Self { raw, device: device.clone() })
    }

    pub(crate) fn kind(&self) -> ibv_event_type {
        self.raw.event_type
    }

    /// The address of the object that the event concerns.
    pub(crate) fn element(&self) -> usize {
        // SAFETY: the longest field of the union is a pointer, so that these bytes are initialized.
        unsafe { self.raw.element.cq.addr() }
    }
}

/// Whether the descriptor becomes readable within the limit.
pub(super) fn readable(fd: i32, limit: Duration) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: the array has one entry, a local variable.
    let count = unsafe { libc::poll(&raw mut poll, 1, limit.as_millis() as i32) };
    count == 1 && poll.revents & libc::POLLIN != 0
}

/// Makes reads of the descriptor fail with `EAGAIN` instead of waiting.
pub(super) fn set_nonblocking(fd: i32) {
    // SAFETY: the call accesses no memory; the caller's object keeps the descriptor open.
    let done = unsafe { libc::fcntl(fd, libc::F_SETFL, libc::fcntl(fd, libc::F_GETFL) | libc::O_NONBLOCK) };
    assert_eq!(done, 0, "the descriptor's flags");
}

impl Device {
    /// Takes an event without waiting, or returns the error number.
    pub(crate) fn event_now(&self) -> Result<AsyncEvent, i32> {
        set_nonblocking(self.async_fd());
        let mut raw = ibv_async_event::default();
        // SAFETY: `RawHandle` checks that the context lives, the event is a local variable.
        if unsafe { (self.lib().ibv_get_async_event)(self.raw(), &raw mut raw) } != 0 {
            return Err(super::handle::errno());
        }
        Ok(AsyncEvent { raw, device: self.clone() })
    }
}
