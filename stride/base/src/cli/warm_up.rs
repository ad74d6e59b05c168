//! The length of the warm-up.

use std::str::FromStr;

use crate::seconds::Seconds;

/// A number of messages, or a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WarmUpArg {
    /// Messages per queue pair.
    Messages(u64),
    /// A duration in seconds.
    Seconds(Seconds),
}

/// The text is neither a number nor a number of seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a warm-up is a number of messages, or of seconds with an s behind it")]
pub struct WarmUpError;

impl FromStr for WarmUpArg {
    type Err = WarmUpError;

    fn from_str(text: &str) -> Result<Self, WarmUpError> {
        let parsed = match text.strip_suffix('s') {
            Some(seconds) => seconds.parse().ok().map(Self::Seconds),
            None if text.bytes().all(|byte| byte.is_ascii_digit()) => text.parse().ok().map(Self::Messages),
            None => None,
        };
        parsed.ok_or(WarmUpError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warm_up_is_messages_or_seconds() {
        assert_eq!("100".parse(), Ok(WarmUpArg::Messages(100)));
        assert_eq!("2s".parse(), Ok(WarmUpArg::Seconds(Seconds::whole(2))));
        assert_eq!("0.5s".parse(), Ok(WarmUpArg::Seconds("0.5".parse().unwrap())));
        for text in ["", "s", "-1", "1.5", "2 s", "2ms", "s2", "4294967296s", "18446744073709551616"] {
            assert_eq!(text.parse::<WarmUpArg>(), Err(WarmUpError), "{text:?}");
        }
    }
}
