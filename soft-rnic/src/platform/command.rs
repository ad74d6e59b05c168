//! The command descriptor (`cmd_fd`): the file behind an open device.
//!
//! The file has no content. Its identity, which all duplicates of the descriptor share,
//! distinguishes it from other files.

use std::io;
use std::os::fd::RawFd;

/// The file system and inode that all duplicates of a descriptor share and no other file has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CommandFileId {
    device: u64,
    inode: u64,
}

#[cfg(not(any(miri, loom)))]
pub(crate) use real::{CommandFile, close, identify};

#[cfg(not(any(miri, loom)))]
mod real {
    use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

    use rustix::fs::{MemfdFlags, fstat, memfd_create};

    use super::{CommandFileId, RawFd, io};
    use crate::platform::fork::ForkSafeFd;

    /// The memory file's name, which `/proc` shows, so that other processes can recognise it.
    const NAME: &str = "soft-rnic-device";

    #[derive(Debug)]
    pub(crate) struct CommandFile {
        file: ForkSafeFd,
        identity: CommandFileId,
    }

    impl CommandFile {
        /// # Errors
        ///
        /// The system has no memory or file descriptor left.
        pub(crate) fn create() -> io::Result<Self> {
            let file = ForkSafeFd::open(|| memfd_create(NAME, MemfdFlags::CLOEXEC))?;
            let identity = identity_of(file.as_fd())?;
            Ok(Self { file, identity })
        }

        pub(crate) fn descriptor(&self) -> RawFd {
            self.file.as_fd().as_raw_fd()
        }

        pub(crate) fn identity(&self) -> CommandFileId {
            self.identity
        }
    }

    fn identity_of(file: BorrowedFd<'_>) -> io::Result<CommandFileId> {
        let stat = fstat(file)?;
        Ok(CommandFileId { device: stat.st_dev, inode: stat.st_ino })
    }

    /// Returns the identity of the file behind a program's descriptor.
    ///
    /// # Errors
    ///
    /// `EBADF` if the descriptor is not open, `EINVAL` if it belongs to another kind of file.
    pub(crate) fn identify(descriptor: RawFd) -> io::Result<CommandFileId> {
        if descriptor < 0 {
            return Err(io::Error::from_raw_os_error(libc::EBADF));
        }
        // SAFETY: the descriptor is borrowed for queries only, and the system answers a closed one
        // with an error.
        let file = unsafe { BorrowedFd::borrow_raw(descriptor) };
        let identity = identity_of(file)?;
        let path = std::fs::read_link(format!("/proc/self/fd/{descriptor}"))?;
        let ours = path.to_string_lossy().starts_with(&format!("/memfd:{NAME}"));
        if ours { Ok(identity) } else { Err(io::Error::from_raw_os_error(libc::EINVAL)) }
    }

    /// Closes a descriptor that a program has given up.
    ///
    /// # Safety
    ///
    /// - No other code closes the descriptor.
    pub(crate) unsafe fn close(descriptor: RawFd) {
        // SAFETY: `identify` found the descriptor open, and the caller of this function guarantees
        // that no other code closes it.
        drop(unsafe { OwnedFd::from_raw_fd(descriptor) });
    }
}

#[cfg(any(miri, loom))]
pub(crate) use alone::{CommandFile, close, identify};

/// Miri has no memory files, so nothing can be imported.
#[cfg(any(miri, loom))]
mod alone {
    use super::{CommandFileId, RawFd, io};

    #[derive(Debug)]
    pub(crate) struct CommandFile;

    impl CommandFile {
        pub(crate) fn create() -> io::Result<Self> {
            Ok(Self)
        }

        pub(crate) fn descriptor(&self) -> RawFd {
            -1
        }

        pub(crate) fn identity(&self) -> CommandFileId {
            CommandFileId { device: 0, inode: 0 }
        }
    }

    pub(crate) fn identify(_: RawFd) -> io::Result<CommandFileId> {
        Err(io::Error::from_raw_os_error(libc::EBADF))
    }

    /// # Safety
    ///
    /// - No caller can satisfy this, because `create` never opens a file under Miri.
    pub(crate) unsafe fn close(_: RawFd) {}
}
