//! The limits of one side.

use super::WireError;
use super::preamble::Writer;
use super::reader::Reader;

/// The limits of one side, as in its HELLO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Size of a receive slot in bytes, which bounds every frame to this side. A power of two.
    pub(crate) slot_size: u32,
    /// Receive slots that this side posts for the connection.
    pub(crate) rx_slots: u32,
    /// Messages to this side above this many bytes use a rendezvous.
    pub(crate) eager_max: u32,
    /// Rendezvous that may wait for this side at a time.
    pub(crate) max_rts: u16,
    /// RDMA READs that this side's device answers at a time.
    pub(crate) rd_atomic_in: u8,
    /// RDMA READs that this side's device has outstanding at a time.
    pub(crate) rd_atomic_out: u8,
    /// The longest message that this side accepts.
    pub(crate) max_msg: u64,
}

impl Limits {
    /// The smallest and the largest slot in bytes.
    pub(crate) const SLOT_SIZE: std::ops::RangeInclusive<u32> = 512..=1 << 20;
    /// The fewest and the most slots.
    pub(crate) const RX_SLOTS: std::ops::RangeInclusive<u32> = 16..=1 << 15;
    /// The longest message that any side accepts.
    pub(crate) const MAX_MSG: u64 = 1 << 30;

    pub(super) fn put(&self, writer: &mut Writer) {
        writer
            .put(&self.slot_size.to_le_bytes())
            .put(&self.rx_slots.to_le_bytes())
            .put(&self.eager_max.to_le_bytes())
            .put(&self.max_rts.to_le_bytes())
            .put(&[self.rd_atomic_in, self.rd_atomic_out])
            .put(&self.max_msg.to_le_bytes());
    }

    pub(super) fn decode(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        let limits = Self {
            slot_size: reader.u32()?,
            rx_slots: reader.u32()?,
            eager_max: reader.u32()?,
            max_rts: reader.u16()?,
            rd_atomic_in: reader.u8()?,
            rd_atomic_out: reader.u8()?,
            max_msg: reader.u64()?,
        };
        limits.check()?;
        Ok(limits)
    }

    /// Checks the values, because a peer may send anything.
    fn check(&self) -> Result<(), WireError> {
        Self::check_slots(self.slot_size, self.rx_slots)?;
        must(
            (1..=Self::MAX_MSG).contains(&self.max_msg),
            "max_msg",
            self.max_msg,
            "between 1 and 1073741824",
        )?;
        must(u64::from(self.eager_max) <= self.max_msg, "eager_max", self.eager_max.into(), "at most max_msg")
    }

    /// Checks the receive slots alone.
    pub(super) fn check_slots(slot_size: u32, rx_slots: u32) -> Result<(), WireError> {
        must(
            slot_size.is_power_of_two() && Self::SLOT_SIZE.contains(&slot_size),
            "slot_size",
            slot_size.into(),
            "a power of two between 512 and 1048576",
        )?;
        must(Self::RX_SLOTS.contains(&rx_slots), "rx_slots", rx_slots.into(), "between 16 and 32768")
    }
}

fn must(ok: bool, field: &'static str, value: u64, bound: &'static str) -> Result<(), WireError> {
    if ok { Ok(()) } else { Err(WireError::Value { field, value, bound }) }
}
