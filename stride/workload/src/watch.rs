//! Noticing, while spinning, that the peer is gone.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::sleep::Sleeper;
use stride_base::control::{ControlError, ControlLink, PeerStatus};
use stride_base::error::Error;
use stride_base::progress::ThreadProgress;
use stride_base::statistics::{Counter, Timer};

/// The clock is looked at once in so many spins.
const SPINS: u32 = 1 << 12;

/// The control connection is looked at once in so many nanoseconds.
const PAUSE_NANOSECONDS: f64 = 100e6;

/// So many looks, five seconds, are enough for an answer that is not lost.
const ENOUGH_LOOKS: u32 = 50;

/// Where nobody looks.
static UNREAD: ThreadProgress = ThreadProgress::new();

/// The control connection, as all threads of a side see it while they measure.
#[derive(Debug)]
pub struct PeerWatch<'a>(Mutex<&'a mut ControlLink>);

impl<'a> PeerWatch<'a> {
    /// Over this connection.
    pub fn new(link: &'a mut ControlLink) -> Self {
        Self(Mutex::new(link))
    }

    /// Who panicked while looking has changed nothing.
    fn link(&self) -> MutexGuard<'_, &'a mut ControlLink> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a watch looks through, whatever the connection's lifetime.
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

/// Looks now and then whether the peer still has its end of the control connection.
#[derive(Debug)]
pub struct Watch<'a> {
    peer: &'a dyn PeerConnection,
    timer: &'a Timer,
    passed: &'a ThreadProgress,
    spins: u32,
    /// The other one is done each time that these bits of the number of spins are 0.
    mask: u32,
    /// Whoever waits sleeps.
    sleeper: Option<Sleeper>,
    seen: u64,
    pause: u64,
    /// Looks since the last wait began.
    looks: u32,
    /// How many may be in vain.
    patience: u32,
    /// Looks that found a word of the peer's, which it sends when it is done.
    words: u32,
    /// Whether it is over then.
    ends_with_peer: bool,
}

impl<'a> Watch<'a> {
    /// A thread's watch.
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

    /// Has somebody else see how many messages are through.
    pub fn counting(self, passed: &'a ThreadProgress) -> Self {
        Self { passed, ..self }
    }

    /// Is called when so many messages are through.
    #[inline(always)]
    pub fn passed(&self, messages: u64) {
        self.passed.set(messages);
    }

    /// The clock.
    #[inline]
    pub fn now(&self) -> u64 {
        self.timer.now()
    }

    /// The processor's counter, if the clock is that: it is read without asking.
    pub(super) fn counter(&self) -> Option<Counter> {
        self.timer.counter()
    }

    /// How many ticks of the clock a second has.
    pub fn ticks_of_a_second(&self) -> f64 {
        1e9 / self.timer.nanoseconds_per_tick()
    }

    /// From now on, a wait that takes seconds fails: what it waits for may be lost.
    pub fn expect_losses(&mut self) {
        self.patience = ENOUGH_LOOKS;
    }

    /// From now on, a wait ends when the peer is done, with an error that says so.
    pub fn end_with_peer(&mut self) {
        self.ends_with_peer = true;
    }

    /// Is called before each wait of a test that may wait for what is lost.
    #[inline]
    pub fn begin(&mut self) {
        self.looks = 0;
    }

    /// Does something during which whoever waits for completions sleeps, if there is a sleeper.
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

    /// Is called each time that there was nothing to do.
    ///
    /// # Errors
    ///
    /// The peer is gone, or has given up; or this wait is one for something that was lost.
    #[inline]
    pub(super) fn spin(&mut self) -> Result<(), Error> {
        self.idle(|_| Ok(()))
    }

    /// The same, where completions are waited for: `rest` sleeps until there may be one, if anybody sleeps. It is called where
    /// this side looks after its peer, so that it costs whoever polls nothing.
    ///
    /// # Errors
    ///
    /// The same, or no event comes.
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

    /// Whether the peer has said so for a while that it is done: nothing of it is under way any more.
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
