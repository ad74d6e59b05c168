//! What a gate guards: a region, a queue pair, a card; and the mark of who goes through.

use loom::sync::Arc;
use loom::thread;

use super::{Life, Memory, explore, spawn};
use crate::shared::entry::{SlotsCard, SrqCard, SrqEntry};
use crate::shared::gate::{Gate, Keeper};
use crate::shared::mark::{Mark, MarkCell, settle};

const QP: u32 = 3;

/// One region with its gate, and the lane of one peer.
struct Region {
    gate: Gate,
    lane: MarkCell,
    memory: [Memory; 2],
}

impl Region {
    fn open() -> (Arc<Self>, Keeper) {
        let region =
            Self { gate: Gate::default(), lane: MarkCell::default(), memory: [Memory::new(), Memory::new()] };
        let mut keeper = Keeper::default();
        keeper.close(&region.gate);
        keeper.open(&region.gate, 7);
        (Arc::new(region), keeper)
    }

    /// A transfer into the memory with this number, which the gate guards if it is 0.
    fn transfer(&self, number: u32, check_again: bool) {
        let Some(pass) = self.gate.enter() else { return };
        self.lane.publish(Mark::new(QP, number));
        if !check_again || number != 0 || self.gate.holds(pass) {
            self.memory[number as usize].write(1);
        }
        self.lane.clear();
    }

    fn wait(&self, touches: impl Fn(Mark) -> bool) {
        while self.lane.get().is_some_and(&touches) {
            thread::yield_now();
        }
    }
}

fn revocation(check_again: bool, wait: bool) {
    explore(move |turns| {
        let (region, mut keeper) = Region::open();
        let peer = spawn(&region, move |region| region.transfer(0, check_again));
        turns.at(0);
        keeper.close(&region.gate);
        turns.at(1);
        if wait {
            region.wait(|mark| mark.touches_region(0));
        }
        turns.at(2);
        region.memory[0].write(2);
        peer.join().unwrap();
        assert_eq!(region.memory[0].read(), 2);
    });
}

#[test]
fn revoked_memory_is_not_touched() {
    revocation(true, true);
}

#[test]
#[should_panic]
fn revocation_without_a_second_look_is_missed() {
    revocation(false, true);
}

#[test]
#[should_panic]
fn revocation_without_waiting_is_missed() {
    revocation(true, false);
}

/// The lane goes on to another region; the owner may see that mark and never that the first was cleared.
#[test]
fn a_later_mark_ends_the_one_before() {
    explore(|turns| {
        let (region, mut keeper) = Region::open();
        let peer = spawn(&region, move |region| {
            region.transfer(0, true);
            region.transfer(1, true);
        });
        turns.at(0);
        keeper.close(&region.gate);
        turns.at(1);
        region.wait(|mark| mark.touches_region(0));
        region.memory[0].write(2);
        peer.join().unwrap();
        assert_eq!(region.memory[0].read(), 2);
    });
}

/// One fence serves two marks: the sender's own region, and the receiver's.
#[test]
fn two_marks_share_a_fence() {
    explore(|turns| {
        let (here, mut keeper) = Region::open();
        let (there, _) = Region::open();
        let sender = thread::spawn({
            let (here, there) = (here.clone(), there.clone());
            move || {
                let (Some(own), Some(peers)) = (here.gate.enter(), there.gate.enter()) else { return };
                here.lane.set(Mark::new(QP, 0));
                there.lane.set(Mark::new(QP, 0));
                settle();
                if here.gate.holds(own) && there.gate.holds(peers) {
                    let _ = here.memory[0].read();
                    there.memory[0].write(1);
                }
                there.lane.clear();
                here.lane.clear();
            }
        });
        turns.at(0);
        keeper.close(&here.gate);
        turns.at(1);
        here.wait(|mark| mark.uses_queue_pair(QP));
        here.memory[0].write(2);
        sender.join().unwrap();
    });
}

/// A mark that narrows from "the queue pair" to a region, and the revocation of either.
#[test]
fn a_mark_may_change_while_it_stands() {
    explore(|turns| {
        let (queue_pair, mut keeper) = Region::open();
        let (region, mut region_keeper) = Region::open();
        let peer = thread::spawn({
            let (queue_pair, region) = (queue_pair.clone(), region.clone());
            move || {
                let Some(qp_pass) = queue_pair.gate.enter() else { return };
                let lane = &queue_pair.lane;
                lane.publish(Mark::new(QP, Mark::NO_REGION));
                if queue_pair.gate.holds(qp_pass) {
                    queue_pair.memory[0].write(1);
                    if let Some(pass) = region.gate.enter() {
                        lane.publish(Mark::new(QP, 5));
                        if region.gate.holds(pass) && queue_pair.gate.holds(qp_pass) {
                            region.memory[0].write(1);
                        }
                    }
                }
                lane.clear();
            }
        });
        turns.at(0);
        region_keeper.close(&region.gate);
        turns.at(1);
        queue_pair.wait(|mark| mark.touches_region(5));
        region.memory[0].write(2);
        turns.at(2);
        keeper.close(&queue_pair.gate);
        queue_pair.wait(|mark| mark.uses_queue_pair(QP));
        queue_pair.memory[0].write(2);
        peer.join().unwrap();
    });
}

/// A peer dies after any step of a transfer: the mark stays, and the proof of the death takes its place.
#[test]
fn the_dead_do_not_touch() {
    for steps in 0..5 {
        explore(move |turns| {
            let (region, mut keeper) = Region::open();
            let peer = spawn(&region, move |region| {
                let mut life = Life(steps);
                let Some(pass) = region.gate.enter().filter(|_| life.alive()) else { return };
                region.lane.publish(Mark::new(QP, 0));
                if !life.alive() || !region.gate.holds(pass) || !life.alive() {
                    return;
                }
                region.memory[0].write(1);
                if life.alive() {
                    region.lane.clear();
                }
            });
            turns.at(0);
            keeper.close(&region.gate);
            turns.at(1);
            if region.lane.get().is_some() {
                peer.join().unwrap();
            }
            region.memory[0].write(2);
        });
    }
}

fn card(number: u64) -> SrqCard {
    let small = number as u32;
    SrqCard { pd: small, slots: SlotsCard { offset: number, count: small, stride: small } }
}

fn card_reading(look_again: bool) {
    explore(move |turns| {
        let entry = Arc::new(SrqEntry::new());
        let mut keeper = Keeper::default();
        entry.publish(&mut keeper, 1, &card(1));
        let reader = spawn(&entry, move |entry| {
            let lane = MarkCell::default();
            turns.at(0);
            let Some((pass, read)) = entry.read() else { return };
            turns.at(1);
            lane.publish(Mark::new(QP, 0));
            if !look_again || entry.holds(pass) {
                assert_eq!(read, card(pass.label().into()), "words of two cards");
            }
        });
        turns.at(2);
        entry.publish(&mut keeper, 2, &card(2));
        reader.join().unwrap();
    });
}

#[test]
fn a_card_that_holds_is_whole() {
    card_reading(true);
}

#[test]
#[should_panic(expected = "words of two cards")]
fn a_card_without_a_second_look_is_missed() {
    card_reading(false);
}
