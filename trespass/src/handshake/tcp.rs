//! The I/O of a handshake over TCP: blocking with a deadline, or non-blocking.
//!
//! Before the peer's HELLO is accepted it costs one message's memory at most ([`MAX_MESSAGE`]), whatever the peer sends. Nothing is read
//! beyond the last message of the handshake, since the first frame may follow at once.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use super::error::{HandshakeError, Step};
use super::machine::HandshakeMachine;
use super::{Attempt, DataPath, Established, Terms};
use crate::wire::Unavailable;
use crate::wire::{MAX_MESSAGE, PREAMBLE, Preamble, WireError};

/// How long a blocking handshake sleeps between looks at the data path: at first not at all, since it is proved in microseconds.
const MAX_YIELDS: u32 = 200;
const PATH_POLL_INTERVAL: Duration = Duration::from_micros(100);
/// Reads and writes of one call of [`TcpHandshake::progress`]: a peer that never stops does not hold up others.
const MAX_STEPS: u32 = 64;

/// One side of a handshake on a TCP connection.
pub(crate) struct TcpHandshake<D> {
    machine: HandshakeMachine<D>,
    incoming: MessageBuffer,
    sent: usize,
}

/// What a handshake waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WaitFor {
    /// That the socket can be written to; that it can be read from is always waited for.
    pub(crate) write: bool,
    /// That something comes over the data path: by its completion channel, or by looking often.
    pub(crate) path: bool,
    /// When to go on in any case.
    pub(crate) deadline: Instant,
}

/// What one read or write has brought.
enum IoProgress {
    /// Something; there may be more.
    Some,
    /// Nothing for now.
    Nothing,
}

impl<D: DataPath> TcpHandshake<D> {
    /// Begins as the client of a connected socket.
    pub(crate) fn client(terms: Terms, attempt: Attempt, path: Result<D, Unavailable>, now: Instant) -> Self {
        Self::new(HandshakeMachine::client(terms, attempt, path, now))
    }

    /// Begins as the server of an accepted socket.
    pub(crate) fn server(terms: Terms, path: Result<D, Unavailable>, now: Instant) -> Self {
        Self::new(HandshakeMachine::server(terms, path, now))
    }

    fn new(machine: HandshakeMachine<D>) -> Self {
        Self { machine, incoming: MessageBuffer::default(), sent: 0 }
    }

    /// Bytes that are kept for the message that is coming in.
    #[cfg(any(test, fuzzing))]
    pub(super) fn incoming_capacity(&self) -> usize {
        self.incoming.bytes.capacity()
    }

    /// What to wait for before calling [`Self::progress`] again.
    pub(crate) fn waits_for(&mut self) -> WaitFor {
        WaitFor {
            write: !self.machine.outgoing().is_empty(),
            path: self.machine.step() == Step::Probe && !self.machine.is_over(),
            deadline: self.machine.deadline(),
        }
    }

    /// The data path, if there may be one.
    pub(crate) fn path(&mut self) -> Option<&mut D> {
        self.machine.path()
    }

    /// The data path, while it is tried.
    pub(crate) fn probing(&mut self) -> Option<&mut D> {
        if self.waits_for().path { self.machine.path() } else { None }
    }

    /// Goes on as far as it can without waiting; the socket is non-blocking. The result comes once.
    pub(crate) fn progress(
        &mut self,
        stream: &mut (impl Read + Write),
    ) -> Poll<Result<Established<D>, HandshakeError>> {
        for _ in 0..MAX_STEPS {
            let moved = self.step(stream);
            if let Some(result) = self.result() {
                if result.is_err() {
                    self.send_rejection(stream);
                }
                return Poll::Ready(result);
            }
            if matches!(moved, IoProgress::Nothing) {
                break;
            }
        }
        Poll::Pending
    }

    /// Goes through with it. The socket is left blocking, without time limits.
    pub(crate) fn run(mut self, stream: &TcpStream) -> Result<Established<D>, HandshakeError> {
        let mut waiting = BlockingWait { stream, nonblocking: false, polls: 0 };
        let result = loop {
            let waits_for = self.waits_for();
            if let Err(error) = waiting.prepare(waits_for) {
                self.machine.failed(error);
            }
            let moved = self.step(&mut &*stream);
            if let Some(result) = self.result() {
                break result;
            }
            if waits_for.path && matches!(moved, IoProgress::Nothing) {
                waiting.wait_for_path();
            }
        };
        if result.is_err() && stream.set_nonblocking(true).is_ok() {
            self.send_rejection(&mut &*stream);
        }
        let restored = waiting.restore();
        let established = result?;
        restored.map_err(|source| HandshakeError::Io { step: Step::Ready, source })?;
        Ok(established)
    }

    /// One look at everything: the clock, the data path, and one read or one write.
    fn step(&mut self, stream: &mut (impl Read + Write)) -> IoProgress {
        self.machine.tick(Instant::now());
        if !self.machine.outgoing().is_empty() {
            return self.write(stream);
        }
        if self.machine.is_over() { IoProgress::Nothing } else { self.read(stream) }
    }

    fn write(&mut self, stream: &mut impl Write) -> IoProgress {
        let outgoing = self.machine.outgoing();
        match stream.write(&outgoing[self.sent..]) {
            Ok(0) => self.machine.failed(ErrorKind::WriteZero.into()),
            Ok(count) => {
                self.sent += count;
                if self.sent == outgoing.len() {
                    outgoing.clear();
                    self.sent = 0;
                }
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if would_block(&error) => return IoProgress::Nothing,
            Err(error) => self.machine.failed(error),
        }
        IoProgress::Some
    }

    fn read(&mut self, stream: &mut impl Read) -> IoProgress {
        match stream.read(self.incoming.space()) {
            Ok(0) => self.machine.closed(),
            Ok(count) => match self.incoming.filled(count) {
                // A blocking read may have taken its time.
                Ok(Some(message)) => self.machine.received(&message, Instant::now()),
                Ok(None) => {}
                Err(error) => self.machine.malformed(error),
            },
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if would_block(&error) => return IoProgress::Nothing,
            Err(error) => self.machine.failed(error),
        }
        IoProgress::Some
    }

    /// The result. Success comes when everything is sent.
    fn result(&mut self) -> Option<Result<Established<D>, HandshakeError>> {
        let unsent = !self.machine.outgoing().is_empty();
        match self.machine.take_result()? {
            Ok(established) if unsent => {
                self.machine.put_back(established);
                None
            }
            result => Some(result),
        }
    }

    /// Gives a peer that is refused its due, words, as far as the socket takes them at once. What it has sent meanwhile is thrown away:
    /// a socket that is closed with unread bytes takes its last words back.
    fn send_rejection(&mut self, stream: &mut (impl Read + Write)) {
        let outgoing = self.machine.outgoing();
        if outgoing.is_empty() || stream.write(&outgoing[self.sent..]).is_err() {
            return;
        }
        let mut waste = [0; 512];
        for _ in 0..MAX_STEPS {
            if !matches!(stream.read(&mut waste), Ok(1..)) {
                break;
            }
        }
    }
}

/// How a blocking handshake waits: in reads and writes with a time limit, or, while the data path is tried, in short sleeps.
struct BlockingWait<'a> {
    stream: &'a TcpStream,
    nonblocking: bool,
    polls: u32,
}

impl BlockingWait<'_> {
    fn prepare(&mut self, waits_for: WaitFor) -> std::io::Result<()> {
        if waits_for.path != self.nonblocking {
            self.stream.set_nonblocking(waits_for.path)?;
            self.nonblocking = waits_for.path;
        }
        if self.nonblocking {
            return Ok(());
        }
        // Zero would mean no limit.
        let left = waits_for.deadline.saturating_duration_since(Instant::now()).max(Duration::from_micros(1));
        self.stream.set_read_timeout(Some(left))?;
        self.stream.set_write_timeout(Some(left))
    }

    fn wait_for_path(&mut self) {
        self.polls += 1;
        if self.polls < MAX_YIELDS { thread::yield_now() } else { thread::sleep(PATH_POLL_INTERVAL) }
    }

    fn restore(&self) -> std::io::Result<()> {
        self.stream.set_nonblocking(false)?;
        self.stream.set_read_timeout(None)?;
        self.stream.set_write_timeout(None)
    }
}

/// A message that is coming in. What there is memory for is never more than the peer may send.
#[derive(Default)]
struct MessageBuffer {
    bytes: Vec<u8>,
    filled: usize,
}

impl MessageBuffer {
    /// Where the next bytes go; not beyond the end of the message.
    fn space(&mut self) -> &mut [u8] {
        if self.bytes.is_empty() {
            self.bytes.resize(PREAMBLE, 0);
        }
        &mut self.bytes[self.filled..]
    }

    /// So many have come. The message, if it is whole.
    fn filled(&mut self, count: usize) -> Result<Option<Vec<u8>>, WireError> {
        self.filled += count;
        if let Some(magic) = self.bytes[..self.filled].first_chunk() {
            Preamble::check_magic(*magic)?;
        }
        if self.filled < self.bytes.len() {
            return Ok(None);
        }
        if let Ok(head) = <&[u8; PREAMBLE]>::try_from(self.bytes.as_slice()) {
            let total = Preamble::decode(head)?.total_len();
            debug_assert!(total <= MAX_MESSAGE);
            if total > PREAMBLE {
                self.bytes.reserve_exact(total - PREAMBLE);
                self.bytes.resize(total, 0);
                return Ok(None);
            }
        }
        self.filled = 0;
        Ok(Some(std::mem::take(&mut self.bytes)))
    }
}

/// A socket that has nothing now, or a time limit of it that has passed.
fn would_block(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}
