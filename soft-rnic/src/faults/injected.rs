//! The faults of one request: decided at its first try, kept until it has ended.

use std::cell::Cell;
use std::time::{Duration, Instant};

use rdma_mummy_sys::types::ibv_wc_status;

use super::{Action, Rule, RuleSet, Step, drawn_between, mix};

/// Attempts that are still to be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LossBudget {
    Left(u32),
    All,
}

impl LossBudget {
    fn of(times: Option<u32>) -> Self {
        times.map_or(Self::All, Self::Left)
    }

    /// Whether one more is lost.
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

/// Waits for requests of other queue pairs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HoldUntil {
    /// As soon as this many have been executed.
    pub(crate) executed: u64,
    pub(crate) until: Instant,
}

/// What rules have in mind for a request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Injected {
    /// Of the rules.
    pub(crate) generation: u64,
    pub(crate) until: Option<Instant>,
    pub(crate) held: Option<HoldUntil>,
    pub(crate) lost: Option<LossBudget>,
    pub(crate) not_ready: Option<LossBudget>,
    pub(crate) status: Option<ibv_wc_status>,
    pub(crate) tampering: Tampering,
}

impl Injected {
    /// Takes an action in; false if it is not about a request's way.
    pub(crate) fn take(&mut self, rule: &Rule, drawn: u64, set: &RuleSet) -> bool {
        match &rule.action {
            Action::Drop(times) => self.lost = Some(LossBudget::of(*times)),
            Action::Rnr(times) => self.not_ready = Some(LossBudget::of(*times)),
            Action::Delay(least, most) => {
                self.until = Some(Instant::now() + drawn_between(*least, *most, drawn));
            }
            Action::Hold(others, most) => {
                let now = set.executed.load(std::sync::atomic::Ordering::Relaxed);
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
}

/// How a process ends at a step, or is held up there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StepAction {
    Abort,
    Stop,
    Pause(Duration),
}

/// What is done to a message on its way.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tampering {
    /// So many bits, by a number of chance.
    pub(crate) flip: Option<(u32, u64)>,
    pub(crate) split: Option<Duration>,
    pub(crate) end: Option<(Step, StepAction)>,
}

thread_local! {
    /// For the message that this thread executes.
    static TAMPERING: Cell<Tampering> = const { Cell::new(Tampering { flip: None, split: None, end: None }) };
}

impl Tampering {
    /// Executes a message under it. What has happened does not happen again if the message is tried anew.
    pub(crate) fn around<R>(&mut self, execute: impl FnOnce() -> R) -> R {
        TAMPERING.set(*self);
        let result = execute();
        self.end = TAMPERING.replace(Self::default()).end;
        result
    }

    /// Of the message that this thread executes.
    pub(crate) fn current() -> Self {
        TAMPERING.get()
    }

    /// Whether the bytes have to go the long way, where something can be done to them.
    fn touches_payload(self) -> bool {
        self.flip.is_some() || self.split.is_some() || self.ends_at(Step::MidCopy)
    }

    /// Whether something is to happen here.
    pub(crate) fn ends_at(self, step: Step) -> bool {
        self.end.is_some_and(|(at, _)| at == step)
    }

    /// Whether a message may go the short way, on which no receive is claimed and nothing can be done to the bytes.
    pub(crate) fn may_use_fast_path(self) -> bool {
        !self.touches_payload() && !self.ends_at(Step::Claimed)
    }

    /// The bits to flip of so many bytes: byte and mask.
    pub(crate) fn flips(self, length: usize) -> impl Iterator<Item = (usize, u8)> {
        let (bits, drawn) = self.flip.filter(|_| length > 0).unwrap_or_default();
        (0..u64::from(bits)).map(move |bit| {
            let place = mix(drawn ^ bit) % (length as u64 * 8);
            ((place / 8) as usize, 1 << (place % 8))
        })
    }
}

/// Whether the bytes of the message that this thread executes are to be moved as those of a long one.
#[cold]
#[inline(never)]
pub(crate) fn skips_fast_path() -> bool {
    Tampering::current().touches_payload()
}

/// A step of a message: the process may end here, or be held up.
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
    // Once: what follows is the same message.
    TAMPERING.set(Tampering { end: None, ..tampering });
    match end {
        StepAction::Abort => {
            eprintln!("soft-rnic: a fault rule aborts this process (crash={step})");
            std::process::abort();
        }
        StepAction::Stop => {
            log::warn!("a fault rule stops this process (stop={step})");
            // SAFETY: stopping this process touches no memory.
            unsafe { libc::kill(libc::getpid(), libc::SIGSTOP) };
        }
        StepAction::Pause(time) => {
            log::debug!("a fault rule holds this thread up (pause={step})");
            std::thread::sleep(time);
        }
    }
}
