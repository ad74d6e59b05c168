//! The RC driver: it posts the frames of a connection to a queue pair and takes its completions.

use std::io::{self, IoSlice};
use std::time::{Duration, Instant};

use mio::event::Event;
use mio::{Registry, Token};
use sideway::ibverbs::completion::WorkCompletionStatus;
use sideway::ibverbs::queue_pair::{PostSendGuard, QueuePair, QueuePairAttributeMask, WorkRequestFlags};

use super::DeviceBlock;
use super::cm_queue_pair::CmQueuePair;
use super::control_channel::{CmChannel, ControlChannel};
use super::cq_dispatcher::{CompletedRequest, WorkCompletion};
use super::path::{EarlyCompletions, ProvenPath, RcPath};
use super::queue_pair::{CompletionTarget, DRAIN, HeaderBuffers, QueuePairOwner, RcQueuePair};
use super::request::{RequestPayload, needs_head};
use super::wr_id::{self, WrId};
use crate::protocol::copying::copy;
use crate::protocol::frame::{HEADER_LEN, Immediate};
use crate::protocol::{
    Block, BlockPieces, Blocks, CallBuffer, CompletedTransmit, ConnectionKind, FailureCause, GATHER_MAX,
    ProtocolMachine, Purpose, TransmitItem,
};
use crate::transport::Driver;

/// How long a RESET may take to be acknowledged before the queue pair is stopped.
const RESET_TIMEOUT: Duration = Duration::from_millis(100);

/// How far it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClosePhase {
    /// Everything is open.
    Open,
    /// The connection has failed on this side, and the peer is being told.
    Resetting { until: Instant },
    /// The queue pair is stopped; what was posted comes back.
    Draining { until: Instant },
    /// The device has nothing of it any more.
    Drained,
}

/// One connection's queue pair, and what it began with, whose end is the peer's end.
pub(crate) struct RcDriver<B: DeviceBlock> {
    pair: QueuePairOwner<B>,
    control: ControlChannel,
    slot_size: usize,
    phase: ClosePhase,
    /// Blocks of frames that were not kept, to be posted again.
    spare_blocks: Vec<B>,
    /// Taken from the connection, and not posted for want of memory.
    held: Option<TransmitItem<B>>,
    /// What has completed before its first turn; gone with that, when the receives that the handshake has granted are told to the
    /// connection.
    early: Option<EarlyCompletions<B>>,
    /// There was no block.
    starved: bool,
    /// The queue pair is of no use any more.
    broken: bool,
    /// Lists of requests posted.
    doorbells: u64,
}

impl<B: DeviceBlock> RcDriver<B> {
    /// Goes on with what the handshake has proved. `socket` is the one that it went over, and non-blocking.
    pub(crate) fn new<P: Blocks<Block = B>>(path: RcPath<P>, socket: std::net::TcpStream) -> Option<Self> {
        let slot_size = path.slot_size();
        Some(Self::of(path.into_proved()?, slot_size, ControlChannel::from_socket(socket)))
    }

    /// The same of a connection of the connection manager's.
    pub(crate) fn managed<P: Blocks<Block = B>>(managed: CmQueuePair<P>, cm: CmChannel) -> Self {
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
            broken: false,
            doorbells: 0,
        }
    }

    /// Whether the device has nothing of it any more.
    #[cfg(test)]
    pub(super) fn is_over(&self) -> bool {
        self.phase == ClosePhase::Drained
    }

    /// The device's name.
    pub(crate) fn device(&self) -> &str {
        self.pair.device.name()
    }

    /// Lent blocks that one frame can have, beside its head.
    pub(crate) fn gather(&self) -> usize {
        let entries = self.pair.qp.control().capability().max_send_sge as usize;
        entries.saturating_sub(1).clamp(1, GATHER_MAX)
    }

    /// Has the device say that something has completed which the pair does not know of.
    #[cfg(test)]
    pub(super) fn post_stray(&mut self, id: u64) {
        let mut list = self.pair.qp.start_post_send();
        drop(list.construct_wr(id, WorkRequestFlags::Signaled).setup_write(0, 0));
        list.post().expect("posted");
    }

    /// How many sends were posted, and the number of the one that comes `ahead` of these.
    #[cfg(test)]
    pub(super) fn sends(&self, ahead: u32) -> (u64, u64) {
        let RcQueuePair { generation, posted, .. } = *self.pair;
        (posted, wr_id::encode(generation, WrId::Send(posted as u32 + ahead)))
    }

    /// Sends bytes that nobody has made a frame of, and for which there may be no receive; with immediate data, if there is any.
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

    /// What carries it, in words.
    pub(crate) fn describe(&self) -> String {
        let RcQueuePair { qp, heads, origin, .. } = &*self.pair;
        let capability = qp.control().capability();
        // What the device says of the way, where it does.
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

    /// Before anything is received: the receives that the handshake has granted are posted.
    #[inline]
    fn report_early_once(&mut self, protocol: &mut ProtocolMachine<B>) {
        // Looked at before it is taken: who spins comes here each time.
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

    /// Takes note of what has completed. A worker hands on what is this one's.
    pub(crate) fn completed(&mut self, protocol: &mut ProtocolMachine<B>, completed: WorkCompletion<B>) {
        self.report_early_once(protocol);
        let sink = &mut CallBuffer::default();
        take_completion(&mut self.pair, &mut self.spare_blocks, &mut self.broken, protocol, completed, sink);
    }

    /// The worker's completion queue is of no use any more.
    pub(crate) fn completion_queue_failed(&mut self, protocol: &mut ProtocolMachine<B>, error: &io::Error) {
        if self.pair.own_dispatcher().is_none() {
            fail_transport(&mut self.broken, protocol, "waiting for completions", error);
        }
    }

    /// Calls its own dispatcher, if it has one. A worker sees to the other.
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

    /// Takes what has completed, unless a worker does: all of it, or up to the first frame. Whether anything had.
    fn poll(&mut self, protocol: &mut ProtocolMachine<B>, all: bool, sink: &mut CallBuffer<'_>) -> bool {
        let Self { pair, spare_blocks, broken, .. } = self;
        let (pair, CompletionTarget::Own(dispatcher)) = pair.parts() else { return false };
        let reaped = dispatcher.poll_own(|completed| {
            let is_frame = !matches!(completed.request, CompletedRequest::Own(WrId::Send(_) | WrId::Probe));
            take_completion(pair, spare_blocks, broken, protocol, completed, sink);
            is_frame && !all
        });
        match reaped {
            Ok(any) => any,
            Err(error) => {
                fail_transport(broken, protocol, "polling completions", &error);
                false
            }
        }
    }

    /// Posts the receives that are wanted. Whether there were any.
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
                    // Others had posted enough, or there is room for no more.
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

    /// Posts what the connection has to send, with one doorbell. Whether there was anything: as a rule there is nothing, and that is soon
    /// said.
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
            let payload = RequestPayload::of(&transmit, immediate);
            let (id, signalled) = sends.push(transmit, next.is_none());
            let flags = if signalled { WorkRequestFlags::Signaled } else { WorkRequestFlags::empty() };
            let request = list.construct_wr(wr_id::encode(*generation, WrId::Send(id as u32)), flags);
            // SAFETY: `sends` keeps the blocks, or this request's share of one, until it is told that they are done with, and holds no
            // more requests than there are places. What there is a share of is there, and nobody writes to it (`BlockShare`).
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
            fail_transport(&mut self.broken, protocol, "posting", &error);
        }
        true
    }

    #[inline]
    fn may_post(&self) -> bool {
        self.phase == ClosePhase::Open && !self.broken && self.held.is_none()
    }

    /// Posts bytes that are a frame of their own, of whose header so many bytes are sent: all or none. `own` has a copy of them behind the
    /// header's place, or they go into the request itself. There is room for it.
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
            pieces = Some(BlockPieces::own(own, end));
        }
        let mut list = qp.start_post_send();
        let id = sends.push_single_frame(pieces);
        let number = wr_id::encode(*generation, WrId::Send(id as u32));
        let request = list.construct_wr(number, WorkRequestFlags::Signaled);
        match (whole, immediate) {
            // SAFETY: `sends` keeps the block until it is told that it is done with, and holds no more requests than there are places.
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
                fail_transport(&mut self.broken, protocol, "posting", &error);
            }
        }
    }

    /// Takes what has completed, posts what is wanted. Whether there was anything.
    fn step<P: Blocks<Block = B>>(
        &mut self,
        protocol: &mut ProtocolMachine<B>,
        blocks: &mut P,
        now: Instant,
    ) -> bool {
        let mut moved = self.poll(protocol, true, &mut CallBuffer::default());
        moved |= self.replenish(protocol, blocks);
        moved |= self.send(protocol, blocks, now);
        moved
    }

    /// Whether nothing keeps the queue pair any more.
    fn may_end(&mut self, protocol: &ProtocolMachine<B>, now: Instant) -> bool {
        let told = self.broken || self.pair.sends.is_empty();
        if protocol.is_closed() {
            return told;
        }
        if protocol.failure().is_none() {
            return false;
        }
        match self.phase {
            ClosePhase::Resetting { until } => told || now >= until,
            _ if told => true,
            _ => {
                self.phase = ClosePhase::Resetting { until: now + RESET_TIMEOUT };
                false
            }
        }
    }

    /// Takes back what the device had. What has not come back after the time for it never will.
    fn drain<P: Blocks<Block = B>>(
        &mut self,
        protocol: &mut ProtocolMachine<B>,
        blocks: &mut P,
        time_is_up: bool,
    ) {
        if let Some(transmit) = self.held.take() {
            protocol.done(CompletedTransmit::from(transmit));
        }
        self.poll(protocol, true, &mut CallBuffer::default());
        if !self.pair.finish(|done| protocol.done(done)) {
            if !time_is_up {
                return;
            }
            self.pair.forget(|lost| blocks.replace(lost), |done| protocol.done(done));
        }
        self.spare_blocks.clear();
        protocol.drained();
        self.phase = ClosePhase::Drained;
        // The peer is to hear of it also if this side's program does nothing for a long time.
        self.control.disconnect();
    }
}

impl<P: Blocks<Block: DeviceBlock>> Driver<P> for RcDriver<P::Block> {
    /// Has the system report completions, and the end of what it began with.
    fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        self.control.register(registry, token)?;
        self.pair.own_dispatcher().map_or(Ok(()), |dispatcher| dispatcher.register(registry, token))
    }

    /// Has it report no more.
    fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        self.control.deregister(registry)?;
        self.pair.own_dispatcher().map_or(Ok(()), |dispatcher| dispatcher.deregister(registry))
    }

    /// Takes note of a report. Both descriptors have one key; the channel's never ends, and of the other only the end matters.
    fn on_event(&mut self, event: &Event) {
        if let Some(dispatcher) = self.pair.own_dispatcher() {
            dispatcher.on_event();
        }
        self.control.on_event(event);
    }

    /// Receives and sends until nothing moves. Then the next completion makes an event; what a worker has to do with that it does itself.
    fn progress(&mut self, protocol: &mut ProtocolMachine<P::Block>, blocks: &mut P, now: Instant) {
        self.starved = false;
        self.report_early_once(protocol);
        self.dispatcher(protocol, "waiting for completions", |dispatcher| dispatcher.take_events());
        self.control.poll_events();
        while matches!(self.phase, ClosePhase::Open | ClosePhase::Resetting { .. }) {
            if self.step(protocol, blocks, now) {
                continue;
            }
            if self.control.take_peer_ended() && protocol.failure().is_none() && !protocol.is_closed() {
                // Whatever the peer had sent before is here: it does not close before that is acknowledged.
                protocol.failed(FailureCause::PeerGone);
                self.broken = true;
            }
            if self.may_end(protocol, now) {
                if self.broken {
                    // What it has to say may say why.
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

    /// Leaves what is to end to a turn. What has come is for the program first: what it makes room for is posted by the next look.
    fn poll_once(
        &mut self,
        protocol: &mut ProtocolMachine<P::Block>,
        blocks: &mut P,
        now: Instant,
        all: bool,
        sink: &mut CallBuffer<'_>,
    ) -> bool {
        self.report_early_once(protocol);
        if self.phase != ClosePhase::Open || self.broken {
            return false;
        }
        let mut moved = false;
        if all {
            moved |= self.replenish(protocol, blocks);
            moved |= self.send(protocol, blocks, now);
        }
        // Who looks again and again waits for what comes first: whether more has come with it is seen when it has been taken.
        moved | self.poll(protocol, all, sink)
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
            // Most of what is under way has come to its end, and nobody has looked.
            self.poll(protocol, true, &mut CallBuffer::default());
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

    /// Sends until nothing moves.
    fn post(&mut self, protocol: &mut ProtocolMachine<P::Block>, blocks: &mut P, now: Instant) {
        self.report_early_once(protocol);
        if self.phase == ClosePhase::Open {
            self.send(protocol, blocks, now);
        }
        if self.broken || protocol.failure().is_some() {
            // What has failed just now was dated by nobody.
            self.progress(protocol, blocks, Instant::now());
        }
    }

    /// What is quiet has not failed either.
    #[inline]
    fn is_idle(&self) -> bool {
        self.held.is_none() && !self.broken && self.early.is_none()
    }

    /// What was posted needs nothing more of this side, but for a device that does its work when its completions are polled.
    fn is_flushed(&self) -> bool {
        let done = !self.pair.device.is_soft || self.pair.sends.is_empty();
        self.phase == ClosePhase::Drained || (done && self.held.is_none() && !self.starved)
    }

    /// Whether it stopped for want of a block: nothing reports when there is one again.
    fn is_starved(&self) -> bool {
        self.starved
    }

    /// When to take a turn in any case.
    fn next_deadline(&self) -> Option<Instant> {
        match self.phase {
            ClosePhase::Resetting { until } | ClosePhase::Draining { until } => Some(until),
            ClosePhase::Open | ClosePhase::Drained => None,
        }
    }

    /// Each list of requests is one doorbell.
    fn system_calls(&self) -> u64 {
        self.doorbells
    }
}

/// Takes note of what has completed. A frame may go to the call that waits.
#[inline(always)]
fn take_completion<B: DeviceBlock>(
    pair: &mut RcQueuePair<B>,
    spare_blocks: &mut Vec<B>,
    broken: &mut bool,
    protocol: &mut ProtocolMachine<B>,
    completed: WorkCompletion<B>,
    sink: &mut CallBuffer<'_>,
) {
    let WorkCompletion { request: completed, status, vendor, len, immediate } = completed;
    let is_good = status == WorkCompletionStatus::Success;
    if !is_good {
        *broken = true;
        let is_receive = !matches!(completed, CompletedRequest::Own(WrId::Send(_) | WrId::Probe));
        let what = if is_receive { "receiving" } else { "sending" };
        // The first says why; what is flushed behind it does not.
        protocol.failed(FailureCause::Completion { what, status: status.raw(), vendor });
    }
    let (block, number) = match completed {
        CompletedRequest::Own(WrId::Receive(count)) => (pair.receives.complete(count), count),
        CompletedRequest::Received(number, block) => (block, number),
        CompletedRequest::Overdrawn => return protocol.overdrawn(),
        CompletedRequest::Own(WrId::Probe) => return fail_stray(broken, protocol, "the probe", 0),
        CompletedRequest::Own(WrId::Send(count)) if !pair.has_sent(count) => {
            return fail_stray(broken, protocol, "the send", count.into());
        }
        CompletedRequest::Own(WrId::Send(count)) => {
            loop {
                // READs have completions of their own. One whose turn was passed over may have brought nothing, and its block may
                // yet be written to: it stays until the queue pair is drained.
                if is_good && pair.passes_over_a_read(count) {
                    return fail_stray(broken, protocol, "what was posted after a READ", count.into());
                }
                let Some(done) = pair.sent(count) else { break };
                // What failed is this one: it has brought nothing.
                if is_good || !matches!(done, CompletedTransmit::Read { .. }) {
                    protocol.done(done);
                }
            }
            return;
        }
    };
    match block {
        // On an error the connection has failed, and says so.
        Some(block) if is_good => {
            let taken = protocol.received_for(block, len, immediate.map(Immediate), sink);
            spare_blocks.extend(taken.ok().flatten());
        }
        Some(_) => (),
        None => fail_stray(broken, protocol, "the receive", number.into()),
    }
}

/// The device, or its library, does not do what it must.
#[cold]
fn fail_transport<B: DeviceBlock>(
    broken: &mut bool,
    protocol: &mut ProtocolMachine<B>,
    what: &'static str,
    error: &dyn std::error::Error,
) {
    tracing::warn!(%error, "{what} failed");
    protocol.failed(FailureCause::Io { what, kind: io::ErrorKind::Other });
    *broken = true;
}

/// The device says that something has completed which it does not have: nothing that it says can be believed.
#[cold]
fn fail_stray<B: DeviceBlock>(
    broken: &mut bool,
    protocol: &mut ProtocolMachine<B>,
    what: &'static str,
    id: u64,
) {
    tracing::error!(id, "{what} is not under way, and the device says that it has completed");
    protocol.failed(FailureCause::StrayCompletion { what, id });
    *broken = true;
}

/// Where the next thing to post comes from.
struct TransmitSource<'a, P: Blocks> {
    protocol: &'a mut ProtocolMachine<P::Block>,
    blocks: &'a mut P,
    now: Instant,
    held: &'a mut Option<TransmitItem<P::Block>>,
    starved: &'a mut bool,
}

impl<P: Blocks<Block: DeviceBlock>> TransmitSource<'_, P> {
    /// The next thing, if it can be posted now.
    fn pull(&mut self, room: usize, heads: &mut HeaderBuffers<P::Block>) -> Option<TransmitItem<P::Block>> {
        if room == 0 || (self.held.is_none() && self.protocol.is_quiet()) {
            return None;
        }
        let next = self.held.take().or_else(|| self.protocol.transmit(self.now, self.blocks, room));
        let Some(transmit) = next else {
            *self.starved |= self.protocol.wants_memory();
            return None;
        };
        let needs_head = match &transmit {
            TransmitItem::Send(frame) => needs_head(frame, self.protocol.uses_immediate(), heads.inline),
            _ => false,
        };
        if needs_head && !heads.prepare(self.blocks) {
            *self.starved = true;
            *self.held = Some(transmit);
            return None;
        }
        Some(transmit)
    }
}
