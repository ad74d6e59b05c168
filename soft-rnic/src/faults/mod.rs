//! Faults on demand: what goes wrong, when, and how often it did.
//!
//! A [`Rule`] says what is to happen to which requests, receives or calls. Rules come from `SOFT_RNIC_FAULTS` (or
//! [`Config::faults`](crate::Config::faults)) when the devices are set up, and from [`set`] and [`add`] at any time. They are for
//! this process alone: its own requests, receives and calls. What is left to chance follows from the seed and from how often
//! a rule has matched, and from nothing else, so a run can be had again.
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
mod rule;
#[cfg(test)]
mod tests;
mod words;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

pub use parse::{RuleError, parse};
pub(crate) use rule::RequestFacts;
pub use rule::{Action, Rule, Trait, Which};
pub use words::{Call, CmMessage, Opcode, Step};

/// Read by every request, written when rules change: alone in its cache line.
#[repr(align(128))]
struct Active(AtomicBool);

static ACTIVE: Active = Active(AtomicBool::new(false));
static CURRENT: RwLock<Option<Arc<RuleSet>>> = RwLock::new(None);

/// Whether there is anything to look up: the one thing that costs when there is not.
#[inline(always)]
pub(crate) fn active() -> bool {
    ACTIVE.0.load(Relaxed)
}

/// The rules of one [`set`], and what has come of them.
#[derive(Debug)]
pub(crate) struct RuleSet {
    seed: u64,
    /// Tells this set from earlier ones.
    pub(crate) generation: u64,
    since: Instant,
    rules: Vec<RuleState>,
    /// Requests that were executed since.
    pub(crate) executed: AtomicU64,
}

#[derive(Debug)]
struct RuleState {
    rule: Rule,
    matched: AtomicU64,
    fired: AtomicU64,
    first_fired: OnceLock<Instant>,
}

/// How a rule has fared.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Report {
    /// The rule.
    pub rule: Rule,
    /// How many requests, receives or calls it was for.
    pub matched: u64,
    /// How often it has acted.
    pub fired: u64,
    /// For how long the rules have been in force.
    pub age: Duration,
    /// How long that was when the rule first acted.
    pub first_fired: Option<Duration>,
}

/// Why rules were not taken.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SetError {
    /// A rule says how a device is made.
    #[error(
        "fault rule \"{0}\" says how a device is made: give it in the configuration, before the devices are listed"
    )]
    TooLate(Box<Rule>),
    /// A rule makes no sense.
    #[error("fault rule \"{rule}\" is not {allowed}")]
    Senseless {
        /// The rule.
        rule: Box<Rule>,
        /// What would make sense.
        allowed: &'static str,
    },
}

/// Puts rules in force instead of those that are, with a seed for what is left to chance. All counters begin anew.
///
/// # Errors
///
/// [`SetError`]; then nothing has changed.
pub fn set(rules: impl IntoIterator<Item = Rule>, seed: u64) -> Result<(), SetError> {
    let rules: Vec<_> = rules.into_iter().collect();
    check(&rules)?;
    install(rules, seed);
    Ok(())
}

/// Adds a rule to those in force, whose counters begin anew, with the same seed.
///
/// # Errors
///
/// [`SetError`]; then nothing has changed.
pub fn add(rule: Rule) -> Result<(), SetError> {
    check(std::slice::from_ref(&rule))?;
    let (mut rules, seed) = match current() {
        Some(set) => (set.rules.iter().map(|entry| entry.rule.clone()).collect(), set.seed),
        None => (Vec::new(), 0),
    };
    rules.push(rule);
    install(rules, seed);
    Ok(())
}

/// Ends all faults: there are no rules, every port is up, and devices that have failed can be opened again. Contexts and queue
/// pairs that have failed stay so.
pub fn clear() {
    *CURRENT.write().unwrap_or_else(PoisonError::into_inner) = None;
    effects::heal();
    // Contexts of a device that failed go on refusing, and they are told by this.
    ACTIVE.0.store(effects::any_context_failed(), Relaxed);
}

/// How the rules in force have fared, in their order.
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

/// Takes a port of a device of this process down, now: as [`Action::PortDown`].
///
/// # Errors
///
/// There is no such device or port, or no device is open: `ENODEV`.
pub fn port_down(device: u8, port: u8) -> std::io::Result<()> {
    effects::port_now(device, port, false)
}

/// Takes a port up again, now: as [`Action::PortUp`].
///
/// # Errors
///
/// As [`port_down`].
pub fn port_up(device: u8, port: u8) -> std::io::Result<()> {
    effects::port_now(device, port, true)
}

/// A device of this process fails, now: as [`Action::DeviceFatal`].
///
/// # Errors
///
/// There is no such device, or no device is open: `ENODEV`.
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

/// Puts rules in force.
pub(crate) fn install(rules: Vec<Rule>, seed: u64) {
    static GENERATION: AtomicU64 = AtomicU64::new(1);
    let entry = |rule| RuleState {
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

/// From now on everything is looked up.
pub(crate) fn activate() {
    ACTIVE.0.store(true, Relaxed);
}

/// The rules in force.
pub(crate) fn current() -> Option<Arc<RuleSet>> {
    CURRENT.read().unwrap_or_else(PoisonError::into_inner).clone()
}

impl RuleSet {
    /// Gives each action that this request or receive calls for to `act`, with a number of chance.
    pub(crate) fn on_work(&self, seen: &RequestFacts, act: impl FnMut(&Rule, u64)) {
        self.on(|rule| rule.matches_work(seen), seen, act);
    }

    /// The same for a call.
    pub(crate) fn on_call(&self, call: Call, device: u8, act: impl FnMut(&Rule, u64)) {
        self.on(|rule| rule.matches_call(call, device), &format_args!("{call} of soft{device}"), act);
    }

    /// The same for a message of the connection manager.
    pub(crate) fn on_message(&self, message: CmMessage, act: impl FnMut(&Rule, u64)) {
        self.on(|rule| rule.matches_message(message), &format_args!("the message {message}"), act);
    }

    fn on(
        &self,
        matches: impl Fn(&Rule) -> bool,
        what: &dyn std::fmt::Display,
        mut act: impl FnMut(&Rule, u64),
    ) {
        for (place, entry) in self.rules.iter().enumerate().filter(|(_, entry)| matches(&entry.rule)) {
            let k = entry.matched.fetch_add(1, Relaxed) + 1;
            let draw = |salt: u64| mix(self.seed ^ mix(place as u64 ^ mix(k ^ mix(salt))));
            if entry.rule.which.takes(k, draw(0)) {
                entry.fired.fetch_add(1, Relaxed);
                entry.first_fired.get_or_init(Instant::now);
                log::info!("fault rule \"{}\" acts on match {k}: {what}", entry.rule);
                act(&entry.rule, draw(1));
            }
        }
    }
}

impl Which {
    /// Whether it takes the k-th match.
    fn takes(self, k: u64, drawn: u64) -> bool {
        match self {
            Self::All => true,
            Self::Nth(nth) => k == nth,
            Self::First(count) => k <= count,
            Self::From(nth) => k >= nth,
            Self::Every(count) => k.is_multiple_of(count.max(1)),
            // The upper 53 bits, which a double has exactly.
            Self::Chance(chance) => ((drawn >> 11) as f64) < chance * (1_u64 << 53) as f64,
        }
    }
}

/// A time between the two, as a number of chance says.
pub(crate) fn drawn_between(least: Duration, most: Duration, drawn: u64) -> Duration {
    let range = most.saturating_sub(least);
    least + range.mul_f64((drawn >> 11) as f64 / (1_u64 << 53) as f64)
}

/// Chance as a function: any number to one that has nothing to do with it (the finalizer of SplitMix64; Steele, Lea, Flood:
/// "Fast splittable pseudorandom number generators", 2014). A generator with a state would make a rule's chance depend on
/// what other rules and threads have drawn.
fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
