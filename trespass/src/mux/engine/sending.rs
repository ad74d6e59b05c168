//! What is to be sent of a request or of the answers to one.

use super::super::frame::{HEADER, LAST, MESSAGE_END, MuxHeader, Purpose, WINDOWS, cost_of};
use super::super::payload::MuxBytes;
use super::turns::TurnState;

/// The data of a frame, at most: what others wait for when it is their turn.
pub(crate) const CHUNK: usize = 16 << 10;

/// The bytes of `out` beyond which messages are kept, and take their turn.
pub(super) const QUEUED: usize = 128 << 10;

/// One message at a time, in chunks for which there is credit.
#[derive(Debug)]
pub(super) struct Outbox {
    message: Option<MuxBytes<'static>>,
    sent: usize,
    /// Nothing follows the message.
    is_last: bool,
    credit: u64,
    /// It is among those whose turn will come.
    pub(super) is_listed: bool,
    pub(super) turn: TurnState,
}

impl Outbox {
    pub(super) fn new(window: u64) -> Self {
        Self {
            message: None,
            sent: 0,
            is_last: false,
            credit: window,
            is_listed: false,
            turn: TurnState::new(),
        }
    }

    /// Whether it takes another message.
    pub(super) fn is_empty(&self) -> bool {
        self.message.is_none()
    }

    #[cfg(test)]
    pub(super) fn sent(&self) -> usize {
        self.sent
    }

    /// The bytes of a message that is kept.
    pub(super) fn kept(&self) -> usize {
        self.message.as_ref().map_or(0, |message| message.len())
    }

    pub(super) fn clear(&mut self) {
        self.message = None;
    }

    /// Adds credit of the peer. Returns whether it is within the largest window.
    pub(super) fn add_credit(&mut self, more: u32) -> bool {
        self.credit += u64::from(more);
        self.credit <= *WINDOWS.end()
    }

    /// Takes a short message as one frame in `out`, if there is credit and `out` has room. Otherwise
    /// keeps it.
    pub(super) fn push(&mut self, header: MuxHeader, bytes: MuxBytes<'_>, out: &mut Vec<u8>) {
        let cost = cost_of(bytes.len());
        if bytes.len() <= CHUNK && cost <= self.credit && out.len() < QUEUED {
            self.credit -= cost;
            write_frame(header, &bytes, out);
            return;
        }
        self.message = Some(bytes.into_kept());
        self.sent = 0;
        self.turn = TurnState::new();
        self.is_last = header.has(LAST);
    }

    /// Counts a frame that was sent for it.
    pub(super) fn spend(&mut self, header: &MuxHeader) {
        self.credit -= header.cost();
    }

    /// Whether a turn would send something.
    pub(super) fn can_send(&self) -> bool {
        self.message.is_some() && self.credit > HEADER as u64
    }

    /// Sends a chunk. Returns whether the message has ended, and whether with it all has.
    pub(super) fn send_chunk(&mut self, purpose: Purpose, id: u64, out: &mut Vec<u8>) -> Option<bool> {
        let message = self.message.as_ref()?;
        let rest = &message[self.sent..];
        let credit = usize::try_from(self.credit - HEADER as u64).unwrap_or(usize::MAX);
        let len = rest.len().min(CHUNK).min(credit);
        let ends = len == rest.len();
        let flags = match (ends, self.is_last) {
            (true, true) => LAST | MESSAGE_END,
            (true, false) => MESSAGE_END,
            (false, _) => 0,
        };
        write_frame(MuxHeader::data(purpose, flags, id, len), &rest[..len], out);
        self.credit -= cost_of(len);
        self.sent += len;
        self.turn.spend(len);
        if !ends {
            return None;
        }
        self.message = None;
        Some(self.is_last)
    }
}

/// Appends a frame.
pub(super) fn write_frame(mut header: MuxHeader, data: &[u8], out: &mut Vec<u8>) {
    header.len = data.len() as u32;
    out.extend_from_slice(&header.encode());
    out.extend_from_slice(data);
}
