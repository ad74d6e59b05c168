//! Tests of CM messages and ports between nodes of one process.

use super::*;
use ports::EPHEMERAL;

const SPACE: u8 = 1;

impl TestNode {
    fn block(&self) -> u16 {
        self.node.own_block().expect("a block")
    }

    fn send(&self, to: &Self, message: &[u8]) {
        self.node.send_cm(to.block(), message).expect("it can be sent");
    }

    /// The next CM message, which must come from `from`.
    fn message(&self, from: &Self) -> Vec<u8> {
        match self.calls.recv_timeout(LONG) {
            Ok(HandlerCall::CmMessage(block, message)) if block == from.block() => message,
            other => panic!("no message, but {other:?}"),
        }
    }

    fn find(&self, port: u16, fresh: bool) -> PortOwner {
        static TOKENS: AtomicU32 = AtomicU32::new(0);
        let token = u64::from(TOKENS.fetch_add(1, Ordering::Relaxed));
        let found = self.node.find_port(SPACE, port, Instant::now() + LONG, token, fresh);
        found.unwrap_or_else(|| match self.calls.recv_timeout(LONG) {
            Ok(HandlerCall::PortOwner(of, found)) if of == token => found,
            other => panic!("no answer, but {other:?}"),
        })
    }
}

fn pair() -> (TestNode, TestNode) {
    let fabric = fabric();
    (TestNode::new(&fabric), TestNode::new(&fabric))
}

#[test]
fn letters_come_in_order_each_way() {
    let (a, b) = pair();
    let number = |message: Vec<u8>| u32::from_le_bytes(message[..4].try_into().expect("four bytes"));
    std::thread::scope(|scope| {
        for (from, to) in [(&a, &b), (&b, &a)] {
            let (node, block) = (&from.node, to.block());
            scope.spawn(move || {
                for count in 0..10_000_u32 {
                    let len = 4 + count as usize % (message::CM_MESSAGE - 3);
                    let mut message = vec![count as u8; len];
                    message[..4].copy_from_slice(&count.to_le_bytes());
                    node.send_cm(block, &message).expect("it can be sent");
                }
            });
        }
        for (from, to) in [(&a, &b), (&b, &a)] {
            for count in 0..10_000_u32 {
                let message = to.message(from);
                assert_eq!(message.len(), 4 + count as usize % (message::CM_MESSAGE - 3));
                assert!(message[4..].iter().all(|byte| *byte == count as u8));
                assert_eq!(number(message), count);
            }
        }
    });
}

#[test]
fn letters_of_many_threads_all_come() {
    let (a, b) = pair();
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            let (node, to) = (&a.node, b.block());
            scope.spawn(move || {
                for count in 0..500_u16 {
                    let [low, high] = count.to_le_bytes();
                    node.send_cm(to, &[thread, low, high]).expect("it can be sent");
                }
            });
        }
    });
    let mut next = [0_u16; 4];
    for _ in 0..2000 {
        let message = b.message(&a);
        let (thread, count) = (usize::from(message[0]), u16::from_le_bytes([message[1], message[2]]));
        assert_eq!(count, next[thread], "each thread's come in order");
        next[thread] += 1;
    }
}

#[test]
fn malformed_cm_message_is_refused() {
    let (a, b) = pair();
    for message in [&[][..], &[0; message::CM_MESSAGE + 1]] {
        let error = a.node.send_cm(b.block(), message).expect_err("neither empty nor longer");
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
    a.send(&b, &[9; message::CM_MESSAGE]);
    assert_eq!(b.message(&a), [9; message::CM_MESSAGE]);
}

#[test]
fn a_node_without_queue_pairs_is_reached_by_its_first_block() {
    let fabric = fabric();
    let bare = NodeSettings { fabric: fabric.clone(), ..NodeSettings::default() };
    let node = Node::start(bare, NodeIdentity::default()).expect("a node");
    assert_eq!(node.state.blocks.first(), None);
    let block = node.own_block().expect("a block");
    assert_eq!(node.own_block().expect("the same"), block);
    let number = node.new_qp_number().expect("a number");
    assert_eq!((number.qpn >> 14, number.index), (u32::from(block), 1));
    let peer = TestNode::new(&fabric);
    peer.node.send_cm(block, b"is anybody there?").expect("it can be sent");
    eventually("a attached", || node.state.peer_ids.iter().count() == 1);
}

#[test]
fn nobody_is_told_to_be_gone() {
    let (a, b) = pair();
    let absent = (1..=LAST_BLOCK).find(|block| ![a.block(), b.block()].contains(block)).expect("a block");
    for _ in 0..3 {
        a.node.send_cm(absent, b"hello").expect("it can be sent");
        assert_eq!(a.calls.recv_timeout(LONG), Ok(HandlerCall::Gone(absent)));
    }
    a.send(&b, b"still here");
    assert_eq!(b.message(&a), b"still here");
}

#[test]
fn last_words_come_before_the_end() {
    let fabric = fabric();
    let a = TestNode::new(&fabric);
    for count in 0..20_u8 {
        let b = TestNode::new(&fabric);
        let block = b.block();
        a.send(&b, b"a request");
        assert_eq!(b.message(&a), b"a request");
        // B answers, and ends at once.
        b.send(&a, &[count]);
        drop(b);
        let calls = || loop {
            match a.calls.recv_timeout(LONG) {
                Ok(HandlerCall::PeerLost(_) | HandlerCall::PeerDetached(_)) => {}
                calls => return calls,
            }
        };
        assert_eq!(calls(), Ok(HandlerCall::CmMessage(block, vec![count])));
        assert_eq!(calls(), Ok(HandlerCall::Gone(block)));
    }
}

#[test]
fn first_and_last_words_behind_much_else_come_before_the_end() {
    let (a, b) = pair();
    let block = b.block();
    a.send(&b, b"a request");
    assert_eq!(b.message(&a), b"a request");
    let remote = b.connect_to(a.qpn);
    let still = a.recorder.still.lock().expect("no panic");
    // Send more doorbells than A reads in two turns; A sees the end of its connection to B in the
    // first turn.
    for cq in 0..150 {
        remote.ring(Doorbell::Cq(cq));
    }
    b.send(&a, b"an answer");
    drop((remote, b));
    drop(still);
    let calls = || loop {
        match a.calls.recv_timeout(LONG) {
            Ok(HandlerCall::Cq(_) | HandlerCall::PeerLost(_) | HandlerCall::PeerDetached(_)) => {}
            calls => return calls,
        }
    };
    assert_eq!(calls(), Ok(HandlerCall::CmMessage(block, b"an answer".to_vec())));
    assert_eq!(calls(), Ok(HandlerCall::Gone(block)));
}

#[test]
fn one_who_only_heard_is_told_of_the_end() {
    let (a, b) = pair();
    let block = a.block();
    a.send(&b, b"a request");
    assert_eq!(b.message(&a), b"a request");
    drop(a);
    b.expect(&HandlerCall::Gone(block));
}

#[test]
fn a_full_socket_holds_cm_messages_until_there_is_room() {
    let (a, b) = pair();
    a.send(&b, b"first");
    assert_eq!(b.message(&a), b"first");
    let still = b.recorder.still.lock().expect("no panic");
    for count in 0..5000_u32 {
        a.send(&b, &count.to_le_bytes());
    }
    assert!(a.node.state.cm_outboxes.waits(b.block()), "they fit into the socket");
    // Other peers do not wait.
    let c = TestNode::new(&a.node.state.common.settings.fabric);
    a.send(&c, b"you, too");
    assert_eq!(c.message(&a), b"you, too");
    drop(still);
    for count in 0..5000_u32 {
        assert_eq!(b.message(&a), count.to_le_bytes());
    }
    assert!(!a.node.state.cm_outboxes.waits(b.block()));
}

#[test]
fn letters_that_nobody_hears_are_bounded_and_both_sides_are_told() {
    let (a, b) = pair();
    a.send(&b, b"first");
    assert_eq!(b.message(&a), b"first");
    let still = b.recorder.still.lock().expect("no panic");
    // One of the messages keeps B's service thread busy.
    let begin = Instant::now();
    let mut message = [0; message::CM_MESSAGE];
    let mut send = |count: u32| {
        message[..4].copy_from_slice(&count.to_le_bytes());
        a.send(&b, &message);
    };
    let mut last = 0;
    while a.calls.try_recv() != Ok(HandlerCall::Gone(b.block())) {
        send(last);
        last += 1;
        assert!(begin.elapsed() < LONG, "the outbox has no bound");
    }
    drop(still);
    // All messages come in order, except for those reported lost: once, or several times if the
    // sender was slow. Until the reports end, the last message may be lost too, so the test repeats
    // it until it arrives.
    let (mut next, mut ends, mut is_lost) = (0, 0, false);
    while next <= last {
        match b.calls.recv_timeout(Duration::from_millis(10)) {
            Ok(HandlerCall::CmMessage(_, message)) => {
                let number = u32::from_le_bytes(message[..4].try_into().expect("four bytes"));
                assert!(number == next || is_lost && number > next, "{number} after {next} - 1");
                (next, is_lost) = (number + 1, false);
            }
            Ok(calls) => {
                assert_eq!(calls, HandlerCall::Gone(a.block()));
                (ends, is_lost) = (ends + 1, true);
            }
            Err(_) => {
                assert!(begin.elapsed() < 2 * LONG, "message {next} of {last} does not arrive");
                send(last);
            }
        }
    }
    assert!(ends > 0);
}

#[test]
fn ports_are_one_nodes_at_a_time() {
    let (a, b) = pair();
    let port = a.node.take_port(SPACE, 7471).expect("free");
    assert_eq!(port.port(), 7471);
    for node in [&a.node, &b.node] {
        assert_eq!(
            node.take_port(SPACE, 7471).map_err(|error| error.kind()).err(),
            Some(io::ErrorKind::AddrInUse)
        );
        drop(node.take_port(SPACE + 1, 7471).expect("another space"));
    }
    assert_eq!(b.find(7471, false), PortOwner::Block(a.block()));
    assert_eq!(a.find(7471, false), PortOwner::ThisProcess);
    for _ in 0..50 {
        drop(a.node.take_port(SPACE, 7000).expect("free"));
        drop(b.node.take_port(SPACE, 7000).expect("free at once"));
    }
    drop(port);
    let port = b.node.take_port(SPACE, 7471).expect("free at once");
    assert_eq!(a.find(7471, false), PortOwner::Block(b.block()));
    drop(port);
    assert_eq!(a.find(7471, true), PortOwner::Nobody);
    assert_eq!(a.find(7472, false), PortOwner::Nobody);
}

#[test]
fn cached_port_owner_is_forgotten_when_it_dies() {
    let (a, b) = pair();
    let port = b.node.take_port(SPACE, 7471).expect("free");
    let block = b.block();
    assert_eq!(a.find(7471, false), PortOwner::Block(block));
    assert_eq!(
        a.node.find_port(SPACE, 7471, Instant::now(), 0, false),
        Some(PortOwner::Block(block)),
        "at once"
    );
    drop(port);
    assert_eq!(
        a.node.find_port(SPACE, 7471, Instant::now(), 0, false),
        Some(PortOwner::Block(block)),
        "out of date"
    );
    assert_eq!(a.find(7471, true), PortOwner::Nobody);
    assert_eq!(a.find(7471, false), PortOwner::Nobody);
    let _seat = b.node.take_port(SPACE, 7471).expect("free");
    assert_eq!(a.find(7471, false), PortOwner::Block(block));
    a.send(&b, b"hello");
    assert_eq!(b.message(&a), b"hello");
    drop(b);
    a.expect(&HandlerCall::Gone(block));
    assert_eq!(a.node.state.ports.known_owner(ports::CmPort { space: SPACE, number: 7471 }), None);
}

#[test]
fn any_port_is_of_a_group_that_nobody_else_has() {
    let (a, b) = pair();
    let take = |process: &TestNode, count: usize| -> Vec<PortGuard> {
        (0..count).map(|_| process.node.take_port(SPACE, 0).expect("one of many")).collect()
    };
    let (mut of_a, of_b) = (take(&a, 200), take(&b, 200));
    let mut ports: Vec<_> = of_a.iter().chain(&of_b).map(PortGuard::port).collect();
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), 400);
    assert!(ports.iter().all(|port| EPHEMERAL.contains(port)));
    for port in &of_a {
        assert_eq!(b.find(port.port(), false), PortOwner::Block(a.block()));
        assert_eq!(a.find(port.port(), false), PortOwner::ThisProcess);
    }
    // A port that the owner of its group has freed can only be taken by that owner.
    let port = of_a.remove(7).port();
    assert_eq!(
        b.node.take_port(SPACE, port).map_err(|error| error.kind()).err(),
        Some(io::ErrorKind::AddrInUse)
    );
    drop(a.node.take_port(SPACE, port).expect("its own"));
    drop((of_a, of_b));
    // The node keeps one group; other processes may take the ports of the others.
    let free = ports.iter().filter(|port| a.node.take_port(SPACE, **port).is_ok()).count();
    assert!(free >= 400 - 64 - 64, "{free}");
}

#[test]
fn all_ports_can_be_taken_and_then_there_are_none() {
    let a = TestNode::new(&fabric());
    let mut peer_ids: Vec<_> =
        (0..EPHEMERAL.len()).map(|_| a.node.take_port(SPACE, 0).expect("a port")).collect();
    let error = a.node.take_port(SPACE, 0).expect_err("all ports are taken");
    assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    assert!(error.to_string().contains("32768"), "{error}");
    let port = peer_ids.pop().expect("there are some").port();
    assert_eq!(a.node.take_port(SPACE, 0).expect("that one").port(), port);
}

#[test]
fn port_owner_that_does_not_answer_is_unresponsive() {
    let fabric = fabric();
    let a = TestNode::new(&fabric);
    // A listener that never accepts looks like a stopped process.
    let thing = ports::CmPort { space: SPACE, number: 7471 }.thing(&fabric);
    let _stopped = names::present(&thing).expect("a descriptor");
    let begin = Instant::now();
    for token in 0..1000 {
        assert_eq!(
            a.node.find_port(SPACE, 7471, begin + Duration::from_millis(token % 3 * 50), token, false),
            None
        );
    }
    let before = std::fs::read_dir("/proc/self/fd").expect("proc").count();
    let mut calls: Vec<_> = (0..1000)
        .map(|_| match a.calls.recv_timeout(LONG) {
            Ok(HandlerCall::PortOwner(token, PortOwner::Unresponsive)) => token,
            other => panic!("{other:?}"),
        })
        .collect();
    assert!(begin.elapsed() >= Duration::from_millis(100));
    calls.sort_unstable();
    assert!(calls.into_iter().eq(0..1000), "each is reported once");
    let after = std::fs::read_dir("/proc/self/fd").expect("proc").count();
    assert!(before < 500 && after < 500, "{before}, {after}: they export a descriptor");
}

#[test]
fn the_alarm_is_told_once() {
    let a = TestNode::new(&fabric());
    let begin = Instant::now();
    a.node.wake_cm_at(begin + Duration::from_millis(40)).expect("a service thread");
    a.node.wake_cm_at(begin + Duration::from_millis(10)).expect("a service thread");
    a.node.wake_cm_at(begin + Duration::from_secs(100)).expect("a service thread");
    assert_eq!(a.calls.recv_timeout(LONG), Ok(HandlerCall::CmTimer));
    assert!(begin.elapsed() >= Duration::from_millis(10));
    a.node.wake_at(Instant::now() + Duration::from_millis(60), 3);
    assert_eq!(a.calls.recv_timeout(LONG), Ok(HandlerCall::Timer(3)));
}
