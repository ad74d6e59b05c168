//! The end of a connection, for the drivers over one and over several queue pairs.

use std::time::{Duration, Instant};

use crate::protocol::{Block, ProtocolMachine};

/// How long a driver waits for a RESET frame to be acknowledged before it stops the queue pairs.
const RESET_TIMEOUT: Duration = Duration::from_millis(100);

/// The phases of a connection's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClosePhase {
    /// The queue pairs are in use.
    Open,
    /// The connection has failed on this side, and a RESET frame is on its way to the peer.
    Resetting { until: Instant },
    /// The queue pair is stopped, and its outstanding requests are being flushed.
    Draining { until: Instant },
    /// The connection has no request of a queue pair any more.
    Over,
}

/// What a driver still has to send.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnsentState {
    /// Nothing can be sent any more.
    pub(super) is_broken: bool,
    /// Sends have not completed.
    pub(super) is_sending: bool,
    /// An item was not posted.
    pub(super) holds_item: bool,
}

impl ClosePhase {
    /// Whether the RESET frame is acknowledged, or given up.
    pub(super) fn has_told_peer(self) -> bool {
        matches!(self, Self::Draining { .. } | Self::Over)
    }

    /// Whether the queue pairs are in use.
    pub(super) fn is_working(self) -> bool {
        matches!(self, Self::Open | Self::Resetting { .. })
    }

    /// The end of the time for a RESET frame, or for the requests of a stopped queue pair.
    pub(super) fn deadline(self) -> Option<Instant> {
        match self {
            Self::Resetting { until } | Self::Draining { until } => Some(until),
            Self::Open | Self::Over => None,
        }
    }

    /// Whether the queue pairs can be stopped. After a failure, they first get up to
    /// [`RESET_TIMEOUT`] to complete their sends, among them the RESET frame.
    pub(super) fn may_end<B: Block>(
        &mut self,
        protocol: &ProtocolMachine<B>,
        unsent: UnsentState,
        now: Instant,
    ) -> bool {
        let told = unsent.is_broken || !unsent.is_sending;
        if protocol.is_closed() {
            return told;
        }
        if protocol.failure().is_none() {
            return false;
        }
        let told = told && (unsent.is_broken || !unsent.holds_item);
        match *self {
            Self::Resetting { until } => told || now >= until,
            _ if told => true,
            _ => {
                *self = Self::Resetting { until: now + RESET_TIMEOUT };
                false
            }
        }
    }
}
