//! Making, connecting and stopping the queue pairs of rails.

use std::time::Instant;

use mio::Token;

use super::super::DeviceBlock;
use super::super::path::{OF_CONNECTION, connect_to, endpoint_of};
use super::super::queue_pair::QueuePairOwner;
use super::polling::TurnClock;
use super::{RailPair, RailsDriver};
use crate::protocol::{Blocks, CallBuffer, ProtocolMachine};
use crate::rails::{PeerOffer, RailCause, RailCommand};
use crate::wire::{Cause, Endpoint, Unavailable};

impl<B: DeviceBlock> RailsDriver<B> {
    /// Does what the rails ask for.
    pub(super) fn execute<P: Blocks<Block = B>>(
        &mut self,
        command: RailCommand,
        protocol: &mut ProtocolMachine<B>,
        blocks: &mut P,
        now: Instant,
    ) {
        match command {
            RailCommand::Create { rail, offer } => {
                let made = self.create(rail, offer, protocol, blocks);
                let made = made.inspect_err(|error| {
                    tracing::info!(rail, ?error, "a rail has no queue pair");
                    drop(self.take_pair(rail));
                });
                self.rails.created(rail, made.ok(), now);
            }
            RailCommand::Connect { rail, peer } => {
                let connected = self.connect(rail, &peer, protocol, blocks);
                let connected = connected.inspect_err(|error| {
                    tracing::info!(rail, ?error, "a rail's queue pair cannot be connected");
                });
                self.rails.connected(rail, connected.is_ok(), now);
            }
            RailCommand::Stop { rail } => self.stop(rail, protocol, now),
        }
    }

    /// Makes a queue pair for a rail. The server connects it, too.
    fn create<P: Blocks<Block = B>>(
        &mut self,
        rail: usize,
        offer: Option<PeerOffer>,
        protocol: &mut ProtocolMachine<B>,
        blocks: &mut P,
    ) -> Result<(u8, Endpoint), Unavailable> {
        // Also in place of the receives that offers have taken.
        self.replenish(protocol, blocks);
        if self.is_limited || protocol.is_finishing() {
            return Err(Unavailable::new(Cause::PeerGaveUp, "the connection ends"));
        }
        self.post_all_receives(protocol, blocks)?;
        let device = self.device_for(rail, offer.as_ref());
        let device = device.ok_or_else(|| Unavailable::new(Cause::DeviceFailed, "no port is active"))?;
        let port = &self.ports[device];
        let mut owner = QueuePairOwner::new(&port.device, &port.describe(), &self.parameters, None)?;
        owner.set_device(device);
        let (own, endpoint) = endpoint_of(&owner.qp, port, &self.parameters)?;
        if let Some(dispatcher) = owner.own_dispatcher() {
            let registered = dispatcher.register(self.channels.registry(), Token(rail));
            registered.map_err(|error| Unavailable::new(Cause::Descriptors, error.to_string()))?;
        }
        tracing::debug!(rail, port = owner.origin, "a rail gets a queue pair");
        self.pairs[rail] = Some(RailPair { owner, device, own: Some(own), to_post: Vec::new() });
        if let Some(offer) = offer {
            self.connect(rail, &offer.endpoint, protocol, blocks)?;
        }
        Ok((device as u8, endpoint))
    }

    /// Posts the receives that messages about several rails need, before the first of these comes.
    fn post_all_receives<P: Blocks<Block = B>>(
        &mut self,
        protocol: &ProtocolMachine<B>,
        blocks: &mut P,
    ) -> Result<(), Unavailable> {
        let Some(wanted) = self.rails.receives_to_add_rails(protocol) else { return Ok(()) };
        for RailPair { owner, .. } in self.pairs.iter_mut().flatten() {
            owner.fill(blocks, wanted, self.slot_size)?;
        }
        self.rails.all_receives_posted();
        Ok(())
    }

    /// The device for an offer to the server, or for one of the client. Of the devices that are equal
    /// otherwise, the server takes the one whose address is most like the offered one.
    fn device_for(&mut self, rail: usize, offer: Option<&PeerOffer>) -> Option<usize> {
        self.ports.iter().for_each(|port| {
            port.device.read_async_events();
        });
        self.look_at_ports();
        let Some(offer) = offer else { return self.rails.device_to_offer(rail) };
        let count = self.ports.len();
        self.rails.device_to_answer(offer, |device| {
            let own = self.ports[device].path.gid().map_or([0; 16], |gid| gid.raw);
            let same = own.iter().zip(&offer.endpoint.gid).take_while(|(own, peer)| own == peer).count();
            (std::cmp::Reverse(same), (device + count - rail % count) % count)
        })
    }

    fn connect<P: Blocks<Block = B>>(
        &mut self,
        rail: usize,
        peer: &Endpoint,
        protocol: &ProtocolMachine<B>,
        blocks: &mut P,
    ) -> Result<(), Unavailable> {
        let Some(RailPair { owner, device, own, .. }) = &mut self.pairs[rail] else { return Ok(()) };
        let Some(own) = own.take() else { return Ok(()) };
        let ends = (&own, peer);
        let port = &self.ports[*device];
        connect_to(&mut owner.qp, port, &self.parameters, ends, self.reads, OF_CONNECTION)?;
        let wanted = self.rails.receives_wanted(protocol, 0);
        owner.fill(blocks, wanted, self.slot_size)?;
        // The completion queue is armed with the others, at the end of a turn.
        self.may_have_events = true;
        Ok(())
    }

    /// Moves a rail's queue pair to the error state, and takes back what it held.
    fn stop(&mut self, rail: usize, protocol: &mut ProtocolMachine<B>, now: Instant) {
        if let Some(pair) = &mut self.pairs[rail] {
            let cause = self.rails.last_cause();
            let port = &pair.owner.origin;
            match cause {
                Some(RailCause::Move) => tracing::info!(rail, port, "a rail moves to an unused device"),
                _ if self.rails.has_come_up(rail) => {
                    tracing::warn!(rail, port, ?cause, "a rail has failed; the others go on");
                }
                // The two ports may not reach each other, which each connection finds again.
                _ => tracing::info!(rail, port, ?cause, "a rail does not come up; the others go on"),
            }
            pair.owner.device.read_async_events();
            pair.owner.stop();
            self.may_answer |= pair.owner.may_answer;
            let clock = &mut TurnClock::at(now);
            self.poll_rail(rail, protocol, None, &mut CallBuffer::default(), clock);
        }
        if let Some(mut pair) = self.take_pair(rail) {
            // What the device has not returned stays with the queue pair, which is drained.
            pair.owner.sends.iter().for_each(|outstanding| self.rails.lost(rail, outstanding, now));
            // The device has never had these.
            pair.to_post.drain(..).for_each(|unposted| self.rails.flushed(rail, unposted.into(), now));
        }
        if let Err(error) = self.rails.stopped(rail, protocol, now) {
            protocol.violated(error);
        }
    }
}
