//! Reads numbers from untrusted bytes.

use super::WireError;

/// The unread rest of a part of a message.
pub(super) struct Reader<'a> {
    left: &'a [u8],
    /// The name of the part, for the error.
    of: &'static str,
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8], of: &'static str) -> Self {
        Self { left: bytes, of }
    }

    pub(super) fn bytes<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let (first, rest) = self.left.split_first_chunk().ok_or(WireError::Short(self.of))?;
        self.left = rest;
        Ok(*first)
    }

    pub(super) fn slice(&mut self, len: usize) -> Result<&'a [u8], WireError> {
        let (first, rest) = self.left.split_at_checked(len).ok_or(WireError::Short(self.of))?;
        self.left = rest;
        Ok(first)
    }

    pub(super) fn u8(&mut self) -> Result<u8, WireError> {
        self.bytes().map(u8::from_le_bytes)
    }

    pub(super) fn u16(&mut self) -> Result<u16, WireError> {
        self.bytes().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, WireError> {
        self.bytes().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, WireError> {
        self.bytes().map(u64::from_le_bytes)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.left.is_empty()
    }

    pub(super) fn rest(self) -> &'a [u8] {
        self.left
    }
}

/// The longest text that is sent or kept, in bytes.
pub(super) const MAX_TEXT: usize = 512;

/// A peer's text in a form that is safe on a terminal: valid UTF-8, without control characters, and
/// of limited length.
pub(super) fn text(bytes: &[u8]) -> String {
    let shown = &bytes[..bytes.len().min(MAX_TEXT)];
    let words = String::from_utf8_lossy(shown);
    let words: String = words.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    shortened(&words).to_owned()
}

/// The longest prefix of a text that may be sent, in whole characters.
pub(super) fn shortened(text: &str) -> &str {
    shortened_to(text, MAX_TEXT)
}

/// The same for a lower limit.
pub(super) fn shortened_to(text: &str, most: usize) -> &str {
    let mut end = text.len().min(MAX_TEXT).min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
