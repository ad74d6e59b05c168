//! A call, and the receive that it is for: while the owner is at it nobody else has it.

use loom::sync::Arc;

use super::{Memory, Turns, explore, spawn};
use crate::shared::rpc::{CallPhase, CallState};
use crate::shared::slot::{Claim, Delivery, Holder, Room, SlotHeader};
use crate::sync::{AtomicU64, Relaxed};

/// A call, the receive that it is for, and what is left to the owner.
struct RpcModel {
    state: CallState,
    slot: SlotHeader,
    memory: Memory,
    claim: AtomicU64,
}

impl RpcModel {
    fn new() -> Arc<Self> {
        let model = Self {
            state: CallState::default(),
            slot: SlotHeader::default(),
            memory: Memory::new(),
            claim: AtomicU64::new(0),
        };
        model.slot.post(1, Room { bytes: 1, entries: 1, flags: 0 });
        Arc::new(model)
    }

    /// Asks for a receive to be filled, and does not wait. True if it was.
    fn send(&self, leaves: bool) -> bool {
        let Some(claim) = self.slot.claim(1) else { return false };
        self.state.ask();
        loom::thread::yield_now();
        if self.state.phase() != CallPhase::Answered && self.state.withdraw() {
            self.slot.unclaim(claim);
            return false;
        }
        if self.state.phase() != CallPhase::Answered {
            self.claim.store(claim.to_word(), Relaxed);
            if leaves && self.state.leave() {
                return false;
            }
            if self.state.phase() != CallPhase::Answered {
                // Not what the protocol says.
                self.slot.unclaim(claim);
                return false;
            }
        }
        assert_eq!(self.memory.read(), 1);
        self.slot.finish(claim, &Delivery::default())
    }

    /// The owner's service thread.
    fn serve(&self) {
        if !self.state.begin() {
            return;
        }
        self.memory.write(1);
        if !self.state.answer() {
            let claim = Claim::from_word(self.claim.load(Relaxed), 1).expect("it was left");
            assert!(self.slot.is_held(claim) && self.slot.unclaim(claim));
            self.state.end();
        }
    }

    /// Another sender, who needs nobody.
    fn send_directly(&self) -> bool {
        let Some(claim) = self.slot.claim(2) else { return false };
        self.memory.write(2);
        self.slot.finish(claim, &Delivery::default())
    }
}

fn run(turns: Turns, leaves: bool) {
    let model = RpcModel::new();
    let sender = spawn(&model, move |model| model.send(leaves));
    let other = spawn(&model, RpcModel::send_directly);
    turns.at(0);
    model.serve();
    turns.at(1);
    let (sent, other) = (sender.join().unwrap(), other.join().unwrap());
    assert!(!(sent && other));
    model.serve();
    match model.slot.holder() {
        Holder::Done { peer_id } => {
            assert_eq!((sent, other), (peer_id == 1, peer_id == 2));
            assert_eq!(model.memory.read(), u64::from(peer_id));
        }
        holder => assert_eq!((holder, sent || other), (Holder::Posted, false)),
    }
}

#[test]
fn what_is_begun_is_the_owners() {
    explore(|turns| run(turns, true));
}

/// As it was once: after a while the sender takes its claim back.
#[test]
#[should_panic(expected = "Concurrent")]
fn taking_back_what_is_begun_is_missed() {
    explore(|turns| run(turns, false));
}
