//! Completion queues: creation, polling, resizing, and the fields of extended queues.

use std::collections::HashSet;
use std::time::Duration;

use libc::{EBUSY, EINVAL, EOPNOTSUPP};
use rdma_mummy_sys::types::ibv_create_cq_attr_flags as Flag;
use rdma_mummy_sys::types::ibv_create_cq_wc_flags as With;
use rdma_mummy_sys::types::ibv_event_type as EventType;
use rdma_mummy_sys::types::ibv_wc_opcode as Opcode;

use crate::kit::{
    Cq, CqInit, Device, Flavour, Node, NodeOptions, Outcome, STANDARD, SoftRoce, Suite, TestDevice,
    WAIT_LIMIT, Wr, poll_until,
};

pub(crate) fn cases(suite: &mut Suite) {
    both!(suite:
        an_empty_queue_polls_empty,
        a_queue_has_at_least_the_room_that_was_asked_for,
        a_queue_without_room_is_refused,
        a_queue_beyond_the_limit_is_refused,
        a_vector_that_is_not_there_is_refused,
        a_queue_of_a_pair_is_busy,
    );
    cases!(suite:
        every_reader_is_granted_and_reads,
        unknown_readers_are_refused,
        an_unknown_mask_of_a_poll_is_refused,
        polls_of_many_read_each_once,
        completions_have_timestamps_in_order,
        completions_have_wall_clock_times,
        resize_makes_room,
        resize_down_keeps_what_is_there,
        resize_below_what_is_there_is_refused,
        resize_to_nothing_or_too_much_is_refused,
        the_clock_runs_forward,
        timestamps_are_of_the_clock,
        a_queue_of_one_thread_works,
        a_queue_that_ignores_overruns_does_not_fail,
        unknown_flags_of_a_queue_are_refused,
        a_full_queue_is_an_event_and_a_failed_one,
        many_queues_are_made,
        polling_takes_no_more_than_asked_for,
    );
}

pub(super) const MOMENT: Duration = Duration::from_millis(50);

pub(super) fn ex(flavour: Flavour) -> Option<u64> {
    (flavour == Flavour::Extended).then_some(STANDARD)
}

fn an_empty_queue_polls_empty(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let cq = Cq::of(&dut.open(), 16, flavour, None);
    for _ in 0..3 {
        assert!(cq.poll(4).is_empty());
    }
    assert_eq!(cq.destroy(), 0);
    Ok(())
}

fn a_queue_has_at_least_the_room_that_was_asked_for(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let device = dut.open();
    let most = device.query().unwrap().max_cqe;
    for cqe in [1, 2, 100, 1000, most] {
        let cq = Cq::of(&device, cqe, flavour, None);
        assert!(cq.cqe() >= cqe, "{} of {cqe}", cq.cqe());
    }
    Ok(())
}

fn a_queue_without_room_is_refused(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let device = dut.open();
    for cqe in [0, -1] {
        let made = Cq::new(&device, &CqInit { cqe, ex: ex(flavour), ..CqInit::default() });
        assert_eq!(made.err(), Some(EINVAL), "{cqe}");
    }
    Ok(())
}

fn a_queue_beyond_the_limit_is_refused(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let device = dut.open();
    let most = device.query().unwrap().max_cqe;
    for cqe in [most + 1, i32::MAX] {
        let made = Cq::new(&device, &CqInit { cqe, ex: ex(flavour), ..CqInit::default() });
        assert_eq!(made.err(), Some(EINVAL), "{cqe}");
    }
    Ok(())
}

fn a_vector_that_is_not_there_is_refused(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let device = dut.open();
    let vectors = device.of_context().1;
    for vector in [vectors, -1] {
        let made = Cq::new(&device, &CqInit { vector, ex: ex(flavour), ..CqInit::default() });
        assert_eq!(made.err(), Some(EINVAL), "{vector}");
    }
    assert!(Cq::new(&device, &CqInit { vector: vectors - 1, ex: ex(flavour), ..CqInit::default() }).is_ok());
    Ok(())
}

fn a_queue_of_a_pair_is_busy(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let node = Node::new(&dut.open(), &NodeOptions::rc(flavour));
    assert_eq!((node.send_cq.destroy(), node.recv_cq.destroy()), (EBUSY, EBUSY));
    assert_eq!(node.qp.destroy(), 0);
    assert_eq!((node.send_cq.destroy(), node.recv_cq.destroy()), (0, 0));
    Ok(())
}

/// Two nodes on extended queues with these fields.
fn with_readers(device: &Device, flags: u64) -> Result<(Node, Cq), i32> {
    let cq = Cq::new(device, &CqInit { ex: Some(flags), ..CqInit::default() })?;
    let node = Node::with_queues(device, &NodeOptions::rc(Flavour::Extended), None, Some(&cq));
    node.connect(&node.peer());
    Ok((node, cq))
}

fn every_reader_is_granted_and_reads(dut: &TestDevice) -> Outcome {
    let device = dut.open();
    for flags in (0..7).map(|bit| 1 << bit).chain([0, STANDARD]) {
        let (node, cq) = with_readers(&device, flags).unwrap();
        node.recv(1, 0, 64);
        node.done(Wr::send_imm(2, 0xabcd).sge(node.mr.at(0, 24)));
        let wc = cq.ok();
        assert_eq!((wc.id, wc.opcode), (1, Opcode::IBV_WC_RECV));
        let has = |flag: With| flags & u64::from(flag.0) != 0;
        assert_eq!(wc.len, if has(With::IBV_WC_EX_WITH_BYTE_LEN) { 24 } else { 0 });
        assert_eq!(wc.imm, if has(With::IBV_WC_EX_WITH_IMM) { 0xabcd } else { 0 });
        assert_eq!(wc.qp_num, if has(With::IBV_WC_EX_WITH_QP_NUM) { node.qp.num() } else { 0 });
    }
    Ok(())
}

fn unknown_readers_are_refused(dut: &TestDevice) -> Outcome {
    let device = dut.open();
    for flags in [1 << 40, 1 << 63, STANDARD | 1 << 30] {
        let error = with_readers(&device, flags).err();
        assert!([Some(EINVAL), Some(EOPNOTSUPP)].contains(&error), "{flags:#x}: {error:?}");
    }
    Ok(())
}

/// `man ibv_create_cq_ex`: `comp_mask` is reserved for extensions, and none is defined. mlx5
/// refuses other values.
fn an_unknown_mask_of_a_poll_is_refused(dut: &TestDevice) -> Outcome {
    dut.not_softroce("does not look at the comp_mask of ibv_start_poll")?;
    let device = dut.open();
    let (node, cq) = with_readers(&device, STANDARD).unwrap();
    node.recv(1, 0, 64);
    node.done(Wr::send(2).sge(node.mr.at(0, 24)));
    let error = cq.start_poll_with(1);
    assert_eq!(error, EINVAL);
    assert_eq!(cq.ok().id, 1, "the completion is still there");
    Ok(())
}

fn polls_of_many_read_each_once(dut: &TestDevice) -> Outcome {
    dut.not_on(SoftRoce::Old, "loses count where ibv_next_poll finds its queue empty")?;
    let device = dut.open();
    let (node, cq) = with_readers(&device, STANDARD).unwrap();
    for id in 0..10 {
        node.recv(id, 0, 64);
        node.done(Wr::send(id).sge(node.mr.at(0, 24)));
    }
    let mut ids = Vec::new();
    poll_until(WAIT_LIMIT, || {
        ids.extend(cq.poll_batch(4).iter().map(|wc| wc.id));
        (ids.len() >= 10).then_some(())
    });
    assert_eq!(ids, (0..10).collect::<Vec<_>>());
    assert!(cq.poll_batch(4).is_empty());
    node.recv(10, 0, 64);
    node.done(Wr::send(10).sge(node.mr.at(0, 24)));
    assert_eq!(cq.ok().id, 10);
    Ok(())
}

const NO_TIMES: &str = "has no completion timestamps";

fn completions_have_timestamps_in_order(dut: &TestDevice) -> Outcome {
    dut.not_softroce(NO_TIMES)?;
    let device = dut.open();
    assert_ne!(device.query_ex(None).unwrap().completion_timestamp_mask, 0);
    let flags = STANDARD | u64::from(With::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP.0);
    let (node, cq) = with_readers(&device, flags).unwrap();
    let times: Vec<_> = (0..5)
        .map(|id| {
            node.recv(id, 0, 64);
            node.done(Wr::send(id).sge(node.mr.at(0, 24)));
            cq.ok().timestamp.unwrap()
        })
        .collect();
    assert!(times.is_sorted() && times[0] < times[4], "{times:?}");
    Ok(())
}

fn completions_have_wall_clock_times(dut: &TestDevice) -> Outcome {
    dut.not_softroce(NO_TIMES)?;
    let device = dut.open();
    let flags = STANDARD | u64::from(With::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK.0);
    let (node, cq) = with_readers(&device, flags).unwrap();
    let now =
        || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64;
    let before = now();
    node.recv(1, 0, 64);
    node.done(Wr::send(2).sge(node.mr.at(0, 24)));
    let time = cq.ok().wallclock.unwrap();
    assert!((before..=now()).contains(&time), "{time}");
    Ok(())
}

/// Sends to itself until this many completions are in the queue.
pub(super) fn fill(node: &Node, count: u64) {
    for id in 0..count {
        node.recv(id, 0, 64);
        node.done(Wr::send(id).sge(node.mr.at(0, 8)));
    }
}

pub(super) fn with_queue_of(device: &Device, cqe: i32) -> (Node, Cq) {
    let cq = device.cq(cqe);
    // A receive's slot is free only after its completion is polled, which is late here.
    let options = NodeOptions::rc(Flavour::Classic).set(|options| options.cap.max_recv_wr = 600);
    let node = Node::with_queues(device, &options, None, Some(&cq));
    node.connect(&node.peer());
    (node, cq)
}

pub(super) fn ids(cq: &Cq, count: usize) -> Vec<u64> {
    cq.wait(count).iter().map(|wc| wc.id).collect()
}

fn resize_makes_room(dut: &TestDevice) -> Outcome {
    let device = dut.open();
    let (node, cq) = with_queue_of(&device, 4);
    fill(&node, 3);
    assert_eq!(cq.resize(200), 0);
    assert!(cq.cqe() >= 200);
    fill(&node, 100);
    assert_eq!(ids(&cq, 103), (0..3).chain(0..100).collect::<Vec<_>>());
    Ok(())
}

fn resize_down_keeps_what_is_there(dut: &TestDevice) -> Outcome {
    let device = dut.open();
    let (node, cq) = with_queue_of(&device, 500);
    fill(&node, 10);
    assert_eq!(cq.resize(20), 0);
    assert!(cq.cqe() >= 20);
    assert_eq!(ids(&cq, 10), (0..10).collect::<Vec<_>>());
    fill(&node, 5);
    assert_eq!(ids(&cq, 5), (0..5).collect::<Vec<_>>());
    Ok(())
}

/// `man ibv_resize_cq`: the size must not be below the number of completions in the queue.
fn resize_below_what_is_there_is_refused(dut: &TestDevice) -> Outcome {
    let device = dut.open();
    let (node, cq) = with_queue_of(&device, 200);
    fill(&node, 100);
    assert_eq!(cq.resize(10), EINVAL);
    assert_eq!(ids(&cq, 100), (0..100).collect::<Vec<_>>());
    Ok(())
}

fn resize_to_nothing_or_too_much_is_refused(dut: &TestDevice) -> Outcome {
    let device = dut.open();
    let (node, cq) = with_queue_of(&device, 20);
    let most = device.query().unwrap().max_cqe;
    for cqe in [0, -1, most + 1] {
        assert_eq!(cq.resize(cqe), EINVAL, "{cqe}");
    }
    fill(&node, 1);
    assert_eq!(cq.ok().id, 0);
    Ok(())
}

/// `man ibv_query_rt_values_ex`.
fn the_clock_runs_forward(dut: &TestDevice) -> Outcome {
    dut.not_softroce(NO_TIMES)?;
    let device = dut.open();
    assert_ne!(device.query_ex(None).unwrap().hca_core_clock, 0);
    let times: Vec<_> = (0..100).map(|_| device.clock(1).unwrap()).collect();
    assert!(times.iter().all(|(mask, _)| *mask == 1), "{times:?}");
    assert!(times.is_sorted_by_key(|(_, ticks)| *ticks) && times[0].1 < times[99].1, "{times:?}");
    // The call answers no other fields than the requested and known ones.
    assert_eq!(device.clock(0).unwrap().0, 0);
    assert_eq!(device.clock(1 << 9 | 1).unwrap().0, 1);
    Ok(())
}

/// `man ibv_create_cq_ex`: a timestamp counts ticks of the device's clock.
fn timestamps_are_of_the_clock(dut: &TestDevice) -> Outcome {
    dut.not_softroce(NO_TIMES)?;
    let device = dut.open();
    let flags = STANDARD | u64::from(With::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP.0);
    let (node, cq) = with_readers(&device, flags).unwrap();
    let before = device.clock(1).unwrap().1.cast_unsigned();
    fill(&node, 1);
    let time = cq.ok().timestamp.unwrap();
    assert!((before..=device.clock(1).unwrap().1.cast_unsigned()).contains(&time), "{time}");
    Ok(())
}

/// An extended queue with these flags, for the receives of a node that is connected to itself.
fn with_flags(device: &Device, cqe: i32, flags: u32) -> (Node, Cq) {
    let cq = Cq::new(device, &CqInit { cqe, ex: Some(STANDARD), flags, ..CqInit::default() }).unwrap();
    let options = NodeOptions::rc(Flavour::Extended).set(|options| options.cap.max_recv_wr = 64);
    let node = Node::with_queues(device, &options, None, Some(&cq));
    node.connect(&node.peer());
    (node, cq)
}

const NO_FLAGS: &str = "has no flags of completion queues";

/// `man ibv_create_cq_ex`: `IBV_CREATE_CQ_ATTR_SINGLE_THREADED`.
fn a_queue_of_one_thread_works(dut: &TestDevice) -> Outcome {
    dut.not_softroce(NO_FLAGS)?;
    let (node, cq) = with_flags(&dut.open(), 64, Flag::IBV_CREATE_CQ_ATTR_SINGLE_THREADED.0);
    fill(&node, 20);
    assert_eq!(ids(&cq, 20), (0..20).collect::<Vec<_>>());
    Ok(())
}

/// `man ibv_create_cq_ex`: with `IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN` a queue "will not pass to error
/// state if overrun"; completions may be lost.
fn a_queue_that_ignores_overruns_does_not_fail(dut: &TestDevice) -> Outcome {
    dut.not_softroce(NO_FLAGS)?;
    let device = dut.open();
    let (node, cq) = with_flags(&device, 4, Flag::IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN.0);
    fill(&node, cq.cqe() as u64 + 4);
    assert!(!cq.poll(64).is_empty());
    assert!(device.event(MOMENT).is_none_or(|event| event.kind() != EventType::IBV_EVENT_CQ_ERR));
    fill(&node, 1);
    cq.wait(1);
    Ok(())
}

/// `man ibv_create_cq_ex` lists the flags; releases of rdma-core that support flags refuse others.
fn unknown_flags_of_a_queue_are_refused(dut: &TestDevice) -> Outcome {
    dut.not_softroce(NO_FLAGS)?;
    let device = dut.open();
    let init = CqInit { ex: Some(STANDARD), flags: 1 << 20, ..CqInit::default() };
    let error = Cq::new(&device, &init).err();
    assert!(error.is_some_and(|error| [EINVAL, EOPNOTSUPP].contains(&error)), "{error:?}");
    Ok(())
}

/// `man ibv_get_async_event`, `IBV_EVENT_CQ_ERR`: an overrun is an event of the queue.
fn a_full_queue_is_an_event_and_a_failed_one(dut: &TestDevice) -> Outcome {
    let device = dut.open();
    let cq = device.cq(2);
    let room = cq.cqe() as u64;
    if room > 10_000 {
        skip!("the smallest queue has room for {room} completions");
    }
    let options = NodeOptions::rc(Flavour::Classic).set(|options| options.cap.max_recv_wr = room as u32 + 8);
    let node = Node::with_queues(&device, &options, None, Some(&cq));
    node.connect(&node.peer());
    for id in 0..room + 1 {
        node.recv(id, 0, 64);
        node.post(Wr::send(id).sge(node.mr.at(0, 8)));
        if id < room {
            node.send_cq.ok();
        }
    }
    let event = device.event(WAIT_LIMIT).expect("the overrun is announced");
    assert_eq!((event.kind(), event.element()), (EventType::IBV_EVENT_CQ_ERR, cq.address()));
    Ok(())
}

fn many_queues_are_made(dut: &TestDevice) -> Outcome {
    let device = dut.open();
    let queues: Vec<_> = (0..100).map(|_| device.cq(10)).collect();
    let addresses: HashSet<_> = queues.iter().map(Cq::address).collect();
    assert_eq!(addresses.len(), 100);
    Ok(())
}

fn polling_takes_no_more_than_asked_for(dut: &TestDevice) -> Outcome {
    let device = dut.open();
    let (node, cq) = with_queue_of(&device, 50);
    fill(&node, 10);
    assert_eq!(cq.poll(3).len(), 3);
    assert_eq!(cq.poll(0).len(), 0);
    let rest = cq.poll(50);
    assert_eq!(rest.iter().map(|wc| wc.id).collect::<Vec<_>>(), (3..10).collect::<Vec<_>>());
    Ok(())
}
