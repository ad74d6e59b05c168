//! The model of a listener's system calls, with its own account of places, steps and work.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::io::{self, ErrorKind};
use std::task::Poll;
use std::time::{Duration, Instant};

use super::super::rng::SimRng;
use super::super::wire::{Clock, SimSocket, WireSide};
use super::Plan;
use super::peer::Peer;
use crate::handshake::TcpHandshake;
use crate::handshake::fake::{FakePath, terms};
use crate::session::admission::{ACCEPTOR, ListenerIo, MAX_HANDSHAKES, Stall, WayOut};
use crate::wire::Policy;

/// The time to accept a client, and to make its queue pair.
const ACCEPT: Duration = Duration::from_micros(100);
const BEGIN: Duration = Duration::from_micros(100);
/// The times after which a client makes room for another: without HELLO, and without a further step.
const SILENT: Duration = Duration::from_millis(200);
const STALLED: Duration = Duration::from_millis(400);
/// How long a backlog is full before those that wait are told.
const FULL: Duration = Duration::from_secs(1);
/// A step ends at some time in the turn.
const SLACK: Duration = Duration::from_millis(1);
/// System calls for one client in one turn: each handshake continues at most twice, and reads or
/// writes 64 times, plus 65 for the rejection.
const CALLS: usize = 2 * 129;
/// A read or write moves a message of 4 KiB at most.
const BYTES: usize = CALLS * 4096;
/// A client that was turned away connects again within this time.
pub(super) const AWAY: Duration = Duration::from_millis(160);
/// Clients accepted in a turn, and handshakes begun.
const ACCEPTED: usize = 64;
const BEGUN: usize = 2;

/// A handshake of the listener.
pub(super) struct Incoming {
    peer: usize,
    handshake: TcpHandshake<FakePath>,
    socket: SimSocket,
    began: Instant,
}

/// The account of an accepted client.
struct Account {
    peer: usize,
    began: Instant,
    /// Its first message is complete.
    is_complete: bool,
    /// The last step of one that has a place.
    stepped: Option<Instant>,
    /// It has given its place to another.
    is_parked: bool,
    /// Events before then were reported.
    seen: Instant,
}

impl Account {
    fn has_place(&self) -> bool {
        self.stepped.is_some() && !self.is_parked
    }
}

/// The state of the system and of the program, as far as a listener meets it.
pub(super) struct ListenerModel {
    clock: Clock,
    backlog: usize,
    most_waiting: usize,
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
    /// Since when these connections are as many as may wait.
    full_since: Option<Instant>,
    is_awaited: Cell<bool>,
    accounts: BTreeMap<usize, Account>,
    connections: HashMap<usize, SimSocket>,
    pub(super) evicted: HashSet<usize>,
    /// Clients that were evicted before their first message was complete, since the queue was empty.
    silent: u32,
    /// Handshakes that were evicted, or turned away after they were accepted, since it was asked.
    closed: Vec<usize>,
    /// Those that have failed.
    failed: usize,
    /// Connections of clients that had given their place to another.
    late: usize,
    turn: Turn,
    pub(super) most_calls: usize,
    pub(super) most_running: usize,
    pub(super) parked: usize,
}

/// The account of one turn.
struct Turn {
    now: Instant,
    work: HashMap<usize, (usize, usize)>,
    accepted: usize,
    begun: usize,
    /// The client that was accepted and has no account yet.
    in_hand: bool,
}

impl Turn {
    fn new(now: Instant) -> Self {
        Self { now, work: HashMap::new(), accepted: 0, begun: 0, in_hand: false }
    }
}

impl ListenerModel {
    pub(super) fn new(plan: &Plan, clock: &Clock) -> Self {
        Self {
            clock: clock.clone(),
            backlog: plan.backlog,
            most_waiting: plan.most_waiting,
            accepts_every: plan.accepts_every,
            next_accept: None,
            waiting: VecDeque::new(),
            turned_away: Vec::new(),
            news: false,
            ready: 0,
            full_since: None,
            is_awaited: Cell::new(false),
            accounts: BTreeMap::new(),
            connections: HashMap::new(),
            evicted: HashSet::new(),
            silent: 0,
            closed: Vec::new(),
            failed: 0,
            late: 0,
            turn: Turn::new(clock.get()),
            most_calls: 0,
            most_running: 0,
            parked: 0,
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

    /// A client that the listener has closed connects again after a time.
    pub(super) fn connects_again(&mut self, peer: usize) -> Instant {
        let at = self.clock.get() + AWAY.mul_f64((peer % 16 + 1) as f64 / 16.0);
        self.turned_away.push((at, peer));
        at
    }

    /// The clients that were evicted or turned away, and the number of those that have failed.
    pub(super) fn take_ended(&mut self) -> (Vec<usize>, usize) {
        (std::mem::take(&mut self.closed), std::mem::take(&mut self.failed))
    }

    pub(super) fn next_accept(&self) -> Option<Instant> {
        self.next_accept
    }

    /// The program accepts a connection. Returns whether the service thread waits for its place.
    pub(super) fn accept_by_program(&mut self) -> bool {
        self.ready -= 1;
        self.full_since = self.full_since.filter(|_| self.ready >= self.backlog);
        self.next_accept = (self.ready > 0).then(|| self.clock.get() + self.accepts_every);
        self.is_awaited.take()
    }

    /// When the next event is known.
    pub(super) fn next_event(&self, peers: &[Peer]) -> Option<Instant> {
        let arrival =
            |client: &Account| peers[client.peer].wire.borrow().next_arrival(WireSide::Listener, client.seen);
        let news = self.news.then(|| self.clock.get());
        let again = self.turned_away.iter().map(|(at, _)| *at);
        self.accounts.values().filter_map(arrival).chain(news).chain(again).min()
    }

    /// Takes the events that the thread learns of, at most this many in any order.
    pub(super) fn take_events(&mut self, peers: &[Peer], most: usize, rng: &mut SimRng) -> Vec<usize> {
        let now = self.clock.get();
        for (_, peer) in self.turned_away.extract_if(.., |(at, _)| *at <= now) {
            self.waiting.push_back(peer);
            self.news = true;
        }
        let has_come = |client: &Account| {
            let wire = peers[client.peer].wire.borrow();
            wire.next_arrival(WireSide::Listener, client.seen).is_some_and(|at| at <= now)
        };
        let clients = self.accounts.iter().filter(|(_, client)| has_come(client)).map(|(at, _)| *at);
        let mut events: Vec<usize> = clients.chain(self.news.then_some(ACCEPTOR)).collect();
        while events.len() > most {
            events.swap_remove(rng.within(0..events.len()));
        }
        events.sort_unstable();
        for at in &events {
            match self.accounts.get_mut(at) {
                Some(client) => client.seen = now,
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
        let Turn { accepted, begun, .. } = self.turn;
        assert!(accepted <= ACCEPTED && begun <= BEGUN, "{accepted} accepted and {begun} begun in a turn");
        let (running, ready) = (self.running(), self.ready);
        let most = self.backlog + self.late;
        assert!(running + ready <= most, "{running} handshakes and {ready} connections");
        assert!(running <= MAX_HANDSHAKES, "{running} handshakes");
        let waiting = self.accounts.len() - running;
        assert!(waiting <= self.most_waiting, "{waiting} clients without a place");
        self.most_running = self.most_running.max(running);
    }

    /// The handshakes that have a place.
    fn running(&self) -> usize {
        self.accounts.values().filter(|client| client.has_place()).count()
    }

    /// Whether the backlog has been full for a time.
    fn is_full_for(&self, time: Duration) -> bool {
        self.full_since.is_some_and(|since| since + time <= self.turn.now)
    }

    fn places(&self) -> usize {
        self.backlog.saturating_sub(self.ready).min(MAX_HANDSHAKES)
    }

    /// Ends the account of a client, and returns it.
    fn close(&mut self, peer: usize) -> Account {
        let at = self.accounts.iter().find(|(_, client)| client.peer == peer).map(|(at, _)| *at);
        at.and_then(|at| self.accounts.remove(&at)).expect("each accepted client has an account")
    }

    /// Checks that a handshake that loses its place is the first one to lose it.
    fn check_stalled(&self, peer: usize, own: Instant) {
        let now = self.turn.now;
        let waits = self.accounts.values().any(|client| client.is_complete && !client.has_place());
        assert!(waits, "client {peer} loses its place, and nobody waits");
        // Its own account is closed.
        assert!(
            self.running() + 1 >= self.places(),
            "client {peer} loses its place, and another one is free"
        );
        assert!(own + STALLED <= now, "client {peer} loses its place {:?} too early", own + STALLED - now);
        let running = self.accounts.values().filter(|client| client.has_place());
        let first = running.filter_map(|client| client.stepped).min();
        let is_first = first.is_none_or(|first| own <= first + SLACK);
        assert!(is_first, "client {peer} loses its place before another one");
    }

    /// Checks that a silent client that makes room is the first one to do so.
    fn check_silent(&self, peer: usize, own: &Account) {
        let now = self.turn.now;
        assert!(!own.is_complete, "client {peer} is evicted, and its first message is complete");
        assert!(self.turn.in_hand, "client {peer} makes room for nobody");
        let waiting = self.accounts.len() - self.running();
        assert!(waiting + 1 >= self.most_waiting, "client {peer} makes room, and there is room");
        let most = self.most_waiting as u32;
        let end = own.began + SILENT * most / (most + self.silent);
        assert!(end <= now, "client {peer} makes room {:?} too early", end - now);
        let silent = self.accounts.values().filter(|client| !client.is_complete);
        let first = silent.map(|client| client.began).min();
        assert!(first.is_none_or(|first| own.began <= first), "client {peer} makes room before another one");
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
        let places = self.listener.backlog.saturating_sub(self.listener.ready);
        self.listener.is_awaited.set(running >= places);
        places
    }

    fn most_waiting(&self) -> usize {
        self.listener.most_waiting
    }

    fn accept(&mut self) -> io::Result<Option<Incoming>> {
        let clock = &self.listener.clock;
        let Some(peer) = self.listener.waiting.pop_front() else {
            self.listener.silent = 0;
            return Err(ErrorKind::WouldBlock.into());
        };
        clock.set(clock.get() + ACCEPT);
        self.listener.turn.accepted += 1;
        self.listener.turn.in_hand = true;
        let client = &self.peers[peer];
        let mut handshake = TcpHandshake::server(terms(Policy::Auto), client.path(), clock.get());
        handshake.keep_first_message();
        let socket = SimSocket::new(&client.wire, WireSide::Listener, clock);
        Ok(Some(Incoming { peer, handshake, socket, began: clock.get() }))
    }

    fn turn_away(&mut self, _: bool) -> io::Result<()> {
        let listener = &mut *self.listener;
        let Some(peer) = listener.waiting.pop_front() else {
            listener.silent = 0;
            return Err(ErrorKind::WouldBlock.into());
        };
        assert!(listener.is_full_for(FULL), "client {peer} is turned away");
        listener.clock.set(listener.clock.get() + ACCEPT);
        listener.turn.accepted += 1;
        listener.connects_again(peer);
        Ok(())
    }

    fn accepted(&mut self, outcome: io::Result<()>) {
        outcome.expect("nothing fails");
    }

    fn register(&mut self, at: usize, incoming: &mut Incoming) -> io::Result<()> {
        self.listener.turn.in_hand = false;
        let seen = self.listener.clock.get();
        let Incoming { peer, began, .. } = *incoming;
        let account = Account { peer, began, is_complete: false, stepped: None, is_parked: false, seen };
        assert!(self.listener.accounts.insert(at, account).is_none(), "number {at} is taken");
        Ok(())
    }

    fn progress(&mut self, at: usize, incoming: &mut Incoming, _: Instant) -> Poll<io::Result<()>> {
        let clock = self.listener.clock.clone();
        let began = clock.get();
        let (step, calls, bytes) =
            (incoming.handshake.step(), incoming.socket.account.calls(), incoming.socket.account.bytes());
        if incoming.handshake.keeps_message() && incoming.socket.has_ended() {
            incoming.handshake.closed();
        }
        let result = incoming.handshake.progress(&mut incoming.socket, || clock.get());
        let work = self.listener.turn.work.entry(incoming.peer).or_default();
        work.0 += incoming.socket.account.calls() - calls;
        work.1 += incoming.socket.account.bytes() - bytes;
        let account = self.listener.accounts.get_mut(&at).expect("it has this number");
        account.is_complete |= incoming.handshake.keeps_message();
        if incoming.handshake.step() != step {
            assert!(account.has_place(), "client {} makes a step without a place", incoming.peer);
            account.stepped = Some(began);
        }
        if account.has_place() {
            // An answer to a question of the proof is a sign of the client.
            account.stepped = account.stepped.max(incoming.handshake.last_step());
        }
        result.map(|result| result.map(drop).map_err(io::Error::other))
    }

    fn awaits_place(&self, incoming: &Incoming) -> bool {
        incoming.handshake.keeps_message()
    }

    fn begin(&mut self, at: usize, incoming: &mut Incoming) {
        let listener = &mut *self.listener;
        listener.clock.set(listener.clock.get() + BEGIN);
        listener.turn.begun += 1;
        let (now, places) = (listener.clock.get(), listener.places());
        let account = listener.accounts.get_mut(&at).expect("it has this number");
        assert!(account.is_complete && !account.has_place(), "client {} begins", incoming.peer);
        account.stepped = Some(now);
        assert!(listener.running() <= places, "client {} begins, and no place is free", incoming.peer);
        let clock = &listener.clock;
        incoming.handshake.begin(|| clock.get());
    }

    fn stall(&self, incoming: &Incoming) -> Option<Stall> {
        Some(Stall::new(incoming.began, incoming.handshake.last_step()))
    }

    fn way_out(&self, incoming: &Incoming) -> WayOut {
        WayOut::new(incoming.handshake.has_sent_ready(), incoming.handshake.uses_path())
    }

    fn parked(&mut self, at: usize, incoming: &mut Incoming) {
        incoming.handshake.drop_spent_path();
        let account = self.listener.accounts.get_mut(&at).expect("it has this number");
        let stepped = account.stepped.expect("it has a place");
        account.is_parked = true;
        self.listener.check_stalled(incoming.peer, stepped);
        self.listener.parked += 1;
    }

    fn deadline(&self, incoming: &mut Incoming) -> Instant {
        incoming.handshake.waits_for().deadline
    }

    fn ended(&mut self, incoming: Incoming, result: io::Result<()>) {
        let listener = &mut *self.listener;
        let account = listener.close(incoming.peer);
        if result.is_err() {
            listener.failed += 1;
            return;
        }
        assert!(account.stepped.is_some(), "client {} is established without a place", incoming.peer);
        listener.late += usize::from(account.is_parked);
        listener.ready += 1;
        if listener.ready >= listener.backlog && listener.full_since.is_none() {
            listener.full_since = Some(listener.turn.now);
        }
        listener.next_accept.get_or_insert(listener.clock.get() + listener.accepts_every);
        listener.connections.insert(incoming.peer, incoming.socket);
    }

    fn evicted(&mut self, incoming: Incoming) {
        let listener = &mut *self.listener;
        let peer = incoming.peer;
        let own = listener.close(peer);
        assert!(
            !incoming.handshake.has_sent_ready(),
            "client {peer} may be established, and loses its place"
        );
        match own.stepped {
            Some(stepped) => listener.check_stalled(peer, stepped),
            None => {
                listener.check_silent(peer, &own);
                listener.silent += 1;
            }
        }
        let client = &self.peers[peer];
        let unread = client.wire.borrow().next_arrival(WireSide::Listener, incoming.began);
        let has_unread = unread.is_some_and(|at| at <= listener.clock.get());
        if client.behaviour.is_honest() {
            assert!(!client.is_established(), "client {peer} loses its place after the commit");
            assert!(!has_unread, "client {peer} loses its place, and its next message has arrived");
        }
        listener.evicted.insert(peer);
        listener.closed.push(peer);
    }

    fn turned_away(&mut self, mut incoming: Incoming, _: bool) {
        let listener = &mut *self.listener;
        let account = listener.close(incoming.peer);
        assert!(account.is_complete && !account.has_place(), "client {} is turned away", incoming.peer);
        let is_late = incoming.handshake.waits_for().deadline <= listener.turn.now;
        assert!(is_late || listener.is_full_for(FULL), "client {} is turned away too early", incoming.peer);
        listener.closed.push(incoming.peer);
    }
}
