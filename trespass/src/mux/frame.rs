//! The bytes of a multiplexed connection: a hello of fixed size, then frames. All numbers are
//! little-endian.
//!
//! | hello | bytes | frame | bytes |
//! | --- | --- | --- | --- |
//! | magic | 8 | kind | 1 |
//! | highest version | 2 | flags | 1 |
//! | reserved, 0 | 2 | reserved, 0 | 2 |
//! | concurrent requests | 4 | value | 4 |
//! | window in bytes | 8 | length of the data | 4 |
//! | | | request | 8 |
//!
//! Each side numbers its requests. The kind says whether a frame is of the sender's request or an
//! answer to the receiver's. A sender uses the lower of both versions.

use super::error::ProtocolViolation;

/// The bytes of a hello.
pub(super) const HELLO: usize = 24;
/// The bytes of a frame before its data. Each frame also costs them of its window.
pub(super) const HEADER: usize = 20;
/// The smallest and the largest window, in bytes.
pub(super) const WINDOWS: std::ops::RangeInclusive<u64> = 4096..=1 << 30;
/// The largest number of concurrent requests.
pub(super) const MOST_REQUESTS: u32 = 1 << 20;

const MAGIC: [u8; 8] = *b"trespmux";
const VERSION: u16 = 1;

/// No frame of this request or answer follows.
pub(super) const LAST: u8 = 1;
/// The frame ends a message.
pub(super) const MESSAGE_END: u8 = 2;
/// The sender of a request wants no answer.
pub(super) const ONE_WAY: u8 = 4;

/// What one side accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Capacity {
    /// Requests at a time.
    pub(super) requests: u32,
    /// Bytes of each request, and of the answers to each request, that the program has not taken.
    pub(super) window: u64,
}

impl Capacity {
    pub(super) fn encode(self) -> [u8; HELLO] {
        let mut hello = [0; HELLO];
        hello[..8].copy_from_slice(&MAGIC);
        hello[8..10].copy_from_slice(&VERSION.to_le_bytes());
        hello[12..16].copy_from_slice(&self.requests.to_le_bytes());
        hello[16..].copy_from_slice(&self.window.to_le_bytes());
        hello
    }

    pub(super) fn decode(hello: &[u8; HELLO]) -> Result<Self, ProtocolViolation> {
        if hello[..8] != MAGIC {
            return Err(ProtocolViolation::NoMux);
        }
        let version = u16::from_le_bytes([hello[8], hello[9]]);
        if version < VERSION {
            return Err(ProtocolViolation::Version { theirs: version, ours: VERSION });
        }
        let (_, requests) = numbers(&hello[8..16]);
        let (low, high) = numbers(&hello[16..]);
        let window = u64::from(low) | u64::from(high) << 32;
        if requests == 0 || requests > MOST_REQUESTS || !WINDOWS.contains(&window) {
            return Err(ProtocolViolation::Capacity { requests, window });
        }
        Ok(Self { requests, window })
    }
}

/// The two numbers of eight bytes.
fn numbers(bytes: &[u8]) -> (u32, u32) {
    let number = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    (number(0), number(4))
}

/// The purpose of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Purpose {
    /// Begins a request. The value is the milliseconds until its deadline, or 0.
    Request = 1,
    /// Continues a request.
    RequestData = 2,
    /// The requester wants no more answers.
    Cancel = 3,
    /// The value is added to the credit of the answers.
    AnswerCredit = 4,
    /// Data of an answer.
    Answer = 5,
    /// Ends a request without an answer. The value is the [`Ending`].
    Close = 6,
    /// The value is added to the credit of the request.
    RequestCredit = 7,
}

impl Purpose {
    fn of(kind: u8) -> Option<Self> {
        Some(match kind {
            1 => Self::Request,
            2 => Self::RequestData,
            3 => Self::Cancel,
            4 => Self::AnswerCredit,
            5 => Self::Answer,
            6 => Self::Close,
            7 => Self::RequestCredit,
            _ => return None,
        })
    }

    pub(super) fn carries_data(self) -> bool {
        matches!(self, Self::Request | Self::RequestData | Self::Answer)
    }

    fn flags(self) -> u8 {
        match self {
            Self::Request => LAST | MESSAGE_END | ONE_WAY,
            Self::RequestData | Self::Answer => LAST | MESSAGE_END,
            _ => 0,
        }
    }
}

/// Why a request has no further answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// All answers have arrived, or the peer's program has taken a one-way message.
    Done,
    /// The peer had as many requests as it accepts.
    Refused,
    /// The peer's program has given no answer.
    Unanswered,
    /// The requester has cancelled it.
    Cancelled,
}

impl Ending {
    fn code(self) -> u32 {
        match self {
            Self::Done => 0,
            Self::Refused => 1,
            Self::Unanswered => 2,
            Self::Cancelled => 3,
        }
    }

    pub(super) fn of(code: u32) -> Self {
        match code {
            0 => Self::Done,
            1 => Self::Refused,
            3 => Self::Cancelled,
            // Reasons of later versions.
            _ => Self::Unanswered,
        }
    }
}

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MuxHeader {
    pub(super) purpose: Purpose,
    pub(super) flags: u8,
    pub(super) value: u32,
    pub(super) len: u32,
    pub(super) id: u64,
}

impl MuxHeader {
    pub(super) fn data(purpose: Purpose, flags: u8, id: u64, len: usize) -> Self {
        // Chunks are far shorter than 4 GiB.
        Self { purpose, flags, value: 0, len: len as u32, id }
    }

    pub(super) fn control(purpose: Purpose, id: u64, value: u32) -> Self {
        Self { purpose, flags: 0, value, len: 0, id }
    }

    pub(super) fn close(id: u64, ending: Ending) -> Self {
        Self::control(Purpose::Close, id, ending.code())
    }

    pub(super) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// What the frame costs of its window. The end alone is free, so that it never waits.
    pub(super) fn cost(&self) -> u64 {
        if self.len == 0 && self.flags & (LAST | MESSAGE_END) == LAST {
            0
        } else {
            cost_of(self.len as usize)
        }
    }

    pub(super) fn encode(&self) -> [u8; HEADER] {
        let mut header = [0; HEADER];
        header[0] = self.purpose as u8;
        header[1] = self.flags;
        header[4..8].copy_from_slice(&self.value.to_le_bytes());
        header[8..12].copy_from_slice(&self.len.to_le_bytes());
        header[12..].copy_from_slice(&self.id.to_le_bytes());
        header
    }

    pub(super) fn decode(header: &[u8; HEADER]) -> Result<Self, ProtocolViolation> {
        let (value, len) = numbers(&header[4..12]);
        let (low, high) = numbers(&header[12..]);
        let id = u64::from(low) | u64::from(high) << 32;
        let [kind, flags, reserved @ ..] = [header[0], header[1], header[2], header[3]];
        let purpose = Purpose::of(kind).ok_or(ProtocolViolation::Kind { kind })?;
        if flags & !purpose.flags() != 0 || reserved != [0; 2] || (len > 0 && !purpose.carries_data()) {
            return Err(ProtocolViolation::Header { kind, flags, len });
        }
        Ok(Self { purpose, flags, value, len, id })
    }
}

/// What data in one frame cost of a window.
pub(super) fn cost_of(len: usize) -> u64 {
    HEADER as u64 + len as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_are_those_of_version_1() {
        let hello = Capacity { requests: 0x0102, window: 0x1_0000 }.encode();
        assert_eq!(hello, *b"trespmux\x01\0\0\0\x02\x01\0\0\0\0\x01\0\0\0\0\0");
        let header = MuxHeader {
            purpose: Purpose::Answer,
            flags: LAST | MESSAGE_END,
            value: 7,
            len: 258,
            id: 1 << 33,
        };
        assert_eq!(header.encode(), *b"\x05\x03\0\0\x07\0\0\0\x02\x01\0\0\0\0\0\0\x02\0\0\0");
        assert_eq!(MuxHeader::decode(&header.encode()).unwrap(), header);
    }

    #[test]
    fn later_versions_are_accepted_and_nonsense_is_not() {
        let good = Capacity { requests: 4, window: 4096 };
        let mut hello = good.encode();
        hello[8] = 9;
        assert_eq!(Capacity::decode(&hello).unwrap(), good);
        hello[8] = 0;
        assert!(matches!(Capacity::decode(&hello), Err(ProtocolViolation::Version { theirs: 0, .. })));
        assert!(matches!(Capacity::decode(b"GET / HTTP/1.1\r\nHost: x\r"), Err(ProtocolViolation::NoMux)));
        for bad in [Capacity { requests: 0, ..good }, Capacity { window: 4095, ..good }] {
            assert!(matches!(Capacity::decode(&bad.encode()), Err(ProtocolViolation::Capacity { .. })));
        }
        let control = MuxHeader::control(Purpose::Cancel, 1, 0);
        for bad in [MuxHeader { flags: LAST, ..control }, MuxHeader { len: 1, ..control }] {
            assert!(matches!(MuxHeader::decode(&bad.encode()), Err(ProtocolViolation::Header { .. })));
        }
        assert!(matches!(MuxHeader::decode(&[0; HEADER]), Err(ProtocolViolation::Kind { kind: 0 })));
    }
}
