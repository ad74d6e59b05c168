//! Completion channels: arming, the time of events, and moderation (`man ibv_get_cq_event`, `man
//! ibv_req_notify_cq`, `man ibv_modify_cq`).

use std::collections::HashSet;
use std::thread;
use std::time::{Duration, Instant};

use libc::{EAGAIN, EBUSY, EINVAL, EOPNOTSUPP};

use super::completion::{MOMENT, ex, fill, ids, with_queue_of};
use crate::kit::{
    CompChannel, Cq, CqInit, Device, Flavour, Node, NodeOptions, Outcome, SoftRoce, Suite, TestDevice,
    WAIT_LIMIT, Wr,
};

pub(crate) fn cases(suite: &mut Suite) {
    both!(suite:
        an_event_comes_with_the_next_completion,
        events_are_for_what_is_armed,
        only_solicited_completions_fire_a_solicited_arm,
    );
    cases!(suite:
        moderation_is_accepted,
        a_moderated_queue_fires_for_fewer_completions_in_time,
        a_moderated_queue_fires_for_as_many_completions,
        a_queue_that_is_not_moderated_any_more_fires_for_each,
        an_unknown_change_of_a_queue_is_refused,
        a_queue_goes_while_another_of_its_channel_fires,
        acknowledgements_may_be_put_off,
        a_channel_of_a_queue_is_busy,
        a_channel_serves_many_queues,
        a_channel_can_be_polled_without_waiting,
        events_count_until_they_are_acknowledged,
        an_event_that_was_not_taken_goes_with_its_queue,
        a_thread_waits_for_an_event,
        an_arm_twice_is_one_event,
        a_completion_that_is_there_fires_no_arm,
        a_failed_request_fires_a_solicited_arm,
    );
}

/// Two nodes; the receives of the second complete on a queue with this channel.
fn with_channel(dut: &TestDevice, flavour: Flavour) -> (Node, Node, CompChannel) {
    let (first, second) = (dut.open(), dut.open());
    let channel = second.channel();
    let init = CqInit { channel: Some(&channel), context: 0x77, ex: ex(flavour), ..CqInit::default() };
    let cq = Cq::new(&second, &init).unwrap();
    let options = NodeOptions::rc(flavour);
    let (a, b) = (Node::new(&first, &options), Node::with_queues(&second, &options, None, Some(&cq)));
    a.connect(&b.peer());
    b.connect(&a.peer());
    (a, b, channel)
}

fn an_event_comes_with_the_next_completion(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (a, b, channel) = with_channel(dut, flavour);
    for round in 0..5 {
        assert_eq!(b.recv_cq.arm(false), 0);
        b.recv(round, 0, 64);
        assert!(!channel.is_ready(Duration::ZERO));
        a.done(Wr::send(round).sge(a.mr.at(0, 8)));
        assert_eq!(channel.event(), (b.recv_cq.address(), 0x77));
        b.recv_cq.ack(1);
        assert_eq!(b.recv_cq.ok().id, round);
    }
    Ok(())
}

fn events_are_for_what_is_armed(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (a, b, channel) = with_channel(dut, flavour);
    for id in 0..4 {
        b.recv(id, 0, 64);
    }
    // The queue is not armed here, and is then armed for one completion.
    a.done(Wr::send(0).sge(a.mr.at(0, 8)));
    b.recv_cq.ok();
    assert!(!channel.is_ready(MOMENT));
    assert_eq!(b.recv_cq.arm(false), 0);
    for id in 1..4 {
        a.done(Wr::send(id).sge(a.mr.at(0, 8)));
    }
    b.recv_cq.wait(3);
    channel.event();
    b.recv_cq.ack(1);
    assert!(!channel.is_ready(MOMENT), "one arm is one event");
    Ok(())
}

fn only_solicited_completions_fire_a_solicited_arm(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (a, b, channel) = with_channel(dut, flavour);
    for id in 0..3 {
        b.recv(id, 0, 64);
    }
    assert_eq!(b.recv_cq.arm(true), 0);
    a.done(Wr::send(0).sge(a.mr.at(0, 8)));
    b.recv_cq.ok();
    assert!(!channel.is_ready(MOMENT));
    a.done(Wr::send_imm(1, 5).sge(a.mr.at(0, 8)).solicited());
    channel.event();
    b.recv_cq.ok();
    assert_eq!(b.recv_cq.arm(true), 0);
    a.done(Wr::write_imm(2, b.mr.remote(0), 5).sge(a.mr.at(0, 8)).solicited());
    channel.event();
    b.recv_cq.ack(2);
    Ok(())
}

const NO_MODERATION: &str = "has no ibv_modify_cq";

fn moderation_is_accepted(dut: &TestDevice) -> Outcome {
    dut.not_softroce(NO_MODERATION)?;
    let device = dut.open();
    let (node, cq) = with_queue_of(&device, 20);
    let most = device.query_ex(None).unwrap().cq_mod_caps;
    assert!(most.max_cq_count >= 1 && most.max_cq_period >= 1);
    assert_eq!(cq.moderate(1, 1), 0);
    fill(&node, 1);
    assert_eq!(cq.ok().id, 0);
    assert_eq!(cq.moderate(0, 0), 0);
    Ok(())
}

/// A moderated queue with a channel, for the receives of a node that is connected to itself.
fn moderated(device: &Device, count: u16, period: u16) -> (Node, Cq, CompChannel) {
    let channel = device.channel();
    let cq = Cq::of(device, 64, Flavour::Classic, Some(&channel));
    let node = Node::with_queues(device, &NodeOptions::rc(Flavour::Classic), None, Some(&cq));
    node.connect(&node.peer());
    assert_eq!(cq.moderate(count, period), 0);
    assert_eq!(cq.arm(false), 0);
    (node, cq, channel)
}

/// `man ibv_modify_cq`: an event waits up to `cq_period` for more completions.
fn a_moderated_queue_fires_for_fewer_completions_in_time(dut: &TestDevice) -> Outcome {
    dut.not_softroce(NO_MODERATION)?;
    let (node, cq, channel) = moderated(&dut.open(), 16, 1000);
    fill(&node, 1);
    assert_eq!(channel.event().0, cq.address());
    cq.ack(1);
    assert_eq!(cq.ok().id, 0);
    Ok(())
}

/// `man ibv_modify_cq`: an event waits for `cq_count` completions. The period here is the longest
/// one.
fn a_moderated_queue_fires_for_as_many_completions(dut: &TestDevice) -> Outcome {
    dut.not_softroce(NO_MODERATION)?;
    let (node, cq, channel) = moderated(&dut.open(), 4, u16::MAX);
    let begun = Instant::now();
    for id in 0..4 {
        node.recv(id, 0, 64);
        node.done(Wr::send(id).sge(node.mr.at(0, 8)));
        if channel.is_ready(Duration::ZERO) && id < 3 {
            // Either this machine was very slow, or the device does not count.
            assert!(begun.elapsed() >= Duration::from_micros(u16::MAX.into()), "an event for {}", id + 1);
        }
    }
    assert_eq!(channel.event().0, cq.address());
    cq.ack(1);
    assert_eq!(ids(&cq, 4), [0, 1, 2, 3]);
    assert!(!channel.is_ready(MOMENT), "one arm is one event");
    Ok(())
}

/// Zero values end the moderation.
fn a_queue_that_is_not_moderated_any_more_fires_for_each(dut: &TestDevice) -> Outcome {
    dut.not_softroce(NO_MODERATION)?;
    let (node, cq, channel) = moderated(&dut.open(), u16::MAX, u16::MAX);
    assert_eq!(cq.moderate(0, 0), 0);
    fill(&node, 1);
    assert_eq!(channel.event().0, cq.address());
    cq.ack(1);
    Ok(())
}

/// `man ibv_modify_cq`: `attr_mask` has a bit that `ibv_cq_attr_mask` does not define.
fn an_unknown_change_of_a_queue_is_refused(dut: &TestDevice) -> Outcome {
    dut.not_softroce(NO_MODERATION)?;
    let cq = dut.open().cq(4);
    assert!([EINVAL, EOPNOTSUPP].contains(&cq.modify(1 << 9, 1, 1)));
    Ok(())
}

/// `man ibv_get_cq_event`: unacknowledged events of one queue do not delay the end of another.
fn a_queue_goes_while_another_of_its_channel_fires(dut: &TestDevice) -> Outcome {
    let device = dut.open();
    let channel = device.channel();
    let node = |context| {
        let init = CqInit { channel: Some(&channel), context, ..CqInit::default() };
        let cq = Cq::new(&device, &init).unwrap();
        let node = Node::with_queues(&device, &NodeOptions::rc(Flavour::Classic), None, Some(&cq));
        node.connect(&node.peer());
        assert_eq!(cq.arm(false), 0);
        fill(&node, 1);
        (node, cq)
    };
    let ((gone, first), (_stays, second)) = (node(1), node(2));
    assert_eq!((gone.qp.destroy(), first.destroy()), (0, 0));
    assert_eq!(channel.event(), (second.address(), 2));
    second.ack(1);
    assert!(!channel.is_ready(MOMENT));
    Ok(())
}

/// `man ibv_get_cq_event`: several events in one call of `ibv_ack_cq_events`.
fn acknowledgements_may_be_put_off(dut: &TestDevice) -> Outcome {
    let (a, b, channel) = with_channel(dut, Flavour::Classic);
    for id in 0..5 {
        b.recv(id, 0, 64);
        assert_eq!(b.recv_cq.arm(false), 0);
        a.done(Wr::send(id).sge(a.mr.at(0, 8)));
        channel.event();
        b.recv_cq.ok();
    }
    b.recv_cq.ack(5);
    assert_eq!((b.qp.destroy(), b.recv_cq.destroy()), (0, 0));
    Ok(())
}

fn a_channel_of_a_queue_is_busy(dut: &TestDevice) -> Outcome {
    let device = dut.open();
    let channel = device.channel();
    let cq = Cq::of(&device, 16, Flavour::Classic, Some(&channel));
    assert_eq!(channel.destroy(), EBUSY);
    assert_eq!(cq.destroy(), 0);
    assert_eq!(channel.destroy(), 0);
    Ok(())
}

fn a_channel_serves_many_queues(dut: &TestDevice) -> Outcome {
    let device = dut.open();
    let channel = device.channel();
    let nodes: Vec<_> = (0..4)
        .map(|context| {
            let cq =
                Cq::new(&device, &CqInit { channel: Some(&channel), context, ..CqInit::default() }).unwrap();
            let node = Node::with_queues(&device, &NodeOptions::rc(Flavour::Classic), None, Some(&cq));
            node.connect(&node.peer());
            assert_eq!(cq.arm(false), 0);
            node
        })
        .collect();
    for node in &nodes {
        fill(node, 1);
    }
    let events: HashSet<_> = (0..4).map(|_| channel.event()).collect();
    let expected: HashSet<_> =
        nodes.iter().enumerate().map(|(n, node)| (node.recv_cq.address(), n)).collect();
    for node in &nodes {
        node.recv_cq.ack(1);
    }
    assert_eq!(events, expected);
    Ok(())
}

fn a_channel_can_be_polled_without_waiting(dut: &TestDevice) -> Outcome {
    let (a, b, channel) = with_channel(dut, Flavour::Classic);
    channel.set_nonblocking();
    assert_eq!(channel.event_now(), Err(EAGAIN));
    assert_eq!(b.recv_cq.arm(false), 0);
    b.recv(1, 0, 64);
    assert_eq!(channel.event_now(), Err(EAGAIN));
    a.done(Wr::send(2).sge(a.mr.at(0, 8)));
    assert!(channel.is_ready(WAIT_LIMIT));
    assert_eq!(channel.event_now(), Ok((b.recv_cq.address(), 0x77)));
    b.recv_cq.ack(1);
    assert_eq!(channel.event_now(), Err(EAGAIN));
    Ok(())
}

/// `man ibv_get_cq_event`: destroying a queue waits until all its events are acknowledged.
fn events_count_until_they_are_acknowledged(dut: &TestDevice) -> Outcome {
    let (a, b, channel) = with_channel(dut, Flavour::Classic);
    for id in 0..3 {
        assert_eq!(b.recv_cq.arm(false), 0);
        b.recv(id, 0, 64);
        a.done(Wr::send(id).sge(a.mr.at(0, 8)));
        channel.event();
        b.recv_cq.ok();
    }
    assert_eq!(b.qp.destroy(), 0);
    thread::scope(|scope| {
        let destroyed = scope.spawn(|| b.recv_cq.destroy());
        b.recv_cq.ack(2);
        thread::sleep(MOMENT * 2);
        assert!(!destroyed.is_finished(), "one event is not acknowledged");
        b.recv_cq.ack(1);
        assert_eq!(destroyed.join().unwrap(), 0);
    });
    Ok(())
}

fn an_event_that_was_not_taken_goes_with_its_queue(dut: &TestDevice) -> Outcome {
    let (a, b, channel) = with_channel(dut, Flavour::Classic);
    assert_eq!(b.recv_cq.arm(false), 0);
    b.recv(1, 0, 64);
    a.done(Wr::send(2).sge(a.mr.at(0, 8)));
    assert!(channel.is_ready(WAIT_LIMIT));
    assert_eq!(b.qp.destroy(), 0);
    assert_eq!(b.recv_cq.destroy(), 0);
    channel.set_nonblocking();
    assert_eq!(channel.event_now(), Err(EAGAIN));
    assert_eq!(channel.destroy(), 0);
    Ok(())
}

fn a_thread_waits_for_an_event(dut: &TestDevice) -> Outcome {
    let (a, b, channel) = with_channel(dut, Flavour::Classic);
    assert_eq!(b.recv_cq.arm(false), 0);
    b.recv(1, 0, 64);
    thread::scope(|scope| {
        // No thread polls here, so that the device must make progress by itself.
        let waiter = scope.spawn(|| channel.event());
        thread::sleep(MOMENT);
        assert!(!waiter.is_finished());
        a.post(Wr::send(2).sge(a.mr.at(0, 8)));
        assert_eq!(waiter.join().unwrap().0, b.recv_cq.address());
    });
    b.recv_cq.ack(1);
    Ok(())
}

fn an_arm_twice_is_one_event(dut: &TestDevice) -> Outcome {
    let (a, b, channel) = with_channel(dut, Flavour::Classic);
    assert_eq!((b.recv_cq.arm(true), b.recv_cq.arm(false), b.recv_cq.arm(true)), (0, 0, 0));
    b.recv(1, 0, 64);
    // Not solicited: arming for solicited completions does not cancel arming for any completion
    // (IBTA chapter 11, request completion notification).
    a.done(Wr::send(2).sge(a.mr.at(0, 8)));
    channel.event();
    b.recv_cq.ack(1);
    assert!(!channel.is_ready(MOMENT));
    Ok(())
}

/// `man ibv_req_notify_cq`: completions that are already in the queue cause no event. Therefore a
/// program polls after arming.
fn a_completion_that_is_there_fires_no_arm(dut: &TestDevice) -> Outcome {
    let (a, b, channel) = with_channel(dut, Flavour::Classic);
    b.recv(1, 0, 64);
    a.done(Wr::send(2).sge(a.mr.at(0, 8)));
    // The sender's completion is later than the receiver's.
    assert_eq!(b.recv_cq.arm(false), 0);
    assert!(!channel.is_ready(MOMENT));
    assert_eq!(b.recv_cq.ok().id, 1);
    Ok(())
}

/// `man ibv_req_notify_cq`: a completion with an error counts as solicited.
fn a_failed_request_fires_a_solicited_arm(dut: &TestDevice) -> Outcome {
    dut.not_since(SoftRoce::New, "counts no failed completion as a solicited one")?;
    let (_a, b, channel) = with_channel(dut, Flavour::Classic);
    b.recv(1, 0, 64);
    assert_eq!(b.recv_cq.arm(true), 0);
    b.go(rdma_mummy_sys::types::ibv_qp_state::IBV_QPS_ERR);
    channel.event();
    b.recv_cq.ack(1);
    assert_eq!(b.recv_cq.one().id, 1);
    Ok(())
}
