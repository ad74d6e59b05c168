//! Connections between ids of one process, event by event.

use rdma_cm_event_type as CmEventKind;

use super::*;

/// The states of a queue pair that is to send and receive.
const UPWARDS: [ibv_qp_state; 3] =
    [ibv_qp_state::IBV_QPS_INIT, ibv_qp_state::IBV_QPS_RTR, ibv_qp_state::IBV_QPS_RTS];

#[test]
#[cfg_attr(miri, ignore = "needs descriptors")]
fn a_connection_from_address_to_end() {
    let channel = TestChannel::new();
    let (listener, port) = listener(&channel, rdma_port_space::RDMA_PS_TCP, loopback(0));
    let active = channel.id(rdma_port_space::RDMA_PS_TCP);
    let mut to = c_address(loopback(port));
    // SAFETY: the ids are live, addresses and parameters valid.
    unsafe {
        (*listener).context = ptr::without_provenance_mut(7);
        good((cm().rdma_resolve_addr)(active, ptr::null_mut(), (&raw mut to).cast(), 2000));
        assert_eq!((cm().rdma_get_dst_port)(active), port.to_be());
        channel.done(CmEventKind::RDMA_CM_EVENT_ADDR_RESOLVED);
        assert!(!(*active).verbs.is_null() && !(*active).pd.is_null());
        assert_eq!((*active).port_num, 1);
        assert_eq!((*active).route.addr.addr.ibaddr.dgid.raw, gid_of(Ipv4Addr::LOCALHOST).raw);
        assert_eq!((*active).route.addr.addr.ibaddr.pkey, 0xffff);
        assert!((*active).route.path_rec.is_null());
        good((cm().rdma_resolve_route)(active, 2000));
        channel.done(CmEventKind::RDMA_CM_EVENT_ROUTE_RESOLVED);
        assert_eq!((*active).route.num_paths, 1);
        assert_eq!((*(*active).route.path_rec).sgid.raw, gid_of(Ipv4Addr::LOCALHOST).raw);

        make_qp(active, ibv_qp_type::IBV_QPT_RC);
        assert_eq!(state_of((*active).qp), ibv_qp_state::IBV_QPS_INIT);
        let mut asked = param(b"what is asked");
        good((cm().rdma_connect)(active, &raw mut asked));
        let passive = {
            let request = channel.expect(CmEventKind::RDMA_CM_EVENT_CONNECT_REQUEST);
            assert_eq!((request.status(), request.listener()), (0, listener));
            assert!(request.data().starts_with(b"what is asked"));
            let conn = request.conn();
            // The sides are seen from the other end.
            assert_eq!((conn.responder_resources, conn.initiator_depth), (1, 2));
            assert_eq!((conn.rnr_retry_count, conn.qp_num), (7, (*(*active).qp).qp_num));
            request.id()
        };
        assert_ne!(passive, listener);
        assert_eq!((*passive).context, ptr::without_provenance_mut(7), "its listener's");
        assert_eq!((*passive).verbs, (*active).verbs);
        assert_eq!((cm().rdma_get_src_port)(passive), port.to_be());
        assert_eq!((cm().rdma_get_dst_port)(passive), (cm().rdma_get_src_port)(active));

        make_qp(passive, ibv_qp_type::IBV_QPT_RC);
        let mut answer = param(b"answer");
        good((cm().rdma_accept)(passive, &raw mut answer));
        assert_eq!(state_of((*passive).qp), ibv_qp_state::IBV_QPS_RTS);
        let established = [(); 2].map(|()| channel.expect(CmEventKind::RDMA_CM_EVENT_ESTABLISHED));
        let of = |id| established.iter().find(|event| event.id() == id).expect("one for each side");
        assert!(of(active).data().starts_with(b"answer"));
        assert_eq!(of(active).conn().qp_num, (*(*passive).qp).qp_num);
        assert_eq!((of(active).status(), of(passive).status()), (0, 0));
        drop(established);
        assert_eq!(state_of((*active).qp), ibv_qp_state::IBV_QPS_RTS);
        message(active, passive);
        message(passive, active);

        good((cm().rdma_disconnect)(active));
        assert_eq!(state_of((*active).qp), ibv_qp_state::IBV_QPS_ERR);
        assert_eq!(channel.expect(CmEventKind::RDMA_CM_EVENT_DISCONNECTED).id(), passive);
        good((cm().rdma_disconnect)(passive));
        assert_eq!(channel.expect(CmEventKind::RDMA_CM_EVENT_DISCONNECTED).id(), active);
        destroy_all(&[active, passive, listener]);
    }
}

#[test]
#[cfg_attr(miri, ignore = "needs descriptors")]
fn a_rejection_brings_its_reason_and_data() {
    let channel = TestChannel::new();
    let (listener, port) = listener(&channel, rdma_port_space::RDMA_PS_TCP, loopback(0));
    let active = routed(&channel, rdma_port_space::RDMA_PS_TCP, port);
    make_qp(active, ibv_qp_type::IBV_QPT_RC);
    // SAFETY: the ids are live, the parameters valid.
    unsafe {
        good((cm().rdma_connect)(active, &mut param(b"")));
        let passive = channel.expect(CmEventKind::RDMA_CM_EVENT_CONNECT_REQUEST).id();
        good((cm().rdma_reject)(passive, b"not today".as_ptr().cast(), 9));
        {
            let rejected = channel.expect(CmEventKind::RDMA_CM_EVENT_REJECTED);
            assert_eq!((rejected.id(), rejected.status()), (active, 28));
            assert!(rejected.data().starts_with(b"not today"));
        }
        assert_eq!(state_of((*active).qp), ibv_qp_state::IBV_QPS_ERR);
        destroy_all(&[active, passive]);

        // Nobody listens.
        let other = routed(&channel, rdma_port_space::RDMA_PS_TCP, port);
        destroy(listener);
        make_qp(other, ibv_qp_type::IBV_QPT_RC);
        good((cm().rdma_connect)(other, &mut param(b"")));
        assert_eq!(channel.expect(CmEventKind::RDMA_CM_EVENT_REJECTED).status(), 8);
        destroy(other);
    }
}

/// As sideway does it: the program makes the queue pairs, and takes them through their states.
#[test]
#[cfg_attr(miri, ignore = "needs descriptors")]
fn a_program_may_have_queue_pairs_of_its_own() {
    let channel = TestChannel::new();
    let (listener, port) = listener(&channel, rdma_port_space::RDMA_PS_TCP, loopback(0));
    let active = routed(&channel, rdma_port_space::RDMA_PS_TCP, port);
    let lib = verbs_table();
    // SAFETY: the ids are live, the parameters valid; the queues are destroyed once.
    unsafe {
        let cq = (lib.ibv_create_cq)((*active).verbs, 16, ptr::null_mut(), ptr::null_mut(), 0);
        let qp = || {
            let mut attr = ibv_qp_init_attr { send_cq: cq, recv_cq: cq, ..qp_attr(ibv_qp_type::IBV_QPT_RC) };
            (lib.ibv_create_qp)((*active).pd, &raw mut attr)
        };
        let to = |id, qp, qp_state| {
            let (mut attr, mut mask) = (ibv_qp_attr { qp_state, ..ibv_qp_attr::default() }, 0);
            good((cm().rdma_init_qp_attr.unwrap())(id, &raw mut attr, &raw mut mask));
            assert_eq!((lib.ibv_modify_qp)(qp, &raw mut attr, mask), 0, "{qp_state:?}");
        };
        let (ours, theirs) = (qp(), qp());
        bad((cm().rdma_connect)(active, ptr::null_mut()), libc::EINVAL);
        let mut asked = rdma_conn_param { qp_num: (*ours).qp_num, ..param(b"") };
        good((cm().rdma_connect)(active, &raw mut asked));
        let passive = channel.expect(CmEventKind::RDMA_CM_EVENT_CONNECT_REQUEST).id();
        for state in UPWARDS {
            to(passive, theirs, state);
        }
        let mut answer = rdma_conn_param { qp_num: (*theirs).qp_num, ..param(b"") };
        good((cm().rdma_accept)(passive, &raw mut answer));
        {
            let response = channel.expect(CmEventKind::RDMA_CM_EVENT_CONNECT_RESPONSE);
            assert_eq!((response.id(), response.conn().qp_num), (active, (*theirs).qp_num));
        }
        for state in UPWARDS {
            to(active, ours, state);
        }
        good((cm().rdma_establish.unwrap())(active));
        assert_eq!(channel.expect(CmEventKind::RDMA_CM_EVENT_ESTABLISHED).id(), passive);
        destroy_all(&[active, passive, listener]);
        assert_eq!(((lib.ibv_destroy_qp)(ours), (lib.ibv_destroy_qp)(theirs)), (0, 0));
        assert_eq!((lib.ibv_destroy_cq)(cq), 0);
    }
}

#[test]
#[cfg_attr(miri, ignore = "needs descriptors")]
fn invalid_parameters_are_refused_by_their_call() {
    let channel = TestChannel::new();
    let mut id = ptr::null_mut();
    // SAFETY: the ids are live, the others valid or null.
    unsafe {
        let wrong = rdma_port_space(1);
        bad((cm().rdma_create_id)(channel.0, &raw mut id, ptr::null_mut(), wrong), libc::EINVAL);
        let id = channel.id(rdma_port_space::RDMA_PS_TCP);
        bad((cm().rdma_bind_addr)(id, ptr::null_mut()), libc::EINVAL);
        let mut nowhere = c_address((Ipv4Addr::new(192, 0, 2, 1), 0).into());
        bad((cm().rdma_bind_addr)(id, (&raw mut nowhere).cast()), libc::EADDRNOTAVAIL);
        bad((cm().rdma_resolve_route)(id, 2000), libc::EINVAL);
        bad((cm().rdma_create_qp)(id, ptr::null_mut(), &mut qp_attr(ibv_qp_type::IBV_QPT_RC)), libc::EINVAL);
        bad((cm().rdma_get_request)(id, &mut nothing()), libc::EINVAL);
        bad((cm().rdma_get_cm_event)(channel.0, ptr::null_mut()), libc::EINVAL);
        bad((cm().rdma_ack_cm_event)(ptr::null_mut()), libc::EINVAL);
        let (listener, port) = listener(&channel, rdma_port_space::RDMA_PS_TCP, loopback(0));
        let mut taken = c_address(loopback(port));
        bad((cm().rdma_bind_addr)(id, (&raw mut taken).cast()), libc::EADDRINUSE);
        let routed = routed(&channel, rdma_port_space::RDMA_PS_TCP, port);
        make_qp(routed, ibv_qp_type::IBV_QPT_RC);
        let mut attr = qp_attr(ibv_qp_type::IBV_QPT_RC);
        bad((cm().rdma_create_qp)(routed, ptr::null_mut(), &raw mut attr), libc::EINVAL);
        bad((cm().rdma_connect)(routed, &mut param(&[0; 57])), libc::EINVAL);
        let mut deep = rdma_conn_param { initiator_depth: 254, ..param(b"") };
        bad((cm().rdma_connect)(routed, &raw mut deep), libc::EINVAL);
        bad((cm().rdma_establish.unwrap())(routed), libc::EINVAL);
        destroy_all(&[routed, listener, id]);
    }
}

fn nothing() -> *mut rdma_cm_id {
    ptr::null_mut()
}

#[test]
#[cfg_attr(miri, ignore = "needs descriptors")]
fn ece_options_are_reported() {
    let channel = TestChannel::new();
    let (listener, port) = listener(&channel, rdma_port_space::RDMA_PS_TCP, loopback(0));
    let active = routed(&channel, rdma_port_space::RDMA_PS_TCP, port);
    let (set, get) = (cm().rdma_set_local_ece.unwrap(), cm().rdma_get_remote_ece.unwrap());
    // SAFETY: the ids are live, the others valid or null.
    unsafe {
        bad(set(active, ptr::null_mut()), libc::EINVAL);
        bad(set(active, &mut ibv_ece { comp_mask: 1, ..ibv_ece::default() }), libc::EINVAL);
        good(set(active, &mut ibv_ece { vendor_id: 5, options: 6, comp_mask: 0 }));
        good((cm().rdma_connect)(active, &mut rdma_conn_param { qp_num: 9, ..param(b"") }));
        let passive = channel.expect(CmEventKind::RDMA_CM_EVENT_CONNECT_REQUEST).id();
        let mut ece = ibv_ece::default();
        good(get(passive, &raw mut ece));
        assert_eq!((ece.vendor_id, ece.options), (5, 6));
        good((cm().rdma_reject_ece.unwrap())(passive, ptr::null(), 0));
        assert_eq!(channel.expect(CmEventKind::RDMA_CM_EVENT_REJECTED).status(), 35);
        destroy_all(&[active, passive, listener]);
    }
}
