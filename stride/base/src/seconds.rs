//! A length of time on the command line and in a plan.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Seconds, in steps of a millisecond, up to 2^32 - 1 of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seconds {
    milliseconds: u64,
}

/// The text is not a number of seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is a number of seconds below 2^32, with at most three digits behind the point")]
pub struct SecondsError;

impl Seconds {
    /// A whole number of them.
    pub const fn whole(seconds: u32) -> Self {
        Self { milliseconds: seconds as u64 * 1000 }
    }

    /// Whether there are none.
    pub fn is_zero(self) -> bool {
        self.milliseconds == 0
    }

    /// The same length for the standard library.
    pub fn duration(self) -> Duration {
        Duration::from_millis(self.milliseconds)
    }
}

impl FromStr for Seconds {
    type Err = SecondsError;

    fn from_str(text: &str) -> Result<Self, SecondsError> {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if !digits(whole) || !digits(fraction) || fraction.len() > 3 {
            return Err(SecondsError);
        }
        let whole: u32 = whole.parse().map_err(|_| SecondsError)?;
        let fraction: u64 = format!("{fraction:0<3}").parse().map_err(|_| SecondsError)?;
        Ok(Self { milliseconds: u64::from(whole) * 1000 + fraction })
    }
}

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, fraction) = (self.milliseconds / 1000, self.milliseconds % 1000);
        match fraction {
            0 => write!(f, "{whole}"),
            _ => f.write_str(format!("{whole}.{fraction:03}").trim_end_matches('0')),
        }
    }
}

/// A whole number is an integer, as in versions that had only those.
impl Serialize for Seconds {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.milliseconds % 1000 {
            0 => serializer.serialize_u64(self.milliseconds / 1000),
            _ => serializer.serialize_f64(self.milliseconds as f64 / 1000.0),
        }
    }
}

impl<'de> Deserialize<'de> for Seconds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let seconds = f64::deserialize(deserializer)?;
        if !(0.0..=f64::from(u32::MAX)).contains(&seconds) {
            return Err(D::Error::custom(format!("{seconds} seconds: {SecondsError}")));
        }
        // The range was checked, and the step is a millisecond.
        Ok(Self { milliseconds: (seconds * 1000.0).round() as u64 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_may_have_a_fraction() {
        for (text, milliseconds) in [
            ("0", 0),
            ("1", 1000),
            ("0.5", 500),
            ("2.250", 2250),
            ("0.001", 1),
            ("4294967295", 4_294_967_295_000),
        ] {
            let seconds: Seconds = text.parse().unwrap();
            assert_eq!(seconds.duration(), Duration::from_millis(milliseconds), "{text}");
            assert_eq!(seconds.to_string().parse(), Ok(seconds), "{text}");
            let json = serde_json::to_string(&seconds).unwrap();
            assert_eq!(serde_json::from_str::<Seconds>(&json).unwrap(), seconds, "{json}");
        }
        for text in ["", ".", "1.", ".5", "-1", "+1", "1s", "1 ", "1e3", "0.0001", "4294967296"] {
            assert_eq!(text.parse::<Seconds>(), Err(SecondsError), "{text:?}");
        }
    }

    #[test]
    fn a_whole_number_is_an_integer_for_a_peer() {
        assert_eq!(serde_json::to_string(&Seconds::whole(10)).unwrap(), "10");
        assert_eq!(serde_json::to_string(&"0.25".parse::<Seconds>().unwrap()).unwrap(), "0.25");
        for json in ["-1", "4294967296", "1e300", "\"1\"", "null"] {
            assert!(serde_json::from_str::<Seconds>(json).is_err(), "{json}");
        }
    }
}
