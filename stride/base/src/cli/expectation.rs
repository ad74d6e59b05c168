//! Thresholds that a figure must meet.

use std::str::FromStr;

use super::{Size, SizeError};

/// A threshold for every message size, or for one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Expectation {
    /// The message size that it applies to; `None` for all.
    pub size: Option<Size>,
    /// The threshold, above 0.
    pub limit: f64,
}

/// The text is not a threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExpectationError {
    /// The part before the colon is not a size.
    #[error("before the colon: {0}")]
    Size(#[from] SizeError),
    /// The threshold is not a finite number above 0.
    #[error("a limit is a number above 0, or BYTES:NUMBER for one message size alone")]
    Limit,
}

impl FromStr for Expectation {
    type Err = ExpectationError;

    fn from_str(text: &str) -> Result<Self, ExpectationError> {
        let (size, limit) = match text.split_once(':') {
            Some((size, limit)) => (Some(size.parse()?), limit),
            None => (None, text),
        };
        let limit: f64 = limit.parse().map_err(|_| ExpectationError::Limit)?;
        if limit.is_finite() && limit > 0.0 { Ok(Self { size, limit }) } else { Err(ExpectationError::Limit) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_applies_to_every_size_or_to_one() {
        assert_eq!("380".parse(), Ok(Expectation { size: None, limit: 380.0 }));
        assert_eq!("64K:12.5".parse(), Ok(Expectation { size: Some(Size(65536)), limit: 12.5 }));
    }

    #[test]
    fn rejects_limits_that_are_not_positive_numbers() {
        for text in ["", "0", "-1", "NaN", "inf", "8us", "64K:", "64K:0", "1:2:3"] {
            assert_eq!(text.parse::<Expectation>(), Err(ExpectationError::Limit), "{text}");
        }
        for text in [":5", "64KB:5", "x:5"] {
            assert_eq!(text.parse::<Expectation>(), Err(ExpectationError::Size(SizeError::Syntax)), "{text}");
        }
    }
}
