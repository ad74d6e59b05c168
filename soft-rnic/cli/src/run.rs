//! `soft-rnic run -- PROGRAM ARGUMENTS`: runs a program over the software device.
//!
//! The program finds the device's libraries and its device files by environment variables, which
//! its children inherit.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Result, bail};
use soft_rnic::{Config, Link, MAX_DEVICES, MAX_PORTS};

use crate::files::{DeviceFiles, namespace};
use crate::library;

/// The folders that the dynamic loader searches before the system's.
const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";
/// The libraries that the dynamic loader loads before all others, separated by colons or spaces.
const PRELOAD: &str = "LD_PRELOAD";
/// The tree of device files, for the preloaded library.
const FILES: &str = "SOFT_RNIC_FILES";

/// What of this process's environment the program's depends on.
#[derive(Default)]
struct Inherited {
    library_path: Option<OsString>,
    preload: Option<OsString>,
}

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
    /// Kind of link: LIDs address the ports of an InfiniBand link (SOFT_RNIC_LINK)
    #[arg(long)]
    link: Option<LinkKind>,
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
    /// How the program finds device files
    #[arg(long, value_name = "HOW", default_value = "preload")]
    files: FilesBy,
    /// Preload no library, so that the program uses the renamed libibverbs that it brings; implies
    /// --files none, unless another way is given
    #[arg(long)]
    no_preload: bool,
    /// Print the variables for a shell, for programs that something else starts
    #[arg(long)]
    print_env: bool,
    /// The program and its arguments
    #[arg(
        required_unless_present = "print_env",
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "PROGRAM"
    )]
    program: Vec<OsString>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Mode {
    Inline,
    Deferred,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum LinkKind {
    /// Ethernet with RoCE v2
    Roce,
    /// InfiniBand
    Ib,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum FilesBy {
    /// By a preloaded library that changes paths; for programs of the C library
    Preload,
    /// By a mount namespace, which needs CAP_SYS_ADMIN; for static programs, too
    Mount,
    /// By a user namespace, which all runs of this user and fabric share; a program in it and one
    /// outside cannot copy directly
    UserNamespace,
    /// Not at all
    None,
}

/// Replaces this process by the program; returns only if the program cannot be started, or after it
/// has printed the variables.
pub(crate) fn run(args: &RunArgs) -> Result<ExitCode> {
    let folder = library::folder(args.lib_dir.as_deref())?;
    if !args.no_preload {
        library::check_preloaded(&folder)?;
    }
    let tree = files(args)?;
    let inherited = Inherited { library_path: env::var_os(LIBRARY_PATH), preload: env::var_os(PRELOAD) };
    let variables = variables(args, &folder, tree.as_deref(), inherited);
    if args.print_env {
        io::stdout().lock().write_all(&exports(&variables))?;
        return Ok(ExitCode::SUCCESS);
    }
    let error = command(args, variables).exec();
    let program = args.program[0].display();
    // The exit statuses that shells use.
    let (code, advice) = match error.kind() {
        ErrorKind::NotFound => (127, ": is it installed, and in PATH?"),
        _ => (126, ""),
    };
    eprintln!("soft-rnic: cannot run {program}: {error}{advice}");
    Ok(ExitCode::from(code))
}

/// Makes the device files. Returns their tree, if the preloaded library is to find it.
fn files(args: &RunArgs) -> Result<Option<PathBuf>> {
    if args.files == FilesBy::None || args.files == FilesBy::Preload && args.no_preload {
        return Ok(None);
    }
    let config = configuration(args)?;
    let fabric =
        args.fabric.as_ref().map_or_else(|| config.fabric.clone(), |name| name.display().to_string());
    let files = match DeviceFiles::of(config) {
        Ok(files) => files,
        // Most programs need none.
        Err(error) if args.files == FilesBy::Preload => {
            eprintln!("soft-rnic: warning: the program sees no device files: {error:#}");
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    match args.files {
        FilesBy::Preload => return Ok(Some(files.tree)),
        _ if args.print_env => bail!("--print-env cannot make namespaces; use --files preload"),
        FilesBy::Mount => namespace::enter_mount(&files)?,
        _ => namespace::enter_user(&files, &fabric)?,
    }
    Ok(None)
}

/// The program's configuration, as far as the device files show it.
fn configuration(args: &RunArgs) -> Result<Config> {
    let mut config = Config::from_env()?;
    config.devices = args.devices.unwrap_or(config.devices);
    config.ports = args.ports.unwrap_or(config.ports);
    config.link = match args.link {
        Some(LinkKind::Roce) => Link::Ethernet,
        Some(LinkKind::Ib) => Link::InfiniBand,
        None => config.link,
    };
    Ok(config)
}

fn command(args: &RunArgs, variables: Vec<(&'static str, OsString)>) -> Command {
    let mut command = Command::new(&args.program[0]);
    command.args(&args.program[1..]).envs(variables);
    command
}

/// The variables to set for the program.
fn variables(
    args: &RunArgs,
    folder: &Path,
    tree: Option<&Path>,
    inherited: Inherited,
) -> Vec<(&'static str, OsString)> {
    let mode = args.mode.map(|mode| match mode {
        Mode::Inline => "inline",
        Mode::Deferred => "deferred",
    });
    let link = args.link.map(|link| match link {
        LinkKind::Roce => "roce",
        LinkKind::Ib => "ib",
    });
    let number = |value: &dyn ToString| OsString::from(value.to_string());
    let preload = (!args.no_preload).then(|| preloaded(folder, inherited.preload));
    let variables = [
        (LIBRARY_PATH, Some(prepended(folder, inherited.library_path.as_deref()))),
        (PRELOAD, preload),
        (FILES, tree.map(|tree| tree.as_os_str().to_owned())),
        ("SOFT_RNIC_DEVICES", args.devices.as_ref().map(|devices| number(devices))),
        ("SOFT_RNIC_PORTS", args.ports.as_ref().map(|ports| number(ports))),
        ("SOFT_RNIC_LINK", link.map(OsString::from)),
        ("SOFT_RNIC_MODE", mode.map(OsString::from)),
        ("SOFT_RNIC_FAULTS", args.faults.clone()),
        ("SOFT_RNIC_SEED", args.seed.as_ref().map(|seed| number(seed))),
        ("SOFT_RNIC_LIMITS", args.limits.clone()),
        ("SOFT_RNIC_FABRIC", args.fabric.clone()),
    ];
    variables.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

/// The variables as commands of a POSIX shell. A quote ends the quoted text, is quoted by a
/// backslash, and begins quoted text again.
fn exports(variables: &[(&'static str, OsString)]) -> Vec<u8> {
    let mut text = Vec::new();
    for (name, value) in variables {
        text.extend_from_slice(format!("export {name}='").as_bytes());
        for byte in value.as_bytes() {
            match byte {
                b'\'' => text.extend_from_slice(br"'\''"),
                _ => text.push(*byte),
            }
        }
        text.extend_from_slice(b"'\n");
    }
    text
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

/// Appends the device's libraries to those that are preloaded already, because some must come
/// first (sanitizers). A run within a run adds none.
fn preloaded(folder: &Path, others: Option<OsString>) -> OsString {
    let mut list = others.unwrap_or_default();
    for name in library::PRELOADED {
        let path = folder.join(name).into_os_string();
        let has_it = list.as_bytes().split(|byte| b": ".contains(byte)).any(|part| part == path.as_bytes());
        if !has_it {
            if !list.is_empty() {
                list.push(":");
            }
            list.push(path);
        }
    }
    list
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
        let args = Cli::try_parse_from([&["soft-rnic", "--no-preload"], line].concat()).unwrap().args;
        let inherited = Inherited { library_path: library_path.map(OsString::from), preload: None };
        let command = command(&args, variables(&args, Path::new("/libs"), None, inherited));
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
        let more = ["--limits", "max_sge=1", "--fabric", "x", "--link", "ib", "--", "p"];
        let (_, variables) = started(&[&options[..], &more].concat(), Some("/a:/b"));
        let expected = [
            ("LD_LIBRARY_PATH", "/libs:/a:/b"),
            ("SOFT_RNIC_DEVICES", "2"),
            ("SOFT_RNIC_FABRIC", "x"),
            ("SOFT_RNIC_FAULTS", "@f"),
            ("SOFT_RNIC_LIMITS", "max_sge=1"),
            ("SOFT_RNIC_LINK", "ib"),
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

    #[test]
    fn the_libraries_are_preloaded_after_others_and_once() {
        let ours = "/l/libsoft-rnic-preload.so:/l/libibverbs.so.1:/l/librdmacm.so.1";
        for (others, expected) in [
            (None, ours.to_owned()),
            (Some(""), ours.to_owned()),
            (Some("/a.so b.so"), format!("/a.so b.so:{ours}")),
            (Some(ours), ours.to_owned()),
        ] {
            assert_eq!(preloaded(Path::new("/l"), others.map(OsString::from)), OsString::from(expected));
        }
    }

    #[test]
    fn a_shell_reads_back_what_is_printed() {
        let value = "a b'c\"$HOME`\\\n*";
        let text = exports(&[("SOFT_RNIC_FAULTS", value.into())]);
        let script = String::from_utf8(text).unwrap() + "printf %s \"$SOFT_RNIC_FAULTS\"";
        let output = Command::new("sh").arg("-c").arg(script).output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), value);
    }
}
