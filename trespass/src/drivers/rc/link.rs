//! The driver of a connection over a queue pair: its turns, and its end.

use std::io::{self, IoSlice};
use std::time::{Duration, Instant};

use mio::event::Event;
use mio::{Registry, Token};
use sideway::ibverbs::completion::WorkCompletionStatus;
use sideway::ibverbs::queue_pair::{PostSendGuard, QueuePair, QueuePairAttributeMask, WorkRequestFlags};

use super::DeviceBlock;
use super::anchor::{Anchor, Line};
use super::hub::{Completed, What};
use super::managed::Managed;
use super::number::{self, Request};
use super::pair::{DRAIN, Heads, Home, Kept, Pair};
use super::path::{Early, Path, Proved};
use super::request::{Payload, needs_head};
use crate::drivers::Driver;
use crate::protocol::copying::copy;
use crate::protocol::frame::{HEADER_LEN, Immediate};
use crate::protocol::{
    Block, Blocks, Cause, Connection, Done, GATHER_MAX, Kind, Pieces, Purpose, Sink, Transmit,
};

/// How long a RESET may take to be acknowledged before the queue pair is stopped.
const PARTING: Duration = Duration::from_millis(100);

/// How far it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Everything is open.
    Open,
    /// The connection has failed on this side, and the peer is being told.
    Parting { until: Instant },
    /// The queue pair is stopped; what was posted comes back.
    Draining { until: Instant },
    /// The device has nothing of it any more.
    Over,
}

/// One connection's queue pair, and what it began with, whose end is the peer's end.
pub(crate) struct Rc<B: DeviceBlock> {
    pair: Kept<B>,
    anchor: Anchor,
    slot_size: usize,
    phase: Phase,
    /// Blocks of frames that were not kept, to be posted again.
    spare: Vec<B>,
    /// Taken from the connection, and not posted for want of memory.
    held: Option<Transmit<B>>,
    /// What has completed before its first turn; gone with that, when the receives that the handshake has granted are told to the
    /// connection.
    early: Option<Early<B>>,
    /// There was no block.
    starved: bool,
    /// The queue pair is of no use any more.
    broken: bool,
    /// Lists of requests posted.
    doorbells: u64,
}

impl<B: DeviceBlock> Rc<B> {
    /// Goes on with what the handshake has proved. `socket` is the one that it went over, and non-blocking.
    pub(crate) fn new<P: Blocks<Block = B>>(path: Path<P>, socket: std::net::TcpStream) -> Option<Self> {
        let slot_size = path.slot_size();
        Some(Self::of(path.into_proved()?, slot_size, Anchor::of_socket(socket)))
    }

    /// The same of a connection of the connection manager's.
    pub(crate) fn managed<P: Blocks<Block = B>>(managed: Managed<P>, line: Line) -> Self {
        let slot_size = managed.slot_size();
        Self::of(managed.into_proved(), slot_size, Anchor::Line(line))
    }

    fn of(Proved { pair, early }: Proved<B>, slot_size: usize, anchor: Anchor) -> Self {
        Self {
            spare: Vec::with_capacity(early.first),
            pair,
            anchor,
            slot_size,
            phase: Phase::Open,
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
        self.phase == Phase::Over
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
        let Pair { generation, posted, .. } = *self.pair;
        (posted, number::number(generation, Request::Send(posted as u32 + ahead)))
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
        let Pair { qp, heads, whence, .. } = &*self.pair;
        let capability = qp.control().capability();
        // What the device says of the way, where it does.
        let mask = QueuePairAttributeMask::PathMtu | QueuePairAttributeMask::DestinationQueuePairNumber;
        let way = qp.control().query(mask).ok().and_then(|(attributes, _)| {
            Some(format!(" to {:#x}, MTU {}", attributes.dest_qp_num()?, attributes.path_mtu()?))
        });
        format!(
            "{}, queue pair {:#x}{}, {} bytes inline, {} sends and {} receives deep",
            whence,
            qp.qp_number(),
            way.unwrap_or_default(),
            heads.inline,
            capability.max_send_wr,
            capability.max_recv_wr
        )
    }

    /// Before anything is received: the receives that the handshake has granted are posted.
    #[inline]
    fn begin(&mut self, connection: &mut Connection<B>) {
        // Looked at before it is taken: who spins comes here each time.
        if self.early.is_some() {
            self.begin_once(connection);
        }
    }

    #[cold]
    fn begin_once(&mut self, connection: &mut Connection<B>) {
        let Some(early) = self.early.take() else { return };
        connection.slots_posted(early.first);
        early.completed.into_iter().for_each(|completed| self.completed(connection, completed));
    }

    /// Takes note of what has completed. A worker hands on what is this one's.
    pub(crate) fn completed(&mut self, connection: &mut Connection<B>, completed: Completed<B>) {
        self.begin(connection);
        let sink = &mut Sink::default();
        take(&mut self.pair, &mut self.spare, &mut self.broken, connection, completed, sink);
    }

    /// The worker's completion queue is of no use any more.
    pub(crate) fn cut_off(&mut self, connection: &mut Connection<B>, error: &io::Error) {
        if self.pair.own_hub().is_none() {
            break_down(&mut self.broken, connection, "waiting for completions", error);
        }
    }

    /// What must work of its own hub, if it has one. A worker sees to the other.
    fn hub<T: Default>(
        &mut self,
        connection: &mut Connection<B>,
        what: &'static str,
        call: impl FnOnce(&mut super::hub::Hub<B>) -> io::Result<T>,
    ) -> T {
        let Some(hub) = self.pair.own_hub() else { return T::default() };
        call(hub).unwrap_or_else(|error| {
            break_down(&mut self.broken, connection, what, &error);
            T::default()
        })
    }

    /// Takes what has completed, unless a worker does: all of it, or up to the first frame. Whether anything had.
    fn reap(&mut self, connection: &mut Connection<B>, all: bool, sink: &mut Sink<'_>) -> bool {
        let Self { pair, spare, broken, .. } = self;
        let (pair, Home::Own(hub)) = pair.parts() else { return false };
        let reaped = hub.reap_own(|completed| {
            let is_frame = !matches!(completed.what, What::Own(Request::Send(_) | Request::Probe));
            take(pair, spare, broken, connection, completed, sink);
            is_frame && !all
        });
        match reaped {
            Ok(any) => any,
            Err(error) => {
                break_down(broken, connection, "polling completions", &error);
                false
            }
        }
    }

    /// Posts the receives that are wanted. Whether there were any.
    #[inline]
    fn replenish<P: Blocks<Block = B>>(&mut self, connection: &mut Connection<B>, blocks: &mut P) -> bool {
        let wanted = connection.slots_wanted();
        if wanted == 0 || self.broken {
            return false;
        }
        let (spare, starved, slot_size) = (&mut self.spare, &mut self.starved, self.slot_size);
        let posted = self.pair.post_receives(wanted, || {
            let block = spare.pop().or_else(|| blocks.take(slot_size, Purpose::Receive));
            *starved |= block.is_none();
            block
        });
        match posted {
            Ok(count) => {
                connection.slots_posted(count);
                if self.pair.shares && !self.starved {
                    // Others had posted enough, or there is room for no more.
                    self.spare.clear();
                }
                count > 0
            }
            Err(error) => {
                break_down(&mut self.broken, connection, "posting receives", &error);
                false
            }
        }
    }

    /// Posts what the connection has to send, with one doorbell. Whether there was anything: as a rule there is nothing, and that is soon
    /// said.
    #[inline]
    fn send<P: Blocks<Block = B>>(
        &mut self,
        connection: &mut Connection<B>,
        blocks: &mut P,
        now: Instant,
    ) -> bool {
        let nothing = self.held.is_none() && connection.is_quiet();
        !nothing && !self.broken && self.send_all(connection, blocks, now)
    }

    fn send_all<P: Blocks<Block = B>>(
        &mut self,
        connection: &mut Connection<B>,
        blocks: &mut P,
        now: Instant,
    ) -> bool {
        let Self { pair, held, starved, .. } = self;
        let Pair { qp, generation, sends, posted, heads, .. } = &mut **pair;
        let immediate = connection.uses_immediate();
        let mut pull = |room, heads: &mut Heads<B>| {
            let mut source =
                Source { connection: &mut *connection, blocks: &mut *blocks, now, held, starved };
            source.pull(room, heads)
        };
        let Some(mut transmit) = pull(sends.room(), heads) else { return false };
        let (mut list, mut count) = (qp.start_post_send(), 0);
        loop {
            let next = pull(sends.room() - 1, heads);
            let payload = Payload::of(&transmit, immediate);
            let (id, signalled) = sends.push(transmit, next.is_none());
            let flags = if signalled { WorkRequestFlags::Signaled } else { WorkRequestFlags::empty() };
            let request = list.construct_wr(number::number(*generation, Request::Send(id as u32)), flags);
            // SAFETY: `sends` keeps the blocks, or this request's share of one, until it is told that they are done with, and holds no
            // more requests than there are places. What there is a share of is there, and nobody writes to it (`Share`).
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
            break_down(&mut self.broken, connection, "posting", &error);
        }
        true
    }

    #[inline]
    fn may_post(&self) -> bool {
        self.phase == Phase::Open && !self.broken && self.held.is_none()
    }

    /// Posts bytes that are a frame of their own, of whose header so many bytes are sent: all or none. `own` has a copy of them behind the
    /// header's place, or they go into the request itself. There is room for it.
    fn post_alone(
        &mut self,
        connection: &mut Connection<B>,
        header_len: usize,
        own: Option<B>,
        bytes: &[u8],
    ) {
        let Pair { qp, generation, sends, posted, heads, .. } = &mut *self.pair;
        let header = connection.begin_alone(bytes.len(), own.as_ref().map_or(0, |own| own.bytes().len()));
        let immediate = Immediate::of(&header).filter(|_| header_len == 0);
        let (mut whole, mut pieces) = (None, None);
        if let Some(mut own) = own {
            own.bytes_mut()[..header_len].copy_from_slice(&header[..header_len]);
            let end = header_len + bytes.len();
            whole = Some(Payload::whole(&own, end, immediate));
            pieces = Some(Pieces::own(own, end));
        }
        let mut list = qp.start_post_send();
        let id = sends.push_alone(pieces);
        let number = number::number(*generation, Request::Send(id as u32));
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
                break_down(&mut self.broken, connection, "posting", &error);
            }
        }
    }

    /// Takes what has completed, posts what is wanted. Whether there was anything.
    fn step<P: Blocks<Block = B>>(
        &mut self,
        connection: &mut Connection<B>,
        blocks: &mut P,
        now: Instant,
    ) -> bool {
        let mut moved = self.reap(connection, true, &mut Sink::default());
        moved |= self.replenish(connection, blocks);
        moved |= self.send(connection, blocks, now);
        moved
    }

    /// Whether nothing keeps the queue pair any more.
    fn may_end(&mut self, connection: &Connection<B>, now: Instant) -> bool {
        let told = self.broken || self.pair.sends.is_empty();
        if connection.is_closed() {
            return told;
        }
        if connection.failure().is_none() {
            return false;
        }
        match self.phase {
            Phase::Parting { until } => told || now >= until,
            _ if told => true,
            _ => {
                self.phase = Phase::Parting { until: now + PARTING };
                false
            }
        }
    }

    /// Takes back what the device had. What has not come back after the time for it never will.
    fn drain<P: Blocks<Block = B>>(
        &mut self,
        connection: &mut Connection<B>,
        blocks: &mut P,
        time_is_up: bool,
    ) {
        if let Some(transmit) = self.held.take() {
            connection.done(Done::from(transmit));
        }
        self.reap(connection, true, &mut Sink::default());
        if !self.pair.finish(|done| connection.done(done)) {
            if !time_is_up {
                return;
            }
            self.pair.forget(|lost| blocks.replace(lost), |done| connection.done(done));
        }
        self.spare.clear();
        connection.drained();
        self.phase = Phase::Over;
        // The peer is to hear of it also if this side's program does nothing for a long time.
        self.anchor.end();
    }
}

impl<P: Blocks<Block: DeviceBlock>> Driver<P> for Rc<P::Block> {
    /// Has the system report completions, and the end of what it began with.
    fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        self.anchor.register(registry, token)?;
        self.pair.own_hub().map_or(Ok(()), |hub| hub.register(registry, token))
    }

    /// Has it report no more.
    fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        self.anchor.deregister(registry)?;
        self.pair.own_hub().map_or(Ok(()), |hub| hub.deregister(registry))
    }

    /// Takes note of a report. Both descriptors have one key; the channel's never ends, and of the other only the end matters.
    fn on_event(&mut self, event: &Event) {
        if let Some(hub) = self.pair.own_hub() {
            hub.on_event();
        }
        self.anchor.on_event(event);
    }

    /// Receives and sends until nothing moves. Then the next completion makes an event; what a worker has to do with that it does itself.
    fn turn(&mut self, connection: &mut Connection<P::Block>, blocks: &mut P, now: Instant) {
        self.starved = false;
        self.begin(connection);
        self.hub(connection, "waiting for completions", |hub| hub.take_events());
        self.anchor.look();
        while matches!(self.phase, Phase::Open | Phase::Parting { .. }) {
            if self.step(connection, blocks, now) {
                continue;
            }
            if self.anchor.has_ended() && connection.failure().is_none() && !connection.is_closed() {
                // Whatever the peer had sent before is here: it does not close before that is acknowledged.
                connection.failed(Cause::PeerGone);
                self.broken = true;
            }
            if self.may_end(connection, now) {
                if self.broken {
                    // What it has to say may say why.
                    self.pair.device.listen();
                }
                self.pair.stop();
                self.phase = Phase::Draining { until: now + DRAIN };
            } else if !self.hub(connection, "arming the completion queue", |hub| hub.arm()) && !self.broken {
                return;
            }
        }
        if let Phase::Draining { until } = self.phase {
            self.drain(connection, blocks, now >= until);
        }
    }

    /// Leaves what is to end to a turn. What has come is for the program first: what it makes room for is posted by the next look.
    fn look(
        &mut self,
        connection: &mut Connection<P::Block>,
        blocks: &mut P,
        now: Instant,
        all: bool,
        sink: &mut Sink<'_>,
    ) -> bool {
        self.begin(connection);
        if self.phase != Phase::Open || self.broken {
            return false;
        }
        let mut moved = false;
        if all {
            moved |= self.replenish(connection, blocks);
            moved |= self.send(connection, blocks, now);
        }
        // Who looks again and again waits for what comes first: whether more has come with it is seen when it has been taken.
        moved | self.reap(connection, all, sink)
    }

    fn send_at_once(
        &mut self,
        connection: &mut Connection<P::Block>,
        blocks: &mut P,
        kind: Kind,
        bytes: &[u8],
    ) -> bool {
        self.begin(connection);
        if connection.is_crowded() && self.may_post() {
            // Most of what is under way has come to its end, and nobody has looked.
            self.reap(connection, true, &mut Sink::default());
        }
        if !self.may_post() || self.pair.sends.room() == 0 || !connection.allows_alone(kind, bytes.len()) {
            return false;
        }
        let header_len = if connection.uses_immediate() { 0 } else { HEADER_LEN };
        let mut own = None;
        if header_len + bytes.len() > self.pair.heads.inline {
            let Some(mut block) = blocks.take(header_len + bytes.len(), Purpose::Send) else { return false };
            copy(&mut block.bytes_mut()[header_len..header_len + bytes.len()], bytes);
            own = Some(block);
        }
        self.post_alone(connection, header_len, own, bytes);
        true
    }

    /// Sends until nothing moves.
    fn post(&mut self, connection: &mut Connection<P::Block>, blocks: &mut P, now: Instant) {
        self.begin(connection);
        if self.phase == Phase::Open {
            self.send(connection, blocks, now);
        }
        if self.broken || connection.failure().is_some() {
            // What has failed just now was dated by nobody.
            self.turn(connection, blocks, Instant::now());
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
        self.phase == Phase::Over || (done && self.held.is_none() && !self.starved)
    }

    /// Whether it stopped for want of a block: nothing reports when there is one again.
    fn is_starved(&self) -> bool {
        self.starved
    }

    /// When to take a turn in any case.
    fn next_deadline(&self) -> Option<Instant> {
        match self.phase {
            Phase::Parting { until } | Phase::Draining { until } => Some(until),
            Phase::Open | Phase::Over => None,
        }
    }

    /// Each list of requests is one doorbell.
    fn system_calls(&self) -> u64 {
        self.doorbells
    }
}

/// Takes note of what has completed. A frame may go to the call that waits.
#[inline(always)]
fn take<B: DeviceBlock>(
    pair: &mut Pair<B>,
    spare: &mut Vec<B>,
    broken: &mut bool,
    connection: &mut Connection<B>,
    completed: Completed<B>,
    sink: &mut Sink<'_>,
) {
    let Completed { what: completed, status, vendor, len, immediate } = completed;
    let is_good = status == WorkCompletionStatus::Success;
    if !is_good {
        *broken = true;
        let is_receive = !matches!(completed, What::Own(Request::Send(_) | Request::Probe));
        let what = if is_receive { "receiving" } else { "sending" };
        // The first says why; what is flushed behind it does not.
        connection.failed(Cause::Completion { what, status: status.raw(), vendor });
    }
    let (block, number) = match completed {
        What::Own(Request::Receive(count)) => (pair.receives.complete(count), count),
        What::Received(number, block) => (block, number),
        What::Overdrawn => return connection.overdrawn(),
        What::Own(Request::Probe) => return stray(broken, connection, "the probe", 0),
        What::Own(Request::Send(count)) if !pair.has_sent(count) => {
            return stray(broken, connection, "the send", count.into());
        }
        What::Own(Request::Send(count)) => {
            loop {
                // READs have completions of their own. One whose turn was passed over may have brought nothing, and its block may
                // yet be written to: it stays until the queue pair is drained.
                if is_good && pair.passes_over_a_read(count) {
                    return stray(broken, connection, "what was posted after a READ", count.into());
                }
                let Some(done) = pair.sent(count) else { break };
                // What failed is this one: it has brought nothing.
                if is_good || !matches!(done, Done::Read { .. }) {
                    connection.done(done);
                }
            }
            return;
        }
    };
    match block {
        // On an error the connection has failed, and says so.
        Some(block) if is_good => {
            let taken = connection.received_for(block, len, immediate.map(Immediate), sink);
            spare.extend(taken.ok().flatten());
        }
        Some(_) => (),
        None => stray(broken, connection, "the receive", number.into()),
    }
}

/// The device, or its library, does not do what it must.
#[cold]
fn break_down<B: DeviceBlock>(
    broken: &mut bool,
    connection: &mut Connection<B>,
    what: &'static str,
    error: &dyn std::error::Error,
) {
    tracing::warn!(%error, "{what} failed");
    connection.failed(Cause::Io { what, kind: io::ErrorKind::Other });
    *broken = true;
}

/// The device says that something has completed which it does not have: nothing that it says can be believed.
#[cold]
fn stray<B: DeviceBlock>(broken: &mut bool, connection: &mut Connection<B>, what: &'static str, id: u64) {
    tracing::error!(id, "{what} is not under way, and the device says that it has completed");
    connection.failed(Cause::StrayCompletion { what, id });
    *broken = true;
}

/// Where the next thing to post comes from.
struct Source<'a, P: Blocks> {
    connection: &'a mut Connection<P::Block>,
    blocks: &'a mut P,
    now: Instant,
    held: &'a mut Option<Transmit<P::Block>>,
    starved: &'a mut bool,
}

impl<P: Blocks<Block: DeviceBlock>> Source<'_, P> {
    /// The next thing, if it can be posted now.
    fn pull(&mut self, room: usize, heads: &mut Heads<P::Block>) -> Option<Transmit<P::Block>> {
        if room == 0 || (self.held.is_none() && self.connection.is_quiet()) {
            return None;
        }
        let next = self.held.take().or_else(|| self.connection.transmit(self.now, self.blocks, room));
        let Some(transmit) = next else {
            *self.starved |= self.connection.wants_memory();
            return None;
        };
        let needs_head = match &transmit {
            Transmit::Send(frame) => needs_head(frame, self.connection.uses_immediate(), heads.inline),
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
