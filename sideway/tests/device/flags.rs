//! Tests of all kinds of buffers, and of request flags.

use sideway::ibverbs::queue_pair::{BasicQueuePair, WorkRequestFlags};

use crate::harness::{Outcome, Skip, Suite, TestDevice};
use crate::node::{AnyCq, Data, Op, Pair, SIGNALED, pattern};
use crate::support::flavour::{CqFlavour, QpFlavour};

pub(crate) fn cases(suite: &mut Suite) {
    each_qp!(suite:
        inline_data_is_copied_at_once,
        inline_pieces_arrive_as_one,
        several_pieces_are_gathered,
        several_pieces_are_scattered,
        a_read_is_scattered,
        a_message_without_bytes_arrives,
        a_request_without_buffer_moves_no_bytes,
        only_signaled_requests_complete,
        all_requests_complete_where_the_pair_says_so,
        a_fence_waits_for_reads,
        a_solicited_send_is_a_send,
    );
    cases!(suite: inline_data_of_every_length);
}

const NONE: WorkRequestFlags = WorkRequestFlags::empty();

/// A pair with inline data, if this kind of pair supports it on this device.
fn inline_pair<Q: QpFlavour, C: CqFlavour>(test_device: &TestDevice, bytes: u32) -> Result<Pair<Q, C>, Skip> {
    let pair = Pair::<Q, C>::with(test_device, |options| options.inline = bytes);
    if pair.a.qp.control().capability().max_inline_data < bytes {
        skip!("{} of this device takes no inline data", Q::NAME);
    }
    Ok(pair)
}

fn inline_data_is_copied_at_once<Q: QpFlavour>(test_device: &TestDevice) -> Outcome {
    let mut pair = inline_pair::<Q, AnyCq>(test_device, 64)?;
    pair.b.receive(&[(1, &[(0, 64)]), (2, &[(64, 64)]), (3, &[])]).unwrap();
    {
        let mut bytes = pattern(1, 64);
        let target = pair.b.remote(1000);
        pair.a.post(&[(1, SIGNALED, Op::Send, Data::Inline(&bytes))]).unwrap();
        bytes.fill(0xee);
        pair.a.post(&[(2, SIGNALED, Op::SendImm(7), Data::Inline(&bytes[..10]))]).unwrap();
        bytes.fill(0xdd);
        pair.a.post(&[(3, SIGNALED, Op::WriteImm(target, 0), Data::Inline(&bytes[..20]))]).unwrap();
    }
    pair.a.sent(3);
    assert_eq!(pair.b.received(3)[1].byte_len, Some(10));
    assert_eq!(pair.b.memory.get(0, 64), pattern(1, 64));
    assert_eq!(pair.b.memory.get(64, 12), [&[0xee; 10][..], &[0, 0]].concat());
    assert_eq!(pair.b.memory.get(1000, 22), [&[0xdd; 20][..], &[0, 0]].concat());
    Ok(())
}

fn inline_pieces_arrive_as_one<Q: QpFlavour>(test_device: &TestDevice) -> Outcome {
    let mut pair = inline_pair::<Q, AnyCq>(test_device, 64)?;
    let bytes = pattern(9, 60);
    pair.b.receive(&[(1, &[(0, 64)])]).unwrap();
    pair.a.run(Op::Send, Data::InlineList(&[&bytes[..1], &[], &bytes[1..30], &bytes[30..]]));
    assert_eq!(pair.b.received(1)[0].byte_len, Some(60));
    assert_eq!(pair.b.memory.get(0, 60), bytes);
    Ok(())
}

fn inline_data_of_every_length(test_device: &TestDevice) -> Outcome {
    let mut pair = inline_pair::<BasicQueuePair, AnyCq>(test_device, 100)?;
    for len in (0..=100).step_by(9).chain([1, 63, 64, 65, 100]) {
        let bytes = pattern(len as u8, len);
        pair.b.receive(&[(1, &[(0, 128)])]).unwrap();
        pair.a.run(Op::Send, Data::Inline(&bytes));
        assert_eq!(pair.b.received(1)[0].byte_len, Some(len as u32));
        assert_eq!(pair.b.memory.get(0, len), bytes);
    }
    Ok(())
}

/// A pair with several scatter/gather entries, if this kind of pair supports them on this device.
fn list_pair<Q: QpFlavour>(test_device: &TestDevice) -> Result<Pair<Q, AnyCq>, Skip> {
    let pair = Pair::<Q, AnyCq>::with(test_device, |options| options.send_sge = 4);
    if pair.a.qp.control().capability().max_send_sge < 4 {
        skip!("{} of this device takes one piece only", Q::NAME);
    }
    Ok(pair)
}

fn several_pieces_are_gathered<Q: QpFlavour>(test_device: &TestDevice) -> Outcome {
    let mut pair = list_pair::<Q>(test_device)?;
    let bytes = pattern(1, 3000);
    // Pieces out of order, with gaps.
    let pieces = [(9000, 1), (5000, 1500), (3000, 999), (1, 500)];
    let mut at = 0;
    for (offset, len) in pieces {
        pair.a.memory.set(offset, &bytes[at..at + len]);
        at += len;
    }
    pair.b.receive(&[(1, &[(0, 4096)])]).unwrap();
    pair.a.run(Op::Send, Data::List(&pieces));
    assert_eq!(pair.b.received(1)[0].byte_len, Some(3000));
    assert_eq!(pair.b.memory.get(0, 3000), bytes);
    pair.a.run(Op::Write(pair.b.remote(8000)), Data::List(&pieces[..2]));
    assert_eq!(pair.b.memory.get(8000, 1502), [&bytes[..1501], &[0]].concat());
    Ok(())
}

fn several_pieces_are_scattered<Q: QpFlavour>(test_device: &TestDevice) -> Outcome {
    let mut pair = Pair::<Q, AnyCq>::new(test_device);
    let bytes = pattern(1, 3000);
    pair.a.memory.set(0, &bytes);
    pair.b.receive(&[(1, &[(9000, 1), (5000, 1500), (3000, 999), (0, 2000)])]).unwrap();
    pair.a.run(Op::Send, Data::At(0, 3000));
    assert_eq!(pair.b.received(1)[0].byte_len, Some(3000));
    let got: Vec<u8> = [(9000, 1), (5000, 1500), (3000, 999), (0, 500)]
        .iter()
        .flat_map(|(offset, len)| pair.b.memory.get(*offset, *len))
        .collect();
    assert_eq!(got, bytes);
    assert_eq!(pair.b.memory.get(500, 100), [0; 100]);
    Ok(())
}

fn a_read_is_scattered<Q: QpFlavour>(test_device: &TestDevice) -> Outcome {
    let mut pair = list_pair::<Q>(test_device)?;
    let bytes = pattern(4, 3000);
    pair.b.memory.set(7, &bytes);
    pair.a.run(Op::Read(pair.b.remote(7)), Data::List(&[(5000, 1000), (0, 2000)]));
    assert_eq!([pair.a.memory.get(5000, 1000), pair.a.memory.get(0, 2000)].concat(), bytes);
    Ok(())
}

fn a_message_without_bytes_arrives<Q: QpFlavour>(test_device: &TestDevice) -> Outcome {
    let mut pair = Pair::<Q, AnyCq>::new(test_device);
    for data in [Data::At(0, 0), Data::List(&[]), Data::Inline(&[]), Data::InlineList(&[&[], &[]])] {
        pair.b.receive(&[(1, &[(0, 64)]), (2, &[])]).unwrap();
        pair.a.run(Op::Send, data);
        pair.a.run(Op::SendImm(3), data);
        let got = pair.b.received(2);
        assert_eq!(
            (got[0].byte_len, got[1].byte_len, got[1].imm_data),
            (Some(0), Some(0), Some(3)),
            "{data:?}"
        );
        pair.a.run(Op::Write(pair.b.remote(0)), data);
        pair.a.run(Op::Read(pair.b.remote(0)), data);
    }
    Ok(())
}

fn a_request_without_buffer_moves_no_bytes<Q: QpFlavour>(test_device: &TestDevice) -> Outcome {
    let mut pair = Pair::<Q, AnyCq>::new(test_device);
    pair.b.receive(&[(1, &[(0, 64)]), (2, &[]), (3, &[(0, 64)])]).unwrap();
    let target = pair.b.remote(0);
    let requests = [
        (1, SIGNALED, Op::Send, Data::None),
        (2, SIGNALED, Op::WriteImm(target, 8), Data::None),
        (3, SIGNALED, Op::Send, Data::At(0, 5)),
    ];
    pair.a.post(&requests).unwrap();
    assert_eq!(pair.a.sent(3).iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [1, 2, 3]);
    let lengths: Vec<_> = pair.b.received(3).iter().map(|wc| wc.byte_len.unwrap()).collect();
    assert_eq!(lengths, [0, 0, 5]);
    Ok(())
}

fn only_signaled_requests_complete<Q: QpFlavour>(test_device: &TestDevice) -> Outcome {
    let mut pair = Pair::<Q, AnyCq>::new(test_device);
    let target = pair.b.remote(0);
    for round in 0..5 {
        let requests: Vec<_> = (0..10)
            .map(|n| {
                (
                    round * 10 + n,
                    if n == 4 || n == 9 { SIGNALED } else { NONE },
                    Op::Write(target),
                    Data::At(0, 8),
                )
            })
            .collect();
        pair.a.post(&requests).unwrap();
        let found = pair.a.sent(2);
        assert_eq!((found[0].wr_id, found[1].wr_id), (round * 10 + 4, round * 10 + 9));
    }
    Ok(())
}

fn all_requests_complete_where_the_pair_says_so<Q: QpFlavour>(test_device: &TestDevice) -> Outcome {
    let mut pair = Pair::<Q, AnyCq>::with(test_device, |options| options.signal_all = true);
    let target = pair.b.remote(0);
    let requests: Vec<_> = (0..10).map(|n| (n, NONE, Op::Write(target), Data::At(0, 8))).collect();
    pair.a.post(&requests).unwrap();
    assert_eq!(pair.a.sent(10).iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), (0..10).collect::<Vec<_>>());
    Ok(())
}

/// The next request sends the data that a READ fetched, so it must wait for the READ.
fn a_fence_waits_for_reads<Q: QpFlavour>(test_device: &TestDevice) -> Outcome {
    let mut pair = Pair::<Q, AnyCq>::new(test_device);
    for round in 0..20u8 {
        let bytes = pattern(round + 1, 4096);
        pair.b.memory.set(0, &bytes);
        pair.b.receive(&[(1, &[(8192, 4096)])]).unwrap();
        let from = pair.b.remote(0);
        pair.a
            .post(&[
                (1, NONE, Op::Read(from), Data::At(0, 4096)),
                (2, SIGNALED | WorkRequestFlags::Fence, Op::Send, Data::At(0, 4096)),
            ])
            .unwrap();
        assert_eq!(pair.a.sent(1)[0].wr_id, 2);
        pair.b.received(1);
        assert!(pair.b.memory.get(8192, 4096) == bytes, "round {round}");
    }
    Ok(())
}

fn a_solicited_send_is_a_send<Q: QpFlavour>(test_device: &TestDevice) -> Outcome {
    let mut pair = Pair::<Q, AnyCq>::new(test_device);
    pair.b.receive(&[(1, &[(0, 64)])]).unwrap();
    let flags = SIGNALED | WorkRequestFlags::Solicited;
    pair.a.post(&[(1, flags, Op::SendImm(9), Data::At(0, 10))]).unwrap();
    pair.a.sent(1);
    assert_eq!(pair.b.received(1)[0].imm_data, Some(9));
    Ok(())
}
