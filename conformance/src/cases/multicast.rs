//! Multicast: each member of a group gets a copy of each datagram sent to it (`man
//! ibv_attach_mcast`; IBTA chapter 10, unreliable datagram multicast).

use libc::{EBUSY, EINVAL};
use rdma_mummy_sys::types::ibv_qp_state as State;
use rdma_mummy_sys::types::ibv_wc_flags as WcFlags;
use rdma_mummy_sys::types::{ibv_qp_create_flags, ibv_qp_type};

use crate::kit::{
    Ah, Device, Flavour, Node, NodeOptions, Outcome, QKEY, Recv, Srq, Suite, TestDevice, Wr, ah_attr, pattern,
};

/// The bytes before the message in each receive's memory.
const GRH: usize = 40;

/// The queue pair number of every group (IBTA chapter 4, addressing).
const GROUP: u32 = 0xff_ffff;

/// Why SoftRoCE delivers no multicast here.
const DELIVERY_REASON: &str =
    "sends to a group by the host's network, which does not bring it back to this host";

pub(crate) fn cases(suite: &mut Suite) {
    cases!(suite:
        the_limits_of_multicast_are_sane,
        a_pair_joins_and_leaves,
        a_pair_that_joins_twice_leaves_once,
        a_pair_that_is_in_no_group_leaves_none,
        a_pair_of_another_group_does_not_leave_this_one,
        a_connected_pair_joins_no_group,
        a_host_is_no_group,
        a_pair_in_a_group_is_not_destroyed,
        a_pair_joins_in_every_state,
        a_datagram_to_an_empty_group_is_sent,
        a_datagram_to_a_group_needs_its_number,
    );
    both!(suite:
        everybody_in_the_group_gets_a_copy,
        a_long_datagram_reaches_everybody,
        a_datagram_to_a_group_carries_its_immediate_data,
        the_sender_is_a_member_like_others,
    );
    cases!(suite:
        a_pair_that_joined_twice_gets_one_copy,
        a_pair_outside_the_group_gets_nothing,
        a_pair_that_left_gets_nothing,
        a_pair_with_another_key_gets_nothing,
        a_pair_without_a_receive_does_not_starve_others,
        a_pair_with_a_short_receive_does_not_starve_others,
        a_pair_in_init_gets_nothing,
        a_sender_may_refuse_its_own_copy,
        the_header_names_the_group,
        two_groups_are_told_apart,
        ipv4_and_ipv6_groups_are_both_groups,
        datagrams_to_a_group_keep_their_order,
        members_on_another_device_get_copies,
        a_shared_queue_gives_a_receive_to_each_member,
        the_own_key_stands_for_the_senders,
        a_bad_local_key_sends_no_copy,
    );
}

/// A group that only one case uses. It is an IPv4 group, because the device's address is IPv4.
fn group(number: u8) -> [u8; 16] {
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 1, 77, number]
}

fn datagrams() -> NodeOptions {
    NodeOptions::ud(Flavour::Classic)
}

/// A node that can receive datagrams.
fn ready(device: &Device, options: &NodeOptions) -> Node {
    let node = Node::new(device, options);
    node.connect(&node.peer());
    node
}

/// A node in a group, with posted receives.
fn member(device: &Device, options: &NodeOptions, gid: [u8; 16]) -> Node {
    let node = ready(device, options);
    assert_eq!(node.qp.attach(gid, 0), 0);
    for id in 0..4 {
        node.recv(id, id as usize * 8192, 8192);
    }
    node
}

impl Node {
    /// Addresses a request to a group.
    fn to_group(&self, gid: [u8; 16], wr: Wr) -> Wr {
        let ah = Ah::new(&self.pd, ah_attr(&self.device, gid)).unwrap();
        wr.to(&ah, GROUP, QKEY)
    }

    /// Sends this many bytes to a group.
    fn send_to_group(&self, gid: [u8; 16], seed: u8, len: usize) {
        self.mr.buf.set(40_000, &pattern(seed, len));
        self.done(self.to_group(gid, Wr::send(77).sge(self.mr.at(40_000, len))));
    }

    /// The next message, which must be for this receive.
    fn received(&self, id: u64) -> Vec<u8> {
        let wc = self.recv_cq.ok();
        assert_eq!(wc.id, id, "{wc:?}");
        self.mr.buf.get(id as usize * 8192 + GRH, wc.len as usize - GRH)
    }

    /// Leaves the group, so that the pair can be destroyed.
    fn leave(&self, gid: [u8; 16]) {
        assert_eq!(self.qp.detach(gid, 0), 0);
    }
}

fn the_limits_of_multicast_are_sane(dut: &TestDevice) -> Outcome {
    let attr = dut.open().query().unwrap();
    assert!(attr.max_mcast_grp > 0 && attr.max_mcast_qp_attach > 0, "{attr:?}");
    assert!(attr.max_total_mcast_qp_attach >= attr.max_mcast_qp_attach, "{attr:?}");
    Ok(())
}

fn a_pair_joins_and_leaves(dut: &TestDevice) -> Outcome {
    let node = ready(&dut.open(), &datagrams());
    for _ in 0..3 {
        assert_eq!(node.qp.attach(group(1), 0), 0);
        assert_eq!(node.qp.detach(group(1), 0), 0);
    }
    Ok(())
}

/// A pair that is attached several times is in the group once.
fn a_pair_that_joins_twice_leaves_once(dut: &TestDevice) -> Outcome {
    let node = ready(&dut.open(), &datagrams());
    assert_eq!((node.qp.attach(group(2), 0), node.qp.attach(group(2), 0)), (0, 0));
    assert_eq!(node.qp.detach(group(2), 0), 0);
    assert_eq!(node.qp.detach(group(2), 0), EINVAL);
    Ok(())
}

fn a_pair_that_is_in_no_group_leaves_none(dut: &TestDevice) -> Outcome {
    let node = ready(&dut.open(), &datagrams());
    assert_eq!(node.qp.detach(group(3), 0), EINVAL);
    Ok(())
}

fn a_pair_of_another_group_does_not_leave_this_one(dut: &TestDevice) -> Outcome {
    let (a, b) = (ready(&dut.open(), &datagrams()), ready(&dut.open(), &datagrams()));
    assert_eq!((a.qp.attach(group(4), 0), b.qp.attach(group(5), 0)), (0, 0));
    assert_eq!((a.qp.detach(group(5), 0), b.qp.detach(group(4), 0)), (EINVAL, EINVAL));
    a.leave(group(4));
    b.leave(group(5));
    Ok(())
}

/// "Only QPs of Transport Service Type IBV_QPT_UD may be attached to multicast groups."
fn a_connected_pair_joins_no_group(dut: &TestDevice) -> Outcome {
    for qp_type in [ibv_qp_type::IBV_QPT_RC, ibv_qp_type::IBV_QPT_UC] {
        let node = Node::new(&dut.open(), &NodeOptions::new(qp_type, Flavour::Classic));
        assert_eq!(node.qp.attach(group(6), 0), EINVAL, "{qp_type:?}");
    }
    Ok(())
}

/// IBTA chapter 4, addressing: a multicast GID begins with eight ones. Annex A17 (RoCE v2) adds the
/// GIDs of IPv4 groups.
fn a_host_is_no_group(dut: &TestDevice) -> Outcome {
    let node = ready(&dut.open(), &datagrams());
    let mapped = |last: [u8; 4]| {
        let mut gid = group(0);
        gid[12..].copy_from_slice(&last);
        gid
    };
    let link_local = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 1];
    for gid in [node.gid.0, mapped([192, 0, 2, 1]), link_local, [0; 16]] {
        assert_eq!(node.qp.attach(gid, 0), EINVAL, "{gid:x?}");
    }
    Ok(())
}

/// `man ibv_destroy_qp`: "ibv_destroy_qp() fails if the QP is attached to a multicast group."
fn a_pair_in_a_group_is_not_destroyed(dut: &TestDevice) -> Outcome {
    let node = ready(&dut.open(), &datagrams());
    assert_eq!(node.qp.attach(group(7), 0), 0);
    assert_eq!(node.qp.destroy(), EBUSY);
    assert_eq!(node.qp.state(), State::IBV_QPS_RTS, "it goes on");
    node.leave(group(7));
    assert_eq!(node.qp.destroy(), 0);
    Ok(())
}

fn a_pair_joins_in_every_state(dut: &TestDevice) -> Outcome {
    let node = Node::new(&dut.open(), &datagrams());
    assert_eq!(node.qp.attach(group(8), 0), 0, "RESET");
    node.connect(&node.peer());
    assert_eq!(node.qp.attach(group(9), 0), 0, "RTS");
    node.go(State::IBV_QPS_ERR);
    assert_eq!(node.qp.attach(group(10), 0), 0, "ERR");
    for number in 8..=10 {
        node.leave(group(number));
    }
    Ok(())
}

fn a_datagram_to_an_empty_group_is_sent(dut: &TestDevice) -> Outcome {
    let node = ready(&dut.open(), &datagrams());
    node.send_to_group(group(11), 1, 100);
    assert_eq!(node.qp.state(), State::IBV_QPS_RTS);
    Ok(())
}

/// IBTA chapter 9, packet validation: a datagram to a group names queue pair 0xFFFFFF. The receiver
/// drops it otherwise.
fn a_datagram_to_a_group_needs_its_number(dut: &TestDevice) -> Outcome {
    let device = dut.open();
    let (a, b) = (ready(&device, &datagrams()), member(&device, &datagrams(), group(12)));
    let ah = Ah::new(&a.pd, ah_attr(&device, group(12))).unwrap();
    a.done(Wr::send(1).sge(a.mr.at(0, 8)).to(&ah, b.qp.num(), QKEY));
    let ah = Ah::new(&a.pd, ah_attr(&device, b.gid.0)).unwrap();
    a.done(Wr::send(1).sge(a.mr.at(0, 8)).to(&ah, GROUP, QKEY));
    // This datagram arrives, and none before it.
    a.mr.buf.set(0, &[5; 8]);
    a.done(Wr::send(2).sge(a.mr.at(0, 8)).to(&ah, b.qp.num(), QKEY));
    assert_eq!(b.received(0), [5; 8]);
    b.leave(group(12));
    Ok(())
}

fn everybody_in_the_group_gets_a_copy(dut: &TestDevice, flavour: Flavour) -> Outcome {
    dut.not_softroce(DELIVERY_REASON)?;
    let (here, there) = (dut.open(), dut.open());
    let gid = group(20);
    let sender = ready(&here, &NodeOptions::ud(flavour));
    let members: Vec<_> =
        [&here, &there, &here].iter().map(|device| member(device, &NodeOptions::ud(flavour), gid)).collect();
    for (n, len) in [0, 8, 200].into_iter().enumerate() {
        sender.send_to_group(gid, n as u8, len);
        for node in &members {
            assert_eq!(node.received(n as u64), pattern(n as u8, len));
        }
    }
    members.iter().for_each(|node| node.leave(gid));
    Ok(())
}

fn a_long_datagram_reaches_everybody(dut: &TestDevice, flavour: Flavour) -> Outcome {
    dut.not_softroce(DELIVERY_REASON)?;
    let device = dut.open();
    let gid = group(21);
    let members: Vec<_> = (0..5).map(|_| member(&dut.open(), &NodeOptions::ud(flavour), gid)).collect();
    let mtu = 128 << device.port().unwrap().active_mtu.0;
    let sender = ready(&device, &NodeOptions::ud(flavour));
    sender.send_to_group(gid, 9, mtu);
    for node in &members {
        assert_eq!(node.received(0), pattern(9, mtu));
    }
    members.iter().for_each(|node| node.leave(gid));
    Ok(())
}

fn a_datagram_to_a_group_carries_its_immediate_data(dut: &TestDevice, flavour: Flavour) -> Outcome {
    dut.not_softroce(DELIVERY_REASON)?;
    let device = dut.open();
    let gid = group(22);
    let (a, b) = (ready(&device, &NodeOptions::ud(flavour)), member(&device, &NodeOptions::ud(flavour), gid));
    a.done(a.to_group(gid, Wr::send_imm(1, 0x0102_0304).sge(a.mr.at(0, 8))));
    let wc = b.recv_cq.ok();
    assert!(wc.has(WcFlags::IBV_WC_WITH_IMM) && wc.has(WcFlags::IBV_WC_GRH), "{wc:?}");
    assert_eq!((wc.imm, wc.len, wc.src_qp, wc.qp_num), (0x0102_0304, 48, a.qp.num(), b.qp.num()));
    b.leave(gid);
    Ok(())
}

/// `man ibv_create_qp_ex`: IBV_QP_CREATE_BLOCK_SELF_MCAST_LB prevents multicast loopback, which is
/// therefore the default.
fn the_sender_is_a_member_like_others(dut: &TestDevice, flavour: Flavour) -> Outcome {
    dut.not_softroce(DELIVERY_REASON)?;
    let device = dut.open();
    let gid = group(23);
    let (a, b) =
        (member(&device, &NodeOptions::ud(flavour), gid), member(&device, &NodeOptions::ud(flavour), gid));
    a.send_to_group(gid, 3, 64);
    assert_eq!((a.received(0), b.received(0)), (pattern(3, 64), pattern(3, 64)));
    a.leave(gid);
    b.leave(gid);
    Ok(())
}

/// "... the QP will still receive a single copy of a multicast message."
fn a_pair_that_joined_twice_gets_one_copy(dut: &TestDevice) -> Outcome {
    dut.not_softroce(DELIVERY_REASON)?;
    let device = dut.open();
    let gid = group(24);
    let (a, b) = (ready(&device, &datagrams()), member(&device, &datagrams(), gid));
    assert_eq!(b.qp.attach(gid, 0), 0);
    a.send_to_group(gid, 1, 8);
    a.send_to_group(gid, 2, 8);
    assert_eq!((b.received(0), b.received(1)), (pattern(1, 8), pattern(2, 8)));
    assert!(b.recv_cq.is_empty());
    b.leave(gid);
    Ok(())
}

fn a_pair_outside_the_group_gets_nothing(dut: &TestDevice) -> Outcome {
    dut.not_softroce(DELIVERY_REASON)?;
    let device = dut.open();
    let (sender, one) = (ready(&device, &datagrams()), member(&device, &datagrams(), group(25)));
    let other = ready(&device, &datagrams());
    other.recv(0, 0, 8192);
    sender.send_to_group(group(25), 1, 8);
    assert_eq!(one.received(0), pattern(1, 8));
    assert!(other.recv_cq.is_empty());
    one.leave(group(25));
    Ok(())
}

fn a_pair_that_left_gets_nothing(dut: &TestDevice) -> Outcome {
    dut.not_softroce(DELIVERY_REASON)?;
    let device = dut.open();
    let gid = group(26);
    let (sender, one) = (ready(&device, &datagrams()), member(&device, &datagrams(), gid));
    let other = member(&device, &datagrams(), gid);
    other.leave(gid);
    sender.send_to_group(gid, 1, 8);
    assert_eq!(one.received(0), pattern(1, 8));
    assert!(other.recv_cq.is_empty());
    // After joining again the pair gets new datagrams.
    assert_eq!(other.qp.attach(gid, 0), 0);
    sender.send_to_group(gid, 2, 8);
    assert_eq!((one.received(1), other.received(0)), (pattern(2, 8), pattern(2, 8)));
    one.leave(gid);
    other.leave(gid);
    Ok(())
}

/// IBTA chapter 9, packet validation, as for every datagram.
fn a_pair_with_another_key_gets_nothing(dut: &TestDevice) -> Outcome {
    dut.not_softroce(DELIVERY_REASON)?;
    let device = dut.open();
    let gid = group(27);
    let (sender, one) = (ready(&device, &datagrams()), member(&device, &datagrams(), gid));
    let other = member(&device, &datagrams().set(|options| options.qkey = QKEY ^ 1), gid);
    sender.send_to_group(gid, 1, 8);
    assert_eq!(one.received(0), pattern(1, 8));
    assert!(other.recv_cq.is_empty());
    one.leave(gid);
    other.leave(gid);
    Ok(())
}

fn a_pair_without_a_receive_does_not_starve_others(dut: &TestDevice) -> Outcome {
    dut.not_softroce(DELIVERY_REASON)?;
    let device = dut.open();
    let gid = group(28);
    let before = member(&device, &datagrams(), gid);
    let poor = ready(&device, &datagrams());
    assert_eq!(poor.qp.attach(gid, 0), 0);
    let (sender, after) = (ready(&device, &datagrams()), member(&device, &datagrams(), gid));
    sender.send_to_group(gid, 1, 8);
    assert_eq!((before.received(0), after.received(0)), (pattern(1, 8), pattern(1, 8)));
    poor.recv(0, 0, 8192);
    assert!(poor.recv_cq.is_empty(), "it was lost");
    for node in [&before, &poor, &after] {
        node.leave(gid);
    }
    Ok(())
}

/// IBTA chapter 9, unreliable datagrams: a receiver drops a datagram that its receive cannot hold.
fn a_pair_with_a_short_receive_does_not_starve_others(dut: &TestDevice) -> Outcome {
    dut.not_softroce(DELIVERY_REASON)?;
    let device = dut.open();
    let gid = group(29);
    let short = ready(&device, &datagrams());
    assert_eq!(short.qp.attach(gid, 0), 0);
    short.recv(0, 0, GRH + 7);
    let (sender, one) = (ready(&device, &datagrams()), member(&device, &datagrams(), gid));
    sender.send_to_group(gid, 1, 8);
    assert_eq!(one.received(0), pattern(1, 8));
    sender.send_to_group(gid, 2, 4);
    assert_eq!(one.received(1), pattern(2, 4));
    short.leave(gid);
    one.leave(gid);
    Ok(())
}

fn a_pair_in_init_gets_nothing(dut: &TestDevice) -> Outcome {
    dut.not_softroce(DELIVERY_REASON)?;
    let device = dut.open();
    let gid = group(30);
    let early = Node::new(&device, &datagrams());
    assert_eq!(early.qp.attach(gid, 0), 0);
    early.init();
    early.recv(0, 0, 8192);
    let (sender, one) = (ready(&device, &datagrams()), member(&device, &datagrams(), gid));
    sender.send_to_group(gid, 1, 8);
    assert_eq!(one.received(0), pattern(1, 8));
    assert!(early.recv_cq.is_empty());
    early.rtr(&early.peer());
    sender.send_to_group(gid, 2, 8);
    assert_eq!((one.received(1), early.received(0)), (pattern(2, 8), pattern(2, 8)));
    early.leave(gid);
    one.leave(gid);
    Ok(())
}

/// `man ibv_create_qp_ex`: IBV_QP_CREATE_BLOCK_SELF_MCAST_LB, "Prevent self multicast loopback".
fn a_sender_may_refuse_its_own_copy(dut: &TestDevice) -> Outcome {
    dut.not_softroce("has no flags for making queue pairs")?;
    let device = dut.open();
    let gid = group(31);
    let flags = ibv_qp_create_flags::IBV_QP_CREATE_BLOCK_SELF_MCAST_LB.0;
    let options = datagrams().set(|options| options.create_flags = flags);
    let (a, b) = (member(&device, &options, gid), member(&device, &options, gid));
    a.send_to_group(gid, 1, 8);
    b.send_to_group(gid, 2, 8);
    assert_eq!((a.received(0), b.received(0)), (pattern(2, 8), pattern(1, 8)));
    assert!(a.recv_cq.is_empty() && b.recv_cq.is_empty());
    a.leave(gid);
    b.leave(gid);
    Ok(())
}

/// The header names the group as the destination (IBTA annex A17.4.5.2, RoCE v2).
fn the_header_names_the_group(dut: &TestDevice) -> Outcome {
    dut.not_softroce(DELIVERY_REASON)?;
    let device = dut.open();
    let gid = group(32);
    let (a, b) = (ready(&device, &datagrams()), member(&device, &datagrams(), gid));
    a.send_to_group(gid, 1, 8);
    b.received(0);
    let header = b.mr.buf.get(0, GRH);
    if dut.is_infiniband() {
        assert_eq!((&header[8..24], &header[24..40]), (&a.gid.0[..], &gid[..]), "{header:x?}");
    } else {
        assert_eq!(header[20] >> 4, 4, "{header:x?}");
        assert_eq!((&header[32..36], &header[36..40]), (&a.gid.0[12..], &gid[12..]));
    }
    b.leave(gid);
    Ok(())
}

fn two_groups_are_told_apart(dut: &TestDevice) -> Outcome {
    dut.not_softroce(DELIVERY_REASON)?;
    let device = dut.open();
    let (first, second) = (group(33), group(34));
    let (a, b) = (member(&device, &datagrams(), first), member(&device, &datagrams(), second));
    let both = member(&device, &datagrams(), first);
    assert_eq!(both.qp.attach(second, 0), 0);
    let sender = ready(&device, &datagrams());
    sender.send_to_group(first, 1, 8);
    sender.send_to_group(second, 2, 8);
    assert_eq!((a.received(0), b.received(0)), (pattern(1, 8), pattern(2, 8)));
    assert_eq!((both.received(0), both.received(1)), (pattern(1, 8), pattern(2, 8)));
    assert!(a.recv_cq.is_empty() && b.recv_cq.is_empty());
    let header = both.mr.buf.get(8192, GRH);
    assert_eq!(header[36..40], second[12..]);
    a.leave(first);
    b.leave(second);
    both.leave(first);
    both.leave(second);
    Ok(())
}

fn ipv4_and_ipv6_groups_are_both_groups(dut: &TestDevice) -> Outcome {
    dut.not_softroce(DELIVERY_REASON)?;
    let device = dut.open();
    let mut ipv6 = group(35);
    ipv6[..12].copy_from_slice(&[0xff, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let sender = ready(&device, &datagrams());
    let (a, b) = (member(&device, &datagrams(), group(35)), member(&device, &datagrams(), ipv6));
    sender.send_to_group(group(35), 4, 8);
    sender.send_to_group(ipv6, 6, 8);
    assert_eq!((a.received(0), b.received(0)), (pattern(4, 8), pattern(6, 8)));
    let header = b.mr.buf.get(0, GRH);
    assert_eq!((header[0] >> 4, &header[24..40]), (6, &ipv6[..]), "{header:x?}");
    a.leave(group(35));
    b.leave(ipv6);
    Ok(())
}

fn datagrams_to_a_group_keep_their_order(dut: &TestDevice) -> Outcome {
    dut.not_softroce(DELIVERY_REASON)?;
    let gid = group(36);
    let sender = ready(&dut.open(), &datagrams());
    let members: Vec<_> = (0..3)
        .map(|_| {
            let node = ready(&dut.open(), &datagrams());
            assert_eq!(node.qp.attach(gid, 0), 0);
            (0..20).for_each(|id| node.recv(id, id as usize * 128, 128));
            node
        })
        .collect();
    for n in 0..20_u8 {
        sender.mr.buf.set(n as usize * 64, &[n; 32]);
        sender.post(sender.to_group(gid, Wr::send(n.into()).sge(sender.mr.at(n as usize * 64, 32))));
    }
    sender.send_cq.wait(20);
    for node in &members {
        for n in 0..20_u8 {
            let wc = node.recv_cq.ok();
            assert_eq!((wc.id, wc.len), (n.into(), 72));
            assert_eq!(node.mr.buf.get(n as usize * 128 + GRH, 32), [n; 32]);
        }
        node.leave(gid);
    }
    Ok(())
}

fn members_on_another_device_get_copies(dut: &TestDevice) -> Outcome {
    dut.not_softroce(DELIVERY_REASON)?;
    let gid = group(37);
    let sender = ready(&dut.open(), &datagrams());
    let (here, there) =
        (member(&dut.open(), &datagrams(), gid), member(&dut.open_peer()?, &datagrams(), gid));
    sender.send_to_group(gid, 7, 1000);
    assert_eq!((here.received(0), there.received(0)), (pattern(7, 1000), pattern(7, 1000)));
    here.leave(gid);
    there.leave(gid);
    Ok(())
}

fn a_shared_queue_gives_a_receive_to_each_member(dut: &TestDevice) -> Outcome {
    dut.not_softroce(DELIVERY_REASON)?;
    let device = dut.open();
    let gid = group(38);
    let pd = device.pd();
    let srq = Srq::new(&pd, 8, 2).unwrap();
    let members: Vec<_> = (0..2)
        .map(|_| {
            let node = Node::with_queues(&device, &datagrams(), Some((&pd, &srq)), None);
            node.connect(&node.peer());
            assert_eq!(node.qp.attach(gid, 0), 0);
            node
        })
        .collect();
    let memory = &members[0].mr;
    for id in 0..2 {
        srq.recv(&[Recv::new(id).sge(memory.at(id as usize * 8192, 8192))]).unwrap();
    }
    let sender = ready(&device, &datagrams());
    sender.send_to_group(gid, 5, 300);
    let mut ids: Vec<_> = members.iter().map(|node| node.recv_cq.ok().id).collect();
    ids.sort_unstable();
    assert_eq!(ids, [0, 1]);
    for id in 0..2 {
        assert_eq!(memory.buf.get(id * 8192 + GRH, 300), pattern(5, 300));
    }
    members.iter().for_each(|node| node.leave(gid));
    Ok(())
}

/// IBTA 3.5.3, keys, as for every datagram.
fn the_own_key_stands_for_the_senders(dut: &TestDevice) -> Outcome {
    dut.not_softroce(DELIVERY_REASON)?;
    let device = dut.open();
    let gid = group(39);
    let (a, b) = (ready(&device, &datagrams()), member(&device, &datagrams(), gid));
    let ah = Ah::new(&a.pd, ah_attr(&device, gid)).unwrap();
    a.mr.buf.set(0, &[8; 8]);
    a.done(Wr::send(1).sge(a.mr.at(0, 8)).to(&ah, GROUP, 0x8000_0000));
    assert_eq!(b.received(0), [8; 8]);
    b.leave(gid);
    Ok(())
}

/// IBTA chapter 11, completion return status: the sender detects an error in the request before it
/// sends anything.
fn a_bad_local_key_sends_no_copy(dut: &TestDevice) -> Outcome {
    dut.not_softroce(super::LOCAL_REASON)?;
    let device = dut.open();
    let gid = group(40);
    let (a, b) = (ready(&device, &datagrams()), member(&device, &datagrams(), gid));
    let bad = crate::kit::Sge { lkey: a.mr.lkey() ^ 0x5a5a, ..a.mr.at(0, 8) };
    a.post(a.to_group(gid, Wr::send(1).sge(bad)));
    assert_eq!(a.send_cq.one().status, rdma_mummy_sys::types::ibv_wc_status::IBV_WC_LOC_PROT_ERR);
    assert!(b.recv_cq.is_empty());
    b.leave(gid);
    Ok(())
}
