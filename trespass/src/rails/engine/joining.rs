//! How rails come up and go down: offers, proofs, and the exchange of what has arrived.

use std::time::Instant;

use super::super::message::{RailFrame, RailMessage};
use super::super::rail::{Rail, RailCause, RailState, UnconfirmedSend};
use super::{PeerOffer, RailCommand, Rails};
use crate::protocol::{Block, ProtocolError, ProtocolMachine};
use crate::wire::{Endpoint, Role};

impl<B: Block> Rails<B> {
    /// Once enough bytes have passed, the client adds the other rails, so that short connections cost
    /// one queue pair.
    #[inline]
    pub(crate) fn consider_joining(&mut self, protocol: &ProtocolMachine<B>, now: impl FnOnce() -> Instant) {
        if self.has_begun_joining {
            return;
        }
        let passed = protocol.counters();
        let frames = passed.bytes_sent + passed.bytes_received;
        if frames + passed.bytes_announced + passed.bytes_read >= self.setup.join_after {
            self.has_begun_joining = true;
            if self.setup.role == Role::Client {
                let now = now();
                self.rails.iter_mut().skip(1).for_each(|rail| rail.retry_at = Some(now));
            }
        }
    }

    /// Whether the server has receives for another offer.
    pub(super) fn peer_takes_offers(&self) -> bool {
        let is_settled = |rail: &Rail| matches!(rail.state, RailState::Down | RailState::Up);
        self.peer_has_answered || self.rails.iter().all(is_settled)
    }

    pub(super) fn begin_offer(&mut self, at: usize) {
        let rail = &mut self.rails[at];
        rail.begin(rail.generation + 1);
        self.commands.push_back(RailCommand::Create { rail: at, offer: None });
    }

    /// The driver has made a queue pair with its device of this index, or could not.
    pub(crate) fn created(&mut self, at: usize, made: Option<(u8, Endpoint)>, now: Instant) {
        let until = now + self.setup.probe_timeout;
        let rail = &mut self.rails[at];
        if rail.state != RailState::Creating {
            return;
        }
        rail.device = made.map(|(device, _)| device);
        match (made, self.setup.role) {
            (Some((device, endpoint)), Role::Client) => {
                rail.attempts += 1;
                rail.state = RailState::Offered { until };
                let attempt = rail.attempts;
                self.say(None, at, RailMessage::Offer { device, attempt, endpoint });
            }
            // The server has connected it, too.
            (Some((device, endpoint)), Role::Server) => {
                rail.state = RailState::Proving { until };
                self.say(None, at, RailMessage::Answer { device, endpoint });
            }
            (None, role) => {
                self.counters.device_failures += 1;
                self.give_up(at, now);
                if role == Role::Server {
                    self.say(None, at, RailMessage::Refuse);
                }
            }
        }
    }

    /// The driver has connected the client's queue pair and posted its receives, or could not.
    pub(crate) fn connected(&mut self, at: usize, is_connected: bool, now: Instant) {
        if !matches!(self.rails[at].state, RailState::Connecting { .. }) {
            return;
        }
        if is_connected {
            self.rails[at].state = RailState::Proving { until: now + self.setup.probe_timeout };
            self.say(Some(at), at, RailMessage::Prove);
        } else {
            self.fail(at, RailCause::Device);
        }
    }

    /// Handles a message, which came over the rail `over`.
    pub(super) fn take_message(
        &mut self,
        over: usize,
        frame: RailFrame,
        protocol: &mut ProtocolMachine<B>,
        now: Instant,
    ) -> Result<(), ProtocolError> {
        let RailFrame { rail, generation, message } = frame;
        let at = usize::from(rail);
        if at >= self.rails.len() {
            return Err(ProtocolError::Rail { what: "the number", value: at as u64 });
        }
        let is_server = self.setup.role == Role::Server;
        let own = self.rails[at].generation;
        match message {
            RailMessage::Offer { device, .. } | RailMessage::Answer { device, .. }
                if usize::from(device) >= self.setup.peer_devices =>
            {
                return Err(ProtocolError::Rail { what: "the device", value: device.into() });
            }
            RailMessage::Offer { device, attempt, endpoint } if is_server => {
                self.take_offer(at, generation, device, PeerOffer { attempt, endpoint });
            }
            RailMessage::Answer { device, endpoint } if !is_server => {
                let rail = &mut self.rails[at];
                if generation == own && matches!(rail.state, RailState::Offered { .. }) {
                    self.peer_has_answered = true;
                    rail.peer_device = device;
                    // The server has agreed on the end of the generations before.
                    rail.downs = [None; 2];
                    rail.state = RailState::Connecting { peer: endpoint };
                    self.commands.push_back(RailCommand::Connect { rail: at, peer: endpoint });
                }
            }
            RailMessage::Refuse if !is_server => {
                if generation == own && matches!(self.rails[at].state, RailState::Offered { .. }) {
                    // The server has nothing of this generation, so there is nothing to agree on.
                    self.rails[at].has_told = true;
                    self.rails[at].peer_received = Some(0);
                    self.fail(at, RailCause::Peer);
                }
            }
            RailMessage::Prove if over == at => self.take_proof(at, protocol, now),
            RailMessage::Down { received } => self.take_down(at, generation, received, protocol, now)?,
            RailMessage::Offer { .. }
            | RailMessage::Answer { .. }
            | RailMessage::Refuse
            | RailMessage::Prove => {
                return Err(ProtocolError::Rail { what: "the generation", value: generation.into() });
            }
        }
        Ok(())
    }

    fn take_offer(&mut self, at: usize, generation: u32, device: u8, offer: PeerOffer) {
        let rail = &mut self.rails[at];
        let is_new = |than: u32| generation.wrapping_sub(than) as i32 > 0;
        if !is_new(rail.generation) || !is_new(rail.ended) {
            return;
        }
        if rail.state != RailState::Down {
            // The end of the last generation is not agreed on. The client tries again.
            let refusal = RailFrame { rail: at as u8, generation, message: RailMessage::Refuse };
            self.replace_message(refusal, |queued| queued.message == RailMessage::Refuse);
            return;
        }
        // The client has agreed on the end of the generations before.
        rail.downs = [None; 2];
        rail.begin(generation);
        rail.peer_device = device;
        self.commands.push_back(RailCommand::Create { rail: at, offer: Some(offer) });
    }

    fn take_proof(&mut self, at: usize, protocol: &mut ProtocolMachine<B>, now: Instant) {
        let rail = &mut self.rails[at];
        if !matches!(rail.state, RailState::Proving { .. }) {
            return;
        }
        rail.state = RailState::Up;
        rail.attempts = 0;
        rail.came_up(now);
        self.note_sharing();
        self.counters.joined += 1;
        self.limit_reads(protocol);
        if self.setup.role == Role::Server {
            self.say(Some(at), at, RailMessage::Prove);
        }
    }

    /// The peer's end of a rail is down, and it has received this many SENDs over it.
    fn take_down(
        &mut self,
        at: usize,
        generation: u32,
        received: u32,
        protocol: &mut ProtocolMachine<B>,
        now: Instant,
    ) -> Result<(), ProtocolError> {
        let rail = &mut self.rails[at];
        let ahead = generation.wrapping_sub(rail.generation) as i32;
        if ahead < 0 {
            return Ok(());
        }
        if ahead > 0 {
            if self.setup.role == Role::Client {
                return Err(ProtocolError::Rail { what: "the generation", value: generation.into() });
            }
            // The offer of this generation is still on its way, and comes too late.
            rail.ended = generation;
            self.say_down(at, generation, 0);
            return Ok(());
        }
        if rail.peer_received.is_some() {
            return Ok(());
        }
        rail.peer_received = Some(received);
        match rail.state {
            RailState::Down if !rail.has_told => {
                rail.has_told = true;
                self.say_down(at, generation, 0);
            }
            RailState::Stopped => self.resolve(at, protocol, now)?,
            _ => self.fail(at, RailCause::Peer),
        }
        Ok(())
    }

    /// The driver has stopped a rail: nothing more arrives over it.
    pub(crate) fn stopped(
        &mut self,
        at: usize,
        protocol: &mut ProtocolMachine<B>,
        now: Instant,
    ) -> Result<(), ProtocolError> {
        let rail = &mut self.rails[at];
        (rail.state, rail.device) = (RailState::Stopped, None);
        debug_assert!(rail.posted.is_empty(), "the driver has handed in every request");
        rail.posted.clear();
        self.limit_reads(protocol);
        self.confirm(protocol);
        // A PROVE proves nothing over another rail. A DOWN must not wait until this rail's end is
        // agreed on, because that may need the end of another one; it may arrive twice. The others
        // are made up for by a timeout.
        self.messages.retain(|(over, _)| *over != Some(at));
        let downs = self.rails.iter().flat_map(|rail| rail.downs).flatten();
        let again: Vec<_> =
            downs.filter(|down| !self.messages.iter().any(|(_, queued)| queued == down)).collect();
        self.messages.extend(again.into_iter().map(|down| (None, down)));
        let received = self.rails[at].received;
        if !std::mem::replace(&mut self.rails[at].has_told, true) {
            let generation = self.rails[at].generation;
            self.say_down(at, generation, received);
        }
        if self.rails[at].peer_received.is_some() {
            self.resolve(at, protocol, now)?;
        }
        Ok(())
    }

    /// Both ends are down and know what has arrived: the rest is sent again.
    fn resolve(
        &mut self,
        at: usize,
        protocol: &mut ProtocolMachine<B>,
        now: Instant,
    ) -> Result<(), ProtocolError> {
        let rail = &mut self.rails[at];
        let said = rail.peer_received.unwrap_or(0);
        let mut arrived = said.wrapping_sub(rail.confirmed);
        let all: u32 = rail.unconfirmed.iter().copied().map(UnconfirmedSend::count).sum();
        if arrived > all {
            return Err(ProtocolError::Rail { what: "a number of received frames of", value: said.into() });
        }
        let sends = std::mem::take(&mut rail.unconfirmed);
        for send in sends {
            let has_arrived = arrived > 0;
            arrived = arrived.saturating_sub(send.count());
            match send {
                UnconfirmedSend::Frame(seq) if has_arrived => {
                    if let Some(done) = self.sent.arrived(seq) {
                        protocol.sent_and_kept(done.copied, done.memory);
                    }
                }
                UnconfirmedSend::Frame(seq) => self.sent.repeat(seq),
                UnconfirmedSend::Messages(_) => {}
            }
        }
        self.give_up(at, now);
        Ok(())
    }

    /// A rail has no queue pair any more. The client makes another one later.
    fn give_up(&mut self, at: usize, now: Instant) {
        let rail = &mut self.rails[at];
        (rail.state, rail.device) = (RailState::Down, None);
        let out = rail.backoff.failed(now);
        rail.retry_at = (self.setup.role == Role::Client).then(|| now + out);
    }
}
