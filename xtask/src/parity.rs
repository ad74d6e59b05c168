//! `cargo xtask parity`: documents stride-perf's support for each of perftest's flags. stride's
//! tests compare the data with both programs.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use serde::Deserialize;

/// The data.
const DATA: &str = "stride/perftest-flags.toml";

/// The generated document.
const DOCUMENT: &str = "docs/generated/stride-parity.md";

/// The number of perftest's programs.
const ALL: usize = 8;

#[derive(clap::Args)]
pub(super) struct Args {
    /// Only check whether the document is up to date
    #[arg(long)]
    check: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Parity {
    release: String,
    flag: Vec<Flag>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
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

pub(super) fn run(root: &Path, args: &Args) -> Result<ExitCode> {
    let path = root.join(DOCUMENT);
    let wanted = document(&std::fs::read_to_string(root.join(DATA))?)?;
    if !args.check {
        std::fs::write(&path, wanted)?;
        println!("written to {DOCUMENT}");
        return Ok(ExitCode::SUCCESS);
    }
    let found = std::fs::read_to_string(&path).with_context(|| DOCUMENT)?;
    if found == wanted {
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("{DOCUMENT} is not what {DATA} says: run `cargo xtask parity`");
    Ok(ExitCode::FAILURE)
}

fn document(data: &str) -> Result<String> {
    let Parity { release, flag: flags } = toml::from_str(data).context(DATA)?;
    let mut counts = BTreeMap::new();
    flags.iter().for_each(|flag| *counts.entry(flag.status.as_str()).or_insert(0) += 1);
    let count = |status| counts.get(status).copied().unwrap_or(0);
    let mut text = format!(
        "\
# perftest's flags and stride-perf's

`cargo xtask parity` makes this page from `{DATA}`. Tests compare that with
the `--help` of the distribution's eight programs (perftest {release}) and of stride-perf.

Of {} flags stride-perf has {} by the same or another name, and {} in another way. {} are planned,
{} are not needed, and {} are missing.

| perftest | of | stride-perf | |
| --- | --- | --- | --- |
",
        flags.len(),
        count("same"),
        count("other"),
        count("to come"),
        count("not needed"),
        count("no"),
    );
    for flag in &flags {
        let ours = match (&flag.ours, flag.status.as_str()) {
            (Some(ours), _) => format!("`{}`", ours.replace(", ", "`, `")),
            (None, "no") => "-".to_owned(),
            (None, status) => status.to_owned(),
        };
        let theirs = flag.perftest.replace(", ", "`, `");
        let words = match &flag.help {
            Some(help) if !help.is_empty() && help != "write lat" => {
                [format!("`{help}` and its like"), flag.words.clone()]
                    .join("; ")
                    .trim_end_matches("; ")
                    .to_owned()
            }
            _ => flag.words.clone(),
        };
        writeln!(text, "| `{theirs}` | {} | {ours} | {words} |", programs(&flag.programs))?;
    }
    Ok(text)
}

/// The programs that have the flag, in short form.
fn programs(names: &[String]) -> String {
    if names.is_empty() || names.len() == ALL {
        return "all".to_owned();
    }
    let of = |measure| {
        let verbs = names.iter().filter_map(|name| name.strip_suffix(measure));
        verbs.map(|verb| verb.trim_end_matches('_').to_owned()).collect::<Vec<_>>()
    };
    let (bw, lat) = (of("bw"), of("lat"));
    let verbs =
        |verbs: &[String]| if verbs.len() == ALL / 2 { String::new() } else { verbs.join(", ") + " " };
    match (bw.is_empty(), lat.is_empty()) {
        (false, true) => format!("{}bw", verbs(&bw)),
        (true, false) => format!("{}lat", verbs(&lat)),
        _ if bw == lat => bw.join(", "),
        _ => names.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_is_what_the_data_says() {
        let root = crate::root();
        let data = std::fs::read_to_string(root.join(DATA)).unwrap();
        let found = std::fs::read_to_string(root.join(DOCUMENT)).unwrap();
        assert!(found == document(&data).unwrap(), "run `cargo xtask parity`");
    }

    #[test]
    fn programs_are_few_words() {
        let of = |names: &[&str]| programs(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        assert_eq!(of(&[]), "all");
        assert_eq!(of(&["read_bw", "write_bw", "send_bw", "atomic_bw"]), "bw");
        assert_eq!(of(&["send_bw", "send_lat"]), "send");
        assert_eq!(of(&["atomic_lat"]), "atomic lat");
    }

    #[test]
    fn a_row_is_what_the_data_says() {
        let data =
            "release = \"1\"\n[[flag]]\nperftest = \"-x, --ex\"\nstatus = \"to come\"\nwords = \"later\"\n";
        let text = document(data).unwrap();
        assert!(text.ends_with("| `-x`, `--ex` | all | to come | later |\n"), "{text}");
        assert!(document("release = \"1\"\nflag = []\nother = 1").is_err());
    }
}
