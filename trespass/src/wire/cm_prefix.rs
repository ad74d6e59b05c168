//! CM_PREFIX: the beginning of a HELLO, for connections that start with the connection manager. An
//! rdma_cm request carries it in its 56 bytes of private data. The HELLO itself follows over the
//! queue pair. It is 48 bytes long, and a newer minor version may append 8 bytes:
//!
//! ```text
//! 16 features u64 | 24 connection u64 | 32 generation u32 | 36 role u8 | 37 kind u8
//! 38 slot_size as a power of two u8 | 39 0 u8
//! 40 rx_slots u16 | 42 length of the HELLO u16 | 44 0 u32
//! ```

use super::WireError;
use super::hello::{Features, Hello, Kind, Role};
use super::limits::Limits;
use super::preamble::{self, MAX_MESSAGE, Writer};
use super::reader::Reader;

/// Length of the shortest HELLO.
const MIN_HELLO: usize = 64;

/// The fields of a HELLO that must be known before it can arrive: its connection, and the receives
/// that it needs. They equal those of the HELLO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CmPrefix {
    /// The sender's minor version.
    pub(crate) minor: u8,
    /// The sender's features.
    pub(crate) features: Features,
    /// The connection: a random number of the client, which the server repeats.
    pub(crate) conn_id: u64,
    /// The attempt at this connection, which the server repeats, too.
    pub(crate) generation: u32,
    /// The sender's side.
    pub(crate) role: Role,
    /// The type of data.
    pub(crate) kind: Kind,
    /// Size of its receive slots in bytes.
    pub(crate) slot_size: u32,
    /// Receive slots that it posts once it has the peer's HELLO.
    pub(crate) rx_slots: u32,
    /// Length of its HELLO in bytes.
    pub(crate) hello: usize,
}

impl CmPrefix {
    /// The CM_PREFIX of a HELLO of `len` bytes.
    pub(crate) fn of(hello: &Hello, len: usize) -> Self {
        Self {
            minor: hello.minor,
            features: hello.features,
            conn_id: hello.conn_id,
            generation: hello.generation,
            role: hello.role,
            kind: hello.kind,
            slot_size: hello.limits.slot_size,
            rx_slots: hello.limits.rx_slots,
            hello: len,
        }
    }

    /// Encodes the message.
    pub(crate) fn encode(&self) -> Vec<u8> {
        self.encode_with(&[])
    }

    /// Encodes it like a newer minor version, with more in its fixed part.
    pub(super) fn encode_with(&self, more_fixed: &[u8]) -> Vec<u8> {
        let mut writer = Writer::new(preamble::CM_PREFIX, self.minor);
        writer
            .put(&self.features.0.to_le_bytes())
            .put(&self.conn_id.to_le_bytes())
            .put(&self.generation.to_le_bytes())
            .put(&[self.role.number(), self.kind.number(), self.slot_size.ilog2() as u8, 0])
            .put(&(self.rx_slots as u16).to_le_bytes())
            .put(&(self.hello as u16).to_le_bytes())
            .put(&[0; 4])
            .put(more_fixed)
            .end_of_fixed();
        writer.finish()
    }

    pub(super) fn decode(minor: u8, body: &[u8], fixed: usize) -> Result<Self, WireError> {
        let head = body.get(..fixed).ok_or(WireError::Short("CM_PREFIX"))?;
        let mut reader = Reader::new(head, "CM_PREFIX");
        let features = Features(reader.u64()?);
        let (conn_id, generation) = (reader.u64()?, reader.u32()?);
        let role = Role::from_number(reader.u8()?)?;
        let kind = Kind::from_number(reader.u8()?)?;
        let slot_size = slot_size(reader.u8()?)?;
        reader.u8()?;
        let rx_slots = u32::from(reader.u16()?);
        Limits::check_slots(slot_size, rx_slots)?;
        let hello = usize::from(reader.u16()?);
        if !(MIN_HELLO..=MAX_MESSAGE).contains(&hello) {
            let (field, bound) = ("length of the HELLO", "between 64 and 4096");
            return Err(WireError::Value { field, value: hello as u64, bound });
        }
        reader.bytes::<4>()?;
        Ok(Self { minor, features, conn_id, generation, role, kind, slot_size, rx_slots, hello })
    }
}

fn slot_size(power: u8) -> Result<u32, WireError> {
    1_u32.checked_shl(power.into()).ok_or(WireError::Value {
        field: "slot_size",
        value: power.into(),
        bound: "a power of two between 2^9 and 2^20",
    })
}
