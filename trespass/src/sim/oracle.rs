//! The oracle of one direction: it knows what was sent, and checks what arrives. Everything must
//! arrive once, in order, with its boundaries, and the end only after the last byte.

use super::pattern::TestPattern;
use std::collections::VecDeque;

/// One direction of one connection. Its methods panic with the first difference.
#[derive(Debug)]
pub(super) struct Oracle {
    seed: u64,
    direction: usize,
    /// The numbers of stream bytes that were accepted, and that have arrived.
    written: u64,
    read: u64,
    /// The lengths of the accepted messages that have not arrived completely.
    under_way: VecDeque<u64>,
    sent: u64,
    received: u64,
    /// The number of bytes of the current message that have arrived.
    arrived: u64,
    closed: bool,
    ended: bool,
}

impl Oracle {
    pub(super) fn new(seed: u64, direction: usize) -> Self {
        Self {
            seed,
            direction,
            written: 0,
            read: 0,
            under_way: VecDeque::new(),
            sent: 0,
            received: 0,
            arrived: 0,
            closed: false,
            ended: false,
        }
    }

    fn stream(&self) -> TestPattern {
        TestPattern::new(self.seed, self.direction, 0)
    }

    fn message(&self, number: u64) -> TestPattern {
        TestPattern::new(self.seed, self.direction, 1 + number)
    }

    /// Fills `bytes` with the next bytes of a stream.
    pub(super) fn fill_stream(&self, bytes: &mut [u8]) {
        self.stream().fill(self.written, bytes);
    }

    /// Notes that `len` of these bytes were accepted.
    pub(super) fn wrote(&mut self, len: usize) {
        assert!(!self.closed, "direction {}: {len} bytes are accepted after shutdown", self.direction);
        self.written += len as u64;
    }

    /// Fills `bytes` with the next message's bytes from `at`.
    pub(super) fn fill_message(&self, at: u64, bytes: &mut [u8]) {
        self.message(self.sent).fill(at, bytes);
    }

    /// Notes that the next message was accepted, or at least its beginning.
    pub(super) fn sent(&mut self, len: u64) {
        assert!(!self.closed, "direction {}: a message is accepted after shutdown", self.direction);
        self.under_way.push_back(len);
        self.sent += 1;
    }

    /// Fills `bytes` from position `at` of the message that was accepted last.
    pub(super) fn fill_rest(&self, at: u64, bytes: &mut [u8]) {
        self.message(self.sent - 1).fill(at, bytes);
    }

    /// Checks bytes that a stream's reader has received.
    pub(super) fn read(&mut self, bytes: &[u8]) {
        let after = self.read + bytes.len() as u64;
        assert!(!self.ended, "direction {}: {} bytes after the end", self.direction, bytes.len());
        assert!(
            after <= self.written,
            "I4: direction {}: {} bytes arrive at position {}, but only {} were written",
            self.direction,
            bytes.len(),
            self.read,
            self.written,
        );
        let difference = self.stream().first_difference(self.read, bytes);
        assert_eq!(difference, None, "I4: direction {}: another byte arrives at this place", self.direction);
        self.read = after;
    }

    /// Checks bytes that a message reader has received; `last` tells whether they end the message.
    pub(super) fn received(&mut self, bytes: &[u8], last: bool) {
        let (direction, number) = (self.direction, self.received);
        assert!(!self.ended, "direction {direction}: a message after the end");
        let Some(&len) = self.under_way.front() else {
            panic!("I5: direction {direction}: message {number} arrives, {} were sent", self.sent);
        };
        let difference = self.message(number).first_difference(self.arrived, bytes);
        assert_eq!(
            difference, None,
            "I5: direction {direction}: message {number} of {len} bytes differs at this place"
        );
        self.arrived += bytes.len() as u64;
        assert!(self.arrived <= len, "I5: direction {direction}: message {number} of {len} bytes is longer");
        if !last {
            return;
        }
        assert_eq!(
            self.arrived, len,
            "I5: direction {direction}: message {number} ends at the wrong position"
        );
        self.arrived = 0;
        self.received += 1;
        self.under_way.pop_front();
    }

    /// Notes that the writer has shut this direction down.
    pub(super) fn close(&mut self) {
        self.closed = true;
    }

    /// Checks that the reader may see the end.
    pub(super) fn end(&mut self) {
        assert!(self.closed, "I14: direction {}: an end without a shutdown", self.direction);
        assert!(
            self.is_complete(),
            "I14: direction {}: the end comes before all data: {self:?}",
            self.direction
        );
        self.ended = true;
    }

    /// Whether everything accepted has arrived.
    pub(super) fn is_complete(&self) -> bool {
        self.read == self.written && self.under_way.is_empty()
    }

    /// A growing count of accepted bytes and messages.
    pub(super) fn given(&self) -> u64 {
        self.written + self.sent
    }

    /// The length of the message that must arrive next.
    pub(super) fn next_len(&self) -> Option<u64> {
        self.under_way.front().copied()
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// The numbers of stream bytes and of messages that have arrived.
    pub(super) fn arrived(&self) -> (u64, u64) {
        (self.read, self.received)
    }
}
