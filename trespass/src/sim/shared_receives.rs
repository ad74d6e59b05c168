//! Other connections that share an endpoint's receives: they come, take receives, use them, and go.

use super::rng::SimRng;
use crate::protocol::{Lease, Ledger};

/// Connections besides the end's own.
const OTHERS: usize = 3;

/// A shared receive queue's books, and who has them besides.
pub(super) struct SharedReceives {
    ledger: Ledger,
    lease: Lease,
    others: Vec<Lease>,
    first: u32,
    still: bool,
}

impl SharedReceives {
    /// With so many receives beyond what everybody is certain of.
    pub(super) fn new(more: u32, first: u32) -> Self {
        let mut ledger = Ledger::new(first * (OTHERS as u32 + 1) + more);
        let mut lease = Lease::default();
        assert!(ledger.admit(&mut lease, first));
        Self { ledger, lease, others: Vec::new(), first, still: false }
    }

    /// How many of these the end may have.
    pub(super) fn allows(&self, wanted: usize) -> usize {
        self.ledger.allows(&self.lease, wanted as u32) as usize
    }

    /// The end has posted so many.
    pub(super) fn grant(&mut self, count: usize) {
        grant(&mut self.ledger, &mut self.lease, count as u32);
    }

    /// The end's peer has used one.
    pub(super) fn spend(&mut self) {
        assert!(self.ledger.spend(&mut self.lease), "I1: a peer has used a receive of another connection");
    }

    /// The others do nothing from now on.
    pub(super) fn pause(&mut self) {
        self.still = true;
    }

    /// The others do something.
    pub(super) fn act(&mut self, rng: &mut SimRng) {
        if self.still {
            return;
        }
        let at = rng.within(0..OTHERS);
        match self.others.get_mut(at) {
            None => {
                let mut lease = Lease::default();
                // Unless others have it still.
                if self.ledger.admit(&mut lease, self.first) {
                    self.others.push(lease);
                }
            }
            Some(_) if rng.one_in(16) => self.ledger.leave(self.others.swap_remove(at)),
            Some(lease) if lease.held() > 0 && rng.one_in(2) => {
                for _ in 0..rng.within(1..lease.held() as usize + 1) {
                    self.ledger.spend(lease);
                }
            }
            Some(lease) => {
                let count = self.ledger.allows(lease, rng.within(0..100) as u32);
                grant(&mut self.ledger, lease, count);
            }
        }
        self.check();
    }

    /// Nobody was promised what is not posted.
    fn check(&self) {
        let (posted, promised) = self.ledger.totals();
        let leases = self.others.iter().chain([&self.lease]).map(Lease::held).sum::<u32>();
        assert_eq!(promised, leases, "I1: the sum of the windows");
        assert!(promised <= posted && posted <= self.ledger.size(), "I1: {:?}", self.ledger);
    }
}

fn grant(ledger: &mut Ledger, lease: &mut Lease, count: u32) {
    ledger.post(ledger.missing(count));
    ledger.grant(lease, count);
}
