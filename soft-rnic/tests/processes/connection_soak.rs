//! Two processes connect, accept, reject and disconnect at random, and are killed and stopped at
//! random moments. A survivor sees the end of all its connections to the dead process, and nothing
//! of them remains.
//!
//! A *worker* listens, and performs random operations with ids, to the other worker and to itself.
//! This process tells each worker the other's port, kills or stops one of them, and has the
//! survivor destroy everything and count.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use libtest_mimic::{Failed, Trial};
use rustix::process::Signal;

use crate::cm::{CmChannel, CmCounts, Event, Id, Kind, warm_up};
use crate::role::{ChildRole, fabric, say, told};
use crate::soak::{SeededRandom, number};

/// The number of calls (connects, accepts, rejects, disconnects) that both workers make, and the
/// random seed. `SOFT_RNIC_SOAK`, which counts moments, and `SOFT_RNIC_SEED` override them.
const CALLS: u64 = 10_000;
const CALLS_A_MOMENT: u64 = 100;
/// The time limit of a round.
const PATIENCE: Duration = Duration::from_secs(40);
/// The number of operations of a worker in a round.
const ACTIONS: u32 = 2500;
/// The most ids of a worker.
const IDS: usize = 48;
/// The number of ports in a group.
const GROUP: usize = 64;

pub(crate) fn trials() -> Vec<Trial> {
    vec![Trial::test("soak::connections_of_those_who_are_killed_and_stopped", soak)]
}

/// The numbers of successful calls, by kind.
#[derive(Clone, Copy, Debug, Default)]
struct CallCounts([u64; 4]);

const CONNECT: usize = 0;
const ACCEPT: usize = 1;
const REJECT: usize = 2;
const DISCONNECT: usize = 3;

impl CallCounts {
    fn sum(self) -> u64 {
        self.0.iter().sum()
    }
}

/// The state of an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WorkerState {
    /// Waits for an event.
    Waits,
    /// Received a connection request.
    Requested,
    Established,
    /// Will be destroyed.
    Over,
}

struct SoakWorker {
    channel: CmChannel,
    listener: Id,
    port: u16,
    peer: Option<u16>,
    ids: HashMap<Id, WorkerState>,
    chance: SeededRandom,
    calls: CallCounts,
}

/// The worker role.
pub(crate) fn worker(arguments: &[String]) {
    warm_up();
    let channel = CmChannel::new();
    let listener = channel.id();
    let port = listener.listen(0, 64);
    have_a_spare_group(channel);
    let seed = arguments[0].parse().expect("a number");
    let (ids, calls) = (HashMap::new(), CallCounts::default());
    let mut worker =
        SoakWorker { channel, listener, port, peer: None, ids, chance: SeededRandom(seed), calls };
    let before = CmCounts::now();
    say(&format!("port {port}"));
    while let Some(line) = told() {
        let mut words = line.split(' ');
        match words.next().unwrap_or_default() {
            "peer" => worker.peer = words.next().map(|port| port.parse().expect("a port")),
            "run" => {
                for action in 0..ACTIONS {
                    worker.act();
                    if action % 50 == 0 {
                        worker.report();
                    }
                }
                worker.report();
                say("ran");
            }
            // The other worker is dead.
            "rest" => {
                worker.hear_all_ends();
                worker.destroy_all();
                before.expect_no_more();
                say("clean");
            }
            "end" => {
                worker.destroy_all();
                worker.listener.destroy();
                worker.channel.destroy();
                say("ended");
                return;
            }
            other => panic!("{other}?"),
        }
    }
}

/// Makes the process keep a second port group unused, as after a time with more ports than one
/// group has.
fn have_a_spare_group(channel: CmChannel) {
    let ids: Vec<_> = (0..GROUP).map(|_| channel.id()).collect();
    for id in &ids {
        id.listen(0, 1);
    }
    ids.into_iter().for_each(Id::destroy);
}

impl SoakWorker {
    fn report(&mut self) {
        let [connects, accepts, rejects, disconnects] = core::mem::take(&mut self.calls).0;
        say(&format!("calls {connects} {accepts} {rejects} {disconnects}"));
    }

    /// Counts a call if it succeeded. The other side's actions may have made it fail.
    fn note(&mut self, kind: usize, result: Result<(), i32>) {
        match result {
            Ok(()) => self.calls.0[kind] += 1,
            Err(error) => {
                assert!([libc::EINVAL, libc::ENOTCONN].contains(&error), "call {kind}: error {error}")
            }
        }
    }

    /// Performs one random operation.
    fn act(&mut self) {
        while let Some(event) = self.channel.event(Duration::ZERO) {
            self.hear(&event);
        }
        let choice = self.chance.below(10);
        match choice {
            0..3 if self.ids.len() < IDS => self.open(),
            3..5 => {
                if let Some(id) = self.any(WorkerState::Requested) {
                    if self.chance.below(4) == 0
                        && let Err(error) = id.make_qp()
                    {
                        assert_eq!(error, libc::EINVAL, "the requester may have left");
                    }
                    let accepted = id.accept(b"welcome");
                    self.note(ACCEPT, accepted);
                    self.ids
                        .insert(id, if accepted.is_ok() { WorkerState::Waits } else { WorkerState::Over });
                }
            }
            5 => {
                if let Some(id) = self.any(WorkerState::Requested) {
                    self.note(REJECT, id.reject(b"no"));
                    self.ids.insert(id, WorkerState::Over);
                }
            }
            6..8 => {
                if let Some(id) = self.any(WorkerState::Established) {
                    self.note(DISCONNECT, id.disconnect());
                    self.ids.insert(id, WorkerState::Waits);
                }
            }
            8 => {
                if let Some(id) = self.any(WorkerState::Over) {
                    self.destroy(id);
                }
            }
            // An id may be destroyed whatever it waits for.
            _ if self.chance.below(8) == 0 || self.ids.len() >= IDS => {
                let states =
                    [WorkerState::Waits, WorkerState::Requested, WorkerState::Established, WorkerState::Over];
                let state = states[self.chance.below(4) as usize];
                if let Some(id) = self.any(state) {
                    self.destroy(id);
                }
            }
            _ => {
                if let Some(event) = self.channel.event(Duration::from_millis(1)) {
                    self.hear(&event);
                }
            }
        }
    }

    /// Takes a random id in this state.
    fn any(&mut self, state: WorkerState) -> Option<Id> {
        let mut there: Vec<_> = self.ids.iter().filter(|(_, of)| **of == state).map(|(id, _)| *id).collect();
        if there.is_empty() {
            return None;
        }
        let chosen = self.chance.below(there.len() as u64) as usize;
        Some(there.swap_remove(chosen))
    }

    fn open(&mut self) {
        let port = self.peer.filter(|_| self.chance.below(5) > 0).unwrap_or(self.port);
        let id = self.channel.id();
        id.resolve_addr(port).expect("the address belongs to this host");
        self.ids.insert(id, WorkerState::Waits);
    }

    fn destroy(&mut self, id: Id) {
        self.ids.remove(&id);
        id.destroy();
    }

    /// Waits until every id with a remote peer has its end event. Requests have none, because they
    /// get no events before they are accepted.
    fn hear_all_ends(&mut self) {
        let begin = Instant::now();
        loop {
            while let Some(event) = self.channel.event(Duration::from_millis(1)) {
                self.hear(&event);
            }
            let ends: Vec<_> = self.ids.keys().map(|id| id.ports()).collect();
            let is_left = |id: &Id, state: WorkerState| {
                let (here, there) = id.ports();
                !matches!(state, WorkerState::Over | WorkerState::Requested) && !ends.contains(&(there, here))
            };
            let left: Vec<_> = self.ids.iter().filter(|(id, state)| is_left(id, **state)).collect();
            if left.is_empty() {
                return;
            }
            assert!(begin.elapsed() < PATIENCE / 4, "no event for the end of {left:?}");
        }
    }

    fn destroy_all(&mut self) {
        for id in core::mem::take(&mut self.ids).into_keys() {
            id.destroy();
        }
        // Requests that the listener has not taken yet.
        while let Some(event) = self.channel.event(Duration::ZERO) {
            assert_eq!(event.kind, Kind::RDMA_CM_EVENT_CONNECT_REQUEST, "an event of an unknown id");
            event.id.destroy();
        }
    }

    fn hear(&mut self, event: &Event) {
        let id = event.id;
        let known = self.ids.contains_key(&id);
        assert!(known || event.kind == Kind::RDMA_CM_EVENT_CONNECT_REQUEST, "{event:?} of an unknown id");
        let state = match event.kind {
            Kind::RDMA_CM_EVENT_ADDR_RESOLVED => {
                id.resolve_route().expect("its address is known");
                WorkerState::Waits
            }
            Kind::RDMA_CM_EVENT_ROUTE_RESOLVED => {
                if self.chance.below(4) == 0 {
                    id.make_qp().expect("a queue pair");
                }
                let asked = id.connect(b"hello");
                self.note(CONNECT, asked);
                WorkerState::Waits
            }
            Kind::RDMA_CM_EVENT_CONNECT_REQUEST => {
                assert!(event.data.starts_with(b"hello"), "{event:?}");
                WorkerState::Requested
            }
            Kind::RDMA_CM_EVENT_CONNECT_RESPONSE => {
                assert!(event.data.starts_with(b"welcome"), "{event:?}");
                // The other side may have left by now.
                if id.establish().is_ok() { WorkerState::Established } else { WorkerState::Over }
            }
            Kind::RDMA_CM_EVENT_ESTABLISHED => WorkerState::Established,
            Kind::RDMA_CM_EVENT_REJECTED => {
                assert!([4, 8, 28].contains(&event.status), "{event:?}");
                WorkerState::Over
            }
            Kind::RDMA_CM_EVENT_CONNECT_ERROR | Kind::RDMA_CM_EVENT_UNREACHABLE => WorkerState::Over,
            Kind::RDMA_CM_EVENT_DISCONNECTED => {
                if self.ids.get(&id) == Some(&WorkerState::Established) {
                    self.note(DISCONNECT, id.disconnect());
                }
                WorkerState::Over
            }
            Kind::RDMA_CM_EVENT_TIMEWAIT_EXIT => WorkerState::Over,
            _ => panic!("{event:?}"),
        };
        self.ids.insert(id, state);
    }
}

/// The two workers.
struct WorkerPair {
    fabric: String,
    chance: SeededRandom,
    workers: [ChildRole; 2],
    ports: [u16; 2],
    calls: CallCounts,
}

impl WorkerPair {
    fn worker(fabric: &str, chance: &mut SeededRandom) -> (ChildRole, u16) {
        let seed = chance.next();
        let variables =
            [("SOFT_RNIC_FABRIC", fabric), ("SOFT_RNIC_TIME_SCALE", "0.01"), ("SOFT_RNIC_TEST_ALARM", "300")];
        let role = ChildRole::start(&format!("cm-worker {seed}"), &variables);
        let port = role.hear();
        let port = port.strip_prefix("port ").and_then(|port| port.parse().ok()).expect("a port");
        (role, port)
    }

    /// Waits until a worker says `what`; adds up the calls that it reports until then.
    fn wait_for(&mut self, side: usize, what: &str) -> Result<(), Failed> {
        let begin = Instant::now();
        loop {
            let line = self.workers[side].hear_within(PATIENCE.saturating_sub(begin.elapsed()));
            let line = line.map_err(|error| format!("worker {side} does not say {what:?}: {error}"))?;
            if line == what {
                return Ok(());
            }
            self.count(&line);
        }
    }

    /// Adds up the calls that a dead worker reported.
    fn count_rest(&mut self, side: usize) {
        while let Ok(line) = self.workers[side].hear_within(Duration::from_millis(1)) {
            self.count(&line);
        }
    }

    fn count(&mut self, line: &str) {
        let Some(numbers) = line.strip_prefix("calls ") else { return };
        let numbers = numbers.split(' ').map(|number| number.parse::<u64>().expect("a number"));
        self.calls.0.iter_mut().zip(numbers).for_each(|(sum, number)| *sum += number);
    }

    fn round(&mut self) -> Result<bool, Failed> {
        for side in 0..2 {
            let peer = self.ports[1 - side];
            self.workers[side].tell(&format!("peer {peer}"));
            self.workers[side].tell("run");
        }
        std::thread::sleep(Duration::from_millis(self.chance.below(150)));
        let side = self.chance.below(2) as usize;
        if self.chance.below(3) == 0 {
            let worker = &self.workers[side];
            worker.signal(Signal::STOP);
            std::thread::sleep(Duration::from_millis(self.chance.below(40)));
            worker.signal(Signal::CONT);
            self.wait_for(0, "ran")?;
            self.wait_for(1, "ran")?;
            return Ok(false);
        }
        if let Some(status) = self.workers[side].child.try_wait()? {
            return Err(format!("worker {side} has ended by itself: {status}").into());
        }
        self.workers[side].signal(Signal::KILL);
        self.workers[side].wait_dead();
        self.count_rest(side);
        self.wait_for(1 - side, "ran")?;
        self.workers[1 - side].tell("rest");
        self.wait_for(1 - side, "clean")?;
        (self.workers[side], self.ports[side]) = Self::worker(&self.fabric, &mut self.chance);
        Ok(true)
    }
}

fn soak() -> Result<(), Failed> {
    let seed = number("SOFT_RNIC_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    let wanted = number("SOFT_RNIC_SOAK").map_or(CALLS, |moments| moments * CALLS_A_MOMENT);
    let result = soak_from(seed, wanted);
    result.map_err(|error| {
        let message = error.message().unwrap_or("failed").to_owned();
        format!("seed {seed} (SOFT_RNIC_SEED): {message}").into()
    })
}

fn soak_from(seed: u64, wanted: u64) -> Result<(), Failed> {
    println!("seed {seed}");
    let begin = Instant::now();
    let fabric = fabric();
    let mut chance = SeededRandom(seed);
    let (one, port) = WorkerPair::worker(&fabric, &mut chance);
    let (other, other_port) = WorkerPair::worker(&fabric, &mut chance);
    let (workers, ports) = ([one, other], [port, other_port]);
    let mut pair = WorkerPair { fabric, chance, workers, ports, calls: CallCounts::default() };
    let (mut kills, mut rounds) = (0, 0);
    while pair.calls.sum() < wanted || kills < 5 {
        kills += u32::from(pair.round()?);
        rounds += 1;
    }
    for side in 0..2 {
        pair.workers[side].tell("end");
        pair.wait_for(side, "ended")?;
    }
    let WorkerPair { fabric, workers, calls, .. } = pair;
    workers.into_iter().for_each(ChildRole::finish);
    let names = std::fs::read_to_string("/proc/net/unix")?;
    let left: Vec<_> = names.lines().filter(|line| line.contains(&format!("soft-rnic/{fabric}"))).collect();
    if !left.is_empty() {
        return Err(format!("names are left: {left:?}").into());
    }
    println!("{calls:?} in {rounds} rounds, {kills} kills, {:?}", begin.elapsed());
    if calls.0.iter().any(|count| *count < wanted / 50) {
        return Err(format!("too few of some kind: {calls:?}").into());
    }
    Ok(())
}
