//! The same seed causes the same faults.

use rdma_mummy_sys::types::*;
use soft_rnic::faults;

use crate::bench::*;

/// The completions, the bytes that arrived with each, and the number of times that each rule acted.
type Outcomes = (Vec<(u64, ibv_wc_status)>, Vec<Vec<u8>>, Vec<u64>);

/// The outcomes of many writes under random faults.
fn outcomes(seed: u64) -> Outcomes {
    let (a, b) = pair();
    a.write_bytes(&[0x55; 32]);
    let text = "flip=3 chance=0.3; status=success chance=0.2; delay=1us..1ms chance=0.2; drop=1 chance=0.1";
    faults::set(faults::parse(text).unwrap(), seed).unwrap();
    let mut completions = Vec::new();
    let mut arrived = Vec::new();
    for wr_id in 0..200 {
        b.write_bytes(&[0; 32]);
        a.write(&b, wr_id, 32);
        completions.push(a.next());
        arrived.push(b.bytes(32));
    }
    let fired = fired();
    (completions, arrived, fired)
}

#[test]
fn a_seed_can_be_replayed() {
    let _turn = turn();
    let first = outcomes(42);
    assert!(first.2.iter().all(|fired| (5..150).contains(fired)), "{:?}", first.2);
    assert_eq!(first, outcomes(42));
    assert_ne!(first.1, outcomes(43).1);
}
