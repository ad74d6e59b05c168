//! The protocols of a segment, in every order that the memory model allows.
//!
//! Each test is a model that loom runs to the end: all interleavings (or all with so many preemptions, where that is said),
//! and all values that a load may see. What a transfer touches is a loom cell: two accesses that are not ordered are an
//! error, whatever they read. Death is a thread that stops after a step, for every step; that it has ended is the proof
//! that the others wait for. Models named `..._is_missed` leave a step of the protocol out and must fail: they
//! show that the model sees what the step is for.
//!
//! `soft-rnic/tests/models.txt` lists them all; CI compares it with what ran.

use loom::cell::UnsafeCell;
use loom::model::Builder;
use loom::sync::Arc;
use loom::thread;

use super::completion::{Armed, CqEntry};
use super::entry::{SlotsCard, SrqCard, SrqEntry};
use super::gate::{Gate, Keeper};
use super::mark::{Mark, MarkCell, settle};
use super::ring::{IndexRing, RingHeader};
use super::slot::{Delivery, Holder, Room, SlotHeader};
use crate::sync::AtomicU64;

/// Places in a model where a thread may let the others go first.
///
/// loom looks for another order where two accesses depend on one another, but knows only the last access to each atomic: a
/// load is forgotten when another thread's load follows, and then that thread's store is never tried before the first
/// load. So each model is run with each choice of these places at which the thread yields.
#[derive(Clone, Copy)]
struct Turns(u32);

impl Turns {
    const PLACES: u32 = 3;

    fn at(self, place: u32) {
        assert!(place < Self::PLACES);
        if self.0 >> place & 1 != 0 {
            thread::yield_now();
        }
    }
}

/// Every interleaving.
fn explore(model: impl Fn(Turns) + Copy + Sync + Send + 'static) {
    check(None, model);
}

/// Every interleaving with at most this many preemptions: of those models that would take minutes otherwise.
fn explore_bounded(preemptions: usize, model: impl Fn(Turns) + Copy + Sync + Send + 'static) {
    check(Some(preemptions), model);
}

fn check(preemptions: Option<usize>, model: impl Fn(Turns) + Copy + Sync + Send + 'static) {
    for choice in 0..1 << Turns::PLACES {
        let mut builder = Builder::new();
        builder.preemption_bound = preemptions;
        builder.check(move || model(Turns(choice)));
    }
}

/// Where a thread that is to die stops: `alive` is false from the step on.
struct Life(usize);

impl Life {
    fn alive(&mut self) -> bool {
        let alive = self.0 > 0;
        self.0 = self.0.saturating_sub(1);
        alive
    }
}

/// Memory that only those may touch at the same time who only read it.
struct Memory(UnsafeCell<u64>);

// SAFETY: loom checks each access.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    fn new() -> Self {
        Self(UnsafeCell::new(0))
    }

    fn write(&self, value: u64) {
        // SAFETY: loom fails the model if another access is not ordered with this one.
        self.0.with_mut(|place| unsafe { *place = value });
    }

    fn read(&self) -> u64 {
        // SAFETY: as above.
        self.0.with(|place| unsafe { *place })
    }
}

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
        let peer = thread::spawn({
            let region = region.clone();
            move || region.transfer(0, check_again)
        });
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
        let peer = thread::spawn({
            let region = region.clone();
            move || {
                region.transfer(0, true);
                region.transfer(1, true);
            }
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
            let peer = thread::spawn({
                let region = region.clone();
                move || {
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
        let reader = thread::spawn({
            let entry = entry.clone();
            move || {
                let lane = MarkCell::default();
                turns.at(0);
                let Some((pass, read)) = entry.read() else { return };
                turns.at(1);
                lane.publish(Mark::new(QP, 0));
                if !look_again || entry.holds(pass) {
                    assert_eq!(read, card(pass.label().into()), "words of two cards");
                }
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

/// A receive: its slot, and the memory that it describes.
struct Receive {
    slot: SlotHeader,
    memory: Memory,
}

impl Receive {
    fn posted() -> Arc<Self> {
        let receive = Self { slot: SlotHeader::default(), memory: Memory::new() };
        receive.post(1);
        Arc::new(receive)
    }

    fn post(&self, lap: u32) {
        self.memory.write(0);
        self.slot.post(lap, Room { bytes: lap, entries: 1, flags: 0 });
    }

    /// A message from this link, if the slot can be had; dies after so many steps.
    fn send(&self, link: u16, mut life: Life) -> bool {
        if !life.alive() {
            return false;
        }
        let Some(claim) = self.slot.claim(link) else { return false };
        if !life.alive() {
            return false;
        }
        assert_ne!(self.slot.room().bytes, 0);
        self.memory.write(link.into());
        life.alive() && self.slot.finish(claim, &Delivery { imm_data: link.into(), ..Delivery::default() })
    }

    /// A short message, beside a slot that stays unclaimed; dies after so many steps.
    fn send_shortly(&self, link: u16, mut life: Life) -> bool {
        if !life.alive() {
            return false;
        }
        let Some(offer) = self.slot.offer() else { return false };
        assert_ne!(self.slot.room().bytes, 0);
        self.memory.write(link.into());
        let delivery = Delivery { imm_data: link.into(), ..Delivery::default() };
        life.alive() && self.slot.fulfil(offer, link, &delivery)
    }

    /// What has come: the link that it came from.
    fn receive(&self) -> Option<u64> {
        let Holder::Done { link } = self.slot.holder() else { return None };
        let delivery = self.slot.delivery();
        assert_eq!(delivery.imm_data, u32::from(link));
        assert_eq!(self.memory.read(), u64::from(link));
        Some(link.into())
    }
}

const FOREVER: Life = Life(usize::MAX);

#[test]
fn two_peers_claim_and_one_has_it() {
    explore(|turns| {
        let receive = Receive::posted();
        let peers = [1, 2].map(|link| {
            let receive = receive.clone();
            thread::spawn(move || receive.send(link, FOREVER))
        });
        turns.at(0);
        let came = receive.receive();
        turns.at(1);
        let sent: Vec<bool> = peers.into_iter().map(|peer| peer.join().unwrap()).collect();
        assert_eq!(sent.iter().filter(|sent| **sent).count(), 1);
        let winner = if sent[0] { 1 } else { 2 };
        assert_eq!(receive.receive(), Some(winner));
        assert!(came.is_none_or(|came| came == winner));
    });
}

/// Consumed, freed and posted again while another peer tries.
#[test]
fn a_slot_lives_again() {
    explore(|turns| {
        let receive = Receive::posted();
        let peers = [1, 2].map(|link| {
            let receive = receive.clone();
            thread::spawn(move || receive.send(link, FOREVER))
        });
        turns.at(0);
        let mut came = 0;
        if receive.receive().is_some() {
            came += 1;
            receive.slot.free();
            turns.at(1);
            receive.post(2);
        }
        let sent = peers.into_iter().map(|peer| u32::from(peer.join().unwrap())).sum::<u32>();
        came += u32::from(receive.receive().is_some());
        assert_eq!(sent, came, "as many came as were sent");
    });
}

#[test]
fn a_receive_is_taken_back_or_claimed() {
    explore(|turns| {
        let receive = Receive::posted();
        let peer = thread::spawn({
            let receive = receive.clone();
            move || receive.send(1, FOREVER)
        });
        turns.at(0);
        let taken = receive.slot.take_back();
        turns.at(1);
        if taken {
            receive.memory.write(9);
        }
        assert_ne!(taken, peer.join().unwrap());
        assert_eq!(receive.slot.holder(), if taken { Holder::Free } else { Holder::Done { link: 1 } });
    });
}

/// The bytes of a short message lie where only its sender writes, whatever becomes of the slot meanwhile.
#[test]
fn a_short_message_is_there_or_its_receive_is_taken_back() {
    explore(|turns| {
        let receive = Receive::posted();
        let peer = thread::spawn({
            let receive = receive.clone();
            move || receive.send_shortly(1, FOREVER)
        });
        turns.at(0);
        let taken = receive.slot.take_back();
        turns.at(1);
        if taken {
            receive.slot.post(2, Room { bytes: 2, entries: 1, flags: 0 });
        }
        let seen = receive.receive();
        let sent = peer.join().unwrap();
        assert!(sent || taken);
        assert!(seen.is_none_or(|link| sent && link == 1));
        assert_eq!(receive.receive(), sent.then_some(1));
        assert!(sent || receive.slot.holder() == Holder::Posted);
    });
}

/// Death leaves the slot as it was or the whole message.
#[test]
fn the_dead_leave_no_half_short_message() {
    for steps in 0..3 {
        explore(move |turns| {
            let receive = Receive::posted();
            let mortal = thread::spawn({
                let receive = receive.clone();
                move || receive.send_shortly(1, Life(steps))
            });
            turns.at(0);
            let seen = receive.receive();
            let sent = mortal.join().unwrap();
            assert!(seen.is_none() || sent);
            assert_eq!(receive.send_shortly(2, FOREVER), !sent);
            assert_eq!(receive.receive(), Some(if sent { 1 } else { 2 }));
        });
    }
}

#[test]
fn a_claim_is_given_back_to_the_next() {
    explore(|turns| {
        let receive = Receive::posted();
        let first = thread::spawn({
            let receive = receive.clone();
            move || {
                let Some(claim) = receive.slot.claim(1) else { return };
                turns.at(1);
                receive.memory.write(1);
                assert!(receive.slot.unclaim(claim));
                assert!(!receive.slot.unclaim(claim), "a claim that was given back");
            }
        });
        turns.at(0);
        let sent = receive.send(2, FOREVER);
        first.join().unwrap();
        assert!(sent || receive.send(2, FOREVER));
        assert_eq!(receive.receive(), Some(2));
    });
}

/// One peer dies after any step, another goes on; whatever the dead one held is offered anew, and no half message comes.
#[test]
fn a_dead_peers_slot_is_recovered() {
    for steps in 0..4 {
        explore(move |turns| {
            let receive = Receive::posted();
            let mortal = thread::spawn({
                let receive = receive.clone();
                move || receive.send(1, Life(steps))
            });
            let other = thread::spawn({
                let receive = receive.clone();
                move || receive.send(2, FOREVER)
            });
            turns.at(0);
            mortal.join().unwrap();
            turns.at(1);
            if matches!(receive.slot.holder(), Holder::Claimed { .. }) {
                receive.slot.recover(1);
            }
            let sent = other.join().unwrap() || receive.send(2, FOREVER);
            assert_eq!(receive.receive(), Some(if sent { 2 } else { 1 }));
            assert!(!receive.slot.recover(1) || !sent, "only the dead one's slot is recovered");
        });
    }
}

/// A ring of two words.
struct Ring {
    header: RingHeader,
    words: [AtomicU64; 2],
    /// What the pushed numbers stand for.
    memory: [Memory; 3],
}

impl Ring {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            header: RingHeader::default(),
            words: Default::default(),
            memory: [Memory::new(), Memory::new(), Memory::new()],
        })
    }

    fn ring(&self) -> IndexRing<'_> {
        IndexRing::new(&self.header, &self.words).unwrap()
    }

    fn push(&self, number: u32) {
        self.memory[number as usize].write(1);
        while !self.ring().push(number) {
            thread::yield_now();
        }
    }

    fn pop(&self, head: &mut u32) -> Option<u32> {
        let number = self.ring().pop(head)?;
        assert_eq!(self.memory[number as usize].read(), 1);
        Some(number)
    }

    /// Waits for so many.
    fn take(&self, count: usize) -> Vec<u32> {
        let mut head = 0;
        let mut numbers = Vec::new();
        while numbers.len() < count {
            match self.pop(&mut head) {
                Some(number) => numbers.push(number),
                None => thread::yield_now(),
            }
        }
        assert_eq!(self.ring().pop(&mut head), None);
        numbers
    }
}

/// Three numbers through two words: it is full once, and a lap passes.
#[test]
fn a_ring_keeps_the_order() {
    explore(|turns| {
        let ring = Ring::new();
        let peer = thread::spawn({
            let ring = ring.clone();
            move || (0..3).for_each(|number| ring.push(number))
        });
        turns.at(0);
        assert_eq!(ring.take(3), [0, 1, 2]);
        peer.join().unwrap();
    });
}

#[test]
fn two_producers_lose_nothing() {
    explore_bounded(3, |turns| {
        let ring = Ring::new();
        let peers = [0, 1].map(|number| {
            let ring = ring.clone();
            thread::spawn(move || ring.push(number))
        });
        turns.at(0);
        let mut numbers = ring.take(2);
        numbers.sort_unstable();
        assert_eq!(numbers, [0, 1]);
        peers.into_iter().for_each(|peer| peer.join().unwrap());
    });
}

/// A producer dies between the word and the tail.
#[test]
fn the_next_producer_helps_the_dead() {
    explore(|turns| {
        let ring = Ring::new();
        let mortal = thread::spawn({
            let ring = ring.clone();
            move || {
                ring.memory[0].write(1);
                ring.ring().push_and_die(0);
            }
        });
        turns.at(0);
        ring.push(1);
        mortal.join().unwrap();
        let mut head = 0;
        let mut numbers: Vec<u32> = std::iter::from_fn(|| ring.pop(&mut head)).collect();
        numbers.sort_unstable();
        // The dead one may have found the word taken, which is to have died before.
        assert!(numbers == [1] || numbers == [0, 1], "{numbers:?}");
    });
}

/// A peer's completion: its slot, then its bit.
struct Completions {
    cq: CqEntry,
    done: [SlotHeader; 2],
}

impl Completions {
    fn new(capacity: u32) -> Arc<Self> {
        let completions = Self { cq: CqEntry::new(), done: Default::default() };
        completions.cq.reset(Some(capacity));
        completions.done.iter().for_each(|slot| slot.post(1, Room { bytes: 1, entries: 1, flags: 0 }));
        Arc::new(completions)
    }

    fn finish(&self, source: usize) {
        let claim = self.done[source].claim(1).unwrap();
        assert!(self.done[source].finish(claim, &Delivery::default()));
    }

    /// Both queue pairs have one bit: the second's source is a multiple of the bits away.
    fn announce(&self, source: usize) -> super::completion::Announced {
        self.cq.announce((source * 64 * super::completion::READY_WORDS) as u32, false)
    }

    /// Owner: consumes what is done, if there is news. Returns how many.
    fn poll(&self) -> u32 {
        if self.cq.take(0) == 0 {
            return 0;
        }
        let done = |slot: &&SlotHeader| matches!(slot.holder(), Holder::Done { .. });
        self.done.iter().filter(done).map(|slot| slot.free()).count() as u32
    }
}

/// Two queue pairs share a bit; nothing is lost between taking it and looking.
#[test]
fn a_ready_bit_brings_its_slot() {
    explore(|turns| {
        let completions = Completions::new(8);
        let peers = [0, 1].map(|source| {
            let completions = completions.clone();
            thread::spawn(move || {
                completions.finish(source);
                turns.at(1);
                completions.announce(source);
            })
        });
        turns.at(0);
        let mut polled = completions.poll();
        peers.into_iter().for_each(|peer| peer.join().unwrap());
        polled += completions.poll();
        assert_eq!(polled, 2);
    });
}

fn wake_up(arm_first: bool) {
    explore(move |turns| {
        let completions = Completions::new(8);
        let peer = thread::spawn({
            let completions = completions.clone();
            move || {
                completions.finish(0);
                completions.announce(0).wake
            }
        });
        turns.at(0);
        if arm_first {
            completions.cq.arm(Armed::Any);
        }
        turns.at(1);
        let polled = completions.poll();
        turns.at(2);
        if !arm_first {
            completions.cq.arm(Armed::Any);
        }
        // With nothing polled the owner sleeps until it is woken.
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

/// Two peers, of whom one wakes, or both before it has told; the owner widens what it waits for meanwhile.
#[test]
fn one_of_two_peers_wakes() {
    explore_bounded(3, |turns| {
        let completions = Completions::new(8);
        completions.cq.arm(Armed::Solicited);
        let peers = [0, 1].map(|source| {
            let completions = completions.clone();
            thread::spawn(move || {
                completions.finish(source);
                let wake = completions.announce(source).wake;
                if wake {
                    completions.cq.told();
                }
                wake
            })
        });
        turns.at(0);
        completions.cq.arm(Armed::Any);
        completions.cq.arm(Armed::Solicited);
        turns.at(1);
        let polled = completions.poll();
        let woken = peers.into_iter().any(|peer| peer.join().unwrap());
        assert!(polled == 2 || woken, "asleep with a completion");
    });
}

/// A peer takes the arming and is stopped before it tells: the next one tells.
#[test]
fn the_stopped_take_no_wake_up_along() {
    explore_bounded(3, |turns| {
        let completions = Completions::new(8);
        let [stopped, runs] = [0, 1].map(|source| {
            let completions = completions.clone();
            thread::spawn(move || {
                completions.finish(source);
                completions.announce(source).wake
            })
        });
        turns.at(0);
        completions.cq.arm(Armed::Any);
        turns.at(1);
        completions.poll();
        stopped.join().unwrap();
        let woken = runs.join().unwrap();
        let unpolled = matches!(completions.done[1].holder(), Holder::Done { .. });
        assert!(woken || !unpolled, "asleep with a completion");
    });
}

/// Notes for the owner's service thread: of all who leave one, somebody rings after the owner has last looked.
#[test]
fn a_note_is_taken_or_rung_for() {
    explore(|turns| {
        let completions = Completions::new(8);
        let peers = [0, 1].map(|_| {
            let completions = completions.clone();
            thread::spawn(move || completions.cq.fire())
        });
        turns.at(0);
        let taken = u32::from(completions.cq.take_fired());
        let rung = peers.into_iter().map(|peer| u32::from(peer.join().unwrap())).sum::<u32>();
        let left = u32::from(completions.cq.take_fired());
        assert_eq!(rung, taken + left, "as many doorbells as notes");
    });
}

/// A peer dies after any step between the slot and the doorbell; the owner, who looks then, does not sleep on.
#[test]
fn the_dead_take_no_wake_up_along() {
    for steps in 0..4 {
        explore(move |turns| {
            let completions = Completions::new(8);
            let mortal = thread::spawn({
                let completions = completions.clone();
                move || {
                    let mut life = Life(steps);
                    if !life.alive() {
                        return;
                    }
                    completions.finish(0);
                    if life.alive() && completions.announce(0).wake && life.alive() {
                        completions.cq.fire();
                    }
                }
            });
            turns.at(0);
            completions.cq.arm(Armed::Any);
            turns.at(1);
            let polled = completions.poll();
            mortal.join().unwrap();
            // What the owner does when a peer has died: it looks at every slot, and takes what is not armed for fired.
            let fired = completions.cq.take_fired() || !completions.cq.is_armed();
            let told = steps >= 2 && polled == 0;
            assert!(!told || fired, "asleep with a completion");
            let there = matches!(completions.done[0].holder(), Holder::Done { .. });
            assert_eq!(there || polled == 1, steps >= 1, "finished is finished");
        });
    }
}

/// The owner polls what was finished before it was counted.
#[test]
fn early_polling_is_no_overrun() {
    explore_bounded(3, |turns| {
        let completions = Completions::new(2);
        let peers = [0, 1].map(|source| {
            let completions = completions.clone();
            thread::spawn(move || {
                completions.finish(source);
                turns.at(1);
                assert!(!completions.announce(source).overrun);
            })
        });
        let done = |slot: &&SlotHeader| matches!(slot.holder(), Holder::Done { .. });
        turns.at(0);
        let polled = completions.done.iter().filter(done).count();
        completions.cq.note_polled(polled as u64);
        peers.into_iter().for_each(|peer| peer.join().unwrap());
        assert!(!completions.cq.is_overrun());
    });
}

#[test]
fn a_third_completion_for_two_is_an_overrun() {
    explore(|_| {
        let completions = Completions::new(2);
        completions.announce(0);
        let peers = [0, 1].map(|source| {
            let completions = completions.clone();
            thread::spawn(move || completions.announce(source).overrun)
        });
        let told = peers.into_iter().map(|peer| u32::from(peer.join().unwrap())).sum::<u32>();
        assert_eq!(told, 1);
        assert!(completions.cq.is_overrun());
    });
}

/// A shared queue with so many receives.
fn shared_queue(available: u32) -> Arc<SrqEntry> {
    let entry = SrqEntry::new();
    entry.add_available(available);
    Arc::new(entry)
}

/// Two claims pass the limit, which is armed at the same time: one event.
#[test]
fn a_limit_is_reached_once() {
    explore_bounded(3, |turns| {
        let entry = shared_queue(2);
        let peers = [0, 1].map(|_| {
            let entry = entry.clone();
            thread::spawn(move || entry.take_available())
        });
        turns.at(0);
        let at_once = entry.set_limit(2);
        let told = peers.into_iter().map(|peer| u32::from(peer.join().unwrap())).sum::<u32>();
        assert_eq!(told + u32::from(at_once), 1);
        assert_eq!(entry.limit(), 0);
        assert!(entry.take_limit_reached());
        assert!(!entry.take_limit_reached());
    });
}

/// The limit is armed again after more was posted: a claimer that slept does not reach the new one.
#[test]
fn a_later_limit_is_not_reached_early() {
    explore_bounded(3, |turns| {
        let entry = shared_queue(2);
        entry.set_limit(2);
        let peers = [0, 1].map(|_| {
            let entry = entry.clone();
            thread::spawn(move || entry.take_available())
        });
        turns.at(0);
        if entry.take_limit_reached() {
            entry.add_available(8);
            turns.at(1);
            assert!(!entry.set_limit(2));
            let told = peers.into_iter().map(|peer| u32::from(peer.join().unwrap())).sum::<u32>();
            assert_eq!(told, 1);
            assert_eq!(entry.limit(), 2);
            assert!(!entry.take_limit_reached());
        } else {
            peers.into_iter().for_each(|peer| {
                peer.join().unwrap();
            });
            assert!(entry.take_limit_reached());
        }
    });
}

/// Receives that are counted before they are offered raise no limit, however they are claimed.
#[test]
fn posting_reaches_no_limit() {
    explore(|turns| {
        let entry = shared_queue(2);
        entry.set_limit(2);
        let receive = Arc::new(SlotHeader::default());
        let peer = thread::spawn({
            let (entry, receive) = (entry.clone(), receive.clone());
            move || receive.claim(1).is_some() && entry.take_available()
        });
        turns.at(0);
        entry.add_available(1);
        turns.at(1);
        receive.post(1, Room { bytes: 1, entries: 1, flags: 0 });
        assert!(!peer.join().unwrap(), "two are left");
    });
}

/// A claimer dies before or after it reaches the limit; the owner looks then.
#[test]
fn the_dead_take_no_limit_event_along() {
    for steps in 0..2 {
        explore(move |turns| {
            let entry = shared_queue(1);
            let mortal = thread::spawn({
                let entry = entry.clone();
                move || {
                    if Life(steps).alive() {
                        entry.take_available();
                    }
                }
            });
            turns.at(0);
            let at_once = entry.set_limit(1);
            mortal.join().unwrap();
            assert_eq!(entry.take_limit_reached(), steps == 1);
            assert!(!at_once || steps == 1);
        });
    }
}
