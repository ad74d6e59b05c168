//! The bytes of a request or an answer.

use std::borrow::Cow;
use std::ops::Deref;
use std::sync::Arc;

/// The bytes that a call sends. All calls take what converts into it.
///
/// Up to 16 KiB are copied at once if the peer has room. Longer ones are kept until they are sent:
/// a `Vec` and an `Arc` are not copied for that, a slice is.
#[derive(Clone, Debug)]
pub enum MuxBytes<'a> {
    /// Bytes of the caller, which are copied.
    Borrowed(&'a [u8]),
    /// Bytes that are kept until they are sent.
    Owned(Vec<u8>),
    /// Bytes that several requests may send.
    Shared(Arc<[u8]>),
}

impl MuxBytes<'_> {
    /// The same for longer than the call.
    pub(super) fn into_kept(self) -> MuxBytes<'static> {
        match self {
            Self::Borrowed(bytes) => MuxBytes::Owned(bytes.to_vec()),
            Self::Owned(bytes) => MuxBytes::Owned(bytes),
            Self::Shared(bytes) => MuxBytes::Shared(bytes),
        }
    }
}

impl Deref for MuxBytes<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Borrowed(bytes) => bytes,
            Self::Owned(bytes) => bytes,
            Self::Shared(bytes) => bytes,
        }
    }
}

impl<'a> From<&'a [u8]> for MuxBytes<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self::Borrowed(bytes)
    }
}

impl<'a, const LEN: usize> From<&'a [u8; LEN]> for MuxBytes<'a> {
    fn from(bytes: &'a [u8; LEN]) -> Self {
        Self::Borrowed(bytes)
    }
}

impl<'a> From<&'a Vec<u8>> for MuxBytes<'a> {
    fn from(bytes: &'a Vec<u8>) -> Self {
        Self::Borrowed(bytes)
    }
}

impl<'a> From<&'a str> for MuxBytes<'a> {
    fn from(text: &'a str) -> Self {
        Self::Borrowed(text.as_bytes())
    }
}

impl From<Vec<u8>> for MuxBytes<'_> {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Owned(bytes)
    }
}

impl From<String> for MuxBytes<'_> {
    fn from(text: String) -> Self {
        Self::Owned(text.into_bytes())
    }
}

impl From<Arc<[u8]>> for MuxBytes<'_> {
    fn from(bytes: Arc<[u8]>) -> Self {
        Self::Shared(bytes)
    }
}

impl<'a> From<Cow<'a, [u8]>> for MuxBytes<'a> {
    fn from(bytes: Cow<'a, [u8]>) -> Self {
        match bytes {
            Cow::Borrowed(bytes) => Self::Borrowed(bytes),
            Cow::Owned(bytes) => Self::Owned(bytes),
        }
    }
}
