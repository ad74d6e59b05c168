//! Objects of this crate that a vendor's function makes.

use std::fmt;
use std::io;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::ptr::NonNull;
use std::sync::Arc;

use rdma_mummy_sys::types::{ibv_cq_ex, ibv_cq_init_attr_ex, ibv_mr, ibv_qp, ibv_qp_init_attr_ex};

use crate::ibverbs::completion::{
    self, CompletionQueue, CompletionQueueBuilder, CreateCompletionQueueError, ExtendedCompletionQueue,
    ExtendedWorkCompletion,
};
use crate::ibverbs::device_context::DeviceContext;
use crate::ibverbs::memory_region::MemoryRegion;
use crate::ibverbs::protection_domain::ProtectionDomain;
use crate::ibverbs::queue_pair::{
    CreateQueuePairError, ExtendedQueuePair, QueuePairBuilder, QueuePairControl, QueuePairType,
    SendOperationFlags,
};
use crate::ibverbs::{AccessFlags, Unsupported};

/// A vendor's function that makes an object, what the object uses, and what the error names if it
/// fails.
#[derive(Clone)]
pub struct CreateFunction<'a> {
    /// The context of the vendor's token. A description of another context is refused.
    pub context: &'a DeviceContext,
    /// The C function, such as `mlx5dv_create_qp`.
    pub verb: &'static str,
    /// The vendor's options in words. They complete the sentence "the device has no ..." for a queue
    /// pair, and "the device has no completion queues with ..." for a completion queue. Called only
    /// after a failure.
    pub options: &'a dyn Fn() -> String,
    /// A vendor's object that the made one uses, such as a doorbell page. It is dropped after the
    /// made one has been destroyed. If destruction fails, it is leaked.
    pub keep: Option<Arc<dyn Send + Sync>>,
}

/// What a vendor's object uses; it is only kept and dropped.
#[derive(Clone)]
pub(crate) struct KeptByObject {
    _object: Arc<dyn Send + Sync>,
}

// Nobody looks at the object after a panic, because nobody looks at it at all.
impl UnwindSafe for KeptByObject {}
impl RefUnwindSafe for KeptByObject {}

impl fmt::Debug for KeptByObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeptByObject")
    }
}

impl CreateFunction<'_> {
    fn kept(&self) -> Option<KeptByObject> {
        self.keep.clone().map(|object| KeptByObject { _object: object })
    }

    /// The created pair, or the error that the function left in `errno`.
    fn pair(
        &self,
        description: &QueuePairBuilder,
        qp: *mut ibv_qp,
    ) -> Result<NonNull<ibv_qp>, CreateQueuePairError> {
        NonNull::new(qp).ok_or_else(|| {
            let (source, options) = (io::Error::last_os_error(), (self.options)());
            if Unsupported::is_meant_by(&source) {
                return Unsupported::new(self.context, self.verb, options).into();
            }
            description.error(source).of_direct(self.verb, options)
        })
    }

    /// Checks that a description of a queue pair belongs to the token's context.
    fn is_mine(&self, description: &QueuePairBuilder) -> Result<(), CreateQueuePairError> {
        if description.pd().context() == self.context {
            Ok(())
        } else {
            Err(CreateQueuePairError::DescriptionOfOtherContext)
        }
    }
}

/// Makes a queue pair by a vendor's function.
///
/// The description gives the sizes, the domain and the queues, and `create` adds the vendor's
/// options. `qp_type` has the rules by which this crate checks requests, destinations and changes
/// of state; it replaces the description's type. A transport of the vendor's own takes the type
/// whose rules are its own: [`ScalableReliableDatagram`](QueuePairType::ScalableReliableDatagram)
/// for reliable datagrams with RDMA, [`DcInitiator`](QueuePairType::DcInitiator) for a pair whose
/// requests name their targets. In C, both are `IBV_QPT_DRIVER`.
///
/// `create` gets the attributes for `ibv_create_qp_ex`. It returns null and sets `errno` if it
/// fails. It may lower the sizes in `cap` after the call, if the library grants more than works.
///
/// # Safety
///
/// - `create` makes a pair of that type in the description's context, with the objects and the
///   `send_ops_flags` that it gets. Nothing else destroys the pair, and `ibv_destroy_qp` of the
///   context's provider is the function that releases it. (In return, the objects stay alive as long
///   as the pair.) If it returns null, there is no pair.
/// - The library keeps the contract of `ibv_create_qp_ex` for the pair: `ibv_qp_to_qp_ex` has its
///   `ibv_qp_ex`, whose functions exist for the operations, detect a full queue, and copy inline
///   data. Defects are declared before the pair is used: [`set_overwrites_when_full`],
///   [`forbid_inline`], a `max_inline_data` of 0.
/// - Whatever else the pair uses is alive until it has been destroyed. A clone of the pair's
///   [control](QueuePairControl) may be the last to go, so [`keep`](CreateFunction::keep) has what is
///   not the library's own.
/// - If requests of the type need more than the operation, the buffer and the address of a datagram
///   (a DC target, for example), the caller supplies that: see [`VendorList`].
///
/// [`forbid_inline`]: super::forbid_inline
/// [`set_overwrites_when_full`]: super::set_overwrites_when_full
/// [`VendorList`]: super::VendorList
///
/// # Errors
///
/// Fails as [`Unsupported`] if `errno` says that the device lacks the options, as
/// [`Direct`](CreateQueuePairError::Direct) if the function fails otherwise, and with
/// [`DescriptionOfOtherContext`](CreateQueuePairError::DescriptionOfOtherContext). Also fails as
/// [`build_ex`](QueuePairBuilder::build_ex) does.
pub unsafe fn create_queue_pair(
    function: &CreateFunction<'_>,
    description: &QueuePairBuilder,
    qp_type: QueuePairType,
    operations: SendOperationFlags,
    create: &mut dyn FnMut(&mut ibv_qp_init_attr_ex) -> *mut ibv_qp,
) -> Result<ExtendedQueuePair, CreateQueuePairError> {
    function.is_mine(description)?;
    let create = |attr: &mut _| function.pair(description, create(attr));
    // SAFETY: the caller guarantees (`# Safety`) that `create` makes a pair of that type with
    // exactly the attributes that it gets, and supplies the rest of its requests.
    unsafe { description.build_ex_by(qp_type, operations, function.kept(), create) }
}

/// Makes a queue pair that never posts sends, by a vendor's function. The result has its state and
/// attributes; receives come from the shared receive queue, if the description has one.
///
/// # Safety
///
/// The points of [`create_queue_pair`] about the object itself apply: `create` makes a pair of that
/// type, which nothing else destroys; `ibv_destroy_qp` of the context's provider is the function that
/// releases it; what it uses stays alive.
///
/// # Errors
///
/// Fails as [`create_queue_pair`] does.
pub unsafe fn create_silent_queue_pair(
    function: &CreateFunction<'_>,
    description: &QueuePairBuilder,
    qp_type: QueuePairType,
    create: &mut dyn FnMut(&mut ibv_qp_init_attr_ex) -> *mut ibv_qp,
) -> Result<QueuePairControl, CreateQueuePairError> {
    function.is_mine(description)?;
    let create = |attr: &mut _| function.pair(description, create(attr));
    // SAFETY: the caller guarantees (`# Safety`) that `create` makes a pair of that type with
    // exactly the attributes that it gets.
    unsafe { description.build_silent_by(qp_type, function.kept(), create) }
}

/// Uses one completion queue for both halves if the other is not set, for a type of which one half
/// is unused.
pub fn complete_in_one(description: &mut QueuePairBuilder) {
    description.complete_in_one();
}

/// Makes a completion queue by a vendor's function.
///
/// `create` gets the attributes for `ibv_create_cq_ex`. It returns null and sets `errno` if it
/// fails.
///
/// # Safety
///
/// - `create` makes a queue with exactly the attributes that it gets, in the description's context,
///   as `ibv_create_cq_ex` does. Nothing else destroys it, and `ibv_destroy_cq` of the context's
///   provider is the function that releases it. (In return, the context is open, and the channel in
///   the attributes belongs to it.) If it returns null, there is no queue.
/// - Whatever else the queue uses is alive until it has been destroyed. Its pairs and a [`KeptQueue`]
///   keep it after its handle is dropped, so [`keep`](CreateFunction::keep) has what is not the
///   library's own.
///
/// # Errors
///
/// Fails as [`Unsupported`] if `errno` says that the device lacks the options, as
/// [`Direct`](CreateCompletionQueueError::Direct) if the function fails otherwise, and with
/// [`DescriptionOfOtherContext`](CreateCompletionQueueError::DescriptionOfOtherContext). Also fails
/// as [`build_ex`](CompletionQueueBuilder::build_ex) does.
pub unsafe fn create_completion_queue(
    function: &CreateFunction<'_>,
    description: &CompletionQueueBuilder,
    create: &mut dyn FnMut(&mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex,
) -> Result<ExtendedCompletionQueue, CreateCompletionQueueError> {
    if description.context() != function.context {
        return Err(CreateCompletionQueueError::DescriptionOfOtherContext);
    }
    let create = |attr: &mut _| {
        NonNull::new(create(attr)).ok_or_else(|| {
            let (source, options) = (io::Error::last_os_error(), (function.options)());
            if Unsupported::is_meant_by(&source) {
                let what = format!("completion queues with {options}");
                return Unsupported::new(function.context, function.verb, what).into();
            }
            description.error(source).of_direct(function.verb, options)
        })
    };
    // SAFETY: the caller guarantees (`# Safety`) that `create` makes a queue of exactly the
    // attributes that it gets, in the description's context.
    unsafe { description.build_ex_by(function.kept(), create) }
}

/// Keeps the C object of a completion queue alive, for a reader of the vendor's completion fields.
/// It takes no part in polling, so the queue's handle may be dropped.
#[derive(Clone, Debug)]
pub struct KeptQueue(completion::Shared);

impl KeptQueue {
    /// Keeps the C object of this queue.
    pub fn of(cq: &ExtendedCompletionQueue) -> Self {
        Self(cq.shared())
    }

    /// Whether a completion comes from this queue. If so, the queue's cursor is on the completion,
    /// and nobody else polls the queue, as long as the completion is borrowed.
    #[inline]
    pub fn has(&self, wc: &ExtendedWorkCompletion<'_>) -> bool {
        // No other queue has this address while this one is alive.
        wc.queue().cast() == self.0.0.as_raw()
    }
}

/// Takes over a memory region that a vendor's function has registered: its keys go into work
/// requests, and it is deregistered when it is dropped. The region counts as a dma-buf's: it has no
/// address in this process, and only unsafe code posts it.
///
/// # Safety
///
/// `mr` was made just now in this domain, for `len` bytes whose address in work requests begins at
/// `iova`, with this access. Nothing else deregisters it, and `ibv_dereg_mr` of the context's provider
/// is the function that does. The owner of the memory has been promised what
/// [`reg_mr`](ProtectionDomain::reg_mr) asks for. Whatever else the region uses is alive until it has
/// been deregistered.
pub unsafe fn memory_region(
    mr: NonNull<ibv_mr>,
    pd: &ProtectionDomain,
    len: usize,
    iova: u64,
    access: AccessFlags,
) -> MemoryRegion {
    // SAFETY: the caller keeps this function's contract, which is the same as the called
    // function's.
    unsafe { MemoryRegion::of_direct(mr, pd, len, iova, access) }
}
