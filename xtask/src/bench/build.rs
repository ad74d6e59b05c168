//! `cargo xtask bench build`: the time of a first build in CPU seconds, and the size of what it
//! makes.
//!
//! Each build starts from a fresh clone of a commit, with an empty target folder and with the
//! dependencies downloaded. This program is the `RUSTC_WRAPPER` of the builds, so that it sees what
//! each crate costs: [`rustc`]. CPU seconds hardly depend on what else the machine does; the wall
//! time holds only for an idle machine.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::document::{Section, today};
use super::programs::{execute, first_line};
use crate::soft_libs::target_folder;

/// The environment variable that makes this program a wrapper of rustc: the file for the costs.
const LOG: &str = "XTASK_RUSTC_COSTS";

/// The ticks of a second in `/proc/PID/stat`, which Linux keeps at 100 on every architecture.
const TICKS: f64 = 100.0;

/// The most CPU seconds of the release build, as a ratio to the baseline.
const RATIO: f64 = 0.33;

/// Crates that take less are summed up.
const SMALL: f64 = 1.0;

/// Megabytes are 10^6 bytes.
const MEGABYTE: f64 = 1e6;

#[derive(clap::Args)]
pub(super) struct Args {
    /// Build this commit too, in turn with HEAD, and print ratios to it
    #[arg(long, value_name = "REV")]
    baseline: Option<String>,
    /// Write the result to docs/generated/performance
    #[arg(long)]
    write: bool,
}

/// A first build that a user does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FirstBuild {
    /// The benchmark, with the command of README.md.
    StridePerf,
    /// A new program with a crate of the workspace, in the dev profile.
    Program { package: &'static str, features: &'static str },
}

/// A build, and its most CPU seconds.
const BUILDS: [(FirstBuild, f64); 3] = [
    (FirstBuild::StridePerf, 200.0),
    (FirstBuild::Program { package: "sideway", features: "\"soft\"" }, 60.0),
    (FirstBuild::Program { package: "trespass", features: "" }, 60.0),
];

impl FirstBuild {
    fn title(self) -> String {
        match self {
            Self::StridePerf => "`cargo build --release --bin stride-perf`".to_owned(),
            Self::Program { package, features: "" } => format!("`cargo build` of a program with {package}"),
            Self::Program { package, features } => {
                format!("`cargo build` of a program with {package}, feature {}", features.replace('"', "`"))
            }
        }
    }

    /// Builds it with the sources of `clone`, below `folder`.
    fn build(self, clone: &Path, folder: &Path) -> Result<Cost> {
        let build = || {
            let mut cargo = cargo();
            cargo.args(["build", "--quiet", "--offline"]);
            cargo
        };
        match self {
            Self::StridePerf => {
                let mut command = build();
                command.current_dir(clone).args(["--release", "--bin", "stride-perf"]);
                Cost::of(&mut command, folder)
            }
            Self::Program { package, features } => {
                let program = folder.join("program");
                fs::create_dir_all(program.join("src"))?;
                fs::write(program.join("src/main.rs"), "fn main() {}\n")?;
                fs::copy(clone.join("Cargo.lock"), program.join("Cargo.lock"))?;
                let path = clone.join(package);
                let manifest = format!(
                    "[package]\nname = \"program\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n[workspace]\n\n\
                     [dependencies]\n{package} = {{ path = {path:?}, features = [{features}] }}\n"
                );
                fs::write(program.join("Cargo.toml"), manifest)?;
                Cost::of(build().current_dir(&program), folder)
            }
        }
    }
}

fn cargo() -> Command {
    Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// The cost of a build.
#[derive(Debug)]
struct Cost {
    /// User and system time of cargo, the compilers and the build scripts.
    cpu: f64,
    wall: f64,
    /// CPU seconds by crate.
    crates: BTreeMap<String, f64>,
    /// The target folder.
    target: PathBuf,
}

impl Cost {
    fn of(cargo: &mut Command, folder: &Path) -> Result<Self> {
        let (log, target) = (folder.join("costs"), folder.join("target"));
        // Settings of the developer's environment would change what is built.
        for (name, _) in env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("CARGO_") && text != "CARGO_HOME" || text.starts_with("RUSTFLAGS") {
                cargo.env_remove(name);
            }
        }
        cargo.env("CARGO_TARGET_DIR", &target).env("RUSTC_WRAPPER", env::current_exe()?).env(LOG, &log);
        let (before, start) = (children_seconds()?, Instant::now());
        execute(cargo)?;
        let (wall, cpu) = (start.elapsed().as_secs_f64(), children_seconds()? - before);
        let crates = by_crate(&fs::read_to_string(&log).context("no crate was compiled")?)?;
        Ok(Self { cpu, wall, crates, target })
    }
}

/// Runs rustc in place of cargo, and notes what it costs, if cargo started this program for that.
pub(crate) fn rustc() -> Option<ExitCode> {
    let log = env::var_os(LOG)?;
    let arguments: Vec<OsString> = env::args_os().skip(1).collect();
    let (program, arguments) = arguments.split_first()?;
    let status = Command::new(program).args(arguments).status().ok()?;
    let position = arguments.iter().position(|argument| argument == "--crate-name");
    let name =
        position.and_then(|at| arguments.get(at + 1)).map_or("rustc".into(), |name| name.to_string_lossy());
    let line = format!("{name} {}\n", children_seconds().ok()?);
    // One write: compilers run at the same time.
    OpenOptions::new().create(true).append(true).open(log).ok()?.write_all(line.as_bytes()).ok()?;
    Some(status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
}

/// The user and system time of the processes that this one has waited for, and of those that they
/// did.
fn children_seconds() -> Result<f64> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    // The second field is a name in parentheses, which may have spaces in it.
    let (_, fields) = stat.rsplit_once(')').context("/proc/self/stat has no name")?;
    let ticks = fields.split_whitespace().skip(13).take(2).map(str::parse::<f64>);
    Ok(ticks.sum::<Result<f64, _>>()? / TICKS)
}

fn by_crate(log: &str) -> Result<BTreeMap<String, f64>> {
    let mut crates = BTreeMap::new();
    for line in log.lines() {
        let (name, seconds) = line.split_once(' ').with_context(|| format!("no cost in `{line}`"))?;
        let name = if name.starts_with("build_script") { "build scripts" } else { name };
        *crates.entry(name.to_owned()).or_insert(0.0) += seconds.parse::<f64>()?;
    }
    Ok(crates)
}

/// A commit that is built.
struct Revision {
    hash: String,
    clone: PathBuf,
    folder: PathBuf,
    costs: Vec<Cost>,
}

impl Revision {
    fn new(root: &Path, name: &str, revision: &str) -> Result<Self> {
        let commit = format!("{revision}^{{commit}}");
        let hash =
            first_line(Command::new("git").current_dir(root).args(["rev-parse", "--short=9", &commit]));
        ensure!(!hash.is_empty(), "git knows no commit {revision}");
        let folder = target_folder(root).join("bench-build").join(name);
        if folder.exists() {
            fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
        }
        fs::create_dir_all(&folder)?;
        let folder = folder.canonicalize()?;
        let clone = folder.join("clone");
        let git = || {
            let mut git = Command::new("git");
            git.args(["-c", "advice.detachedHead=false"]);
            git
        };
        execute(git().args(["clone", "--quiet", "--no-checkout"]).arg(root).arg(&clone))?;
        execute(git().current_dir(&clone).args(["checkout", "--quiet", &hash]))?;
        // So that no download is measured.
        execute(cargo().current_dir(&clone).args(["fetch", "--quiet", "--locked"]))?;
        Ok(Self { hash, clone, folder, costs: Vec::new() })
    }

    fn build(&mut self, build: FirstBuild) -> Result<()> {
        let folder = self.folder.join(self.costs.len().to_string());
        fs::create_dir_all(&folder)?;
        println!("{}: {}", self.hash, build.title());
        self.costs.push(build.build(&self.clone, &folder)?);
        Ok(())
    }

    /// The sizes of stride-perf with and without line tables, in megabytes.
    fn sizes(&self) -> Result<[f64; 2]> {
        let program = self.costs[0].target.join("release/stride-perf");
        let stripped = self.folder.join("stripped");
        execute(Command::new("strip").arg("-o").arg(&stripped).arg(&program)).context("needs binutils")?;
        let size = |path: &Path| Ok::<_, anyhow::Error>(fs::metadata(path)?.len() as f64 / MEGABYTE);
        Ok([size(&program)?, size(&stripped)?])
    }
}

pub(super) fn run(root: &Path, args: &Args) -> Result<ExitCode> {
    let mut head = Revision::new(root, "head", "HEAD")?;
    let mut baseline =
        args.baseline.as_deref().map(|name| Revision::new(root, "baseline", name)).transpose()?;
    for (build, _) in BUILDS {
        baseline.iter_mut().try_for_each(|baseline| baseline.build(build))?;
        head.build(build)?;
    }
    let body = report(&head, baseline.as_ref())?;
    print!("{body}");
    if args.write {
        let of_baseline = baseline.as_ref().map(|baseline| format!(" --baseline {}", baseline.hash));
        let intro = format!(
            "{}, commit {}, {}, on {} processors. CPU seconds are user and system time of cargo, compilers and \
             build scripts. Other programs on the machine lengthen the wall time.\n\n    cargo xtask bench build{} --write",
            today(),
            head.hash,
            first_line(Command::new("rustc").arg("--version")),
            std::thread::available_parallelism()?,
            of_baseline.unwrap_or_default(),
        );
        Section { name: "build", title: "First builds", intro: &intro, body: &body }.write(root)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The tables of the builds, of the sizes, and of the crates of the first build.
fn report(head: &Revision, baseline: Option<&Revision>) -> Result<String> {
    let mut text = String::from(
        "| build | CPU s | at most | baseline, CPU s | ratio | wall s | baseline, wall s |\n\
         | --- | ---: | ---: | ---: | ---: | ---: | ---: |\n",
    );
    for (number, (build, most)) in BUILDS.into_iter().enumerate() {
        let cost = &head.costs[number];
        let (mut cpu, mut ratio, mut wall) = <(String, String, String)>::default();
        let mut missed = cost.cpu > most;
        if let Some(before) = baseline.map(|baseline| &baseline.costs[number]) {
            cpu = format!("{:.1}", before.cpu);
            ratio = format!("{:.2}", cost.cpu / before.cpu);
            wall = format!("{:.1}", before.wall);
            // Against the baseline it does not matter how fast the machine is.
            if build == FirstBuild::StridePerf {
                missed = cost.cpu / before.cpu > RATIO;
                ratio += &format!(", at most {RATIO}");
            }
        }
        let missed = if missed { " **missed**" } else { "" };
        let title = build.title();
        writeln!(
            text,
            "| {title} | {:.1}{missed} | {most:.0} | {cpu} | {ratio} | {:.1} | {wall} |",
            cost.cpu, cost.wall
        )?;
    }
    text.push_str("\n| stride-perf | MB | at most | baseline, MB |\n| --- | ---: | ---: | ---: |\n");
    let (sizes, before) = (head.sizes()?, baseline.map(Revision::sizes).transpose()?);
    for (index, (title, most)) in [("with line tables", 25.0), ("stripped", 8.0)].into_iter().enumerate() {
        let missed = if sizes[index] > most { " **missed**" } else { "" };
        let before = before.map_or_else(String::new, |before| format!("{:.1}", before[index]));
        writeln!(text, "| {title} | {:.1}{missed} | {most:.0} | {before} |", sizes[index])?;
    }
    text.push_str("\n| crate of the first build | CPU s | baseline, CPU s |\n| --- | ---: | ---: |\n");
    text.push_str(&crates(&head.costs[0].crates, baseline.map(|baseline| &baseline.costs[0].crates))?);
    Ok(text)
}

/// A row for each crate, the most expensive ones first.
fn crates(head: &BTreeMap<String, f64>, baseline: Option<&BTreeMap<String, f64>>) -> Result<String> {
    let nothing = BTreeMap::new();
    let before = baseline.unwrap_or(&nothing);
    let mut names: Vec<_> = head.keys().chain(before.keys()).collect();
    let of = |crates: &BTreeMap<String, f64>, name: &String| crates.get(name).copied().unwrap_or_default();
    names.sort_by(|a, b| {
        let most = |name| of(head, name).max(of(before, name));
        most(b).total_cmp(&most(a)).then(a.cmp(b))
    });
    names.dedup();
    let (mut text, mut small) = (String::new(), [0.0, 0.0]);
    for name in names {
        let [now, then] = [of(head, name), of(before, name)];
        if now.max(then) < SMALL {
            small = [small[0] + now, small[1] + then];
        } else {
            writeln!(
                text,
                "| {name} | {now:.1} | {} |",
                baseline.map_or_else(String::new, |_| format!("{then:.1}"))
            )?;
        }
    }
    let then = baseline.map_or_else(String::new, |_| format!("{:.1}", small[1]));
    writeln!(text, "| the others | {:.1} | {then} |", small[0])?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_summed_by_crate() {
        let crates =
            by_crate("syn 1.25\nbuild_script_build 0.5\nsyn 0.75\nbuild_script_main 0.25\n").unwrap();
        assert_eq!(crates, BTreeMap::from([("build scripts".to_owned(), 0.75), ("syn".to_owned(), 2.0)]));
        assert!(by_crate("syn\n").is_err());
    }

    #[test]
    fn expensive_crates_come_first_and_cheap_ones_together() {
        let of =
            |costs: &[(&str, f64)]| costs.iter().map(|(name, cost)| ((*name).to_owned(), *cost)).collect();
        let (head, before) = (of(&[("a", 2.0), ("b", 0.5), ("c", 3.0)]), of(&[("a", 9.0), ("d", 0.25)]));
        assert_eq!(
            crates(&head, Some(&before)).unwrap(),
            "| a | 2.0 | 9.0 |\n| c | 3.0 | 0.0 |\n| the others | 0.5 | 0.2 |\n"
        );
    }

    #[test]
    fn the_time_of_children_counts() {
        let before = children_seconds().unwrap();
        let work = "i=0; while [ $i -lt 200000 ]; do i=$((i + 1)); done";
        assert!(Command::new("sh").args(["-c", work]).status().unwrap().success());
        assert!(children_seconds().unwrap() > before);
    }
}
