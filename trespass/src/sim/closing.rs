//! A program that drops its connection, or ends, at any step. The service thread goes on alone, by the
//! real decisions ([`lingering`]), and the peer reads late.
//!
//! The peer gets all bytes and then the end. It gets a reset only if the program had not read all,
//! if the peer writes on, or if the linger time was over.

use std::task::Waker;
use std::time::{Duration, Instant};

use super::endpoint::{EndReason, SimEndpoint, SimTransport};
use super::explore;
use super::plan::{ReadPolicy, SimPlan, TransportKind};
use super::rng::SimRng;
use super::simulation::{RunStatistics, Simulation};
use crate::protocol::FailureCause;
use crate::session::lingering::{CloseProgress, DroppedConnection, LingeringClose};
use crate::session::schedule::NextTurn;

/// The longest close after the last byte.
const AFTER_LAST_BYTE: Duration = Duration::from_secs(10);

/// An end whose program has dropped the connection.
struct Dropped<'a> {
    end: &'a mut SimEndpoint,
    transport: &'a mut SimTransport,
    rng: &'a mut SimRng,
    now: Instant,
}

impl DroppedConnection for Dropped<'_> {
    /// Chance limits each turn.
    fn limit_turns(&mut self) {}

    fn progress(&mut self) {
        self.end.turn(self.transport, self.now, self.rng);
    }

    fn may_sleep(&mut self, _: &Waker) -> bool {
        true
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.end.connection.next_deadline()
    }

    fn has_unread(&self) -> bool {
        self.end.connection.has_unread()
    }

    fn close(&mut self) {
        self.end.connection.shutdown_write();
        self.end.connection.shutdown_read();
    }

    fn abort(&mut self) {
        self.end.connection.abort();
        self.progress();
    }

    fn half_close(&mut self) {
        if let SimTransport::Tcp(tcp) = self.transport {
            tcp.close(self.end.which());
        }
    }

    fn is_tcp(&self) -> bool {
        matches!(self.transport, SimTransport::Tcp(_))
    }

    fn has_failed(&self) -> bool {
        self.end.connection.failure().is_some()
    }

    fn has_told_peer(&self) -> bool {
        self.is_tcp() || self.end.is_gone()
    }

    fn is_closed(&self) -> bool {
        self.end.connection.is_closed() && self.end.is_written()
    }

    fn is_delivered(&self) -> bool {
        self.end.connection.is_delivered() && self.end.is_written()
    }

    fn bytes_received(&self) -> u64 {
        let counters = self.end.connection.counters();
        counters.bytes_received + counters.bytes_read
    }
}

/// What the peer does apart from reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PeerCalls {
    Nothing,
    Writes,
    /// Shuts its own direction down before it reads.
    Shuts,
}

/// What the runs met.
#[derive(Debug, Default)]
struct Met {
    /// Ends that the peer saw after all bytes, and those among them that it saw late.
    clean: usize,
    late: usize,
    /// Resets by their reasons.
    unread: usize,
    written: usize,
    expired: usize,
    /// Resets because the linger time is zero.
    aborted: usize,
    killed: usize,
    /// Resets after the end of the data.
    reset_after_end: usize,
}

/// A run, in which the program of `end` drops its connection.
struct Closing {
    simulation: Simulation,
    end: usize,
    linger: Duration,
    dropped_at: Instant,
    /// `None` if nothing is left to do.
    close: Option<LingeringClose>,
    /// The data bytes that had come when all was delivered.
    received: Option<u64>,
    /// The program had shut down its direction.
    shut: bool,
    /// The program had not read all.
    unread: bool,
    /// It had, but its linger time is zero.
    aborted: bool,
    expired: bool,
    /// What the peer had written by then, if the program had read all of it.
    given: Option<u64>,
    /// The peer makes no call before.
    wakes_at: Instant,
    peer_calls: PeerCalls,
    /// The objects of the end are gone.
    is_gone: bool,
    /// The peer's kernel has reported that.
    is_told: bool,
    killed: bool,
}

impl Closing {
    fn new(
        simulation: Simulation,
        end: usize,
        linger: Duration,
        late: Duration,
        peer_calls: PeerCalls,
    ) -> Self {
        let (now, peer) = (simulation.now, &simulation.oracles[1 - end]);
        let mut closing = Self {
            end,
            linger,
            dropped_at: now,
            close: None,
            received: None,
            shut: simulation.programs[end].shut,
            unread: false,
            aborted: false,
            expired: false,
            given: peer.is_complete().then(|| peer.given()),
            wakes_at: now + late,
            peer_calls,
            is_gone: false,
            is_told: false,
            killed: false,
            simulation,
        };
        closing.simulation.programs[end].drop_all();
        closing.simulation.oracles[end].close();
        closing.simulation.ends[end].drop_program();
        let (resets, unread, close) = closing.dropped(|connection| {
            let before = connection.has_failed();
            let close = LingeringClose::begin(connection, linger, now);
            let resets = connection.has_failed() && !before;
            (resets, resets && connection.has_unread(), close)
        });
        closing.aborted = resets && !unread;
        let aborts = linger.is_zero() && !closing.dropped(|connection| connection.is_closed());
        assert!(!closing.aborted || aborts, "I14: a reset without a reason: {}", closing.simulation.state());
        assert!(!(unread && closing.given.is_some()), "all was read: {}", closing.simulation.state());
        (closing.unread, closing.close) = (unread, close);
        closing
    }

    fn dropped<R>(&mut self, act: impl FnOnce(&mut Dropped) -> R) -> R {
        let Simulation { ends, transport, rng, now, .. } = &mut self.simulation;
        act(&mut Dropped { end: &mut ends[self.end], transport, rng, now: *now })
    }

    /// Runs until both sides have come to an end. One of them is killed after some steps, if any.
    fn run(mut self, mut kill: Option<(u64, usize)>, met: &mut Met) -> RunStatistics {
        let (mut idle, began) = (0, self.simulation.steps);
        while !(self.is_gone && self.peer_has_ended()) {
            self.simulation.steps += 1;
            let steps = self.simulation.steps - began;
            assert!(steps < 1_000_000, "I14: the peer has no end: {}", self.simulation.state());
            if let Some((_, victim)) = kill.take_if(|(at, _)| steps >= *at) {
                self.kill(victim);
            }
            let before = (self.simulation.progress(), self.is_gone, self.is_told);
            let carried = self.act();
            self.simulation.check();
            let moved = carried || before != (self.simulation.progress(), self.is_gone, self.is_told);
            idle = if moved { 0 } else { idle + 1 };
            if idle > 400 {
                idle = 200;
                self.wait();
            }
        }
        self.check(met);
        self.simulation.finish_and_check()
    }

    /// A step of somebody. Returns whether the link has moved anything.
    fn act(&mut self) -> bool {
        let (end, peer) = (self.end, 1 - self.end);
        match self.simulation.rng.within(0..4) {
            0 if !self.is_gone => self.serve(),
            1 if self.peer_calls == PeerCalls::Shuts && self.simulation.rng.one_in(20) => {
                self.peer_calls = PeerCalls::Nothing;
                self.simulation.shut(peer);
                self.simulation.with(peer, |program, turn| program.shut_if_due(turn));
                self.simulation.drive(peer);
            }
            1 if self.simulation.now >= self.wakes_at => {
                self.simulation.with(peer, |program, turn| program.release_one(turn));
                if self.peer_calls == PeerCalls::Writes && self.simulation.rng.one_in(2) {
                    self.simulation.write(peer);
                } else {
                    self.simulation.read(peer);
                }
                self.simulation.drive(peer);
            }
            _ => {
                if self.is_gone && !self.is_told && self.simulation.rng.one_in(20) {
                    self.is_told = true;
                    self.simulation.report_peer_gone(peer);
                }
                let carried = self.simulation.carry(end) | self.simulation.carry(peer);
                // A device goes on trying to reach a queue pair that is gone.
                return carried && !self.is_told;
            }
        }
        false
    }

    /// A turn of the service thread.
    fn serve(&mut self) {
        let (now, mut close) = (self.simulation.now, self.close.take());
        let progress = self.dropped(|connection| {
            let progress = close.as_mut().map(|close| close.turn(connection, now));
            progress.unwrap_or(CloseProgress::Ended)
        });
        if close.as_ref().is_some_and(LingeringClose::is_delivered) {
            self.check_delivered(progress);
        }
        match progress {
            CloseProgress::Waits => return self.close = close,
            CloseProgress::Expired => {
                assert!(now - self.dropped_at >= self.linger, "too early");
                self.expired = true;
            }
            CloseProgress::Ended => (),
        }
        let Simulation { ends, transport, .. } = &mut self.simulation;
        ends[self.end].drop_finished(transport);
        self.is_gone = true;
        let took = now - self.dropped_at;
        assert!(took <= self.linger + AFTER_LAST_BYTE + SLACK, "I14: a close takes {took:?}");
    }

    /// After the last byte the peer's kernel knows the end, and a peer that writes gets a reset.
    fn check_delivered(&mut self, progress: CloseProgress) {
        let received = self.dropped(|connection| connection.bytes_received());
        let before = *self.received.get_or_insert(received);
        let goes_on = progress == CloseProgress::Waits && received > before;
        assert!(!goes_on, "I14: the peer writes on: {}", self.simulation.state());
        if let SimTransport::Tcp(tcp) = &self.simulation.transport {
            assert!(tcp.is_closed(self.end), "I14: the peer's kernel does not know of the end");
        }
    }

    fn kill(&mut self, victim: usize) {
        self.killed = true;
        self.simulation.kill(victim);
        if victim == self.end {
            (self.close, self.is_gone) = (None, true);
        }
    }

    /// Nothing moves: advances to the next deadline.
    fn wait(&mut self) {
        let (now, close) = (self.simulation.now, self.close.take());
        let until = close
            .as_ref()
            .map(|close| self.dropped(|connection| close.next_turn(connection, Waker::noop(), now)));
        self.close = close;
        let until = until.and_then(NextTurn::due);
        let simulation = &self.simulation;
        let wakes = Some(self.wakes_at).filter(|at| *at > simulation.now);
        let next = simulation.next_deadline().into_iter().chain(wakes).chain(until).min();
        if let Some(next) = next {
            let time = next.saturating_duration_since(simulation.now);
            self.simulation.advance_time(time);
        } else if self.is_told {
            panic!("I14: the peer has no end: {}", simulation.state());
        }
    }

    /// Whether the peer's queue pair gets a RESET.
    fn must_reset(&self) -> bool {
        (self.unread || self.aborted || self.expired)
            && matches!(self.simulation.transport, SimTransport::Rc(..))
    }

    /// Whether the peer knows of the end, or is gone.
    fn peer_has_ended(&mut self) -> bool {
        let peer = 1 - self.end;
        let knows_end = self.simulation.oracles[self.end].has_ended() && !self.must_reset();
        if knows_end || self.simulation.ends[peer].killed {
            return true;
        }
        if self.simulation.now < self.wakes_at
            || !matches!(self.simulation.ends[peer].ending, Some(EndReason::Failed(_)))
        {
            return false;
        }
        // Its calls give what had arrived, and then the end or the failure.
        for _ in 0..100_000 {
            self.simulation.with(peer, |program, turn| program.release_one(turn));
            self.simulation.read(peer);
            if self.simulation.programs[peer].knows_failure || self.simulation.oracles[self.end].has_ended() {
                return true;
            }
        }
        panic!("I9: calls to read report neither an end nor a failure");
    }

    fn check(&self, met: &mut Met) {
        let clean = self.simulation.oracles[self.end].has_ended();
        if self.killed {
            met.killed += 1;
            return;
        }
        let late = self.wakes_at - self.dropped_at;
        let written = self.given != Some(self.simulation.oracles[1 - self.end].given());
        let state = || self.simulation.state();
        let has_reset = self.unread || self.aborted || self.expired;
        assert!(clean || has_reset || written, "I14: lost without a reason: {}", state());
        assert!(!(clean && self.unread && !self.shut), "I14: an end instead of a reset: {}", state());
        if self.must_reset() {
            let peer = &self.simulation.ends[1 - self.end].ending;
            let is_reset = *peer == Some(EndReason::Failed(FailureCause::PeerReset));
            assert!(is_reset, "I14: a lost reset, {peer:?}: {}", state());
            met.reset_after_end += usize::from(clean);
        }
        assert!(!self.expired || late + SLACK >= self.linger || written, "I14: nobody was late: {}", state());
        met.clean += usize::from(clean);
        met.late += usize::from(clean && late > Duration::from_secs(3));
        if !clean {
            met.unread += usize::from(self.unread);
            met.expired += usize::from(self.expired);
            met.aborted += usize::from(self.aborted);
            met.written += usize::from(!has_reset);
        }
    }
}

/// Virtual time that passes while everybody is busy.
const SLACK: Duration = Duration::from_millis(600);

/// A program that writes and then drops its connection. Often it has read all that came, or has shut
/// down its own direction.
fn drops(mut simulation: Simulation, end: usize) -> Option<Simulation> {
    let steps = simulation.rng.within(0..1500) as u64;
    simulation.steps(steps);
    if simulation.rng.one_in(4) {
        simulation.shut(end);
        let steps = simulation.rng.within(0..300) as u64;
        simulation.steps(steps);
    }
    if simulation.rng.one_in(2) {
        let writes = std::mem::replace(&mut simulation.programs[1 - end].done_writing, true);
        simulation.until("the program has read all", |simulation| {
            simulation.programs[1 - end].is_between_messages() && simulation.oracles[1 - end].is_complete()
        });
        simulation.programs[1 - end].done_writing = writes;
        for _ in 0..simulation.rng.within(0..20) {
            simulation.write(end);
        }
    }
    simulation.programs[end].is_between_messages().then_some(simulation)
}

fn explore_closing(budget: u64, kind: TransportKind, kills: bool) -> Met {
    let mut met = Met::default();
    explore(budget, |seed, mut rng| {
        let mut plan = SimPlan::any(&mut rng).transport_kind(kind);
        plan.workload.iter_mut().for_each(|workload| workload.reader = ReadPolicy::Eager);
        let end = rng.within(0..2);
        let linger = Duration::from_millis(rng.one_of(&[0, 1000, 1000, 5000, 30_000]));
        let late = Duration::from_millis(rng.one_of(&[0, 10, 300, 4000, 25_000]));
        let calls = rng.one_of(&[PeerCalls::Nothing, PeerCalls::Writes, PeerCalls::Writes, PeerCalls::Shuts]);
        let kill = kills.then(|| (rng.within(0..400) as u64, rng.within(0..2)));
        match drops(Simulation::new(seed, rng, plan), end) {
            Some(simulation) => Closing::new(simulation, end, linger, late, calls).run(kill, &mut met),
            None => RunStatistics { steps: 1, ..RunStatistics::default() },
        }
    });
    met
}

#[test]
fn i14_a_dropped_tcp_connection_delivers_all() {
    let met = explore_closing(150_000, TransportKind::Tcp, false);
    assert!(met.clean > 5 && met.late > 0 && met.unread > 0 && met.written > 0 && met.expired > 0, "{met:?}");
}

#[test]
fn i14_a_dropped_rdma_connection_delivers_all() {
    let met = explore_closing(150_000, TransportKind::Rc, false);
    assert!(met.clean > 5 && met.late > 0 && met.unread > 0 && met.expired > 0, "{met:?}");
    assert!(met.reset_after_end > 0 && met.aborted > 0, "{met:?}");
}

/// The peer's FIN arrives after the drop, while the peer has not read all.
#[test]
fn i14_a_peer_that_shuts_down_before_it_reads_gets_all() {
    let mut met = Met::default();
    explore(40_000, |seed, mut rng| {
        let mut plan = SimPlan::any(&mut rng).transport_kind(TransportKind::Tcp).both(|workload| {
            (workload.reader, workload.parts, workload.largest) = (ReadPolicy::Eager, 0, 3000);
        });
        plan.tcp_buffer = 65_536;
        let mut simulation = Simulation::new(seed, rng, plan);
        for _ in 0..30 {
            simulation.write(0);
        }
        let (linger, late) = (Duration::from_secs(5), Duration::from_millis(300));
        Closing::new(simulation, 0, linger, late, PeerCalls::Shuts).run(None, &mut met)
    });
    assert!(met.clean > 20, "{met:?}");
}

#[test]
fn i14_a_death_ends_the_close() {
    let met = explore_closing(40_000, TransportKind::Rc, true);
    let tcp = explore_closing(40_000, TransportKind::Tcp, true);
    assert!(met.killed > 5 && tcp.killed > 5, "{met:?} {tcp:?}");
}
