//! HELLO: a side's identity and features. Its fixed part, behind the preamble:
//!
//! ```text
//! 16 features u64 | 24 connection u64 | 32 generation u32 | 36 role u8 | 37 kind u8 | 38 policy u8
//! 39 0 u8 | 40 slot_size u32 | 44 rx_slots u32 | 48 eager_max u32 | 52 max_rts u16
//! 54 rd_atomic in u8 | 55 out u8 | 56 max_msg u64 | 64 TLVs
//! ```

use super::WireError;
use super::endpoint::Endpoint;
use super::limits::Limits;
use super::preamble::{self, Writer};
use super::reader::{Reader, shortened, text};
use super::tlv::{self, MAX_USER_DATA, Tlvs};
use crate::protocol::{DEVICES_MAX, FIRST_SLOTS_MIN};
use crate::wire::{Cause, Unavailable};

/// A side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Role {
    /// The side that connected.
    Client,
    /// The side that accepted.
    Server,
}

/// The type of data that a connection carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Bytes without boundaries.
    Stream,
    /// Messages, whose boundaries are kept.
    SeqPacket,
}

/// Whether a connection may, must or must not use RDMA.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Policy {
    /// RDMA if both sides support it and it works, else TCP.
    #[default]
    Auto,
    /// RDMA, or no connection.
    RequireRdma,
    /// TCP in any case.
    TcpOnly,
}

/// Optional features of one side, as bits; a connection uses those that both sides know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Features(pub(crate) u64);

impl Features {
    /// Long messages by RDMA READ of the receiver.
    pub(crate) const READ: Self = Self(1 << 0);
    /// Several short messages in one frame.
    pub(crate) const COALESCE: Self = Self(1 << 1);
    /// This side's receives come from a shared receive queue.
    pub(crate) const SHARED_RECEIVE: Self = Self(1 << 2);
    // 3 one-sided operations, 4 authentication, 6 channels, 7 resuming: reserved.
    /// Several queue pairs between several devices carry the frames.
    pub(crate) const RAILS: Self = Self(1 << 5);
    /// The other side may start with fewer receives than it can post, and announces their number.
    pub(crate) const WINDOWS: Self = Self(1 << 8);
    /// The header of a data frame may travel in immediate data.
    pub(crate) const IMMEDIATE: Self = Self(1 << 9);
    /// A PROBE on the TCP connection is answered while the data path is proved.
    pub(crate) const ATTEND: Self = Self(1 << 10);
    /// Bytes on the TCP connection of a connection over RDMA are discarded.
    pub(crate) const KEEP: Self = Self(1 << 11);
    /// The client asks on the TCP connection right after its PROBE over the queue pair.
    pub(crate) const ANNOUNCE: Self = Self(1 << 12);
    /// CREDIT, FIN and FIN_ACK over a queue pair carry the number of frames received.
    pub(crate) const ACKNOWLEDGE: Self = Self(1 << 13);

    /// All features that this version knows.
    #[cfg(any(test, fuzzing))]
    pub(crate) const KNOWN: Self = Self::READ
        .with(Self::COALESCE)
        .with(Self::SHARED_RECEIVE)
        .with(Self::RAILS)
        .with(Self::WINDOWS)
        .with(Self::IMMEDIATE)
        .with(Self::ATTEND)
        .with(Self::KEEP)
        .with(Self::ANNOUNCE)
        .with(Self::ACKNOWLEDGE);

    pub(crate) fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    pub(crate) fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    pub(crate) const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(crate) fn has(self, other: Self) -> bool {
        self.and(other) == other
    }
}

// Frozen.
const _: () = {
    assert!(Features::READ.0 == 1 && Features::COALESCE.0 == 2 && Features::SHARED_RECEIVE.0 == 4);
    assert!(Features::RAILS.0 == 32);
    assert!(Features::WINDOWS.0 == 256 && Features::IMMEDIATE.0 == 512 && Features::ATTEND.0 == 1024);
    assert!(Features::KEEP.0 == 2048 && Features::ANNOUNCE.0 == 4096 && Features::ACKNOWLEDGE.0 == 8192);
    assert!(Role::Client.number() == 1 && Role::Server.number() == 2);
    assert!(Kind::Stream.number() == 1 && Kind::SeqPacket.number() == 2);
    assert!(Policy::Auto.number() == 0 && Policy::RequireRdma.number() == 1 && Policy::TcpOnly.number() == 2);
};

/// The HELLO message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
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
    /// The sender's policy about RDMA.
    pub(crate) policy: Policy,
    /// The sender's limits.
    pub(crate) limits: Limits,
    /// Receive slots that it starts with, if not with all. It applies if both sides have
    /// [`Features::WINDOWS`].
    pub(crate) first_slots: Option<u32>,
    /// The devices that it uses for the connection, if several. It applies if both sides have
    /// [`Features::RAILS`].
    pub(crate) devices: Option<u8>,
    /// Its queue pair, or the reason why it has none.
    pub(crate) path: Result<Endpoint, Unavailable>,
    /// Data of its program for the peer's program.
    pub(crate) user_data: Vec<u8>,
}

impl Hello {
    /// Encodes the message.
    pub(crate) fn encode(&self) -> Vec<u8> {
        self.encode_with(&[], &[])
    }

    /// Encodes it like a newer minor version, with more in its fixed part, and with other TLVs.
    pub(super) fn encode_with(&self, more_fixed: &[u8], more_tlvs: &[(u16, &[u8])]) -> Vec<u8> {
        let mut writer = Writer::new(preamble::HELLO, self.minor);
        writer
            .put(&self.features.0.to_le_bytes())
            .put(&self.conn_id.to_le_bytes())
            .put(&self.generation.to_le_bytes())
            .put(&[self.role.number(), self.kind.number(), self.policy.number(), 0]);
        self.limits.put(&mut writer);
        writer.put(more_fixed).end_of_fixed();
        for (kind, value) in more_tlvs {
            tlv::put(&mut writer, *kind, value);
        }
        match &self.path {
            Ok(endpoint) => endpoint.put(&mut writer),
            // A HELLO after a CM_PREFIX needs no reason.
            Err(why) if *why == Unavailable::unspecified() => {}
            Err(why) => {
                let mut value = why.cause.code().to_le_bytes().to_vec();
                value.extend_from_slice(shortened(&why.detail).as_bytes());
                tlv::put(&mut writer, tlv::UNAVAILABLE, &value);
            }
        }
        if let Some(first) = self.first_slots {
            tlv::put(&mut writer, tlv::FIRST_SLOTS, &first.to_le_bytes());
        }
        if let Some(devices) = self.devices {
            tlv::put(&mut writer, tlv::RAILS, &[devices, 0, 0, 0]);
        }
        if !self.user_data.is_empty() {
            assert!(self.user_data.len() <= MAX_USER_DATA, "checked where it is configured");
            tlv::put(&mut writer, tlv::USER_DATA, &self.user_data);
        }
        writer.finish()
    }

    pub(super) fn decode(minor: u8, body: &[u8], fixed: usize) -> Result<Self, WireError> {
        let (head, tlvs) = body.split_at_checked(fixed).ok_or(WireError::Short("HELLO"))?;
        let mut reader = Reader::new(head, "HELLO");
        let features = Features(reader.u64()?);
        let (conn_id, generation) = (reader.u64()?, reader.u32()?);
        let role = Role::from_number(reader.u8()?)?;
        let kind = Kind::from_number(reader.u8()?)?;
        let policy = Policy::from_number(reader.u8()?)?;
        reader.u8()?;
        let limits = Limits::decode(&mut reader)?;
        let options = HelloOptions::decode(tlvs)?;
        let path = options.path();
        let first_slots = options.first_slots;
        if first_slots.is_some_and(|first| !(FIRST_SLOTS_MIN..=limits.rx_slots).contains(&first)) {
            return Err(WireError::Value {
                field: "first_slots",
                value: first_slots.unwrap_or(0).into(),
                bound: "between 5 and rx_slots",
            });
        }
        let devices = options.devices;
        if devices.is_some_and(|devices| !(2..=DEVICES_MAX as u8).contains(&devices)) {
            let value = devices.unwrap_or(0).into();
            return Err(WireError::Value { field: "number of devices", value, bound: "from 2 to 8" });
        }
        let user_data = options.user_data.unwrap_or_default();
        Ok(Self {
            minor,
            features,
            conn_id,
            generation,
            role,
            kind,
            policy,
            limits,
            first_slots,
            devices,
            path,
            user_data: user_data.to_vec(),
        })
    }
}

/// The TLVs of a HELLO.
#[derive(Default)]
struct HelloOptions<'a> {
    endpoint: Option<Endpoint>,
    unavailable: Option<Unavailable>,
    first_slots: Option<u32>,
    devices: Option<u8>,
    user_data: Option<&'a [u8]>,
}

impl<'a> HelloOptions<'a> {
    fn decode(list: &'a [u8]) -> Result<Self, WireError> {
        let mut options = Self::default();
        for entry in Tlvs::new(list) {
            match entry? {
                (tlv::ENDPOINT, value) => {
                    once(&mut options.endpoint, Endpoint::decode(value)?, "endpoint")?;
                }
                (tlv::UNAVAILABLE, value) => {
                    once(&mut options.unavailable, unavailable(value)?, "reason for having no endpoint")?;
                }
                (tlv::FIRST_SLOTS, value) => {
                    let first = Reader::new(value, "first slots").u32()?;
                    once(&mut options.first_slots, first, "number of first slots")?;
                }
                (tlv::RAILS, value) => {
                    let devices = Reader::new(value, "devices").u8()?;
                    once(&mut options.devices, devices, "number of devices")?;
                }
                (tlv::USER_DATA, value) if value.len() > MAX_USER_DATA => {
                    return Err(WireError::Value {
                        field: "length of the user data",
                        value: value.len() as u64,
                        bound: "at most 1024",
                    });
                }
                (tlv::USER_DATA, value) => once(&mut options.user_data, value, "user data")?,
                // A TLV of a newer version, or a reserved one.
                _ => {}
            }
        }
        Ok(options)
    }

    fn path(&self) -> Result<Endpoint, Unavailable> {
        self.endpoint.ok_or_else(|| self.unavailable.clone().unwrap_or_else(Unavailable::unspecified))
    }
}

fn once<T>(place: &mut Option<T>, value: T, what: &'static str) -> Result<(), WireError> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(WireError::Twice(what)),
    }
}

fn unavailable(value: &[u8]) -> Result<Unavailable, WireError> {
    let mut reader = Reader::new(value, "reason for having no endpoint");
    let cause = Cause::from_code(reader.u16()?);
    Ok(Unavailable { cause, detail: text(reader.rest()) })
}

impl Role {
    pub(super) const fn number(self) -> u8 {
        match self {
            Self::Client => 1,
            Self::Server => 2,
        }
    }

    pub(super) fn from_number(number: u8) -> Result<Self, WireError> {
        match number {
            1 => Ok(Self::Client),
            2 => Ok(Self::Server),
            _ => Err(WireError::Value {
                field: "role",
                value: number.into(),
                bound: "1 (client) or 2 (server)",
            }),
        }
    }
}

impl Kind {
    pub(super) const fn number(self) -> u8 {
        match self {
            Self::Stream => 1,
            Self::SeqPacket => 2,
        }
    }

    pub(super) fn from_number(number: u8) -> Result<Self, WireError> {
        match number {
            1 => Ok(Self::Stream),
            2 => Ok(Self::SeqPacket),
            _ => Err(WireError::Value {
                field: "kind",
                value: number.into(),
                bound: "1 (Stream) or 2 (SeqPacket)",
            }),
        }
    }
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Stream => "bytes (Stream)",
            Self::SeqPacket => "messages (SeqPacket)",
        })
    }
}

impl Policy {
    const fn number(self) -> u8 {
        match self {
            Self::Auto => 0,
            Self::RequireRdma => 1,
            Self::TcpOnly => 2,
        }
    }

    fn from_number(number: u8) -> Result<Self, WireError> {
        match number {
            0 => Ok(Self::Auto),
            1 => Ok(Self::RequireRdma),
            2 => Ok(Self::TcpOnly),
            _ => Err(WireError::Value { field: "policy", value: number.into(), bound: "0, 1 or 2" }),
        }
    }
}
