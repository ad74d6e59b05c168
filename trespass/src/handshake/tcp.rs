//! The I/O of a handshake over TCP, which never blocks.
//!
//! Until the peer's HELLO is accepted, memory is bounded by one message ([`MAX_MESSAGE`]). Nothing
//! is read beyond the last message of the handshake, because the first frame may follow directly.

use std::io::{ErrorKind, Read, Write};
use std::task::Poll;
use std::time::Instant;

use super::error::HandshakeError;
use super::machine::HandshakeMachine;
use super::{Attempt, DataPath, Established, Terms};
use crate::wire::Unavailable;
use crate::wire::{MAX_MESSAGE, PREAMBLE, Preamble, WireError};

/// Reads and writes of one [`TcpHandshake::progress`], so that a peer that never stops does not
/// delay others.
const MAX_STEPS: u32 = 64;

/// One side of a handshake on a TCP connection.
pub(crate) struct TcpHandshake<D> {
    machine: HandshakeMachine<D>,
    incoming: MessageBuffer,
    first: FirstMessage,
    sent: usize,
    /// When the last step ended.
    stepped: Option<Instant>,
}

/// A listener does not begin a client's handshake before the client has a place.
enum FirstMessage {
    /// It is handled when it has arrived.
    Handled,
    /// It is to be kept.
    Expected,
    /// It has arrived. Nothing more is read.
    Kept(Vec<u8>),
}

/// The events that a handshake waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WaitFor {
    /// Wait until the socket is writable. Readability is always waited for.
    pub(crate) write: bool,
    /// Wait for the data path: by its completion channel, or by polling.
    pub(crate) path: bool,
    /// The time of the next timer.
    pub(crate) deadline: Instant,
}

/// The result of one read or write.
enum IoProgress {
    /// Bytes were moved, and there may be more.
    Some,
    /// Nothing was moved.
    Nothing,
}

impl<D: DataPath> TcpHandshake<D> {
    /// Starts as the client of a connected socket.
    pub(crate) fn client(terms: Terms, attempt: Attempt, path: Result<D, Unavailable>, now: Instant) -> Self {
        Self::new(HandshakeMachine::client(terms, attempt, path, now))
    }

    /// Starts as the server of an accepted socket.
    pub(crate) fn server(terms: Terms, path: Result<D, Unavailable>, now: Instant) -> Self {
        Self::new(HandshakeMachine::server(terms, path, now))
    }

    fn new(machine: HandshakeMachine<D>) -> Self {
        let (incoming, first) = (MessageBuffer::default(), FirstMessage::Handled);
        Self { machine, incoming, first, sent: 0, stepped: None }
    }

    /// Keeps the peer's first message until [`begin`](Self::begin). Call it before any progress.
    pub(crate) fn keep_first_message(&mut self) {
        self.first = FirstMessage::Expected;
    }

    /// Whether the first message has arrived and is kept.
    pub(crate) fn keeps_message(&self) -> bool {
        matches!(self.first, FirstMessage::Kept(_))
    }

    /// Handles the first message that was kept. The time limit counts from now on.
    pub(crate) fn begin(&mut self, clock: impl Fn() -> Instant) {
        if let FirstMessage::Kept(message) = std::mem::replace(&mut self.first, FirstMessage::Handled) {
            let now = clock();
            self.machine.restart(now);
            self.machine.received(&message, now);
            self.stepped = Some(clock());
        }
    }

    /// Whether this side has sent READY. From then on the peer may be established, and must not be turned
    /// away.
    pub(crate) fn has_sent_ready(&self) -> bool {
        self.machine.has_sent_ready()
    }

    /// Whether it is about to use the data path.
    pub(crate) fn uses_path(&self) -> bool {
        self.machine.uses_path()
    }

    /// Drops a data path that was given up.
    pub(crate) fn drop_spent_path(&mut self) {
        self.machine.drop_spent_path();
    }

    /// Handles the peer's end while nothing is read.
    pub(crate) fn closed(&mut self) {
        self.machine.closed();
    }

    /// The step that is waited for.
    #[cfg(test)]
    pub(crate) fn step(&self) -> super::HandshakeStep {
        self.machine.step()
    }

    /// The first bytes of a peer that speaks another protocol, at most 16.
    pub(crate) fn foreign_bytes(&self) -> Option<&[u8]> {
        let received = &self.incoming.bytes[..self.incoming.filled];
        let magic = received.first_chunk()?;
        Preamble::check_magic(*magic).is_err().then_some(received)
    }

    /// When the last step ended. Each needs a message or a probe of the peer. A message that is kept
    /// ends none. While the data path is proved, a peer goes on by answers.
    pub(crate) fn last_step(&self) -> Option<Instant> {
        self.stepped.max(self.machine.heard_at())
    }

    /// Bytes allocated for the incoming message.
    #[cfg(any(test, fuzzing))]
    pub(super) fn incoming_capacity(&self) -> usize {
        self.incoming.bytes.capacity()
    }

    /// The events to wait for before the next [`Self::progress`].
    pub(crate) fn waits_for(&mut self) -> WaitFor {
        WaitFor {
            write: !self.machine.outgoing().is_empty(),
            path: self.machine.awaits_path(),
            deadline: self.machine.deadline(),
        }
    }

    /// The data path, also one that was given up.
    pub(crate) fn path(&mut self) -> Option<&mut D> {
        self.machine.path()
    }

    /// Whether it has a data path, also one that was given up.
    pub(crate) fn has_path(&self) -> bool {
        self.machine.has_path()
    }

    /// The data path, while its completions are waited for.
    pub(crate) fn probing(&mut self) -> Option<&mut D> {
        if self.waits_for().path { self.machine.path() } else { None }
    }

    /// Continues as far as possible without waiting, on a non-blocking socket. It returns the
    /// result once. `clock` is `Instant::now`, or virtual.
    pub(crate) fn progress(
        &mut self,
        stream: &mut (impl Read + Write),
        clock: impl Fn() -> Instant,
    ) -> Poll<Result<Established<D>, HandshakeError>> {
        for _ in 0..MAX_STEPS {
            let step = self.machine.step();
            let moved = self.turn(stream, &clock);
            if self.machine.step() != step {
                self.stepped = Some(clock());
            }
            if let Some(result) = self.result() {
                return Poll::Ready(self.ended(stream, result));
            }
            if matches!(moved, IoProgress::Nothing) {
                break;
            }
        }
        if !self.keeps_message() {
            self.machine.expire(clock());
        }
        self.result().map_or(Poll::Pending, |result| Poll::Ready(self.ended(stream, result)))
    }

    /// Tells a refused peer.
    fn ended(
        &mut self,
        stream: &mut (impl Read + Write),
        result: Result<Established<D>, HandshakeError>,
    ) -> Result<Established<D>, HandshakeError> {
        result.inspect_err(|_| self.send_rejection(stream))
    }

    /// Checks the data path, and reads or writes once.
    fn turn(&mut self, stream: &mut (impl Read + Write), clock: &impl Fn() -> Instant) -> IoProgress {
        self.machine.tick(clock());
        if !self.machine.outgoing().is_empty() {
            return self.write(stream);
        }
        let reads = !self.machine.is_over() && !self.keeps_message();
        if reads { self.read(stream, clock) } else { IoProgress::Nothing }
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
            Err(error) if error.kind() == ErrorKind::WouldBlock => return IoProgress::Nothing,
            Err(error) => self.machine.failed(error),
        }
        IoProgress::Some
    }

    fn read(&mut self, stream: &mut impl Read, clock: &impl Fn() -> Instant) -> IoProgress {
        match stream.read(self.incoming.space()) {
            Ok(0) => self.machine.closed(),
            Ok(count) => match self.incoming.filled(count) {
                Ok(Some(message)) if matches!(self.first, FirstMessage::Expected) => {
                    self.first = FirstMessage::Kept(message);
                }
                Ok(Some(message)) => self.machine.received(&message, clock()),
                Ok(None) => {}
                Err(error) => self.machine.malformed(error),
            },
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return IoProgress::Nothing,
            Err(error) => self.machine.failed(error),
        }
        IoProgress::Some
    }

    /// The result. Success is returned after all bytes are sent.
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

    /// Ends the handshake of a client that loses its place, and tells it so.
    pub(crate) fn turn_away(&mut self, stream: &mut (impl Read + Write), text: String) {
        self.machine.turn_away(text);
        self.send_rejection(stream);
    }

    /// Sends a rejection to a refused peer, as far as the socket accepts it at once. It discards
    /// what the peer has sent, because closing a socket with unread bytes resets it and loses the
    /// rejection.
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

/// The incoming message. It allocates at most the length that the peer may send.
#[derive(Default)]
struct MessageBuffer {
    bytes: Vec<u8>,
    filled: usize,
}

impl MessageBuffer {
    /// The buffer for the next bytes, up to the end of the message.
    fn space(&mut self) -> &mut [u8] {
        if self.bytes.is_empty() {
            self.bytes.resize(PREAMBLE, 0);
        }
        &mut self.bytes[self.filled..]
    }

    /// Adds `count` received bytes. Returns the message if it is complete.
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
