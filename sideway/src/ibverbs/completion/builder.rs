//! The completion queue builder: attributes and flags, then `ibv_create_cq` or `ibv_create_cq_ex`.

use std::io;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rdma_mummy_sys::types::{
    ibv_comp_channel, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_cq_init_attr_mask,
    ibv_create_cq_attr_flags as Flag, ibv_create_cq_wc_flags as C,
};
use rdma_mummy_sys::verbs;

use super::channel::{ChannelInner, CompletionChannel};
use super::{
    BasicCompletionQueue, CompletionQueueId, CqInner, ExtendedCompletionQueue, GenericCompletionQueue,
};
use crate::direct::KeptByObject;
use crate::ibverbs::Unsupported;
use crate::ibverbs::device_context::DeviceContext;

c_flags! {
    /// The optional fields of an extended queue's completions (`ibv_create_cq_wc_flags`).
    pub struct WorkCompletionFields(u64) {
        /// The number of bytes received or read.
        ByteLen = C::IBV_WC_EX_WITH_BYTE_LEN.0,
        /// Immediate data, or the key that the peer invalidated.
        Imm = C::IBV_WC_EX_WITH_IMM.0,
        /// The queue pair's number.
        QpNum = C::IBV_WC_EX_WITH_QP_NUM.0,
        /// The sender's queue pair number (UD).
        SrcQp = C::IBV_WC_EX_WITH_SRC_QP.0,
        /// The sender's LID.
        Slid = C::IBV_WC_EX_WITH_SLID.0,
        /// The service level.
        Sl = C::IBV_WC_EX_WITH_SL.0,
        /// The path bits of the destination LID.
        DlidPathBits = C::IBV_WC_EX_WITH_DLID_PATH_BITS.0,
        /// The device's clock when the work completed, in ticks.
        CompletionTimestamp = C::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP.0,
        /// The time of day when the work completed, in nanoseconds.
        CompletionTimestampWallclock = C::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK.0,
        /// The VLAN tag that the device removed from the packet (raw packets).
        Cvlan = C::IBV_WC_EX_WITH_CVLAN.0,
        /// The tag that a flow rule attached to the packet.
        FlowTag = C::IBV_WC_EX_WITH_FLOW_TAG.0,
        /// The tag by which the message was matched.
        TmInfo = C::IBV_WC_EX_WITH_TM_INFO.0,
    }
}

impl WorkCompletionFields {
    /// The fields that every device supports: all except the timestamps and those of special
    /// traffic (raw packets, flow rules, tag matching).
    pub const STANDARD: Self = Self::ByteLen
        .union(Self::Imm)
        .union(Self::QpNum)
        .union(Self::SrcQp)
        .union(Self::Slid)
        .union(Self::Sl)
        .union(Self::DlidPathBits);

    /// [`STANDARD`](Self::STANDARD).
    #[allow(non_upper_case_globals)]
    #[deprecated(note = "use `WorkCompletionFields::STANDARD`")]
    pub const StandardFlags: Self = Self::STANDARD;
}

/// [`WorkCompletionFields`].
#[deprecated(note = "use `WorkCompletionFields`")]
pub type CreateCompletionQueueWorkCompletionFlags = WorkCompletionFields;

impl DeviceContext {
    /// Returns a builder for completion queues of this context.
    pub fn create_cq_builder(&self) -> CompletionQueueBuilder {
        CompletionQueueBuilder::new(self)
    }
}

/// Describes a completion queue. One builder can make any number of them.
#[derive(Clone, Debug)]
pub struct CompletionQueueBuilder {
    context: DeviceContext,
    cqe: u32,
    comp_vector: u32,
    fields: WorkCompletionFields,
    poll_batch: u32,
    cq_context: u64,
    channel: Option<Arc<ChannelInner>>,
    /// Bits of `ibv_create_cq_attr_flags`.
    flags: u32,
}

impl CompletionQueueBuilder {
    /// The number of completions that a [`BasicCompletionQueue`] fetches at a time.
    pub const DEFAULT_POLL_BATCH: u32 = 16;

    /// A queue of 1024 completions with the [standard fields](WorkCompletionFields::STANDARD).
    pub fn new(context: &DeviceContext) -> Self {
        Self {
            context: context.clone(),
            cqe: 1024,
            comp_vector: 0,
            fields: WorkCompletionFields::STANDARD,
            poll_batch: Self::DEFAULT_POLL_BATCH,
            cq_context: 0,
            channel: None,
            flags: 0,
        }
    }

    /// Sets the minimum number of completions that the queue can hold; the device may round it up.
    pub fn setup_cqe(&mut self, cqe: u32) -> &mut Self {
        self.cqe = cqe;
        self
    }

    /// Sets the channel that delivers the queue's events. The channel lives as long as its queues.
    pub fn setup_comp_channel(&mut self, channel: &CompletionChannel) -> &mut Self {
        self.channel = Some(channel.shared());
        self
    }

    /// Sets the value that the queue's events carry
    /// ([`CompletionEvent::cq_context`](super::CompletionEvent::cq_context)), for example an index
    /// into the program's own table.
    pub fn setup_cq_context(&mut self, cq_context: u64) -> &mut Self {
        self.cq_context = cq_context;
        self
    }

    /// Makes the queue without a lock (`IBV_CREATE_CQ_ATTR_SINGLE_THREADED`), which makes polling
    /// cheaper on some devices. It has no effect on queues that are not extended
    /// ([`build`](Self::build)).
    ///
    /// # Safety
    ///
    /// The queue's library takes no lock where it otherwise would. So the following operations on a
    /// queue made with this must never overlap, and none may run while a poller of the queue
    /// exists. A leaked poller exists until the next poll.
    ///
    /// - The queue is polled, armed, resized or dropped.
    /// - A queue pair or shared receive queue that completes into it is made, changes its state, or
    ///   is dropped.
    ///
    /// It is enough to do all of this on one thread, and to hold no poller across these calls.
    pub unsafe fn setup_single_threaded(&mut self, single_threaded: bool) -> &mut Self {
        self.set_flag(Flag::IBV_CREATE_CQ_ATTR_SINGLE_THREADED, single_threaded)
    }

    /// Declares that the queue never overruns (`IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN`), so that the
    /// device does not check. If it overruns nevertheless, completions are lost silently instead of
    /// the queue failing. Extended queues only.
    pub fn setup_ignore_overrun(&mut self, ignore_overrun: bool) -> &mut Self {
        self.set_flag(Flag::IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN, ignore_overrun)
    }

    fn set_flag(&mut self, flag: Flag, on: bool) -> &mut Self {
        self.flags = if on { self.flags | flag.0 } else { self.flags & !flag.0 };
        self
    }

    /// Sets the completion vector (interrupt) of the queue, below
    /// [`num_comp_vectors`](DeviceContext::num_comp_vectors).
    pub fn setup_comp_vector(&mut self, comp_vector: u32) -> &mut Self {
        self.comp_vector = comp_vector;
        self
    }

    /// Sets the optional fields of an extended queue's completions.
    pub fn setup_wc_flags(&mut self, fields: WorkCompletionFields) -> &mut Self {
        self.fields = fields;
        self
    }

    /// Sets how many completions a [`BasicCompletionQueue`] fetches at a time: at least one, and at
    /// most the number set by [`setup_cqe`](Self::setup_cqe).
    pub fn setup_poll_batch(&mut self, poll_batch: u32) -> &mut Self {
        self.poll_batch = poll_batch.max(1);
        self
    }

    /// Makes a queue for `ibv_poll_cq` (`ibv_create_cq`).
    ///
    /// # Errors
    ///
    /// Fails if the device's queues cannot hold this number of completions, or if the device has no
    /// more queues.
    ///
    /// # References
    ///
    /// `man ibv_create_cq`
    pub fn build(&self) -> Result<BasicCompletionQueue, CreateCompletionQueueError> {
        let cqe = i32::try_from(self.cqe).map_err(|_| self.error(einval()))?;
        let vector = i32::try_from(self.comp_vector).map_err(|_| self.error(einval()))?;
        if self.flags & Flag::IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN.0 != 0 {
            let capability = "classic completion queue that ignores overruns";
            return Err(Unsupported::new(&self.context, "ibv_create_cq", capability).into());
        }
        let (id, channel) = (CompletionQueueId::new(), self.channel()?);
        // SAFETY: the builder keeps the context open, and the channel, if any, belongs to it, which
        // `channel` checked.
        let cq = unsafe {
            (self.context.provider().verbs().ibv_create_cq)(
                self.context.as_raw().as_ptr(),
                cqe,
                id.to_context(),
                channel,
                vector,
            )
        };
        let cq = NonNull::new(cq).ok_or_else(|| self.error(io::Error::last_os_error()))?;
        let inner = self.inner(cq, id, None);
        // The queue never holds more than `cqe` completions, so a larger batch would be wasted.
        BasicCompletionQueue::new(inner, self.poll_batch.min(self.cqe.max(1)))
    }

    /// Makes a queue for `ibv_start_poll` (`ibv_create_cq_ex`).
    ///
    /// # Errors
    ///
    /// Fails if the device has no extended queues, or not with these fields, and as
    /// [`build`](Self::build) does.
    ///
    /// # References
    ///
    /// `man ibv_create_cq_ex`
    pub fn build_ex(&self) -> Result<ExtendedCompletionQueue, CreateCompletionQueueError> {
        let create = |attr: &mut ibv_cq_init_attr_ex| {
            // SAFETY: the builder keeps the context open, and `build_ex_by` passes initialised
            // attributes.
            let cq = unsafe { verbs::ibv_create_cq_ex(self.context.as_raw().as_ptr(), attr) };
            NonNull::new(cq).ok_or_else(|| {
                let source = io::Error::last_os_error();
                if Unsupported::is_meant_by(&source) {
                    Unsupported::new(&self.context, "ibv_create_cq_ex", self.describe()).into()
                } else {
                    self.error(source)
                }
            })
        };
        // SAFETY: `create` makes a queue of exactly the attributes that it gets.
        unsafe { self.build_ex_by(None, create) }
    }

    /// Makes an extended queue by another function. [`direct`](crate::direct) calls it with a
    /// vendor's create function.
    ///
    /// # Safety
    ///
    /// `create` makes a queue with exactly the attributes that it gets, in the builder's context,
    /// and nothing else destroys the queue. In return, the context is open, and the channel in the
    /// attributes, if any, belongs to it.
    pub(crate) unsafe fn build_ex_by(
        &self,
        keep: Option<KeptByObject>,
        create: impl FnOnce(&mut ibv_cq_init_attr_ex) -> Result<NonNull<ibv_cq_ex>, CreateCompletionQueueError>,
    ) -> Result<ExtendedCompletionQueue, CreateCompletionQueueError> {
        let id = CompletionQueueId::new();
        let cq = create(&mut self.attributes(id)?)?;
        let inner = self.inner(cq.cast(), id, keep);
        // SAFETY: the caller guarantees that this is an `ibv_cq_ex` made with these fields.
        unsafe { ExtendedCompletionQueue::new(inner, self.fields) }
    }

    /// Makes an extended queue if the device supports it, otherwise a basic one.
    ///
    /// # Errors
    ///
    /// Fails as [`build`](Self::build) does.
    pub fn build_generic(&self) -> Result<GenericCompletionQueue, CreateCompletionQueueError> {
        match self.build_ex() {
            Ok(cq) => Ok(cq.into()),
            Err(
                CreateCompletionQueueError::Unsupported(_) | CreateCompletionQueueError::Incomplete { .. },
            ) => self.build().map(Into::into),
            Err(error) => Err(error),
        }
    }

    /// The context in which the queues are made.
    pub fn context(&self) -> &DeviceContext {
        &self.context
    }

    /// The attributes for `ibv_create_cq_ex`. A parent domain would be one more attribute with a
    /// bit in `comp_mask`.
    fn attributes(&self, id: CompletionQueueId) -> Result<ibv_cq_init_attr_ex, CreateCompletionQueueError> {
        let mut attr = ibv_cq_init_attr_ex {
            cqe: self.cqe,
            cq_context: id.to_context(),
            channel: self.channel()?,
            comp_vector: self.comp_vector,
            wc_flags: self.fields.bits(),
            ..Default::default()
        };
        // Libraries that know no flags reject the `comp_mask` bit, so it is set only if needed.
        if self.flags != 0 {
            attr.comp_mask |= ibv_cq_init_attr_mask::IBV_CQ_INIT_ATTR_MASK_FLAGS.0;
            attr.flags = self.flags;
        }
        Ok(attr)
    }

    /// The C channel, or null; fails if it belongs to another context.
    fn channel(&self) -> Result<*mut ibv_comp_channel, CreateCompletionQueueError> {
        let Some(channel) = &self.channel else { return Ok(ptr::null_mut()) };
        if *channel.context() != self.context {
            return Err(CreateCompletionQueueError::ForeignChannel);
        }
        Ok(channel.as_raw().as_ptr())
    }

    fn inner(&self, cq: NonNull<ibv_cq>, id: CompletionQueueId, keep: Option<KeptByObject>) -> Arc<CqInner> {
        // SAFETY: both callers made the queue just now, in this context and with this id and
        // channel.
        unsafe { CqInner::new(cq, self.context.clone(), id, self.cq_context, self.channel.clone(), keep) }
    }

    #[cold]
    fn describe(&self) -> String {
        let flag = |flag: Flag, name| if self.flags & flag.0 != 0 { name } else { "" };
        format!(
            "extended completion queue with {:?}{}{}",
            self.fields,
            flag(Flag::IBV_CREATE_CQ_ATTR_SINGLE_THREADED, ", single-threaded"),
            flag(Flag::IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN, ", ignoring overruns"),
        )
    }

    #[cold]
    pub(crate) fn error(&self, source: io::Error) -> CreateCompletionQueueError {
        let limit = self.context.query_device().map_or(0, |attr| attr.max_cqe());
        if u32::try_from(limit).is_ok_and(|limit| limit > 0 && self.cqe > limit) {
            return CreateCompletionQueueError::TooManyEntries { cqe: self.cqe, limit, source };
        }
        CreateCompletionQueueError::Ibverbs { cqe: self.cqe, source }
    }
}

fn einval() -> io::Error {
    io::Error::from_raw_os_error(libc::EINVAL)
}

/// A completion queue could not be made.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum CreateCompletionQueueError {
    /// The device's queues do not hold that many completions.
    #[error(
        "a completion queue of {cqe} entries was asked for; the device's limit (max_cqe) is {limit} ({source})"
    )]
    TooManyEntries {
        /// The number of entries that was asked for.
        cqe: u32,
        /// The device's limit.
        limit: i32,
        /// The error number of `ibv_create_cq` or `ibv_create_cq_ex`.
        source: io::Error,
    },
    /// The device has no extended queues, or not with these fields.
    #[error("{0}; use `build` or fewer fields")]
    Unsupported(#[from] Unsupported),
    /// The channel was made from another context.
    #[error("the completion channel was made from another context than the completion queue")]
    ForeignChannel,
    /// The description belongs to another open device than the direct verbs.
    #[error("the description of the completion queue belongs to another context than the direct verbs")]
    DescriptionOfOtherContext,
    /// A vendor's function failed.
    #[error("{verb} failed with {options}: {source}")]
    Direct {
        /// The C function, such as `mlx5dv_create_cq`.
        verb: &'static str,
        /// The vendor's options that were asked for.
        options: String,
        /// Why, as for a queue without the options.
        source: Box<Self>,
    },
    /// The library made a queue that lacks an operation which every one must have.
    #[error("the device's library made a completion queue without `{operation}`")]
    Incomplete {
        /// The operation that is null.
        operation: &'static str,
    },
    /// The library refused, for a reason other than those above.
    #[error("cannot make a completion queue of {cqe} entries: {source}")]
    Ibverbs {
        /// The number of entries that was asked for.
        cqe: u32,
        /// The error number of `ibv_create_cq` or `ibv_create_cq_ex`.
        source: io::Error,
    },
}

debug_as_text!(CreateCompletionQueueError);

impl CreateCompletionQueueError {
    /// The same, of a vendor's function.
    pub(crate) fn of_direct(self, verb: &'static str, options: String) -> Self {
        Self::Direct { verb, options, source: Box::new(self) }
    }
}
