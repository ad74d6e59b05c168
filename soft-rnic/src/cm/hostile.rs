//! A fuzz harness for the connection manager: a peer sends arbitrary messages while ids are in
//! every state.
//!
//! The properties: no panic, no endless loop, and no state left once all ids are destroyed.
//!
//! The input is a list of steps: an action (8 bits), an id to use (8 bits), a byte count (8 bits),
//! and that many bytes. `soft-rnic/fuzz` feeds it from libFuzzer; the test here feeds seeded random
//! bytes.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdma_mummy_sys::types::ibv_qp_type;

use super::address_table::AddressTable;
use super::state_machine::{ChannelNumber, CmStateMachine};
use super::transport::{LoopbackTransport, PortLease, PortLocation, Transport};
use super::types::{CmEvent, CmEventKind, ConnParams, Ece, IdNumber, PortSpace};
use crate::cm::channel_notifier::ChannelNotifier;
use crate::objects::setup::ProcessSetup;

/// The most steps of one input; below, the most ids at a time.
const STEPS: usize = 512;
const IDS: usize = 64;
/// The port of the listeners.
const PORT: u16 = 700;
/// The peers that send messages. Port 800 belongs to the first.
const PEERS: u16 = 2;

/// A transport that accepts every message; only the input produces answers.
struct SilentTransport(LoopbackTransport);

impl Transport for SilentTransport {
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

struct HostileHost {
    state_machine: CmStateMachine,
    queue: ChannelNumber,
    ids: Vec<IdNumber>,
    now: Instant,
}

/// Runs one input. Panics if a property is violated.
#[cfg(fuzzing)]
pub fn hostile_messages(data: &[u8]) {
    run(data);
}

fn run(data: &[u8]) {
    let setup = ProcessSetup::get().expect("a configuration");
    let world = Arc::new(SilentTransport(LoopbackTransport::default()));
    let mut state_machine = CmStateMachine::new(AddressTable::new(&setup.devices), world, 1.0, 0);
    let queue = state_machine.open_queue(Arc::new(ChannelNotifier::create().expect("a descriptor")));
    let mut host = HostileHost { state_machine, queue, ids: Vec::new(), now: Instant::now() };
    for space in [PortSpace::Tcp, PortSpace::Udp] {
        let id = host.create(space);
        host.state_machine.bind(id, SocketAddr::from(([0, 0, 0, 0], PORT))).expect("a free port");
        host.state_machine.listen(id, 0).expect("it is bound");
    }
    let mut rest = data;
    for _ in 0..STEPS {
        let Some(([what, which, len], after)) = rest.split_first_chunk() else { break };
        let (bytes, after) = after.split_at(usize::from(*len).min(after.len()));
        rest = after;
        host.step(*what, usize::from(*which), bytes);
        while let Some(event) = host.state_machine.take(queue) {
            host.receive(&event, *which);
        }
    }
    for id in core::mem::take(&mut host.ids) {
        host.state_machine.destroy(id, host.now).expect("it is there");
    }
    assert!(host.state_machine.take(queue).is_none());
    assert_eq!(host.state_machine.counts(), [0; 6]);
}

impl HostileHost {
    fn create(&mut self, space: PortSpace) -> IdNumber {
        let id = self.state_machine.create(self.queue, 1, space, ibv_qp_type::IBV_QPT_RC).expect("an id");
        self.ids.push(id);
        id
    }

    fn step(&mut self, what: u8, which: usize, bytes: &[u8]) {
        let peer = u16::from(what >> 7) % PEERS + 1;
        let id = self.ids.get(which % self.ids.len().max(1)).copied();
        let now = self.now;
        match (what % 8, id) {
            (0..=2, _) => self.state_machine.receive_packet(peer, bytes, now),
            // Make it a message for an existing connection.
            (3..=4, Some(id)) if bytes.len() >= 18 => {
                let mut packet = bytes.to_vec();
                (packet[0], packet[1]) = (1, packet[1] % 9 + 1);
                packet[10..18].copy_from_slice(&id.0.to_le_bytes());
                self.state_machine.receive_packet(peer, &packet, now);
            }
            (5, _) if self.ids.len() < IDS => {
                let id = self.create([PortSpace::Tcp, PortSpace::Udp][which % 2]);
                let port = [PORT, 800, 801][which / 2 % 3];
                let to = SocketAddr::from(([127, 0, 0, 1], port));
                self.state_machine.resolve_addr(id, None, to, Duration::ZERO, now).expect("an address");
            }
            (6, _) => {
                self.now += Duration::from_millis(bytes.len() as u64 * 100);
                self.state_machine.expire(self.now);
                if bytes.len() > 200 {
                    self.state_machine.gone(peer, now);
                }
            }
            (7, Some(id)) if which > 128 => {
                self.state_machine.destroy(id, now).expect("it is there");
                self.ids.retain(|of| *of != id);
            }
            (7, Some(id)) => {
                // May fail, because the id can be in any state.
                let _ = self.state_machine.disconnect(id, now);
            }
            _ => {
                if let Some(id) = id {
                    self.state_machine.found(id.0, PortLocation::Block(peer), now);
                }
            }
        }
    }

    /// Handles an event as a program would, or ignores it.
    fn receive(&mut self, event: &CmEvent, which: u8) {
        let (now, none) = (self.now, ConnParams::default());
        match event.kind {
            CmEventKind::ConnectRequest => {
                let id = event.request.expect("an id for it");
                if self.ids.len() >= IDS || which.is_multiple_of(3) {
                    self.state_machine.destroy(id, now).expect("it is there");
                } else {
                    self.ids.push(id);
                    self.state_machine.set_uid(id, 1).expect("it is there");
                    let _ = self.state_machine.accept(id, Some(&none), Ece::default(), now);
                }
            }
            CmEventKind::AddrResolved => self.state_machine.resolve_route(event.id).expect("it is resolved"),
            CmEventKind::RouteResolved => {
                self.state_machine.connect(event.id, &none, Ece::default(), now).expect("it is resolved");
            }
            CmEventKind::ConnectResponse => {
                let _ = self.state_machine.accept(event.id, None, Ece::default(), now);
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
        let (inputs, steps) = if cfg!(miri) { (1, 40) } else { (300, STEPS) };
        for seed in 0..inputs {
            let mut random = super::super::tests::Random(seed);
            let input: Vec<u8> = (0..steps)
                .flat_map(|_| {
                    let (what, which) = (random.next() as u8, random.next() as u8);
                    // Lengths that are sufficient for a request, more often than a uniform choice
                    // would give.
                    let len = [0, 18, 100, 160, 230, random.below(256)][random.below(6)];
                    [what, which, len as u8].into_iter().chain(random.bytes(len)).collect::<Vec<_>>()
                })
                .collect();
            run(&input);
        }
    }
}
