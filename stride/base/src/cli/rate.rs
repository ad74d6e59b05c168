//! The rate at which messages are sent.

use std::str::FromStr;

use clap::ValueEnum;

/// A rate in messages or in bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RateArg {
    /// Messages per second.
    Messages(u64),
    /// Bits per second.
    Bits(u64),
}

/// The units of perftest's rates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RateUnitsArg {
    /// 2^20 bytes per second
    #[value(name = "M")]
    Mebibytes,
    /// 10^9 bits per second
    #[value(name = "g")]
    Gigabits,
    /// Messages per second
    #[value(name = "p")]
    Messages,
}

/// A number with at most six decimal places, in millionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Millionths(pub u64);

/// The text is not a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RateError {
    /// The text is not a number with a unit.
    #[error(
        "a rate is a number of messages each second, with K or M if you like (1000, 1000000), or one with Gb/s behind it"
    )]
    Syntax,
    /// The text is not a number.
    #[error("it is a number, with at most six digits behind the point")]
    Number,
    /// The number exceeds 64 bits.
    #[error("the rate is above 2^64 - 1")]
    TooLarge,
}

impl FromStr for Millionths {
    type Err = RateError;

    fn from_str(text: &str) -> Result<Self, RateError> {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if whole.is_empty() || !digits(whole) || !digits(fraction) || fraction.len() > 6 {
            return Err(RateError::Number);
        }
        let millionths: u64 = format!("{fraction:0<6}").parse().map_err(|_| RateError::Number)?;
        let whole: u64 = whole.parse().map_err(|_| RateError::TooLarge)?;
        let whole = whole.checked_mul(1_000_000).ok_or(RateError::TooLarge)?;
        whole.checked_add(millionths).map(Self).ok_or(RateError::TooLarge)
    }
}

impl RateUnitsArg {
    /// Converts a number of these units.
    ///
    /// # Errors
    ///
    /// The result exceeds 64 bits.
    pub fn rate(self, Millionths(count): Millionths) -> Result<RateArg, RateError> {
        let of = |each: u64| u64::try_from(u128::from(count) * u128::from(each) / 1_000_000);
        match self {
            Self::Mebibytes => of(8 << 20).map(RateArg::Bits),
            Self::Gigabits => of(1_000_000_000).map(RateArg::Bits),
            Self::Messages => of(1).map(RateArg::Messages),
        }
        .map_err(|_| RateError::TooLarge)
    }
}

impl FromStr for RateArg {
    type Err = RateError;

    fn from_str(text: &str) -> Result<Self, RateError> {
        if let Some(number) = text.strip_suffix("Gb/s").or_else(|| text.strip_suffix('g')) {
            return RateUnitsArg::Gigabits.rate(number.parse().map_err(|_| RateError::Syntax)?);
        }
        let (number, factor) = match text.as_bytes().last() {
            Some(b'k' | b'K') => (&text[..text.len() - 1], 1000),
            Some(b'm' | b'M') => (&text[..text.len() - 1], 1_000_000),
            _ => (text, 1),
        };
        let Millionths(count) = number.parse().map_err(|error| match error {
            RateError::TooLarge => RateError::TooLarge,
            _ => RateError::Syntax,
        })?;
        let messages = u128::from(count) * factor / 1_000_000;
        u64::try_from(messages).map(Self::Messages).map_err(|_| RateError::TooLarge)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_of_messages_or_of_bits() {
        for (text, rate) in [
            ("1000", RateArg::Messages(1000)),
            ("2.5K", RateArg::Messages(2500)),
            ("1.25M", RateArg::Messages(1_250_000)),
            ("0", RateArg::Messages(0)),
            ("10Gb/s", RateArg::Bits(10_000_000_000)),
            ("0.5g", RateArg::Bits(500_000_000)),
        ] {
            assert_eq!(text.parse(), Ok(rate), "{text}");
        }
        for text in ["", "K", "-1", "1e6", "1.2345678", "10Mb/s", "10 Gb/s", ".5", "é"] {
            assert!(text.parse::<RateArg>().is_err(), "{text}");
        }
        assert_eq!("99999999999999999999".parse::<RateArg>(), Err(RateError::TooLarge));
        assert_eq!("18446744073710M".parse::<RateArg>(), Err(RateError::TooLarge));
    }

    #[test]
    fn perftests_units_are_these() {
        let of = |units: RateUnitsArg, text: &str| units.rate(text.parse().unwrap());
        assert_eq!(of(RateUnitsArg::Mebibytes, "1"), Ok(RateArg::Bits(8_388_608)));
        assert_eq!(of(RateUnitsArg::Gigabits, "1.5"), Ok(RateArg::Bits(1_500_000_000)));
        assert_eq!(of(RateUnitsArg::Messages, "7"), Ok(RateArg::Messages(7)));
        assert_eq!(of(RateUnitsArg::Gigabits, "18446744073709"), Err(RateError::TooLarge));
    }
}
