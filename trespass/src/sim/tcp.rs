//! The modelled TCP stream: two pipes of bounded size, whose bytes arrive in pieces of any length.

use super::rng::SimRng;

#[derive(Default)]
struct TcpPipe {
    /// Written, but not yet in transit.
    sending: Vec<u8>,
    /// Arrived, but not yet read.
    arrived: Vec<u8>,
    /// The writer has shut the pipe down.
    closed: bool,
    /// The reader has closed its socket.
    unread: bool,
}

/// Two pipes; end `n` writes to pipe `n`.
pub(super) struct TcpLink {
    pipes: [TcpPipe; 2],
    buffer: usize,
    cut: bool,
    reset: bool,
}

/// The result of a read from the socket.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ReadResult {
    Bytes(Vec<u8>),
    Nothing,
    End,
    Reset,
}

impl TcpLink {
    /// `buffer` bytes fit in each socket buffer.
    pub(super) fn new(buffer: usize) -> Self {
        Self { pipes: Default::default(), buffer, cut: false, reset: false }
    }

    /// Writes the bytes that fit; returns `None` after a reset.
    pub(super) fn write(&mut self, end: usize, bytes: &[u8]) -> Option<usize> {
        if self.reset {
            return None;
        }
        let pipe = &mut self.pipes[end];
        let len = bytes.len().min(self.buffer - pipe.sending.len());
        pipe.sending.extend_from_slice(&bytes[..len]);
        Some(len)
    }

    /// Reads at most `most` bytes; chance may return fewer.
    pub(super) fn read(&mut self, end: usize, most: usize, rng: &mut SimRng) -> ReadResult {
        if self.reset {
            return ReadResult::Reset;
        }
        let pipe = &mut self.pipes[1 - end];
        let len = pipe.arrived.len().min(most);
        if len == 0 {
            let ended = pipe.closed && pipe.sending.is_empty();
            return if ended { ReadResult::End } else { ReadResult::Nothing };
        }
        let len = if rng.one_in(2) { len } else { rng.within(1..len + 1) };
        ReadResult::Bytes(take(&mut pipe.arrived, len))
    }

    /// Moves some bytes of the pipe of `end`; returns `false` if it has none to move.
    pub(super) fn step(&mut self, end: usize, rng: &mut SimRng) -> bool {
        let pipe = &mut self.pipes[end];
        let most = pipe.sending.len().min(self.buffer - pipe.arrived.len());
        if most == 0 || self.cut {
            return false;
        }
        let len = if rng.one_in(2) { most } else { rng.within(1..most + 1) };
        let bytes = take(&mut pipe.sending, len);
        if pipe.unread {
            // No socket receives it.
            self.reset = true;
            return true;
        }
        pipe.arrived.extend_from_slice(&bytes);
        true
    }

    /// `shutdown(SHUT_WR)`.
    pub(super) fn close(&mut self, end: usize) {
        self.pipes[end].closed = true;
    }

    /// Whether this end has shut its pipe down.
    pub(super) fn is_closed(&self, end: usize) -> bool {
        self.pipes[end].closed
    }

    /// `close` of the socket. Its kernel still sends what it has. If it has bytes that were not read,
    /// or gets some later, it resets the stream, and the peer loses what it has not read.
    pub(super) fn drop_socket(&mut self, end: usize) {
        self.close(end);
        let pipe = &mut self.pipes[1 - end];
        pipe.unread = true;
        self.reset |= !pipe.arrived.is_empty();
    }

    /// One end was killed, so the kernel resets the stream for the other.
    pub(super) fn reset(&mut self) {
        self.reset = true;
    }

    /// Cuts the connection: nothing passes any more.
    pub(super) fn cut(&mut self) {
        self.cut = true;
    }
}

/// Removes and returns the first `len` bytes.
fn take(pipe: &mut Vec<u8>, len: usize) -> Vec<u8> {
    let rest = pipe.split_off(len);
    std::mem::replace(pipe, rest)
}
