//! The model of a listener's system calls, with its own account of places, steps and work.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::io::{self, ErrorKind};
use std::task::Poll;
use std::time::{Duration, Instant};

use super::super::rng::SimRng;
use super::super::wire::{Clock, SimSocket, WireSide};
use super::peer::Peer;
use crate::handshake::TcpHandshake;
use crate::handshake::fake::{FakePath, terms};
use crate::session::admission::{ACCEPTOR, ListenerIo, Stall};
use crate::wire::Policy;

/// The time to accept a client and to make its queue pair.
const ACCEPT: Duration = Duration::from_micros(100);
/// The times after which a client may lose its place: without HELLO, and without a further step.
const SILENT: Duration = Duration::from_millis(200);
const STALLED: Duration = Duration::from_secs(1);
/// A step ends at some time in the turn.
const SLACK: Duration = Duration::from_millis(1);
/// System calls for one client in one turn: each handshake continues at most twice, and reads or
/// writes 64 times, plus 65 for the rejection.
const CALLS: usize = 2 * 129;
/// A read or write moves a message of 4 KiB at most.
const BYTES: usize = CALLS * 4096;
/// A client that was turned away connects again within this time.
pub(super) const AWAY: Duration = Duration::from_millis(160);
/// Clients accepted in a turn.
const ACCEPTED: usize = 32;

/// A handshake of the listener.
pub(super) struct Incoming {
    peer: usize,
    handshake: TcpHandshake<FakePath>,
    socket: SimSocket,
    began: Instant,
}

/// The account of a taken place.
struct PlaceAccount {
    peer: usize,
    began: Instant,
    stepped: Option<Instant>,
    /// Events before then were reported.
    seen: Instant,
}

impl PlaceAccount {
    /// Whether it has sent a HELLO, and when it may lose its place.
    fn order(&self) -> (bool, Instant) {
        (self.stepped.is_some(), self.stepped.map_or(self.began + SILENT, |stepped| stepped + STALLED))
    }
}

/// The state of the system and of the program, as far as a listener meets it.
pub(super) struct ListenerModel {
    clock: Clock,
    backlog: usize,
    /// The time from one `accept` of the program to the next.
    accepts_every: Duration,
    next_accept: Option<Instant>,
    /// Clients in the system's queue.
    waiting: VecDeque<usize>,
    /// Clients that were told that the listener is busy, and when each connects again.
    turned_away: Vec<(Instant, usize)>,
    /// The service thread has not learned of one of them yet.
    news: bool,
    /// Established connections that the program has not accepted.
    ready: usize,
    is_awaited: Cell<bool>,
    places: BTreeMap<usize, PlaceAccount>,
    connections: HashMap<usize, SimSocket>,
    pub(super) evicted: HashSet<usize>,
    /// Handshakes that have failed or were evicted since it was asked.
    ended: usize,
    turn: Turn,
    pub(super) most_calls: usize,
}

/// The account of one turn.
struct Turn {
    now: Instant,
    work: HashMap<usize, (usize, usize)>,
    accepted: usize,
    /// The client that was accepted and has no place yet.
    in_hand: bool,
}

impl Turn {
    fn new(now: Instant) -> Self {
        Self { now, work: HashMap::new(), accepted: 0, in_hand: false }
    }
}

impl ListenerModel {
    pub(super) fn new(backlog: usize, accepts_every: Duration, clock: &Clock) -> Self {
        Self {
            clock: clock.clone(),
            backlog,
            accepts_every,
            next_accept: None,
            waiting: VecDeque::new(),
            turned_away: Vec::new(),
            news: false,
            ready: 0,
            is_awaited: Cell::new(false),
            places: BTreeMap::new(),
            connections: HashMap::new(),
            evicted: HashSet::new(),
            ended: 0,
            turn: Turn::new(clock.get()),
            most_calls: 0,
        }
    }

    /// A client has connected.
    pub(super) fn connects(&mut self, peer: usize) {
        self.waiting.push_back(peer);
        self.news = true;
    }

    pub(super) fn has_established(&self, peer: usize) -> bool {
        self.connections.contains_key(&peer)
    }

    pub(super) fn established(&self) -> usize {
        self.connections.len()
    }

    pub(super) fn take_ended(&mut self) -> usize {
        std::mem::take(&mut self.ended)
    }

    pub(super) fn next_accept(&self) -> Option<Instant> {
        self.next_accept
    }

    /// The program accepts a connection. Returns whether the service thread waits for its place.
    pub(super) fn accept_by_program(&mut self) -> bool {
        self.ready -= 1;
        self.next_accept = (self.ready > 0).then(|| self.clock.get() + self.accepts_every);
        self.is_awaited.take()
    }

    /// When the next event is known.
    pub(super) fn next_event(&self, peers: &[Peer]) -> Option<Instant> {
        let arrival = |place: &PlaceAccount| {
            peers[place.peer].wire.borrow().next_arrival(WireSide::Listener, place.seen)
        };
        let news = self.news.then(|| self.clock.get());
        let again = self.turned_away.iter().map(|(at, _)| *at);
        self.places.values().filter_map(arrival).chain(news).chain(again).min()
    }

    /// Takes the events that the thread learns of, at most this many in any order.
    pub(super) fn take_events(&mut self, peers: &[Peer], most: usize, rng: &mut SimRng) -> Vec<usize> {
        let now = self.clock.get();
        for (_, peer) in self.turned_away.extract_if(.., |(at, _)| *at <= now) {
            self.waiting.push_back(peer);
            self.news = true;
        }
        let has_come = |place: &PlaceAccount| {
            let wire = peers[place.peer].wire.borrow();
            wire.next_arrival(WireSide::Listener, place.seen).is_some_and(|at| at <= now)
        };
        let places = self.places.iter().filter(|(_, place)| has_come(place)).map(|(at, _)| *at);
        let mut events: Vec<usize> = places.chain(self.news.then_some(ACCEPTOR)).collect();
        while events.len() > most {
            events.swap_remove(rng.within(0..events.len()));
        }
        events.sort_unstable();
        for at in &events {
            match self.places.get_mut(at) {
                Some(place) => place.seen = now,
                None => self.news = false,
            }
        }
        events
    }

    pub(super) fn begin_turn(&mut self) {
        self.turn = Turn::new(self.clock.get());
    }

    /// Checks the work of the turn.
    pub(super) fn end_turn(&mut self) {
        for (peer, (calls, bytes)) in &self.turn.work {
            assert!(
                *calls <= CALLS && *bytes <= BYTES,
                "client {peer} has {calls} system calls and {bytes} bytes in a turn"
            );
            self.most_calls = self.most_calls.max(*calls);
        }
        assert!(self.turn.accepted <= ACCEPTED, "{} clients accepted in a turn", self.turn.accepted);
        let taken = self.places.len() + self.ready;
        assert!(taken <= self.backlog && self.places.len() <= ACCEPTOR, "{taken} places are taken");
    }

    /// Frees the place of a handshake, and returns its account.
    fn free(&mut self, peer: usize) -> PlaceAccount {
        let at = self.places.iter().find(|(_, place)| place.peer == peer).map(|(at, _)| *at);
        at.and_then(|at| self.places.remove(&at)).expect("each handshake has a place")
    }
}

/// The listener and its clients in a turn.
pub(super) struct TurnIo<'a> {
    pub(super) listener: &'a mut ListenerModel,
    pub(super) peers: &'a [Peer],
}

impl ListenerIo for TurnIo<'_> {
    type Handshake = Incoming;

    fn places(&self, running: usize) -> usize {
        let places = self.listener.backlog - self.listener.ready;
        self.listener.is_awaited.set(running >= places);
        places
    }

    fn accept(&mut self) -> io::Result<Option<Incoming>> {
        let clock = &self.listener.clock;
        let peer = self.listener.waiting.pop_front().ok_or(ErrorKind::WouldBlock)?;
        clock.set(clock.get() + ACCEPT);
        self.listener.turn.accepted += 1;
        self.listener.turn.in_hand = true;
        let client = &self.peers[peer];
        let handshake = TcpHandshake::server(terms(Policy::Auto), client.path(), clock.get());
        let socket = SimSocket::new(&client.wire, WireSide::Listener, clock);
        Ok(Some(Incoming { peer, handshake, socket, began: clock.get() }))
    }

    fn turn_away(&mut self, _: bool) -> io::Result<()> {
        let listener = &mut *self.listener;
        let peer = listener.waiting.pop_front().ok_or(ErrorKind::WouldBlock)?;
        assert_eq!(listener.ready, listener.backlog, "client {peer} is turned away, and there is a place");
        listener.clock.set(listener.clock.get() + ACCEPT);
        listener.turn.accepted += 1;
        let away = AWAY.mul_f64((peer % 16 + 1) as f64 / 16.0);
        listener.turned_away.push((listener.clock.get() + away, peer));
        Ok(())
    }

    fn accepted(&mut self, outcome: io::Result<()>) {
        outcome.expect("nothing fails");
    }

    fn register(&mut self, at: usize, incoming: &mut Incoming) -> io::Result<()> {
        self.listener.turn.in_hand = false;
        let seen = self.listener.clock.get();
        let account = PlaceAccount { peer: incoming.peer, began: incoming.began, stepped: None, seen };
        assert!(self.listener.places.insert(at, account).is_none(), "place {at} is taken");
        Ok(())
    }

    fn progress(&mut self, at: usize, incoming: &mut Incoming, _: Instant) -> Poll<io::Result<()>> {
        let clock = self.listener.clock.clone();
        let began = clock.get();
        let (step, calls, bytes) =
            (incoming.handshake.step(), incoming.socket.account.calls(), incoming.socket.account.bytes());
        let result = incoming.handshake.progress(&mut incoming.socket, || clock.get());
        let work = self.listener.turn.work.entry(incoming.peer).or_default();
        work.0 += incoming.socket.account.calls() - calls;
        work.1 += incoming.socket.account.bytes() - bytes;
        let account = self.listener.places.get_mut(&at).expect("it has this place");
        if incoming.handshake.step() != step {
            account.stepped = Some(began);
        }
        result.map(|result| result.map(drop).map_err(io::Error::other))
    }

    fn stall(&self, incoming: &Incoming) -> Option<Stall> {
        Some(Stall::new(incoming.began, incoming.handshake.last_step()))
    }

    fn deadline(&self, incoming: &mut Incoming) -> Instant {
        incoming.handshake.waits_for().deadline
    }

    fn ended(&mut self, incoming: Incoming, result: io::Result<()>) {
        let listener = &mut *self.listener;
        listener.free(incoming.peer);
        if result.is_err() {
            listener.ended += 1;
            return;
        }
        listener.ready += 1;
        listener.next_accept.get_or_insert(listener.clock.get() + listener.accepts_every);
        listener.connections.insert(incoming.peer, incoming.socket);
    }

    fn evicted(&mut self, incoming: Incoming) {
        let listener = &mut *self.listener;
        let (peer, now) = (incoming.peer, listener.turn.now);
        assert!(listener.turn.in_hand, "client {peer} loses its place, and nobody waits");
        let places = (listener.backlog - listener.ready).min(ACCEPTOR);
        assert!(listener.places.len() >= places, "client {peer} loses its place, and another one is free");
        let own = listener.free(peer).order();
        assert!(own.1 <= now, "client {peer} loses its place {:?} too early", own.1 - now);
        for (spoke, at) in listener.places.values().map(PlaceAccount::order).filter(|(_, at)| *at <= now) {
            let is_first = if spoke == own.0 { own.1 <= at + SLACK } else { spoke };
            assert!(is_first, "client {peer} loses its place before another one");
        }
        let client = &self.peers[peer];
        let unread = client.wire.borrow().next_arrival(WireSide::Listener, incoming.began);
        let has_unread = unread.is_some_and(|at| at <= listener.clock.get());
        if client.behaviour.is_honest() {
            assert!(!client.is_established(), "client {peer} loses its place after the commit");
            assert!(!has_unread, "client {peer} loses its place, and its next message has arrived");
        }
        listener.evicted.insert(peer);
        listener.ended += 1;
    }
}
