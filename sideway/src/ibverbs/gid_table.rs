//! Reading the GID tables of ports.

use std::io;

use rdma_mummy_sys::types::{ibv_gid, ibv_gid_entry};
use rdma_mummy_sys::verbs;

use super::address::{Gid, GidEntry};
use super::device_context::DeviceContext;
use super::{check, sysfs};
use crate::error::Error;

impl DeviceContext {
    /// Queries one entry of a port's GID table, without its type (`ibv_query_gid`).
    ///
    /// # Errors
    ///
    /// Fails if the port or the index does not exist.
    ///
    /// # References
    ///
    /// `man ibv_query_gid`
    pub fn query_gid(&self, port_num: u8, gid_index: u32) -> Result<Gid, Error> {
        let error = |source| no_gid("ibv_query_gid", port_num, gid_index, source);
        let index =
            i32::try_from(gid_index).map_err(|_| error(io::Error::from_raw_os_error(libc::EINVAL)))?;
        let mut gid = ibv_gid::default();
        // SAFETY: `self` keeps the context open, and `gid` is a local variable.
        let result = unsafe {
            (self.provider().verbs().ibv_query_gid)(self.as_raw().as_ptr(), port_num, index, &raw mut gid)
        };
        check(result).map_err(error)?;
        Ok(Gid::from(gid))
    }

    /// Queries one entry of a port's GID table, with type and network device. Uses
    /// `ibv_query_gid_ex`, or sysfs if the library lacks it.
    ///
    /// # Errors
    ///
    /// Fails if the port does not exist, or if the table has no entry at this index.
    ///
    /// # References
    ///
    /// `man ibv_query_gid_ex`
    #[doc(alias = "query_gid_type")]
    pub fn query_gid_ex(&self, port_num: u8, gid_index: u32) -> Result<GidEntry, Error> {
        let error = |source| no_gid("ibv_query_gid_ex", port_num, gid_index, source);
        let mut entry = ibv_gid_entry::default();
        // SAFETY: `self` keeps the context open, and `entry` is a local variable.
        let result = unsafe {
            verbs::ibv_query_gid_ex(
                self.provider().verbs(),
                self.as_raw().as_ptr(),
                u32::from(port_num),
                gid_index,
                &raw mut entry,
                0,
            )
        };
        match result {
            0 => Ok(GidEntry::new(entry)),
            libc::EOPNOTSUPP => sysfs::gid_entry(&self.name(), port_num, gid_index).map_err(error),
            errno => Err(error(super::os_error(errno))),
        }
    }

    /// Queries the GID tables of all ports, without their empty entries. Uses
    /// `ibv_query_gid_table`, or sysfs if the library lacks it. If the table cannot be read as a
    /// whole, for example because one entry gives `EINVAL`, it has the entries that can be read.
    ///
    /// # Errors
    ///
    /// Fails if no entry can be read.
    ///
    /// # References
    ///
    /// `man ibv_query_gid_table`
    pub fn query_gid_table(&self) -> Result<Vec<GidEntry>, Error> {
        const VERB: &str = "ibv_query_gid_table";
        let ports = self.query_device()?.phys_port_cnt();
        let mut lengths = Vec::new();
        for port in 1..=ports {
            // Indices have 16 bits, so a table cannot be longer; a larger length from the device is
            // cut off.
            lengths.push((port, self.query_port(port)?.gid_tbl_len().clamp(0, 1 << 16).cast_unsigned()));
        }
        let room = lengths.iter().map(|(_, length)| *length as usize).sum();
        let mut entries = vec![ibv_gid_entry::default(); room];
        // SAFETY: `self` keeps the context open, and `entries` has the length that is passed.
        let count = unsafe {
            verbs::ibv_query_gid_table(
                self.provider().verbs(),
                self.as_raw().as_ptr(),
                entries.as_mut_ptr(),
                entries.len(),
                0,
            )
        };
        match usize::try_from(count) {
            Ok(count) => {
                entries.truncate(count);
                Ok(entries.into_iter().map(GidEntry::new).collect())
            }
            Err(_) if count == -(libc::EOPNOTSUPP as isize) => sysfs::gid_table(&self.name(), ports)
                .map_err(|source| Error::os(VERB, source).reason("the GID table in sysfs cannot be read")),
            Err(_) => {
                let errno = i32::try_from(count.saturating_neg()).unwrap_or(libc::EIO);
                match self.readable_entries(&lengths) {
                    entries if entries.is_empty() => Err(Error::os(VERB, super::os_error(errno))),
                    entries => Ok(entries),
                }
            }
        }
    }

    /// The entries that can be read one by one and are not empty. `lengths` has the ports with the
    /// lengths of their tables.
    #[cold]
    fn readable_entries(&self, lengths: &[(u8, u32)]) -> Vec<GidEntry> {
        let each = lengths.iter().flat_map(|&(port, length)| (0..length).map(move |index| (port, index)));
        each.filter_map(|(port, index)| self.query_gid_ex(port, index).ok())
            .filter(|entry| !entry.gid().is_zero())
            .collect()
    }
}

#[cold]
fn no_gid(verb: &'static str, port_num: u8, gid_index: u32, source: io::Error) -> Error {
    Error::os(verb, source).with("port_num", port_num).with("gid_index", gid_index)
}
