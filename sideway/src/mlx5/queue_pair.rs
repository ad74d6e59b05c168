//! Queue pairs of libibverbs' types with mlx5's options, and code shared with DC pairs.

use rdma_mummy_sys::types::{
    ibv_qp, ibv_qp_init_attr_ex, mlx5dv_qp_create_flags as F, mlx5dv_qp_init_attr,
    mlx5dv_qp_init_attr_mask as M,
};

use super::operations::{self, Operations};
use super::{DirectOperationFlags, DirectQueuePair, DirectVerbs};
use crate::direct::{self, CreateFunction};
use crate::ibverbs::Unsupported;
use crate::ibverbs::queue_pair::{
    self, CreateQueuePairError, ExtendedQueuePair, QueuePair, QueuePairType, SendOperationFlags,
};

c_flags! {
    /// Options of a queue pair (`mlx5dv_qp_create_flags`).
    pub struct QueuePairCreateFlags(u32) {
        /// Never put small messages into the completion, from where the library copies them to the
        /// address in the work request. It must be set if that address is not an address of this
        /// process: memory that is registered with another virtual address, of a dma-buf, or of a
        /// device.
        DisableScatterToCqe = F::MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE.0,
        /// Put small results (READ, atomics) into the completion, even if not every request has
        /// one.
        AllowScatterToCqe = F::MLX5DV_QP_CREATE_ALLOW_SCATTER_TO_CQE.0,
        /// Credits count packets instead of messages. The peer needs the same option.
        PacketBasedCreditMode = F::MLX5DV_QP_CREATE_PACKET_BASED_CREDIT_MODE.0,
        /// After a signature error, the pair goes to
        /// [`SendQueueDrained`](queue_pair::QueuePairState::SendQueueDrained).
        SignaturePipelining = F::MLX5DV_QP_CREATE_SIG_PIPELINING.0,
        /// Receives are consumed, and messages placed, in any order; completions stay in order. The
        /// peer needs the same option, and no program may detect a message by polling its memory.
        OutOfOrderDataPlacement = F::MLX5DV_QP_CREATE_OOO_DP.0,
    }
}

/// Describes a queue pair of one of libibverbs' types with mlx5's options. One builder can make any
/// number of them.
#[derive(Clone, Debug)]
pub struct QueuePairBuilder {
    direct: DirectVerbs,
    description: queue_pair::QueuePairBuilder,
    flags: QueuePairCreateFlags,
    operations: DirectOperationFlags,
}

impl DirectVerbs {
    /// Returns a builder that adds mlx5's options to a copy of a queue pair's description.
    pub fn create_qp_builder(&self, description: &queue_pair::QueuePairBuilder) -> QueuePairBuilder {
        QueuePairBuilder {
            direct: self.clone(),
            description: description.clone(),
            flags: QueuePairCreateFlags::empty(),
            operations: DirectOperationFlags::empty(),
        }
    }

    /// The attributes of a pair with these flags and operations.
    pub(super) fn qp_attributes(
        &self,
        flags: QueuePairCreateFlags,
        operations: DirectOperationFlags,
    ) -> mlx5dv_qp_init_attr {
        let mut attr = mlx5dv_qp_init_attr::default();
        if !flags.is_empty() {
            attr.comp_mask = u64::from(M::MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS.0);
            attr.create_flags = flags.bits();
        }
        if !operations.is_empty() {
            attr.comp_mask |= u64::from(M::MLX5DV_QP_INIT_ATTR_MASK_SEND_OPS_FLAGS.0);
            attr.send_ops_flags = operations.bits();
        }
        attr
    }

    /// Makes a pair (`mlx5dv_create_qp`) for [`direct`], which passes live objects of this context.
    pub(super) fn create_qp(
        &self,
        attr: &mut ibv_qp_init_attr_ex,
        own: &mut mlx5dv_qp_init_attr,
    ) -> *mut ibv_qp {
        let create = self.as_raw().mlx5dv_create_qp;
        // SAFETY: the context is open and belongs to mlx5, and both attributes are initialised.
        // `attr` points to live objects of this context, because `direct` compared the description's
        // domain, and its builder the others.
        let qp = unsafe { create(self.context().as_raw().as_ptr(), attr, own) };
        // Extended pairs of mlx5 have no inline data in this crate; see `Quirks` in
        // `device_context.rs`.
        attr.cap.max_inline_data = 0;
        qp
    }

    /// `mlx5dv_create_qp`, for its error.
    pub(super) fn create_function<'a>(&'a self, options: &'a dyn Fn() -> String) -> CreateFunction<'a> {
        CreateFunction { context: self.context(), verb: "mlx5dv_create_qp", options, keep: None }
    }

    /// Checks that a description belongs to this context.
    pub(super) fn is_mine(
        &self,
        description: &queue_pair::QueuePairBuilder,
    ) -> Result<(), CreateQueuePairError> {
        if description.pd().context() == self.context() {
            Ok(())
        } else {
            Err(CreateQueuePairError::DescriptionOfOtherContext)
        }
    }
}

impl QueuePairBuilder {
    /// Sets the options.
    pub fn setup_create_flags(&mut self, flags: QueuePairCreateFlags) -> &mut Self {
        self.flags = flags;
        self
    }

    /// Sets the mlx5 operations that a pair of [`build_direct`](Self::build_direct) will send, in
    /// addition to those of the description. Reliably connected pairs can have all of them, other
    /// pairs only requests in the device's own format.
    ///
    /// The description's inline data limits the number of entries in the layout of a memory key
    /// ([`setup_max_inline_data`](queue_pair::QueuePairBuilder::setup_max_inline_data)).
    pub fn setup_direct_send_ops_flags(&mut self, operations: DirectOperationFlags) -> &mut Self {
        self.operations = operations;
        self
    }

    /// Makes the pair for `ibv_wr_*` (`mlx5dv_create_qp`).
    ///
    /// It accepts neither inline data nor requests without a buffer, like all extended pairs of
    /// mlx5 in this crate. It does not support [mlx5
    /// operations](Self::setup_direct_send_ops_flags), for which
    /// [`build_direct`](Self::build_direct) exists.
    ///
    /// # Errors
    ///
    /// Fails as [`Unsupported`] if the device lacks the options, and as
    /// [`build_ex`](queue_pair::QueuePairBuilder::build_ex) does.
    ///
    /// # References
    ///
    /// `man mlx5dv_create_qp`
    pub fn build_ex(&self) -> Result<ExtendedQueuePair, CreateQueuePairError> {
        self.make(DirectOperationFlags::empty())
    }

    /// Makes the pair with its [mlx5 operations](Self::setup_direct_send_ops_flags)
    /// (`mlx5dv_create_qp`).
    ///
    /// # Errors
    ///
    /// Fails as [`Unsupported`] if the device lacks the options or the operations, and as
    /// [`build_ex`](queue_pair::QueuePairBuilder::build_ex) does.
    ///
    /// # References
    ///
    /// `man mlx5dv_create_qp`, `man mlx5dv_wr_post`
    pub fn build_direct(&self) -> Result<DirectQueuePair, CreateQueuePairError> {
        const WHAT: &str = "queue pairs with requests of mlx5's own";
        let of_ex = self.direct.as_raw().mlx5dv_qp_ex_from_ibv_qp_ex();
        of_ex.map_err(|symbol| Unsupported::missing(self.direct.context(), WHAT, symbol))?;
        let max_memcpy = operations::max_memcpy(&self.direct, self.operations)?;
        let pair = self.make(self.operations)?;
        // SAFETY: the library made the pair just now, with these operations.
        let operations = unsafe { Operations::of(&self.direct, &pair, self.operations, max_memcpy)? };
        Ok(DirectQueuePair::new(pair, operations))
    }

    fn make(
        &self,
        direct_operations: DirectOperationFlags,
    ) -> Result<ExtendedQueuePair, CreateQueuePairError> {
        self.direct.is_mine(&self.description)?;
        let qp_type = self.description.qp_type();
        let operations = self.description.send_ops_flags().unwrap_or(SendOperationFlags::of_type(qp_type));
        let mut own = self.direct.qp_attributes(self.flags, direct_operations);
        let mut create = |attr: &mut ibv_qp_init_attr_ex| self.direct.create_qp(attr, &mut own);
        let options = || {
            let besides = match direct_operations {
                none if none.is_empty() => String::new(),
                some => format!(" and {some:?}"),
            };
            format!("queue pairs of type {qp_type} with {:?}{besides}", self.flags)
        };
        let function = self.direct.create_function(&options);
        // SAFETY: `create` makes a pair of that type with exactly the attributes that it gets, in
        // the description's context.
        let mut pair = unsafe {
            direct::create_queue_pair(&function, &self.description, qp_type, operations, &mut create)?
        };
        direct::set_overwrites_when_full(pair.split().0);
        Ok(pair)
    }
}

/// The operations of a DC initiator: the requested ones, or all.
pub(super) fn dc_operations(asked: Option<SendOperationFlags>) -> SendOperationFlags {
    asked.unwrap_or(SendOperationFlags::of_type(QueuePairType::DcInitiator))
}

/// The error for a pair that lacks an operation with which it was made.
pub(super) fn incomplete(operation: &'static str) -> CreateQueuePairError {
    CreateQueuePairError::Incomplete { operation }
}
