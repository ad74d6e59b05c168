//! Fault rules for extended reliable connections (XRC): a target receives the request, and passes
//! it to a shared receive queue with another number.

use std::time::{Duration, Instant};

use rdma_mummy_sys::types::*;

use crate::bench::*;

use ibv_wc_status as S;
use ibv_wr_opcode as O;

const SUCCESS: S = S::IBV_WC_SUCCESS;

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 5 + 1) as u8).collect()
}

/// A connected pair with `count` receives, numbered from 0.
fn pair_with_receives(count: u64) -> (FaultEndpoint, FaultEndpoint) {
    let (a, b) = xrc_pair();
    (0..count).for_each(|wr_id| b.receive(wr_id).unwrap());
    (a, b)
}

fn sends(a: &FaultEndpoint, b: &FaultEndpoint, count: u64) {
    (1..=count).for_each(|wr_id| a.send(b, wr_id, 64));
}

/// Waits for `count` completions, and returns all that have come.
fn all(side: &FaultEndpoint, count: usize) -> Vec<(u64, S)> {
    let seen = (0..count).map(|_| side.next()).collect();
    assert_eq!(side.poll().unwrap(), None);
    seen
}

#[test]
fn a_lost_request_ends_the_sending_end_only() {
    let _turn = turn();
    let (a, b) = pair_with_receives(2);
    rules("drop qp_type=xrc_send nth=2");
    sends(&a, &b, 3);
    let lost = [(1, SUCCESS), (2, S::IBV_WC_RETRY_EXC_ERR), (3, S::IBV_WC_WR_FLUSH_ERR)];
    assert_eq!(all(&a, 3), lost);
    assert_eq!((a.state(), b.state()), (ibv_qp_state::IBV_QPS_ERR, ibv_qp_state::IBV_QPS_RTS));
    assert_eq!(all(&b, 1), [(0, SUCCESS)]);
    assert_eq!(fired(), [1]);
}

#[test]
fn xrc_message_lost_fewer_times_than_sent_arrives_once() {
    let _turn = turn();
    let (a, b) = pair_with_receives(3);
    a.write_bytes(&pattern(64));
    rules("drop=3 nth=1; rnr=2 nth=2");
    sends(&a, &b, 2);
    assert_eq!(all(&a, 2), [(1, SUCCESS), (2, SUCCESS)]);
    assert_eq!(all(&b, 2), [(0, SUCCESS), (1, SUCCESS)]);
    assert_eq!((b.bytes(64), fired()), (pattern(64), vec![1, 1]));
}

#[test]
fn a_queue_that_is_never_ready_ends_the_retries() {
    let _turn = turn();
    let (a, b) = pair_with_receives(2);
    // A request that takes no receive cannot fail for lack of one.
    rules("rnr qp_type=xrc_send from=2");
    a.write(&b, 1, 64);
    sends(&a, &b, 2);
    assert_eq!(all(&a, 3), [(1, SUCCESS), (1, SUCCESS), (2, S::IBV_WC_RNR_RETRY_EXC_ERR)]);
    assert_eq!((all(&b, 1), b.state()), (vec![(0, SUCCESS)], ibv_qp_state::IBV_QPS_RTS));
}

#[test]
fn a_delayed_request_keeps_the_order() {
    let _turn = turn();
    let (a, b) = pair_with_receives(2);
    rules("delay=30ms..60ms nth=1");
    let begin = Instant::now();
    sends(&a, &b, 2);
    assert_eq!((a.poll().unwrap(), b.poll().unwrap()), (None, None));
    assert_eq!(all(&a, 2), [(1, SUCCESS), (2, SUCCESS)]);
    assert!(begin.elapsed() >= Duration::from_millis(30));
    assert_eq!(all(&b, 2), [(0, SUCCESS), (1, SUCCESS)]);
}

#[test]
fn a_held_request_lets_those_of_other_connections_pass() {
    let _turn = turn();
    let ((a, b), (c, d)) = (pair_with_receives(1), pair_with_receives(1));
    rules(&format!("hold=1:60s qpn={}", a.qpn()));
    a.send(&b, 1, 8);
    assert_eq!((a.poll().unwrap(), b.poll().unwrap()), (None, None));
    c.send(&d, 2, 8);
    assert_eq!([c.next(), d.next(), a.next(), b.next()].map(|seen| seen.0), [2, 0, 1, 0]);
}

#[test]
fn a_request_is_completed_as_the_rule_says_and_not_executed() {
    let _turn = turn();
    for (word, status) in [("rem_access_err", S::IBV_WC_REM_ACCESS_ERR), ("success", SUCCESS)] {
        let (a, b) = pair_with_receives(1);
        a.write_bytes(&pattern(64));
        rules(&format!("status={word} opcode=send nth=1"));
        a.send(&b, 1, 64);
        assert_eq!((all(&a, 1), all(&b, 0)), (vec![(1, status)], vec![]));
        assert_eq!((b.bytes(64), b.state()), (vec![0; 64], ibv_qp_state::IBV_QPS_RTS));
    }
}

/// The target fails, not the queue: messages through another target still arrive.
#[test]
fn a_receive_is_completed_as_the_rule_says_and_ends_its_target() {
    let _turn = turn();
    let (a, b) = pair_with_receives(2);
    rules(&format!("status=loc_prot_err opcode=recv qp_type=xrc_recv qpn={} nth=1", b.qpn()));
    a.send(&b, 9, 64);
    assert_eq!(all(&a, 1), [(9, SUCCESS)]);
    // The other receive stays in the shared queue.
    assert_eq!(all(&b, 1), [(0, S::IBV_WC_LOC_PROT_ERR)]);
    assert_eq!((b.state(), fired()), (ibv_qp_state::IBV_QPS_ERR, vec![1]));
    a.send(&b, 10, 64);
    assert_eq!(all(&a, 1), [(10, S::IBV_WC_RETRY_EXC_ERR)]);
}

#[test]
fn bits_are_flipped_on_the_way_and_nowhere_else() {
    let _turn = turn();
    for (opcode, length) in [
        (O::IBV_WR_RDMA_WRITE, 5000),
        (O::IBV_WR_SEND, 20),
        (O::IBV_WR_SEND, 5000),
        (O::IBV_WR_RDMA_READ, 5000),
    ] {
        let (a, b) = pair_with_receives(1);
        let reads = opcode == O::IBV_WR_RDMA_READ;
        let (from, to) = if reads { (&b, &a) } else { (&a, &b) };
        from.write_bytes(&pattern(length));
        rules("flip=1 qp_type=xrc_send nth=1");
        a.post(&b, 1, opcode, length).unwrap();
        assert_eq!(all(&a, 1), [(1, SUCCESS)]);
        let received: &[(u64, S)] = if opcode == O::IBV_WR_SEND { &[(0, SUCCESS)] } else { &[] };
        assert_eq!(all(&b, received.len()), received);
        assert_eq!(from.bytes(length), pattern(length));
        let pairs = to.bytes(length).into_iter().zip(pattern(length));
        let changed: u32 = pairs.map(|(a, b)| (a ^ b).count_ones()).sum();
        assert_eq!(changed, 1, "{opcode:?} of {length} bytes");
    }
}

#[test]
fn an_atomic_is_lost_or_done_once() {
    let _turn = turn();
    let (a, b) = pair_with_receives(0);
    rules("drop=2 opcode=atomic_fetch_and_add nth=1; drop opcode=atomic_fetch_and_add nth=2");
    for wr_id in [1, 2] {
        a.post(&b, wr_id, O::IBV_WR_ATOMIC_FETCH_AND_ADD, 8).unwrap();
    }
    assert_eq!(all(&a, 2), [(1, SUCCESS), (2, S::IBV_WC_RETRY_EXC_ERR)]);
    assert_eq!(b.bytes(8), 1_u64.to_ne_bytes());
}

#[test]
fn the_last_bytes_come_later_than_the_others_and_the_completion_last() {
    let _turn = turn();
    let length = 4096;
    for opcode in [O::IBV_WR_RDMA_WRITE, O::IBV_WR_SEND] {
        seen_while_it_lasts(|lasting| {
            let (a, b) = pair_with_receives(1);
            a.write_bytes(&vec![0xff; length]);
            rules(&format!("split={}ms qp_type=xrc_send", lasting.as_millis()));
            let (half_seen, told) = std::thread::scope(|scope| {
                let receiver = SharedEndpoint(&b);
                let watcher = scope.spawn(move || {
                    until(|| {
                        let told = receiver.poll();
                        let (tail, body) = (receiver.bytes(length), receiver.bytes(length));
                        let tail = tail[length - 8..] == [0xff; 8];
                        let body = body[..length - 8].iter().all(|byte| *byte == 0xff);
                        assert!(body || !tail, "{opcode:?}: the last bytes arrived before the others");
                        assert!(tail || told.is_none(), "{opcode:?}: {told:?} before the last bytes");
                        body.then_some((!tail, told))
                    })
                });
                a.post(&b, 1, opcode, length).unwrap();
                assert_eq!(a.next(), (1, SUCCESS));
                watcher.join().unwrap()
            });
            assert_eq!(b.bytes(length), vec![0xff; length]);
            if opcode == O::IBV_WR_SEND {
                assert_eq!(told.map_or_else(|| all(&b, 1), |told| vec![told]), [(0, SUCCESS)]);
            }
            half_seen
        });
    }
}

/// An endpoint that another thread reads.
#[derive(Clone, Copy)]
struct SharedEndpoint<'a>(&'a FaultEndpoint);

// SAFETY: `bytes` reads the memory with volatile byte reads, and any thread may poll a completion
// queue. The other thread uses nothing else of the endpoint.
unsafe impl Send for SharedEndpoint<'_> {}

impl SharedEndpoint<'_> {
    fn bytes(self, length: usize) -> Vec<u8> {
        self.0.bytes(length)
    }

    fn poll(self) -> Option<(u64, S)> {
        self.0.poll().unwrap()
    }
}

#[test]
fn a_message_that_is_held_up_at_any_step_arrives() {
    let _turn = turn();
    for length in [64, 4096] {
        for step in super::children::STEPS.into_iter().filter(|step| length > 64 || *step != "mid_copy") {
            let (a, b) = pair_with_receives(1);
            a.write_bytes(&pattern(length));
            rules(&format!("pause={step}:1ms qp_type=xrc_send"));
            a.send(&b, 1, length);
            assert_eq!((all(&a, 1), all(&b, 1)), (vec![(1, SUCCESS)], vec![(0, SUCCESS)]), "{step}");
            assert_eq!((b.bytes(length), fired()), (pattern(length), vec![1]), "{step}");
        }
    }
}

#[test]
fn a_queue_pair_fails_and_flushes() {
    let _turn = turn();
    let (a, b) = pair_with_receives(3);
    rules("qp_fatal nth=2");
    sends(&a, &b, 3);
    let flushed = S::IBV_WC_WR_FLUSH_ERR;
    assert_eq!(all(&a, 3), [(1, SUCCESS), (2, flushed), (3, flushed)]);
    assert_eq!(a.event(), ibv_event_type::IBV_EVENT_QP_FATAL);
    assert_eq!((a.state(), b.state()), (ibv_qp_state::IBV_QPS_ERR, ibv_qp_state::IBV_QPS_RTS));
    assert_eq!(all(&b, 1), [(0, SUCCESS)]);
}

#[test]
fn a_target_fails_as_it_receives() {
    let _turn = turn();
    let (a, b) = pair_with_receives(2);
    rules("qp_fatal opcode=recv nth=1");
    a.send(&b, 1, 64);
    assert_eq!((all(&a, 1), all(&b, 1)), (vec![(1, SUCCESS)], vec![(0, SUCCESS)]));
    assert_eq!(b.event(), ibv_event_type::IBV_EVENT_QP_FATAL);
    assert_eq!((a.state(), b.state()), (ibv_qp_state::IBV_QPS_RTS, ibv_qp_state::IBV_QPS_ERR));
}

#[test]
fn either_completion_queue_is_overrun() {
    let _turn = turn();
    let (a, b) = pair_with_receives(2);
    rules("cq_overrun nth=2");
    sends(&a, &b, 2);
    assert_eq!(a.event(), ibv_event_type::IBV_EVENT_CQ_ERR);
    assert_eq!((all(&a, 1), all(&b, 2).len()), (vec![(1, SUCCESS)], 2));
    let (a, b) = pair_with_receives(2);
    rules("cq_overrun opcode=recv nth=1");
    sends(&a, &b, 1);
    assert_eq!(all(&a, 1), [(1, SUCCESS)]);
    assert_eq!(b.poll().unwrap().map(|seen| seen.0), Some(0), "the completion came before the overrun");
    assert_eq!(b.event(), ibv_event_type::IBV_EVENT_CQ_ERR);
}

#[test]
fn a_queue_runs_low_when_told() {
    let _turn = turn();
    let (a, b) = pair_with_receives(2);
    rules("srq_limit nth=2");
    sends(&a, &b, 2);
    assert_eq!((all(&a, 2).len(), all(&b, 2).len()), (2, 2));
    assert_eq!(b.event(), ibv_event_type::IBV_EVENT_SRQ_LIMIT_REACHED);
    assert_eq!(fired(), [1]);
}

#[test]
fn a_port_that_is_down_answers_nothing() {
    let _turn = turn();
    let (a, b) = pair_with_receives(2);
    rules("port_down qp_type=xrc_send nth=2");
    sends(&a, &b, 2);
    assert_eq!(all(&a, 2), [(1, SUCCESS), (2, S::IBV_WC_RETRY_EXC_ERR)]);
    assert_eq!(b.event(), ibv_event_type::IBV_EVENT_PORT_ERR);
    assert_eq!(all(&b, 1), [(0, SUCCESS)]);
    soft_rnic::faults::port_up(0, 1).unwrap();
    assert_eq!(b.event(), ibv_event_type::IBV_EVENT_PORT_ACTIVE);
}

#[test]
fn a_device_that_fails_takes_both_ends() {
    let _turn = turn();
    let (mut a, mut b) = pair_with_receives(2);
    (a.lost, b.lost) = (true, true);
    rules("device_fatal qp_type=xrc_send nth=2");
    sends(&a, &b, 2);
    for side in [&a, &b] {
        assert_eq!(side.event(), ibv_event_type::IBV_EVENT_DEVICE_FATAL);
    }
    assert!(a.destroy().iter().chain(&b.destroy()).all(|result| *result == libc::EIO));
}

#[test]
fn domains_queues_and_targets_fail_by_rules() {
    let _turn = turn();
    let (_a, b) = xrc_pair();
    for call in ["open_xrcd", "create_srq", "create_qp", "open_qp", "close_xrcd"] {
        rules(&format!("errno=ENOMEM call={call} first=1"));
        assert_eq!((b.call_of_xrc(call), fired()), (libc::ENOMEM, vec![1]), "{call}");
    }
}
