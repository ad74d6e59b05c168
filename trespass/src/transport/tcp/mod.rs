//! The TCP transport: frames one after another on a byte stream.
//!
//! No receives are posted: blocks are taken from the pool as frames arrive. When the connection
//! wants no more frames, the socket is not read until TCP's own window stops the peer. A sent block
//! is released when the system has taken its bytes.

mod reader;
mod socket;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice};
use std::net::Shutdown;
use std::time::Instant;

use mio::net::TcpStream;
use mio::{Interest, Registry, Token};

use self::reader::{AHEAD, FrameSink, Reader};
pub(crate) use self::socket::Socket;
use super::{Driver, SystemEvent};
#[cfg(any(target_os = "linux", target_os = "android"))]
use super::{PollFlags, Sources};
use crate::process::Descriptor;
use crate::protocol::frame::HEADER_LEN;
use crate::protocol::{
    Block, Blocks, CompletedTransmit, FailureCause, Frame, GATHER_MAX, ProtocolError, ProtocolMachine,
    Purpose, TransmitItem,
};

/// The maximum number of frames (and, in [`BYTES`], of their bytes) taken from the connection
/// before the system has accepted any of them.
const FRAMES: usize = 32;
/// The maximum number of frame parts in one system call; at least the parts of one frame.
const PARTS: usize = 2 * FRAMES;
const _: () = assert!(PARTS > GATHER_MAX);
const BYTES: usize = 256 * 1024;

/// Reads in a turn of a driver whose turns are limited, and writes.
pub(crate) const CALLS_A_TURN: u32 = 16;

/// Whether a short read or write is enough to expect another edge-triggered event. Elsewhere the
/// socket must be used until it would block.
const SHORT_IS_ENOUGH: bool = cfg!(any(target_os = "linux", target_os = "android"));

thread_local! {
    /// The buffer for bytes read beyond the current frame, shared by all connections of a thread.
    /// Its content is not kept between reads.
    static READ_AHEAD: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The driver of one connection's socket, which the simulator replaces.
pub(crate) struct TcpDriver<B, S = TcpStream> {
    socket: S,
    reader: Reader<B>,
    /// Frames taken from the connection and not sent whole yet. Of the first, `sent` bytes are
    /// sent.
    out: VecDeque<Frame<B>>,
    sent: usize,
    /// A read may find something; `may_write` is its counterpart for writes.
    may_read: bool,
    may_write: bool,
    /// The peer's end or an error was reported. A short read then does not clear `may_read`,
    /// because the end is still to be read.
    ends: bool,
    /// The pool had no block.
    starved: bool,
    /// Sending has failed with this error. Reading goes on, because the peer may
    /// have sent its reason.
    broken: Option<io::Error>,
    /// The connection has failed, and the driver has returned all of its frames.
    over: bool,
    calls: u64,
    /// The reads and the writes of this turn, and how many of each a limited one may have.
    reads: u32,
    writes: u32,
    most_calls: u32,
    is_limited: bool,
}

impl<B: Block> TcpDriver<B> {
    /// `socket` must be connected and non-blocking.
    pub(crate) fn new(socket: std::net::TcpStream) -> Self {
        Self::over(TcpStream::from_std(socket))
    }

    #[cfg(unix)]
    pub(crate) fn descriptor(&self) -> Option<Descriptor> {
        Some(std::os::fd::AsRawFd::as_raw_fd(&self.socket))
    }

    #[cfg(not(unix))]
    pub(crate) fn descriptor(&self) -> Option<Descriptor> {
        None
    }
}

impl<B: Block, S: Socket> TcpDriver<B, S> {
    pub(crate) fn over(socket: S) -> Self {
        Self {
            socket,
            reader: Reader::new(Vec::new()),
            out: VecDeque::new(),
            sent: 0,
            may_read: true,
            may_write: true,
            ends: false,
            starved: false,
            broken: None,
            over: false,
            calls: 0,
            reads: 0,
            writes: 0,
            most_calls: CALLS_A_TURN,
            is_limited: false,
        }
    }

    /// Sets how often a limited turn reads, and how often it writes.
    #[cfg(all(test, not(loom), not(miri)))]
    pub(crate) fn set_most_calls(&mut self, most: u32) {
        self.most_calls = most;
    }

    /// Whether a turn may have no more of these calls.
    fn has_used(&self, calls: u32) -> bool {
        self.is_limited && calls >= self.most_calls
    }

    fn has_used_its_turn(&self) -> bool {
        self.has_used(self.reads) || self.has_used(self.writes)
    }

    /// Reads until the socket is empty or the connection wants no more frames. Returns whether
    /// anything arrived.
    fn receive<P: Blocks<Block = B>>(&mut self, protocol: &mut ProtocolMachine<B>, blocks: &mut P) -> bool {
        let mut any = false;
        while protocol.slots_wanted() > 0 {
            let used_its_turn = self.has_used(self.reads);
            let mut incoming = FrameReceiver { protocol, blocks, starved: &mut self.starved };
            match self.reader.resume(&mut incoming) {
                Ok(true) => (),
                Ok(false) => break,
                Err(error) => {
                    protocol.failed(FailureCause::Protocol(error));
                    break;
                }
            }
            if !self.may_read || used_its_turn {
                break;
            }
            self.reads += 1;
            self.calls += 1;
            let outcome = READ_AHEAD.with_borrow_mut(|ahead| {
                ahead.resize(AHEAD, 0);
                self.reader.read(&mut self.socket, ahead, &mut incoming)
            });
            match outcome {
                Ok(Ok(outcome)) if outcome.read == 0 => {
                    protocol.failed(FailureCause::PeerGone);
                    break;
                }
                Ok(Ok(outcome)) => {
                    any = true;
                    self.may_read = !(SHORT_IS_ENOUGH && outcome.is_short() && !self.ends);
                }
                Ok(Err(error)) => {
                    protocol.failed(FailureCause::Protocol(error));
                    break;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.may_read = false,
                Err(error) if error.kind() == ErrorKind::Interrupted => (),
                Err(error) => {
                    protocol.failed(failed("receiving", &error));
                    break;
                }
            }
        }
        any
    }

    /// Sends until the connection has no more frames or the socket takes no more. Returns whether
    /// anything moved.
    fn send<P: Blocks<Block = B>>(
        &mut self,
        protocol: &mut ProtocolMachine<B>,
        blocks: &mut P,
        now: Instant,
    ) -> bool {
        let mut any = false;
        loop {
            let more = self.fill(protocol, blocks, now);
            let used_its_turn = self.has_used(self.writes);
            if self.out.is_empty() || !self.may_write || used_its_turn || self.broken.is_some() {
                return any || more;
            }
            self.writes += 1;
            match self.write() {
                Ok(sent) => {
                    any = true;
                    self.sent += sent;
                    let all = self.pop_sent(protocol);
                    self.may_write = all || !SHORT_IS_ENOUGH;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.may_write = false,
                Err(error) if error.kind() == ErrorKind::Interrupted => (),
                Err(error) => {
                    // The peer may have sent its reason before it closed, so read once more.
                    self.broken = Some(error);
                    self.may_read = true;
                }
            }
        }
    }

    /// Takes frames from the connection into `out`, up to [`FRAMES`] and [`BYTES`]. Returns whether
    /// it took any.
    fn fill<P: Blocks<Block = B>>(
        &mut self,
        protocol: &mut ProtocolMachine<B>,
        blocks: &mut P,
        now: Instant,
    ) -> bool {
        let (mut any, mut bytes) = (false, self.out.iter().map(Frame::len).sum::<usize>());
        while self.out.len() < FRAMES && bytes < BYTES && self.broken.is_none() {
            let Some(transmit) = protocol.transmit(now, blocks, FRAMES - self.out.len()) else {
                self.starved |= protocol.wants_memory();
                break;
            };
            any = true;
            match transmit {
                TransmitItem::Send(frame) => {
                    bytes += frame.len();
                    self.out.push_back(frame);
                }
                // The protocol requests neither on TCP.
                other @ (TransmitItem::Read(_) | TransmitItem::Probe) => {
                    protocol.done(CompletedTransmit::from(other))
                }
            }
        }
        any
    }

    /// Tells the peer's kernel that no more bytes come.
    pub(crate) fn half_close(&mut self) {
        if let Err(error) = self.socket.shutdown(Shutdown::Write) {
            tracing::trace!(%error, "the socket was gone already");
        }
    }

    /// Writes the parts of the queued frames with one system call.
    fn write(&mut self) -> io::Result<usize> {
        let mut slices = [IoSlice::new(&[]); PARTS];
        let mut count = 0;
        for (slice, part) in slices.iter_mut().zip(self.out.iter().flat_map(Frame::parts)) {
            *slice = IoSlice::new(part);
            count += 1;
        }
        let mut slices = &mut slices[..count];
        IoSlice::advance_slices(&mut slices, self.sent);
        self.calls += 1;
        self.socket.send(slices)
    }

    /// Returns frames that were sent whole to the connection. Returns whether `out` is empty.
    fn pop_sent(&mut self, protocol: &mut ProtocolMachine<B>) -> bool {
        while let Some(len) = self.out.front().map(Frame::len).filter(|len| *len <= self.sent) {
            self.sent -= len;
            let frame = self.out.pop_front().expect("it was there");
            protocol.done(CompletedTransmit::from(TransmitItem::Send(frame)));
        }
        self.out.is_empty()
    }

    /// See [`Driver::limit_turns`].
    pub(crate) fn limit_turns(&mut self, limited: bool) {
        self.is_limited = limited;
    }

    /// See [`Driver::has_more`].
    pub(crate) fn has_more(&self) -> bool {
        self.has_used_its_turn() && !self.over
    }

    /// See [`Driver::on_event`].
    pub(crate) fn on_event(&mut self, event: SystemEvent) {
        self.ends |= event.is_read_closed || event.is_error;
        self.may_read |= event.is_readable || self.ends;
        self.may_write |= event.is_writable || event.is_write_closed || event.is_error;
    }

    /// See [`Driver::progress`].
    pub(crate) fn progress<P: Blocks<Block = B>>(
        &mut self,
        protocol: &mut ProtocolMachine<B>,
        blocks: &mut P,
        now: Instant,
    ) {
        self.starved = false;
        (self.reads, self.writes) = (0, 0);
        while !self.over {
            let received = self.receive(protocol, blocks);
            let sent = self.send(protocol, blocks, now);
            if let Some(error) = &self.broken
                && !received
            {
                protocol.failed(failed("sending", error));
            }
            if protocol.failure().is_some() {
                return self.finish(protocol, blocks, now);
            }
            if !received && !sent || self.has_used_its_turn() {
                return;
            }
        }
    }

    /// Ends the driver of a failed connection. It sends the failure to the peer if that is possible
    /// at once, returns all frames, and shuts the socket down.
    fn finish<P: Blocks<Block = B>>(
        &mut self,
        protocol: &mut ProtocolMachine<B>,
        blocks: &mut P,
        now: Instant,
    ) {
        self.over = true;
        // A frame that is partly sent must be completed, or the peer could not parse the next one.
        for frame in self.out.split_off(usize::from(self.sent > 0).min(self.out.len())) {
            protocol.done(CompletedTransmit::from(TransmitItem::Send(frame)));
        }
        self.fill(protocol, blocks, now);
        if self.broken.is_none()
            && !self.out.is_empty()
            && let Ok(sent) = self.write()
        {
            self.sent += sent;
            self.pop_sent(protocol);
        }
        for frame in self.out.drain(..) {
            protocol.done(CompletedTransmit::from(TransmitItem::Send(frame)));
        }
        protocol.drained();
        // Shut down now, so that the peer notices even if this side's program does nothing for a
        // long time.
        if let Err(error) = self.socket.shutdown(Shutdown::Both) {
            tracing::trace!(%error, "the socket of a failed connection was gone already");
        }
    }
}

impl<P: Blocks> Driver<P> for TcpDriver<P::Block> {
    fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        registry.register(&mut self.socket, token, Interest::READABLE | Interest::WRITABLE)
    }

    fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        registry.deregister(&mut self.socket)
    }

    fn limit_turns(&mut self, limited: bool) {
        Self::limit_turns(self, limited);
    }

    fn has_more(&self) -> bool {
        Self::has_more(self)
    }

    fn on_event(&mut self, event: SystemEvent) {
        Self::on_event(self, event);
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn sources(&mut self, sources: &mut Sources) {
        let unless = |known: bool, flag: PollFlags| if known { 0 } else { flag };
        let flags = unless(self.may_read, libc::POLLIN)
            | unless(self.ends, libc::POLLRDHUP)
            | unless(self.may_write, libc::POLLOUT);
        if !self.over {
            sources.add(std::os::fd::AsRawFd::as_raw_fd(&self.socket), flags);
        }
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn room_sources(&mut self) -> Vec<(std::os::fd::RawFd, Interest)> {
        vec![(std::os::fd::AsRawFd::as_raw_fd(&self.socket), Interest::WRITABLE)]
    }

    fn progress(&mut self, protocol: &mut ProtocolMachine<P::Block>, blocks: &mut P, now: Instant) {
        Self::progress(self, protocol, blocks, now);
    }

    fn post(&mut self, protocol: &mut ProtocolMachine<P::Block>, blocks: &mut P, now: Instant) {
        if !self.over {
            self.writes = 0;
            self.send(protocol, blocks, now);
            if self.broken.is_some() || protocol.failure().is_some() {
                self.progress(protocol, blocks, now);
            }
        }
    }

    fn is_idle(&self) -> bool {
        self.out.is_empty() && self.broken.is_none()
    }

    fn is_flushed(&self) -> bool {
        self.over || (self.out.is_empty() && !self.starved)
    }

    fn is_starved(&self) -> bool {
        self.starved
    }

    fn system_calls(&self) -> u64 {
        self.calls
    }
}

/// Passes parsed frames to the connection, in blocks from the pool.
struct FrameReceiver<'a, P: Blocks> {
    protocol: &'a mut ProtocolMachine<P::Block>,
    blocks: &'a mut P,
    starved: &'a mut bool,
}

impl<P: Blocks> FrameSink for FrameReceiver<'_, P> {
    type Block = P::Block;
    type Error = ProtocolError;

    fn place(&mut self, header: &[u8; HEADER_LEN]) -> Result<Option<(P::Block, usize)>, ProtocolError> {
        let len = self.protocol.frame_len(header)?;
        if self.protocol.slots_wanted() == 0 {
            return Ok(None);
        }
        let block = self.blocks.take(len, Purpose::Receive);
        *self.starved |= block.is_none();
        Ok(block.map(|block| (block, len)))
    }

    fn frame(&mut self, block: P::Block, len: usize) -> Result<(), ProtocolError> {
        self.protocol.received(block, len).map(drop)
    }
}

/// The failure of a system call of this kind.
fn failed(what: &'static str, error: &io::Error) -> FailureCause {
    FailureCause::Io { what, kind: error.kind(), error: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::block::testing::{VecBlock, VecBlocks};
    use crate::protocol::{ConnectionKind, ConnectionSetup, LinkType};

    /// A side of a connection over loopback.
    struct Side {
        driver: TcpDriver<VecBlock>,
        protocol: ProtocolMachine<VecBlock>,
        blocks: VecBlocks,
    }

    impl Side {
        fn new(socket: std::net::TcpStream) -> Self {
            socket.set_nonblocking(true).unwrap();
            let setup = ConnectionSetup::new(ConnectionKind::Stream, LinkType::Tcp);
            let protocol = ProtocolMachine::new(&setup).unwrap();
            Self { driver: TcpDriver::new(socket), protocol, blocks: VecBlocks::new(1 << 20) }
        }

        fn turn(&mut self) {
            self.driver.may_read = true;
            self.driver.may_write = true;
            let Self { driver, protocol, blocks } = self;
            Driver::<VecBlocks>::progress(driver, protocol, blocks, Instant::now());
        }

        fn has_more(&self) -> bool {
            Driver::<VecBlocks>::has_more(&self.driver)
        }
    }

    /// A peer that goes on sending to a closed connection does not keep its turn from ending.
    #[test]
    #[cfg_attr(miri, ignore = "opens sockets")]
    fn a_limited_turn_ends_while_the_peer_sends() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let [mut one, mut other] = [Side::new(socket), Side::new(listener.accept().unwrap().0)];
        other.protocol.shutdown_read();
        Driver::<VecBlocks>::limit_turns(&mut other.driver, true);
        assert_eq!(other.driver.most_calls, CALLS_A_TURN);
        // Less than the system's buffers hold, whatever their size.
        other.driver.most_calls = 1;
        let (piece, mut sent, mut cut) = (vec![1; 100_000], 0, 0);
        while sent < 64 << 20 {
            if let Ok(count) = one.protocol.write(&[IoSlice::new(&piece)], &mut one.blocks) {
                sent += count as u64;
                one.turn();
                continue;
            }
            one.turn();
            // Now the system's buffers are full, and have more than a turn reads.
            other.turn();
            cut += u32::from(other.has_more());
        }
        assert!(cut > 0, "no turn was cut");
        while other.protocol.counters().bytes_received < sent {
            one.turn();
            other.turn();
        }
    }
}
