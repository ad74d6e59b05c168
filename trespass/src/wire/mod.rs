//! The handshake messages in bytes: the messages that both sides exchange before the first frame.
//!
//! Every message begins with the same 16 bytes, which no version ever changes ([`Preamble`]), so
//! that peers of any two versions can at least explain their incompatibility ([`Reject`]):
//!
//! ```text
//!  0  magic        "TRSP"
//!  4  type         u8    HELLO 1, REJECT 2, READY 3, PROBE 4, CM_PREFIX 5
//!  5  major        u8
//!  6  minor        u8
//!  7  header       u8    length of the fixed part in units of 8 bytes, these 16 included
//!  8  total        u32   length of the whole message, at most 4096
//! 12  crc          u32   CRC-32 of the whole message but these four bytes
//! ```
//!
//! All numbers are little endian. A newer minor version may append to the fixed part, to a TLV's
//! value and to the list of TLVs; an older one skips the unknown parts. All foreign data is checked
//! before it is used, and nothing is allocated for a message that claims to be longer than
//! [`MAX_MESSAGE`].

mod cause;
mod cm_prefix;
mod control;
mod endpoint;
pub(crate) mod foreign;
mod hello;
mod limits;
mod preamble;
mod reader;
mod tlv;

#[cfg(test)]
mod golden;
#[cfg(any(test, fuzzing))]
pub(crate) mod hostile;
#[cfg(test)]
pub(crate) mod properties;

pub(crate) use cause::Unavailable;
pub(crate) use cm_prefix::CmPrefix;
pub(crate) use control::{Probe, Ready, Reject};
pub(crate) use endpoint::{ENDPOINT_LEN, Endpoint, LinkLayer, device_hash};
pub(crate) use hello::{Features, Hello, Role};
pub(crate) use limits::Limits;
pub(crate) use preamble::{MAJOR, MAX_MESSAGE, MINOR, PREAMBLE, Preamble};
pub(crate) use tlv::MAX_USER_DATA;

#[cfg(any(test, fuzzing))]
pub(crate) use preamble::checksum;

pub use cause::Cause;
pub use control::RejectReason;
pub use hello::{Kind, Policy};

/// Length of the private data in a connection request, over all transports.
#[cfg(test)]
pub(crate) const REQUEST_DATA: usize = 56;
/// Length of the private data in a rejection.
pub(crate) const REJECT_DATA: usize = 148;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HandshakeMessage {
    /// A side's identity and features.
    Hello(Hello),
    /// The reason for refusing the connection.
    Reject(Reject),
    /// The state of a side's half of the data path.
    Ready(Ready),
    /// The message that proves the data path.
    Probe(Probe),
    /// The beginning of a HELLO, for the connection manager.
    CmPrefix(CmPrefix),
}

impl HandshakeMessage {
    /// Decodes a whole message of any type.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let (preamble, body) = Preamble::open(bytes)?;
        let fixed = preamble.header_len() - PREAMBLE;
        match preamble.kind() {
            preamble::REJECT => Reject::decode(body, fixed).map(Self::Reject),
            _ if preamble.major() != MAJOR => {
                Err(WireError::Version { major: preamble.major(), minor: preamble.minor() })
            }
            preamble::HELLO => Hello::decode(preamble.minor(), body, fixed).map(Self::Hello),
            preamble::READY => Ready::decode(body, fixed).map(Self::Ready),
            preamble::PROBE => Probe::decode(body, fixed).map(Self::Probe),
            preamble::CM_PREFIX => CmPrefix::decode(preamble.minor(), body, fixed).map(Self::CmPrefix),
            unknown => Err(WireError::Type(unknown)),
        }
    }

    /// Decodes a message at the beginning of a connection's private data, whose field has a fixed
    /// length, so that anything may follow.
    pub(crate) fn decode_private(data: &[u8]) -> Result<Self, WireError> {
        if let Some(magic) = data.first_chunk() {
            Preamble::check_magic(*magic)?;
        }
        let head = data.first_chunk().ok_or(WireError::Short("preamble"))?;
        let total = Preamble::decode(head)?.total_len();
        Self::decode(data.get(..total).ok_or(WireError::Short("body"))?)
    }
}

/// The reason why a handshake message is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WireError {
    /// The peer speaks another protocol.
    #[error(
        "the peer does not speak this protocol: it began with {began} instead of \"TRSP\"; is that the right port?",
        began = foreign::Beginning(*.0)
    )]
    Magic([u8; 4]),
    /// The message's length is out of range.
    #[error("a message of {total} bytes with {header} fixed ones is impossible; at most 4096 are allowed")]
    Length {
        /// The total length in the message.
        total: u32,
        /// The length of the fixed part in the message.
        header: u32,
    },
    /// The checksum does not match.
    #[error("the checksum of a message is {found:#010x}, and its bytes give {computed:#010x}")]
    Checksum {
        /// The checksum in the message.
        found: u32,
        /// The checksum of its bytes.
        computed: u32,
    },
    /// The peer uses another major version.
    #[error(
        "the peer speaks version {major}.{minor} of the protocol, and this side {MAJOR}.{MINOR}; update the older one"
    )]
    Version {
        /// The peer's major version.
        major: u8,
        /// The peer's minor version.
        minor: u8,
    },
    /// A message of an unknown type.
    #[error("messages of type {0} do not exist")]
    Type(u8),
    /// The message ends before a required field.
    #[error("a message ends in the midst of its {0}")]
    Short(&'static str),
    /// A TLV that may occur only once is repeated.
    #[error("a message has its {0} twice")]
    Twice(&'static str),
    /// A field has an invalid value.
    #[error("{field} = {value} in the peer's message must be {bound}")]
    Value {
        /// The field's name.
        field: &'static str,
        /// The field's value.
        value: u64,
        /// The valid values.
        bound: &'static str,
    },
    /// The message is not allowed in this state.
    #[error("{0} came where it must not")]
    Unexpected(&'static str),
}
