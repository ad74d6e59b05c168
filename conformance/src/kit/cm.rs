//! The connection manager (librdmacm), safe to use in a case.
//!
//! # Safety
//!
//! As of the kit as a whole, and:
//!
//! - An identifier, a channel, an event and a list of addresses are ended once, by their owners here. Whatever belongs to an
//!   identifier (its context, its queue pair) holds a counted reference to it, and it to its channel.
//! - What an event points to is copied before the event is acknowledged.
//! - librdmacm follows some null pointers that a caller may not know to be null: each function here that could lead to one
//!   asserts what the manual page asks for.

mod address;
mod connect;
mod event;
mod id;
mod info;
mod objects;

use std::ffi::{CStr, c_int};
use std::sync::Arc;
use std::time::Duration;

use rdma_mummy_sys::types::*;
use rdma_mummy_sys::{Provider, RdmaCm};

use super::WAIT_LIMIT;
use super::event::{readable, set_nonblocking};
use super::handle::{RawHandle, errno};
use event::CmEvent;

pub(crate) use connect::{CmDevice, ConnectRequest, ConnectedPair, IdWithChannel};
pub(crate) use event::EventCopy;
pub(crate) use id::{CmId, Param};
pub(crate) use info::{Hints, Info};
pub(crate) use rdma_mummy_sys::types::rdma_cm_event_type as Kind;
pub(crate) use rdma_mummy_sys::types::rdma_port_space as Space;

/// A library with a connection manager.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cm {
    lib: &'static RdmaCm,
    provider: Provider,
}

/// What most functions return: 0, or -1 and an error number.
fn check(result: c_int) -> Result<(), i32> {
    if result == 0 { Ok(()) } else { Err(errno()) }
}

/// The same for [`RawHandle::end`].
fn number(result: c_int) -> i32 {
    check(result).err().unwrap_or_default()
}

impl Cm {
    /// The provider's connection manager, or why there is none.
    pub(crate) fn of(provider: Provider) -> Result<Self, String> {
        let lib = provider.rdmacm().map_err(|error| error.to_string())?;
        Ok(Self { lib, provider })
    }

    /// Whether it has events of programs' own, and looks for names in the background (rdma-core 60).
    pub(crate) fn has_names(self) -> bool {
        self.lib.rdma_write_cm_event().is_ok()
            && self.lib.rdma_resolve_addrinfo().is_ok()
            && self.lib.rdma_query_addrinfo().is_ok()
    }

    /// A channel for events.
    pub(crate) fn channel(self) -> Result<CmChannel, i32> {
        // SAFETY: no argument.
        let raw = unsafe { (self.lib.rdma_create_event_channel)() };
        Ok(CmChannel(Arc::new(ChannelInner { raw: RawHandle::new("an event channel", raw)?, cm: self })))
    }

    /// What it says to the acknowledgement of a null pointer.
    pub(crate) fn acknowledge_nothing(self) -> Result<(), i32> {
        // SAFETY: librdmacm says itself that null is invalid, and does nothing.
        check(unsafe { (self.lib.rdma_ack_cm_event)(std::ptr::null_mut()) })
    }

    /// What the library calls an event.
    pub(crate) fn event_name(self, kind: Kind) -> String {
        // SAFETY: any number may be asked about; the answer is a string that lives as long as the library.
        unsafe { CStr::from_ptr((self.lib.rdma_event_str)(kind)) }.to_str().unwrap().to_owned()
    }

    /// The names of the devices that it has opened.
    pub(crate) fn devices(self) -> Result<Vec<String>, i32> {
        let mut count = -1;
        // SAFETY: the count is this function's own.
        let list = unsafe { (self.lib.rdma_get_devices)(&raw mut count) };
        if list.is_null() {
            return Err(errno());
        }
        assert!(count >= 0, "the number of devices is {count}");
        // SAFETY: the library says how long its array is, and one more, a null pointer, ends it.
        let array = unsafe { std::slice::from_raw_parts(list, count as usize + 1) };
        assert!(array[count as usize].is_null(), "a null pointer ends the list");
        let name = |context: &*mut ibv_context| {
            // SAFETY: contexts of a list that has not been freed; the name lives as long as the device.
            unsafe { CStr::from_ptr((self.provider.verbs().ibv_get_device_name)((**context).device)) }
                .to_str()
                .unwrap()
                .to_owned()
        };
        let names = array[..count as usize].iter().map(name).collect();
        // SAFETY: the list is freed once, and not used afterwards.
        unsafe { (self.lib.rdma_free_devices)(list) };
        Ok(names)
    }
}

/// Where events come from.
#[derive(Clone, Debug)]
pub(crate) struct CmChannel(Arc<ChannelInner>);

#[derive(Debug)]
struct ChannelInner {
    raw: RawHandle<rdma_event_channel>,
    cm: Cm,
}

impl Drop for ChannelInner {
    fn drop(&mut self) {
        // SAFETY: it lives, and no identifier of it does: those hold a reference to it.
        self.raw.drop(|channel| unsafe {
            (self.cm.lib.rdma_destroy_event_channel)(channel);
            0
        });
    }
}

impl CmChannel {
    fn raw(&self) -> *mut rdma_event_channel {
        self.0.raw.get()
    }

    pub(crate) fn cm(&self) -> Cm {
        self.0.cm
    }

    /// The descriptor that tells of events.
    pub(crate) fn fd(&self) -> i32 {
        // SAFETY: it lives and has this field in every release.
        unsafe { (*self.raw()).fd }
    }

    /// Makes asking for an event fail with `EAGAIN` rather than wait.
    pub(crate) fn set_nonblocking(&self) {
        set_nonblocking(self.fd());
    }

    /// Whether an event comes in time.
    pub(crate) fn is_ready(&self, limit: Duration) -> bool {
        readable(self.fd(), limit)
    }

    /// Whether no event is there.
    pub(crate) fn is_quiet(&self) -> bool {
        !self.is_ready(Duration::ZERO)
    }

    /// Asks for an event; waits for one unless the descriptor is non-blocking.
    pub(crate) fn take(&self) -> Result<CmEvent, i32> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the channel lives, the result is this function's own.
        check(unsafe { (self.0.cm.lib.rdma_get_cm_event)(self.raw(), &raw mut raw) })?;
        Ok(CmEvent::new(self, raw))
    }

    /// The next event, which must come.
    pub(crate) fn event(&self) -> CmEvent {
        self.event_within(WAIT_LIMIT)
    }

    /// The next event, which must come within this time.
    pub(crate) fn event_within(&self, limit: Duration) -> CmEvent {
        assert!(self.is_ready(limit), "no event comes");
        self.take().unwrap_or_else(|error| panic!("an event was announced, and the answer is error {error}"))
    }

    /// The next event, which must be of this kind; it is acknowledged.
    pub(crate) fn expect(&self, kind: Kind) -> EventCopy {
        self.expect_within(WAIT_LIMIT, kind)
    }

    /// The same, for what takes longer.
    pub(crate) fn expect_within(&self, limit: Duration, kind: Kind) -> EventCopy {
        let seen = self.event_within(limit).copy_and_ack();
        assert_eq!(seen.kind, kind, "{} rather than {}: {seen:?}", seen.name, self.0.cm.event_name(kind));
        seen
    }

    /// The same, for what has not failed.
    pub(crate) fn expect_good(&self, kind: Kind) -> EventCopy {
        let seen = self.expect(kind);
        assert_eq!(seen.status, 0, "{seen:?}");
        seen
    }
}
