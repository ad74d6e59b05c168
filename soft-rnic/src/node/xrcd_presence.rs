//! Presence of an XRC domain: whether another process has it open, agreed on by socket names.
//!
//! A thing has seats, each the abstract name of a socket. Whoever has it open holds one; a name that cannot be taken shows that
//! somebody does. One more name is the lock under which that is looked at. The kernel frees all of them with their process.

use std::ffi::c_int;
use std::io;
use std::time::{Duration, Instant};

use super::{ALONE, Node};
use crate::platform::errno;
use crate::platform::socket::Socket;

/// How many processes can have a thing open at a time.
const MAX_HOLDERS: u32 = 64;
/// How often somebody looks whether the lock is free.
const LOCK_RETRY: Duration = Duration::from_millis(1);

/// That this process has a thing open.
#[derive(Debug)]
pub(crate) struct XrcdPresence {
    _name: Option<Socket>,
}

impl Node {
    /// Notes that an XRC domain is open here, if `admit` agrees, which is told whether another process has it open.
    ///
    /// # Errors
    ///
    /// As `errno`: what `admit` says; `EBUSY` too many processes have it open, or one that is stopped is about to; or the system has no
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

/// The name, if nobody has it.
fn take(name: &[u8]) -> Result<Option<Socket>, c_int> {
    match Socket::listen(name) {
        Ok(socket) => Ok(Some(socket)),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Ok(None),
        Err(error) => Err(errno::of(&error)),
    }
}
