//! The driver of a connection over a queue pair: its turns, and its end.

use std::io;
use std::mem::{replace, take};
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use mio::event::Event;
use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use sideway::ibverbs::completion::{Notify, WorkCompletionStatus};
use sideway::ibverbs::queue_pair::{PostSendGuard, QueuePair, WorkRequestFlags};

use super::DeviceBlock;
use super::anchor::{Anchor, Line};
use super::managed::{Early, Managed};
use super::pair::{DRAIN, Heads, Pair, RECEIVE};
use super::path::Path;
use super::request::Payload;
use crate::drivers::Driver;
use crate::protocol::{Blocks, Cause, Connection, Done, Frame, Purpose, Transmit};

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
    pair: Pair<B>,
    anchor: Anchor,
    slot_size: usize,
    phase: Phase,
    /// Blocks of frames that were not kept, to be posted again.
    spare: Vec<B>,
    /// What came at the end of the handshake.
    early: Early<B>,
    /// Taken from the connection, and not posted for want of memory.
    held: Option<Transmit<B>>,
    /// The receives that the handshake has granted are told to the connection.
    begun: bool,
    /// The completion queue makes an event with the next completion, or has made it.
    armed: bool,
    /// The channel may have an event.
    may_have_event: bool,
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
        Some(Self::of(path.into_pair()?, Early::new(), slot_size, Anchor::of_socket(socket)))
    }

    /// The same of a connection of the connection manager's.
    pub(crate) fn managed<P: Blocks<Block = B>>(managed: Managed<P>, line: Line) -> Self {
        let slot_size = managed.slot_size();
        let (pair, early) = managed.into_pair();
        Self::of(pair, early, slot_size, Anchor::Line(line))
    }

    fn of(pair: Pair<B>, early: Early<B>, slot_size: usize, anchor: Anchor) -> Self {
        Self {
            spare: Vec::with_capacity(pair.receives.len() + early.len()),
            pair,
            anchor,
            slot_size,
            early,
            phase: Phase::Open,
            held: None,
            begun: false,
            armed: false,
            may_have_event: true,
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

    /// Has the device say that something has completed which the pair does not know of.
    #[cfg(test)]
    pub(super) fn post_stray(&mut self, id: u64) {
        let mut list = self.pair.qp.start_post_send();
        drop(list.construct_wr(id, WorkRequestFlags::Signaled).setup_write(0, 0));
        list.post().expect("posted");
    }

    /// What carries it, in words.
    pub(crate) fn describe(&self) -> String {
        let Pair { qp, heads, whence, .. } = &self.pair;
        let capability = qp.control().capability();
        format!(
            "{}, queue pair {:#x}, {} bytes inline, {} sends and {} receives deep",
            whence,
            qp.qp_number(),
            heads.inline,
            capability.max_send_wr,
            capability.max_recv_wr
        )
    }

    /// Before anything is received: the receives that the handshake has granted are posted, or were used since.
    fn begin(&mut self, connection: &mut Connection<B>) {
        if !replace(&mut self.begun, true) {
            connection.slots_posted(self.pair.receives.len() + self.early.len());
            for (block, len) in take(&mut self.early) {
                // On an error the connection has failed, and says so.
                self.spare.extend(connection.received(block, len).ok().flatten());
            }
        }
    }

    fn take_events(&mut self, connection: &mut Connection<B>) {
        if !replace(&mut self.may_have_event, false) {
            return;
        }
        loop {
            match self.pair.channel.try_next() {
                Ok(Some(_)) => self.armed = false,
                Ok(None) => return,
                Err(error) => {
                    return break_down(&mut self.broken, connection, "waiting for completions", &error);
                }
            }
        }
    }

    /// Has the next completion make an event. Whether that was not so already: then one may have come just before.
    fn arm(&mut self, connection: &mut Connection<B>) -> bool {
        if replace(&mut self.armed, true) {
            return false;
        }
        if let Err(error) = self.pair.cq.arm(Notify::Any).map(drop) {
            break_down(&mut self.broken, connection, "arming the completion queue", &error);
        }
        true
    }

    /// Takes what has completed. Whether anything had.
    fn reap(&mut self, connection: &mut Connection<B>) -> bool {
        let Pair { cq, receives, sends, posted, completed, .. } = &mut self.pair;
        let mut poller = match cq.start_poll() {
            Ok(poller) => poller,
            Err(error) => {
                break_down(&mut self.broken, connection, "polling completions", &error);
                return false;
            }
        };
        let mut any = false;
        while let Some(completion) = poller.next() {
            any = true;
            let (id, status) = (completion.wr_id(), completion.status());
            let is_receive = id & RECEIVE != 0;
            if status != WorkCompletionStatus::Success {
                self.broken = true;
                let what = if is_receive { "receiving" } else { "sending" };
                // The first says why; what is flushed behind it does not.
                connection.failed(Cause::Completion {
                    what,
                    status: status.raw(),
                    vendor: completion.vendor_err(),
                });
            }
            if is_receive {
                let Some(block) = receives.complete(id) else {
                    stray(&mut self.broken, connection, "the receive", id & !RECEIVE);
                    continue;
                };
                if status == WorkCompletionStatus::Success {
                    let len = completion.byte_len().unwrap_or(0) as usize;
                    // On an error the connection has failed, and says so.
                    self.spare.extend(connection.received(block, len).ok().flatten());
                }
                continue;
            }
            if !sends.has(id) || id >= *posted {
                stray(&mut self.broken, connection, "the send", id);
                continue;
            }
            while let Some(done) = sends.complete(id) {
                *completed += 1;
                // READs have completions of their own, so what failed is this one: it has brought nothing.
                if status == WorkCompletionStatus::Success || !matches!(done, Done::Read { .. }) {
                    connection.done(done);
                }
            }
        }
        if let Err(error) = poller.finish() {
            break_down(&mut self.broken, connection, "polling completions", &error);
        }
        any
    }

    /// Posts the receives that are wanted. Whether there were any.
    fn replenish<P: Blocks<Block = B>>(&mut self, connection: &mut Connection<B>, blocks: &mut P) -> bool {
        let wanted = connection.slots_wanted();
        if wanted == 0 || self.broken {
            return false;
        }
        let (mut left, spare, starved, slot_size) =
            (wanted, &mut self.spare, &mut self.starved, self.slot_size);
        let posted = self.pair.post_receives(|| {
            left = left.checked_sub(1)?;
            let block = spare.pop().or_else(|| blocks.take(slot_size, Purpose::Receive));
            *starved |= block.is_none();
            block
        });
        match posted {
            Ok(count) => {
                connection.slots_posted(count);
                count > 0
            }
            Err(error) => {
                break_down(&mut self.broken, connection, "posting receives", &error);
                false
            }
        }
    }

    /// Posts what the connection has to send, with one doorbell. Whether there was anything.
    fn send<P: Blocks<Block = B>>(
        &mut self,
        connection: &mut Connection<B>,
        blocks: &mut P,
        now: Instant,
    ) -> bool {
        if self.broken {
            return false;
        }
        let Self { pair: Pair { qp, sends, posted, heads, .. }, held, starved, .. } = self;
        let mut pull = |room, heads: &mut Heads<B>| {
            let mut source =
                Source { connection: &mut *connection, blocks: &mut *blocks, now, held, starved };
            source.pull(room, heads)
        };
        let Some(mut transmit) = pull(sends.room(), heads) else { return false };
        let (mut list, mut count) = (qp.start_post_send(), 0);
        loop {
            let next = pull(sends.room() - 1, heads);
            let payload = Payload::of(&transmit);
            let (id, signalled) = sends.push(transmit, next.is_none());
            let flags = if signalled { WorkRequestFlags::Signaled } else { WorkRequestFlags::empty() };
            // SAFETY: `sends` keeps the blocks until it is told that they are done with, and holds no more requests than there are
            // places.
            unsafe { payload.append(list.construct_wr(id, flags), id, heads) };
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

    /// Takes what has completed, posts what is wanted. Whether there was anything.
    fn step<P: Blocks<Block = B>>(
        &mut self,
        connection: &mut Connection<B>,
        blocks: &mut P,
        now: Instant,
    ) -> bool {
        let mut moved = self.reap(connection);
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
        if !self.pair.drain(|done| connection.done(done)) {
            if !time_is_up {
                return;
            }
            self.pair.forget(|size| blocks.take(size, Purpose::Send), |done| connection.done(done));
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
        let channel = self.pair.channel.as_fd().as_raw_fd();
        registry.register(&mut SourceFd(&channel), token, Interest::READABLE)
    }

    /// Has it report no more.
    fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        self.anchor.deregister(registry)?;
        registry.deregister(&mut SourceFd(&self.pair.channel.as_fd().as_raw_fd()))
    }

    /// Takes note of a report. Both descriptors have one key; the channel's never ends, and of the other only the end matters.
    fn on_event(&mut self, event: &Event) {
        self.may_have_event = true;
        self.anchor.on_event(event);
    }

    /// Receives and sends until nothing moves. Then the next completion makes an event.
    fn turn(&mut self, connection: &mut Connection<P::Block>, blocks: &mut P, now: Instant) {
        self.starved = false;
        self.begin(connection);
        self.take_events(connection);
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
            } else if !self.arm(connection) {
                return;
            }
        }
        if let Phase::Draining { until } = self.phase {
            self.drain(connection, blocks, now >= until);
        }
    }

    /// Leaves what is to end to a turn.
    fn look(&mut self, connection: &mut Connection<P::Block>, blocks: &mut P, now: Instant) -> bool {
        self.begin(connection);
        self.phase == Phase::Open && !self.broken && self.step(connection, blocks, now)
    }

    /// Sends until nothing moves.
    fn post(&mut self, connection: &mut Connection<P::Block>, blocks: &mut P, now: Instant) {
        self.begin(connection);
        if self.phase == Phase::Open {
            self.send(connection, blocks, now);
        }
        if self.broken || connection.failure().is_some() {
            self.turn(connection, blocks, now);
        }
    }

    /// What was posted needs nothing more of this side, but for a device that does its work when its completions are polled.
    fn is_flushed(&self) -> bool {
        let done = !self.pair.device.is_soft() || self.pair.sends.is_empty();
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
        if room == 0 {
            return None;
        }
        let next = self.held.take().or_else(|| self.connection.transmit(self.now, self.blocks, room));
        let Some(transmit) = next else {
            *self.starved |= self.connection.wants_memory();
            return None;
        };
        let needs_head = match &transmit {
            Transmit::Send(frame @ (Frame::Short(_) | Frame::Gather { .. })) => frame.len() > heads.inline,
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
