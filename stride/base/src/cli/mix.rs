//! The shares of reads and writes in a mix.

use std::str::FromStr;

/// Percentages: `read=30,write=70`, or one of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MixArg {
    /// Reads per hundred messages.
    pub reads: u8,
}

/// The text is not a pair of percentages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MixError {
    /// A part is not `read=NUMBER` or `write=NUMBER`.
    #[error("a mix is read=PERCENT,write=PERCENT, or one of the two")]
    Syntax,
    /// The percentages do not add up to 100.
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
