//! Parses the command line, and shortens errors to one line.

use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser};

use super::serve::CommandLine;
use super::{StrideCommand, TestArgs};

/// The reason why the command line names no command to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Usage {
    /// The user asked for this text (help or version).
    Asked(String),
    /// The command line is incomplete, so the program prints this help.
    Missing(String),
    /// The error, in one line.
    Wrong(String),
}

/// Parses the command line of a test, whose first word is the program's name.
pub fn parse<I, T>(words: I) -> Result<TestArgs, Usage>
where
    I: IntoIterator<Item = T>,
    T: Into<OsString> + Clone,
{
    of_test(command(words)?)
}

/// Parses the command line of a test; a repeated flag overrides its earlier value.
pub fn parse_lenient<I, T>(words: I) -> Result<TestArgs, Usage>
where
    I: IntoIterator<Item = T>,
    T: Into<OsString> + Clone,
{
    let lenient = CommandLine::command().args_override_self(true);
    let parsed =
        lenient.try_get_matches_from(words).and_then(|matches| CommandLine::from_arg_matches(&matches));
    of_test(parsed.map(StrideCommand::from).map_err(usage)?)
}

fn of_test(command: StrideCommand) -> Result<TestArgs, Usage> {
    match command {
        StrideCommand::Test(cli) => Ok(*cli),
        StrideCommand::Serve(..) => Err(Usage::Wrong("serve is no test".to_owned())),
        StrideCommand::Ping(..) => Err(Usage::Wrong("ping is no test".to_owned())),
        StrideCommand::Suite(..) => Err(Usage::Wrong("suite is no test".to_owned())),
    }
}

/// Parses a command line, whose first word is the program's name.
pub fn command<I, T>(words: I) -> Result<StrideCommand, Usage>
where
    I: IntoIterator<Item = T>,
    T: Into<OsString> + Clone,
{
    CommandLine::try_parse_from(words).map(StrideCommand::from).map_err(usage)
}

fn usage(error: clap::Error) -> Usage {
    let text = error.render().to_string();
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Usage::Asked(text),
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => Usage::Missing(text),
        _ => Usage::Wrong(one_line(&text)),
    }
}

/// clap's error with its tips, but without the usage that follows.
fn one_line(text: &str) -> String {
    let said = text.lines().map(str::trim).take_while(|line| !line.starts_with("Usage:"));
    let mut line = String::new();
    for part in said.filter(|part| !part.is_empty() && !part.starts_with("For more information")) {
        let part = part.strip_prefix("error: ").unwrap_or(part);
        if !line.is_empty() {
            line.push_str(if line.ends_with(':') { " " } else { "; " });
        }
        line.push_str(part);
    }
    line.push_str("; see --help");
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(line: &str) -> String {
        match parse(line.split_whitespace()) {
            Err(Usage::Wrong(text)) => text,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn an_error_is_one_line() {
        let text = wrong("stride-perf write bw -n many");
        assert_eq!(
            text,
            "invalid value 'many' for '--iters <COUNT>': invalid digit found in string; see --help"
        );
        let text = wrong("stride-perf write bw --use-rocm 4");
        assert!(text.starts_with("unexpected argument '--use-rocm' found"), "{text}");
        let text = wrong("stride-perf write bw -s 1T");
        assert!(text.contains("a size is digits, then K, M, G or nothing"), "{text}");
        let text = wrong("stride-perf write bw --loopback host");
        assert!(text.contains("cannot be used with"), "{text}");
        assert!(!text.contains('\n'));
        let text = wrong("stride-perf swap bw");
        assert!(text.contains("unrecognized subcommand 'swap'"), "{text}");
    }

    #[test]
    fn help_and_version_are_no_errors() {
        assert!(matches!(parse(["stride-perf", "--help"]), Err(Usage::Asked(_))));
        assert!(matches!(parse(["stride-perf", "--version"]), Err(Usage::Asked(_))));
        assert!(matches!(parse(["stride-perf", "write"]), Err(Usage::Missing(_))));
    }
}
