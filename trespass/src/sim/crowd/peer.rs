//! The peers of dropped connections: honest and hostile ones.

use std::cell::RefCell;
use std::io::{Read, Write};
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::super::rng::SimRng;
use super::super::wire::{Clock, SimSocket, Wire, WireSide};
use super::{Endpoint, PATTERN};
use crate::protocol::frame::{FrameType, HEADER_LEN, Header};

/// The behaviour of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Behaviour {
    /// Reads what has come within this time, and closes at the end.
    Honest(Duration),
    /// The same, until it has read and sent these numbers of bytes.
    Stops { reads: usize, sends: usize },
    /// Sends frames of this payload without end, and reads nothing.
    Floods(usize),
    /// The same, and takes all that comes.
    FloodsAndReads(usize),
    /// Sends frames that say that it sends nothing more, without end.
    Ends,
    /// Takes all that comes at once, and says nothing.
    Gulps,
    /// Sends and reads byte by byte.
    Drips,
    /// Sends what is no frame.
    Garbage,
    /// Disconnects after this time.
    Leaves(Duration),
}

impl Behaviour {
    pub(super) fn hostile(rng: &mut SimRng, most: usize) -> Self {
        match rng.within(0..13) {
            0..=3 => Self::Stops { reads: rng.within(0..most), sends: rng.within(0..3 * HEADER_LEN) },
            4 => Self::Stops { reads: rng.within(0..3 * HEADER_LEN), sends: 0 },
            5..=6 => Self::Floods(rng.one_of(&[1000, 16_000, 100_000])),
            7 => Self::FloodsAndReads(rng.one_of(&[1000, 16_000])),
            8 => Self::Gulps,
            9 => Self::Drips,
            10 => Self::Garbage,
            11 => Self::Ends,
            _ => Self::Leaves(rng.up_to(Duration::from_millis(300))),
        }
    }

    pub(super) fn is_honest(self) -> bool {
        matches!(self, Self::Honest(_))
    }

    /// Whether it sends data.
    pub(super) fn sends(self) -> bool {
        matches!(self, Self::Floods(_) | Self::FloodsAndReads(_) | Self::Drips)
    }
}

const MS: Duration = Duration::from_millis(1);
/// The time between two bytes of one that drips.
const DRIP: Duration = Duration::from_micros(300);

/// A connection's other side, and how far it has come.
pub(super) struct Peer {
    pub(super) behaviour: Behaviour,
    pub(super) wire: Rc<RefCell<Wire>>,
    clock: Clock,
    /// `None` after its end.
    side: Option<PeerSide>,
    /// The bytes that come to it, of which it has taken some.
    pub(super) len: usize,
    got: usize,
    /// It has seen the end of all bytes.
    has_end: bool,
    timer: Option<Instant>,
    seen: Instant,
}

enum PeerSide {
    /// It follows the protocol.
    Endpoint(Box<Endpoint>),
    Socket(SimSocket),
}

impl Peer {
    pub(super) fn new(behaviour: Behaviour, len: usize, wire: &Rc<RefCell<Wire>>, clock: &Clock) -> Self {
        let mut socket = SimSocket::new(wire, WireSide::Client, clock);
        if let Behaviour::Stops { reads, sends } = behaviour {
            (socket.reads, socket.sends) = (reads, sends);
        }
        let endless = match behaviour {
            Behaviour::Floods(payload) | Behaviour::FloodsAndReads(payload) => {
                Some((FrameType::Data, payload))
            }
            Behaviour::Ends => Some((FrameType::Fin, 0)),
            _ => None,
        };
        if let Some((kind, payload)) = endless {
            let mut numbers = 0..;
            let next = move || frame(kind, numbers.next().unwrap_or_default(), payload);
            wire.borrow_mut().send_endlessly(WireSide::Client, next);
        }
        if matches!(behaviour, Behaviour::FloodsAndReads(_) | Behaviour::Gulps) {
            wire.borrow_mut().drain(WireSide::Client);
        }
        let now = clock.get();
        let side = match behaviour {
            Behaviour::Honest(_) | Behaviour::Stops { .. } => {
                PeerSide::Endpoint(Endpoint::new(socket, clock).into())
            }
            _ => PeerSide::Socket(socket),
        };
        let timer = match behaviour {
            Behaviour::Drips | Behaviour::Garbage => Some(now + MS),
            Behaviour::Leaves(time) => Some(now + time),
            _ => None,
        };
        let (wire, clock) = (wire.clone(), clock.clone());
        Self { behaviour, wire, clock, side: Some(side), len, got: 0, has_end: false, timer, seen: now }
    }

    /// Whether it is honest and has got all bytes and the end.
    pub(super) fn got_all(&self) -> bool {
        self.has_end && self.got == self.len
    }

    /// Whether nobody waits for it.
    pub(super) fn has_ended(&self) -> bool {
        !self.behaviour.is_honest() || self.side.is_none()
    }

    /// When its next turn is due.
    pub(super) fn next_turn(&self) -> Option<Instant> {
        let side = self.side.as_ref()?;
        let pause = match self.behaviour {
            Behaviour::Honest(pause) => pause,
            _ => MS,
        };
        let waits = matches!(side, PeerSide::Endpoint(_));
        let event = waits.then(|| self.wire.borrow().next_event(WireSide::Client, self.seen)).flatten();
        event.map(|at| at + pause).into_iter().chain(self.timer).min()
    }

    pub(super) fn turn(&mut self) {
        let now = self.clock.get();
        (self.seen, self.timer) = (now, None);
        let is_over = match &mut self.side {
            Some(PeerSide::Endpoint(end)) => {
                end.on_event(self.wire.borrow().has_ended(WireSide::Client, now));
                end.progress();
                self.read()
            }
            Some(PeerSide::Socket(_)) => self.go_on(now),
            None => true,
        };
        if is_over {
            self.side = None;
        }
    }

    /// Reads all that has come, and closes after the end. Returns whether it has closed.
    fn read(&mut self) -> bool {
        let Some(PeerSide::Endpoint(end)) = &mut self.side else { return true };
        let mut buffer = [0; 4096];
        while let Ok(len) = end.protocol.read(&mut buffer) {
            let differs = PATTERN.first_difference(self.got as u64, &buffer[..len]);
            assert_eq!(differs, None, "I4: another byte arrives at this place");
            self.got += len;
            if len == 0 {
                self.has_end = true;
                end.protocol.shutdown_write();
                break;
            }
            end.progress();
        }
        end.progress();
        end.protocol.failure().is_some() || end.protocol.is_closed()
    }

    /// The next bytes of one that follows no protocol. Returns whether it has gone.
    fn go_on(&mut self, now: Instant) -> bool {
        let Some(PeerSide::Socket(socket)) = &mut self.side else { return true };
        match self.behaviour {
            Behaviour::Leaves(_) => return true,
            Behaviour::Garbage => {
                let _ = socket.write(&[0x47; 4000]);
                self.timer = Some(now + 5 * MS);
            }
            _ => {
                let byte = [frame(FrameType::Data, (self.got / (HEADER_LEN + 1)) as u32, 1)
                    [self.got % (HEADER_LEN + 1)]];
                self.got += socket.write(&byte).unwrap_or(0);
                let _ = socket.read(&mut [0]);
                self.timer = Some(now + DRIP);
            }
        }
        false
    }
}

fn frame(kind: FrameType, seq: u32, payload: usize) -> Vec<u8> {
    let header = Header { kind, flags: 0, count: 0, seq, credit_total: 0, len: payload as u32 };
    let mut bytes = header.encode().to_vec();
    bytes.resize(HEADER_LEN + payload, 7);
    bytes
}
