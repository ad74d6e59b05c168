//! What has arrived of a request or of the answers to one, until the program takes it.

use std::collections::VecDeque;
use std::mem;

use super::super::error::ProtocolViolation;
use super::super::frame::{HEADER, LAST, MESSAGE_END, MuxHeader};
use super::CHUNK;

/// The first room for a message of several frames.
const LONG: usize = 4 * CHUNK;

/// What a take has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// Nothing more has arrived.
    Nothing,
    /// Bytes of a message, without its end.
    Part,
    /// The rest of a message.
    Message,
    /// All messages were taken.
    End,
}

/// Bytes and the ends of the messages in them.
#[derive(Debug)]
pub(super) struct Inbox {
    bytes: Vec<u8>,
    /// Bytes at the begin of `bytes` that were taken.
    start: usize,
    /// The lengths of the messages that have ended, but for one that the last frame ended.
    lengths: VecDeque<usize>,
    /// Bytes behind those messages.
    open: usize,
    /// A message has begun that has not ended.
    in_message: bool,
    /// The last frame has arrived.
    ended: bool,
    /// The last frame has ended a message that was not taken.
    ends_message: bool,
    /// Bytes of the current frame that have not arrived.
    expected: usize,
    /// Another frame of the message follows it.
    continues: bool,
    /// What the peer may still send, headers included.
    credit: u64,
    /// What has arrived, or is arriving, for which the peer has no credit again.
    charged: u64,
    /// The next batch has credit.
    credit_is_announced: bool,
}

impl Inbox {
    pub(super) fn new(window: u64) -> Self {
        Self {
            bytes: Vec::new(),
            start: 0,
            lengths: VecDeque::new(),
            open: 0,
            in_message: false,
            ended: false,
            ends_message: false,
            expected: 0,
            continues: false,
            credit: window,
            charged: 0,
            credit_is_announced: false,
        }
    }

    /// Drops what has arrived. Nothing may be added afterwards.
    pub(super) fn discard(&mut self) {
        *self = Self::new(0);
    }

    /// Begins a frame, if the peer may send it.
    pub(super) fn begin(&mut self, header: &MuxHeader) -> Result<(), ProtocolViolation> {
        let (id, cost, left) = (header.id, header.cost(), self.credit);
        self.credit = left.checked_sub(cost).ok_or(ProtocolViolation::Window { id, cost, left })?;
        self.charged += cost;
        let is_end_alone = header.has(LAST) && !header.has(MESSAGE_END);
        if self.ended || is_end_alone && (header.len > 0 || self.in_message) {
            return Err(ProtocolViolation::State { kind: header.purpose as u8, id });
        }
        self.expected = header.len as usize;
        self.continues = !header.has(MESSAGE_END);
        Ok(())
    }

    /// Takes bytes of the frame.
    pub(super) fn arrived(&mut self, bytes: &[u8]) {
        if self.bytes.is_empty() && self.bytes.capacity() == 0 {
            // Most messages have one frame. The peer says its length. More than a window never waits.
            let window = usize::try_from(self.credit + self.charged).unwrap_or(LONG);
            let expected = if self.continues { LONG } else { self.expected.min(CHUNK) };
            self.bytes.reserve_exact(expected.min(window));
        }
        self.bytes.extend_from_slice(bytes);
        self.open += bytes.len();
        self.expected -= bytes.len();
    }

    /// All data of the frame have arrived.
    pub(super) fn end_frame(&mut self, header: &MuxHeader) {
        self.ended = header.has(LAST);
        let ends = header.has(MESSAGE_END);
        self.in_message = !ends && (header.len > 0 || self.in_message);
        if ends && self.ended {
            self.ends_message = true;
        } else if ends {
            self.lengths.push_back(mem::take(&mut self.open));
        }
    }

    /// Whether a part of a message has arrived, and not its end.
    pub(super) fn in_message(&self) -> bool {
        self.in_message
    }

    /// The bytes that there is memory for.
    #[cfg(test)]
    pub(super) fn room(&self) -> usize {
        self.bytes.capacity()
    }

    #[cfg(test)]
    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// The bytes that the program has not taken, and the headers of ended messages.
    pub(super) fn waiting(&self) -> usize {
        self.bytes.len() - self.start + self.lengths.len() * HEADER
    }

    /// Whether a message, or the end, has wholly arrived.
    pub(super) fn is_whole(&self) -> bool {
        self.ended || !self.lengths.is_empty()
    }

    /// Whether one that waits for a whole message should take what has arrived: the rest needs the
    /// room, or none follows. Otherwise the message would be copied part by part.
    pub(super) fn must_be_taken(&self, window: u64) -> bool {
        self.is_whole() || self.used() >= window / 2
    }

    /// What has arrived, with the headers, for which the peer gets credit only by a further take.
    fn used(&self) -> u64 {
        if self.credit_is_announced {
            return self.waiting() as u64;
        }
        self.charged.saturating_sub(self.expected as u64)
    }

    /// Whether a take would find anything of a message.
    pub(super) fn has_any(&self) -> bool {
        !self.lengths.is_empty() || self.open > 0
    }

    /// Moves what has arrived of the current message behind `into`.
    pub(super) fn take(&mut self, into: &mut Vec<u8>) -> Taken {
        if let Some(len) = self.lengths.pop_front() {
            self.move_into(len, into);
            return Taken::Message;
        }
        let len = mem::take(&mut self.open);
        self.move_into(len, into);
        if mem::take(&mut self.ends_message) {
            Taken::Message
        } else if self.ended {
            Taken::End
        } else if len > 0 {
            Taken::Part
        } else {
            Taken::Nothing
        }
    }

    fn move_into(&mut self, len: usize, into: &mut Vec<u8>) {
        let end = self.start + len;
        if into.is_empty() && self.start == 0 && end == self.bytes.len() {
            // The emptied one has room for the next message.
            mem::swap(into, &mut self.bytes);
            return;
        }
        into.extend_from_slice(&self.bytes[self.start..end]);
        self.start = end;
        if self.start == self.bytes.len() {
            self.bytes.clear();
            self.start = 0;
        } else if self.start > self.bytes.len() / 2 {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
    }

    /// Whether credit to give is worth a frame, and none is announced. The caller announces it.
    pub(super) fn announces_credit(&mut self, window: u64) -> bool {
        let is_worth = !self.ended && self.owed() >= window / 4;
        is_worth && !mem::replace(&mut self.credit_is_announced, true)
    }

    /// The credit that the peer gets now. From then on it may send as much.
    pub(super) fn give_credit(&mut self) -> Option<u32> {
        let owed = self.owed();
        if !mem::take(&mut self.credit_is_announced) || self.ended {
            return None;
        }
        self.charged -= owed;
        self.credit += owed;
        // A window has at most 2^30 bytes.
        Some(owed as u32)
    }

    /// What the program has taken, for which the peer has no credit again.
    fn owed(&self) -> u64 {
        self.charged.saturating_sub((self.waiting() + self.expected) as u64)
    }
}
