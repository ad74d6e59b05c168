//! Start and end of a program: arguments, output, exit code.

use std::error::Error;
use std::ffi::OsString;
use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;

/// The reason for an early end.
///
/// It does not implement [`Error`], so that `?` can convert every error to it.
#[derive(Debug)]
pub enum Failure {
    /// An argument or the environment is unsuitable: exit code 2.
    Setup(String),
    /// The work failed after it had begun: exit code 1.
    Work(String),
    /// Nothing is left to print, for example after `--help` or when the output's reader is gone:
    /// exit code 0.
    Finished,
}

impl Failure {
    /// Reports that the work failed.
    pub fn work(reason: impl fmt::Display) -> Self {
        Self::Work(reason.to_string())
    }

    /// Reports an unsuitable argument or environment.
    pub fn setup(reason: impl fmt::Display) -> Self {
        Self::Setup(reason.to_string())
    }
}

impl<E: Error> From<E> for Failure {
    /// Most errors occur before the work begins.
    fn from(error: E) -> Self {
        Self::setup(error)
    }
}

/// Runs a program, and prints the reason of a failure to stderr.
pub fn run(program: impl FnOnce() -> Result<(), Failure>) -> ExitCode {
    let (reason, code) = match program() {
        Ok(()) | Err(Failure::Finished) => return ExitCode::SUCCESS,
        Err(Failure::Setup(reason)) => (reason, 2),
        Err(Failure::Work(reason)) => (reason, 1),
    };
    note(format_args!("error: {reason}"));
    ExitCode::from(code)
}

/// Parses the program's arguments.
///
/// # Errors
///
/// The arguments are wrong, which is reported in one line; or they ask for help, which is printed.
pub fn arguments<A: clap::Parser>() -> Result<A, Failure> {
    parse(std::env::args_os())
}

/// Parses these arguments, the first of which is the program's name.
///
/// # Errors
///
/// As [`arguments`].
pub fn parse<A: clap::Parser>(
    arguments: impl IntoIterator<Item = impl Into<OsString> + Clone>,
) -> Result<A, Failure> {
    A::try_parse_from(arguments).map_err(|error| {
        let text = error.to_string();
        if !error.use_stderr() {
            return say(text.trim_end()).err().unwrap_or(Failure::Finished);
        }
        // The text after the first paragraph is the usage, which `--help` prints.
        let reason = text.split("\n\n").next().unwrap_or_default();
        let reason = reason.strip_prefix("error: ").unwrap_or(reason);
        Failure::Setup(reason.split_whitespace().collect::<Vec<_>>().join(" "))
    })
}

/// The way in which a program over trespass opens its connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Bootstrap {
    /// With a TCP connection.
    #[default]
    Tcp,
    /// With the connection manager of RDMA.
    #[value(name = "rdma_cm")]
    RdmaCm,
}

impl From<Bootstrap> for trespass::Bootstrap {
    fn from(bootstrap: Bootstrap) -> Self {
        match bootstrap {
            Bootstrap::Tcp => Self::Tcp,
            Bootstrap::RdmaCm => Self::RdmaCm,
        }
    }
}

/// Writes a line to stdout.
///
/// # Errors
///
/// [`Failure::Finished`] if the reader is gone (`show_gids | head`); a work failure if the write
/// fails otherwise.
pub fn say(line: impl fmt::Display) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    let written = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
    written.map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::Finished,
        _ => Failure::work(format_args!("cannot write the output: {error}")),
    })
}

/// Writes a line to stderr with one call, because other programs may write to the same terminal.
/// Errors are ignored, because they could not be reported.
pub fn note(line: impl fmt::Display) {
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Arguments {
        #[arg(short, value_parser = clap::value_parser!(u32).range(1..=3))]
        number: u32,
        #[arg(short)]
        text: String,
    }

    fn reason(arguments: &[&str]) -> String {
        match parse::<Arguments>([&["program"], arguments].concat()) {
            Err(Failure::Setup(reason)) => reason,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn wrong_arguments_take_one_line() {
        assert_eq!(reason(&["-n", "4", "-t", "x"]), "invalid value '4' for '-n <NUMBER>': 4 is not in 1..=3");
        assert_eq!(reason(&[]), "the following required arguments were not provided: -n <NUMBER> -t <TEXT>");
        let good = parse::<Arguments>(["program", "-n", "2", "-t", "x"]).unwrap();
        assert_eq!((good.number, good.text.as_str()), (2, "x"));
    }

    #[test]
    fn errors_are_of_the_setup_unless_said_otherwise() {
        let failed = || -> Result<(), Failure> { Ok("x".parse::<u8>().map(drop)?) };
        assert!(matches!(failed(), Err(Failure::Setup(_))));
        assert_eq!(run(failed), ExitCode::from(2));
        assert_eq!(run(|| Err(Failure::work("the cable is gone"))), ExitCode::from(1));
        assert_eq!(run(|| Err(Failure::Finished)), ExitCode::SUCCESS);
    }
}
