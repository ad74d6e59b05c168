//! The clients of a listener until their connections are established: which one is accepted, which one
//! has a place for its handshake, and which one makes room for another. It makes no system call and
//! reads no clock, so that the simulator runs it in virtual time.
//!
//! A client needs a place, and a queue pair, when its first message is complete. Until then it costs a
//! descriptor and the memory of one message. So clients that send nothing take no places.

mod table;

use std::cmp::Ordering;
use std::io::{self, ErrorKind};
use std::task::Poll;
use std::time::{Duration, Instant};

use self::table::{ClientTable, Stage};
use crate::session::overflow::Overflow;
use crate::session::service::NextTurn;

/// Places: handshakes at a time, each of which may have a queue pair.
pub(crate) const MAX_HANDSHAKES: usize = 128;

/// Handshakes without a place that still have a queue pair.
const MAX_PARKED: usize = 128;

/// Accepted clients that have no place. Others wait in the system's queue.
pub(crate) const MAX_WAITING: usize = 1024;

/// The event number of the listening socket. Clients have the numbers below it.
pub(crate) const ACCEPTOR: usize = MAX_HANDSHAKES + MAX_WAITING;

/// Clients accepted in one turn, so that other tasks have theirs, and handshakes begun. A queue pair
/// takes longer, and those that have one go on between.
const CLIENTS_A_TURN: usize = 64;
const BEGUN_A_TURN: usize = 2;

/// When to try again after the system could not accept, for example without free descriptors.
const RETRY: Duration = Duration::from_millis(50);

/// After this time without a complete first message a client makes room for another.
pub(crate) const SILENCE: Duration = Duration::from_millis(200);

/// The same for a later step, since it began. Messages that end no step do not count.
const STALL: Duration = Duration::from_millis(400);

/// Since when a client makes no step. Silent clients make room before those that have sent a HELLO,
/// and then the one whose last step was earliest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Stall {
    has_spoken: bool,
    since: Instant,
}

impl Stall {
    /// For a handshake that began at `began`. At `stepped` the last step ended that needed the peer.
    pub(crate) fn new(began: Instant, stepped: Option<Instant>) -> Self {
        Self { has_spoken: stepped.is_some(), since: stepped.unwrap_or(began) }
    }

    /// From when on it makes room for another. A client may be silent for `silence`.
    pub(crate) fn over_at(self, silence: Duration) -> Instant {
        self.since + if self.has_spoken { STALL } else { silence }
    }
}

/// The handshake that makes room for another now.
pub(crate) fn first_stalled<T>(
    handshakes: impl Iterator<Item = (T, Stall)>,
    silence: Duration,
    now: Instant,
) -> Option<T> {
    let stalled = handshakes.filter(|(_, stall)| stall.over_at(silence) <= now);
    stalled.min_by_key(|(_, stall)| *stall).map(|(handshake, _)| handshake)
}

/// The input and output of a listener.
pub(crate) trait ListenerIo {
    type Handshake;

    /// The number of places for handshakes, of which `running` are taken.
    fn places(&self, running: usize) -> usize;

    /// The most accepted clients that have no place.
    fn most_waiting(&self) -> usize;

    /// Accepts the next client, whose handshake does not begin before [`begin`](Self::begin). `None` if
    /// it cannot begin. The error is the listener's own, or `WouldBlock`.
    fn accept(&mut self) -> io::Result<Option<Self::Handshake>>;

    /// Accepts the next client beyond a full backlog, and tells it so. The errors are those of
    /// [`accept`](Self::accept). `is_logged`: the log knows that clients are turned away.
    fn turn_away(&mut self, is_logged: bool) -> io::Result<()>;

    /// Reports the outcome of accepting, if it is news for the program.
    fn accepted(&mut self, outcome: io::Result<()>);

    /// Has the events of a handshake reported under its number.
    fn register(&mut self, at: usize, handshake: &mut Self::Handshake) -> io::Result<()>;

    /// Continues a handshake as far as possible without waiting.
    fn progress(&mut self, at: usize, handshake: &mut Self::Handshake, now: Instant) -> Poll<io::Result<()>>;

    /// Whether its first message is complete, and it waits for a place.
    fn awaits_place(&self, handshake: &Self::Handshake) -> bool;

    /// Begins a handshake, which has a place from now on.
    fn begin(&mut self, at: usize, handshake: &mut Self::Handshake);

    /// `None` if it makes no room for others.
    fn stall(&self, handshake: &Self::Handshake) -> Option<Stall>;

    /// When to continue at the latest.
    fn deadline(&self, handshake: &mut Self::Handshake) -> Instant;

    /// What a handshake does that gives its place to another.
    fn way_out(&self, handshake: &Self::Handshake) -> WayOut;

    /// Has a handshake go on without a place.
    fn parked(&mut self, at: usize, handshake: &mut Self::Handshake);

    /// Takes a handshake that has its result.
    fn ended(&mut self, handshake: Self::Handshake, result: io::Result<()>);

    /// Closes a handshake that makes room for another.
    fn evicted(&mut self, handshake: Self::Handshake);

    /// Closes a handshake that has got no place, and tells the client so.
    fn turned_away(&mut self, handshake: Self::Handshake, is_logged: bool);
}

/// What a handshake does that gives its place to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WayOut {
    /// The client is turned away.
    Ends,
    /// It goes on, because this side has sent its last message, and the client may be established.
    GoesOn {
        /// It has a queue pair, and is about to use it.
        has_path: bool,
    },
}

impl WayOut {
    /// For a handshake: this side has sent its last message, and a data path is used.
    pub(crate) fn new(has_committed: bool, has_path: bool) -> Self {
        if has_committed { Self::GoesOn { has_path } } else { Self::Ends }
    }
}

/// The clients of a listener.
pub(crate) struct Admission<H> {
    clients: ClientTable<H>,
    overflow: Overflow,
    may_accept: bool,
    /// The system has refused to accept, and is asked again then.
    retry_at: Option<Instant>,
    /// Silent clients that made room since the system's queue was last empty.
    silent: u32,
}

/// The place of the next client.
pub(crate) enum NextPlace {
    Free,
    /// That of a stalled handshake.
    Replaces(usize),
}

impl<H> Admission<H> {
    pub(crate) fn new() -> Self {
        let (clients, overflow) = (ClientTable::new(), Overflow::default());
        Self { clients, overflow, may_accept: true, retry_at: None, silent: 0 }
    }

    /// Continues after events, whose numbers are sorted: runs handshakes and accepts clients. Returns
    /// when the next turn is due.
    pub(crate) fn turn(
        &mut self,
        io: &mut impl ListenerIo<Handshake = H>,
        moved: &[usize],
        now: Instant,
    ) -> NextTurn {
        self.may_accept |= moved.contains(&ACCEPTOR);
        if self.retry_at.is_some_and(|at| at <= now) {
            self.retry_at = None;
        }
        for at in 0..self.clients.end() {
            let is_late = self.clients.due(at).is_some_and(|due| due <= now);
            if is_late || moved.binary_search(&at).is_ok() {
                self.progress(io, at, now);
            }
        }
        if self.admit(io, now) { NextTurn::At(now) } else { self.next_deadline(io).into() }
    }

    /// Takes all handshakes, for the end of the listener.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = H> {
        self.clients.take_all()
    }

    /// Begins handshakes and accepts clients. Returns whether more can be done now.
    fn admit(&mut self, io: &mut impl ListenerIo<Handshake = H>, now: Instant) -> bool {
        let begun = (0..BEGUN_A_TURN).take_while(|_| self.begin_next(io, now)).count();
        let accepted = (0..CLIENTS_A_TURN).take_while(|_| self.accept_next(io, now)).count();
        let may_begin = self.clients.has_queued() && self.clients.running() < self.places(io);
        begun == BEGUN_A_TURN || accepted == CLIENTS_A_TURN || may_begin
    }

    /// Begins the handshake of a client that waits for a place. Returns false if there is none.
    fn begin_next(&mut self, io: &mut impl ListenerIo<Handshake = H>, now: Instant) -> bool {
        let Some(at) = self.clients.next_queued() else { return false };
        match self.next_place(io, Stage::Running, now) {
            None => return false,
            Some(NextPlace::Free) => {}
            Some(NextPlace::Replaces(stalled)) => {
                // The client may have left, and the event waits behind others.
                self.progress(io, at, now);
                if self.clients.stage(at) != Some(Stage::Queued) {
                    return true;
                }
                self.evict(io, stalled);
            }
        }
        if let Some(handshake) = self.clients.begin(at) {
            io.begin(at, handshake);
        }
        self.progress(io, at, now);
        true
    }

    /// Accepts a client, or turns one away if the time for that has come. Returns false if nobody waits
    /// or no more can be accepted.
    fn accept_next(&mut self, io: &mut impl ListenerIo<Handshake = H>, now: Instant) -> bool {
        if self.retry_at.is_some() {
            return false;
        }
        if !self.may_accept && !self.clients.has_queued() {
            self.overflow.end_round(now);
            return false;
        }
        let is_full = self.places(io) == 0;
        let accepted = if self.overflow.may_tell(is_full, now) {
            self.tell_next(io)
        } else if !is_full
            && self.may_accept
            && let Some(place) = self.next_place(io, Stage::Arriving, now)
        {
            self.accept_one(io, place, now)
        } else {
            return false;
        };
        match accepted {
            Ok(()) => io.accepted(Ok(())),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                (self.may_accept, self.silent) = (false, 0);
                self.overflow.end_round(now);
                return false;
            }
            // The client has disconnected again.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset | ErrorKind::Interrupted
                ) => {}
            Err(error) => {
                io.accepted(Err(error));
                self.retry_at = Some(now + RETRY);
                return false;
            }
        }
        true
    }

    /// Tells the next client that the backlog is full: those that are accepted first.
    fn tell_next(&mut self, io: &mut impl ListenerIo<Handshake = H>) -> io::Result<()> {
        let is_logged = self.overflow.is_logged();
        match self.clients.oldest_queued().and_then(|at| self.clients.take(at)) {
            Some(handshake) => io.turned_away(handshake, is_logged),
            None if self.may_accept => io.turn_away(is_logged)?,
            None => return Err(ErrorKind::WouldBlock.into()),
        }
        self.overflow.has_told();
        Ok(())
    }

    /// Accepts a client, and reads its first message if that has arrived.
    fn accept_one(
        &mut self,
        io: &mut impl ListenerIo<Handshake = H>,
        place: NextPlace,
        now: Instant,
    ) -> io::Result<()> {
        let Some(mut handshake) = io.accept()? else { return Ok(()) };
        if let NextPlace::Replaces(silent) = place {
            self.evict(io, silent);
            self.silent += 1;
        }
        let at = self.clients.next_number();
        io.register(at, &mut handshake)?;
        let due = io.deadline(&mut handshake);
        self.clients.add(at, handshake, due);
        self.progress(io, at, now);
        Ok(())
    }

    /// Makes room for another one.
    fn evict(&mut self, io: &mut impl ListenerIo<Handshake = H>, at: usize) {
        let Some(handshake) = self.clients.get(at) else { return };
        if let WayOut::GoesOn { has_path } = io.way_out(handshake) {
            io.parked(at, handshake);
            self.clients.park(at, has_path);
        } else if let Some(handshake) = self.clients.take(at) {
            io.evicted(handshake);
        }
    }

    /// Room for one more client of a stage: free, or that of a stalled one if there is no other.
    fn next_place(
        &mut self,
        io: &mut impl ListenerIo<Handshake = H>,
        stage: Stage,
        now: Instant,
    ) -> Option<NextPlace> {
        let silence = self.silence(io);
        loop {
            let (taken, places) = match stage {
                Stage::Running => (self.clients.running(), self.places(io)),
                _ => (self.clients.waiting(), io.most_waiting()),
            };
            match taken.cmp(&places) {
                Ordering::Less => return Some(NextPlace::Free),
                Ordering::Equal => {}
                // A parked one has become a connection.
                Ordering::Greater => return None,
            }
            let at = first_stalled(self.stalls(io, stage), silence, now)?;
            // Its next message may have arrived, and the event waits behind others.
            self.progress(io, at, now);
            if self.stalls(io, stage).any(|(stalled, stall)| stalled == at && stall.over_at(silence) <= now) {
                return Some(NextPlace::Replaces(at));
            }
        }
    }

    /// How long a client may be silent while others wait in the system's queue. The time becomes
    /// shorter while silent clients arrive: after as many as can wait it is half of it.
    fn silence(&self, io: &impl ListenerIo<Handshake = H>) -> Duration {
        let most = io.most_waiting() as u32;
        SILENCE * most / (most + self.silent)
    }

    /// The number of places. If none is free, the program's next `accept` leads to a turn.
    fn places(&self, io: &impl ListenerIo<Handshake = H>) -> usize {
        io.places(self.clients.running()).min(MAX_HANDSHAKES)
    }

    fn stalls(
        &self,
        io: &impl ListenerIo<Handshake = H>,
        stage: Stage,
    ) -> impl Iterator<Item = (usize, Stall)> {
        let may_park = self.clients.parked_with_path() < MAX_PARKED;
        let clients = self.clients.all(stage).filter(move |(_, handshake)| {
            may_park || io.way_out(handshake) != WayOut::GoesOn { has_path: true }
        });
        clients.filter_map(|(at, handshake)| Some((at, io.stall(handshake)?)))
    }

    /// Continues a handshake.
    fn progress(&mut self, io: &mut impl ListenerIo<Handshake = H>, at: usize, now: Instant) {
        let Some(handshake) = self.clients.get(at) else { return };
        if let Poll::Ready(result) = io.progress(at, handshake, now) {
            if let Some(handshake) = self.clients.take(at) {
                io.ended(handshake, result);
            }
            return;
        }
        let (due, awaits_place) = (io.deadline(handshake), io.awaits_place(handshake));
        self.clients.set_due(at, due);
        match self.clients.stage(at) {
            Some(Stage::Arriving) if awaits_place => self.clients.enqueue(at),
            // Its time is up, and it has found no place.
            Some(Stage::Queued) if due <= now => {
                if let Some(handshake) = self.clients.take(at) {
                    io.turned_away(handshake, false);
                }
            }
            _ => {}
        }
    }

    /// When the next timer expires.
    fn next_deadline(&self, io: &impl ListenerIo<Handshake = H>) -> Option<Instant> {
        let (places, has_queued) = (self.places(io), self.clients.has_queued());
        let is_full = places == 0;
        let may_accept = self.may_accept && self.retry_at.is_none();
        // When somebody waits for the room of another one.
        let is_crowded = may_accept && !is_full && self.clients.waiting() >= io.most_waiting();
        let silent = is_crowded.then_some(Stage::Arriving);
        let may_replace = has_queued && !is_full && self.clients.running() <= places;
        let stalled = may_replace.then_some(Stage::Running);
        let stalls = silent.into_iter().chain(stalled).flat_map(|stage| self.stalls(io, stage));
        let silence = self.silence(io);
        let round = if is_full && (may_accept || has_queued) { self.overflow.round_at() } else { None };
        let others = self.clients.next_due().into_iter().chain(round).chain(self.retry_at);
        others.chain(stalls.map(|(_, stall)| stall.over_at(silence))).min()
    }
}
