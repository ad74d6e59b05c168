//! The rate limit of a device. A slow machine only makes requests later, so that no test has an
//! upper bound of time. `faults::rate` tests the averages with simulated time.

use std::time::{Duration, Instant};

use rdma_mummy_sys::types::*;
use soft_rnic::faults;

use crate::bench::*;

use ibv_wc_status as S;

/// The device executes requests this much earlier than their bytes would take.
const BURST: Duration = Duration::from_millis(2);
const OTHER_DEVICE: EndpointOptions =
    EndpointOptions { qp_type: ibv_qp_type::IBV_QPT_RC, device: 1, shared: false, timeout: 10, rnr_retry: 3 };

#[test]
fn requests_of_a_device_share_its_rate() {
    let _turn = turn();
    for (rate, opcode, count, length) in [
        ("40Mb/s", ibv_wr_opcode::IBV_WR_RDMA_WRITE, 8, 8192),
        ("40Mb/s", ibv_wr_opcode::IBV_WR_RDMA_READ, 8, 8192),
        ("100kb/s", ibv_wr_opcode::IBV_WR_RDMA_WRITE, 32, 8),
        ("100kb/s", ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD, 32, 8),
    ] {
        let ((a, b), (c, d)) = (pair(), pair());
        rules(&format!("rate={rate} device=soft0"));
        let begin = Instant::now();
        for wr_id in 0..count {
            a.post(&b, wr_id, opcode, length).unwrap();
            c.post(&d, wr_id, opcode, length).unwrap();
        }
        for side in [&a, &c] {
            (0..count).for_each(|wr_id| assert_eq!(side.next(), (wr_id, S::IBV_WC_SUCCESS)));
        }
        let bits = faults::parse(&format!("rate={rate}")).unwrap();
        let faults::Action::Rate(bits) = bits[0].action() else { panic!("{bits:?}") };
        let needed = (2 * count * length as u64 * 8) as f64 / *bits as f64;
        assert!(begin.elapsed() + BURST >= Duration::from_secs_f64(needed), "{:?}", begin.elapsed());
        assert_eq!(fired(), [2 * count]);
    }
}

#[test]
fn requests_execute_while_the_program_does_not_poll() {
    let _turn = turn();
    let (a, b) = pair();
    a.write_bytes(b"whole");
    rules("rate=100kb/s");
    (0..60).for_each(|wr_id| a.write(&b, wr_id, 4));
    a.write(&b, 60, 5);
    until(|| (b.bytes(5) == b"whole").then_some(()));
    (0..=60).for_each(|wr_id| assert_eq!(a.next(), (wr_id, S::IBV_WC_SUCCESS)));
}

#[test]
fn unreliable_and_extended_connections_are_limited() {
    let _turn = turn();
    let uc = pair_with(EndpointOptions { qp_type: ibv_qp_type::IBV_QPT_UC, ..EndpointOptions::default() });
    for (a, b) in [uc, xrc_pair()] {
        rules("rate=1Mb/s");
        let begin = Instant::now();
        (0..4).for_each(|wr_id| a.write(&b, wr_id, 1000));
        (0..4).for_each(|wr_id| assert_eq!(a.next(), (wr_id, S::IBV_WC_SUCCESS)));
        assert!(begin.elapsed() + BURST >= Duration::from_millis(32), "{:?}", begin.elapsed());
    }
}

#[test]
fn a_slow_device_does_not_delay_another_one() {
    let _turn = turn();
    for (slow, fast) in [(0, 1), (1, 0)] {
        let options = |device| EndpointOptions { device, ..OTHER_DEVICE };
        let ((a, b), (c, d)) = (pair_with(options(slow)), pair_with(options(fast)));
        a.write_bytes(b"slow");
        rules(&format!("rate=1b/s device=soft{slow}; rate=100Mb/s device=soft{fast}"));
        // These need 32 seconds, and what is behind them, too.
        a.write(&b, 1, 4);
        a.write(&b, 2, 0);
        for wr_id in 0..64 {
            c.write(&d, wr_id, 4096);
            assert_eq!(a.poll(), Ok(None));
        }
        // One thread polls both devices.
        for wr_id in 0..64 {
            assert_eq!(c.next(), (wr_id, S::IBV_WC_SUCCESS));
            assert_eq!(a.poll(), Ok(None));
        }
        assert_eq!((b.bytes(4), fired()), (vec![0; 4], vec![1, 64]));
        faults::clear();
        assert_eq!([a.next(), a.next()], [(1, S::IBV_WC_SUCCESS), (2, S::IBV_WC_SUCCESS)]);
        assert_eq!(b.bytes(4), b"slow");
    }
}

#[test]
fn a_rate_limits_only_what_its_conditions_match() {
    let _turn = turn();
    let (a, b) = pair();
    rules("rate=1b/s opcode=rdma_read");
    a.write(&b, 1, 4096);
    a.post(&b, 2, ibv_wr_opcode::IBV_WR_RDMA_READ, 4096).unwrap();
    a.write(&b, 3, 8);
    assert_eq!(a.next(), (1, S::IBV_WC_SUCCESS));
    assert_eq!(a.poll(), Ok(None));
    assert_eq!(fired(), [1]);
}

#[test]
fn a_flushed_request_takes_no_time_from_others() {
    let _turn = turn();
    let ((a, b), (c, d)) = (pair(), pair());
    rules("rate=8kb/s");
    // This needs a minute.
    a.write(&b, 1, 60_000);
    assert_eq!(a.poll(), Ok(None));
    assert_eq!(a.fail(), 0);
    assert_eq!(a.next(), (1, S::IBV_WC_WR_FLUSH_ERR));
    c.write(&d, 2, 8);
    assert_eq!(c.next(), (2, S::IBV_WC_SUCCESS));
}
