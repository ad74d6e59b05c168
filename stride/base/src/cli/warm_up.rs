//! The length of the warm-up.

use std::str::FromStr;

/// A number of messages, or a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WarmUpArg {
    /// Messages per queue pair.
    Messages(u64),
    /// A duration in seconds.
    Seconds(u32),
}

/// The text is neither a number nor a number of seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a warm-up is a number of messages, or of seconds with an s behind it")]
pub struct WarmUpError;

impl FromStr for WarmUpArg {
    type Err = WarmUpError;

    fn from_str(text: &str) -> Result<Self, WarmUpError> {
        let digits = text.strip_suffix('s').unwrap_or(text);
        if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(WarmUpError);
        }
        match digits.len() == text.len() {
            true => digits.parse().map(Self::Messages).map_err(|_| WarmUpError),
            false => digits.parse().map(Self::Seconds).map_err(|_| WarmUpError),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warm_up_is_messages_or_seconds() {
        assert_eq!(("100".parse(), "2s".parse()), (Ok(WarmUpArg::Messages(100)), Ok(WarmUpArg::Seconds(2))));
        for text in ["", "s", "-1", "1.5s", "2 s", "2ms", "s2", "4294967296s", "18446744073709551616"] {
            assert_eq!(text.parse::<WarmUpArg>(), Err(WarmUpError), "{text:?}");
        }
    }
}
