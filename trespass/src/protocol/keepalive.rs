//! When to ask whether the peer is there.

use std::time::Instant;

use super::failure::FailureCause;
use super::setup::Keepalive;

/// Probes after silence. Reads no clock: that something was heard is noted, and dated at the next tick; so a probe goes between one
/// and two idle times after the last sign of life.
#[derive(Debug)]
pub(crate) struct KeepaliveProber {
    keepalive: Option<Keepalive>,
    heard: bool,
    due: bool,
    /// When to look again whether there was silence.
    look_at: Option<Instant>,
    /// By when the probe under way must be answered.
    answer_by: Option<Instant>,
    /// There is no probe under way, but sends that stand for one.
    for_work: bool,
}

impl KeepaliveProber {
    pub(crate) fn new(keepalive: Option<Keepalive>) -> Self {
        KeepaliveProber {
            keepalive,
            heard: true,
            due: false,
            look_at: None,
            answer_by: None,
            for_work: false,
        }
    }

    /// The peer gave a sign of life.
    pub(crate) fn heard(&mut self) {
        self.heard = true;
        self.worked();
    }

    /// A send has completed.
    pub(crate) fn worked(&mut self) {
        if std::mem::take(&mut self.for_work) {
            self.answer_by = None;
        }
    }

    /// The probe came back. Silence counts on from when it was sent.
    pub(crate) fn answered(&mut self) {
        self.answer_by = None;
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.answer_by.or(self.look_at)
    }

    /// `busy`: sends are under way, whose completion, or error, tells as much as a probe's. So they have as long: a device that has stopped
    /// telling anything tells no error either.
    pub(crate) fn tick(&mut self, now: Instant, busy: bool) -> Option<FailureCause> {
        let keepalive = self.keepalive?;
        if let Some(answer_by) = self.answer_by {
            return (now >= answer_by).then_some(FailureCause::Silent(keepalive.timeout));
        }
        if self.look_at.is_some_and(|look_at| now < look_at) {
            return None;
        }
        let silent = self.look_at.is_some() && !std::mem::take(&mut self.heard);
        self.due |= silent && !busy;
        if silent && busy {
            self.for_work = true;
            self.answer_by = Some(now + keepalive.timeout);
        }
        self.look_at = Some(now + keepalive.idle);
        None
    }

    /// Whether the next probe waits to go.
    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        self.due
    }

    /// Whether a probe goes now.
    pub(crate) fn take(&mut self, now: Instant) -> bool {
        let due = std::mem::take(&mut self.due);
        if let (true, Some(keepalive)) = (due, self.keepalive) {
            self.answer_by = Some(now + keepalive.timeout);
        }
        due
    }
}
