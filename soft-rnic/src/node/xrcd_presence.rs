//! Presence of an XRC domain: whether other processes have opened it, determined by socket names.
//!
//! Each domain has a fixed number of abstract socket names. Each process that has the domain open
//! holds one of them, and a name that cannot be taken shows that a process holds it. One further
//! name is the lock under which the names are examined. The kernel frees all of them when their
//! process ends.

use std::ffi::c_int;
use std::io;
use std::time::{Duration, Instant};

use super::{ALONE, Node};
use crate::platform::errno;
use crate::platform::socket::Socket;

/// The most processes that can have a domain open at a time.
const MAX_HOLDERS: u32 = 64;
/// The interval between attempts to take the lock.
const LOCK_RETRY: Duration = Duration::from_millis(1);

/// Holds the name that shows that this process has a domain open.
#[derive(Debug)]
pub(crate) struct XrcdPresence {
    _name: Option<Socket>,
}

impl Node {
    /// Records that this process opens an XRC domain, if `admit` agrees. `admit` is told whether
    /// another process has opened it.
    ///
    /// # Errors
    ///
    /// As `errno`: the error of `admit`; `EBUSY` if too many processes have it open, or if a
    /// process holds the lock for too long, for example because it is stopped; or an error of the
    /// system, such as a lack of descriptors.
    pub(crate) fn enter_domain(
        &self,
        id: [u64; 2],
        admit: impl FnOnce(bool) -> Result<(), c_int>,
    ) -> Result<XrcdPresence, c_int> {
        if ALONE {
            return admit(false).map(|()| XrcdPresence { _name: None });
        }
        let [inode, file_system] = id;
        let name = |part: &str| {
            let fabric = &self.state.common.settings.fabric;
            format!("soft-rnic/{fabric}/xrc/{file_system:x}-{inode:x}/{part}").into_bytes()
        };
        let deadline = Instant::now() + self.state.common.settings.patience;
        let _lock = loop {
            match take(&name("lock"))? {
                Some(lock) => break lock,
                None if Instant::now() >= deadline => return Err(libc::EBUSY),
                None => std::thread::sleep(LOCK_RETRY),
            }
        };
        let (mut there, mut free) = (false, None);
        for name_taken in 0..MAX_HOLDERS {
            match take(&name(&name_taken.to_string()))? {
                None => there = true,
                Some(name_taken) => free = free.or(Some(name_taken)),
            }
        }
        admit(there)?;
        free.map(|name_taken| XrcdPresence { _name: Some(name_taken) }).ok_or(libc::EBUSY)
    }
}

/// Takes the name; `None` if it is in use.
fn take(name: &[u8]) -> Result<Option<Socket>, c_int> {
    match Socket::listen(name) {
        Ok(socket) => Ok(Some(socket)),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Ok(None),
        Err(error) => Err(errno::of(&error)),
    }
}
