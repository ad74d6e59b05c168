//! Completion queues with mlx5's own options.

use rdma_mummy_sys::types::{
    mlx5dv_cq_init_attr, mlx5dv_cq_init_attr_flags as F, mlx5dv_cq_init_attr_mask as M,
    mlx5dv_cqe_comp_res_format as R,
};

use super::DirectVerbs;
use crate::direct::{self, CreateFunction};
use crate::ibverbs::completion::CreateCompletionQueueError;
use crate::ibverbs::completion::{self, ExtendedCompletionQueue};

c_flags! {
    /// Formats of compressed receive completions (`mlx5dv_cqe_comp_res_format`).
    pub struct CqeFormats(u32) {
        /// With the packet's hash.
        Hash = R::MLX5DV_CQE_RES_FORMAT_HASH.0,
        /// With the packet's checksum.
        Checksum = R::MLX5DV_CQE_RES_FORMAT_CSUM.0,
        /// With the packet's checksum and the index of its stride.
        ChecksumStrideIndex = R::MLX5DV_CQE_RES_FORMAT_CSUM_STRIDX.0,
    }
}

/// The size of a completion in its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CqeSize {
    /// 64 bytes.
    Bytes64,
    /// 128 bytes, with room for a message of up to 64 bytes.
    Bytes128,
}

impl CqeSize {
    const fn bytes(self) -> u16 {
        match self {
            Self::Bytes64 => 64,
            Self::Bytes128 => 128,
        }
    }
}

/// Describes a completion queue with mlx5's options. One builder can make any number of them.
///
/// Its queues are polled like any other, compressed or not.
#[derive(Clone, Debug)]
pub struct CompletionQueueBuilder {
    direct: DirectVerbs,
    description: completion::CompletionQueueBuilder,
    compression: Option<CqeFormats>,
    size: Option<CqeSize>,
    padding: bool,
}

impl DirectVerbs {
    /// Returns a builder that adds mlx5's options to a copy of a completion queue's description.
    pub fn create_cq_builder(
        &self,
        description: &completion::CompletionQueueBuilder,
    ) -> CompletionQueueBuilder {
        let (direct, description) = (self.clone(), description.clone());
        CompletionQueueBuilder { direct, description, compression: None, size: None, padding: false }
    }
}

impl CompletionQueueBuilder {
    /// Lets the device compress several completions into one, in one of the [supported
    /// formats](super::DeviceCapabilities::cqe_compression). This reduces traffic on the bus for
    /// small messages at high rates.
    pub fn setup_cqe_compression(&mut self, format: CqeFormats) -> &mut Self {
        self.compression = Some(format);
        self
    }

    /// Sets the size of a completion.
    pub fn setup_cqe_size(&mut self, size: CqeSize) -> &mut Self {
        self.size = Some(size);
        self
    }

    /// Pads completions to 128 bytes, if [the device supports
    /// it](super::ContextFlags::Cqe128Padding).
    pub fn setup_cqe_padding(&mut self, padding: bool) -> &mut Self {
        self.padding = padding;
        self
    }

    fn attributes(&self) -> mlx5dv_cq_init_attr {
        let mut attr = mlx5dv_cq_init_attr::default();
        if let Some(format) = self.compression {
            attr.comp_mask |= u64::from(M::MLX5DV_CQ_INIT_ATTR_MASK_COMPRESSED_CQE.0);
            attr.cqe_comp_res_format = format.bits() as u8;
        }
        if let Some(size) = self.size {
            attr.comp_mask |= u64::from(M::MLX5DV_CQ_INIT_ATTR_MASK_CQE_SIZE.0);
            attr.cqe_size = size.bytes();
        }
        if self.padding {
            attr.comp_mask |= u64::from(M::MLX5DV_CQ_INIT_ATTR_MASK_FLAGS.0);
            attr.flags = F::MLX5DV_CQ_INIT_ATTR_FLAGS_CQE_PAD.0;
        }
        attr
    }

    /// Makes the queue (`mlx5dv_create_cq`).
    ///
    /// # Errors
    ///
    /// Fails as [`Unsupported`](crate::ibverbs::Unsupported) if the device has no such options, and
    /// with `EINVAL` if it rejects these. Also fails as
    /// [`build_ex`](completion::CompletionQueueBuilder::build_ex) does.
    ///
    /// # References
    ///
    /// `man mlx5dv_create_cq`
    pub fn build_ex(&self) -> Result<ExtendedCompletionQueue, CreateCompletionQueueError> {
        let (context, mut own) = (self.direct.context(), self.attributes());
        let mut create = |attr: &mut _| {
            // SAFETY: the context is open and belongs to mlx5, and both attributes are initialised.
            unsafe { (self.direct.as_raw().mlx5dv_create_cq)(context.as_raw().as_ptr(), attr, &raw mut own) }
        };
        let options =
            || format!("compression {:?}, size {:?}, padding {}", self.compression, self.size, self.padding);
        let function = CreateFunction { context, verb: "mlx5dv_create_cq", options: &options, keep: None };
        // SAFETY: `create` makes a queue of exactly the attributes that it gets, in the
        // description's context.
        unsafe { direct::create_completion_queue(&function, &self.description, &mut create) }
    }
}
