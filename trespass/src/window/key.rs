//! Keys: what a peer must have to reach a window, and its bytes.
//!
//! ```text
//! 0 magic "TWIN" | 4 version u16 | 6 kind of memory u8 | 7 access u8
//! 8 owner u64 | 16 connection u64 | 24 region u32 | 28 generation u32
//! 32 base u64 | 40 length u64 | 48 device of atomics u64, 0: the owner's processor
//! 56 device keys u32 | 60 reserved u32, 0
//! 64 for each: device u64 | key u32 | reserved u32
//! then crc32 of all before, u32
//! ```
//!
//! All numbers are little-endian. The checksum finds damage by accident. Nobody is kept out by it:
//! the owner checks each use.

use std::fmt;
use std::sync::Arc;

use super::error::KeyError;

const MAGIC: [u8; 4] = *b"TWIN";
const VERSION: u16 = 1;
/// The bytes before the device keys.
const FIXED: usize = 64;
const DEVICE_KEY: usize = 16;
const CHECKSUM: usize = 4;
/// The most device keys. A connection has fewer devices.
const MOST_DEVICES: u32 = 64;
/// The memory of a process.
const HOST: u8 = 0;

/// The operations that a peer may perform on a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Access(u8);

impl Access {
    /// `get`.
    pub const READ: Self = Self(1);
    /// `put`.
    pub const WRITE: Self = Self(2);
    /// `fetch_add` and `compare_swap`.
    pub const ATOMIC: Self = Self(4);
    /// All operations.
    pub const ALL: Self = Self(7);

    /// Whether all operations of `other` are among these.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl std::ops::BitOr for Access {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [(Self::READ, "read"), (Self::WRITE, "write"), (Self::ATOMIC, "atomic")];
        let mut names = names.iter().filter(|(access, _)| self.contains(*access)).map(|(_, name)| name);
        let Some(first) = names.next() else { return f.write_str("nothing") };
        f.write_str(first)?;
        names.try_for_each(|name| write!(f, "+{name}"))
    }
}

/// The key of a window for one device of its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct DeviceKey {
    /// A random number, never 0.
    pub(super) device: u64,
    pub(super) rkey: u32,
}

/// Names a window to the one peer that it was offered to.
///
/// It is a description, which may be sent to the peer over any channel, and kept. The peer cannot use
/// it for another window, over another connection, or after the window was revoked.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WindowKey {
    /// The process of the window, a random number.
    pub(super) owner: u64,
    /// The connection that the window was offered over, counted in that process.
    pub(super) connection: u64,
    pub(super) region: u32,
    /// The number of windows that had this region before, counted from 1.
    pub(super) generation: u32,
    pub(super) base: u64,
    pub(super) len: u64,
    pub(super) access: Access,
    /// The device that performs atomic operations, or 0: the owner's processor.
    pub(super) atomics: u64,
    /// Shared, because operations clone the key.
    pub(super) devices: Arc<[DeviceKey]>,
}

impl WindowKey {
    /// The length of the window in bytes.
    #[expect(clippy::len_without_is_empty, reason = "no window is empty")]
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// The operations that the peer may perform.
    #[must_use]
    pub fn access(&self) -> Access {
        self.access
    }

    /// The window's number among those of its connection. A later window may have the same, with
    /// another [generation](Self::generation).
    #[must_use]
    pub fn region(&self) -> u32 {
        self.region
    }

    /// Tells windows with the same number apart.
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// The address of the first byte in the owner's memory.
    #[must_use]
    pub fn base(&self) -> u64 {
        self.base
    }

    /// The bytes of the key, for [`from_bytes`](Self::from_bytes).
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(FIXED + DEVICE_KEY * self.devices.len() + CHECKSUM);
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend([HOST, self.access.0]);
        bytes.extend(self.owner.to_le_bytes());
        bytes.extend(self.connection.to_le_bytes());
        bytes.extend(self.region.to_le_bytes());
        bytes.extend(self.generation.to_le_bytes());
        bytes.extend(self.base.to_le_bytes());
        bytes.extend(self.len.to_le_bytes());
        bytes.extend(self.atomics.to_le_bytes());
        bytes.extend((self.devices.len() as u32).to_le_bytes());
        bytes.resize(FIXED, 0);
        for DeviceKey { device, rkey } in &*self.devices {
            bytes.extend(device.to_le_bytes());
            bytes.extend(u64::from(*rkey).to_le_bytes());
        }
        bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
        bytes
    }

    /// Reads the bytes of [`to_bytes`](Self::to_bytes).
    ///
    /// # Errors
    ///
    /// They are not those of a key, or those of a version or kind that this version does not know.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, KeyError> {
        let short = || KeyError::Length { len: bytes.len() };
        let (content, checksum) = bytes.split_last_chunk::<CHECKSUM>().ok_or_else(short)?;
        let (fixed, keys) = content.split_first_chunk::<FIXED>().ok_or_else(short)?;
        if fixed[..4] != MAGIC {
            return Err(KeyError::NoKey);
        }
        let version = u16::from_le_bytes([fixed[4], fixed[5]]);
        if version != VERSION {
            return Err(KeyError::Version { version, known: VERSION });
        }
        let number = |at: usize| u32::from_le_bytes([fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]]);
        let long = |at: usize| u64::from(number(at)) | u64::from(number(at + 4)) << 32;
        let count = number(56);
        if count > MOST_DEVICES || keys.len() as u64 != DEVICE_KEY as u64 * u64::from(count) {
            return Err(short());
        }
        if crc32fast::hash(content) != u32::from_le_bytes(*checksum) {
            return Err(KeyError::Damaged);
        }
        let (kind, access) = (fixed[6], fixed[7]);
        if kind != HOST {
            return Err(KeyError::Kind { kind });
        }
        let key = Self {
            owner: long(8),
            connection: long(16),
            region: number(24),
            generation: number(28),
            base: long(32),
            len: long(40),
            access: Access(access & Access::ALL.0),
            atomics: long(48),
            devices: keys.as_chunks::<DEVICE_KEY>().0.iter().map(DeviceKey::decode).collect(),
        };
        if key.len == 0 || key.base.checked_add(key.len).is_none() {
            return Err(KeyError::Range { base: key.base, len: key.len });
        }
        Ok(key)
    }

    /// Whether devices may perform its operations.
    #[must_use]
    pub fn is_for_devices(&self) -> bool {
        !self.devices.is_empty()
    }

    /// Whether a range lies in the window.
    pub(super) fn contains(&self, offset: u64, len: u64) -> bool {
        offset.checked_add(len).is_some_and(|end| end <= self.len)
    }
}

impl DeviceKey {
    fn decode(bytes: &[u8; DEVICE_KEY]) -> Self {
        let (device, rkey) = bytes.split_at(8);
        let long = |bytes: &[u8]| bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        Self { device: long(device), rkey: long(rkey) as u32 }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key() -> WindowKey {
        WindowKey {
            owner: 0x1112_1314_1516_1718,
            connection: 2,
            region: 3,
            generation: 4,
            base: 0x7f00_0000_1000,
            len: 4096,
            access: Access::READ | Access::ATOMIC,
            atomics: 0,
            devices: Arc::new([]),
        }
    }

    #[test]
    fn the_bytes_are_those_of_version_1() {
        let bytes = key().to_bytes();
        assert_eq!(bytes.len(), FIXED + CHECKSUM);
        assert_eq!(bytes[..8], *b"TWIN\x01\0\0\x05");
        assert_eq!(bytes[8..16], [0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11]);
        assert_eq!(bytes[16..32], [2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0]);
        assert_eq!(bytes[32..48], [0, 0x10, 0, 0, 0, 0x7f, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0]);
        assert_eq!(WindowKey::from_bytes(&bytes).unwrap(), key());
    }

    #[test]
    fn keys_of_devices_follow() {
        let devices =
            Arc::new([DeviceKey { device: 0x0102, rkey: 7 }, DeviceKey { device: u64::MAX, rkey: u32::MAX }]);
        let key = WindowKey { atomics: 0x0102, devices, ..key() };
        let bytes = key.to_bytes();
        assert_eq!(bytes[48..64], [2, 1, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[64..80], [2, 1, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes.len(), FIXED + 2 * DEVICE_KEY + CHECKSUM);
        assert_eq!(WindowKey::from_bytes(&bytes).unwrap(), key);
    }

    fn changed(change: impl Fn(&mut Vec<u8>)) -> KeyError {
        let mut bytes = key().to_bytes();
        bytes.truncate(FIXED);
        change(&mut bytes);
        bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
        WindowKey::from_bytes(&bytes).unwrap_err()
    }

    #[test]
    fn wrong_keys_are_refused_with_the_reason() {
        assert!(matches!(WindowKey::from_bytes(b"short"), Err(KeyError::Length { len: 5 })));
        assert!(matches!(changed(|bytes| bytes[0] = b'X'), KeyError::NoKey));
        assert!(matches!(changed(|bytes| bytes[4] = 9), KeyError::Version { version: 9, known: VERSION }));
        assert!(matches!(changed(|bytes| bytes[6] = 1), KeyError::Kind { kind: 1 }));
        assert!(matches!(changed(|bytes| bytes[56] = 1), KeyError::Length { .. }));
        let many = |bytes: &mut Vec<u8>| {
            bytes[56] = MOST_DEVICES as u8 + 1;
            bytes.resize(FIXED + DEVICE_KEY * (MOST_DEVICES as usize + 1), 0);
        };
        assert!(matches!(changed(many), KeyError::Length { .. }));
        assert!(matches!(changed(|bytes| bytes[40..48].fill(0)), KeyError::Range { len: 0, .. }));
        assert!(matches!(changed(|bytes| bytes[40..48].fill(0xff)), KeyError::Range { len: u64::MAX, .. }));
        let mut damaged = key().to_bytes();
        damaged[30] ^= 1;
        assert!(matches!(WindowKey::from_bytes(&damaged), Err(KeyError::Damaged)));
    }

    proptest! {
        #[test]
        fn reading_anything_never_panics(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..200),
            begins in any::<bool>(),
        ) {
            if begins && bytes.len() > FIXED + CHECKSUM {
                bytes[..4].copy_from_slice(&MAGIC);
                (bytes[4], bytes[5]) = (1, 0);
                let end = bytes.len() - CHECKSUM;
                let checksum = crc32fast::hash(&bytes[..end]).to_le_bytes();
                bytes[end..].copy_from_slice(&checksum);
            }
            let _ = WindowKey::from_bytes(&bytes);
        }

        #[test]
        fn no_range_beyond_the_end_is_contained(offset in any::<u64>(), len in any::<u64>()) {
            let is_within = u128::from(offset) + u128::from(len) <= u128::from(key().len);
            prop_assert_eq!(key().contains(offset, len), is_within);
        }
    }

    #[test]
    fn an_access_is_told_in_words() {
        assert_eq!((Access::READ | Access::ATOMIC).to_string(), "read+atomic");
        assert_eq!(Access::default().to_string(), "nothing");
    }
}
