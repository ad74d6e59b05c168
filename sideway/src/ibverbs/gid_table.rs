//! Reading the GID tables of ports.

use std::io;

use rdma_mummy_sys::types::{ibv_gid, ibv_gid_entry};
use rdma_mummy_sys::verbs;

use super::address::{Gid, GidEntry};
use super::device_context::DeviceContext;
use super::{check, sysfs};
use crate::error::Error;

impl DeviceContext {
    /// One entry of a port's GID table, without its type (`ibv_query_gid`).
    ///
    /// # Errors
    ///
    /// There is no such port or index.
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

    /// One entry of a port's GID table, with type and network device (`ibv_query_gid_ex`, or sysfs where
    /// the library does not have it).
    ///
    /// # Errors
    ///
    /// There is no such port, or no entry at this index.
    ///
    /// # References
    ///
    /// `man ibv_query_gid_ex`
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

    /// The GID tables of all ports, without their empty entries (`ibv_query_gid_table`, or sysfs where the
    /// library does not have it).
    ///
    /// # Errors
    ///
    /// The tables cannot be read.
    ///
    /// # References
    ///
    /// `man ibv_query_gid_table`
    pub fn query_gid_table(&self) -> Result<Vec<GidEntry>, Error> {
        const VERB: &str = "ibv_query_gid_table";
        let ports = self.query_device()?.phys_port_cnt();
        let mut room = 0;
        for port in 1..=ports {
            // Indices have 16 bits, so a table cannot be longer; a larger length from the device is
            // cut off.
            room += usize::try_from(self.query_port(port)?.gid_tbl_len().clamp(0, 1 << 16)).unwrap_or(0);
        }
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
                Err(Error::os(VERB, super::os_error(errno)))
            }
        }
    }
}

#[cold]
fn no_gid(verb: &'static str, port_num: u8, gid_index: u32, source: io::Error) -> Error {
    Error::os(verb, source).with("port_num", port_num).with("gid_index", gid_index)
}
