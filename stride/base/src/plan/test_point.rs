//! One row of the table: a size and a number in flight.

use std::fmt;

use super::{InFlight, Measure, TestPlan};

/// Messages that are measured together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TestPoint {
    /// Message size in bytes.
    pub size: u64,
    /// Requests in flight, for tests with answers.
    pub in_flight: Option<u32>,
}

impl TestPoint {
    /// The part of a file's name that distinguishes it from the test's other points.
    pub fn name(self) -> String {
        match self.in_flight {
            Some(in_flight) => format!("{}.{in_flight}", self.size),
            None => self.size.to_string(),
        }
    }
}

impl fmt::Display for TestPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.size)?;
        self.in_flight.map_or(Ok(()), |in_flight| write!(f, ", {in_flight} in flight"))
    }
}

impl TestPlan {
    /// The points of the test, in order.
    pub fn cells(&self) -> impl Iterator<Item = TestPoint> + use<> {
        let in_flight = match self.measure {
            Measure::Echo(echo) => Some(echo.in_flight),
            Measure::Bandwidth | Measure::Latency(_) => None,
        };
        self.sizes.iter().flat_map(move |size| {
            let numbers = in_flight.into_iter().flat_map(InFlight::iter).map(Some);
            let no_number = in_flight.is_none().then_some(None);
            numbers.chain(no_number).map(move |in_flight| TestPoint { size, in_flight })
        })
    }

    /// Messages of a point over all queue pairs; with a duration, more than any device could send.
    pub fn messages_of(&self, TestPoint { size, in_flight }: TestPoint) -> u64 {
        match (self.measure, in_flight) {
            (Measure::Echo(echo), Some(in_flight)) if self.duration.is_none() => {
                echo.iterations(self.iterations, size, in_flight)
            }
            _ => self.most_messages().saturating_mul(self.queue_pairs.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_says_which_it_is() {
        let plain = TestPoint { size: 64, in_flight: None };
        assert_eq!((plain.to_string(), plain.name()), ("64 bytes".to_owned(), "64".to_owned()));
        let echo = TestPoint { in_flight: Some(16), ..plain };
        assert_eq!(
            (echo.to_string(), echo.name()),
            ("64 bytes, 16 in flight".to_owned(), "64.16".to_owned())
        );
    }
}
