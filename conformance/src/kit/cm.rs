//! The connection manager (librdmacm), safe to use in a case.
//!
//! # Safety
//!
//! The rules of the kit as a whole hold here too. In addition:
//!
//! - An identifier, a channel, an event and a list of addresses are each destroyed once, by their
//!   owners here. Objects that belong to an identifier (its context, its queue pair) hold a counted
//!   reference to it, and the identifier holds one to its channel.
//! - Data that an event points to is copied before the event is acknowledged.
//! - librdmacm dereferences some pointers without a null check. Each function here that could lead
//!   to such a null pointer asserts the precondition of the manual page.

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

/// The connection manager of one provider.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cm {
    lib: &'static RdmaCm,
    provider: Provider,
}

/// Converts the usual return value (0, or -1 with `errno`) to a result.
fn check(result: c_int) -> Result<(), i32> {
    if result == 0 { Ok(()) } else { Err(errno()) }
}

/// Like [`check`], as the error number that [`RawHandle::end`] expects: 0 for success.
fn number(result: c_int) -> i32 {
    check(result).err().unwrap_or_default()
}

impl Cm {
    /// The provider's connection manager; the error says why it has none.
    pub(crate) fn of(provider: Provider) -> Result<Self, String> {
        let lib = provider.rdmacm().map_err(|error| error.to_string())?;
        Ok(Self { lib, provider })
    }

    /// Whether the library supports events written by programs and asynchronous name resolution
    /// (rdma-core 60).
    pub(crate) fn has_names(self) -> bool {
        self.lib.rdma_write_cm_event().is_ok()
            && self.lib.rdma_resolve_addrinfo().is_ok()
            && self.lib.rdma_query_addrinfo().is_ok()
    }

    /// Creates an event channel.
    pub(crate) fn channel(self) -> Result<CmChannel, i32> {
        // SAFETY: the function takes no argument.
        let raw = unsafe { (self.lib.rdma_create_event_channel)() };
        Ok(CmChannel(Arc::new(ChannelInner { raw: RawHandle::new("an event channel", raw)?, cm: self })))
    }

    /// The result of acknowledging a null pointer.
    pub(crate) fn acknowledge_nothing(self) -> Result<(), i32> {
        // SAFETY: librdmacm checks for null first and returns an error.
        check(unsafe { (self.lib.rdma_ack_cm_event)(std::ptr::null_mut()) })
    }

    /// The library's name for an event.
    pub(crate) fn event_name(self, kind: Kind) -> String {
        // SAFETY: any number is a valid argument. The result is a string that lives as long as the
        // library.
        unsafe { CStr::from_ptr((self.lib.rdma_event_str)(kind)) }.to_str().unwrap().to_owned()
    }

    /// The names of the devices that the connection manager has opened.
    pub(crate) fn devices(self) -> Result<Vec<String>, i32> {
        let mut count = -1;
        // SAFETY: the count is a local variable.
        let list = unsafe { (self.lib.rdma_get_devices)(&raw mut count) };
        if list.is_null() {
            return Err(errno());
        }
        assert!(count >= 0, "the number of devices is {count}");
        // SAFETY: the library returns the length of its array, which has one more entry: a null
        // pointer.
        let array = unsafe { std::slice::from_raw_parts(list, count as usize + 1) };
        assert!(array[count as usize].is_null(), "a null pointer ends the list");
        let name = |context: &*mut ibv_context| {
            // SAFETY: the contexts are in a list that has not been freed yet; the name lives as
            // long as the device.
            unsafe { CStr::from_ptr((self.provider.verbs().ibv_get_device_name)((**context).device)) }
                .to_str()
                .unwrap()
                .to_owned()
        };
        let names = array[..count as usize].iter().map(name).collect();
        // SAFETY: the list came from `rdma_get_devices`, is freed once, and is not used afterwards.
        unsafe { (self.lib.rdma_free_devices)(list) };
        Ok(names)
    }
}

/// An event channel.
#[derive(Clone, Debug)]
pub(crate) struct CmChannel(Arc<ChannelInner>);

#[derive(Debug)]
struct ChannelInner {
    raw: RawHandle<rdma_event_channel>,
    cm: Cm,
}

impl Drop for ChannelInner {
    fn drop(&mut self) {
        // SAFETY: `RawHandle` checks that the channel lives. No identifier of it does, because each
        // holds a reference to it.
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

    /// The descriptor that becomes readable when an event is pending.
    pub(crate) fn fd(&self) -> i32 {
        // SAFETY: `RawHandle` checks that the channel lives. It has this field in every release.
        unsafe { (*self.raw()).fd }
    }

    /// Makes [`take`](Self::take) fail with `EAGAIN` instead of waiting.
    pub(crate) fn set_nonblocking(&self) {
        set_nonblocking(self.fd());
    }

    /// Whether an event arrives within the limit.
    pub(crate) fn is_ready(&self, limit: Duration) -> bool {
        readable(self.fd(), limit)
    }

    /// Whether no event is pending.
    pub(crate) fn is_quiet(&self) -> bool {
        !self.is_ready(Duration::ZERO)
    }

    /// Takes an event; waits for one unless the descriptor is non-blocking.
    pub(crate) fn take(&self) -> Result<CmEvent, i32> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: `RawHandle` checks that the channel lives, the result is a local variable.
        check(unsafe { (self.0.cm.lib.rdma_get_cm_event)(self.raw(), &raw mut raw) })?;
        Ok(CmEvent::new(self, raw))
    }

    /// The next event, which must arrive within the default limit.
    pub(crate) fn event(&self) -> CmEvent {
        self.event_within(WAIT_LIMIT)
    }

    /// The next event, which must arrive within this limit.
    pub(crate) fn event_within(&self, limit: Duration) -> CmEvent {
        assert!(self.is_ready(limit), "no event comes");
        self.take()
            .unwrap_or_else(|error| panic!("an event is pending, but taking it fails with error {error}"))
    }

    /// The next event, which must be of this kind; it is acknowledged.
    pub(crate) fn expect(&self, kind: Kind) -> EventCopy {
        self.expect_within(WAIT_LIMIT, kind)
    }

    /// Like [`expect`](Self::expect), with a longer limit.
    pub(crate) fn expect_within(&self, limit: Duration, kind: Kind) -> EventCopy {
        let seen = self.event_within(limit).copy_and_ack();
        assert_eq!(seen.kind, kind, "{} rather than {}: {seen:?}", seen.name, self.0.cm.event_name(kind));
        seen
    }

    /// Like [`expect`](Self::expect); the event's status must be 0.
    pub(crate) fn expect_good(&self, kind: Kind) -> EventCopy {
        let seen = self.expect(kind);
        assert_eq!(seen.status, 0, "{seen:?}");
        seen
    }
}
