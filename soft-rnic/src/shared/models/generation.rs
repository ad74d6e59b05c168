//! What a generation guards: a region, a queue pair, a descriptor; and the hazard of who goes through.

use loom::sync::Arc;
use loom::thread;

use super::{Life, Memory, explore, spawn};
use crate::shared::entry::{SlotsDescriptor, SrqDescriptor, SrqEntry};
use crate::shared::generation::{Generation, GenerationWriter};
use crate::shared::hazard::{Hazard, HazardSlot, full_fence};

const QP: u32 = 3;

/// One region with its generation, and the transfer slot of one peer.
struct Region {
    generation: Generation,
    transfer_slot: HazardSlot,
    memory: [Memory; 2],
}

impl Region {
    fn open() -> (Arc<Self>, GenerationWriter) {
        let region = Self {
            generation: Generation::default(),
            transfer_slot: HazardSlot::default(),
            memory: [Memory::new(), Memory::new()],
        };
        let mut writer = GenerationWriter::default();
        writer.invalidate(&region.generation);
        writer.validate(&region.generation, 7);
        (Arc::new(region), writer)
    }

    /// A transfer into the memory with this number, which the generation guards if it is 0.
    fn transfer(&self, number: u32, check_again: bool) {
        let Some(snapshot) = self.generation.snapshot() else { return };
        self.transfer_slot.publish(Hazard::new(QP, number));
        if !check_again || number != 0 || self.generation.is_current(snapshot) {
            self.memory[number as usize].write(1);
        }
        self.transfer_slot.clear();
    }

    fn wait(&self, touches: impl Fn(Hazard) -> bool) {
        while self.transfer_slot.get().is_some_and(&touches) {
            thread::yield_now();
        }
    }
}

fn revocation(check_again: bool, wait: bool) {
    explore(move |turns| {
        let (region, mut writer) = Region::open();
        let peer = spawn(&region, move |region| region.transfer(0, check_again));
        turns.at(0);
        writer.invalidate(&region.generation);
        turns.at(1);
        if wait {
            region.wait(|hazard| hazard.touches_region(0));
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

/// The transfer slot goes on to another region; the owner may see that hazard and never that the first was cleared.
#[test]
fn a_later_mark_ends_the_one_before() {
    explore(|turns| {
        let (region, mut writer) = Region::open();
        let peer = spawn(&region, move |region| {
            region.transfer(0, true);
            region.transfer(1, true);
        });
        turns.at(0);
        writer.invalidate(&region.generation);
        turns.at(1);
        region.wait(|hazard| hazard.touches_region(0));
        region.memory[0].write(2);
        peer.join().unwrap();
        assert_eq!(region.memory[0].read(), 2);
    });
}

/// One fence serves two hazards: the sender's own region, and the receiver's.
#[test]
fn two_marks_share_a_fence() {
    explore(|turns| {
        let (here, mut writer) = Region::open();
        let (there, _) = Region::open();
        let sender = thread::spawn({
            let (here, there) = (here.clone(), there.clone());
            move || {
                let (Some(own), Some(peers)) = (here.generation.snapshot(), there.generation.snapshot())
                else {
                    return;
                };
                here.transfer_slot.set(Hazard::new(QP, 0));
                there.transfer_slot.set(Hazard::new(QP, 0));
                full_fence();
                if here.generation.is_current(own) && there.generation.is_current(peers) {
                    let _ = here.memory[0].read();
                    there.memory[0].write(1);
                }
                there.transfer_slot.clear();
                here.transfer_slot.clear();
            }
        });
        turns.at(0);
        writer.invalidate(&here.generation);
        turns.at(1);
        here.wait(|hazard| hazard.uses_queue_pair(QP));
        here.memory[0].write(2);
        sender.join().unwrap();
    });
}

/// A hazard that narrows from "the queue pair" to a region, and the revocation of either.
#[test]
fn a_mark_may_change_while_it_stands() {
    explore(|turns| {
        let (queue_pair, mut writer) = Region::open();
        let (region, mut region_keeper) = Region::open();
        let peer = thread::spawn({
            let (queue_pair, region) = (queue_pair.clone(), region.clone());
            move || {
                let Some(qp_snapshot) = queue_pair.generation.snapshot() else { return };
                let transfer_slot = &queue_pair.transfer_slot;
                transfer_slot.publish(Hazard::new(QP, Hazard::NO_REGION));
                if queue_pair.generation.is_current(qp_snapshot) {
                    queue_pair.memory[0].write(1);
                    if let Some(snapshot) = region.generation.snapshot() {
                        transfer_slot.publish(Hazard::new(QP, 5));
                        if region.generation.is_current(snapshot)
                            && queue_pair.generation.is_current(qp_snapshot)
                        {
                            region.memory[0].write(1);
                        }
                    }
                }
                transfer_slot.clear();
            }
        });
        turns.at(0);
        region_keeper.invalidate(&region.generation);
        turns.at(1);
        queue_pair.wait(|hazard| hazard.touches_region(5));
        region.memory[0].write(2);
        turns.at(2);
        writer.invalidate(&queue_pair.generation);
        queue_pair.wait(|hazard| hazard.uses_queue_pair(QP));
        queue_pair.memory[0].write(2);
        peer.join().unwrap();
    });
}

/// A peer dies after any step of a transfer: the hazard stays, and the proof of the death takes its place.
#[test]
fn the_dead_do_not_touch() {
    for steps in 0..5 {
        explore(move |turns| {
            let (region, mut writer) = Region::open();
            let peer = spawn(&region, move |region| {
                let mut life = Life(steps);
                let Some(snapshot) = region.generation.snapshot().filter(|_| life.alive()) else { return };
                region.transfer_slot.publish(Hazard::new(QP, 0));
                if !life.alive() || !region.generation.is_current(snapshot) || !life.alive() {
                    return;
                }
                region.memory[0].write(1);
                if life.alive() {
                    region.transfer_slot.clear();
                }
            });
            turns.at(0);
            writer.invalidate(&region.generation);
            turns.at(1);
            if region.transfer_slot.get().is_some() {
                peer.join().unwrap();
            }
            region.memory[0].write(2);
        });
    }
}

fn descriptor(number: u64) -> SrqDescriptor {
    let small = number as u32;
    SrqDescriptor { pd: small, slots: SlotsDescriptor { offset: number, count: small, stride: small } }
}

fn card_reading(look_again: bool) {
    explore(move |turns| {
        let entry = Arc::new(SrqEntry::new());
        let mut writer = GenerationWriter::default();
        entry.publish(&mut writer, 1, &descriptor(1));
        let reader = spawn(&entry, move |entry| {
            let transfer_slot = HazardSlot::default();
            turns.at(0);
            let Some((snapshot, read)) = entry.read() else { return };
            turns.at(1);
            transfer_slot.publish(Hazard::new(QP, 0));
            if !look_again || entry.is_current(snapshot) {
                assert_eq!(read, descriptor(snapshot.label().into()), "words of two descriptors");
            }
        });
        turns.at(2);
        entry.publish(&mut writer, 2, &descriptor(2));
        reader.join().unwrap();
    });
}

#[test]
fn a_card_that_holds_is_whole() {
    card_reading(true);
}

#[test]
#[should_panic(expected = "words of two descriptors")]
fn a_card_without_a_second_look_is_missed() {
    card_reading(false);
}
