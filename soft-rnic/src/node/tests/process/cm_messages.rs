//! Tests of CM messages and ports of processes that live, stop and die.

use super::*;

#[test]
fn ten_thousand_cm_messages_come_in_order_each_way() {
    let fabric = fabric();
    let process = TestNode::new(&fabric);
    let mut peer = ChildNode::start(&fabric);
    let own = block(process.qpn);
    writeln!(peer.input, "hear {own} 10000 answer").expect("it reads");
    for count in 0..10_000_u32 {
        process.node.send_cm(block(peer.qpn), &count.to_le_bytes()).expect("it can be sent");
    }
    for count in 0..10_000_u32 {
        assert_eq!(next(&process), HandlerCall::CmMessage(block(peer.qpn), count.to_le_bytes().to_vec()));
    }
    peer.hear("heard");
}

#[test]
fn messages_of_a_dead_peer_come_before_its_end() {
    // First more messages than are read in two turns but fewer than fit into a socket, then more
    // than fit.
    for (count, fit) in [(200, 200), (3000, 200)] {
        let fabric = fabric();
        let process = TestNode::new(&fabric);
        let mut peer = ChildNode::start(&fabric);
        let (own, of_peer) = (block(process.qpn), block(peer.qpn));
        peer.ask(&format!("messages {own} 1"), "sent");
        assert_eq!(next(&process), HandlerCall::CmMessage(of_peer, vec![0; 4]));
        let still = process.recorder.still.lock().expect("no panic");
        peer.ask(&format!("messages {own} {count}"), "sent");
        peer.kill();
        drop(still);
        // Messages that did not fit into the socket have died with the process.
        for heard in 0_u32.. {
            match next(&process) {
                HandlerCall::CmMessage(_, message) => assert_eq!(message, heard.to_le_bytes()),
                calls => {
                    assert_eq!(calls, HandlerCall::Gone(of_peer));
                    assert!(heard >= fit && heard <= count, "{heard} of {count}");
                    break;
                }
            }
        }
    }
}

#[test]
fn letters_wait_for_a_stopped_process() {
    let fabric = fabric();
    let process = TestNode::new(&fabric);
    let mut peer = ChildNode::start(&fabric);
    let (own, to) = (block(process.qpn), block(peer.qpn));
    peer.stop();
    // Nothing is connected to the peer yet, so that the service thread repeats the connection until
    // the peer continues.
    for count in 0..3000_u32 {
        process.node.send_cm(to, &count.to_le_bytes()).expect("it can be sent");
    }
    let other = TestNode::new(&fabric);
    process.node.send_cm(block(other.qpn), b"you are not").expect("it can be sent");
    assert_eq!(next(&other), HandlerCall::CmMessage(own, b"you are not".to_vec()));
    std::thread::sleep(Duration::from_millis(1500));
    peer.signal(Signal::CONT);
    peer.ask(&format!("hear {own} 3000"), "heard");
    // Now the peer is connected, and its socket fills up.
    peer.stop();
    for count in 0..3000_u32 {
        process.node.send_cm(to, &count.to_le_bytes()).expect("it can be sent");
    }
    assert!(process.node.state.cm_outboxes.waits(to), "they fit into the socket");
    peer.signal(Signal::CONT);
    peer.ask(&format!("hear {own} 3000"), "heard");
    assert_eq!(
        process.calls.try_recv(),
        Err(std::sync::mpsc::TryRecvError::Empty),
        "nothing else has happened"
    );
    // If the peer is stopped and killed, it is reported gone and the waiting messages are dropped.
    peer.stop();
    for count in 0..3000_u32 {
        process.node.send_cm(to, &count.to_le_bytes()).expect("it can be sent");
    }
    peer.signal(Signal::KILL);
    assert_eq!(next(&process), HandlerCall::Gone(to));
    assert!(!process.node.state.cm_outboxes.waits(to));
}

#[test]
fn nobody_is_heard_as_one_who_is_written_to_and_does_not_answer() {
    let fabric = fabric();
    let (process, other, peer) = (TestNode::new(&fabric), TestNode::new(&fabric), ChildNode::start(&fabric));
    let absent = block(peer.qpn);
    peer.stop();
    process.node.send_cm(absent, b"who are you?").expect("it can be sent");
    let (liar, welcome, _) = hostile::enter(&process);
    for _ in 0..5000 {
        let message = PeerRequest::CmMessage { from: absent, message: b"not who you think" };
        eventually("room", || liar.send(&message.encode()).is_ok());
    }
    // Other processes are heard.
    other.node.send_cm(block(process.qpn), b"I am myself").expect("it can be sent");
    assert_eq!(next(&process), HandlerCall::CmMessage(block(other.qpn), b"I am myself".to_vec()));
    eventually("room", || liar.send(&PeerRequest::Goodbye.encode()).is_ok());
    drop(liar);
    assert_eq!(process.calls.recv_timeout(LONG), Ok(HandlerCall::PeerDetached(welcome.peer_id)));
    peer.kill();
    assert_eq!(next(&process), HandlerCall::Gone(absent));
}

#[test]
fn a_process_that_is_killed_before_it_answers_is_gone() {
    let fabric = fabric();
    let process = TestNode::new(&fabric);
    let peer = ChildNode::start(&fabric);
    peer.stop();
    process.node.send_cm(block(peer.qpn), b"hello").expect("it can be sent");
    std::thread::sleep(Duration::from_millis(20));
    peer.signal(Signal::KILL);
    assert_eq!(next(&process), HandlerCall::Gone(block(peer.qpn)));
}

#[test]
fn ports_are_freed_with_their_process_and_not_kept_by_its_children() {
    let fabric = fabric();
    let process = TestNode::new(&fabric);
    let mut peer = ChildNode::start(&fabric);
    assert_eq!(peer.ask("port 7471", "port "), "7471");
    let any: u16 = peer.ask("port 0", "port ").parse().expect("a number");
    let find = |port, token| {
        let until = Instant::now() + LONG;
        process
            .node
            .find_port(1, port, until, token, true)
            .map_or_else(|| next(&process), |found| HandlerCall::PortOwner(token, found))
    };
    for port in [7471, any] {
        assert_eq!(find(port, 1), HandlerCall::PortOwner(1, PortOwner::Block(block(peer.qpn))));
        let error = process.node.take_port(1, port).expect_err("it is the peer's");
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    }
    peer.leave_child("fork", "forked");
    // A stopped process does not answer, and keeps its ports.
    peer.stop();
    let until = Instant::now() + Duration::from_millis(200);
    assert_eq!(process.node.find_port(1, 7471, until, 2, true), None);
    assert_eq!(next(&process), HandlerCall::PortOwner(2, PortOwner::Unresponsive));
    assert!(process.node.take_port(1, 7471).is_err());
    // Waiting lookups are answered when the process continues or is killed.
    assert_eq!(process.node.find_port(1, any, Instant::now() + LONG, 3, true), None);
    peer.signal(Signal::CONT);
    assert_eq!(next(&process), HandlerCall::PortOwner(3, PortOwner::Block(block(peer.qpn))));
    peer.stop();
    assert_eq!(process.node.find_port(1, any, Instant::now() + LONG, 4, true), None);
    std::thread::sleep(Duration::from_millis(20));
    peer.signal(Signal::KILL);
    assert_eq!(next(&process), HandlerCall::PortOwner(4, PortOwner::Nobody));
    assert_eq!(find(7471, 5), HandlerCall::PortOwner(5, PortOwner::Nobody));
    for port in [7471, any] {
        assert_eq!(process.node.take_port(1, port).expect("free").port(), port);
    }
}
