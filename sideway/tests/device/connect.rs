//! Tests of connecting two queue pairs.

use sideway::ibverbs::completion::GenericCompletionQueue;
use sideway::ibverbs::connect::{ConnectError, ConnectOptions, Endpoint, connect};
use sideway::ibverbs::port::Mtu;
use sideway::ibverbs::queue_pair::{
    GenericQueuePair, QueuePair, QueuePairAttributeMask, QueuePairState, QueuePairType,
};

use crate::harness::{Outcome, Suite, TestDevice};
use crate::node::{AnyPair, Data, Node, NodeOptions, Op, pattern};

pub(crate) fn cases(suite: &mut Suite) {
    cases!(suite:
        an_endpoint_survives_its_journey,
        the_smaller_mtu_counts,
        datagram_pairs_are_not_connected,
        a_pair_that_is_connected_already_says_so,
        another_link_layer_is_refused,
        a_peer_without_gid_is_refused,
        two_devices_talk_to_each_other,
    );
}

type AnyNode = Node<GenericQueuePair, GenericCompletionQueue>;

fn nodes(test_device: &TestDevice, qp_type: QueuePairType) -> (AnyNode, AnyNode) {
    let context = test_device.open();
    let options = NodeOptions::with(|options| options.qp_type = qp_type);
    (AnyNode::new(&context, test_device.port, &options), AnyNode::new(&context, test_device.port, &options))
}

fn an_endpoint_survives_its_journey(test_device: &TestDevice) -> Outcome {
    let (mut a, b) = nodes(test_device, QueuePairType::ReliableConnection);
    let (ours, theirs) = (a.endpoint(u32::MAX), b.endpoint(7));
    assert_eq!(ours.packet_seq_num, 0xff_ffff);
    let text = serde_json::to_string(&theirs).unwrap();
    let read: Endpoint = serde_json::from_str(&text).unwrap();
    assert_eq!(read, theirs);
    let done = connect(&mut a.qp, &a.path, &ours, &read, &ConnectOptions::default()).unwrap();
    assert!(!done.reason.is_empty());
    assert_eq!(a.qp.state().unwrap(), QueuePairState::ReadyToSend);
    Ok(())
}

fn the_smaller_mtu_counts(test_device: &TestDevice) -> Outcome {
    let (mut a, mut b) = nodes(test_device, QueuePairType::ReliableConnection);
    let ours = a.endpoint(1);
    let theirs = Endpoint { mtu: 256, ..b.endpoint(2) };
    let done = connect(&mut a.qp, &a.path, &ours, &theirs, &ConnectOptions::default()).unwrap();
    assert_eq!(done.mtu, Mtu::Mtu256);
    let (attr, _) = a.qp.query(QueuePairAttributeMask::PathMtu).unwrap();
    assert_eq!(attr.path_mtu(), Some(Mtu::Mtu256));
    let smaller = ConnectOptions { mtu: Some(Mtu::Mtu512), ..ConnectOptions::default() };
    let theirs = b.endpoint(2);
    let done = connect(&mut b.qp, &b.path, &theirs, &ours, &smaller).unwrap();
    assert_eq!(done.mtu, Mtu::Mtu512);
    Ok(())
}

fn datagram_pairs_are_not_connected(test_device: &TestDevice) -> Outcome {
    let (mut a, b) = nodes(test_device, QueuePairType::UnreliableDatagram);
    let (ours, theirs) = (a.endpoint(1), b.endpoint(2));
    let error = connect(&mut a.qp, &a.path, &ours, &theirs, &ConnectOptions::default()).unwrap_err();
    assert!(matches!(error, ConnectError::NotConnected { .. }), "{error}");
    assert_eq!(a.qp.state().unwrap(), QueuePairState::Reset);
    Ok(())
}

fn a_pair_that_is_connected_already_says_so(test_device: &TestDevice) -> Outcome {
    let mut pair = AnyPair::new(test_device);
    let (ours, theirs) = (pair.a.endpoint(1), pair.b.endpoint(2));
    let error =
        connect(&mut pair.a.qp, &pair.a.path, &ours, &theirs, &ConnectOptions::default()).unwrap_err();
    assert!(matches!(error, ConnectError::Modify { state: QueuePairState::Init, .. }), "{error}");
    Ok(())
}

fn another_link_layer_is_refused(test_device: &TestDevice) -> Outcome {
    let (mut a, b) = nodes(test_device, QueuePairType::ReliableConnection);
    let theirs = b.endpoint(2);
    let theirs = Endpoint { ethernet: !theirs.ethernet, ..theirs };
    let ours = a.endpoint(1);
    let error = connect(&mut a.qp, &a.path, &ours, &theirs, &ConnectOptions::default()).unwrap_err();
    assert!(matches!(error, ConnectError::OtherLinkLayer { .. }), "{error}");
    assert_eq!(a.qp.state().unwrap(), QueuePairState::Reset);
    Ok(())
}

fn a_peer_without_gid_is_refused(test_device: &TestDevice) -> Outcome {
    let (mut a, b) = nodes(test_device, QueuePairType::ReliableConnection);
    let theirs = Endpoint { gid: None, ..b.endpoint(2) };
    if !theirs.ethernet {
        skip!("InfiniBand needs no GID");
    }
    let ours = a.endpoint(1);
    let error = connect(&mut a.qp, &a.path, &ours, &theirs, &ConnectOptions::default()).unwrap_err();
    assert!(matches!(error, ConnectError::NoGid { side: "the peer", .. }), "{error}");
    Ok(())
}

fn two_devices_talk_to_each_other(test_device: &TestDevice) -> Outcome {
    let Some((peer, peer_port)) = &test_device.peer else { skip!("there is one device only") };
    let options = NodeOptions::default();
    let a = AnyNode::new(&test_device.open(), test_device.port, &options);
    let b = AnyNode::new(&test_device.list().find(peer).unwrap().open().unwrap(), *peer_port, &options);
    if a.path.link_layer() != b.path.link_layer() {
        skip!("{} and {peer} have different link layers", test_device.name);
    }
    let mut pair = AnyPair::connect(a, b, &options.connect);
    let sent = pattern(7, 9000);
    pair.a.memory.set(0, &sent);
    pair.b.receive(&[(1, &[(100, 9000)])]).unwrap();
    pair.a.run(Op::Send, Data::At(0, 9000));
    assert_eq!(pair.b.received(1)[0].byte_len, Some(9000));
    assert_eq!(pair.b.memory.get(100, 9000), sent);
    let target = pair.a.remote(20000);
    pair.b.run(Op::Write(target), Data::At(100, 9000));
    assert_eq!(pair.a.memory.get(20000, 9000), sent);
    pair.b.run(Op::Read(target), Data::At(40000, 9000));
    assert_eq!(pair.b.memory.get(40000, 9000), sent);
    Ok(())
}
