//! The functions that the crate of another vendor calls (`sideway::direct`).

use std::io::IoSlice;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

use sideway::direct::{
    CreateFunction, KeptQueue, VendorList, create_completion_queue, create_queue_pair,
    create_silent_queue_pair, forbid_inline, set_overwrites_when_full,
};
use sideway::ibverbs::address_handle::AddressHandle;
use sideway::ibverbs::completion::BasicCompletionQueue;
use sideway::ibverbs::device_context::DeviceContext;
use sideway::ibverbs::queue_pair::{
    CreateQueuePairError, ExtendedPostSendGuard, ExtendedQueuePair, PostSendError, PostSendGuard, QueuePair,
    QueuePairType, SendOperationFlags, WorkRequestOperationType,
};
use sideway::sys::types::*;
use sideway::sys::verbs;

use super::super::support::fake::{Fake, FakeWorld};
use super::super::{FakeSetup, SIGNALED};
use super::{DirectSetup, handle};

type Pair = FakeSetup<ExtendedQueuePair, BasicCompletionQueue>;

const TYPES: [QueuePairType; 3] =
    [QueuePairType::ReliableConnection, QueuePairType::UnreliableDatagram, QueuePairType::XrcSend];

fn pair(fake: &Fake, qp_type: QueuePairType) -> Pair {
    Pair::with(fake, |cq| cq, |qp| qp.setup_qp_type(qp_type))
}

/// Appends a SEND with one byte of inline data to where pairs of this type send.
fn append_inline<'queue>(
    guard: &mut ExtendedPostSendGuard<'queue>,
    qp_type: QueuePairType,
    ah: &'queue AddressHandle,
    in_pieces: bool,
) {
    let request = guard.construct_wr(1, SIGNALED);
    let send = match qp_type {
        QueuePairType::UnreliableDatagram => request.setup_ud_address(ah, 2, 3).setup_send(),
        QueuePairType::XrcSend => request.setup_xrc_srqn(7).setup_send(),
        _ => request.setup_send(),
    };
    if in_pieces {
        send.setup_inline_data_list(&[IoSlice::new(&[1])]);
    } else {
        send.setup_inline_data(&[1]);
    }
}

/// Posts one byte of inline data, in both forms, after `declare`, and returns the results.
fn post_inline(qp_type: QueuePairType, declare: fn(&mut Pair)) -> [Result<(), PostSendError>; 2] {
    let fake = Fake::new();
    let mut setup = pair(&fake, qp_type);
    let ah = handle(&setup.context);
    declare(&mut setup);
    [false, true].map(|in_pieces| {
        let mut guard = setup.qp.start_post_send();
        append_inline(&mut guard, qp_type, &ah, in_pieces);
        guard.post()
    })
}

#[test]
fn a_queue_that_overwrites_when_full_takes_no_inline_data() {
    let refused = Err(PostSendError::InlineDataTooLong { index: 0, given: 1, limit: 0 });
    for qp_type in TYPES {
        assert_eq!(post_inline(qp_type, |_| {}), [Ok(()), Ok(())], "{qp_type}");
        let declared = post_inline(qp_type, |setup| set_overwrites_when_full(setup.qp.split().0));
        assert_eq!(declared, [refused, refused], "{qp_type}");
    }
}

/// Also where each request names its destination. Other operations keep their inline data.
#[test]
fn inline_data_that_a_vendor_forbids_is_refused() {
    const SENDS: SendOperationFlags = SendOperationFlags::Send;
    let refused = Err(PostSendError::InlineDataTooLong { index: 0, given: 1, limit: 0 });
    for qp_type in TYPES {
        let of_sends = post_inline(qp_type, |setup| forbid_inline(setup.qp.split().0, SENDS));
        assert_eq!(of_sends, [refused, refused], "{qp_type}");
        let of_others = post_inline(qp_type, |setup| forbid_inline(setup.qp.split().0, !SENDS));
        assert_eq!(of_others, [Ok(()), Ok(())], "{qp_type}");
    }
}

/// A vendor's list, which notes the operation of each request that it appends.
struct NotingGuard<'queue> {
    list: ExtendedPostSendGuard<'queue>,
    operations: Vec<WorkRequestOperationType>,
}

// SAFETY: the list comes from the queue, and the guard posts or drops it. The closure is called once.
unsafe impl<'queue> VendorList<'queue> for NotingGuard<'queue> {
    fn extended(&self) -> &ExtendedPostSendGuard<'queue> {
        &self.list
    }

    unsafe fn extended_mut(&mut self) -> &mut ExtendedPostSendGuard<'queue> {
        &mut self.list
    }

    unsafe fn append_with(
        &mut self,
        operation: WorkRequestOperationType,
        append: impl FnOnce(&mut ExtendedPostSendGuard<'queue>),
    ) {
        self.operations.push(operation);
        append(&mut self.list);
    }
}

impl PostSendGuard for NotingGuard<'_> {
    fn post(self) -> Result<(), PostSendError> {
        self.list.post()
    }
}

#[test]
fn a_vendors_list_gets_inline_data_in_order_and_whole() {
    let fake = Fake::new();
    *fake.world.inline_data.lock().unwrap() = Some(Vec::new());
    let mut setup = pair(&fake, QueuePairType::ReliableConnection);
    let mut guard = NotingGuard { list: setup.qp.start_post_send(), operations: Vec::new() };
    guard.construct_wr(1, SIGNALED).setup_send().setup_inline_data(b"one slice");
    let pieces = [&b"one "[..], b"after ", b"", b"other"].map(IoSlice::new);
    guard.construct_wr(2, SIGNALED).setup_write(1, 2).setup_inline_data_list(&pieces);
    guard.construct_wr(3, SIGNALED).setup_send_imm(4).setup_inline_data(b"the last");
    use WorkRequestOperationType as Operation;
    assert_eq!(guard.operations, [Operation::Send, Operation::Write, Operation::SendWithImmediate]);
    guard.post().unwrap();
    assert_eq!(fake.world.posted.load(Relaxed), 3);
    let recorded = fake.world.inline_data.lock().unwrap().take().unwrap();
    assert_eq!(recorded, [&b"one slice"[..], b"one after other", b"the last"]);
}

/// What had been destroyed when a vendor's object was dropped; `None` before.
type Seen = Arc<Mutex<Option<Vec<&'static str>>>>;

/// A vendor's object that a pair or a queue uses.
struct DoorbellPage {
    world: Arc<FakeWorld>,
    seen: Seen,
}

impl DoorbellPage {
    fn new(fake: &Fake) -> (Arc<Self>, Seen) {
        let seen = Seen::default();
        (Arc::new(Self { world: Arc::clone(&fake.world), seen: Arc::clone(&seen) }), seen)
    }
}

impl Drop for DoorbellPage {
    fn drop(&mut self) {
        *self.seen.lock().unwrap() = Some(self.world.destroyed.lock().unwrap().clone());
    }
}

fn no_options() -> String {
    unreachable!("nothing fails")
}

fn function(context: &DeviceContext, page: Arc<DoorbellPage>) -> CreateFunction<'_> {
    CreateFunction { context, verb: "acme_create", options: &no_options, keep: Some(page) }
}

fn create_qp(context: &DeviceContext, attr: &mut ibv_qp_init_attr_ex) -> *mut ibv_qp {
    // SAFETY: the context is open, and the attributes are those that the caller got for it.
    unsafe { verbs::ibv_create_qp_ex(context.provider().verbs(), context.as_raw().as_ptr(), attr) }
}

#[test]
fn an_object_that_a_vendors_pair_uses_is_dropped_after_it() {
    for is_silent in [false, true] {
        let parts = DirectSetup::new();
        let (description, context) = (parts.description(), parts.pd.context());
        let (page, seen) = DoorbellPage::new(&parts.fake);
        let mut create = |attr: &mut _| create_qp(context, attr);
        let (function, qp_type) = (function(context, page), QueuePairType::ReliableConnection);
        let control = if is_silent {
            // SAFETY: `create_qp` passes its attributes to the library, and nothing else destroys the
            // pair.
            unsafe { create_silent_queue_pair(&function, &description, qp_type, &mut create) }.unwrap()
        } else {
            let operations = SendOperationFlags::Send;
            // SAFETY: as above. The requests of the pair need nothing further.
            let pair =
                unsafe { create_queue_pair(&function, &description, qp_type, operations, &mut create) };
            pair.unwrap().control().clone()
        };
        drop(function);
        assert_eq!(*seen.lock().unwrap(), None, "the control keeps the pair");
        drop(control);
        assert_eq!(seen.lock().unwrap().as_deref(), Some(&["qp"][..]));
    }
}

/// A vendor's function would take the other context's objects for its own.
#[test]
fn a_vendors_function_gets_no_description_of_another_context() {
    let parts = DirectSetup::new();
    let other = parts.fake.context();
    let (page, _) = DoorbellPage::new(&parts.fake);
    let function = function(&other, page);
    let (description, qp_type) = (parts.description(), QueuePairType::ReliableConnection);
    let mut create = |_: &mut _| unreachable!("the description is refused");
    let operations = SendOperationFlags::Send;
    // SAFETY: `create` is never called, so that no pair exists whose contract it could break.
    let pair = unsafe { create_queue_pair(&function, &description, qp_type, operations, &mut create) };
    assert!(matches!(pair, Err(CreateQueuePairError::DescriptionOfOtherContext)), "{pair:?}");
    // SAFETY: as above, `create` is never called, so that no pair exists.
    let silent = unsafe { create_silent_queue_pair(&function, &description, qp_type, &mut create) };
    assert!(matches!(silent, Err(CreateQueuePairError::DescriptionOfOtherContext)), "{silent:?}");
}

#[test]
fn an_object_that_a_vendors_completion_queue_uses_is_dropped_after_it() {
    let fake = Fake::new();
    let context = fake.context();
    let (page, seen) = DoorbellPage::new(&fake);
    let mut create = |attr: &mut ibv_cq_init_attr_ex| {
        // SAFETY: the context is open, and the attributes are those that the caller got for it.
        unsafe { verbs::ibv_create_cq_ex(context.as_raw().as_ptr(), attr) }
    };
    let (function, description) = (function(&context, page), context.create_cq_builder());
    // SAFETY: `create` passes its attributes to the library, and nothing else destroys the queue.
    let cq = unsafe { create_completion_queue(&function, &description, &mut create) }.unwrap();
    drop(function);
    let kept = KeptQueue::of(&cq);
    drop(cq);
    assert_eq!(*seen.lock().unwrap(), None, "the reader keeps the queue");
    drop(kept);
    assert_eq!(seen.lock().unwrap().as_deref(), Some(&["cq"][..]));
}
