//! How a program begins and ends: arguments in, lines out, an exit code.

use std::error::Error;
use std::ffi::OsString;
use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;

/// Why a program ends before its end.
///
/// It is no [`Error`] itself, so that every error can become one by `?`.
#[derive(Debug)]
pub enum Failure {
    /// Something that was given or found is not as it must be: exit code 2.
    Setup(String),
    /// It began well, and then the work failed: exit code 1.
    Work(String),
    /// There is nothing left to say, such as after `--help`, or when nobody reads the output: exit code 0.
    Finished,
}

impl Failure {
    /// The work failed.
    pub fn work(reason: impl fmt::Display) -> Self {
        Self::Work(reason.to_string())
    }

    /// Something that was given or found is not as it must be.
    pub fn setup(reason: impl fmt::Display) -> Self {
        Self::Setup(reason.to_string())
    }
}

impl<E: Error> From<E> for Failure {
    /// Most errors come up before the work begins.
    fn from(error: E) -> Self {
        Self::setup(error)
    }
}

/// Runs a program, and says on stderr why it failed.
pub fn run(program: impl FnOnce() -> Result<(), Failure>) -> ExitCode {
    let (reason, code) = match program() {
        Ok(()) | Err(Failure::Finished) => return ExitCode::SUCCESS,
        Err(Failure::Setup(reason)) => (reason, 2),
        Err(Failure::Work(reason)) => (reason, 1),
    };
    note(format_args!("error: {reason}"));
    ExitCode::from(code)
}

/// The program's arguments.
///
/// # Errors
///
/// They are wrong, which takes one line to say; or they ask for help, which has been given.
pub fn arguments<A: clap::Parser>() -> Result<A, Failure> {
    parse(std::env::args_os())
}

/// These arguments, the first of which is the program's name.
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
        // What follows the first paragraph is the usage, for which there is `--help`.
        let reason = text.split("\n\n").next().unwrap_or_default();
        let reason = reason.strip_prefix("error: ").unwrap_or(reason);
        Failure::Setup(reason.split_whitespace().collect::<Vec<_>>().join(" "))
    })
}

/// How the connections of a program over trespass begin.
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
/// Nobody reads it any more (`show_gids | head`), which is no failure; or the file system is full, which is.
pub fn say(line: impl fmt::Display) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    let written = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
    written.map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::Finished,
        _ => Failure::work(format_args!("cannot write the output: {error}")),
    })
}

/// Writes a line to stderr, in one piece, as another program may be writing to the same terminal. When
/// nobody reads it, there is nobody left to tell.
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
