//! Completion counters: numbers that a device counts up instead of writing completions (rdma-core 65, EFA).
//!
//! A counter counts requests, or bytes, of the operations of the queue pairs that it is
//! [attached](CompletionCounter::attach) to, those that succeeded and those that failed apart from each other. It can be set,
//! so that a program waits for one number for many queue pairs.
//!
//! Of no device that this crate was run on: the table of functions is tested, the counting is not. SoftRoCE and the software
//! device answer [`Unsupported`].

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
    /// What is counted (`ibv_comp_cntr_type`).
    pub struct CompletionCounterType(u32) {
        /// Requests.
        WorkRequests = ibv_comp_cntr_type::IBV_COMP_CNTR_TYPE_WRS.0,
        /// Bytes.
        Bytes = ibv_comp_cntr_type::IBV_COMP_CNTR_TYPE_BYTES.0,
    }
}

display_as_debug!(CompletionCounterType);

c_flags! {
    /// Whose completions are counted (`ibv_qp_attach_comp_cntr_op`).
    pub struct CompletionCounterOperations(u32) {
        /// Of sends.
        Send = Op::IBV_QP_ATTACH_COMP_CNTR_OP_SEND.0,
        /// Of receives.
        Recv = Op::IBV_QP_ATTACH_COMP_CNTR_OP_RECV.0,
        /// Of RDMA READs.
        RdmaRead = Op::IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_READ.0,
        /// Of a peer's RDMA READs.
        RemoteRdmaRead = Op::IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_READ.0,
        /// Of RDMA WRITEs.
        RdmaWrite = Op::IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE.0,
        /// Of a peer's RDMA WRITEs.
        RemoteRdmaWrite = Op::IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE.0,
    }
}

/// What completion counters a device has (`ibv_comp_cntr_caps`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CompletionCounterCapabilities {
    /// The highest number that a counter holds.
    pub max_value: u64,
    /// How many counters there can be.
    pub max_counters: u32,
    /// What can be counted.
    pub supported_operations: CompletionCounterOperations,
}

/// A completion counter (`ibv_comp_cntr`).
///
/// A handle: clones stand for the same counter, which goes (`ibv_destroy_comp_cntr`) when the last handle and the last queue
/// pair that it counts are gone.
#[derive(Clone)]
pub struct CompletionCounter(Arc<Inner>);

struct Inner {
    counter: NonNull<ibv_comp_cntr>,
    context: DeviceContext,
}

// SAFETY: verbs on one counter may be called from any thread, several at a time.
unsafe impl Send for Inner {}
// SAFETY: verbs on one counter may be called from any thread, several at a time.
unsafe impl Sync for Inner {}

/// Calls a function of a counter that the library may lack.
macro_rules! call {
    ($self:ident, $function:ident, $($argument:expr),*) => {{
        let context = $self.context();
        match context.provider().verbs().$function() {
            // SAFETY: the counter lives, and every place is valid.
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
    /// What completion counters the device has (`ibv_query_comp_cntr_caps`).
    ///
    /// # Errors
    ///
    /// It has none ([`Unsupported`]), or does not answer.
    pub fn query_completion_counter_caps(&self) -> Result<CompletionCounterCapabilities, Error> {
        let mut caps = ibv_comp_cntr_caps::default();
        // SAFETY: the context is open and `caps` is a valid place.
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

    /// A completion counter (`ibv_create_comp_cntr`).
    ///
    /// # Errors
    ///
    /// The device has none ([`Unsupported`]), not of this type, or no more of them.
    pub fn create_completion_counter(&self, of: CompletionCounterType) -> Result<CompletionCounter, Error> {
        const VERB: &str = "ibv_create_comp_cntr";
        let missing = |symbol: MissingSymbol| Unsupported::missing(self, WHAT, symbol);
        let create = self.provider().verbs().ibv_create_comp_cntr().map_err(missing)?;
        let mut attr =
            ibv_comp_cntr_init_attr { comp_mask: 0, type_: ibv_comp_cntr_type(of.raw()), flags: 0 };
        // SAFETY: the context is open and the attributes are valid.
        let counter = unsafe { create(self.as_raw().as_ptr(), &raw mut attr) };
        match NonNull::new(counter) {
            Some(counter) => Ok(CompletionCounter(Arc::new(Inner { counter, context: self.clone() }))),
            None => Err(Error::of_device(self, VERB, WHAT, io::Error::last_os_error())),
        }
    }
}

impl CompletionCounter {
    /// How many succeeded (`ibv_read_comp_cntr`).
    ///
    /// # Errors
    ///
    /// The device does not answer.
    pub fn read(&self) -> Result<u64, Error> {
        let mut value = 0;
        call!(self, ibv_read_comp_cntr, &raw mut value)?;
        Ok(value)
    }

    /// How many failed (`ibv_read_err_comp_cntr`).
    ///
    /// # Errors
    ///
    /// The device does not answer.
    pub fn read_errors(&self) -> Result<u64, Error> {
        let mut value = 0;
        call!(self, ibv_read_err_comp_cntr, &raw mut value)?;
        Ok(value)
    }

    /// From now on so many have succeeded (`ibv_set_comp_cntr`).
    ///
    /// # Errors
    ///
    /// The device does not hold such a number.
    pub fn set(&self, value: u64) -> Result<(), Error> {
        call!(self, ibv_set_comp_cntr, value)
    }

    /// From now on so many have failed (`ibv_set_err_comp_cntr`).
    ///
    /// # Errors
    ///
    /// The device does not hold such a number.
    pub fn set_errors(&self, value: u64) -> Result<(), Error> {
        call!(self, ibv_set_err_comp_cntr, value)
    }

    /// So many more have succeeded (`ibv_inc_comp_cntr`).
    ///
    /// # Errors
    ///
    /// The device does not hold such a number.
    pub fn increment(&self, amount: u64) -> Result<(), Error> {
        call!(self, ibv_inc_comp_cntr, amount)
    }

    /// So many more have failed (`ibv_inc_err_comp_cntr`).
    ///
    /// # Errors
    ///
    /// The device does not hold such a number.
    pub fn increment_errors(&self, amount: u64) -> Result<(), Error> {
        call!(self, ibv_inc_err_comp_cntr, amount)
    }

    /// Counts completions of a queue pair (`ibv_qp_attach_comp_cntr`), for as long as the pair is there. The pair keeps the
    /// counter alive from then on.
    ///
    /// # Errors
    ///
    /// The device does not count these operations, the pair is in a state in which none is attached, or of another context.
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
        // SAFETY: queue pair and counter live, and the attributes are valid.
        let result = unsafe { attach(queue_pair.as_raw().as_ptr(), counter, &raw mut attr) };
        outcome(context, VERB, result)?;
        queue_pair.keep_counter(self);
        Ok(())
    }

    /// The context that it was made from.
    pub fn context(&self) -> &DeviceContext {
        &self.0.context
    }

    /// The C object. Using it is as unsafe as in C, and it must not be destroyed.
    pub fn as_raw(&self) -> NonNull<ibv_comp_cntr> {
        self.0.counter
    }
}

/// Counters that a queue pair keeps alive: those that count it.
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
            // SAFETY: the counter lives, and every queue pair that it counts held this `Inner` and is gone.
            Ok(destroy) => check(unsafe { destroy(self.counter.as_ptr()) }),
            Err(symbol) => Err(io::Error::other(symbol)),
        };
        if let Err(error) = destroyed {
            log::error!("ibv_destroy_comp_cntr failed: {error}");
            // The counter is still there, so what it depends on has to stay.
            std::mem::forget(self.context.clone());
        }
    }
}
