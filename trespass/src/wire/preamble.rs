//! The preamble: the first 16 bytes of every message.

use super::WireError;

/// Length of the preamble.
pub(crate) const PREAMBLE: usize = 16;
/// The longest message.
pub(crate) const MAX_MESSAGE: usize = 4096;
/// The protocol version of this crate. Peers of different major versions reject each other, with a
/// text.
pub(crate) const MAJOR: u8 = 1;
/// Peers of different minor versions use the features that both know.
pub(crate) const MINOR: u8 = 0;

pub(super) const HELLO: u8 = 1;
pub(super) const REJECT: u8 = 2;
pub(super) const READY: u8 = 3;
pub(super) const PROBE: u8 = 4;
pub(super) const CM_PREFIX: u8 = 5;

const MAGIC: [u8; 4] = *b"TRSP";
/// Offset of the checksum.
const CRC_AT: usize = 12;

// Frozen for all versions: a change of any of these makes another protocol.
const _: () = {
    assert!(HELLO == 1 && REJECT == 2 && READY == 3 && PROBE == 4 && CM_PREFIX == 5);
    assert!(PREAMBLE == 16 && MAX_MESSAGE == 4096 && CRC_AT == 12);
    assert!(u32::from_le_bytes(MAGIC) == 0x5053_5254);
};

/// The decoded preamble, checked as far as it can be by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Preamble {
    kind: u8,
    major: u8,
    minor: u8,
    header: usize,
    total: usize,
    crc: u32,
}

impl Preamble {
    /// Decodes the preamble of a message whose rest has not arrived.
    pub(crate) fn decode(bytes: &[u8; PREAMBLE]) -> Result<Self, WireError> {
        let [m0, m1, m2, m3, kind, major, minor, units, t0, t1, t2, t3, c0, c1, c2, c3] = *bytes;
        Self::check_magic([m0, m1, m2, m3])?;
        let (header, total) = (u32::from(units) * 8, u32::from_le_bytes([t0, t1, t2, t3]));
        if (header as usize) < PREAMBLE || total < header || total as usize > MAX_MESSAGE {
            return Err(WireError::Length { total, header });
        }
        let crc = u32::from_le_bytes([c0, c1, c2, c3]);
        Ok(Self { kind, major, minor, header: header as usize, total: total as usize, crc })
    }

    /// Checks the first four bytes alone, because a peer with another protocol may send no more.
    /// Whether bytes are the beginning of a message of this protocol. `None` if they are too few to tell.
    pub(crate) fn begins_with(first: &[u8]) -> Option<bool> {
        match MAGIC.iter().zip(first).all(|(own, other)| own == other) {
            true if first.len() < MAGIC.len() => None,
            is_own => Some(is_own),
        }
    }

    pub(crate) fn check_magic(magic: [u8; 4]) -> Result<(), WireError> {
        if magic == MAGIC { Ok(()) } else { Err(WireError::Magic(magic)) }
    }

    /// Splits a whole message into its preamble and the rest.
    pub(super) fn open(bytes: &[u8]) -> Result<(Self, &[u8]), WireError> {
        let (head, body) = bytes.split_first_chunk().ok_or(WireError::Short("preamble"))?;
        let preamble = Self::decode(head)?;
        if bytes.len() != preamble.total {
            return Err(WireError::Short("body"));
        }
        let computed = checksum(bytes);
        if computed != preamble.crc {
            return Err(WireError::Checksum { found: preamble.crc, computed });
        }
        Ok((preamble, body))
    }

    /// The message's type.
    pub(super) fn kind(self) -> u8 {
        self.kind
    }

    /// The sender's major version.
    pub(crate) fn major(self) -> u8 {
        self.major
    }

    /// The sender's minor version.
    pub(crate) fn minor(self) -> u8 {
        self.minor
    }

    /// Length of the fixed part, this preamble included.
    pub(super) fn header_len(self) -> usize {
        self.header
    }

    /// Length of the whole message, this preamble included.
    pub(crate) fn total_len(self) -> usize {
        self.total
    }
}

/// The checksum of a message, ignoring the checksum field.
pub(crate) fn checksum(message: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&message[..CRC_AT]);
    hasher.update(&message[PREAMBLE..]);
    hasher.finalize()
}

/// A message being written.
pub(super) struct Writer(Vec<u8>);

impl Writer {
    /// Starts a message of this type.
    pub(super) fn new(kind: u8, minor: u8) -> Self {
        let mut bytes = Vec::with_capacity(256);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&[kind, MAJOR, minor, 0]);
        bytes.extend_from_slice(&[0; PREAMBLE - 8]);
        Self(bytes)
    }

    /// Appends bytes.
    pub(super) fn put(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    /// Pads to a multiple of 8 bytes.
    pub(super) fn pad(&mut self) -> &mut Self {
        self.0.resize(self.0.len().next_multiple_of(8), 0);
        self
    }

    /// Ends the fixed part.
    pub(super) fn end_of_fixed(&mut self) -> &mut Self {
        assert!(self.0.len().is_multiple_of(8), "the fixed part is a multiple of 8 bytes");
        self.0[7] = (self.0.len() / 8) as u8;
        self
    }

    /// The message, with its length and checksum.
    pub(super) fn finish(self) -> Vec<u8> {
        let mut bytes = self.0;
        assert!(bytes.len() <= MAX_MESSAGE, "own messages are bounded by the bounds of their parts");
        let total = (bytes.len() as u32).to_le_bytes();
        bytes[8..CRC_AT].copy_from_slice(&total);
        let crc = checksum(&bytes);
        bytes[CRC_AT..PREAMBLE].copy_from_slice(&crc.to_le_bytes());
        bytes
    }
}
