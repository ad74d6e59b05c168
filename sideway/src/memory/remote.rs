//! A peer's memory: its address, length and key, and checked places in it.
//!
//! The owner makes a [`RemoteMemory`] of what it has registered, and sends it. The peer accesses it by
//! [`at`](RemoteMemory::at), which refuses places outside, instead of by sums of numbers that only the
//! owner's device would refuse.
//!
//! ```
//! use sideway::memory::RemoteMemory;
//!
//! // What the owner sends: `buffer.remote()` of a `RegisteredBuffer`, a `Pool` or a `MemoryRegion`.
//! let memory = RemoteMemory::new(0x7f00_0000_0000, 4096, 77)?;
//! let place = memory.at(1024, 512)?;
//! assert_eq!((place.addr(), place.rkey(), place.len()), (0x7f00_0000_0400, 77, 512));
//! let error = memory.at(4000, 97).unwrap_err();
//! assert_eq!(error.to_string(), "97 bytes at offset 4000 are not within the peer's 4096 bytes");
//! # Ok::<(), sideway::memory::OutOfRemoteMemory>(())
//! ```

use std::fmt;

use serde_core::de::{Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_core::ser::SerializeStruct;
use serde_core::{Deserialize, Deserializer, Serialize, Serializer};

use super::RegisteredBuffer;
use super::pool::Pool;
use crate::ibverbs::memory_region::MemoryRegion;

/// Memory of a peer that its key lets this side access.
///
/// With serde it is a struct of the fields `addr`, `len` and `rkey`. Memory that would end behind the
/// last address is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteMemory {
    addr: u64,
    len: u64,
    rkey: u32,
}

/// Checked bytes of a peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemotePlace {
    addr: u64,
    len: u32,
    rkey: u32,
}

/// Bytes are not within a peer's memory, or are more than a work request moves.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct OutOfRemoteMemory {
    /// The first byte.
    pub offset: u64,
    /// The number of bytes.
    pub len: u64,
    /// The length of the memory.
    pub of: u64,
}

impl fmt::Display for OutOfRemoteMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { offset, len, of } = self;
        if offset.checked_add(*len).is_some_and(|end| end <= *of) {
            return write!(f, "{len} bytes are more than a work request moves (2^32 - 1): post several");
        }
        write!(f, "{len} bytes at offset {offset} are not within the peer's {of} bytes")
    }
}

impl std::error::Error for OutOfRemoteMemory {}

debug_as_text!(OutOfRemoteMemory);

impl RemoteMemory {
    /// Memory of these numbers, which the owner has told.
    ///
    /// # Errors
    ///
    /// The memory would end behind the last address.
    pub fn new(addr: u64, len: u64, rkey: u32) -> Result<Self, OutOfRemoteMemory> {
        match addr.checked_add(len) {
            Some(_) => Ok(Self { addr, len, rkey }),
            None => Err(OutOfRemoteMemory { offset: addr, len, of: u64::MAX }),
        }
    }

    /// The address of the first byte in the owner's process, or its offset in a zero-based region.
    #[must_use]
    pub fn addr(&self) -> u64 {
        self.addr
    }

    /// The length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The key.
    #[must_use]
    pub fn rkey(&self) -> u32 {
        self.rkey
    }

    /// The `len` bytes from `offset` on.
    ///
    /// # Errors
    ///
    /// They are not all within the memory, or are 4 GiB or more.
    #[inline]
    pub fn at(&self, offset: u64, len: u64) -> Result<RemotePlace, OutOfRemoteMemory> {
        let is_within = offset.checked_add(len).is_some_and(|end| end <= self.len);
        match u32::try_from(len) {
            Ok(len) if is_within => Ok(RemotePlace { addr: self.addr + offset, len, rkey: self.rkey }),
            _ => Err(OutOfRemoteMemory { offset, len, of: self.len }),
        }
    }
}

impl RemotePlace {
    /// The address of the first byte.
    #[inline]
    #[must_use]
    pub fn addr(&self) -> u64 {
        self.addr
    }

    /// The number of bytes.
    #[inline]
    #[must_use]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether there are no bytes.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The key.
    #[inline]
    #[must_use]
    pub fn rkey(&self) -> u32 {
        self.rkey
    }
}

impl RegisteredBuffer {
    /// What a peer needs to access the buffer, as far as the region's access flags allow.
    #[must_use]
    pub fn remote(&self) -> RemoteMemory {
        self.region().remote()
    }
}

impl Pool {
    /// What a peer needs to access the pool's memory, as far as its access flags allow.
    #[must_use]
    pub fn remote(&self) -> RemoteMemory {
        self.memory().remote()
    }
}

impl MemoryRegion {
    /// What a peer needs to access the region, as far as its access flags allow.
    #[must_use]
    pub fn remote(&self) -> RemoteMemory {
        RemoteMemory { addr: self.iova(), len: self.region_len() as u64, rkey: self.rkey() }
    }
}

const NAME: &str = "RemoteMemory";
const FIELDS: &[&str] = &["addr", "len", "rkey"];

/// As serde's derive macro would write it (`docs/decisions/0001-build-time.md`).
impl Serialize for RemoteMemory {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct(NAME, FIELDS.len())?;
        fields.serialize_field(FIELDS[0], &self.addr)?;
        fields.serialize_field(FIELDS[1], &self.len)?;
        fields.serialize_field(FIELDS[2], &self.rkey)?;
        fields.end()
    }
}

impl<'de> Deserialize<'de> for RemoteMemory {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (addr, len, rkey) = deserializer.deserialize_struct(NAME, FIELDS, Fields)?;
        Self::new(addr, len, rkey).map_err(D::Error::custom)
    }
}

struct Fields;

impl<'de> Visitor<'de> for Fields {
    type Value = (u64, u64, u32);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("struct RemoteMemory")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut fields: A) -> Result<Self::Value, A::Error> {
        let missing = |index| move || A::Error::invalid_length(index, &"struct RemoteMemory");
        Ok((
            fields.next_element()?.ok_or_else(missing(0))?,
            fields.next_element()?.ok_or_else(missing(1))?,
            fields.next_element()?.ok_or_else(missing(2))?,
        ))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Self::Value, A::Error> {
        let (mut addr, mut len, mut rkey) = (None, None, None);
        let twice = |index: usize| A::Error::duplicate_field(FIELDS[index]);
        while let Some(name) = fields.next_key::<String>()? {
            match &name[..] {
                "addr" if addr.replace(fields.next_value()?).is_some() => return Err(twice(0)),
                "len" if len.replace(fields.next_value()?).is_some() => return Err(twice(1)),
                "rkey" if rkey.replace(fields.next_value()?).is_some() => return Err(twice(2)),
                "addr" | "len" | "rkey" => (),
                _ => drop(fields.next_value::<IgnoredAny>()?),
            }
        }
        let missing = |index: usize| move || A::Error::missing_field(FIELDS[index]);
        Ok((addr.ok_or_else(missing(0))?, len.ok_or_else(missing(1))?, rkey.ok_or_else(missing(2))?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_within_the_memory() {
        let memory = RemoteMemory::new(1 << 40, 5 << 30, 7).unwrap();
        assert_eq!(memory.at(0, 0).unwrap().addr(), 1 << 40);
        assert!(memory.at(5 << 30, 0).unwrap().is_empty());
        assert_eq!(memory.at((5 << 30) - 1, 1).unwrap().addr(), (1 << 40) + (5 << 30) - 1);
        assert_eq!(memory.at(1 << 30, u64::from(u32::MAX)).unwrap().len(), u32::MAX);
        for (offset, len) in [(5 << 30, 1), (u64::MAX, 1), (1, u64::MAX), (0, (5 << 30) + 1)] {
            let error = memory.at(offset, len).unwrap_err();
            assert!(error.to_string().contains("are not within"), "{error}");
        }
        let error = memory.at(0, 1 << 32).unwrap_err();
        assert!(error.to_string().contains("post several"), "{error}");
        assert!(RemoteMemory::new(u64::MAX, 1, 7).is_err() && RemoteMemory::new(u64::MAX, 0, 7).is_ok());
    }

    #[test]
    fn it_goes_to_the_peer_by_serde() {
        let memory = RemoteMemory::new(4096, 64, 7).unwrap();
        let text = r#"{"addr":4096,"len":64,"rkey":7}"#;
        assert_eq!(serde_json::to_string(&memory).unwrap(), text);
        for text in [text, "[4096,64,7]", r#"{"rkey":7,"other":[1],"len":64,"addr":4096}"#] {
            assert_eq!(serde_json::from_str::<RemoteMemory>(text).unwrap(), memory);
        }
        for (text, reason) in [
            (r#"{"addr":4096,"len":64}"#, "missing field `rkey`"),
            (r#"{"addr":4096,"addr":1,"len":64,"rkey":7}"#, "duplicate field `addr`"),
            (r#"{"addr":18446744073709551615,"len":2,"rkey":7}"#, "are not within"),
            ("[1,2]", "invalid length 2"),
            ("7", "expected struct RemoteMemory"),
        ] {
            let error = serde_json::from_str::<RemoteMemory>(text).unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
