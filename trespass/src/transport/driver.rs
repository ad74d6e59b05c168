//! The transport trait: a driver moves the frames of one connection over a socket or a queue pair.

use std::io;
use std::time::Instant;

use mio::event::Event;
use mio::{Registry, Token};

use crate::protocol::{Blocks, CallBuffer, ConnectionKind, ProtocolMachine};

/// Moves the frames of one connection.
pub(crate) trait Driver<P: Blocks> {
    /// Registers the driver's descriptors for edge-triggered events under `token`.
    fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()>;

    /// Undoes [`register`](Self::register).
    fn deregister(&mut self, registry: &Registry) -> io::Result<()>;

    /// Has each [`progress`](Self::progress) end after a bounded part of the work, for a connection
    /// whose peer must not keep the thread from others.
    fn limit_turns(&mut self);

    /// Whether the last [`progress`](Self::progress) has left work for the next one.
    fn has_more(&self) -> bool;

    /// Remembers an event that the system reported; the next [`progress`](Self::progress) acts on
    /// it.
    fn on_event(&mut self, event: &Event);

    /// Receives and sends until neither moves any more. Never sleeps.
    fn progress(&mut self, protocol: &mut ProtocolMachine<P::Block>, blocks: &mut P, now: Instant);

    /// One poll for a caller that spins and has not gone to sleep yet.
    ///
    /// With `all`, it sends pending frames and takes everything that has arrived without an event
    /// from the system. Otherwise it takes only the first frame, which the waiting call may receive
    /// directly in `sink`. It requests no event from the system. Returns whether anything moved; if
    /// so, more may be left to do.
    fn poll_once(
        &mut self,
        _: &mut ProtocolMachine<P::Block>,
        _: &mut P,
        _now: Instant,
        _all: bool,
        _: &mut CallBuffer<'_>,
    ) -> bool {
        false
    }

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
    fn is_idle(&self) -> bool {
        false
    }

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
