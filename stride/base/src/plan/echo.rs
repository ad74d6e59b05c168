//! Requests with answers: how many are in flight, and how many are sent.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The numbers in flight of `msg grid`: few measure latency, many measure rate.
const GRID: [u32; 5] = [1, 4, 16, 64, 256];

/// Total bytes of the requests of one size, if the user gave no number of requests.
const BYTES: u64 = 1 << 30;

/// The fewest samples from which percentiles are computed.
const FEWEST: u64 = 128;

/// Requests, each with an answer of the same size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub struct Echo {
    /// The number of requests in flight.
    pub in_flight: InFlight,
    /// Whether the user gave the number of requests, which then holds for every size.
    pub counted: bool,
}

/// The numbers of requests in flight that a test measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InFlight {
    /// A single number.
    One {
        /// The number of requests.
        count: u32,
    },
    /// 1, 4, 16, 64, 256.
    Grid,
}

impl Echo {
    /// The number of requests of this size, at most `iterations`.
    pub(super) fn iterations(self, iterations: u64, size: u64, in_flight: u32) -> u64 {
        if self.counted {
            return iterations;
        }
        iterations.min((BYTES / size.max(1)).max(FEWEST).max(2 * u64::from(in_flight)))
    }
}

impl InFlight {
    /// The numbers, in ascending order.
    pub fn iter(self) -> impl Iterator<Item = u32> {
        let (one, grid) = match self {
            Self::One { count } => (Some(count), &[][..]),
            Self::Grid => (None, &GRID[..]),
        };
        one.into_iter().chain(grid.iter().copied())
    }

    /// The largest number.
    pub fn largest(self) -> u32 {
        self.iter().last().unwrap_or(0)
    }
}

impl fmt::Display for InFlight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One { count } => write!(f, "{count}"),
            Self::Grid => f.write_str("1 to 256"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_number_is_itself_and_the_grid_grows_by_four() {
        assert_eq!(InFlight::One { count: 512 }.iter().collect::<Vec<_>>(), [512]);
        let grid: Vec<u32> = InFlight::Grid.iter().collect();
        assert_eq!((grid[0], InFlight::Grid.largest()), (1, 256));
        assert!(grid.windows(2).all(|pair| pair[1] == 4 * pair[0]));
    }

    #[test]
    fn long_requests_are_fewer_unless_they_were_counted() {
        let open = Echo { in_flight: InFlight::Grid, counted: false };
        assert_eq!(open.iterations(100_000, 128, 256), 100_000);
        assert_eq!(open.iterations(100_000, 256 << 10, 4), 4096);
        assert_eq!(open.iterations(100_000, 8 << 20, 16), 128);
        assert_eq!(open.iterations(100_000, 8 << 20, 256), 512);
        assert_eq!(open.iterations(50, 8 << 20, 256), 50);
        assert_eq!(Echo { counted: true, ..open }.iterations(1000, 8 << 20, 256), 1000);
    }
}
