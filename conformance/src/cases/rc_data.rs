//! Reliable connections: data transfer.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rdma_mummy_sys::types::ibv_mtu as Mtu;
use rdma_mummy_sys::types::ibv_wc_flags as WcFlags;
use rdma_mummy_sys::types::ibv_wc_opcode as Opcode;
use rdma_mummy_sys::types::ibv_wc_status as Status;

use crate::cases::{INLINE_REASON, LIST_REASON};
use crate::kit::{
    Buf, Flavour, Node, NodeOptions, PeerLocation, Recv, Wr, pair, pair_at, pattern, poll_until,
};
use crate::kit::{Outcome, Suite, TestDevice, WAIT_LIMIT};

pub(crate) fn cases(suite: &mut Suite) {
    both!(suite:
        a_send_arrives,
        a_send_carries_its_immediate_data,
        a_connection_reports_no_global_header,
        an_empty_send_arrives,
        a_send_may_be_shorter_than_its_receive,
        a_list_is_gathered_and_scattered,
        a_receive_scatters_over_its_list,
        inline_data_is_taken_at_once,
        a_write_arrives_and_takes_no_receive,
        a_write_with_immediate_data_takes_a_receive,
        an_empty_write_changes_nothing,
        a_read_fetches,
        an_empty_read_fetches_nothing,
        a_read_scatters_over_its_list,
        compare_and_swap_swaps_only_where_equal,
        fetch_and_add_adds_and_wraps,
        only_signaled_requests_complete,
        every_request_completes_where_all_are_signaled,
        a_list_of_requests_completes_in_order,
        a_fenced_send_waits_for_its_read,
        more_reads_than_may_be_outstanding_complete,
        a_small_queue_carries_many_messages,
    );
    cases!(suite:
        one_context_talks_to_itself,
        two_devices_talk,
        a_pair_talks_to_itself,
        every_mtu_carries_messages_of_many_packets,
        sequence_numbers_wrap_around,
        a_message_of_eight_mebibytes_arrives,
        a_write_is_visible_when_a_later_send_arrives,
        a_read_sees_the_write_before_it,
        the_last_byte_of_a_write_comes_last,
        atomics_of_two_pairs_do_not_get_lost,
        two_threads_talk_both_ways,
        two_pairs_share_their_queues,
        a_request_changes_memory_only_where_it_says,
        dropped_batches_are_not_posted,
    );
}

fn a_send_arrives(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (a, b) = pair(dut, &NodeOptions::rc(flavour));
    sends(&a, &b);
    sends(&b, &a);
    Ok(())
}

/// Sends a message and checks all fields of both completions.
fn sends(a: &Node, b: &Node) {
    let data = pattern(3, 3000);
    a.mr.buf.set(0, &data);
    b.recv(7, 4096, 3000);
    let sent = a.done(Wr::send(8).sge(a.mr.at(0, 3000)));
    let received = b.recv_cq.ok();
    assert_eq!((received.id, received.len, received.opcode), (7, 3000, Opcode::IBV_WC_RECV));
    assert_eq!(received.qp_num, b.qp.num());
    assert!(!received.has(WcFlags::IBV_WC_WITH_IMM), "{received:?}");
    assert_eq!((sent.opcode, sent.qp_num), (Opcode::IBV_WC_SEND, a.qp.num()));
    assert_eq!(b.mr.buf.get(4096, 3000), data);
    assert!(a.send_cq.is_empty() && b.recv_cq.is_empty());
}

fn a_send_carries_its_immediate_data(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (a, b) = pair(dut, &NodeOptions::rc(flavour));
    b.recv(1, 0, 64);
    a.done(Wr::send_imm(2, 0x0102_0304).sge(a.mr.at(0, 16)));
    let wc = b.recv_cq.ok();
    assert!(wc.has(WcFlags::IBV_WC_WITH_IMM));
    assert_eq!((wc.imm, wc.len, wc.opcode), (0x0102_0304, 16, Opcode::IBV_WC_RECV));
    Ok(())
}

/// `man ibv_poll_cq`: `IBV_WC_GRH` announces a header of 40 bytes in the buffer, for datagram pairs
/// only.
fn a_connection_reports_no_global_header(dut: &TestDevice, flavour: Flavour) -> Outcome {
    dut.not_softroce("sets IBV_WC_GRH on connections, whose buffers have no header")?;
    let (a, b) = pair(dut, &NodeOptions::rc(flavour));
    b.recv(1, 0, 64);
    a.done(Wr::send(2).sge(a.mr.at(0, 16)));
    assert!(!b.recv_cq.ok().has(WcFlags::IBV_WC_GRH));
    Ok(())
}

fn an_empty_send_arrives(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (a, b) = pair(dut, &NodeOptions::rc(flavour));
    b.qp.recv(Recv::new(1));
    b.recv(2, 0, 64);
    a.done(Wr::send(3));
    a.done(Wr::send_imm(4, 9));
    let received = b.recv_cq.wait(2);
    assert_eq!(received.iter().map(|wc| (wc.id, wc.len)).collect::<Vec<_>>(), [(1, 0), (2, 0)]);
    assert!(received.iter().all(|wc| wc.status == Status::IBV_WC_SUCCESS));
    Ok(())
}

fn a_send_may_be_shorter_than_its_receive(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (a, b) = pair(dut, &NodeOptions::rc(flavour));
    b.mr.buf.set(0, &[0xee; 200]);
    a.mr.buf.set(0, &pattern(1, 100));
    b.recv(1, 0, 200);
    a.done(Wr::send(2).sge(a.mr.at(0, 100)));
    assert_eq!(b.recv_cq.ok().len, 100);
    assert_eq!(b.mr.buf.get(0, 100), pattern(1, 100));
    assert_eq!(b.mr.buf.get(100, 100), [0xee; 100]);
    Ok(())
}

/// From zero to the largest number of entries that the pair allows, on both sides.
fn a_list_is_gathered_and_scattered(dut: &TestDevice, flavour: Flavour) -> Outcome {
    dut.not_softroce_extended(flavour, LIST_REASON)?;
    let (a, b) = pair(dut, &NodeOptions::rc(flavour));
    a.mr.buf.set(0, &pattern(5, 8192));
    for entries in 0..=4 {
        // Different lengths, one of them zero, out of order.
        let list: Vec<_> = (0..entries).map(|n| a.mr.at((4 - n) * 1000, [300, 0, 7, 512][n])).collect();
        let expected: Vec<u8> =
            (0..entries).flat_map(|n| a.mr.buf.get((4 - n) * 1000, [300, 0, 7, 512][n])).collect();
        b.mr.buf.set(0, &[0; 8192]);
        b.qp.recv(Recv::new(1).list(&[
            b.mr.at(4096, 3),
            b.mr.at(100, 0),
            b.mr.at(0, 301),
            b.mr.at(2000, 900),
        ]));
        a.done(Wr::send(2).list(&list));
        assert_eq!(b.recv_cq.ok().len as usize, expected.len());
        let mut arrived = b.mr.buf.get(4096, 3);
        arrived.extend(b.mr.buf.get(0, 301));
        arrived.extend(b.mr.buf.get(2000, 900));
        assert_eq!(arrived[..expected.len()], expected);
        assert!(arrived[expected.len()..].iter().all(|byte| *byte == 0));
    }
    Ok(())
}

fn a_receive_scatters_over_its_list(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (a, b) = pair(dut, &NodeOptions::rc(flavour));
    let data = pattern(9, 4000);
    a.mr.buf.set(0, &data);
    b.qp.recv(Recv::new(1).list(&[
        b.mr.at(9000, 1),
        b.mr.at(3000, 1999),
        b.mr.at(0, 1000),
        b.mr.at(6000, 1500),
    ]));
    a.done(Wr::send(2).sge(a.mr.at(0, 4000)));
    assert_eq!(b.recv_cq.ok().len, 4000);
    assert_eq!(b.mr.buf.get(9000, 1), data[..1]);
    assert_eq!(b.mr.buf.get(3000, 1999), data[1..2000]);
    assert_eq!(b.mr.buf.get(0, 1000), data[2000..3000]);
    assert_eq!(b.mr.buf.get(6000, 1000), data[3000..]);
    assert_eq!(b.mr.buf.get(7000, 500), [0; 500]);
    Ok(())
}

fn inline_data_is_taken_at_once(dut: &TestDevice, flavour: Flavour) -> Outcome {
    dut.not_softroce_extended(flavour, INLINE_REASON)?;
    let (a, b) = pair(dut, &NodeOptions::rc(flavour).set(|options| options.cap.max_inline_data = 64));
    let limit = a.qp.granted().max_inline_data as usize;
    assert!(limit >= 64, "{limit} bytes of inline data");
    for len in [0, 1, 63, 64, limit] {
        b.recv(1, 0, 4096);
        // The bytes are in no region, and are freed when the call returns.
        a.done(Wr::send(2).inline(&pattern(len as u8, len)));
        assert_eq!(b.recv_cq.ok().len as usize, len);
        assert_eq!(b.mr.buf.get(0, len), pattern(len as u8, len));
    }
    a.done(Wr::write(3, b.mr.remote(8192)).inline(&pattern(77, 64)));
    assert_eq!(b.mr.buf.get(8192, 64), pattern(77, 64));
    Ok(())
}

fn a_write_arrives_and_takes_no_receive(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (a, b) = pair(dut, &NodeOptions::rc(flavour));
    a.mr.buf.set(0, &pattern(1, 5000));
    b.recv(1, 0, 64);
    let wc = a.done(Wr::write(2, b.mr.remote(100)).sge(a.mr.at(0, 5000)));
    assert_eq!(wc.opcode, Opcode::IBV_WC_RDMA_WRITE);
    assert_eq!(b.mr.buf.get(100, 5000), pattern(1, 5000));
    assert!(b.recv_cq.is_empty());
    a.done(Wr::send(3).sge(a.mr.at(0, 8)));
    assert_eq!(b.recv_cq.ok().id, 1);
    Ok(())
}

fn a_write_with_immediate_data_takes_a_receive(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (a, b) = pair(dut, &NodeOptions::rc(flavour));
    a.mr.buf.set(0, &pattern(4, 2500));
    b.mr.buf.set(0, &[0xee; 64]);
    b.recv(1, 0, 64);
    let sent = a.done(Wr::write_imm(2, b.mr.remote(100), 0xfeed_f00d).sge(a.mr.at(0, 2500)));
    let wc = b.recv_cq.ok();
    assert_eq!((wc.id, wc.imm, wc.opcode), (1, 0xfeed_f00d, Opcode::IBV_WC_RECV_RDMA_WITH_IMM));
    assert!(wc.has(WcFlags::IBV_WC_WITH_IMM));
    assert_eq!((wc.len, sent.opcode), (2500, Opcode::IBV_WC_RDMA_WRITE));
    assert_eq!(b.mr.buf.get(100, 2500), pattern(4, 2500));
    assert_eq!(b.mr.buf.get(0, 64), [0xee; 64], "the receive's own memory is not touched");
    // A receive without memory suffices.
    b.qp.recv(Recv::new(3));
    a.done(Wr::write_imm(4, b.mr.remote(0), 5));
    assert_eq!(b.recv_cq.ok().id, 3);
    Ok(())
}

fn an_empty_write_changes_nothing(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (a, b) = pair(dut, &NodeOptions::rc(flavour));
    b.mr.buf.set(0, &[0xee; 64]);
    a.done(Wr::write(1, b.mr.remote(0)));
    a.done(Wr::write(2, b.mr.remote(0)).sge(a.mr.at(0, 0)));
    assert_eq!(b.mr.buf.get(0, 64), [0xee; 64]);
    Ok(())
}

fn a_read_fetches(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (a, b) = pair(dut, &NodeOptions::rc(flavour));
    b.mr.buf.set(10, &pattern(8, 5000));
    let wc = a.done(Wr::read(1, b.mr.remote(10)).sge(a.mr.at(20, 5000)));
    assert_eq!((wc.opcode, wc.len), (Opcode::IBV_WC_RDMA_READ, 5000));
    assert_eq!(a.mr.buf.get(20, 5000), pattern(8, 5000));
    assert_eq!((a.mr.buf.get(0, 20), a.mr.buf.get(5020, 20)), (vec![0; 20], vec![0; 20]));
    Ok(())
}

fn an_empty_read_fetches_nothing(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (a, b) = pair(dut, &NodeOptions::rc(flavour));
    b.mr.buf.set(0, &[0xee; 64]);
    a.done(Wr::read(1, b.mr.remote(0)));
    a.done(Wr::read(2, b.mr.remote(0)).sge(a.mr.at(0, 0)));
    assert_eq!(a.mr.buf.get(0, 64), [0; 64]);
    Ok(())
}

fn a_read_scatters_over_its_list(dut: &TestDevice, flavour: Flavour) -> Outcome {
    dut.not_softroce_extended(flavour, LIST_REASON)?;
    let (a, b) = pair(dut, &NodeOptions::rc(flavour));
    let data = pattern(2, 3000);
    b.mr.buf.set(0, &data);
    a.done(Wr::read(1, b.mr.remote(0)).list(&[a.mr.at(8000, 1), a.mr.at(0, 1999), a.mr.at(4000, 1000)]));
    assert_eq!(a.mr.buf.get(8000, 1), data[..1]);
    assert_eq!(a.mr.buf.get(0, 1999), data[1..2000]);
    assert_eq!(a.mr.buf.get(4000, 1000), data[2000..]);
    Ok(())
}

fn compare_and_swap_swaps_only_where_equal(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (a, b) = pair(dut, &NodeOptions::rc(flavour));
    b.mr.buf.set_u64(64, 0x1111_2222_3333_4444);
    let swap = |id, compare, value| {
        let wc = a.done(Wr::cmp_swp(id, b.mr.remote(64), compare, value).sge(a.mr.at(8, 8)));
        assert_eq!((wc.opcode, wc.len), (Opcode::IBV_WC_COMP_SWAP, 8));
        (a.mr.buf.get_u64(8), b.mr.buf.get_u64(64))
    };
    assert_eq!(swap(1, 5, 6), (0x1111_2222_3333_4444, 0x1111_2222_3333_4444));
    assert_eq!(swap(2, 0x1111_2222_3333_4444, u64::MAX), (0x1111_2222_3333_4444, u64::MAX));
    assert_eq!(swap(3, u64::MAX, 0), (u64::MAX, 0));
    assert_eq!((b.mr.buf.get_u64(56), b.mr.buf.get_u64(72)), (0, 0));
    Ok(())
}

fn fetch_and_add_adds_and_wraps(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (a, b) = pair(dut, &NodeOptions::rc(flavour));
    b.mr.buf.set_u64(0, 40);
    let add = |id, value| {
        let wc = a.done(Wr::fetch_add(id, b.mr.remote(0), value).sge(a.mr.at(0, 8)));
        assert_eq!((wc.opcode, wc.len), (Opcode::IBV_WC_FETCH_ADD, 8));
        (a.mr.buf.get_u64(0), b.mr.buf.get_u64(0))
    };
    assert_eq!(add(1, 2), (40, 42));
    assert_eq!(add(2, u64::MAX), (42, 41));
    assert_eq!(add(3, 0), (41, 41));
    Ok(())
}

fn only_signaled_requests_complete(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (a, b) = pair(dut, &NodeOptions::rc(flavour));
    let write = |id: u64| Wr::write(id, b.mr.remote(0)).sge(a.mr.at(0, 8));
    for id in 0..20 {
        a.post(write(id).quiet());
    }
    assert_eq!(a.done(write(20)).id, 20);
    assert!(a.send_cq.is_empty());
    Ok(())
}

fn every_request_completes_where_all_are_signaled(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (a, b) = pair(dut, &NodeOptions::rc(flavour).set(|options| options.sig_all = true));
    for id in 0..20 {
        a.post(Wr::write(id, b.mr.remote(0)).sge(a.mr.at(0, 8)).quiet());
    }
    let ids: Vec<_> = a.send_cq.wait(20).iter().map(|wc| wc.id).collect();
    assert_eq!(ids, (0..20).collect::<Vec<_>>());
    Ok(())
}

fn a_list_of_requests_completes_in_order(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (a, b) = pair(dut, &NodeOptions::rc(flavour));
    let receives: Vec<_> = (0..8).map(|id| Recv::new(id).sge(b.mr.at(id as usize * 64, 64))).collect();
    b.qp.recv_list(&receives).unwrap();
    a.mr.buf.set(0, &pattern(1, 512));
    let requests: Vec<_> = (0..8).map(|id| Wr::send(id + 100).sge(a.mr.at(id as usize * 64, 64))).collect();
    a.qp.post(&requests).unwrap();
    let sent: Vec<_> = a.send_cq.wait(8).iter().map(|wc| wc.id).collect();
    let received: Vec<_> = b.recv_cq.wait(8).iter().map(|wc| wc.id).collect();
    assert_eq!(sent, (100..108).collect::<Vec<_>>());
    assert_eq!(received, (0..8).collect::<Vec<_>>());
    assert_eq!(b.mr.buf.get(0, 512), pattern(1, 512));
    Ok(())
}

/// IBTA 10.8.3.3: a fenced request starts only after earlier reads and atomics are complete.
fn a_fenced_send_waits_for_its_read(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (a, b) = pair(dut, &NodeOptions::rc(flavour));
    for round in 0..10 {
        b.mr.buf.set(0, &pattern(round, 4000));
        b.recv(1, 8192, 4000);
        let read = Wr::read(2, b.mr.remote(0)).sge(a.mr.at(0, 4000)).quiet();
        let send = Wr::send(3).sge(a.mr.at(0, 4000)).fenced();
        a.qp.post(&[read, send]).unwrap();
        assert_eq!(a.send_cq.ok().id, 3);
        assert_eq!(b.recv_cq.ok().len, 4000);
        assert_eq!(b.mr.buf.get(8192, 4000), pattern(round, 4000), "the data that was read is sent back");
    }
    Ok(())
}

fn more_reads_than_may_be_outstanding_complete(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (a, b) = pair(
        dut,
        &NodeOptions::rc(flavour).set(|options| (options.rd_atomic, options.dest_rd_atomic) = (1, 1)),
    );
    b.mr.buf.set(0, &pattern(6, 24 * 100));
    for n in 0..24_usize {
        a.post(Wr::read(n as u64, b.mr.remote(n * 100)).sge(a.mr.at(n * 100, 100)));
    }
    let ids: Vec<_> = a.send_cq.wait(24).iter().map(|wc| wc.id).collect();
    assert_eq!(ids, (0..24).collect::<Vec<_>>());
    assert_eq!(a.mr.buf.get(0, 2400), pattern(6, 2400));
    Ok(())
}

fn a_small_queue_carries_many_messages(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let options = NodeOptions::rc(flavour).set(|options| {
        (options.cap.max_send_wr, options.cap.max_recv_wr, options.cqe) = (2, 2, 4);
    });
    let (a, b) = pair(dut, &options);
    for n in 0..200_u64 {
        b.recv(n, 0, 8);
        a.mr.buf.set_u64(0, n);
        assert_eq!(a.done(Wr::send(n).sge(a.mr.at(0, 8))).id, n);
        assert_eq!(b.recv_cq.ok().id, n);
        assert_eq!(b.mr.buf.get_u64(0), n);
    }
    Ok(())
}

fn one_context_talks_to_itself(dut: &TestDevice) -> Outcome {
    let (a, b) = pair_at(dut, PeerLocation::SameContext, &NodeOptions::rc(Flavour::Classic))?;
    sends(&a, &b);
    sends(&b, &a);
    Ok(())
}

fn two_devices_talk(dut: &TestDevice) -> Outcome {
    let (a, b) = pair_at(dut, PeerLocation::OtherDevice, &NodeOptions::rc(Flavour::Classic))?;
    sends(&a, &b);
    sends(&b, &a);
    a.mr.buf.set(0, &pattern(1, 3000));
    a.done(Wr::write(1, b.mr.remote(0)).sge(a.mr.at(0, 3000)));
    a.done(Wr::read(2, b.mr.remote(0)).sge(a.mr.at(8192, 3000)));
    assert_eq!(a.mr.buf.get(8192, 3000), pattern(1, 3000));
    a.done(Wr::fetch_add(3, b.mr.remote(16384), 5).sge(a.mr.at(0, 8)));
    assert_eq!(b.mr.buf.get_u64(16384), 5);
    Ok(())
}

fn a_pair_talks_to_itself(dut: &TestDevice) -> Outcome {
    let node = Node::new(&dut.open(), &NodeOptions::rc(Flavour::Classic));
    node.connect(&node.peer());
    node.mr.buf.set(0, &pattern(1, 2000));
    node.recv(1, 4096, 2000);
    node.done(Wr::send(2).sge(node.mr.at(0, 2000)));
    assert_eq!(node.recv_cq.ok().len, 2000);
    node.done(Wr::write(3, node.mr.remote(8192)).sge(node.mr.at(4096, 2000)));
    assert_eq!(node.mr.buf.get(8192, 2000), pattern(1, 2000));
    Ok(())
}

fn every_mtu_carries_messages_of_many_packets(dut: &TestDevice) -> Outcome {
    let most = dut.open().port().unwrap().active_mtu;
    for mtu in [Mtu::IBV_MTU_256, Mtu::IBV_MTU_512, Mtu::IBV_MTU_1024, Mtu::IBV_MTU_2048, Mtu::IBV_MTU_4096] {
        if mtu.0 > most.0 {
            continue;
        }
        let (a, b) = pair(dut, &NodeOptions::rc(Flavour::Classic).set(|options| options.mtu = mtu));
        let bytes = 128 << mtu.0;
        for len in [1, bytes - 1, bytes, bytes + 1, 3 * bytes, 3 * bytes + 5] {
            a.mr.buf.set(0, &pattern(7, len));
            b.mr.buf.set(0, &vec![0; len]);
            b.recv(1, 0, len);
            a.done(Wr::send(2).sge(a.mr.at(0, len)));
            assert_eq!(b.recv_cq.ok().len as usize, len);
            assert_eq!(b.mr.buf.get(0, len), pattern(7, len));
            a.done(Wr::read(3, b.mr.remote(0)).sge(a.mr.at(32768, len)));
            assert_eq!(a.mr.buf.get(32768, len), pattern(7, len));
        }
    }
    Ok(())
}

fn sequence_numbers_wrap_around(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &NodeOptions::rc(Flavour::Classic).set(|options| options.psn = 0x00ff_fffd));
    for n in 0..8_u8 {
        a.mr.buf.set(0, &pattern(n, 2500));
        b.recv(1, 0, 2500);
        a.done(Wr::send(2).sge(a.mr.at(0, 2500)));
        b.recv_cq.ok();
        assert_eq!(b.mr.buf.get(0, 2500), pattern(n, 2500));
    }
    Ok(())
}

fn a_message_of_eight_mebibytes_arrives(dut: &TestDevice) -> Outcome {
    let len = (dut.open().port().unwrap().max_msg_sz as usize).min(8 << 20);
    let (a, b) = pair(dut, &NodeOptions::rc(Flavour::Classic).set(|options| options.bytes = len));
    let ends = [0, len / 2, len - 64];
    for (n, offset) in ends.into_iter().enumerate() {
        a.mr.buf.set(offset, &pattern(n as u8, 64));
    }
    a.done(Wr::write(1, b.mr.remote(0)).sge(a.mr.at(0, len)));
    for (n, offset) in ends.into_iter().enumerate() {
        assert_eq!(b.mr.buf.get(offset, 64), pattern(n as u8, 64));
    }
    b.recv(2, 0, len);
    a.done(Wr::send(3).sge(a.mr.at(0, len)));
    assert_eq!(b.recv_cq.ok().len as usize, len);
    Ok(())
}

/// IBTA 10.8.3.3, the ordering of work requests: requests of one queue are executed in their order.
fn a_write_is_visible_when_a_later_send_arrives(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &NodeOptions::rc(Flavour::Classic));
    for round in 0..40 {
        a.mr.buf.set(0, &pattern(round, 3000));
        b.recv(1, 16384, 8);
        let write = Wr::write(2, b.mr.remote(0)).sge(a.mr.at(0, 3000)).quiet();
        a.qp.post(&[write, Wr::send(3).sge(a.mr.at(0, 8)).quiet()]).unwrap();
        b.recv_cq.ok();
        assert_eq!(b.mr.buf.get(0, 3000), pattern(round, 3000));
    }
    Ok(())
}

fn a_read_sees_the_write_before_it(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &NodeOptions::rc(Flavour::Classic));
    for round in 0..40 {
        a.mr.buf.set(0, &pattern(round, 3000));
        let write = Wr::write(1, b.mr.remote(0)).sge(a.mr.at(0, 3000)).quiet();
        a.qp.post(&[write, Wr::read(2, b.mr.remote(0)).sge(a.mr.at(8192, 3000))]).unwrap();
        assert_eq!(a.send_cq.ok().id, 2);
        assert_eq!(a.mr.buf.get(8192, 3000), pattern(round, 3000));
    }
    Ok(())
}

/// No specification promises this. But every RoCE and InfiniBand device does it, and programs rely
/// on it.
fn the_last_byte_of_a_write_comes_last(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &NodeOptions::rc(Flavour::Classic));
    for round in 1..=50_u8 {
        a.mr.buf.set(0, &[round; 4001]);
        a.post(Wr::write(1, b.mr.remote(3)).sge(a.mr.at(0, 4001)));
        let seen = poll_until(WAIT_LIMIT, || {
            // A deferred device makes progress while a program polls.
            let _ = a.send_cq.poll(1);
            (b.mr.buf.get(4003, 1) == [round]).then(|| b.mr.buf.get(3, 4001))
        });
        assert_eq!(seen.expect("the write arrives"), [round; 4001]);
    }
    Ok(())
}

fn atomics_of_two_pairs_do_not_get_lost(dut: &TestDevice) -> Outcome {
    const ROUNDS: u64 = 200;
    let options = NodeOptions::rc(Flavour::Classic);
    let nodes: Vec<_> = (0..2).map(|_| pair(dut, &options)).collect();
    // Both targets are one buffer, registered in two domains.
    let shared = Buf::new(4096);
    let regions: Vec<_> =
        nodes.iter().map(|(_, b)| b.pd.reg(&shared, crate::kit::EVERYTHING).unwrap()).collect();
    thread::scope(|scope| {
        for ((a, _), region) in nodes.iter().zip(&regions) {
            scope.spawn(move || {
                for id in 0..ROUNDS {
                    a.done(Wr::fetch_add(id, region.remote(0), 1).sge(a.mr.at(0, 8)));
                }
            });
        }
    });
    assert_eq!(shared.get_u64(0), 2 * ROUNDS);
    Ok(())
}

fn two_threads_talk_both_ways(dut: &TestDevice) -> Outcome {
    const MESSAGES: u64 = 300;
    let (a, b) = pair(dut, &NodeOptions::rc(Flavour::Classic));
    let talk = |me: &Node| {
        for id in 0..16 {
            me.recv(id, 1024 + id as usize * 8, 8);
        }
        let (mut sent, mut done, mut received) = (0, 0, 0);
        let finished = poll_until(WAIT_LIMIT * 2, || {
            if sent < MESSAGES && sent - done < 8 {
                me.mr.buf.set_u64(sent as usize % 8 * 8, sent);
                me.post(Wr::send(sent).sge(me.mr.at(sent as usize % 8 * 8, 8)));
                sent += 1;
            }
            done += me.send_cq.poll(8).iter().map(|wc| assert_eq!(wc.status, Status::IBV_WC_SUCCESS)).count()
                as u64;
            for wc in me.recv_cq.poll(8) {
                assert_eq!((wc.status, wc.id), (Status::IBV_WC_SUCCESS, received % 16));
                assert_eq!(me.mr.buf.get_u64(1024 + wc.id as usize * 8), received);
                me.recv(wc.id, 1024 + wc.id as usize * 8, 8);
                received += 1;
            }
            (done == MESSAGES && received == MESSAGES).then_some(())
        });
        assert!(finished.is_some(), "{sent} sent, {done} done, {received} received");
    };
    let failed = AtomicBool::new(false);
    thread::scope(|scope| {
        let other = scope.spawn(|| talk(&b));
        talk(&a);
        failed.store(other.join().is_err(), Ordering::SeqCst);
    });
    assert!(!failed.load(Ordering::SeqCst), "the other thread");
    Ok(())
}

fn two_pairs_share_their_queues(dut: &TestDevice) -> Outcome {
    let (device, options) = (dut.open(), NodeOptions::rc(Flavour::Classic));
    let cq = device.cq(128);
    let receivers: Vec<_> = (0..2).map(|_| Node::with_queues(&device, &options, None, Some(&cq))).collect();
    let senders: Vec<_> = (0..2).map(|_| Node::new(&device, &options)).collect();
    for (a, b) in senders.iter().zip(&receivers) {
        a.connect(&b.peer());
        b.connect(&a.peer());
        b.recv(1, 0, 64);
        a.done(Wr::send(2).sge(a.mr.at(0, 64)));
    }
    let mut numbers: Vec<_> = cq.wait(2).iter().map(|wc| wc.qp_num).collect();
    numbers.sort_unstable();
    let mut expected: Vec<_> = receivers.iter().map(|node| node.qp.num()).collect();
    expected.sort_unstable();
    assert_eq!(numbers, expected);
    Ok(())
}

fn a_request_changes_memory_only_where_it_says(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &NodeOptions::rc(Flavour::Classic));
    a.mr.buf.set(0, &[0x55; 70]);
    for (offset, len) in [(1, 1), (7, 9), (63, 65), (4095, 2), (4096, 64), (4001, 8)] {
        b.mr.buf.set(0, &[0xee; 8192]);
        a.done(Wr::write(1, b.mr.remote(offset)).sge(a.mr.at(3, len)));
        let mut expected = vec![0xee; 8192];
        expected[offset..offset + len].fill(0x55);
        assert_eq!(b.mr.buf.get(0, 8192), expected, "{len} bytes at {offset}");
    }
    Ok(())
}

fn dropped_batches_are_not_posted(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &NodeOptions::rc(Flavour::Extended));
    a.mr.buf.set(0, &[1; 8]);
    a.qp.post_and_abort(&[Wr::write(1, b.mr.remote(0)).sge(a.mr.at(0, 8))]);
    assert_eq!(a.done(Wr::write(2, b.mr.remote(64)).sge(a.mr.at(0, 8))).id, 2);
    assert!(a.send_cq.is_empty());
    assert_eq!((b.mr.buf.get(0, 8), b.mr.buf.get(64, 8)), (vec![0; 8], vec![1; 8]));
    Ok(())
}
