//! Reads and writes in one test.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::PlanError;

/// The number of messages after which the order repeats.
pub const MIX_PERIOD: u8 = 100;

/// The share of reads in a hundred messages; the others are writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mix {
    /// Reads per hundred messages.
    pub reads: u8,
}

impl Mix {
    /// Whether a message is a read, by its number. Reads are spread evenly among the writes.
    pub fn is_read(self, number: u64) -> bool {
        let (place, reads, all) =
            (number % u64::from(MIX_PERIOD), u64::from(self.reads), u64::from(MIX_PERIOD));
        (place + 1) * reads / all > place * reads / all
    }

    pub(super) fn validate(self) -> Result<(), PlanError> {
        if (1..MIX_PERIOD).contains(&self.reads) {
            Ok(())
        } else {
            Err(PlanError::NoMix { reads: self.reads })
        }
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} % reads, {} % writes", self.reads, MIX_PERIOD.saturating_sub(self.reads))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_are_as_many_as_asked_for_and_spread_out() {
        for reads in 1..MIX_PERIOD {
            let mix = Mix { reads };
            let of =
                |from: u64, count: u64| (from..from + count).filter(|number| mix.is_read(*number)).count();
            assert_eq!((of(0, 100), of(100, 100)), (reads.into(), reads.into()));
            // Any ten consecutive messages contain a tenth of them, plus or minus one.
            for from in 0..200 {
                assert!((of(from, 10) as f64 - f64::from(reads) / 10.0).abs() < 1.0 + 1e-9, "{reads} {from}");
            }
        }
    }

    #[test]
    fn one_kind_alone_is_no_mix() {
        assert_eq!((Mix { reads: 1 }.validate(), Mix { reads: 99 }.validate()), (Ok(()), Ok(())));
        for reads in [0, 100, 255] {
            assert_eq!(Mix { reads }.validate(), Err(PlanError::NoMix { reads }));
        }
        assert_eq!(Mix { reads: 30 }.to_string(), "30 % reads, 70 % writes");
    }
}
