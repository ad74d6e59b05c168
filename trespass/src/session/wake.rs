//! Wake-ups: of a call that sleeps, and of a set that a program waits for.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Wake;

use mio::{Registry, Token};

use self::system::SetWaker;
pub(crate) use self::system::Signal;
#[cfg(unix)]
pub(super) use self::system::always_readable;
pub(super) use self::system::prepare;
use crate::process::Process;

/// The token of a set's wake-up.
pub(super) const WAKER: Token = Token(usize::MAX);

/// Wakes who waits for a connection, a listener or a worker, from any thread.
#[derive(Debug)]
pub(crate) struct WakeHandle {
    process: Process,
    state: Mutex<WakeState>,
    /// A timer has woken the set.
    timer_fired: AtomicBool,
}

#[derive(Debug, Default)]
struct WakeState {
    set: Option<SetWaker>,
    sleeper: Option<Arc<Signal>>,
    /// A wake-up came while there was neither.
    is_pending: bool,
}

impl WakeHandle {
    pub(crate) fn new() -> Arc<Self> {
        let (state, timer_fired) = (Mutex::default(), AtomicBool::new(false));
        Arc::new(Self { process: Process::current(), state, timer_fired })
    }

    fn state(&self) -> MutexGuard<'_, WakeState> {
        // No code that can panic runs while it is locked.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the set readable, and wakes the sleeper. A failure is permanent and is logged.
    pub(crate) fn notify(&self) {
        // A forked child shares the set with its parent.
        if !self.process.is_current() {
            return;
        }
        let mut state = self.state();
        let shown = state.set.as_ref().map_or(Ok(()), SetWaker::wake);
        let woken = state.sleeper.as_ref().map_or(Ok(()), |sleeper| sleeper.raise());
        state.is_pending = state.set.is_none() && state.sleeper.is_none();
        if let Err(error) = shown.and(woken) {
            tracing::error!(%error, "who waits for a connection cannot be woken");
        }
    }

    /// The same, because a time has come.
    pub(super) fn notify_by_timer(&self) {
        self.timer_fired.store(true, Ordering::Relaxed);
        self.notify();
    }

    /// Whether a timer has fired since the last call.
    pub(super) fn take_timer_fired(&self) -> bool {
        self.timer_fired.load(Ordering::Relaxed) && self.timer_fired.swap(false, Ordering::Relaxed)
    }

    /// Shows wake-ups in this set, until [`detach`](Self::detach).
    pub(super) fn attach(&self, registry: &Registry) -> io::Result<()> {
        let waker = SetWaker::new(registry)?;
        self.state().set = Some(waker);
        Ok(())
    }

    /// Whoever attached a set calls this before the set is closed.
    pub(super) fn detach(&self) {
        // A thread of the parent may have locked a forked child's copy.
        if self.process.is_current() {
            self.state().set = None;
        }
    }

    /// A call is about to sleep. Returns false if it has been woken already.
    #[cfg_attr(
        not(any(target_os = "linux", target_os = "android")),
        allow(dead_code, reason = "calls sleep in sets here")
    )]
    pub(super) fn begin_sleep(&self, sleeper: Option<&Arc<Signal>>) -> bool {
        let mut state = self.state();
        let may_sleep = !std::mem::take(&mut state.is_pending);
        if may_sleep {
            state.sleeper = sleeper.cloned();
        }
        may_sleep
    }

    /// The call has slept.
    #[cfg_attr(
        not(any(target_os = "linux", target_os = "android")),
        allow(dead_code, reason = "calls sleep in sets here")
    )]
    pub(super) fn end_sleep(&self) {
        self.state().sleeper = None;
    }
}

impl Wake for WakeHandle {
    fn wake(self: Arc<Self>) {
        self.notify();
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
mod system {
    use std::io;
    use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
    use std::sync::OnceLock;

    use mio::Registry;
    use rustix::event::epoll::{self, EventData, EventFlags};
    use rustix::event::{EventfdFlags, eventfd};
    use rustix::io::Errno;

    use super::WAKER;

    /// Wakes a set without a descriptor of its own: takes a descriptor that is always readable out of
    /// the set and adds it again. That is an event, even if an earlier one was not taken.
    #[derive(Debug)]
    pub(super) struct SetWaker(RawFd);

    impl SetWaker {
        pub(super) fn new(registry: &Registry) -> io::Result<Self> {
            prepare()?;
            Ok(Self(registry.as_raw_fd()))
        }

        pub(super) fn wake(&self) -> io::Result<()> {
            let ready = always_readable();
            // SAFETY: the set is open, because its owner takes this waker out of its handle
            // (`WakeHandle::detach`), whose lock the caller has, before it closes the set.
            let set = unsafe { BorrowedFd::borrow_raw(self.0) };
            match epoll::delete(set, ready) {
                Ok(()) | Err(Errno::NOENT) => (),
                Err(error) => return Err(error.into()),
            }
            // mio reports this number as the token.
            let token = EventData::new_u64(WAKER.0 as u64);
            Ok(epoll::add(set, ready, token, EventFlags::IN | EventFlags::ET)?)
        }
    }

    static READY: OnceLock<OwnedFd> = OnceLock::new();

    /// Makes the descriptor that is always readable.
    pub(in crate::session) fn prepare() -> io::Result<()> {
        if READY.get().is_none() {
            // Another thread may be faster.
            let _ = READY.set(eventfd(1, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?);
        }
        Ok(())
    }

    /// A descriptor that is always readable. Forked children share it, which changes nothing.
    pub(in crate::session) fn always_readable() -> BorrowedFd<'static> {
        READY.get().expect("whoever makes a connection or a set has prepared it").as_fd()
    }

    /// A descriptor that is readable while it is raised. While it is full it is not writable.
    #[derive(Debug)]
    pub(crate) struct Signal(OwnedFd);

    impl Signal {
        pub(crate) fn new() -> io::Result<Self> {
            Ok(Self(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?))
        }

        pub(crate) fn raise(&self) -> io::Result<()> {
            self.add(1)
        }

        /// Makes it not writable.
        pub(crate) fn fill(&self) -> io::Result<()> {
            self.add(u64::MAX - 1)
        }

        fn add(&self, count: u64) -> io::Result<()> {
            match rustix::io::write(&self.0, &count.to_ne_bytes()) {
                // It is raised, or full, already.
                Ok(_) | Err(Errno::AGAIN) => Ok(()),
                Err(error) => Err(error.into()),
            }
        }

        pub(crate) fn clear(&self) -> io::Result<()> {
            match rustix::io::read(&self.0, &mut [0; 8]) {
                Ok(_) | Err(Errno::AGAIN) => Ok(()),
                Err(error) => Err(error.into()),
            }
        }
    }

    impl AsFd for Signal {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.0.as_fd()
        }
    }
}

/// A waker of the system's own, and a call always sleeps in a set.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
mod system {
    use std::io;

    use mio::Registry;

    use super::WAKER;

    pub(in crate::session) fn prepare() -> io::Result<()> {
        Ok(())
    }

    #[cfg(unix)]
    pub(in crate::session) fn always_readable() -> std::os::fd::BorrowedFd<'static> {
        unreachable!("every connection has a set here")
    }

    #[derive(Debug)]
    pub(super) struct SetWaker(mio::Waker);

    impl SetWaker {
        pub(super) fn new(registry: &Registry) -> io::Result<Self> {
            mio::Waker::new(registry, WAKER).map(Self)
        }

        pub(super) fn wake(&self) -> io::Result<()> {
            self.0.wake()
        }
    }

    #[derive(Debug)]
    pub(crate) enum Signal {}

    impl Signal {
        pub(crate) fn raise(&self) -> io::Result<()> {
            match *self {}
        }
    }
}
