//! Keepalive: probes after silence, and the time by which the peer must answer.

use std::time::Instant;

use super::failure::FailureCause;
use super::setup::Keepalive;

/// Probes the peer after silence. It reads no clock: a sign of life is only noted, and dated at the
/// next tick. A probe is therefore sent between one and two idle times after the last sign of life.
#[derive(Debug)]
pub(crate) struct KeepaliveProber {
    keepalive: Option<Keepalive>,
    heard: bool,
    due: bool,
    /// The time of the next check for silence.
    look_at: Option<Instant>,
    /// The deadline of the outstanding probe.
    answer_by: Option<Instant>,
    /// Whether outstanding sends stand for the probe.
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

    /// Notes a sign of life of the peer.
    pub(crate) fn heard(&mut self) {
        self.heard = true;
        self.worked();
    }

    /// Notes that a send has completed.
    pub(crate) fn worked(&mut self) {
        if std::mem::take(&mut self.for_work) {
            self.answer_by = None;
        }
    }

    /// The probe was answered. Silence counts from when it was sent.
    pub(crate) fn answered(&mut self) {
        self.answer_by = None;
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.answer_by.or(self.look_at)
    }

    /// `busy` means that sends are outstanding, whose completion or error serves as the answer to a
    /// probe. They have the same time limit, because a device that has stopped reporting
    /// completions reports no errors, either.
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

    /// Whether the next probe is waiting to be sent.
    #[inline(always)]
    pub(crate) fn is_due(&self) -> bool {
        self.due
    }

    /// Whether a probe is sent now.
    pub(crate) fn take(&mut self, now: Instant) -> bool {
        let due = std::mem::take(&mut self.due);
        if let (true, Some(keepalive)) = (due, self.keepalive) {
            self.answer_by = Some(now + keepalive.timeout);
        }
        due
    }
}
