//! DC targets: what initiators reach. They answer, and never post.

use rdma_mummy_sys::types::{
    ibv_qp_init_attr_ex, mlx5dv_dc_type, mlx5dv_qp_init_attr, mlx5dv_qp_init_attr_mask as M,
};

use super::{DirectOperationFlags, DirectVerbs, QueuePairCreateFlags};
use crate::error::Error;
use crate::ibverbs::device_context::DeviceContext;
use crate::ibverbs::queue_pair::{
    CreateQueuePairError, ModifyQueuePairError, QueuePairAttribute, QueuePairAttributeMask, QueuePairBuilder,
    QueuePairControl, QueuePairInitAttribute, QueuePairState, QueuePairType,
};

/// Describes a DC target. The same description makes any number of them.
///
/// A target takes the messages of any number of [initiators](super::DcInitiator) that know its number and access key, into the
/// receives of a shared receive queue. It is brought up in two steps: to INIT with `setup_pkey_index`, `setup_port` and
/// `setup_access_flags`; to RTR with `setup_path_mtu`, `setup_min_rnr_timer` and `setup_address_vector`, from which the device
/// takes the GID index. It stays there.
///
/// ```no_run
/// use sideway::ibverbs::queue_pair::QueuePairBuilder;
/// use sideway::ibverbs::queue_pair::QueuePairAttribute;
/// use sideway::mlx5::DirectVerbs;
///
/// # fn serve(
/// #     mlx5: &DirectVerbs, description: &QueuePairBuilder, init: &QueuePairAttribute, rtr: &QueuePairAttribute,
/// # ) -> Result<u32, Box<dyn std::error::Error>> {
/// // The description has a shared receive queue, and a completion queue for receives.
/// let mut target = mlx5.create_dc_target_builder(description, 0x1234_5678).build()?;
/// target.modify(init)?;
/// target.modify(rtr)?;
/// // What initiators have to be told, beside the access key and a GID.
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
    /// Begins to describe a DC target with a key that initiators have to know. Of the description, of which a copy is taken,
    /// the domain, the shared receive queue and the completion queue of receives count.
    pub fn create_dc_target_builder(
        &self,
        description: &QueuePairBuilder,
        access_key: u64,
    ) -> DcTargetBuilder {
        let mut description = description.clone();
        description.setup_qp_type(QueuePairType::ReliableConnection).complete_in_one();
        let flags = QueuePairCreateFlags::empty();
        DcTargetBuilder { direct: self.clone(), description, access_key, flags }
    }
}

impl DcTargetBuilder {
    /// The options.
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
    /// There is no shared receive queue or no completion queue; or the device has no DC, or not these options
    /// ([`Unsupported`](crate::ibverbs::Unsupported), or `EINVAL`).
    ///
    /// # References
    ///
    /// `man mlx5dv_create_qp`
    pub fn build(&self) -> Result<DcTarget, CreateQueuePairError> {
        self.direct.is_mine(&self.description)?;
        if !self.description.described().2 {
            return Err(CreateQueuePairError::MissingSharedReceiveQueue);
        }
        let mut own = self.attributes();
        let create = |attr: &mut ibv_qp_init_attr_ex| {
            self.direct
                .create_qp(&self.description, attr, &mut own, || format!("DC targets with {:?}", self.flags))
        };
        // SAFETY: the pair is a DC target, and made of the attributes as they are, in the context of the description.
        let control = unsafe { self.description.build_silent_by(QueuePairType::DcTarget, create)? };
        Ok(DcTarget { control, access_key: self.access_key, number: None })
    }
}

/// A DC target.
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
    /// [`ModifyQueuePairError`] says which attribute was wrong or missing.
    pub fn modify(&mut self, attr: &QueuePairAttribute) -> Result<(), ModifyQueuePairError> {
        // SAFETY: nobody posts to a target.
        unsafe { self.control.modify(attr)? };
        self.number = match attr.state() {
            // The device makes it only now, which is when the library writes its number.
            Some(QueuePairState::ReadyToReceive) => {
                // SAFETY: the target lives, and only the call above writes the field, which is in every release's struct.
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
    /// The device does not answer.
    pub fn query(
        &self,
        mask: QueuePairAttributeMask,
    ) -> Result<(QueuePairAttribute, QueuePairInitAttribute), Error> {
        self.control.query(mask)
    }

    /// The state that the device reports.
    ///
    /// # Errors
    ///
    /// The device does not answer.
    pub fn state(&self) -> Result<QueuePairState, Error> {
        self.control.state()
    }

    /// The number by which initiators address it; `None` unless it is ready to receive. Completions of its receives have it,
    /// too.
    pub fn dct_number(&self) -> Option<u32> {
        self.number
    }

    /// The key that initiators have to know.
    pub fn access_key(&self) -> u64 {
        self.access_key
    }

    /// The context that it was made from.
    pub fn context(&self) -> &DeviceContext {
        self.control.context()
    }

    /// The C object. Using it is as unsafe as in C, and it must not be destroyed.
    pub fn as_raw(&self) -> std::ptr::NonNull<rdma_mummy_sys::types::ibv_qp> {
        self.control.as_raw()
    }
}
