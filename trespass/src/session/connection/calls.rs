//! The calls on a connection, which never wait.

use std::io::{self, IoSlice};

use super::{Connection, Direction, LentBatch, MESSAGE_PREFIX, Refused};
use crate::pool::Block;
use crate::protocol::{self, Blocked, CallError, FailureCause};
use crate::session::buffers::{Part, RecvBuf, Ticket};
use crate::transport::{Driver, PollScope};

impl Connection {
    /// The error of a failed call, with the kind that `std::net` uses.
    pub(crate) fn refused(&mut self, direction: Direction, error: CallError) -> Refused {
        let error = match error {
            CallError::Failed(FailureCause::PeerGone)
                if self.peer_finished && direction == Direction::Write =>
            {
                self.failure_reported = true;
                CallError::PeerClosed
            }
            error => error,
        };
        let kind = match &error {
            CallError::Blocked(why) => {
                let awaiting_memory = *why == Blocked::Memory;
                self.pool_empty += u64::from(awaiting_memory);
                self.awaiting_memory[direction as usize] = awaiting_memory;
                return Refused::Blocked;
            }
            CallError::Failed(cause) => {
                let kind = cause.kind();
                let lost = matches!(kind, io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe);
                // As over TCP, the first call reports the reset and later writes a broken pipe.
                let again = std::mem::replace(&mut self.failure_reported, true);
                if direction == Direction::Write && lost && (again || self.peer_finished) {
                    io::ErrorKind::BrokenPipe
                } else {
                    kind
                }
            }
            CallError::ShutDown | CallError::PeerClosed => io::ErrorKind::BrokenPipe,
            _ => io::ErrorKind::InvalidInput,
        };
        Refused::Failed(io::Error::new(kind, error))
    }

    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> Result<usize, Refused> {
        self.protocol.read(buffer).map_err(|error| self.refused(Direction::Read, error))
    }

    pub(crate) fn peek(&mut self, buffer: &mut [u8]) -> Result<usize, Refused> {
        self.protocol.peek(buffer).map_err(|error| self.refused(Direction::Read, error))
    }

    /// The failure, if no call has reported it.
    pub(crate) fn take_error(&mut self) -> Option<io::Error> {
        let cause = self.protocol.failure().filter(|_| !self.failure_reported)?.clone();
        if self.peer_finished && cause == FailureCause::PeerGone {
            // The peer has closed in order.
            return None;
        }
        match self.refused(Direction::Read, CallError::Failed(cause)) {
            Refused::Failed(error) => Some(error),
            Refused::Blocked => None,
        }
    }

    /// Records whether a call waits for memory.
    fn after_memory_call<T>(
        &mut self,
        direction: Direction,
        result: Result<T, CallError>,
    ) -> Result<T, Refused> {
        self.awaiting_memory[direction as usize] = false;
        result.map_err(|error| self.refused(direction, error))
    }

    /// Sends data that fits a frame at once, if nothing is queued before it.
    fn send_at_once(&mut self, kind: protocol::ConnectionKind, slices: &[IoSlice<'_>]) -> bool {
        let [bytes] = slices else { return false };
        let sent = self.driver.send_at_once(&mut self.protocol, &mut self.pool, kind, bytes);
        self.awaiting_memory[Direction::Write as usize] &= !sent;
        sent
    }

    /// `write` for callers that post at the end of the call.
    pub(crate) fn write_now(&mut self, slices: &[IoSlice<'_>]) -> Result<usize, Refused> {
        match slices {
            [bytes] if self.send_at_once(protocol::ConnectionKind::Stream, slices) => Ok(bytes.len()),
            [bytes] if self.piece.is_some() && bytes.len() > self.burst && !self.would_lend(bytes.len()) => {
                self.write_in_bursts(bytes)
            }
            _ => self.write(slices),
        }
    }

    /// Posts a few frames at a time, so that the peer copies them while the next are copied.
    fn write_in_bursts(&mut self, bytes: &[u8]) -> Result<usize, Refused> {
        in_bursts(bytes, self.burst, |burst| {
            let written = self.write(&[IoSlice::new(burst)])?;
            self.post();
            Ok(written)
        })
    }

    /// Whether bytes, or a message, would be lent to the peer, which then READs them.
    pub(crate) fn would_lend(&mut self, len: usize) -> bool {
        if !self.protocol.would_lend(len) {
            return false;
        }
        // The peer's grants may have arrived, and were not polled yet.
        self.poll_once(PollScope::All);
        self.protocol.would_lend(len)
    }

    pub(crate) fn write(&mut self, slices: &[IoSlice<'_>]) -> Result<usize, Refused> {
        let written = self.protocol.write(slices, &mut self.pool);
        self.after_memory_call(Direction::Write, written)
    }

    /// The data in one block. An empty result is the end.
    pub(crate) fn recv_chunk(&mut self) -> Result<RecvBuf, Refused> {
        let taken = self.protocol.recv_chunk(&mut self.pool);
        let chunk = self.after_memory_call(Direction::Read, taken)?;
        let mut bytes = RecvBuf::new(&self.returns);
        chunk.into_iter().for_each(|chunk| bytes.push(chunk));
        Ok(bytes)
    }

    /// `send` for callers that post at the end of the call.
    pub(crate) fn send_now(&mut self, slices: &[IoSlice<'_>]) -> Result<(), Refused> {
        if self.send_at_once(protocol::ConnectionKind::SeqPacket, slices) {
            Ok(())
        } else {
            self.send(slices)
        }
    }

    pub(crate) fn send(&mut self, slices: &[IoSlice<'_>]) -> Result<(), Refused> {
        let sent = self.protocol.send(slices, &mut self.pool);
        self.after_memory_call(Direction::Write, sent)
    }

    /// Posts a few frames of a message at a time, so that the peer copies them while the next are
    /// copied. `done` bytes of it were sent.
    pub(crate) fn send_in_bursts(&mut self, message: &[u8], done: &mut usize) -> Result<(), Refused> {
        while *done < message.len() {
            // Whole frames, of which the first also carries the message's length.
            let len = self.burst - if *done == 0 { MESSAGE_PREFIX } else { 0 };
            let end = message.len().min(*done + len);
            *done += self.send_part(message.len() as u64, &[IoSlice::new(&message[*done..end])])?;
            self.post();
        }
        Ok(())
    }

    pub(crate) fn send_part(&mut self, total: u64, slices: &[IoSlice<'_>]) -> Result<usize, Refused> {
        let sent = self.protocol.send_part(total, slices, &mut self.pool);
        self.after_memory_call(Direction::Write, sent)
    }

    /// Takes the block only if it is sent.
    pub(crate) fn send_block(&mut self, block: &mut Option<Block>, len: usize) -> Result<Ticket, Refused> {
        let Some(lent) = block.take() else { return Err(Refused::Blocked) };
        if len > lent.len() {
            let words = format!("the first {len} bytes of a block of {}", lent.len());
            *block = Some(lent);
            return Err(Refused::Failed(io::Error::new(io::ErrorKind::InvalidInput, words)));
        }
        self.before_lending(&lent);
        match self.protocol.send_block(lent, len) {
            Ok(ticket) => {
                self.lent += 1;
                Ok(Ticket(ticket.0))
            }
            Err((lent, error)) => {
                lent.returned();
                *block = Some(lent);
                Err(self.refused(Direction::Write, error))
            }
        }
    }

    /// Empties the vector only if the blocks are sent.
    pub(crate) fn send_blocks(&mut self, blocks: &mut Vec<(Block, usize)>) -> Result<Ticket, Refused> {
        if let Some((block, len)) = blocks.iter().find(|(block, len)| *len > block.len()) {
            let words = format!("the first {len} bytes of a block of {}", block.len());
            return Err(Refused::Failed(io::Error::new(io::ErrorKind::InvalidInput, words)));
        }
        let count = blocks.len();
        blocks.iter().for_each(|(block, _)| self.before_lending(block));
        match self.protocol.send_blocks(blocks) {
            Ok(protocol::Ticket(first)) => {
                self.lent += count;
                if count > 1 {
                    self.lent_batches
                        .push_back(LentBatch { tickets: first..first + count as u64, left: count });
                }
                Ok(Ticket(first))
            }
            Err(error) => {
                blocks.iter().for_each(|(block, _)| block.returned());
                Err(self.refused(Direction::Write, error))
            }
        }
    }

    /// Registers adopted memory while a device may use it.
    fn before_lending(&self, block: &Block) {
        if self.info.fallback.is_none() {
            block.lend(self.domain);
        }
    }

    pub(crate) fn recv(&mut self, buffer: &mut [u8]) -> Result<usize, Refused> {
        match self.protocol.recv(buffer) {
            Ok(Some(len)) => Ok(len),
            Ok(None) => Err(end_of_messages()),
            Err(error) => Err(self.refused(Direction::Read, error)),
        }
    }

    /// `recv`, or `None` if the message fits `buffer` and must be received in parts: it is longer
    /// than the receive buffer, or than a piece, of which one has arrived.
    pub(crate) fn recv_or_begin(
        &mut self,
        buffer: &mut [u8],
        piece: usize,
    ) -> Result<Option<usize>, Refused> {
        match self.protocol.recv(buffer) {
            Err(CallError::Blocked(_)) if self.protocol.begins_with(piece, buffer.len()) => Ok(None),
            Ok(Some(len)) => Ok(Some(len)),
            Ok(None) => Err(end_of_messages()),
            Err(CallError::AboveReceiveQuota { len, .. }) if len <= buffer.len() as u64 => Ok(None),
            Err(CallError::AboveReceiveQuota { len, .. }) => {
                Err(self.refused(Direction::Read, CallError::BufferTooSmall { len, room: buffer.len() }))
            }
            Err(error) => Err(self.refused(Direction::Read, error)),
        }
    }

    pub(crate) fn recv_part(&mut self, buffer: &mut [u8]) -> Result<Part, Refused> {
        match self.protocol.recv_part(buffer) {
            Ok(Some(part)) => Ok(part.into()),
            Ok(None) => Err(end_of_messages()),
            Err(error) => Err(self.refused(Direction::Read, error)),
        }
    }

    /// The data in one block of a message.
    pub(crate) fn recv_part_buf(&mut self) -> Result<(RecvBuf, Part), Refused> {
        let taken = self.protocol.recv_chunk(&mut self.pool);
        let Some(chunk) = self.after_memory_call(Direction::Read, taken)? else {
            return Err(end_of_messages());
        };
        let part = Part { len: chunk.range.len(), last: chunk.last, total: chunk.total };
        let mut bytes = RecvBuf::new(&self.returns);
        bytes.push(chunk);
        Ok((bytes, part))
    }

    /// A whole message.
    pub(crate) fn recv_buf(&mut self) -> Result<RecvBuf, Refused> {
        if !self.protocol.message_complete() {
            // Nothing is received whole, so an empty receive returns the reason.
            return match self.protocol.recv(&mut []) {
                Ok(_) => Err(end_of_messages()),
                Err(error) => Err(self.refused(Direction::Read, error)),
            };
        }
        let mut message = RecvBuf::new(&self.returns);
        loop {
            let taken = self.protocol.recv_chunk(&mut self.pool);
            // Only the first piece may need another block.
            match self.after_memory_call(Direction::Read, taken)? {
                Some(chunk) => {
                    let last = chunk.last;
                    message.push(chunk);
                    if last {
                        return Ok(message);
                    }
                }
                None => return Err(end_of_messages()),
            }
        }
    }
}

/// Passes bytes to `write` until it refuses them. Returns how many it has accepted. It may accept a
/// part of a burst, and then have room again.
fn in_bursts<E>(
    bytes: &[u8],
    burst: usize,
    mut write: impl FnMut(&[u8]) -> Result<usize, E>,
) -> Result<usize, E> {
    let mut written = 0;
    while written < bytes.len() {
        let end = bytes.len().min(written + burst);
        match write(&bytes[written..end]) {
            Ok(len) => written += len,
            Err(refused) if written == 0 => return Err(refused),
            // The next call reports it.
            Err(_) => break,
        }
    }
    Ok(written)
}

/// The error after the peer's last message.
fn end_of_messages() -> Refused {
    Refused::Failed(io::Error::new(
        io::ErrorKind::UnexpectedEof,
        "the peer has closed its end, and all its messages were received",
    ))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::in_bursts;

    proptest! {
        #[test]
        fn bursts_accept_a_prefix(
            len in 0_usize..200,
            burst in 1_usize..40,
            // What each call accepts at most; 0 refuses the burst.
            accepts in proptest::collection::vec(0_usize..40, 0..30),
        ) {
            let bytes: Vec<u8> = (0..len as u8).collect();
            let (mut accepted, mut calls) = (Vec::new(), accepts.iter());
            let written = in_bursts(&bytes, burst, |burst| {
                let most = calls.next().copied().unwrap_or(0);
                accepted.extend_from_slice(&burst[..burst.len().min(most)]);
                if most == 0 { Err("refused") } else { Ok(burst.len().min(most)) }
            });
            prop_assert_eq!(&accepted[..], &bytes[..accepted.len()]);
            let is_refused = len > 0 && accepts.first().is_none_or(|first| *first == 0);
            prop_assert_eq!(written, if is_refused { Err("refused") } else { Ok(accepted.len()) });
        }
    }
}
