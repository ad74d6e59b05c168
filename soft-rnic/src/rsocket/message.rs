//! The wire format of an rsocket connection: hello, data, credits, mappings.
//!
//! In the private data of the connection handshake, each side announces its receive capacity
//! ([`RsHello`]). After that they send messages. A data message contains only bytes of the stream.
//! The immediate data ([`ImmData`]) holds the message's kind and the number of receives that its
//! sender has reposted since its previous message.

/// The fewest receives of a side: see [`super::window`].
pub(super) const LEAST_SLOTS: u16 = 16;
/// The least and the greatest length of a message slot, in bytes. Every control message fits the
/// least.
pub(super) const SHORTEST: u32 = 64;
pub(super) const LONGEST: u32 = 1 << 20;

const MAGIC: [u8; 4] = *b"rsk\x01";

/// The receive capacity of a side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RsHello {
    /// The number of messages.
    pub(super) slots: u16,
    /// The length of each message, in bytes.
    pub(super) length: u32,
    /// The number of mappings that the other side may announce.
    pub(super) mappings: u16,
}

impl RsHello {
    pub(super) const LEN: usize = 12;

    pub(super) fn encode(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&self.slots.to_le_bytes());
        bytes[6..10].copy_from_slice(&self.length.to_le_bytes());
        bytes[10..].copy_from_slice(&self.mappings.to_le_bytes());
        bytes
    }

    /// Decodes the other side's hello; `None` if the peer is not an rsocket of this kind. Padding
    /// may follow it in the private data.
    pub(super) fn decode(data: &[u8]) -> Option<Self> {
        let (magic, rest) = data.split_first_chunk()?;
        let (slots, rest) = rest.split_first_chunk()?;
        let (length, rest) = rest.split_first_chunk()?;
        let (mappings, _) = rest.split_first_chunk()?;
        let (slots, length) = (u16::from_le_bytes(*slots), u32::from_le_bytes(*length));
        let is_possible = *magic == MAGIC && slots >= LEAST_SLOTS && (SHORTEST..=LONGEST).contains(&length);
        is_possible.then_some(Self { slots, length, mappings: u16::from_le_bytes(*mappings) })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum RsMessageKind {
    /// A piece of the stream.
    Data = 1,
    /// Empty: only returns credits.
    Credit = 2,
    /// The end of the stream.
    End = 3,
    /// Announces memory that the receiver may write to: a [`RemoteMapping`].
    Map = 4,
    /// Withdraws a mapping: contains its offset.
    Unmap = 5,
}

/// The immediate data of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ImmData {
    pub(super) kind: RsMessageKind,
    /// The receives that the sender has reposted since its previous message.
    pub(super) credits: u16,
}

impl ImmData {
    pub(super) fn encode(self) -> u32 {
        (self.kind as u32) << 16 | u32::from(self.credits)
    }

    pub(super) fn decode(bits: u32) -> Option<Self> {
        let kind = match bits >> 16 {
            1 => RsMessageKind::Data,
            2 => RsMessageKind::Credit,
            3 => RsMessageKind::End,
            4 => RsMessageKind::Map,
            5 => RsMessageKind::Unmap,
            _ => return None,
        };
        Some(Self { kind, credits: bits as u16 })
    }
}

/// A mapping that the other side has announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RemoteMapping {
    /// The offset by which the programs address its first byte.
    pub(super) offset: u64,
    pub(super) length: u64,
    pub(super) address: u64,
    pub(super) rkey: u32,
}

impl RemoteMapping {
    pub(super) const LEN: usize = 28;

    pub(super) fn encode(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        for (place, value) in bytes.chunks_exact_mut(8).zip([self.offset, self.length, self.address]) {
            place.copy_from_slice(&value.to_le_bytes());
        }
        bytes[24..].copy_from_slice(&self.rkey.to_le_bytes());
        bytes
    }

    /// Decodes a mapping; `None` if it is malformed or its range overflows.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::LEN] = bytes.try_into().ok()?;
        let word = |at: usize| bytes[at..at + 8].try_into().map(u64::from_le_bytes).ok();
        let (offset, length, address) = (word(0)?, word(8)?, word(16)?);
        let rkey = u32::from_le_bytes(bytes[24..].try_into().ok()?);
        let ends = offset.checked_add(length).zip(address.checked_add(length));
        (length != 0 && ends.is_some()).then_some(Self { offset, length, address, rkey })
    }

    /// The address of a range of offsets, if the mapping contains all of it.
    pub(super) fn find(&self, offset: u64, length: u64) -> Option<u64> {
        let start = offset.checked_sub(self.offset)?;
        (start.checked_add(length)? <= self.length).then(|| self.address + start)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn messages_decode_as_they_were_encoded() {
        let hello = RsHello { slots: 16, length: LONGEST, mappings: 3 };
        let mut bytes = hello.encode().to_vec();
        assert_eq!(RsHello::decode(&bytes[..11]), None, "too short");
        bytes.resize(56, 0);
        assert_eq!(RsHello::decode(&bytes), Some(hello));
        for wrong in [
            RsHello { slots: 15, ..hello },
            RsHello { length: SHORTEST - 1, ..hello },
            RsHello { length: LONGEST + 1, ..hello },
        ] {
            assert_eq!(RsHello::decode(&wrong.encode()), None);
        }
        bytes[3] = 2;
        assert_eq!(RsHello::decode(&bytes), None, "another version");
        for kind in [
            RsMessageKind::Data,
            RsMessageKind::Credit,
            RsMessageKind::End,
            RsMessageKind::Map,
            RsMessageKind::Unmap,
        ] {
            let note = ImmData { kind, credits: 0xffff };
            assert_eq!(ImmData::decode(note.encode()), Some(note));
        }
        assert_eq!((ImmData::decode(0), ImmData::decode(6 << 16), ImmData::decode(!0)), (None, None, None));
    }

    #[test]
    fn mappings_are_found_by_their_offsets() {
        let mapping = RemoteMapping { offset: 100, length: 50, address: 1000, rkey: 7 };
        assert_eq!(RemoteMapping::decode(&mapping.encode()), Some(mapping));
        assert_eq!(RemoteMapping::decode(&mapping.encode()[1..]), None);
        for wrong in [
            RemoteMapping { length: 0, ..mapping },
            RemoteMapping { address: u64::MAX, ..mapping },
            RemoteMapping { offset: u64::MAX, ..mapping },
        ] {
            assert_eq!(RemoteMapping::decode(&wrong.encode()), None);
        }
        assert_eq!(mapping.find(100, 50), Some(1000));
        assert_eq!(mapping.find(149, 1), Some(1049));
        for (offset, length) in [(99, 1), (100, 51), (150, 1), (u64::MAX, 1), (120, u64::MAX)] {
            assert_eq!(mapping.find(offset, length), None);
        }
    }
}
