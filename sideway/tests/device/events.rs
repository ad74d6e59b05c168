//! Tests of completion channels, asynchronous events and timestamps.

use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use sideway::ErrorKind;
use sideway::ibverbs::clock::ClockConverter;
use sideway::ibverbs::completion::{
    ChannelWakeup, CompletionChannel, CompletionQueue, CreateCompletionQueueError, ExtendedCompletionQueue,
    GenericCompletionQueue, Notify, WorkCompletionFields,
};
use sideway::ibverbs::device_context::DeviceContext;
use sideway::ibverbs::event::{AsyncElement, AsyncEvent, AsyncEventType};
use sideway::ibverbs::queue_pair::{GenericQueuePair, QueuePair, WorkRequestFlags};

use crate::harness::{Outcome, Suite, TestDevice};
use crate::node::{AnyPair, Data, Node, NodeOptions, Op, Pair, SIGNALED};
use crate::support::flavour::{CqFlavour, QpFlavour};

pub(crate) fn cases(suite: &mut Suite) {
    each_cq!(suite:
        a_completion_wakes_who_waits,
        completions_before_arming_belong_to_the_poller,
        only_solicited_completions_wake_who_waits_for_those,
        a_queue_is_resized_and_loses_nothing,
    );
    cases!(suite:
        a_channel_leads_to_each_of_its_queues,
        a_wait_ends_when_its_time_is_over,
        a_wait_ends_when_the_channel_is_closed,
        a_wait_ends_when_another_descriptor_is_ready,
        a_closed_channel_stays_closed,
        a_queue_goes_with_events_pending,
        queues_go_while_another_thread_waits,
        a_channel_is_readable_while_there_are_events,
        no_event_is_missed_at_any_moment,
        moderated_queues_wake_who_waits,
        a_queue_of_one_thread_works,
        a_queue_that_ignores_overruns_works,
        timestamps_follow_the_clocks,
        a_failure_is_an_event_with_its_pair,
        an_overrun_is_an_event_with_its_queue,
        events_do_not_keep_pairs_alive,
    );
}

const PATIENCE: Duration = Duration::from_secs(20);
const MOMENT: Duration = Duration::from_millis(50);

/// A connected pair. The second node's receives complete into a queue with a channel and the
/// context 7.
fn with_channel<C: CqFlavour>(test_device: &TestDevice) -> (Pair<GenericQueuePair, C>, CompletionChannel) {
    let (options, context) = (NodeOptions::default(), test_device.open());
    let a = Node::new(&context, test_device.port, &options);
    let mut b = Node::<GenericQueuePair, C>::new(&context, test_device.port, &options);
    let channel = context.create_comp_channel().unwrap();
    let mut builder = context.create_cq_builder();
    let cq = C::make(builder.setup_comp_channel(&channel).setup_cq_context(7)).unwrap();
    b.qp = GenericQueuePair::make(
        b.pd.create_qp_builder()
            .setup_send_cq(&b.send_cq)
            .setup_recv_cq(&cq)
            .setup_max_recv_wr(options.recv_wr),
    )
    .unwrap();
    b.recv_cq = cq;
    (Pair::connect(a, b, &options.connect), channel)
}

fn arm(cq: &mut impl CqFlavour) -> usize {
    cq.arm_and_poll(Notify::Any, &mut |_| {}).unwrap()
}

fn a_completion_wakes_who_waits<C: CqFlavour>(test_device: &TestDevice) -> Outcome {
    let (mut pair, mut channel) = with_channel::<C>(test_device);
    for round in 0..5 {
        pair.b.receive(&[(round, &[(0, 64)])]).unwrap();
        assert_eq!(arm(&mut pair.b.recv_cq), 0);
        assert_eq!(channel.try_next().unwrap(), None);
        pair.a.run(Op::Send, Data::At(0, 8));
        // Alternates between a wait without and with a deadline.
        let event = match round % 2 {
            0 => channel.wait_timeout(PATIENCE).unwrap().expect("it is told"),
            _ => channel.wait().unwrap(),
        };
        assert_eq!((event.cq(), event.cq_context()), (pair.b.recv_cq.id(), pair.b.recv_cq.cq_context()));
        assert_eq!(event.cq_context(), 7);
        assert_eq!(pair.b.received(1)[0].wr_id, round);
    }
    Ok(())
}

fn completions_before_arming_belong_to_the_poller<C: CqFlavour>(test_device: &TestDevice) -> Outcome {
    let (mut pair, mut channel) = with_channel::<C>(test_device);
    pair.b.receive(&[(1, &[(0, 64)]), (2, &[(0, 64)])]).unwrap();
    pair.a.run(Op::Send, Data::At(0, 8));
    let deadline = Instant::now() + PATIENCE;
    while arm(&mut pair.b.recv_cq) == 0 {
        assert!(Instant::now() < deadline);
        // A device that completes late may have sent another event.
        channel.try_next().unwrap();
    }
    while channel.try_next().unwrap().is_some() {}
    assert_eq!(arm(&mut pair.b.recv_cq), 0);
    pair.a.run(Op::Send, Data::At(0, 8));
    assert!(channel.wait_timeout(PATIENCE).unwrap().is_some());
    assert_eq!(pair.b.received(1)[0].wr_id, 2);
    Ok(())
}

fn only_solicited_completions_wake_who_waits_for_those<C: CqFlavour>(test_device: &TestDevice) -> Outcome {
    let (mut pair, mut channel) = with_channel::<C>(test_device);
    pair.b.receive(&[(1, &[(0, 64)]), (2, &[(0, 64)])]).unwrap();
    pair.b.recv_cq.arm_and_poll(Notify::Solicited, &mut |_| {}).unwrap();
    pair.a.run(Op::Send, Data::At(0, 8));
    assert_eq!(channel.wait_timeout(MOMENT).unwrap(), None);
    pair.a.post(&[(3, SIGNALED | WorkRequestFlags::Solicited, Op::Send, Data::At(0, 8))]).unwrap();
    assert!(channel.wait_timeout(PATIENCE).unwrap().is_some());
    assert_eq!(pair.b.received(2).len(), 2);
    Ok(())
}

fn a_queue_is_resized_and_loses_nothing<C: CqFlavour>(test_device: &TestDevice) -> Outcome {
    let (mut pair, _channel) = with_channel::<C>(test_device);
    let limit = pair.a.context.query_device().unwrap().max_cqe().cast_unsigned();
    pair.b.receive(&[(1, &[(0, 64)]), (2, &[(0, 64)])]).unwrap();
    pair.a.run(Op::Send, Data::At(0, 8));
    pair.a.run(Op::Send, Data::At(0, 8));
    pair.b.recv_cq.resize_to(2000).unwrap();
    assert!(pair.b.recv_cq.cqe() >= 2000);
    assert_eq!(pair.b.received(2).len(), 2);
    let error = pair.b.recv_cq.resize_to(limit + 1).unwrap_err();
    assert!(error.to_string().contains(&limit.to_string()), "{error}");
    Ok(())
}

/// Queue pairs connected to themselves, each with a separate queue on one channel.
fn crowd(
    test_device: &TestDevice,
    context: &DeviceContext,
    channel: &CompletionChannel,
    count: u64,
) -> Vec<Node<GenericQueuePair, GenericCompletionQueue>> {
    let options = NodeOptions::default();
    (0..count)
        .map(|n| {
            let mut node = Node::new(context, test_device.port, &options);
            let mut builder = context.create_cq_builder();
            let cq = builder.setup_comp_channel(channel).setup_cq_context(n).build_generic().unwrap();
            node.qp = node
                .pd
                .create_qp_builder()
                .setup_send_cq(&cq)
                .setup_recv_cq(&node.recv_cq)
                .build_generic()
                .unwrap();
            node.send_cq = cq;
            let own = node.endpoint(5);
            sideway::ibverbs::connect::connect(&mut node.qp, &node.path, &own, &own, &options.connect)
                .unwrap();
            node
        })
        .collect()
}

/// Writes to the node itself, to get a completion in its send queue.
fn stir(node: &mut Node<GenericQueuePair, GenericCompletionQueue>) {
    let to = node.remote(64);
    node.post(&[(1, SIGNALED, Op::Write(to), Data::At(0, 8))]).unwrap();
}

fn a_channel_leads_to_each_of_its_queues(test_device: &TestDevice) -> Outcome {
    let context = test_device.open();
    let mut channel = context.create_comp_channel().unwrap();
    let mut nodes = crowd(test_device, &context, &channel, 8);
    nodes.iter_mut().for_each(|node| assert_eq!(arm(&mut node.send_cq), 0));
    for n in [3, 0, 7, 5] {
        stir(&mut nodes[n]);
        let event = channel.wait_timeout(PATIENCE).unwrap().expect("it is told");
        assert_eq!((event.cq_context(), event.cq()), (n as u64, nodes[n].send_cq.id()));
        assert_eq!(nodes[n].sent(1)[0].wr_id, 1);
    }
    assert_eq!(channel.try_next().unwrap(), None);
    Ok(())
}

fn a_wait_ends_when_its_time_is_over(test_device: &TestDevice) -> Outcome {
    let mut channel = test_device.open().create_comp_channel().unwrap();
    let start = Instant::now();
    assert_eq!(channel.wait_timeout(MOMENT).unwrap(), None);
    assert!(start.elapsed() >= MOMENT);
    assert_eq!(channel.wait_timeout(Duration::ZERO).unwrap(), None);
    Ok(())
}

fn a_wait_ends_when_the_channel_is_closed(test_device: &TestDevice) -> Outcome {
    let mut channel = test_device.open().create_comp_channel().unwrap();
    let closer = channel.closer().unwrap();
    let waiter = thread::spawn(move || channel.wait().unwrap_err());
    thread::sleep(Duration::from_millis(10));
    closer.clone().close();
    let error = waiter.join().unwrap();
    assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
    Ok(())
}

fn a_wait_ends_when_another_descriptor_is_ready(test_device: &TestDevice) -> Outcome {
    let (mut pair, mut channel) = with_channel::<GenericCompletionQueue>(test_device);
    let (silent, _open) = UnixStream::pair().unwrap();
    let (ready, peer) = UnixStream::pair().unwrap();
    let others = [silent.as_fd(), ready.as_fd()];
    let nothing = ChannelWakeup { event: None, descriptor: None };
    assert_eq!(channel.wait_with(&others, Some(MOMENT)).unwrap(), nothing);
    drop(peer);
    let woken = channel.wait_with(&others, None).unwrap();
    assert_eq!(woken, ChannelWakeup { event: None, descriptor: Some(1) });

    // A descriptor that stays ready hides no event.
    arm(&mut pair.b.recv_cq);
    pair.b.receive(&[(1, &[(0, 8)])]).unwrap();
    pair.a.run(Op::Send, Data::At(0, 8));
    let limit = Instant::now() + PATIENCE;
    let event = loop {
        let woken = channel.wait_with(&others, Some(PATIENCE)).unwrap();
        assert_eq!(woken.descriptor, Some(1));
        match woken.event {
            Some(event) => break event,
            None => assert!(Instant::now() < limit, "no event"),
        }
    };
    assert_eq!((event.cq(), event.cq_context()), (pair.b.recv_cq.id(), 7));
    assert!(channel.wait_with(&[], Some(MOMENT)).unwrap().event.is_none());

    channel.closer().unwrap().close();
    assert_eq!(channel.wait_with(&others, None).unwrap_err().kind(), ErrorKind::Closed);
    Ok(())
}

fn a_closed_channel_stays_closed(test_device: &TestDevice) -> Outcome {
    let mut channel = test_device.open().create_comp_channel().unwrap();
    channel.closer().unwrap().close();
    for _ in 0..2 {
        for error in [
            channel.wait().unwrap_err(),
            channel.wait_timeout(PATIENCE).unwrap_err(),
            channel.try_next().unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
        }
    }
    Ok(())
}

/// One event is taken but not acknowledged, another is not taken.
fn a_queue_goes_with_events_pending(test_device: &TestDevice) -> Outcome {
    let context = test_device.open();
    let mut channel = context.create_comp_channel().unwrap();
    let mut nodes = crowd(test_device, &context, &channel, 3);
    for node in &mut nodes {
        arm(&mut node.send_cq);
        stir(node);
    }
    let taken = channel.wait_timeout(PATIENCE).unwrap().expect("it is told");
    nodes.retain(|node| node.send_cq.id() != taken.cq());
    let last = nodes.pop().unwrap();
    nodes.clear();
    let event = channel.wait_timeout(PATIENCE).unwrap().expect("one is left");
    assert_eq!(event.cq(), last.send_cq.id());
    drop(last);
    assert_eq!(channel.wait_timeout(MOMENT).unwrap(), None);
    Ok(())
}

fn queues_go_while_another_thread_waits(test_device: &TestDevice) -> Outcome {
    let context = test_device.open();
    let mut channel = context.create_comp_channel().unwrap();
    let closer = channel.closer().unwrap();
    thread::scope(|scope| {
        let (made, to_make) = std::sync::mpsc::channel();
        let shared = &context;
        // The queues are made before the channel moves to the other thread.
        let rounds: Vec<_> = (0..20).map(|_| crowd(test_device, shared, &channel, 2)).collect();
        let waiter = scope.spawn(move || {
            made.send(()).unwrap();
            let mut events = 0u64;
            loop {
                match channel.wait() {
                    Ok(event) => events += event.cq_context(),
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
                        return events;
                    }
                }
            }
        });
        to_make.recv().unwrap();
        for mut nodes in rounds {
            for node in &mut nodes {
                arm(&mut node.send_cq);
                stir(node);
            }
        }
        closer.close();
        // Every second queue has the context 1, and at most one event.
        assert!(waiter.join().unwrap() <= 20);
    });
    Ok(())
}

fn a_channel_is_readable_while_there_are_events(test_device: &TestDevice) -> Outcome {
    let (mut pair, mut channel) = with_channel::<GenericCompletionQueue>(test_device);
    let readable = |channel: &CompletionChannel, patience: Duration| {
        let mut fd = libc::pollfd { fd: channel.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: `fd` is one entry, whose descriptor the channel keeps open.
        unsafe { libc::poll(&raw mut fd, 1, patience.as_millis() as i32) == 1 }
    };
    pair.b.receive(&[(1, &[(0, 64)])]).unwrap();
    arm(&mut pair.b.recv_cq);
    assert!(!readable(&channel, Duration::ZERO));
    pair.a.run(Op::Send, Data::At(0, 8));
    assert!(readable(&channel, PATIENCE));
    assert!(channel.try_next().unwrap().is_some());
    assert!(!readable(&channel, Duration::ZERO));
    assert_eq!(channel.try_next().unwrap(), None);
    Ok(())
}

/// One side sends at random times; the other arms, drains and sleeps.
fn no_event_is_missed_at_any_moment(test_device: &TestDevice) -> Outcome {
    const MESSAGES: u64 = 2000;
    const DEPTH: u64 = 32;
    let (Pair { mut a, mut b }, mut channel) = with_channel::<GenericCompletionQueue>(test_device);
    let receive = |b: &mut Node<_, _>, id| Node::receive(b, &[(id, &[(0, 64)])]).unwrap();
    (0..DEPTH).for_each(|id| receive(&mut b, id));
    thread::scope(|scope| {
        scope.spawn(move || {
            for _ in 0..MESSAGES {
                a.run(Op::Send, Data::At(0, 8));
            }
            a
        });
        let mut count = 0;
        while count < MESSAGES {
            let mut came = 0;
            b.recv_cq.arm_and_poll(Notify::Any, &mut |_| came += 1).unwrap();
            for _ in 0..came {
                receive(&mut b, 0);
            }
            count += came;
            if count < MESSAGES {
                let event = channel.wait_timeout(PATIENCE).unwrap();
                assert!(event.is_some(), "nothing woke us after {count} messages");
            }
        }
        assert_eq!(count, MESSAGES);
    });
    Ok(())
}

/// `man ibv_modify_cq`: an event comes after a number of completions, or after a period.
fn moderated_queues_wake_who_waits(test_device: &TestDevice) -> Outcome {
    let (mut pair, mut channel) = with_channel::<GenericCompletionQueue>(test_device);
    match pair.b.recv_cq.moderate(4, Duration::from_millis(1)) {
        Ok(()) => {}
        Err(error) if error.unsupported().is_some() => skip!("{error}"),
        Err(error) => panic!("{error}"),
    }
    pair.b.receive(&[(1, &[(0, 64)])]).unwrap();
    arm(&mut pair.b.recv_cq);
    pair.a.run(Op::Send, Data::At(0, 8));
    // Fewer than four completions came, but the period is over.
    assert!(channel.wait_timeout(PATIENCE).unwrap().is_some());
    Ok(())
}

/// Sends to a node that receives into this queue.
fn receives(
    test_device: &TestDevice,
    context: &DeviceContext,
    cq: ExtendedCompletionQueue,
) -> Pair<GenericQueuePair, ExtendedCompletionQueue> {
    let options = NodeOptions::default();
    let a = Node::new(context, test_device.port, &options);
    let mut b = Node::<GenericQueuePair, ExtendedCompletionQueue>::new(context, test_device.port, &options);
    b.qp = b.pd.create_qp_builder().setup_send_cq(&b.send_cq).setup_recv_cq(&cq).build_generic().unwrap();
    b.recv_cq = cq;
    Pair::connect(a, b, &options.connect)
}

fn a_queue_of_one_thread_works(test_device: &TestDevice) -> Outcome {
    let context = test_device.open();
    let mut builder = context.create_cq_builder();
    // SAFETY: this test uses one thread, and has no poller when it drops a pair.
    unsafe { builder.setup_single_threaded(true) };
    let cq = match builder.build_ex() {
        Ok(cq) => cq,
        Err(CreateCompletionQueueError::Unsupported(lacking)) => skip!("{lacking}"),
        Err(error) => panic!("{error}"),
    };
    let mut pair = receives(test_device, &context, cq);
    pair.b.receive(&[(1, &[(0, 64)])]).unwrap();
    pair.a.run(Op::Send, Data::At(0, 8));
    assert_eq!(pair.b.received(1)[0].wr_id, 1);
    Ok(())
}

fn a_queue_that_ignores_overruns_works(test_device: &TestDevice) -> Outcome {
    let context = test_device.open();
    let mut builder = context.create_cq_builder();
    let cq = match builder.setup_cqe(4).setup_ignore_overrun(true).build_ex() {
        Ok(cq) => cq,
        Err(CreateCompletionQueueError::Unsupported(lacking)) => skip!("{lacking}"),
        Err(error) => panic!("{error}"),
    };
    let events = context.async_events().unwrap();
    let length = u64::from(cq.cqe());
    let mut pair = receives(test_device, &context, cq);
    for id in 0..length + 2 {
        pair.b.receive(&[(id, &[(0, 64)])]).unwrap();
        pair.a.run(Op::Send, Data::At(0, 8));
    }
    let mut found = 0;
    pair.b.recv_cq.poll(&mut |_| found += 1).unwrap();
    assert!(found > 0, "nothing is left of it");
    // The queue did not fail.
    assert!(find(&events, AsyncEventType::CompletionQueueError, MOMENT).is_none());
    Ok(())
}

fn timestamps_follow_the_clocks(test_device: &TestDevice) -> Outcome {
    let context = test_device.open();
    let fields =
        WorkCompletionFields::CompletionTimestamp | WorkCompletionFields::CompletionTimestampWallclock;
    let cq = match context
        .create_cq_builder()
        .setup_wc_flags(WorkCompletionFields::STANDARD | fields)
        .build_ex()
    {
        Ok(cq) => cq,
        Err(CreateCompletionQueueError::Unsupported(lacking)) => skip!("{lacking}"),
        Err(error) => panic!("{error}"),
    };
    let clock = match ClockConverter::new(&context) {
        Ok(clock) => clock,
        Err(error) if error.unsupported().is_some() => skip!("{error}"),
        Err(error) => panic!("{error}"),
    };
    let mut pair = receives(test_device, &context, cq);
    let (before, start) = (SystemTime::now(), Instant::now());
    let mut stamps = Vec::new();
    for id in 0..3 {
        pair.b.receive(&[(id, &[(0, 64)])]).unwrap();
        pair.a.run(Op::Send, Data::At(0, 8));
        let deadline = Instant::now() + PATIENCE;
        loop {
            let mut poller = pair.b.recv_cq.start_poll().unwrap();
            if let Some(wc) = poller.next() {
                stamps
                    .push((wc.completion_timestamp().unwrap(), wc.completion_timestamp_wallclock().unwrap()));
                break;
            }
            assert!(Instant::now() < deadline);
        }
    }
    assert!(clock.elapsed(stamps[0].0, stamps[2].0) <= start.elapsed(), "{stamps:?}");
    assert!(clock.elapsed(stamps[0].0, stamps[1].0) <= clock.elapsed(stamps[0].0, stamps[2].0));
    // The system clock may be set during the test, but hardly by as much as this allows.
    let slack = Duration::from_secs(3600);
    for (ticks, wallclock) in stamps {
        for time in [clock.system_time(ticks), SystemTime::UNIX_EPOCH + Duration::from_nanos(wallclock)] {
            assert!(time > before - slack && time < SystemTime::now() + slack, "{time:?}");
        }
    }
    Ok(())
}

/// Waits for the next event of a type, and skips others.
fn find(
    events: &sideway::ibverbs::event::AsyncEvents,
    kind: AsyncEventType,
    patience: Duration,
) -> Option<AsyncEvent> {
    std::iter::from_fn(|| events.wait_timeout(patience).unwrap()).find(|event| event.event_type() == kind)
}

fn a_failure_is_an_event_with_its_pair(test_device: &TestDevice) -> Outcome {
    let mut pair = AnyPair::new(test_device);
    if !pair.a.context.is_soft() {
        skip!("SoftRoCE announces no failure of a responder");
    }
    let events = pair.b.context.async_events().unwrap();
    let mut wrong = pair.b.remote(0);
    wrong.rkey ^= 0x5a;
    pair.a.post(&[(1, SIGNALED, Op::Write(wrong), Data::At(0, 8))]).unwrap();
    pair.a.sent(1);
    let event = find(&events, AsyncEventType::QueuePairAccessError, PATIENCE).expect("it is announced");
    assert_eq!(event.element(), AsyncElement::QueuePair { qp_num: pair.b.qp.qp_number() });
    Ok(())
}

fn an_overrun_is_an_event_with_its_queue(test_device: &TestDevice) -> Outcome {
    let context = test_device.open();
    let cq = context.create_cq_builder().setup_cqe(1).build_ex().unwrap();
    let (id, length) = (cq.id(), u64::from(cq.cqe()));
    let events = context.async_events().unwrap();
    let mut pair = receives(test_device, &context, cq);
    // It depends on the device whether the last messages are acknowledged.
    for n in 0..length + 2 {
        pair.b.receive(&[(n, &[(0, 64)])]).unwrap();
        pair.a.post(&[(n, SIGNALED, Op::Send, Data::At(0, 8))]).unwrap();
    }
    let event = find(&events, AsyncEventType::CompletionQueueError, PATIENCE).expect("it is announced");
    assert_eq!(event.element(), AsyncElement::CompletionQueue(id));
    Ok(())
}

/// In C, destroying the pair would wait for the acknowledgement of the event that is held here.
fn events_do_not_keep_pairs_alive(test_device: &TestDevice) -> Outcome {
    let context = test_device.open();
    let cq = context.create_cq_builder().setup_cqe(1).build_ex().unwrap();
    let length = u64::from(cq.cqe());
    let events = context.async_events().unwrap();
    let mut pair = receives(test_device, &context, cq);
    for n in 0..length + 2 {
        pair.b.receive(&[(n, &[(0, 64)])]).unwrap();
        pair.a.post(&[(n, SIGNALED, Op::Send, Data::At(0, 8))]).unwrap();
    }
    let event = find(&events, AsyncEventType::CompletionQueueError, PATIENCE).expect("it is announced");
    let id = pair.b.recv_cq.id();
    drop(pair);
    assert_eq!(event.element(), AsyncElement::CompletionQueue(id));
    Ok(())
}
