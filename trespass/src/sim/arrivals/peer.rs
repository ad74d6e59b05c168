//! The clients of the simulated listener: honest, late and hostile ones.

use std::cell::RefCell;
use std::io::{self, ErrorKind, Read, Write};
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

use super::super::rng::SimRng;
use super::super::wire::{Clock, SimSocket, Wire, WireSide};
use crate::handshake::fake::{ATTEMPT, FakeNetwork, FakePath, PathFaults, ProbeFault, terms};
use crate::handshake::{TcpHandshake, Terms};
use crate::wire::{Cause, Policy, Probe, Role, Unavailable};

/// The longest time between two turns of an honest client.
pub(super) const TURN: Duration = Duration::from_millis(100);
/// The longest time before the first turn of a client that is not late.
pub(super) const BEGINS: Duration = Duration::from_millis(150);

/// The behaviour of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Behaviour {
    /// Begins and goes on in time.
    Honest,
    /// The same, at once, and its path carries what is sent if it has one.
    Prompt,
    /// Begins after this time, because its machine is busy.
    Late(Duration),
    /// Stops after it has sent this many bytes: before, within or after each of its messages.
    Stops(usize),
    /// Waits before each turn nearly as long as it may.
    Dawdles,
    /// Disconnects after this time.
    Leaves(Duration),
    /// Sends its HELLO byte by byte.
    Drips,
    /// Sends what is no message.
    Garbage,
    /// Sends a HELLO, and then nothing.
    Greets,
    /// Sends a HELLO, and then messages of another attempt.
    Strays,
    /// Sends a HELLO, and then asks without end whether the listener attends.
    Asks,
}

impl Behaviour {
    /// One that never becomes a connection, or only late.
    pub(super) fn hostile(rng: &mut SimRng) -> Self {
        match rng.within(0..12) {
            0 => Self::Stops(0),
            1..=5 => Self::Stops(rng.within(1..400)),
            6 => Self::Dawdles,
            7 => Self::Drips,
            8 => Self::Garbage,
            9 => Self::Strays,
            10 => Self::Asks,
            _ => Self::Leaves(Duration::from_millis(rng.within(0..400) as u64)),
        }
    }

    pub(super) fn is_honest(self) -> bool {
        matches!(self, Self::Honest | Self::Prompt | Self::Late(_))
    }

    /// The next bytes after `sent` of one that follows no handshake, and the time until the ones
    /// after them.
    fn piece(self, sent: usize) -> (Vec<u8>, Duration) {
        let hello = || hello_bytes();
        match self {
            Self::Drips => (hello().get(sent..=sent).map_or(Vec::new(), <[u8]>::to_vec), 20 * MS),
            Self::Garbage => (vec![0x47; 4000], 5 * MS),
            _ if sent == 0 => (hello(), MS),
            Self::Greets => (Vec::new(), Duration::MAX),
            Self::Strays => (probe(ATTEMPT.conn_id ^ 1), 90 * MS),
            _ => (probe(ATTEMPT.conn_id).repeat(2000), 5 * MS),
        }
    }
}

const MS: Duration = Duration::from_millis(1);

fn probe(conn_id: u64) -> Vec<u8> {
    Probe { conn_id, generation: ATTEMPT.generation, role: Role::Client }.encode().to_vec()
}

/// Collects what is written.
struct Collected(Vec<u8>);

impl Read for Collected {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        Err(ErrorKind::WouldBlock.into())
    }
}

impl Write for Collected {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A client's HELLO with an endpoint, so that the listener probes.
fn hello_bytes() -> Vec<u8> {
    let (mut bytes, now) = (Collected(Vec::new()), Instant::now());
    let path = FakePath::new(&Rc::default(), PathFaults::default());
    let mut client = TcpHandshake::client(terms(Policy::Auto), ATTEMPT, Ok(path), now);
    assert!(client.progress(&mut bytes, || now).is_pending());
    bytes.0
}

/// A client.
pub(super) struct Peer {
    pub(super) behaviour: Behaviour,
    pub(super) wire: Rc<RefCell<Wire>>,
    network: Rc<RefCell<FakeNetwork>>,
    pub(super) connected_at: Instant,
    /// `None` after the end.
    socket: Option<SimSocket>,
    handshake: Option<TcpHandshake<FakePath>>,
    /// `None` has no path.
    faults: Option<PathFaults>,
    /// The next event, unless something arrives before.
    timer: Option<Instant>,
    /// The time from the next event until it has its turn.
    pause: Duration,
    /// What has arrived until then is known to it.
    seen: Instant,
    /// The end of its handshake, and whether it is established.
    pub(super) result: Option<(Instant, bool)>,
}

impl Peer {
    pub(super) fn new(behaviour: Behaviour, clock: &Clock, rng: &mut SimRng) -> Self {
        let now = clock.get();
        let wire = Rc::default();
        let lost = PathFaults { probe: ProbeFault::Lost, ..PathFaults::default() };
        let sound = Some(PathFaults::default());
        let faults = match behaviour {
            Behaviour::Prompt => rng.one_of(&[None, sound]),
            _ => rng.one_of(&[None, sound, sound, Some(lost)]),
        };
        let begins = match behaviour {
            Behaviour::Late(time) => time,
            Behaviour::Honest => rng.up_to(BEGINS),
            _ => Duration::ZERO,
        };
        Self {
            behaviour,
            socket: Some(SimSocket::new(&wire, WireSide::Client, clock)),
            wire,
            network: Rc::default(),
            connected_at: now,
            handshake: None,
            faults,
            timer: Some(now + begins),
            pause: Duration::ZERO,
            seen: now,
            result: None,
        }
    }

    /// Connects again at that time, because the listener was busy.
    pub(super) fn connects_again(&mut self, at: Instant, clock: &Clock) {
        self.wire = Rc::default();
        self.network = Rc::default();
        self.socket = Some(SimSocket::new(&self.wire, WireSide::Client, clock));
        (self.handshake, self.timer) = (None, Some(at));
        (self.pause, self.seen) = (Duration::ZERO, at);
    }

    /// The path of one of its two sides.
    pub(super) fn path(&self) -> Result<FakePath, Unavailable> {
        let faults = self.faults.ok_or(Unavailable::new(Cause::NoDevice, ""))?;
        Ok(FakePath::new(&self.network, faults))
    }

    /// Whether its probes and those for it never arrive.
    pub(super) fn loses_probes(&self) -> bool {
        self.faults.is_some_and(|faults| faults.probe == ProbeFault::Lost)
    }

    pub(super) fn is_established(&self) -> bool {
        self.result.is_some_and(|(_, established)| established)
    }

    /// When its next turn is due.
    pub(super) fn next_turn(&self) -> Option<Instant> {
        let waits = self.handshake.is_some() && self.result.is_none();
        let arrival = waits.then(|| self.wire.borrow().next_arrival(WireSide::Client, self.seen)).flatten();
        let event = arrival.into_iter().chain(self.timer).min()?;
        Some(event.max(self.seen) + self.pause)
    }

    /// One turn of the client.
    pub(super) fn turn(&mut self, clock: &Clock, rng: &mut SimRng) {
        let now = clock.get();
        self.timer = None;
        match self.behaviour {
            Behaviour::Honest | Behaviour::Late(_) => self.go_on(clock, rng.up_to(TURN)),
            Behaviour::Prompt => self.go_on(clock, MS),
            Behaviour::Dawdles => self.go_on(clock, 900 * MS),
            Behaviour::Stops(sends) => {
                if let (None, Some(socket)) = (&self.handshake, &mut self.socket) {
                    socket.sends = sends;
                }
                self.go_on(clock, MS);
                if self.socket.as_ref().is_some_and(|socket| socket.sends == 0) {
                    (self.handshake, self.timer) = (None, None);
                }
            }
            Behaviour::Leaves(time) if now >= self.connected_at + time => self.socket = None,
            Behaviour::Leaves(time) => self.timer = Some(self.connected_at + time),
            _ => self.send_next(now),
        }
    }

    /// Sends the next bytes of one that follows no handshake.
    fn send_next(&mut self, now: Instant) {
        let Some(socket) = &mut self.socket else { return };
        let (piece, pause) = self.behaviour.piece(socket.account.bytes());
        if piece.is_empty() {
            return;
        }
        match socket.write(&piece) {
            Ok(_) => self.timer = Some(now + pause),
            Err(error) if error.kind() == ErrorKind::WouldBlock => self.timer = Some(now + 50 * MS),
            Err(_) => self.socket = None,
        }
    }

    /// Continues its handshake, and has the next turn `pause` after the next event.
    fn go_on(&mut self, clock: &Clock, pause: Duration) {
        let now = clock.get();
        self.seen = now;
        let path = self.path();
        let Some(socket) = &mut self.socket else { return };
        // It waits as long as it must, because the simulation measures that.
        let patient = || Terms { deadline: Duration::from_secs(600), ..terms(Policy::Auto) };
        let handshake =
            self.handshake.get_or_insert_with(|| TcpHandshake::client(patient(), ATTEMPT, path, now));
        match handshake.progress(socket, || clock.get()) {
            Poll::Ready(result) => {
                self.result = Some((now, result.is_ok()));
                if result.is_err() {
                    self.socket = None;
                }
            }
            Poll::Pending => (self.timer, self.pause) = (Some(handshake.waits_for().deadline), pause),
        }
    }
}
