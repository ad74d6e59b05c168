//! An rsocket: its state, its lock, and the threads that wait for it.

use std::ffi::c_int;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use libc::{POLLERR, POLLHUP, POLLIN, POLLOUT, POLLRDHUP};
use rdma_mummy_sys::types::ibv_qp_type;
use rustix::event::epoll;

use super::connect::ConnRequest;
use super::iomap::IoMapping;
use super::options::RsOptions;
use super::stream::RsStream;
use super::wait::{self, Deadline, SleeperList, ThreadWaker};
use crate::cm::{CmEventChannel, ConnectionManager, IdNumber, PortSpace};
use crate::platform::errno;
use crate::platform::fork::{ForkGeneration, ForkSafeFd};

/// The uid of each id. One value suffices, because each id has a private channel, so events need
/// not tell ids apart.
pub(super) const UID: u64 = 1;

/// How long a waiting thread polls before it sleeps.
const SPIN: Duration = Duration::from_micros(10);

/// How long a close may take without `SO_LINGER`. The written bytes are in flight already, so only
/// a stopped peer makes it wait.
pub(super) const LINGER: Duration = Duration::from_secs(2);

/// The phase of an rsocket's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RsPhase {
    /// Unconnected: not yet connected, or after a failed attempt.
    Idle,
    Listening,
    /// Connecting: resolving the address, resolving the route, awaiting the listener's response.
    Resolving,
    Routing,
    Asking,
    /// Accepted, but the peer has not confirmed that it is ready.
    Answering,
    Connected,
    /// The connection has ended.
    Over,
    /// The program has closed the rsocket; other threads may still wait in calls.
    Closed,
}

/// How thoroughly to look for events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PollDepth {
    /// Completions only, without a system call.
    Quickly,
    /// Everything. Takes the event that made the descriptor readable.
    Thoroughly,
    /// Everything, after arming the descriptor. An event stays pending, so that it ends the sleep.
    BeforeSleep,
}

/// Whether a call waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Blocking {
    Never,
    /// Waits unless the rsocket is non-blocking.
    Usually,
    Always,
}

/// The mutable state, under the lock.
pub(super) struct RsState {
    pub(super) manager: Arc<ConnectionManager>,
    pub(super) channel: Arc<CmEventChannel>,
    pub(super) id: IdNumber,
    pub(super) family: c_int,
    pub(super) phase: RsPhase,
    pub(super) options: RsOptions,
    pub(super) stream: Option<RsStream>,
    /// A listener's pending connection request.
    pub(super) requests: Option<ConnRequest>,
    /// The error that `SO_ERROR` reports.
    pub(super) error: c_int,
    /// The stream was cut off, and no reader has seen the error yet. A reader must not take the cut
    /// for the stream's end, even if `SO_ERROR` or another call has reported the error.
    pub(super) is_cut_off: bool,
    /// The program has shut down reading, or writing.
    pub(super) reads_no_more: bool,
    pub(super) writes_no_more: bool,
    pub(super) mapped: Vec<IoMapping>,
    pub(super) sleepers: SleeperList,
}

/// An rsocket. Its number is an epoll descriptor, which is readable if the rsocket has events to
/// process.
pub(super) struct RSocket {
    epoll: ForkSafeFd,
    pub(super) process: ForkGeneration,
    state: Mutex<RsState>,
}

impl RSocket {
    /// Makes an unconnected rsocket. `answer` turns it into one for a connection request.
    pub(super) fn create(
        manager: Arc<ConnectionManager>,
        family: c_int,
        options: RsOptions,
    ) -> Result<Self, c_int> {
        let refused = |error: io::Error| errno::refused("rsocket", &error);
        let epoll = ForkSafeFd::open(|| epoll::create(epoll::CreateFlags::CLOEXEC)).map_err(refused)?;
        let channel = manager.channel().map_err(refused)?;
        wait::make_nonblocking(channel.descriptor())?;
        let id = manager.create(&channel, UID, PortSpace::Tcp, ibv_qp_type::IBV_QPT_RC)?;
        let state = RsState {
            manager,
            channel,
            id,
            family,
            phase: RsPhase::Idle,
            options,
            stream: None,
            requests: None,
            error: 0,
            is_cut_off: false,
            reads_no_more: false,
            writes_no_more: false,
            mapped: Vec::new(),
            sleepers: SleeperList::default(),
        };
        let socket = Self { epoll, process: ForkGeneration::current(), state: Mutex::new(state) };
        socket.watch(socket.locked().channel.descriptor())?;
        Ok(socket)
    }

    /// The number by which the program knows the rsocket.
    pub(super) fn number(&self) -> RawFd {
        self.epoll.as_fd().as_raw_fd()
    }

    pub(super) fn locked(&self) -> MutexGuard<'_, RsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the rsocket's descriptor readable whenever `fd` is.
    pub(super) fn watch(&self, fd: RawFd) -> Result<(), c_int> {
        // SAFETY: the caller keeps `fd` open, and it is not -1.
        let file = unsafe { BorrowedFd::borrow_raw(fd) };
        let data = epoll::EventData::new_u64(0);
        let added = self.epoll.get().and_then(|epoll| epoll::add(epoll, file, data, epoll::EventFlags::IN));
        added.map_err(|error| errno::refused("epoll_ctl", &error.into()))
    }

    /// Processes pending events, wakes the sleepers if anything changed, and watches a new stream's
    /// descriptor.
    fn progress(&self, state: &mut RsState, look: PollDepth) {
        let had_stream = state.stream.is_some();
        if state.progress(look) {
            state.sleepers.wake_all();
        }
        if !had_stream && state.stream.is_some() {
            self.watch_stream(state);
        }
    }

    /// Watches the new stream, so that its completions wake the sleepers.
    pub(super) fn watch_stream(&self, state: &mut RsState) {
        let watched = state.stream.as_ref().map_or(Ok(()), |stream| self.watch(stream.queues.descriptor()));
        if let Err(error) = watched {
            state.give_up(error);
        }
    }

    /// Repeats `attempt` until it returns a result, or the call must not wait any longer
    /// (`EAGAIN`).
    pub(super) fn attempt<T>(
        &self,
        wait: Blocking,
        deadline: Deadline,
        mut attempt: impl FnMut(&mut RsState) -> Option<Result<T, c_int>>,
    ) -> Result<T, c_int> {
        let mut state = self.locked();
        let mut once = |state: &mut RsState, look: PollDepth| {
            self.progress(state, look);
            if state.phase == RsPhase::Closed {
                return Some(Err(libc::EBADF));
            }
            attempt(state)
        };
        if let Some(result) = once(&mut state, PollDepth::Quickly) {
            return result;
        }
        loop {
            if let Some(result) = once(&mut state, PollDepth::Thoroughly) {
                return result;
            }
            let waits = match wait {
                Blocking::Never => false,
                Blocking::Usually => !state.options.is_nonblocking,
                Blocking::Always => true,
            };
            if !waits || deadline.has_passed() {
                return Err(libc::EAGAIN);
            }
            let end = Instant::now() + SPIN;
            while Instant::now() < end {
                drop(state);
                std::thread::yield_now();
                state = self.locked();
                if let Some(result) = once(&mut state, PollDepth::Quickly) {
                    return result;
                }
            }
            if let Some(result) = once(&mut state, PollDepth::BeforeSleep) {
                return result;
            }
            let waker = ThreadWaker::own()?;
            state.sleepers.add_sleeper(&waker);
            drop(state);
            let mut fds = vec![libc::pollfd { fd: self.number(), events: POLLIN, revents: 0 }];
            let slept = wait::sleep(&mut fds, &waker, deadline);
            state = self.locked();
            state.sleepers.remove_sleeper(&waker);
            if let Err(error) = slept {
                return once(&mut state, PollDepth::Thoroughly).unwrap_or(Err(error));
            }
        }
    }

    /// The ready events among `events`, plus the error events that poll(2) always reports.
    pub(super) fn ready(&self, events: i16, look: PollDepth) -> i16 {
        let mut state = self.locked();
        self.progress(&mut state, look);
        state.ready() & (events | POLLERR | POLLHUP | libc::POLLNVAL)
    }

    /// The descriptor that `rpoll` sleeps on for these events, or -1 for none. A listener's
    /// descriptor stays readable while a request waits to be accepted. A call that does not ask for
    /// this would wake up again and again.
    pub(super) fn sleeps_on(&self, events: i16) -> RawFd {
        let asks = events & (POLLIN | libc::POLLRDNORM) != 0;
        if asks || self.locked().phase != RsPhase::Listening { self.number() } else { -1 }
    }

    /// For `rpoll`: wakes this thread at each change, until
    /// [`remove_sleeper`](Self::remove_sleeper).
    pub(super) fn add_sleeper(&self, waker: &Arc<ThreadWaker>) {
        self.locked().sleepers.add_sleeper(waker);
    }

    pub(super) fn remove_sleeper(&self, waker: &Arc<ThreadWaker>) {
        self.locked().sleepers.remove_sleeper(waker);
    }

    /// Closes the rsocket: sends the stream's end, and waits up to the linger time.
    pub(super) fn close(&self) -> Result<(), c_int> {
        let linger = self.locked().options.linger;
        let mut result = Ok(());
        if linger != Some(Duration::ZERO) {
            let until = Deadline::after(Some(linger.unwrap_or(LINGER)));
            let flushed = self.flush(until);
            if flushed == Err(libc::EAGAIN) && linger.is_some() {
                result = flushed;
            }
        }
        let mut state = self.locked();
        if state.phase == RsPhase::Closed {
            return Err(libc::EBADF);
        }
        state.close();
        state.sleepers.wake_all();
        result
    }

    /// Ends an rsocket whose descriptor number now belongs to another file.
    pub(super) fn abandon(&self) {
        let mut state = self.locked();
        if state.phase != RsPhase::Closed {
            state.close();
        }
        state.sleepers.wake_all();
    }

    /// Sends the stream's end, and waits until the peer has received everything.
    pub(super) fn flush(&self, deadline: Deadline) -> Result<(), c_int> {
        self.attempt(Blocking::Always, deadline, |state| match state.phase {
            RsPhase::Answering => None,
            RsPhase::Connected => {
                let stream = state.stream.as_mut()?;
                stream.end();
                (stream.is_flushed() || stream.is_broken()).then_some(Ok(()))
            }
            _ => Some(Ok(())),
        })
    }
}

impl RsState {
    /// Processes completions and connection manager events. Returns whether anything changed, or
    /// other sleepers must arm their descriptor again.
    fn progress(&mut self, look: PollDepth) -> bool {
        let mut has_changed = self.stream.as_mut().is_some_and(|stream| {
            let was_told = look == PollDepth::Thoroughly && stream.queues.disarm();
            if look == PollDepth::BeforeSleep {
                stream.queues.arm();
            }
            stream.progress() || was_told
        });
        // A connected, working stream needs no look at the connection manager on the quick path.
        let quiet = self.phase == RsPhase::Connected && !self.is_broken();
        if self.phase != RsPhase::Closed && (look != PollDepth::Quickly || !quiet) {
            has_changed |= self.hear();
        }
        if self.is_broken() && self.phase == RsPhase::Connected {
            self.lose();
            has_changed = true;
        }
        has_changed
    }

    fn is_broken(&self) -> bool {
        self.stream.as_ref().is_some_and(RsStream::is_broken)
    }

    /// Ends the connection. This is an error unless the peer has already ended its stream.
    pub(super) fn lose(&mut self) {
        if let Some(stream) = &mut self.stream {
            // The bytes that arrived before stay readable.
            stream.progress();
            if !stream.has_ended() {
                (self.error, self.is_cut_off) = (libc::ECONNRESET, true);
            }
        }
        self.phase = RsPhase::Over;
    }

    /// Whether a connection exists or existed.
    pub(super) fn is_connected(&self) -> bool {
        matches!(self.phase, RsPhase::Answering | RsPhase::Connected | RsPhase::Over)
    }

    pub(super) fn is_connecting(&self) -> bool {
        matches!(self.phase, RsPhase::Resolving | RsPhase::Routing | RsPhase::Asking)
    }

    /// All events that poll(2) reports for a stream socket.
    fn ready(&mut self) -> i16 {
        let has_request = self.phase == RsPhase::Listening && self.has_request();
        let stream = self.stream.as_ref();
        let failed = if self.error != 0 { POLLERR } else { 0 };
        match self.phase {
            RsPhase::Closed => libc::POLLNVAL,
            // As with TCP, an unconnected socket reports a hang-up.
            RsPhase::Idle => failed | POLLHUP | POLLOUT,
            RsPhase::Listening if has_request => POLLIN | libc::POLLRDNORM,
            RsPhase::Listening | RsPhase::Resolving | RsPhase::Routing | RsPhase::Asking => failed,
            RsPhase::Answering | RsPhase::Connected | RsPhase::Over => {
                let is_over = self.phase == RsPhase::Over;
                let is_lost = is_over && !stream.is_some_and(RsStream::has_ended);
                let has_ended = is_over || self.reads_no_more || stream.is_some_and(RsStream::has_ended);
                let is_readable = has_ended || stream.is_some_and(RsStream::is_readable);
                let is_writable =
                    is_over || self.phase == RsPhase::Connected && stream.is_some_and(RsStream::is_writable);
                let mut ready = failed;
                if is_readable {
                    ready |= POLLIN | libc::POLLRDNORM;
                }
                if has_ended {
                    ready |= POLLRDHUP;
                }
                // As with TCP, a peer's complete close only looks like the end of its stream.
                if has_ended && self.writes_no_more || is_lost {
                    ready |= POLLHUP;
                }
                if is_writable || self.writes_no_more {
                    ready |= POLLOUT | libc::POLLWRNORM;
                }
                ready
            }
        }
    }

    /// The local and the remote address.
    pub(super) fn addresses(&self) -> Result<(Option<SocketAddr>, Option<SocketAddr>), c_int> {
        let route = self.manager.route(self.id)?;
        Ok((route.source, route.destination))
    }

    fn close(&mut self) {
        self.phase = RsPhase::Closed;
        self.forget_request();
        // The peer sees the end of the connection after all bytes that were sent.
        if let Err(error) = self.manager.destroy(self.id) {
            log::debug!("the id of an rsocket was gone already: error {error}");
        }
        self.unmap_all();
        self.stream = None;
    }
}

impl Drop for RsState {
    fn drop(&mut self) {
        if self.phase != RsPhase::Closed {
            self.close();
        }
    }
}
