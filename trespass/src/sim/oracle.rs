//! What was sent in one direction, and whether what arrives is that: all of it, once, in order, with
//! its boundaries, and an end only after the last byte.

use super::pattern::TestPattern;
use std::collections::VecDeque;

/// One direction of one connection. It panics with what differs.
#[derive(Debug)]
pub(super) struct Oracle {
    seed: u64,
    direction: usize,
    /// Bytes of a stream that were accepted, and that arrived.
    written: u64,
    read: u64,
    /// Lengths of the messages that were accepted and have not arrived wholly.
    under_way: VecDeque<u64>,
    sent: u64,
    received: u64,
    /// Of the message that arrives now.
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

    /// The next bytes to write to a stream.
    pub(super) fn fill_stream(&self, bytes: &mut [u8]) {
        self.stream().fill(self.written, bytes);
    }

    /// So many of them were accepted.
    pub(super) fn wrote(&mut self, len: usize) {
        assert!(!self.closed, "direction {}: {len} bytes are accepted after shutdown", self.direction);
        self.written += len as u64;
    }

    /// The bytes at `at` of the next message to send.
    pub(super) fn fill_message(&self, at: u64, bytes: &mut [u8]) {
        self.message(self.sent).fill(at, bytes);
    }

    /// The next message was accepted, at least its beginning.
    pub(super) fn sent(&mut self, len: u64) {
        assert!(!self.closed, "direction {}: a message is accepted after shutdown", self.direction);
        self.under_way.push_back(len);
        self.sent += 1;
    }

    /// More of the message accepted last is to be sent: its bytes from `at`.
    pub(super) fn fill_rest(&self, at: u64, bytes: &mut [u8]) {
        self.message(self.sent - 1).fill(at, bytes);
    }

    /// A stream's reader has these bytes.
    pub(super) fn read(&mut self, bytes: &[u8]) {
        let after = self.read + bytes.len() as u64;
        assert!(!self.ended, "direction {}: {} bytes after the end", self.direction, bytes.len());
        assert!(
            after <= self.written,
            "I4: direction {}: {} bytes at place {} arrive, but only {} were written",
            self.direction,
            bytes.len(),
            self.read,
            self.written,
        );
        let difference = self.stream().first_difference(self.read, bytes);
        assert_eq!(difference, None, "I4: direction {}: another byte arrives at this place", self.direction);
        self.read = after;
    }

    /// A reader of messages has these bytes, which end a message or not.
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
        assert_eq!(self.arrived, len, "I5: direction {direction}: message {number} ends at another place");
        self.arrived = 0;
        self.received += 1;
        self.under_way.pop_front();
    }

    /// The writer has shut this direction down.
    pub(super) fn close(&mut self) {
        self.closed = true;
    }

    /// The reader sees the end.
    pub(super) fn end(&mut self) {
        assert!(self.closed, "I14: direction {}: an end that nobody made", self.direction);
        assert!(
            self.is_complete(),
            "I14: direction {}: the end comes before all data: {self:?}",
            self.direction
        );
        self.ended = true;
    }

    /// All that was accepted has arrived.
    pub(super) fn is_complete(&self) -> bool {
        self.read == self.written && self.under_way.is_empty()
    }

    /// Bytes of a stream and messages that were accepted, as one number that grows.
    pub(super) fn given(&self) -> u64 {
        self.written + self.sent
    }

    /// The length of the message that is to arrive next.
    pub(super) fn next_len(&self) -> Option<u64> {
        self.under_way.front().copied()
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Bytes of a stream and messages that have arrived.
    pub(super) fn arrived(&self) -> (u64, u64) {
        (self.read, self.received)
    }
}
