//! Data tests: every operation moves the right bytes, and no others.

use sideway::ibverbs::completion::{WorkCompletionOperationType, WorkCompletionStatus};
use sideway::ibverbs::queue_pair::QueuePairType;

use crate::harness::{Outcome, Suite, TestDevice};
use crate::node::{Data, Op, Pair, SIGNALED, pattern};
use crate::support::flavour::{CqFlavour, QpFlavour};

pub(crate) fn cases(suite: &mut Suite) {
    matrix!(suite:
        send_fills_the_next_receive,
        send_with_immediate_brings_its_number,
        write_changes_the_peers_memory,
        write_with_immediate_takes_a_receive,
        read_fetches_the_peers_memory,
        compare_and_swap_swaps_only_what_it_expects,
        fetch_and_add_adds,
    );
    each_qp!(suite:
        a_long_message_arrives_whole,
        unreliable_pairs_send_and_write,
        both_directions_at_once,
    );
}

/// A margin around the target, in which excess writes are detected.
const EDGE: usize = 64;

/// Lengths around the possible packet sizes.
const LENGTHS: [usize; 7] = [1, 7, 255, 1024, 1025, 4096, 5000];

fn assert_only<Q, C>(node: &crate::node::Node<Q, C>, offset: usize, expected: &[u8])
where
    Q: QpFlavour,
    C: CqFlavour,
{
    assert_eq!(node.memory.get(offset, expected.len()), expected);
    assert_eq!(node.memory.get(offset - EDGE, EDGE), [0; EDGE], "before");
    assert_eq!(node.memory.get(offset + expected.len(), EDGE), [0; EDGE], "behind");
    node.memory.set(offset, &vec![0; expected.len()]);
}

fn send_fills_the_next_receive<Q: QpFlavour, C: CqFlavour>(test_device: &TestDevice) -> Outcome {
    let mut pair = Pair::<Q, C>::new(test_device);
    for (n, len) in LENGTHS.into_iter().enumerate() {
        let sent = pattern(n as u8 + 1, len);
        pair.a.memory.set(0, &sent);
        pair.b.receive(&[(n as u64, &[(EDGE, 8192)])]).unwrap();
        let done = pair.a.run(Op::Send, Data::At(0, len));
        assert_eq!(
            (done.opcode, done.qp_num),
            (WorkCompletionOperationType::Send, Some(pair.a.qp.qp_number()))
        );
        let got = pair.b.received(1)[0];
        assert_eq!((got.wr_id, got.status), (n as u64, WorkCompletionStatus::Success));
        assert_eq!((got.opcode, got.byte_len), (WorkCompletionOperationType::Receive, Some(len as u32)));
        assert_eq!((got.imm_data, got.qp_num), (None, Some(pair.b.qp.qp_number())));
        assert_only(&pair.b, EDGE, &sent);
    }
    Ok(())
}

fn send_with_immediate_brings_its_number<Q: QpFlavour, C: CqFlavour>(test_device: &TestDevice) -> Outcome {
    let mut pair = Pair::<Q, C>::new(test_device);
    for imm in [0, 1, 0x0102_0304, u32::MAX] {
        let sent = pattern(imm as u8 | 1, 100);
        pair.a.memory.set(0, &sent);
        pair.b.receive(&[(9, &[(EDGE, 200)])]).unwrap();
        pair.a.run(Op::SendImm(imm), Data::At(0, 100));
        let got = pair.b.received(1)[0];
        assert_eq!((got.imm_data, got.byte_len), (Some(imm), Some(100)));
        assert_eq!(got.opcode, WorkCompletionOperationType::Receive);
        assert_only(&pair.b, EDGE, &sent);
    }
    Ok(())
}

fn write_changes_the_peers_memory<Q: QpFlavour, C: CqFlavour>(test_device: &TestDevice) -> Outcome {
    let mut pair = Pair::<Q, C>::new(test_device);
    for (n, len) in LENGTHS.into_iter().enumerate() {
        let sent = pattern(n as u8 + 1, len);
        pair.a.memory.set(0, &sent);
        let done = pair.a.run(Op::Write(pair.b.remote(EDGE)), Data::At(0, len));
        assert_eq!(done.opcode, WorkCompletionOperationType::RdmaWrite);
        assert_only(&pair.b, EDGE, &sent);
    }
    assert!(pair.b.received(0).is_empty());
    Ok(())
}

fn write_with_immediate_takes_a_receive<Q: QpFlavour, C: CqFlavour>(test_device: &TestDevice) -> Outcome {
    let mut pair = Pair::<Q, C>::new(test_device);
    for (n, len) in LENGTHS.into_iter().enumerate() {
        let sent = pattern(n as u8 + 1, len);
        pair.a.memory.set(0, &sent);
        pair.b.receive(&[(n as u64, &[])]).unwrap();
        let done = pair.a.run(Op::WriteImm(pair.b.remote(EDGE), 0xfeed), Data::At(0, len));
        assert_eq!(done.opcode, WorkCompletionOperationType::RdmaWrite);
        let got = pair.b.received(1)[0];
        assert_eq!((got.wr_id, got.imm_data), (n as u64, Some(0xfeed)));
        assert_eq!(got.opcode, WorkCompletionOperationType::ReceiveWithImmediate);
        assert_eq!(got.byte_len, Some(len as u32));
        assert_only(&pair.b, EDGE, &sent);
    }
    Ok(())
}

fn read_fetches_the_peers_memory<Q: QpFlavour, C: CqFlavour>(test_device: &TestDevice) -> Outcome {
    let mut pair = Pair::<Q, C>::new(test_device);
    for (n, len) in LENGTHS.into_iter().enumerate() {
        let there = pattern(n as u8 + 1, len);
        pair.b.memory.set(0, &there);
        let done = pair.a.run(Op::Read(pair.b.remote(0)), Data::At(EDGE, len));
        assert_eq!(done.opcode, WorkCompletionOperationType::RdmaRead);
        assert_only(&pair.a, EDGE, &there);
        assert_eq!(pair.b.memory.get(0, len), there);
    }
    Ok(())
}

fn compare_and_swap_swaps_only_what_it_expects<Q: QpFlavour, C: CqFlavour>(
    test_device: &TestDevice,
) -> Outcome {
    let mut pair = Pair::<Q, C>::new(test_device);
    let target = pair.b.remote(EDGE);
    pair.b.memory.set(EDGE, &7u64.to_ne_bytes());
    for (expected, new, before, after) in [(8, 9, 7, 7), (7, 9, 7, 9), (9, u64::MAX, 9, u64::MAX)] {
        let done = pair.a.run(Op::CompareSwap(target, expected, new), Data::At(EDGE, 8));
        assert_eq!(done.opcode, WorkCompletionOperationType::CompareAndSwap);
        assert_eq!((pair.a.memory.get_u64(EDGE), pair.b.memory.get_u64(EDGE)), (before, after));
    }
    assert_eq!(pair.b.memory.get(EDGE + 8, EDGE), [0; EDGE]);
    Ok(())
}

fn fetch_and_add_adds<Q: QpFlavour, C: CqFlavour>(test_device: &TestDevice) -> Outcome {
    let mut pair = Pair::<Q, C>::new(test_device);
    let target = pair.b.remote(EDGE);
    let mut value = 40u64;
    pair.b.memory.set(EDGE, &value.to_ne_bytes());
    for add in [1, 0, 1 << 40, u64::MAX] {
        let done = pair.a.run(Op::FetchAdd(target, add), Data::At(EDGE, 8));
        assert_eq!(done.opcode, WorkCompletionOperationType::FetchAndAdd);
        assert_eq!(pair.a.memory.get_u64(EDGE), value);
        value = value.wrapping_add(add);
        assert_eq!(pair.b.memory.get_u64(EDGE), value);
    }
    Ok(())
}

fn a_long_message_arrives_whole<Q: QpFlavour>(test_device: &TestDevice) -> Outcome {
    const LEN: usize = 1 << 20;
    let mut pair = Pair::<Q, crate::node::AnyCq>::with(test_device, |options| options.bytes = LEN);
    let sent = pattern(5, LEN);
    pair.a.memory.set(0, &sent);
    pair.b.receive(&[(1, &[(0, LEN)])]).unwrap();
    pair.a.run(Op::Send, Data::At(0, LEN));
    assert_eq!(pair.b.received(1)[0].byte_len, Some(LEN as u32));
    assert!(pair.b.memory.get(0, LEN) == sent);
    pair.b.memory.set(0, &pattern(6, LEN));
    pair.a.run(Op::Read(pair.b.remote(0)), Data::At(0, LEN));
    assert!(pair.a.memory.get(0, LEN) == pattern(6, LEN));
    Ok(())
}

fn unreliable_pairs_send_and_write<Q: QpFlavour>(test_device: &TestDevice) -> Outcome {
    let uc = QueuePairType::UnreliableConnection;
    let mut pair = Pair::<Q, crate::node::AnyCq>::with(test_device, |options| options.qp_type = uc);
    let sent = pattern(3, 3000);
    pair.a.memory.set(0, &sent);
    pair.b.receive(&[(1, &[(EDGE, 4000)]), (2, &[])]).unwrap();
    pair.a.run(Op::SendImm(5), Data::At(0, 3000));
    assert_eq!(pair.b.received(1)[0].imm_data, Some(5));
    assert_only(&pair.b, EDGE, &sent);
    pair.a.run(Op::WriteImm(pair.b.remote(EDGE), 6), Data::At(0, 3000));
    assert_eq!(pair.b.received(1)[0].imm_data, Some(6));
    assert_only(&pair.b, EDGE, &sent);
    Ok(())
}

fn both_directions_at_once<Q: QpFlavour>(test_device: &TestDevice) -> Outcome {
    let mut pair = Pair::<Q, crate::node::AnyCq>::new(test_device);
    let (one, two) = (pattern(1, 2000), pattern(2, 2000));
    pair.a.memory.set(0, &one);
    pair.b.memory.set(0, &two);
    for round in 0..10u64 {
        pair.a.receive(&[(round, &[(10000, 2000)])]).unwrap();
        pair.b.receive(&[(round, &[(10000, 2000)])]).unwrap();
        pair.a.post(&[(round, SIGNALED, Op::Send, Data::At(0, 2000))]).unwrap();
        pair.b.post(&[(round, SIGNALED, Op::Send, Data::At(0, 2000))]).unwrap();
        for node in [&mut pair.a, &mut pair.b] {
            assert_eq!(node.sent(1)[0].wr_id, round);
            assert_eq!(node.received(1)[0].wr_id, round);
        }
    }
    assert_eq!(pair.a.memory.get(10000, 2000), two);
    assert_eq!(pair.b.memory.get(10000, 2000), one);
    Ok(())
}
