//! The trait of a transport: it moves the frames of one connection.

use std::io;
use std::time::Instant;

use mio::event::Event;
use mio::{Registry, Token};

use crate::protocol::{Blocks, CallBuffer, ConnectionKind, ProtocolMachine};

/// Moves the frames of one connection.
pub(crate) trait Driver<P: Blocks> {
    /// Has the system report under that key.
    fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()>;

    /// Has it report no more.
    fn deregister(&mut self, registry: &Registry) -> io::Result<()>;

    /// Takes note of a report.
    fn on_event(&mut self, event: &Event);

    /// Receives and sends until nothing moves.
    fn progress(&mut self, protocol: &mut ProtocolMachine<P::Block>, blocks: &mut P, now: Instant);

    /// A look of one who does not sleep yet: sends if `all` is to be done, and takes what has come that the system need not report, or else
    /// what of it came first, which the call that waits may take. It has the system report nothing. Whether anything moved; then there may be
    /// more to do.
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

    /// Sends bytes of the program that fit a frame, if nothing is before them and that can be done now: few of them from where they are, more
    /// out of a block.
    fn send_at_once(
        &mut self,
        _: &mut ProtocolMachine<P::Block>,
        _blocks: &mut P,
        _kind: ConnectionKind,
        _bytes: &[u8],
    ) -> bool {
        false
    }

    /// Sends until nothing moves.
    fn post(&mut self, protocol: &mut ProtocolMachine<P::Block>, blocks: &mut P, now: Instant);

    /// Whether [`post`](Self::post) does nothing for a connection that is quiet.
    fn is_idle(&self) -> bool {
        false
    }

    /// Whether whatever the connection gave is on its way, and will arrive whatever becomes of this side.
    fn is_flushed(&self) -> bool;

    /// When to take a turn in any case.
    fn next_deadline(&self) -> Option<Instant> {
        None
    }

    /// Whether it stopped for want of a block: nothing reports when there is one again.
    fn is_starved(&self) -> bool;

    /// How often it asked the system to move something.
    fn system_calls(&self) -> u64;
}
