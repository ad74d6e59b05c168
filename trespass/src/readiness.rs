//! How a program that waits for many things at a time waits for a connection too.
//!
//! # The two descriptors
//!
//! What a program waits for ("there are bytes for me") and what the system reports ("there are bytes on the socket", "there
//! is a completion") differ both ways: a frame may bring nothing for the program, and bytes may lie here already while the
//! socket is empty. So the descriptor that a program gets is one that this library owns: a set (epoll, kqueue) of what the
//! system reports, and a bell that the library rings itself. It is *readable* when a call may find something, and is never
//! writable: there is one question to ask of it, whichever way a program wants to go.
//!
//! Two rules make it right for level- and edge-triggered users:
//! - whatever a call leaves behind that the program was not told it has to wait for, rings the bell, once as it becomes true
//!   (an edge), and stays readable until a call has looked (a level);
//! - before a call says `WouldBlock` it takes the set's events, then looks once more. What comes after that look is an event
//!   of the set again.
//!
//! What is due at a time (a probe of a silent peer, the end of a cork) is done by calls, too. A program that has the descriptor need not
//! make any before it is readable; so the set then has a timer ([`Bell::wake_at`]), on systems where a set can have one.

use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::task::Wake;
use std::time::{Duration, Instant};

use mio::event::Event;
use mio::{Events, Poll, Registry, Token, Waker};

use crate::timer::Timer;

/// What may be done now, or what a program waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    /// There is something to read: bytes, a message, the end, or an error.
    pub readable: bool,
    /// There is room to write, or an error to be told.
    pub writable: bool,
}

impl Readiness {
    /// Neither.
    pub const NONE: Self = Self { readable: false, writable: false };
    /// To read.
    pub const READ: Self = Self { readable: true, writable: false };
    /// To write.
    pub const WRITE: Self = Self { readable: false, writable: true };
    /// Both.
    pub const BOTH: Self = Self { readable: true, writable: true };

    /// Whether it is neither.
    #[must_use]
    pub fn is_none(self) -> bool {
        self == Self::NONE
    }

    /// What is in both.
    fn and(self, other: Self) -> Self {
        Self { readable: self.readable && other.readable, writable: self.writable && other.writable }
    }

    /// Whether something is in `self` that is not in `other`.
    fn exceeds(self, other: Self) -> bool {
        self.readable && !other.readable || self.writable && !other.writable
    }
}

/// The bell's own key in its set, and the timer's.
const BELL: Token = Token(usize::MAX);
const TIMER: Token = Token(usize::MAX - 2);

/// How many events are taken at a time. More are not lost: they stay in the set.
const EVENTS: usize = 256;

/// What rings the bell of a set, from any thread.
#[derive(Debug)]
pub(crate) struct Clapper(Waker);

impl Clapper {
    /// Makes the set readable, and wakes who waits for it. A bell that cannot ring is broken for good, and says so.
    pub(crate) fn ring(&self) {
        if let Err(error) = self.0.wake() {
            tracing::error!(%error, "who waits for a connection cannot be woken");
        }
    }
}

impl Wake for Clapper {
    fn wake(self: Arc<Self>) {
        self.ring();
    }
}

/// A set of what the system reports, and a bell in it.
#[derive(Debug)]
pub(crate) struct Bell {
    poll: Poll,
    events: Events,
    clapper: Arc<Clapper>,
    /// The same, for those who wake tasks.
    task: std::task::Waker,
    /// Whether the program has the set's descriptor: else there is nobody to ring for.
    handed_out: Cell<bool>,
    /// For the program, once it has the descriptor and something is due; and when it is set to, until that was taken.
    timer: Option<Timer>,
    alarm: Option<Instant>,
}

impl Bell {
    /// For so many events at a time.
    pub(crate) fn new(connections: usize) -> io::Result<Self> {
        let poll = Poll::new()?;
        let clapper = Arc::new(Clapper(Waker::new(poll.registry(), BELL)?));
        Ok(Self {
            poll,
            task: clapper.clone().into(),
            clapper,
            events: Events::with_capacity(connections.clamp(4, EVENTS)),
            handed_out: Cell::new(false),
            timer: None,
            alarm: None,
        })
    }

    pub(crate) fn registry(&self) -> &Registry {
        self.poll.registry()
    }

    pub(crate) fn ring(&self) {
        self.clapper.ring();
    }

    pub(crate) fn clapper(&self) -> &Arc<Clapper> {
        &self.clapper
    }

    pub(crate) fn task(&self) -> &std::task::Waker {
        &self.task
    }

    /// Takes the set's events; sleeps until there is one, no longer than until the deadline. The bell is silent after this;
    /// whether it rang.
    pub(crate) fn wait(&mut self, until: Until, mut each: impl FnMut(&Event)) -> io::Result<bool> {
        loop {
            match self.poll.poll(&mut self.events, until.timeout()) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
                Err(error) => return Err(error),
                Ok(()) => break,
            }
        }
        let mut rang = false;
        for event in &self.events {
            match event.token() {
                BELL => rang = true,
                TIMER => self.alarm = None,
                _ => each(event),
            }
        }
        Ok(rang)
    }

    /// Whether the program may be waiting for the set's descriptor.
    pub(crate) fn is_handed_out(&self) -> bool {
        self.handed_out.get()
    }

    /// Makes the set readable at that time, if the program has its descriptor. Where it will be earlier, that is enough: whoever looks then says
    /// so again. Whether it will be.
    pub(crate) fn wake_at(&mut self, at: Option<Instant>) -> bool {
        let Some(at) = at.filter(|_| self.is_handed_out()) else { return false };
        if self.alarm.is_none_or(|alarm| at < alarm) {
            if let Err(error) = self.set_timer(at) {
                tracing::debug!(%error, "what is due waits for the program's next call");
            }
            self.alarm = Some(at);
        }
        self.timer.is_some()
    }

    fn set_timer(&mut self, at: Instant) -> io::Result<()> {
        let timer = match &self.timer {
            Some(timer) => timer,
            None => self.timer.insert(Timer::new(self.poll.registry(), TIMER)?),
        };
        timer.set(at.saturating_duration_since(Instant::now()))
    }

    /// The set's descriptor, for the program. What came before is not known to it: the first time the bell rings.
    #[cfg(unix)]
    pub(crate) fn hand_out(&self) -> std::os::fd::BorrowedFd<'_> {
        use std::os::fd::AsFd;
        if !self.handed_out.replace(true) {
            self.ring();
        }
        self.poll.registry().as_fd()
    }
}

/// How long to sleep.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Until {
    /// Not at all.
    Now,
    /// Until then.
    Deadline(Instant),
    /// Until something happens.
    Event,
}

impl Until {
    /// The earlier of two.
    pub(crate) fn or(self, deadline: Option<Instant>) -> Self {
        match (self, deadline) {
            (Self::Deadline(one), Some(other)) => Self::Deadline(one.min(other)),
            (Self::Event, Some(deadline)) => Self::Deadline(deadline),
            (until, _) => until,
        }
    }

    /// Whether it is that late.
    pub(crate) fn is_over(self) -> bool {
        match self {
            Self::Now => true,
            Self::Deadline(_) => self.is_over_at(Instant::now()),
            Self::Event => false,
        }
    }

    /// Whether it is that late now.
    pub(crate) fn is_over_at(self, now: Instant) -> bool {
        match self {
            Self::Now => true,
            Self::Deadline(deadline) => now >= deadline,
            Self::Event => false,
        }
    }

    fn timeout(self) -> Option<Duration> {
        match self {
            Self::Now => Some(Duration::ZERO),
            Self::Deadline(deadline) => Some(deadline.saturating_duration_since(Instant::now())),
            Self::Event => None,
        }
    }
}

impl From<Option<Instant>> for Until {
    fn from(deadline: Option<Instant>) -> Self {
        Self::Event.or(deadline)
    }
}

/// What the descriptor of one connection shows its program.
#[derive(Debug)]
pub(crate) struct Lamp {
    /// What the program waits for at all.
    interest: Readiness,
    /// A call was told to wait until it may write.
    refused_write: bool,
    /// What the bell was rung for since a call last took the set's events.
    shown: Readiness,
}

impl Default for Lamp {
    fn default() -> Self {
        Self { interest: Readiness::BOTH, refused_write: false, shown: Readiness::NONE }
    }
}

impl Lamp {
    pub(crate) fn set_interest(&mut self, interest: Readiness) {
        self.interest = interest;
    }

    /// A call to write was told to wait, or was not.
    pub(crate) fn write_was(&mut self, refused: bool) {
        self.refused_write = refused;
    }

    /// The set's events were taken, and with them the bell's.
    pub(crate) fn silenced(&mut self) {
        self.shown = Readiness::NONE;
    }

    /// What of that is worth the program's attention.
    pub(crate) fn wanted(&self, ready: Readiness) -> Readiness {
        ready.and(self.interest).and(Readiness { readable: true, writable: self.refused_write })
    }

    /// Takes note of what is ready now; whether the bell must ring for it.
    pub(crate) fn show(&mut self, ready: Readiness) -> bool {
        let wanted = self.wanted(ready);
        let rings = wanted.exceeds(self.shown);
        self.shown = wanted;
        rings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bell_rings_as_a_condition_becomes_true_and_not_again() {
        let mut lamp = Lamp::default();
        assert!(!lamp.show(Readiness::WRITE), "nobody was told to wait");
        assert!(lamp.show(Readiness::BOTH));
        assert!(!lamp.show(Readiness::READ));
        lamp.write_was(true);
        assert!(lamp.show(Readiness::BOTH), "a second condition rings for itself");
        lamp.silenced();
        assert!(lamp.show(Readiness::BOTH), "who took the events took the bell's with them");
    }

    #[test]
    fn what_a_program_does_not_wait_for_rings_no_bell() {
        let mut lamp = Lamp::default();
        lamp.write_was(true);
        lamp.set_interest(Readiness::WRITE);
        assert!(!lamp.show(Readiness::READ));
        assert!(lamp.show(Readiness::BOTH));
        lamp.set_interest(Readiness::READ);
        assert!(lamp.show(Readiness::BOTH));
    }

    #[test]
    fn a_rung_bell_wakes_whoever_waits_and_is_silent_then() {
        let mut bell = Bell::new(1).unwrap();
        bell.ring();
        assert!(bell.wait(Until::Event, |_| panic!("the bell is no connection's event")).unwrap());
        let before = Instant::now();
        bell.wait(Until::Deadline(before + Duration::from_millis(20)), |_| ()).unwrap();
        assert!(before.elapsed() >= Duration::from_millis(20), "it rang twice");
    }
}
