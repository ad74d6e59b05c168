//! Partitions: partition keys decide which queue pairs of a network may communicate.
//!
//! Each port has a table of partition keys, and a queue pair selects one by its index
//! (`pkey_index`). Two ends can communicate if their keys have the same base, and at least one of
//! them is a full member.
//!
//! ```
//! # #[cfg(feature = "soft")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use sideway::ibverbs::device::DeviceList;
//! # let list = DeviceList::from_provider(sideway::ProviderChoice::Soft.select()?.provider())?;
//! # let context = list.first()?.open()?;
//! use sideway::ibverbs::partition::PartitionKey;
//!
//! let index = context.pkey_index(1, PartitionKey::DEFAULT)?.ok_or("not in the default partition")?;
//! println!("the default partition is at index {index} of {:?}", context.query_pkey_table(1)?);
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "soft"))]
//! # fn main() {}
//! ```

use std::fmt;
use std::io;

use super::device_context::DeviceContext;
use super::{Unsupported, os_error};
use crate::error::Error;

/// A partition key: 15 bits that identify a partition, and one bit for full membership.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartitionKey(u16);

impl PartitionKey {
    /// The default partition, as a full member: the only one on RoCE.
    pub const DEFAULT: Self = Self(0xffff);

    /// A key from its number, in host byte order.
    pub const fn new(key: u16) -> Self {
        Self(key)
    }

    /// The number, in host byte order.
    pub const fn as_u16(self) -> u16 {
        self.0
    }

    /// The 15 bits that identify the partition.
    pub const fn base(self) -> u16 {
        self.0 & 0x7fff
    }

    /// Whether it is a full member, which reaches all members of the partition. A limited member
    /// reaches full members only.
    pub const fn is_full_member(self) -> bool {
        self.0 & 0x8000 != 0
    }

    /// Whether it is an empty entry of the table.
    pub const fn is_invalid(self) -> bool {
        self.base() == 0
    }
}

impl fmt::Display for PartitionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#06x}", self.0)
    }
}

impl fmt::Debug for PartitionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PartitionKey({self})")
    }
}

impl DeviceContext {
    /// Queries one entry of a port's table of partition keys (`ibv_query_pkey`).
    ///
    /// # Errors
    ///
    /// Fails if the port or the index does not exist.
    ///
    /// # References
    ///
    /// `man ibv_query_pkey`
    pub fn query_pkey(&self, port_num: u8, index: u16) -> Result<PartitionKey, Error> {
        let mut pkey = 0;
        let query = self.provider().verbs().ibv_query_pkey;
        // SAFETY: `self` keeps the context open, and `pkey` is a local variable.
        match unsafe { query(self.as_raw().as_ptr(), port_num, i32::from(index), &raw mut pkey) } {
            0 => Ok(PartitionKey(u16::from_be(pkey))),
            error => Err(Error::os("ibv_query_pkey", os_error(error))
                .with("port_num", port_num)
                .with("index", index)),
        }
    }

    /// Queries a port's whole table of partition keys. Empty entries are included, so that the
    /// position of a key is its index.
    ///
    /// # Errors
    ///
    /// Fails if the port does not exist, or if the device does not answer.
    pub fn query_pkey_table(&self, port_num: u8) -> Result<Vec<PartitionKey>, Error> {
        let length = self.query_port(port_num)?.pkey_tbl_len();
        (0..length).map(|index| self.query_pkey(port_num, index)).collect()
    }

    /// Finds a partition key in a port's table; `None` if the port has no such key. Uses
    /// `ibv_get_pkey_index`, or queries each entry if the library lacks it.
    ///
    /// # Errors
    ///
    /// Fails if the port does not exist, or if the device does not answer.
    ///
    /// # References
    ///
    /// `man ibv_get_pkey_index`
    pub fn pkey_index(&self, port_num: u8, pkey: PartitionKey) -> Result<Option<u16>, Error> {
        // The function returns -1 for a missing key and for a missing port, so the port is queried
        // first.
        let port = self.query_port(port_num)?;
        if let Ok(find) = self.provider().verbs().ibv_get_pkey_index() {
            // SAFETY: `self` keeps the context open.
            let index = unsafe { find(self.as_raw().as_ptr(), port_num, pkey.0.to_be()) };
            if !(index < 0 && Unsupported::is_meant_by(&io::Error::last_os_error())) {
                return Ok(u16::try_from(index).ok());
            }
        }
        for index in 0..port.pkey_tbl_len() {
            if self.query_pkey(port_num, index)? == pkey {
                return Ok(Some(index));
            }
        }
        Ok(None)
    }
}
