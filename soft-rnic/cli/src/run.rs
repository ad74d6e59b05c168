//! `soft-rnic run -- PROGRAM ARGUMENTS`: runs a program over the software device.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::Result;
use soft_rnic::{MAX_DEVICES, MAX_PORTS};

use crate::library;

/// The folders that the dynamic loader searches before the system's.
const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";

/// Run a program of libibverbs over the software device
///
/// The program replaces this process, so that its exit status and its signals are the program's. An
/// option that is not given leaves its environment variable as it is.
#[derive(clap::Args)]
pub(crate) struct RunArgs {
    /// The folder with the device's libibverbs.so.1
    #[arg(long, value_name = "DIR", env = "SOFT_RNIC_LIB_DIR")]
    lib_dir: Option<PathBuf>,
    /// Number of devices (SOFT_RNIC_DEVICES)
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u8).range(1..=i64::from(MAX_DEVICES)))]
    devices: Option<u8>,
    /// Number of ports of each device (SOFT_RNIC_PORTS)
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u8).range(1..=i64::from(MAX_PORTS)))]
    ports: Option<u8>,
    /// Execute work when it is posted (inline), or later like hardware (deferred) (SOFT_RNIC_MODE)
    #[arg(long)]
    mode: Option<Mode>,
    /// Faults to inject: a list of rules, or @FILE (SOFT_RNIC_FAULTS)
    #[arg(long, value_name = "RULES")]
    faults: Option<OsString>,
    /// Seed of the faults' random choices (SOFT_RNIC_SEED)
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,
    /// Limits to lower, such as max_sge=1 (SOFT_RNIC_LIMITS)
    #[arg(long, value_name = "LIST")]
    limits: Option<OsString>,
    /// Name of the fabric: only processes with the same name can connect (SOFT_RNIC_FABRIC)
    #[arg(long, value_name = "NAME")]
    fabric: Option<OsString>,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Mode {
    Inline,
    Deferred,
}

/// Replaces this process by the program; returns only if the program cannot be started.
pub(crate) fn run(args: &RunArgs) -> Result<ExitCode> {
    let folder = library::folder(args.lib_dir.as_deref())?;
    let error = command(args, &folder, env::var_os(LIBRARY_PATH).as_deref()).exec();
    let program = args.program[0].display();
    // The exit statuses that shells use.
    let (code, advice) = match error.kind() {
        ErrorKind::NotFound => (127, ": is it installed, and in PATH?"),
        _ => (126, ""),
    };
    eprintln!("soft-rnic: cannot run {program}: {error}{advice}");
    Ok(ExitCode::from(code))
}

fn command(args: &RunArgs, folder: &Path, library_path: Option<&OsStr>) -> Command {
    let mut command = Command::new(&args.program[0]);
    command.args(&args.program[1..]).env(LIBRARY_PATH, prepended(folder, library_path));
    let mode = args.mode.map(|mode| match mode {
        Mode::Inline => "inline",
        Mode::Deferred => "deferred",
    });
    let number = |value: &dyn ToString| OsString::from(value.to_string());
    let variables = [
        ("SOFT_RNIC_DEVICES", args.devices.as_ref().map(|devices| number(devices))),
        ("SOFT_RNIC_PORTS", args.ports.as_ref().map(|ports| number(ports))),
        ("SOFT_RNIC_MODE", mode.map(OsString::from)),
        ("SOFT_RNIC_FAULTS", args.faults.clone()),
        ("SOFT_RNIC_SEED", args.seed.as_ref().map(|seed| number(seed))),
        ("SOFT_RNIC_LIMITS", args.limits.clone()),
        ("SOFT_RNIC_FABRIC", args.fabric.clone()),
    ];
    command.envs(variables.into_iter().filter_map(|(name, value)| Some((name, value?))));
    command
}

/// Prepends the folder to the existing search path. An empty part would mean the working directory.
fn prepended(folder: &Path, library_path: Option<&OsStr>) -> OsString {
    let mut path = folder.as_os_str().to_owned();
    if let Some(others) = library_path.filter(|others| !others.is_empty()) {
        path.push(":");
        path.push(others);
    }
    path
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: RunArgs,
    }

    fn started(line: &[&str], library_path: Option<&str>) -> (Vec<String>, BTreeMap<String, String>) {
        let args = Cli::try_parse_from([&["soft-rnic"], line].concat()).unwrap().args;
        let command = command(&args, Path::new("/libs"), library_path.map(OsStr::new));
        let text = |value: &OsStr| value.to_str().unwrap().to_owned();
        let words = [command.get_program()].into_iter().chain(command.get_args()).map(text).collect();
        let variables = command.get_envs().map(|(name, value)| (text(name), text(value.unwrap()))).collect();
        (words, variables)
    }

    #[test]
    fn the_programs_options_are_its_own() {
        for line in [["--", "ib_write_bw", "-a", "--devices"], ["ib_write_bw", "-a", "--devices", "7"]] {
            let words = line.into_iter().filter(|word| *word != "--").map(str::to_owned).collect::<Vec<_>>();
            let (started, variables) = started(&line, None);
            assert_eq!(started, words);
            assert_eq!(variables, BTreeMap::from([("LD_LIBRARY_PATH".into(), "/libs".into())]));
        }
    }

    #[test]
    fn options_become_variables() {
        let options = ["--devices", "2", "--ports=3", "--mode", "deferred", "--faults", "@f", "--seed", "7"];
        let more = ["--limits", "max_sge=1", "--fabric", "x", "--", "p"];
        let (_, variables) = started(&[&options[..], &more].concat(), Some("/a:/b"));
        let expected = [
            ("LD_LIBRARY_PATH", "/libs:/a:/b"),
            ("SOFT_RNIC_DEVICES", "2"),
            ("SOFT_RNIC_FABRIC", "x"),
            ("SOFT_RNIC_FAULTS", "@f"),
            ("SOFT_RNIC_LIMITS", "max_sge=1"),
            ("SOFT_RNIC_MODE", "deferred"),
            ("SOFT_RNIC_PORTS", "3"),
            ("SOFT_RNIC_SEED", "7"),
        ];
        assert_eq!(variables, expected.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
    }

    #[test]
    fn no_part_of_the_path_is_empty() {
        assert_eq!(started(&["p"], Some("")).1["LD_LIBRARY_PATH"], "/libs");
    }

    #[test]
    fn nonsense_is_refused() {
        for line in [vec!["--devices", "0", "p"], vec!["--mode", "later", "p"], vec![]] {
            assert!(Cli::try_parse_from([&["soft-rnic"], &line[..]].concat()).is_err(), "{line:?}");
        }
    }
}
