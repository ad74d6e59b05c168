//! The short messages: REJECT, READY and PROBE.

use super::hello::Role;
use super::preamble::{self, MAJOR, MAX_MESSAGE, MINOR, PREAMBLE, Writer};
use super::reader::{Reader, shortened, shortened_to, text};
use super::{HandshakeMessage, WireError};
use crate::wire::{Cause, Unavailable};

/// The reason for refusing a connection. Every version can read it.
///
/// ```text
/// 16 reason u16 | 18 major u8 | 19 minor u8 | 20 peer's major u8 | 21 peer's minor u8
/// 22 length of the text u16 | 24 text
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reject {
    /// The reason as a number.
    pub(crate) reason: RejectReason,
    /// The sender's version, major and minor.
    pub(crate) own: (u8, u8),
    /// The version of the message that is refused; 0.0 if it does not matter.
    pub(crate) seen: (u8, u8),
    /// A text for people.
    pub(crate) text: String,
}

/// The reasons for which a peer refuses a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RejectReason {
    /// Another major version.
    Version,
    /// An invalid message.
    Malformed,
    /// One side carries bytes and the other messages.
    Kind,
    /// Both are clients, or both are servers.
    Role,
    /// RDMA is required, and does not work.
    RdmaRequired,
    /// The handshake took too long.
    TimedOut,
    /// The listener's backlog is full. A connect reports it after it has connected again until its
    /// deadline.
    Busy,
    /// A reason of a newer version.
    Unknown(u16),
}

impl RejectReason {
    const fn code(self) -> u16 {
        match self {
            Self::Version => 1,
            Self::Malformed => 2,
            Self::Kind => 3,
            Self::Role => 4,
            Self::RdmaRequired => 5,
            Self::TimedOut => 6,
            Self::Busy => 7,
            Self::Unknown(code) => code,
        }
    }

    const fn from_code(code: u16) -> Self {
        match code {
            1 => Self::Version,
            2 => Self::Malformed,
            3 => Self::Kind,
            4 => Self::Role,
            5 => Self::RdmaRequired,
            6 => Self::TimedOut,
            7 => Self::Busy,
            _ => Self::Unknown(code),
        }
    }
}

impl Reject {
    /// Length of the fixed part.
    const FIXED: usize = PREAMBLE + 8;

    /// Encodes the message.
    pub(crate) fn encode(&self) -> Vec<u8> {
        self.encode_within(MAX_MESSAGE)
    }

    /// Encodes it with a text short enough for `limit` bytes, which exceeds the fixed part.
    pub(crate) fn encode_within(&self, limit: usize) -> Vec<u8> {
        let words = shortened_to(&self.text, limit / 8 * 8 - Self::FIXED).as_bytes();
        let mut writer = Writer::new(preamble::REJECT, MINOR);
        writer
            .put(&self.reason.code().to_le_bytes())
            .put(&[self.own.0, self.own.1, self.seen.0, self.seen.1])
            .put(&(words.len() as u16).to_le_bytes())
            .end_of_fixed()
            .put(words)
            .pad();
        writer.finish()
    }

    /// A rejection by this version.
    pub(crate) fn new(reason: RejectReason, seen: (u8, u8), text: String) -> Self {
        Self { reason, own: (MAJOR, MINOR), seen, text }
    }

    pub(super) fn decode(body: &[u8], fixed: usize) -> Result<Self, WireError> {
        let (head, tail) = body.split_at_checked(fixed).ok_or(WireError::Short("REJECT"))?;
        let mut reader = Reader::new(head, "REJECT");
        let reason = RejectReason::from_code(reader.u16()?);
        let [own_major, own_minor, seen_major, seen_minor] = reader.bytes()?;
        let len = reader.u16()?;
        let text = text(Reader::new(tail, "text of REJECT").slice(len.into())?);
        Ok(Self { reason, own: (own_major, own_minor), seen: (seen_major, seen_minor), text })
    }
}

/// The state of a side's half of the data path. RDMA is used if both sides report that it works,
/// else TCP.
///
/// ```text
/// 16 connection u64 | 24 generation u32 | 28 outcome u8 | 29 role u8 | 30 cause u16
/// 32 length of the text u16 | 34 0 [6] | 40 text
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ready {
    /// The connection's number.
    pub(crate) conn_id: u64,
    /// The attempt's number.
    pub(crate) generation: u32,
    /// The sender's side.
    pub(crate) role: Role,
    /// Success, or the reason for the failure.
    pub(crate) verdict: Result<(), Unavailable>,
}

impl Ready {
    /// Encodes the message.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let (outcome, cause, words) = match &self.verdict {
            Ok(()) => (1, 0, ""),
            Err(why) => (0, why.cause.code(), shortened(&why.detail)),
        };
        let mut writer = Writer::new(preamble::READY, MINOR);
        writer
            .put(&self.conn_id.to_le_bytes())
            .put(&self.generation.to_le_bytes())
            .put(&[outcome, self.role.number()])
            .put(&cause.to_le_bytes())
            .put(&(words.len() as u16).to_le_bytes())
            .put(&[0; 6])
            .end_of_fixed()
            .put(words.as_bytes())
            .pad();
        writer.finish()
    }

    pub(super) fn decode(body: &[u8], fixed: usize) -> Result<Self, WireError> {
        let (head, tail) = body.split_at_checked(fixed).ok_or(WireError::Short("READY"))?;
        let mut reader = Reader::new(head, "READY");
        let (conn_id, generation) = (reader.u64()?, reader.u32()?);
        let outcome = reader.u8()?;
        let role = Role::from_number(reader.u8()?)?;
        let cause = Cause::from_code(reader.u16()?);
        let len = reader.u16()?;
        reader.bytes::<6>()?;
        let detail = text(Reader::new(tail, "text of READY").slice(len.into())?);
        let verdict = match outcome {
            1 => Ok(()),
            0 => Err(Unavailable { cause, detail }),
            _ => {
                return Err(WireError::Value {
                    field: "outcome",
                    value: outcome.into(),
                    bound: "0 (TCP) or 1 (RDMA)",
                });
            }
        };
        Ok(Self { conn_id, generation, role, verdict })
    }
}

/// Length of a PROBE.
pub(crate) const PROBE_BYTES: usize = 64;
const _: () = assert!(PROBE_BYTES == 64 && PROBE_BYTES.is_multiple_of(8) && PROBE_BYTES >= PREAMBLE + 16);

/// The message that proves the data path: the client sends its probe first, and the server answers
/// with its own.
///
/// ```text
/// 16 connection u64 | 24 generation u32 | 28 role u8 | 29 0 [35]
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Probe {
    /// The connection's number.
    pub(crate) conn_id: u64,
    /// The attempt's number.
    pub(crate) generation: u32,
    /// The sender's side.
    pub(crate) role: Role,
}

impl Probe {
    /// Encodes the message.
    pub(crate) fn encode(&self) -> [u8; PROBE_BYTES] {
        let mut writer = Writer::new(preamble::PROBE, MINOR);
        writer
            .put(&self.conn_id.to_le_bytes())
            .put(&self.generation.to_le_bytes())
            .put(&[self.role.number()])
            .put(&[0; PROBE_BYTES - PREAMBLE - 13])
            .end_of_fixed();
        writer.finish().try_into().expect("its length is fixed")
    }

    pub(super) fn decode(body: &[u8], fixed: usize) -> Result<Self, WireError> {
        let head = body.get(..fixed).ok_or(WireError::Short("PROBE"))?;
        let mut reader = Reader::new(head, "PROBE");
        let (conn_id, generation) = (reader.u64()?, reader.u32()?);
        let role = Role::from_number(reader.u8()?)?;
        Ok(Self { conn_id, generation, role })
    }

    /// Whether data from the data path is this probe, rather than a probe of an earlier attempt,
    /// this side's probe, or other data.
    pub(crate) fn is(&self, received: &[u8]) -> bool {
        HandshakeMessage::decode(received) == Ok(HandshakeMessage::Probe(*self))
    }
}
