//! Tests of connecting two queue pairs over TCP.

use std::net::{TcpListener, TcpStream};
use std::thread;

use sideway::ibverbs::completion::GenericCompletionQueue;
use sideway::ibverbs::connect::{ConnectError, ConnectOptions, OverTcpError, TcpPeer, over_tcp};
use sideway::ibverbs::queue_pair::{
    GenericQueuePair, QueuePair, QueuePairAttributeMask, QueuePairState, QueuePairType,
};
use sideway::memory::RemoteMemory;

use crate::harness::{Outcome, Suite, TestDevice};
use crate::node::{Data, Node, NodeOptions, Op};

pub(crate) fn cases(suite: &mut Suite) {
    cases!(suite:
        both_sides_connect_and_get_the_others_value,
        the_peer_learns_why_a_side_cannot_connect,
        the_peer_learns_that_its_value_is_of_another_type,
        reads_are_limited_to_what_the_peer_serves,
        the_peer_learns_of_a_reason_of_any_length,
    );
}

type AnyNode = Node<GenericQueuePair, GenericCompletionQueue>;

fn node(test_device: &TestDevice, qp_type: QueuePairType) -> AnyNode {
    let options = NodeOptions::with(|options| options.qp_type = qp_type);
    AnyNode::new(&test_device.open(), test_device.port, &options)
}

fn streams() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (here, listener.accept().unwrap().0)
}

trait Value: serde_core::Serialize + serde_core::de::DeserializeOwned + Send {}

impl<T: serde_core::Serialize + serde_core::de::DeserializeOwned + Send> Value for T {}

/// Connects two nodes, each from a thread, with a value and options for each.
fn connect_both<A: Value, B: Value>(
    (a, to_b, of_a): (&mut AnyNode, A, ConnectOptions),
    (b, to_a, of_b): (&mut AnyNode, B, ConnectOptions),
) -> (Result<TcpPeer<B>, OverTcpError>, Result<TcpPeer<A>, OverTcpError>) {
    let (mut here, mut there) = streams();
    thread::scope(|scope| {
        let other = scope.spawn(move || over_tcp(&mut there, &mut b.qp, &b.path, &of_b, &to_a));
        (over_tcp(&mut here, &mut a.qp, &a.path, &of_a, &to_b), other.join().unwrap())
    })
}

fn both_sides_connect_and_get_the_others_value(test_device: &TestDevice) -> Outcome {
    let rc = QueuePairType::ReliableConnection;
    let (mut a, mut b) = (node(test_device, rc), node(test_device, rc));
    let memory = RemoteMemory::new(4096, 512, 7).unwrap();
    let options = ConnectOptions::default();
    let (at_a, at_b) = connect_both((&mut a, "hello".to_owned(), options), (&mut b, memory, options));
    let (at_a, at_b) = (at_a.unwrap(), at_b.unwrap());
    assert_eq!((at_a.extra, &at_b.extra[..]), (memory, "hello"));
    assert_eq!(at_a.endpoint.qp_number, b.qp.qp_number());
    assert_eq!(at_b.endpoint.qp_number, a.qp.qp_number());
    assert_eq!((at_a.differences.len(), at_b.differences.len()), (0, 0));
    b.receive(&[(1, &[(0, 8)])]).unwrap();
    a.run(Op::Send, Data::At(0, 8));
    assert_eq!(b.received(1)[0].byte_len, Some(8));
    Ok(())
}

fn the_peer_learns_why_a_side_cannot_connect(test_device: &TestDevice) -> Outcome {
    let mut a = node(test_device, QueuePairType::ReliableConnection);
    let mut b = node(test_device, QueuePairType::UnreliableDatagram);
    let options = ConnectOptions::default();
    let (at_a, at_b) = connect_both((&mut a, (), options), (&mut b, (), options));
    let at_b = at_b.unwrap_err();
    assert!(matches!(at_b, OverTcpError::Connect(ConnectError::NotConnected { .. })), "{at_b}");
    let OverTcpError::PeerFailed { reason } = at_a.unwrap_err() else { panic!("it cannot connect") };
    assert_eq!(reason, at_b.to_string());
    assert_eq!(b.qp.state().unwrap(), QueuePairState::Reset);
    Ok(())
}

fn the_peer_learns_that_its_value_is_of_another_type(test_device: &TestDevice) -> Outcome {
    let rc = QueuePairType::ReliableConnection;
    let (mut a, mut b) = (node(test_device, rc), node(test_device, rc));
    let (mut here, mut there) = streams();
    let options = ConnectOptions::default();
    let (at_a, at_b) = thread::scope(|scope| {
        let other = scope.spawn(|| over_tcp::<u32>(&mut there, &mut b.qp, &b.path, &options, &1));
        let own = over_tcp::<u32>(&mut here, &mut a.qp, &a.path, &options, "a word");
        (own.map(drop).unwrap_err(), other.join().unwrap().map(drop).unwrap_err())
    });
    assert!(matches!(at_b, OverTcpError::Decode(_)), "{at_b}");
    assert!(at_b.to_string().contains("invalid type: string \"a word\", expected u32"), "{at_b}");
    assert!(matches!(&at_a, OverTcpError::PeerFailed { reason } if *reason == at_b.to_string()), "{at_a}");
    Ok(())
}

fn reads_are_limited_to_what_the_peer_serves(test_device: &TestDevice) -> Outcome {
    let rc = QueuePairType::ReliableConnection;
    let (mut a, mut b) = (node(test_device, rc), node(test_device, rc));
    let asks = ConnectOptions { max_read_atomic: 4, ..ConnectOptions::default() };
    let (at_a, at_b) = connect_both((&mut a, (), asks), (&mut b, (), ConnectOptions::default()));
    let (at_a, at_b) = (at_a.unwrap(), at_b.unwrap());
    assert_eq!(at_a.differences.len(), 1);
    assert!(at_a.differences[0].contains("4 READs") && at_a.differences[0].contains("serves 1"));
    assert!(at_b.differences.is_empty());
    let (attr, _) = a.qp.query(QueuePairAttributeMask::MaxReadAtomic).unwrap();
    assert_eq!(attr.max_read_atomic(), Some(1));
    Ok(())
}

/// The reason quotes the value, which fills a frame.
fn the_peer_learns_of_a_reason_of_any_length(test_device: &TestDevice) -> Outcome {
    let rc = QueuePairType::ReliableConnection;
    let (mut a, mut b) = (node(test_device, rc), node(test_device, rc));
    let (mut here, mut there) = streams();
    let options = ConnectOptions::default();
    // Control characters are quoted with more bytes than they are sent with.
    let long = "\u{7f}".repeat(50_000);
    let at_a = thread::scope(|scope| {
        let other = scope.spawn(|| over_tcp::<u32>(&mut there, &mut b.qp, &b.path, &options, &1).map(drop));
        let own = over_tcp::<u32>(&mut here, &mut a.qp, &a.path, &options, &long).map(drop);
        assert!(matches!(other.join().unwrap(), Err(OverTcpError::Decode(_))));
        own.unwrap_err()
    });
    let OverTcpError::PeerFailed { reason } = at_a else { panic!("it was not told: {at_a}") };
    assert!(reason.starts_with("the peer's value is not what this side expects"), "{reason}");
    Ok(())
}
