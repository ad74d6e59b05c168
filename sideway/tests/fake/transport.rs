//! Queue pairs whose transport the compiler knows: they post what the pair inside posts.
//! `soundness/an_operation_that_the_transport_lacks.rs` has what does not compile.

use std::fmt::Debug;
use std::sync::atomic::Ordering::Relaxed;

use sideway::ErrorKind;
use sideway::ibverbs::completion::{BasicCompletionQueue, CompletionQueue};
use sideway::ibverbs::queue_pair::transport::{Connected, QueuePairTransport, Rc, TypedQueuePair, Uc, Ud};
use sideway::ibverbs::queue_pair::{
    PostSendError, PostSendGuard, QueuePair, QueuePairType, ReceiveQueue, SendQueue, WorkRequestFlags,
};

use super::SIGNALED;
use super::support::fake::Fake;
use super::support::flavour::{CqFlavour, QpFlavour};

/// A pair of this flavour and transport, and its queue.
fn make<T: QueuePairTransport, Q: QpFlavour + Debug>(
    fake: &Fake,
) -> (TypedQueuePair<T, Q::SendQueue>, BasicCompletionQueue) {
    let context = fake.context();
    let cq = context.create_cq_builder().build().unwrap();
    let mut builder = context.alloc_pd().unwrap().create_qp_builder();
    builder.setup_send_cq(&cq).setup_recv_cq(&cq).setup_qp_type(T::QP_TYPE);
    (TypedQueuePair::new(Q::make(&builder).unwrap()).unwrap(), cq)
}

fn completed(cq: &mut BasicCompletionQueue) -> Vec<String> {
    let mut found = Vec::new();
    cq.poll(&mut |wc| found.push(format!("{} {}", wc.wr_id, wc.opcode))).unwrap();
    found
}

#[test]
fn connected_transports_send_and_write() {
    fn check<Q: QpFlavour + Debug>() {
        fn check_transport<T: Connected, Q: QpFlavour + Debug>() {
            let fake = Fake::new();
            let (mut qp, mut cq) = make::<T, Q>(&fake);
            let mut guard = qp.start_post_send();
            drop(guard.construct_wr(0, SIGNALED).setup_send());
            drop(guard.construct_wr(1, SIGNALED).setup_send_imm(7));
            drop(guard.construct_wr(2, SIGNALED).setup_write(1, 2));
            drop(guard.construct_wr(3, SIGNALED).setup_write_imm(1, 2, 3));
            guard.post().unwrap();
            assert_eq!(completed(&mut cq), ["0 send", "1 send", "2 rdma write", "3 rdma write"]);
        }
        check_transport::<Rc, Q>();
        check_transport::<Uc, Q>();
    }
    for_each_qp!(check());
}

#[test]
fn reliable_connections_read_too() {
    fn check<Q: QpFlavour + Debug>() {
        let fake = Fake::new();
        let (mut qp, mut cq) = make::<Rc, Q>(&fake);
        let mut guard = qp.start_post_send();
        drop(guard.construct_wr(4, SIGNALED).setup_read(1, 2));
        drop(guard.construct_wr(5, SIGNALED).setup_atomic_compare_swap(1, 2, 3, 4));
        drop(guard.construct_wr(6, SIGNALED).setup_atomic_fetch_add(1, 2, 3));
        guard.post().unwrap();
        assert_eq!(completed(&mut cq), ["4 rdma read", "5 compare and swap", "6 fetch and add"]);
    }
    for_each_qp!(check());
}

#[test]
fn datagrams_go_to_an_address() {
    fn check<Q: QpFlavour + Debug>() {
        let fake = Fake::new();
        let (mut qp, mut cq) = make::<Ud, Q>(&fake);
        let pd = qp.control().pd().clone();
        let mut address = sideway::ibverbs::address::AddressHandleAttribute::new();
        address.setup_port(1);
        let ah = pd.create_ah(&address).unwrap();
        let mut guard = qp.start_post_send();
        drop(guard.construct_wr(1, SIGNALED).setup_ud_address(&ah, 2, 3).setup_send());
        guard.post().unwrap();
        assert_eq!(completed(&mut cq), ["1 send"]);
    }
    for_each_qp!(check());
}

/// A function that takes any queue pair takes these, and gets the error of the post.
#[test]
fn a_typed_pair_is_a_queue_pair() {
    fn read(qp: &mut impl QueuePair) -> Result<(), PostSendError> {
        let mut guard = qp.start_post_send();
        let _ = guard.construct_wr(1, WorkRequestFlags::empty()).setup_read(1, 2);
        guard.post()
    }
    fn check<Q: QpFlavour + Debug>() {
        let fake = Fake::new();
        assert_eq!(read(&mut make::<Rc, Q>(&fake).0), Ok(()));
        let error = read(&mut make::<Uc, Q>(&fake).0).unwrap_err();
        assert!(matches!(error, PostSendError::UnsupportedOperation { index: 0, .. }), "{error}");
    }
    for_each_qp!(check());
}

#[test]
fn halves_of_a_typed_pair_keep_the_transport() {
    let fake = Fake::new();
    let context = fake.context();
    let mut cq = context.create_cq_builder().build().unwrap();
    let mut builder = context.alloc_pd().unwrap().create_qp_builder();
    // The builder has the type of another transport.
    builder.setup_send_cq(&cq).setup_recv_cq(&cq).setup_qp_type(QueuePairType::UnreliableDatagram);
    let qp = builder.build_typed::<Rc>().unwrap();
    assert_eq!(qp.qp_type(), QueuePairType::ReliableConnection);
    let (mut send, receive): (_, ReceiveQueue) = qp.into_split();
    let mut guard = send.start_post_send();
    drop(guard.construct_wr(1, SIGNALED).setup_read(1, 2));
    guard.post().unwrap();
    assert_eq!(completed(&mut cq), ["1 rdma read"]);
    assert_eq!(send.control().qp_number(), receive.control().qp_number());
}

#[test]
fn a_pair_of_another_type_is_given_back() {
    let fake = Fake::new();
    let context = fake.context();
    let cq = context.create_cq_builder().build().unwrap();
    let mut builder = context.alloc_pd().unwrap().create_qp_builder();
    builder.setup_send_cq(&cq).setup_recv_cq(&cq).setup_qp_type(QueuePairType::UnreliableConnection);
    let refused = TypedQueuePair::<Rc, _>::new(builder.build_ex().unwrap()).unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::InvalidArgument);
    for word in ["UnreliableConnection", "ReliableConnection", "another type"] {
        assert!(refused.error.to_string().contains(word), "{}", refused.error);
    }
    assert_eq!(refused.object.qp_type(), QueuePairType::UnreliableConnection);
    assert!(TypedQueuePair::<Uc, _>::new(refused.object).is_ok());
    assert_eq!(fake.world.posted.load(Relaxed), 0);
    assert_eq!(cq.context(), &context);
}
