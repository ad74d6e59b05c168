//! Flow counters: the number of packets and bytes that match a flow.
//!
//! A [`Counters`] object is an array of numbers. [`attach_point`](Counters::attach_point) defines
//! what an element counts before the object becomes an action of a flow
//! ([`FlowSpec::Count`](super::flow::FlowSpec::Count)).
//! [`attach_point_flow`](Counters::attach_point_flow) does so for a flow that already exists.
//!
//! Only devices that steer flows have counters; mlx5 is the only known one. SoftRoCE and the
//! software device return [`Unsupported`](crate::ibverbs::Unsupported).

use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use rdma_mummy_sys::types::{
    ibv_counter_attach_attr, ibv_counter_description, ibv_counters, ibv_counters_init_attr,
    ibv_read_counters_flags,
};
use rdma_mummy_sys::verbs;

use super::check;
use super::device_context::DeviceContext;
use super::flow::Flow;
use crate::error::Error;

/// The missing feature's name in errors.
const WHAT: &str = "counters";

c_enum! {
    /// The unit that a counter counts in (`ibv_counter_description`).
    pub struct CounterDescription(u32) {
        /// Adds one for each packet (`IBV_COUNTER_PACKETS`).
        Packets = ibv_counter_description::IBV_COUNTER_PACKETS.0,
        /// Adds the length of each packet (`IBV_COUNTER_BYTES`).
        Bytes = ibv_counter_description::IBV_COUNTER_BYTES.0,
    }
}

display_as_debug!(CounterDescription);

c_flags! {
    /// How counters are read (`ibv_read_counters_flags`).
    pub struct ReadCountersFlags(u32) {
        /// The driver may return the values that it read last, if it caches them.
        PreferCached = ibv_read_counters_flags::IBV_READ_COUNTERS_ATTR_PREFER_CACHED.0,
    }
}

/// A set of counters (`ibv_counters`).
///
/// Clones refer to the same set. It is destroyed (`ibv_destroy_counters`) when the last handle and
/// the last flow that counts into it are dropped.
#[derive(Clone)]
pub struct Counters(Arc<Inner>);

struct Inner {
    counters: NonNull<ibv_counters>,
    context: DeviceContext,
}

// SAFETY: libibverbs allows verbs on one set of counters from several threads at a time.
unsafe impl Send for Inner {}
// SAFETY: verbs on one set of counters may be called from any thread, several at a time.
unsafe impl Sync for Inner {}

impl DeviceContext {
    /// Makes a set of counters, which count nothing yet (`ibv_create_counters`).
    ///
    /// # Errors
    ///
    /// Fails if the device does not support them ([`Unsupported`](crate::ibverbs::Unsupported)), or
    /// has no more of them.
    ///
    /// # References
    ///
    /// `man ibv_create_counters`
    pub fn create_counters(&self) -> Result<Counters, Error> {
        let mut attr = ibv_counters_init_attr { comp_mask: 0 };
        // SAFETY: the context is kept open, and the attributes are initialised.
        let counters = unsafe { verbs::ibv_create_counters(self.as_raw().as_ptr(), &raw mut attr) };
        match NonNull::new(counters) {
            Some(counters) => Ok(Counters(Arc::new(Inner { counters, context: self.clone() }))),
            None => Err(Error::of_device(self, "ibv_create_counters", WHAT, io::Error::last_os_error())),
        }
    }
}

const VERB: &str = "ibv_attach_counters_point_flow";

impl Counters {
    /// Makes the counter at `index` count `what`, for all flows that are later created with the set
    /// (`ibv_attach_counters_point_flow` without a flow).
    ///
    /// # Errors
    ///
    /// Fails if the device cannot count this ([`Unsupported`](crate::ibverbs::Unsupported)), if the
    /// index is too high, or if a flow already uses the set.
    ///
    /// # References
    ///
    /// `man ibv_attach_counters_point_flow`
    pub fn attach_point(&self, what: CounterDescription, index: u32) -> Result<(), Error> {
        self.attach(what, index, std::ptr::null_mut())
    }

    /// Makes the counter at `index` count `what`, for a flow that already exists.
    ///
    /// # Errors
    ///
    /// Fails as [`attach_point`](Self::attach_point) does, and if the flow belongs to another
    /// context.
    pub fn attach_point_flow(&self, what: CounterDescription, index: u32, flow: &Flow) -> Result<(), Error> {
        if flow.queue_pair().context() != self.context() {
            return Err(Error::other_context(VERB, "the flow is of another context than the counters"));
        }
        self.attach(what, index, flow.as_raw().as_ptr())
    }

    fn attach(
        &self,
        what: CounterDescription,
        index: u32,
        flow: *mut rdma_mummy_sys::types::ibv_flow,
    ) -> Result<(), Error> {
        let counter_desc = ibv_counter_description(what.raw());
        let mut attr = ibv_counter_attach_attr { counter_desc, index, comp_mask: 0 };
        let counters = self.0.counters.as_ptr();
        // SAFETY: `self` keeps the counters alive and the borrow the flow (or it is null), and the
        // attributes are initialised.
        let result = check(unsafe { verbs::ibv_attach_counters_point_flow(counters, &raw mut attr, flow) });
        result.map_err(|source| {
            Error::of_device(self.context(), VERB, format!("counter of {what}"), source)
                .with("what", what)
                .with("index", index)
        })
    }

    /// Reads the first `values.len()` counters (`ibv_read_counters`).
    ///
    /// # Errors
    ///
    /// Fails if the set counts nothing yet, if it has fewer counters, or if the device does not
    /// answer.
    ///
    /// # References
    ///
    /// `man ibv_read_counters`
    pub fn read(&self, values: &mut [u64], flags: ReadCountersFlags) -> Result<(), Error> {
        let count = values.len();
        let error =
            |source| Error::of_device(self.context(), "ibv_read_counters", WHAT, source).with("count", count);
        let ncounters =
            u32::try_from(count).map_err(|_| error(io::Error::from_raw_os_error(libc::EINVAL)))?;
        let counters = self.0.counters.as_ptr();
        // SAFETY: `self` keeps the counters alive, and `values` has room for `ncounters` values.
        let result =
            unsafe { verbs::ibv_read_counters(counters, values.as_mut_ptr(), ncounters, flags.bits()) };
        check(result).map_err(error)
    }

    /// The device context in which the set was made.
    pub fn context(&self) -> &DeviceContext {
        &self.0.context
    }

    /// The C object, for verbs that this crate does not wrap. Using it is as unsafe as in C; do not
    /// destroy it.
    pub fn as_raw(&self) -> NonNull<ibv_counters> {
        self.0.counters
    }
}

impl PartialEq for Counters {
    /// Whether both refer to the same set.
    fn eq(&self, other: &Self) -> bool {
        self.0.counters == other.0.counters
    }
}

impl Eq for Counters {}

impl fmt::Debug for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counters").field("context", &self.0.context).finish_non_exhaustive()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: the counters are alive until here. Every flow that counts into them held this
        // `Inner` and is gone.
        if let Err(error) = check(unsafe { verbs::ibv_destroy_counters(self.counters.as_ptr()) }) {
            log::error!("ibv_destroy_counters failed: {error}");
            // The library still has the counters, so the context that they depend on must stay
            // alive too.
            std::mem::forget(self.context.clone());
        }
    }
}
