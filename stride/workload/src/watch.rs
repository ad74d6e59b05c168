//! Detects the end of the peer during a busy wait.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::sleep::Sleeper;
use stride_base::control::{ControlError, ControlLink, PeerStatus};
use stride_base::error::Error;
use stride_base::progress::ThreadProgress;
use stride_base::statistics::{Counter, Timer};

/// Spins between two readings of the clock.
const SPINS: u32 = 1 << 12;

/// Nanoseconds between two checks of the control connection.
const PAUSE_NANOSECONDS: f64 = 100e6;

/// Checks after which a missing message counts as lost: five seconds.
const ENOUGH_LOOKS: u32 = 50;

/// A counter that no thread reads.
static UNREAD: ThreadProgress = ThreadProgress::new();

/// The control connection, which all threads of a side share while they measure.
#[derive(Debug)]
pub struct PeerWatch<'a>(Mutex<&'a mut ControlLink>);

impl<'a> PeerWatch<'a> {
    /// Wraps the control connection.
    pub fn new(link: &'a mut ControlLink) -> Self {
        Self(Mutex::new(link))
    }

    /// A thread that panicked during a check left the connection intact.
    fn link(&self) -> MutexGuard<'_, &'a mut ControlLink> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The control connection without its lifetime.
trait PeerConnection: Sync + std::fmt::Debug {
    fn peer_status(&self) -> Result<PeerStatus, ControlError>;
    fn silent(&self) -> ControlError;
    fn peer_is_done(&self) -> ControlError;
}

impl PeerConnection for PeerWatch<'_> {
    fn peer_status(&self) -> Result<PeerStatus, ControlError> {
        self.link().peer_status()
    }

    fn silent(&self) -> ControlError {
        self.link().silent()
    }

    fn peer_is_done(&self) -> ControlError {
        self.link().peer_is_done()
    }
}

/// Checks occasionally that the peer still has its end of the control connection.
#[derive(Debug)]
pub struct Watch<'a> {
    peer: &'a dyn PeerConnection,
    timer: &'a Timer,
    passed: &'a ThreadProgress,
    spins: u32,
    /// The other queue is polled each time these bits of the number of spins are 0.
    mask: u32,
    /// Sleeps on completion events, unless the side polls.
    sleeper: Option<Sleeper>,
    seen: u64,
    pause: u64,
    /// Checks since the current wait began.
    looks: u32,
    /// The number of checks after which a wait fails.
    patience: u32,
    /// Checks that found a message of the peer, which it sends when it is done.
    words: u32,
    /// Whether a wait ends when the peer is done.
    ends_with_peer: bool,
}

impl<'a> Watch<'a> {
    /// The watch of one thread.
    pub fn new(peer: &'a PeerWatch<'_>, timer: &'a Timer) -> Self {
        let pause = (PAUSE_NANOSECONDS / timer.nanoseconds_per_tick()) as u64;
        Self {
            peer,
            timer,
            passed: &UNREAD,
            spins: 0,
            mask: SPINS - 1,
            sleeper: None,
            seen: timer.now(),
            pause,
            looks: 0,
            patience: u32::MAX,
            words: 0,
            ends_with_peer: false,
        }
    }

    /// Shows another thread the number of completed messages.
    pub fn counting(self, passed: &'a ThreadProgress) -> Self {
        Self { passed, ..self }
    }

    /// Reports the number of completed messages.
    #[inline(always)]
    pub fn passed(&self, messages: u64) {
        self.passed.set(messages);
    }

    /// The current time in ticks.
    #[inline]
    pub fn now(&self) -> u64 {
        self.timer.now()
    }

    /// The processor's counter, if the clock uses it, for reading without a branch.
    pub(super) fn counter(&self) -> Option<Counter> {
        self.timer.counter()
    }

    /// Ticks per second.
    pub fn ticks_of_a_second(&self) -> f64 {
        1e9 / self.timer.nanoseconds_per_tick()
    }

    /// Makes a wait of several seconds fail, because its message may be lost.
    pub fn expect_losses(&mut self) {
        self.patience = ENOUGH_LOOKS;
    }

    /// Makes a wait end with an error when the peer is done.
    pub fn end_with_peer(&mut self) {
        self.ends_with_peer = true;
    }

    /// Starts a wait that may fail.
    #[inline]
    pub fn begin(&mut self) {
        self.looks = 0;
    }

    /// Runs `work`; during it, waits for completions sleep if a sleeper exists.
    pub(super) fn sleeping<T>(
        &mut self,
        sleeper: &mut Option<Sleeper>,
        work: impl FnOnce(&mut Self) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.sleeper = sleeper.take();
        self.mask = if self.sleeper.is_some() { 0 } else { SPINS - 1 };
        let done = work(self);
        *sleeper = self.sleeper.take();
        done
    }

    /// Called for each fruitless poll.
    ///
    /// # Errors
    ///
    /// The peer ended or gave up, or the awaited message is lost.
    #[inline]
    pub(super) fn spin(&mut self) -> Result<(), Error> {
        self.idle(|_| Ok(()))
    }

    /// Called for each fruitless poll of completions: `rest` sleeps until one may have arrived, if
    /// the side sleeps. It runs only when the peer is checked, so that it costs a polling side
    /// nothing.
    ///
    /// # Errors
    ///
    /// The errors of [`spin`](Self::spin), or no event arrives.
    #[inline]
    pub(super) fn idle(&mut self, rest: impl FnOnce(&mut Sleeper) -> Result<(), Error>) -> Result<(), Error> {
        self.spins = self.spins.wrapping_add(1);
        if self.spins & self.mask == 0 { self.rest_and_look(rest) } else { Ok(()) }
    }

    #[cold]
    fn rest_and_look(&mut self, rest: impl FnOnce(&mut Sleeper) -> Result<(), Error>) -> Result<(), Error> {
        if let Some(sleeper) = &mut self.sleeper {
            rest(sleeper)?;
        }
        Ok(self.look()?)
    }

    /// Whether the peer has been done for a while, so that none of its messages is in flight.
    pub fn peer_is_done(&self) -> bool {
        self.words > 1
    }

    fn look(&mut self) -> Result<(), ControlError> {
        let now = self.timer.now();
        if now.wrapping_sub(self.seen) < self.pause {
            return Ok(());
        }
        self.seen = now;
        self.looks = self.looks.saturating_add(1);
        self.words += u32::from(self.peer.peer_status()? == PeerStatus::MessageWaiting);
        if self.ends_with_peer && self.peer_is_done() {
            return Err(self.peer.peer_is_done());
        }
        if self.looks > self.patience { Err(self.peer.silent()) } else { Ok(()) }
    }
}
