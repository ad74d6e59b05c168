//! Size sweep of `-a`: sizes that grow by a factor and a step.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::cli::{Millionths, RunArgs, Size};

/// A factor of 1.
const ONE: u64 = 1_000_000;

/// The most sizes of a run.
const MOST_SIZES: usize = 10_000;

/// From the smallest size on, each size is the one before times the factor, rounded up, plus the
/// addition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SizeSweep {
    /// The first size in bytes.
    pub min: u64,
    /// The largest size in bytes.
    pub max: u64,
    /// The factor, in millionths.
    pub factor: u64,
    /// Bytes added to each size.
    pub addition: u64,
}

/// A sweep that is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SizeSweepError {
    /// The first size is 0.
    #[error("--min-msg-size 0 is below the smallest message, 1 byte: give --min-msg-size 1 or more")]
    Zero,
    /// The first size exceeds the last.
    #[error(
        "--min-msg-size {min} is above the last size of -a, {max}: give less, or a larger --max-msg-size"
    )]
    MinAboveMax {
        /// The first size in bytes.
        min: u64,
        /// The last size in bytes.
        max: u64,
    },
    /// The factor is below 1, so sizes would shrink.
    #[error(
        "--step-factor {} is below 1, so that sizes would not grow: give --step-factor 1 or more",
        decimal(*factor)
    )]
    Shrinks {
        /// The factor, in millionths.
        factor: u64,
    },
    /// The factor is 1 and the addition is 0, so sizes would repeat.
    #[error(
        "--step-factor 1 without --step-addition makes no second size: give a larger factor, or --step-addition 1 or more"
    )]
    Stands,
    /// The sweep has too many sizes.
    #[error(
        "from {min} to {max} there are more than {MOST_SIZES} sizes, the most of a run: give a larger --step-factor or --step-addition"
    )]
    TooMany {
        /// The first size in bytes.
        min: u64,
        /// The last size in bytes.
        max: u64,
    },
}

impl SizeSweep {
    /// The sweep that the user described, or `None` for the default powers of two. An addition
    /// without a factor means a factor of 1.
    pub(super) fn asked(args: &RunArgs, max: u64) -> Option<Self> {
        let RunArgs { min_msg_size, step_factor, step_addition, .. } = *args;
        if min_msg_size.is_none() && step_factor.is_none() && step_addition.is_none() {
            return None;
        }
        let factor = if step_addition.is_some() { ONE } else { 2 * ONE };
        Some(Self {
            min: min_msg_size.map_or(2, |Size(min)| min),
            max,
            factor: step_factor.map_or(factor, |Millionths(factor)| factor),
            addition: step_addition.map_or(0, |Size(addition)| addition),
        })
    }

    /// The sizes, in ascending order.
    pub fn iter(self) -> impl Iterator<Item = u64> {
        std::iter::successors(Some(self.min), move |size| self.after(*size))
            .take_while(move |size| *size <= self.max)
    }

    /// The next size; `None` if it would not grow or would exceed 64 bits.
    fn after(self, size: u64) -> Option<u64> {
        let product = (u128::from(size) * u128::from(self.factor)).div_ceil(u128::from(ONE));
        let next = u64::try_from(product).ok()?.checked_add(self.addition)?;
        (next > size).then_some(next)
    }

    /// Checks that the sweep is finite and grows.
    pub(super) fn validate(self) -> Result<(), SizeSweepError> {
        let Self { min, max, factor, addition } = self;
        match () {
            () if min == 0 => Err(SizeSweepError::Zero),
            () if min > max => Err(SizeSweepError::MinAboveMax { min, max }),
            () if factor < ONE => Err(SizeSweepError::Shrinks { factor }),
            () if factor == ONE && addition == 0 => Err(SizeSweepError::Stands),
            () if self.iter().nth(MOST_SIZES).is_some() => Err(SizeSweepError::TooMany { min, max }),
            () => Ok(()),
        }
    }
}

fn decimal(millionths: u64) -> f64 {
    millionths as f64 / ONE as f64
}

impl fmt::Display for SizeSweep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { min, max, factor, addition } = *self;
        write!(f, "{min} to {max}")?;
        match (factor, addition) {
            (ONE, _) => write!(f, " in steps of {addition}"),
            (_, 0) => write!(f, " by a factor of {}", decimal(factor)),
            (_, _) => write!(f, " by a factor of {} and {addition} more", decimal(factor)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BY_STEPS: SizeSweep = SizeSweep { min: 64, max: 320, factor: ONE, addition: 64 };

    #[test]
    fn sizes_grow_by_both() {
        let of = |sweep: SizeSweep| sweep.iter().collect::<Vec<_>>();
        assert_eq!(of(BY_STEPS), [64, 128, 192, 256, 320]);
        let factor = 1_500_000;
        assert_eq!(of(SizeSweep { min: 1, max: 10, factor, addition: 0 }), [1, 2, 3, 5, 8]);
        assert_eq!(of(SizeSweep { min: 2, max: 20, factor: 2 * ONE, addition: 1 }), [2, 5, 11]);
        assert_eq!(of(SizeSweep { max: u64::MAX, factor: u64::MAX, ..BY_STEPS }).len(), 2);
        assert_eq!(of(SizeSweep { max: 64, ..BY_STEPS }), [64]);
    }

    #[test]
    fn words_say_how() {
        assert_eq!(BY_STEPS.to_string(), "64 to 320 in steps of 64");
        let factor = 1_250_000;
        assert_eq!(
            SizeSweep { factor, addition: 0, ..BY_STEPS }.to_string(),
            "64 to 320 by a factor of 1.25"
        );
        assert_eq!(SizeSweep { factor, ..BY_STEPS }.to_string(), "64 to 320 by a factor of 1.25 and 64 more");
    }

    #[test]
    fn invalid_size_sweeps_are_refused() {
        assert_eq!(BY_STEPS.validate(), Ok(()));
        for (sweep, error) in [
            (SizeSweep { min: 0, ..BY_STEPS }, SizeSweepError::Zero),
            (SizeSweep { min: 321, ..BY_STEPS }, SizeSweepError::MinAboveMax { min: 321, max: 320 }),
            (SizeSweep { factor: ONE - 1, ..BY_STEPS }, SizeSweepError::Shrinks { factor: ONE - 1 }),
            (SizeSweep { addition: 0, ..BY_STEPS }, SizeSweepError::Stands),
            (
                SizeSweep { max: u64::MAX, addition: 1, ..BY_STEPS },
                SizeSweepError::TooMany { min: 64, max: u64::MAX },
            ),
        ] {
            assert_eq!(sweep.validate(), Err(error), "{sweep}");
        }
        assert!(
            SizeSweepError::Shrinks { factor: ONE / 2 }
                .to_string()
                .starts_with("--step-factor 0.5 is below 1")
        );
    }
}
