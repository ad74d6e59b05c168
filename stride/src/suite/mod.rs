//! Suites: command lines of tests that run one after the other.
//!
//! All tests are checked before the first one runs. A requirement that this machine does not meet
//! skips the test, which is printed and counted; any other error is a failure of that test alone.

mod file;
mod shipped;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::cli::{self, OutputArgs, SuiteArgs, Usage};
use crate::error::{Error, SuiteError};
use crate::interrupt::Interrupted;
use crate::plan::{RunPlan, SideRole};
use crate::report::{MISSED, Output};
use crate::session;
use file::SuiteTest;

/// A test that has been checked.
struct PreparedTest {
    name: String,
    words: Vec<OsString>,
    /// The plan, or the reason why it cannot run here.
    what: Result<(RunPlan, OutputArgs), String>,
    needs: Vec<String>,
}

/// The outcome of a test.
#[derive(Clone, Debug, PartialEq, Eq)]
enum SuiteOutcome {
    Ran,
    Missed,
    Skipped(String),
    Failed(String),
    Interrupted(Interrupted),
}

/// Runs a suite; returns the exit status.
///
/// # Errors
///
/// The suite cannot be read, a test failed or none ran, or a signal ended the process.
pub fn run(args: &SuiteArgs, output: &OutputArgs) -> Result<u8, Error> {
    let Some(name) = &args.suite else {
        print!("{}", list());
        return Ok(0);
    };
    let suite = file::read(name)?;
    let several = suite.tests.len() > 1;
    let prepare = |test: SuiteTest| prepare(test, &args.words, output, several);
    let tests = suite.tests.into_iter().map(prepare).collect::<Result<Vec<_>, _>>()?;
    say(output, &format!("# suite {name}: {}", suite.title));
    let mut outcomes = Vec::new();
    for (index, test) in tests.iter().enumerate() {
        let outcome = play(test, &format!("{} of {}", index + 1, tests.len()));
        if let SuiteOutcome::Failed(reason) | SuiteOutcome::Skipped(reason) = &outcome {
            let what = if matches!(outcome, SuiteOutcome::Failed(_)) { "failed" } else { "skipped" };
            eprintln!("{}: {what}: {reason}", test.name);
        }
        let is_over = matches!(outcome, SuiteOutcome::Interrupted(_));
        outcomes.push((test.name.as_str(), outcome));
        if is_over {
            break;
        }
    }
    say(output, &summary(name, tests.len(), &outcomes));
    conclude(name, &outcomes)
}

/// The list of built-in suites.
fn list() -> String {
    let line = |(name, _): &(&str, &str)| {
        let title = file::read(name).map_or_else(|error| error.to_string(), |suite| suite.title);
        format!("{name:<22} {title}\n")
    };
    shipped::SHIPPED.iter().map(line).collect()
}

/// Checks a test; without its `needs` if this program does not know their flags.
fn prepare(
    test: SuiteTest,
    given: &[OsString],
    output: &OutputArgs,
    several: bool,
) -> Result<PreparedTest, SuiteError> {
    let SuiteTest { name, words, needs } = test;
    let of = |words: &[&Vec<String>]| -> Vec<OsString> {
        let own = words.iter().flat_map(|words| words.iter()).map(OsString::from);
        [OsString::from("stride-perf")].into_iter().chain(own).chain(given.iter().cloned()).collect()
    };
    let (plain, whole) = (of(&[&words]), of(&[&words, &needs]));
    let wrong = |words: &[OsString], reason: String| {
        let words = words[1..].iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
        SuiteError::Test { test: name.clone(), words, reason }
    };
    let plan = |words: &[OsString]| {
        let cli = cli::parse_lenient(words).map_err(|usage| wrong(words, text(usage)))?;
        let files = named(cli.output.clone().or(output), &name, several)?;
        let plan = RunPlan::new(cli).map_err(|error| wrong(words, error.to_string()))?;
        match plan.role {
            SideRole::Server => Err(wrong(
                words,
                "no server is named: add the one that runs `stride-perf serve`, or --loopback".to_owned(),
            )),
            _ => Ok((plan, files)),
        }
    };
    // An error in the rest of the command line is a failure, not a reason to skip.
    let without = plan(&plain)?;
    let what = match plan(&whole) {
        _ if needs.is_empty() => Ok(without),
        Ok(planned) => Ok(planned),
        Err(SuiteError::Test { reason, .. }) if reason.starts_with("unexpected argument") => {
            Err(format!("this build of stride-perf has no {}", needs.join(" ")))
        }
        Err(error) => return Err(error),
    };
    Ok(PreparedTest { name, words: whole, what, needs })
}

fn text(usage: Usage) -> String {
    match usage {
        Usage::Asked(_) => "it asks for help or the version, and is no test".to_owned(),
        Usage::Missing(_) => "it does not say what to measure".to_owned(),
        Usage::Wrong(text) => text,
    }
}

/// Gives each test separate files if the suite has several tests; all lines go to one file.
fn named(files: OutputArgs, test: &str, several: bool) -> Result<OutputArgs, SuiteError> {
    if several && files.force && files.jsonl.is_some() {
        return Err(SuiteError::ForcedLines);
    }
    let own = |path: Option<PathBuf>| path.map(|path| if several { of_test(&path, test) } else { path });
    let files = OutputArgs { json: own(files.json), csv: own(files.csv), hgrm: own(files.hgrm), ..files };
    // Checked now, so that the user does not wait for the test's turn.
    for (flag, path) in [("--json", &files.json), ("--csv", &files.csv)] {
        if let Some(path) = path.as_ref().filter(|path| !files.force && path.is_file()) {
            return Err(SuiteError::Exists { flag, path: path.clone() });
        }
    }
    Ok(files)
}

/// `FILE.json` becomes `FILE.TEST.json`; standard output is unchanged.
fn of_test(path: &Path, test: &str) -> PathBuf {
    if path == Path::new("-") {
        return path.to_owned();
    }
    match path.extension() {
        Some(extension) => path.with_extension(format!("{test}.{}", extension.to_string_lossy())),
        None => PathBuf::from(format!("{}.{test}", path.display())),
    }
}

fn play(test: &PreparedTest, place: &str) -> SuiteOutcome {
    let PreparedTest { name, words, what, needs } = test;
    let command = words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
    let (plan, files) = match what {
        Ok(what) => what,
        Err(reason) => return SuiteOutcome::Skipped(reason.clone()),
    };
    say(files, &format!("# test {place}, {name}: {command}"));
    let ran = Output::of_run(files, plan, words.clone())
        .and_then(|output| session::to_the_end(output, |output| session::run(plan, output)));
    match ran {
        Ok(MISSED) => SuiteOutcome::Missed,
        Ok(_) => SuiteOutcome::Ran,
        Err(error) => match error.interrupted() {
            Some(interrupted) => SuiteOutcome::Interrupted(interrupted),
            // The machine lacks the memory that the test needs; nothing was measured yet.
            None if !needs.is_empty() && matches!(error, Error::Allocation(_) | Error::Memory(_)) => {
                SuiteOutcome::Skipped(error.one_line())
            }
            None => SuiteOutcome::Failed(error.one_line()),
        },
    }
}

/// Prints a line where the tables go.
fn say(files: &OutputArgs, line: &str) {
    if crate::result::ResultPaths::from(files).take_standard_output() {
        eprintln!("{line}");
    } else {
        // A failure is ignored, because the next table reports it.
        let _ = std::io::Write::write_all(&mut std::io::stdout(), format!("{line}\n").as_bytes());
    }
}

fn summary(suite: &str, all: usize, outcomes: &[(&str, SuiteOutcome)]) -> String {
    let count = |is: fn(&SuiteOutcome) -> bool| outcomes.iter().filter(|(_, outcome)| is(outcome)).count();
    let (ran, missed) = (
        count(|outcome| matches!(outcome, SuiteOutcome::Ran | SuiteOutcome::Missed)),
        count(|outcome| matches!(outcome, SuiteOutcome::Missed)),
    );
    let (skipped, failed) = (
        count(|outcome| matches!(outcome, SuiteOutcome::Skipped(_))),
        count(|outcome| matches!(outcome, SuiteOutcome::Failed(_))),
    );
    let mut text = format!("# suite {suite}: of {all} tests {ran} ran, {skipped} skipped, {failed} failed");
    if missed > 0 {
        text += &format!(", {missed} not as expected");
    }
    for (name, outcome) in outcomes {
        match outcome {
            SuiteOutcome::Ran => {}
            SuiteOutcome::Missed => text += &format!("\n#   {name}: a figure is not as expected"),
            SuiteOutcome::Skipped(reason) => text += &format!("\n#   {name}: skipped: {reason}"),
            SuiteOutcome::Failed(reason) => text += &format!("\n#   {name}: failed: {reason}"),
            SuiteOutcome::Interrupted(_) => text += &format!("\n#   {name}: interrupted"),
        }
    }
    text
}

fn conclude(suite: &str, outcomes: &[(&str, SuiteOutcome)]) -> Result<u8, Error> {
    let failed = outcomes.iter().filter(|(_, outcome)| matches!(outcome, SuiteOutcome::Failed(_))).count();
    let interrupted = outcomes.iter().find_map(|(_, outcome)| match outcome {
        SuiteOutcome::Interrupted(interrupted) => Some(*interrupted),
        _ => None,
    });
    let has = |wanted: &SuiteOutcome| outcomes.iter().any(|(_, outcome)| outcome == wanted);
    match (interrupted, failed) {
        (Some(interrupted), _) => Err(interrupted.into()),
        (None, 1..) => Err(SuiteError::Failed { failed, all: outcomes.len() }.into()),
        _ if has(&SuiteOutcome::Missed) => Ok(MISSED),
        _ if has(&SuiteOutcome::Ran) => Ok(0),
        _ => Err(SuiteError::NothingRan { suite: suite.to_owned() }.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prepared(words: &str, needs: &str, given: &str) -> Result<PreparedTest, SuiteError> {
        let split = |words: &str| words.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let test = SuiteTest { name: "t".to_owned(), words: split(words), needs: split(needs) };
        let given: Vec<_> = given.split_whitespace().map(OsString::from).collect();
        prepare(test, &given, &OutputArgs::default(), true)
    }

    #[test]
    fn given_flags_override_those_of_the_test() {
        let (plan, _) = prepared("write bw -n 100000 -s 64", "", "--loopback -n 7").unwrap().what.unwrap();
        assert_eq!((plan.test.iterations, plan.role), (7, SideRole::Loopback));
        let (plan, files) = prepared("write lat --json a.json", "", "server -p 5").unwrap().what.unwrap();
        assert_eq!((plan.role, plan.local.tcp_port), (SideRole::Client("server".to_owned()), 5));
        assert_eq!(files.json, Some("a.t.json".into()));
    }

    #[test]
    fn errors_are_reported_before_anything_runs() {
        for (words, given, part) in [
            ("write bw", "", "no server is named"),
            ("write bw -n 1", "--loopback", "-n 1 is below"),
            ("write bw --nonsense", "--loopback", "unexpected argument '--nonsense'"),
            ("serve", "", "serve is no test"),
            ("write", "", "does not say what to measure"),
        ] {
            let Err(error) = prepared(words, "", given) else { panic!("{words}") };
            let error = error.to_string();
            assert!(error.contains(part) && error.contains("the test t (`stride-perf "), "{error}");
        }
    }

    #[test]
    fn a_missing_requirement_skips_the_test() {
        let skipped = prepared("write bw", "--no-such-memory 0", "--loopback").unwrap().what.unwrap_err();
        assert!(skipped.contains("--no-such-memory 0"), "{skipped}");
        assert!(prepared("write bw --nonsense", "--no-such-memory 0", "--loopback").is_err());
        assert!(prepared("write bw", "--buffer malloc", "--loopback").unwrap().what.is_ok());
        assert!(prepared("write bw", "--buffer nonsense", "--loopback").is_err());
    }

    #[test]
    fn the_exit_code_says_the_worst() {
        let (ran, missed) = (("a", SuiteOutcome::Ran), ("b", SuiteOutcome::Missed));
        let skipped = ("c", SuiteOutcome::Skipped("no GPU".to_owned()));
        let failed = ("d", SuiteOutcome::Failed("no server".to_owned()));
        assert_eq!(conclude("s", &[ran.clone(), skipped.clone()]).unwrap(), 0);
        assert_eq!(conclude("s", &[ran.clone(), missed.clone(), skipped.clone()]).unwrap(), MISSED);
        let all = [ran, missed, skipped.clone(), failed];
        assert!(conclude("s", &all).unwrap_err().to_string().contains("1 of 4 tests failed"));
        assert!(conclude("s", &[skipped]).unwrap_err().to_string().contains("no test of s could be run"));
        assert_eq!(
            summary("s", 4, &all),
            "\
# suite s: of 4 tests 2 ran, 1 skipped, 1 failed, 1 not as expected
#   b: a figure is not as expected
#   c: skipped: no GPU
#   d: failed: no server"
        );
    }

    #[test]
    fn each_test_has_files_of_its_own() {
        assert_eq!(of_test(Path::new("x/a.json"), "host"), Path::new("x/a.host.json"));
        assert_eq!(of_test(Path::new("a"), "host"), Path::new("a.host"));
        assert_eq!(of_test(Path::new("-"), "host"), Path::new("-"));
    }

    #[test]
    fn every_shipped_test_can_be_run_or_skipped() {
        for (name, _) in shipped::SHIPPED {
            for test in file::read(name).unwrap().tests {
                let (test_name, needs) = (test.name.clone(), test.needs.clone());
                let prepared = prepare(test, &["--loopback".into()], &OutputArgs::default(), true).unwrap();
                assert!(prepared.what.is_ok() || !needs.is_empty(), "{name}: {test_name}");
            }
        }
        assert_eq!(list().lines().count(), shipped::SHIPPED.len());
    }
}
