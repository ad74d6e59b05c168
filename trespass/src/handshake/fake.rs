//! A simulated data path for tests, with failures that the test chooses.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::Poll;
use std::time::Instant;

use super::{Agreed, Attempt, DataPath, Terms};
use crate::wire::{Cause, Unavailable};
use crate::wire::{Endpoint, Features, LinkLayer, Policy, Probe, Role};

/// The faults of one side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PathFaults {
    pub(crate) prepare: bool,
    pub(crate) connect: bool,
    pub(crate) probe: ProbeFault,
}

/// How the probe fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ProbeFault {
    #[default]
    Not,
    /// The device reports an error.
    Fails,
    /// What is sent never arrives, without an error.
    Lost,
    /// The device reports an error after everything has arrived, so the other side sees no error.
    Late,
}

/// The network between the two sides.
#[derive(Debug, Default)]
pub(crate) struct FakeNetwork {
    to_client: VecDeque<Vec<u8>>,
    to_server: VecDeque<Vec<u8>>,
    /// Paths that exist.
    pub(crate) live: usize,
}

impl FakeNetwork {
    /// Adds a message of an earlier attempt.
    pub(crate) fn leave(&mut self, to: Role, bytes: Vec<u8>) {
        match to {
            Role::Client => self.to_client.push_back(bytes),
            Role::Server => self.to_server.push_back(bytes),
        }
    }

    pub(super) fn take(&mut self, to: Role) -> Option<Vec<u8>> {
        match to {
            Role::Client => self.to_client.pop_front(),
            Role::Server => self.to_server.pop_front(),
        }
    }
}

/// One side's data path.
#[derive(Debug)]
pub(crate) struct FakePath {
    network: Rc<RefCell<FakeNetwork>>,
    faults: PathFaults,
    attempt: Option<Attempt>,
    sent: bool,
}

impl FakePath {
    pub(crate) fn new(network: &Rc<RefCell<FakeNetwork>>, faults: PathFaults) -> Self {
        network.borrow_mut().live += 1;
        Self { network: Rc::clone(network), faults, attempt: None, sent: false }
    }

    fn send(&mut self, from: Attempt) {
        if !self.sent && self.faults.probe != ProbeFault::Lost {
            self.network.borrow_mut().leave(other(from.role), probe(from, from.role).encode().to_vec());
        }
        self.sent = true;
    }

    fn has_come(&self, attempt: Attempt) -> bool {
        let expected = probe(attempt, other(attempt.role));
        while let Some(bytes) = self.network.borrow_mut().take(attempt.role) {
            if expected.is(&bytes) {
                return true;
            }
        }
        false
    }
}

impl Drop for FakePath {
    fn drop(&mut self) {
        self.network.borrow_mut().live -= 1;
    }
}

impl DataPath for FakePath {
    fn prepare(&mut self, attempt: Attempt) -> Result<Endpoint, Unavailable> {
        self.attempt = Some(attempt);
        if self.faults.prepare {
            return Err(Unavailable::new(Cause::Resources, "out of memory"));
        }
        Ok(endpoint(attempt.role))
    }

    fn connect(&mut self, peer: &Endpoint, agreed: &Agreed) -> Result<(), Unavailable> {
        let attempt = self.attempt.expect("prepared first");
        assert_eq!(agreed.attempt, attempt);
        assert_eq!(*peer, endpoint(other(attempt.role)));
        if self.faults.connect {
            return Err(Unavailable::new(Cause::Connect, "no way"));
        }
        Ok(())
    }

    fn probe(&mut self, _: Instant) -> Poll<Result<(), Unavailable>> {
        let attempt = self.attempt.expect("prepared first");
        if self.faults.probe == ProbeFault::Fails {
            return Poll::Ready(Err(Unavailable::new(Cause::ProbeFailed, "status 12")));
        }
        if attempt.role == Role::Client {
            self.send(attempt);
        }
        if !self.sent || attempt.role == Role::Client {
            if !self.has_come(attempt) {
                return Poll::Pending;
            }
            self.send(attempt);
        }
        // A server's own probe is acknowledged when it has arrived.
        match self.faults.probe {
            ProbeFault::Lost => Poll::Pending,
            ProbeFault::Late => Poll::Ready(Err(Unavailable::new(Cause::ProbeFailed, "status 5"))),
            _ => Poll::Ready(Ok(())),
        }
    }
}

pub(crate) fn other(role: Role) -> Role {
    match role {
        Role::Client => Role::Server,
        Role::Server => Role::Client,
    }
}

fn probe(attempt: Attempt, role: Role) -> Probe {
    Probe { conn_id: attempt.conn_id, generation: attempt.generation, role }
}

pub(crate) fn endpoint(role: Role) -> Endpoint {
    let qp_num = if role == Role::Client { 0x11 } else { 0x22 };
    Endpoint {
        qp_num,
        psn: qp_num + 1,
        gid: [qp_num as u8; 16],
        lid: 0,
        mtu: 3,
        link_layer: LinkLayer::Ethernet,
        service_level: 0,
        traffic_class: 0,
        device: 7,
    }
}

pub(crate) fn terms(policy: Policy) -> Terms {
    Terms {
        policy,
        features: Features::READ.with(Features::COALESCE).with(Features::ATTEND).with(Features::ANNOUNCE),
        ..super::hostile::terms()
    }
}

pub(crate) const ATTEMPT: Attempt =
    Attempt { conn_id: 0x1234_5678_9abc_def0, generation: 3, role: Role::Client };
