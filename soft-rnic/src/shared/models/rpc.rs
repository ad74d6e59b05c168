//! Loom models of a remote procedure call and its receive: only one side uses the receive at a
//! time.

use loom::sync::Arc;

use super::{CheckedCell, YieldPoints, explore, spawn};
use crate::shared::rpc::{CallPhase, CallState};
use crate::shared::slot::{Claim, Delivery, Holder, RecvCapacity, SlotHeader};
use crate::sync::{AtomicU64, Relaxed};

/// A call, its receive, and the claim that the sender leaves to the owner.
struct RpcModel {
    state: CallState,
    slot: SlotHeader,
    memory: CheckedCell,
    claim: AtomicU64,
}

impl RpcModel {
    fn new() -> Arc<Self> {
        let model = Self {
            state: CallState::default(),
            slot: SlotHeader::default(),
            memory: CheckedCell::new(),
            claim: AtomicU64::new(0),
        };
        model.slot.post(1, RecvCapacity { bytes: 1, entries: 1 });
        Arc::new(model)
    }

    /// Asks the owner to fill a receive without waiting for it. True if the owner did.
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
                // A violation of the protocol, for the model that must fail.
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

    /// Another sender, which fills the receive without the owner's help.
    fn send_directly(&self) -> bool {
        let Some(claim) = self.slot.claim(2) else { return false };
        self.memory.write(2);
        self.slot.finish(claim, &Delivery::default())
    }
}

fn run(yields: YieldPoints, leaves: bool) {
    let model = RpcModel::new();
    let sender = spawn(&model, move |model| model.send(leaves));
    let other = spawn(&model, RpcModel::send_directly);
    yields.at(0);
    model.serve();
    yields.at(1);
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
fn begun_call_belongs_to_the_owner() {
    explore(|yields| run(yields, true));
}

/// An earlier version of the protocol: the sender took its claim back after a while, although the
/// owner had begun.
#[test]
#[should_panic(expected = "Concurrent")]
fn taking_back_what_is_begun_is_missed() {
    explore(|yields| run(yields, false));
}
