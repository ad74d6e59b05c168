//! Multicast groups of the connection manager (`man rdma_join_multicast`, `man
//! rdma_join_multicast_ex`).

use std::net::{Ipv4Addr, SocketAddr};

use libc::{EADDRNOTAVAIL, EINVAL, ENOTSUP};
use rdma_mummy_sys::types::rdma_cm_join_mc_attr_mask as Mask;
use rdma_mummy_sys::types::rdma_cm_mc_join_flags as Flags;

use crate::kit::{
    Ah, CmDevice, EventCopy, Flavour, IdWithChannel, Kind, Node, NodeOptions, Outcome, Space, Suite,
    TestDevice, Wr, pattern,
};

pub(crate) fn cases(suite: &mut Suite) {
    cases!(suite:
        joining_is_told_with_its_context,
        the_group_of_an_ipv4_address_is_that_address,
        a_pair_is_attached_when_its_join_is_told,
        a_pair_of_the_program_s_own_is_attached_by_hand,
        members_hear_what_is_sent_to_the_group,
        a_member_that_left_gets_no_datagram,
        a_send_only_member_gets_no_datagram,
        two_groups_are_two,
        a_group_that_was_not_joined_is_not_left,
        joining_needs_a_device,
        a_connected_service_joins_no_group,
        no_address_is_no_group,
        unknown_attributes_of_joining_are_refused,
        a_join_is_joined_again,
        an_identifier_ends_in_a_group,
    );
}

const UDP: Space = Space::RDMA_PS_UDP;

/// The bytes before the message in each receive's memory.
const GRH: usize = 40;

/// The queue pair number of every group (IBTA chapter 4, addressing).
const GROUP: u32 = 0xff_ffff;

/// A group that only one case uses.
/// The first LID of multicast groups (IBTA chapter 4, addressing).
const MULTICAST_LID: u16 = 0xc000;

fn group(number: u8) -> SocketAddr {
    (Ipv4Addr::new(239, 2, 77, number), 0).into()
}

fn options() -> NodeOptions {
    NodeOptions::ud(Flavour::Classic)
}

fn joined(end: &IdWithChannel, context: usize) -> EventCopy {
    let seen = end.channel.expect_good(Kind::RDMA_CM_EVENT_MULTICAST_JOIN);
    assert!(seen.is_for(&end.id));
    assert_eq!(seen.context, context);
    seen
}

/// An identifier with a pair, as a member of a group.
fn member(cm_device: &CmDevice, number: u8) -> (Node, IdWithChannel, EventCopy) {
    let end = cm_device.bound(UDP);
    let node = end.id.node(&options());
    end.id.join(group(number), 1).unwrap();
    let seen = joined(&end, 1);
    node.recv(1, 0, 1024);
    (node, end, seen)
}

/// Sends to the group that the event names.
fn tell(node: &Node, seen: &EventCopy, seed: u8) {
    let ah = Ah::new(&node.pd, seen.ud.ah_attr).unwrap();
    node.mr.buf.set(4096, &pattern(seed, 64));
    node.done(Wr::send(1).sge(node.mr.at(4096, 64)).to(&ah, seen.ud.qp_num, seen.ud.qkey));
}

fn hears(node: &Node, seed: u8) {
    let wc = node.recv_cq.ok();
    assert_eq!(node.mr.buf.get(GRH, wc.len as usize - GRH), pattern(seed, 64));
}

/// "The join context is returned to the user through the private_data field in the rdma_cm_event."
fn joining_is_told_with_its_context(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let end = cm_device.bound(UDP);
    for context in [0x1234_5678, 0] {
        end.id.join(group(1), context).unwrap();
        let seen = joined(&end, context);
        assert_eq!(seen.ud.qp_num, GROUP, "\"QP number of the remote endpoint or multicast group\"");
        assert_ne!(seen.ud.qkey, 0);
        end.id.leave(group(1)).unwrap();
    }
    assert!(end.channel.is_quiet(), "leaving is no event");
    Ok(())
}

/// Annex A17 (RoCE v2): the GID of an IPv4 group is the address, mapped.
fn the_group_of_an_ipv4_address_is_that_address(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let end = cm_device.bound(UDP);
    end.id.join(group(2), 1).unwrap();
    let seen = joined(&end, 1);
    let gid = crate::kit::raw_gid(&seen.ud.ah_attr.grh.dgid);
    assert_eq!(gid, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 2, 77, 2]);
    assert_eq!((seen.ud.ah_attr.is_global, seen.ud.ah_attr.port_num), (1, 1));
    assert_eq!(seen.ud.ah_attr.dlid >= MULTICAST_LID, dut.is_infiniband());
    end.id.leave(group(2)).unwrap();
    Ok(())
}

/// "... if a QP is associated with the rdma_cm_id, it is automatically attached to the multicast
/// group when the multicast event is retrieved by the user."
fn a_pair_is_attached_when_its_join_is_told(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let (node, end, seen) = member(&cm_device, 3);
    let (gid, lid) = (crate::kit::raw_gid(&seen.ud.ah_attr.grh.dgid), seen.ud.ah_attr.dlid);
    // The detach succeeds, which proves that the pair was attached.
    assert_eq!(node.qp.detach(gid, lid), 0);
    assert_eq!(node.qp.detach(gid, lid), EINVAL);
    assert_eq!(node.qp.attach(gid, lid), 0);
    end.id.leave(group(3)).unwrap();
    assert_eq!(node.qp.detach(gid, lid), EINVAL, "leaving detaches");
    Ok(())
}

/// "Otherwise, the user is responsible for calling ibv_attach_mcast."
fn a_pair_of_the_program_s_own_is_attached_by_hand(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let end = cm_device.bound(UDP);
    let node = end.id.own_node(&options());
    node.connect(&node.peer());
    end.id.join(group(4), 1).unwrap();
    let gid = crate::kit::raw_gid(&joined(&end, 1).ud.ah_attr.grh.dgid);
    assert_eq!(node.qp.detach(gid, 0), EINVAL, "nobody has attached it");
    assert_eq!((node.qp.attach(gid, 0), node.qp.detach(gid, 0)), (0, 0));
    end.id.leave(group(4)).unwrap();
    Ok(())
}

/// The host reports its membership to the network, which delivers datagrams to every member.
fn members_hear_what_is_sent_to_the_group(dut: &TestDevice) -> Outcome {
    let (cm_device, peer) = (CmDevice::of(dut)?, CmDevice::of_peer(dut)?);
    let (a, a_side, seen) = member(&cm_device, 5);
    let (b, b_side, _) = member(&cm_device, 5);
    let (c, c_side, _) = member(&peer, 5);
    tell(&a, &seen, 7);
    for node in [&a, &b, &c] {
        hears(node, 7);
    }
    for end in [a_side, b_side, c_side] {
        end.id.leave(group(5)).unwrap();
    }
    Ok(())
}

fn a_member_that_left_gets_no_datagram(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let (a, a_side, seen) = member(&cm_device, 6);
    let (b, b_side, _) = member(&cm_device, 6);
    b_side.id.leave(group(6)).unwrap();
    tell(&a, &seen, 1);
    hears(&a, 1);
    assert!(b.recv_cq.is_empty());
    a_side.id.leave(group(6)).unwrap();
    Ok(())
}

/// RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER: "Create multicast group, don't receive multicast messages
/// from this group."
fn a_send_only_member_gets_no_datagram(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let end = cm_device.bound(UDP);
    let node = end.id.node(&options());
    let mask = Mask::RDMA_CM_JOIN_MC_ATTR_ADDRESS.0 | Mask::RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS.0;
    let flags = Flags::RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER.0;
    end.id.join_ex(mask, flags, group(7), 9).unwrap();
    let seen = joined(&end, 9);
    let (gid, lid) = (crate::kit::raw_gid(&seen.ud.ah_attr.grh.dgid), seen.ud.ah_attr.dlid);
    assert_eq!(node.qp.detach(gid, lid), EINVAL, "it is not attached");
    tell(&node, &seen, 1);
    end.id.leave(group(7)).unwrap();
    // A full member that joins with the same function is attached.
    end.id.join_ex(mask, Flags::RDMA_MC_JOIN_FLAG_FULLMEMBER.0, group(7), 9).unwrap();
    joined(&end, 9);
    assert_eq!((node.qp.detach(gid, lid), node.qp.attach(gid, lid)), (0, 0));
    end.id.leave(group(7)).unwrap();
    Ok(())
}

fn two_groups_are_two(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let end = cm_device.bound(UDP);
    end.id.join(group(8), 8).unwrap();
    let first = joined(&end, 8);
    end.id.join(group(9), 9).unwrap();
    let second = joined(&end, 9);
    let gid = |seen: &EventCopy| crate::kit::raw_gid(&seen.ud.ah_attr.grh.dgid);
    assert_ne!(gid(&first), gid(&second));
    end.id.leave(group(8)).unwrap();
    assert_eq!(end.id.leave(group(8)), Err(EADDRNOTAVAIL));
    end.id.leave(group(9)).unwrap();
    Ok(())
}

fn a_group_that_was_not_joined_is_not_left(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let end = cm_device.bound(UDP);
    assert_eq!(end.id.leave(group(10)), Err(EADDRNOTAVAIL));
    Ok(())
}

/// "Before joining a multicast group, the rdma_cm_id must be bound to an RDMA device."
fn joining_needs_a_device(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let end = cm_device.create_id(UDP);
    assert_eq!(end.id.join(group(11), 1), Err(EINVAL), "new");
    end.id.bind((Ipv4Addr::UNSPECIFIED, 0).into()).unwrap();
    assert_eq!(end.id.join(group(11), 1), Err(EINVAL), "bound to a port alone");
    assert_eq!(end.id.leave(group(11)), Err(EADDRNOTAVAIL));
    assert!(end.channel.is_quiet());
    Ok(())
}

/// Only datagram services have groups.
fn a_connected_service_joins_no_group(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    assert_eq!(cm_device.bound(Space::RDMA_PS_TCP).id.join(group(12), 1), Err(EINVAL));
    Ok(())
}

fn no_address_is_no_group(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let end = cm_device.bound(UDP);
    assert_eq!(end.id.join((Ipv4Addr::UNSPECIFIED, 0).into(), 1), Err(EINVAL));
    Ok(())
}

fn unknown_attributes_of_joining_are_refused(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let end = cm_device.bound(UDP);
    let (address, flags) = (Mask::RDMA_CM_JOIN_MC_ATTR_ADDRESS.0, Mask::RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS.0);
    let full = Flags::RDMA_MC_JOIN_FLAG_FULLMEMBER.0;
    assert_eq!(end.id.join_ex(address | flags | 4, full, group(13), 1), Err(ENOTSUP), "the mask");
    assert_eq!(end.id.join_ex(flags, full, group(13), 1), Err(EINVAL), "no address");
    assert_eq!(end.id.join_ex(address, full, group(13), 1), Err(EINVAL), "no flags");
    let unknown = Flags::RDMA_MC_JOIN_FLAG_RESERVED.0;
    assert_eq!(end.id.join_ex(address | flags, unknown, group(13), 1), Err(EINVAL), "the flags");
    assert!(end.channel.is_quiet());
    Ok(())
}

fn a_join_is_joined_again(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    let (_node, end, _) = member(&cm_device, 14);
    for _ in 0..3 {
        end.id.leave(group(14)).unwrap();
        end.id.join(group(14), 3).unwrap();
        joined(&end, 3);
    }
    end.id.leave(group(14)).unwrap();
    Ok(())
}

fn an_identifier_ends_in_a_group(dut: &TestDevice) -> Outcome {
    let cm_device = CmDevice::of(dut)?;
    for _ in 0..3 {
        let end = cm_device.bound(UDP);
        end.id.join(group(15), 1).unwrap();
        joined(&end, 1);
        end.id.join(group(16), 2).unwrap();
        // The event of the first join was taken; that of the second perhaps not.
        end.id.destroy().unwrap();
        assert!(end.channel.is_quiet());
    }
    Ok(())
}
