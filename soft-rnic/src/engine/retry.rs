//! Retries: acknowledgement timeouts, RNR, and waits for a peer that is connecting or busy.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rdma_mummy_sys::types::ibv_wc_status;

use super::WrOutcome;
use crate::queue_pair::{PROGRESS, Qp, Sending};

/// The value of `rnr_retry` that means an unlimited number of retries.
const FOR_EVER: u8 = 7;

/// What a request waits for, and how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RetryWait {
    reason: WaitReason,
    /// `None`: without limit.
    pub(crate) deadline: Option<Instant>,
    tries_left: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WaitReason {
    NoAnswer,
    NotReady,
    /// The connection to the peer is being made, or this host is busy.
    Soon,
    /// A peer still touches memory that the request takes away.
    Touched,
}

/// The delay before a request that waits for something on this host is retried.
const SOON: Duration = Duration::from_millis(1);
/// How long an unreliable message waits for a peer that changes its state.
const CHANGE: Duration = Duration::from_millis(20);
/// How long an unreliable message waits for a receiver that must move the bytes itself.
const GRACE: Duration = Duration::from_millis(500);

impl RetryWait {
    /// Waits until the deadline, or without limit. Consumes no retry.
    pub(crate) fn until(deadline: Option<Instant>) -> Self {
        Self { reason: WaitReason::Soon, deadline, tries_left: 0 }
    }

    /// Whether the deadline has passed.
    pub(crate) fn is_over(self, now: Instant) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }

    /// Whether it is a wait for an answer or for a receiver, after which a retry is consumed.
    pub(crate) fn consumes_retries(self) -> bool {
        matches!(self.reason, WaitReason::NoAnswer | WaitReason::NotReady)
    }

    /// Whether this is the wait for the acknowledgement of the last retry.
    pub(crate) fn is_last_answer(self) -> bool {
        self.reason == WaitReason::NoAnswer && self.tries_left == 0
    }
}

impl Qp {
    /// The peer did not answer: retries after the acknowledgement timeout, `retry_cnt` times.
    pub(crate) fn retry_unacknowledged(&self, sending: &mut Sending) -> WrOutcome {
        let timeout = ack_timeout(sending.attributes.timeout);
        let tries = sending.attributes.retry_cnt;
        self.retry_after(sending, WaitReason::NoAnswer, timeout, tries, ibv_wc_status::IBV_WC_RETRY_EXC_ERR)
    }

    /// The receiver has no receive posted: retries after its RNR timer, `rnr_retry` times.
    pub(crate) fn retry_rnr(&self, sending: &mut Sending, timer: u8) -> WrOutcome {
        self.rnic.count_not_ready();
        let tries = sending.attributes.rnr_retry;
        let delay = Some(rnr_delay(timer));
        self.retry_after(sending, WaitReason::NotReady, delay, tries, ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR)
    }

    /// The owner of the memory has not answered a call yet. It has the time that an acknowledgement
    /// has.
    pub(crate) fn retry_owner_pending(&self, sending: &mut Sending, reliable: bool) -> WrOutcome {
        if !reliable {
            return self.retry_datagram(sending);
        }
        match self.retry_unacknowledged(sending) {
            WrOutcome::Retry(wait) => {
                let soon = Instant::now() + SOON;
                WrOutcome::Retry(RetryWait {
                    deadline: Some(wait.deadline.map_or(soon, |deadline| deadline.min(soon))),
                    ..wait
                })
            }
            failed => failed,
        }
    }

    /// A peer still touches memory that this request takes away. It has `Config::revoke`, as with a
    /// verb that takes memory away.
    pub(crate) fn retry_until_unused(&self, sending: &mut Sending, exhausted: ibv_wc_status) -> WrOutcome {
        let limit = Some(self.rnic.config().revoke);
        match self.retry_after(sending, WaitReason::Touched, limit, 0, exhausted) {
            WrOutcome::Retry(wait) => {
                WrOutcome::Retry(RetryWait { deadline: Some(Instant::now() + SOON), ..wait })
            }
            failed => failed,
        }
    }

    /// The owner of the receive still executes this message or an earlier one. An unreliable
    /// message waits for a while, with those behind it, and is then lost.
    pub(crate) fn retry_abandoned(&self, sending: &mut Sending) -> WrOutcome {
        if self.is_reliable() {
            return self.retry_owner_pending(sending, true);
        }
        match &sending.abandoned {
            Some(abandoned) if abandoned.age() < GRACE => self.retry_soon(sending),
            _ => WrOutcome::Done,
        }
    }

    /// A descriptor has changed while the request used it. That lasts for a moment, unless a peer
    /// keeps changing it: after [`GRACE`] the request has the time that an acknowledgement has.
    pub(crate) fn retry_changed(&self, sending: &mut Sending) -> WrOutcome {
        let since = *sending.changed_since.get_or_insert_with(Instant::now);
        if since.elapsed() < GRACE {
            return self.retry_soon(sending);
        }
        self.retry_owner_pending(sending, self.is_reliable())
    }

    /// The peer's queue pair is changing or gone: retries soon, then less and less often.
    pub(crate) fn retry_peer_closed(&self, sending: &mut Sending) -> WrOutcome {
        let now = Instant::now();
        let since = *sending.closed_since.get_or_insert(now);
        if self.is_reliable() {
            let next = now + (now - since).max(SOON);
            return match self.retry_unacknowledged(sending) {
                WrOutcome::Retry(wait) => {
                    let deadline = wait.deadline.map_or(next, |deadline| deadline.min(next));
                    WrOutcome::Retry(RetryWait { deadline: Some(deadline), ..wait })
                }
                failed => failed,
            };
        }
        if now - since < CHANGE { self.retry_soon(sending) } else { WrOutcome::Done }
    }

    /// The same for datagrams. After [`GRACE`] a datagram is lost, so that it does not block those
    /// behind it.
    pub(crate) fn retry_datagram(&self, sending: &mut Sending) -> WrOutcome {
        let lost = ibv_wc_status::IBV_WC_RETRY_EXC_ERR;
        match self.retry_after(sending, WaitReason::NoAnswer, Some(GRACE), 0, lost) {
            WrOutcome::Retry(wait) => {
                WrOutcome::Retry(RetryWait { deadline: Some(Instant::now() + SOON), ..wait })
            }
            _ => WrOutcome::Done,
        }
    }

    /// Waits for something on this host. Consumes no retry.
    pub(crate) fn retry_soon(&self, sending: &mut Sending) -> WrOutcome {
        let soon =
            RetryWait { reason: WaitReason::Soon, deadline: Some(Instant::now() + SOON), tries_left: 0 };
        // A wait with retries that is under way continues.
        sending.wait.get_or_insert(soon);
        WrOutcome::Retry(soon)
    }

    fn retry_after(
        &self,
        sending: &mut Sending,
        reason: WaitReason,
        delay: Option<Duration>,
        tries: u8,
        exhausted: ibv_wc_status,
    ) -> WrOutcome {
        let now = Instant::now();
        let delay = delay.map(|delay| delay.mul_f64(self.rnic.config().time_scale));
        let deadline = delay.and_then(|delay| now.checked_add(delay));
        let before = sending.wait.filter(|wait| wait.reason == reason);
        if let Some(wait) = before
            && wait.deadline.is_none_or(|deadline| now < deadline)
        {
            return WrOutcome::Retry(wait);
        }
        let tries_left = match (reason, before) {
            (WaitReason::NotReady, _) if tries == FOR_EVER => Some(tries),
            // The answer "receiver not ready" ends an attempt at once. A peer that also answers in
            // other ways gets no more of them.
            (WaitReason::NotReady, _) => {
                sending.not_ready = sending.not_ready.saturating_add(1);
                tries.checked_sub(sending.not_ready)
            }
            // A missing answer shows only when the timeout expires, so the first wait consumes no
            // retry.
            (_, None) => Some(tries),
            (_, Some(wait)) => wait.tries_left.checked_sub(1),
        };
        let Some(tries_left) = tries_left else { return WrOutcome::Failed(exhausted) };
        let wait = RetryWait { reason, deadline, tries_left };
        sending.wait = Some(wait);
        WrOutcome::Retry(wait)
    }

    /// Ensures that the request is retried even if the program sleeps.
    pub(crate) fn schedule_retry(self: &Arc<Self>, wait: RetryWait) {
        self.send_cq.wants_progress(self);
        if let Some(deadline) = wait.deadline {
            self.wake_at(deadline);
        }
    }

    /// Schedules the requests that exceed the budget of one run.
    pub(crate) fn schedule_progress(self: &Arc<Self>) {
        self.send_cq.wants_progress(self);
        self.wake_at(Instant::now() + SOON);
    }

    /// Has [`timer`](Self::timer) called at `when`, unless an earlier call is scheduled.
    fn wake_at(&self, when: Instant) {
        let mut wake = self.wake.lock();
        if wake.is_none_or(|earlier| when < earlier) {
            *wake = Some(when);
            self.rnic.node().wake_at(when, self.number.index);
        }
    }

    /// Runs when a scheduled time has come.
    pub(crate) fn timer(self: &Arc<Self>) {
        *self.wake.lock() = None;
        // Many short requests may be due at once where a rule limits their rate.
        let budget = if crate::faults::active() { PROGRESS * 64 } else { PROGRESS };
        if !self.run_unless_busy(budget) {
            self.wake_at(Instant::now() + SOON);
        }
        self.leave_if_done();
    }
}

/// The acknowledgement timeout: 4.096 us times two to the power of the attribute; 0 means no
/// timeout (`ibv_modify_qp(3)`; InfiniBand specification 9.7.6.1.3).
fn ack_timeout(timeout: u8) -> Option<Duration> {
    (timeout != 0).then(|| Duration::from_nanos(4096) * (1 << timeout.min(31)))
}

/// The delay of an RNR timer code, in hundredths of a millisecond (InfiniBand specification, table
/// 45 "Encoding for RNR NAK Timer Field").
fn rnr_delay(code: u8) -> Duration {
    const HUNDREDTHS: [u32; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
        3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    Duration::from_micros(10) * HUNDREDTHS[usize::from(code & 31)]
}

#[cfg(all(test, not(loom)))]
mod tests {
    use rdma_mummy_sys::types::ibv_qp_type;

    use super::*;
    use crate::verbs::bench::{VerbsFixture, destroy, inner, number};

    /// Calls `attempt` until the request fails.
    fn fails(mut attempt: impl FnMut(&Arc<Qp>, &mut Sending) -> WrOutcome) -> ibv_wc_status {
        let bench = VerbsFixture::new(4);
        let qp = bench.qp(ibv_qp_type::IBV_QPT_RC, core::ptr::null_mut());
        bench.init(qp);
        bench.ready(qp, number(qp), |attr| (attr.timeout, attr.retry_cnt, attr.rnr_retry) = (1, 2, 2));
        let status = (0..10_000).find_map(|_| {
            let outcome = attempt(inner(qp), &mut inner(qp).sending.lock());
            std::thread::sleep(Duration::from_micros(100));
            if let WrOutcome::Failed(status) = outcome { Some(status) } else { None }
        });
        destroy(qp);
        status.expect("the request fails")
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no processes to be a peer")]
    fn a_peer_that_answers_in_turns_is_given_up() {
        let mut turn = 0;
        let status = fails(|qp, sending| {
            turn += 1;
            if turn % 2 == 0 { qp.retry_rnr(sending, 1) } else { qp.retry_unacknowledged(sending) }
        });
        assert_eq!(status, ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR);
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no processes to be a peer")]
    fn a_peer_that_never_stops_changing_is_given_up() {
        let status = fails(|qp, sending| qp.retry_changed(sending));
        assert_eq!(status, ibv_wc_status::IBV_WC_RETRY_EXC_ERR);
    }

    #[test]
    fn timer_codes_match_the_specification() {
        assert_eq!(rnr_delay(0), Duration::from_micros(655_360));
        assert_eq!(rnr_delay(1), Duration::from_micros(10));
        assert_eq!(rnr_delay(12), Duration::from_micros(640));
        assert_eq!(rnr_delay(31), Duration::from_micros(491_520));
        assert_eq!(ack_timeout(0), None);
        assert_eq!(ack_timeout(14), Some(Duration::from_nanos(67_108_864)));
    }
}
