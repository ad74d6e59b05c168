//! Places in a transfer where tests let a process die, stop or dawdle.
//!
//! Builds with debug assertions only: the variable `SOFT_RNIC_CRASH` is `STEP=ACTION` or `STEP:N=ACTION`, for the N-th time
//! (from 1, the default) that a transfer comes to the step. A release build has none of this.

/// How far a transfer has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The peer's cards were read; no mark is published.
    BeforeMark,
    /// The mark is published and the queue pair takes messages; no receive is claimed.
    BeforeClaim,
    /// A receive is claimed.
    Claimed,
    /// Everything was checked under the mark; nothing is copied.
    Checked,
    /// Half of the bytes are copied.
    HalfCopied,
    /// The bytes are there; the receive is not finished.
    BeforeFinish,
    /// The receive is finished; nobody is told.
    BeforeAnnounce,
    /// The completion queue is told; its owner, who may sleep, is not.
    BeforeDoorbell,
}

/// Does what the environment says for this step, if anything.
#[inline(always)]
pub(crate) fn reach(step: Step) {
    #[cfg(all(debug_assertions, not(any(miri, loom))))]
    imp::reach(step);
    #[cfg(not(all(debug_assertions, not(any(miri, loom)))))]
    let _ = step;
}

/// Whether something is to happen while a receive is claimed, so that a message may not do without.
#[inline(always)]
pub(crate) fn needs_claims() -> bool {
    #[cfg(all(debug_assertions, not(any(miri, loom))))]
    return imp::is_set(Step::Claimed);
    #[cfg(not(all(debug_assertions, not(any(miri, loom)))))]
    return false;
}

/// Whether a transfer is to be made in two halves, so that there is something between them.
#[inline(always)]
pub(crate) fn has_halves() -> bool {
    #[cfg(all(debug_assertions, not(any(miri, loom))))]
    return imp::is_set(Step::HalfCopied);
    #[cfg(not(all(debug_assertions, not(any(miri, loom)))))]
    return false;
}

#[cfg(all(debug_assertions, not(any(miri, loom))))]
mod imp {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use super::Step;

    #[derive(Clone, Copy)]
    enum Action {
        Kill,
        Stop,
        Sleep(Duration),
    }

    struct Rule {
        step: Step,
        count: u32,
        action: Action,
    }

    fn rule() -> Option<&'static Rule> {
        static RULE: OnceLock<Option<Rule>> = OnceLock::new();
        if RULE.get().is_none() {
            // Looked for again and again until it is set: what comes before does not count.
            let text = std::env::var("SOFT_RNIC_CRASH").ok().filter(|text| !text.is_empty())?;
            let rule = parse(&text);
            if rule.is_none() {
                log::error!("SOFT_RNIC_CRASH is {text:?}; set it to STEP[:N]=kill, stop or sleep-MS");
            }
            let _ = RULE.set(rule);
        }
        RULE.get()?.as_ref()
    }

    fn parse(text: &str) -> Option<Rule> {
        let (place, action) = text.split_once('=')?;
        let (step, count) = place.split_once(':').unwrap_or((place, "1"));
        let step = match step {
            "before-mark" => Step::BeforeMark,
            "before-claim" => Step::BeforeClaim,
            "claimed" => Step::Claimed,
            "checked" => Step::Checked,
            "half-copied" => Step::HalfCopied,
            "before-finish" => Step::BeforeFinish,
            "before-announce" => Step::BeforeAnnounce,
            "before-doorbell" => Step::BeforeDoorbell,
            _ => return None,
        };
        let action = match action.split_once('-') {
            None if action == "kill" => Action::Kill,
            None if action == "stop" => Action::Stop,
            Some(("sleep", time)) => Action::Sleep(Duration::from_millis(time.parse().ok()?)),
            _ => return None,
        };
        Some(Rule { step, count: count.parse().ok()?, action })
    }

    pub(super) fn is_set(step: Step) -> bool {
        rule().is_some_and(|rule| rule.step == step)
    }

    pub(super) fn reach(step: Step) {
        static REACHED: AtomicU32 = AtomicU32::new(0);
        let Some(rule) = rule().filter(|rule| rule.step == step) else { return };
        if REACHED.fetch_add(1, Ordering::Relaxed) + 1 != rule.count {
            return;
        }
        let signal = match rule.action {
            Action::Kill => rustix::process::Signal::KILL,
            Action::Stop => rustix::process::Signal::STOP,
            Action::Sleep(time) => return std::thread::sleep(time),
        };
        // A stop ends where the next instruction is, when somebody lets the process go on.
        if let Err(error) = rustix::process::kill_process(rustix::process::getpid(), signal) {
            log::error!("a crash point could not signal its own process: {error}");
        }
    }
}
