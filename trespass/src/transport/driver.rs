//! The transport trait: a driver moves the frames of one connection over a socket or a queue pair.

use std::io;
use std::time::Instant;

use mio::event::Event;
use mio::{Registry, Token};

use crate::protocol::{Blocks, CallBuffer, ConnectionKind, ProtocolMachine};

/// What the system reports of the descriptors of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SystemEvent {
    pub(crate) is_readable: bool,
    pub(crate) is_writable: bool,
    /// The peer has closed its half of the socket.
    pub(crate) is_read_closed: bool,
    pub(crate) is_write_closed: bool,
    pub(crate) is_error: bool,
}

impl From<&Event> for SystemEvent {
    fn from(event: &Event) -> Self {
        Self {
            is_readable: event.is_readable(),
            is_writable: event.is_writable(),
            is_read_closed: event.is_read_closed(),
            is_write_closed: event.is_write_closed(),
            is_error: event.is_error(),
        }
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
impl From<PollFlags> for SystemEvent {
    fn from(flags: PollFlags) -> Self {
        let has = |any: PollFlags| flags & any != 0;
        Self {
            is_readable: has(libc::POLLIN),
            is_writable: has(libc::POLLOUT),
            is_read_closed: has(libc::POLLRDHUP | libc::POLLHUP),
            is_write_closed: has(libc::POLLHUP),
            is_error: has(libc::POLLERR | libc::POLLNVAL),
        }
    }
}

/// The flags of poll(2), as in its `pollfd`.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) type PollFlags = libc::c_short;

/// The descriptors of a connection, each with what a sleeping call waits for.
#[cfg(any(target_os = "linux", target_os = "android"))]
#[derive(Default)]
pub(crate) struct Sources {
    descriptors: [Option<(std::os::fd::RawFd, PollFlags)>; 2],
}

#[cfg(any(target_os = "linux", target_os = "android"))]
impl Sources {
    /// Waits for nothing if there are no `flags`.
    pub(crate) fn add(&mut self, descriptor: std::os::fd::RawFd, flags: PollFlags) {
        let free = self.descriptors.iter_mut().find(|place| place.is_none());
        debug_assert!(free.is_some(), "a connection has two descriptors at most");
        if let Some(free) = free.filter(|_| flags != 0) {
            *free = Some((descriptor, flags));
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (std::os::fd::RawFd, PollFlags)> {
        self.descriptors.into_iter().flatten()
    }
}

/// The work of [`Driver::poll_once`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PollScope {
    /// Sends pending frames, and takes everything that has arrived without an event from the system.
    All,
    /// Takes completions up to the first frame. Asks an empty completion queue this many times.
    Frame { polls: u32 },
}

impl PollScope {
    /// Asks once.
    pub(crate) const ONCE: Self = Self::Frame { polls: 1 };
}

/// Moves the frames of one connection.
pub(crate) trait Driver<P: Blocks> {
    /// Registers the driver's descriptors for edge-triggered events under `token`.
    fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()>;

    /// Undoes [`register`](Self::register).
    fn deregister(&mut self, registry: &Registry) -> io::Result<()>;

    /// Sets whether each [`progress`](Self::progress) ends after a bounded part of the work, for a
    /// connection whose peer must not keep the thread from others.
    fn limit_turns(&mut self, limited: bool);

    /// Whether the last [`progress`](Self::progress) has left work for the next one.
    fn has_more(&self) -> bool;

    /// Remembers an event that the system reported; the next [`progress`](Self::progress) acts on
    /// it.
    fn on_event(&mut self, event: SystemEvent);

    /// Adds the descriptors that a sleeping call must wait for, each for what the driver does not know
    /// yet. Otherwise the system would report that again and again.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn sources(&mut self, sources: &mut Sources);

    /// The descriptors that report room to send, first the one that reports arrivals, too. They stay
    /// open as long as the driver.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn room_sources(&mut self) -> Vec<(std::os::fd::RawFd, mio::Interest)>;

    /// Receives and sends until neither moves any more. Never sleeps.
    fn progress(&mut self, protocol: &mut ProtocolMachine<P::Block>, blocks: &mut P, now: Instant);

    /// One poll for a caller that spins and has not gone to sleep yet. `sink` is the waiting call,
    /// which may receive a frame directly. It requests no event from the system. Returns whether
    /// anything moved; if so, more may be left to do.
    fn poll_once(
        &mut self,
        _: &mut ProtocolMachine<P::Block>,
        _: &mut P,
        _now: Instant,
        _: PollScope,
        _: &mut CallBuffer<'_>,
    ) -> bool {
        false
    }

    /// After a poll that has moved something: takes the event that this has made, if one was
    /// requested. None comes before [`progress`](Self::progress) requests it again.
    fn end_request_for_event(&mut self, _: &mut ProtocolMachine<P::Block>) {}

    /// Sends the program's bytes at once as one frame. They must fit a frame, nothing may be queued
    /// before them, and the transport must be able to take them now. A few bytes are sent from
    /// where they are; more are copied into a block first. Returns whether they were sent.
    fn send_at_once(
        &mut self,
        _: &mut ProtocolMachine<P::Block>,
        _blocks: &mut P,
        _kind: ConnectionKind,
        _bytes: &[u8],
    ) -> bool {
        false
    }

    /// Sends until nothing moves; receives nothing.
    fn post(&mut self, protocol: &mut ProtocolMachine<P::Block>, blocks: &mut P, now: Instant);

    /// Whether [`post`](Self::post) has nothing to do for a connection that is quiet.
    fn is_idle(&self) -> bool;

    /// Whether everything that the connection handed over is on its way, and will arrive without a
    /// further call on this side.
    fn is_flushed(&self) -> bool;

    /// The time at which [`progress`](Self::progress) must run even without an event.
    fn next_deadline(&self) -> Option<Instant> {
        None
    }

    /// Whether the driver stopped because the pool had no block. No event reports when a block
    /// becomes free.
    fn is_starved(&self) -> bool;

    /// The number of requests to the system to move data: socket calls, or doorbells of a queue
    /// pair.
    fn system_calls(&self) -> u64;
}
