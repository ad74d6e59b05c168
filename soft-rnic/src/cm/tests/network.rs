//! Simulated processes on a network that loses, delays and repeats messages, where processes also
//! die.
//!
//! The programs make random calls. The properties: every requested connection gets a result, the
//! events of each id come in a valid order, and no state is left once all ids are destroyed.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::kit::{CmHost, PATIENCE};
use super::messages::any_message;
use super::random::Random;
use crate::cm::transport::{PortLease, PortLocation, Transport};
use crate::cm::types::{CmEvent, CmEventKind, ConnParams, Ece, IdNumber, PortSpace};

const HOSTS: usize = 3;
/// The first port of the listeners.
const PORT: u16 = 700;

/// A message on its way.
#[derive(Debug)]
struct NetPacket {
    from: u16,
    to: u16,
    bytes: Vec<u8>,
}

#[derive(Default)]
struct Network {
    packets: VecDeque<NetPacket>,
    /// The process that owns each port.
    owners: HashMap<(PortSpace, u16), u16>,
    questions: VecDeque<(u16, u64, PortSpace, u16)>,
    last_port: u16,
}

type SharedNetwork = Arc<Mutex<Network>>;

fn lock(network: &SharedNetwork) -> MutexGuard<'_, Network> {
    network.lock().expect("no panic")
}

/// One process's endpoint of the network.
struct NetTransport {
    block: u16,
    network: SharedNetwork,
    /// The cached owners of ports, which may be wrong.
    known: Mutex<HashMap<(PortSpace, u16), u16>>,
}

struct TakenPort(SharedNetwork, (PortSpace, u16));

impl Drop for TakenPort {
    fn drop(&mut self) {
        lock(&self.0).owners.remove(&self.1);
    }
}

impl Transport for NetTransport {
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
        lock(&self.network).packets.push_back(NetPacket {
            from: self.block,
            to: block,
            bytes: message.to_vec(),
        });
        Ok(())
    }

    fn wake_at(&self, _: Instant) {}
}

/// A program's knowledge of one of its ids.
#[derive(Debug, Default)]
struct ConnRecord {
    /// The events so far, in order.
    told: Vec<CmEventKind>,
    passive: bool,
    connects: bool,
    accepted: bool,
    rejected: bool,
    established: bool,
    datagram: bool,
}

/// Asserts that the events of an id have a valid order.
fn check_order(known: &ConnRecord) {
    let ConnRecord { told, passive, datagram, .. } = known;
    let count = |kind: CmEventKind| told.iter().filter(|of| **of == kind).count();
    let place = |kind: CmEventKind| told.iter().position(|of| *of == kind);
    for kind in [
        CmEventKind::ConnectResponse,
        CmEventKind::Established,
        CmEventKind::Rejected,
        CmEventKind::Unreachable,
        CmEventKind::Disconnected,
        CmEventKind::TimewaitExit,
    ] {
        assert!(count(kind) <= 1, "{kind:?} twice: {known:?}");
    }
    if let Some(exit) = place(CmEventKind::TimewaitExit) {
        assert!(place(CmEventKind::Disconnected).is_some_and(|end| end < exit), "{known:?}");
    }
    if let Some(end) = place(CmEventKind::Disconnected) {
        // On the active side a response suffices. The passive side may see the end before the
        // beginning.
        assert!(
            *passive || place(CmEventKind::ConnectResponse).is_some_and(|begin| begin < end),
            "{known:?}"
        );
        assert!(!datagram && count(CmEventKind::Rejected) == 0, "{known:?}");
    }
    assert!(*passive || *datagram || count(CmEventKind::Established) == 0, "{known:?}");
}

struct NetProgram {
    host: CmHost,
    listeners: Vec<IdNumber>,
    ids: BTreeMap<IdNumber, ConnRecord>,
}

/// Probabilities of network faults, per mille.
#[derive(Clone, Copy, Default)]
struct NetworkFaults {
    loss: usize,
    swap: usize,
    repeat: usize,
    death: usize,
    lies: usize,
}

struct NetworkModel {
    network: SharedNetwork,
    programs: Vec<NetProgram>,
    random: Random,
    network_faults: NetworkFaults,
    now: Instant,
}

fn start(network: &SharedNetwork, block: u16, now: Instant) -> NetProgram {
    let wire = NetTransport { block, network: Arc::clone(network), known: Mutex::default() };
    let mut host = CmHost::with(Arc::new(wire));
    host.now = now;
    NetProgram { host, listeners: Vec::new(), ids: BTreeMap::new() }
}

impl NetworkModel {
    fn new(seed: u64, network_faults: NetworkFaults) -> Self {
        let (network, now) = (SharedNetwork::default(), Instant::now());
        let programs = (0..HOSTS).map(|host| start(&network, host as u16 + 1, now)).collect();
        Self { network, programs, random: Random(seed), network_faults, now }
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
        if self.random.chance(self.network_faults.death) {
            self.kill();
        }
        if self.random.chance(self.network_faults.lies) {
            self.lie();
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        for program in &mut self.programs {
            program.host.now = self.now;
            program.host.state_machine.expire(self.now);
        }
    }

    /// Answers one port lookup, then delivers or loses one packet.
    fn carry(&mut self) {
        let question = lock(&self.network).questions.pop_front();
        if let Some((block, token, space, port)) = question {
            let owner = lock(&self.network).owners.get(&(space, port)).copied();
            let found = match owner {
                _ if self.random.chance(self.network_faults.loss) => PortLocation::Unresponsive,
                Some(owner) if owner == block => PortLocation::ThisProcess,
                Some(owner) => PortLocation::Block(owner),
                None => PortLocation::Nobody,
            };
            let now = self.now;
            self.program(block).host.state_machine.found(token, found, now);
        }
        let packet = {
            let mut network = lock(&self.network);
            let count = network.packets.len();
            let place =
                if self.random.chance(self.network_faults.swap) { self.random.below(count) } else { 0 };
            network.packets.remove(place)
        };
        let Some(packet) = packet.filter(|_| !self.random.chance(self.network_faults.loss)) else { return };
        let times = 1 + usize::from(self.random.chance(self.network_faults.repeat));
        let now = self.now;
        for _ in 0..times {
            self.program(packet.to).host.state_machine.receive_packet(packet.from, &packet.bytes, now);
        }
    }

    fn program(&mut self, block: u16) -> &mut NetProgram {
        &mut self.programs[usize::from(block - 1)]
    }

    /// Kills a process and gives its block to a new one.
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
            program.host.state_machine.gone(block, self.now);
        }
    }

    /// Sends a forged message about an arbitrary connection.
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
        self.program(to).host.state_machine.receive_packet(from, &bytes, now);
    }

    /// A program takes its events.
    fn listen(&mut self, program: usize) {
        while let Some(event) = self.programs[program].host.next() {
            self.receive(program, &event);
        }
    }

    fn receive(&mut self, program: usize, event: &CmEvent) {
        let NetProgram { host, listeners, ids } = &mut self.programs[program];
        if let Some(request) = event.request {
            assert!(listeners.contains(&event.id), "{event:?}");
            let datagram = matches!(event.details, crate::cm::types::EventDetails::Datagram { .. });
            ids.insert(
                request,
                ConnRecord { passive: true, connects: true, datagram, ..ConnRecord::default() },
            );
            return;
        }
        let known = ids.get_mut(&event.id).unwrap_or_else(|| panic!("an event of a destroyed id: {event:?}"));
        known.told.push(event.kind);
        // A forged message about the sender's own connections is accepted, so that the order is
        // only checked without forgery.
        if self.network_faults.lies == 0 {
            check_order(known);
        }
        let (now, none) = (host.now, ConnParams::default());
        match event.kind {
            CmEventKind::AddrResolved => host.state_machine.resolve_route(event.id).expect("it is resolved"),
            CmEventKind::RouteResolved => {
                host.state_machine.connect(event.id, &none, Ece::default(), now).expect("it is resolved");
                known.connects = true;
            }
            CmEventKind::ConnectResponse if self.random.chance(800) => {
                // The connection may have ended by now.
                known.established = host.state_machine.accept(event.id, None, Ece::default(), now).is_ok();
            }
            CmEventKind::ConnectResponse => {
                known.rejected = host.state_machine.reject(event.id, 28, &[], now).is_ok()
            }
            CmEventKind::Disconnected if self.random.chance(700) => host.disconnect(event.id),
            _ => {}
        }
    }

    /// A program makes a random call.
    fn act(&mut self, program: usize) {
        let now = self.now;
        let NetProgram { host, listeners, ids } = &mut self.programs[program];
        let some = (!ids.is_empty()).then(|| {
            let place = self.random.below(ids.len());
            ids.keys().copied().nth(place).expect("the place is below the count")
        });
        let space = [PortSpace::Tcp, PortSpace::Udp][self.random.below(2)];
        match (self.random.below(12), some) {
            (0, _) if listeners.len() < 2 => {
                let id = host.create(space);
                let to = ([0, 0, 0, 0], PORT + self.random.below(3) as u16).into();
                if host.state_machine.bind(id, to).is_ok() {
                    let backlog = self.random.below(4) as i32;
                    host.state_machine.listen(id, backlog).expect("it is bound");
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
                host.state_machine.resolve_addr(id, None, to, PATIENCE, now).expect("an address");
                ids.insert(id, ConnRecord { datagram: space == PortSpace::Udp, ..ConnRecord::default() });
            }
            (5..=7, Some(id)) if ids[&id].passive && !ids[&id].accepted && !ids[&id].rejected => {
                let known = ids.get_mut(&id).expect("it is there");
                host.state_machine.set_uid(id, 1000).expect("it is there");
                if self.random.chance(800) {
                    let answer =
                        host.state_machine.accept(id, Some(&ConnParams::default()), Ece::default(), now);
                    known.accepted = answer.is_ok();
                } else {
                    known.rejected = host.state_machine.reject(id, 28, b"no", now).is_ok();
                }
            }
            (8, Some(id)) if ids[&id].connects => host.disconnect(id),
            (9, Some(id)) => {
                host.destroy(id);
                ids.remove(&id);
            }
            (10, Some(id)) if self.random.chance(100) => {
                let _ = host.state_machine.notify(id, 5);
            }
            _ => {}
        }
    }

    /// Advances the time until nothing more can happen.
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

    /// Every requested connection has a result.
    fn check_outcomes(&self) {
        for known in self.programs.iter().flat_map(|program| program.ids.values()) {
            check_order(known);
            if known.passive || !known.connects || known.rejected {
                continue;
            }
            let ends = [
                CmEventKind::ConnectResponse,
                CmEventKind::Established,
                CmEventKind::Rejected,
                CmEventKind::Unreachable,
            ];
            assert!(known.told.iter().any(|kind| ends.contains(kind)), "{known:?}");
        }
    }

    fn end(mut self) {
        for program in 0..HOSTS {
            self.listen(program);
            let NetProgram { host, listeners, ids } = &mut self.programs[program];
            for id in listeners.drain(..).chain(core::mem::take(ids).into_keys()) {
                host.destroy(id);
            }
            host.expect_silence();
            assert_eq!(host.state_machine.counts(), [0; 6]);
        }
        assert!(lock(&self.network).owners.is_empty());
    }
}

fn weathers() -> [(&'static str, NetworkFaults); 5] {
    let fine = NetworkFaults::default();
    let stormy = NetworkFaults { loss: 150, swap: 200, repeat: 100, ..fine };
    [
        ("fine", fine),
        ("death", NetworkFaults { death: 15, ..fine }),
        ("storm", stormy),
        ("storm and death", NetworkFaults { death: 15, ..stormy }),
        ("lies", NetworkFaults { lies: 300, death: 5, ..stormy }),
    ]
}

#[test]
fn every_connection_comes_to_something_and_nothing_is_left() {
    let (seeds, steps) = if cfg!(miri) { (1, 12) } else { (40, 600) };
    let mut told = HashSet::new();
    for (name, network_faults) in weathers() {
        for seed in 0..seeds {
            let mut world = NetworkModel::new(seed, network_faults);
            for _ in 0..steps {
                world.step();
            }
            world.network_faults = NetworkFaults::default();
            world.calm();
            if network_faults.lies == 0 {
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
    // Without each of these events the programs would have tested too little.
    let wanted = [
        CmEventKind::ConnectResponse,
        CmEventKind::Established,
        CmEventKind::Rejected,
        CmEventKind::Unreachable,
    ];
    let wanted = wanted.into_iter().chain([CmEventKind::Disconnected, CmEventKind::TimewaitExit]);
    for kind in wanted.filter(|_| !cfg!(miri)) {
        for (name, _) in weathers() {
            assert!(told.contains(&(name, kind as u32)), "{kind:?} never came in {name}");
        }
    }
}
