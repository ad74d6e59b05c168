//! Fault rules for requests and receives.

use std::time::{Duration, Instant};

use rdma_mummy_sys::types::*;

use crate::bench::*;

use ibv_wc_status as S;

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + 3) as u8).collect()
}

#[test]
fn a_lost_request_ends_with_its_retries() {
    let _turn = turn();
    let (a, b) = pair();
    rules("drop opcode=rdma_write nth=2");
    for wr_id in 1..=3 {
        a.write(&b, wr_id, 64);
    }
    let seen = [a.next(), a.next(), a.next()];
    assert_eq!(seen, [(1, S::IBV_WC_SUCCESS), (2, S::IBV_WC_RETRY_EXC_ERR), (3, S::IBV_WC_WR_FLUSH_ERR)]);
    assert_eq!(a.state(), ibv_qp_state::IBV_QPS_ERR);
    assert_eq!(fired(), [1]);
}

#[test]
fn message_lost_fewer_times_than_sent_arrives() {
    let _turn = turn();
    let (a, b) = pair();
    a.write_bytes(&pattern(64));
    // The device makes four attempts: the first and three retries.
    rules("drop=3 nth=1; drop=4 nth=2");
    a.write(&b, 1, 64);
    a.write(&b, 2, 64);
    assert_eq!(a.next(), (1, S::IBV_WC_SUCCESS));
    assert_eq!(b.bytes(64), pattern(64));
    assert_eq!(a.next(), (2, S::IBV_WC_RETRY_EXC_ERR));
}

#[test]
fn an_unreliable_connection_loses_without_a_word() {
    let _turn = turn();
    let (a, b) =
        pair_with(EndpointOptions { qp_type: ibv_qp_type::IBV_QPT_UC, ..EndpointOptions::default() });
    b.receive(7).unwrap();
    rules("drop qp_type=uc nth=1");
    a.write_bytes(b"1");
    a.send(&b, 1, 1);
    a.write_bytes(b"2");
    a.send(&b, 2, 1);
    assert_eq!([a.next(), a.next()], [(1, S::IBV_WC_SUCCESS), (2, S::IBV_WC_SUCCESS)]);
    assert_eq!(b.next(), (7, S::IBV_WC_SUCCESS));
    assert_eq!(b.bytes(1), b"2");
}

#[test]
fn a_delayed_request_is_outstanding_and_keeps_the_order() {
    let _turn = turn();
    let (a, b) = pair();
    rules("delay=30ms..60ms nth=1");
    let begin = Instant::now();
    a.write(&b, 1, 64);
    a.write(&b, 2, 64);
    assert!(a.poll().unwrap().is_none());
    assert_eq!(a.next().0, 1);
    assert!(begin.elapsed() >= Duration::from_millis(30));
    assert_eq!(a.next().0, 2);
}

#[test]
fn a_held_request_lets_others_pass() {
    let _turn = turn();
    let ((a, b), (c, d)) = (pair(), pair());
    rules(&format!("hold=2:60s qpn={}", a.qpn()));
    a.write(&b, 1, 8);
    c.write(&d, 2, 8);
    assert!(a.poll().unwrap().is_none());
    assert_eq!(c.next().0, 2);
    assert!(a.poll().unwrap().is_none());
    c.write(&d, 3, 8);
    assert_eq!((c.next().0, a.next().0), (3, 1));
    // Without a later request, a held one is released after its time limit.
    rules("hold=2:10ms nth=1");
    a.write(&b, 4, 8);
    assert_eq!(a.next(), (4, S::IBV_WC_SUCCESS));
}

#[test]
fn a_request_is_completed_as_the_rule_says_and_not_executed() {
    let _turn = turn();
    for (word, status) in [
        ("rem_access_err", S::IBV_WC_REM_ACCESS_ERR),
        ("IBV_WC_LOC_PROT_ERR", S::IBV_WC_LOC_PROT_ERR),
        ("general-err", S::IBV_WC_GENERAL_ERR),
    ] {
        let (a, b) = pair();
        a.write_bytes(&pattern(64));
        rules(&format!("status={word} size=64 nth=1"));
        a.write(&b, 1, 64);
        a.write(&b, 2, 64);
        assert_eq!([a.next(), a.next()], [(1, status), (2, S::IBV_WC_WR_FLUSH_ERR)]);
        assert_eq!(b.bytes(64), [0; 64]);
    }
}

#[test]
fn a_success_can_be_a_lie() {
    let _turn = turn();
    let (a, b) = pair();
    a.write_bytes(&pattern(64));
    rules("status=success nth=1");
    a.write(&b, 1, 64);
    assert_eq!((a.next(), b.bytes(64)), ((1, S::IBV_WC_SUCCESS), vec![0; 64]));
    a.write(&b, 2, 64);
    assert_eq!((a.next(), b.bytes(64)), ((2, S::IBV_WC_SUCCESS), pattern(64)));
}

#[test]
fn a_receive_is_completed_as_the_rule_says() {
    let _turn = turn();
    let (a, b) = pair();
    b.receive(1).unwrap();
    b.receive(2).unwrap();
    rules("status=loc_prot_err opcode=recv");
    a.send(&b, 9, 64);
    assert_eq!(a.next(), (9, S::IBV_WC_SUCCESS));
    assert_eq!([b.next(), b.next()], [(1, S::IBV_WC_LOC_PROT_ERR), (2, S::IBV_WC_WR_FLUSH_ERR)]);
}

#[test]
fn a_receiver_that_is_never_ready_ends_the_retries() {
    let _turn = turn();
    let (a, b) = pair();
    for wr_id in 0..4 {
        b.receive(wr_id).unwrap();
    }
    rules("rnr=2 nth=1; rnr nth=2");
    a.write(&b, 1, 64);
    a.send(&b, 2, 64);
    a.send(&b, 3, 64);
    let seen = [a.next(), a.next(), a.next()];
    assert_eq!(seen, [(1, S::IBV_WC_SUCCESS), (2, S::IBV_WC_SUCCESS), (3, S::IBV_WC_RNR_RETRY_EXC_ERR)]);
    assert_eq!(b.next(), (0, S::IBV_WC_SUCCESS));
    assert_eq!(fired(), [1, 1]);
}

#[test]
fn a_receiver_that_fails_is_silent_and_not_unready() {
    let _turn = turn();
    let options = EndpointOptions { rnr_retry: 0, ..EndpointOptions::default() };
    // Longer than the bytes that a slot holds, so that the sender claims the receive before it copies.
    let length = 5000;
    seen_while_it_lasts(|lasting| {
        let (a, b) = pair_with(options);
        b.receive(0).unwrap();
        rules(&format!("pause=before_claim:{}ms nth=1", lasting.as_millis()));
        std::thread::scope(|scope| {
            let receiver = SharedEndpoint(&b);
            let failing = scope.spawn(move || {
                until(|| (fired() == [1]).then_some(()));
                // A rule counts as fired before the step at which it acts.
                std::thread::sleep(lasting / 4);
                assert_eq!(receiver.get().fail(), 0);
                let _ = receiver.get().poll();
            });
            a.send(&b, 1, length);
            failing.join().unwrap();
        });
        let (_, status) = a.next();
        assert!(matches!(status, S::IBV_WC_SUCCESS | S::IBV_WC_RETRY_EXC_ERR), "{status:?}");
        status == S::IBV_WC_RETRY_EXC_ERR
    });
}

#[test]
fn bits_are_flipped_on_the_way_and_nowhere_else() {
    let _turn = turn();
    for (opcode, length) in [
        (ibv_wr_opcode::IBV_WR_RDMA_WRITE, 5000),
        (ibv_wr_opcode::IBV_WR_SEND, 20),
        (ibv_wr_opcode::IBV_WR_SEND, 5000),
        (ibv_wr_opcode::IBV_WR_RDMA_READ, 5000),
    ] {
        let (a, b) = pair();
        let reads = opcode == ibv_wr_opcode::IBV_WR_RDMA_READ;
        let (from, to) = if reads { (&b, &a) } else { (&a, &b) };
        from.write_bytes(&pattern(length));
        b.receive(0).unwrap();
        rules("flip=1 nth=1");
        a.post(&b, 1, opcode, length).unwrap();
        assert_eq!(a.next(), (1, S::IBV_WC_SUCCESS));
        if opcode == ibv_wr_opcode::IBV_WR_SEND {
            assert_eq!(b.next(), (0, S::IBV_WC_SUCCESS));
        }
        assert_eq!(from.bytes(length), pattern(length));
        let changed =
            to.bytes(length).iter().zip(pattern(length)).map(|(a, b)| (a ^ b).count_ones()).sum::<u32>();
        assert_eq!(changed, 1, "{opcode:?} of {length} bytes");
    }
}

#[test]
fn the_last_bytes_come_later_than_the_others() {
    let _turn = turn();
    let length = 4096;
    seen_while_it_lasts(|lasting| {
        let (a, b) = pair();
        a.write_bytes(&vec![0xff; length]);
        rules(&format!("split={}ms", lasting.as_millis()));
        let half_seen = std::thread::scope(|scope| {
            let receiver = SharedEndpoint(&b);
            let watcher = scope.spawn(move || {
                until(|| {
                    let (tail, body) = (receiver.get().bytes(length), receiver.get().bytes(length));
                    let tail = tail[length - 8..] == [0xff; 8];
                    let body = body[..length - 8].iter().all(|byte| *byte == 0xff);
                    assert!(body || !tail, "the last bytes arrived before the others");
                    body.then_some(!tail)
                })
            });
            a.write(&b, 1, length);
            watcher.join().unwrap()
        });
        assert_eq!(a.next(), (1, S::IBV_WC_SUCCESS));
        assert_eq!(b.bytes(length), vec![0xff; length]);
        half_seen
    });
}

/// An endpoint that another thread reads, or moves to the error state.
struct SharedEndpoint<'a>(&'a FaultEndpoint);

// SAFETY: `bytes` reads the memory with volatile byte reads, `fail` makes one call of the verbs, which
// any thread may make, and the other thread uses nothing else of the endpoint.
unsafe impl Send for SharedEndpoint<'_> {}

impl<'a> SharedEndpoint<'a> {
    fn get(&self) -> &'a FaultEndpoint {
        self.0
    }
}

#[test]
fn an_overrun_queue_says_so_and_completes_nothing_more() {
    let _turn = turn();
    let (a, b) = pair();
    rules("cq_overrun nth=2");
    for wr_id in 1..=3 {
        a.write(&b, wr_id, 8);
    }
    assert_eq!(a.event(), ibv_event_type::IBV_EVENT_CQ_ERR);
    assert_eq!(a.next(), (1, S::IBV_WC_SUCCESS));
    assert!(a.poll().unwrap().is_none());
}

#[test]
fn a_shared_queue_runs_low_when_told() {
    let _turn = turn();
    let (a, b) = pair_with(EndpointOptions { shared: true, ..EndpointOptions::default() });
    b.receive(1).unwrap();
    b.receive(2).unwrap();
    rules("srq_limit nth=2");
    a.send(&b, 1, 8);
    a.send(&b, 2, 8);
    assert_eq!([b.next().0, b.next().0], [1, 2]);
    assert_eq!(b.event(), ibv_event_type::IBV_EVENT_SRQ_LIMIT_REACHED);
}

#[test]
fn a_queue_pair_fails_and_flushes() {
    let _turn = turn();
    let (a, b) = pair();
    rules("qp_fatal nth=2");
    for wr_id in 1..=3 {
        a.write(&b, wr_id, 8);
    }
    let seen = [a.next(), a.next(), a.next()];
    assert_eq!(seen, [(1, S::IBV_WC_SUCCESS), (2, S::IBV_WC_WR_FLUSH_ERR), (3, S::IBV_WC_WR_FLUSH_ERR)]);
    assert_eq!(a.event(), ibv_event_type::IBV_EVENT_QP_FATAL);
    assert_eq!(a.state(), ibv_qp_state::IBV_QPS_ERR);
}
