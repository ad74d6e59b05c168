//! Loom models of an offer: a sender that was misled reads no mixture of two offers.

use loom::sync::Arc;

use super::{YieldPoints, explore, spawn};
use crate::shared::slot::{Claim, OfferHeader, RecvCapacity, SgeEntry};

/// An offer with one entry.
#[derive(Default)]
struct OfferModel {
    header: OfferHeader,
    entry: SgeEntry,
}

impl OfferModel {
    /// The entry's values are those of the lap.
    fn make(&self, lap: u32) {
        self.header.begin();
        self.entry.store(lap.into(), lap, lap);
        self.header.make(lap, RecvCapacity { bytes: lap, entries: 1 });
    }
}

/// The owner consumes a receive and posts another, while a sender that believes a wrong slot reads
/// the offer of `lap`.
fn misled(lap: u32, look_again: bool) -> impl Fn(YieldPoints) + Copy + Sync + Send + 'static {
    move |yields| {
        let offer = Arc::new(OfferModel::default());
        offer.make(1);
        let sender = spawn(&offer, move |offer| {
            yields.at(0);
            let Some(offered) = offer.header.read(Claim::of_lap(lap)) else { return };
            yields.at(1);
            let entry = offer.entry.load();
            if !look_again || offer.header.is_current(offered) {
                assert_eq!(offered.room().bytes, lap);
                assert_eq!(entry, (lap.into(), lap, lap), "entries of two offers");
            }
        });
        yields.at(2);
        offer.header.withdraw();
        offer.make(2);
        sender.join().unwrap();
    }
}

#[test]
fn an_offer_that_is_current_is_whole() {
    explore(misled(1, true));
    explore(misled(2, true));
}

#[test]
#[should_panic(expected = "entries of two offers")]
fn an_offer_that_is_read_once_is_missed() {
    explore(misled(1, false));
}
