//! Many dropped connections in the service thread: the real closing ([`lingering`]), the real order
//! of turns ([`Schedule`]) and the real driver of a socket, with virtual sockets and time.
//!
//! 100 hostile peers stop at every byte that they send or read, go on sending for ever, or disconnect.
//! The model counts the reads, writes and bytes of each turn, and the turns that others have before
//! the turn of an honest peer's connection. That connection closes within its own turns.

mod peer;

use std::cell::{Cell, RefCell};
use std::io::IoSlice;
use std::rc::Rc;
use std::sync::LazyLock;
use std::task::Waker;
use std::time::{Duration, Instant};

use self::peer::{Behaviour, Peer};
use super::memory::{SimBlock, SimMemory};
use super::pattern::TestPattern;
use super::rng::SimRng;
use super::simulation::RunStatistics;
use super::wire::{Clock, SimSocket, SocketAccount, WireSide};
use super::{explore, tell_failed_run};
use crate::protocol::setup::TCP_FRAME_MAX;
use crate::protocol::{Blocks, ConnectionKind, ConnectionSetup, LinkType, ProtocolMachine, Purpose};
use crate::session::lingering::{CloseProgress, DroppedConnection, LingeringClose};
use crate::session::schedule::{NextTurn, Schedule};
use crate::session::service::EVENTS;
use crate::transport::SystemEvent;
use crate::transport::tcp::{CALLS_A_TURN, TcpDriver};

/// The longest time that a hostile peer's connection lingers.
const LINGER: Duration = Duration::from_secs(1);
/// An honest peer may be late.
const PATIENT_LINGER: Duration = Duration::from_secs(30);
/// The longest round of the service thread.
const SLACK: Duration = Duration::from_secs(1);
/// The most system calls of each kind in a turn, or in the program's thread: the driver continues
/// twice at most. Its last write says why the connection has failed.
const CALLS: usize = 2 * (CALLS_A_TURN as usize + 1);
/// A read moves a frame's rest and 64 KiB, and a write 256 KiB and one more frame.
const BYTES: usize = CALLS * (3 * TCP_FRAME_MAX + (64 << 10));
/// An honest peer's connection takes no longer, although each of its turns follows those of 100 others.
const DELAY: Duration = Duration::from_secs(4);
/// The bytes that an honest peer gets at most.
const MOST: usize = 600_000;

/// A side of a connection.
struct Endpoint {
    protocol: ProtocolMachine<SimBlock>,
    driver: TcpDriver<SimBlock, SimSocket>,
    memory: SimMemory,
    clock: Clock,
}

impl Endpoint {
    fn new(socket: SimSocket, clock: &Clock) -> Self {
        let setup = ConnectionSetup::new(ConnectionKind::Stream, LinkType::Tcp);
        let mut protocol = ProtocolMachine::new(&setup).expect("the defaults work");
        protocol.tick(clock.get());
        let memory = SimMemory::new(256 << 20, setup.receive_staged());
        Self { protocol, driver: TcpDriver::over(socket), memory, clock: clock.clone() }
    }

    fn progress(&mut self) {
        self.driver.progress(&mut self.protocol, &mut self.memory, self.clock.get());
        while self.protocol.take_event().is_some() {}
    }

    /// The system reports that something has come, or that there is room.
    fn on_event(&mut self, is_read_closed: bool) {
        let event =
            SystemEvent { is_readable: true, is_writable: true, is_read_closed, ..SystemEvent::default() };
        self.driver.on_event(event);
    }
}

impl DroppedConnection for Endpoint {
    fn limit_turns(&mut self) {
        self.driver.limit_turns(true);
    }

    fn progress(&mut self) {
        Self::progress(self);
    }

    fn may_sleep(&mut self, _: &Waker) -> bool {
        !self.driver.has_more()
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.protocol.next_deadline()
    }

    fn has_unread(&self) -> bool {
        self.protocol.has_unread()
    }

    fn close(&mut self) {
        self.protocol.shutdown_write();
        self.protocol.shutdown_read();
    }

    fn abort(&mut self) {
        self.protocol.abort();
        self.progress();
    }

    fn half_close(&mut self) {
        self.driver.half_close();
    }

    fn is_tcp(&self) -> bool {
        true
    }

    fn has_failed(&self) -> bool {
        self.protocol.failure().is_some()
    }

    fn has_told_peer(&self) -> bool {
        true
    }

    fn is_closed(&self) -> bool {
        self.protocol.is_closed()
    }

    fn is_delivered(&self) -> bool {
        self.protocol.is_delivered()
    }

    fn bytes_received(&self) -> u64 {
        self.protocol.counters().bytes_received
    }
}

/// A connection that its program drops.
struct Closer {
    peer: Peer,
    drops_at: Instant,
    linger: Duration,
    /// `None` after the end.
    end: Option<Endpoint>,
    close: Option<LingeringClose>,
    account: Rc<SocketAccount>,
    /// Events before then were reported.
    seen: Instant,
    /// Its place in the service thread.
    place: Option<usize>,
    /// When its turn was due, by an event or by itself.
    ready_at: Option<Instant>,
    turns: usize,
    took: Option<Duration>,
}

/// What honest peers read.
static PATTERN: LazyLock<TestPattern> = LazyLock::new(|| TestPattern::new(0, 0, 0));

/// What a run met.
#[derive(Debug, Default)]
struct Met {
    most_reads: usize,
    most_writes: usize,
    /// Turns that were cut, because more was left to do.
    cut: usize,
    /// Hostile peers' connections that ended by their linger time, in order or by a failure, and before.
    expired: usize,
    ended: usize,
    at_once: usize,
}

impl Met {
    fn add(&mut self, other: &Self) {
        self.most_reads = self.most_reads.max(other.most_reads);
        self.most_writes = self.most_writes.max(other.most_writes);
        self.cut += other.cut;
        self.expired += other.expired;
        self.ended += other.ended;
        self.at_once += other.at_once;
    }
}

struct Crowd {
    seed: u64,
    rng: SimRng,
    clock: Clock,
    began: Instant,
    closers: Vec<Closer>,
    schedule: Schedule<usize>,
    /// The turns of the service thread, with their begin.
    turns: Vec<(Instant, usize)>,
    steps: u64,
    /// The system calls of the service thread.
    calls: usize,
    met: Met,
}

impl Crowd {
    fn new(seed: u64, rng: SimRng, plan: &[(Behaviour, usize)]) -> Self {
        let began = Instant::now();
        let clock: Clock = Rc::new(Cell::new(began));
        let mut crowd = Self {
            seed,
            rng,
            clock,
            began,
            closers: Vec::new(),
            schedule: Schedule::default(),
            turns: Vec::new(),
            steps: 0,
            calls: 0,
            met: Met::default(),
        };
        plan.iter().for_each(|(behaviour, len)| crowd.connect(*behaviour, *len));
        crowd
    }

    fn now(&self) -> Instant {
        self.clock.get()
    }

    /// Adds a connection, to which its program has written `len` bytes.
    fn connect(&mut self, behaviour: Behaviour, len: usize) {
        let wire = Rc::new(RefCell::default());
        let socket = SimSocket::new(&wire, WireSide::Listener, &self.clock);
        let account = socket.account.clone();
        let mut end = Endpoint::new(socket, &self.clock);
        let mut bytes = vec![0; len];
        PATTERN.fill(0, &mut bytes);
        let written = end.protocol.write(&[IoSlice::new(&bytes)], &mut end.memory);
        assert_eq!(written, Ok(len), "the send buffer has room");
        if behaviour == Behaviour::Gulps {
            // The program lends more than its send buffer holds.
            for _ in 0..40 {
                let block = end.memory.take(1 << 20, Purpose::Send).expect("memory");
                end.protocol.send_block(block, 1 << 20).expect("a stream takes blocks");
            }
        }
        // Otherwise a peer that sends is reset at once.
        if behaviour.sends() && !self.rng.one_in(8) {
            end.protocol.shutdown_read();
        }
        let is_honest = behaviour.is_honest();
        let drops_at = self.began + self.rng.up_to(Duration::from_millis(if is_honest { 600 } else { 50 }));
        let peer = Peer::new(behaviour, len, &wire, &self.clock);
        self.closers.push(Closer {
            peer,
            drops_at,
            linger: if is_honest { PATIENT_LINGER } else { LINGER },
            end: Some(end),
            close: None,
            account,
            seen: self.began,
            place: None,
            ready_at: None,
            turns: 0,
            took: None,
        });
    }

    /// Runs until every connection has ended.
    fn run(mut self) -> (RunStatistics, Met, Vec<Closer>) {
        while self.closers.iter().any(|closer| closer.took.is_none() || !closer.peer.has_ended()) {
            self.steps += 1;
            assert!(self.steps < 2_000_000, "connections without an end: {:?}", self.left());
            self.step();
        }
        let (steps, time) = (self.steps + self.calls as u64, self.now() - self.began);
        let (met, closers) = (std::mem::take(&mut self.met), std::mem::take(&mut self.closers));
        (RunStatistics { steps, time, ..RunStatistics::default() }, met, closers)
    }

    fn left(&self) -> Vec<Behaviour> {
        let left = self.closers.iter().filter(|closer| closer.took.is_none() || !closer.peer.has_ended());
        left.map(|closer| closer.peer.behaviour).collect()
    }

    /// The next event: a program drops its connection, a peer acts, or the service thread has a turn.
    fn step(&mut self) {
        let numbered = || self.closers.iter().enumerate();
        let is_open = |closer: &Closer| closer.place.is_none() && closer.took.is_none();
        let drops =
            numbered().filter(|(_, closer)| is_open(closer)).map(|(at, closer)| (closer.drops_at, at));
        let acts = numbered().filter_map(|(at, closer)| Some((closer.peer.next_turn()?, at)));
        let (drop, act, service) = (drops.min(), acts.min(), self.service_due());
        let next = [drop.map(|(at, _)| at), act.map(|(at, _)| at), service].into_iter().flatten().min();
        let Some(next) = next else { panic!("nothing happens any more: {:?}", self.left()) };
        self.clock.set(next.max(self.now()));
        match (drop, act) {
            (Some((at, index)), _) if at == next => self.drop_connection(index),
            _ if service == Some(next) => self.serve(),
            (_, Some((_, index))) => self.closers[index].peer.turn(),
            _ => unreachable!("one of them is next"),
        }
    }

    /// When a connection in the service thread has an event.
    fn event_of(closer: &Closer) -> Option<Instant> {
        closer.place.and_then(|_| closer.peer.wire.borrow().next_event(WireSide::Listener, closer.seen))
    }

    fn service_due(&self) -> Option<Instant> {
        let events = self.closers.iter().filter_map(Self::event_of);
        events.chain(self.schedule.next_due()).min()
    }

    /// A program drops its connection, and its thread is not kept.
    fn drop_connection(&mut self, index: usize) {
        let now = self.now();
        let closer = &mut self.closers[index];
        let Some(end) = &mut closer.end else { return };
        closer.account.reset(CALLS);
        closer.seen = now;
        end.on_event(false);
        let close = LingeringClose::begin(end, closer.linger, now);
        let work = closer.account.work();
        assert!(work.bytes <= BYTES, "{:?}: {work:?} in a drop", closer.peer.behaviour);
        match close {
            None => {
                self.met.at_once += 1;
                self.ends(index);
            }
            close => {
                closer.close = close;
                let place = self.schedule.add(index);
                self.schedule.wake(place, now);
                closer.place = Some(place);
                closer.ready_at = Some(now);
            }
        }
    }

    /// A round of the service thread.
    fn serve(&mut self) {
        let now = self.now();
        let mut moved: Vec<_> = self
            .closers
            .iter()
            .enumerate()
            .collect::<Vec<_>>()
            .into_iter()
            .filter_map(|(index, closer)| Some((Self::event_of(closer).filter(|at| *at <= now)?, index)))
            .collect();
        moved.sort_unstable();
        moved.truncate(EVENTS);
        for (at, index) in &moved {
            let closer = &mut self.closers[*index];
            closer.seen = now;
            closer.ready_at = closer.ready_at.into_iter().chain([*at]).min();
        }
        let has_event =
            |place: usize| moved.iter().any(|(_, index)| self.closers[*index].place == Some(place));
        let round = self.schedule.begin_round(has_event, now);
        for (place, index) in round {
            self.check_turns_before(index);
            self.turns.push((self.now(), index));
            let next = self.turn(index, moved.iter().any(|(_, moved)| *moved == index));
            self.schedule.end_turn(place, next);
            self.closers[index].ready_at = next.due();
        }
    }

    /// Between the time when a turn is due and its begin, each other connection has the turn that the
    /// round in progress owes it, and one in the next round.
    fn check_turns_before(&self, index: usize) {
        let since = self.closers[index].ready_at.expect("it was due");
        let before = self.turns.iter().rev().take_while(|(at, _)| *at >= since);
        let mut turns = vec![0; self.closers.len()];
        before.for_each(|(_, other)| turns[*other] += 1);
        let most = turns.iter().max().expect("a connection");
        assert!(*most <= 2, "connection {index} waits for {most} turns of another one: {turns:?}");
    }

    fn turn(&mut self, index: usize, has_event: bool) -> NextTurn {
        let now = self.now();
        let closer = &mut self.closers[index];
        let (Some(end), Some(close)) = (&mut closer.end, &mut closer.close) else { return NextTurn::Never };
        closer.turns += 1;
        closer.account.reset(CALLS);
        if has_event {
            end.on_event(closer.peer.wire.borrow().has_ended(WireSide::Listener, now));
        }
        let (progress, next) = close.turn_of_task(end, Waker::noop(), now);
        let work = closer.account.work();
        assert!(work.bytes <= BYTES, "{:?}: {work:?} in a turn", closer.peer.behaviour);
        self.calls += work.reads + work.writes;
        self.met.most_reads = self.met.most_reads.max(work.reads);
        self.met.most_writes = self.met.most_writes.max(work.writes);
        self.met.cut += usize::from(end.driver.has_more());
        if progress == CloseProgress::Expired {
            assert!(!closer.peer.behaviour.is_honest(), "an honest peer was not late");
            self.met.expired += 1;
        }
        if next == NextTurn::Never {
            self.met.ended += usize::from(progress == CloseProgress::Ended);
            self.ends(index);
        }
        next
    }

    /// The objects of a connection go.
    fn ends(&mut self, index: usize) {
        let now = self.now();
        let closer = &mut self.closers[index];
        let took = now - closer.drops_at;
        assert!(took <= closer.linger + SLACK, "{:?}: a close takes {took:?}", closer.peer.behaviour);
        (closer.end, closer.place, closer.took) = (None, None, Some(took));
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        tell_failed_run(self.seed, format_args!("step {}", self.steps));
    }
}

/// The number of bytes that a program has written before it drops its connection.
fn written(rng: &mut SimRng) -> usize {
    rng.one_of(&[0, 1, 3000, 100_000, MOST])
}

/// Each honest peer gets all bytes and the end, and its connection has no more turns than without the
/// others.
#[test]
fn i21_hostile_peers_delay_no_close() {
    let mut all = Met::default();
    explore(25_000, |seed, mut rng| {
        let mut plan: Vec<_> =
            (0..100).map(|_| (Behaviour::hostile(&mut rng, MOST), written(&mut rng))).collect();
        for _ in 0..5 {
            let at = rng.within(0..plan.len() + 1);
            plan.insert(at, (Behaviour::Honest(rng.up_to(Duration::from_millis(20))), written(&mut rng)));
        }
        let (sum, met, closers) = Crowd::new(seed, rng, &plan).run();
        for closer in closers.iter().filter(|closer| closer.peer.behaviour.is_honest()) {
            let (behaviour, len) = (closer.peer.behaviour, closer.peer.len);
            assert!(closer.peer.got_all(), "I14: {behaviour:?} does not get all of {len} bytes");
            let (_, _, alone) = Crowd::new(seed, SimRng::new(seed), &[(behaviour, len)]).run();
            let (turns, without) = (closer.turns, alone[0].turns);
            assert!(turns <= without + 1, "{behaviour:?}: {turns} turns for {len} bytes, or {without} alone");
            assert!(closer.took <= Some(DELAY), "{behaviour:?}: {:?} for {len} bytes", closer.took);
        }
        all.add(&met);
        sum
    });
    assert!(all.most_reads == CALLS_A_TURN as usize && all.most_writes >= CALLS_A_TURN as usize, "{all:?}");
    assert!(all.cut > 100 && all.expired > 10 && all.ended > 10 && all.at_once > 10, "{all:?}");
}
