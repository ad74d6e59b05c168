//! The address of a queue pair.

use super::reader::Reader;
use super::{WireError, preamble::Writer, tlv};

/// Length of an endpoint; a newer version may append.
///
/// ```text
///  0 queue pair u32 | 4 first PSN u32 | 8 GID [16] | 24 LID u16 | 26 MTU u8 | 27 link u8
/// 28 SL u8 | 29 traffic class u8 | 30 0 u16 | 32 device u64
/// ```
const BYTES: usize = 40;
/// The same, for other messages that carry one.
pub(crate) const ENDPOINT_LEN: usize = BYTES;

/// The address of a reliable connected queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    /// The queue pair's number, 24 bits.
    pub(crate) qp_num: u32,
    /// The first packet's sequence number, random, 24 bits.
    pub(crate) psn: u32,
    /// The port's GID.
    pub(crate) gid: [u8; 16],
    /// The port's LID, or 0.
    pub(crate) lid: u16,
    /// The port's MTU in the verbs' encoding: 1 (256 bytes) to 5 (4096).
    pub(crate) mtu: u8,
    /// The port's link layer.
    pub(crate) link_layer: LinkLayer,
    /// The service level of its packets.
    pub(crate) service_level: u8,
    /// The traffic class of its packets.
    pub(crate) traffic_class: u8,
    /// A hash of the device's name, which tells whether both sides use the same device without
    /// revealing the name.
    pub(crate) device: u64,
}

/// The link layers of ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkLayer {
    /// InfiniBand.
    InfiniBand,
    Ethernet,
}

const INFINIBAND: u8 = 1;
const ETHERNET: u8 = 2;
const _: () = assert!(BYTES == 40 && INFINIBAND == 1 && ETHERNET == 2);

impl Endpoint {
    pub(super) fn put(&self, writer: &mut Writer) {
        tlv::put(writer, tlv::ENDPOINT, &self.encode());
    }

    pub(crate) fn encode(&self) -> [u8; BYTES] {
        let mut value = [0; BYTES];
        value[0..4].copy_from_slice(&self.qp_num.to_le_bytes());
        value[4..8].copy_from_slice(&self.psn.to_le_bytes());
        value[8..24].copy_from_slice(&self.gid);
        value[24..26].copy_from_slice(&self.lid.to_le_bytes());
        value[26] = self.mtu;
        value[27] = match self.link_layer {
            LinkLayer::InfiniBand => INFINIBAND,
            LinkLayer::Ethernet => ETHERNET,
        };
        value[28] = self.service_level;
        value[29] = self.traffic_class;
        value[32..40].copy_from_slice(&self.device.to_le_bytes());
        value
    }

    pub(crate) fn decode(value: &[u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(value, "endpoint");
        let qp_num = bits(reader.u32()?, 24, "queue pair number", "below 2^24")?;
        let psn = bits(reader.u32()?, 24, "packet sequence number", "below 2^24")?;
        let gid = reader.bytes()?;
        let lid = reader.u16()?;
        let mtu = reader.u8()?;
        if !(1..=5).contains(&mtu) {
            return Err(WireError::Value { field: "MTU", value: mtu.into(), bound: "1 to 5" });
        }
        let link_layer = match reader.u8()? {
            INFINIBAND => LinkLayer::InfiniBand,
            ETHERNET => LinkLayer::Ethernet,
            other => {
                return Err(WireError::Value {
                    field: "link layer",
                    value: other.into(),
                    bound: "1 (InfiniBand) or 2 (Ethernet)",
                });
            }
        };
        let service_level = bits(reader.u8()?.into(), 4, "service level", "below 16")? as u8;
        let traffic_class = reader.u8()?;
        reader.u16()?;
        let device = reader.u64()?;
        Ok(Self { qp_num, psn, gid, lid, mtu, link_layer, service_level, traffic_class, device })
    }
}

fn bits(value: u32, bits: u32, field: &'static str, bound: &'static str) -> Result<u32, WireError> {
    if value >> bits != 0 {
        return Err(WireError::Value { field, value: value.into(), bound });
    }
    Ok(value)
}

/// The hash of a device's name (FNV-1a).
pub(crate) fn device_hash(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
