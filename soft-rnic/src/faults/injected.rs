//! The faults of one request: drawn at its first try, and kept until it completes.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rdma_mummy_sys::types::ibv_wc_status;

use super::rate::Reservation;
use super::{Action, RequestFacts, RuleSet, RuleState, Step, drawn_between, mix};

/// The number of attempts that are still to be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LossBudget {
    Left(u32),
    All,
}

impl LossBudget {
    fn of(times: Option<u32>) -> Self {
        times.map_or(Self::All, Self::Left)
    }

    /// Counts an attempt, and returns whether it is lost.
    pub(crate) fn take(&mut self) -> bool {
        match self {
            Self::All => true,
            Self::Left(0) => false,
            Self::Left(left) => {
                *left -= 1;
                true
            }
        }
    }
}

/// What happens to a hung request in the error state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hang {
    Flushed,
    Silent,
}

/// Whether the first request of a queue pair hangs, and under which rules.
#[derive(Debug, Default)]
pub(crate) struct HungState(AtomicU64);

impl HungState {
    /// The bit above the generation of the rules.
    const SILENT: u64 = 1 << 63;

    pub(crate) fn set(&self, generation: u64, silent: bool) {
        self.0.store(generation | if silent { Self::SILENT } else { 0 }, Relaxed);
    }

    /// Returns whether a request was hung.
    pub(crate) fn clear(&self) -> bool {
        self.0.swap(0, Relaxed) != 0
    }

    /// Whether it hangs silently under the current rules.
    #[cold]
    #[inline(never)]
    pub(crate) fn is_silent(&self) -> bool {
        let word = self.0.load(Relaxed);
        word & Self::SILENT != 0 && word & !Self::SILENT == super::generation()
    }
}

/// A request that waits for requests of other queue pairs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HoldUntil {
    /// The request continues when the process has executed this many requests.
    pub(crate) executed: u64,
    pub(crate) until: Instant,
}

/// The actions of all rules that match a request.
#[derive(Debug, Default)]
pub(crate) struct Injected {
    /// The generation of the rules.
    pub(crate) generation: u64,
    pub(crate) hang: Option<Hang>,
    /// The time that the request has reserved at rate limits.
    reserved: Vec<Reservation>,
    pub(crate) until: Option<Instant>,
    pub(crate) held: Option<HoldUntil>,
    pub(crate) lost: Option<LossBudget>,
    pub(crate) not_ready: Option<LossBudget>,
    pub(crate) status: Option<ibv_wc_status>,
    pub(crate) tampering: Tampering,
}

impl Injected {
    /// Adds an action; returns false if it does not concern the delivery of a request.
    pub(crate) fn take(&mut self, entry: &RuleState, drawn: u64, set: &RuleSet, seen: &RequestFacts) -> bool {
        match &entry.rule.action {
            Action::Drop(times) => self.lost = Some(LossBudget::of(*times)),
            Action::Rnr(times) => self.not_ready = Some(LossBudget::of(*times)),
            Action::Delay(least, most) => {
                self.wait_until(Instant::now() + drawn_between(*least, *most, drawn));
            }
            Action::Rate(_) => {
                let Some(limit) = &entry.limit else { return true };
                let reservation = limit.reserve(seen.device, seen.size, Instant::now());
                self.wait_until(reservation.finish());
                self.reserved.push(reservation);
            }
            Action::Hang { silent } => self.hang = Some(if *silent { Hang::Silent } else { Hang::Flushed }),
            Action::Hold(others, most) => {
                let now = set.executed.load(Relaxed);
                self.held =
                    Some(HoldUntil { executed: now + u64::from(*others), until: Instant::now() + *most });
            }
            Action::Status(status) => self.status = Some(*status),
            Action::Flip(bits) => self.tampering.flip = Some((*bits, drawn)),
            Action::Split(pause) => self.tampering.split = Some(*pause),
            Action::Crash(step) => self.tampering.end = Some((*step, StepAction::Abort)),
            Action::Stop(step) => self.tampering.end = Some((*step, StepAction::Stop)),
            Action::Pause(step, time) => self.tampering.end = Some((*step, StepAction::Pause(*time))),
            _ => return false,
        }
        true
    }

    fn wait_until(&mut self, until: Instant) {
        self.until = self.until.max(Some(until));
    }

    /// Whether the request still waits; until when.
    pub(crate) fn waits(&mut self, now: Instant) -> Option<Instant> {
        let until = self.until.filter(|until| now < *until);
        if until.is_none() {
            self.reserved.drain(..).for_each(|reserved| reserved.spend(now));
        }
        until
    }
}

/// How a process ends, stops or pauses at a step of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StepAction {
    Abort,
    Stop,
    Pause(Duration),
}

/// Changes to a message during its transfer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tampering {
    /// The number of bits to flip, and a random number that chooses them.
    pub(crate) flip: Option<(u32, u64)>,
    pub(crate) split: Option<Duration>,
    pub(crate) end: Option<(Step, StepAction)>,
}

thread_local! {
    /// The changes to the message that this thread executes.
    static TAMPERING: Cell<Tampering> = const { Cell::new(Tampering { flip: None, split: None, end: None }) };
}

impl Tampering {
    /// Executes a message with these changes. A change that has happened is not repeated if the
    /// message is retried.
    pub(crate) fn around<R>(&mut self, execute: impl FnOnce() -> R) -> R {
        TAMPERING.set(*self);
        let result = execute();
        self.end = TAMPERING.replace(Self::default()).end;
        result
    }

    /// The changes to the message that this thread executes.
    pub(crate) fn current() -> Self {
        TAMPERING.get()
    }

    /// Whether the bytes must take the general path, because the fast path cannot change them.
    fn touches_payload(self) -> bool {
        self.flip.is_some() || self.split.is_some() || self.ends_at(Step::MidCopy)
    }

    /// Whether the process ends, stops or pauses at this step.
    pub(crate) fn ends_at(self, step: Step) -> bool {
        self.end.is_some_and(|(at, _)| at == step)
    }

    /// Whether a message may take the fast path, which claims no receive and cannot change bytes.
    pub(crate) fn may_use_fast_path(self) -> bool {
        !self.touches_payload() && !self.ends_at(Step::Claimed)
    }

    /// The bits to flip in a message of `length` bytes, as byte index and mask.
    pub(crate) fn flips(self, length: usize) -> impl Iterator<Item = (usize, u8)> {
        let (bits, drawn) = self.flip.filter(|_| length > 0).unwrap_or_default();
        (0..u64::from(bits)).map(move |bit| {
            let place = mix(drawn ^ bit) % (length as u64 * 8);
            ((place / 8) as usize, 1 << (place % 8))
        })
    }
}

/// Whether the message that this thread executes must be copied by the general path.
#[cold]
#[inline(never)]
pub(crate) fn skips_fast_path() -> bool {
    Tampering::current().touches_payload()
}

/// Marks a step of a message: the process may end, stop or pause here.
#[inline(always)]
pub(crate) fn reach(step: Step) {
    if super::active() {
        end_at(step);
    }
}

#[cold]
#[inline(never)]
fn end_at(step: Step) {
    let tampering = Tampering::current();
    let Some((_, end)) = tampering.end.filter(|(at, _)| *at == step) else { return };
    // Only once, because a retry continues the same message.
    TAMPERING.set(Tampering { end: None, ..tampering });
    match end {
        StepAction::Abort => {
            eprintln!("soft-rnic: a fault rule aborts this process (crash={step})");
            std::process::abort();
        }
        StepAction::Stop => {
            log::warn!("a fault rule stops this process (stop={step})");
            // SAFETY: a signal to this process accesses no memory.
            unsafe { libc::kill(libc::getpid(), libc::SIGSTOP) };
        }
        StepAction::Pause(time) => {
            log::debug!("a fault rule holds this thread up (pause={step})");
            std::thread::sleep(time);
        }
    }
}
