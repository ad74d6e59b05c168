//! Sizes with a unit.

use std::str::FromStr;

/// A number of bytes, written without a unit or with `K` (1024), `M` (1024 x 1024) or `G`
/// (1024 x 1024 x 1024).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub u64);

/// The text is not a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// The text is not digits followed by at most one unit.
    #[error("a size is digits, then K, M, G or nothing")]
    Syntax,
    /// The number exceeds 64 bits.
    #[error("the size is above 2^64 - 1 bytes")]
    TooLarge,
}

impl FromStr for Size {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        let (digits, factor) = match text.as_bytes().last() {
            Some(b'k' | b'K') => (&text[..text.len() - 1], 1024),
            Some(b'm' | b'M') => (&text[..text.len() - 1], 1024 * 1024),
            Some(b'g' | b'G') => (&text[..text.len() - 1], 1 << 30),
            _ => (text, 1),
        };
        if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
            return Err(SizeError::Syntax);
        }
        let number: u64 = digits.parse().map_err(|_| SizeError::TooLarge)?;
        number.checked_mul(factor).map(Self).ok_or(SizeError::TooLarge)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffixes_are_powers_of_1024() {
        assert_eq!("65536".parse(), Ok(Size(65536)));
        assert_eq!("64K".parse(), Ok(Size(65536)));
        assert_eq!("8m".parse(), Ok(Size(8 << 20)));
        assert_eq!("1G".parse(), Ok(Size(1 << 30)));
        assert_eq!("0".parse(), Ok(Size(0)));
    }

    #[test]
    fn anything_else_is_refused() {
        for text in ["", "K", "-1", "+1", "1.5K", "1 K", "1KB", "1T", "G", "é"] {
            assert_eq!(text.parse::<Size>(), Err(SizeError::Syntax), "{text:?}");
        }
        assert_eq!("18446744073709551616".parse::<Size>(), Err(SizeError::TooLarge));
        assert_eq!("18446744073709551615M".parse::<Size>(), Err(SizeError::TooLarge));
    }
}
