//! Datagrams and address handles.

use libc::{EINVAL, ENODATA};
use rdma_mummy_sys::types::ibv_qp_state as State;
use rdma_mummy_sys::types::ibv_wc_flags as WcFlags;
use rdma_mummy_sys::types::ibv_wc_opcode as Opcode;
use rdma_mummy_sys::types::ibv_wc_status as Status;

use crate::cases::{INLINE_REASON, LIST_REASON, LOCAL_REASON};
use crate::kit::{
    Ah, Flavour, Node, NodeOptions, Outcome, PeerLocation, QKEY, QpChange, Recv, Sge, SoftRoce, Suite,
    TestDevice, Wr, ah_attr, pair, pair_at, pattern,
};

/// The bytes before the message in each receive's memory.
const GRH: usize = 40;

pub(crate) fn cases(suite: &mut Suite) {
    both!(suite:
        a_datagram_arrives_behind_its_header,
        a_datagram_carries_its_immediate_data,
        an_empty_datagram_arrives,
        inline_datagrams_arrive,
        a_datagram_is_gathered_and_scattered,
        a_datagram_with_another_key_is_dropped,
        a_datagram_without_receive_is_dropped,
        a_bad_local_key_is_a_local_protection_error,
    );
    cases!(suite:
        two_devices_exchange_datagrams,
        one_pair_sends_to_many,
        a_pair_sends_to_itself,
        the_header_names_both_sides,
        a_key_with_the_high_bit_is_the_sender_s_own,
        a_datagram_to_nobody_is_dropped,
        a_datagram_to_a_pair_in_reset_is_dropped,
        a_datagram_of_the_mtu_arrives,
        a_datagram_beyond_the_mtu_is_refused,
        a_receive_that_is_too_short_gets_nothing,
        one_sided_requests_are_refused,
        datagrams_keep_their_order,
        an_answer_goes_by_the_handle_of_the_completion,
        the_attributes_of_the_completion_lead_back,
        an_address_handle_without_global_route_is_refused,
        an_address_handle_of_a_port_that_is_not_there_is_refused,
        an_address_handle_with_a_bad_gid_index_is_refused,
        many_address_handles_are_made,
        a_pair_goes_on_after_what_it_dropped,
        a_failed_datagram_leaves_the_send_queue_in_error,
        a_send_queue_in_error_leads_to_three_states,
        an_address_handle_of_another_domain_is_refused,
    );
}

fn classic() -> NodeOptions {
    NodeOptions::ud(Flavour::Classic)
}

impl Node {
    /// Addresses a request to another node.
    fn datagram(&self, to: &Self, wr: Wr) -> Wr {
        wr.to(&self.ah(to), to.qp.num(), QKEY)
    }

    /// Takes the next datagram, and returns its receive's number and the message.
    fn next(&self, offset: usize) -> (u64, Vec<u8>) {
        let wc = self.recv_cq.ok();
        assert!(wc.len as usize >= GRH, "{wc:?}");
        (wc.id, self.mr.buf.get(offset + GRH, wc.len as usize - GRH))
    }

    /// Shows that nothing else has arrived: a datagram sent now is the next to arrive.
    fn gets_next(&self, from: &Self) {
        from.mr.buf.set(0, &[0x42; 8]);
        self.recv(4242, 32768, 256);
        from.done(from.datagram(self, Wr::send(1).sge(from.mr.at(0, 8))));
    }
}

fn a_datagram_arrives_behind_its_header(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (a, b) = pair(dut, &NodeOptions::ud(flavour));
    a.mr.buf.set(0, &pattern(1, 200));
    b.recv(5, 1000, 400);
    let sent = a.done(a.datagram(&b, Wr::send(6).sge(a.mr.at(0, 200))));
    let wc = b.recv_cq.ok();
    assert_eq!((wc.id, wc.opcode, wc.len), (5, Opcode::IBV_WC_RECV, 240));
    assert_eq!((wc.qp_num, wc.src_qp), (b.qp.num(), a.qp.num()));
    assert_eq!(wc.has(WcFlags::IBV_WC_GRH), !dut.is_infiniband(), "{wc:?}");
    assert!(!wc.has(WcFlags::IBV_WC_WITH_IMM), "{wc:?}");
    assert_eq!(sent.opcode, Opcode::IBV_WC_SEND);
    assert_eq!(b.mr.buf.get(1000 + GRH, 200), pattern(1, 200));
    assert_eq!(b.mr.buf.get(1000 + GRH + 200, 16), [0; 16]);
    Ok(())
}

fn a_datagram_carries_its_immediate_data(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (a, b) = pair(dut, &NodeOptions::ud(flavour));
    b.recv(1, 0, 100);
    a.done(a.datagram(&b, Wr::send_imm(2, 0x0102_0304).sge(a.mr.at(0, 8))));
    let wc = b.recv_cq.ok();
    assert!(wc.has(WcFlags::IBV_WC_WITH_IMM));
    assert_eq!((wc.imm, wc.len), (0x0102_0304, 48));
    Ok(())
}

fn an_empty_datagram_arrives(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (a, b) = pair(dut, &NodeOptions::ud(flavour));
    b.recv(1, 0, GRH);
    a.done(a.datagram(&b, Wr::send(2)));
    assert_eq!(b.recv_cq.ok().len as usize, GRH);
    Ok(())
}

fn inline_datagrams_arrive(dut: &TestDevice, flavour: Flavour) -> Outcome {
    dut.not_softroce_extended(flavour, INLINE_REASON)?;
    let (a, b) = pair(dut, &NodeOptions::ud(flavour).set(|options| options.cap.max_inline_data = 64));
    b.recv(1, 0, 200);
    a.done(a.datagram(&b, Wr::send(2).inline(&pattern(9, 64))));
    assert_eq!(b.next(0), (1, pattern(9, 64)));
    Ok(())
}

fn a_datagram_is_gathered_and_scattered(dut: &TestDevice, flavour: Flavour) -> Outcome {
    dut.not_softroce_extended(flavour, LIST_REASON)?;
    let (a, b) = pair(dut, &NodeOptions::ud(flavour));
    a.mr.buf.set(0, &pattern(3, 600));
    b.qp.recv(Recv::new(1).list(&[b.mr.at(0, 10), b.mr.at(100, 50), b.mr.at(4096, 1000)]));
    a.done(a.datagram(&b, Wr::send(2).list(&[a.mr.at(300, 100), a.mr.at(0, 200)])));
    assert_eq!(b.recv_cq.ok().len, 340);
    let sent = [a.mr.buf.get(300, 100), a.mr.buf.get(0, 200)].concat();
    assert_eq!(b.mr.buf.get(100 + 30, 20), sent[..20]);
    assert_eq!(b.mr.buf.get(4096, 280), sent[20..]);
    Ok(())
}

/// IBTA chapter 9, packet validation: a datagram with another Q_Key is dropped.
fn a_datagram_with_another_key_is_dropped(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (a, b) = pair(dut, &NodeOptions::ud(flavour));
    b.recv(1, 0, 100);
    a.done(Wr::send(2).sge(a.mr.at(0, 8)).to(&a.ah(&b), b.qp.num(), QKEY ^ 1));
    b.gets_next(&a);
    let wc = b.recv_cq.ok();
    assert_eq!(wc.id, 1, "the first receive is still there");
    assert_eq!(b.mr.buf.get(GRH, 8), [0x42; 8]);
    assert!(b.recv_cq.is_empty());
    Ok(())
}

fn a_datagram_without_receive_is_dropped(dut: &TestDevice, flavour: Flavour) -> Outcome {
    let (a, b) = pair(dut, &NodeOptions::ud(flavour));
    a.done(a.datagram(&b, Wr::send(2).sge(a.mr.at(0, 100))));
    // The receiver drops the datagram, so that it needs time for it before a receive is posted.
    std::thread::sleep(std::time::Duration::from_millis(100));
    b.gets_next(&a);
    assert_eq!(b.next(32768), (4242, vec![0x42; 8]));
    assert!(b.recv_cq.is_empty());
    Ok(())
}

/// IBTA chapter 11, completion return status, as on connections.
fn a_bad_local_key_is_a_local_protection_error(dut: &TestDevice, flavour: Flavour) -> Outcome {
    dut.not_softroce(LOCAL_REASON)?;
    let (a, b) = pair(dut, &NodeOptions::ud(flavour));
    let bad = Sge { lkey: a.mr.lkey() ^ 0x5a5a, ..a.mr.at(0, 8) };
    a.post(a.datagram(&b, Wr::send(1).sge(bad)));
    assert_eq!(a.send_cq.one().status, Status::IBV_WC_LOC_PROT_ERR);
    Ok(())
}

fn two_devices_exchange_datagrams(dut: &TestDevice) -> Outcome {
    let (a, b) = pair_at(dut, PeerLocation::OtherDevice, &classic())?;
    for (from, to) in [(&a, &b), (&b, &a)] {
        from.mr.buf.set(0, &pattern(7, 300));
        to.recv(1, 4096, 400);
        from.done(from.datagram(to, Wr::send(2).sge(from.mr.at(0, 300))));
        assert_eq!(to.next(4096), (1, pattern(7, 300)));
    }
    Ok(())
}

fn one_pair_sends_to_many(dut: &TestDevice) -> Outcome {
    let device = dut.open();
    let nodes: Vec<_> = (0..4).map(|_| Node::new(&device, &classic())).collect();
    for node in &nodes {
        node.connect(&node.peer());
        node.recv(1, 0, 100);
    }
    let ah = nodes[0].ah(&nodes[0]);
    for (n, node) in nodes.iter().enumerate() {
        nodes[0].mr.buf.set(1000, &[n as u8; 8]);
        nodes[0].done(Wr::send(2).sge(nodes[0].mr.at(1000, 8)).to(&ah, node.qp.num(), QKEY));
        assert_eq!(node.next(0), (1, vec![n as u8; 8]));
    }
    Ok(())
}

fn a_pair_sends_to_itself(dut: &TestDevice) -> Outcome {
    let node = Node::new(&dut.open(), &classic());
    node.connect(&node.peer());
    node.gets_next(&node);
    assert_eq!(node.next(32768), (4242, vec![0x42; 8]));
    Ok(())
}

/// IBTA annex A17.4.5.2 (RoCE v2): an IPv4 header lies in the last 20 of the 40 bytes.
fn the_header_names_both_sides(dut: &TestDevice) -> Outcome {
    if dut.is_infiniband() {
        skip!("an InfiniBand link needs no header; infiniband::* ask for one");
    }
    let (a, b) = pair(dut, &classic());
    b.gets_next(&a);
    b.recv_cq.ok();
    let header = b.mr.buf.get(32768, GRH);
    let mapped = |gid: &[u8; 16]| gid[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
    if mapped(&a.gid.0) {
        assert_eq!(header[20] >> 4, 4, "{header:x?}");
        assert_eq!((&header[32..36], &header[36..40]), (&a.gid.0[12..], &b.gid.0[12..]));
    } else {
        assert_eq!(header[0] >> 4, 6, "{header:x?}");
        assert_eq!((&header[8..24], &header[24..40]), (&a.gid.0[..], &b.gid.0[..]));
    }
    Ok(())
}

/// IBTA 3.5.3, keys: if the Q_Key of a request has its high bit set, the datagram carries the Q_Key
/// of the sender's pair.
fn a_key_with_the_high_bit_is_the_sender_s_own(dut: &TestDevice) -> Outcome {
    dut.not_softroce("sends a Q_Key with the high bit as it is")?;
    let (a, b) = pair(dut, &classic());
    b.recv(1, 0, 100);
    a.mr.buf.set(0, &[3; 8]);
    a.done(Wr::send(2).sge(a.mr.at(0, 8)).to(&a.ah(&b), b.qp.num(), 0x8000_0000));
    assert_eq!(b.next(0), (1, vec![3; 8]));
    Ok(())
}

fn a_datagram_to_nobody_is_dropped(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &classic());
    a.done(Wr::send(1).sge(a.mr.at(0, 8)).to(&a.ah(&b), b.qp.num() ^ 0x0080_0000, QKEY));
    assert_eq!(a.qp.state(), State::IBV_QPS_RTS);
    Ok(())
}

fn a_datagram_to_a_pair_in_reset_is_dropped(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &classic());
    b.go(State::IBV_QPS_RESET);
    a.done(a.datagram(&b, Wr::send(1).sge(a.mr.at(0, 8))));
    assert_eq!(a.qp.state(), State::IBV_QPS_RTS);
    Ok(())
}

fn a_datagram_of_the_mtu_arrives(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &classic());
    let mtu = 128 << a.device.port().unwrap().active_mtu.0;
    a.mr.buf.set(0, &pattern(8, mtu));
    b.recv(1, 0, mtu + GRH);
    a.done(a.datagram(&b, Wr::send(2).sge(a.mr.at(0, mtu))));
    assert_eq!(b.next(0), (1, pattern(8, mtu)));
    Ok(())
}

/// IBTA chapter 11, completion return status: a datagram longer than the port's MTU is a local
/// length error.
fn a_datagram_beyond_the_mtu_is_refused(dut: &TestDevice) -> Outcome {
    dut.not_softroce("drops a datagram beyond the MTU and completes it with success")?;
    let (a, b) = pair(dut, &classic());
    let mtu = 128 << a.device.port().unwrap().active_mtu.0;
    b.recv(1, 0, 2 * mtu + GRH);
    match a.qp.post(&[a.datagram(&b, Wr::send(2).sge(a.mr.at(0, mtu + 1)))]) {
        Err((error, _)) => assert!([EINVAL, libc::EMSGSIZE].contains(&error), "{error}"),
        Ok(()) => assert_eq!(a.send_cq.one().status, Status::IBV_WC_LOC_LEN_ERR),
    }
    assert!(b.recv_cq.is_empty());
    Ok(())
}

/// IBTA chapter 9, unreliable datagrams: the responder of an unreliable service drops the message,
/// and its pair continues.
fn a_receive_that_is_too_short_gets_nothing(dut: &TestDevice) -> Outcome {
    dut.not_on(SoftRoce::Old, "ends a pair with an error where a datagram does not fit")?;
    let (a, b) = pair(dut, &classic());
    b.recv(1, 0, GRH + 7);
    b.recv(2, 1000, 200);
    a.done(a.datagram(&b, Wr::send(3).sge(a.mr.at(0, 8))));
    a.done(a.datagram(&b, Wr::send(4)));
    // Hardware completes the receive with a length error. Other devices drop the datagram and keep
    // the receive.
    let mut wc = b.recv_cq.one();
    if wc.status != Status::IBV_WC_SUCCESS {
        assert_eq!((wc.id, wc.status), (1, Status::IBV_WC_LOC_LEN_ERR));
        wc = b.recv_cq.ok();
    }
    assert_eq!(wc.len as usize, GRH, "{wc:?}");
    Ok(())
}

fn one_sided_requests_are_refused(dut: &TestDevice) -> Outcome {
    dut.not_softroce("posts requests that the type of the pair does not have")?;
    let (a, b) = pair(dut, &classic());
    let remote = b.mr.remote(0);
    for wr in [Wr::write(1, remote), Wr::read(1, remote), Wr::fetch_add(1, remote, 1)] {
        assert_eq!(a.qp.post(&[wr.sge(a.mr.at(0, 8))]), Err((EINVAL, 0)));
    }
    a.done(a.datagram(&b, Wr::send(2)));
    Ok(())
}

fn datagrams_keep_their_order(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &classic());
    for id in 0..20 {
        b.recv(id, id as usize * 128, 128);
    }
    for n in 0..20_u8 {
        a.mr.buf.set(n as usize * 64, &[n; 32]);
        a.post(a.datagram(&b, Wr::send(n.into()).sge(a.mr.at(n as usize * 64, 32))));
    }
    a.send_cq.wait(20);
    for n in 0..20_u8 {
        assert_eq!(b.next(n as usize * 128), (n.into(), vec![n; 32]));
    }
    Ok(())
}

fn an_answer_goes_by_the_handle_of_the_completion(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &classic());
    b.recv(1, 0, 100);
    a.recv(2, 0, 100);
    a.done(a.datagram(&b, Wr::send(3).sge(a.mr.at(200, 8))));
    let wc = b.recv_cq.ok();
    let ah = Ah::from_wc(&b.pd, &wc, &b.mr.buf, 0, 1).unwrap();
    b.mr.buf.set(200, &[9; 8]);
    b.done(Wr::send(4).sge(b.mr.at(200, 8)).to(&ah, wc.src_qp, QKEY));
    assert_eq!(a.next(0), (2, vec![9; 8]));
    Ok(())
}

fn the_attributes_of_the_completion_lead_back(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &classic());
    b.gets_next(&a);
    let wc = b.recv_cq.ok();
    let attr = b.device.ah_attr_of(&wc, &b.mr.buf, 32768).unwrap();
    let expected = ah_attr(&b.device, a.gid.0);
    assert_eq!((attr.is_global, attr.port_num), (expected.is_global, 1));
    if attr.is_global == 0 {
        assert_eq!(attr.dlid, expected.dlid);
        return Ok(());
    }
    assert_eq!(attr.grh.sgid_index, expected.grh.sgid_index);
    assert_eq!(crate::kit::raw_gid(&attr.grh.dgid), a.gid.0);
    Ok(())
}

/// A RoCE port addresses packets by GID only (IBTA annex A16, RoCE).
fn an_address_handle_without_global_route_is_refused(dut: &TestDevice) -> Outcome {
    if dut.is_infiniband() {
        skip!("an InfiniBand link needs no global route");
    }
    let device = dut.open();
    let attr = ah_attr(&device, device.find_gid().unwrap().0);
    let made = Ah::new(&device.pd(), rdma_mummy_sys::types::ibv_ah_attr { is_global: 0, ..attr });
    assert_eq!(made.err(), Some(EINVAL));
    Ok(())
}

fn an_address_handle_of_a_port_that_is_not_there_is_refused(dut: &TestDevice) -> Outcome {
    let device = dut.open();
    let attr = ah_attr(&device, device.find_gid().unwrap().0);
    for port_num in [0, device.query().unwrap().phys_port_cnt + 1] {
        let made = Ah::new(&device.pd(), rdma_mummy_sys::types::ibv_ah_attr { port_num, ..attr });
        assert_eq!(made.err(), Some(EINVAL), "port {port_num}");
    }
    Ok(())
}

fn an_address_handle_with_a_bad_gid_index_is_refused(dut: &TestDevice) -> Outcome {
    let device = dut.open();
    let mut attr = ah_attr(&device, device.find_gid().unwrap().0);
    (attr.is_global, attr.grh.sgid_index) = (1, 255);
    let error = Ah::new(&device.pd(), attr).err();
    assert!([Some(EINVAL), Some(ENODATA)].contains(&error), "{error:?}");
    Ok(())
}

fn many_address_handles_are_made(dut: &TestDevice) -> Outcome {
    let device = dut.open();
    let (pd, attr) = (device.pd(), ah_attr(&device, device.find_gid().unwrap().0));
    let handles: Vec<_> = (0..200).map(|_| Ah::new(&pd, attr).unwrap()).collect();
    assert!(handles.iter().all(|ah| ah.destroy() == 0));
    Ok(())
}

fn a_pair_goes_on_after_what_it_dropped(dut: &TestDevice) -> Outcome {
    let (a, b) = pair(dut, &classic());
    for _ in 0..20 {
        a.done(Wr::send(2).sge(a.mr.at(0, 8)).to(&a.ah(&b), b.qp.num(), QKEY ^ 1));
    }
    b.gets_next(&a);
    assert_eq!(b.next(32768), (4242, vec![0x42; 8]));
    Ok(())
}

/// IBTA chapter 10, queue pair states, send queue error: an error of a request moves an unreliable
/// pair to SQE. Sends are flushed, and receiving continues.
fn a_failed_datagram_leaves_the_send_queue_in_error(dut: &TestDevice) -> Outcome {
    dut.not_softroce("goes to the error state instead of SQE")?;
    let (a, b) = pair(dut, &classic());
    let read_beyond = a.mr.at(a.mr.len() - 4, 8);
    a.post(a.datagram(&b, Wr::send(1).sge(read_beyond)));
    assert_eq!(a.send_cq.one().status, Status::IBV_WC_LOC_PROT_ERR);
    assert!(a.qp.reaches(State::IBV_QPS_SQE));
    a.post(a.datagram(&b, Wr::send(2).sge(a.mr.at(0, 8))));
    assert_eq!(a.send_cq.one().status, Status::IBV_WC_WR_FLUSH_ERR);
    a.gets_next(&b);
    assert_eq!(a.next(32768), (4242, vec![0x42; 8]));
    a.go(State::IBV_QPS_RTS);
    a.done(a.datagram(&b, Wr::send(3).sge(a.mr.at(0, 8))));
    Ok(())
}

/// IBTA chapter 10, queue pair states, send queue error: SQE leads to RTS, RESET and ERR.
fn a_send_queue_in_error_leads_to_three_states(dut: &TestDevice) -> Outcome {
    dut.not_softroce("goes to the error state instead of SQE")?;
    for state in [State::IBV_QPS_RTS, State::IBV_QPS_RESET, State::IBV_QPS_ERR] {
        let (a, b) = pair(dut, &classic());
        a.post(a.datagram(&b, Wr::send(1).sge(a.mr.at(a.mr.len() - 4, 8))));
        assert!(a.qp.reaches(State::IBV_QPS_SQE));
        let others = [a.to_init(), a.to_rtr(&b.peer()), QpChange::to(State::IBV_QPS_SQD)];
        for change in others {
            assert_eq!(a.qp.modify(change), EINVAL);
            assert_eq!(a.qp.state(), State::IBV_QPS_SQE);
        }
        a.go(state);
        assert_eq!(a.qp.state(), state);
    }
    Ok(())
}

/// IBTA 10.2.3 (C10-10): a handle of another protection domain fails the call, or the request.
fn an_address_handle_of_another_domain_is_refused(dut: &TestDevice) -> Outcome {
    dut.not_since(SoftRoce::New, "reports a flush for an address handle of another domain")?;
    let (a, b) = pair(dut, &classic());
    let foreign = Ah::new(&a.device.pd(), ah_attr(&a.device, b.gid.0)).unwrap();
    b.recv(1, 0, 64 + GRH);
    match a.qp.post(&[Wr::send(2).sge(a.mr.at(0, 8)).to(&foreign, b.qp.num(), QKEY)]) {
        Err((error, 0)) => assert_eq!(error, EINVAL),
        Err(other) => panic!("{other:?}"),
        Ok(()) => assert_eq!(a.send_cq.one().status, Status::IBV_WC_LOC_QP_OP_ERR),
    }
    assert!(b.recv_cq.is_empty());
    Ok(())
}
