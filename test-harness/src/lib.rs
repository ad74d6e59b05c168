//! Test suites that run over an RDMA device.
//!
//! A case is a function of the test device `D`. It fails by a panic. A case that the device cannot
//! run returns [`Skip`] with the reason and is counted as ignored. Without a device every case is
//! ignored, or fails if [`REQUIRE`] is set.

mod alone;
mod children;
mod parts;
mod ports;
mod rights;
mod skips;
mod strace;
mod watchdog;

use std::cell::RefCell;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub use libtest_mimic::{Arguments, Conclusion};
use libtest_mimic::{Completion, Failed, Trial};
use watchdog::Watchdog;

pub use alone::is_alone;
pub use children::{Run, run_all};
pub use parts::run_parts;
pub use ports::{free_port, is_listening};
pub use rights::{Grant, PrivilegedCopy};
pub use skips::{repeat_errors, report_skip};
pub use strace::{SystemCall, calls_between, calls_within};

/// The environment variable that makes a missing device a failure.
pub const REQUIRE: &str = "SIDEWAY_TEST_REQUIRE_DEVICE";

/// Whether this is a guest with an emulated processor, which takes ten seconds or more for a second
/// of the guest, so that long tests do less.
#[must_use]
pub fn is_emulated() -> bool {
    std::env::var_os("SOFTROCE_EMULATED").is_some()
}

/// The exit code of a Rust test program whose tests fail.
const FAILURE: u8 = 101;

/// The reason why the device cannot run a case.
#[derive(Debug)]
pub struct Skip(pub String);

/// The result of a case that did not fail: it ran, or it was skipped.
pub type Outcome = Result<(), Skip>;

/// Returns from a case that the device cannot run, with the formatted reason.
#[macro_export]
macro_rules! skip {
    ($($reason:tt)*) => { return Err($crate::Skip(format!($($reason)*))) };
}

/// Adds functions to a suite as cases named `module::function`.
#[macro_export]
macro_rules! cases {
    ($suite:ident: $($function:ident),* $(,)?) => {
        $($suite.add(module_path!(), stringify!($function), "", $function);)*
    };
}

/// A case's name and its function.
type NamedCase<D> = (String, fn(&D) -> Outcome);

/// The result of one case that did not fail.
#[derive(Clone, Debug)]
pub struct CaseReport {
    /// The case's name, with its flavours in brackets.
    pub name: String,
    /// The reason, if the case was skipped.
    pub skipped: Option<String>,
    /// The case's [notes](note), in order and without duplicates.
    pub notes: Vec<String>,
}

/// Fills `bytes` with the pseudo-random sequence of a seed, from byte `at` of the sequence on
/// (`SplitMix64`).
///
/// This crate is compiled with optimization and the test programs are not, so the generator stands
/// here: tests compare megabytes with it, some of them in emulated machines.
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

/// The first `len` bytes of the pseudo-random sequence of a seed (see [`fill`]).
#[must_use]
pub fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fill(seed, 0, &mut bytes);
    bytes
}

thread_local! {
    /// The notes of the case that this thread runs.
    static NOTES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Adds a note to the [report](CaseReport) of the case that this thread runs.
pub fn note(text: String) {
    NOTES.with_borrow_mut(|notes| {
        if !notes.contains(&text) {
            notes.push(text);
        }
    });
}

type Reports = Arc<Mutex<Vec<CaseReport>>>;

/// Cases over a test device `D`, in the order in which they run.
pub struct Suite<D> {
    /// Stands before the name of each case in the list of results.
    part: &'static str,
    cases: Vec<NamedCase<D>>,
}

impl<D> Default for Suite<D> {
    fn default() -> Self {
        Self { part: "", cases: Vec::new() }
    }
}

/// How a suite is run.
#[derive(Clone, Copy, Debug)]
pub struct RunOptions<'a> {
    /// Whether a missing device is a failure.
    pub required: bool,
    /// The time limit of a case. The program ends when a case exceeds it, so that each wait inside
    /// a case needs a shorter limit.
    pub limit: Duration,
    /// How to get a device; printed when none is found.
    pub advice: &'a str,
}

impl<D: Clone + Send + 'static> Suite<D> {
    /// Names the part of a program that this suite is (see [`run_parts`]): `PART::` stands before
    /// the name of each case.
    #[must_use]
    pub fn of_part(self, part: &'static str) -> Self {
        Self { part, ..self }
    }

    /// Adds a case. Its flavours, unless empty, are appended to its name in brackets.
    pub fn add(&mut self, module: &str, name: &str, flavours: &str, case: fn(&D) -> Outcome) {
        let module = module.rsplit("::").next().unwrap_or_default();
        let flavours = if flavours.is_empty() { String::new() } else { format!("[{flavours}]") };
        self.cases.push((format!("{module}::{name}{flavours}"), case));
    }

    /// Runs the cases that the arguments select.
    pub fn run(self, arguments: &Arguments, device: &Result<D, String>, options: RunOptions<'_>) -> ExitCode {
        self.run_and_report(arguments, device, options).0
    }

    /// Runs the cases that the arguments select. Returns the reports only if all cases were
    /// selected and none failed.
    pub fn run_and_report(
        self,
        arguments: &Arguments,
        device: &Result<D, String>,
        options: RunOptions<'_>,
    ) -> (ExitCode, Option<Vec<CaseReport>>) {
        if let (Err(reason), false) = (device, arguments.list) {
            println!("{} device tests have no device: {reason}. {}", self.cases.len(), options.advice);
        }
        let reports = Reports::default();
        let part = self.part;
        let trials =
            self.cases.into_iter().map(|case| trial(part, case, device.clone(), options, &reports)).collect();
        let conclusion = libtest_mimic::run(arguments, trials);
        let all = device.is_ok() && !arguments.list && selects_all(arguments) && !conclusion.has_failed();
        let reports = std::mem::take(&mut *reports.lock().expect("no case panics while it holds the lock"));
        (print_summary(arguments, &conclusion, options.required), all.then_some(reports))
    }
}

/// The program's arguments. The default is one test thread, because cases that run at the same time
/// would compete for the same processors.
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

fn selects_all(arguments: &Arguments) -> bool {
    arguments.filter.is_none() && arguments.skip.is_empty()
}

/// Prints the line of counts that `cargo xtask softroce --suite` adds up, and returns the exit
/// code.
#[must_use]
pub fn print_summary(arguments: &Arguments, conclusion: &Conclusion, required: bool) -> ExitCode {
    if arguments.list {
        return ExitCode::SUCCESS;
    }
    let (failed, skipped) = (conclusion.num_failed, conclusion.num_ignored);
    let ran = conclusion.num_passed + failed;
    println!("device tests: {ran} ran, {skipped} skipped, {failed} failed");
    watchdog::watch_the_end();
    let nothing = ran == 0 && selects_all(arguments) && required;
    if nothing {
        println!("no device test ran, although a device is required");
    }
    if failed == 0 && !nothing { ExitCode::SUCCESS } else { ExitCode::from(FAILURE) }
}

fn trial<D: Send + 'static>(
    part: &str,
    (name, case): NamedCase<D>,
    device: Result<D, String>,
    options: RunOptions<'_>,
    reports: &Reports,
) -> Trial {
    let limit = options.limit;
    let is_named = part.is_empty() || name.strip_prefix(part).is_some_and(|rest| rest.starts_with("::"));
    let title = if is_named { name.clone() } else { format!("{part}::{name}") };
    match device {
        Ok(device) => {
            let reports = reports.clone();
            Trial::ignorable_test(title.clone(), move || {
                let watchdog = Watchdog::start(title, limit);
                NOTES.take();
                let outcome = case(&device);
                drop(watchdog);
                let skipped = outcome.err().map(|Skip(reason)| reason);
                let report = CaseReport { name, skipped: skipped.clone(), notes: NOTES.take() };
                reports.lock().expect("no case panics while it holds the lock").push(report);
                Ok(skipped.map_or(Completion::Completed, Completion::ignored_with))
            })
        }
        Err(reason) if options.required => Trial::test(title, move || Err(Failed::from(reason))),
        Err(_) => Trial::ignorable_test(title, || Ok(Completion::ignored_with("no device"))),
    }
}
