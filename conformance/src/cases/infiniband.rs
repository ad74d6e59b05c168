//! InfiniBand links: ports are addressed by LIDs, global routes are optional, and P_Keys divide the
//! ports into partitions.

use std::collections::HashSet;

use libc::EINVAL;
use rdma_mummy_sys::types::{
    ibv_ah_attr, ibv_gid_type, ibv_qp_attr_mask as Mask, ibv_qp_state as State, ibv_qp_type as Type,
    ibv_wc_flags as WcFlags, ibv_wc_status as Status,
};

use crate::kit::{
    Ah, Device, Flavour, Node, NodeOptions, Outcome, QKEY, QpChange, Recv, Suite, TestDevice, Wr, ah_attr,
    devices, lid_of, node_in, pattern,
};

pub(crate) fn cases(suite: &mut Suite) {
    cases!(suite:
        every_port_has_a_lid,
        every_gid_is_of_infiniband,
        a_port_has_two_partitions,
        a_global_route_may_be_asked_for,
        a_lid_of_another_port_reaches_nobody,
        a_lid_decides_although_the_gid_is_right,
        a_datagram_to_another_lid_is_lost,
        a_datagram_with_a_global_route_has_its_header,
        a_datagram_without_a_global_route_has_room_for_one,
        a_datagram_has_the_service_level_of_its_sender,
        pairs_of_one_partition_connect,
        pairs_of_different_partitions_do_not_connect,
        a_datagram_of_another_partition_is_lost,
        a_partition_that_is_not_there_is_refused,
        a_pair_that_changes_its_partition_leaves_its_peer,
    );
}

/// How the pairs of a case are connected.
#[derive(Clone, Copy, Default)]
struct Links {
    /// Whether packets carry GIDs.
    global: bool,
    /// Added to the right LID.
    lid_off: u16,
    service_level: u8,
    /// The index of the P_Key, of each side.
    partitions: [u16; 2],
}

impl Links {
    fn address(self, device: &Device, to: [u8; 16]) -> ibv_ah_attr {
        let mut attr = ah_attr(device, to);
        attr.is_global = self.global.into();
        attr.dlid += self.lid_off;
        attr.sl = self.service_level;
        attr
    }

    fn init(node: &Node, partition: u16) {
        let change = node.to_init().with(Mask::IBV_QP_PKEY_INDEX, |attr| attr.pkey_index = partition);
        assert_eq!(node.qp.modify(change), 0);
    }

    /// Two nodes, of which the first goes by this address, and the second by the right one.
    fn pair(self, dut: &TestDevice, options: &NodeOptions) -> [Node; 2] {
        let nodes = [(); 2].map(|()| Node::new(&dut.open(), options));
        let right = Self { lid_off: 0, ..self };
        for (n, links) in [self, right].into_iter().enumerate() {
            let (node, peer) = (&nodes[n], &nodes[1 - n]);
            Self::init(node, self.partitions[n]);
            let mut rtr = node.to_rtr(&peer.peer());
            if options.qp_type != Type::IBV_QPT_UD {
                let address = links.address(&node.device, peer.gid.0);
                rtr = rtr.with(Mask::IBV_QP_AV, |attr| attr.ah_attr = address);
            }
            assert_eq!(node.qp.modify(rtr), 0);
            node.rts();
        }
        nodes
    }

    /// The status of a SEND between such nodes.
    fn status(self, dut: &TestDevice) -> Status {
        let [a, b] = self.pair(dut, &NodeOptions::rc(Flavour::Classic).impatient());
        b.recv(1, 0, 4096);
        a.post(Wr::send(2).sge(a.mr.at(0, 100)));
        a.send_cq.one().status
    }

    /// Sends a datagram between such nodes. Returns the receiver, and whether anything came before
    /// the next one, which goes by the right address.
    fn datagram(self, dut: &TestDevice) -> (Node, bool) {
        let [a, b] = self.pair(dut, &NodeOptions::ud(Flavour::Classic));
        let right = Self { lid_off: 0, ..self };
        for (id, links) in [(1, self), (2, right)] {
            b.qp.recv(Recv::new(id).sge(b.mr.at(1000 * id as usize, 900)));
            a.mr.buf.set(0, &pattern(id as u8, 100));
            let ah = Ah::new(&a.pd, links.address(&a.device, b.gid.0)).unwrap();
            a.done(Wr::send(id).sge(a.mr.at(0, 100)).to(&ah, b.qp.num(), QKEY));
        }
        let came = b.recv_cq.poll(2).len();
        (b, came == 2)
    }
}

fn every_port_has_a_lid(dut: &TestDevice) -> Outcome {
    let mut lids = HashSet::new();
    for name in devices(dut.provider).unwrap() {
        let device = Device::open(dut.provider, &name).unwrap();
        for port in 1..=device.query().unwrap().phys_port_cnt {
            let attr = device.port_at(port).unwrap();
            assert!((1..0xc000).contains(&attr.lid) && lids.insert(attr.lid), "LID {}", attr.lid);
            assert_eq!(lid_of(device.gid(port, 0).unwrap()), Some(attr.lid));
        }
    }
    assert_eq!(lids.len(), 4);
    Ok(())
}

fn every_gid_is_of_infiniband(dut: &TestDevice) -> Outcome {
    let entries = dut.open().gid_table(1024, 0).unwrap();
    let of_infiniband = |gid_type| gid_type == ibv_gid_type::IBV_GID_TYPE_IB.0;
    assert!(!entries.is_empty() && entries.iter().all(|entry| of_infiniband(entry.gid_type)));
    Ok(())
}

fn a_port_has_two_partitions(dut: &TestDevice) -> Outcome {
    let device = dut.open();
    assert_eq!((device.query().unwrap().max_pkeys, device.port().unwrap().pkey_tbl_len), (2, 2));
    assert_eq!([0, 1, 2].map(|index| device.pkey(1, index)), [Ok(0xffff), Ok(0x8001), Err(EINVAL)]);
    assert_eq!([0xffff, 0x8001].map(|pkey| device.pkey_index(1, pkey)), [Ok(0), Ok(1)]);
    assert!(device.pkey_index(1, 0x8002).is_err());
    Ok(())
}

fn a_global_route_may_be_asked_for(dut: &TestDevice) -> Outcome {
    assert_eq!(Links { global: true, ..Links::default() }.status(dut), Status::IBV_WC_SUCCESS);
    Ok(())
}

fn a_lid_of_another_port_reaches_nobody(dut: &TestDevice) -> Outcome {
    for lid_off in [1, 1000] {
        assert_eq!(Links { lid_off, ..Links::default() }.status(dut), Status::IBV_WC_RETRY_EXC_ERR);
    }
    Ok(())
}

/// IBTA chapter 7, addressing: a packet goes to the port with its destination LID.
fn a_lid_decides_although_the_gid_is_right(dut: &TestDevice) -> Outcome {
    let links = Links { global: true, lid_off: 1, ..Links::default() };
    assert_eq!(links.status(dut), Status::IBV_WC_RETRY_EXC_ERR);
    Ok(())
}

fn a_datagram_to_another_lid_is_lost(dut: &TestDevice) -> Outcome {
    for global in [false, true] {
        assert!(!Links { global, lid_off: 1, ..Links::default() }.datagram(dut).1, "global: {global}");
        assert!(Links { global, ..Links::default() }.datagram(dut).1, "global: {global}");
    }
    Ok(())
}

/// IBTA chapter 8, global route header: version 6, next header 0x1b.
fn a_datagram_with_a_global_route_has_its_header(dut: &TestDevice) -> Outcome {
    let [a, b] = Links { global: true, ..Links::default() }.pair(dut, &NodeOptions::ud(Flavour::Classic));
    b.recv(1, 0, 1000);
    let address = Links { global: true, service_level: 3, ..Links::default() }.address(&a.device, b.gid.0);
    a.done(Wr::send(2).sge(a.mr.at(0, 8)).to(&Ah::new(&a.pd, address).unwrap(), b.qp.num(), QKEY));
    let wc = b.recv_cq.ok();
    let header = b.mr.buf.get(0, 40);
    assert!(wc.has(WcFlags::IBV_WC_GRH), "{wc:?}");
    assert_eq!((header[0] >> 4, header[6]), (6, 0x1b), "{header:x?}");
    assert_eq!((&header[8..24], &header[24..40]), (&a.gid.0[..], &b.gid.0[..]));
    assert_eq!((Some(wc.slid), wc.sl, wc.len), (lid_of(a.gid.0), 3, 48));
    let back = b.device.ah_attr_of(&wc, &b.mr.buf, 0).unwrap();
    assert_eq!((back.is_global, Some(back.dlid), back.sl), (1, lid_of(a.gid.0), 3));
    assert_eq!((crate::kit::raw_gid(&back.grh.dgid), back.grh.sgid_index), (a.gid.0, b.gid.1));
    Ok(())
}

/// `man ibv_post_recv`: the first 40 bytes of the receive are for the header.
fn a_datagram_without_a_global_route_has_room_for_one(dut: &TestDevice) -> Outcome {
    let (b, came) = Links::default().datagram(dut);
    assert!(came);
    assert_eq!(b.mr.buf.get(1040, 100), pattern(1, 100));
    assert_eq!(b.mr.buf.get(2040, 100), pattern(2, 100));
    Ok(())
}

fn a_datagram_has_the_service_level_of_its_sender(dut: &TestDevice) -> Outcome {
    for service_level in [0, 7, 15] {
        let links = Links { service_level, ..Links::default() };
        let [a, b] = links.pair(dut, &NodeOptions::ud(Flavour::Classic));
        b.recv(1, 0, 1000);
        let ah = Ah::new(&a.pd, links.address(&a.device, b.gid.0)).unwrap();
        a.done(Wr::send(2).sge(a.mr.at(0, 8)).to(&ah, b.qp.num(), QKEY));
        let wc = b.recv_cq.ok();
        assert_eq!((wc.sl, Some(wc.slid)), (service_level, lid_of(a.gid.0)));
        assert!(!wc.has(WcFlags::IBV_WC_GRH));
    }
    Ok(())
}

fn pairs_of_one_partition_connect(dut: &TestDevice) -> Outcome {
    for partitions in [[0, 0], [1, 1]] {
        assert_eq!(Links { partitions, ..Links::default() }.status(dut), Status::IBV_WC_SUCCESS);
    }
    Ok(())
}

/// IBTA chapter 10, partitioning: a packet whose P_Key does not match the queue pair's is dropped.
fn pairs_of_different_partitions_do_not_connect(dut: &TestDevice) -> Outcome {
    for partitions in [[0, 1], [1, 0]] {
        assert_eq!(Links { partitions, ..Links::default() }.status(dut), Status::IBV_WC_RETRY_EXC_ERR);
    }
    Ok(())
}

fn a_datagram_of_another_partition_is_lost(dut: &TestDevice) -> Outcome {
    let links = |partitions| Links { partitions, ..Links::default() };
    assert!(links([1, 1]).datagram(dut).1);
    let (receiver, _) = links([0, 1]).datagram(dut);
    assert_eq!(receiver.mr.buf.get(1040, 100), [0; 100]);
    Ok(())
}

fn a_partition_that_is_not_there_is_refused(dut: &TestDevice) -> Outcome {
    let node = node_in(dut, Type::IBV_QPT_RC, State::IBV_QPS_RESET);
    let change = node.to_init().with(Mask::IBV_QP_PKEY_INDEX, |attr| attr.pkey_index = 2);
    node.refuses(change, "P_Key 2");
    Ok(())
}

/// `man ibv_modify_qp`: a drained send queue takes another P_Key index.
fn a_pair_that_changes_its_partition_leaves_its_peer(dut: &TestDevice) -> Outcome {
    let [a, b] = Links::default().pair(dut, &NodeOptions::rc(Flavour::Classic).impatient());
    (1..3).for_each(|id| b.recv(id, 0, 4096));
    a.done(Wr::send(3).sge(a.mr.at(0, 100)));
    b.recv_cq.ok();
    a.go(State::IBV_QPS_SQD);
    let other = QpChange::to(State::IBV_QPS_SQD).with(Mask::IBV_QP_PKEY_INDEX, |attr| attr.pkey_index = 1);
    assert_eq!(a.qp.modify(other), 0);
    assert_eq!(a.qp.modify(QpChange::to(State::IBV_QPS_RTS)), 0);
    assert_eq!(a.fails(Wr::send(4).sge(a.mr.at(0, 100))), Status::IBV_WC_RETRY_EXC_ERR);
    Ok(())
}
