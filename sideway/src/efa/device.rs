//! Detection of EFA devices, and their attributes.

use std::fmt;

use rdma_mummy_sys::Efadv;
use rdma_mummy_sys::types::{
    EFADV_DEVICE_ATTR_CAPS_COMP_CNTR, EFADV_DEVICE_ATTR_CAPS_CQ_WITH_EXT_MEM_DMABUF,
    EFADV_DEVICE_ATTR_CAPS_CQ_WITH_SGID, EFADV_DEVICE_ATTR_CAPS_RDMA_READ, EFADV_DEVICE_ATTR_CAPS_RDMA_WRITE,
    EFADV_DEVICE_ATTR_CAPS_RNR_RETRY, EFADV_DEVICE_ATTR_CAPS_UNSOLICITED_WRITE_RECV, efadv_device_attr,
};

use crate::direct::{check, no_library};
use crate::error::Error;
use crate::ibverbs::Unsupported;
use crate::ibverbs::device_context::DeviceContext;

/// The direct verbs of an open EFA device.
///
/// Clones refer to the same context, and keep it open.
#[derive(Clone)]
pub struct DirectVerbs {
    context: DeviceContext,
    lib: &'static Efadv,
    attributes: DeviceAttributes,
}

impl DirectVerbs {
    /// The direct verbs of a device, if it is EFA's: `efadv_query_device` answers only for these.
    /// The first call loads `libefa.so.1`.
    ///
    /// # Errors
    ///
    /// Fails if the library is missing or too old, or belongs to another libibverbs. Also fails if
    /// the device is not EFA's, or does not answer.
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
        // SAFETY: the context is open. The provider checked that it belongs to the libibverbs that
        // the library uses. `raw` has the size that is passed.
        let result =
            check(unsafe { query(context.as_raw().as_ptr(), &raw mut raw, size_of_val(&raw) as u32) });
        result.map_err(|source| {
            Error::of_device(context, VERB, WHAT, source).of(format!("device {}", context.name()))
        })?;
        Ok(Self { context: context.clone(), lib, attributes: DeviceAttributes(raw) })
    }

    /// The device's context.
    pub fn context(&self) -> &DeviceContext {
        &self.context
    }

    /// The library's functions, for calls that this crate does not wrap.
    pub fn as_raw(&self) -> &'static Efadv {
        self.lib
    }

    /// The device's attributes (`efadv_query_device`), as read when this was made.
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
    /// Optional features of a device (`device_caps`).
    pub struct Capabilities(u32) {
        /// Pairs can READ from remote memory (`EFADV_DEVICE_ATTR_CAPS_RDMA_READ`).
        RdmaRead = EFADV_DEVICE_ATTR_CAPS_RDMA_READ,
        /// The RNR retry count of an SRD pair can be set.
        RnrRetry = EFADV_DEVICE_ATTR_CAPS_RNR_RETRY,
        /// Completions can contain the GID of an unknown sender
        /// ([`CompletionFields`](super::CompletionFields)).
        CqWithSgid = EFADV_DEVICE_ATTR_CAPS_CQ_WITH_SGID,
        /// Pairs can WRITE to remote memory (`EFADV_DEVICE_ATTR_CAPS_RDMA_WRITE`).
        RdmaWrite = EFADV_DEVICE_ATTR_CAPS_RDMA_WRITE,
        /// WRITEs with immediate data can complete without a receive
        /// ([`SrdFlags`](super::SrdFlags)).
        UnsolicitedWriteReceive = EFADV_DEVICE_ATTR_CAPS_UNSOLICITED_WRITE_RECV,
        /// Completion queues can lie in a dma-buf.
        CqInDmabuf = EFADV_DEVICE_ATTR_CAPS_CQ_WITH_EXT_MEM_DMABUF,
        /// Counters can count completions (`EFADV_DEVICE_ATTR_CAPS_COMP_CNTR`).
        CompletionCounters = EFADV_DEVICE_ATTR_CAPS_COMP_CNTR,
    }
}

/// Attributes of an EFA device (`efadv_device_attr`). Attributes that an older library does not
/// know are 0.
#[derive(Clone, Copy, Debug)]
pub struct DeviceAttributes(efadv_device_attr);

impl DeviceAttributes {
    /// The maximum number of work requests in a send queue.
    pub fn max_sq_wr(&self) -> u32 {
        self.0.max_sq_wr
    }

    /// The maximum number of work requests in a receive queue.
    pub fn max_rq_wr(&self) -> u32 {
        self.0.max_rq_wr
    }

    /// The maximum number of scatter/gather entries of a send.
    pub fn max_sq_sge(&self) -> u16 {
        self.0.max_sq_sge
    }

    /// The maximum number of scatter/gather entries of a receive.
    pub fn max_rq_sge(&self) -> u16 {
        self.0.max_rq_sge
    }

    /// The maximum length of inline data in bytes.
    pub fn inline_buf_size(&self) -> u16 {
        self.0.inline_buf_size_ex.max(self.0.inline_buf_size)
    }

    /// The maximum length of a READ or WRITE in bytes.
    pub fn max_rdma_size(&self) -> u32 {
        self.0.max_rdma_size
    }

    /// The optional features that it supports.
    pub fn capabilities(&self) -> Capabilities {
        Capabilities::from_bits_retain(self.0.device_caps)
    }
}
