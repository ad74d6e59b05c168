//! Readiness and wake-ups: the poller that a connection, a listener or a worker sleeps in, and the
//! descriptor that a program polls.
//!
//! # The two descriptors
//!
//! What a program waits for ("there are bytes for me") and what the system reports ("there are bytes on the socket", "there
//! is a completion") differ both ways: a frame may bring nothing for the program, and bytes may lie here already while the
//! socket is empty. So the descriptor that a program gets is one that this library owns: a set (epoll, kqueue) of what the
//! system reports, and a waker that the library uses itself. It is *readable* when a call may find something, and is never
//! writable: there is one question to ask of it, whichever way a program wants to go.
//!
//! Two rules make it right for level- and edge-triggered users:
//! - whatever a call leaves behind that the program was not told it has to wait for, wakes the set, once as it becomes true
//!   (an edge), and stays readable until a call has looked (a level);
//! - before a call says `WouldBlock` it takes the set's events, then looks once more. What comes after that look is an event
//!   of the set again.
//!
//! What is due at a time (a probe of a silent peer, the end of a cork) is done by calls, too. A program that has the descriptor need not
//! make any before it is readable; so the set then has a timer ([`Poller::wake_at`]), on systems where a set can have one.

use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::task::Wake;
use std::time::{Duration, Instant};

use mio::event::Event;
use mio::{Events, Poll, Registry, Token};

use crate::session::timer::Timer;

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

/// The keys of the waker and of the timer in the set.
const WAKER: Token = Token(usize::MAX);
const TIMER: Token = Token(usize::MAX - 2);

/// How many events are taken at a time. More are not lost: they stay in the set.
const EVENTS: usize = 256;

/// Wakes a poller, from any thread.
#[derive(Debug)]
pub(crate) struct WakeHandle(mio::Waker);

impl WakeHandle {
    /// Makes the set readable, and wakes who waits for it. A failure to wake is permanent, and is logged.
    pub(crate) fn notify(&self) {
        if let Err(error) = self.0.wake() {
            tracing::error!(%error, "who waits for a connection cannot be woken");
        }
    }
}

impl Wake for WakeHandle {
    fn wake(self: Arc<Self>) {
        self.notify();
    }
}

/// The event sources of a connection, a listener or a worker (epoll or kqueue), and a waker among them.
#[derive(Debug)]
pub(crate) struct Poller {
    poll: Poll,
    events: Events,
    wake_handle: Arc<WakeHandle>,
    /// The same, for those who wake tasks.
    task_waker: std::task::Waker,
    /// Whether the program has the set's descriptor: else there is nobody to ring for.
    exported: Cell<bool>,
    /// For the program, once it has the descriptor and something is due; and when it is set to, until that was taken.
    timer: Option<Timer>,
    timer_due: Option<Instant>,
}

impl Poller {
    /// For so many events at a time.
    pub(crate) fn new(connections: usize) -> io::Result<Self> {
        let poll = Poll::new()?;
        let wake_handle = Arc::new(WakeHandle(mio::Waker::new(poll.registry(), WAKER)?));
        Ok(Self {
            poll,
            task_waker: wake_handle.clone().into(),
            wake_handle,
            events: Events::with_capacity(connections.clamp(4, EVENTS)),
            exported: Cell::new(false),
            timer: None,
            timer_due: None,
        })
    }

    pub(crate) fn registry(&self) -> &Registry {
        self.poll.registry()
    }

    pub(crate) fn wake(&self) {
        self.wake_handle.notify();
    }

    pub(crate) fn wake_handle(&self) -> &Arc<WakeHandle> {
        &self.wake_handle
    }

    pub(crate) fn task_waker(&self) -> &std::task::Waker {
        &self.task_waker
    }

    /// Takes the set's events; sleeps until there is one, no longer than until the deadline. The wake-up is consumed by this;
    /// whether it rang.
    pub(crate) fn wait(&mut self, until: Until, mut each: impl FnMut(&Event)) -> io::Result<bool> {
        loop {
            match self.poll.poll(&mut self.events, until.timeout()) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
                Err(error) => return Err(error),
                Ok(()) => break,
            }
        }
        let mut woken = false;
        for event in &self.events {
            match event.token() {
                WAKER => woken = true,
                TIMER => self.timer_due = None,
                _ => each(event),
            }
        }
        Ok(woken)
    }

    /// Whether the program may be waiting for the set's descriptor.
    pub(crate) fn is_exported(&self) -> bool {
        self.exported.get()
    }

    /// Makes the set readable at that time, if the program has its descriptor. Where it will be earlier, that is enough: whoever looks then says
    /// so again. Whether it will be.
    pub(crate) fn wake_at(&mut self, at: Option<Instant>) -> bool {
        let Some(at) = at.filter(|_| self.is_exported()) else { return false };
        if self.timer_due.is_none_or(|timer_due| at < timer_due) {
            if let Err(error) = self.set_timer(at) {
                tracing::debug!(%error, "what is due waits for the program's next call");
            }
            self.timer_due = Some(at);
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

    /// The set's descriptor, for the program. What came before is not known to it: the first time the waker is used.
    #[cfg(unix)]
    pub(crate) fn export_descriptor(&self) -> std::os::fd::BorrowedFd<'_> {
        use std::os::fd::AsFd;
        if !self.exported.replace(true) {
            self.wake();
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
            Self::Deadline(_) => self.has_passed_at(Instant::now()),
            Self::Event => false,
        }
    }

    /// Whether it is that late now.
    pub(crate) fn has_passed_at(self, now: Instant) -> bool {
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
pub(crate) struct ReadinessState {
    /// What the program waits for at all.
    interest: Readiness,
    /// A call was told to wait until it may write.
    refused_write: bool,
    /// What the program was woken for since a call last took the set's events.
    signalled: Readiness,
}

impl Default for ReadinessState {
    fn default() -> Self {
        Self { interest: Readiness::BOTH, refused_write: false, signalled: Readiness::NONE }
    }
}

impl ReadinessState {
    pub(crate) fn set_interest(&mut self, interest: Readiness) {
        self.interest = interest;
    }

    /// A call to write was told to wait, or was not.
    pub(crate) fn set_write_refused(&mut self, refused: bool) {
        self.refused_write = refused;
    }

    /// The set's events were taken, and with them the waker's.
    pub(crate) fn events_taken(&mut self) {
        self.signalled = Readiness::NONE;
    }

    /// What of that is worth the program's attention.
    pub(crate) fn wanted(&self, ready: Readiness) -> Readiness {
        ready.and(self.interest).and(Readiness { readable: true, writable: self.refused_write })
    }

    /// Takes note of what is ready now; whether the program must be woken for it.
    pub(crate) fn update(&mut self, ready: Readiness) -> bool {
        let wanted = self.wanted(ready);
        let rings = wanted.exceeds(self.signalled);
        self.signalled = wanted;
        rings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_woken_once_as_a_condition_becomes_true() {
        let mut readiness_state = ReadinessState::default();
        assert!(!readiness_state.update(Readiness::WRITE), "nobody was told to wait");
        assert!(readiness_state.update(Readiness::BOTH));
        assert!(!readiness_state.update(Readiness::READ));
        readiness_state.set_write_refused(true);
        assert!(readiness_state.update(Readiness::BOTH), "a second condition wakes for itself");
        readiness_state.events_taken();
        assert!(readiness_state.update(Readiness::BOTH), "taking the events takes the wake-up too");
    }

    #[test]
    fn no_wake_up_without_interest() {
        let mut readiness_state = ReadinessState::default();
        readiness_state.set_write_refused(true);
        readiness_state.set_interest(Readiness::WRITE);
        assert!(!readiness_state.update(Readiness::READ));
        assert!(readiness_state.update(Readiness::BOTH));
        readiness_state.set_interest(Readiness::READ);
        assert!(readiness_state.update(Readiness::BOTH));
    }

    #[test]
    fn a_wake_up_ends_one_wait() {
        let mut poller = Poller::new(1).unwrap();
        poller.wake();
        assert!(poller.wait(Until::Event, |_| panic!("the wake-up is no connection's event")).unwrap());
        let before = Instant::now();
        poller.wait(Until::Deadline(before + Duration::from_millis(20)), |_| ()).unwrap();
        assert!(before.elapsed() >= Duration::from_millis(20), "it was woken twice");
    }
}
