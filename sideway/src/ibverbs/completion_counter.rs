//! Completion counters: the device counts completions instead of writing them (rdma-core 65, EFA).
//!
//! A counter is [attached](CompletionCounter::attach) to queue pairs. It counts requests or bytes
//! of the chosen operations, and counts successes and failures separately. It can be set, so that a
//! program waits for one number for many queue pairs.
//!
//! No device that this crate was run on has completion counters. The table of functions is tested,
//! the counting is not. SoftRoCE and the software device return [`Unsupported`].

use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use rdma_mummy_sys::types::{
    ibv_comp_cntr, ibv_comp_cntr_caps, ibv_comp_cntr_init_attr, ibv_comp_cntr_type,
    ibv_qp_attach_comp_cntr_attr, ibv_qp_attach_comp_cntr_op as Op,
};
use rdma_mummy_sys::{MissingSymbol, verbs};

use super::device_context::DeviceContext;
use super::queue_pair::QueuePairControl;
use super::{Unsupported, check};
use crate::error::Error;

const WHAT: &str = "completion counters";

c_enum! {
    /// The unit that a counter counts in (`ibv_comp_cntr_type`).
    pub struct CompletionCounterType(u32) {
        /// Adds one for each completed request (`IBV_COMP_CNTR_TYPE_WRS`).
        WorkRequests = ibv_comp_cntr_type::IBV_COMP_CNTR_TYPE_WRS.0,
        /// Adds the length of each completed request (`IBV_COMP_CNTR_TYPE_BYTES`).
        Bytes = ibv_comp_cntr_type::IBV_COMP_CNTR_TYPE_BYTES.0,
    }
}

display_as_debug!(CompletionCounterType);

c_flags! {
    /// The operations whose completions are counted (`ibv_qp_attach_comp_cntr_op`).
    pub struct CompletionCounterOperations(u32) {
        /// SENDs of the local side.
        Send = Op::IBV_QP_ATTACH_COMP_CNTR_OP_SEND.0,
        /// Receives.
        Recv = Op::IBV_QP_ATTACH_COMP_CNTR_OP_RECV.0,
        /// RDMA READs of the local side.
        RdmaRead = Op::IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_READ.0,
        /// The peer's RDMA READs.
        RemoteRdmaRead = Op::IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_READ.0,
        /// RDMA WRITEs of the local side.
        RdmaWrite = Op::IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE.0,
        /// The peer's RDMA WRITEs.
        RemoteRdmaWrite = Op::IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE.0,
    }
}

/// A device's support for completion counters (`ibv_comp_cntr_caps`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CompletionCounterCapabilities {
    /// The largest value that a counter can hold.
    pub max_value: u64,
    /// The maximum number of counters.
    pub max_counters: u32,
    /// The operations whose completions the device can count.
    pub supported_operations: CompletionCounterOperations,
}

/// A completion counter (`ibv_comp_cntr`).
///
/// Clones refer to the same counter. It is destroyed (`ibv_destroy_comp_cntr`) when the last handle
/// and the last queue pair that it counts are dropped.
#[derive(Clone)]
pub struct CompletionCounter(Arc<Inner>);

struct Inner {
    counter: NonNull<ibv_comp_cntr>,
    context: DeviceContext,
}

// SAFETY: libibverbs allows verbs on one counter from several threads at a time.
unsafe impl Send for Inner {}
// SAFETY: verbs on one counter may be called from any thread, several at a time.
unsafe impl Sync for Inner {}

/// Calls a counter function that the library may lack.
macro_rules! call {
    ($self:ident, $function:ident, $($argument:expr),*) => {{
        let context = $self.context();
        match context.provider().verbs().$function() {
            // SAFETY: `self` keeps the counter alive, and every pointer argument refers to a local
            // variable.
            Ok(function) => outcome(context, stringify!($function), unsafe {
                function($self.0.counter.as_ptr(), $($argument),*)
            }),
            Err(symbol) => Err(Unsupported::missing(context, WHAT, symbol).into()),
        }
    }};
}

fn outcome(context: &DeviceContext, verb: &'static str, result: i32) -> Result<(), Error> {
    check(result).map_err(|source| Error::of_device(context, verb, WHAT, source))
}

impl DeviceContext {
    /// Queries the device's support for completion counters (`ibv_query_comp_cntr_caps`).
    ///
    /// # Errors
    ///
    /// Fails if the device has no counters ([`Unsupported`]), or does not answer.
    pub fn query_completion_counter_caps(&self) -> Result<CompletionCounterCapabilities, Error> {
        let mut caps = ibv_comp_cntr_caps::default();
        // SAFETY: `self` keeps the context open, and `caps` is a local variable.
        let result = unsafe {
            verbs::ibv_query_comp_cntr_caps(self.provider().verbs(), self.as_raw().as_ptr(), &raw mut caps)
        };
        outcome(self, "ibv_query_comp_cntr_caps", result)?;
        let supported = CompletionCounterOperations::from_bits_retain(caps.supported_qp_attach_ops);
        Ok(CompletionCounterCapabilities {
            max_value: caps.max_value,
            max_counters: caps.max_counters,
            supported_operations: supported,
        })
    }

    /// Makes a completion counter (`ibv_create_comp_cntr`).
    ///
    /// # Errors
    ///
    /// Fails if the device has no counters, or not of this type ([`Unsupported`]), or no more of
    /// them.
    pub fn create_completion_counter(&self, of: CompletionCounterType) -> Result<CompletionCounter, Error> {
        const VERB: &str = "ibv_create_comp_cntr";
        let missing = |symbol: MissingSymbol| Unsupported::missing(self, WHAT, symbol);
        let create = self.provider().verbs().ibv_create_comp_cntr().map_err(missing)?;
        let mut attr =
            ibv_comp_cntr_init_attr { comp_mask: 0, type_: ibv_comp_cntr_type(of.raw()), flags: 0 };
        // SAFETY: `self` keeps the context open, and the attributes are initialised.
        let counter = unsafe { create(self.as_raw().as_ptr(), &raw mut attr) };
        match NonNull::new(counter) {
            Some(counter) => Ok(CompletionCounter(Arc::new(Inner { counter, context: self.clone() }))),
            None => Err(Error::of_device(self, VERB, WHAT, io::Error::last_os_error())),
        }
    }
}

impl CompletionCounter {
    /// Reads the number of successes (`ibv_read_comp_cntr`).
    ///
    /// # Errors
    ///
    /// Fails if the device does not answer.
    pub fn read(&self) -> Result<u64, Error> {
        let mut value = 0;
        call!(self, ibv_read_comp_cntr, &raw mut value)?;
        Ok(value)
    }

    /// Reads the number of failures (`ibv_read_err_comp_cntr`).
    ///
    /// # Errors
    ///
    /// Fails if the device does not answer.
    pub fn read_errors(&self) -> Result<u64, Error> {
        let mut value = 0;
        call!(self, ibv_read_err_comp_cntr, &raw mut value)?;
        Ok(value)
    }

    /// Sets the number of successes to `value` (`ibv_set_comp_cntr`).
    ///
    /// # Errors
    ///
    /// Fails if the value exceeds what the counter can hold.
    pub fn set(&self, value: u64) -> Result<(), Error> {
        call!(self, ibv_set_comp_cntr, value)
    }

    /// Sets the number of failures to `value` (`ibv_set_err_comp_cntr`).
    ///
    /// # Errors
    ///
    /// Fails if the value exceeds what the counter can hold.
    pub fn set_errors(&self, value: u64) -> Result<(), Error> {
        call!(self, ibv_set_err_comp_cntr, value)
    }

    /// Adds `amount` to the number of successes (`ibv_inc_comp_cntr`).
    ///
    /// # Errors
    ///
    /// Fails if the sum exceeds what the counter can hold.
    pub fn increment(&self, amount: u64) -> Result<(), Error> {
        call!(self, ibv_inc_comp_cntr, amount)
    }

    /// Adds `amount` to the number of failures (`ibv_inc_err_comp_cntr`).
    ///
    /// # Errors
    ///
    /// Fails if the sum exceeds what the counter can hold.
    pub fn increment_errors(&self, amount: u64) -> Result<(), Error> {
        call!(self, ibv_inc_err_comp_cntr, amount)
    }

    /// Counts the completions of a queue pair (`ibv_qp_attach_comp_cntr`) until the pair is
    /// destroyed. From then on, the pair keeps the counter alive.
    ///
    /// # Errors
    ///
    /// Fails if the device does not count these operations, if the pair's state does not allow it,
    /// or if the pair belongs to another context.
    pub fn attach(
        &self,
        queue_pair: &QueuePairControl,
        operations: CompletionCounterOperations,
    ) -> Result<(), Error> {
        const VERB: &str = "ibv_qp_attach_comp_cntr";
        let context = self.context();
        if queue_pair.context() != context {
            return Err(Error::other_context(
                VERB,
                "the queue pair is of another context than the completion counter",
            ));
        }
        let missing = |symbol: MissingSymbol| Unsupported::missing(context, WHAT, symbol);
        let attach = context.provider().verbs().ibv_qp_attach_comp_cntr().map_err(missing)?;
        let mut attr = ibv_qp_attach_comp_cntr_attr { comp_mask: 0, op_mask: operations.bits() };
        let counter = self.0.counter.as_ptr();
        // SAFETY: the borrows keep the queue pair and the counter alive, and the attributes are
        // initialised.
        let result = unsafe { attach(queue_pair.as_raw().as_ptr(), counter, &raw mut attr) };
        outcome(context, VERB, result)?;
        queue_pair.keep_counter(self);
        Ok(())
    }

    /// The device context in which it was made.
    pub fn context(&self) -> &DeviceContext {
        &self.0.context
    }

    /// The C object, for verbs that this crate does not wrap. Using it is as unsafe as in C; do not
    /// destroy it.
    pub fn as_raw(&self) -> NonNull<ibv_comp_cntr> {
        self.0.counter
    }
}

/// The counters attached to a queue pair, which keeps them alive.
#[derive(Default)]
pub(crate) struct AttachedCounters(Mutex<Vec<CompletionCounter>>);

impl AttachedCounters {
    pub(crate) fn keep(&self, counter: &CompletionCounter) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(counter.clone());
    }
}

impl fmt::Debug for CompletionCounter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionCounter").field("context", &self.0.context).finish_non_exhaustive()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let destroyed = match self.context.provider().verbs().ibv_destroy_comp_cntr() {
            // SAFETY: the counter is alive until here. Every queue pair that it counts held this
            // `Inner` and is gone.
            Ok(destroy) => check(unsafe { destroy(self.counter.as_ptr()) }),
            Err(symbol) => Err(io::Error::other(symbol)),
        };
        if let Err(error) = destroyed {
            log::error!("ibv_destroy_comp_cntr failed: {error}");
            // The library still has the counter, so the context that it depends on must stay alive
            // too.
            std::mem::forget(self.context.clone());
        }
    }
}
