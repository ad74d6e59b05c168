//! Loom models of the completion queue entry: ready bits, wake-ups, notes for the service thread,
//! and overrun detection.

use loom::sync::Arc;

use super::{LifeUntil, explore, explore_bounded, how_many, spawn};
use crate::shared::completion::{Announced, Armed, CqEntry, READY_WORDS};
use crate::shared::slot::{Delivery, Holder, RecvCapacity, SlotHeader};

/// A completion queue and the slots of two sources that complete into it.
struct CompletionModel {
    cq: CqEntry,
    done: [SlotHeader; 2],
}

impl CompletionModel {
    fn new(capacity: u32) -> Arc<Self> {
        let completions = Self { cq: CqEntry::new(), done: Default::default() };
        completions.cq.reset(Some(capacity));
        completions.done.iter().for_each(|slot| slot.post(1, RecvCapacity { bytes: 1, entries: 1 }));
        Arc::new(completions)
    }

    fn finish(&self, source: usize) {
        let claim = self.done[source].claim(1).unwrap();
        assert!(self.done[source].finish(claim, &Delivery::default()));
    }

    /// Announces a completion. Both sources share one bit, because their numbers differ by a
    /// multiple of the number of bits.
    fn announce(&self, source: usize) -> Announced {
        self.cq.announce((source * 64 * READY_WORDS) as u32, false)
    }

    /// Owner: consumes the finished slots if a ready bit is set. Returns how many.
    fn poll(&self) -> u32 {
        if self.cq.take(0) == 0 {
            return 0;
        }
        let done = |slot: &&SlotHeader| matches!(slot.holder(), Holder::Done { .. });
        self.done.iter().filter(done).map(|slot| slot.free()).count() as u32
    }
}

/// Two queue pairs share a bit, and no completion is lost between taking the bit and looking at the
/// slots.
#[test]
fn a_ready_bit_brings_its_slot() {
    explore(|yields| {
        let completions = CompletionModel::new(8);
        let peers = [0, 1].map(|source| {
            spawn(&completions, move |completions| {
                completions.finish(source);
                yields.at(1);
                completions.announce(source);
            })
        });
        yields.at(0);
        let mut polled = completions.poll();
        peers.into_iter().for_each(|peer| peer.join().unwrap());
        polled += completions.poll();
        assert_eq!(polled, 2);
    });
}

fn wake_up(arm_first: bool) {
    explore(move |yields| {
        let completions = CompletionModel::new(8);
        let peer = spawn(&completions, move |completions| {
            completions.finish(0);
            completions.announce(0).wake
        });
        yields.at(0);
        if arm_first {
            completions.cq.arm(Armed::Any);
        }
        yields.at(1);
        let polled = completions.poll();
        yields.at(2);
        if !arm_first {
            completions.cq.arm(Armed::Any);
        }
        // If the owner polled nothing, it sleeps until it is woken.
        let woken = peer.join().unwrap();
        assert!(polled == 1 || woken, "asleep with a completion");
    });
}

#[test]
fn no_wake_up_is_lost() {
    wake_up(true);
}

#[test]
#[should_panic(expected = "asleep with a completion")]
fn arming_after_polling_is_missed() {
    wake_up(false);
}

/// Two peers complete while the owner arms for more than before. Only one peer wakes the owner, or
/// both do before the first has recorded it.
#[test]
fn one_of_two_peers_wakes() {
    explore_bounded(3, |yields| {
        let completions = CompletionModel::new(8);
        completions.cq.arm(Armed::Solicited);
        let peers = [0, 1].map(|source| {
            spawn(&completions, move |completions| {
                completions.finish(source);
                let wake = completions.announce(source).wake;
                if wake {
                    completions.cq.told();
                }
                wake
            })
        });
        yields.at(0);
        completions.cq.arm(Armed::Any);
        completions.cq.arm(Armed::Solicited);
        yields.at(1);
        let polled = completions.poll();
        let woken = peers.into_iter().any(|peer| peer.join().unwrap());
        assert!(polled == 2 || woken, "asleep with a completion");
    });
}

/// A peer takes the arming and is stopped before it tells the owner: the next peer tells it.
#[test]
fn the_stopped_take_no_wake_up_along() {
    explore_bounded(3, |yields| {
        let completions = CompletionModel::new(8);
        let [stopped, runs] = [0, 1].map(|source| {
            spawn(&completions, move |completions| {
                completions.finish(source);
                completions.announce(source).wake
            })
        });
        yields.at(0);
        completions.cq.arm(Armed::Any);
        yields.at(1);
        completions.poll();
        stopped.join().unwrap();
        let woken = runs.join().unwrap();
        let unpolled = matches!(completions.done[1].holder(), Holder::Done { .. });
        assert!(woken || !unpolled, "asleep with a completion");
    });
}

/// Each note for the owner's service thread is either taken by the owner or followed by a ring.
#[test]
fn a_note_is_taken_or_rung_for() {
    explore(|yields| {
        let completions = CompletionModel::new(8);
        let peers = [0, 1].map(|_| spawn(&completions, move |completions| completions.cq.fire()));
        yields.at(0);
        let taken = u32::from(completions.cq.take_fired());
        let rung = how_many(peers);
        let left = u32::from(completions.cq.take_fired());
        assert_eq!(rung, taken + left, "as many doorbells as notes");
    });
}

/// A peer dies after any step between the slot and the doorbell. The owner looks after the death,
/// and does not sleep on.
#[test]
fn the_dead_take_no_wake_up_along() {
    for steps in 0..4 {
        explore(move |yields| {
            let completions = CompletionModel::new(8);
            let mortal = spawn(&completions, move |completions| {
                let mut life = LifeUntil(steps);
                if !life.alive() {
                    return;
                }
                completions.finish(0);
                if life.alive() && completions.announce(0).wake && life.alive() {
                    completions.cq.fire();
                }
            });
            yields.at(0);
            completions.cq.arm(Armed::Any);
            yields.at(1);
            let polled = completions.poll();
            mortal.join().unwrap();
            // After a death the owner looks at every slot, and treats a queue that is no longer
            // armed as fired.
            let fired = completions.cq.take_fired() || !completions.cq.is_armed();
            let told = steps >= 2 && polled == 0;
            assert!(!told || fired, "asleep with a completion");
            let there = matches!(completions.done[0].holder(), Holder::Done { .. });
            assert_eq!(there || polled == 1, steps >= 1, "finished is finished");
        });
    }
}

/// The owner polls slots that are finished but not counted yet, and sees no overrun.
#[test]
fn early_polling_is_no_overrun() {
    explore_bounded(3, |yields| {
        let completions = CompletionModel::new(2);
        let peers = [0, 1].map(|source| {
            spawn(&completions, move |completions| {
                completions.finish(source);
                yields.at(1);
                assert!(!completions.announce(source).overrun);
            })
        });
        let done = |slot: &&SlotHeader| matches!(slot.holder(), Holder::Done { .. });
        yields.at(0);
        let polled = completions.done.iter().filter(done).count();
        completions.cq.note_polled(polled as u64);
        peers.into_iter().for_each(|peer| peer.join().unwrap());
        assert!(!completions.cq.is_overrun());
    });
}

#[test]
fn a_third_completion_for_two_is_an_overrun() {
    explore(|_| {
        let completions = CompletionModel::new(2);
        completions.announce(0);
        let peers =
            [0, 1].map(|source| spawn(&completions, move |completions| completions.announce(source).overrun));
        let told = how_many(peers);
        assert_eq!(told, 1);
        assert!(completions.cq.is_overrun());
    });
}
