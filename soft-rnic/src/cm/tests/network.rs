//! Processes that talk to each other over a network that loses, delays and repeats what they say, and that die.
//!
//! The programs do whatever they may at random. What must hold: every connection that was asked for comes to something; what is
//! told of an id is in order; when everything is destroyed nothing is left, whatever happened.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::kit::{Host, PATIENCE};
use super::messages::any_message;
use super::random::Random;
use crate::cm::transport::{PortLease, PortLocation, Transport};
use crate::cm::types::{Ece, Event, IdNumber, Kind, Parameters, PortSpace};

const HOSTS: usize = 3;
/// Where the listeners are.
const PORT: u16 = 700;

/// Who said what to whom.
#[derive(Debug)]
struct Packet {
    from: u16,
    to: u16,
    bytes: Vec<u8>,
}

#[derive(Default)]
struct Network {
    packets: VecDeque<Packet>,
    /// Owners of ports. A port is one process's.
    owners: HashMap<(PortSpace, u16), u16>,
    questions: VecDeque<(u16, u64, PortSpace, u16)>,
    last_port: u16,
}

type Shared = Arc<Mutex<Network>>;

fn lock(network: &Shared) -> MutexGuard<'_, Network> {
    network.lock().expect("no panic")
}

/// One process's end of the network.
struct Wire {
    block: u16,
    network: Shared,
    /// What it remembers of ports, which may be wrong.
    known: Mutex<HashMap<(PortSpace, u16), u16>>,
}

struct TakenPort(Shared, (PortSpace, u16));

impl Drop for TakenPort {
    fn drop(&mut self) {
        lock(&self.0).owners.remove(&self.1);
    }
}

impl Transport for Wire {
    fn take_port(&self, space: PortSpace, port: u16) -> Result<PortLease, i32> {
        let mut network = lock(&self.network);
        let port = if port == 0 {
            network.last_port = network.last_port.wrapping_add(1) | 0x8000;
            network.last_port
        } else {
            port
        };
        if network.owners.contains_key(&(space, port)) {
            return Err(libc::EADDRINUSE);
        }
        network.owners.insert((space, port), self.block);
        Ok(PortLease::new(port, TakenPort(Arc::clone(&self.network), (space, port))))
    }

    fn find_port(
        &self,
        space: PortSpace,
        port: u16,
        _: Instant,
        token: u64,
        fresh: bool,
    ) -> Option<PortLocation> {
        let mut known = self.known.lock().expect("no panic");
        if !fresh && let Some(block) = known.get(&(space, port)) {
            return Some(PortLocation::Block(*block));
        }
        let mut network = lock(&self.network);
        if let Some(owner) = network.owners.get(&(space, port)) {
            known.insert((space, port), *owner);
        }
        network.questions.push_back((self.block, token, space, port));
        None
    }

    fn send(&self, block: u16, message: &[u8]) -> io::Result<()> {
        lock(&self.network).packets.push_back(Packet {
            from: self.block,
            to: block,
            bytes: message.to_vec(),
        });
        Ok(())
    }

    fn wake_at(&self, _: Instant) {}
}

/// What a program knows of an id of its own.
#[derive(Debug, Default)]
struct Known {
    /// What it was told, in order.
    told: Vec<Kind>,
    passive: bool,
    connects: bool,
    accepted: bool,
    rejected: bool,
    established: bool,
    datagram: bool,
}

/// What must hold of the order in which an id is told things.
fn check_order(known: &Known) {
    let Known { told, passive, datagram, .. } = known;
    let count = |kind: Kind| told.iter().filter(|of| **of == kind).count();
    let place = |kind: Kind| told.iter().position(|of| *of == kind);
    for kind in [
        Kind::ConnectResponse,
        Kind::Established,
        Kind::Rejected,
        Kind::Unreachable,
        Kind::Disconnected,
        Kind::TimewaitExit,
    ] {
        assert!(count(kind) <= 1, "{kind:?} twice: {known:?}");
    }
    if let Some(exit) = place(Kind::TimewaitExit) {
        assert!(place(Kind::Disconnected).is_some_and(|end| end < exit), "{known:?}");
    }
    if let Some(end) = place(Kind::Disconnected) {
        // Of an active side it is enough that there was a response; a passive side may hear of the end before the beginning.
        assert!(*passive || place(Kind::ConnectResponse).is_some_and(|begin| begin < end), "{known:?}");
        assert!(!datagram && count(Kind::Rejected) == 0, "{known:?}");
    }
    assert!(*passive || *datagram || count(Kind::Established) == 0, "{known:?}");
}

struct Program {
    host: Host,
    listeners: Vec<IdNumber>,
    ids: BTreeMap<IdNumber, Known>,
}

/// What the network does.
#[derive(Clone, Copy, Default)]
struct Weather {
    loss: usize,
    swap: usize,
    repeat: usize,
    death: usize,
    lies: usize,
}

struct World {
    network: Shared,
    programs: Vec<Program>,
    random: Random,
    weather: Weather,
    now: Instant,
}

fn start(network: &Shared, block: u16, now: Instant) -> Program {
    let wire = Wire { block, network: Arc::clone(network), known: Mutex::default() };
    let mut host = Host::with(Arc::new(wire));
    host.now = now;
    Program { host, listeners: Vec::new(), ids: BTreeMap::new() }
}

impl World {
    fn new(seed: u64, weather: Weather) -> Self {
        let (network, now) = (Shared::default(), Instant::now());
        let programs = (0..HOSTS).map(|host| start(&network, host as u16 + 1, now)).collect();
        Self { network, programs, random: Random(seed), weather, now }
    }

    fn step(&mut self) {
        match self.random.below(10) {
            0 => {
                let time = self.random.below(3000) as u64;
                self.pass(Duration::from_millis(time));
            }
            1..=4 => self.carry(),
            _ => {
                let program = self.random.below(HOSTS);
                self.act(program);
                self.listen(program);
            }
        }
        if self.random.chance(self.weather.death) {
            self.kill();
        }
        if self.random.chance(self.weather.lies) {
            self.lie();
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        for program in &mut self.programs {
            program.host.now = self.now;
            program.host.switch.expire(self.now);
        }
    }

    /// Answers a question, and has one packet arrive, or not.
    fn carry(&mut self) {
        let question = lock(&self.network).questions.pop_front();
        if let Some((block, token, space, port)) = question {
            let owner = lock(&self.network).owners.get(&(space, port)).copied();
            let found = match owner {
                _ if self.random.chance(self.weather.loss) => PortLocation::Unresponsive,
                Some(owner) if owner == block => PortLocation::ThisProcess,
                Some(owner) => PortLocation::Block(owner),
                None => PortLocation::Nobody,
            };
            let now = self.now;
            self.program(block).host.switch.found(token, found, now);
        }
        let packet = {
            let mut network = lock(&self.network);
            let count = network.packets.len();
            let place = if self.random.chance(self.weather.swap) { self.random.below(count) } else { 0 };
            network.packets.remove(place)
        };
        let Some(packet) = packet.filter(|_| !self.random.chance(self.weather.loss)) else { return };
        let times = 1 + usize::from(self.random.chance(self.weather.repeat));
        let now = self.now;
        for _ in 0..times {
            self.program(packet.to).host.switch.hear(packet.from, &packet.bytes, now);
        }
    }

    fn program(&mut self, block: u16) -> &mut Program {
        &mut self.programs[usize::from(block - 1)]
    }

    /// A process is killed, and another gets its block.
    fn kill(&mut self) {
        let victim = self.random.below(HOSTS);
        let block = victim as u16 + 1;
        {
            let mut network = lock(&self.network);
            network.packets.retain(|packet| packet.from != block && packet.to != block);
            network.questions.retain(|(of, ..)| *of != block);
        }
        self.programs[victim] = start(&self.network, block, self.now);
        for program in &mut self.programs {
            program.host.switch.gone(block, self.now);
        }
    }

    /// Somebody says something, of anybody's connections.
    fn lie(&mut self) {
        let (from, to) = (self.random.below(HOSTS) as u16 + 1, self.random.below(HOSTS) as u16 + 1);
        let ids: Vec<u64> = self
            .programs
            .iter()
            .flat_map(|program| program.ids.keys())
            .map(|id| id.0)
            .chain([0, 1])
            .collect();
        let (theirs, ours) = (ids[self.random.below(ids.len())], ids[self.random.below(ids.len())]);
        let mut bytes = Vec::new();
        any_message(&mut self.random, theirs, ours).encode(&mut bytes);
        if self.random.chance(100) {
            let place = self.random.below(bytes.len());
            bytes[place] = self.random.next() as u8;
        }
        let now = self.now;
        self.program(to).host.switch.hear(from, &bytes, now);
    }

    /// A program takes what it is told.
    fn listen(&mut self, program: usize) {
        while let Some(event) = self.programs[program].host.next() {
            self.hear(program, &event);
        }
    }

    fn hear(&mut self, program: usize, event: &Event) {
        let Program { host, listeners, ids } = &mut self.programs[program];
        if let Some(request) = event.request {
            assert!(listeners.contains(&event.id), "{event:?}");
            let datagram = matches!(event.details, crate::cm::types::Details::Datagram { .. });
            ids.insert(request, Known { passive: true, connects: true, datagram, ..Known::default() });
            return;
        }
        let known = ids.get_mut(&event.id).unwrap_or_else(|| panic!("of an id that is gone: {event:?}"));
        known.told.push(event.kind);
        // Lies are believed of one's own connections.
        if self.weather.lies == 0 {
            check_order(known);
        }
        let (now, none) = (host.now, Parameters::default());
        match event.kind {
            Kind::AddrResolved => host.switch.resolve_route(event.id).expect("it is resolved"),
            Kind::RouteResolved => {
                host.switch.connect(event.id, &none, Ece::default(), now).expect("it is resolved");
                known.connects = true;
            }
            Kind::ConnectResponse if self.random.chance(800) => {
                // It may have ended since.
                known.established = host.switch.accept(event.id, None, Ece::default(), now).is_ok();
            }
            Kind::ConnectResponse => known.rejected = host.switch.reject(event.id, 28, &[], now).is_ok(),
            Kind::Disconnected if self.random.chance(700) => host.disconnect(event.id),
            _ => {}
        }
    }

    /// A program does something.
    fn act(&mut self, program: usize) {
        let now = self.now;
        let Program { host, listeners, ids } = &mut self.programs[program];
        let some = (!ids.is_empty()).then(|| {
            let place = self.random.below(ids.len());
            ids.keys().copied().nth(place).expect("there are so many")
        });
        let space = [PortSpace::Tcp, PortSpace::Udp][self.random.below(2)];
        match (self.random.below(12), some) {
            (0, _) if listeners.len() < 2 => {
                let id = host.create(space);
                let to = ([0, 0, 0, 0], PORT + self.random.below(3) as u16).into();
                if host.switch.bind(id, to).is_ok() {
                    let backlog = self.random.below(4) as i32;
                    host.switch.listen(id, backlog).expect("it is bound");
                    listeners.push(id);
                } else {
                    host.destroy(id);
                }
            }
            (0, _) if self.random.chance(200) => {
                let listener = listeners.remove(0);
                host.destroy(listener);
            }
            (1..=4, _) => {
                let id = host.create(space);
                let to = ([127, 0, 0, 1], PORT + self.random.below(3) as u16).into();
                host.switch.resolve_addr(id, None, to, PATIENCE, now).expect("an address");
                ids.insert(id, Known { datagram: space == PortSpace::Udp, ..Known::default() });
            }
            (5..=7, Some(id)) if ids[&id].passive && !ids[&id].accepted && !ids[&id].rejected => {
                let known = ids.get_mut(&id).expect("it is there");
                host.switch.set_uid(id, 1000).expect("it is there");
                if self.random.chance(800) {
                    let answer = host.switch.accept(id, Some(&Parameters::default()), Ece::default(), now);
                    known.accepted = answer.is_ok();
                } else {
                    known.rejected = host.switch.reject(id, 28, b"no", now).is_ok();
                }
            }
            (8, Some(id)) if ids[&id].connects => host.disconnect(id),
            (9, Some(id)) => {
                host.destroy(id);
                ids.remove(&id);
            }
            (10, Some(id)) if self.random.chance(100) => {
                let _ = host.switch.notify(id, 5);
            }
            _ => {}
        }
    }

    /// Time goes by until nothing more can come.
    fn calm(&mut self) {
        for _ in 0..400 {
            while !lock(&self.network).packets.is_empty() || !lock(&self.network).questions.is_empty() {
                self.carry();
            }
            for program in 0..HOSTS {
                self.listen(program);
            }
            self.pass(Duration::from_secs(10));
        }
    }

    /// Everything that was asked for has come to something.
    fn check_outcomes(&self) {
        for known in self.programs.iter().flat_map(|program| program.ids.values()) {
            check_order(known);
            if known.passive || !known.connects || known.rejected {
                continue;
            }
            let ends = [Kind::ConnectResponse, Kind::Established, Kind::Rejected, Kind::Unreachable];
            assert!(known.told.iter().any(|kind| ends.contains(kind)), "{known:?}");
        }
    }

    fn end(mut self) {
        for program in 0..HOSTS {
            self.listen(program);
            let Program { host, listeners, ids } = &mut self.programs[program];
            for id in listeners.drain(..).chain(core::mem::take(ids).into_keys()) {
                host.destroy(id);
            }
            host.expect_silence();
            assert_eq!(host.switch.counts(), [0; 6]);
        }
        assert!(lock(&self.network).owners.is_empty());
    }
}

fn weathers() -> [(&'static str, Weather); 5] {
    let fine = Weather::default();
    let stormy = Weather { loss: 150, swap: 200, repeat: 100, ..fine };
    [
        ("fine", fine),
        ("death", Weather { death: 15, ..fine }),
        ("storm", stormy),
        ("storm and death", Weather { death: 15, ..stormy }),
        ("lies", Weather { lies: 300, death: 5, ..stormy }),
    ]
}

#[test]
fn every_connection_comes_to_something_and_nothing_is_left() {
    let (seeds, steps) = if cfg!(miri) { (1, 60) } else { (40, 600) };
    let mut told = HashSet::new();
    for (name, weather) in weathers() {
        for seed in 0..seeds {
            let mut world = World::new(seed, weather);
            for _ in 0..steps {
                world.step();
            }
            world.weather = Weather::default();
            world.calm();
            if weather.lies == 0 {
                world.check_outcomes();
            }
            let programs = world.programs.iter();
            told.extend(
                programs
                    .flat_map(|program| program.ids.values())
                    .flat_map(|known| known.told.iter().map(|kind| (name, *kind as u32)).collect::<Vec<_>>()),
            );
            world.end();
        }
    }
    // Otherwise the programs were too timid to show anything.
    let wanted = [Kind::ConnectResponse, Kind::Established, Kind::Rejected, Kind::Unreachable];
    let wanted = wanted.into_iter().chain([Kind::Disconnected, Kind::TimewaitExit]);
    for kind in wanted.filter(|_| !cfg!(miri)) {
        for (name, _) in weathers() {
            assert!(told.contains(&(name, kind as u32)), "{kind:?} never came in {name}");
        }
    }
}
