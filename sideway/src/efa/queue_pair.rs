//! Queue pairs of scalable reliable datagrams.

use std::io;
use std::ptr::NonNull;

use rdma_mummy_sys::types::{
    EFADV_QP_DRIVER_TYPE_SRD, EFADV_QP_FLAGS_INLINE_WRITE, EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV,
    efadv_qp_init_attr, ibv_qp_init_attr_ex,
};

use super::{Capabilities, DirectVerbs};
use crate::ibverbs::Unsupported;
use crate::ibverbs::queue_pair::CreateQueuePairError;
use crate::ibverbs::queue_pair::{
    ExtendedQueuePair, QueuePair, QueuePairBuilder, QueuePairType, SendOperationFlags,
};

c_flags! {
    /// Options of an SRD pair (`EFADV_QP_FLAGS_*`).
    pub struct SrdFlags(u16) {
        /// A peer's WRITE with immediate data completes without taking a receive.
        UnsolicitedWriteReceive = EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV,
        /// WRITEs may have inline data.
        InlineWrite = EFADV_QP_FLAGS_INLINE_WRITE,
    }
}

/// Describes an SRD pair. The same description makes any number of them.
///
/// Such a pair has no peer: each of its requests says [where it goes](queue_pair::WorkRequestHandle::setup_srd_address). Every
/// message arrives once, or its request fails; messages may overtake each other. It is brought up like a datagram pair, with a
/// `setup_qkey`; on the way to RTS `setup_rnr_retry` says how often it tries where a peer has no receive, if
/// [the device can](Capabilities::RnrRetry).
#[derive(Clone, Debug)]
pub struct SrdBuilder {
    direct: DirectVerbs,
    description: QueuePairBuilder,
    flags: SrdFlags,
    sl: u8,
}

impl DirectVerbs {
    /// Begins to describe an SRD pair. The type in the description, of which a copy is taken, makes no difference.
    pub fn create_srd_builder(&self, description: &QueuePairBuilder) -> SrdBuilder {
        let mut description = description.clone();
        description.setup_qp_type(QueuePairType::ReliableConnection);
        SrdBuilder { direct: self.clone(), description, flags: SrdFlags::empty(), sl: 0 }
    }
}

impl SrdBuilder {
    /// The options.
    pub fn setup_flags(&mut self, flags: SrdFlags) -> &mut Self {
        self.flags = flags;
        self
    }

    /// The service level; 0, the default, is the device's own.
    pub fn setup_service_level(&mut self, sl: u8) -> &mut Self {
        self.sl = sl;
        self
    }

    /// What the description asks for, or all that the device has.
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

    /// Makes the pair for `ibv_wr_*` (`efadv_create_qp_ex`). Unless the description names
    /// [operations](QueuePairBuilder::setup_send_ops_flags), it has all that the device has. Only sends have inline data, and
    /// WRITEs with [`SrdFlags::InlineWrite`].
    ///
    /// # Errors
    ///
    /// The device does not have the options or operations, or the library is too old ([`Unsupported`]); or what
    /// [`build_ex`](QueuePairBuilder::build_ex) says.
    ///
    /// # References
    ///
    /// `man efadv_create_qp_ex`
    pub fn build(&self) -> Result<ExtendedQueuePair, CreateQueuePairError> {
        let context = self.direct.context();
        let (pd, asked, _) = self.description.described();
        if pd.context() != context {
            return Err(CreateQueuePairError::DescriptionOfOtherContext);
        }
        let operations = self.operations(asked);
        let what = || format!("SRD queue pairs with {operations:?} and {:?}", self.flags);
        let create = self.direct.as_raw().efadv_create_qp_ex();
        let create = create.map_err(|symbol| Unsupported::missing(context, what(), symbol))?;
        let mut own = efadv_qp_init_attr {
            driver_qp_type: EFADV_QP_DRIVER_TYPE_SRD,
            flags: self.flags.bits(),
            sl: self.sl,
            ..Default::default()
        };
        let create = |attr: &mut ibv_qp_init_attr_ex| {
            // SAFETY: the context is open and EFA's; both attributes are initialised, the second has the size that is said,
            // and what the first points to lives and is of this context, as `build_ex_by` sees to.
            let qp =
                unsafe { create(context.as_raw().as_ptr(), attr, &raw mut own, size_of_val(&own) as u32) };
            NonNull::new(qp).ok_or_else(|| {
                let source = io::Error::last_os_error();
                if Unsupported::is_meant_by(&source) {
                    return Unsupported::new(context, "efadv_create_qp_ex", what()).into();
                }
                self.description.error(source).of_direct("efadv_create_qp_ex", what())
            })
        };
        let qp_type = QueuePairType::ScalableReliableDatagram;
        // SAFETY: the pair is an SRD one, and made of the attributes as they are, in the context of the description. Its
        // requests have an address, like all datagrams'.
        let mut pair: ExtendedQueuePair =
            unsafe { self.description.build_ex_by(qp_type, operations, create)? };
        if !self.flags.contains(SrdFlags::InlineWrite) {
            // Some libraries take the bytes for what the device is to read and write.
            pair.split().0.forbid_inline(WRITES);
        }
        Ok(pair)
    }
}

const WRITES: SendOperationFlags = SendOperationFlags::Write.union(SendOperationFlags::WriteWithImmediate);
