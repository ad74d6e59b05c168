//! `eventfd` as a semaphore; under Miri a counter.

#[cfg(any(miri, loom))]
pub(crate) use counter::Tokens;
#[cfg(not(any(miri, loom)))]
pub(crate) use descriptor::Tokens;

#[cfg(not(any(miri, loom)))]
mod descriptor {
    use std::io;
    use std::os::fd::{BorrowedFd, RawFd};

    use rustix::event::{EventfdFlags, eventfd};

    use super::super::fork::OwnedFile;

    /// Each token that was added satisfies one read. A program may poll the descriptor, and may
    /// make it non-blocking.
    #[derive(Debug)]
    pub(crate) struct Tokens(OwnedFile);

    impl Tokens {
        /// # Errors
        ///
        /// The process has no descriptor left.
        pub(crate) fn create() -> io::Result<Self> {
            Ok(Self(OwnedFile::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::SEMAPHORE)?)))
        }

        pub(crate) fn descriptor(&self) -> RawFd {
            self.0.number()
        }

        /// The file, to which other processes may add tokens; `None` if the program has closed it.
        pub(crate) fn file(&self) -> Option<BorrowedFd<'_>> {
            self.0.get().ok()
        }

        pub(crate) fn give(&self, tokens: u64) {
            if let Err(error) = self.0.get().and_then(|file| rustix::io::write(file, &tokens.to_ne_bytes())) {
                log::error!("an event could not be told through descriptor {}: {error}", self.descriptor());
            }
        }

        /// Waits for a token, unless the descriptor is non-blocking.
        ///
        /// # Errors
        ///
        /// `EAGAIN` if a non-blocking descriptor has no token, `EINTR` if a signal arrived.
        pub(crate) fn take(&self) -> io::Result<()> {
            let mut count = [0; 8];
            Ok(rustix::io::read(self.0.unchecked(), &mut count).map(drop)?)
        }

        /// Whether a read would find a token.
        pub(crate) fn is_readable(&self) -> bool {
            use rustix::event::{PollFd, PollFlags, Timespec, poll};
            let Ok(file) = self.0.get() else { return false };
            let mut files = [PollFd::from_borrowed_fd(file, PollFlags::IN)];
            poll(&mut files, Some(&Timespec::default())).is_ok_and(|ready| ready == 1)
        }

        /// Takes back the tokens of events that no longer exist. It never waits: a reader that
        /// already took a token finds no event.
        pub(crate) fn take_back(&self, tokens: usize) {
            use rustix::io::{ReadWriteFlags, preadv2};
            for _ in 0..tokens {
                let mut count = [0; 8];
                let mut buffers = [io::IoSliceMut::new(&mut count)];
                // Offset -1: `preadv2` reads at the current position.
                let taken = self
                    .0
                    .get()
                    .and_then(|file| preadv2(file, &mut buffers, u64::MAX, ReadWriteFlags::NOWAIT));
                if taken.is_err() {
                    break;
                }
            }
        }
    }
}

#[cfg(any(miri, loom))]
mod counter {
    use std::io;
    use std::os::fd::{BorrowedFd, RawFd};
    use std::sync::{Mutex, PoisonError};

    /// A counter in place of a descriptor. `take` never waits: it fails if no token is available.
    #[derive(Debug, Default)]
    pub(crate) struct Tokens(Mutex<u64>);

    impl Tokens {
        pub(crate) fn create() -> io::Result<Self> {
            Ok(Self::default())
        }

        pub(crate) fn descriptor(&self) -> RawFd {
            -1
        }

        pub(crate) fn file(&self) -> Option<BorrowedFd<'_>> {
            None
        }

        pub(crate) fn give(&self, tokens: u64) {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) += tokens;
        }

        pub(crate) fn take(&self) -> io::Result<()> {
            let mut count = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            *count = count.checked_sub(1).ok_or_else(|| io::Error::from_raw_os_error(libc::EAGAIN))?;
            Ok(())
        }

        pub(crate) fn is_readable(&self) -> bool {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) > 0
        }

        pub(crate) fn take_back(&self, tokens: usize) {
            let mut count = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            *count = count.saturating_sub(tokens as u64);
        }
    }
}
