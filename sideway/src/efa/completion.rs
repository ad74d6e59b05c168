//! Completion queues that tell what only EFA's completions have.
//!
//! # Safety
//!
//! What the unsafe code here relies on, and where it comes from:
//!
//! - `efa` is what `efadv_cq_from_ibv_cq_ex` made of the queue, which [`CompletionReader`] keeps alive.
//! - The operations of `fields` are not null: [`CompletionQueueBuilder::build_ex`] looks. Only a library that knows a field
//!   makes a queue with it, and its struct is long enough for it then.
//! - The cursor of the queue is on a completion while an [`ExtendedWorkCompletion`] of it exists, and nobody else polls it. A
//!   completion is of this queue if its pointer is this queue's, as no other has its address while it lives.

use std::io;
use std::mem::offset_of;
use std::ptr::NonNull;

use rdma_mummy_sys::types::{
    EFADV_WC_EX_WITH_IS_UNSOLICITED, EFADV_WC_EX_WITH_SGID, efadv_cq, efadv_cq_init_attr, ibv_gid,
};
use rdma_mummy_sys::{efadv, field};

use super::DirectVerbs;
use crate::ibverbs::Unsupported;
use crate::ibverbs::address::Gid;
use crate::ibverbs::completion::CreateCompletionQueueError;
use crate::ibverbs::completion::{
    self, CompletionQueue, ExtendedCompletionQueue, ExtendedWorkCompletion, WorkCompletionStatus,
};

c_flags! {
    /// What completions tell besides (`EFADV_WC_EX_WITH_*`).
    pub struct CompletionFields(u64) {
        /// The GID of a sender that the device knows no address handle of.
        Sgid = EFADV_WC_EX_WITH_SGID,
        /// Whether the completion took no receive.
        IsUnsolicited = EFADV_WC_EX_WITH_IS_UNSOLICITED,
    }
}

/// Describes a completion queue with EFA's fields. The same description makes any number of them.
#[derive(Clone, Debug)]
pub struct CompletionQueueBuilder {
    direct: DirectVerbs,
    description: completion::CompletionQueueBuilder,
    fields: CompletionFields,
}

impl DirectVerbs {
    /// Begins to add EFA's fields to the description of a completion queue, of which a copy is taken.
    pub fn create_cq_builder(
        &self,
        description: &completion::CompletionQueueBuilder,
    ) -> CompletionQueueBuilder {
        let fields = CompletionFields::empty();
        CompletionQueueBuilder { direct: self.clone(), description: description.clone(), fields }
    }
}

impl CompletionQueueBuilder {
    /// The fields that completions have besides.
    pub fn setup_efa_fields(&mut self, fields: CompletionFields) -> &mut Self {
        self.fields = fields;
        self
    }

    /// Makes the queue (`efadv_create_cq`), and what reads EFA's fields of its completions.
    ///
    /// # Errors
    ///
    /// The device has no such fields, or the library is too old ([`Unsupported`]); or what
    /// [`build_ex`](completion::CompletionQueueBuilder::build_ex) says.
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
        let create = |attr: &mut _| {
            // SAFETY: the context is open and EFA's, both attributes are initialised, and the second has the size that is said.
            let cq =
                unsafe { create(context.as_raw().as_ptr(), attr, &raw mut own, size_of_val(&own) as u32) };
            NonNull::new(cq).ok_or_else(|| {
                let source = io::Error::last_os_error();
                if Unsupported::is_meant_by(&source) {
                    return Unsupported::new(context, "efadv_create_cq", what()).into();
                }
                self.description.error(source).of_direct("efadv_create_cq", format!("{:?}", self.fields))
            })
        };
        // SAFETY: the queue is made of the attributes as they are, in the context of the description.
        let cq: ExtendedCompletionQueue = unsafe { self.description.build_ex_by(create)? };
        // SAFETY: the queue lives and is an extended one of EFA's.
        let efa = NonNull::new(unsafe { of_ex(cq.as_raw().as_ptr().cast()) });
        let efa = efa.ok_or_else(|| incomplete("efadv_cq_from_ibv_cq_ex"))?;
        let reader = CompletionReader { efa, fields: self.fields, queue: cq.shared() };
        reader.check()?;
        Ok((cq, reader))
    }
}

/// Reads EFA's own fields of the completions of one queue.
///
/// It keeps the queue's memory, and nothing of its polling: the queue itself may go.
#[derive(Debug)]
pub struct CompletionReader {
    efa: NonNull<efadv_cq>,
    fields: CompletionFields,
    queue: completion::Shared,
}

// SAFETY: `efa` is only used with a completion of the queue at hand, which stays on the thread that polls.
unsafe impl Send for CompletionReader {}
// SAFETY: `efa` is only used with a completion of the queue at hand, which stays on the thread that
// polls.
unsafe impl Sync for CompletionReader {}

impl CompletionReader {
    /// That the operations are there.
    fn check(&self) -> Result<(), CreateCompletionQueueError> {
        let efa = self.efa.as_ptr();
        if self.fields.contains(CompletionFields::Sgid) {
            // SAFETY: the struct has the field (head of this file).
            let read = unsafe { field::read(efa, offset_of!(efadv_cq, wc_read_sgid), |cq| &cq.wc_read_sgid) };
            read.ok_or_else(|| incomplete("wc_read_sgid"))?;
        }
        if self.fields.contains(CompletionFields::IsUnsolicited) {
            let place = offset_of!(efadv_cq, wc_is_unsolicited);
            // SAFETY: the struct has the field (head of this file).
            let read = unsafe { field::read(efa, place, |cq| &cq.wc_is_unsolicited) };
            read.ok_or_else(|| incomplete("wc_is_unsolicited"))?;
        }
        Ok(())
    }

    /// The fields that it reads.
    pub fn fields(&self) -> CompletionFields {
        self.fields
    }

    /// Whether a completion is one of the queue's, with this field, and has succeeded.
    #[inline]
    fn has(&self, wc: &ExtendedWorkCompletion<'_>, field: CompletionFields) -> bool {
        self.fields.contains(field)
            && wc.queue().cast() == self.queue.0.as_raw()
            && wc.status() == WorkCompletionStatus::Success
    }

    /// The GID of the sender, if the device knows no address handle of it (`efadv_wc_read_sgid`); `None` also for a completion
    /// that failed or is another queue's, and if the queue was not made with [`CompletionFields::Sgid`].
    #[inline]
    pub fn sgid(&self, wc: &ExtendedWorkCompletion<'_>) -> Option<Gid> {
        if !self.has(wc, CompletionFields::Sgid) {
            return None;
        }
        let mut gid = ibv_gid::default();
        // SAFETY: the cursor is on a completion of this queue and the reader is there (head of this file).
        let result = unsafe { efadv::efadv_wc_read_sgid(self.efa.as_ptr(), &raw mut gid) };
        (result == 0).then(|| Gid::from(gid))
    }

    /// Whether the completion took no receive (`efadv_wc_is_unsolicited`); `None` for one that failed or is another queue's, and
    /// if the queue was not made with [`CompletionFields::IsUnsolicited`].
    #[inline]
    pub fn is_unsolicited(&self, wc: &ExtendedWorkCompletion<'_>) -> Option<bool> {
        if !self.has(wc, CompletionFields::IsUnsolicited) {
            return None;
        }
        // SAFETY: the cursor is on a completion of this queue and the reader is there (head of this file).
        Some(unsafe { efadv::efadv_wc_is_unsolicited(self.efa.as_ptr()) })
    }
}

fn incomplete(operation: &'static str) -> CreateCompletionQueueError {
    CreateCompletionQueueError::Incomplete { operation }
}
