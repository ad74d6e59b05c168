//! The handshakes of a listener: which client may begin one, and which stalled one makes room for
//! it. It makes no system call and reads no clock, so that the simulator runs it in virtual time.

use std::io::{self, ErrorKind};
use std::task::Poll;
use std::time::{Duration, Instant};

use crate::session::overflow::Overflow;
use crate::session::service::NextTurn;

/// Handshakes at a time. Other clients wait in the system's backlog.
pub(crate) const MAX_HANDSHAKES: usize = 128;

/// The event number of the listening socket. Handshakes have the numbers below it.
pub(crate) const ACCEPTOR: usize = MAX_HANDSHAKES;

/// Clients accepted in one turn, so that other tasks have theirs.
const CLIENTS_A_TURN: usize = 32;

/// When to try again after the system could not accept, for example without free descriptors.
const RETRY: Duration = Duration::from_millis(50);

/// After this time another handshake may replace one whose client has sent no HELLO.
const SILENCE: Duration = Duration::from_millis(200);

/// The same for a later step, since it began. Messages that end no step do not count.
const STALL: Duration = Duration::from_secs(1);

/// From when on another handshake may replace this one. Silent clients come before those that have
/// sent a HELLO, and then the one whose last step was earliest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Stall {
    has_spoken: bool,
    pub(crate) at: Instant,
}

impl Stall {
    /// For a handshake that began at `began`. At `stepped` the last step ended that needed the peer.
    pub(crate) fn new(began: Instant, stepped: Option<Instant>) -> Self {
        let at = stepped.map_or(began + SILENCE, |stepped| stepped + STALL);
        Self { has_spoken: stepped.is_some(), at }
    }
}

/// The handshake that another one may replace now.
pub(crate) fn first_stalled<T>(handshakes: impl Iterator<Item = (T, Stall)>, now: Instant) -> Option<T> {
    let stalled = handshakes.filter(|(_, stall)| stall.at <= now);
    stalled.min_by_key(|(_, stall)| *stall).map(|(handshake, _)| handshake)
}

/// The input and output of a listener.
pub(crate) trait ListenerIo {
    type Handshake;

    /// The number of places for handshakes, of which `running` are taken.
    fn places(&self, running: usize) -> usize;

    /// Accepts the next client. `None` if its handshake cannot begin. The error is the listener's
    /// own, or `WouldBlock`.
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

    /// `None` if it keeps its place.
    fn stall(&self, handshake: &Self::Handshake) -> Option<Stall>;

    /// When to continue at the latest.
    fn deadline(&self, handshake: &mut Self::Handshake) -> Instant;

    /// Takes a handshake that has its result.
    fn ended(&mut self, handshake: Self::Handshake, result: io::Result<()>);

    /// Closes a handshake that makes room for another.
    fn evicted(&mut self, handshake: Self::Handshake);
}

/// The handshakes of a listener.
pub(crate) struct Admission<H> {
    handshakes: Vec<Option<H>>,
    overflow: Overflow,
    may_accept: bool,
    /// The system has refused to accept, and is asked again then.
    retry_at: Option<Instant>,
}

/// The place of the next client.
pub(crate) enum NextPlace {
    Free,
    /// That of a stalled handshake.
    Replaces(usize),
}

impl<H> Admission<H> {
    pub(crate) fn new() -> Self {
        Self { handshakes: Vec::new(), overflow: Overflow::default(), may_accept: true, retry_at: None }
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
        for at in 0..self.handshakes.len() {
            let is_late = self.handshakes[at].as_mut().is_some_and(|handshake| io.deadline(handshake) <= now);
            if is_late || moved.binary_search(&at).is_ok() {
                self.progress(io, at, now);
            }
        }
        let more = self.retry_at.is_none() && self.accept_waiting(io, now);
        if more { NextTurn::At(now) } else { self.next_deadline(io).into() }
    }

    /// Takes all handshakes, for the end of the listener.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = H> {
        std::mem::take(&mut self.handshakes).into_iter().flatten()
    }

    /// Accepts waiting clients while there are places, and turns others away when their time has
    /// come. Returns whether more wait.
    fn accept_waiting(&mut self, io: &mut impl ListenerIo<Handshake = H>, now: Instant) -> bool {
        for _ in 0..CLIENTS_A_TURN {
            if !self.may_accept {
                return false;
            }
            let is_full = self.running_and_places(io).1 == 0;
            let accepted = if self.overflow.may_tell(is_full, now) {
                io.turn_away(self.overflow.is_logged()).map(|()| self.overflow.has_told())
            } else if let Some(place) = self.next_place(io, now) {
                self.accept_one(io, place, now)
            } else {
                return false;
            };
            match accepted {
                Ok(()) => io.accepted(Ok(())),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.may_accept = false;
                    self.overflow.end_round(now);
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
        }
        true
    }

    /// Accepts a client and begins its handshake.
    fn accept_one(
        &mut self,
        io: &mut impl ListenerIo<Handshake = H>,
        place: NextPlace,
        now: Instant,
    ) -> io::Result<()> {
        let Some(mut handshake) = io.accept()? else { return Ok(()) };
        if let NextPlace::Replaces(at) = place
            && let Some(replaced) = self.handshakes[at].take()
        {
            io.evicted(replaced);
        }
        let at = self.handshakes.iter().position(Option::is_none).unwrap_or_else(|| {
            self.handshakes.push(None);
            self.handshakes.len() - 1
        });
        io.register(at, &mut handshake)?;
        self.handshakes[at] = Some(handshake);
        self.progress(io, at, now);
        Ok(())
    }

    /// A free place, or that of a stalled handshake if all are taken.
    fn next_place(&mut self, io: &mut impl ListenerIo<Handshake = H>, now: Instant) -> Option<NextPlace> {
        loop {
            let (running, places) = self.running_and_places(io);
            if running < places {
                return Some(NextPlace::Free);
            }
            if places == 0 {
                return None;
            }
            let at = first_stalled(self.stalls(io), now)?;
            // Its next message may have arrived, and the event waits behind others.
            self.progress(io, at, now);
            if self.handshakes[at]
                .as_ref()
                .and_then(|handshake| io.stall(handshake))
                .is_some_and(|stall| stall.at <= now)
            {
                return Some(NextPlace::Replaces(at));
            }
        }
    }

    /// The number of handshakes, and how many there may be.
    fn running_and_places(&self, io: &impl ListenerIo<Handshake = H>) -> (usize, usize) {
        let running = self.handshakes.iter().flatten().count();
        (running, io.places(running).min(MAX_HANDSHAKES))
    }

    fn stalls(&self, io: &impl ListenerIo<Handshake = H>) -> impl Iterator<Item = (usize, Stall)> {
        let places = self.handshakes.iter().enumerate();
        places.filter_map(|(at, handshake)| Some((at, io.stall(handshake.as_ref()?)?)))
    }

    /// Continues a handshake.
    fn progress(&mut self, io: &mut impl ListenerIo<Handshake = H>, at: usize, now: Instant) {
        let Some(handshake) = self.handshakes.get_mut(at).and_then(Option::as_mut) else { return };
        if let Poll::Ready(result) = io.progress(at, handshake, now)
            && let Some(handshake) = self.handshakes[at].take()
        {
            io.ended(handshake, result);
        }
    }

    /// When the next timer expires.
    fn next_deadline(&mut self, io: &impl ListenerIo<Handshake = H>) -> Option<Instant> {
        // With a place, or with a full backlog, nobody waits for another's place.
        let (running, places) = self.running_and_places(io);
        let may_accept = self.may_accept && self.retry_at.is_none();
        let is_full = may_accept && places > 0 && running >= places;
        let stalled = is_full.then(|| self.stalls(io).map(|(_, stall)| stall.at).min()).flatten();
        let late = self.handshakes.iter_mut().flatten().map(|handshake| io.deadline(handshake));
        let round = if may_accept && places == 0 { self.overflow.round_at() } else { None };
        late.chain(stalled).chain(round).chain(self.retry_at).min()
    }
}
