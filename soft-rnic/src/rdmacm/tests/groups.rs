//! Datagrams: to a service, and to a group.

use rdma_cm_event_type as CmEventKind;
use rdma_mummy_sys::rdmacm::*;

use super::*;

/// What comes before a datagram.
const HEADER: usize = 40;

/// Sends a datagram from one id's queue pair to where an event says, and gets it at the other.
fn datagram(from: *mut rdma_cm_id, to: *mut rdma_cm_id, ud: rdma_ud_param) {
    let (lib, mut sink, mut source) = (verbs_table(), [0u8; HEADER + 16], *b"datagram");
    let mut ah_attr = ud.ah_attr;
    // SAFETY: the ids have queue pairs; the buffers live until the completions have come.
    unsafe {
        let mr = rdma_reg_msgs(lib, to, sink.as_mut_ptr().cast(), sink.len());
        good(rdma_post_recv(to, ptr::null_mut(), sink.as_mut_ptr().cast(), sink.len(), mr));
        let ah = (lib.ibv_create_ah)((*from).pd, &raw mut ah_attr);
        assert_ne!(ah, ptr::null_mut());
        assert_eq!(ud.qkey, RDMA_UDP_QKEY);
        let flags = ibv_send_flags::IBV_SEND_INLINE.0 as c_int;
        let data = source.as_mut_ptr().cast();
        good(rdma_post_ud_send(from, ptr::null_mut(), data, 8, ptr::null_mut(), flags, ah, ud.qp_num));
        let received = poll((*to).recv_cq);
        assert_eq!(received.status, ibv_wc_status::IBV_WC_SUCCESS);
        assert_eq!((received.byte_len as usize, received.src_qp), (HEADER + 8, (*(*from).qp).qp_num));
        assert_eq!(poll((*from).send_cq).status, ibv_wc_status::IBV_WC_SUCCESS);
        assert_eq!((lib.ibv_destroy_ah)(ah), 0);
        good(rdma_dereg_mr(lib, mr));
    }
    assert_eq!(&sink[HEADER..HEADER + 8], b"datagram");
}

#[test]
#[cfg_attr(miri, ignore = "needs descriptors")]
fn a_service_says_where_datagrams_go() {
    let channel = TestChannel::new();
    let (listener, port) = listener(&channel, rdma_port_space::RDMA_PS_UDP, loopback(0));
    let active = routed(&channel, rdma_port_space::RDMA_PS_UDP, port);
    make_qp(active, ibv_qp_type::IBV_QPT_UD);
    // SAFETY: the ids are live, the parameters valid.
    unsafe {
        assert_eq!(state_of((*active).qp), ibv_qp_state::IBV_QPS_RTS);
        good((cm().rdma_connect)(active, &mut param(b"where")));
        let passive = {
            let request = channel.expect(CmEventKind::RDMA_CM_EVENT_CONNECT_REQUEST);
            assert!(request.data().starts_with(b"where"));
            request.id()
        };
        make_qp(passive, ibv_qp_type::IBV_QPT_UD);
        good((cm().rdma_accept)(passive, &mut param(b"here")));
        let ud = {
            let established = channel.expect(CmEventKind::RDMA_CM_EVENT_ESTABLISHED);
            assert_eq!((established.id(), established.status()), (active, 0));
            assert!(established.data().starts_with(b"here"));
            rdma_ud_param { private_data: ptr::null(), ..established.ud() }
        };
        assert_eq!(ud.qp_num, (*(*passive).qp).qp_num);
        datagram(active, passive, ud);
        destroy_all(&[active, passive, listener]);
    }
}

#[test]
#[cfg_attr(miri, ignore = "needs descriptors")]
fn group_member_receives_datagrams() {
    let channel = TestChannel::new();
    let bound = || {
        let id = channel.id(rdma_port_space::RDMA_PS_UDP);
        // SAFETY: the id is live, the address valid.
        good(unsafe { (cm().rdma_bind_addr)(id, ptr::from_mut(&mut c_address(loopback(0))).cast()) });
        make_qp(id, ibv_qp_type::IBV_QPT_UD);
        id
    };
    let [sender, member] = [bound(), bound()];
    let mut group = c_address((Ipv4Addr::new(239, 1, 2, 3), 0).into());
    let group = (&raw mut group).cast::<sockaddr>();
    let joined = |id| {
        let event = channel.expect(CmEventKind::RDMA_CM_EVENT_MULTICAST_JOIN);
        assert_eq!((event.id(), event.status()), (id, 0));
        event.ud()
    };
    // SAFETY: the ids are live, the addresses valid.
    unsafe {
        good((cm().rdma_join_multicast)(member, group, ptr::without_provenance_mut(11)));
        assert_eq!(joined(member).private_data, ptr::without_provenance(11));
        let mut attr = rdma_cm_join_mc_attr_ex {
            comp_mask: 3,
            join_flags: rdma_cm_mc_join_flags::RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER.0,
            addr: group,
        };
        good((cm().rdma_join_multicast_ex)(sender, &raw mut attr, ptr::null_mut()));
        let ud = joined(sender);
        assert_eq!(ud.qp_num, 0xff_ffff);
        datagram(sender, member, ud);
        attr.comp_mask = 1 << 2;
        bad((cm().rdma_join_multicast_ex)(sender, &raw mut attr, ptr::null_mut()), libc::ENOTSUP);

        good((cm().rdma_leave_multicast)(member, group));
        bad((cm().rdma_leave_multicast)(member, group), libc::EADDRNOTAVAIL);
        // The other goes without leaving.
        destroy_all(&[sender, member]);
    }
}
