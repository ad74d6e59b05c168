//! Loom models of the limit of a shared receive queue.

use loom::sync::Arc;
use loom::thread;

use super::{LifeUntil, explore, explore_bounded, how_many, spawn};
use crate::shared::progress::SrqCounters;
use crate::shared::slot::{RecvCapacity, SlotHeader};

/// A shared queue with `available` receives.
fn shared_queue(available: u32) -> Arc<SrqCounters> {
    let counters = SrqCounters::default();
    counters.add_available(available);
    Arc::new(counters)
}

/// Two claims pass a limit that is armed at the same time: one event results.
#[test]
fn a_limit_is_reached_once() {
    explore_bounded(3, |yields| {
        let entry = shared_queue(2);
        let peers = [0, 1].map(|_| spawn(&entry, move |entry| entry.take_available()));
        yields.at(0);
        let at_once = entry.set_limit(2);
        let told = how_many(peers);
        assert_eq!(told + u32::from(at_once), 1);
        assert_eq!(entry.limit(), 0);
        assert!(entry.take_limit_reached());
        assert!(!entry.take_limit_reached());
    });
}

/// The owner posts more and arms the limit again: a claimer that slept does not reach the new
/// limit.
#[test]
fn a_later_limit_is_not_reached_early() {
    explore_bounded(3, |yields| {
        let entry = shared_queue(2);
        entry.set_limit(2);
        let peers = [0, 1].map(|_| spawn(&entry, move |entry| entry.take_available()));
        yields.at(0);
        if entry.take_limit_reached() {
            entry.add_available(8);
            yields.at(1);
            assert!(!entry.set_limit(2));
            let told = how_many(peers);
            assert_eq!(told, 1);
            assert_eq!(entry.limit(), 2);
            assert!(!entry.take_limit_reached());
        } else {
            how_many(peers);
            assert!(entry.take_limit_reached());
        }
    });
}

/// Receives that are counted before they are posted raise no limit, however they are claimed.
#[test]
fn posting_reaches_no_limit() {
    explore(|yields| {
        let entry = shared_queue(2);
        entry.set_limit(2);
        let receive = Arc::new(SlotHeader::default());
        let peer = thread::spawn({
            let (entry, receive) = (entry.clone(), receive.clone());
            move || receive.claim(1).is_some() && entry.take_available()
        });
        yields.at(0);
        entry.add_available(1);
        yields.at(1);
        receive.post(1, RecvCapacity { bytes: 1, entries: 1 });
        assert!(!peer.join().unwrap(), "two are left");
    });
}

/// A claimer dies before or after it reaches the limit. The owner looks after the death.
#[test]
fn the_dead_take_no_limit_event_along() {
    for steps in 0..2 {
        explore(move |yields| {
            let entry = shared_queue(1);
            let mortal = spawn(&entry, move |entry| {
                if LifeUntil(steps).alive() {
                    entry.take_available();
                }
            });
            yields.at(0);
            let at_once = entry.set_limit(1);
            mortal.join().unwrap();
            assert_eq!(entry.take_limit_reached(), steps == 1);
            assert!(!at_once || steps == 1);
        });
    }
}
