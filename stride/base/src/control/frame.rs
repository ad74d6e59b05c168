//! Frames: a header of fixed length, then a payload of limited length.
//!
//! | bytes | content |
//! | --- | --- |
//! | 4 | `STRD` |
//! | 2 | version of the protocol |
//! | 2 | kind of the frame |
//! | 4 | bytes of the payload |
//!
//! Numbers are big-endian. This layout of the header is the same in every version.

use std::io::{self, Read, Write};
use std::time::Duration;

use crate::interrupt::Interrupted;

/// The first bytes of every frame.
pub const MAGIC: [u8; 4] = *b"STRD";

/// The protocol version of this release.
pub const VERSION: u16 = 4;

/// Length of a header in bytes.
pub const HEADER_LENGTH: usize = 12;

/// The longest payload in bytes.
pub const MAX_PAYLOAD: usize = 64 * 1024;

/// The meaning of a frame's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// A message, in JSON.
    Message,
    /// The text of the reason why the sender gives up.
    Failure,
    /// A sign that the sender lives; `queued` if it serves other clients first.
    Beat,
}

/// The unit in which a side sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The meaning of the payload.
    pub kind: FrameKind,
    /// The payload's bytes.
    pub payload: Vec<u8>,
}

/// The reason why no frame could be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The stream failed, timed out or ended.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The peer has sent no sign of life for this long.
    #[error("nothing was heard for {} s", .0.as_secs())]
    Silence(Duration),
    /// The peer made no step for this long while others waited for its place.
    #[error("it made no step for {} s, and others wait", .0.as_secs())]
    GaveWay(Duration),
    /// A signal asked this process to end.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
    /// The bytes do not start with the magic number, so the sender is another program.
    #[error("the first bytes are not a frame's: {0:02x?}")]
    Magic([u8; 4]),
    /// The sender is another release.
    #[error("the frame is of protocol version {0}")]
    Version(u16),
    /// The header has a kind that this version does not define.
    #[error("the frame is of the unknown kind {0}")]
    Kind(u16),
    /// The header announces a payload above the limit.
    #[error("the frame announces {0} bytes, the limit is {MAX_PAYLOAD}")]
    TooLong(usize),
}

impl FrameKind {
    const fn code(self) -> u16 {
        match self {
            Self::Message => 1,
            Self::Failure => 2,
            Self::Beat => 3,
        }
    }

    fn from_code(code: u16) -> Result<Self, FrameError> {
        [Self::Message, Self::Failure, Self::Beat]
            .into_iter()
            .find(|kind| kind.code() == code)
            .ok_or(FrameError::Kind(code))
    }
}

/// Parses a header into the kind of the frame and the length of its payload.
pub(super) fn parse_header(header: &[u8; HEADER_LENGTH]) -> Result<(FrameKind, usize), FrameError> {
    let [m0, m1, m2, m3, v0, v1, k0, k1, l0, l1, l2, l3] = *header;
    if [m0, m1, m2, m3] != MAGIC {
        return Err(FrameError::Magic([m0, m1, m2, m3]));
    }
    let version = u16::from_be_bytes([v0, v1]);
    if version != VERSION {
        return Err(FrameError::Version(version));
    }
    let kind = FrameKind::from_code(u16::from_be_bytes([k0, k1]))?;
    let length = u32::from_be_bytes([l0, l1, l2, l3]) as usize;
    if length > MAX_PAYLOAD {
        return Err(FrameError::TooLong(length));
    }
    Ok((kind, length))
}

/// Reads a frame. It allocates nothing before the header has been checked.
pub fn read_frame(stream: &mut impl Read) -> Result<Frame, FrameError> {
    let mut header = [0; HEADER_LENGTH];
    // The magic number is read first, because another program may send less than a header and wait.
    let (magic, rest) = header.split_at_mut(MAGIC.len());
    stream.read_exact(magic)?;
    if *magic != MAGIC {
        return Err(FrameError::Magic([magic[0], magic[1], magic[2], magic[3]]));
    }
    stream.read_exact(rest)?;
    let (kind, length) = parse_header(&header)?;
    let mut payload = vec![0; length];
    stream.read_exact(&mut payload)?;
    Ok(Frame { kind, payload })
}

/// Writes a frame, and truncates a payload that is too long.
pub fn write_frame(stream: &mut impl Write, kind: FrameKind, payload: &[u8]) -> io::Result<()> {
    let payload = &payload[..payload.len().min(MAX_PAYLOAD)];
    let mut bytes = Vec::with_capacity(HEADER_LENGTH + payload.len());
    bytes.extend(MAGIC);
    bytes.extend(VERSION.to_be_bytes());
    bytes.extend(kind.code().to_be_bytes());
    bytes.extend((payload.len() as u32).to_be_bytes());
    bytes.extend(payload);
    stream.write_all(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(kind: FrameKind, payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        write_frame(&mut bytes, kind, payload).unwrap();
        bytes
    }

    #[test]
    fn a_frame_comes_back() {
        for payload in [&b""[..], b"x", &[7; MAX_PAYLOAD]] {
            let bytes = written(FrameKind::Failure, payload);
            let frame = read_frame(&mut &bytes[..]).unwrap();
            assert_eq!(frame, Frame { kind: FrameKind::Failure, payload: payload.to_vec() });
        }
    }

    #[test]
    fn the_header_is_as_documented() {
        assert_eq!(written(FrameKind::Message, b"ab"), b"STRD\x00\x04\x00\x01\x00\x00\x00\x02ab");
    }

    #[test]
    fn a_truncated_frame_is_an_end_of_file() {
        let bytes = written(FrameKind::Message, b"hello");
        for length in 0..bytes.len() {
            match read_frame(&mut &bytes[..length]) {
                Err(FrameError::Io(error)) => assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof),
                other => panic!("{length}: {other:?}"),
            }
        }
    }

    #[test]
    fn strangers_are_told_apart() {
        assert!(
            matches!(read_frame(&mut &b"SSH-2.0-OpenSSH"[..]), Err(FrameError::Magic(m)) if &m == b"SSH-")
        );
        assert!(matches!(read_frame(&mut &b"GET "[..]), Err(FrameError::Magic(_))));
        let mut other = written(FrameKind::Message, b"");
        other[5] = 9;
        assert!(matches!(read_frame(&mut &other[..]), Err(FrameError::Version(9))));
        let mut other = written(FrameKind::Message, b"");
        other[7] = 77;
        assert!(matches!(read_frame(&mut &other[..]), Err(FrameError::Kind(77))));
    }

    #[test]
    fn a_length_is_not_believed() {
        let mut bytes = written(FrameKind::Message, b"");
        bytes[8..].copy_from_slice(&u32::MAX.to_be_bytes());
        assert!(matches!(read_frame(&mut &bytes[..]), Err(FrameError::TooLong(n)) if n == u32::MAX as usize));
    }
}
