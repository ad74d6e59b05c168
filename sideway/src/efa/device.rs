//! Whether a device is EFA's, and what it can do then.

use std::fmt;

use rdma_mummy_sys::Efadv;
use rdma_mummy_sys::types::{
    EFADV_DEVICE_ATTR_CAPS_COMP_CNTR, EFADV_DEVICE_ATTR_CAPS_CQ_WITH_EXT_MEM_DMABUF,
    EFADV_DEVICE_ATTR_CAPS_CQ_WITH_SGID, EFADV_DEVICE_ATTR_CAPS_RDMA_READ, EFADV_DEVICE_ATTR_CAPS_RDMA_WRITE,
    EFADV_DEVICE_ATTR_CAPS_RNR_RETRY, EFADV_DEVICE_ATTR_CAPS_UNSOLICITED_WRITE_RECV, efadv_device_attr,
};

use crate::direct::no_library;
use crate::error::Error;
use crate::ibverbs::device_context::DeviceContext;
use crate::ibverbs::{Unsupported, check};

/// The direct verbs of an open EFA device.
///
/// A handle: clones stand for the same context, and keep it open.
#[derive(Clone)]
pub struct DirectVerbs {
    context: DeviceContext,
    lib: &'static Efadv,
    attributes: DeviceAttributes,
}

impl DirectVerbs {
    /// Those of a device, if it is EFA's: the only ones that `efadv_query_device` answers for. The first call loads `libefa.so.1`.
    ///
    /// # Errors
    ///
    /// The library is missing or too old, or belongs to another libibverbs; the device is not EFA's, or does not answer.
    ///
    /// # References
    ///
    /// `man efadv_query_device`
    pub fn of(context: &DeviceContext) -> Result<Self, Error> {
        const WHAT: &str = "direct verbs of EFA";
        const VERB: &str = "efadv_query_device";
        let lib = context.provider().efadv();
        let lib = lib.map_err(|error| no_library(context.name(), "efadv_query_device", "EFA", error))?;
        let query = lib.efadv_query_device();
        let query = query.map_err(|symbol| Unsupported::missing(context, WHAT, symbol))?;
        let mut raw = efadv_device_attr::default();
        // SAFETY: the context is open, of the libibverbs that the library works on, as the provider has seen to; `raw` is a
        // valid place of the size that is said.
        let result =
            check(unsafe { query(context.as_raw().as_ptr(), &raw mut raw, size_of_val(&raw) as u32) });
        result.map_err(|source| {
            Error::of_device(context, VERB, WHAT, source).of(format!("device {}", context.name()))
        })?;
        Ok(Self { context: context.clone(), lib, attributes: DeviceAttributes(raw) })
    }

    /// The device.
    pub fn context(&self) -> &DeviceContext {
        &self.context
    }

    /// The functions of the library, for what is not wrapped here.
    pub fn as_raw(&self) -> &'static Efadv {
        self.lib
    }

    /// What the device said of itself (`efadv_query_device`), when it was asked whether it is EFA's.
    pub fn query_device(&self) -> &DeviceAttributes {
        &self.attributes
    }
}

impl fmt::Debug for DirectVerbs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("efa::DirectVerbs").field(&self.context).finish()
    }
}

c_flags! {
    /// What a device can do (`device_caps`).
    pub struct Capabilities(u32) {
        /// RDMA READ.
        RdmaRead = EFADV_DEVICE_ATTR_CAPS_RDMA_READ,
        /// How often an SRD pair tries again where its peer has no receive can be set.
        RnrRetry = EFADV_DEVICE_ATTR_CAPS_RNR_RETRY,
        /// Completions can tell the GID of an unknown sender ([`CompletionFields`](super::CompletionFields)).
        CqWithSgid = EFADV_DEVICE_ATTR_CAPS_CQ_WITH_SGID,
        /// RDMA WRITE.
        RdmaWrite = EFADV_DEVICE_ATTR_CAPS_RDMA_WRITE,
        /// WRITEs with immediate data can take no receive ([`SrdFlags`](super::SrdFlags)).
        UnsolicitedWriteReceive = EFADV_DEVICE_ATTR_CAPS_UNSOLICITED_WRITE_RECV,
        /// Completion queues can lie in a dma-buf.
        CqInDmabuf = EFADV_DEVICE_ATTR_CAPS_CQ_WITH_EXT_MEM_DMABUF,
        /// Completion counters.
        CompletionCounters = EFADV_DEVICE_ATTR_CAPS_COMP_CNTR,
    }
}

/// What an EFA device says of itself (`efadv_device_attr`). What its library is too old to know of is 0.
#[derive(Clone, Copy, Debug)]
pub struct DeviceAttributes(efadv_device_attr);

impl DeviceAttributes {
    /// Work requests in a send queue, at most.
    pub fn max_sq_wr(&self) -> u32 {
        self.0.max_sq_wr
    }

    /// Work requests in a receive queue, at most.
    pub fn max_rq_wr(&self) -> u32 {
        self.0.max_rq_wr
    }

    /// Scatter/gather entries of a send, at most.
    pub fn max_sq_sge(&self) -> u16 {
        self.0.max_sq_sge
    }

    /// Scatter/gather entries of a receive, at most.
    pub fn max_rq_sge(&self) -> u16 {
        self.0.max_rq_sge
    }

    /// Bytes of inline data, at most.
    pub fn inline_buf_size(&self) -> u16 {
        self.0.inline_buf_size_ex.max(self.0.inline_buf_size)
    }

    /// Bytes of a READ or WRITE, at most.
    pub fn max_rdma_size(&self) -> u32 {
        self.0.max_rdma_size
    }

    /// What it can do.
    pub fn capabilities(&self) -> Capabilities {
        Capabilities::from_bits_retain(self.0.device_caps)
    }
}
