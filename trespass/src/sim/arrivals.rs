//! A listener in the service thread, and its clients: the real handshakes and the real decision who
//! has a place, with virtual sockets and time.
//!
//! Hostile clients stop at every byte of their handshakes, flood the listener, or disconnect. The
//! model keeps its own account of places, steps and waiting clients. It checks each eviction, the
//! work of each turn for each client, and that every honest client is established in time. One that
//! makes room for others connects again, and is established, too.

mod listener;
mod peer;

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use self::listener::{AWAY, ListenerModel, TurnIo};
use self::peer::{Behaviour, Peer};
use super::rng::SimRng;
use super::simulation::RunStatistics;
use super::wire::Clock;
use super::{explore, tell_failed_run};
use crate::session::admission::{Admission, MAX_HANDSHAKES, MAX_WAITING};
use crate::session::service::NextTurn;

/// The longest time that a client keeps a place while others wait: its HELLO, the probe and READY.
const HOLDS: Duration = Duration::from_millis(3500);
/// The longest handshake of an honest client that has its place, with the probe's timeout.
const HANDSHAKE: Duration = Duration::from_millis(2000);
/// Longer pauses of the service thread end handshakes.
const MOST_PAUSED: Duration = Duration::from_millis(2500);
/// A run with a longer time has no end.
const LONGEST: Duration = Duration::from_secs(300);

/// The parameters of a run.
struct Plan {
    backlog: usize,
    /// The most accepted clients without a place.
    most_waiting: usize,
    /// The time from one `accept` of the program to the next.
    accepts_every: Duration,
    honest: usize,
    late: usize,
    hostile: usize,
    /// These connect first, all at once.
    silent: Vec<Behaviour>,
    /// Clients that are at once in all that they do.
    prompt: usize,
    /// The number of times that hostile clients connect again, all together.
    again: usize,
    /// Clients arrive within this time.
    within: Duration,
    /// The service thread has no turn for a time, once in this many turns; 0 = never. All these times
    /// together are at most `paused`.
    pauses: usize,
    paused: Duration,
    /// It learns of few events at a time, once in this many turns; 0 = never.
    few_events: usize,
}

/// What a run met.
#[derive(Debug, Default)]
struct Met {
    established: usize,
    evicted: usize,
    most_calls: usize,
    most_running: usize,
    parked: usize,
    /// The longest time until a prompt client was established.
    slowest: Duration,
}

struct Arrivals {
    seed: u64,
    plan: Plan,
    rng: SimRng,
    clock: Clock,
    began: Instant,
    peers: Vec<Peer>,
    /// Those that connect later, last first.
    coming: Vec<(Instant, Behaviour)>,
    again: usize,
    admission: Admission<listener::Incoming>,
    listener: ListenerModel,
    next: NextTurn,
    /// The service thread has no turn until then.
    paused_until: Instant,
    paused: Duration,
    steps: u64,
}

impl Arrivals {
    fn new(seed: u64, mut rng: SimRng, plan: Plan) -> Self {
        let began = Instant::now();
        let clock: Clock = Rc::new(Cell::new(began));
        let late = |rng: &mut SimRng| Behaviour::Late(Duration::from_millis(rng.within(300..2000) as u64));
        let mut coming: Vec<_> = (0..plan.honest).map(|_| Behaviour::Honest).collect();
        coming.extend((0..plan.late).map(|_| late(&mut rng)));
        coming.extend((0..plan.hostile).map(|_| Behaviour::hostile(&mut rng)));
        coming.extend((0..plan.prompt).map(|_| Behaviour::Prompt));
        let mut coming: Vec<_> =
            coming.into_iter().map(|behaviour| (began + rng.up_to(plan.within), behaviour)).collect();
        coming.extend(plan.silent.iter().map(|behaviour| (began, *behaviour)));
        coming.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
        Self {
            seed,
            began,
            peers: Vec::new(),
            coming,
            again: plan.again,
            admission: Admission::new(),
            listener: ListenerModel::new(&plan, &clock),
            next: NextTurn::At(began),
            clock,
            paused_until: began,
            paused: Duration::ZERO,
            steps: 0,
            plan,
            rng,
        }
    }

    fn now(&self) -> Instant {
        self.clock.get()
    }

    /// Runs until every honest client has a result and the listener has nothing to do.
    fn run(mut self) -> (RunStatistics, Met) {
        while !self.is_over() {
            self.step();
            assert!(self.now() - self.began < LONGEST, "clients without a result: {:?}", self.missing());
        }
        self.check_clients();
        let prompt = self.peers.iter().filter(|peer| peer.behaviour == Behaviour::Prompt);
        let took = prompt.filter_map(|peer| Some(peer.result?.0 - peer.connected_at));
        let met = Met {
            established: self.listener.established(),
            evicted: self.listener.evicted.len(),
            most_calls: self.listener.most_calls,
            most_running: self.listener.most_running,
            parked: self.listener.parked,
            slowest: took.max().unwrap_or_default(),
        };
        let (steps, time) = (self.steps, self.now() - self.began);
        (RunStatistics { steps, time, ..RunStatistics::default() }, met)
    }

    fn is_over(&self) -> bool {
        self.coming.is_empty() && self.missing().is_empty()
    }

    /// The honest clients without a result. Of one that has connected, the listener's result counts.
    fn missing(&self) -> Vec<(usize, Behaviour, Option<bool>)> {
        let ends = |at: usize, peer: &Peer| match peer.result {
            Some((_, true)) => self.listener.has_established(at),
            result => result.is_some(),
        };
        let peers = self.peers.iter().enumerate();
        let slow = |peer: &Peer| peer.behaviour == Behaviour::Dawdles && peer.is_established();
        let matters = |peer: &Peer| peer.behaviour.is_honest() || slow(peer);
        let missing = peers.filter(|(at, peer)| matters(peer) && !ends(*at, peer));
        let told = |peer: &Peer| peer.result.map(|(_, established)| established);
        missing.map(|(at, peer)| (at, peer.behaviour, told(peer))).collect()
    }

    /// The next event: a client connects or has its turn, the program accepts, or the service thread
    /// has a turn.
    fn step(&mut self) {
        self.steps += 1;
        let connects = self.coming.last().map(|(at, _)| *at);
        let turns = self.peers.iter().enumerate().filter_map(|(at, peer)| Some((peer.next_turn()?, at)));
        let turn = turns.min();
        let service = self.service_due();
        let accepts = self.listener.next_accept();
        let times = [connects, turn.map(|(at, _)| at), service, accepts];
        let next =
            times.into_iter().flatten().min().unwrap_or_else(|| {
                panic!("nothing happens any more, and clients wait: {:?}", self.missing())
            });
        self.clock.set(next.max(self.now()));
        if connects == Some(next) {
            self.connect();
        } else if accepts == Some(next) {
            if self.listener.accept_by_program() {
                self.next = NextTurn::At(self.now());
            }
        } else if service == Some(next) {
            self.serve();
        } else if let Some((_, at)) = turn {
            self.peers[at].turn(&self.clock, &mut self.rng);
        }
    }

    fn connect(&mut self) {
        let Some((_, behaviour)) = self.coming.pop() else { return };
        self.listener.connects(self.peers.len());
        self.peers.push(Peer::new(behaviour, &self.clock, &mut self.rng));
    }

    /// When the service thread has its next turn.
    fn service_due(&self) -> Option<Instant> {
        let event = self.listener.next_event(&self.peers);
        event.into_iter().chain(self.next.due()).min().map(|at| at.max(self.paused_until))
    }

    /// A turn of the service thread.
    fn serve(&mut self) {
        if self.plan.pauses > 0 && self.rng.one_in(self.plan.pauses) {
            let pause = self.rng.up_to(self.plan.paused - self.paused);
            self.paused += pause;
            self.paused_until = self.now() + pause;
            return;
        }
        let few = self.plan.few_events > 0 && self.rng.one_in(self.plan.few_events);
        let most = if few { self.rng.within(0..3) } else { usize::MAX };
        let moved = self.listener.take_events(&self.peers, most, &mut self.rng);
        let now = self.now();
        self.listener.begin_turn();
        let mut io = TurnIo { listener: &mut self.listener, peers: &self.peers };
        self.next = self.admission.turn(&mut io, &moved, now);
        self.listener.end_turn();
        let (closed, failed) = self.listener.take_ended();
        (0..failed).for_each(|_| self.replace_hostile());
        for at in closed {
            if self.peers[at].behaviour.is_honest() {
                let again = self.listener.connects_again(at);
                self.peers[at].connects_again(again, &self.clock);
            } else {
                self.replace_hostile();
            }
        }
    }

    /// Another hostile client takes the place in the queue of one that has ended.
    fn replace_hostile(&mut self) {
        if self.again > 0 {
            self.again -= 1;
            self.coming.push((self.now(), Behaviour::hostile(&mut self.rng)));
        }
    }

    /// Every honest client is established, and in time unless it was late while others waited.
    fn check_clients(&self) {
        let clients = self.peers.len();
        let places = self.plan.backlog.min(MAX_HANDSHAKES);
        let crowded = clients > places;
        let rounds = if crowded { clients.div_ceil(places) as u32 } else { 0 };
        for (at, peer) in self.peers.iter().enumerate().filter(|(_, peer)| peer.behaviour.is_honest()) {
            // A probe without an answer needs turns of both sides.
            let slow = peer.loses_probes() && !self.paused.is_zero();
            let (late, may_lose) = match peer.behaviour {
                Behaviour::Late(time) => (time, true),
                _ => (Duration::ZERO, slow),
            };
            let is_evicted = self.listener.evicted.contains(&at);
            if self.paused > MOST_PAUSED && !peer.is_established() {
                continue;
            }
            let took = peer.result.map(|(at, _)| at - peer.connected_at);
            let (behaviour, established) = (peer.behaviour, peer.is_established());
            assert!(established, "{behaviour:?} client {at} fails after {took:?}, evicted: {is_evicted}");
            if crowded && may_lose && is_evicted {
                continue;
            }
            let accepting = clients as u32 * (self.plan.accepts_every + AWAY);
            let bound = late + HANDSHAKE + rounds * HOLDS + accepting + self.paused;
            assert!(took.is_some_and(|took| took <= bound), "client {at} waited for {took:?} of {bound:?}");
        }
        assert!(crowded || self.listener.evicted.is_empty(), "a client lost its place, and nobody waited");
    }
}

impl Drop for Arrivals {
    fn drop(&mut self) {
        tell_failed_run(self.seed, format_args!("step {}", self.steps));
    }
}

/// Runs plans until the budget is spent. Returns what all runs met.
fn explore_plans(budget: u64, plan: impl Fn(&mut SimRng) -> Plan) -> Met {
    let mut all = Met::default();
    explore(budget, |seed, mut rng| {
        let plan = plan(&mut rng);
        let (sum, met) = Arrivals::new(seed, rng, plan).run();
        all.established += met.established;
        all.evicted += met.evicted;
        all.most_calls = all.most_calls.max(met.most_calls);
        all.parked += met.parked;
        all.most_running = all.most_running.max(met.most_running);
        all.slowest = all.slowest.max(met.slowest);
        sum
    });
    all
}

/// A plan without hostile clients and disturbances.
fn calm() -> Plan {
    Plan {
        backlog: 1024,
        most_waiting: MAX_WAITING,
        accepts_every: Duration::from_millis(1),
        honest: 20,
        late: 0,
        hostile: 0,
        silent: Vec::new(),
        prompt: 0,
        again: 0,
        within: Duration::from_millis(500),
        pauses: 0,
        paused: Duration::ZERO,
        few_events: 0,
    }
}

/// 100 clients that stop at every step, flood the listener or dawdle, while it has places for all.
#[test]
fn clients_that_stop_at_every_step_delay_nobody() {
    let met = explore_plans(40_000, |_| Plan { late: 8, hostile: 100, ..calm() });
    assert!(met.established >= 28 && met.most_calls >= 64, "{met:?}");
}

/// The same for few places: those that wait replace silent and stalled clients, in this order.
#[test]
fn clients_that_wait_replace_stalled_ones() {
    let met = explore_plans(100_000, |rng| Plan {
        backlog: rng.one_of(&[1, 2, 5, 16, 60]),
        most_waiting: rng.one_of(&[1, 10, 40, MAX_WAITING]),
        late: 5,
        hostile: 100,
        again: rng.one_of(&[0, 50]),
        pauses: rng.one_of(&[0, 50, 500]),
        paused: MOST_PAUSED,
        few_events: rng.one_of(&[0, 2, 10]),
        ..calm()
    });
    assert!(met.established >= 20 && met.evicted > 100, "{met:?}");
}

/// Clients whose machines are busy, and a service thread that has its turns late.
#[test]
fn late_hellos_succeed_while_nobody_waits() {
    let met = explore_plans(20_000, |rng| Plan {
        honest: 5,
        late: 40,
        hostile: rng.one_of(&[0, 50]),
        pauses: rng.one_of(&[0, 50, 500]),
        paused: Duration::from_secs(1),
        few_events: rng.one_of(&[0, 2, 10]),
        ..calm()
    });
    assert!(met.established >= 45 && met.evicted == 0, "{met:?}");
}

/// A listener that had no turn until its deadline: a client whose connect has returned is accepted.
#[test]
fn a_commit_outlasts_the_deadline() {
    let met = explore_plans(20_000, |_| Plan {
        honest: 40,
        within: Duration::from_millis(200),
        pauses: 20,
        paused: Duration::from_secs(15),
        ..calm()
    });
    assert!(met.established >= 20, "{met:?}");
}

/// Established connections keep their places until the program accepts them, and take them from no
/// handshake.
#[test]
fn a_busy_program_delays_clients_and_loses_none() {
    let met = explore_plans(20_000, |rng| Plan {
        backlog: rng.one_of(&[1, 3, 10]),
        accepts_every: Duration::from_millis(rng.one_of(&[100, 400, 1500])),
        few_events: rng.one_of(&[0, 2]),
        ..calm()
    });
    assert!(met.established >= 20 && met.evicted == 0, "{met:?}");
}

/// 1,000 clients send nothing, a part of their HELLO, or all of it, and stay. Others connect after
/// them.
#[test]
fn a_thousand_silent_clients_delay_others_by_less_than_a_second() {
    let mixed = |at: usize| match at % 5 {
        0 => Behaviour::Greets,
        1 | 3 => Behaviour::Stops(5),
        _ => Behaviour::Stops(0),
    };
    let few = |at: usize| Behaviour::Stops(at % 6);
    let met = explore_plans(15_000, |rng| {
        let (most_waiting, silent): (usize, Vec<Behaviour>) = match rng.within(0..6) {
            0 => (MAX_WAITING, (0..1000).map(mixed).collect()),
            1 => (MAX_WAITING, (0..1000).map(few).collect()),
            2 => (MAX_WAITING, vec![Behaviour::Greets; 1000]),
            3 => (MAX_WAITING, (0..1000).map(|_| Behaviour::Stops(rng.within(0..400))).collect()),
            // A process that may have 1,024 descriptors.
            4 => (128, (0..1000).map(mixed).collect()),
            _ => (128, (0..1000).map(few).collect()),
        };
        Plan { most_waiting, silent, prompt: 3, honest: 0, ..calm() }
    });
    println!("{met:?}");
    assert!(met.slowest < Duration::from_secs(1), "{met:?}");
    assert!(met.most_running == MAX_HANDSHAKES && met.evicted > 100, "{met:?}");
}
