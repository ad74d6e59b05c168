//! Loom models of the completion queue entry: ready bits, wake-ups, notes for the service thread,
//! and overrun detection.

use loom::sync::Arc;
use loom::sync::atomic::AtomicU32;

use super::{LifeUntil, YieldPoints, explore, explore_bounded, how_many, spawn};
use crate::shared::completion::{Announced, Armed, CqEntry, Fired, PeerNote, READY_WORDS};
use crate::shared::slot::{Delivery, Holder, RecvCapacity, SlotHeader};
use crate::sync::{AcqRel, Acquire};

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

/// Each note is taken once, whether its peer has marked it or not. A later peer finds the mark, or
/// rings the doorbell.
#[test]
fn a_note_is_taken_or_rung_for() {
    explore(|yields| {
        let completions = CompletionModel::new(8);
        let peers = [0, 1].map(|_| {
            spawn(&completions, move |completions| {
                let fired = completions.cq.fire();
                if let Fired::First(note) = fired {
                    completions.cq.woken(note);
                }
                fired
            })
        });
        let take = || u32::from(completions.cq.take_noted()) + u32::from(completions.cq.take_woken());
        yields.at(0);
        let taken = take();
        let fired = peers.map(|peer| peer.join().unwrap());
        let first = fired.iter().filter(|fired| matches!(fired, Fired::First(_))).count();
        assert_eq!(first as u32, taken + take(), "as many first peers as notes");
    });
}

/// A peer's mark that comes late is not one of a later peer's note.
#[test]
fn a_late_mark_marks_no_other_note() {
    explore(|yields| {
        let completions = CompletionModel::new(8);
        let Fired::First(former) = completions.cq.fire() else { panic!("the first note") };
        let late = spawn(&completions, move |completions| completions.cq.woken(former));
        yields.at(0);
        let was_marked = completions.cq.take_woken();
        assert!(was_marked || completions.cq.take_noted() || completions.cq.take_woken());
        assert!(matches!(completions.cq.fire(), Fired::First(_)), "the former note is taken");
        late.join().unwrap();
        assert_eq!(completions.cq.fire(), Fired::Again, "nobody has woken the owner for this note");
    });
}

/// A completion queue whose owner sleeps on its channel, and the channel.
struct SleepModel {
    completions: Arc<CompletionModel>,
    /// The value of the channel's descriptor.
    tokens: AtomicU32,
    /// Doorbells for the owner's service thread.
    rings: AtomicU32,
}

impl SleepModel {
    fn new() -> Arc<Self> {
        let [tokens, rings] = [(); 2].map(|()| AtomicU32::new(0));
        Arc::new(Self { completions: CompletionModel::new(8), tokens, rings })
    }

    fn cq(&self) -> &CqEntry {
        &self.completions.cq
    }

    fn give(&self) {
        self.tokens.fetch_add(1, AcqRel);
    }

    fn is_readable(&self) -> bool {
        self.tokens.load(Acquire) > 0
    }

    /// Peer: completes a receive. Returns the note that it is to write a token for.
    fn complete(&self, source: usize, has_channel: bool) -> Option<PeerNote> {
        self.completions.finish(source);
        if !self.completions.announce(source).wake {
            return None;
        }
        match self.cq().fire() {
            Fired::Woken => {}
            Fired::First(note) if has_channel => return Some(note),
            Fired::First(_) | Fired::Again => {
                self.rings.fetch_add(1, AcqRel);
                self.cq().told();
            }
        }
        None
    }

    /// Peer: writes to the descriptor of the channel.
    fn wake(&self, note: PeerNote) {
        self.give();
        self.cq().woken(note);
    }

    fn complete_and_wake(&self, source: usize, has_channel: bool) {
        if let Some(note) = self.complete(source, has_channel) {
            self.wake(note);
        }
    }

    /// Owner: reads a token and takes the note of its event.
    fn take(&self) -> bool {
        let is_taken = self.is_readable();
        if is_taken {
            self.tokens.fetch_sub(1, AcqRel);
            if self.cq().take_woken() || self.cq().take_noted() {
                self.cq().told();
            }
        }
        is_taken
    }

    /// Owner: arms as `Cq::arm` does.
    fn arm(&self) {
        if self.cq().is_fired() {
            self.answer_notes();
            // The event of this note is in the list, and its token in the descriptor.
            if self.cq().take_woken() {
                self.cq().told();
            }
        }
        self.cq().arm(Armed::Any);
    }

    /// Owner's service thread: answers doorbells.
    fn answer_notes(&self) {
        if self.cq().take_noted() {
            self.cq().told();
            self.give();
        }
    }

    /// Owner: arms, polls, and goes on when it finds a token. Returns how many completions it has
    /// polled when it sleeps.
    fn run(&self, yields: YieldPoints) -> u32 {
        yields.at(0);
        self.arm();
        yields.at(1);
        let mut polled = self.completions.poll();
        yields.at(2);
        if self.take() {
            self.arm();
            polled += self.completions.poll();
        }
        polled
    }

    /// Answers the doorbells, of which the owner's service thread misses none.
    fn answer_rings(&self) {
        if self.rings.load(Acquire) > 0 {
            self.answer_notes();
        }
    }
}

/// Two peers complete and the owner arms, polls and takes events. It does not sleep without a token
/// while a completion waits.
fn two_peers_wake(have_channel: [bool; 2]) {
    explore_bounded(2, move |yields| {
        let sleep = SleepModel::new();
        let peers = [0, 1]
            .map(|source| spawn(&sleep, move |sleep| sleep.complete_and_wake(source, have_channel[source])));
        let polled = sleep.run(yields);
        peers.into_iter().for_each(|peer| peer.join().unwrap());
        sleep.answer_rings();
        assert!(polled == 2 || sleep.is_readable(), "asleep with a completion");
    });
}

#[test]
fn two_peers_with_the_channel_lose_no_wake_up() {
    two_peers_wake([true, true]);
}

#[test]
fn a_peer_without_the_channel_loses_no_wake_up() {
    two_peers_wake([true, false]);
}

/// A peer is stopped between its note and its write: another one wakes the owner.
#[test]
fn the_stopped_before_a_write_take_no_wake_up_along() {
    explore_bounded(2, |yields| {
        let sleep = SleepModel::new();
        let stopped = spawn(&sleep, move |sleep| sleep.complete(0, true));
        let runs = spawn(&sleep, move |sleep| sleep.complete_and_wake(1, true));
        sleep.run(yields);
        let note = stopped.join().unwrap();
        runs.join().unwrap();
        sleep.answer_rings();
        let waits = |source: usize| matches!(sleep.completions.done[source].holder(), Holder::Done { .. });
        assert!(!waits(1) || sleep.is_readable(), "asleep with a completion");
        // It goes on: the other completion is not lost either.
        note.into_iter().for_each(|note| sleep.wake(note));
        assert!(!waits(0) || sleep.is_readable(), "asleep with a completion");
    });
}

/// The owner takes the event of a peer that goes on late. The next peer is stopped between its note
/// and its write, and the one after it wakes the owner.
#[test]
fn a_late_peer_takes_no_later_wake_up_along() {
    explore_bounded(2, |yields| {
        let sleep = SleepModel::new();
        sleep.arm();
        let late = sleep.complete(0, true).expect("the queue is armed");
        let late = spawn(&sleep, move |sleep| sleep.wake(late));
        yields.at(0);
        sleep.take();
        sleep.arm();
        sleep.completions.poll();
        let stopped = spawn(&sleep, move |sleep| sleep.complete(1, true).is_some());
        late.join().unwrap();
        stopped.join().unwrap();
        sleep.completions.done[0].post(1, RecvCapacity { bytes: 1, entries: 1 });
        sleep.complete_and_wake(0, true);
        sleep.answer_rings();
        assert!(sleep.is_readable(), "asleep with a completion");
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
            let fired = completions.cq.take_noted() || !completions.cq.is_armed();
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
