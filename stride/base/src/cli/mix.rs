//! How many messages of a mix are of which kind.

use std::str::FromStr;

/// Percentages: `read=30,write=70`, or one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MixArg {
    /// Reads of a hundred messages.
    pub reads: u8,
}

/// Not such percentages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MixError {
    /// Not kinds with a number.
    #[error("a mix is read=PERCENT,write=PERCENT, or one of the two")]
    Syntax,
    /// They are not all messages.
    #[error("the two percentages of a mix are 100 together")]
    Sum,
}

impl FromStr for MixArg {
    type Err = MixError;

    fn from_str(text: &str) -> Result<Self, MixError> {
        let (mut read, mut write) = (None, None);
        for part in text.split(',') {
            let (kind, percent) = part.split_once('=').ok_or(MixError::Syntax)?;
            let is_digits = percent.bytes().all(|byte| byte.is_ascii_digit());
            let percent: u8 = percent.parse().ok().filter(|_| is_digits).ok_or(MixError::Syntax)?;
            let place = match kind {
                "read" => &mut read,
                "write" => &mut write,
                _ => return Err(MixError::Syntax),
            };
            if place.replace(percent).is_some() {
                return Err(MixError::Syntax);
            }
        }
        let reads = match (read, write) {
            (Some(read), Some(write)) if u16::from(read) + u16::from(write) == 100 => read,
            (Some(read @ ..=100), None) => read,
            (None, Some(write @ ..=100)) => 100 - write,
            _ => return Err(MixError::Sum),
        };
        Ok(Self { reads })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mix_is_a_hundred_percent() {
        let reads = |text: &str| text.parse().map(|MixArg { reads }| reads);
        assert_eq!((reads("read=30,write=70"), reads("write=70,read=30")), (Ok(30), Ok(30)));
        assert_eq!((reads("read=30"), reads("write=70"), reads("read=0")), (Ok(30), Ok(30), Ok(0)));
        for text in ["read=30,write=60", "read=101", "write=200", "read=255,write=255"] {
            assert_eq!(reads(text), Err(MixError::Sum), "{text}");
        }
        for text in [
            "",
            "30",
            "read",
            "read=",
            "read=+3",
            "read=a",
            "read=30,read=70",
            "send=3",
            "read=30,",
            "read=300",
        ] {
            assert_eq!(reads(text), Err(MixError::Syntax), "{text}");
        }
    }
}
