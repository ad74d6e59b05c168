//! Loom models of a receive queue's slot, from posting to consumption.

use loom::sync::Arc;
use loom::thread;

use super::{CheckedCell, LifeUntil, explore, how_many, spawn};
use crate::shared::slot::{Delivery, Holder, RecvCapacity, SlotHeader, claim_first};

/// A receive: its slot, and the memory that it describes.
struct ReceiveModel {
    slot: SlotHeader,
    memory: CheckedCell,
}

impl ReceiveModel {
    fn posted() -> Arc<Self> {
        let receive = Self { slot: SlotHeader::default(), memory: CheckedCell::new() };
        receive.post(1);
        Arc::new(receive)
    }

    fn post(&self, lap: u32) {
        self.memory.write(0);
        self.slot.post(lap, RecvCapacity { bytes: lap, entries: 1 });
    }

    /// Sends a message if the slot can be claimed; dies after the steps of `life`. True if it was
    /// delivered.
    fn send(&self, peer_id: u16, mut life: LifeUntil) -> bool {
        if !life.alive() {
            return false;
        }
        let Some(claim) = self.slot.claim(peer_id) else { return false };
        if !life.alive() {
            return false;
        }
        assert_ne!(self.slot.room().bytes, 0);
        self.memory.write(peer_id.into());
        life.alive() && self.slot.finish(claim, &Delivery { imm_data: peer_id.into(), ..Delivery::default() })
    }

    /// Sends a short message into a slot that stays unclaimed; dies after the steps of `life`. True
    /// if it was delivered.
    fn fast_send(&self, peer_id: u16, mut life: LifeUntil) -> bool {
        if !life.alive() {
            return false;
        }
        let Some(posted_state) = self.slot.posted_state() else { return false };
        assert_ne!(self.slot.room().bytes, 0);
        self.memory.write(peer_id.into());
        let delivery = Delivery { imm_data: peer_id.into(), ..Delivery::default() };
        life.alive() && self.slot.fulfil(posted_state, peer_id, &delivery)
    }

    /// The `peer_id` of the delivered message, if one has arrived.
    fn receive(&self) -> Option<u64> {
        let Holder::Done { peer_id } = self.slot.holder() else { return None };
        let delivery = self.slot.delivery();
        assert_eq!(delivery.imm_data, u32::from(peer_id));
        assert_eq!(self.memory.read(), u64::from(peer_id));
        Some(peer_id.into())
    }
}

const FOREVER: LifeUntil = LifeUntil(usize::MAX);

#[test]
fn two_peers_claim_and_one_has_it() {
    explore(|yields| {
        let receive = ReceiveModel::posted();
        let peers = [1, 2].map(|peer_id| spawn(&receive, move |receive| receive.send(peer_id, FOREVER)));
        yields.at(0);
        let came = receive.receive();
        yields.at(1);
        let sent: Vec<bool> = peers.into_iter().map(|peer| peer.join().unwrap()).collect();
        assert_eq!(sent.iter().filter(|sent| **sent).count(), 1);
        let winner = if sent[0] { 1 } else { 2 };
        assert_eq!(receive.receive(), Some(winner));
        assert!(came.is_none_or(|came| came == winner));
    });
}

/// The owner consumes, frees and posts a slot again while another peer tries to claim it.
#[test]
fn a_slot_lives_again() {
    explore(|yields| {
        let receive = ReceiveModel::posted();
        let peers = [1, 2].map(|peer_id| spawn(&receive, move |receive| receive.send(peer_id, FOREVER)));
        yields.at(0);
        let mut came = 0;
        if receive.receive().is_some() {
            came += 1;
            receive.slot.free();
            yields.at(1);
            receive.post(2);
        }
        let sent = how_many(peers);
        came += u32::from(receive.receive().is_some());
        assert_eq!(sent, came, "as many came as were sent");
    });
}

#[test]
fn a_receive_is_taken_back_or_claimed() {
    explore(|yields| {
        let receive = ReceiveModel::posted();
        let peer = spawn(&receive, move |receive| receive.send(1, FOREVER));
        yields.at(0);
        let taken = receive.slot.take_back();
        yields.at(1);
        if taken {
            receive.memory.write(9);
        }
        assert_ne!(taken, peer.join().unwrap());
        assert_eq!(receive.slot.holder(), if taken { Holder::Free } else { Holder::Done { peer_id: 1 } });
    });
}

/// A short message either arrives, or its receive was taken back. Its bytes lie where only its
/// sender writes, whatever happens to the slot.
#[test]
fn a_short_message_is_there_or_its_receive_is_taken_back() {
    explore(|yields| {
        let receive = ReceiveModel::posted();
        let peer = thread::spawn({
            let receive = receive.clone();
            move || receive.fast_send(1, FOREVER)
        });
        yields.at(0);
        let taken = receive.slot.take_back();
        yields.at(1);
        if taken {
            receive.slot.post(2, RecvCapacity { bytes: 2, entries: 1 });
        }
        let seen = receive.receive();
        let sent = peer.join().unwrap();
        assert!(sent || taken);
        assert!(seen.is_none_or(|peer_id| sent && peer_id == 1));
        assert_eq!(receive.receive(), sent.then_some(1));
        assert!(sent || receive.slot.holder() == Holder::Posted);
    });
}

/// A sender that dies leaves either an untouched slot or a whole message.
#[test]
fn the_dead_leave_no_half_short_message() {
    for steps in 0..3 {
        explore(move |yields| {
            let receive = ReceiveModel::posted();
            let mortal = thread::spawn({
                let receive = receive.clone();
                move || receive.fast_send(1, LifeUntil(steps))
            });
            yields.at(0);
            let seen = receive.receive();
            let sent = mortal.join().unwrap();
            assert!(seen.is_none() || sent);
            assert_eq!(receive.fast_send(2, FOREVER), !sent);
            assert_eq!(receive.receive(), Some(if sent { 1 } else { 2 }));
        });
    }
}

#[test]
fn a_claim_is_given_back_to_the_next() {
    explore(|yields| {
        let receive = ReceiveModel::posted();
        let first = spawn(&receive, move |receive| {
            let Some(claim) = receive.slot.claim(1) else { return };
            yields.at(1);
            receive.memory.write(1);
            assert!(receive.slot.unclaim(claim));
            assert!(!receive.slot.unclaim(claim), "a claim that was given back");
        });
        yields.at(0);
        let sent = receive.send(2, FOREVER);
        first.join().unwrap();
        assert!(sent || receive.send(2, FOREVER));
        assert_eq!(receive.receive(), Some(2));
    });
}

/// One peer dies after any step while another continues. The dead peer's slot is posted again, and
/// no partial message arrives.
#[test]
fn a_dead_peers_slot_is_recovered() {
    for steps in 0..4 {
        explore(move |yields| {
            let receive = ReceiveModel::posted();
            let mortal = spawn(&receive, move |receive| receive.send(1, LifeUntil(steps)));
            let other = spawn(&receive, move |receive| receive.send(2, FOREVER));
            yields.at(0);
            mortal.join().unwrap();
            yields.at(1);
            if matches!(receive.slot.holder(), Holder::Claimed { .. }) {
                receive.slot.recover(1);
            }
            let sent = other.join().unwrap() || receive.send(2, FOREVER);
            assert_eq!(receive.receive(), Some(if sent { 2 } else { 1 }));
            assert!(!receive.slot.recover(1) || !sent, "only the dead one's slot is recovered");
        });
    }
}

/// Two receives, for a list of two messages.
struct TwoReceives([ReceiveModel; 2]);

impl TwoReceives {
    fn posted() -> Arc<Self> {
        let receive = || {
            let receive = ReceiveModel { slot: SlotHeader::default(), memory: CheckedCell::new() };
            receive.post(1);
            receive
        };
        Arc::new(Self([receive(), receive()]))
    }

    /// Claims both, writes both, and finishes one after the other; dies after the steps of `life`.
    /// Returns how many it has finished.
    fn send(&self, peer_id: u16, mut life: LifeUntil) -> usize {
        let Self(receives) = self;
        let mut claims = Vec::new();
        for receive in receives {
            if !life.alive() {
                return 0;
            }
            claims.extend(receive.slot.claim(peer_id));
        }
        for receive in receives {
            if !life.alive() {
                return 0;
            }
            receive.memory.write(peer_id.into());
        }
        let delivery = Delivery { imm_data: peer_id.into(), ..Delivery::default() };
        let finish =
            |(receive, claim): (&ReceiveModel, _)| life.alive() && receive.slot.finish(claim, &delivery);
        receives.iter().zip(claims).map(finish).take_while(|done| *done).count()
    }
}

/// A peer dies after any step of a list. The messages that arrived are whole and are the first of
/// the list; the other slots are posted again.
#[test]
fn of_a_dead_peers_list_the_first_have_come() {
    for steps in 0..7 {
        explore(move |yields| {
            let two = TwoReceives::posted();
            let mortal = thread::spawn({
                let two = two.clone();
                move || two.send(1, LifeUntil(steps))
            });
            yields.at(0);
            let TwoReceives([first, second]) = &*two;
            // The owner looks at the slots in order.
            let seen = usize::from(first.receive().is_some());
            let seen = seen + usize::from(seen == 1 && second.receive().is_some());
            let sent = mortal.join().unwrap();
            assert!(seen <= sent);
            assert_eq!(sent, steps.saturating_sub(4));
            for (number, receive) in two.0.iter().enumerate() {
                assert_eq!(receive.receive().is_some(), number < sent);
                if matches!(receive.slot.holder(), Holder::Claimed { .. }) {
                    assert!(receive.slot.recover(1));
                }
                assert_eq!(receive.send(2, FOREVER), number >= sent);
            }
        });
    }
}

/// A sender gives a list back, the latest first, while the owner takes its receives back, the
/// earliest first.
#[test]
fn a_list_is_given_back_or_taken_back() {
    explore(|yields| {
        let two = TwoReceives::posted();
        let peer = thread::spawn({
            let two = two.clone();
            move || {
                let claims = two.0.each_ref().map(|receive| receive.slot.claim(1));
                yields.at(1);
                for (receive, claim) in two.0.iter().zip(claims).rev() {
                    if let Some(claim) = claim {
                        receive.memory.write(1);
                        assert!(receive.slot.unclaim(claim));
                    }
                }
            }
        });
        yields.at(0);
        let take_back = |receive: &ReceiveModel| {
            let taken = receive.slot.take_back();
            if taken {
                receive.memory.write(9);
            }
            taken
        };
        let early = two.0.iter().take_while(|receive| take_back(receive)).count();
        peer.join().unwrap();
        let late = two.0[early..].iter().take_while(|receive| take_back(receive)).count();
        assert_eq!(early + late, 2, "none stays behind");
    });
}

/// A sender claims the first of several receives that are posted one after the other, whenever it
/// looks.
#[test]
fn the_first_posted_is_claimed() {
    in_order(|two| claim_first(2, 1, |slot| Some(&two.0[slot as usize].slot)).map(|(slot, _)| slot));
}

/// The second look must claim the offer that was seen, because a slot that was posted later may not
/// be the first.
#[test]
#[should_panic(expected = "not the first")]
fn claiming_what_was_not_seen_is_missed() {
    in_order(|TwoReceives([first, second])| {
        if first.slot.claim(1).is_some() {
            return Some(0);
        }
        if matches!(second.slot.holder(), Holder::Posted) {
            return first.slot.claim(1).map(|_| 0);
        }
        second.slot.claim(1).map(|_| 1)
    });
}

fn in_order(take: fn(&TwoReceives) -> Option<u32>) {
    explore(move |yields| {
        let two = TwoReceives(core::array::from_fn(|_| ReceiveModel {
            slot: SlotHeader::default(),
            memory: CheckedCell::new(),
        }));
        let two = Arc::new(two);
        let owner = thread::spawn({
            let two = two.clone();
            move || {
                two.0[0].post(1);
                yields.at(1);
                two.0[1].post(2);
            }
        });
        yields.at(0);
        let taken = take(&two);
        assert!(taken.is_none_or(|taken| taken == 0), "not the first");
        owner.join().unwrap();
        assert!(taken.is_some() || take(&two) == Some(0));
    });
}
