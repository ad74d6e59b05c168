//! Noticing, while spinning, that the peer is gone.

use crate::control::{ControlError, Link};
use crate::statistics::Timer;

/// The clock is looked at once in so many spins.
const SPINS: u32 = 1 << 12;

/// The control connection is looked at once in so many nanoseconds.
const PAUSE_NANOSECONDS: f64 = 100e6;

/// Looks now and then whether the peer still has its end of the control connection.
#[derive(Debug)]
pub struct Watch<'a> {
    link: &'a mut Link,
    timer: &'a Timer,
    spins: u32,
    seen: u64,
    pause: u64,
}

impl<'a> Watch<'a> {
    /// A watch over this link.
    pub fn new(link: &'a mut Link, timer: &'a Timer) -> Self {
        let pause = (PAUSE_NANOSECONDS / timer.nanoseconds_per_tick()) as u64;
        Self { link, timer, spins: 0, seen: timer.now(), pause }
    }

    /// The clock.
    #[inline]
    pub fn now(&self) -> u64 {
        self.timer.now()
    }

    /// Is called each time that there was nothing to do.
    ///
    /// # Errors
    ///
    /// The peer is gone, or has given up.
    #[inline]
    pub fn spin(&mut self) -> Result<(), ControlError> {
        self.spins = self.spins.wrapping_add(1);
        if self.spins.is_multiple_of(SPINS) { self.look() } else { Ok(()) }
    }

    #[cold]
    fn look(&mut self) -> Result<(), ControlError> {
        let now = self.timer.now();
        if now.wrapping_sub(self.seen) < self.pause {
            return Ok(());
        }
        self.seen = now;
        self.link.glance().map(drop)
    }
}
