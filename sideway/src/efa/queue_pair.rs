//! Queue pairs for scalable reliable datagrams (SRD).

use rdma_mummy_sys::types::{
    EFADV_QP_DRIVER_TYPE_SRD, EFADV_QP_FLAGS_INLINE_WRITE, EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV,
    efadv_qp_init_attr, ibv_qp_init_attr_ex,
};

use super::{Capabilities, DirectVerbs};
use crate::direct::{self, CreateFunction};
use crate::ibverbs::Unsupported;
use crate::ibverbs::queue_pair::CreateQueuePairError;
use crate::ibverbs::queue_pair::{
    ExtendedQueuePair, QueuePair, QueuePairBuilder, QueuePairType, SendOperationFlags,
};

c_flags! {
    /// Options of an SRD pair (`EFADV_QP_FLAGS_*`).
    pub struct SrdFlags(u16) {
        /// A peer's WRITE with immediate data completes without consuming a receive.
        UnsolicitedWriteReceive = EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV,
        /// WRITEs may have inline data.
        InlineWrite = EFADV_QP_FLAGS_INLINE_WRITE,
    }
}

/// Describes an SRD pair. One builder can make any number of them.
///
/// An SRD pair has no peer: each of its requests has a
/// [destination]. Every message arrives once, or its request fails; messages may overtake each
/// other. The pair is brought up like a datagram pair, with a `setup_qkey`. On the way to RTS,
/// `setup_rnr_retry` sets the number of retries while a peer has no receive posted, if
/// [the device supports it](Capabilities::RnrRetry).
///
/// [destination]: crate::ibverbs::queue_pair::WorkRequestHandle::setup_srd_address
#[derive(Clone, Debug)]
pub struct SrdBuilder {
    direct: DirectVerbs,
    description: QueuePairBuilder,
    flags: SrdFlags,
    sl: u8,
}

impl DirectVerbs {
    /// Returns a builder for an SRD pair from a copy of a description, whose type is ignored.
    pub fn create_srd_builder(&self, description: &QueuePairBuilder) -> SrdBuilder {
        let mut description = description.clone();
        description.setup_qp_type(QueuePairType::ReliableConnection);
        SrdBuilder { direct: self.clone(), description, flags: SrdFlags::empty(), sl: 0 }
    }
}

impl SrdBuilder {
    /// Sets the options.
    pub fn setup_flags(&mut self, flags: SrdFlags) -> &mut Self {
        self.flags = flags;
        self
    }

    /// Sets the service level; 0, the default, leaves it to the device.
    pub fn setup_service_level(&mut self, sl: u8) -> &mut Self {
        self.sl = sl;
        self
    }

    /// The operations of the description, or all that the device supports.
    fn operations(&self, asked: Option<SendOperationFlags>) -> SendOperationFlags {
        let capabilities = self.direct.query_device().capabilities();
        asked.unwrap_or_else(|| {
            let mut all = SendOperationFlags::Send | SendOperationFlags::SendWithImmediate;
            if capabilities.contains(Capabilities::RdmaRead) {
                all |= SendOperationFlags::Read;
            }
            if capabilities.contains(Capabilities::RdmaWrite) {
                all |= WRITES;
            }
            all
        })
    }

    /// Makes the pair for `ibv_wr_*` (`efadv_create_qp_ex`).
    ///
    /// Unless the description sets [operations](QueuePairBuilder::setup_send_ops_flags), the pair
    /// has all that the device supports. Only sends can have inline data, and WRITEs with
    /// [`SrdFlags::InlineWrite`].
    ///
    /// # Errors
    ///
    /// Fails as [`Unsupported`] if the device lacks the options or operations, or if the library is
    /// too old. Also fails as [`build_ex`](QueuePairBuilder::build_ex) does.
    ///
    /// # References
    ///
    /// `man efadv_create_qp_ex`
    pub fn build(&self) -> Result<ExtendedQueuePair, CreateQueuePairError> {
        let context = self.direct.context();
        if self.description.pd().context() != context {
            return Err(CreateQueuePairError::DescriptionOfOtherContext);
        }
        let operations = self.operations(self.description.send_ops_flags());
        let what = || format!("SRD queue pairs with {operations:?} and {:?}", self.flags);
        let create = self.direct.as_raw().efadv_create_qp_ex();
        let create = create.map_err(|symbol| Unsupported::missing(context, what(), symbol))?;
        let mut own = efadv_qp_init_attr {
            driver_qp_type: EFADV_QP_DRIVER_TYPE_SRD,
            flags: self.flags.bits(),
            sl: self.sl,
            ..Default::default()
        };
        let mut create = |attr: &mut ibv_qp_init_attr_ex| {
            // SAFETY: the context is open and belongs to EFA. Both attributes are initialised, and
            // the second has the size that is passed. `create_queue_pair` passes live objects of
            // this context in the first.
            unsafe { create(context.as_raw().as_ptr(), attr, &raw mut own, size_of_val(&own) as u32) }
        };
        let function = CreateFunction { context, verb: "efadv_create_qp_ex", options: &what, keep: None };
        let qp_type = QueuePairType::ScalableReliableDatagram;
        // SAFETY: `create` makes an SRD pair of exactly the attributes that it gets, in the
        // description's context. Its requests need only an address, like all datagrams.
        let mut pair = unsafe {
            direct::create_queue_pair(&function, &self.description, qp_type, operations, &mut create)?
        };
        if !self.flags.contains(SrdFlags::InlineWrite) {
            // Some libraries would take the inline bytes for the memory that the device reads or
            // writes.
            direct::forbid_inline(pair.split().0, WRITES);
        }
        Ok(pair)
    }
}

const WRITES: SendOperationFlags = SendOperationFlags::Write.union(SendOperationFlags::WriteWithImmediate);
