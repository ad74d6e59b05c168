//! Closing: FIN and FIN_ACK in each direction, linger, RESET.

use std::time::{Duration, Instant};

use super::failure::{FailureCause, ProtocolError};

/// The end of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum HalfState {
    Open,
    /// FIN will be sent after all data before it.
    Wanted,
    Fin,
    Acked,
}

#[derive(Debug)]
pub(crate) struct CloseState {
    /// This side's direction: FIN sent, FIN_ACK received.
    outward: HalfState,
    /// The peer's direction: FIN received, FIN_ACK sent.
    inward: HalfState,
    linger: Duration,
    deadline: Option<Instant>,
    closed: bool,
    failed: Option<FailureCause>,
    /// Whether a RESET must still be sent to the peer.
    reset_due: bool,
}

impl CloseState {
    pub(crate) fn new(linger: Duration) -> Self {
        CloseState {
            outward: HalfState::Open,
            inward: HalfState::Open,
            linger,
            deadline: None,
            closed: false,
            failed: None,
            reset_due: false,
        }
    }

    /// Closes this side's direction; FIN follows the last frame.
    pub(crate) fn shut(&mut self) {
        self.outward = self.outward.max(HalfState::Wanted);
    }

    /// Closes both directions, within the linger time.
    #[cfg_attr(
        not(test),
        allow(dead_code, reason = "the sockets wait by themselves, until all is delivered")
    )]
    pub(crate) fn close(&mut self, now: Instant) {
        self.shut();
        self.deadline.get_or_insert(now + self.linger);
    }

    /// Whether closing has not begun, and nothing has failed.
    #[inline(always)]
    pub(crate) fn is_untouched(&self) -> bool {
        self.outward == HalfState::Open
            && self.inward == HalfState::Open
            && !self.closed
            && self.failed.is_none()
    }

    pub(crate) fn is_shut(&self) -> bool {
        self.outward > HalfState::Open
    }

    pub(crate) fn fin_due(&self) -> bool {
        self.outward == HalfState::Wanted
    }

    pub(crate) fn fin_sent(&mut self) {
        self.outward = HalfState::Fin;
    }

    pub(crate) fn fin_received(&mut self) {
        self.inward = HalfState::Fin;
    }

    /// FIN_ACK is due as soon as all data before the peer's FIN is in this side's memory.
    pub(crate) fn fin_ack_due(&self, all_read: bool) -> bool {
        self.inward == HalfState::Fin && all_read
    }

    /// Whether this side has sent FIN, and the peer may send data nevertheless.
    pub(crate) fn awaits_data_after_fin(&self) -> bool {
        self.outward >= HalfState::Fin && self.inward < HalfState::Acked
    }

    pub(crate) fn fin_ack_sent(&mut self) {
        self.inward = HalfState::Acked;
    }

    /// Handles FIN_ACK.
    pub(crate) fn fin_ack_received(&mut self) -> Result<(), ProtocolError> {
        if self.outward != HalfState::Fin {
            return Err(ProtocolError::StrayFinAck);
        }
        self.outward = HalfState::Acked;
        Ok(())
    }

    /// Whether both sides have sent and acknowledged everything. Until then each continues to grant
    /// credits, because the peer may have sources to read, and must then send RFIN, after this
    /// side's last frame.
    pub(crate) fn all_is_said(&self) -> bool {
        self.outward == HalfState::Acked && self.inward == HalfState::Acked
    }

    /// Returns true once, when both sides are done, and nothing is in flight or will arrive.
    pub(crate) fn settle(&mut self) -> bool {
        let over = !self.closed && self.failed.is_none() && self.all_is_said();
        if over {
            self.closed = true;
            self.deadline = None;
        }
        over
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Ends the connection with `cause`; the first cause counts. Returns whether this was the
    /// first.
    pub(crate) fn fail(&mut self, cause: FailureCause, tell_peer: bool) -> bool {
        if self.closed || self.failed.is_some() {
            return false;
        }
        self.failed = Some(cause);
        self.reset_due = tell_peer;
        true
    }

    pub(crate) fn failed(&self) -> Option<&FailureCause> {
        self.failed.as_ref()
    }

    pub(crate) fn reset_due(&self) -> bool {
        self.reset_due
    }

    pub(crate) fn reset_sent(&mut self) {
        self.reset_due = false;
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline.filter(|_| self.failed.is_none() && !self.closed)
    }

    /// The failure to report if the linger time is over.
    pub(crate) fn expired(&self, now: Instant) -> Option<FailureCause> {
        self.deadline().filter(|deadline| now >= *deadline).map(|_| FailureCause::Linger(self.linger))
    }
}
