//! The table of perftest's flags against the programs: the distribution's, and this one.
//!
//! A program that is not installed is skipped with a message; with `SOFT_RNIC_REQUIRE_PROGRAMS=1`
//! it fails. A program of another release has other flags, and is skipped.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde::Deserialize;
use test_harness::report_skip;

const DATA: &str = include_str!("../perftest-flags.toml");

/// If this is set, a program that is not installed is a failure.
const REQUIRE: &str = "SOFT_RNIC_REQUIRE_PROGRAMS";

const PROGRAMS: [&str; 8] =
    ["write_bw", "read_bw", "send_bw", "atomic_bw", "write_lat", "read_lat", "send_lat", "atomic_lat"];

#[derive(Debug, Deserialize)]
struct Parity {
    release: String,
    flag: Vec<Flag>,
}

#[derive(Debug, Deserialize)]
struct Flag {
    perftest: String,
    #[serde(default)]
    programs: Vec<String>,
    status: String,
    ours: Option<String>,
    help: Option<String>,
    #[serde(default)]
    words: String,
}

fn parity() -> Parity {
    toml::from_str(DATA).unwrap()
}

impl Flag {
    fn is_of(&self, program: &str) -> bool {
        self.programs.is_empty() || self.programs.iter().any(|name| name == program)
    }
}

/// The flags in perftest's help, as it writes them: `-a, --all`, without values and descriptions.
fn flags_of(help: &str) -> BTreeSet<String> {
    let name = |word: &str| {
        let end = word.find(|c: char| !c.is_ascii_alphanumeric() && !"-_".contains(c)).unwrap_or(word.len());
        word[..end].to_owned()
    };
    let lines = help.lines().filter_map(|line| {
        let mut words = line.strip_prefix([' ', '\t'])?.split_whitespace();
        let first = words.next().filter(|word| word.starts_with('-'))?;
        match first.strip_suffix(',') {
            Some(short) => Some(format!("{short}, {}", name(words.next()?))),
            None => Some(name(first)),
        }
    });
    lines.collect()
}

/// The output of a program for a flag; `None` if it is not installed.
fn said_by(program: &str, flag: &str) -> Option<String> {
    match Command::new(program).arg(flag).output() {
        Ok(output) => Some(String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()),
        Err(error) if std::env::var_os(REQUIRE).is_some_and(|value| value == "1") => {
            panic!("{program}: {error} (Debian: perftest)")
        }
        Err(error) => {
            report_skip(program, format_args!("{error} (Debian: perftest)"));
            None
        }
    }
}

/// The help of a program; `None` if it is not installed, or of another release than the data.
fn help_of(program: &str, release: &str) -> Option<String> {
    let version = said_by(program, "--version")?;
    let version = version.trim().trim_start_matches("Version: ");
    if !release.ends_with(&format!("({version})")) {
        report_skip(program, format_args!("its version is {version}, and the data is of {release}"));
        return None;
    }
    said_by(program, "--help")
}

#[test]
fn the_data_has_what_perftest_has() {
    let parity = parity();
    for program in PROGRAMS {
        let Some(help) = help_of(&format!("ib_{program}"), &parity.release) else { continue };
        let installed = flags_of(&help);
        assert!(installed.len() >= 40, "{program}: {} flags in {help}", installed.len());
        let known = parity.flag.iter().filter(|flag| flag.is_of(program)).map(|flag| flag.perftest.clone());
        let known: BTreeSet<_> = known.collect();
        let (gone, new): (Vec<_>, Vec<_>) =
            (known.difference(&installed).collect(), installed.difference(&known).collect());
        assert!(
            gone.is_empty() && new.is_empty(),
            "ib_{program} (perftest-flags.toml is of {}) lacks {gone:?}, and has {new:?} besides",
            parity.release
        );
    }
}

/// The flags in this program's help: the first words of lines that begin with a dash.
fn our_flags(help: &str) -> BTreeSet<String> {
    let lines = help.lines().map(str::trim_start).filter(|line| line.starts_with('-'));
    lines
        .map(|line| {
            line.split([' ', '<']).take_while(|word| word.starts_with('-')).collect::<Vec<_>>().join(" ")
        })
        .collect()
}

#[test]
fn the_parity_table_names_existing_flags() {
    let mut helps = BTreeMap::new();
    for flag in parity().flag {
        let Some(ours) = &flag.ours else { continue };
        let of = flag.help.clone().unwrap_or_else(|| "write bw".to_owned());
        let flags = helps.entry(of.clone()).or_insert_with(|| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_stride-perf"));
            let output = command.args(of.split_whitespace()).arg("--help").output().unwrap();
            assert!(output.status.success(), "{of}");
            our_flags(&String::from_utf8(output.stdout).unwrap())
        });
        assert!(flags.contains(ours), "`{ours}` (for {}) is none of `{of}`'s: {flags:?}", flag.perftest);
    }
}

#[test]
fn every_flag_has_a_place_and_a_reason() {
    let parity = parity();
    let names: BTreeSet<_> = parity.flag.iter().map(|flag| &flag.perftest).collect();
    assert_eq!(names.len(), parity.flag.len(), "a flag is there twice");
    for flag in &parity.flag {
        let is_ours = match flag.status.as_str() {
            "same" | "other" => true,
            "to come" | "not needed" | "no" => false,
            other => panic!("{}: the status `{other}`", flag.perftest),
        };
        assert_eq!(flag.ours.is_some(), is_ours, "{}", flag.perftest);
        assert!(is_ours || !flag.words.is_empty(), "{} has no reason", flag.perftest);
        assert!(flag.programs.iter().all(|name| PROGRAMS.contains(&name.as_str())), "{}", flag.perftest);
        assert!(!flag.words.contains('|'), "{}", flag.perftest);
    }
}

/// Checks that a flag missing from the data would be noticed.
#[test]
fn help_is_read_as_it_is_written() {
    let help = "\
Usage:
  ib_write_bw            start a server

Options:
  -a, --all  Run sizes from 2 till 2^23
  -c, --connection=<RC/XRC/UC/DC>  Connection type
\t  --aes_xts Runs traffic
  -l, --post_list=<list size>
 Post list of send WQEs
      --mmap=file  Use an mmap'd file
        Note: none -- at all
";
    let flags = flags_of(help);
    let flags: Vec<_> = flags.iter().map(String::as_str).collect();
    assert_eq!(flags, ["--aes_xts", "--mmap", "-a, --all", "-c, --connection", "-l, --post_list"]);
    let ours = our_flags(
        "Options:\n  -a, --all-sizes\n          Measure\n      --json <FILE>\n          - is\n  -s, --msg-size <B>  x\n",
    );
    let ours: Vec<_> = ours.iter().map(String::as_str).filter(|flag| flag.len() > 1).collect();
    assert_eq!(ours, ["--json", "-a, --all-sizes", "-s, --msg-size"]);
}
