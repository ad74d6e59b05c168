//! Tests of the code with which the project was announced: it compiles and runs. The only changes
//! are `unsafe` blocks and unwrapped `Option`s. Its two errors have the announced text. The tests
//! run on a fake device.

use std::error::Error;
use std::thread;

use crate::support::fake::{Fake, Lies};
use crate::support::flavour::{CqFlavour, QpFlavour};
use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::address::{AddressHandleAttribute, Gid};
use sideway::ibverbs::completion::{ExtendedCompletionQueue, GenericCompletionQueue};
use sideway::ibverbs::memory_region::MemoryRegion;
use sideway::ibverbs::port::Mtu;
use sideway::ibverbs::queue_pair::{
    ExtendedQueuePair, GenericQueuePair, PostSendGuard, QueuePair, QueuePairAttribute, QueuePairState,
    WorkRequestFlags,
};

/// The announcement's `WorkerContext`; its `...` stands for the memory.
#[allow(missing_docs, unreachable_pub, reason = "as it was announced")]
pub struct WorkerContext {
    pub queue_pairs: Vec<GenericQueuePair>,
    pub send_completion_queue: GenericCompletionQueue,
    pub recv_completion_queue: Option<GenericCompletionQueue>,
    pub memory_regions: Vec<MemoryRegion>,
}

fn regions(fake: &Fake) -> (MemoryRegion, MemoryRegion) {
    let pd = fake.pd();
    // SAFETY: no bytes are registered.
    let region = || unsafe { pd.reg_mr(std::ptr::null_mut(), 0, AccessFlags::LocalWrite).unwrap() };
    (region(), region())
}

fn make<Q: QpFlavour, C: CqFlavour>(fake: &Fake) -> (Q, C) {
    let context = fake.context();
    let cq = C::make(&context.create_cq_builder()).unwrap();
    let pd = context.alloc_pd().unwrap();
    (Q::make(pd.create_qp_builder().setup_send_cq(&cq).setup_recv_cq(&cq)).unwrap(), cq)
}

fn post<Q: QueuePair>(qp: &mut Q, rmr: &MemoryRegion, lmr: &MemoryRegion) -> Result<(), Box<dyn Error>> {
    let mut guard = qp.start_post_send();

    let write_handle =
        guard.construct_wr(233, WorkRequestFlags::Signaled).setup_write(rmr.rkey(), rmr.get_ptr() as _);

    // SAFETY: the device is a fake, which accesses no registered memory.
    unsafe { write_handle.setup_sge(lmr.lkey(), lmr.get_ptr() as _, 4096) };

    // Before actual post, you could construct more WRs and then post them at once,
    // which could increase performance
    guard.post()?;
    Ok(())
}

/// Written once for each flavour, as the announcement's text stands.
macro_rules! poll {
    ($($name:ident: $Queue:ty;)*) => {$(
        #[allow(clippy::never_loop)]
        fn $name(cq: &mut $Queue) {
            loop {
                match cq.start_poll() {
                    Ok(mut poller) => {
                        while let Some(wc) = poller.next() {
                            println!("wr_id: {}, status: {}, opcode: {}", wc.wr_id(), wc.status(), wc.opcode())
                        }
                    }
                    Err(_) => {
                        continue;
                    }
                }
                break;
            }
        }
    )*};
}

poll! {
    poll_basic: sideway::ibverbs::completion::BasicCompletionQueue;
    poll_extended: ExtendedCompletionQueue;
    poll_generic: GenericCompletionQueue;
}

#[test]
fn the_posting_snippet_posts() {
    fn check<Q: QpFlavour>() {
        let fake = Fake::new();
        let (rmr, lmr) = regions(&fake);
        let (mut qp, mut cq) = make::<Q, GenericCompletionQueue>(&fake);
        post(&mut qp, &rmr, &lmr).unwrap();
        let mut said = Vec::new();
        cq.poll(&mut |wc| said.push(format!("{} {} {}", wc.wr_id, wc.status, wc.opcode))).unwrap();
        assert_eq!(said, ["233 success rdma write"]);
    }
    for_each_qp!(check());
}

#[test]
fn the_polling_snippet_polls() {
    fn check<C: CqFlavour>(poll: fn(&mut C)) {
        let fake = Fake::new();
        let (rmr, lmr) = regions(&fake);
        let (mut qp, mut cq) = make::<ExtendedQueuePair, C>(&fake);
        post(&mut qp, &rmr, &lmr).unwrap();
        poll(&mut cq);
        assert_eq!(cq.poll(&mut |_| {}).unwrap(), 0, "the snippet took it all");
    }
    check(poll_basic);
    check(poll_extended);
    check(poll_generic);
}

fn worker(fake: &Fake) -> WorkerContext {
    let (qp, send_completion_queue) = make(fake);
    let context = fake.context();
    let recv_completion_queue = Some(context.create_cq_builder().build_generic().unwrap());
    let (one, two) = regions(fake);
    WorkerContext {
        queue_pairs: vec![qp],
        send_completion_queue,
        recv_completion_queue,
        memory_regions: vec![one, two],
    }
}

#[test]
fn the_workers_context_has_no_lifetime_and_is_sent() {
    fn sendable<T: Send + 'static>(value: T) -> T {
        value
    }
    let fake = Fake::new();
    let mut worker = sendable(worker(&fake));
    worker = thread::spawn(move || {
        let (rmr, lmr) = (&worker.memory_regions[0], &worker.memory_regions[1]);
        post(&mut worker.queue_pairs[0], rmr, lmr).unwrap();
        poll_generic(&mut worker.send_completion_queue);
        worker
    })
    .join()
    .unwrap();
    assert_eq!(worker.queue_pairs.len(), 1);
}

#[test]
fn the_workers_fields_are_dropped_in_any_order() {
    for order in 0..24 {
        let fake = Fake::new();
        let WorkerContext { queue_pairs, send_completion_queue, recv_completion_queue, memory_regions } =
            worker(&fake);
        let mut fields: Vec<Box<dyn std::any::Any>> = vec![
            Box::new(queue_pairs),
            Box::new(send_completion_queue),
            Box::new(recv_completion_queue),
            Box::new(memory_regions),
        ];
        let mut order = order;
        for left in (1..=4).rev() {
            drop(fields.remove(order % left));
            order /= left;
        }
    }
}

/// A pair in the state `Init` whose next change fails with `errno`.
fn refusing(errno: i32) -> (Fake, GenericQueuePair) {
    let fake = Fake::lying(|l: &mut Lies| {
        l.modify_qp = errno;
        l.queried_state = Some(QueuePairState::Init.raw());
    });
    let (qp, _) = make::<_, GenericCompletionQueue>(&fake);
    (fake, qp)
}

/// The attributes that the announcement's example sets, with `setup_port` in place of two others.
fn the_examples_attributes(address: &AddressHandleAttribute) -> QueuePairAttribute {
    let mut attr = QueuePairAttribute::new();
    attr.setup_state(QueuePairState::ReadyToReceive)
        .setup_path_mtu(Mtu::Mtu1024)
        .setup_dest_qp_num(0x79)
        .setup_rq_psn(0x3f2d77)
        .setup_port(1)
        .setup_address_vector(address);
    attr
}

#[test]
fn the_example_on_invalid_attributes_is_told() {
    let (_fake, mut qp) = refusing(libc::EINVAL);
    let error = qp.modify(&the_examples_attributes(&AddressHandleAttribute::new())).unwrap_err();
    assert_eq!(
        format!("ModifyQueuePairError({error:?})"),
        "ModifyQueuePairError(InvalidAttributeMask { cur_state: Init, next_state: ReadyToReceive, invalid: \
         QueuePairAttributeMask[Port], needed: QueuePairAttributeMask[MinResponderNotReadyTimer, \
         MaxDestinationReadAtomic], source: Os { code: 22, kind: InvalidInput, message: \"Invalid argument\" } })"
    );
}

#[test]
fn the_example_on_an_invalid_address_is_told() {
    let (_fake, mut qp) = refusing(libc::ETIMEDOUT);
    let gid: Gid = "fe80:0000:0000:0000:fc6b:02ff:fea7:d4bf".parse().unwrap();
    let mut address = AddressHandleAttribute::new();
    address.setup_grh_src_gid_index(0).setup_grh_dest_gid(&gid);
    let error = qp.modify(&the_examples_attributes(&address)).unwrap_err();
    assert_eq!(
        format!("ModifyQueuePairError({error:?})"),
        "ModifyQueuePairError(ResolveRouteTimedout { sgid_index: 0, gid: Gid { raw: [254, 128, 0, 0, 0, 0, 0, 0, \
         252, 107, 2, 255, 254, 167, 212, 191] }, source: Os { code: 110, kind: TimedOut, message: \"Connection \
         timed out\" } })"
    );
}
