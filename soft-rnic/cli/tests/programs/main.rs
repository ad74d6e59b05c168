//! The distribution's programs over the software device, unmodified. `soft-rnic run` starts each of
//! them, once with inline execution, once with deferred execution.
//!
//! A test whose program is not installed is listed and counted as ignored, with the name of its
//! package; with `SOFT_RNIC_REQUIRE_PROGRAMS=1` it fails.
//!
//! To add a case, add a line to one of the modules; `pair.rs` and `place.rs` start, await and kill
//! the programs.

mod device_files;
mod examples;
mod frameworks;
mod identity;
#[path = "../../../c-abi/tests/support/library.rs"]
mod library;
mod listing;
mod mixed;
mod pair;
mod perftest;
mod ping_pong;
mod place;
mod probe;
mod process;
mod rdmacm;
mod rdmacm_mixed;
mod stride;
mod xsrq;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Completion, Failed, Trial};

use place::ProgramRunner;

/// The execution modes, as `soft-rnic run --mode` names them.
const MODES: [&str; 2] = [INLINE, "deferred"];
pub(crate) const INLINE: &str = "inline";

/// If this is set, a program that is not installed is a failure.
const REQUIRE: &str = "SOFT_RNIC_REQUIRE_PROGRAMS";

/// A test: its name, the programs that it needs, and its body.
pub(crate) struct ProgramTest {
    name: String,
    programs: Vec<&'static str>,
    run: Box<TestBody>,
    for_each_change: bool,
    of_other_packages: bool,
    is_optional: bool,
}

type TestBody = dyn Fn(&ProgramRunner) -> Result<(), String> + Send + Sync;

impl ProgramTest {
    pub(crate) fn new(
        name: impl Into<String>,
        programs: &[&'static str],
        run: impl Fn(&ProgramRunner) -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        Self {
            name: name.into(),
            programs: programs.to_vec(),
            run: Box::new(run),
            for_each_change: false,
            of_other_packages: false,
            is_optional: false,
        }
    }

    /// Makes it one of those that a part of all tests has, in the first mode.
    pub(crate) fn for_each_change(self) -> Self {
        Self { for_each_change: true, ..self }
    }

    /// Makes it one that only `.ci/run programs` and a filter run, and that is skipped without its
    /// package.
    pub(crate) fn of_other_packages(self) -> Self {
        Self { of_other_packages: true, is_optional: true, ..self }
    }

    /// Makes it one that is skipped where the system lacks something, always.
    pub(crate) fn optional(self) -> Self {
        Self { is_optional: true, ..self }
    }

    /// The missing programs, and the package to install.
    fn lacks(&self) -> Option<String> {
        let is_there = |name| {
            let special = frameworks::has_python(name).or_else(|| frameworks::has_address(name));
            let special = special.or_else(|| device_files::has_namespace(name));
            special.unwrap_or_else(|| process::on_path(name).is_some())
        };
        let missing = self.programs.iter().find(|program| !is_there(program))?;
        let package = match missing.split_once('_') {
            _ if device_files::has_namespace(missing).is_some() => return Some(format!("no {missing}")),
            _ if frameworks::has_address(missing).is_some() => return Some(format!("no {missing}")),
            _ if frameworks::package(missing).is_some() => frameworks::package(missing)?,
            Some(("ibv", _)) => "ibverbs-utils",
            Some(("ib", _)) => "perftest",
            _ if rdmacm::PROGRAMS.contains(missing) => "rdmacm-utils",
            _ => "coreutils",
        };
        Some(format!("no `{missing}` here (install {package})"))
    }
}

/// Chooses the cases to run: `all`, `once`, or by default a part.
const SCOPE: &str = "SOFT_RNIC_PROGRAMS";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    /// Cases that together take about a minute.
    Part,
    /// Each case in one of the modes.
    Once,
    /// Each case in each mode.
    All,
}

impl Scope {
    fn get(arguments: &Arguments) -> Result<Self, String> {
        match std::env::var(SCOPE).as_deref() {
            // A user who names cases wants all of them.
            Err(_) if arguments.filter.is_some() => Ok(Self::All),
            Err(_) => Ok(Self::Part),
            Ok("once") => Ok(Self::Once),
            Ok("all") => Ok(Self::All),
            Ok(other) => Err(format!("{SCOPE} is `{other}`, which is neither `once` nor `all`")),
        }
    }

    /// Whether to run a case in the mode with this number.
    fn takes(self, number: usize, mode: usize, test: &ProgramTest) -> bool {
        match self {
            Self::Part | Self::Once if test.of_other_packages => false,
            Self::Part if test.for_each_change => mode == 0,
            Self::Part => number % 8 == mode * 4 && !is_slow(test),
            // Cases are in rows of equal lengths, so simple alternation would give a whole column
            // to one mode.
            Self::Once => number.count_ones() as usize % MODES.len() == mode,
            Self::All => true,
        }
    }
}

fn main() -> ExitCode {
    if let Ok(what) = std::env::var(probe::VARIABLE) {
        return probe::run(&what);
    }
    let mut arguments = Arguments::from_args();
    // Two polling processes occupy two processors.
    arguments.test_threads.get_or_insert(1);
    let required = std::env::var_os(REQUIRE).is_some_and(|value| value == "1");
    let scope = match Scope::get(&arguments) {
        Ok(scope) => scope,
        Err(wrong) => {
            eprintln!("{wrong}");
            return ExitCode::FAILURE;
        }
    };
    let mut trials = Vec::new();
    for (number, mode) in MODES.into_iter().enumerate() {
        let chosen = tests().into_iter().enumerate().filter(|(at, test)| scope.takes(*at, number, test));
        trials.extend(chosen.map(|(_, test)| trial(mode, test, required)));
    }
    let left_out = MODES.len() * tests().len() - trials.len();
    let conclusion = libtest_mimic::run(&arguments, trials);
    if !arguments.list {
        println!(
            "programs over soft0: {} ran, {} skipped, {} failed",
            conclusion.num_passed + conclusion.num_failed,
            conclusion.num_ignored,
            conclusion.num_failed
        );
        if left_out > 0 {
            println!("{left_out} more take some minutes: {SCOPE}=all runs them all");
        }
    }
    conclusion.exit_code()
}

fn tests() -> Vec<ProgramTest> {
    let mut tests = Vec::new();
    listing::add(&mut tests);
    ping_pong::add(&mut tests);
    xsrq::add(&mut tests);
    mixed::add(&mut tests);
    examples::add(&mut tests);
    identity::add(&mut tests);
    perftest::add(&mut tests);
    rdmacm::add(&mut tests);
    rdmacm_mixed::add(&mut tests);
    stride::add(&mut tests);
    device_files::add(&mut tests);
    frameworks::add(&mut tests);
    tests
}

/// perftest measures the processor's frequency for half a second before each size whose latency it
/// measures. The examples' suite has a hundred cases.
fn is_slow(test: &ProgramTest) -> bool {
    test.name.contains("_lat") && test.name.ends_with("-a") || test.name == examples::OWN_TESTS
}

fn trial(mode: &'static str, test: ProgramTest, required: bool) -> Trial {
    Trial::ignorable_test(format!("{mode}::{}", test.name), move || match test.lacks() {
        Some(what) if test.is_optional => {
            test_harness::report_skip(&test.name, &what);
            Ok(Completion::ignored_with(what))
        }
        Some(what) if required => Err(Failed::from(what)),
        Some(what) => Ok(Completion::ignored_with(what)),
        None => {
            let place = ProgramRunner::new(mode).map_err(Failed::from)?;
            (test.run)(&place).map(|()| Completion::Completed).map_err(Failed::from)
        }
    })
}
