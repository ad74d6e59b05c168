//! The wire format of an rsocket connection: hello, data, credits, mappings.
//!
//! When they connect, each says in the private data what it has room for ([`RsHello`]). Then they send messages: their bytes are
//! the stream's and nothing else's; what a message is stands in its immediate data ([`ImmData`]), and with it how many receives
//! the sender has posted anew since it last said so.

/// The fewest receives of a side: see [`super::window`].
pub(super) const LEAST_SLOTS: u16 = 16;
/// What every message may have that is not data, and the longest message.
pub(super) const SHORTEST: u32 = 64;
pub(super) const LONGEST: u32 = 1 << 20;

const MAGIC: [u8; 4] = *b"rsk\x01";

/// What a side has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RsHello {
    /// How many messages.
    pub(super) slots: u16,
    /// How long each may be.
    pub(super) length: u32,
    /// How many mappings the other side may have here.
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

    /// What the other side has said; `None` if it is no rsocket of this kind. Private data may have zeros behind.
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

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum RsMessageKind {
    /// A piece of the stream.
    Data = 1,
    /// Nothing but how many receives were posted.
    Credit = 2,
    /// The stream's end.
    End = 3,
    /// Memory that the other side may write to: a [`RemoteMapping`].
    Map = 4,
    /// Such memory is no more: its offset.
    Unmap = 5,
}

/// A message's immediate data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ImmData {
    pub(super) kind: RsMessageKind,
    /// Receives that were posted anew since the last message.
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

/// Memory of the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RemoteMapping {
    /// What the programs know its first byte by.
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

    /// `None` if there can be no such memory.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::LEN] = bytes.try_into().ok()?;
        let word = |at: usize| bytes[at..at + 8].try_into().map(u64::from_le_bytes).ok();
        let (offset, length, address) = (word(0)?, word(8)?, word(16)?);
        let rkey = u32::from_le_bytes(bytes[24..].try_into().ok()?);
        let ends = offset.checked_add(length).zip(address.checked_add(length));
        (length != 0 && ends.is_some()).then_some(Self { offset, length, address, rkey })
    }

    /// Where a range of offsets lies, if all of it is here.
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
