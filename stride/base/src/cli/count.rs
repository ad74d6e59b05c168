//! Counts that the user may leave to the program.

use std::str::FromStr;

/// The value of a flag that takes a number or `auto`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CountOrAuto {
    /// The program chooses, and prints its choice.
    Auto,
    /// This number.
    Given(u32),
}

/// The text is neither a number nor `auto`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a count is digits up to 4294967295, or auto")]
pub struct CountError;

impl CountOrAuto {
    /// The number, if the user gave one.
    pub fn given(count: Option<Self>) -> Option<u32> {
        match count {
            Some(Self::Given(count)) => Some(count),
            Some(Self::Auto) | None => None,
        }
    }
}

impl FromStr for CountOrAuto {
    type Err = CountError;

    fn from_str(text: &str) -> Result<Self, CountError> {
        match text {
            "auto" => Ok(Self::Auto),
            _ if text.bytes().all(|byte| byte.is_ascii_digit()) => {
                text.parse().map(Self::Given).map_err(|_| CountError)
            }
            _ => Err(CountError),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_is_a_number_or_auto() {
        assert_eq!(
            ("auto".parse(), "0".parse(), "64".parse()),
            (Ok(CountOrAuto::Auto), Ok(CountOrAuto::Given(0)), Ok(CountOrAuto::Given(64)))
        );
        for text in ["", "Auto", "-1", "+1", "1.5", "4294967296", "many"] {
            assert_eq!(text.parse::<CountOrAuto>(), Err(CountError), "{text:?}");
        }
        assert_eq!(
            (CountOrAuto::given(Some(CountOrAuto::Given(3))), CountOrAuto::given(Some(CountOrAuto::Auto))),
            (Some(3), None)
        );
    }
}
