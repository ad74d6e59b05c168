//! A simulation run: two endpoints, the link between them, virtual time, and one step after
//! another.

use super::endpoint::{EndReason, SimEndpoint, SimTransport};
use super::link::{QueueDepths, RcLink};
use super::monitor::WireMonitor;
use super::oracle::Oracle;
use super::plan::{ReadPolicy, SimPlan, TransportKind};
use super::program::{ActionContext, SimProgram};
use super::rng::SimRng;
use super::tcp::TcpLink;
use std::time::{Duration, Instant};

/// Counters of a run, by which a test shows that it met its situation.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RunStatistics {
    pub(super) steps: u64,
    /// Virtual time.
    pub(super) time: Duration,
    pub(super) bytes: u64,
    pub(super) messages: u64,
    pub(super) frames: u64,
    /// Frames by type.
    pub(super) kinds: [u64; 12],
    pub(super) blocked: u64,
    pub(super) coalesced: u64,
    /// Frames without a header.
    pub(super) bare: u64,
    pub(super) reserve: u64,
    pub(super) wraps: u64,
    /// Frames that contained a part of a lent block.
    pub(super) parts: u64,
    /// RTS frames with several ranges.
    pub(super) gathered: u64,
    /// FIN frames sent before the peer had read all sources.
    pub(super) early_fins: u64,
    pub(super) tickets: u64,
    /// Blocks that an exhausted memory refused.
    pub(super) refused: u64,
    /// Ends that failed.
    pub(super) failures: u64,
}

impl RunStatistics {
    pub(super) fn add(&mut self, other: &RunStatistics) {
        let RunStatistics {
            steps,
            time,
            bytes,
            messages,
            frames,
            kinds,
            blocked,
            coalesced,
            bare,
            reserve,
            wraps,
            parts,
            gathered,
            early_fins,
            tickets,
            refused,
            failures,
        } = other;
        self.steps += steps;
        self.time += *time;
        self.bytes += bytes;
        self.messages += messages;
        self.frames += frames;
        self.kinds.iter_mut().zip(kinds).for_each(|(sum, kind)| *sum += kind);
        self.blocked += blocked;
        self.coalesced += coalesced;
        self.bare += bare;
        self.reserve += reserve;
        self.wraps += wraps;
        self.parts += parts;
        self.gathered += gathered;
        self.early_fins += early_fins;
        self.tickets += tickets;
        self.refused += refused;
        self.failures += failures;
    }
}

/// One run.
pub(super) struct Simulation {
    pub(super) seed: u64,
    pub(super) rng: SimRng,
    pub(super) plan: SimPlan,
    pub(super) ends: [SimEndpoint; 2],
    pub(super) programs: [SimProgram; 2],
    /// Oracle `n` knows what end `n` writes.
    pub(super) oracles: [Oracle; 2],
    pub(super) transport: SimTransport,
    pub(super) now: Instant,
    began: Instant,
    pub(super) steps: u64,
}

impl Simulation {
    /// A simulation of `plan`. The driver of each end has posted its receives, as the handshake
    /// demands.
    pub(super) fn new(seed: u64, rng: SimRng, plan: SimPlan) -> Self {
        let ends = [SimEndpoint::new(0, &plan), SimEndpoint::new(1, &plan)];
        let slots = plan.limits.map(|limits| limits.rx_slots);
        let transport = match plan.transport_kind {
            TransportKind::Tcp => SimTransport::Tcp(TcpLink::new(plan.tcp_buffer)),
            TransportKind::Rc => {
                let reads = plan.limits.iter().map(|limits| limits.rd_atomic).min().unwrap_or(0);
                let depths = QueueDepths {
                    send: plan.send_depth,
                    receive: slots.map(|slots| slots as usize),
                    reads: reads as usize,
                };
                let memories = [ends[0].memory.clone(), ends[1].memory.clone()];
                {
                    let first = plan.limits.map(|limits| limits.window().first);
                    SimTransport::Rc(
                        RcLink::new(depths, memories).into(),
                        WireMonitor::new(plan.first_total, first).into(),
                    )
                }
            }
        };
        let now = Instant::now();
        let mut simulation = Self {
            seed,
            rng,
            ends,
            programs: Default::default(),
            oracles: [Oracle::new(seed, 0), Oracle::new(seed, 1)],
            transport,
            now,
            began: now,
            steps: 0,
            plan,
        };
        for end in &mut simulation.ends {
            end.begin(&mut simulation.transport, now);
        }
        simulation
    }

    /// One random step.
    pub(super) fn step(&mut self) {
        self.steps += 1;
        let end = self.rng.within(0..2);
        match self.rng.within(0..100) {
            0..30 => self.program(end),
            30..60 => self.drive(end),
            60..98 => {
                self.carry(end);
            }
            _ => self.advance_randomly(),
        }
        self.check();
    }

    pub(super) fn steps(&mut self, count: u64) {
        for _ in 0..count {
            self.step();
        }
    }

    /// The program of `end` performs one action.
    pub(super) fn program(&mut self, end: usize) {
        self.with(end, |program, turn| program.act(turn, end));
    }

    /// The program of `end` makes one call that reads, whatever its workload.
    pub(super) fn read(&mut self, end: usize) {
        self.with(end, |program, turn| program.read(turn, end));
    }

    /// The program of `end` makes one call that writes, whatever its workload.
    pub(super) fn write(&mut self, end: usize) {
        self.with(end, |program, turn| program.write(turn, end));
    }

    pub(super) fn with<R>(
        &mut self,
        end: usize,
        act: impl FnOnce(&mut SimProgram, &mut ActionContext) -> R,
    ) -> Option<R> {
        if self.ends[end].killed {
            return None;
        }
        let [a, b] = &mut self.oracles;
        let (out, into) = if end == 0 { (a, b) } else { (b, a) };
        let mut turn =
            ActionContext { plan: &self.plan, rng: &mut self.rng, end: &mut self.ends[end], out, into };
        Some(act(&mut self.programs[end], &mut turn))
    }

    /// The driver of `end` takes a turn.
    pub(super) fn drive(&mut self, end: usize) {
        self.ends[end].turn(&mut self.transport, self.now, &mut self.rng);
    }

    /// The link makes a step for `end`; returns `false` if it has nothing to do.
    pub(super) fn carry(&mut self, end: usize) -> bool {
        match &mut self.transport {
            SimTransport::Rc(link, _) => link.step(end, self.now, &mut self.rng),
            SimTransport::Tcp(tcp) => tcp.step(end, &mut self.rng),
        }
    }

    fn advance_randomly(&mut self) {
        let micros = self.rng.one_of(&[1, 10, 100, 1000]);
        self.advance_time(Duration::from_micros(micros));
    }

    /// Advances virtual time by `time`, and fires the deadlines that have passed.
    pub(super) fn advance_time(&mut self, time: Duration) {
        self.now += time;
        for end in self.ends.iter_mut().filter(|end| !end.killed) {
            if end.connection.next_deadline().is_some_and(|deadline| deadline <= self.now) {
                end.connection.tick(self.now);
            }
        }
    }

    /// The next deadline of a connection or a device.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let alive = self.ends.iter().filter(|end| !end.killed);
        let mut due: Vec<_> = alive.filter_map(|end| end.connection.next_deadline()).collect();
        if let SimTransport::Rc(link, _) = &self.transport {
            due.extend((0..2).filter_map(|end| link.gives_up_at(end)));
        }
        due.into_iter().min()
    }

    /// Advances time to the next deadline; returns `false` if none exists.
    pub(super) fn skip_to_deadline(&mut self) -> bool {
        let Some(next) = self.next_deadline() else { return false };
        self.advance_time(next.saturating_duration_since(self.now));
        true
    }

    /// Stops the other connections that share receives, and waits for rest. Receives that they give
    /// back cause credit frames, which have been sent when this returns.
    pub(super) fn pause_others(&mut self) {
        self.ends.iter_mut().for_each(SimEndpoint::pause_others);
        self.rest();
    }

    /// Lets `time` pass without a program's action; deadlines within it fire.
    pub(super) fn idle_for(&mut self, time: Duration) {
        let until = self.now + time;
        self.rest();
        while self.now < until {
            let next = self.next_deadline().map_or(until, |next| next.min(until));
            self.advance_time(next.saturating_duration_since(self.now).max(Duration::from_millis(1)));
            self.rest();
        }
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.now - self.began
    }

    /// Panics at the first fault that a memory has seen.
    pub(super) fn check(&self) {
        for (which, end) in self.ends.iter().enumerate() {
            if let Some(fault) = end.memory.fault() {
                panic!("I10: {which}: {fault}");
            }
        }
    }

    /// Kills `end` with all its objects. The kernel closes its socket.
    pub(super) fn kill(&mut self, end: usize) {
        self.ends[end].killed = true;
        self.programs[end].drop_all();
        match &mut self.transport {
            SimTransport::Rc(link, _) => link.kill(end),
            SimTransport::Tcp(tcp) => tcp.reset(),
        }
        self.ends[end].memory.release_all_sources();
    }

    /// The kernel reports to `end` that its peer's process is gone.
    pub(super) fn report_peer_gone(&mut self, end: usize) {
        self.ends[end].observe_peer_gone(&mut self.transport, &mut self.rng);
    }

    /// Lets everything come to rest: both programs read and write no more, and everything accepted
    /// must arrive.
    pub(super) fn settle(&mut self) {
        for (end, program) in self.programs.iter_mut().enumerate() {
            program.reader = Some(ReadPolicy::Eager);
            program.done_writing = true;
            self.ends[end].connection.cork(false);
        }
        self.until("all that was accepted has arrived", |simulation| {
            (0..2).all(|end| simulation.has_arrived(end))
        });
        for end in 0..2 {
            while self.programs[end].holds() {
                self.with(end, |program, turn| program.release_one(turn));
            }
        }
        self.rest();
    }

    /// Steps until `done`; both programs only read and finish what they have begun.
    pub(super) fn until(&mut self, what: &str, done: impl Fn(&Simulation) -> bool) {
        self.repeat(what, done, |simulation, end| {
            simulation.with(end, |program, turn| program.finish(turn, end));
        });
    }

    /// Steps until `done`; `reader` only reads, and its peer only writes.
    pub(super) fn until_one(&mut self, what: &str, reader: usize, done: impl Fn(&Simulation) -> bool) {
        self.repeat(what, done, |simulation, end| {
            simulation.with(end, |program, turn| match end == reader {
                true => program.read(turn, end),
                false => program.write(turn, end),
            });
            simulation.with(reader, |program, turn| program.release_one(turn));
        });
    }

    /// Steps until everything accepted has arrived; the programs act only on readiness.
    pub(super) fn finish_by_readiness(&mut self) {
        let done = |simulation: &Simulation| (0..2).all(|end| simulation.has_arrived(end));
        self.programs.iter_mut().for_each(|program| program.done_writing = true);
        self.ends.iter_mut().for_each(|end| end.connection.cork(false));
        self.repeat("readiness lets all arrive", done, |simulation, end| {
            if simulation.ends[end].connection.readable() {
                simulation.read(end);
            }
            if simulation.ends[end].connection.writable() {
                simulation.write(end);
            }
            simulation.with(end, |program, turn| program.release_one(turn));
        });
    }

    /// Both ends send `script`, one forwards and one backwards, and shut down. Returns what their
    /// programs saw.
    pub(super) fn perform(&mut self, script: &[usize]) -> Vec<(Vec<u64>, u64, bool, Option<EndReason>)> {
        self.programs[0].script = Some(script.iter().copied().collect());
        self.programs[1].script = Some(script.iter().rev().copied().collect());
        self.shut(0);
        self.shut(1);
        self.until_closed();
        let saw = |end: usize| {
            let into = &self.oracles[1 - end];
            (
                self.programs[end].log.clone(),
                into.arrived().0,
                into.has_ended(),
                self.ends[end].ending.clone(),
            )
        };
        vec![saw(0), saw(1)]
    }

    /// The program of `end` shuts its direction down once its message is finished.
    pub(super) fn shut(&mut self, end: usize) {
        self.programs[end].shuts = true;
    }

    /// Whether everything accepted arrives if both programs read, and write no more.
    pub(super) fn arrives(&mut self) -> bool {
        for (end, program) in self.programs.iter_mut().enumerate() {
            program.reader = Some(ReadPolicy::Eager);
            program.done_writing = true;
            self.ends[end].connection.cork(false);
        }
        let mut idle = 0;
        while !(0..2).all(|end| self.has_arrived(end)) {
            self.steps += 1;
            let end = self.rng.within(0..2);
            let before = self.progress();
            self.with(end, |program, turn| program.finish(turn, end));
            self.drive(end);
            let carried = self.carry(end);
            self.check();
            idle = if self.progress() == before && !carried { idle + 1 } else { 0 };
            if idle > 1000 {
                return false;
            }
        }
        true
    }

    /// Steps until both ends are closed, and both programs have seen the other's end.
    pub(super) fn until_closed(&mut self) {
        for end in 0..2 {
            self.ends[end].connection.cork(false);
            self.programs[end].reader = Some(ReadPolicy::Eager);
        }
        let done = |simulation: &Simulation| {
            simulation.is_over() && simulation.oracles.iter().all(Oracle::has_ended)
        };
        self.until("both ends are closed", done);
        let endings = self.ends.iter().map(|end| end.ending.clone());
        assert!(endings.into_iter().all(|ending| ending == Some(EndReason::Closed)), "I14: {}", self.state());
    }

    /// The program of `end` closes, and does nothing more. The other program does nothing, and its
    /// driver runs only by chance. Steps until `end` is gone.
    pub(super) fn close(&mut self, end: usize) {
        let peer_drives = self.rng.one_in(2);
        self.programs[end].drop_all();
        self.oracles[end].close();
        self.ends[end].connection.close(self.now);
        let mut idle = 0;
        let began = self.steps;
        while !self.ends[end].is_gone() {
            self.steps += 1;
            assert!(self.steps - began < 1_000_000, "I14: a close has no end: {}", self.state());
            self.drive(end);
            if peer_drives {
                self.drive(1 - end);
            }
            let before = self.progress();
            let carried = self.carry(end) | self.carry(1 - end);
            idle = if carried || self.progress() != before { 0 } else { idle + 1 };
            self.check();
            if idle > 60 && self.ends[end].ending.is_none() {
                idle = 0;
                assert!(self.skip_to_deadline(), "I14: a close has no end: {}", self.state());
            }
            assert!(idle < 1000, "I14: {end} has ended, but is not torn down: {}", self.state());
        }
    }

    /// Steps until both ends are over. If `tell`, the kernel reports at some time to each that its
    /// peer is gone.
    pub(super) fn until_over(&mut self, tell: bool) {
        self.repeat("both ends are over", Simulation::is_over, |simulation, end| {
            simulation.with(end, |program, turn| program.act(turn, end));
            if tell && simulation.ends[1 - end].is_gone() && simulation.rng.one_in(20) {
                simulation.report_peer_gone(end);
            }
        });
    }

    /// Steps until `done`; `act` is the programs' action.
    fn repeat(
        &mut self,
        what: &str,
        done: impl Fn(&Simulation) -> bool,
        act: impl Fn(&mut Simulation, usize),
    ) {
        let mut idle = 0;
        let mut before = None;
        let began = self.steps;
        while !done(self) {
            self.steps += 1;
            let end = self.rng.within(0..2);
            act(self, end);
            self.drive(end);
            let carried = self.carry(end);
            self.check();
            assert!(self.steps - began < 1_000_000, "I6: too many steps before {what}: {}", self.state());
            let progress = Some(self.progress());
            idle = if progress == before && !carried { idle + 1 } else { 0 };
            before = progress;
            if idle > 400 {
                idle = 200;
                assert!(self.skip_to_deadline(), "I6: stuck before {what}: {}", self.state());
            }
        }
    }

    /// Whether `end` has given whole messages only, and all of them have arrived.
    fn has_arrived(&self, end: usize) -> bool {
        self.programs[end].is_between_messages() && self.oracles[end].is_complete()
    }

    /// Lets everything in flight arrive, without any action of the programs.
    pub(super) fn rest(&mut self) {
        let mut idle = 0;
        let began = self.steps;
        while idle < 40 {
            self.steps += 1;
            assert!(
                self.steps - began < 100_000,
                "I2: frames without end while nobody does anything: {}",
                self.state()
            );
            let end = (self.steps % 2) as usize;
            let before = self.progress();
            self.drive(end);
            let idle_now = match &self.transport {
                SimTransport::Rc(link, _) => link.is_idle(0) && link.is_idle(1),
                // Bytes that a stopped reader leaves in the socket buffers stay there.
                SimTransport::Tcp(_) => self.progress() == before,
            };
            let carried = self.carry(end);
            idle = if idle_now && !carried { idle + 1 } else { 0 };
            self.check();
        }
    }

    /// At rest, checks that both ends agree on their credit.
    pub(super) fn check_credit(&self) {
        if let SimTransport::Rc(link, monitor) = &self.transport {
            monitor.at_rest(link, self.plan.limits.map(|limits| limits.rx_slots));
        }
    }

    /// At rest, but with unread data: checks that blocked peers know of their credit.
    pub(super) fn check_blocked(&self) {
        if let SimTransport::Rc(_, monitor) = &self.transport {
            monitor.check_blocked_peers();
        }
    }

    /// The queue pair of `end` fails.
    pub(super) fn break_queue_pair(&mut self, end: usize) {
        if let SimTransport::Rc(link, _) = &mut self.transport {
            link.fail(end);
        }
    }

    /// Cuts the link: nothing passes any more.
    pub(super) fn cut(&mut self) {
        match &mut self.transport {
            SimTransport::Rc(link, _) => link.cut(),
            SimTransport::Tcp(tcp) => tcp.cut(),
        }
    }

    /// Cuts the link, and no device reports it.
    pub(super) fn cut_silently(&mut self) {
        match &mut self.transport {
            SimTransport::Rc(link, _) => link.cut_silently(),
            SimTransport::Tcp(tcp) => tcp.cut(),
        }
    }

    /// Whether both ends are closed, failed or killed.
    pub(super) fn is_over(&self) -> bool {
        self.ends.iter().all(|end| end.is_gone())
    }

    /// Drops both connections, and checks that every block has come back.
    pub(super) fn finish_and_check(mut self) -> RunStatistics {
        let tally = self.tally();
        if let SimTransport::Rc(link, _) = &mut self.transport {
            link.destroy(0);
            link.destroy(1);
        }
        for end in 0..2 {
            self.programs[end].drop_all();
            let memory = self.ends[end].finish_and_check();
            self.check();
            assert_eq!(memory.out().0, 0, "I14: {end}: bytes of blocks that are not given back");
        }
        tally
    }

    pub(super) fn progress(&self) -> (u64, u64, u64, u64, u64) {
        let moved = self.ends.iter().map(|end| end.moved()).sum();
        let [(a, b), (c, d)] = [self.oracles[0].arrived(), self.oracles[1].arrived()];
        (a, b, c, d, moved)
    }

    /// The state of the run, for a failure message.
    pub(super) fn state(&self) -> String {
        let ends = self.ends.iter().map(|end| format!("\n  {}", end.state())).collect::<String>();
        let transport = match &self.transport {
            SimTransport::Rc(link, monitor) => format!("{} {monitor:?}", link.state()),
            SimTransport::Tcp(_) => "TCP".into(),
        };
        format!("\n  {:?}{ends}\n  {transport}\n  {:?}", self.plan, self.oracles)
    }

    pub(super) fn tally(&self) -> RunStatistics {
        let mut tally = RunStatistics { steps: self.steps, time: self.elapsed(), ..RunStatistics::default() };
        for (oracle, end) in self.oracles.iter().zip(&self.ends) {
            let (bytes, messages) = oracle.arrived();
            tally.bytes += bytes;
            tally.messages += messages;
            tally.tickets += end.tickets_done;
            tally.refused += end.memory.refused();
            tally.failures += u64::from(matches!(end.ending, Some(EndReason::Failed(_))));
        }
        if let SimTransport::Rc(link, monitor) = &self.transport {
            tally.frames = link.delivered;
            for book in &monitor.accounts {
                tally.kinds.iter_mut().zip(book.kinds).for_each(|(sum, kind)| *sum += kind);
                tally.blocked += book.blocked;
                tally.coalesced += book.coalesced;
                tally.bare += book.bare;
                tally.reserve += book.reserve;
                tally.wraps += book.wraps;
                tally.parts += book.parts;
                tally.gathered += book.gathered;
                tally.early_fins += book.early_fins;
            }
        }
        tally
    }
}

impl Drop for Simulation {
    fn drop(&mut self) {
        let (step, time) = (self.steps, self.elapsed());
        super::tell_failed_run(self.seed, format_args!("step {step} ({time:?} of virtual time)"));
    }
}
