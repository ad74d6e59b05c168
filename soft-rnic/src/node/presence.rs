//! What processes have to agree on without a word: whether any of them has a thing open.
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
const SEATS: u32 = 64;
/// How often somebody looks whether the lock is free.
const LOOK: Duration = Duration::from_millis(1);

/// That this process has a thing open.
#[derive(Debug)]
pub(crate) struct Presence {
    _seat: Option<Socket>,
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
    ) -> Result<Presence, c_int> {
        if ALONE {
            return admit(false).map(|()| Presence { _seat: None });
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
                None => std::thread::sleep(LOOK),
            }
        };
        let (mut there, mut free) = (false, None);
        for seat in 0..SEATS {
            match take(&name(&seat.to_string()))? {
                None => there = true,
                Some(seat) => free = free.or(Some(seat)),
            }
        }
        admit(there)?;
        free.map(|seat| Presence { _seat: Some(seat) }).ok_or(libc::EBUSY)
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
