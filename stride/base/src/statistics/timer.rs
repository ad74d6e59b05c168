//! The clock of the measurements: the processor's counter if it runs at a constant rate, else the
//! system's clock.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The time for which the calibration watches the counter. The reading at each end is exact to
/// about 20 ns, so the length of a tick is exact to a millionth.
const CALIBRATION: Duration = Duration::from_millis(40);

/// How many readings are taken at each end of it, of which the quickest counts.
const READINGS: u32 = 32;

/// The clock: its ticks are the counter's, or nanoseconds of the system's clock.
#[derive(Clone, Debug)]
pub struct Timer {
    nanoseconds_per_tick: f64,
    counter: Option<Counter>,
    /// When the system's clock reads 0.
    start: Instant,
}

impl Timer {
    /// Calibrates the counter, once for each process; this takes a twentieth of a second.
    pub fn new() -> Self {
        static LENGTH_OF_TICK: OnceLock<f64> = OnceLock::new();
        let counter = Counter::of_this_processor();
        let nanoseconds_per_tick = counter.map_or(1.0, |counter| {
            *LENGTH_OF_TICK
                .get_or_init(|| counter.exact_length_of_tick().unwrap_or_else(|| counter.calibrate()))
        });
        Self { nanoseconds_per_tick, counter, start: Instant::now() }
    }

    /// The current tick.
    #[inline]
    pub fn now(&self) -> u64 {
        match self.counter {
            Some(counter) => counter.read(),
            None => self.start.elapsed().as_nanos() as u64,
        }
    }

    /// The processor's counter, if the ticks are its.
    pub fn counter(&self) -> Option<Counter> {
        self.counter
    }

    /// The length of a tick.
    pub fn nanoseconds_per_tick(&self) -> f64 {
        self.nanoseconds_per_tick
    }
}

/// The processor's counter, which runs at a constant rate.
#[derive(Clone, Copy, Debug)]
pub struct Counter(());

impl Counter {
    fn of_this_processor() -> Option<Self> {
        instruction::is_constant().then_some(Self(()))
    }

    /// The current tick.
    #[inline(always)]
    pub fn read(self) -> u64 {
        instruction::read()
    }

    /// The length of a tick in nanoseconds, where the processor tells the frequency.
    fn exact_length_of_tick(self) -> Option<f64> {
        instruction::frequency().map(|hertz| 1e9 / hertz as f64)
    }

    /// The length of a tick in nanoseconds, by the system's clock.
    fn calibrate(self) -> f64 {
        let (start, first) = self.reading();
        std::thread::sleep(CALIBRATION);
        let (end, last) = self.reading();
        (end - start).as_nanos() as f64 / (last - first).max(1) as f64
    }

    /// Reads both clocks at the same moment. It keeps the quickest of several readings, and takes
    /// the middle of the two counter values around the system's time.
    fn reading(self) -> (Instant, u64) {
        let read = |_| {
            let before = self.read();
            let now = Instant::now();
            let after = self.read();
            (after - before, now, before + (after - before) / 2)
        };
        let quickest = (0..READINGS).map(read).min_by_key(|(length, ..)| *length);
        quickest.map_or_else(|| (Instant::now(), self.read()), |(_, now, tick)| (now, tick))
    }
}

/// The time-stamp counter.
///
/// # Safety
///
/// A read of the counter touches no memory. The kernel can forbid it (`PR_SET_TSC`), and then a
/// read ends the process. Such a process has already ended when it made the clock, which reads the
/// counter too.
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
mod instruction {
    use std::arch::x86_64::{__cpuid, _rdtsc};

    /// The CPUID leaves, each with a bit of EDX: the processor has RDTSCP, and its counter neither
    /// stops nor changes its rate ("invariant TSC").
    const FEATURES: (u32, u32) = (0x8000_0001, 1 << 27);
    const POWER: (u32, u32) = (0x8000_0007, 1 << 8);

    #[inline(always)]
    pub(super) fn read() -> u64 {
        // SAFETY: every x86-64 processor has the instruction (head of this module).
        unsafe { _rdtsc() }
    }

    // The oldest supported compiler has `__cpuid` as an unsafe function.
    #[allow(unused_unsafe)]
    pub(super) fn is_constant() -> bool {
        // SAFETY: every x86-64 processor has the instruction, which touches no memory.
        let cpuid = |leaf| unsafe { __cpuid(leaf) };
        let has = |(leaf, bit)| cpuid(0x8000_0000).eax >= leaf && cpuid(leaf).edx & bit != 0;
        has(FEATURES) && has(POWER)
    }

    /// Few processors tell it, and guests of a hypervisor seldom see it.
    pub(super) fn frequency() -> Option<u64> {
        None
    }
}

/// The virtual counter of the generic timer, which every 64-bit Arm processor has.
///
/// # Safety
///
/// Linux lets programs read its two registers, which touches no memory.
#[cfg(target_arch = "aarch64")]
#[allow(unsafe_code)]
mod instruction {
    use std::arch::asm;

    #[inline(always)]
    pub(super) fn read() -> u64 {
        let ticks;
        // SAFETY: head of this module.
        unsafe { asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nomem, nostack, preserves_flags)) };
        ticks
    }

    pub(super) fn is_constant() -> bool {
        true
    }

    pub(super) fn frequency() -> Option<u64> {
        let hertz: u64;
        // SAFETY: head of this module.
        unsafe { asm!("mrs {}, cntfrq_el0", out(reg) hertz, options(nomem, nostack, preserves_flags)) };
        (hertz > 0).then_some(hertz)
    }
}

/// Other processors' counters are not used.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod instruction {
    pub(super) fn read() -> u64 {
        0
    }

    pub(super) fn is_constant() -> bool {
        false
    }

    pub(super) fn frequency() -> Option<u64> {
        None
    }
}

impl Default for Timer {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_counter_ticks_are_nanoseconds() {
        let timer = Timer { counter: None, nanoseconds_per_tick: 1.0, ..Timer::new() };
        let before = timer.start.elapsed().as_nanos() as u64;
        let now = timer.now();
        let after = timer.start.elapsed().as_nanos() as u64;
        assert!(before <= now && now <= after, "{before} {now} {after}");
        assert!(timer.counter().is_none());
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
