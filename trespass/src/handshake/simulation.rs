//! A simulation for tests: two handshake machines and the network between them, in virtual time.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::fake::{ATTEMPT, FakeNetwork, FakePath};
use super::machine::HandshakeMachine;
use super::{Established, HandshakeError, HandshakeStep, Terms};
use crate::wire::Unavailable;
use crate::wire::{PREAMBLE, Preamble, Role};

/// The latency of a message.
const HOP: Duration = Duration::from_millis(1);

/// A fault of the network or of a side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NetworkFault {
    Nothing,
    /// A side ends after it has sent the given number of messages, and the other sees the
    /// connection closed.
    Ends(Role, usize),
    /// A side's host fails after that many messages, and the other sees nothing.
    Dies(Role, usize),
    /// After the given number of messages of both sides, the network drops everything.
    Cut(usize),
    /// A side has no turn for some time after that many messages.
    Pauses(Role, usize, Duration),
}

pub(super) type HandshakeResult = Result<Established<FakePath>, HandshakeError>;

/// One side.
pub(super) struct SimulatedSide {
    pub(super) machine: Option<HandshakeMachine<FakePath>>,
    /// Arrival times and messages. `None` is the end of the connection.
    inbox: VecDeque<(Instant, Option<Vec<u8>>)>,
    sent: usize,
    /// The end of its pause.
    paused: Option<Instant>,
    pub(super) outcome: Option<HandshakeResult>,
    pub(super) took: Duration,
}

/// Both sides.
pub(super) struct HandshakeSimulation {
    pub(super) client: SimulatedSide,
    pub(super) server: SimulatedSide,
    pub(super) network: Rc<RefCell<FakeNetwork>>,
    start: Instant,
    now: Instant,
    fault: NetworkFault,
}

type Path = Result<FakePath, Unavailable>;

impl HandshakeSimulation {
    pub(super) fn new(
        client: (Terms, Path),
        server: (Terms, Path),
        network: &Rc<RefCell<FakeNetwork>>,
        fault: NetworkFault,
    ) -> Self {
        let now = Instant::now();
        let half = |machine| SimulatedSide {
            machine: Some(machine),
            inbox: VecDeque::new(),
            sent: 0,
            paused: None,
            outcome: None,
            took: Duration::ZERO,
        };
        Self {
            client: half(HandshakeMachine::client(client.0, ATTEMPT, client.1, now)),
            server: half(HandshakeMachine::server(server.0, server.1, now)),
            network: Rc::clone(network),
            start: now,
            now,
            fault,
        }
    }

    /// Delivers a message to a side before anything else.
    pub(super) fn inject(&mut self, to: Role, message: Vec<u8>) {
        let now = self.now;
        self.half(to).inbox.push_front((now, Some(message)));
    }

    /// Runs until both sides have a result, or are gone.
    pub(super) fn run(&mut self) {
        loop {
            for role in [Role::Client, Role::Server] {
                self.turn(role);
            }
            let next = [&self.client, &self.server].into_iter().filter_map(|half| half.next(self.now)).min();
            let Some(next) = next else { break };
            self.now = next.max(self.now);
        }
    }

    fn half(&mut self, role: Role) -> &mut SimulatedSide {
        match role {
            Role::Client => &mut self.client,
            Role::Server => &mut self.server,
        }
    }

    fn turn(&mut self, role: Role) {
        let (now, start) = (self.now, self.start);
        let fault = self.fault;
        let half = self.half(role);
        if let NetworkFault::Pauses(who, after, time) = fault
            && who == role
            && half.sent >= after
            && now < *half.paused.get_or_insert(now + time)
        {
            return;
        }
        let Some(machine) = &mut half.machine else { return };
        while half.inbox.front().is_some_and(|(at, _)| *at <= now) {
            match half.inbox.pop_front().and_then(|(_, message)| message) {
                Some(message) => machine.received(&message, now),
                None => machine.closed(),
            }
        }
        machine.tick(now);
        machine.expire(now);
        let mut outgoing = std::mem::take(machine.outgoing());
        let result = machine.take_result();
        while !outgoing.is_empty() {
            let head = outgoing.first_chunk::<PREAMBLE>().expect("whole messages");
            let rest = outgoing.split_off(Preamble::decode(head).expect("well made").total_len());
            self.carry(role, std::mem::replace(&mut outgoing, rest));
        }
        let half = self.half(role);
        if let Some(result) = result {
            let failed = result.is_err();
            half.outcome = Some(result);
            half.took = now - start;
            half.machine = None;
            if failed {
                self.end(role, true);
            }
        }
        let dies = match self.fault {
            NetworkFault::Ends(who, after) | NetworkFault::Dies(who, after) => {
                who == role && self.half(role).sent >= after
            }
            _ => false,
        };
        if dies && self.half(role).machine.take().is_some() {
            self.end(role, matches!(self.fault, NetworkFault::Ends(..)));
        }
    }

    fn carry(&mut self, from: Role, message: Vec<u8>) {
        let at = self.now + HOP;
        let gone = match self.fault {
            NetworkFault::Ends(who, after) | NetworkFault::Dies(who, after) => {
                who == from && self.half(from).sent >= after
            }
            NetworkFault::Cut(after) => self.client.sent + self.server.sent >= after,
            NetworkFault::Nothing | NetworkFault::Pauses(..) => false,
        };
        self.half(from).sent += 1;
        if !gone {
            self.half(super::fake::other(from)).inbox.push_back((at, Some(message)));
        }
    }

    /// Closes a side's TCP connection.
    fn end(&mut self, role: Role, seen: bool) {
        let cut =
            matches!(self.fault, NetworkFault::Cut(after) if self.client.sent + self.server.sent >= after);
        let at = self.now + HOP;
        if seen && !cut {
            self.half(super::fake::other(role)).inbox.push_back((at, None));
        }
    }
}

impl SimulatedSide {
    /// The time of the next event.
    fn next(&self, now: Instant) -> Option<Instant> {
        let machine = self.machine.as_ref()?;
        if let Some(end) = self.paused.filter(|end| now < *end) {
            return Some(end);
        }
        let probing = (machine.step() == HandshakeStep::Probe).then_some(now + HOP);
        let handshake = self.inbox.front().map(|(at, _)| *at);
        [probing, handshake, Some(machine.deadline())].into_iter().flatten().min()
    }
}
