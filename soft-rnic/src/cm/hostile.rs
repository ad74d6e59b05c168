//! A peer that says anything, to a connection manager with ids in every state.
//!
//! What must hold: nothing panics, nothing goes on for ever, and when the ids are destroyed nothing is left.
//!
//! The input is a list of steps: what to do (8 bits), with which id (8 bits), how many bytes follow (8 bits), and those. `soft-rnic/fuzz`
//! feeds it from libFuzzer; the test here from seeded random bytes.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdma_mummy_sys::types::ibv_qp_type;

use super::fabric::Fabric;
use super::switch::{QueueNumber, Switch};
use super::transport::{Alone, PortLease, PortLocation, Transport};
use super::types::{Ece, Event, IdNumber, Kind, Parameters, PortSpace};
use crate::cm::bell::Bell;
use crate::objects::setup::ProcessSetup;

/// Steps of one input, and ids at a time, at most.
const STEPS: usize = 512;
const IDS: usize = 64;
/// Where the listeners are.
const PORT: u16 = 700;
/// The processes that speak; port 800 is the first one's.
const PEERS: u16 = 2;

/// A world in which others hear, and answer by the input alone.
struct Deaf(Alone);

impl Transport for Deaf {
    fn take_port(&self, space: PortSpace, port: u16) -> Result<PortLease, i32> {
        self.0.take_port(space, port)
    }

    fn find_port(&self, _: PortSpace, port: u16, _: Instant, _: u64, fresh: bool) -> Option<PortLocation> {
        (port == 800 && !fresh).then_some(PortLocation::Block(1))
    }

    fn send(&self, _: u16, message: &[u8]) -> io::Result<()> {
        assert!(message.len() <= super::message::MESSAGE);
        Ok(())
    }

    fn wake_at(&self, _: Instant) {}
}

struct Host {
    switch: Switch,
    queue: QueueNumber,
    ids: Vec<IdNumber>,
    now: Instant,
}

/// Runs one input. Panics if something is amiss.
#[cfg(fuzzing)]
pub fn hostile_messages(data: &[u8]) {
    run(data);
}

fn run(data: &[u8]) {
    let setup = ProcessSetup::get().expect("a configuration");
    let world = Arc::new(Deaf(Alone::default()));
    let mut switch = Switch::new(Fabric::new(&setup.devices), world, 1.0, 0);
    let queue = switch.open_queue(Arc::new(Bell::create().expect("a descriptor")));
    let mut host = Host { switch, queue, ids: Vec::new(), now: Instant::now() };
    for space in [PortSpace::Tcp, PortSpace::Udp] {
        let id = host.create(space);
        host.switch.bind(id, SocketAddr::from(([0, 0, 0, 0], PORT))).expect("a free port");
        host.switch.listen(id, 0).expect("it is bound");
    }
    let mut rest = data;
    for _ in 0..STEPS {
        let Some(([what, which, len], after)) = rest.split_first_chunk() else { break };
        let (bytes, after) = after.split_at(usize::from(*len).min(after.len()));
        rest = after;
        host.step(*what, usize::from(*which), bytes);
        while let Some(event) = host.switch.take(queue) {
            host.hear(&event, *which);
        }
    }
    for id in core::mem::take(&mut host.ids) {
        host.switch.destroy(id, host.now).expect("it is there");
    }
    assert!(host.switch.take(queue).is_none());
    assert_eq!(host.switch.counts(), [0; 6]);
}

impl Host {
    fn create(&mut self, space: PortSpace) -> IdNumber {
        let id = self.switch.create(self.queue, 1, space, ibv_qp_type::IBV_QPT_RC).expect("an id");
        self.ids.push(id);
        id
    }

    fn step(&mut self, what: u8, which: usize, bytes: &[u8]) {
        let peer = u16::from(what >> 7) % PEERS + 1;
        let id = self.ids.get(which % self.ids.len().max(1)).copied();
        let now = self.now;
        match (what % 8, id) {
            (0..=2, _) => self.switch.hear(peer, bytes, now),
            // As if of a connection that there is.
            (3..=4, Some(id)) if bytes.len() >= 18 => {
                let mut packet = bytes.to_vec();
                (packet[0], packet[1]) = (1, packet[1] % 9 + 1);
                packet[10..18].copy_from_slice(&id.0.to_le_bytes());
                self.switch.hear(peer, &packet, now);
            }
            (5, _) if self.ids.len() < IDS => {
                let id = self.create([PortSpace::Tcp, PortSpace::Udp][which % 2]);
                let port = [PORT, 800, 801][which / 2 % 3];
                let to = SocketAddr::from(([127, 0, 0, 1], port));
                self.switch.resolve_addr(id, None, to, Duration::ZERO, now).expect("an address");
            }
            (6, _) => {
                self.now += Duration::from_millis(bytes.len() as u64 * 100);
                self.switch.expire(self.now);
                if bytes.len() > 200 {
                    self.switch.gone(peer, now);
                }
            }
            (7, Some(id)) if which > 128 => {
                self.switch.destroy(id, now).expect("it is there");
                self.ids.retain(|of| *of != id);
            }
            (7, Some(id)) => {
                // Whatever state it is in.
                let _ = self.switch.disconnect(id, now);
            }
            _ => {
                if let Some(id) = id {
                    self.switch.found(id.0, PortLocation::Block(peer), now);
                }
            }
        }
    }

    /// The program does what programs do, or not.
    fn hear(&mut self, event: &Event, which: u8) {
        let (now, none) = (self.now, Parameters::default());
        match event.kind {
            Kind::ConnectRequest => {
                let id = event.request.expect("an id for it");
                if self.ids.len() >= IDS || which.is_multiple_of(3) {
                    self.switch.destroy(id, now).expect("it is there");
                } else {
                    self.ids.push(id);
                    self.switch.set_uid(id, 1).expect("it is there");
                    let _ = self.switch.accept(id, Some(&none), Ece::default(), now);
                }
            }
            Kind::AddrResolved => self.switch.resolve_route(event.id).expect("it is resolved"),
            Kind::RouteResolved => {
                self.switch.connect(event.id, &none, Ece::default(), now).expect("it is resolved");
            }
            Kind::ConnectResponse => {
                let _ = self.switch.accept(event.id, None, Ece::default(), now);
            }
            _ => {}
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn random_input_is_survived() {
        crate::verbs::testing::table();
        let (inputs, steps) = if cfg!(miri) { (2, 40) } else { (300, STEPS) };
        for seed in 0..inputs {
            let mut random = super::super::tests::Random(seed);
            let input: Vec<u8> = (0..steps)
                .flat_map(|_| {
                    let (what, which) = (random.next() as u8, random.next() as u8);
                    // Long enough for a request, more often than chance has it.
                    let len = [0, 18, 100, 160, 230, random.below(256)][random.below(6)];
                    [what, which, len as u8].into_iter().chain(random.bytes(len)).collect::<Vec<_>>()
                })
                .collect();
            run(&input);
        }
    }
}
