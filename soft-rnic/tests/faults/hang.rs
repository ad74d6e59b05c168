//! Requests that neither execute nor complete.

use rdma_mummy_sys::types::*;
use soft_rnic::faults;

use crate::bench::*;

use ibv_wc_status as S;

const FLUSHED: ibv_wc_status = S::IBV_WC_WR_FLUSH_ERR;

#[test]
fn a_hung_request_holds_up_its_queue_pair_until_the_flush() {
    let _turn = turn();
    for qp_type in [ibv_qp_type::IBV_QPT_RC, ibv_qp_type::IBV_QPT_UC] {
        let options = EndpointOptions { qp_type, ..EndpointOptions::default() };
        let ((a, b), (c, d)) = (pair_with(options), pair_with(options));
        a.receive(9).unwrap();
        a.write_bytes(b"hang");
        rules(&format!("hang qpn={} nth=2", a.qpn()));
        a.write(&b, 1, 1);
        a.write(&b, 2, 4);
        a.write(&b, 3, 4);
        assert_eq!(a.next(), (1, S::IBV_WC_SUCCESS));
        // The other queue pair goes on.
        for wr_id in 0..100 {
            c.write(&d, wr_id, 8);
            assert_eq!(c.next(), (wr_id, S::IBV_WC_SUCCESS));
            assert_eq!(a.poll(), Ok(None));
        }
        assert_eq!((b.bytes(4), fired()), (b"h\0\0\0".to_vec(), vec![1]));
        assert_eq!(a.fail(), 0);
        assert_eq!([a.next(), a.next(), a.next()], [(2, FLUSHED), (3, FLUSHED), (9, FLUSHED)]);
        assert_eq!(b.bytes(4), b"h\0\0\0");
    }
}

#[test]
fn a_silent_device_flushes_nothing_and_can_be_destroyed() {
    let _turn = turn();
    let (mut a, b) = pair();
    a.receive(9).unwrap();
    rules("hang=silent opcode=send first=1");
    a.write(&b, 1, 8);
    a.send(&b, 2, 8);
    a.write(&b, 3, 8);
    assert_eq!(a.next(), (1, S::IBV_WC_SUCCESS));
    assert_eq!(a.poll(), Ok(None));
    assert_eq!(a.fail(), 0);
    a.write(&b, 4, 8);
    a.receive(10).unwrap();
    for _ in 0..100 {
        assert_eq!(a.poll(), Ok(None));
    }
    assert_eq!(a.state(), ibv_qp_state::IBV_QPS_ERR);
    assert_eq!(a.destroy(), [0; 4]);
    a.lost = true;
}

#[test]
fn a_silent_queue_pair_begins_again_after_a_reset() {
    let _turn = turn();
    let options = EndpointOptions::default();
    let (a, b) = pair_with(options);
    rules("hang=silent nth=1");
    a.receive(9).unwrap();
    a.write(&b, 1, 8);
    assert_eq!(a.poll(), Ok(None));
    assert_eq!(a.fail(), 0);
    assert_eq!(a.poll(), Ok(None));
    let reset = ibv_qp_attr { qp_state: ibv_qp_state::IBV_QPS_RESET, ..Default::default() };
    for side in [&a, &b] {
        assert_eq!(side.modify(reset, ibv_qp_attr_mask::IBV_QP_STATE), 0);
    }
    a.connect_to(b.qpn(), options);
    b.connect_to(a.qpn(), options);
    a.receive(10).unwrap();
    a.write(&b, 2, 8);
    assert_eq!(a.next(), (2, S::IBV_WC_SUCCESS));
    assert_eq!(a.fail(), 0);
    assert_eq!(a.next(), (10, FLUSHED));
}

#[test]
fn a_hung_request_goes_on_when_the_rules_change() {
    let _turn = turn();
    let (a, b) = pair();
    for silent in ["", "=silent"] {
        b.write_bytes(&[0; 8]);
        a.write_bytes(b"go on");
        rules(&format!("hang{silent} nth=1"));
        a.write(&b, 1, 8);
        a.write(&b, 2, 8);
        assert_eq!(a.poll(), Ok(None));
        faults::clear();
        // The program need not poll.
        until(|| (b.bytes(5) == b"go on").then_some(()));
        assert_eq!([a.next(), a.next()], [(1, S::IBV_WC_SUCCESS), (2, S::IBV_WC_SUCCESS)]);
    }
    rules("hang");
    a.write(&b, 3, 8);
    assert_eq!(a.poll(), Ok(None));
    rules("drop");
    assert_eq!(a.next(), (3, S::IBV_WC_RETRY_EXC_ERR));
}

#[test]
fn a_silent_device_flushes_late_when_the_rules_are_cleared() {
    let _turn = turn();
    let (a, b) = pair();
    a.receive(9).unwrap();
    rules("hang=silent; qp_fatal nth=1");
    a.write(&b, 1, 8);
    assert_eq!(a.poll(), Ok(None));
    assert_eq!(a.event(), ibv_event_type::IBV_EVENT_QP_FATAL);
    assert_eq!(a.state(), ibv_qp_state::IBV_QPS_ERR);
    assert_eq!(a.poll(), Ok(None));
    faults::clear();
    assert_eq!([a.next(), a.next()], [(1, FLUSHED), (9, FLUSHED)]);
}
