//! One end of a connection over several rails: its protocol, its rails, and the driver between
//! these and the modelled queue pairs.

use super::super::memory::{BlockOwner, SimBlock, SimMemory};
use super::super::rng::SimRng;
use super::fabric::{Fabric, ReceiveCompletion, Work};
use crate::protocol::frame::{HEADER_LEN, Immediate};
use crate::protocol::{
    Blocks, CallBuffer, CompletedTransmit, ConnectionEvent, ConnectionKind, ConnectionSetup, FailureCause,
    Frame, PostedSends, ProtocolMachine, Purpose, TransmitItem,
};
use crate::rails::{RailCause, RailCommand, RailItem, Rails, RailsSetup};
use crate::wire::{Endpoint, LinkLayer};
use std::time::{Duration, Instant};

/// Fewer bytes than this may be sent at once.
pub(super) const SHORT: usize = 300;

/// The queue pair of a rail, with the requests that are in its send queue.
struct SimRail {
    qp: usize,
    queue: PostedSends<SimBlock>,
}

pub(super) struct RailsEnd {
    which: usize,
    pub(super) protocol: ProtocolMachine<SimBlock>,
    pub(super) rails: Rails<SimBlock>,
    pub(super) memory: SimMemory,
    pairs: Vec<Option<SimRail>>,
    spare: Vec<SimBlock>,
    /// An item that no rail has room for.
    held: Option<TransmitItem<SimBlock>>,
    slot_size: usize,
    depth: usize,
    /// What a device did not return.
    quarantined: Vec<CompletedTransmit<SimBlock>>,
    pub(super) returned: u64,
    pub(super) failed: Option<FailureCause>,
    pub(super) closed: bool,
    /// When a completion said that a rail has failed, until data goes over another one.
    failed_at: Option<(usize, Instant)>,
    /// How long that took each time.
    pub(super) outages: Vec<Duration>,
    /// A device with which no queue pair can be made.
    pub(super) refused_device: Option<usize>,
    /// The test speaks for its peer.
    pub(super) is_lied_to: bool,
    /// The beginning of a message that is taken in parts.
    pub(super) partial: Vec<u8>,
}

/// An endpoint that names a queue pair of the model.
fn endpoint(qp: usize) -> Endpoint {
    Endpoint {
        qp_num: qp as u32,
        psn: 0,
        gid: [0; 16],
        lid: 0,
        mtu: 5,
        link_layer: LinkLayer::Ethernet,
        service_level: 0,
        traffic_class: 0,
        device: 0,
    }
}

impl RailsEnd {
    pub(super) fn new(
        which: usize,
        setup: &ConnectionSetup,
        rails: RailsSetup,
        memory: SimMemory,
        (qp, depth): (usize, usize),
        now: Instant,
    ) -> Self {
        let mut protocol = ProtocolMachine::new(setup).expect("a setup that works");
        protocol.tick(now);
        let mut pairs: Vec<_> = (0..rails.rails).map(|_| None).collect();
        pairs[0] = Some(SimRail { qp, queue: PostedSends::new(depth) });
        Self {
            which,
            rails: Rails::new(rails, protocol.next_number(), now),
            protocol,
            memory,
            pairs,
            spare: Vec::new(),
            held: None,
            slot_size: setup.own.slot_size as usize,
            depth,
            quarantined: Vec::new(),
            returned: 0,
            failed: None,
            closed: false,
            failed_at: None,
            outages: Vec::new(),
            refused_device: None,
            is_lied_to: false,
            partial: Vec::new(),
        }
    }

    /// The state, for a failure message.
    pub(super) fn state(&self) -> String {
        let queues: Vec<_> = self.pairs.iter().flatten().map(|pair| pair.queue.room()).collect();
        format!(
            "{:?}, closed {}, unsent {}, credits {:?}, held {:?}, room {queues:?}, {:?}, wants {}",
            self.protocol.counters(),
            self.protocol.is_closed(),
            self.protocol.has_unsent(),
            self.protocol.credits(),
            self.held,
            self.rails,
            self.protocol.slots_wanted(),
        )
    }

    /// Posts the receives of the handshake.
    pub(super) fn begin(&mut self, fabric: &mut Fabric) {
        let wanted = self.protocol.slots_wanted();
        assert!(self.post_receives(fabric, 0, wanted), "the memory is too small");
        self.protocol.slots_posted(wanted);
    }

    /// One turn of the driver.
    pub(super) fn turn(&mut self, fabric: &mut Fabric, now: Instant, rng: &mut SimRng) {
        if self.failed.is_some() || self.closed {
            return;
        }
        let most = if rng.one_in(2) { usize::MAX } else { rng.within(0..6) };
        for rail in 0..self.pairs.len() {
            self.poll(fabric, rail, most, now);
        }
        self.rails.consider_joining(&self.protocol, || now);
        if most == usize::MAX {
            self.rails.tick(&mut self.protocol, now);
        }
        self.protocol.tick(now);
        while let Some(command) = self.rails.take_command() {
            self.execute(fabric, command, now, rng);
        }
        if self.rails.is_cut() {
            self.protocol.failed(FailureCause::PeerGone);
        }
        self.replenish(fabric);
        self.send(fabric, now);
        self.take_events(fabric);
    }

    /// The control channel says that the peer is gone. This end first handles all that has arrived.
    pub(super) fn observe_peer_gone(&mut self, fabric: &mut Fabric, now: Instant) {
        (0..self.pairs.len()).for_each(|rail| self.poll(fabric, rail, usize::MAX, now));
        self.protocol.failed(FailureCause::PeerGone);
        self.take_events(fabric);
    }

    fn take_events(&mut self, fabric: &mut Fabric) {
        while let Some(event) = self.protocol.take_event() {
            match event {
                ConnectionEvent::Returned { block, .. } => {
                    assert!(!self.memory.is_sending(block.id()), "I10: {block:?} comes back too early");
                    self.returned += 1;
                }
                ConnectionEvent::PeerClosed => {}
                ConnectionEvent::Closed => self.closed = true,
                ConnectionEvent::Failed(cause) => self.failed = Some(cause),
            }
        }
        if self.failed.is_some() || self.closed {
            self.tear_down(fabric);
        }
    }

    /// Takes completions up to `most` of a rail.
    fn poll(&mut self, fabric: &mut Fabric, rail: usize, most: usize, now: Instant) {
        for _ in 0..most {
            let Some(SimRail { qp, .. }) = &self.pairs[rail] else { return };
            let qp = *qp;
            if let Some(received) = fabric.poll_received(qp) {
                self.received(rail, received, now);
                continue;
            }
            if fabric.flushes_receives(qp) {
                self.rails.fail(rail, RailCause::Device);
            }
            let Some(sent) = fabric.poll_sent(qp) else { return };
            if sent.failed {
                self.rails.fail(rail, RailCause::Path);
                self.failed_at.get_or_insert((rail, now));
            }
            self.complete(rail, sent.id, sent.failed, &sent.data, now);
        }
    }

    fn received(&mut self, rail: usize, received: ReceiveCompletion, now: Instant) {
        let ReceiveCompletion { block, len, immediate } = received;
        let (protocol, spare) = (&mut self.protocol, &mut self.spare);
        let sink = &mut CallBuffer::default();
        self.rails.received(rail, block, len, immediate, protocol, sink, spare, || now);
    }

    fn complete(&mut self, rail: usize, id: u64, failed: bool, data: &[u8], now: Instant) {
        let Some(SimRail { queue, .. }) = &mut self.pairs[rail] else { return };
        while let Some(mut done) = queue.complete(id) {
            release(&self.memory, &done);
            if failed {
                self.rails.flushed(rail, done, now);
                continue;
            }
            if let CompletedTransmit::Read { block, .. } = &mut done {
                block.device_write(0, data);
            }
            self.rails.completed(rail, done, &mut self.protocol, || now);
        }
    }

    fn execute(&mut self, fabric: &mut Fabric, command: RailCommand, now: Instant, rng: &mut SimRng) {
        match command {
            RailCommand::Create { rail, offer } => {
                self.replenish(fabric);
                if !self.post_all_receives(fabric) {
                    return self.rails.created(rail, None, now);
                }
                let device = match &offer {
                    Some(offer) => self.rails.device_to_answer(offer, |device| device != rail),
                    None => self.rails.device_to_offer(rail),
                };
                let refused = self.refused_device;
                let Some(device) = device.filter(|device| Some(*device) != refused && !rng.one_in(16)) else {
                    return self.rails.created(rail, None, now);
                };
                let qp = fabric.create(self.which, rail);
                self.pairs[rail] = Some(SimRail { qp, queue: PostedSends::new(self.depth) });
                if let Some(offer) = offer {
                    fabric.connect(qp, offer.endpoint.qp_num as usize);
                    if !self.post_receives(fabric, rail, 0) {
                        self.destroy(fabric, rail);
                        return self.rails.created(rail, None, now);
                    }
                }
                self.rails.created(rail, Some((device as u8, endpoint(qp))), now);
            }
            RailCommand::Connect { rail, peer } => {
                if let Some(SimRail { qp, .. }) = &self.pairs[rail] {
                    fabric.connect(*qp, peer.qp_num as usize);
                }
                let is_connected = self.post_receives(fabric, rail, 0) && !rng.one_in(16);
                self.rails.connected(rail, is_connected, now);
            }
            RailCommand::Stop { rail } => self.stop(fabric, rail, now),
        }
    }

    fn stop(&mut self, fabric: &mut Fabric, rail: usize, now: Instant) {
        if let Some(SimRail { qp, .. }) = &self.pairs[rail] {
            fabric.fail(*qp);
            self.poll(fabric, rail, usize::MAX, now);
            let Some(SimRail { queue, .. }) = &mut self.pairs[rail] else { return };
            while let Some(done) = queue.drain() {
                self.rails.lost(rail, &done, now);
                self.quarantined.push(done);
            }
            self.destroy(fabric, rail);
        }
        if let Err(error) = self.rails.stopped(rail, &mut self.protocol, now) {
            assert!(self.is_lied_to, "{}: the honest peer is accused: {error}", self.which);
            self.protocol.violated(error);
        }
    }

    /// The blocks of receives return: the device of the model keeps none.
    fn destroy(&mut self, fabric: &mut Fabric, rail: usize) {
        if let Some(SimRail { qp, .. }) = self.pairs[rail].take() {
            fabric.fail(qp);
            drop(fabric.take_receives(qp));
        }
    }

    /// Posts the receives that a rail lacks for `more` that the connection wants to grant. Returns
    /// whether it has them.
    fn post_receives(&mut self, fabric: &mut Fabric, rail: usize, more: usize) -> bool {
        let wanted = self.rails.receives_wanted(&self.protocol, more);
        self.fill(fabric, rail, wanted)
    }

    /// Posts what messages about several rails need, before the first of these is sent.
    fn post_all_receives(&mut self, fabric: &mut Fabric) -> bool {
        let Some(wanted) = self.rails.receives_to_add_rails(&self.protocol) else { return true };
        let has_all =
            (0..self.pairs.len()).all(|rail| self.pairs[rail].is_none() || self.fill(fabric, rail, wanted));
        if has_all {
            self.rails.all_receives_posted();
        }
        has_all
    }

    fn fill(&mut self, fabric: &mut Fabric, rail: usize, wanted: usize) -> bool {
        let Some(SimRail { qp, .. }) = &self.pairs[rail] else { return false };
        while fabric.receives(*qp) < wanted {
            let block = self.spare.pop().or_else(|| self.memory.take(self.slot_size, Purpose::Receive));
            let Some(block) = block else { return false };
            fabric.post_receive(*qp, block);
        }
        true
    }

    fn replenish(&mut self, fabric: &mut Fabric) {
        let wanted = self.protocol.slots_wanted();
        let has = |end: &mut Self, fabric: &mut Fabric, more| {
            (0..end.pairs.len())
                .filter(|rail| end.rails.has_receives(*rail))
                .collect::<Vec<_>>()
                .into_iter()
                .all(|rail| end.post_receives(fabric, rail, more))
        };
        if has(self, fabric, wanted) {
            self.protocol.slots_posted(wanted);
        } else if wanted > 1 && has(self, fabric, 1) {
            self.protocol.slots_posted(1);
        }
        self.spare.clear();
    }

    fn send(&mut self, fabric: &mut Fabric, now: Instant) {
        loop {
            let room: Vec<_> = self
                .pairs
                .iter()
                .map(|pair| pair.as_ref().is_some_and(|pair| pair.queue.room() > 0))
                .collect();
            let has_room = |rail: usize| room[rail];
            let mut starved = false;
            if let Some((rail, item)) = self.rails.next_item(&mut self.memory, &mut starved, has_room) {
                self.post(fabric, rail, item, now);
                continue;
            }
            let any = room.iter().any(|room| *room);
            let next =
                self.held.take().or_else(|| self.protocol.transmit(now, &mut self.memory, usize::from(any)));
            let Some(transmit) = next else { return };
            let chosen = match &transmit {
                TransmitItem::Send(frame) => self.rails.choose_for_frame(frame.len(), has_room),
                TransmitItem::Read(read) => self.rails.choose(read.from.len as usize, true, has_room),
                TransmitItem::Probe => self.rails.choose(0, false, has_room),
            };
            match chosen {
                Some(rail) => self.post(fabric, rail, RailItem::Transmit(transmit), now),
                None => {
                    self.held = Some(transmit);
                    return;
                }
            }
        }
    }

    /// Sends a few bytes as the driver does that sends in the program's call. Returns whether it could.
    pub(super) fn send_at_once(
        &mut self,
        fabric: &mut Fabric,
        kind: ConnectionKind,
        bytes: &[u8],
        now: Instant,
    ) -> bool {
        let is_first = self.held.is_none() && self.rails.is_quiet();
        let may = is_first && bytes.len() < SHORT && self.protocol.allows_single_frame(kind, bytes.len());
        if self.failed.is_some() || self.closed || !may {
            return false;
        }
        let pairs = &self.pairs;
        let has_room = |rail: usize| pairs[rail].as_ref().is_some_and(|pair| pair.queue.room() > 0);
        let Some(rail) = self.rails.choose_for_frame(HEADER_LEN + bytes.len(), has_room) else {
            return false;
        };
        let Some(SimRail { qp, queue }) = &mut self.pairs[rail] else { return false };
        let header = self.protocol.begin_single_frame(bytes.len(), 0);
        let immediate = Immediate::of(&header).filter(|_| self.protocol.uses_immediate());
        let left_out = if immediate.is_some() { HEADER_LEN } else { 0 };
        let id = queue.push_single_frame(None);
        let sent = [&header[left_out..], bytes].concat();
        fabric.post(*qp, id, true, Work::Send(sent, immediate, None));
        self.rails.posted_small(rail, &header, bytes, || now);
        true
    }

    fn post(&mut self, fabric: &mut Fabric, rail: usize, item: RailItem<SimBlock>, now: Instant) {
        self.rails.posted(rail, &item, now);
        let is_message = matches!(item, RailItem::Message(_));
        if !is_message && let Some((_, at)) = self.failed_at.take_if(|(failed, _)| *failed != rail) {
            self.outages.push(now - at);
        }
        let transmit = item.into_transmit();
        let work = match &transmit {
            TransmitItem::Send(frame) => {
                let bytes: Vec<u8> = frame.parts().collect::<Vec<_>>().concat();
                let block = match frame {
                    Frame::Whole { block, .. } => {
                        block.set_owner(BlockOwner::Sending);
                        Some(block.id())
                    }
                    _ => None,
                };
                let immediate = frame.immediate().filter(|_| self.protocol.uses_immediate() && !is_message);
                let left_out = if immediate.is_some() { HEADER_LEN } else { 0 };
                Work::Send(bytes[left_out..].to_vec(), immediate, block)
            }
            TransmitItem::Read(read) => {
                read.into.set_owner(BlockOwner::Receiving);
                let device = self.rails.peer_device(rail);
                let (addr, rkey, len) = (read.from.addr, read.from.rkeys.of(device), read.from.len as usize);
                Work::Read { addr, rkey, device: device as u32, len }
            }
            TransmitItem::Probe => Work::Probe,
        };
        let Some(SimRail { qp, queue }) = &mut self.pairs[rail] else {
            panic!("rail {rail} has no queue pair")
        };
        let (id, _) = queue.push(transmit, true);
        fabric.post(*qp, id, true, work);
    }

    fn tear_down(&mut self, fabric: &mut Fabric) {
        for rail in 0..self.pairs.len() {
            if let Some(SimRail { qp, mut queue }) = self.pairs[rail].take() {
                fabric.fail(qp);
                drop(fabric.take_receives(qp));
                while let Some(done) = queue.drain() {
                    release(&self.memory, &done);
                }
            }
        }
        self.rails.abandon();
        self.held = None;
        self.memory.release_all_sources();
        self.protocol.drained();
        while self.protocol.take_event().is_some() {}
    }

    /// Frees what devices did not return. Nothing else may use these blocks until now.
    pub(super) fn finish(&mut self, fabric: &mut Fabric) {
        self.tear_down(fabric);
        for done in self.quarantined.drain(..) {
            release(&self.memory, &done);
        }
    }
}

/// The device is done with the blocks.
fn release(memory: &SimMemory, done: &CompletedTransmit<SimBlock>) {
    match done {
        CompletedTransmit::Sent(pieces) => {
            let pieces = pieces.iter().flat_map(|pieces| pieces.iter());
            pieces.for_each(|piece| memory.set_owner(piece.block.id(), BlockOwner::Local));
        }
        CompletedTransmit::Part(_) => panic!("frames over several rails hold copies"),
        CompletedTransmit::Read { block, .. } => memory.set_owner(block.id(), BlockOwner::Local),
        CompletedTransmit::Probe => {}
    }
}
