//! Fault injection: rules that say what fails, when, and a report of how often it did.
//!
//! A [`Rule`] names an action and the requests, receives or calls that it applies to. Rules come
//! from `SOFT_RNIC_FAULTS` (or [`Config::faults`](crate::Config::faults)) when the devices are set
//! up, and from [`set`] and [`add`] at any time. They apply to this process alone: its requests,
//! receives and calls. Random choices depend only on the seed and on how often a rule has matched,
//! so that a run can be repeated.
//!
//! `docs/soft-rnic-faults.md` is the guide, with the list of all actions.
//!
//! ```
//! use soft_rnic::faults;
//!
//! faults::set(faults::parse("drop opcode=send nth=2; delay=1ms..5ms chance=0.1")?, 7)?;
//! // ... the program under test ...
//! for report in faults::report() {
//!     println!("{}: {} of {}", report.rule, report.fired, report.matched);
//! }
//! faults::clear();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub(crate) mod effects;
pub(crate) mod injected;
mod parse;
mod rate;
mod rule;
#[cfg(test)]
mod tests;
mod words;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

pub use parse::{RuleError, parse};
use rate::RateLimit;
pub(crate) use rule::RequestFacts;
pub use rule::{Action, Rule, Trait, Which};
pub use words::{Call, CmMessage, Opcode, Step};

/// Every request reads it, and only a change of rules writes it, so it has a cache line to itself.
#[repr(align(128))]
struct Active(AtomicBool);

static ACTIVE: Active = Active(AtomicBool::new(false));
static CURRENT: RwLock<Option<Arc<RuleSet>>> = RwLock::new(None);

/// Whether any rule must be consulted. This load is the whole cost of fault injection while no rule
/// is set.
#[inline(always)]
pub(crate) fn active() -> bool {
    ACTIVE.0.load(Relaxed)
}

/// The rules of one [`set`] call and their counters.
#[derive(Debug)]
pub(crate) struct RuleSet {
    seed: u64,
    /// Distinguishes this set from earlier ones.
    pub(crate) generation: u64,
    since: Instant,
    rules: Vec<RuleState>,
    /// Requests that the process has executed since the rules were set.
    pub(crate) executed: AtomicU64,
}

/// A rule in force, with its counters.
#[derive(Debug)]
pub(crate) struct RuleState {
    pub(crate) rule: Rule,
    /// For [`Action::Rate`].
    limit: Option<Arc<RateLimit>>,
    matched: AtomicU64,
    fired: AtomicU64,
    first_fired: OnceLock<Instant>,
}

/// The counters of one rule.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Report {
    /// The rule, as it was set.
    pub rule: Rule,
    /// The number of requests, receives or calls that matched the rule.
    pub matched: u64,
    /// The number of matches on which it acted.
    pub fired: u64,
    /// The time since the rules were set.
    pub age: Duration,
    /// The time from setting the rules to the rule's first action; `None` if it has not acted.
    pub first_fired: Option<Duration>,
}

/// The reason why rules were refused. None of them is in force then.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SetError {
    /// A [`Trait`] rule describes the device itself, which exists already.
    #[error(
        "fault rule \"{0}\" says how a device is made: give it in the configuration, before the devices are listed"
    )]
    TooLate(Box<Rule>),
    /// The action does not apply to the given conditions.
    #[error("fault rule \"{rule}\" is not {allowed}")]
    Senseless {
        /// The refused rule.
        rule: Box<Rule>,
        /// The conditions that the action accepts.
        allowed: &'static str,
    },
}

debug_as_text!(SetError);

/// Replaces the rules in force. `seed` determines all random choices. All counters start from zero.
///
/// # Errors
///
/// [`SetError`]; the rules are unchanged then.
pub fn set(rules: impl IntoIterator<Item = Rule>, seed: u64) -> Result<(), SetError> {
    let rules: Vec<_> = rules.into_iter().collect();
    check(&rules)?;
    install(rules, seed);
    effects::resume();
    Ok(())
}

/// Adds a rule to those in force, with the same seed. All counters start from zero.
///
/// # Errors
///
/// [`SetError`]; the rules are unchanged then.
pub fn add(rule: Rule) -> Result<(), SetError> {
    check(std::slice::from_ref(&rule))?;
    let (mut rules, seed) = match current() {
        Some(set) => (set.rules.iter().map(|entry| entry.rule.clone()).collect(), set.seed),
        None => (Vec::new(), 0),
    };
    rules.push(rule);
    install(rules, seed);
    effects::resume();
    Ok(())
}

/// Removes all rules, takes every port up, and lets failed devices be opened again. Requests that
/// wait for a rule go on. Contexts and queue pairs that have failed stay failed.
pub fn clear() {
    *CURRENT.write().unwrap_or_else(PoisonError::into_inner) = None;
    effects::heal();
    effects::resume();
    // Contexts of a failed device must go on refusing calls, which they check only while this is
    // set.
    ACTIVE.0.store(effects::any_context_failed(), Relaxed);
}

/// The counters of the rules in force, in their order.
pub fn report() -> Vec<Report> {
    let Some(set) = current() else { return Vec::new() };
    let report = |entry: &RuleState| Report {
        rule: entry.rule.clone(),
        matched: entry.matched.load(Relaxed),
        fired: entry.fired.load(Relaxed),
        age: set.since.elapsed(),
        first_fired: entry.first_fired.get().map(|at| at.duration_since(set.since)),
    };
    set.rules.iter().map(report).collect()
}

/// Takes a port of a device of this process down now, like [`Action::PortDown`].
///
/// # Errors
///
/// `ENODEV` if the device or port does not exist, or no device is open.
pub fn port_down(device: u8, port: u8) -> std::io::Result<()> {
    effects::port_now(device, port, false)
}

/// Takes a port up now, like [`Action::PortUp`].
///
/// # Errors
///
/// The errors of [`port_down`].
pub fn port_up(device: u8, port: u8) -> std::io::Result<()> {
    effects::port_now(device, port, true)
}

/// Fails a device of this process now, like [`Action::DeviceFatal`].
///
/// # Errors
///
/// `ENODEV` if the device does not exist, or no device is open.
pub fn device_fatal(device: u8) -> std::io::Result<()> {
    effects::device_now(device)
}

fn check(rules: &[Rule]) -> Result<(), SetError> {
    for rule in rules {
        rule.check().map_err(|allowed| SetError::Senseless { rule: Box::new(rule.clone()), allowed })?;
        if matches!(rule.action, Action::Trait(_)) {
            return Err(SetError::TooLate(Box::new(rule.clone())));
        }
    }
    Ok(())
}

/// Replaces the rules without checking them.
pub(crate) fn install(rules: Vec<Rule>, seed: u64) {
    static GENERATION: AtomicU64 = AtomicU64::new(1);
    let entry = |rule: Rule| RuleState {
        limit: match rule.action {
            Action::Rate(bits_per_second) => Some(RateLimit::new(bits_per_second)),
            _ => None,
        },
        rule,
        matched: AtomicU64::new(0),
        fired: AtomicU64::new(0),
        first_fired: OnceLock::new(),
    };
    let set = RuleSet {
        seed,
        generation: GENERATION.fetch_add(1, Relaxed),
        since: Instant::now(),
        rules: rules.into_iter().map(entry).collect(),
        executed: AtomicU64::new(0),
    };
    *CURRENT.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(set));
    activate();
}

/// Makes every request and call consult the rules from now on.
pub(crate) fn activate() {
    ACTIVE.0.store(true, Relaxed);
}

/// The rules in force, if any.
pub(crate) fn current() -> Option<Arc<RuleSet>> {
    CURRENT.read().unwrap_or_else(PoisonError::into_inner).clone()
}

/// The generation of the rules in force; 0 without rules.
pub(crate) fn generation() -> u64 {
    CURRENT.read().unwrap_or_else(PoisonError::into_inner).as_ref().map_or(0, |set| set.generation)
}

impl RuleSet {
    /// Calls `act` with each action that applies to this request or receive, and a random number.
    pub(crate) fn on_work(&self, seen: &RequestFacts, act: impl FnMut(&RuleState, u64)) {
        self.on(|rule| rule.matches_work(seen), seen, act);
    }

    /// Calls `act` with each action that applies to this call, and a random number.
    pub(crate) fn on_call(&self, call: Call, device: u8, mut act: impl FnMut(&Rule, u64)) {
        self.on(
            |rule| rule.matches_call(call, device),
            &format_args!("{call} of soft{device}"),
            |entry, drawn| act(&entry.rule, drawn),
        );
    }

    /// Calls `act` with each action that applies to this CM message, and a random number.
    pub(crate) fn on_message(&self, message: CmMessage, mut act: impl FnMut(&Rule, u64)) {
        self.on(
            |rule| rule.matches_message(message),
            &format_args!("the message {message}"),
            |entry, drawn| act(&entry.rule, drawn),
        );
    }

    fn on(
        &self,
        matches: impl Fn(&Rule) -> bool,
        what: &dyn std::fmt::Display,
        mut act: impl FnMut(&RuleState, u64),
    ) {
        for (place, entry) in self.rules.iter().enumerate().filter(|(_, entry)| matches(&entry.rule)) {
            let k = entry.matched.fetch_add(1, Relaxed) + 1;
            let draw = |salt: u64| mix(self.seed ^ mix(place as u64 ^ mix(k ^ mix(salt))));
            if entry.rule.which.takes(k, draw(0)) {
                entry.fired.fetch_add(1, Relaxed);
                entry.first_fired.get_or_init(Instant::now);
                // A rate limit acts on every request.
                let level = if entry.limit.is_some() { log::Level::Debug } else { log::Level::Info };
                log::log!(level, "fault rule \"{}\" acts on match {k}: {what}", entry.rule);
                act(entry, draw(1));
            }
        }
    }
}

impl Which {
    /// Whether the rule acts on its k-th match.
    fn takes(self, k: u64, drawn: u64) -> bool {
        match self {
            Self::All => true,
            Self::Nth(nth) => k == nth,
            Self::First(count) => k <= count,
            Self::From(nth) => k >= nth,
            Self::Every(count) => k.is_multiple_of(count.max(1)),
            // The upper 53 bits, which a double represents exactly.
            Self::Chance(chance) => ((drawn >> 11) as f64) < chance * (1_u64 << 53) as f64,
        }
    }
}

/// A time between the two bounds, chosen by a random number.
pub(crate) fn drawn_between(least: Duration, most: Duration, drawn: u64) -> Duration {
    let range = most.saturating_sub(least);
    least + range.mul_f64((drawn >> 11) as f64 / (1_u64 << 53) as f64)
}

/// Maps a number to an unrelated one (the finalizer of SplitMix64; Steele, Lea, Flood: "Fast
/// splittable pseudorandom number generators", 2014). Random choices use a function instead of a
/// generator with state, because a rule's choices would then depend on what other rules and threads
/// have drawn.
fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
