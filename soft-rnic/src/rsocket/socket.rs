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

/// What ids are called here: each has a channel of its own, so that nobody asks.
pub(super) const UID: u64 = 1;

/// How long somebody who waits looks again and again before he sleeps.
const SPIN: Duration = Duration::from_micros(10);

/// How long an end may take without `SO_LINGER`. What was written is on its way already: only a peer that is stopped takes
/// time.
pub(super) const LINGER: Duration = Duration::from_secs(2);

/// What an rsocket is in the middle of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RsPhase {
    /// Nothing: there is no connection, or none any more.
    Idle,
    Listening,
    /// On its way to a connection: the address, the route, the other side's answer.
    Resolving,
    Routing,
    Asking,
    /// It has accepted, and the other side has not said that it is ready.
    Answering,
    Connected,
    /// The connection has ended.
    Over,
    /// The program has closed it; others may still wait for it.
    Closed,
}

/// How closely to look at what has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PollDepth {
    /// At completions: that makes no system call.
    Quickly,
    /// At everything. The event that made the descriptor readable is taken.
    Thoroughly,
    /// At everything, after the descriptor was made to tell of what comes from now on: an event stays, and ends the sleep.
    BeforeSleep,
}

/// Whether a call waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Blocking {
    Never,
    /// Unless the rsocket is non-blocking.
    Usually,
    Always,
}

/// What changes.
pub(super) struct RsState {
    pub(super) manager: Arc<ConnectionManager>,
    pub(super) channel: Arc<CmEventChannel>,
    pub(super) id: IdNumber,
    pub(super) family: c_int,
    pub(super) phase: RsPhase,
    pub(super) options: RsOptions,
    pub(super) stream: Option<RsStream>,
    /// Of a listener: who has asked for a connection.
    pub(super) requests: Option<ConnRequest>,
    /// What `SO_ERROR` says.
    pub(super) error: c_int,
    /// The stream was cut off, and who reads has not been told: whoever else was, he must not take that for its end.
    pub(super) is_cut_off: bool,
    /// The program wants to read, or write, no more.
    pub(super) reads_no_more: bool,
    pub(super) writes_no_more: bool,
    pub(super) mapped: Vec<IoMapping>,
    pub(super) sleepers: SleeperList,
}

/// An rsocket. Its number is that of a descriptor which is readable when there is something to see to.
pub(super) struct RSocket {
    epoll: ForkSafeFd,
    pub(super) process: ForkGeneration,
    state: Mutex<RsState>,
}

impl RSocket {
    /// A new one: unconnected, or that of a connection request.
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

    /// By what the program knows it.
    pub(super) fn number(&self) -> RawFd {
        self.epoll.as_fd().as_raw_fd()
    }

    pub(super) fn locked(&self) -> MutexGuard<'_, RsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the rsocket's descriptor readable when this one is.
    pub(super) fn watch(&self, fd: RawFd) -> Result<(), c_int> {
        // SAFETY: the caller has it open; it is not -1.
        let file = unsafe { BorrowedFd::borrow_raw(fd) };
        let data = epoll::EventData::new_u64(0);
        let added = self.epoll.get().and_then(|epoll| epoll::add(epoll, file, data, epoll::EventFlags::IN));
        added.map_err(|error| errno::refused("epoll_ctl", &error.into()))
    }

    /// Sees to what has happened, besides the descriptors that only now are made.
    fn progress(&self, state: &mut RsState, look: PollDepth) {
        let had_stream = state.stream.is_some();
        if state.progress(look) {
            state.sleepers.wake_all();
        }
        if !had_stream && state.stream.is_some() {
            self.watch_stream(state);
        }
    }

    /// A stream was made: its completions wake whoever waits.
    pub(super) fn watch_stream(&self, state: &mut RsState) {
        let watched = state.stream.as_ref().map_or(Ok(()), |stream| self.watch(stream.queues.descriptor()));
        if let Err(error) = watched {
            state.give_up(error);
        }
    }

    /// Tries until it is done, or must not wait any longer (`EAGAIN`).
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

    /// What of these it has, of what can be polled for.
    pub(super) fn ready(&self, events: i16, look: PollDepth) -> i16 {
        let mut state = self.locked();
        self.progress(&mut state, look);
        state.ready() & (events | POLLERR | POLLHUP | libc::POLLNVAL)
    }

    /// What `rpoll` sleeps on, for these events; -1 is nothing. A listener's descriptor is readable for as long as somebody waits to be
    /// accepted: who does not ask for that would be woken again and again.
    pub(super) fn sleeps_on(&self, events: i16) -> RawFd {
        let asks = events & (POLLIN | libc::POLLRDNORM) != 0;
        if asks || self.locked().phase != RsPhase::Listening { self.number() } else { -1 }
    }

    /// For `rpoll`: rings this bell when something changes, until it is taken down.
    pub(super) fn add_sleeper(&self, waker: &Arc<ThreadWaker>) {
        self.locked().sleepers.add_sleeper(waker);
    }

    pub(super) fn remove_sleeper(&self, waker: &Arc<ThreadWaker>) {
        self.locked().sleepers.remove_sleeper(waker);
    }

    /// Closes it for the program: sends the stream's end, and waits for as long as it may linger.
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

    /// Ends it, whose number is another's by now.
    pub(super) fn abandon(&self) {
        let mut state = self.locked();
        if state.phase != RsPhase::Closed {
            state.close();
        }
        state.sleepers.wake_all();
    }

    /// Sends the stream's end, and waits until the other side has all.
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
    /// Sees to what the device has done, and the connection manager has to tell. Whether anything has changed, or others who sleep
    /// have to arm their descriptor again.
    fn progress(&mut self, look: PollDepth) -> bool {
        let mut has_changed = self.stream.as_mut().is_some_and(|stream| {
            let was_told = look == PollDepth::Thoroughly && stream.queues.disarm();
            if look == PollDepth::BeforeSleep {
                stream.queues.arm();
            }
            stream.progress() || was_told
        });
        // Before a connection there is no hurry, and besides it something has gone wrong.
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

    /// The connection has ended. It is an error if the other side has not said that it sends no more.
    pub(super) fn lose(&mut self) {
        if let Some(stream) = &mut self.stream {
            // What came before is still there.
            stream.progress();
            if !stream.has_ended() {
                (self.error, self.is_cut_off) = (libc::ECONNRESET, true);
            }
        }
        self.phase = RsPhase::Over;
    }

    /// Whether there is, or was, a connection.
    pub(super) fn is_connected(&self) -> bool {
        matches!(self.phase, RsPhase::Answering | RsPhase::Connected | RsPhase::Over)
    }

    pub(super) fn is_connecting(&self) -> bool {
        matches!(self.phase, RsPhase::Resolving | RsPhase::Routing | RsPhase::Asking)
    }

    /// All that poll(2) says of a stream socket.
    fn ready(&mut self) -> i16 {
        let has_request = self.phase == RsPhase::Listening && self.has_request();
        let stream = self.stream.as_ref();
        let failed = if self.error != 0 { POLLERR } else { 0 };
        match self.phase {
            RsPhase::Closed => libc::POLLNVAL,
            // As TCP: an unconnected one is at an end.
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
                // As with TCP: that the other side has closed it all is no more than that it sends no more.
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

    /// This side's address, and the other's.
    pub(super) fn addresses(&self) -> Result<(Option<SocketAddr>, Option<SocketAddr>), c_int> {
        let route = self.manager.route(self.id)?;
        Ok((route.source, route.destination))
    }

    fn close(&mut self) {
        self.phase = RsPhase::Closed;
        self.forget_request();
        // The other side hears of the end of the connection after all that was sent.
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
