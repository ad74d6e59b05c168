//! Queue pairs with attributes of Acme's.

use sideway::direct::{self, CreateFunction};
use sideway::ibverbs::queue_pair::{
    CreateQueuePairError, ExtendedQueuePair, QueuePairBuilder, SendOperationFlags,
};
use sideway::sys::types::ibv_qp_init_attr_ex;

use crate::library::{ACME_QP_SIGNAL, acme_qp_init_attr};
use crate::{DirectVerbs, SignalQueuePair};

/// Describes a queue pair with Acme's attributes. One builder can make any number of them.
#[derive(Clone, Debug)]
pub struct PairBuilder {
    direct: DirectVerbs,
    description: QueuePairBuilder,
    pace: u32,
}

impl DirectVerbs {
    /// Returns a builder that adds Acme's attributes to a copy of a queue pair's description.
    pub fn create_pair_builder(&self, description: &QueuePairBuilder) -> PairBuilder {
        PairBuilder { direct: self.clone(), description: description.clone(), pace: 0 }
    }
}

impl PairBuilder {
    /// Sets the highest rate at which the pair sends, in Mbit/s, up to that of the
    /// [device](crate::DeviceAttributes::max_pace). 0, the default, sets none.
    pub fn setup_pace(&mut self, pace: u32) -> &mut Self {
        self.pace = pace;
        self
    }

    /// Makes a pair that sends the requests of libibverbs (`acme_create_qp`).
    ///
    /// # Errors
    ///
    /// Fails with `EINVAL`, in [`Direct`](CreateQueuePairError::Direct), if the pace exceeds the
    /// device's. Also fails as [`build_ex`](QueuePairBuilder::build_ex) does.
    pub fn build_ex(&self) -> Result<ExtendedQueuePair, CreateQueuePairError> {
        self.make(0)
    }

    /// Makes a pair that also sends [signals](crate::SignalRequest::setup_signal) (`acme_create_qp`
    /// with `ACME_QP_SIGNAL`).
    ///
    /// # Errors
    ///
    /// Fails as [`build_ex`](Self::build_ex) does, and as [`Unsupported`] if the device has no
    /// signals on pairs of this type.
    ///
    /// [`Unsupported`]: sideway::ibverbs::Unsupported
    pub fn build(&self) -> Result<SignalQueuePair, CreateQueuePairError> {
        let pair = self.make(ACME_QP_SIGNAL)?;
        // SAFETY: the library made the pair just now, with `ACME_QP_SIGNAL`.
        unsafe { SignalQueuePair::of(&self.direct, pair) }
    }

    fn make(&self, flags: u32) -> Result<ExtendedQueuePair, CreateQueuePairError> {
        let context = self.direct.context();
        let qp_type = self.description.qp_type();
        let operations = self.description.send_ops_flags();
        let operations = operations.unwrap_or(SendOperationFlags::of_type(qp_type));
        let mut own = acme_qp_init_attr { pace_mbps: self.pace, flags };
        let create = self.direct.as_raw().acme_create_qp;
        let mut create = |attr: &mut ibv_qp_init_attr_ex| {
            // SAFETY: the context is open and belongs to Acme. Both attributes are initialised, and
            // the second has the size that is passed. `create_queue_pair` passes live objects of
            // this context in the first.
            unsafe { create(context.as_raw().as_ptr(), attr, &raw mut own, size_of_val(&own) as u32) }
        };
        let signals = if flags & ACME_QP_SIGNAL == 0 { "" } else { " and signals" };
        let options =
            || format!("queue pairs of type {qp_type} with a pace of {} Mbit/s{signals}", self.pace);
        let function = CreateFunction { context, verb: "acme_create_qp", options: &options, keep: None };
        // SAFETY: `create` makes a pair of the description's type, with exactly the attributes that
        // it gets, as `ibv_create_qp_ex` does. Its requests need nothing further.
        unsafe { direct::create_queue_pair(&function, &self.description, qp_type, operations, &mut create) }
    }
}
