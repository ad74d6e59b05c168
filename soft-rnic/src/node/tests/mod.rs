//! Tests of nodes that communicate: in one process, and in several.
#![cfg_attr(miri, allow(dead_code, reason = "Miri has no peers"))]

mod alone;
#[cfg(not(miri))]
mod cm_messages;
#[cfg(not(miri))]
mod guest;
#[cfg(not(miri))]
mod hostile;
#[cfg(not(miri))]
mod pair;
#[cfg(not(miri))]
mod process;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use super::*;
use crate::platform::socket::Socket;

/// A timeout that only a failing operation reaches.
const LONG: Duration = Duration::from_secs(20);

/// A call of the node's handler.
#[derive(Clone, Debug, PartialEq, Eq)]
enum HandlerCall {
    Cq(u32),
    Qp(u32),
    Srq(u32),
    Everywhere,
    PeerDetached(u16),
    PeerLost(u16),
    Serve(u16, u16),
    Timer(u32),
    CmMessage(u16, Vec<u8>),
    Gone(u16),
    PortOwner(u64, PortOwner),
    CmTimer,
}

struct Recorder {
    calls: Mutex<Sender<HandlerCall>>,
    /// Held by a test to block the service thread.
    still: Mutex<()>,
}

impl Recorder {
    fn tell(&self, calls: HandlerCall) {
        drop(self.still.lock().expect("no panic"));
        let _ = self.calls.lock().expect("no panic").send(calls);
    }
}

impl NodeHandler for Recorder {
    fn cq_fired(&self, cq: u32) {
        self.tell(HandlerCall::Cq(cq));
    }
    fn channel_of(&self, _: u32, _: &mut dyn FnMut(NonZero<u64>, BorrowedFd<'_>)) {}
    fn qp_noticed(&self, qp: u32) {
        self.tell(HandlerCall::Qp(qp));
    }
    fn srq_limit(&self, srq: u32) {
        self.tell(HandlerCall::Srq(srq));
    }
    fn check_everything(&self) {
        self.tell(HandlerCall::Everywhere);
    }
    fn peer_detached(&self, peer_id: u16) {
        self.tell(HandlerCall::PeerDetached(peer_id));
    }
    fn peer_lost(&self, remote: &Arc<PeerProcess>) {
        assert!(!remote.alive());
        self.tell(HandlerCall::PeerLost(remote.number()));
    }
    fn serve_call(&self, peer_id: u16, transfer_slot: u16) {
        self.tell(HandlerCall::Serve(peer_id, transfer_slot));
    }
    fn timer(&self, qp: u32) {
        self.tell(HandlerCall::Timer(qp));
    }
    fn statistics(&self) -> Statistics {
        Statistics::default()
    }
    fn cm_message(&self, from: u16, message: &[u8]) {
        self.tell(HandlerCall::CmMessage(from, message.to_vec()));
    }
    fn cm_gone(&self, block: u16) {
        self.tell(HandlerCall::Gone(block));
    }
    fn cm_port_owner(&self, token: u64, found: PortOwner) {
        self.tell(HandlerCall::PortOwner(token, found));
    }
    fn cm_timer(&self) {
        self.tell(HandlerCall::CmTimer);
    }
}

/// A node, and the calls of its handler.
struct TestNode {
    node: Arc<Node>,
    recorder: Arc<Recorder>,
    calls: Receiver<HandlerCall>,
    qpn: u32,
}

fn fabric() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("test-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

impl TestNode {
    fn new(fabric: &str) -> Self {
        Self::with(NodeSettings { fabric: fabric.into(), ..NodeSettings::default() })
    }

    fn with(settings: NodeSettings) -> Self {
        let gids = vec![PortGid { device: 0, port: 1, gid: [7; 16] }];
        let node = Node::start(settings, NodeIdentity { gids }).expect("a node");
        let (sender, calls) = channel();
        let recorder = Arc::new(Recorder { calls: Mutex::new(sender), still: Mutex::new(()) });
        let weak: Weak<Recorder> = Arc::downgrade(&recorder);
        node.set_handler(weak);
        let qpn = node.new_qp_number().expect("a number").qpn;
        Self { node, recorder, calls, qpn }
    }

    fn expect(&self, calls: &HandlerCall) {
        let deadline = Instant::now() + LONG;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let next =
                self.calls.recv_timeout(left).unwrap_or_else(|_| panic!("was never called: {calls:?}"));
            if next == *calls {
                return;
            }
        }
    }

    /// Expects exactly these calls about connection managers.
    #[cfg(not(miri))]
    fn expect_cm_calls(&self, wanted: &[HandlerCall]) {
        for calls in wanted {
            let next = loop {
                match self.calls.recv_timeout(LONG) {
                    Ok(HandlerCall::PeerLost(_) | HandlerCall::PeerDetached(_)) => {}
                    next => break next,
                }
            };
            assert_eq!(next.as_ref(), Ok(calls));
        }
    }

    /// The peer process that owns a queue pair. On a busy machine an answer may come too late; then
    /// this waits for the next.
    fn connect_to(&self, qpn: u32) -> Arc<PeerProcess> {
        let deadline = Instant::now() + LONG;
        loop {
            match self.node.wait_for_process(qpn, LONG) {
                Reachability::Ready(remote) => return remote,
                other => assert!(Instant::now() < deadline, "no connection to {qpn:#x}: {other:?}"),
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Waits for a condition that must come true.
fn eventually(what: &str, mut happened: impl FnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !happened() {
        assert!(Instant::now() < deadline, "did not happen: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Pseudo-random numbers, the same in each run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() >> 16) as usize % bound
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}
