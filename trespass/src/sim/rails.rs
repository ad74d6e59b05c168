//! Runs of a connection over several rails, any of which fails at any step.

mod directed;
mod end;
mod fabric;

use std::io::IoSlice;
use std::time::{Duration, Instant};

use self::end::{RailsEnd, SHORT};
use self::fabric::{Disturbance, Fabric};
use super::link::RETRIES;
use super::memory::SimMemory;
use super::pattern::TestPattern;
use super::rng::SimRng;
use super::simulation::RunStatistics;
use super::{explore, tell_failed_run};
use crate::protocol::{Block, Blocks, CallError, ConnectionKind, ConnectionSetup, Limits, LinkType, Purpose};
use crate::rails::{RailCounters, RailState, Rails, RailsSetup};
use crate::wire::Role;

/// What a run does.
#[derive(Clone, Copy, Debug)]
struct Plan {
    kind: ConnectionKind,
    rails: usize,
    /// The bytes, or messages, that each end sends.
    count: [u64; 2],
    /// Chance disturbs a rail in one of `disturbed` steps; 0 never.
    disturbed: usize,
    /// Whether one rail that works at both ends is left alone.
    spares_one: bool,
    /// Bytes that pass before further rails are added.
    join_after: u64,
    /// How long a rail stays out after its first failure.
    backoff: Duration,
    /// Memory for sending, if it is short.
    send_memory: Option<usize>,
    setup: [ConnectionSetupChoice; 2],
}

#[derive(Clone, Copy, Debug)]
struct ConnectionSetupChoice {
    limits: Limits,
    rcvbuf: usize,
    sndbuf: usize,
}

impl Plan {
    fn random(rng: &mut SimRng) -> Self {
        let kind = rng.one_of(&[ConnectionKind::Stream, ConnectionKind::SeqPacket]);
        let rails = rng.one_of(&[2, 2, 3, 4]);
        let most = if kind == ConnectionKind::Stream { 60_000 } else { 40 };
        let count = [(); 2].map(|()| rng.within(0..most) as u64);
        let rd_atomic = rng.one_of(&[1, 2, 16]);
        let setup = [(); 2].map(|()| ConnectionSetupChoice {
            limits: Limits {
                slot_size: rng.one_of(&[512, 1024]),
                rx_slots: rng.one_of(&[16, 32]),
                first_slots: rng.one_of(&[None, Some(5)]),
                eager_max: rng.one_of(&[500, 4000]),
                max_msg: 1 << 20,
                rd_atomic,
                max_rts: rng.one_of(&[1, 4]),
            },
            rcvbuf: rng.one_of(&[4096, 32_768]),
            sndbuf: rng.one_of(&[4096, 32_768]),
        });
        Plan {
            kind,
            rails,
            count,
            disturbed: rng.one_of(&[0, 20, 60, 200]),
            spares_one: true,
            join_after: 1000,
            backoff: Duration::from_millis(rng.one_of(&[2, 100])),
            send_memory: None,
            setup,
        }
    }

    fn setup(&self, end: usize) -> ConnectionSetup {
        let (own, peer) = (self.setup[end], self.setup[1 - end]);
        let slot_size = own.limits.slot_size.min(peer.limits.slot_size);
        ConnectionSetup {
            own: own.limits,
            peer: Limits { slot_size, ..peer.limits },
            read: true,
            rcvbuf: own.rcvbuf,
            sndbuf: own.sndbuf,
            stage: 8192,
            read_piece: 4096,
            low_water: 4,
            copies: true,
            own_devices: self.rails,
            peer_devices: self.rails,
            ..ConnectionSetup::new(self.kind, LinkType::Rc)
        }
    }
}

/// What one program has sent and received.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    sent: u64,
    received: u64,
    has_shut: bool,
    saw_end: bool,
}

/// What a run has shown.
struct RunOutcome {
    statistics: RunStatistics,
    counters: [RailCounters; 2],
    /// Packets of failed queue pairs that arrived.
    late: u64,
    /// The times from a failed completion to data on another rail.
    outages: Vec<Duration>,
}

/// The sums of several runs.
#[derive(Debug, Default)]
struct Sums {
    joined: u64,
    frames_repeated: u64,
    reads_repeated: u64,
    failures: u64,
    told_by_peer: u64,
    late: u64,
    moves: u64,
    outages: Vec<Duration>,
}

impl Sums {
    fn add(&mut self, outcome: RunOutcome) {
        for counters in outcome.counters {
            self.joined += counters.joined;
            self.frames_repeated += counters.frames_repeated;
            self.reads_repeated += counters.reads_repeated;
            self.failures += counters.path_failures + counters.device_failures;
            self.told_by_peer += counters.peer_failures;
            self.moves += counters.moves;
        }
        self.late += outcome.late;
        self.outages.extend(outcome.outages);
    }
}

struct Run {
    seed: u64,
    plan: Plan,
    ends: [RailsEnd; 2],
    fabric: Fabric,
    progress: [Progress; 2],
    /// The generation of each rail that was disturbed, and until when it may fail for that.
    doubted: Vec<Option<(u32, Option<Instant>)>>,
    /// The ports that are down, with their end, and when they come back.
    ports_down: Vec<(Instant, usize, usize)>,
    now: Instant,
    began: Instant,
    steps: u64,
}

const LONGEST: usize = 12_000;

/// The length of a message.
fn message_len(seed: u64, from: usize, number: u64) -> usize {
    let mut rng = SimRng::new(seed ^ (number << 8) ^ from as u64);
    let most = rng.one_of(&[8, 600, 3000, LONGEST]);
    rng.within(0..most)
}

impl Run {
    fn new(seed: u64, plan: Plan) -> Self {
        let now = Instant::now();
        let memories = [0, 1].map(|end| {
            let setup = plan.setup(end);
            let kept = plan.rails * (setup.receive_slots() + 32 * setup.own.slot_size as usize);
            match plan.send_memory {
                None => SimMemory::new(8 << 20, kept.min(4 << 20)),
                Some(part) => SimMemory::new(kept + part, kept),
            }
        });
        let mut fabric = Fabric::new(plan.rails, memories.clone());
        let qps = [0, 1].map(|end| fabric.create(end, 0));
        (0..2).for_each(|end| fabric.connect(qps[end], qps[1 - end]));
        let extra = Rails::<super::memory::SimBlock>::extra_receives(plan.rails);
        fabric.reads = plan.setup(0).reads();
        fabric.depth = 64 + fabric.reads + extra;
        fabric.receive_depth = 64 + extra;
        let rails = |end| RailsSetup {
            role: if end == 0 { Role::Client } else { Role::Server },
            rails: plan.rails,
            own_devices: plan.rails,
            peer_devices: plan.rails,
            reads: plan.setup(0).reads(),
            join_after: plan.join_after,
            request_timeout: Duration::from_secs(3),
            probe_timeout: Duration::from_millis(300),
            backoff: plan.backoff,
            keepalive: Some(Duration::from_secs(1)),
        };
        let depth = fabric.depth;
        let [one, two] = memories;
        let mut ends = [(0, one), (1, two)].map(|(end, memory)| {
            RailsEnd::new(end, &plan.setup(end), rails(end), memory, (qps[end], depth), now)
        });
        ends.iter_mut().for_each(|end| end.begin(&mut fabric));
        Self {
            seed,
            plan,
            ends,
            fabric,
            progress: [Progress::default(); 2],
            doubted: vec![None; plan.rails],
            ports_down: Vec::new(),
            now,
            began: now,
            steps: 0,
        }
    }

    fn run(mut self, rng: &mut SimRng) -> RunOutcome {
        while !self.is_done() {
            self.steps += 1;
            assert!(self.steps < 4_000_000, "no end: {}", self.state());
            self.step(rng);
            for end in &self.ends {
                if let Some(fault) = end.memory.fault() {
                    panic!("step {}: {fault}", self.steps);
                }
                if let Some(cause) = &end.failed {
                    // A peer that has closed goes, and its FIN_ACK may be lost with a rail.
                    let is_left = self.ends.iter().any(|end| end.closed);
                    assert!(
                        is_left || !self.plan.spares_one,
                        "step {}: {cause}: {}",
                        self.steps,
                        self.state()
                    );
                }
            }
        }
        let late = self.fabric.late_arrivals;
        let counters = [0, 1].map(|end| self.ends[end].rails.counters());
        for end in &mut self.ends {
            end.finish(&mut self.fabric);
            if let Some(fault) = end.memory.fault() {
                panic!("at the end: {fault}");
            }
        }
        let statistics =
            RunStatistics { steps: self.steps, time: self.now - self.began, ..RunStatistics::default() };
        let outages = self.ends.iter_mut().flat_map(|end| std::mem::take(&mut end.outages)).collect();
        RunOutcome { statistics, counters, late, outages }
    }

    /// Both programs have received all, and the end.
    fn has_all(&self) -> bool {
        (0..2)
            .all(|end| self.progress[end].received == self.plan.count[1 - end] && self.progress[end].saw_end)
    }

    /// Both ends have ended, and have all if they must.
    fn is_done(&self) -> bool {
        let is_over = self.ends.iter().all(|end| end.closed || end.failed.is_some());
        is_over && (self.has_all() || !self.plan.spares_one)
    }

    fn state(&self) -> String {
        let rails = |end: usize| {
            (0..self.plan.rails)
                .map(|rail| format!("{:?}", self.ends[end].rails.state(rail)))
                .collect::<Vec<_>>()
        };
        let ends: Vec<_> = self.ends.iter().map(|end| end.state()).collect();
        format!("{:?} {:?} {:?} {:?} {ends:?}", self.plan, self.progress, rails(0), rails(1))
    }

    fn step(&mut self, rng: &mut SimRng) {
        if self.plan.disturbed > 0 && rng.one_in(self.plan.disturbed) {
            self.disturb(rng);
        }
        self.raise_ports();
        for end in 0..2 {
            let is_over = |end: &RailsEnd| end.closed || end.failed.is_some();
            if is_over(&self.ends[1 - end]) && !is_over(&self.ends[end]) && rng.one_in(200) {
                self.ends[end].observe_peer_gone(&mut self.fabric, self.now);
            }
        }
        match rng.within(0..8) {
            0 => {
                let end = rng.within(0..2);
                self.write(end, rng);
            }
            1 => {
                let end = rng.within(0..2);
                self.read(end, rng);
            }
            2 | 3 => {
                let end = rng.within(0..2);
                self.ends[end].turn(&mut self.fabric, self.now, rng);
            }
            4 if rng.one_in(8) => self.now += rng.up_to(Duration::from_millis(2)),
            _ => {
                if !self.fabric.step(self.now, rng) && rng.one_in(3) {
                    self.pass_time();
                }
            }
        }
    }

    /// Nothing moves: time passes up to the next deadline.
    fn pass_time(&mut self) {
        let ports = self.ports_down.iter().map(|(until, ..)| Some(*until)).min();
        let deadlines =
            self.ends.iter().flat_map(|end| [end.rails.next_deadline(), end.protocol.next_deadline()]);
        let next = deadlines.chain([self.fabric.next_time(), ports.flatten()]).flatten().min();
        let step = Duration::from_millis(20);
        self.now = next.map_or(self.now + step, |next| next.clamp(self.now, self.now + step));
    }

    fn disturb(&mut self, rng: &mut SimRng) {
        let rail = rng.within(0..self.plan.rails);
        let works = |rail: usize| {
            let is_up =
                |end: &RailsEnd| end.rails.state(rail) == RailState::Up && !end.rails.is_leaving(rail);
            let is_doubted = self.doubted[rail].is_some_and(|(generation, until)| {
                generation == self.ends[0].rails.generation(rail)
                    && until.is_none_or(|until| self.now < until)
            });
            self.ends.iter().all(is_up) && !is_doubted
        };
        let others = (0..self.plan.rails).filter(|other| *other != rail && works(*other)).count();
        if self.plan.spares_one && others == 0 {
            return;
        }
        let end = rng.within(0..2);
        if rng.one_in(6) {
            let device = self.ends[end].rails.device(rail);
            let is_spared = |other: usize| works(other) && self.ends[end].rails.device(other) != device;
            if let Some(device) = device
                && (!self.plan.spares_one || (0..self.plan.rails).any(is_spared))
            {
                self.lower_port(end, device, self.now + rng.up_to(Duration::from_millis(500)));
            }
            return;
        }
        let how = match rng.within(0..5) {
            0 => Disturbance::Cut(self.now + rng.up_to(Duration::from_millis(50))),
            1 => Disturbance::Cut(self.now + rng.up_to(Duration::from_secs(3))),
            2 => Disturbance::Fails(end),
            3 => Disturbance::Dies(end),
            _ => Disturbance::Hangs(end),
        };
        self.fabric.disturb(rail, how);
        let until = if let Disturbance::Cut(until) = how { Some(until + 2 * RETRIES) } else { None };
        let generation = self.ends[0].rails.generation(rail);
        self.doubted[rail] = match self.doubted[rail] {
            Some((same, before)) if same == generation => {
                Some((generation, before.zip(until).map(|(before, until)| before.max(until))))
            }
            _ => Some((generation, until)),
        };
    }

    /// The port of an end's device is down until a time.
    fn lower_port(&mut self, end: usize, device: usize, until: Instant) {
        self.ports_down.push((until, end, device));
        self.tell_ports(end);
    }

    /// Ports whose time has come are active again.
    fn raise_ports(&mut self) {
        let count = self.ports_down.len();
        self.ports_down.retain(|(until, ..)| self.now < *until);
        if self.ports_down.len() < count {
            (0..2).for_each(|end| self.tell_ports(end));
        }
    }

    fn tell_ports(&mut self, end: usize) {
        let down = self.ports_down.iter().filter(|(_, at, _)| *at == end);
        let down = down.fold(0, |down, (_, _, device)| down | 1 << device);
        self.ends[end].rails.set_active(!down);
    }

    fn write(&mut self, end: usize, rng: &mut SimRng) {
        let Progress { sent, has_shut, .. } = self.progress[end];
        let all = self.plan.count[end];
        let side = &mut self.ends[end];
        if sent == all {
            if !has_shut && !side.protocol.has_unsent() {
                side.protocol.shutdown_write();
                self.progress[end].has_shut = true;
            }
            return;
        }
        if self.plan.kind == ConnectionKind::Stream {
            let longest = rng.one_of(&[LONGEST, SHORT]);
            let len = rng.within(1..longest).min((all - sent) as usize);
            let mut bytes = vec![0; len];
            TestPattern::new(self.seed, end, 0).fill(sent, &mut bytes);
            if side.send_at_once(&mut self.fabric, self.plan.kind, &bytes, self.now) {
                self.progress[end].sent += bytes.len() as u64;
                return;
            }
            let written = match rng.one_in(4) {
                true => lend(side, &bytes),
                false => side.protocol.write(&[IoSlice::new(&bytes)], &mut side.memory),
            };
            self.progress[end].sent += taken(written, 0) as u64;
        } else {
            let mut bytes = vec![0; message_len(self.seed, end, sent)];
            TestPattern::new(self.seed, end, sent).fill(0, &mut bytes);
            if side.send_at_once(&mut self.fabric, self.plan.kind, &bytes, self.now) {
                self.progress[end].sent += 1;
                return;
            }
            let sent = match rng.one_in(4) {
                true => Err(CallError::AboveSendQuota { len: 0, quota: 0 }),
                false => side.protocol.send(&[IoSlice::new(&bytes)], &mut side.memory),
            };
            let whole = match sent {
                Err(CallError::AboveSendQuota { .. }) => lend(side, &bytes),
                sent => sent.map(|()| bytes.len()),
            };
            self.progress[end].sent += u64::from(whole.is_ok());
            taken(whole, 0);
        }
    }

    fn read(&mut self, end: usize, rng: &mut SimRng) {
        let mut buffer = vec![0; rng.one_of(&[100, 5000, LONGEST])];
        let received = self.progress[end].received;
        let side = &mut self.ends[end];
        if self.plan.kind == ConnectionKind::Stream {
            let read = side.protocol.read(&mut buffer);
            let len = taken(read, usize::MAX);
            if len == 0 {
                self.progress[end].saw_end = true;
            } else if len < usize::MAX {
                let pattern = TestPattern::new(self.seed, 1 - end, 0);
                let wrong = pattern.first_difference(received, &buffer[..len]);
                assert_eq!(wrong, None, "I4: step {}: the stream differs", self.steps);
                self.progress[end].received += len as u64;
            }
            return;
        }
        buffer.resize(LONGEST, 0);
        let mut message = Vec::new();
        // A long message can only be taken in parts.
        let whole = match side.protocol.recv(&mut buffer) {
            Ok(len) => Some(len.map(|len| message.extend(&buffer[..len]))),
            Err(CallError::Blocked(_)) => None,
            Err(CallError::AboveReceiveQuota { .. } | CallError::PartOpen { .. }) => {
                match side.protocol.recv_part(&mut buffer) {
                    Ok(Some(part)) => {
                        self.parts(end, &buffer[..part.len], part.last);
                        return;
                    }
                    Ok(None) => Some(None),
                    Err(_) => None,
                }
            }
            Err(CallError::Failed(_)) => None,
            Err(error) => panic!("{error}"),
        };
        match whole {
            None => {}
            Some(None) => self.progress[end].saw_end = true,
            Some(Some(())) => self.message(end, &message),
        }
    }

    fn message(&mut self, end: usize, message: &[u8]) {
        let number = self.progress[end].received;
        assert!(number < self.plan.count[1 - end], "I5: one message too many");
        assert_eq!(message.len(), message_len(self.seed, 1 - end, number), "I5: message {number}");
        let wrong = TestPattern::new(self.seed, 1 - end, number).first_difference(0, message);
        assert_eq!(wrong, None, "I5: message {number} differs");
        self.progress[end].received += 1;
    }

    fn parts(&mut self, end: usize, bytes: &[u8], last: bool) {
        let side = &mut self.ends[end];
        side.partial.extend_from_slice(bytes);
        if last {
            let message = std::mem::take(&mut side.partial);
            self.message(end, &message);
        }
    }
}

fn lend(side: &mut RailsEnd, bytes: &[u8]) -> Result<usize, CallError> {
    let blocked = CallError::Blocked(crate::protocol::Blocked::Memory);
    let mut block = side.memory.take(bytes.len().max(1), Purpose::Send).ok_or(blocked)?;
    block.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
    side.protocol.send_block(block, bytes.len()).map(|_| bytes.len()).map_err(|(_, error)| error)
}

/// The result of a call, or `otherwise` if it would block or the connection has failed.
fn taken(result: Result<usize, CallError>, otherwise: usize) -> usize {
    match result {
        Ok(len) => len,
        Err(CallError::Blocked(_) | CallError::Failed(_)) => otherwise,
        Err(error) => panic!("{error}"),
    }
}

fn run(seed: u64, plan: Plan, rng: &mut SimRng, sums: &mut Sums) -> RunStatistics {
    struct Tell(u64);
    impl Drop for Tell {
        fn drop(&mut self) {
            tell_failed_run(self.0, format_args!("rails"));
        }
    }
    let _tell = Tell(seed);
    let outcome = Run::new(seed, plan).run(rng);
    let statistics = outcome.statistics;
    sums.add(outcome);
    statistics
}

/// One rail that works is left alone, so that everything must arrive, once and in order. Data that a
/// failed rail has not carried goes over another one within 50 ms of virtual time in the median.
#[test]
fn i22_rails_that_fail_lose_and_repeat_nothing() {
    let mut sums = Sums::default();
    explore(2_000_000, |seed, mut rng| run(seed, Plan::random(&mut rng), &mut rng, &mut sums));
    sums.outages.sort();
    let median = sums.outages.get(sums.outages.len() / 2).copied();
    let Sums { joined, frames_repeated, reads_repeated, failures, told_by_peer, late, moves, ref outages } =
        sums;
    println!(
        "{joined} rails joined, {failures} failed, {told_by_peer} were told to be down, {moves} moved; {frames_repeated} frames and \
         {reads_repeated} READs went again; {late} late packets; {} outages of {median:?} in the median, {:?} at most",
        outages.len(),
        outages.last(),
    );
    if std::env::var_os("TRESPASS_SIM_SEED").is_none() {
        let counts = [joined, frames_repeated, reads_repeated, failures, told_by_peer, late, moves];
        assert!(counts.iter().all(|count| *count > 0), "something never happened: {counts:?}");
        assert!(median.is_some_and(|median| median <= Duration::from_millis(50)), "{median:?}");
    }
}

/// All rails may fail. Then the connection fails, with every block returned.
#[test]
fn i22_without_a_rail_the_connection_fails() {
    let mut sums = Sums::default();
    explore(500_000, |seed, mut rng| {
        let plan = Plan { spares_one: false, disturbed: 40, ..Plan::random(&mut rng) };
        run(seed, plan, &mut rng, &mut sums)
    });
}
