//! The messages of two sides with windows: requests and answers of a mux. All numbers are
//! little-endian.
//!
//! ```text
//! request: 0 operation u8 | 1 reserved | 4 region u32 | 8 generation u32 | 12 ranges u32
//!          16 number u64 | 24 other number u64
//!          32 for each range: offset u64 | length u64
//!          then the bytes of a put
//! answer:  0 status u8 | 1 reserved | 8 number u64 | 16 the bytes of a get
//! ```

use super::error::WindowError;
use super::key::{Access, WindowKey};

const REQUEST: usize = 32;
const RANGE: usize = 16;
pub(super) const ANSWER: usize = 16;
/// The version of the messages.
pub(super) const VERSION: u32 = 2;

/// The bytes of an end of a path.
pub(super) const END: usize = 48;

/// The most bytes of a put or get in one message, and the most ranges.
pub(super) const MOST_BYTES: usize = 256 << 10;
pub(super) const MOST_RANGES: usize = 1024;
/// The most bytes of a message to the peer's program.
pub(super) const MOST_TEXT: usize = 64 << 10;
/// The longest message.
pub(super) const MOST_MESSAGE: usize = REQUEST + MOST_RANGES * RANGE + MOST_BYTES;
/// What may arrive of a message before it is taken: all of it, and the headers of its frames. No call
/// takes a request that is not whole, nor an answer while it waits to begin another message.
pub(super) const WINDOW: usize = MOST_MESSAGE + (4 << 10);

/// What a side asks its peer to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    /// The first message, without an answer: the sender's version, and who it is.
    Hello {
        version: u32,
        /// What its devices can do as requesters: [`WRITES`], [`READS`].
        devices: u32,
        identity: Identity,
    },
    Put,
    /// A put, and then a notification of the owner's program.
    PutNotify {
        number: u64,
    },
    Get,
    FetchAdd {
        add: u64,
    },
    CompareSwap {
        expected: u64,
        new: u64,
    },
    /// Bytes for the peer's program, of no window.
    Message,
    /// The sender's end of a path, for which the owner makes one in a device.
    Open {
        device: u64,
    },
    /// The sender's queue pair has failed: the owner destroys the one that served it.
    Close {
        device: u64,
        queue_pair: u32,
    },
}

/// The sender's devices write to windows.
#[cfg_attr(not(feature = "rdma"), allow(dead_code, reason = "no device is there"))]
pub(super) const WRITES: u32 = 1;
/// They also read, and perform atomic operations.
#[cfg_attr(not(feature = "rdma"), allow(dead_code, reason = "no device is there"))]
pub(super) const READS: u32 = 2;

/// A side of a connection: a process, and the number of the connection there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) owner: u64,
    pub(super) connection: u64,
}

/// Bytes of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WindowRange {
    pub(super) offset: u64,
    pub(super) len: u64,
}

/// A request without its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WindowRequest {
    pub(super) operation: Operation,
    pub(super) region: u32,
    pub(super) generation: u32,
    pub(super) ranges: Vec<WindowRange>,
}

impl Operation {
    /// What the window must be offered for.
    pub(super) fn needs(self) -> Access {
        match self {
            Self::Hello { .. } | Self::Message => Access::default(),
            Self::Open { .. } | Self::Close { .. } => Access::default(),
            Self::Put | Self::PutNotify { .. } => Access::WRITE,
            Self::Get => Access::READ,
            Self::FetchAdd { .. } | Self::CompareSwap { .. } => Access::ATOMIC,
        }
    }

    fn encode(self) -> (u8, u64, u64) {
        match self {
            Self::Hello { version, devices, identity: Identity { owner, .. } } => {
                (1, u64::from(version) | u64::from(devices) << 32, owner)
            }
            Self::Put => (2, 0, 0),
            Self::PutNotify { number } => (3, number, 0),
            Self::Get => (4, 0, 0),
            Self::FetchAdd { add } => (5, add, 0),
            Self::CompareSwap { expected, new } => (6, expected, new),
            Self::Message => (7, 0, 0),
            Self::Open { device } => (8, device, 0),
            Self::Close { device, queue_pair } => (9, device, queue_pair.into()),
        }
    }
}

impl WindowRequest {
    /// The first message of a side.
    pub(super) fn hello(identity: Identity, devices: u32) -> Self {
        // The connection's number takes the places of the region and its generation.
        let (region, generation) = (identity.connection as u32, (identity.connection >> 32) as u32);
        Self {
            operation: Operation::Hello { version: VERSION, devices, identity },
            region,
            generation,
            ranges: vec![],
        }
    }

    /// Bytes for the peer's program.
    pub(super) fn message() -> Self {
        Self::of_no_window(Operation::Message)
    }

    pub(super) fn of_no_window(operation: Operation) -> Self {
        Self { operation, region: 0, generation: 0, ranges: vec![] }
    }

    /// A request with room for its bytes behind it.
    pub(super) fn encode(&self, room: usize) -> Vec<u8> {
        let (kind, number, other) = self.operation.encode();
        let mut bytes = Vec::with_capacity(REQUEST + RANGE * self.ranges.len() + room);
        bytes.extend([kind, 0, 0, 0]);
        bytes.extend(self.region.to_le_bytes());
        bytes.extend(self.generation.to_le_bytes());
        bytes.extend((self.ranges.len() as u32).to_le_bytes());
        bytes.extend(number.to_le_bytes());
        bytes.extend(other.to_le_bytes());
        for range in &self.ranges {
            bytes.extend(range.offset.to_le_bytes());
            bytes.extend(range.len.to_le_bytes());
        }
        bytes
    }

    /// Reads a request. Returns it with its bytes.
    pub(super) fn decode(message: &[u8]) -> Result<(Self, &[u8]), WindowError> {
        let wrong = |what| WindowError::Protocol { what };
        let (header, rest) =
            message.split_first_chunk::<REQUEST>().ok_or(wrong("a request shorter than its header"))?;
        let word =
            |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        let (region, generation, count) = (word(4), word(8), word(12) as usize);
        let (number, other) = (long(16), long(24));
        let connection = u64::from(region) | u64::from(generation) << 32;
        let operation = match header[0] {
            1 => Operation::Hello {
                version: number as u32,
                devices: (number >> 32) as u32,
                identity: Identity { owner: other, connection },
            },
            2 => Operation::Put,
            3 => Operation::PutNotify { number },
            4 => Operation::Get,
            5 => Operation::FetchAdd { add: number },
            6 => Operation::CompareSwap { expected: number, new: other },
            7 => Operation::Message,
            8 => Operation::Open { device: number },
            9 => Operation::Close { device: number, queue_pair: other as u32 },
            _ => return Err(wrong("an operation that this version does not know")),
        };
        if count > MOST_RANGES || rest.len() < count * RANGE {
            return Err(wrong("a request with more ranges than it has room for"));
        }
        let (ranges, bytes) = rest.split_at(count * RANGE);
        let ranges = ranges.as_chunks::<RANGE>().0.iter().map(|range| {
            let (offset, len) = range.split_at(8);
            let long = |bytes: &[u8]| bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
            WindowRange { offset: long(offset), len: long(len) }
        });
        let request = Self { operation, region, generation, ranges: ranges.collect() };
        request.check(bytes.len()).map_err(wrong)?;
        Ok((request, bytes))
    }

    /// Whether the ranges fit the operation and its bytes.
    fn check(&self, bytes: usize) -> Result<(), &'static str> {
        let total = self.ranges.iter().try_fold(0_u64, |sum, range| sum.checked_add(range.len));
        let Some(total) = total.filter(|total| *total <= MOST_BYTES as u64) else {
            return Err("a request for more bytes than a message has");
        };
        let (wanted, what) = match self.operation {
            Operation::Hello { .. } => (0, "a hello with bytes behind it"),
            Operation::Message if !self.ranges.is_empty() || bytes > MOST_TEXT => {
                return Err("a message that is too long, or has ranges");
            }
            Operation::Message => return Ok(()),
            Operation::Open { .. } => (END as u64, "an end of a path with another length"),
            Operation::Close { .. } => (0, "the end of a path with bytes"),
            Operation::Put | Operation::PutNotify { .. } => {
                (total, "a put with other bytes than its ranges have")
            }
            Operation::Get => (0, "a get with bytes"),
            Operation::FetchAdd { .. } | Operation::CompareSwap { .. } => {
                if self.ranges.len() != 1 || total != 8 {
                    return Err("an atomic operation on other than 8 bytes");
                }
                (0, "an atomic operation with bytes")
            }
        };
        if bytes as u64 == wanted { Ok(()) } else { Err(what) }
    }
}

/// The result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    /// The number is what an atomic operation has found.
    Done {
        number: u64,
    },
    Revoked,
    Unknown,
    /// The range of this index is not in the window.
    Range {
        index: u64,
    },
    Access,
    Misaligned,
    /// As many notifications, or bytes of messages, wait for the owner's program.
    Full {
        waiting: u64,
    },
    /// The device makes no path, or none is left that it serves.
    NoPath,
    /// The queue pair could not be destroyed: its peer may still reach windows.
    StillOpen,
    /// A device performs the atomic operations of this window.
    OfDevice,
}

impl Status {
    pub(super) fn encode(self) -> [u8; ANSWER] {
        let (status, number) = match self {
            Self::Done { number } => (0, number),
            Self::Revoked => (1, 0),
            Self::Unknown => (2, 0),
            Self::Range { index } => (3, index),
            Self::Access => (4, 0),
            Self::Misaligned => (5, 0),
            Self::Full { waiting } => (6, waiting),
            Self::NoPath => (7, 0),
            Self::StillOpen => (8, 0),
            Self::OfDevice => (9, 0),
        };
        let mut bytes = [0; ANSWER];
        bytes[0] = status;
        bytes[8..].copy_from_slice(&number.to_le_bytes());
        bytes
    }

    /// Reads an answer. Returns it with its bytes.
    pub(super) fn decode(answer: &[u8]) -> Result<(Self, &[u8]), WindowError> {
        let wrong = |what| WindowError::Protocol { what };
        let (header, bytes) =
            answer.split_first_chunk::<ANSWER>().ok_or(wrong("an answer without its header"))?;
        let number = header[8..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let status = match header[0] {
            0 => Self::Done { number },
            1 => Self::Revoked,
            2 => Self::Unknown,
            3 => Self::Range { index: number },
            4 => Self::Access,
            5 => Self::Misaligned,
            6 => Self::Full { waiting: number },
            7 => Self::NoPath,
            8 => Self::StillOpen,
            9 => Self::OfDevice,
            _ => return Err(wrong("a status that this version does not know")),
        };
        Ok((status, bytes))
    }

    /// The number of a request that was performed, or why it was not.
    pub(super) fn result(self, key: Option<&WindowKey>, request: &WindowRequest) -> Result<u64, WindowError> {
        let (window, offered) = key.map_or((0, Access::default()), |key| (key.len, key.access));
        let WindowRequest { region, generation, .. } = *request;
        let first = request.ranges.first().map_or(0, |range| range.offset);
        Err(match self {
            Self::Done { number } => return Ok(number),
            Self::Revoked => WindowError::Revoked { region, generation },
            Self::Unknown => WindowError::Unknown { region, generation },
            Self::Range { index } => {
                let range = usize::try_from(index).ok().and_then(|index| request.ranges.get(index));
                let WindowRange { offset, len } =
                    range.copied().unwrap_or(WindowRange { offset: first, len: 0 });
                WindowError::Range { offset, len, window }
            }
            Self::Access => WindowError::Access { offered, needed: request.operation.needs() },
            Self::Misaligned => WindowError::Misaligned { offset: first },
            Self::Full { waiting } => WindowError::Full { waiting },
            Self::NoPath | Self::StillOpen => WindowError::Protocol { what: "an answer to another request" },
            Self::OfDevice => WindowError::AtomicsOfDevice,
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(crate) fn request(operation: Operation, ranges: &[(u64, u64)]) -> WindowRequest {
        let ranges = ranges.iter().map(|(offset, len)| WindowRange { offset: *offset, len: *len }).collect();
        WindowRequest { operation, region: 0, generation: 1, ranges }
    }

    #[test]
    fn the_bytes_are_those_of_version_1() {
        let put = WindowRequest {
            region: 2,
            generation: 3,
            ..request(Operation::PutNotify { number: 4 }, &[(5, 1), (0x0100, 2)])
        };
        let mut bytes = put.encode(3);
        assert_eq!(bytes[..16], [3, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0]);
        assert_eq!(bytes[16..32], [4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[32..48], [5, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[48..], [0, 1, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
        bytes.extend(b"abc");
        assert_eq!(WindowRequest::decode(&bytes).unwrap(), (put, &b"abc"[..]));
        let identity = Identity { owner: 7, connection: 8 | 9 << 32 };
        let hello = WindowRequest::hello(identity, READS | WRITES);
        assert_eq!(WindowRequest::decode(&hello.encode(0)).unwrap(), (hello, &b""[..]));
        for operation in
            [Operation::Open { device: u64::MAX }, Operation::Close { device: 1 << 40, queue_pair: 77 }]
        {
            let room = if matches!(operation, Operation::Open { .. }) { END } else { 0 };
            let mut bytes =
                WindowRequest { operation, region: 5, generation: 6, ranges: vec![] }.encode(room);
            bytes.resize(bytes.len() + room, 9);
            let (decoded, end) = WindowRequest::decode(&bytes).unwrap();
            assert_eq!((decoded.operation, decoded.region, decoded.generation), (operation, 5, 6));
            assert_eq!(end.len(), room);
        }
        assert_eq!(Status::Done { number: 258 }.encode(), [0, 0, 0, 0, 0, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0]);
        for status in [
            Status::Done { number: 9 },
            Status::Revoked,
            Status::Unknown,
            Status::Range { index: 3 },
            Status::Access,
            Status::Misaligned,
            Status::Full { waiting: 5 },
            Status::NoPath,
            Status::StillOpen,
            Status::OfDevice,
        ] {
            assert_eq!(Status::decode(&status.encode()).unwrap(), (status, &b""[..]));
        }
    }

    #[test]
    fn requests_that_do_not_fit_their_bytes_are_refused() {
        let refused = |request: WindowRequest, bytes: usize| {
            let mut message = request.encode(0);
            message.resize(message.len() + bytes, 0);
            WindowRequest::decode(&message).unwrap_err().to_string()
        };
        for (operation, ranges, bytes) in [
            (Operation::Put, &[(0, 4)][..], 3),
            (Operation::Get, &[(0, 4)], 4),
            (Operation::Get, &[(0, MOST_BYTES as u64), (0, 1)], 0),
            (Operation::Get, &[(0, u64::MAX), (0, 1)], 0),
            (Operation::FetchAdd { add: 1 }, &[(0, 4)], 0),
            (Operation::FetchAdd { add: 1 }, &[(0, 4), (8, 4)], 0),
            (Operation::CompareSwap { expected: 0, new: 1 }, &[(0, 8)], 1),
            (Operation::Message, &[(0, 1)], 1),
            (Operation::Message, &[], MOST_TEXT + 1),
            (Operation::Open { device: 1 }, &[], END - 1),
            (Operation::Close { device: 1, queue_pair: 1 }, &[], 1),
        ] {
            let error = refused(request(operation, ranges), bytes);
            assert!(error.starts_with("the peer breaks the protocol"), "{operation:?}: {error}");
        }
        let mut unknown = request(Operation::Put, &[]).encode(0);
        unknown[0] = 10;
        assert!(WindowRequest::decode(&unknown).is_err());
        let mut many = request(Operation::Get, &[]).encode(0);
        many[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(WindowRequest::decode(&many).is_err());
    }

    proptest! {
        #[test]
        fn reading_anything_never_panics(mut bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
            let _ = WindowRequest::decode(&bytes);
            let _ = Status::decode(&bytes);
            if bytes.len() >= REQUEST {
                bytes[0] = 1 + bytes[0] % 9;
                bytes[12] %= 4;
                bytes[13..16].fill(0);
                let _ = WindowRequest::decode(&bytes);
            }
        }
    }
}
