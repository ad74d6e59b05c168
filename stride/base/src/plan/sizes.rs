//! The message sizes of a test.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::SizeSweep;

/// The message sizes of a test, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sizes {
    /// One size.
    One {
        /// The size in bytes.
        size: u64,
    },
    /// 2, 4, 8 and so on.
    PowersOfTwo {
        /// The largest size in bytes.
        max: u64,
    },
    /// A sweep by a factor and a step.
    #[serde(rename = "ladder")]
    Sweep(SizeSweep),
    /// One size, repeated.
    Again {
        /// The size in bytes.
        size: u64,
        /// The number of repetitions.
        count: u32,
    },
    /// The sizes of `msg grid`: 128 bytes, 4 KiB, 32 KiB, 256 KiB, 1 MiB and 8 MiB.
    Grid {
        /// The largest size in bytes.
        max: u64,
    },
}

const GRID: [u64; 6] = [128, 4 << 10, 32 << 10, 256 << 10, 1 << 20, 8 << 20];

impl Sizes {
    /// The sizes, in ascending order.
    pub fn iter(self) -> impl Iterator<Item = u64> {
        let (first, grid, last) = match self {
            Self::Again { .. } | Self::Sweep(_) => (None, &[][..], 0),
            Self::One { size } => (Some(size), &[][..], size),
            Self::PowersOfTwo { max } => (Some(2), &[][..], max),
            Self::Grid { max } => (None, &GRID[..], max),
        };
        let again = match self {
            Self::Again { size, count } => std::iter::repeat_n(size, count as usize),
            _ => std::iter::repeat_n(0, 0),
        };
        let sweep = match self {
            Self::Sweep(sweep) => Some(sweep.iter()),
            _ => None,
        };
        let doubled = std::iter::successors(first, |size| size.checked_mul(2));
        doubled
            .take_while(move |size| *size <= last)
            .chain(grid.iter().copied().filter(move |size| *size <= last))
            .chain(again)
            .chain(sweep.into_iter().flatten())
    }

    /// The largest size; 0 if the list is empty.
    pub fn largest(self) -> u64 {
        match self {
            Self::Again { size, .. } => size,
            _ => self.iter().last().unwrap_or(0),
        }
    }
}

impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One { size } | Self::Again { size, .. } => write!(f, "{size}"),
            Self::PowersOfTwo { max } => write!(f, "2 to {max}"),
            Self::Sweep(sweep) => sweep.fmt(f),
            Self::Grid { .. } => write!(f, "{} to {}", GRID[0], self.largest()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ladder_ends_at_or_below_its_maximum() {
        let of = |max| Sizes::PowersOfTwo { max }.iter().collect::<Vec<_>>();
        assert!(of(1).is_empty());
        assert_eq!(of(2), [2]);
        assert_eq!(of(3), [2]);
        assert_eq!(of(17), [2, 4, 8, 16]);
        assert_eq!(of(8 << 20).len(), 23);
        assert_eq!(of(u64::MAX).len(), 63);
        assert_eq!(Sizes::PowersOfTwo { max: 1000 }.largest(), 512);
    }

    #[test]
    fn the_grid_ends_at_or_below_its_maximum() {
        assert_eq!(Sizes::Grid { max: 8 << 20 }.iter().collect::<Vec<_>>(), GRID);
        assert_eq!(Sizes::Grid { max: 1 << 20 }.to_string(), "128 to 1048576");
        assert_eq!(Sizes::Grid { max: 127 }.iter().count(), 0);
    }

    #[test]
    fn one_size_is_itself() {
        assert_eq!(Sizes::One { size: 3 }.iter().collect::<Vec<_>>(), [3]);
        assert_eq!(Sizes::One { size: 3 }.largest(), 3);
        assert_eq!(Sizes::One { size: u64::MAX }.iter().count(), 1);
        let again = Sizes::Again { size: 64, count: 3 };
        assert_eq!(
            (again.iter().collect::<Vec<_>>(), again.to_string()),
            (vec![64, 64, 64], "64".to_owned())
        );
        assert_eq!(Sizes::Again { size: 64, count: u32::MAX }.largest(), 64);
    }
}
