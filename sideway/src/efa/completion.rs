//! Completion queues with EFA's own completion fields.
//!
//! # Safety
//!
//! The unsafe code in this module relies on these invariants:
//!
//! - `efa` is the result of `efadv_cq_from_ibv_cq_ex` for the queue, which [`CompletionReader`]
//!   keeps alive.
//! - The operations of `fields` are not null: [`CompletionQueueBuilder::build_ex`] checks them. A
//!   library makes a queue only with fields that it knows, so its struct is long enough for them.
//! - The queue's cursor is on a completion while an [`ExtendedWorkCompletion`] of it exists, and
//!   nobody else polls it. [`KeptQueue::has`] tells whether a completion belongs to the queue.

use std::mem::offset_of;
use std::ptr::NonNull;

use rdma_mummy_sys::types::{
    EFADV_WC_EX_WITH_IS_UNSOLICITED, EFADV_WC_EX_WITH_SGID, efadv_cq, efadv_cq_init_attr, ibv_gid,
};
use rdma_mummy_sys::{efadv, field};

use super::DirectVerbs;
use crate::direct::{self, CreateFunction, KeptQueue};
use crate::ibverbs::Unsupported;
use crate::ibverbs::address::Gid;
use crate::ibverbs::completion::CreateCompletionQueueError;
use crate::ibverbs::completion::{
    self, CompletionQueue, ExtendedCompletionQueue, ExtendedWorkCompletion, WorkCompletionStatus,
};

c_flags! {
    /// Optional fields of EFA's completions (`EFADV_WC_EX_WITH_*`).
    pub struct CompletionFields(u64) {
        /// The GID of a sender for which the device has no address handle.
        Sgid = EFADV_WC_EX_WITH_SGID,
        /// Whether the completion consumed no receive.
        IsUnsolicited = EFADV_WC_EX_WITH_IS_UNSOLICITED,
    }
}

/// Describes a completion queue with EFA's fields. One builder can make any number of them.
#[derive(Clone, Debug)]
pub struct CompletionQueueBuilder {
    direct: DirectVerbs,
    description: completion::CompletionQueueBuilder,
    fields: CompletionFields,
}

impl DirectVerbs {
    /// Returns a builder that adds EFA's fields to a copy of a completion queue's description.
    pub fn create_cq_builder(
        &self,
        description: &completion::CompletionQueueBuilder,
    ) -> CompletionQueueBuilder {
        let fields = CompletionFields::empty();
        CompletionQueueBuilder { direct: self.clone(), description: description.clone(), fields }
    }
}

impl CompletionQueueBuilder {
    /// Sets the additional fields of completions.
    pub fn setup_efa_fields(&mut self, fields: CompletionFields) -> &mut Self {
        self.fields = fields;
        self
    }

    /// Makes the queue (`efadv_create_cq`), and the reader for EFA's fields of its completions.
    ///
    /// # Errors
    ///
    /// Fails as [`Unsupported`] if the device has no such fields, or if the library is too old.
    /// Also fails as [`build_ex`](completion::CompletionQueueBuilder::build_ex) does.
    ///
    /// # References
    ///
    /// `man efadv_create_cq`
    pub fn build_ex(
        &self,
    ) -> Result<(ExtendedCompletionQueue, CompletionReader), CreateCompletionQueueError> {
        let context = self.direct.context();
        if self.description.context() != context {
            return Err(CreateCompletionQueueError::DescriptionOfOtherContext);
        }
        let what = || format!("completion queues with {:?}", self.fields);
        let missing = |symbol| Unsupported::missing(context, what(), symbol);
        let create = self.direct.as_raw().efadv_create_cq().map_err(missing)?;
        let of_ex = self.direct.as_raw().efadv_cq_from_ibv_cq_ex().map_err(missing)?;
        let mut own = efadv_cq_init_attr { wc_flags: self.fields.bits(), ..Default::default() };
        let mut create = |attr: &mut _| {
            // SAFETY: the context is open and belongs to EFA. Both attributes are initialised, and
            // the second has the size that is passed.
            unsafe { create(context.as_raw().as_ptr(), attr, &raw mut own, size_of_val(&own) as u32) }
        };
        let options = || format!("{:?}", self.fields);
        let function = CreateFunction { context, verb: "efadv_create_cq", options: &options, keep: None };
        // SAFETY: `create` makes a queue of exactly the attributes that it gets, in the
        // description's context.
        let cq = unsafe { direct::create_completion_queue(&function, &self.description, &mut create)? };
        // SAFETY: the queue is alive, and an extended one of EFA.
        let efa = NonNull::new(unsafe { of_ex(cq.as_raw().as_ptr().cast()) });
        let efa = efa.ok_or_else(|| incomplete("efadv_cq_from_ibv_cq_ex"))?;
        let reader = CompletionReader { efa, fields: self.fields, queue: KeptQueue::of(&cq) };
        reader.check()?;
        Ok((cq, reader))
    }
}

/// Reads EFA's own fields from the completions of one queue.
///
/// It keeps the queue's memory alive, but takes no part in polling, so the queue's handle may be
/// dropped.
#[derive(Debug)]
pub struct CompletionReader {
    efa: NonNull<efadv_cq>,
    fields: CompletionFields,
    queue: KeptQueue,
}

// SAFETY: `efa` is used only with a completion of the queue at hand, which stays on the thread that
// polls.
unsafe impl Send for CompletionReader {}
// SAFETY: `efa` is only used with a completion of the queue at hand, which stays on the thread that
// polls.
unsafe impl Sync for CompletionReader {}

impl CompletionReader {
    /// Checks that the operations exist.
    fn check(&self) -> Result<(), CreateCompletionQueueError> {
        let efa = self.efa.as_ptr();
        if self.fields.contains(CompletionFields::Sgid) {
            // SAFETY: the struct has the field, because the queue was made with it (module head).
            let read = unsafe { field::read(efa, offset_of!(efadv_cq, wc_read_sgid), |cq| &cq.wc_read_sgid) };
            read.ok_or_else(|| incomplete("wc_read_sgid"))?;
        }
        if self.fields.contains(CompletionFields::IsUnsolicited) {
            let place = offset_of!(efadv_cq, wc_is_unsolicited);
            // SAFETY: the struct has the field, because the queue was made with it (module head).
            let read = unsafe { field::read(efa, place, |cq| &cq.wc_is_unsolicited) };
            read.ok_or_else(|| incomplete("wc_is_unsolicited"))?;
        }
        Ok(())
    }

    /// The fields that it can read.
    pub fn fields(&self) -> CompletionFields {
        self.fields
    }

    /// Whether a completion belongs to the queue, has this field, and was successful.
    #[inline]
    fn has(&self, wc: &ExtendedWorkCompletion<'_>, field: CompletionFields) -> bool {
        self.fields.contains(field) && self.queue.has(wc) && wc.status() == WorkCompletionStatus::Success
    }

    /// The sender's GID, if the device has no address handle for it (`efadv_wc_read_sgid`). `None`
    /// also for a completion that failed or belongs to another queue, and if the queue was made
    /// without [`CompletionFields::Sgid`].
    #[inline]
    pub fn sgid(&self, wc: &ExtendedWorkCompletion<'_>) -> Option<Gid> {
        if !self.has(wc, CompletionFields::Sgid) {
            return None;
        }
        let mut gid = ibv_gid::default();
        // SAFETY: the cursor is on a completion of this queue, and `check` verified the reader
        // (module head).
        let result = unsafe { efadv::efadv_wc_read_sgid(self.efa.as_ptr(), &raw mut gid) };
        (result == 0).then(|| Gid::from(gid))
    }

    /// Whether the completion consumed no receive (`efadv_wc_is_unsolicited`). `None` for a
    /// completion that failed or belongs to another queue, and if the queue was made without
    /// [`CompletionFields::IsUnsolicited`].
    #[inline]
    pub fn is_unsolicited(&self, wc: &ExtendedWorkCompletion<'_>) -> Option<bool> {
        if !self.has(wc, CompletionFields::IsUnsolicited) {
            return None;
        }
        // SAFETY: the cursor is on a completion of this queue, and `check` verified the reader
        // (module head).
        Some(unsafe { efadv::efadv_wc_is_unsolicited(self.efa.as_ptr()) })
    }
}

fn incomplete(operation: &'static str) -> CreateCompletionQueueError {
    CreateCompletionQueueError::Incomplete { operation }
}
