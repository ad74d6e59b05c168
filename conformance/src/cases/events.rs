//! Asynchronous events, and contexts that are closed while their peers work.

use std::thread;
use std::time::Duration;

use rdma_mummy_sys::types::ibv_event_type as EventType;
use rdma_mummy_sys::types::ibv_qp_attr_mask as Mask;
use rdma_mummy_sys::types::ibv_qp_state as State;
use rdma_mummy_sys::types::ibv_wc_status as Status;

use crate::kit::{
    AsyncEvent, Device, Flavour, Node, NodeOptions, Outcome, QpChange, RemoteAddr, Suite, TestDevice,
    WAIT_LIMIT, Wr, pair,
};

pub(crate) fn cases(suite: &mut Suite) {
    cases!(suite:
        the_first_message_to_a_pair_in_rtr_is_an_event,
        a_drained_send_queue_is_an_event,
        a_drained_send_queue_that_nobody_asked_about_is_none,
        a_refused_access_is_an_event_of_the_responder,
        an_invalid_request_is_an_event_of_the_responder,
        the_requester_of_a_failure_gets_no_event,
        destroying_a_pair_waits_for_its_events,
        events_go_to_their_own_context,
        an_event_that_was_not_taken_goes_with_its_pair,
        a_waiting_thread_gets_the_event,
        a_context_closes_with_objects_left,
        the_peer_of_a_closed_context_does_not_answer,
        one_context_closes_and_the_other_works,
        objects_of_many_contexts_live_side_by_side,
    );
}

fn classic() -> NodeOptions {
    NodeOptions::rc(Flavour::Classic)
}

/// The next event of this kind; other events are skipped.
fn find(device: &Device, kind: EventType, limit: Duration) -> Option<AsyncEvent> {
    std::iter::from_fn(|| device.event(limit)).find(|event| event.kind() == kind)
}

const MOMENT: Duration = Duration::from_millis(100);

/// IBTA chapter 11, affiliated asynchronous events: communication established.
fn the_first_message_to_a_pair_in_rtr_is_an_event(dut: &TestDevice) -> Outcome {
    dut.not_softroce("announces no first message")?;
    let (a, b) = (Node::new(&dut.open(), &classic()), Node::new(&dut.open(), &classic()));
    a.connect(&b.peer());
    b.init();
    b.rtr(&a.peer());
    b.recv(1, 0, 64);
    a.done(Wr::send(2).sge(a.mr.at(0, 8)));
    let event = find(&b.device, EventType::IBV_EVENT_COMM_EST, WAIT_LIMIT).expect("it is announced");
    assert_eq!(event.element(), b.qp.address());
    assert!(a.device.event(Duration::ZERO).is_none());
    Ok(())
}

fn to_sqd(notify: bool) -> QpChange {
    let change = QpChange::to(State::IBV_QPS_SQD);
    if notify {
        change.with(Mask::IBV_QP_EN_SQD_ASYNC_NOTIFY, |attr| attr.en_sqd_async_notify = 1)
    } else {
        change
    }
}

/// `man ibv_modify_qp`: `en_sqd_async_notify` asks for `IBV_EVENT_SQ_DRAINED`.
fn a_drained_send_queue_is_an_event(dut: &TestDevice) -> Outcome {
    dut.not_softroce("announces a drained queue before what was begun is done")?;
    let (a, b) = pair(dut, &classic());
    a.post(Wr::send(1).sge(a.mr.at(0, 8)));
    // A poll makes sure that the request begins where polls drive requests.
    assert!(a.send_cq.poll(1).is_empty(), "there is no receive");
    thread::sleep(Duration::from_millis(20));
    assert_eq!(a.qp.modify(to_sqd(true)), 0);
    b.recv(2, 0, 64);
    let event = find(&a.device, EventType::IBV_EVENT_SQ_DRAINED, WAIT_LIMIT).expect("it is announced");
    assert_eq!(event.element(), a.qp.address());
    assert_eq!(a.send_cq.ok().id, 1);
    assert_eq!(a.qp.query(Mask::IBV_QP_STATE.0).unwrap().0.sq_draining, 0);
    Ok(())
}

fn a_drained_send_queue_that_nobody_asked_about_is_none(dut: &TestDevice) -> Outcome {
    dut.not_softroce("announces it without being asked")?;
    let (a, _b) = pair(dut, &classic());
    assert_eq!(a.qp.modify(to_sqd(false)), 0);
    assert!(find(&a.device, EventType::IBV_EVENT_SQ_DRAINED, MOMENT).is_none());
    Ok(())
}

const NO_EVENT: &str = "announces no failure of a responder";

/// IBTA chapter 11, affiliated asynchronous errors: a local access violation at the responder is an
/// event of its pair.
fn a_refused_access_is_an_event_of_the_responder(dut: &TestDevice) -> Outcome {
    dut.not_softroce(NO_EVENT)?;
    let (a, b) = pair(dut, &classic());
    a.fails(Wr::write(1, RemoteAddr { rkey: b.mr.rkey() ^ 0x5a, ..b.mr.remote(0) }).sge(a.mr.at(0, 8)));
    let event = find(&b.device, EventType::IBV_EVENT_QP_ACCESS_ERR, WAIT_LIMIT).expect("it is announced");
    assert_eq!(event.element(), b.qp.address());
    Ok(())
}

/// IBTA chapter 11, affiliated asynchronous errors: an invalid request is an event of the
/// responder's pair.
fn an_invalid_request_is_an_event_of_the_responder(dut: &TestDevice) -> Outcome {
    dut.not_softroce(NO_EVENT)?;
    let (a, b) = pair(dut, &NodeOptions::rc(Flavour::Extended));
    let status = a.fails(Wr::fetch_add(1, b.mr.remote(4), 1).sge(a.mr.at(0, 8)));
    assert_eq!(status, Status::IBV_WC_REM_INV_REQ_ERR);
    let event = find(&b.device, EventType::IBV_EVENT_QP_REQ_ERR, WAIT_LIMIT).expect("it is announced");
    assert_eq!(event.element(), b.qp.address());
    Ok(())
}

/// The requester learns of the failure by its completion only.
fn the_requester_of_a_failure_gets_no_event(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &classic());
    a.fails(Wr::write(1, RemoteAddr { rkey: b.mr.rkey() ^ 0x5a, ..b.mr.remote(0) }).sge(a.mr.at(0, 8)));
    assert!(a.device.event(MOMENT).is_none_or(|event| event.kind() != EventType::IBV_EVENT_QP_FATAL));
    Ok(())
}

/// `man ibv_get_async_event`: destroying an object waits until its events are acknowledged.
fn destroying_a_pair_waits_for_its_events(dut: &TestDevice) -> Outcome {
    let (a, _b) = pair(dut, &classic());
    assert_eq!(a.qp.modify(to_sqd(true)), 0);
    let event = find(&a.device, EventType::IBV_EVENT_SQ_DRAINED, WAIT_LIMIT).expect("it is announced");
    thread::scope(|scope| {
        let destroyed = scope.spawn(|| a.qp.destroy());
        thread::sleep(MOMENT);
        assert!(!destroyed.is_finished(), "the event is not acknowledged");
        drop(event);
        assert_eq!(destroyed.join().unwrap(), 0);
    });
    Ok(())
}

fn events_go_to_their_own_context(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &classic());
    assert_eq!(a.qp.modify(to_sqd(true)), 0);
    let event = find(&a.device, EventType::IBV_EVENT_SQ_DRAINED, WAIT_LIMIT).expect("it is announced");
    assert_eq!(event.element(), a.qp.address());
    assert!(find(&b.device, EventType::IBV_EVENT_SQ_DRAINED, Duration::ZERO).is_none());
    Ok(())
}

fn an_event_that_was_not_taken_goes_with_its_pair(dut: &TestDevice) -> Outcome {
    let (a, _b) = pair(dut, &classic());
    assert_eq!(a.qp.modify(to_sqd(true)), 0);
    thread::sleep(MOMENT);
    assert_eq!(a.qp.destroy(), 0);
    assert!(a.device.event(MOMENT).is_none());
    Ok(())
}

fn a_waiting_thread_gets_the_event(dut: &TestDevice) -> Outcome {
    let (a, _b) = pair(dut, &classic());
    thread::scope(|scope| {
        let waiter = scope.spawn(|| find(&a.device, EventType::IBV_EVENT_SQ_DRAINED, WAIT_LIMIT).is_some());
        thread::sleep(Duration::from_millis(20));
        assert_eq!(a.qp.modify(to_sqd(true)), 0);
        assert!(waiter.join().unwrap());
    });
    Ok(())
}

impl Node {
    /// Gives up ownership of all objects: closing the context destroys them.
    fn forget(&self) {
        self.qp.forget();
        self.send_cq.forget();
        self.recv_cq.forget();
        self.mr.forget();
        self.pd.forget();
    }
}

/// `man ibv_close_device`: objects that the program leaves behind are a leak, not an error.
fn a_context_closes_with_objects_left(dut: &TestDevice) -> Outcome {
    let node = Node::new(&dut.open(), &classic());
    node.connect(&node.peer());
    node.recv(1, 0, 64);
    node.forget();
    assert_eq!(node.device.close(), 0);
    let again = Node::new(&dut.open(), &classic());
    again.connect(&again.peer());
    again.recv(1, 0, 64);
    again.done(Wr::send(2).sge(again.mr.at(0, 8)));
    Ok(())
}

/// The kernel destroys the objects of a context when the last user of its file closes it.
fn the_peer_of_a_closed_context_does_not_answer(dut: &TestDevice) -> Outcome {
    dut.not_softroce("keeps a closed context's objects as long as their queues are mapped, which is until the process ends")?;
    let (a, b) = pair(dut, &classic().impatient());
    a.done(Wr::write(1, b.mr.remote(0)).sge(a.mr.at(0, 8)));
    let remote = b.mr.remote(0);
    b.forget();
    assert_eq!(b.device.close(), 0);
    a.mr.buf.set(0, &[1; 8]);
    assert_eq!(a.fails(Wr::write(2, remote).sge(a.mr.at(0, 8))), Status::IBV_WC_RETRY_EXC_ERR);
    assert_eq!(b.mr.buf.get(0, 8), [0; 8]);
    Ok(())
}

fn one_context_closes_and_the_other_works(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &classic());
    let other = dut.open();
    assert_eq!(other.close(), 0);
    a.done(Wr::write(1, b.mr.remote(0)).sge(a.mr.at(0, 8)));
    Ok(())
}

fn objects_of_many_contexts_live_side_by_side(dut: &TestDevice) -> Outcome {
    let pairs: Vec<_> = (0..8).map(|_| pair(dut, &classic())).collect();
    for (n, (a, b)) in pairs.iter().enumerate() {
        a.mr.buf.set(0, &[n as u8 + 1; 8]);
        a.done(Wr::write(1, b.mr.remote(0)).sge(a.mr.at(0, 8)));
    }
    for (n, (_, b)) in pairs.iter().enumerate() {
        assert_eq!(b.mr.buf.get(0, 8), [n as u8 + 1; 8]);
    }
    Ok(())
}
