//! A timer in the poller, for programs that wait for its descriptor alone while the library has
//! deadlines.

#[cfg(any(target_os = "linux", target_os = "android"))]
mod system {
    use std::io;
    use std::os::fd::{AsRawFd, OwnedFd};
    use std::time::Duration;

    use mio::unix::SourceFd;
    use mio::{Interest, Registry, Token};
    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    };

    /// Makes its set readable once, when its time has come.
    #[derive(Debug)]
    pub(crate) struct Timer(OwnedFd);

    impl Timer {
        /// In a set, reported under that key.
        pub(crate) fn new(registry: &Registry, token: Token) -> io::Result<Self> {
            // The clock of `Instant`.
            let clock = TimerfdClockId::Monotonic;
            let timer = timerfd_create(clock, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
            registry.register(&mut SourceFd(&timer.as_raw_fd()), token, Interest::READABLE)?;
            Ok(Self(timer))
        }

        /// From now on, instead of whatever it was set to.
        pub(crate) fn set(&self, after: Duration) -> io::Result<()> {
            let never = Timespec { tv_sec: 0, tv_nsec: 0 };
            // Nothing at all would be never.
            let after = Timespec::try_from(after.max(Duration::from_nanos(1)));
            let once = Itimerspec { it_interval: never, it_value: after.map_err(io::Error::other)? };
            timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &once)?;
            Ok(())
        }
    }
}

/// There is none: what is due is done by the next call.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
mod system {
    use std::io;
    use std::time::Duration;

    use mio::{Registry, Token};

    #[derive(Debug)]
    pub(crate) enum Timer {}

    impl Timer {
        pub(crate) fn new(_: &Registry, _: Token) -> io::Result<Self> {
            Err(io::ErrorKind::Unsupported.into())
        }

        pub(crate) fn set(&self, _: Duration) -> io::Result<()> {
            match *self {}
        }
    }
}

pub(crate) use system::Timer;
