//! The random generator of a run. Its seed reproduces every step.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::ops::Range;
use std::time::Duration;

/// A seeded random generator.
pub(super) struct SimRng(ChaCha8Rng);

impl SimRng {
    pub(super) fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    pub(super) fn number(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A value of `range`, uniform up to the bias of a 64-bit remainder.
    pub(super) fn within(&mut self, range: Range<usize>) -> usize {
        assert!(!range.is_empty(), "an empty range to choose from: {range:?}");
        range.start + (self.number() % (range.end - range.start) as u64) as usize
    }

    /// A time up to `most`, in microseconds.
    pub(super) fn up_to(&mut self, most: Duration) -> Duration {
        Duration::from_micros(self.within(0..most.as_micros() as usize + 1) as u64)
    }

    /// True with probability 1/`n`.
    pub(super) fn one_in(&mut self, n: usize) -> bool {
        self.within(0..n) == 0
    }

    pub(super) fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.within(0..choices.len())]
    }
}
