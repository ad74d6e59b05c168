//! Runs the workspace's device tests one after the other, and sums up their counts.
//!
//! Every integration test of the packages below is run. A test program that uses a device ends with
//! a line of counts: `device tests: 63 ran, 2 skipped, 0 failed`.

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};

use super::environment::Job;
use super::machine::TestMachine;
use super::programs::{Programs, TestProgram};
use super::shell;
use super::vm::{JobOutcome, JobReport};

/// The packages whose tests use a device.
const PACKAGES: &[&str] =
    &["sideway", "conformance", "stride", "rdma-examples", "trespass", "trespass-c", "trespass-tunnel"];

/// How to run a test program, or a part of one.
#[derive(Clone, Copy)]
struct ProgramRule {
    /// `PACKAGE::PROGRAM`.
    program: &'static str,
    /// The part of the program; `--test` selects it by name.
    part: Option<SuitePart>,
    /// Parts of the names of the tests that run in a guest; an empty list stands for all.
    filters: &'static [&'static str],
    when: RunPolicy,
    /// Whether the program's part [`BUILD`] makes programs on the host first, because a guest has no
    /// compiler.
    builds: bool,
}

/// The part of a program that prints the paths of what it makes, one a line.
const BUILD: &str = "build";

#[derive(Clone, Copy, Debug)]
struct SuitePart {
    variable: &'static str,
    name: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RunPolicy {
    /// In every run.
    Always,
    /// Only if named, because it takes minutes on an emulated processor.
    OnDemand,
    /// Only if named, because it brings a device or uses none, and needs no guest.
    Native,
}

/// A program without a rule runs in every run, and as a whole.
const RULES: &[ProgramRule] = &[
    some("sideway::main", &["gone::", "seed::", "soundness::"]),
    // Its other tests mostly wait, and use the device in no other way.
    some("stride::device", &["every_"]),
    native("sideway::cuda"),
    conformance("system", RunPolicy::Always),
    conformance("soft_inline", RunPolicy::Native),
    conformance("soft_deferred", RunPolicy::Native),
    conformance("soft_small", RunPolicy::Native),
    conformance("soft_ib", RunPolicy::Native),
    native("stride::main"),
    native("rdma-examples::main"),
    native("trespass::main"),
    native("trespass::allocations"),
    trespass("tcp", RunPolicy::Native),
    trespass("soft", RunPolicy::Native),
    trespass("soft_deferred", RunPolicy::Native),
    trespass("soft_srq", RunPolicy::Native),
    trespass("soft_by_cm", RunPolicy::Native),
    trespass("soft_by_cm_deferred", RunPolicy::Native),
    trespass("faults", RunPolicy::Native),
    trespass("rdma", RunPolicy::OnDemand),
    trespass("rdma_by_cm", RunPolicy::OnDemand),
    trespass("netem", RunPolicy::OnDemand),
    ProgramRule { builds: true, ..part("trespass-c::main", "TRESPASS_C_SUITE", "rdma", RunPolicy::OnDemand) },
    part("trespass-tunnel::main", "TRESPASS_TUNNEL_SUITE", "tcp", RunPolicy::Native),
    part("trespass-tunnel::main", "TRESPASS_TUNNEL_SUITE", "soft", RunPolicy::Native),
    part("trespass-tunnel::main", "TRESPASS_TUNNEL_SUITE", "rdma", RunPolicy::OnDemand),
    ProgramRule { when: RunPolicy::OnDemand, ..some("trespass-tunnel::programs", &["rdma::"]) },
];

const fn some(program: &'static str, filters: &'static [&'static str]) -> ProgramRule {
    ProgramRule { program, part: None, filters, when: RunPolicy::Always, builds: false }
}

const fn native(program: &'static str) -> ProgramRule {
    ProgramRule { when: RunPolicy::Native, ..some(program, &[]) }
}

const fn part(
    program: &'static str,
    variable: &'static str,
    name: &'static str,
    when: RunPolicy,
) -> ProgramRule {
    ProgramRule { part: Some(SuitePart { variable, name }), when, ..some(program, &[]) }
}

const fn conformance(name: &'static str, when: RunPolicy) -> ProgramRule {
    part("conformance::main", "CONFORMANCE_SUITE", name, when)
}

const fn trespass(name: &'static str, when: RunPolicy) -> ProgramRule {
    part("trespass::suite", "TRESPASS_SUITE", name, when)
}

/// A test program, or a part of one, to run.
#[derive(Clone, Debug)]
struct TestRun {
    program: TestProgram,
    /// The program's name, or the part's.
    name: String,
    part: Option<SuitePart>,
    filters: &'static [&'static str],
    when: RunPolicy,
    builds: bool,
}

impl TestRun {
    /// The runs of a program: one for each of its rules.
    fn of(program: &TestProgram) -> Vec<Self> {
        let title = format!("{}::{}", program.package, program.name);
        let run = |name: &str, rule: Option<&ProgramRule>| Self {
            program: program.clone(),
            name: name.to_owned(),
            part: rule.and_then(|rule| rule.part),
            filters: rule.map_or(&[], |rule| rule.filters),
            when: rule.map_or(RunPolicy::Always, |rule| rule.when),
            builds: rule.is_some_and(|rule| rule.builds),
        };
        let rules: Vec<_> = RULES.iter().filter(|rule| rule.program == title).collect();
        if rules.is_empty() {
            return vec![run(&program.name, None)];
        }
        let name = |rule: &ProgramRule| rule.part.map_or(&*program.name, |part| part.name).to_owned();
        rules.into_iter().map(|rule| run(&name(rule), Some(rule))).collect()
    }

    fn title(&self) -> String {
        format!("{}::{}", self.program.package, self.name)
    }
}

/// Reads the guest's shared files before the programs run, for the same reason as in `script`.
const READ_SYSTEM: &str =
    "find /usr/bin /usr/sbin /usr/lib/x86_64-linux-gnu -type f -exec cat {} + >/dev/null";

/// The packages whose tests start programs while others wait for these. Not `rdma-examples`, whose
/// programs would take a third of the guest's memory.
const IN_MEMORY: &[&str] = &["trespass", "trespass-c", "trespass-tunnel"];

/// Mounts a copy of each file over the file.
const COPY: &str = "\
in_memory() {
    for file; do
        copy=$(mktemp /tmp/program-XXXXXX) && cp -p \"$file\" \"$copy\" && mount --bind \"$copy\" \"$file\" || return 1
    done
}
";

/// After this many seconds a test program counts as stuck.
const PROGRAM_LIMIT: u32 = 1200;

/// The arguments of a test run.
#[derive(clap::Args)]
pub(super) struct SuiteArgs {
    /// Run the workspace's device tests.
    #[arg(long)]
    pub(super) suite: bool,

    /// With --suite: only the test programs, or parts of one, of this name (repeatable)
    #[arg(long, value_name = "NAME", requires = "suite")]
    test: Vec<String>,

    /// With --suite: also the test programs, or parts of one, of this name that run only if named
    /// (repeatable)
    #[arg(long, value_name = "NAME", requires = "suite", conflicts_with = "test")]
    with: Vec<String>,

    /// With --suite: not the test programs, or parts of one, of this name or `PACKAGE::NAME`
    /// (repeatable)
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
        let built = programs.build_tests(PACKAGES)?;
        let mut tests: Vec<_> = built.iter().flat_map(TestRun::of).collect();
        tests.retain(|test| {
            let takes = self.takes(test);
            if !takes && self.test.is_empty() && test.when != RunPolicy::Native {
                eprintln!("SKIPPED {}: --with {} runs it", test.title(), test.name);
            }
            takes
        });
        ensure!(
            !tests.is_empty(),
            "none of the packages {} has such an integration test",
            PACKAGES.join(", ")
        );

        for test in tests.iter_mut().filter(|test| test.builds) {
            let variable = test.part.map(|part| (part.variable, BUILD));
            programs.build_more(&mut test.program, variable)?;
            for path in &test.program.programs {
                job.share(Path::new(path).parent().context("a program without a folder")?)?;
            }
        }
        job.command = match machine {
            TestMachine::Guest(_) => format!("{READ_SYSTEM}\n{}", script(&tests, arguments, true)),
            TestMachine::Host(_) => {
                tests.iter_mut().for_each(|test| test.filters = &[]);
                script(&tests, arguments, false)
            }
        };
        let mut stdout = CountingWriter::new(io::stdout());
        let report = machine.run(&job, &mut stdout, &mut io::stderr())?;
        judge(&machine.title(&report), &report, stdout.finish(), self.at_least)
    }

    /// Whether the arguments select this run.
    fn takes(&self, test: &TestRun) -> bool {
        let named = |list: &[String]| list.iter().any(|entry| *entry == test.name || *entry == test.title());
        let wanted = match &*self.test {
            [] => test.when == RunPolicy::Always || named(&self.with),
            list => named(list),
        };
        wanted && !named(&self.skip)
    }
}

/// Runs all tests, and fails if one of them failed.
///
/// A program is read completely before it runs. The clock of a guest that counts instructions jumps
/// to the next timer whenever all threads wait, also for a page of the program that is not in
/// memory yet. If that page takes a tenth of a second, every time limit has expired.
///
/// The start of a program asks the host for the file, even if its pages are in memory. Programs of
/// `IN_MEMORY` are therefore copied into the guest's memory, if the machine is a guest.
fn script(tests: &[TestRun], arguments: &[String], in_memory: bool) -> String {
    let mut script = "failed=\n".to_owned();
    if in_memory {
        script += COPY;
    }
    let mut package = "";
    for test in tests {
        let TestProgram { executable, directory, .. } = &test.program;
        let programs: &[String] = if test.program.package == package { &[] } else { &test.program.programs };
        package = &test.program.package;
        let read = programs.iter().chain([executable]).map(|file| shell::quote(file));
        let read = read.collect::<Vec<_>>().join(" ");
        script += &match in_memory && IN_MEMORY.contains(&package) {
            true => format!("in_memory {read} || exit 125\n"),
            false => format!("cat {read} >/dev/null\n"),
        };
        let title = test.title();
        let filters: Vec<_> = test.filters.iter().map(|filter| (*filter).to_owned()).collect();
        script += &format!(
            "echo; echo {}\n(cd {} && CARGO_MANIFEST_DIR=$PWD CARGO_PKG_NAME={} {} exec timeout --kill-after=10 {PROGRAM_LIMIT} {} {}) ||\n    \
             failed=\"$failed {title} (exit code $?)\"\n",
            shell::quote(&format!("Running {title}")),
            shell::quote(directory),
            shell::quote(package),
            test.part.map(|part| format!("{}={}", part.variable, part.name)).unwrap_or_default(),
            shell::quote(executable),
            // The caller's arguments replace the rule's.
            shell::join(if arguments.is_empty() { &filters } else { arguments }),
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
    ensure!(counts.ran >= at_least, "{} device tests ran; at least {at_least} are required", counts.ran);
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

    fn program(package: &str, name: &str, executable: &str) -> TestProgram {
        TestProgram {
            package: package.to_owned(),
            name: name.to_owned(),
            executable: executable.to_owned(),
            directory: "/".to_owned(),
            programs: vec!["/bin/sh".to_owned()],
        }
    }

    #[test]
    fn names_select_test_programs_and_parts() {
        let names = |list: &[&str]| list.iter().map(|name| (*name).to_owned()).collect();
        let none = || SuiteArgs { suite: true, test: vec![], with: vec![], skip: vec![], at_least: 1 };
        let by = |program: &TestProgram, arguments: SuiteArgs| {
            let runs = TestRun::of(program).into_iter().filter(|run| arguments.takes(run));
            runs.map(|run| run.name).collect::<Vec<_>>()
        };
        let taken = |program: &TestProgram, test: &[&str], skip: &[&str]| {
            by(program, SuiteArgs { test: names(test), skip: names(skip), ..none() })
        };
        let rc = program("p", "rc", "");
        assert_eq!(taken(&rc, &[], &[]), ["rc"]);
        assert_eq!(taken(&rc, &["rc"], &["ud"]), ["rc"]);
        for (test, skip) in [(&["ud"][..], &[][..]), (&[], &["rc"]), (&[], &["p::rc"])] {
            assert!(taken(&rc, test, skip).is_empty(), "{test:?}, {skip:?}");
        }
        assert_eq!(taken(&rc, &[], &["q::rc"]), ["rc"]);
        let parts = program("conformance", "main", "");
        assert_eq!(taken(&parts, &[], &[]), ["system"], "the others bring a device");
        assert_eq!(taken(&parts, &["soft_inline"], &[]), ["soft_inline"]);
        let suite = program("trespass", "suite", "");
        assert!(taken(&suite, &[], &[]).is_empty());
        assert_eq!(taken(&suite, &["rdma", "trespass::netem"], &[]), ["rdma", "netem"]);
        assert_eq!(by(&suite, SuiteArgs { with: names(&["netem"]), ..none() }), ["netem"]);
        let tunnel = program("trespass-tunnel", "main", "");
        assert_eq!(taken(&tunnel, &["rdma"], &[]), ["rdma"], "one name selects all that use the device");
        assert!(taken(&tunnel, &["trespass::rdma"], &[]).is_empty());
        assert_eq!(by(&rc, SuiteArgs { with: names(&["netem"]), ..none() }), ["rc"]);
    }

    #[test]
    fn the_script_runs_every_test_and_fails_if_one_did() {
        let test = |name: &str, executable: &str| TestRun::of(&program("some", name, executable)).remove(0);
        let run = |tests: &[TestRun]| {
            let output =
                std::process::Command::new("sh").args(["-c", &script(tests, &[], false)]).output().unwrap();
            (output.status.code(), String::from_utf8(output.stderr).unwrap())
        };
        assert_eq!(run(&[test("good", "/bin/true")]), (Some(0), String::new()));
        let expected = (Some(101), "failed: some::bad (exit code 1)\n".to_owned());
        assert_eq!(run(&[test("bad", "/bin/false"), test("good", "/bin/true")]), expected);
    }

    #[test]
    fn the_script_chooses_parts_and_tests() {
        let parts = TestRun::of(&program("conformance", "main", "/bin/true"));
        assert!(script(&parts[..1], &[], true).contains("CONFORMANCE_SUITE=system exec timeout"));
        let parts = TestRun::of(&program("trespass-c", "main", "/bin/true"));
        assert!(parts.iter().all(|run| run.builds && run.when == RunPolicy::OnDemand));
        let run = script(&parts, &[], true);
        assert!(run.contains("TRESPASS_C_SUITE=rdma exec timeout"), "{run}");
        assert!(run.contains("in_memory /bin/sh /bin/true ||"), "{run}");
        let some = TestRun::of(&program("sideway", "main", "/bin/true"));
        assert!(script(&some, &[], true).contains("/bin/true gone:: seed:: soundness::)"));
        assert!(script(&some, &["every".to_owned()], true).contains("/bin/true every)"));
    }
}
