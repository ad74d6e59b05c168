//! Other connections that share an endpoint's receives. They come, take receives, use them, and go.

use super::rng::SimRng;
use crate::protocol::{Lease, Ledger};

/// The number of connections in addition to the end's.
const OTHERS: usize = 3;

/// The ledger of a shared receive queue, and the leases of its users.
pub(super) struct SharedReceives {
    ledger: Ledger,
    lease: Lease,
    others: Vec<Lease>,
    first: u32,
    still: bool,
}

impl SharedReceives {
    /// A queue with `more` receives beyond those guaranteed to each connection.
    pub(super) fn new(more: u32, first: u32) -> Self {
        let mut ledger = Ledger::new(first * (OTHERS as u32 + 1) + more);
        let mut lease = Lease::default();
        assert!(ledger.admit(&mut lease, first));
        Self { ledger, lease, others: Vec::new(), first, still: false }
    }

    /// The part of `wanted` receives that the end may have.
    pub(super) fn allows(&self, wanted: usize) -> usize {
        self.ledger.allows(&self.lease, wanted as u32) as usize
    }

    /// Grants `count` receives to the end.
    pub(super) fn grant(&mut self, count: usize) {
        grant(&mut self.ledger, &mut self.lease, count as u32);
    }

    /// The end's peer has used a receive.
    pub(super) fn spend(&mut self) {
        assert!(self.ledger.spend(&mut self.lease), "I1: a peer has used a receive of another connection");
    }

    /// Stops the other connections.
    pub(super) fn pause(&mut self) {
        self.still = true;
    }

    /// Lets another connection act.
    pub(super) fn act(&mut self, rng: &mut SimRng) {
        if self.still {
            return;
        }
        let at = rng.within(0..OTHERS);
        match self.others.get_mut(at) {
            None => {
                let mut lease = Lease::default();
                // The ledger refuses a new connection while others hold too much.
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

    /// Checks that no receive is promised that is not posted.
    fn check(&self) {
        let (posted, promised) = self.ledger.totals();
        let leases = self.others.iter().chain([&self.lease]).map(Lease::held).sum::<u32>();
        assert_eq!(promised, leases, "I1: promised receives differ from the sum of the leases");
        assert!(promised <= posted && posted <= self.ledger.size(), "I1: {:?}", self.ledger);
    }
}

fn grant(ledger: &mut Ledger, lease: &mut Lease, count: u32) {
    ledger.post(ledger.missing(count));
    ledger.grant(lease, count);
}
