//! Loom models of generations and hazards: an owner that revokes an object while a peer's transfer
//! uses it.

use loom::sync::Arc;
use loom::thread;

use super::{CheckedCell, LifeUntil, explore, spawn};
use crate::shared::entry::{SlotsDescriptor, SrqDescriptor, SrqEntry};
use crate::shared::generation::{Generation, GenerationWriter};
use crate::shared::hazard::{Hazard, HazardSlot, full_fence};

const QP: u32 = 3;

/// One region with its generation, and the transfer slot of one peer.
struct RegionModel {
    generation: Generation,
    transfer_slot: HazardSlot,
    memory: [CheckedCell; 2],
}

impl RegionModel {
    fn open() -> (Arc<Self>, GenerationWriter) {
        let region = Self {
            generation: Generation::default(),
            transfer_slot: HazardSlot::default(),
            memory: [CheckedCell::new(), CheckedCell::new()],
        };
        let mut writer = GenerationWriter::default();
        writer.invalidate(&region.generation);
        writer.validate(&region.generation, 7);
        (Arc::new(region), writer)
    }

    /// A transfer into the memory with this number. The generation guards memory 0.
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
    explore(move |yields| {
        let (region, mut writer) = RegionModel::open();
        let peer = spawn(&region, move |region| region.transfer(0, check_again));
        yields.at(0);
        writer.invalidate(&region.generation);
        yields.at(1);
        if wait {
            region.wait(|hazard| hazard.touches_region(0));
        }
        yields.at(2);
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
fn revocation_without_revalidation_is_missed() {
    revocation(false, true);
}

#[test]
#[should_panic]
fn revocation_without_waiting_is_missed() {
    revocation(true, false);
}

/// The transfer slot moves on to another region. The owner may see the second hazard and never see
/// that the first was cleared.
#[test]
fn a_later_hazard_ends_the_one_before() {
    explore(|yields| {
        let (region, mut writer) = RegionModel::open();
        let peer = spawn(&region, move |region| {
            region.transfer(0, true);
            region.transfer(1, true);
        });
        yields.at(0);
        writer.invalidate(&region.generation);
        yields.at(1);
        region.wait(|hazard| hazard.touches_region(0));
        region.memory[0].write(2);
        peer.join().unwrap();
        assert_eq!(region.memory[0].read(), 2);
    });
}

/// One fence serves two hazards: in the sender's own region, and in the receiver's.
#[test]
fn two_hazards_share_a_fence() {
    explore(|yields| {
        let (here, mut writer) = RegionModel::open();
        let (there, _) = RegionModel::open();
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
        yields.at(0);
        writer.invalidate(&here.generation);
        yields.at(1);
        here.wait(|hazard| hazard.uses_queue_pair(QP));
        here.memory[0].write(2);
        sender.join().unwrap();
    });
}

/// A hazard first names only the queue pair, then a region too, while the owner revokes each.
#[test]
fn a_hazard_may_change_while_it_stands() {
    explore(|yields| {
        let (queue_pair, mut writer) = RegionModel::open();
        let (region, mut region_keeper) = RegionModel::open();
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
        yields.at(0);
        region_keeper.invalidate(&region.generation);
        yields.at(1);
        queue_pair.wait(|hazard| hazard.touches_region(5));
        region.memory[0].write(2);
        yields.at(2);
        writer.invalidate(&queue_pair.generation);
        queue_pair.wait(|hazard| hazard.uses_queue_pair(QP));
        queue_pair.memory[0].write(2);
        peer.join().unwrap();
    });
}

/// A peer dies after any step of a transfer. The hazard stays, and the proof of death replaces its
/// clearing.
#[test]
fn the_dead_do_not_touch() {
    for steps in 0..5 {
        explore(move |yields| {
            let (region, mut writer) = RegionModel::open();
            let peer = spawn(&region, move |region| {
                let mut life = LifeUntil(steps);
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
            yields.at(0);
            writer.invalidate(&region.generation);
            yields.at(1);
            if region.transfer_slot.get().is_some() {
                peer.join().unwrap();
            }
            region.memory[0].write(2);
        });
    }
}

fn descriptor(number: u64) -> SrqDescriptor {
    let (small, place) = (number as u32, number * SlotsDescriptor::UNIT);
    let slots = SlotsDescriptor { offset: place, offers: place, count: small, entries: small };
    SrqDescriptor { pd: small, slots }
}

fn card_reading(look_again: bool) {
    explore(move |yields| {
        let entry = Arc::new(SrqEntry::new());
        let mut writer = GenerationWriter::default();
        entry.publish(&mut writer, 1, &descriptor(1));
        let reader = spawn(&entry, move |entry| {
            let transfer_slot = HazardSlot::default();
            yields.at(0);
            let Some((snapshot, read)) = entry.read() else { return };
            yields.at(1);
            transfer_slot.publish(Hazard::new(QP, 0));
            if !look_again || entry.is_current(snapshot) {
                assert_eq!(read, descriptor(snapshot.label().into()), "words of two descriptors");
            }
        });
        yields.at(2);
        entry.publish(&mut writer, 2, &descriptor(2));
        reader.join().unwrap();
    });
}

#[test]
fn a_current_descriptor_is_whole() {
    card_reading(true);
}

#[test]
#[should_panic(expected = "words of two descriptors")]
fn a_descriptor_without_revalidation_is_missed() {
    card_reading(false);
}
