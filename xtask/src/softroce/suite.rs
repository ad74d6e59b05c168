//! Runs the workspace's device tests one after the other, and sums up their counts.
//!
//! Every integration test of the packages below is run. A test program that uses a device ends with
//! a line of counts: `device tests: 63 ran, 2 skipped, 0 failed`.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::{Result, ensure};

use super::environment::Job;
use super::machine::TestMachine;
use super::programs::{Programs, TestProgram};
use super::shell;
use super::vm::{JobOutcome, JobReport};

/// The packages whose tests use a device.
const PACKAGES: &[&str] = &["sideway", "conformance", "stride", "rdma-examples", "trespass"];

/// Test programs of these packages that need no guest, because they bring a device or use none.
const NATIVE: &[&str] = &[
    "fake",
    "vendors",
    "cuda",
    "documents",
    "command_line",
    "ping",
    "suite",
    "leaks",
    "soft_inline",
    "soft_deferred",
    "soft",
    "soft_srq",
    "soft_by_cm",
    "soft_by_cm_deferred",
    "tcp",
    "pool_device",
    "allocations",
    "allocations_of_calls",
    "environment",
    "tree",
    "both_builds",
    "messages",
    "faults",
    "many",
    "soak",
    "devices",
    "results",
    "signals",
    "parity",
];

/// Test programs that run only if named, because they take minutes in an emulated guest.
const ON_DEMAND: &[&str] = &["rdma", "rdma_by_cm", "netem"];

/// Reads the guest's shared files before the programs run, for the same reason as in `script`.
const READ_SYSTEM: &str =
    "find /usr/bin /usr/sbin /usr/lib/x86_64-linux-gnu -type f -exec cat {} + >/dev/null";

/// After this many seconds a test program counts as stuck.
const PROGRAM_LIMIT: u32 = 1200;

/// The arguments of a test run.
#[derive(clap::Args)]
pub(super) struct SuiteArgs {
    /// Run the workspace's device tests.
    #[arg(long)]
    pub(super) suite: bool,

    /// With --suite: only the test programs of this name (repeatable).
    #[arg(long, value_name = "NAME", requires = "suite")]
    test: Vec<String>,

    /// With --suite: not the test programs of this name, or `PACKAGE::NAME` (repeatable).
    #[arg(long, value_name = "NAME", requires = "suite")]
    skip: Vec<String>,

    /// With --suite: fail when fewer device tests than this ran.
    #[arg(long, value_name = "COUNT", default_value_t = 1, requires = "suite")]
    at_least: u32,
}

impl SuiteArgs {
    /// Builds the tests, runs them and checks the sum of their counts.
    pub(super) fn run(
        &self,
        machine: &TestMachine,
        programs: &Programs,
        mut job: Job,
        arguments: &[String],
    ) -> Result<ExitCode> {
        programs.build()?;
        let mut tests = programs.build_tests(PACKAGES)?;
        tests.retain(|test| {
            let takes = self.takes(&test.package, &test.name);
            if !takes && self.test.is_empty() && !NATIVE.contains(&&*test.name) {
                eprintln!("SKIPPED {}::{}: --test {1} runs it", test.package, test.name);
            }
            takes
        });
        ensure!(
            !tests.is_empty(),
            "none of the packages {} has such an integration test",
            PACKAGES.join(", ")
        );

        job.command = match machine {
            TestMachine::Guest(_) => format!("{READ_SYSTEM}\n{}", script(&tests, arguments)),
            TestMachine::Host(_) => script(&tests, arguments),
        };
        let mut stdout = CountingWriter::new(io::stdout());
        let report = machine.run(&job, &mut stdout, &mut io::stderr())?;
        judge(&machine.title(&report), &report, stdout.finish(), self.at_least)
    }

    /// Whether the arguments select this test program.
    fn takes(&self, package: &str, name: &str) -> bool {
        let whole = format!("{package}::{name}");
        let named = |list: &[String]| list.iter().any(|entry| entry == name || *entry == whole);
        let wanted = if self.test.is_empty() {
            !NATIVE.contains(&name) && !ON_DEMAND.contains(&name)
        } else {
            named(&self.test)
        };
        wanted && !named(&self.skip)
    }
}

/// Runs all tests, and fails if one of them failed.
///
/// A program is read completely before it runs. The clock of a guest that counts instructions jumps
/// to the next timer whenever all threads wait, also for a page of the program that is not in
/// memory yet. If that page takes a tenth of a second, every time limit has expired.
fn script(tests: &[TestProgram], arguments: &[String]) -> String {
    let mut script = "failed=\n".to_owned();
    let mut package = "";
    for test in tests {
        let programs: &[String] = if test.package == package { &[] } else { &test.programs };
        package = &test.package;
        let read = programs.iter().chain([&test.executable]).map(|file| shell::quote(file));
        script += &format!("cat {} >/dev/null\n", read.collect::<Vec<_>>().join(" "));
        let title = format!("{}::{}", test.package, test.name);
        script += &format!(
            "echo; echo {}\n(cd {} && CARGO_MANIFEST_DIR=$PWD CARGO_PKG_NAME={} exec timeout --kill-after=10 {PROGRAM_LIMIT} {} {}) ||\n    \
             failed=\"$failed {title} (exit code $?)\"\n",
            shell::quote(&format!("Running {title}")),
            shell::quote(&test.directory),
            shell::quote(&test.package),
            shell::quote(&test.executable),
            shell::join(arguments),
        );
    }
    script + "[ -z \"$failed\" ] || { echo \"failed:$failed\" >&2; exit 101; }\n"
}

/// Prints the summary. The exit code is the tests' own unless too few ran.
fn judge(title: &str, report: &JobReport, counts: TestCounts, at_least: u32) -> Result<ExitCode> {
    println!(
        "\n{title}: {} device tests ran, {} skipped, {} failed",
        counts.ran, counts.skipped, counts.failed
    );
    if report.outcome != JobOutcome::Exited(0) {
        return Ok(report.outcome.exit_code());
    }
    ensure!(
        counts.failed == 0,
        "{} device tests failed, although their programs ended with exit code 0",
        counts.failed
    );
    ensure!(counts.ran >= at_least, "{} device tests ran, and there must be at least {at_least}", counts.ran);
    Ok(ExitCode::SUCCESS)
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct TestCounts {
    ran: u32,
    skipped: u32,
    failed: u32,
}

impl TestCounts {
    /// Parses `device tests: 63 ran, 2 skipped, 0 failed`.
    fn parse(line: &str) -> Option<Self> {
        let mut parts = line.trim().strip_prefix("device tests: ")?.split(", ");
        let mut count = |what: &str| parts.next()?.strip_suffix(what)?.trim_end().parse().ok();
        Some(Self { ran: count("ran")?, skipped: count("skipped")?, failed: count("failed")? })
    }

    fn add(&mut self, other: Self) {
        self.ran += other.ran;
        self.skipped += other.skipped;
        self.failed += other.failed;
    }
}

/// A writer that passes text on and sums the counts in it.
struct CountingWriter<W> {
    inner: W,
    line: Vec<u8>,
    counts: TestCounts,
}

impl<W: Write> CountingWriter<W> {
    fn new(inner: W) -> Self {
        Self { inner, line: Vec::new(), counts: TestCounts::default() }
    }

    /// The sum, including an unfinished last line.
    fn finish(mut self) -> TestCounts {
        self.end_line();
        self.counts
    }

    fn end_line(&mut self) {
        if let Some(counts) = str::from_utf8(&self.line).ok().and_then(TestCounts::parse) {
            self.counts.add(counts);
        }
        self.line.clear();
    }
}

impl<W: Write> Write for CountingWriter<W> {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        for byte in text {
            match byte {
                b'\n' => self.end_line(),
                _ => self.line.push(*byte),
            }
        }
        self.inner.write_all(text)?;
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_line_is_read_and_nothing_else_is() {
        let counts = TestCounts { ran: 63, skipped: 2, failed: 0 };
        assert_eq!(TestCounts::parse("device tests: 63 ran, 2 skipped, 0 failed"), Some(counts));
        assert_eq!(TestCounts::parse("device tests: 63 ran, 2 skipped, 0 failed\r"), Some(counts));
        assert_eq!(TestCounts::parse("device tests: many ran, 2 skipped, 0 failed"), None);
        assert_eq!(TestCounts::parse("test result: ok. 3 passed"), None);
    }

    #[test]
    fn the_tally_sums_lines_however_the_text_is_cut() {
        let text =
            b"a\ndevice tests: 3 ran, 1 skipped, 0 failed\nb\ndevice tests: 40 ran, 0 skipped, 2 failed";
        for size in [1, 7, text.len()] {
            let mut passed_on = Vec::new();
            let mut tally = CountingWriter::new(&mut passed_on);
            text.chunks(size).for_each(|chunk| tally.write_all(chunk).unwrap());
            assert_eq!(tally.finish(), TestCounts { ran: 43, skipped: 1, failed: 2 });
            assert_eq!(passed_on, text);
        }
    }

    #[test]
    fn names_select_test_programs() {
        let takes_rc = |test: &[&str], skip: &[&str]| {
            let names = |list: &[&str]| list.iter().map(|name| (*name).to_owned()).collect();
            SuiteArgs { suite: true, test: names(test), skip: names(skip), at_least: 1 }.takes("p", "rc")
        };
        assert!(takes_rc(&[], &[]));
        assert!(takes_rc(&["rc"], &["ud"]));
        assert!(!takes_rc(&["ud"], &[]));
        assert!(!takes_rc(&[], &["rc"]));
        assert!(!takes_rc(&[], &["p::rc"]));
        assert!(takes_rc(&[], &["q::rc"]));
        let takes = |test: &[String], name: &str| {
            SuiteArgs { suite: true, test: test.to_vec(), skip: Vec::new(), at_least: 1 }.takes("p", name)
        };
        assert!(!takes(&[], "soft_inline"), "it brings its own device");
        assert!(takes(&["soft_inline".to_owned()], "soft_inline"));
    }

    #[test]
    fn the_script_runs_every_test_and_fails_if_one_did() {
        let test = |name: &str, executable: &str| TestProgram {
            package: "some".to_owned(),
            name: name.to_owned(),
            executable: executable.to_owned(),
            directory: "/".to_owned(),
            programs: vec!["/bin/sh".to_owned()],
        };
        let run = |tests: &[TestProgram]| {
            let output = std::process::Command::new("sh").args(["-c", &script(tests, &[])]).output().unwrap();
            (output.status.code(), String::from_utf8(output.stderr).unwrap())
        };
        assert_eq!(run(&[test("good", "/bin/true")]), (Some(0), String::new()));
        let expected = (Some(101), "failed: some::bad (exit code 1)\n".to_owned());
        assert_eq!(run(&[test("bad", "/bin/false"), test("good", "/bin/true")]), expected);
    }
}
