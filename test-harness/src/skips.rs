//! Lines about tests that cannot run here.

use std::fmt::Display;
use std::io::{self, Write};

/// How each of the lines begins. `.ci/run` counts them.
const BEGINNING: &str = "SKIPPED ";

/// Prints that a test, or a part of it, cannot run here, with the reason.
///
/// The standard harness captures what the printing macros of a passing test print, and nothing else.
/// So this is written past it.
///
/// # Panics
///
/// If standard error cannot be written to.
pub fn report_skip(test: &str, reason: impl Display) {
    // In one piece, because other threads print too.
    let line = format!("{BEGINNING}{test}: {reason}\n");
    io::stderr().write_all(line.as_bytes()).expect("standard error");
}

/// Prints what a test's child process printed to standard error: the lines of [`report_skip`] again
/// past the harness, and the others by macro.
///
/// # Panics
///
/// If standard error cannot be written to.
pub fn repeat_errors(errors: &str) {
    for line in errors.lines() {
        match line.strip_prefix(BEGINNING).and_then(|skip| skip.split_once(": ")) {
            Some((test, reason)) => report_skip(test, reason),
            None => eprintln!("{line}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::{repeat_errors, report_skip};

    #[test]
    #[ignore = "run by another test, which reads what it prints"]
    fn skips() {
        report_skip("a_test", "a reason");
        repeat_errors("SKIPPED module::other: its reason: two\nelse\n");
    }

    #[test]
    fn the_harness_captures_no_skip_of_a_passing_test() {
        let mut command = Command::new(std::env::current_exe().expect("a path"));
        let output =
            command.args(["--exact", "skips::tests::skips", "--ignored"]).output().expect("it starts");
        let [text, errors] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
        assert!(text.contains("1 passed"), "{text}");
        assert_eq!(errors, "SKIPPED a_test: a reason\nSKIPPED module::other: its reason: two\n");
    }
}
