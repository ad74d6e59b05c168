//! Which device a rail uses, and when it moves to another one.

use std::time::{Duration, Instant};

use super::super::rail::RailCause;
use super::{PeerOffer, Rails};
use crate::protocol::Block;
use crate::wire::Role;

/// How often the ports are looked at while a rail waits for one. Another connection may have taken
/// the event of the device.
const LOOK: Duration = Duration::from_secs(1);

impl<B: Block> Rails<B> {
    /// Tells which of this side's devices have an active port, one bit for each. Takes out the rails
    /// over the others.
    pub(crate) fn set_active(&mut self, active: u8) {
        self.active = active;
        for at in 0..self.rails.len() {
            if self.rails[at].device.is_some_and(|device| !self.is_active(device.into())) {
                self.leave(at);
            }
        }
    }

    /// This side's device of a rail.
    #[cfg(test)]
    pub(crate) fn device(&self, at: usize) -> Option<usize> {
        self.rails[at].device.map(usize::from)
    }

    /// Whether a rail is about to be stopped so that it gets another device.
    #[cfg(test)]
    pub(crate) fn is_leaving(&self, at: usize) -> bool {
        self.rails[at].leaving.is_some()
    }

    fn is_active(&self, device: usize) -> bool {
        self.active & (1 << device) != 0
    }

    fn is_used(&self, device: usize) -> bool {
        self.rails.iter().any(|rail| rail.device.map(usize::from) == Some(device))
    }

    fn is_free(&self, device: usize) -> bool {
        self.is_active(device) && !self.is_used(device)
    }

    /// The device for the client's end of a rail: the one of the same index, or another that is free.
    pub(crate) fn device_to_offer(&self, at: usize) -> Option<usize> {
        let devices = self.setup.own_devices;
        (0..devices).map(|more| (at + more) % devices).find(|device| self.is_free(*device))
    }

    /// The server's device for an offer: first one that no rail uses, then the one of the least
    /// `distance`. Each further attempt takes the next one.
    pub(crate) fn device_to_answer<K: Ord>(
        &self,
        offer: &PeerOffer,
        distance: impl Fn(usize) -> K,
    ) -> Option<usize> {
        let mut devices: Vec<_> =
            (0..self.setup.own_devices).filter(|device| self.is_active(*device)).collect();
        devices.sort_by_key(|device| (self.is_used(*device), distance(*device)));
        let at = (offer.attempt.saturating_sub(1) as usize).checked_rem(devices.len())?;
        devices.get(at).copied()
    }

    /// Whether another rail that works has the same device of this side, and came up before this one.
    fn shares_a_device(&self, at: usize) -> bool {
        let rail = &self.rails[at];
        let since = rail.backoff.up_since();
        let mut others = self.rails.iter().enumerate().filter(|(other, _)| *other != at);
        rail.is_up()
            && others.any(|(_, other)| {
                other.is_up() && other.device == rail.device && other.backoff.up_since() <= since
            })
    }

    /// When a rail of the server has worked for long enough to move away from a device that it shares.
    /// It is the longer, the more often a move has not helped. `None` if the rail does not share.
    fn moves_at(&self, at: usize) -> Option<Instant> {
        let rail = &self.rails[at];
        if !self.is_sharing || self.is_finishing || !self.shares_a_device(at) {
            return None;
        }
        let since = rail.backoff.up_since()?;
        let wait = rail.backoff.trusted_at()?.saturating_duration_since(since);
        since.checked_add(wait.saturating_mul(1 << rail.moves.min(16)))
    }

    fn any_is_free(&self) -> bool {
        (0..self.setup.own_devices).any(|device| self.is_free(device))
    }

    /// Whether a request has completed over another rail since then.
    fn has_other_that_works(&self, at: usize, since: Instant) -> bool {
        let mut others = self.rails.iter().enumerate().filter(|(other, _)| *other != at);
        others.any(|(_, rail)| rail.is_up() && rail.has_completed_since(since))
    }

    /// Stops a rail of the server that shares a device while another one is free. The client's next
    /// offer gets that one. First a request over another rail must complete, because this may be the
    /// only one that works. Returns whether there is something to do for it.
    pub(super) fn consider_moving(&mut self, at: usize, now: Instant) -> bool {
        if self.moves_at(at).is_none_or(|moves_at| now < moves_at) || !self.any_is_free() {
            self.rails[at].leaving = None;
            return false;
        }
        let Some(since) = self.rails[at].leaving else {
            self.rails[at].leaving = Some(now);
            let others = self.rails.iter_mut().enumerate().filter(|(other, _)| *other != at);
            let idle = others.filter(|(_, rail)| rail.is_up() && rail.posted.is_empty());
            idle.for_each(|(_, rail)| rail.probe_is_due = true);
            return true;
        };
        let works = self.has_other_that_works(at, since);
        if works {
            self.rails[at].moves = self.rails[at].moves.saturating_add(1);
            self.fail(at, RailCause::Move);
        }
        works
    }

    /// A rail has come up or gone out. One with a device alone is where it belongs.
    pub(super) fn note_sharing(&mut self) {
        self.is_sharing = false;
        for at in 0..self.rails.len() {
            if self.shares_a_device(at) {
                self.is_sharing |= self.setup.role == Role::Server;
            } else if self.rails[at].is_up() {
                self.rails[at].moves = 0;
            }
        }
    }

    /// When [`consider_moving`](Self::consider_moving) must run for a rail.
    pub(super) fn moving_deadline(&self, at: usize) -> Option<Instant> {
        let moves_at = self.moves_at(at)?;
        if let Some(since) = self.rails[at].leaving {
            return self.has_other_that_works(at, since).then_some(since);
        }
        Some(if self.any_is_free() { moves_at } else { moves_at.max(self.ticked + LOOK) })
    }

    /// When the client may offer a rail again that is down.
    pub(super) fn offer_deadline(&self, at: usize) -> Option<Instant> {
        let retry_at = self.rails[at].retry_at.filter(|_| !self.is_finishing && self.peer_takes_offers())?;
        Some(if self.device_to_offer(at).is_some() { retry_at } else { retry_at.max(self.ticked + LOOK) })
    }
}
