//! Readiness and wake-ups: the poller that a connection, a listener or a worker sleeps in, and the
//! descriptor that a program polls.
//!
//! # The two descriptors
//!
//! Readiness for the program ("there are bytes for me") and system events ("the socket has bytes",
//! "there is a completion") differ in both directions. A frame may bring nothing for the program,
//! and received bytes may wait here while the socket is empty. So the program gets a descriptor of
//! this library: a set (epoll, kqueue) of the system's event sources and of a waker. It is
//! *readable* when a call may make progress, and never writable.
//!
//! Two rules make it correct for level-triggered and edge-triggered users:
//! - When a call leaves something undone that the program does not know of, the waker fires as that
//!   becomes true, and after each further call that leaves something (an edge). The set stays
//!   readable until a call has looked (a level).
//! - Before a call returns `WouldBlock`, it takes the set's events and then tries once more. What
//!   arrives after that is a new event of the set.
//!
//! Calls also run the timers: the keepalive of a silent peer, or the end of a cork. A program that
//! waits for the descriptor need not call before it is readable, so the service thread then wakes
//! the set ([`Poller::wake_at`]).

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::event::Event;
use mio::{Events, Poll, Registry, Token};

use crate::session::timers::Timer;
use crate::session::wake::{WAKER, WakeHandle};

/// The calls that can make progress, or that a program waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    /// Reading can make progress: bytes, a message, the end, or an error.
    pub readable: bool,
    /// Writing can make progress: buffer space, or an error.
    pub writable: bool,
}

impl Readiness {
    /// Neither direction.
    pub const NONE: Self = Self { readable: false, writable: false };
    /// Reading only.
    pub const READ: Self = Self { readable: true, writable: false };
    /// Writing only.
    pub const WRITE: Self = Self { readable: false, writable: true };
    /// Both directions.
    pub const BOTH: Self = Self { readable: true, writable: true };

    /// Whether neither direction is set.
    #[must_use]
    pub fn is_none(self) -> bool {
        self == Self::NONE
    }

    /// The intersection.
    pub(crate) fn and(self, other: Self) -> Self {
        Self { readable: self.readable && other.readable, writable: self.writable && other.writable }
    }

    /// Whether `self` has a direction that `other` lacks.
    fn exceeds(self, other: Self) -> bool {
        self.readable && !other.readable || self.writable && !other.writable
    }
}

/// Events taken at a time. Further ones stay in the set.
const EVENTS: usize = 256;

/// The event sources of a connection, a listener or a worker (epoll or kqueue), with a waker.
#[derive(Debug)]
pub(crate) struct Poller {
    poll: Poll,
    events: Events,
    wake_handle: Arc<WakeHandle>,
    /// Made once from `wake_handle`.
    task_waker: std::task::Waker,
    /// The timer, once the program has the descriptor and something is due.
    timer: Option<Timer>,
}

impl Poller {
    /// A poller for `connections` event sources.
    pub(crate) fn new(connections: usize) -> io::Result<Self> {
        Self::of(connections, WakeHandle::new())
    }

    /// The same for a handle that exists.
    pub(crate) fn of(connections: usize, wake_handle: Arc<WakeHandle>) -> io::Result<Self> {
        let poller = Self::without_waker(connections, wake_handle)?;
        poller.add_waker()?;
        Ok(poller)
    }

    /// The same for a thread that nobody wakes, until the waker is added.
    pub(crate) fn without_waker(connections: usize, wake_handle: Arc<WakeHandle>) -> io::Result<Self> {
        Ok(Self {
            poll: Poll::new()?,
            task_waker: wake_handle.clone().into(),
            wake_handle,
            events: Events::with_capacity(connections.clamp(4, EVENTS)),
            timer: None,
        })
    }

    /// Lets [`wake`](Self::wake) make the set readable.
    pub(crate) fn add_waker(&self) -> io::Result<()> {
        self.wake_handle.attach(self.poll.registry())
    }

    pub(crate) fn registry(&self) -> &Registry {
        self.poll.registry()
    }

    /// Has another set report when this one has events.
    #[cfg(unix)]
    pub(crate) fn register_in(&self, registry: &Registry, token: Token) -> io::Result<()> {
        use std::os::fd::AsRawFd;
        let descriptor = self.poll.registry().as_raw_fd();
        registry.register(&mut mio::unix::SourceFd(&descriptor), token, mio::Interest::READABLE)
    }

    #[cfg(not(unix))]
    pub(crate) fn register_in(&self, _: &Registry, _: Token) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
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

    /// Takes the set's events, and sleeps until there is one or the deadline passes. It consumes
    /// the wake-up, and returns whether there was one.
    pub(crate) fn wait(&mut self, until: Until, each: impl FnMut(&Event)) -> io::Result<bool> {
        self.sleep(until)?;
        Ok(self.take_events(each))
    }

    /// Sleeps until the set has an event or the deadline passes.
    pub(crate) fn sleep(&mut self, until: Until) -> io::Result<()> {
        loop {
            match self.poll.poll(&mut self.events, until.timeout()) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
                outcome => return outcome,
            }
        }
    }

    /// Takes the events that the last sleep found. It consumes the wake-up, and returns whether there
    /// was one.
    pub(crate) fn take_events(&mut self, mut each: impl FnMut(&Event)) -> bool {
        let mut woken = false;
        for event in &self.events {
            match event.token() {
                WAKER => woken = true,
                _ => each(event),
            }
        }
        woken
    }

    /// Makes the set readable at `at` or up to a second later, for a program that waits for its
    /// descriptor. An earlier pending timer suffices, because its turn calls this again.
    pub(crate) fn wake_at(&mut self, at: Option<Instant>) {
        let Some(at) = at else { return };
        if let Err(error) = self.set_timer(at) {
            tracing::debug!(%error, "what is due waits for the program's next call");
        }
    }

    fn set_timer(&mut self, at: Instant) -> io::Result<()> {
        let fired = self.wake_handle.take_timer_fired();
        let timer = match &mut self.timer {
            Some(timer) => timer,
            none => none.insert(Timer::new()?),
        };
        if fired {
            timer.has_fired();
        }
        timer.set(at, &self.wake_handle);
        Ok(())
    }

    /// The set's descriptor. Whoever gives it to a program then calls [`wake`](Self::wake) once,
    /// because earlier events are unknown to the program.
    #[cfg(unix)]
    pub(crate) fn descriptor(&self) -> std::os::fd::BorrowedFd<'_> {
        std::os::fd::AsFd::as_fd(self.poll.registry())
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        self.wake_handle.detach();
    }
}

/// How long to sleep.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Until {
    /// Do not sleep.
    Now,
    /// Until that time.
    Deadline(Instant),
    /// Until an event.
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

    /// Whether the deadline has passed.
    pub(crate) fn is_over(self) -> bool {
        match self {
            Self::Now => true,
            Self::Deadline(_) => self.has_passed_at(Instant::now()),
            Self::Event => false,
        }
    }

    /// Whether the deadline has passed at `now`.
    pub(crate) fn has_passed_at(self, now: Instant) -> bool {
        match self {
            Self::Now => true,
            Self::Deadline(deadline) => now >= deadline,
            Self::Event => false,
        }
    }

    /// The time when the sleep ends; `None` without limit.
    pub(crate) fn end(self) -> Option<Instant> {
        match self {
            Self::Now => Some(Instant::now()),
            Self::Deadline(deadline) => Some(deadline),
            Self::Event => None,
        }
    }

    pub(crate) fn timeout(self) -> Option<Duration> {
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

/// The readiness that a connection's descriptor has shown the program.
#[derive(Debug)]
pub(crate) struct ReadinessState {
    /// The directions that the program waits for.
    interest: Readiness,
    /// A call to write was refused, and the descriptor shows room.
    refused_write: bool,
    /// Another descriptor shows room.
    shows_no_room: bool,
    /// The readiness that has been signalled since a call last took the set's events.
    signalled: Readiness,
}

impl Default for ReadinessState {
    fn default() -> Self {
        let (interest, signalled) = (Readiness::BOTH, Readiness::NONE);
        Self { interest, refused_write: false, shows_no_room: false, signalled }
    }
}

impl ReadinessState {
    pub(crate) fn set_interest(&mut self, interest: Readiness) {
        self.interest = interest;
    }

    /// Records whether a call to write was refused.
    pub(crate) fn set_write_refused(&mut self, refused: bool) {
        self.refused_write = refused && !self.shows_no_room;
    }

    /// Shows no room from now on, because another descriptor does.
    #[cfg_attr(
        not(any(target_os = "linux", target_os = "android")),
        allow(dead_code, reason = "no descriptor shows room here")
    )]
    pub(crate) fn show_no_room(&mut self) {
        self.shows_no_room = true;
        self.refused_write = false;
    }

    /// Whether the descriptor has shown room since a call last took the set's events.
    pub(crate) fn has_shown_room(&self) -> bool {
        self.signalled.writable
    }

    /// Records that the set's events were taken, and the waker's with them.
    pub(crate) fn events_taken(&mut self) {
        self.signalled = Readiness::NONE;
    }

    /// The part of `ready` that the program waits for.
    pub(crate) fn wanted(&self, ready: Readiness) -> Readiness {
        ready.and(self.interest).and(Readiness { readable: true, writable: self.refused_write })
    }

    /// Records the readiness. Returns whether the program must be woken for it.
    pub(crate) fn update(&mut self, ready: Readiness) -> bool {
        let wanted = self.wanted(ready);
        let rings = wanted.exceeds(self.signalled);
        self.signalled = wanted;
        rings
    }

    /// The same after a call that succeeded. A program that makes one call for each edge needs
    /// another edge for what is left.
    pub(crate) fn update_after_call(&mut self, ready: Readiness) -> bool {
        self.update(ready) || self.signalled.readable
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
        readiness_state.show_no_room();
        readiness_state.set_write_refused(true);
        assert_eq!(readiness_state.wanted(Readiness::BOTH), Readiness::READ, "another descriptor shows room");
    }

    #[test]
    fn each_call_that_leaves_something_wakes_again() {
        let mut readiness_state = ReadinessState::default();
        assert!(readiness_state.update_after_call(Readiness::READ));
        assert!(readiness_state.update_after_call(Readiness::READ));
        assert!(!readiness_state.update_after_call(Readiness::WRITE));
        readiness_state.set_interest(Readiness::WRITE);
        assert!(!readiness_state.update_after_call(Readiness::READ));
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

    /// The system limits the paths by which one descriptor wakes a set of sets.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    #[test]
    #[cfg_attr(miri, ignore = "Miri has no nested sets")]
    fn a_program_waits_for_many_sets() {
        let mut program = Poll::new().unwrap();
        let pollers: Vec<_> = (0..150).map(|_| Poller::new(1).unwrap()).collect();
        let outer: Vec<_> = (0..3).map(|_| Poll::new().unwrap()).collect();
        for (at, poller) in pollers.iter().enumerate() {
            // Four levels of sets, of which the system allows 10 paths from one descriptor.
            poller.register_in(outer[0].registry(), Token(at)).unwrap();
        }
        for (at, inner) in outer.iter().enumerate() {
            let next = outer.get(at + 1).unwrap_or(&program);
            let descriptor = std::os::fd::AsRawFd::as_raw_fd(inner.registry());
            let mut source = mio::unix::SourceFd(&descriptor);
            next.registry().register(&mut source, Token(0), mio::Interest::READABLE).unwrap();
        }
        for poller in &pollers {
            poller.wake();
        }
        let mut events = Events::with_capacity(8);
        program.poll(&mut events, Some(Duration::from_secs(10))).unwrap();
        assert!(!events.is_empty());
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no nested sets")]
    fn each_wake_up_is_an_edge() {
        let mut program = Poll::new().unwrap();
        let mut poller = Poller::new(1).unwrap();
        poller.register_in(program.registry(), Token(1)).unwrap();
        let mut events = Events::with_capacity(8);
        for round in 0..6 {
            if round % 2 == 0 {
                poller.wake();
            } else {
                // As after a call: the events are taken first.
                poller.wait(Until::Now, |_| ()).unwrap();
                poller.wake_handle.notify_again();
            }
            program.poll(&mut events, Some(Duration::from_secs(10))).unwrap();
            assert!(!events.is_empty(), "round {round}: no edge, although an event was left");
        }
    }
}
