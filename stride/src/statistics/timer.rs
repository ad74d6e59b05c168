//! The clock of the measurements.

use quanta::Clock;

/// Reads the processor's time-stamp counter where it runs at a constant rate, else the system's clock.
#[derive(Clone, Debug)]
pub struct Timer {
    clock: Clock,
    nanoseconds_per_tick: f64,
}

impl Timer {
    /// Calibrates the counter, once for each process; this takes up to a fifth of a second.
    pub fn new() -> Self {
        const TICKS: u64 = 1 << 40;
        let clock = Clock::new();
        let nanoseconds = clock.delta_as_nanos(0, TICKS);
        Self { clock, nanoseconds_per_tick: nanoseconds as f64 / TICKS as f64 }
    }

    /// The current tick.
    #[inline]
    pub fn now(&self) -> u64 {
        self.clock.raw()
    }

    /// The length of a tick.
    pub fn nanoseconds_per_tick(&self) -> f64 {
        self.nanoseconds_per_tick
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
    fn ticks_agree_with_the_system() {
        let timer = Timer::new();
        let (start, ticks) = (Instant::now(), timer.now());
        std::thread::sleep(Duration::from_millis(50));
        let (nanoseconds, ticks) = (start.elapsed().as_nanos() as f64, timer.now() - ticks);
        let ratio = ticks as f64 * timer.nanoseconds_per_tick() / nanoseconds;
        assert!((0.9..1.1).contains(&ratio), "{ratio}");
    }
}
