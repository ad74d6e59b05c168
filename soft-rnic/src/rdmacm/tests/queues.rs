//! Queue pairs and shared receive queues of ids.

use super::*;

#[test]
#[cfg_attr(miri, ignore = "needs descriptors")]
fn a_queue_pair_takes_receives_of_the_ids_shared_queue() {
    let channel = TestChannel::new();
    let (listener, port) = listener(&channel, rdma_port_space::RDMA_PS_TCP, loopback(0));
    let id = routed(&channel, rdma_port_space::RDMA_PS_TCP, port);
    // SAFETY: the id is live, the attributes valid.
    unsafe {
        let mut attr = ibv_srq_init_attr::default();
        attr.attr.max_wr = 8;
        attr.attr.max_sge = 1;
        good((cm().rdma_create_srq)(id, ptr::null_mut(), &raw mut attr));
        assert!(!(*id).srq.is_null() && attr.attr.max_wr >= 8);
        bad((cm().rdma_create_srq)(id, ptr::null_mut(), &raw mut attr), libc::EINVAL);
        let mut attr = qp_attr(ibv_qp_type::IBV_QPT_RC);
        good((cm().rdma_create_qp)(id, ptr::null_mut(), &raw mut attr));
        assert_eq!(((*(*id).qp).srq, attr.srq), ((*id).srq, (*id).srq));
        (cm().rdma_destroy_qp)(id);
        assert!((*id).qp.is_null() && (*id).send_cq.is_null() && (*id).recv_cq_channel.is_null());
        (cm().rdma_destroy_srq)(id);
        assert!((*id).srq.is_null());
        destroy_all(&[id, listener]);
    }
}

#[test]
#[cfg_attr(miri, ignore = "needs descriptors")]
fn given_queues_are_used() {
    let channel = TestChannel::new();
    let (listener, port) = listener(&channel, rdma_port_space::RDMA_PS_TCP, loopback(0));
    let id = routed(&channel, rdma_port_space::RDMA_PS_TCP, port);
    let lib = verbs_table();
    let other = crate::verbs::testing::OpenedDevice::new(1);
    // SAFETY: the id is live, and so are the objects that the attributes name.
    unsafe {
        let pd = (lib.ibv_alloc_pd)((*id).verbs);
        let cq = (lib.ibv_create_cq)((*id).verbs, 8, ptr::null_mut(), ptr::null_mut(), 0);
        let mut attr = ibv_qp_init_attr { send_cq: cq, recv_cq: cq, ..qp_attr(ibv_qp_type::IBV_QPT_RC) };
        let foreign = other.pd();
        bad((cm().rdma_create_qp)(id, foreign, &raw mut attr), libc::EINVAL);
        assert_eq!((lib.ibv_dealloc_pd)(foreign), 0);
        good((cm().rdma_create_qp)(id, pd, &raw mut attr));
        assert_eq!(((*id).pd, (*(*id).qp).send_cq), (pd, cq));
        assert!((*id).send_cq.is_null(), "the queues belong to the program");
        destroy_all(&[id, listener]);
        assert_eq!(((lib.ibv_destroy_cq)(cq), (lib.ibv_dealloc_pd)(pd)), (0, 0));
    }
}

/// A failed creation of a queue pair leaves nothing behind.
#[test]
#[cfg_attr(miri, ignore = "needs descriptors")]
fn failed_queue_pair_creation_leaves_nothing() {
    let channel = TestChannel::new();
    let (listener, port) = listener(&channel, rdma_port_space::RDMA_PS_TCP, loopback(0));
    let id = routed(&channel, rdma_port_space::RDMA_PS_TCP, port);
    // SAFETY: the id is live.
    unsafe {
        let mut attr = qp_attr(ibv_qp_type::IBV_QPT_RC);
        attr.cap.max_send_sge = 1 << 20;
        assert_eq!((cm().rdma_create_qp)(id, ptr::null_mut(), &raw mut attr), -1);
        assert!((*id).qp.is_null() && (*id).recv_cq.is_null() && (*id).send_cq_channel.is_null());
        let mut attr = qp_attr(ibv_qp_type::IBV_QPT_RC);
        attr.cap.max_recv_wr = 1 << 30;
        assert_eq!((cm().rdma_create_qp)(id, ptr::null_mut(), &raw mut attr), -1);
        assert!((*id).recv_cq_channel.is_null());
        destroy_all(&[id, listener]);
    }
}
