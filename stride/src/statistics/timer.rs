//! The clock of the measurements.
//!
//! # Safety
//!
//! Reading the time-stamp counter touches no memory. A process can be forbidden to (`PR_SET_TSC`),
//! which ends it; then it ended when the clock was made, as that reads it too.

#![allow(unsafe_code)]

use quanta::Clock;

/// Reads the processor's time-stamp counter where it runs at a constant rate, else the system's
/// clock.
#[derive(Clone, Debug)]
pub struct Timer {
    clock: Clock,
    nanoseconds_per_tick: f64,
    /// The clock's ticks are those of the processor's instruction: reading it needs no call.
    is_counter: bool,
}

impl Timer {
    /// Calibrates the counter, once for each process; this takes up to a fifth of a second.
    pub fn new() -> Self {
        const TICKS: u64 = 1 << 40;
        let clock = Clock::new();
        let nanoseconds = clock.delta_as_nanos(0, TICKS);
        let is_counter = counter::is_of(&clock);
        Self { clock, nanoseconds_per_tick: nanoseconds as f64 / TICKS as f64, is_counter }
    }

    /// The current tick.
    #[inline]
    pub fn now(&self) -> u64 {
        if self.is_counter { counter::read() } else { self.clock.raw() }
    }

    /// The processor's counter, if the ticks are its.
    pub fn counter(&self) -> Option<Counter> {
        self.is_counter.then_some(Counter(()))
    }

    /// The length of a tick.
    pub fn nanoseconds_per_tick(&self) -> f64 {
        self.nanoseconds_per_tick
    }
}

/// A clock that is known to be the processor's counter.
#[derive(Clone, Copy, Debug)]
pub struct Counter(());

impl Counter {
    /// The current tick.
    #[inline(always)]
    pub fn read(self) -> u64 {
        counter::read()
    }
}

/// The instruction that reads the processor's counter.
#[cfg(target_arch = "x86_64")]
mod counter {
    use super::Clock;

    #[inline]
    pub(super) fn read() -> u64 {
        // SAFETY: every x86-64 processor has the instruction (head of this file).
        unsafe { core::arch::x86_64::_rdtsc() }
    }

    /// Whether the clock reads it, too: then it is between two readings of the counter, where no
    /// other clock is.
    pub(super) fn is_of(clock: &Clock) -> bool {
        let (before, between, after) = (read(), clock.raw(), read());
        (before..=after).contains(&between)
    }
}

/// Other processors' counters are left to the clock.
#[cfg(not(target_arch = "x86_64"))]
mod counter {
    use super::Clock;

    #[inline]
    pub(super) fn read() -> u64 {
        0
    }

    pub(super) fn is_of(_: &Clock) -> bool {
        false
    }
}

impl Default for Timer {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn the_counter_is_the_clocks() {
        let timer = Timer { is_counter: false, ..Timer::new() };
        let with = Timer { is_counter: counter::is_of(&timer.clock), ..timer.clone() };
        let (before, between, after) = (timer.now(), with.now(), timer.now());
        assert!(before <= between && between <= after, "{before} {between} {after}");
        assert!(!counter::is_of(&Clock::mock().0));
    }

    #[test]
    fn ticks_agree_with_the_system() {
        let timer = Timer::new();
        let (start, ticks) = (Instant::now(), timer.now());
        std::thread::sleep(Duration::from_millis(50));
        let (nanoseconds, ticks) = (start.elapsed().as_nanos() as f64, timer.now() - ticks);
        let ratio = ticks as f64 * timer.nanoseconds_per_tick() / nanoseconds;
        assert!((0.9..1.1).contains(&ratio), "{ratio}");
    }
}
