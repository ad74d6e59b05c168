//! The accounting of a shared receive queue: how many of its receives each connection may use.
//!
//! Each connection has a [`Lease`]: the receives that its peer knows of or is about to learn of.
//! The sum of all leases never exceeds the posted receives, so that no peer ever finds none. Each
//! connection is guaranteed its first few, which are kept free for it even while it has fewer. Of
//! the rest, one half is kept for future connections, because a grant cannot be revoked. The other
//! half goes to any connection that asks, but none may hold more than remains free after its grant.
//! The fuller the queue, the less each may have, and a connection that holds more gets nothing new
//! until it has used that up.

/// The accounts of a shared receive queue.
#[derive(Clone, Debug)]
pub(crate) struct Ledger {
    /// The most receives that the queue can hold.
    size: u32,
    /// Posted receives.
    posted: u32,
    /// The sum of the leases.
    promised: u32,
    /// The sum of all guarantees.
    certain: u32,
    /// The sum of what leases hold beyond their guarantees.
    beyond: u32,
}

/// The receives of one connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Lease {
    held: u32,
    /// Its guaranteed receives.
    first: u32,
}

impl Lease {
    /// Receives that it may use.
    pub(crate) fn held(&self) -> u32 {
        self.held
    }

    fn beyond(&self) -> u32 {
        self.held.saturating_sub(self.first)
    }
}

impl Ledger {
    pub(crate) fn new(size: u32) -> Self {
        Self { size, posted: 0, promised: 0, certain: 0, beyond: 0 }
    }

    pub(crate) fn size(&self) -> u32 {
        self.size
    }

    /// Posted receives, and the sum of the leases.
    #[cfg(test)]
    pub(crate) fn totals(&self) -> (u32, u32) {
        (self.posted, self.promised)
    }

    /// Guarantees a new connection `first` receives; returns whether the queue has room for it.
    pub(crate) fn admit(&mut self, lease: &mut Lease, first: u32) -> bool {
        if first > self.size - self.certain - self.beyond {
            return false;
        }
        self.certain += first;
        *lease = Lease { held: 0, first };
        true
    }

    /// The number of further receives, at most `wanted`, that it may have now.
    pub(crate) fn allows(&self, lease: &Lease, wanted: u32) -> u32 {
        let certain = lease.first.saturating_sub(lease.held);
        let left = ((self.size - self.certain) / 2).saturating_sub(self.beyond);
        // As many that it does not hold more than remains free afterwards.
        let beyond = left.saturating_sub(lease.beyond()) / 2;
        wanted.min(certain + beyond)
    }

    /// The number of receives to post before `more` further ones can be granted.
    pub(crate) fn missing(&self, more: u32) -> u32 {
        (self.promised + more).saturating_sub(self.posted)
    }

    /// Counts posted receives.
    pub(crate) fn post(&mut self, count: u32) {
        self.posted += count;
    }

    /// Grants further receives, which are [allowed](Self::allows) and posted.
    pub(crate) fn grant(&mut self, lease: &mut Lease, count: u32) {
        let before = lease.beyond();
        lease.held += count;
        self.promised += count;
        self.beyond += lease.beyond() - before;
        debug_assert!(
            self.promised <= self.posted && self.certain + self.beyond <= self.size,
            "{self:?} {lease:?}"
        );
    }

    /// Counts a used receive; returns whether the connection had one.
    pub(crate) fn spend(&mut self, lease: &mut Lease) -> bool {
        self.posted = self.posted.saturating_sub(1);
        if lease.held == 0 {
            return false;
        }
        let before = lease.beyond();
        lease.held -= 1;
        self.promised -= 1;
        self.beyond -= before - lease.beyond();
        true
    }

    /// Counts a receive that was used without a lease.
    pub(crate) fn lose(&mut self) {
        self.posted = self.posted.saturating_sub(1);
    }

    /// Removes a connection, whose peer uses no receive any more.
    pub(crate) fn leave(&mut self, lease: Lease) {
        self.promised -= lease.held;
        self.certain -= lease.first;
        self.beyond -= lease.beyond();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::{Rng, SeedableRng};

    /// Grants a connection what it may have, as a driver does.
    fn replenish(ledger: &mut Ledger, lease: &mut Lease, wanted: u32) -> u32 {
        let count = ledger.allows(lease, wanted);
        ledger.post(ledger.missing(count));
        ledger.grant(lease, count);
        count
    }

    #[test]
    fn each_connection_is_certain_of_its_first_receives() {
        let mut ledger = Ledger::new(20);
        let mut leases = [Lease::default(); 4];
        assert!(leases.iter_mut().all(|lease| ledger.admit(lease, 5)));
        assert!(!ledger.admit(&mut Lease::default(), 1), "there is no room for a fifth");
        for lease in &mut leases {
            assert_eq!(replenish(&mut ledger, lease, 64), 5);
        }
        assert_eq!(ledger.totals(), (20, 20));
        assert!(ledger.spend(&mut leases[2]));
        assert_eq!(replenish(&mut ledger, &mut leases[1], 1), 0, "it is kept for who has used it");
        assert_eq!(replenish(&mut ledger, &mut leases[2], 1), 1);
    }

    #[test]
    fn free_receives_are_split_among_connections_that_ask() {
        let mut ledger = Ledger::new(105);
        let (mut one, mut other) = (Lease::default(), Lease::default());
        assert!(ledger.admit(&mut one, 5) && ledger.admit(&mut other, 5));
        // Of the 95 receives that no connection is guaranteed, 47 are for existing connections.
        assert_eq!(replenish(&mut ledger, &mut one, 60), 5 + 23);
        assert_eq!(replenish(&mut ledger, &mut one, 60), 0);
        assert_eq!(replenish(&mut ledger, &mut other, 60), 5 + 12);
        // Receives that one connection is not granted again are free for the other.
        for _ in 0..20 {
            assert!(ledger.spend(&mut one));
        }
        assert_eq!(replenish(&mut ledger, &mut other, 60), 10);
        ledger.leave(other);
        let (posted, promised) = ledger.totals();
        assert_eq!((posted, promised), (35, one.held()), "receives stay posted, for whoever asks next");
        assert_eq!(ledger.missing(27), 0);
    }

    /// However many receives the existing connections want.
    #[test]
    fn new_connections_find_room_while_others_are_busy() {
        let mut ledger = Ledger::new(200);
        let mut busy = [Lease::default(); 4];
        for lease in &mut busy {
            assert!(ledger.admit(lease, 5));
            while replenish(&mut ledger, lease, 1000) > 0 {}
        }
        let mut more = [Lease::default(); 18];
        assert!(more.iter_mut().all(|lease| ledger.admit(lease, 5)), "{ledger:?}");
        assert!(more.iter_mut().all(|lease| replenish(&mut ledger, lease, 5) == 5), "{ledger:?}");
    }

    #[test]
    fn overdrawing_a_lease_is_detected() {
        let mut ledger = Ledger::new(10);
        let (mut one, mut other) = (Lease::default(), Lease::default());
        assert!(ledger.admit(&mut one, 5) && ledger.admit(&mut other, 5));
        assert_eq!(replenish(&mut ledger, &mut one, 5), 5);
        assert!(!ledger.spend(&mut other));
        assert_eq!(ledger.missing(0), 1, "it has to be posted again at once");
    }

    /// Whatever connections do, all granted receives are posted, and each connection gets its
    /// guarantee.
    #[test]
    fn promises_never_exceed_what_is_posted() {
        for seed in 0..200 {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let mut below = |n: u32| rng.next_u32() % n;
            let first = 5 + below(4);
            let mut ledger = Ledger::new(first * 4 + below(200));
            let mut leases: Vec<Lease> = Vec::new();
            for _ in 0..500 {
                match below(8) {
                    0 => {
                        let mut lease = Lease::default();
                        if ledger.admit(&mut lease, first) {
                            leases.push(lease);
                        }
                    }
                    1 if !leases.is_empty() => {
                        ledger.leave(leases.swap_remove(below(leases.len() as u32) as usize));
                    }
                    step if !leases.is_empty() => {
                        let at = below(leases.len() as u32) as usize;
                        if step < 5 {
                            let wanted = below(64);
                            replenish(&mut ledger, &mut leases[at], wanted);
                            assert!(leases[at].held() >= first.min(wanted));
                        } else if leases[at].held() > 0 {
                            assert!(ledger.spend(&mut leases[at]));
                        }
                    }
                    _ => (),
                }
                let (posted, promised) = ledger.totals();
                assert_eq!(promised, leases.iter().map(Lease::held).sum::<u32>());
                assert!(promised <= posted && posted <= ledger.size(), "{ledger:?}");
            }
        }
    }
}
