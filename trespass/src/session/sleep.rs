//! What a call sleeps in: the set that the program also waits for, or the connection's descriptors
//! alone, which need none of their own.

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
                poller.take_events(|event| take(event.into()));
                (Some(poller), happened)
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
    use std::os::fd::{AsFd, BorrowedFd};
    use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
    use std::time::{Duration, Instant};

    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::io::Errno;

    use crate::session::connection::Connection;
    use crate::session::readiness::Until;
    use crate::session::service;
    use crate::session::wake::{Signal, WakeHandle, always_readable};
    use crate::transport::{Sources, SystemEvent};

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
    }

    impl DescriptorWait {
        pub(super) fn new(connection: &mut Connection, woken: Option<&Arc<WakeHandle>>) -> Self {
            let mut sources = Sources::default();
            connection.sources(&mut sources);
            let woken = woken.map(|wake_handle| Woken {
                wake_handle: wake_handle.clone(),
                signal: service::signals().and_then(Signals::take),
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
            if let Some(woken) = &self.woken {
                woken.wake_handle.end_sleep();
            }
            slept
        }

        /// Waits for the descriptors, the signal and the end of the process.
        fn poll(&mut self, until: Until, signal: Option<&Signal>) -> io::Result<()> {
            let sources = self.sources.iter().map(|(descriptor, flags)| {
                // SAFETY: the connection keeps its descriptors open until it is dropped, which its
                // `Caller` prevents as long as this call runs.
                (unsafe { BorrowedFd::borrow_raw(descriptor) }, flags)
            });
            let waits = !matches!(until, Until::Now);
            let end = service::signals().filter(|_| waits).map(|signals| &signals.end);
            let wake_ups = signal.into_iter().chain(end).map(|signal| (signal.as_fd(), PollFlags::IN));
            let unused = PollFd::from_borrowed_fd(always_readable(), PollFlags::empty());
            let mut descriptors: [_; 4] = std::array::from_fn(|_| unused.clone());
            let mut count = 0;
            for (place, (descriptor, flags)) in descriptors.iter_mut().zip(sources.chain(wake_ups)) {
                *place = PollFd::from_borrowed_fd(descriptor, flags);
                count += 1;
            }
            let descriptors = &mut descriptors[..count];
            loop {
                // A time that is too long for the system is no limit.
                let timeout = until.timeout().and_then(|timeout| Timespec::try_from(timeout).ok());
                match poll(descriptors, timeout.as_ref()) {
                    Ok(_) => break,
                    Err(Errno::INTR) => (),
                    Err(error) => return Err(error.into()),
                }
            }
            let reported = descriptors.iter().take(self.sources.iter().count()).map(PollFd::revents);
            let reported = reported.fold(PollFlags::empty(), PollFlags::union);
            self.found = (!reported.is_empty()).then(|| reported.into());
            Ok(())
        }

        pub(super) fn take_event(self) -> Option<SystemEvent> {
            self.found
        }
    }

    impl Drop for Woken {
        fn drop(&mut self) {
            if let (Some(signal), Some(signals)) = (self.signal.take(), service::signals()) {
                signals.give_back(signal);
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
        fn give_back(&self, signal: Arc<Signal>) {
            if signal.clear().is_ok() {
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
