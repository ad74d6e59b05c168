//! The queue pair builder: attributes and operations, then `ibv_create_qp` or `ibv_create_qp_ex`.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use rdma_mummy_sys::types::{
    ibv_qp, ibv_qp_cap, ibv_qp_create_send_ops_flags as C, ibv_qp_init_attr, ibv_qp_init_attr_ex,
    ibv_qp_init_attr_mask, ibv_qp_type,
};
use rdma_mummy_sys::verbs;

use super::control::{Dependencies, Inner};
use super::receive::{NoRoom, ReceiveQueue};
use super::transport::{QueuePairTransport, TypedQueuePair};
use super::{
    BasicQueuePair, BasicSendQueue, ExtendedQueuePair, ExtendedSendQueue, GenericQueuePair,
    QueuePairCapability, QueuePairControl, QueuePairType,
};
use crate::direct::KeptByObject;
use crate::error::Error;
use crate::ibverbs::Unsupported;
use crate::ibverbs::completion::{self, CompletionQueue};
use crate::ibverbs::device_attr::DeviceCapabilityFlags;
use crate::ibverbs::device_context::DeviceContext;
use crate::ibverbs::protection_domain::ProtectionDomain;
use crate::ibverbs::srq::{SharedReceiveQueue, SrqInner};
use crate::limits::OpenFiles;

c_flags! {
    /// The operations that a queue pair can send (`ibv_qp_create_send_ops_flags`).
    pub struct SendOperationFlags(u64) {
        /// RDMA WRITE.
        Write = C::IBV_QP_EX_WITH_RDMA_WRITE.0,
        /// RDMA WRITE with immediate data.
        WriteWithImmediate = C::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM.0,
        /// SEND without immediate data.
        Send = C::IBV_QP_EX_WITH_SEND.0,
        /// SEND with immediate data.
        SendWithImmediate = C::IBV_QP_EX_WITH_SEND_WITH_IMM.0,
        /// RDMA READ.
        Read = C::IBV_QP_EX_WITH_RDMA_READ.0,
        /// Compare and swap of 8 bytes in remote memory.
        AtomicCompareAndSwap = C::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP.0,
        /// Fetch and add of 8 bytes in remote memory.
        AtomicFetchAndAdd = C::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD.0,
        /// Local invalidate: invalidates a local key.
        LocalInvalidate = C::IBV_QP_EX_WITH_LOCAL_INV.0,
        /// Binds a memory window to a range of a region.
        BindMemoryWindow = C::IBV_QP_EX_WITH_BIND_MW.0,
        /// SEND that invalidates a key of the peer.
        SendWithInvalidate = C::IBV_QP_EX_WITH_SEND_WITH_INV.0,
        /// RDMA FLUSH: makes earlier writes visible or persistent.
        Flush = C::IBV_QP_EX_WITH_FLUSH.0,
        /// RDMA ATOMIC WRITE of 8 bytes.
        AtomicWrite = C::IBV_QP_EX_WITH_ATOMIC_WRITE.0,
    }
}

impl SendOperationFlags {
    /// The operations that every device supports on a queue pair type. They are the default of
    /// [`setup_send_ops_flags`](QueuePairBuilder::setup_send_ops_flags).
    pub const fn of_type(qp_type: QueuePairType) -> Self {
        let unreliable =
            Self::Write.union(Self::WriteWithImmediate).union(Self::Send).union(Self::SendWithImmediate);
        match qp_type {
            QueuePairType::ReliableConnection | QueuePairType::XrcSend => {
                unreliable.union(Self::Read).union(Self::AtomicCompareAndSwap).union(Self::AtomicFetchAndAdd)
            }
            QueuePairType::UnreliableConnection => unreliable,
            QueuePairType::UnreliableDatagram => Self::Send.union(Self::SendWithImmediate),
            QueuePairType::DcInitiator => Self::of_type(QueuePairType::ReliableConnection),
            QueuePairType::ScalableReliableDatagram => unreliable.union(Self::Read),
            _ => Self::empty(),
        }
    }

    /// The operations of memory windows, for connected pairs of devices that support windows.
    pub const fn of_windows() -> Self {
        Self::LocalInvalidate.union(Self::BindMemoryWindow).union(Self::SendWithInvalidate)
    }

    /// All operations that this crate can post on a queue pair type, if the device supports them.
    pub const fn possible(qp_type: QueuePairType) -> Self {
        let usual = Self::of_type(qp_type);
        match qp_type {
            QueuePairType::ReliableConnection => {
                usual.union(Self::of_windows()).union(Self::AtomicWrite).union(Self::Flush)
            }
            QueuePairType::UnreliableConnection => usual.union(Self::of_windows()),
            _ => usual,
        }
    }

    /// The first of these operations that the device's capabilities lack. No call rejects such an
    /// operation on a classic pair.
    fn lacking(self, context: &DeviceContext) -> Option<&'static str> {
        use DeviceCapabilityFlags as D;
        let beyond = self & (Self::of_windows() | Self::AtomicWrite | Self::Flush);
        if beyond.is_empty() {
            return None;
        }
        let device = context.query_device().ok();
        let has = device.map_or(D::empty(), |device| D::from_bits_retain(device.device_cap_flags()));
        let windows = has.intersects(D::MemoryWindowType2A | D::MemoryWindowType2B);
        [
            (Self::LocalInvalidate | Self::BindMemoryWindow, windows, "memory windows of type 2"),
            (Self::SendWithInvalidate, has.contains(D::MemoryManagementExtensions), "send with invalidate"),
            (Self::AtomicWrite, has.contains(D::AtomicWrite), "atomic write"),
            (Self::Flush, false, "flush on classic queue pairs"),
        ]
        .into_iter()
        .find(|(operations, there, _)| beyond.intersects(*operations) && !there)
        .map(|(.., what)| what)
    }
}

/// Describes a queue pair. One builder can make any number of them.
///
/// The setters change it in place, as those of [`std::process::Command`]. A chain that does not end
/// in a `build` is bound by its clone:
///
/// ```
/// # #[cfg(feature = "soft")]
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let list = sideway::DeviceList::from_provider(sideway::ProviderChoice::Soft.select()?.provider())?;
/// # let context = list.first()?.open()?;
/// # let (pd, cq) = (context.alloc_pd()?, context.create_cq_builder().build_generic()?);
/// let builder = pd.create_qp_builder().setup_send_cq(&cq).setup_recv_cq(&cq).clone();
/// let (one, other) = (builder.build_generic()?, builder.build_generic()?);
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "soft"))]
/// # fn main() {}
/// ```
#[derive(Clone, Debug)]
pub struct QueuePairBuilder {
    pd: ProtectionDomain,
    qp_type: QueuePairType,
    cap: QueuePairCapability,
    send_cq: Option<completion::Shared>,
    recv_cq: Option<completion::Shared>,
    srq: Option<Arc<SrqInner>>,
    send_ops: Option<SendOperationFlags>,
    sq_sig_all: bool,
    max_tso_header: u16,
}

impl QueuePairBuilder {
    /// An RC pair with 16 work requests of one entry in each queue, and no inline data.
    pub fn new(pd: &ProtectionDomain) -> Self {
        Self {
            pd: pd.clone(),
            qp_type: QueuePairType::ReliableConnection,
            cap: QueuePairCapability {
                max_send_wr: 16,
                max_recv_wr: 16,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            send_cq: None,
            recv_cq: None,
            srq: None,
            send_ops: None,
            sq_sig_all: false,
            max_tso_header: 0,
        }
    }

    /// Sets the transport type. A pair of type [`XrcSend`](QueuePairType::XrcSend) receives
    /// nothing, so it needs no receive completion queue. A pair of type
    /// [`XrcReceive`](QueuePairType::XrcReceive) belongs to no protection domain;
    /// [`XrcDomain::create_target`](crate::ibverbs::xrc::XrcDomain::create_target) makes it.
    pub fn setup_qp_type(&mut self, qp_type: QueuePairType) -> &mut Self {
        self.qp_type = qp_type;
        self
    }

    /// Sets the minimum number of work requests that the send queue can hold.
    pub fn setup_max_send_wr(&mut self, max_send_wr: u32) -> &mut Self {
        self.cap.max_send_wr = max_send_wr;
        self
    }

    /// Sets the minimum number of work requests that the receive queue can hold.
    pub fn setup_max_recv_wr(&mut self, max_recv_wr: u32) -> &mut Self {
        self.cap.max_recv_wr = max_recv_wr;
        self
    }

    /// Sets the maximum number of scatter/gather entries in a send request; at least one.
    pub fn setup_max_send_sge(&mut self, max_send_sge: u32) -> &mut Self {
        self.cap.max_send_sge = max_send_sge;
        self
    }

    /// Sets the maximum number of scatter/gather entries in a receive.
    pub fn setup_max_recv_sge(&mut self, max_recv_sge: u32) -> &mut Self {
        self.cap.max_recv_sge = max_recv_sge;
        self
    }

    /// Sets the maximum number of bytes of inline data in a work request.
    pub fn setup_max_inline_data(&mut self, max_inline_data: u32) -> &mut Self {
        self.cap.max_inline_data = max_inline_data;
        self
    }

    /// Sets the completion queue for sends.
    pub fn setup_send_cq(&mut self, cq: &impl CompletionQueue) -> &mut Self {
        self.send_cq = Some(cq.shared());
        self
    }

    /// Sets the completion queue for receives; it may be the same.
    pub fn setup_recv_cq(&mut self, cq: &impl CompletionQueue) -> &mut Self {
        self.recv_cq = Some(cq.shared());
        self
    }

    /// Sets the shared receive queue from which the pair takes its receives, instead of a separate
    /// receive queue. Those receives still complete into the pair's receive completion queue.
    pub fn setup_srq(&mut self, srq: &SharedReceiveQueue) -> &mut Self {
        self.srq = Some(srq.shared());
        self
    }

    /// Sets the operations that the pair will send. The default is
    /// [`of_type`](SendOperationFlags::of_type), which every device supports.
    pub fn setup_send_ops_flags(&mut self, send_ops: SendOperationFlags) -> &mut Self {
        self.send_ops = Some(send_ops);
        self
    }

    /// Sets whether every work request produces a completion, signaled or not.
    pub fn setup_sq_sig_all(&mut self, sq_sig_all: bool) -> &mut Self {
        self.sq_sig_all = sq_sig_all;
        self
    }

    /// Sets the longest header of a segmented datagram. Any value other than 0 is
    /// [`Unsupported`](crate::ibverbs::Unsupported), because this crate does not wrap segmentation
    /// offload.
    pub fn setup_max_tso_header(&mut self, max_tso_header: u16) -> &mut Self {
        self.max_tso_header = max_tso_header;
        self
    }

    /// Makes a pair for `ibv_post_send` (`ibv_create_qp`).
    ///
    /// # Errors
    ///
    /// [`CreateQueuePairError`] names the feature that the device lacks or the limit that was
    /// exceeded.
    pub fn build(&self) -> Result<BasicQueuePair, CreateQueuePairError> {
        let uses = self.uses()?;
        if let Some(what) = self.asked_ops().lacking(self.pd.context()) {
            return Err(Unsupported::new(self.pd.context(), "ibv_post_send", what).into());
        }
        let mut attr = ibv_qp_init_attr {
            send_cq: uses.send_cq.as_raw().as_ptr(),
            recv_cq: uses.recv_cq.as_raw().as_ptr(),
            srq: uses.raw_srq(),
            cap: self.raw_cap(),
            qp_type: ibv_qp_type(self.qp_type.raw()),
            sq_sig_all: self.sq_sig_all.into(),
            ..Default::default()
        };
        let lib = self.pd.context().provider().verbs();
        // SAFETY: `uses` keeps domain and queues alive, and checked that they belong to one
        // context; the rest is plain data.
        let qp = unsafe { (lib.ibv_create_qp)(self.pd.as_raw().as_ptr(), &raw mut attr) };
        let qp = NonNull::new(qp).ok_or_else(|| self.error(io::Error::last_os_error()))?;
        // SAFETY: the library made the pair just now, from this domain and these queues.
        let inner = Arc::new(unsafe { Inner::new(qp, self.qp_type, attr.cap.into(), uses) });
        let send = BasicSendQueue::new(Arc::clone(&inner), self.asked_ops())?;
        Ok(BasicQueuePair::new(send, ReceiveQueue::new(inner)?))
    }

    /// Makes a pair for `ibv_wr_*` (`ibv_create_qp_ex`).
    ///
    /// On devices whose extended pairs have defects, as SoftRoCE's and mlx5's do, it accepts no
    /// inline data, or only one scatter/gather entry: see its
    /// [`capability`](super::QueuePairControl::capability). On mlx5 it also refuses requests
    /// without a buffer ([`FullQueueUnnoticed`](super::PostSendError::FullQueueUnnoticed)).
    ///
    /// # Errors
    ///
    /// [`CreateQueuePairError`] names the feature that the device lacks or the limit that was
    /// exceeded.
    pub fn build_ex(&self) -> Result<ExtendedQueuePair, CreateQueuePairError> {
        let asked = self.asked_ops();
        let context = self.pd.context();
        let create = |attr: &mut ibv_qp_init_attr_ex| {
            // SAFETY: `build_ex_by` passes live objects of one context; the rest is plain data.
            let qp = unsafe {
                verbs::ibv_create_qp_ex(context.provider().verbs(), context.as_raw().as_ptr(), attr)
            };
            NonNull::new(qp).ok_or_else(|| {
                let source = io::Error::last_os_error();
                match source.raw_os_error() {
                    Some(libc::EOPNOTSUPP | libc::ENOSYS) => {
                        CreateQueuePairError::UnsupportedOperations { operations: asked, source }
                    }
                    _ => self.error(source),
                }
            })
        };
        // SAFETY: `create` makes a pair of the described type, with exactly the attributes that it
        // gets.
        unsafe { self.build_ex_by(self.qp_type, asked, None, create) }
    }

    /// Makes an extended pair by another function. [`direct`](crate::direct) calls it with a vendor's
    /// create function.
    ///
    /// # Safety
    ///
    /// - `create` makes a pair of type `qp_type` in the domain's context, and nothing else destroys
    ///   it. It passes on the objects and the `send_ops_flags`, which are `asked`, unchanged. In
    ///   return, the objects stay alive as long as the pair.
    /// - If requests of the type need more than [`ExtendedSendQueue`] gives them, the caller must
    ///   supply that.
    pub(crate) unsafe fn build_ex_by(
        &self,
        qp_type: QueuePairType,
        asked: SendOperationFlags,
        keep: Option<KeptByObject>,
        create: impl FnOnce(&mut ibv_qp_init_attr_ex) -> Result<NonNull<ibv_qp>, CreateQueuePairError>,
    ) -> Result<ExtendedQueuePair, CreateQueuePairError> {
        let uses = Dependencies { _kept: keep, ..self.uses()? };
        let mut attr = ibv_qp_init_attr_ex {
            send_cq: uses.send_cq.as_raw().as_ptr(),
            recv_cq: uses.recv_cq.as_raw().as_ptr(),
            srq: uses.raw_srq(),
            cap: self.raw_cap(),
            qp_type: ibv_qp_type(qp_type.raw_c()),
            sq_sig_all: self.sq_sig_all.into(),
            comp_mask: ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD.0
                | ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS.0,
            pd: self.pd.as_raw().as_ptr(),
            send_ops_flags: asked.bits(),
            ..Default::default()
        };
        let qp = create(&mut attr)?;
        let context = self.pd.context();
        let mut cap = QueuePairCapability::from(attr.cap);
        if context.quirks().no_extended_inline {
            cap.max_inline_data = 0;
        }
        if context.quirks().one_extended_entry {
            cap.max_send_sge = cap.max_send_sge.min(1);
        }
        // SAFETY: `create` made the pair just now, from this domain and these queues.
        let inner = Arc::new(unsafe { Inner::new(qp, qp_type, cap, uses) });
        let to_ex = context.provider().verbs().ibv_qp_to_qp_ex();
        // SAFETY: the pair is alive, and was made with `send_ops_flags`, so it is an extended one.
        let qp_ex = to_ex.ok().and_then(|to_ex| NonNull::new(unsafe { to_ex(qp.as_ptr()) }));
        let qp_ex = qp_ex.ok_or(CreateQueuePairError::Incomplete { operation: "ibv_qp_to_qp_ex" })?;
        // SAFETY: the pair was made with `asked`, and `qp_ex` is its library's view of the same
        // pair.
        let send = unsafe { ExtendedSendQueue::new(Arc::clone(&inner), qp_ex, asked)? };
        Ok(ExtendedQueuePair::new(send, ReceiveQueue::new(inner)?))
    }

    /// Makes a pair that never posts, by another function.
    ///
    /// # Safety
    ///
    /// The contract of [`build_ex_by`](Self::build_ex_by) applies, without operations.
    pub(crate) unsafe fn build_silent_by(
        &self,
        qp_type: QueuePairType,
        keep: Option<KeptByObject>,
        create: impl FnOnce(&mut ibv_qp_init_attr_ex) -> Result<NonNull<ibv_qp>, CreateQueuePairError>,
    ) -> Result<QueuePairControl, CreateQueuePairError> {
        let uses = Dependencies { _kept: keep, ..self.uses()? };
        let mut attr = ibv_qp_init_attr_ex {
            send_cq: uses.send_cq.as_raw().as_ptr(),
            recv_cq: uses.recv_cq.as_raw().as_ptr(),
            srq: uses.raw_srq(),
            qp_type: ibv_qp_type(qp_type.raw_c()),
            comp_mask: ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD.0,
            pd: self.pd.as_raw().as_ptr(),
            ..Default::default()
        };
        let qp = create(&mut attr)?;
        // SAFETY: `create` made the pair just now, from this domain and these queues.
        let inner = unsafe { Inner::new(qp, qp_type, attr.cap.into(), uses) };
        Ok(QueuePairControl(Arc::new(inner)))
    }

    /// Makes an extended pair if the device supports it, otherwise a basic one.
    ///
    /// It also makes a basic one if the device's extended pairs have defects that the requested
    /// features would hit. Such features are inline data, several scatter/gather entries, and
    /// operations without a buffer (bind, local invalidate, atomic write).
    ///
    /// # Errors
    ///
    /// Fails as [`build`](Self::build) does.
    pub fn build_generic(&self) -> Result<GenericQueuePair, CreateQueuePairError> {
        let quirks = self.pd.context().quirks();
        let bare =
            SendOperationFlags::of_windows() | SendOperationFlags::AtomicWrite | SendOperationFlags::Flush;
        if (self.cap.max_send_sge > 1 && quirks.one_extended_entry)
            || (self.asked_ops().intersects(bare) && quirks.overwrites_when_full)
        {
            return self.build().map(Into::into);
        }
        match self.build_ex() {
            Ok(qp) if self.cap.max_inline_data == 0 || qp.halves.send.takes_inline_data() => Ok(qp.into()),
            Ok(_) => self.build().map(Into::into),
            Err(
                CreateQueuePairError::UnsupportedOperations { .. } | CreateQueuePairError::Incomplete { .. },
            ) => self.build().map(Into::into),
            Err(error) => Err(error),
        }
    }

    /// Makes a pair of the transport `T`, as [`build_generic`](Self::build_generic) does. The
    /// compiler refuses operations that the transport lacks ([`transport`](super::transport)).
    ///
    /// # Errors
    ///
    /// Fails as [`build`](Self::build) does.
    pub fn build_typed<T: QueuePairTransport>(&self) -> Result<TypedQueuePair<T>, CreateQueuePairError> {
        self.clone().setup_qp_type(T::QP_TYPE).build_generic().map(TypedQueuePair::of)
    }

    /// The protection domain of the pairs.
    pub fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// The transport type.
    pub fn qp_type(&self) -> QueuePairType {
        self.qp_type
    }

    /// The operations that were [set](Self::setup_send_ops_flags); `None` for the default.
    pub fn send_ops_flags(&self) -> Option<SendOperationFlags> {
        self.send_ops
    }

    /// Whether the pairs take their receives from a [shared receive queue](Self::setup_srq).
    pub fn has_srq(&self) -> bool {
        self.srq.is_some()
    }

    /// Uses one completion queue for both halves if the other is missing, for types of which one
    /// half is unused.
    pub(crate) fn complete_in_one(&mut self) -> &mut Self {
        self.send_cq = self.send_cq.take().or_else(|| self.recv_cq.clone());
        self.recv_cq = self.recv_cq.take().or_else(|| self.send_cq.clone());
        self
    }

    fn asked_ops(&self) -> SendOperationFlags {
        self.send_ops.unwrap_or(SendOperationFlags::of_type(self.qp_type))
    }

    /// The objects that the pair uses. They must belong to the domain's context, because a library
    /// does not check that.
    fn uses(&self) -> Result<Dependencies, CreateQueuePairError> {
        for (asked, what) in [
            (self.qp_type == QueuePairType::RawPacket, "raw packet queue pairs in this crate"),
            (self.max_tso_header > 0, "segmentation offload in this crate"),
        ] {
            if asked {
                return Err(Unsupported::new(self.pd.context(), "ibv_create_qp_ex", what).into());
            }
        }
        if self.qp_type == QueuePairType::XrcReceive {
            return Err(CreateQueuePairError::TargetWithoutDomain);
        }
        if self.qp_type.name().is_none() || self.qp_type.is_of_driver() {
            return Err(CreateQueuePairError::UnknownType { qp_type: self.qp_type });
        }
        let get = |cq: &Option<completion::Shared>, which| match cq {
            None => Err(CreateQueuePairError::MissingCompletionQueue { which }),
            Some(cq) if cq.0.context() != self.pd.context() => {
                Err(CreateQueuePairError::OtherContext { which })
            }
            Some(cq) => Ok(Arc::clone(&cq.0)),
        };
        if self.srq.as_ref().is_some_and(|srq| srq.context() != self.pd.context()) {
            return Err(CreateQueuePairError::SharedReceiveQueueOfOtherContext);
        }
        if self.srq.as_ref().is_some_and(|srq| srq.is_xrc() || self.qp_type == QueuePairType::XrcSend) {
            return Err(CreateQueuePairError::SharedReceiveQueueOfOtherType { qp_type: self.qp_type });
        }
        let receives = if self.qp_type == QueuePairType::XrcSend { &self.send_cq } else { &self.recv_cq };
        Ok(Dependencies {
            send_cq: get(&self.send_cq, "send")?,
            recv_cq: get(receives, "receive")?,
            srq: self.srq.clone(),
            pd: self.pd.clone(),
            _kept: None,
        })
    }

    /// Whether the pair has a separate receive queue.
    fn receives(&self) -> bool {
        self.srq.is_none() && self.qp_type != QueuePairType::XrcSend
    }

    fn raw_cap(&self) -> ibv_qp_cap {
        ibv_qp_cap {
            max_send_wr: self.cap.max_send_wr,
            max_recv_wr: if self.receives() { self.cap.max_recv_wr } else { 0 },
            // At least one: even a request that moves no bytes gets a buffer.
            max_send_sge: self.cap.max_send_sge.max(1),
            max_recv_sge: if self.receives() { self.cap.max_recv_sge } else { 0 },
            max_inline_data: self.cap.max_inline_data,
        }
    }

    /// Finds out which limit was exceeded, after creation failed.
    #[cold]
    pub(crate) fn error(&self, source: io::Error) -> CreateQueuePairError {
        if let Ok(device) = self.pd.context().query_device() {
            let asked = [
                ("max_send_wr", self.cap.max_send_wr, "max_qp_wr", device.max_qp_wr()),
                ("max_recv_wr", self.cap.max_recv_wr, "max_qp_wr", device.max_qp_wr()),
                ("max_send_sge", self.cap.max_send_sge, "max_sge", device.max_sge()),
                ("max_recv_sge", self.cap.max_recv_sge, "max_sge", device.max_sge()),
            ];
            for (what, asked, limit_name, limit) in asked {
                if u32::try_from(limit).is_ok_and(|limit| asked > limit) {
                    return CreateQueuePairError::LimitExceeded { what, asked, limit_name, limit, source };
                }
            }
        }
        CreateQueuePairError::Ibverbs { cap: self.cap, source }
    }
}

impl From<NoRoom> for CreateQueuePairError {
    fn from(NoRoom { places, bytes_each }: NoRoom) -> Self {
        Self::TooLarge { places, bytes_each }
    }
}

/// A queue pair could not be made.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum CreateQueuePairError {
    /// A completion queue was not set.
    #[error("a queue pair needs a {which} completion queue")]
    MissingCompletionQueue {
        /// `send` or `receive`.
        which: &'static str,
    },
    /// A completion queue belongs to another open device than the protection domain.
    #[error("the {which} completion queue was made from another context than the protection domain")]
    OtherContext {
        /// `send` or `receive`.
        which: &'static str,
    },
    /// The shared receive queue belongs to another open device than the protection domain.
    #[error("the shared receive queue was made from another context than the protection domain")]
    SharedReceiveQueueOfOtherContext,
    /// A shared receive queue and a queue pair that do not go together: one of an XRC domain takes
    /// what comes to the domain's targets, and the sending end of such a connection receives
    /// nothing.
    #[error("a queue pair of type {qp_type} does not take receives from this shared receive queue")]
    SharedReceiveQueueOfOtherType {
        /// The queue pair's type.
        qp_type: QueuePairType,
    },
    /// The receiving end of an extended reliable connection belongs to an XRC domain, not to a
    /// protection domain.
    #[error("the receiving end of an extended reliable connection is made by `XrcDomain::create_target`")]
    TargetWithoutDomain,
    /// A type that this crate cannot make, or that only a driver's own function makes.
    #[error("queue pairs of type {qp_type} cannot be made like this")]
    UnknownType {
        /// The type that was asked for.
        qp_type: QueuePairType,
    },
    /// Something that this crate leaves out, or that the device does not have.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// More than the device has.
    #[error("{what} {asked} was asked for; the device's limit ({limit_name}) is {limit} ({source})")]
    LimitExceeded {
        /// The attribute that exceeds a limit: `max_send_wr`, for example.
        what: &'static str,
        /// The value that was asked for.
        asked: u32,
        /// The device attribute.
        limit_name: &'static str,
        /// The value that the device states for the limit.
        limit: i32,
        /// The error number of `ibv_create_qp` or `ibv_create_qp_ex`.
        source: io::Error,
    },
    /// The device has no extended queue pairs, or not with these operations.
    #[error(
        "the device has no extended queue pair with {operations:?} ({source}); use `build` or fewer operations"
    )]
    UnsupportedOperations {
        /// The operations that were asked for.
        operations: SendOperationFlags,
        /// The error number of `ibv_create_qp` or `ibv_create_qp_ex`.
        source: io::Error,
    },
    /// The description belongs to another open device than the direct verbs.
    #[error("the description of the queue pair belongs to another context than the direct verbs")]
    DescriptionOfOtherContext,
    /// A DC target was described without a shared receive queue.
    #[error("a DC target needs a shared receive queue (`setup_srq`)")]
    MissingSharedReceiveQueue,
    /// The device did not state the capabilities that the queue pair depends on.
    #[error(transparent)]
    Capabilities(#[from] Error),
    /// A vendor's function failed.
    #[error("{verb} failed for {options}: {source}")]
    Direct {
        /// The C function, such as `mlx5dv_create_qp`.
        verb: &'static str,
        /// The vendor's options that were asked for.
        options: String,
        /// Why, as for a queue pair without the options.
        source: Box<Self>,
    },
    /// The library made a queue pair that lacks an operation which every one must have.
    #[error("the device's library made a queue pair without `{operation}`")]
    Incomplete {
        /// The C function whose pointer is null.
        operation: &'static str,
    },
    /// The device granted a queue pair whose work requests have no buffer.
    #[error("the device granted no scatter/gather entry (max_send_sge) to send from, and one was asked for")]
    NoEntries,
    /// There is no memory for work requests in the number that the device granted.
    #[error("no memory for {places} places of {bytes_each} bytes, as many as the device granted")]
    TooLarge {
        /// The number of work requests that the device granted.
        places: u64,
        /// The bytes that this crate needs for each work request.
        bytes_each: usize,
    },
    /// The library refused, for a reason other than those above.
    #[error("cannot make a queue pair with {cap:?}: {source}{}", OpenFiles(.source))]
    Ibverbs {
        /// The capability that was asked for.
        cap: QueuePairCapability,
        /// The error number of `ibv_create_qp` or `ibv_create_qp_ex`.
        source: io::Error,
    },
}

debug_as_text!(CreateQueuePairError);

impl CreateQueuePairError {
    /// The same, of a vendor's function.
    pub(crate) fn of_direct(self, verb: &'static str, options: String) -> Self {
        Self::Direct { verb, options, source: Box::new(self) }
    }
}
