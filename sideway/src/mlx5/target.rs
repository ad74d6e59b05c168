//! DC targets: the passive ends of DC transport, which respond and never post.

use rdma_mummy_sys::types::{
    ibv_qp_init_attr_ex, mlx5dv_dc_type, mlx5dv_qp_init_attr, mlx5dv_qp_init_attr_mask as M,
};

use super::{DirectOperationFlags, DirectVerbs, QueuePairCreateFlags};
use crate::direct;
use crate::error::Error;
use crate::ibverbs::device_context::DeviceContext;
use crate::ibverbs::queue_pair::{
    CreateQueuePairError, ModifyQueuePairError, QueuePairAttribute, QueuePairAttributeMask, QueuePairBuilder,
    QueuePairControl, QueuePairInitAttribute, QueuePairState, QueuePairType,
};

/// Describes a DC target. One builder can make any number of them.
///
/// A target receives the messages of any number of [initiators](super::DcInitiator) that know its
/// number and access key. They go into the receives of a shared receive queue. The target is
/// brought up in two steps: to INIT with `setup_pkey_index`, `setup_port` and `setup_access_flags`;
/// to RTR with `setup_path_mtu`, `setup_min_rnr_timer` and `setup_address_vector`, from which the
/// device takes the GID index. It stays there.
///
/// ```no_run
/// use sideway::ibverbs::queue_pair::QueuePairBuilder;
/// use sideway::ibverbs::queue_pair::QueuePairAttribute;
/// use sideway::mlx5::DirectVerbs;
///
/// # fn serve(
/// #     mlx5: &DirectVerbs, description: &QueuePairBuilder, init: &QueuePairAttribute,
/// #     rtr: &QueuePairAttribute,
/// # ) -> Result<u32, Box<dyn std::error::Error>> {
/// // The description has a shared receive queue, and a completion queue for receives.
/// let mut target = mlx5.create_dc_target_builder(description, 0x1234_5678).build()?;
/// target.modify(init)?;
/// target.modify(rtr)?;
/// // Initiators need this number, the access key and a GID.
/// let number = target.dct_number().expect("it is ready to receive");
/// # Ok(number) }
/// ```
#[derive(Clone, Debug)]
pub struct DcTargetBuilder {
    direct: DirectVerbs,
    description: QueuePairBuilder,
    access_key: u64,
    flags: QueuePairCreateFlags,
}

impl DirectVerbs {
    /// Returns a builder for a DC target with an access key that initiators must know. From a copy
    /// of the description it uses the domain, the shared receive queue and the completion queue for
    /// receives.
    pub fn create_dc_target_builder(
        &self,
        description: &QueuePairBuilder,
        access_key: u64,
    ) -> DcTargetBuilder {
        let mut description = description.clone();
        description.setup_qp_type(QueuePairType::ReliableConnection);
        direct::complete_in_one(&mut description);
        let flags = QueuePairCreateFlags::empty();
        DcTargetBuilder { direct: self.clone(), description, access_key, flags }
    }
}

impl DcTargetBuilder {
    /// Sets the options.
    pub fn setup_create_flags(&mut self, flags: QueuePairCreateFlags) -> &mut Self {
        self.flags = flags;
        self
    }

    fn attributes(&self) -> mlx5dv_qp_init_attr {
        let mut own = self.direct.qp_attributes(self.flags, DirectOperationFlags::empty());
        own.comp_mask |= u64::from(M::MLX5DV_QP_INIT_ATTR_MASK_DC.0);
        own.dc_init_attr.dc_type = mlx5dv_dc_type::MLX5DV_DCTYPE_DCT;
        own.dc_init_attr.__bindgen_anon_1.dct_access_key = self.access_key;
        own
    }

    /// Makes the target (`mlx5dv_create_qp`).
    ///
    /// # Errors
    ///
    /// Fails if there is no shared receive queue or no completion queue. Fails with
    /// [`Unsupported`](crate::ibverbs::Unsupported) or `EINVAL` if the device has no DC, or not
    /// these options.
    ///
    /// # References
    ///
    /// `man mlx5dv_create_qp`
    pub fn build(&self) -> Result<DcTarget, CreateQueuePairError> {
        self.direct.is_mine(&self.description)?;
        if !self.description.has_srq() {
            return Err(CreateQueuePairError::MissingSharedReceiveQueue);
        }
        let mut own = self.attributes();
        let mut create = |attr: &mut ibv_qp_init_attr_ex| self.direct.create_qp(attr, &mut own);
        let options = || format!("DC targets with {:?}", self.flags);
        let function = self.direct.create_function(&options);
        // SAFETY: `create` makes a DC target of exactly the attributes that it gets, in the
        // description's context.
        let control = unsafe {
            direct::create_silent_queue_pair(
                &function,
                &self.description,
                QueuePairType::DcTarget,
                &mut create,
            )?
        };
        Ok(DcTarget { control, access_key: self.access_key, number: None })
    }
}

/// A DC target: responds to initiators, and receives into a shared receive queue.
#[derive(Debug)]
pub struct DcTarget {
    control: QueuePairControl,
    access_key: u64,
    number: Option<u32>,
}

impl DcTarget {
    /// Changes state or attributes (`ibv_modify_qp`).
    ///
    /// # Errors
    ///
    /// [`ModifyQueuePairError`] names the attribute that was wrong or missing.
    pub fn modify(&mut self, attr: &QueuePairAttribute) -> Result<(), ModifyQueuePairError> {
        // SAFETY: a target has no send list, so nobody posts to it.
        unsafe { self.control.modify(attr)? };
        self.number = match attr.state() {
            // The device makes the target only now, and the library writes its number.
            Some(QueuePairState::ReadyToReceive) => {
                // SAFETY: `self` keeps the target alive, and only the call above writes the field,
                // which every release's struct has.
                Some(unsafe { (*self.control.as_raw().as_ptr()).qp_num })
            }
            Some(_) => None,
            None => self.number,
        };
        Ok(())
    }

    /// Reads attributes (`ibv_query_qp`).
    ///
    /// # Errors
    ///
    /// Fails if the device does not answer.
    pub fn query(
        &self,
        mask: QueuePairAttributeMask,
    ) -> Result<(QueuePairAttribute, QueuePairInitAttribute), Error> {
        self.control.query(mask)
    }

    /// Queries the target's state (`ibv_query_qp`).
    ///
    /// # Errors
    ///
    /// Fails if the device does not answer.
    pub fn state(&self) -> Result<QueuePairState, Error> {
        self.control.state()
    }

    /// The number by which initiators address it; `None` until it is ready to receive. Completions
    /// of its receives contain it too.
    pub fn dct_number(&self) -> Option<u32> {
        self.number
    }

    /// The access key that initiators must know.
    pub fn access_key(&self) -> u64 {
        self.access_key
    }

    /// The device context in which it was made.
    pub fn context(&self) -> &DeviceContext {
        self.control.context()
    }

    /// The C object, for verbs that this crate does not wrap. Using it is as unsafe as in C; do not
    /// destroy it.
    pub fn as_raw(&self) -> std::ptr::NonNull<rdma_mummy_sys::types::ibv_qp> {
        self.control.as_raw()
    }
}
