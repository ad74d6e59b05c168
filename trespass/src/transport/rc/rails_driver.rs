//! The driver of a connection over several queue pairs, each between two devices.
//!
//! [`Rails`] decides what goes where and when a rail fails; this driver makes, connects, polls and
//! stops the queue pairs. Each has its own completion queue, whose channel is in one set of
//! descriptors, because rails come and go while others wait for that set.

mod at_once;
mod channels;
mod joining;
mod polling;

use std::io;
use std::net::TcpStream;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Instant;

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use sideway::ibverbs::completion::WorkCompletionStatus;
use sideway::ibverbs::queue_pair::{PostSendGuard, QueuePair, WorkRequestFlags};

pub(super) use self::channels::ChannelSet;
use self::polling::TurnClock;
use super::DeviceBlock;
use super::close_phase::{ClosePhase, UnsentState};
use super::control_channel::ControlChannel;
use super::cq_dispatcher::{CompletedRequest, WorkCompletion};
use super::device::DevicePort;
use super::driver::STEPS_A_TURN;
use super::one_sided::OneSidedPorts;
use super::path::{EarlyCompletions, ProvenPath, QpParameters, RcPath, agreed_reads};
use super::queue_pair::{QueuePairOwner, RcQueuePair};
use super::request::{RequestPayload, needs_head};
use super::wr_id::{self, WrId};
use crate::handshake::Agreed;
use crate::protocol::frame::Immediate;
use crate::protocol::{
    Blocks, CallBuffer, ConnectionKind, FailureCause, GATHER_MAX, ProtocolMachine, Purpose, TransmitItem,
};
use crate::rails::{RailCause, RailItem, Rails, RailsSetup};
use crate::transport::{Driver, PollScope, Sources, SystemEvent};

/// What a connection needs for further rails.
pub(crate) struct RailsPlan {
    /// The ports of this side's devices; the handshake has used the first.
    pub(crate) ports: Vec<DevicePort>,
    pub(crate) setup: RailsSetup,
    pub(crate) channels: ChannelSet,
}

/// The queue pair of a rail.
struct RailPair<B: DeviceBlock> {
    owner: QueuePairOwner<B>,
    /// The index of this side's device.
    device: usize,
    /// Parameters that the peer was told, until the pair is connected.
    own: Option<sideway::ibverbs::connect::Endpoint>,
    /// Items that this turn is to post.
    to_post: Vec<TransmitItem<B>>,
}

/// A connection's queue pairs with its control channel, whose end tells that the peer has gone.
pub(crate) struct RailsDriver<B: DeviceBlock> {
    pairs: Vec<Option<RailPair<B>>>,
    rails: Rails<B>,
    ports: Vec<DevicePort>,
    parameters: QpParameters,
    /// The READs of a queue pair, outgoing and incoming.
    reads: (u8, u8),
    channels: ChannelSet,
    may_have_events: bool,
    control: ControlChannel,
    slot_size: usize,
    phase: ClosePhase,
    spare_blocks: Vec<B>,
    /// An item that no rail takes now.
    held: Option<TransmitItem<B>>,
    early: Option<EarlyCompletions<B>>,
    starved: bool,
    /// The connection cannot go on.
    broken: bool,
    /// A queue pair could not be stopped, and may still answer the peer's READs.
    may_answer: bool,
    doorbells: u64,
    /// The rail of the last frame, and its polls until the others are polled.
    hot: usize,
    polls_left: u32,
    steps: u32,
    is_limited: bool,
}

impl<B: DeviceBlock> RailsDriver<B> {
    /// Continues with the queue pair that the handshake has proved to work. `socket` is the
    /// handshake's non-blocking socket.
    pub(crate) fn new<P: Blocks<Block = B>>(
        path: RcPath<P>,
        plan: RailsPlan,
        socket: TcpStream,
        agreed: &Agreed,
    ) -> io::Result<Self> {
        let parameters = path.parameters().clone();
        let reads = agreed_reads(agreed, &parameters);
        let no_pair = || io::Error::other("no queue pair was made");
        let ProvenPath { mut pair, early } = path.into_proved().ok_or_else(no_pair)?;
        let RailsPlan { ports, setup, channels } = plan;
        let mut pairs: Vec<_> = (0..setup.rails).map(|_| None).collect();
        let slot_size = parameters.slot_size as usize;
        if let Some(dispatcher) = pair.own_dispatcher() {
            dispatcher.register(channels.registry(), Token(0))?;
        }
        pairs[0] = Some(RailPair { owner: pair, device: 0, own: None, to_post: Vec::new() });
        Ok(Self {
            rails: Rails::new(setup, 0, Instant::now()),
            pairs,
            ports,
            parameters,
            reads,
            channels,
            may_have_events: true,
            control: ControlChannel::from_socket(socket),
            slot_size,
            phase: ClosePhase::Open,
            spare_blocks: Vec::new(),
            held: None,
            early: Some(early),
            starved: false,
            broken: false,
            may_answer: false,
            doorbells: 0,
            hot: 0,
            polls_left: 0,
            steps: 0,
            is_limited: false,
        })
    }

    /// After a failure: whether the RESET frame is acknowledged, or given up.
    pub(crate) fn has_told_peer(&self) -> bool {
        self.phase.has_told_peer()
    }

    pub(crate) fn socket(&self) -> Option<crate::process::Descriptor> {
        self.control.socket()
    }

    /// See [`ControlChannel::without_wake_ups`].
    pub(crate) fn control_socket(&self) -> Option<Arc<TcpStream>> {
        self.control.without_wake_ups()
    }

    /// The name of the first device.
    pub(crate) fn device(&self) -> &str {
        self.ports[0].device.name()
    }

    /// Frames of this driver hold copies, so that any number is right.
    pub(crate) fn gather(&self) -> usize {
        GATHER_MAX
    }

    /// Describes the rails in words.
    pub(crate) fn describe(&self) -> String {
        let rails = (0..self.pairs.len()).map(|rail| {
            let origin = self.pairs[rail].as_ref().map_or("no queue pair", |pair| &pair.owner.origin);
            format!("rail {rail} {:?} ({origin})", self.rails.state(rail))
        });
        rails.collect::<Vec<_>>().join(", ")
    }

    /// The ports for one-sided operations beside these queue pairs.
    pub(crate) fn one_sided_ports(&self) -> OneSidedPorts {
        OneSidedPorts::new(self.ports.clone(), self.parameters.clone())
    }

    /// What happened to the rails.
    pub(crate) fn counters(&self) -> crate::rails::RailCounters {
        self.rails.counters()
    }

    #[inline]
    fn report_early_once(&mut self, protocol: &mut ProtocolMachine<B>) {
        // Checked before it is taken, because a spinning caller comes here on every poll.
        if self.early.is_some() {
            self.report_early(protocol);
        }
    }

    #[cold]
    fn report_early(&mut self, protocol: &mut ProtocolMachine<B>) {
        if let Some(early) = self.early.take() {
            protocol.slots_posted(early.first);
            let clock = &mut TurnClock::default();
            early.completed.into_iter().for_each(|completed| {
                self.completed(0, protocol, completed, &mut CallBuffer::default(), clock);
            });
        }
    }

    /// Handles a completion of a rail's queue pair.
    fn completed(
        &mut self,
        rail: usize,
        protocol: &mut ProtocolMachine<B>,
        completed: WorkCompletion<B>,
        sink: &mut CallBuffer<'_>,
        clock: &mut TurnClock,
    ) {
        let Self { pairs, rails, spare_blocks, broken, .. } = self;
        let Some(RailPair { owner, .. }) = &mut pairs[rail] else { return };
        RailEnd { rail, pair: owner, rails, spare: spare_blocks, broken }
            .take(protocol, completed, sink, clock);
    }

    /// Calls a rail's dispatcher. If that fails, so does the rail.
    fn dispatch<T: Default>(
        &mut self,
        rail: usize,
        what: &'static str,
        call: impl FnOnce(&mut super::cq_dispatcher::CqDispatcher<B>) -> io::Result<T>,
    ) -> T {
        let dispatcher = self.pairs[rail].as_mut().and_then(|pair| pair.owner.own_dispatcher());
        let Some(dispatcher) = dispatcher else { return T::default() };
        call(dispatcher).unwrap_or_else(|error| {
            tracing::warn!(rail, %error, "{what} failed");
            self.rails.fail(rail, RailCause::Device);
            T::default()
        })
    }

    /// Posts the receives that the protocol wants, to every rail, and replaces those of messages.
    fn replenish<P: Blocks<Block = B>>(&mut self, protocol: &mut ProtocolMachine<B>, blocks: &mut P) -> bool {
        if self.broken {
            return false;
        }
        // First what the peer may use already.
        let needed = self.rails.receives_wanted(protocol, 0);
        for rail in 0..self.pairs.len() {
            self.post_receives(rail, needed, blocks);
        }
        let wanted = protocol.slots_wanted();
        if wanted == 0 {
            return false;
        }
        let missing = (0..self.pairs.len()).map(|rail| self.post_receives(rail, needed + wanted, blocks));
        let granted = wanted - missing.max().unwrap_or(0).min(wanted);
        protocol.slots_posted(granted);
        self.spare_blocks.truncate(self.slots_kept());
        granted > 0
    }

    /// The spare blocks that are kept for the next receives.
    fn slots_kept(&self) -> usize {
        self.parameters.rx_slots as usize
    }

    /// Posts receives until a rail with a queue pair has `needed`. Returns how many are missing
    /// then.
    #[inline]
    fn post_receives<P: Blocks<Block = B>>(&mut self, rail: usize, needed: usize, blocks: &mut P) -> usize {
        let Some(RailPair { owner, .. }) = &self.pairs[rail] else { return 0 };
        let missing = needed.saturating_sub(owner.receives.len());
        if missing == 0 || !self.rails.has_receives(rail) {
            return 0;
        }
        self.post_missing(rail, missing, blocks)
    }

    #[inline(never)]
    fn post_missing<P: Blocks<Block = B>>(&mut self, rail: usize, missing: usize, blocks: &mut P) -> usize {
        let Some(RailPair { owner, .. }) = &mut self.pairs[rail] else { return 0 };
        let (spare, starved, slot_size) = (&mut self.spare_blocks, &mut self.starved, self.slot_size);
        let posted = owner.post_receives(missing, || {
            let block = spare.pop().or_else(|| blocks.take(slot_size, Purpose::Receive));
            *starved |= block.is_none();
            block
        });
        posted.map_or_else(
            |error| {
                tracing::warn!(rail, %error, "posting receives failed");
                self.rails.fail(rail, RailCause::Device);
                0
            },
            |posted| missing - posted,
        )
    }

    /// Posts what the rails and the connection have to send. Returns whether there was anything.
    #[inline]
    fn send<P: Blocks<Block = B>>(
        &mut self,
        protocol: &mut ProtocolMachine<B>,
        blocks: &mut P,
        clock: &mut TurnClock,
    ) -> bool {
        let nothing = self.held.is_none() && protocol.is_quiet() && self.rails.is_quiet();
        !nothing && !self.broken && self.send_all(protocol, blocks, clock.now())
    }

    fn send_all<P: Blocks<Block = B>>(
        &mut self,
        protocol: &mut ProtocolMachine<B>,
        blocks: &mut P,
        now: Instant,
    ) -> bool {
        let mut any = false;
        while let Some((rail, item)) = self.next(protocol, blocks, now) {
            any = true;
            self.rails.posted(rail, &item, now);
            if let Some(pair) = &mut self.pairs[rail] {
                pair.to_post.push(item.into_transmit());
            }
        }
        for rail in 0..self.pairs.len() {
            self.post_rail(rail, protocol, blocks);
        }
        any
    }

    /// The next item with its rail: the rails' own first, then what the connection has.
    fn next<P: Blocks<Block = B>>(
        &mut self,
        protocol: &mut ProtocolMachine<B>,
        blocks: &mut P,
        now: Instant,
    ) -> Option<(usize, RailItem<B>)> {
        let Self { pairs, rails, starved, held, .. } = self;
        let has_room = |rail: usize| {
            pairs[rail].as_ref().is_some_and(|pair| pair.owner.sends.room() > pair.to_post.len())
        };
        if let Some(item) = rails.next_item(blocks, starved, has_room) {
            return Some(item);
        }
        let room = usize::from((0..pairs.len()).any(has_room));
        let item = held.take().or_else(|| {
            let item = protocol.transmit(now, blocks, room);
            *starved |= protocol.wants_memory();
            item
        })?;
        let rail = match &item {
            TransmitItem::Send(frame) => rails.choose_for_frame(frame.len(), has_room),
            TransmitItem::Read(read) => rails.choose(read.from.len as usize, true, has_room),
            TransmitItem::Probe => rails.choose(0, false, has_room),
        };
        match rail {
            Some(rail) => Some((rail, RailItem::Transmit(item))),
            None => {
                *held = Some(item);
                None
            }
        }
    }

    /// Posts the items of a rail with one doorbell.
    fn post_rail<P: Blocks<Block = B>>(
        &mut self,
        rail: usize,
        protocol: &ProtocolMachine<B>,
        blocks: &mut P,
    ) {
        let peer_device = self.rails.peer_device(rail);
        let Some(RailPair { owner, device, to_post, .. }) = &mut self.pairs[rail] else { return };
        if to_post.is_empty() {
            return;
        }
        let RcQueuePair { qp, generation, sends, posted, heads, .. } = &mut **owner;
        let immediate = protocol.uses_immediate();
        let inline = heads.inline;
        let needs = |item: &TransmitItem<B>| match item {
            TransmitItem::Send(frame) => needs_head(frame, immediate, inline),
            _ => false,
        };
        if to_post.iter().any(needs) && !heads.prepare(blocks) {
            // Without memory for a header nothing can be said over this rail, not even that.
            self.rails.fail(rail, RailCause::Device);
            return;
        }
        let (mut list, mut count) = (qp.start_post_send(), 0);
        let last = to_post.len() - 1;
        for (at, transmit) in to_post.drain(..).enumerate() {
            let payload = RequestPayload::of(&transmit, immediate, (*device, peer_device));
            let (id, signalled) = sends.push(transmit, at == last);
            let flags = if signalled { WorkRequestFlags::Signaled } else { WorkRequestFlags::empty() };
            let request = list.construct_wr(wr_id::encode(*generation, WrId::Send(id as u32)), flags);
            // SAFETY: `sends` keeps the item with its blocks until the completion was polled, or the
            // queue pair is drained (`QueuePairOwner`). It holds at most as many requests as the send
            // queue has room for: `next` counts the items in `to_post`, and `post_single_frame` adds one
            // to an empty list if there is room.
            unsafe { payload.append(request, id, heads) };
            count += 1;
        }
        let outcome = list.post();
        *posted +=
            outcome.as_ref().err().map_or(count, |error| error.posted().unwrap_or(count as usize) as u64);
        self.doorbells += 1;
        if let Err(error) = outcome {
            tracing::warn!(rail, %error, "handing requests to the device failed");
            self.rails.fail(rail, RailCause::Device);
        }
    }

    /// Handles completions, does what the rails ask for, posts receives and sends. Returns whether
    /// anything moved.
    fn step<P: Blocks<Block = B>>(
        &mut self,
        protocol: &mut ProtocolMachine<B>,
        blocks: &mut P,
        now: Instant,
    ) -> bool {
        let mut moved = self.poll_all(protocol, &mut CallBuffer::default(), &mut TurnClock::at(now));
        self.rails.consider_joining(protocol, || now);
        moved |= self.obey(protocol, blocks, &mut TurnClock::at(now));
        moved |= self.replenish(protocol, blocks);
        moved |= self.send(protocol, blocks, &mut TurnClock::at(now));
        moved
    }

    /// Does what the rails ask for. Returns whether there was anything. Without any rail the
    /// connection fails.
    #[inline]
    fn obey<P: Blocks<Block = B>>(
        &mut self,
        protocol: &mut ProtocolMachine<B>,
        blocks: &mut P,
        clock: &mut TurnClock,
    ) -> bool {
        let has_commands = self.rails.has_commands();
        if has_commands {
            self.obey_all(protocol, blocks, clock.now());
        }
        has_commands
    }

    #[cold]
    fn obey_all<P: Blocks<Block = B>>(
        &mut self,
        protocol: &mut ProtocolMachine<B>,
        blocks: &mut P,
        now: Instant,
    ) {
        self.rails.set_finishing(self.is_limited || protocol.is_finishing());
        while let Some(command) = self.rails.take_command() {
            self.execute(command, protocol, blocks, now);
        }
        if self.rails.is_cut() && !self.broken {
            self.broken = true;
            if protocol.failure().is_none() {
                protocol.failed(self.cut());
            }
        }
    }

    /// Why the end of the control channel ends the connection.
    fn end_of_peer(&self) -> FailureCause {
        if self.rails.has_reset() { FailureCause::PeerReset } else { FailureCause::PeerGone }
    }

    /// Why a connection without any rail has failed.
    fn cut(&self) -> FailureCause {
        if self.rails.has_reset() {
            return FailureCause::PeerReset;
        }
        let why = match self.rails.last_cause() {
            Some(RailCause::Device) => "the last of its devices failed",
            Some(RailCause::Peer) => "the peer has taken out the last rail",
            Some(RailCause::Path | RailCause::Move) | None => "nothing passes over the last path",
        };
        FailureCause::Rails { why, rails: self.pairs.len() }
    }

    fn may_end(&mut self, protocol: &ProtocolMachine<B>, now: Instant) -> bool {
        let unsent = UnsentState {
            is_broken: self.broken,
            is_sending: self.pairs.iter().flatten().any(|pair| !pair.owner.sends.is_empty()),
            holds_item: self.held.is_some(),
        };
        self.phase.may_end(protocol, unsent, now)
    }

    /// Stops all queue pairs, which another thread drains. None of them holds a block of the
    /// program: frames hold copies, and a peer reads sources only while a queue pair works.
    fn stop_all<P: Blocks<Block = B>>(&mut self, protocol: &mut ProtocolMachine<B>, blocks: &mut P) {
        self.phase = ClosePhase::Over;
        for rail in 0..self.pairs.len() {
            if let Some(mut pair) = self.take_pair(rail) {
                pair.owner.stop();
                self.may_answer |= pair.owner.may_answer;
            }
        }
        if self.may_answer {
            protocol.lose_sources(|lost| blocks.replace(lost));
        }
        self.rails.abandon();
        self.held = None;
        self.spare_blocks.clear();
        protocol.drained();
        self.control.disconnect();
    }

    /// Takes a rail's queue pair out of the set of descriptors. Its drop drains it.
    fn take_pair(&mut self, rail: usize) -> Option<RailPair<B>> {
        let mut pair = self.pairs[rail].take()?;
        if let Some(dispatcher) = pair.owner.own_dispatcher()
            && let Err(error) = dispatcher.deregister(self.channels.registry())
        {
            tracing::debug!(rail, %error, "a completion channel stays in its set");
        }
        Some(pair)
    }

    /// Tells the rails which ports are active, so that those over the others go out.
    fn look_at_ports(&mut self) {
        let is_down = |port: &DevicePort| port.device.is_port_down(port.path.port_num());
        let bits = self.ports.iter().enumerate().map(|(at, port)| u8::from(!is_down(port)) << at);
        self.rails.set_active(bits.fold(0, |all, bit| all | bit));
    }

    /// Reads which channels have events.
    fn take_channel_events(&mut self) {
        if std::mem::replace(&mut self.may_have_events, false) {
            self.channels.take_events();
            self.look_at_ports();
            for rail in 0..self.pairs.len() {
                self.dispatch(rail, "reading an event", |dispatcher| {
                    dispatcher.on_event();
                    dispatcher.take_events().map(drop)
                });
            }
        }
    }
}

/// A rail's queue pair, and what its completions change.
struct RailEnd<'a, B: DeviceBlock> {
    rail: usize,
    pair: &'a mut RcQueuePair<B>,
    rails: &'a mut Rails<B>,
    spare: &'a mut Vec<B>,
    broken: &'a mut bool,
}

impl<B: DeviceBlock> RailEnd<'_, B> {
    /// Handles a completion. An error takes the rail out, or ends the connection if it says that one
    /// side has broken the rules.
    fn take(
        self,
        protocol: &mut ProtocolMachine<B>,
        completed: WorkCompletion<B>,
        sink: &mut CallBuffer<'_>,
        clock: &mut TurnClock,
    ) {
        let Self { rail, pair, rails, spare, broken } = self;
        let is_good = completed.status == WorkCompletionStatus::Success;
        if !is_good {
            match cause_of(completed.status) {
                Some(cause) => rails.fail(rail, cause),
                None => super::completions::fail_completion(&pair.qp, broken, protocol, &completed),
            }
        }
        let WorkCompletion { request, len, immediate, .. } = completed;
        let count = match request {
            CompletedRequest::Own(WrId::Receive(count)) => {
                match pair.receives.complete(count) {
                    Some(block) if is_good => {
                        let immediate = immediate.map(Immediate);
                        rails.received(rail, block, len, immediate, protocol, sink, spare, || clock.now());
                    }
                    Some(block) => drop(block),
                    None => rails.fail(rail, RailCause::Device),
                }
                return;
            }
            CompletedRequest::Received(_, Some(block)) if is_good => {
                let immediate = immediate.map(Immediate);
                rails.received(rail, block, len, immediate, protocol, sink, spare, || clock.now());
                return;
            }
            CompletedRequest::Received(..) | CompletedRequest::Overdrawn => return,
            CompletedRequest::Own(WrId::Send(count)) if pair.has_sent(count) => count,
            CompletedRequest::Own(WrId::Send(_) | WrId::Probe) => {
                tracing::error!(rail, "the device says that a request has completed that is not under way");
                return rails.fail(rail, RailCause::Device);
            }
        };
        loop {
            // The block of a READ that has been overtaken stays in `sends`, because the device may
            // still write to it.
            if pair.passes_over_a_read(count) {
                return rails.fail(rail, RailCause::Device);
            }
            let Some(done) = pair.sent(count) else { return };
            if is_good {
                rails.completed(rail, done, protocol, || clock.now());
            } else {
                rails.flushed(rail, done, clock.now());
            }
        }
    }
}

/// The cause of a request's failure. `None`: one side has broken the rules of the connection, and
/// another rail would not help.
fn cause_of(status: WorkCompletionStatus) -> Option<RailCause> {
    match status {
        WorkCompletionStatus::TransportRetryCounterExceeded
        | WorkCompletionStatus::ResponseTimeoutError
        | WorkCompletionStatus::RemoteAbortedError => Some(RailCause::Path),
        WorkCompletionStatus::RemoteOperationError => Some(RailCause::Peer),
        WorkCompletionStatus::LocalLengthError
        | WorkCompletionStatus::LocalProtectionError
        | WorkCompletionStatus::RemoteInvalidRequestError
        | WorkCompletionStatus::RemoteAccessError
        | WorkCompletionStatus::ResponderNotReadyRetryCounterExceeded => None,
        _ => Some(RailCause::Device),
    }
}

impl<B: DeviceBlock> Drop for RailsDriver<B> {
    /// Tells the peer before the queue pairs are destroyed, because a peer that sends to a destroyed
    /// pair waits for an answer that never comes.
    fn drop(&mut self) {
        self.control.shut_down();
    }
}

/// The often called methods are not inlined, because connections over one device call them through
/// the same enum.
impl<P: Blocks<Block: DeviceBlock>> Driver<P> for RailsDriver<P::Block> {
    fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        self.control.register(registry, token)?;
        registry.register(&mut SourceFd(&self.channels.descriptor()), token, Interest::READABLE)
    }

    fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        self.control.deregister(registry)?;
        registry.deregister(&mut SourceFd(&self.channels.descriptor()))
    }

    fn on_event(&mut self, event: SystemEvent) {
        self.may_have_events = true;
        self.control.on_event(event);
    }

    fn sources(&mut self, sources: &mut Sources) {
        if self.phase != ClosePhase::Over {
            self.control.sources(sources);
            sources.add(self.channels.descriptor(), libc::POLLIN);
        }
    }

    fn room_sources(&mut self) -> Vec<(RawFd, Interest)> {
        let descriptors = [self.channels.descriptor(), self.control.descriptor()];
        descriptors.map(|descriptor| (descriptor, Interest::READABLE)).to_vec()
    }

    fn limit_turns(&mut self, limited: bool) {
        self.is_limited = limited;
    }

    fn has_more(&self) -> bool {
        self.is_limited && self.steps >= STEPS_A_TURN
    }

    /// Receives and sends until nothing moves, then arms the completion queues.
    fn progress(&mut self, protocol: &mut ProtocolMachine<P::Block>, blocks: &mut P, _: Instant) {
        self.starved = false;
        self.steps = 0;
        self.report_early_once(protocol);
        self.take_channel_events();
        self.control.poll_events();
        while self.phase.is_working() {
            // The rates of the rails are measured by this clock.
            let now = Instant::now();
            if self.step(protocol, blocks, now) {
                self.steps += 1;
                if Driver::<P>::has_more(self) {
                    return;
                }
                continue;
            }
            self.rails.set_finishing(self.is_limited || protocol.is_finishing());
            self.look_at_ports();
            if self.rails.tick(protocol, now) {
                continue;
            }
            if self.control.take_peer_ended() && !protocol.is_closed() {
                if protocol.failure().is_none() {
                    protocol.failed(self.end_of_peer());
                }
                self.broken = true;
            }
            if self.may_end(protocol, now) {
                self.stop_all(protocol, blocks);
                return;
            }
            let mut was_unarmed = false;
            for rail in 0..self.pairs.len() {
                was_unarmed |=
                    self.dispatch(rail, "arming the completion queue", |dispatcher| dispatcher.arm());
            }
            if !was_unarmed && !self.rails.has_commands() {
                return;
            }
        }
    }

    #[inline(never)]
    fn poll_once(
        &mut self,
        protocol: &mut ProtocolMachine<P::Block>,
        blocks: &mut P,
        _: Instant,
        scope: PollScope,
        sink: &mut CallBuffer<'_>,
    ) -> bool {
        self.report_early_once(protocol);
        if self.phase != ClosePhase::Open || self.broken {
            return false;
        }
        let clock = &mut TurnClock::default();
        let moved = match scope {
            PollScope::All => {
                // Small messages are sent without `post`.
                self.rails.consider_joining(protocol, || clock.now());
                let moved = self.replenish(protocol, blocks) | self.send(protocol, blocks, clock);
                moved | self.poll_all(protocol, sink, clock)
            }
            PollScope::Frame { polls } => self.poll_for_frame(protocol, polls, sink, clock),
        };
        moved | self.obey(protocol, blocks, clock)
    }

    fn end_request_for_event(&mut self, _: &mut ProtocolMachine<P::Block>) {
        for rail in 0..self.pairs.len() {
            self.dispatch(rail, "reading an event", super::cq_dispatcher::CqDispatcher::end_request);
        }
        self.may_have_events = true;
    }

    #[inline(never)]
    fn send_at_once(
        &mut self,
        protocol: &mut ProtocolMachine<P::Block>,
        blocks: &mut P,
        kind: ConnectionKind,
        bytes: &[u8],
    ) -> bool {
        self.report_early_once(protocol);
        if protocol.is_busy() && self.may_post() {
            // Most outstanding sends have probably completed, but were not polled yet.
            self.poll_all(protocol, &mut CallBuffer::default(), &mut TurnClock::default());
        }
        self.may_post()
            && protocol.allows_single_frame(kind, bytes.len())
            && self.post_single_frame(protocol, blocks, bytes)
    }

    /// Sends until nothing moves. Handles a failure at once.
    #[inline(never)]
    fn post(&mut self, protocol: &mut ProtocolMachine<P::Block>, blocks: &mut P, _: Instant) {
        self.report_early_once(protocol);
        if self.phase == ClosePhase::Open {
            let clock = &mut TurnClock::default();
            self.send(protocol, blocks, clock);
            self.rails.consider_joining(protocol, || clock.now());
        }
        // A caller does not poll while something is due. The rails may be judged only after a poll.
        let is_due = self.phase == ClosePhase::Open
            && self.rails.next_deadline().is_some_and(|at| Instant::now() >= at);
        if is_due || self.broken || protocol.failure().is_some() || self.rails.has_commands() {
            self.progress(protocol, blocks, Instant::now());
        }
    }

    #[inline(never)]
    fn is_idle(&self) -> bool {
        let is_quiet = self.rails.is_quiet() && !self.rails.awaits_peer();
        is_quiet && self.held.is_none() && !self.broken && self.early.is_none()
    }

    #[inline(never)]
    fn is_flushed(&self) -> bool {
        if self.phase == ClosePhase::Over {
            return true;
        }
        let is_done = |pair: &RailPair<P::Block>| pair.owner.sends.is_empty() || !pair.owner.device.is_soft;
        self.held.is_none()
            && !self.starved
            && self.rails.is_quiet()
            && !self.rails.awaits_peer()
            && self.pairs.iter().flatten().all(is_done)
    }

    fn is_starved(&self) -> bool {
        self.starved
    }

    #[inline(never)]
    fn next_deadline(&self) -> Option<Instant> {
        let rails = if self.phase == ClosePhase::Open { self.rails.next_deadline() } else { None };
        self.phase.deadline().or(rails)
    }

    fn system_calls(&self) -> u64 {
        self.doorbells
    }
}
