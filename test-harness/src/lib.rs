//! Suites of cases over a device that may not be there.
//!
//! A case is a function that takes what it runs on, its rig, and fails by a panic; one that this rig cannot run says why
//! and is counted as ignored. Without a rig all cases are ignored, or fail where [`REQUIRE`] says so.

mod alone;
mod parts;

use std::cell::RefCell;
use std::process::ExitCode;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

pub use libtest_mimic::{Arguments, Conclusion};
use libtest_mimic::{Completion, Failed, Trial};

pub use alone::is_alone;
pub use parts::run_parts;

/// Where this is set, a missing device is a failure.
pub const REQUIRE: &str = "SIDEWAY_TEST_REQUIRE_DEVICE";

/// As of a test program that panics.
const FAILURE: u8 = 101;

/// Why a rig cannot run a case.
#[derive(Debug)]
pub struct Skip(pub String);

/// What comes of a case.
pub type Outcome = Result<(), Skip>;

/// Leaves a case that this rig cannot run.
#[macro_export]
macro_rules! skip {
    ($($reason:tt)*) => { return Err($crate::Skip(format!($($reason)*))) };
}

/// Adds functions as cases of a suite; the names are theirs, with the module's.
#[macro_export]
macro_rules! cases {
    ($suite:ident: $($function:ident),* $(,)?) => {
        $($suite.add(module_path!(), stringify!($function), "", $function);)*
    };
}

/// A case's name and what it does.
type Case<R> = (String, fn(&R) -> Outcome);

/// What came of a case that did not fail.
#[derive(Clone, Debug)]
pub struct Told {
    /// Its name.
    pub name: String,
    /// Why it was skipped, if it was.
    pub skipped: Option<String>,
    /// What it [remarked](remark), in the order in which it did, each once.
    pub remarks: Vec<String>,
}

/// Bytes of one seed, from any place on (`SplitMix64`).
///
/// It is here because this crate is optimized where the tests themselves are not: they compare megabytes with what it makes, in emulated
/// machines as well.
pub fn fill(seed: u64, at: usize, bytes: &mut [u8]) {
    let word = |at: usize| {
        let mut x = seed.wrapping_add((at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ x >> 31).to_le_bytes()
    };
    let skipped = at % 8;
    let (first, rest) = bytes.split_at_mut(bytes.len().min((8 - skipped) % 8));
    first.copy_from_slice(&word(at / 8)[skipped..][..first.len()]);
    let at = (at + first.len()) / 8;
    for (index, chunk) in rest.chunks_mut(8).enumerate() {
        chunk.copy_from_slice(&word(at + index)[..chunk.len()]);
    }
}

/// The first bytes of one seed.
#[must_use]
pub fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fill(seed, 0, &mut bytes);
    bytes
}

thread_local! {
    /// Of the case that this thread runs.
    static REMARKS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Says something about the case that this thread runs, for whoever reads what it [told](Told).
pub fn remark(words: String) {
    REMARKS.with_borrow_mut(|remarks| {
        if !remarks.contains(&words) {
            remarks.push(words);
        }
    });
}

type Results = Arc<Mutex<Vec<Told>>>;

/// Cases, in the order in which they run.
pub struct Suite<R> {
    /// Stands before the name of each case in the list of results.
    part: &'static str,
    cases: Vec<Case<R>>,
}

impl<R> Default for Suite<R> {
    fn default() -> Self {
        Self { part: "", cases: Vec::new() }
    }
}

/// How a suite is run.
#[derive(Clone, Copy, Debug)]
pub struct Terms<'a> {
    /// Whether a missing rig is a failure.
    pub required: bool,
    /// How long a case may take. Everything in a case that waits has a shorter limit of its own.
    pub limit: Duration,
    /// How to get a rig where there is none.
    pub advice: &'a str,
}

impl<R: Clone + Send + 'static> Suite<R> {
    /// Names the part of a program that this suite is (see [`run_parts`]): `PART::` stands before the name of each case.
    #[must_use]
    pub fn of_part(self, part: &'static str) -> Self {
        Self { part, ..self }
    }

    /// Adds a case; its flavours, if it has any, are shown behind its name.
    pub fn add(&mut self, module: &str, name: &str, flavours: &str, case: fn(&R) -> Outcome) {
        let module = module.rsplit("::").next().unwrap_or_default();
        let flavours = if flavours.is_empty() { String::new() } else { format!("[{flavours}]") };
        self.cases.push((format!("{module}::{name}{flavours}"), case));
    }

    /// Runs the cases that the arguments choose.
    pub fn run(self, arguments: &Arguments, rig: &Result<R, String>, terms: Terms<'_>) -> ExitCode {
        self.run_and_tell(arguments, rig, terms).0
    }

    /// Runs the cases that the arguments choose; what came of each is told if all of them were chosen and none failed.
    pub fn run_and_tell(
        self,
        arguments: &Arguments,
        rig: &Result<R, String>,
        terms: Terms<'_>,
    ) -> (ExitCode, Option<Vec<Told>>) {
        if let (Err(reason), false) = (rig, arguments.list) {
            println!("{} device tests have nothing to run on: {reason}. {}", self.cases.len(), terms.advice);
        }
        let results = Results::default();
        let part = self.part;
        let trials = self.cases.into_iter().map(|case| trial(part, case, rig.clone(), terms, &results)).collect();
        let conclusion = libtest_mimic::run(arguments, trials);
        let all = rig.is_ok() && !arguments.list && wants_all(arguments) && !conclusion.has_failed();
        let told = std::mem::take(&mut *results.lock().expect("no case fails while it holds this"));
        (conclude(arguments, &conclusion, terms.required), all.then_some(told))
    }
}

/// The program's arguments. Cases run one after the other if nothing else is said: several would only wait for the same
/// processors.
#[must_use]
pub fn arguments() -> Arguments {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(1);
    arguments
}

/// Whether the environment makes a missing device a failure.
#[must_use]
pub fn device_is_required() -> bool {
    std::env::var_os(REQUIRE).is_some_and(|value| value != "0" && !value.is_empty())
}

fn wants_all(arguments: &Arguments) -> bool {
    arguments.filter.is_none() && arguments.skip.is_empty()
}

/// Says what came of a suite, in the line that `cargo xtask softroce --suite` sums up.
#[must_use]
pub fn conclude(arguments: &Arguments, conclusion: &Conclusion, required: bool) -> ExitCode {
    if arguments.list {
        return ExitCode::SUCCESS;
    }
    let (failed, skipped) = (conclusion.num_failed, conclusion.num_ignored);
    let ran = conclusion.num_passed + failed;
    println!("device tests: {ran} ran, {skipped} skipped, {failed} failed");
    let nothing = ran == 0 && wants_all(arguments) && required;
    if nothing {
        println!("no device test ran, and there must be some");
    }
    if failed == 0 && !nothing { ExitCode::SUCCESS } else { ExitCode::from(FAILURE) }
}

fn trial<R: Send + 'static>(
    part: &str,
    (name, case): Case<R>,
    rig: Result<R, String>,
    terms: Terms<'_>,
    results: &Results,
) -> Trial {
    let limit = terms.limit;
    let is_named = part.is_empty() || name.strip_prefix(part).is_some_and(|rest| rest.starts_with("::"));
    let title = if is_named { name.clone() } else { format!("{part}::{name}") };
    match rig {
        Ok(rig) => {
            let results = results.clone();
            Trial::ignorable_test(title.clone(), move || {
                let watchdog = Watchdog::start(title, limit);
                REMARKS.take();
                let outcome = case(&rig);
                drop(watchdog);
                let skipped = outcome.err().map(|Skip(reason)| reason);
                let result = Told { name, skipped: skipped.clone(), remarks: REMARKS.take() };
                results.lock().expect("no case fails while it holds this").push(result);
                Ok(skipped.map_or(Completion::Completed, Completion::ignored_with))
            })
        }
        Err(reason) if terms.required => Trial::test(title, move || Err(Failed::from(reason))),
        Err(_) => Trial::ignorable_test(title, || Ok(Completion::ignored_with("no device"))),
    }
}

/// Ends the whole program if a case does not end, which nothing else could.
struct Watchdog {
    _alive: mpsc::Sender<()>,
}

impl Watchdog {
    fn start(name: String, limit: Duration) -> Self {
        let (alive, ended) = mpsc::channel();
        thread::spawn(move || {
            if ended.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                eprintln!("{name} did not end within {limit:?}");
                std::process::exit(FAILURE.into());
            }
        });
        Self { _alive: alive }
    }
}
