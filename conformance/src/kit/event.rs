//! Asynchronous events.

use std::time::Duration;

use rdma_mummy_sys::types::*;

use super::Device;

/// An event that has to be acknowledged, which its drop does.
pub(crate) struct AsyncEvent {
    raw: ibv_async_event,
    device: Device,
}

// SAFETY: a value with pointers that nobody follows.
unsafe impl Send for AsyncEvent {}

impl Drop for AsyncEvent {
    fn drop(&mut self) {
        // SAFETY: an event that was got, acknowledged once.
        unsafe { (self.device.lib().ibv_ack_async_event)(&raw mut self.raw) };
    }
}

impl AsyncEvent {
    pub(super) fn next(device: &Device, limit: Duration) -> Option<Self> {
        if !readable(device.async_fd(), limit) {
            return None;
        }
        let mut raw = ibv_async_event::default();
        // SAFETY: the context lives, the event is this function's own; one is there, so it does not block.
        let error = unsafe { (device.lib().ibv_get_async_event)(device.raw(), &raw mut raw) };
        assert_eq!(error, 0, "an event was announced");
        Some(Self { raw, device: device.clone() })
    }

    pub(crate) fn kind(&self) -> ibv_event_type {
        self.raw.event_type
    }

    /// The address of the object that it is about.
    pub(crate) fn element(&self) -> usize {
        // SAFETY: whatever the union holds, a pointer is as long as its longest field.
        unsafe { self.raw.element.cq.addr() }
    }
}

/// Whether the descriptor becomes readable in time.
pub(super) fn readable(fd: i32, limit: Duration) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one descriptor, of this function's own.
    let count = unsafe { libc::poll(&raw mut poll, 1, limit.as_millis() as i32) };
    count == 1 && poll.revents & libc::POLLIN != 0
}

/// Makes reads of the descriptor fail with `EAGAIN` rather than wait.
pub(super) fn set_nonblocking(fd: i32) {
    // SAFETY: the flags of a descriptor that the caller's object keeps open.
    let done = unsafe { libc::fcntl(fd, libc::F_SETFL, libc::fcntl(fd, libc::F_GETFL) | libc::O_NONBLOCK) };
    assert_eq!(done, 0, "the descriptor's flags");
}

impl Device {
    /// Asks for an event without waiting: the error number where there is none.
    pub(crate) fn event_now(&self) -> Result<AsyncEvent, i32> {
        set_nonblocking(self.async_fd());
        let mut raw = ibv_async_event::default();
        // SAFETY: the context lives, the event is this function's own.
        if unsafe { (self.lib().ibv_get_async_event)(self.raw(), &raw mut raw) } != 0 {
            return Err(super::handle::errno());
        }
        Ok(AsyncEvent { raw, device: self.clone() })
    }
}
