//! Presence of an XRC domain: whether other processes have opened it, determined by socket names.
//!
//! Each process that has a domain open listens at a name of the domain, and the list of sockets
//! shows the names. One process at a time owns the lock under which the names are examined. The
//! kernel frees all of them when their process ends.

use std::ffi::c_int;
use std::io;
use std::time::{Duration, Instant};

use super::{ALONE, Node, NodeState, names};
use crate::platform::errno;
use crate::platform::socket::Socket;

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
    /// As `errno`: the error of `admit`; `EBUSY` if a process holds the lock for too
    /// long, for example because it is stopped; or an error of the system, such as a lack of
    /// descriptors.
    pub(crate) fn enter_domain(
        &self,
        id: [u64; 2],
        admit: impl FnOnce(bool) -> Result<(), c_int>,
    ) -> Result<XrcdPresence, c_int> {
        if ALONE {
            return admit(false).map(|()| XrcdPresence { _name: None });
        }
        let [inode, file_system] = id;
        let NodeState { common, socket_user: user, .. } = &*self.state;
        let domain = format!("soft-rnic/{}/xrc/{file_system:x}-{inode:x}", common.settings.fabric);
        let errno = |error: io::Error| errno::of(&error);
        let deadline = Instant::now() + common.settings.patience;
        let _lock = loop {
            match names::claim(&format!("{domain}/lock"), *user).map_err(errno)? {
                Some(lock) => break lock,
                None if Instant::now() >= deadline => return Err(libc::EBUSY),
                None => std::thread::sleep(LOCK_RETRY),
            }
        };
        let holders = format!("{domain}/open");
        admit(names::has_owner(&holders, *user).map_err(errno)?)?;
        Ok(XrcdPresence { _name: Some(names::present(&holders).map_err(errno)?) })
    }
}
