//! A program whose calls leave bytes behind, because the peer has no receives for them. The service
//! thread visits the connection at the real times ([`Visits`]) and by the real gate, in virtual time.
//!
//! The program makes calls by chance. Some send by themselves while they sleep. After its last
//! call, visits alone run the sender's driver. The peer gets all bytes once, in order, soon after it
//! has read, and then no visit is wanted.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::explore;
use super::plan::{ReadPolicy, SimPlan, TransportKind};
use super::rng::SimRng;
use super::simulation::{RunStatistics, Simulation};
use crate::process::CallGate;
use crate::session::schedule::NextTurn;
use crate::session::visits::{VisitEnd, VisitTask, Visited, Visits};

/// The longest pause between two visits.
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
/// The pause after a visit that has moved something.
const SHORT_PAUSE: Duration = Duration::from_millis(1);

/// The end whose program leaves bytes behind, and its peer.
const SENDER: usize = 0;
const READER: usize = 1;

/// The sender's connection, between its calls and visits.
struct Owner {
    gate: CallGate,
    visits: Visits<Self>,
    simulation: Mutex<Simulation>,
}

impl Owner {
    fn simulation(&self) -> MutexGuard<'_, Simulation> {
        self.simulation.lock().expect("no step has panicked")
    }

    fn has_left(&self) -> bool {
        let end = &self.simulation().ends[SENDER];
        end.connection.failure().is_none() && !end.is_flushed()
    }
}

impl Visited for Owner {
    fn gate(&self) -> &CallGate {
        &self.gate
    }

    fn visits(&self) -> &Visits<Self> {
        &self.visits
    }

    unsafe fn visit(&self) -> VisitEnd {
        let moved = {
            let mut simulation = self.simulation();
            let before = simulation.ends[SENDER].moved();
            simulation.drive(SENDER);
            simulation.ends[SENDER].moved() > before
        };
        self.has_left().then_some(moved).into()
    }
}

/// What the runs met.
#[derive(Debug, Default)]
struct Met {
    /// Runs whose program left bytes behind after its last call.
    left: usize,
    visits: usize,
    /// Visits that could not begin, because a call was in.
    kept_out: usize,
    /// Tasks that ended, because a call sleeps.
    ended_by_calls: usize,
    /// Tasks that were started again.
    tasks: usize,
}

/// A call of the program that takes some steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    /// It writes at its end.
    Works,
    /// It sleeps, and sends by itself at events.
    Sleeps,
}

struct Run {
    owner: Arc<Owner>,
    /// The task of the service thread, and its next turn.
    task: Option<(VisitTask<Owner>, Instant)>,
    call: Option<Call>,
    met: Met,
}

impl Run {
    fn new(simulation: Simulation) -> Self {
        let (gate, visits, simulation) = (CallGate::new(), Visits::new(), Mutex::new(simulation));
        let owner = Arc::new(Owner { gate, visits, simulation });
        Self { owner, task: None, call: None, met: Met::default() }
    }

    fn simulation(&self) -> MutexGuard<'_, Simulation> {
        self.owner.simulation()
    }

    fn now(&self) -> Instant {
        self.simulation().now
    }

    /// A step of somebody.
    fn step(&mut self) {
        let actor = self.simulation().rng.within(0..10);
        match actor {
            0 if self.call.is_some() => self.end_call(),
            1 if self.call == Some(Call::Sleeps) => self.simulation().drive(SENDER),
            0 => self.begin_call(),
            1..=2 => self.read(),
            3 => self.advance(),
            _ => {
                let end = self.simulation().rng.within(0..2);
                self.simulation().carry(end);
            }
        }
        self.simulation().steps += 1;
        self.simulation().check();
        self.visit_if_due();
    }

    fn begin_call(&mut self) {
        self.owner.gate.enter(false).expect("the process goes on");
        let sleeps = self.simulation().rng.one_in(8);
        if sleeps {
            self.owner.visits.end();
        }
        self.call = Some(if sleeps { Call::Sleeps } else { Call::Works });
        if !sleeps && self.simulation().rng.one_in(2) {
            self.end_call();
        }
    }

    /// The call leaves to the service thread what the peer has no room for.
    fn end_call(&mut self) {
        if self.call.take() == Some(Call::Works) {
            let mut simulation = self.simulation();
            simulation.write(SENDER);
            simulation.drive(SENDER);
        }
        self.leave_unsent();
        self.owner.gate.leave(false);
    }

    fn leave_unsent(&mut self) {
        if self.owner.has_left()
            && let Some(task) = self.owner.visits.task_for(Arc::downgrade(&self.owner))
        {
            assert!(self.task.is_none(), "a connection has two tasks for visits");
            self.met.tasks += 1;
            self.task = Some((task, self.now()));
        }
    }

    /// The peer reads, and its driver has a turn.
    fn read(&mut self) {
        let mut simulation = self.simulation();
        simulation.with(READER, |program, turn| program.release_one(turn));
        simulation.read(READER);
        simulation.drive(READER);
    }

    fn advance(&mut self) {
        let mut simulation = self.simulation();
        let is_long = simulation.rng.one_in(50);
        let time = simulation.rng.up_to(Duration::from_millis(if is_long { 4000 } else { 4 }));
        simulation.advance_time(time);
    }

    /// A turn of the task. Returns whether it was due.
    fn visit_if_due(&mut self) -> bool {
        let now = self.now();
        let Some((mut task, _)) = self.task.take_if(|(_, due)| *due <= now) else { return false };
        match task.turn_at(now) {
            NextTurn::At(due) => {
                assert!(due > now && due <= now + LONGEST_PAUSE, "a pause of {:?}", due - now);
                self.met.visits += 1;
                self.met.kept_out += usize::from(self.call.is_some());
                self.task = Some((task, due));
            }
            NextTurn::Never => self.met.ended_by_calls += usize::from(self.call.is_some()),
            NextTurn::Event => panic!("no event ends a pause"),
        }
        true
    }

    /// After the program's last call: visits alone run the sender's driver, and the peer reads all that
    /// comes.
    fn finish(mut self, all: &mut Met) -> RunStatistics {
        if self.call.is_some() {
            self.end_call();
        }
        self.met.left = usize::from(self.owner.has_left());
        let is_visited = self.owner.visits.are_wanted() && self.task.is_some();
        assert!(is_visited || self.met.left == 0, "bytes are left, and nobody visits");
        let (began, mut visits, mut idle) = (self.now(), 0, 0);
        self.read_all();
        while let Some((_, due)) = &self.task {
            let time = due.saturating_duration_since(self.now());
            self.simulation().advance_time(time);
            let before = self.simulation().ends[SENDER].moved();
            self.visit_if_due();
            visits += 1;
            // By chance a turn of the modelled driver does nothing.
            idle += u32::from(self.simulation().ends[SENDER].moved() == before);
            self.read_all();
            let took = self.now() - began;
            assert!(
                took <= (1 + idle) * LONGEST_PAUSE + 2 * visits * SHORT_PAUSE,
                "{visits} visits take {took:?}: {}",
                self.simulation().state()
            );
        }
        assert!(!self.owner.visits.are_wanted(), "visits are wanted, and nobody makes them");
        assert!(!self.owner.has_left(), "bytes are left, and nobody visits");
        let is_complete = self.simulation().oracles[SENDER].is_complete();
        assert!(is_complete, "bytes are lost: {}", self.simulation().state());
        all.left += self.met.left;
        all.visits += self.met.visits;
        all.kept_out += self.met.kept_out;
        all.ended_by_calls += self.met.ended_by_calls;
        all.tasks += self.met.tasks;
        let owner = Arc::into_inner(self.owner).expect("the task has ended");
        let mut simulation = owner.simulation.into_inner().expect("no step has panicked");
        simulation.settle();
        simulation.finish_and_check()
    }

    /// The peer reads until nothing arrives any more.
    fn read_all(&mut self) {
        let mut idle = 0;
        while idle < 100 {
            let before = self.simulation().progress();
            self.read();
            let mut simulation = self.simulation();
            let carried = simulation.carry(SENDER) | simulation.carry(READER);
            simulation.steps += 1;
            simulation.check();
            idle = if carried || simulation.progress() != before { 0 } else { idle + 1 };
        }
    }
}

fn plan(rng: &mut SimRng) -> SimPlan {
    let kind = rng.one_of(&[TransportKind::Rc, TransportKind::Rc, TransportKind::Rc, TransportKind::Tcp]);
    let mut plan = SimPlan::any(rng).transport_kind(kind).both(|workload| {
        (workload.writes, workload.reader, workload.corks) = (true, ReadPolicy::Eager, false);
        // A message that fits no send buffer would be incomplete after the last call.
        (workload.parts, workload.largest) = (0, 15_000);
    });
    // Each visit has room for a whole frame.
    plan.tcp_buffer = 65_536;
    plan.limits.iter_mut().for_each(|limits| limits.rx_slots = rng.one_of(&[16, 17, 24]));
    plan
}

#[test]
fn i04_visits_send_what_calls_have_left() {
    let mut met = Met::default();
    explore(60_000, |seed, mut rng| {
        let (plan, steps) = (plan(&mut rng), rng.within(0..2000));
        let mut run = Run::new(Simulation::new(seed, rng, plan));
        (0..steps).for_each(|_| run.step());
        run.finish(&mut met)
    });
    assert!(met.left > 10 && met.visits > 100 && met.tasks > 50, "{met:?}");
    assert!(met.kept_out > 10 && met.ended_by_calls > 10, "{met:?}");
}
