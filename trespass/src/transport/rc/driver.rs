//! The RC driver: it posts a connection's frames to a queue pair and handles the completions.

use std::io::{self, IoSlice};
use std::net::TcpStream;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Instant;

use mio::{Interest, Registry, Token};
use sideway::ibverbs::queue_pair::{PostSendGuard, QueuePair, QueuePairAttributeMask, WorkRequestFlags};

use super::DeviceBlock;
use super::close_phase::{ClosePhase, UnsentState};
use super::cm_queue_pair::CmQueuePair;
use super::completions::{fail_transport, take_any_completion, take_completion};
use super::control_channel::{CmControl, ControlChannel};
use super::cq_dispatcher::WorkCompletion;
use super::one_sided::OneSidedPorts;
use super::path::{EarlyCompletions, ProvenPath, RcPath};
use super::queue_pair::{CompletionTarget, DRAIN, HeaderBuffers, QueuePairOwner, RcQueuePair};
use super::request::{RequestPayload, TransmitSource};
use super::wr_id::{self, WrId};
use crate::protocol::copying::copy;
use crate::protocol::frame::{HEADER_LEN, Immediate};
use crate::protocol::{
    Block, BlockPieces, Blocks, CallBuffer, CompletedTransmit, ConnectionKind, FailureCause, GATHER_MAX,
    ProtocolMachine, Purpose, TransmitItem,
};
use crate::transport::{Driver, PollScope, Sources, SystemEvent};

/// A connection's queue pair with its control channel, whose end tells that the peer has gone.
pub(crate) struct RcDriver<B: DeviceBlock> {
    pair: QueuePairOwner<B>,
    control: ControlChannel,
    slot_size: usize,
    phase: ClosePhase,
    /// Blocks of received frames that the protocol did not keep. They are posted again.
    spare_blocks: Vec<B>,
    /// An item taken from the connection, but not posted because memory for its head was missing.
    held: Option<TransmitItem<B>>,
    /// The completions before the driver's first call. `None` after that call, which also reports
    /// the receives granted in the handshake to the protocol.
    early: Option<EarlyCompletions<B>>,
    /// The pool had no block.
    starved: bool,
    /// The queue pair or its completion queue has failed.
    broken: bool,
    /// The completion channel has failed, and may stay readable.
    is_deaf: bool,
    /// The number of posted lists of requests, each with one doorbell.
    doorbells: u64,
    ports: Option<Box<OneSidedPorts>>,
    /// The steps of this turn, and how many a limited one may have.
    steps: u32,
    most_steps: u32,
    is_limited: bool,
}

/// Steps in a turn of a driver whose turns are limited.
pub(super) const STEPS_A_TURN: u32 = 64;

impl<B: DeviceBlock> RcDriver<B> {
    /// Continues with the queue pair that the handshake has proved to work. `socket` is the
    /// handshake's non-blocking socket. `None` if the path has no queue pair.
    pub(crate) fn new<P: Blocks<Block = B>>(path: RcPath<P>, socket: TcpStream) -> Option<Self> {
        let slot_size = path.slot_size();
        let ports = OneSidedPorts::new(vec![path.port().clone()], path.parameters().clone());
        let mut driver = Self::of(path.into_proved()?, slot_size, ControlChannel::from_socket(socket));
        driver.ports = Some(Box::new(ports));
        Some(driver)
    }

    /// The port for one-sided operations beside this queue pair. The connection manager tells none.
    pub(crate) fn one_sided_ports(&self) -> Option<OneSidedPorts> {
        self.ports.as_deref().cloned()
    }

    /// Continues with a queue pair that the connection manager has connected.
    pub(crate) fn managed<P: Blocks<Block = B>>(managed: CmQueuePair<P>, cm: CmControl) -> Self {
        let slot_size = managed.slot_size();
        Self::of(managed.into_proved(), slot_size, ControlChannel::Cm(cm))
    }

    fn of(ProvenPath { pair, early }: ProvenPath<B>, slot_size: usize, control: ControlChannel) -> Self {
        Self {
            spare_blocks: Vec::with_capacity(early.first),
            pair,
            control,
            slot_size,
            phase: ClosePhase::Open,
            held: None,
            early: Some(early),
            starved: false,
            steps: 0,
            most_steps: STEPS_A_TURN,
            is_limited: false,
            broken: false,
            is_deaf: false,
            doorbells: 0,
            ports: None,
        }
    }

    /// Whether the device holds no request any more.
    #[cfg(test)]
    pub(super) fn is_over(&self) -> bool {
        self.phase == ClosePhase::Over
    }

    /// After a failure: whether the RESET frame is acknowledged, or given up.
    pub(crate) fn has_told_peer(&self) -> bool {
        self.phase.has_told_peer()
    }

    /// Whether it shares no completion queue.
    pub(crate) fn is_alone(&self) -> bool {
        self.pair.is_alone()
    }

    /// The TCP socket of the control channel.
    pub(crate) fn socket(&self) -> Option<crate::process::Descriptor> {
        self.control.socket()
    }

    /// See [`ControlChannel::without_wake_ups`].
    pub(crate) fn control_socket(&self) -> Option<Arc<TcpStream>> {
        self.control.without_wake_ups()
    }

    /// The name of the RDMA device.
    pub(crate) fn device(&self) -> &str {
        self.pair.device.name()
    }

    /// The maximum number of lent blocks in one frame, in addition to its head.
    pub(crate) fn gather(&self) -> usize {
        let entries = self.pair.qp.control().capability().max_send_sge as usize;
        entries.saturating_sub(1).clamp(1, GATHER_MAX)
    }

    /// The steps of the last turn, and how many a limited one may have.
    #[cfg(test)]
    pub(super) fn steps(&mut self) -> (u32, &mut u32) {
        (self.steps, &mut self.most_steps)
    }

    /// Makes the device report a completion of a request that the queue pair did not post.
    #[cfg(test)]
    pub(super) fn post_stray(&mut self, id: u64) {
        let mut list = self.pair.qp.start_post_send();
        drop(list.construct_wr(id, WorkRequestFlags::Signaled).setup_write(0, 0));
        list.post().expect("posted");
    }

    /// The number of sends posted, and the `wr_id` of the send that will be posted after `ahead`
    /// more.
    #[cfg(test)]
    pub(super) fn sends(&self, ahead: u32) -> (u64, u64) {
        let RcQueuePair { generation, posted, .. } = *self.pair;
        (posted, wr_id::encode(generation, WrId::Send(posted as u32 + ahead)))
    }

    /// Sends bytes that need not be a valid frame, bypassing flow control. `immediate` is sent with
    /// them.
    #[cfg(test)]
    pub(super) fn send_raw(&mut self, bytes: &[u8], immediate: Option<u32>) {
        let mut list = self.pair.qp.start_post_send();
        let request = list.construct_wr(0, WorkRequestFlags::empty());
        let send = match immediate {
            Some(immediate) => request.setup_send_imm(immediate),
            None => request.setup_send(),
        };
        send.setup_inline_data(bytes);
        list.post().expect("posted");
    }

    /// Describes the device, the queue pair and its limits in words.
    pub(crate) fn describe(&self) -> String {
        let RcQueuePair { qp, heads, origin, .. } = &*self.pair;
        let capability = qp.control().capability();
        // Not every device reports these attributes.
        let mask = QueuePairAttributeMask::PathMtu | QueuePairAttributeMask::DestinationQueuePairNumber;
        let way = qp.control().query(mask).ok().and_then(|(attributes, _)| {
            Some(format!(" to {:#x}, MTU {}", attributes.dest_qp_num()?, attributes.path_mtu()?))
        });
        format!(
            "{}, queue pair {:#x}{}, {} bytes inline, {} sends and {} receives deep",
            origin,
            qp.qp_number(),
            way.unwrap_or_default(),
            heads.inline,
            capability.max_send_wr,
            capability.max_recv_wr
        )
    }

    /// Before anything else, reports the receives granted in the handshake, and the completions
    /// that arrived early.
    #[inline]
    fn report_early_once(&mut self, protocol: &mut ProtocolMachine<B>) {
        // Checked before it is taken, because a spinning caller comes here on every poll.
        if self.early.is_some() {
            self.report_early(protocol);
        }
    }

    #[cold]
    fn report_early(&mut self, protocol: &mut ProtocolMachine<B>) {
        let Some(early) = self.early.take() else { return };
        protocol.slots_posted(early.first);
        early.completed.into_iter().for_each(|completed| self.completed(protocol, completed));
    }

    /// Handles a completion of this connection, which a worker has polled.
    pub(crate) fn completed(&mut self, protocol: &mut ProtocolMachine<B>, completed: WorkCompletion<B>) {
        self.report_early_once(protocol);
        let sink = &mut CallBuffer::default();
        take_any_completion(
            &mut self.pair,
            &mut self.spare_blocks,
            &mut self.broken,
            protocol,
            completed,
            sink,
        );
    }

    /// Fails the connection because the worker's completion queue has failed.
    pub(crate) fn completion_queue_failed(&mut self, protocol: &mut ProtocolMachine<B>, error: &io::Error) {
        if self.pair.own_dispatcher().is_none() {
            fail_transport(&mut self.broken, protocol, "waiting for completions", error);
        }
    }

    /// Calls the private dispatcher, if the queue pair has one. A worker calls the shared one
    /// itself.
    fn dispatcher<T: Default>(
        &mut self,
        protocol: &mut ProtocolMachine<B>,
        what: &'static str,
        call: impl FnOnce(&mut super::cq_dispatcher::CqDispatcher<B>) -> io::Result<T>,
    ) -> T {
        let Some(dispatcher) = self.pair.own_dispatcher() else { return T::default() };
        call(dispatcher).unwrap_or_else(|error| {
            fail_transport(&mut self.broken, protocol, what, &error);
            T::default()
        })
    }

    /// Polls the private completion queue. Returns whether any completion arrived.
    fn poll(
        &mut self,
        protocol: &mut ProtocolMachine<B>,
        scope: PollScope,
        sink: &mut CallBuffer<'_>,
    ) -> bool {
        let Self { pair, spare_blocks, broken, .. } = self;
        let (pair, CompletionTarget::Own(dispatcher)) = pair.parts() else { return false };
        let (all, polls) = match scope {
            PollScope::All => (true, 1),
            PollScope::Frame { polls } => (false, polls),
        };
        let reaped = if dispatcher.is_sole() {
            dispatcher.poll_sole(polls, |completed| {
                let ends = !all && completed.is_frame();
                take_completion(pair, spare_blocks, broken, protocol, completed, sink);
                ends
            })
        } else {
            dispatcher.poll_often(polls, &mut |_, completed| {
                let ends = !all && completed.is_frame();
                take_any_completion(pair, spare_blocks, broken, protocol, completed, sink);
                ends
            })
        };
        match reaped {
            Ok(any) => any,
            Err(error) => {
                fail_transport(broken, protocol, "polling completions", &error);
                false
            }
        }
    }

    /// Posts the receives that the protocol wants. Returns whether it posted any.
    #[inline]
    fn replenish<P: Blocks<Block = B>>(&mut self, protocol: &mut ProtocolMachine<B>, blocks: &mut P) -> bool {
        let wanted = protocol.slots_wanted();
        if wanted == 0 || self.broken {
            return false;
        }
        let (spare_blocks, starved, slot_size) = (&mut self.spare_blocks, &mut self.starved, self.slot_size);
        let posted = self.pair.post_receives(wanted, || {
            let block = spare_blocks.pop().or_else(|| blocks.take(slot_size, Purpose::Receive));
            *starved |= block.is_none();
            block
        });
        match posted {
            Ok(count) => {
                protocol.slots_posted(count);
                if self.pair.shares && !self.starved {
                    // The shared queue needs no blocks: it holds enough receives, or is full.
                    self.spare_blocks.clear();
                }
                count > 0
            }
            Err(error) => {
                fail_transport(&mut self.broken, protocol, "posting receives", &error);
                false
            }
        }
    }

    /// Posts the frames and READs that the connection has to send, with one doorbell. Returns
    /// whether it had any. Usually it has none, so this check is inlined.
    #[inline]
    fn send<P: Blocks<Block = B>>(
        &mut self,
        protocol: &mut ProtocolMachine<B>,
        blocks: &mut P,
        now: Instant,
    ) -> bool {
        let nothing = self.held.is_none() && protocol.is_quiet();
        !nothing && !self.broken && self.send_all(protocol, blocks, now)
    }

    fn send_all<P: Blocks<Block = B>>(
        &mut self,
        protocol: &mut ProtocolMachine<B>,
        blocks: &mut P,
        now: Instant,
    ) -> bool {
        let Self { pair, held, starved, .. } = self;
        let RcQueuePair { qp, generation, sends, posted, heads, .. } = &mut **pair;
        let immediate = protocol.uses_immediate();
        let mut pull = |room, heads: &mut HeaderBuffers<B>| {
            let mut source =
                TransmitSource { protocol: &mut *protocol, blocks: &mut *blocks, now, held, starved };
            source.pull(room, heads)
        };
        let Some(mut transmit) = pull(sends.room(), heads) else { return false };
        let (mut list, mut count) = (qp.start_post_send(), 0);
        loop {
            let next = pull(sends.room() - 1, heads);
            let payload = RequestPayload::of(&transmit, immediate, (0, 0));
            let (id, signalled) = sends.push(transmit, next.is_none());
            let flags = if signalled { WorkRequestFlags::Signaled } else { WorkRequestFlags::empty() };
            let request = list.construct_wr(wr_id::encode(*generation, WrId::Send(id as u32)), flags);
            // SAFETY: `sends` keeps the item with its blocks, or its share of one, until the
            // completion was polled. It holds at most as many requests as the send queue has room
            // for. A shared block lives while any share exists, and nobody writes to it
            // (`BlockShare`).
            unsafe { payload.append(request, id, heads) };
            count += 1;
            match next {
                Some(next) => transmit = next,
                None => break,
            }
        }
        let outcome = list.post();
        *posted +=
            outcome.as_ref().err().map_or(count, |error| error.posted().unwrap_or(count as usize) as u64);
        self.doorbells += 1;
        if let Err(error) = outcome {
            fail_transport(&mut self.broken, protocol, "handing requests to the device", &error);
        }
        true
    }

    #[inline]
    fn may_post(&self) -> bool {
        self.phase == ClosePhase::Open && !self.broken && self.held.is_none()
    }

    /// Posts `bytes` as a single frame. `header_len` is the number of header bytes to send: all or
    /// none. `own` is a block that holds a copy of `bytes` behind the space for the header; without
    /// it everything is sent inline. The caller has checked that the send queue has room.
    fn post_single_frame(
        &mut self,
        protocol: &mut ProtocolMachine<B>,
        header_len: usize,
        own: Option<B>,
        bytes: &[u8],
    ) {
        let RcQueuePair { qp, generation, sends, posted, heads, .. } = &mut *self.pair;
        let header =
            protocol.begin_single_frame(bytes.len(), own.as_ref().map_or(0, |own| own.bytes().len()));
        let immediate = Immediate::of(&header).filter(|_| header_len == 0);
        let (mut whole, mut pieces) = (None, None);
        if let Some(mut own) = own {
            own.bytes_mut()[..header_len].copy_from_slice(&header[..header_len]);
            let end = header_len + bytes.len();
            whole = Some(RequestPayload::whole(&own, end, immediate));
            pieces = Some(BlockPieces::own(own, end, bytes.len()));
        }
        let mut list = qp.start_post_send();
        let id = sends.push_single_frame(pieces);
        let number = wr_id::encode(*generation, WrId::Send(id as u32));
        let request = list.construct_wr(number, WorkRequestFlags::Signaled);
        match (whole, immediate) {
            // SAFETY: `sends` keeps the block until the completion was polled. It holds at most as
            // many requests as the send queue has room for.
            (Some(payload), _) => unsafe { payload.append(request, id, heads) },
            (None, Some(Immediate(immediate))) => request.setup_send_imm(immediate).setup_inline_data(bytes),
            (None, None) => {
                request.setup_send().setup_inline_data_list(&[IoSlice::new(&header), IoSlice::new(bytes)])
            }
        }
        self.doorbells += 1;
        match list.post() {
            Ok(()) => *posted += 1,
            Err(error) => {
                *posted += error.posted().unwrap_or(1) as u64;
                fail_transport(&mut self.broken, protocol, "handing requests to the device", &error);
            }
        }
    }

    /// Handles completions, posts receives and sends. Returns whether anything moved.
    fn step<P: Blocks<Block = B>>(
        &mut self,
        protocol: &mut ProtocolMachine<B>,
        blocks: &mut P,
        now: Instant,
    ) -> bool {
        let mut moved = self.poll(protocol, PollScope::All, &mut CallBuffer::default());
        moved |= self.replenish(protocol, blocks);
        moved |= self.send(protocol, blocks, now);
        moved
    }

    fn may_end(&mut self, protocol: &ProtocolMachine<B>, now: Instant) -> bool {
        let unsent = UnsentState {
            is_broken: self.broken,
            is_sending: !self.pair.sends.is_empty(),
            holds_item: self.held.is_some(),
        };
        self.phase.may_end(protocol, unsent, now)
    }

    /// Takes back the flushed requests. Once time is up, gives up those that have not completed,
    /// because they never will.
    fn drain<P: Blocks<Block = B>>(
        &mut self,
        protocol: &mut ProtocolMachine<B>,
        blocks: &mut P,
        time_is_up: bool,
    ) {
        self.poll(protocol, PollScope::All, &mut CallBuffer::default());
        if !self.pair.finish(|done| protocol.done(done)) {
            if !time_is_up {
                return;
            }
            self.pair.forget(|lost| blocks.replace(lost), |done| protocol.done(done));
        }
        // It comes after all that were posted, because frames complete in order.
        if let Some(transmit) = self.held.take() {
            protocol.done(CompletedTransmit::from(transmit));
        }
        self.spare_blocks.clear();
        if self.pair.may_answer {
            protocol.lose_sources(|lost| blocks.replace(lost));
        }
        protocol.drained();
        self.phase = ClosePhase::Over;
        // Disconnect now, so that the peer notices even if this side's program does nothing for a
        // long time.
        self.control.disconnect();
    }
}

impl<B: DeviceBlock> Drop for RcDriver<B> {
    /// Tells the peer before the queue pair is destroyed, because a peer that sends to a destroyed
    /// pair waits for an answer that never comes.
    fn drop(&mut self) {
        self.control.shut_down();
    }
}

impl<P: Blocks<Block: DeviceBlock>> Driver<P> for RcDriver<P::Block> {
    /// Registers the control channel and the private completion channel under one token.
    fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        self.control.register(registry, token)?;
        self.pair.own_dispatcher().map_or(Ok(()), |dispatcher| dispatcher.register(registry, token))
    }

    fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        self.control.deregister(registry)?;
        self.pair.own_dispatcher().map_or(Ok(()), |dispatcher| dispatcher.deregister(registry))
    }

    /// Remembers an event. Both descriptors have the same token, so the event may belong to either.
    /// The completion channel is only ever readable, and of the control channel only the end
    /// matters.
    fn on_event(&mut self, event: SystemEvent) {
        if let Some(dispatcher) = self.pair.own_dispatcher() {
            dispatcher.on_event();
        }
        self.control.on_event(event);
    }

    fn sources(&mut self, sources: &mut Sources) {
        if self.phase == ClosePhase::Over {
            return;
        }
        self.control.sources(sources);
        if !self.is_deaf
            && let Some(dispatcher) = self.pair.own_dispatcher()
        {
            sources.add(dispatcher.descriptor(), libc::POLLIN);
        }
    }

    fn room_sources(&mut self) -> Vec<(RawFd, Interest)> {
        let channel = self.pair.own_dispatcher().map(|dispatcher| dispatcher.descriptor());
        let descriptors = channel.into_iter().chain([self.control.descriptor()]);
        descriptors.map(|descriptor| (descriptor, Interest::READABLE)).collect()
    }

    fn limit_turns(&mut self, limited: bool) {
        self.is_limited = limited;
    }

    fn has_more(&self) -> bool {
        self.is_limited && self.steps >= self.most_steps
    }

    /// Receives and sends until nothing moves, then arms the private completion queue. A worker
    /// arms the shared one itself.
    fn progress(&mut self, protocol: &mut ProtocolMachine<P::Block>, blocks: &mut P, now: Instant) {
        self.starved = false;
        self.steps = 0;
        self.report_early_once(protocol);
        let heard = self.dispatcher(protocol, "waiting for completions", |dispatcher| {
            dispatcher.take_events().map(|_| true)
        });
        self.is_deaf |= !heard && self.pair.own_dispatcher().is_some();
        self.control.poll_events();
        while self.phase.is_working() {
            if self.step(protocol, blocks, now) {
                self.steps += 1;
                if Driver::<P>::has_more(self) {
                    return;
                }
                continue;
            }
            if self.control.take_peer_ended() && !protocol.is_closed() {
                // Everything that the peer sent has been polled above, because the peer does not
                // close before its sends are acknowledged. It gets no RESET either.
                if protocol.failure().is_none() {
                    protocol.failed(FailureCause::PeerGone);
                }
                self.broken = true;
            }
            if self.may_end(protocol, now) {
                if self.broken {
                    // The device's events may tell why the queue pair failed.
                    self.pair.device.read_async_events();
                }
                self.pair.stop();
                self.phase = ClosePhase::Draining { until: now + DRAIN };
            } else if !self.dispatcher(protocol, "arming the completion queue", |dispatcher| dispatcher.arm())
                && !self.broken
            {
                return;
            }
        }
        if let ClosePhase::Draining { until } = self.phase {
            self.drain(protocol, blocks, now >= until);
        }
    }

    /// Leaves a connection that is ending to [`progress`](Driver::progress). Received frames go to
    /// the program first; the next poll posts receives in their place.
    fn poll_once(
        &mut self,
        protocol: &mut ProtocolMachine<P::Block>,
        blocks: &mut P,
        now: Instant,
        scope: PollScope,
        sink: &mut CallBuffer<'_>,
    ) -> bool {
        self.report_early_once(protocol);
        if self.phase != ClosePhase::Open || self.broken {
            return false;
        }
        let mut moved = false;
        if scope == PollScope::All {
            moved |= self.replenish(protocol, blocks);
            moved |= self.send(protocol, blocks, now);
        }
        // A spinning caller wants the first frame soon. It finds later frames after it has taken
        // that one.
        moved | self.poll(protocol, scope, sink)
    }

    fn end_request_for_event(&mut self, protocol: &mut ProtocolMachine<P::Block>) {
        self.dispatcher(protocol, "reading an event", super::cq_dispatcher::CqDispatcher::end_request);
    }

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
            self.poll(protocol, PollScope::All, &mut CallBuffer::default());
        }
        if !self.may_post() || self.pair.sends.room() == 0 || !protocol.allows_single_frame(kind, bytes.len())
        {
            return false;
        }
        let header_len = if protocol.uses_immediate() { 0 } else { HEADER_LEN };
        let mut own = None;
        if header_len + bytes.len() > self.pair.heads.inline {
            let Some(mut block) = blocks.take(header_len + bytes.len(), Purpose::Send) else { return false };
            copy(&mut block.bytes_mut()[header_len..header_len + bytes.len()], bytes);
            own = Some(block);
        }
        self.post_single_frame(protocol, header_len, own, bytes);
        true
    }

    /// Sends until nothing moves. Handles a failure at once.
    fn post(&mut self, protocol: &mut ProtocolMachine<P::Block>, blocks: &mut P, now: Instant) {
        self.report_early_once(protocol);
        if self.phase == ClosePhase::Open {
            self.send(protocol, blocks, now);
        }
        if self.broken || protocol.failure().is_some() {
            // Read the clock again, because the failure is later than `now` and the deadlines of
            // closing count from it.
            self.progress(protocol, blocks, Instant::now());
        }
    }

    /// A quiet connection has not failed either, so only the driver's state is checked.
    #[inline]
    fn is_idle(&self) -> bool {
        self.held.is_none() && !self.broken && self.early.is_none()
    }

    /// Posted requests proceed without further calls, except on a software device, which may work
    /// only while its completions are polled.
    fn is_flushed(&self) -> bool {
        let done = self.pair.sends.is_empty() || !self.pair.device.is_soft;
        (done && self.held.is_none() && !self.starved) || self.phase == ClosePhase::Over
    }

    fn is_starved(&self) -> bool {
        self.starved
    }

    /// The deadline of resetting or draining.
    fn next_deadline(&self) -> Option<Instant> {
        self.phase.deadline()
    }

    /// Each posted list of requests is one doorbell.
    fn system_calls(&self) -> u64 {
        self.doorbells
    }
}
