//! What a call sleeps in: the set that the program also waits for, or the connection's descriptors
//! alone, which need no further one.

use std::io;
use std::sync::Arc;

use self::system::DescriptorWait;
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) use self::system::Signals;
use crate::session::connection::Connection;
use crate::session::readiness::{Poller, Until};
use crate::session::wake::WakeHandle;
use crate::transport::SystemEvent;

/// The place where a call sleeps.
pub(super) enum EventWait {
    Set(Box<Poller>),
    Descriptors(DescriptorWait),
}

impl EventWait {
    /// The program's set, or the descriptors. A call is `woken` by others through the handle.
    pub(super) fn of(
        poller: Option<Box<Poller>>,
        connection: &mut Connection,
        woken: Option<&Arc<WakeHandle>>,
    ) -> Self {
        match poller {
            Some(poller) => Self::Set(poller),
            None => Self::Descriptors(DescriptorWait::new(connection, woken)),
        }
    }

    /// Sleeps until an event or the deadline.
    pub(super) fn sleep(&mut self, until: Until) -> io::Result<()> {
        match self {
            Self::Set(poller) => poller.sleep(until),
            Self::Descriptors(sleep) => sleep.sleep(until),
        }
    }

    /// Takes the events that the last sleep found. Returns the set, and whether there was an event.
    pub(super) fn take_events(self, connection: &mut Connection) -> (Option<Box<Poller>>, bool) {
        let mut happened = false;
        let mut take = |event: SystemEvent| {
            connection.on_event(event);
            happened = true;
        };
        match self {
            Self::Set(mut poller) => {
                // A wake-up counts, because this call may have taken it from another thread.
                let is_woken = poller.take_events(|event| take(event.into()));
                (Some(poller), happened || is_woken)
            }
            Self::Descriptors(sleep) => {
                sleep.take_event().into_iter().for_each(take);
                (None, happened)
            }
        }
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
mod system {
    use std::io;
    use std::os::fd::{AsFd, AsRawFd};
    use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
    use std::time::{Duration, Instant};

    use crate::session::connection::Connection;
    use crate::session::readiness::Until;
    use crate::session::service;
    use crate::session::wake::{Signal, WakeHandle};
    use crate::transport::{PollFlags, Sources, SystemEvent};

    /// A call that could get no signal looks this often whether it was woken.
    const WITHOUT_SIGNAL: Duration = Duration::from_millis(10);

    /// A sleep in poll(2).
    pub(in crate::session) struct DescriptorWait {
        sources: Sources,
        woken: Option<Woken>,
        found: Option<SystemEvent>,
    }

    /// The wake-ups of a sleeping call.
    struct Woken {
        wake_handle: Arc<WakeHandle>,
        signal: Option<Arc<Signal>>,
        is_raised: bool,
    }

    impl DescriptorWait {
        pub(super) fn new(connection: &mut Connection, woken: Option<&Arc<WakeHandle>>) -> Self {
            let mut sources = Sources::default();
            connection.sources(&mut sources);
            let woken = woken.map(|wake_handle| Woken {
                wake_handle: wake_handle.clone(),
                signal: service::signals().and_then(Signals::take),
                is_raised: false,
            });
            Self { sources, woken, found: None }
        }

        pub(super) fn sleep(&mut self, until: Until) -> io::Result<()> {
            let Some(woken) = &self.woken else { return self.poll(until, None) };
            if !woken.wake_handle.begin_sleep(woken.signal.as_ref()) {
                return self.poll(Until::Now, None);
            }
            let signal = woken.signal.clone();
            let until = match signal {
                Some(_) => until,
                None => until.or(Instant::now().checked_add(WITHOUT_SIGNAL)),
            };
            let slept = self.poll(until, signal.as_deref());
            if let Some(woken) = &mut self.woken {
                woken.is_raised = woken.wake_handle.end_sleep();
            }
            slept
        }

        /// Waits for the descriptors, and for the signal or the end of the process, which raises each
        /// signal, too.
        fn poll(&mut self, until: Until, signal: Option<&Signal>) -> io::Result<()> {
            let waits = !matches!(until, Until::Now);
            let end = service::signals().filter(|_| waits && signal.is_none()).map(|signals| &signals.end);
            let wake_ups = signal.into_iter().chain(end);
            let wake_ups = wake_ups.map(|signal| (signal.as_fd().as_raw_fd(), libc::POLLIN));
            // The system ignores a negative descriptor.
            let mut polled = [libc::pollfd { fd: -1, events: 0, revents: 0 }; 4];
            for (place, (fd, events)) in polled.iter_mut().zip(self.sources.iter().chain(wake_ups)) {
                *place = libc::pollfd { fd, events, revents: 0 };
            }
            poll(&mut polled, until)?;
            let reported = polled.iter().take(self.sources.iter().count());
            let reported: PollFlags = reported.fold(0, |flags, polled| flags | polled.revents);
            self.found = (reported != 0).then(|| reported.into());
            Ok(())
        }

        pub(super) fn take_event(self) -> Option<SystemEvent> {
            self.found
        }
    }

    impl Drop for Woken {
        fn drop(&mut self) {
            if let (Some(signal), Some(signals)) = (self.signal.take(), service::signals()) {
                signals.give_back(signal, self.is_raised);
            }
        }
    }

    /// poll(2), again after a signal handler has run.
    fn poll(polled: &mut [libc::pollfd], until: Until) -> io::Result<()> {
        loop {
            let timeout = until.timeout().map(|timeout| libc::timespec {
                // A time that is too long for the system ends in some centuries.
                tv_sec: timeout.as_secs().try_into().unwrap_or(libc::time_t::MAX),
                tv_nsec: timeout.subsec_nanos() as libc::c_long,
            });
            let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
            // SAFETY: the slice and the timeout live for the call, and no signal mask is given. A
            // descriptor that is closed during the call would be reported as invalid; the connection keeps
            // its own until it is dropped, which its `Caller` prevents as long as the call runs.
            let count = unsafe {
                libc::ppoll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, timeout, std::ptr::null())
            };
            if count >= 0 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }

    /// The signals that sleeping calls of a process use.
    pub(in crate::session) struct Signals {
        free: Mutex<Vec<Arc<Signal>>>,
        /// Raised when the process ends, and never cleared.
        end: Signal,
    }

    impl Signals {
        /// Signals that are kept for later calls.
        const KEPT: usize = 16;

        pub(in crate::session) fn new() -> io::Result<Self> {
            Ok(Self { free: Mutex::default(), end: Signal::new()? })
        }

        fn free(&self) -> MutexGuard<'_, Vec<Arc<Signal>>> {
            // No code that can panic runs while it is locked.
            self.free.lock().unwrap_or_else(PoisonError::into_inner)
        }

        fn take(&self) -> Option<Arc<Signal>> {
            let kept = self.free().pop();
            kept.or_else(|| Signal::new().map(Arc::new).ok())
        }

        /// Nobody else has the signal, because the call has ended its sleep.
        fn give_back(&self, signal: Arc<Signal>, is_raised: bool) {
            if !is_raised || signal.clear().is_ok() {
                let mut free = self.free();
                if free.len() < Self::KEPT {
                    free.push(signal);
                }
            }
        }

        /// Ends every sleep from now on.
        pub(in crate::session) fn end_sleeps(&self) {
            if let Err(error) = self.end.raise() {
                tracing::error!(%error, "calls that sleep do not notice the end of the process");
            }
        }
    }
}

/// A call always sleeps in a set.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
mod system {
    use std::io;
    use std::sync::Arc;

    use crate::session::connection::Connection;
    use crate::session::readiness::Until;
    use crate::session::wake::WakeHandle;
    use crate::transport::SystemEvent;

    pub(in crate::session) struct DescriptorWait;

    impl DescriptorWait {
        pub(super) fn new(_: &mut Connection, _: Option<&Arc<WakeHandle>>) -> Self {
            Self
        }

        pub(super) fn sleep(&mut self, _: Until) -> io::Result<()> {
            Err(io::ErrorKind::Unsupported.into())
        }

        pub(super) fn take_event(self) -> Option<SystemEvent> {
            None
        }
    }
}
