//! The committed table of what comes of each verb's cases on each device: `docs/conformance.md`.
//!
//! A run of all cases makes its device's column anew. Where that differs from the committed one the run fails, and leaves the
//! page as it would have to be, so that no verb is lost, and no case skipped, unnoticed.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use test_harness::Told;

/// A device of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Column {
    Inline,
    Deferred,
    RoceOld,
    RoceNew,
}

impl Column {
    const TITLES: [&str; 4] = ["soft0 inline", "soft0 deferred", "SoftRoCE old", "SoftRoCE new"];

    fn title(self) -> &'static str {
        Self::TITLES[self as usize]
    }
}

const INTRODUCTION: &str = "\
# What passes where

What comes of each verb's cases of the conformance suite (`conformance/`) on each device. A case is counted for the verb
that it is about, whatever else it calls. [soft-rnic-conformance.md](soft-rnic-conformance.md) has the cases that are skipped,
and what they follow instead.

Made by the suite itself, which fails when a column is no longer true, and says how to renew it. SoftRoCE old is
rdma-core 44 with kernel 6.1, new is 56.1 with 6.12.

";

/// What no case is about, and why.
const WITHOUT: &[(&str, &str)] = &[];

/// A line a verb: for each column how many cases passed, and why others were skipped.
type Rows = BTreeMap<String, [String; 4]>;

/// Compares a device's column with the committed one.
pub(crate) fn check(column: Column, told: &[Told]) -> ExitCode {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/conformance.md");
    let committed = fs::read_to_string(&page).unwrap_or_default();
    let renewed = write(&renew(read(&committed), column, told));
    if renewed == committed {
        println!("docs/conformance.md has what came of it ({})", column.title());
        return ExitCode::SUCCESS;
    }
    eprintln!("docs/conformance.md is not what came of it ({}):", column.title());
    let lines = |page: &str| page.lines().map(str::to_owned).collect::<Vec<_>>();
    let (before, after) = (lines(&committed), lines(&renewed));
    before.iter().filter(|line| !after.contains(line)).for_each(|line| eprintln!("- {line}"));
    after.iter().filter(|line| !before.contains(line)).for_each(|line| eprintln!("+ {line}"));
    match leave(&renewed) {
        Ok(path) => eprintln!("if that is meant: cp {} docs/conformance.md", path.display()),
        Err(error) => eprintln!("the page as it would have to be cannot be written: {error}"),
    }
    ExitCode::FAILURE
}

/// Writes the page where the host of a virtual machine sees it as well.
fn leave(page: &str) -> io::Result<PathBuf> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target");
    let folder = std::env::var_os("SOFTROCE_OUT").map_or(own, PathBuf::from);
    fs::create_dir_all(&folder)?;
    let path = folder.join("conformance.md");
    fs::write(&path, page)?;
    path.canonicalize()
}

/// The rows with this column made anew; a verb that no column has is gone.
fn renew(mut rows: Rows, column: Column, told: &[Told]) -> Rows {
    for cells in rows.values_mut() {
        cells[column as usize].clear();
    }
    let mut by_verb: BTreeMap<&str, Vec<&Told>> = BTreeMap::new();
    for case in told {
        by_verb.entry(case.subject).or_default().push(case);
    }
    for (verb, cases) in by_verb {
        rows.entry(verb.to_owned()).or_default()[column as usize] = cell(&cases);
    }
    rows.retain(|_, cells| cells.iter().any(|cell| !cell.is_empty()));
    rows
}

/// `12`, or `10; skipped: 2, because of this`.
fn cell(cases: &[&Told]) -> String {
    let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
    for reason in cases.iter().filter_map(|case| case.skipped.as_deref()) {
        *reasons.entry(reason).or_default() += 1;
    }
    let passed = cases.len() - reasons.values().sum::<usize>();
    let mut parts = Vec::new();
    if passed > 0 {
        parts.push(format!("{passed} passed"));
    }
    let skipped =
        reasons.iter().map(|(reason, count)| format!("{count} skipped: {}", reason.replace('|', "/")));
    parts.extend(skipped);
    parts.join("; ")
}

/// The rows of a page.
fn read(page: &str) -> Rows {
    let row = |line: &str| {
        let cells: Vec<&str> = line.strip_prefix("| `")?.strip_suffix(" |")?.split(" | ").collect();
        let [verb, columns @ ..] = cells.as_slice() else { return None };
        let columns: [&str; 4] = columns.try_into().ok()?;
        let text = |cell: &str| if cell == NOTHING { String::new() } else { cell.to_owned() };
        Some((verb.strip_suffix('`')?.to_owned(), columns.map(text)))
    };
    page.lines().filter_map(row).collect()
}

/// In a cell.
const NOTHING: &str = "-";

fn write(rows: &Rows) -> String {
    let mut page = INTRODUCTION.to_owned();
    let _ = writeln!(page, "| verb | {} |\n| --- | --- | --- | --- | --- |", Column::TITLES.join(" | "));
    for (verb, cells) in rows {
        let cells = cells.each_ref().map(|cell| if cell.is_empty() { NOTHING } else { cell });
        let _ = writeln!(page, "| `{verb}` | {} |", cells.join(" | "));
    }
    page.push_str("\nNo case is about these:\n\n");
    for (verbs, reason) in WITHOUT {
        let _ = writeln!(page, "- {verbs}: {reason}");
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(subject: &'static str, skipped: Option<&str>) -> Told {
        Told { name: String::new(), subject, skipped: skipped.map(str::to_owned) }
    }

    #[test]
    fn a_column_is_made_anew_and_others_stay() {
        let cases = [
            told("ibv_b", None),
            told("ibv_a", Some("no|way")),
            told("ibv_b", None),
            told("ibv_b", Some("why")),
        ];
        let rows = renew(Rows::new(), Column::RoceOld, &cases);
        let rows = renew(rows, Column::Inline, &cases[..1]);
        assert_eq!(rows["ibv_a"], ["", "", "1 skipped: no/way", ""]);
        assert_eq!(rows["ibv_b"], ["1 passed", "", "2 passed; 1 skipped: why", ""]);
        assert_eq!(read(&write(&rows)), rows);
        let rows = renew(rows, Column::RoceOld, &cases[..1]);
        assert!(!rows.contains_key("ibv_a"), "{rows:?}");
    }

    /// Functions of the library and of its header, as the bindings have them.
    fn verbs() -> Vec<&'static str> {
        let tables = include_str!("../../rdma-mummy-sys/src/bindings/tables.rs");
        let table = tables.split("library_table! {").find(|table| table.contains("libibverbs.so.1"));
        let exported = table.expect("the library's table").lines();
        let exported =
            exported.filter_map(|line| line.split_once(" fn ")?.1.split_once('(').map(|(name, _)| name));
        let inline = include_str!("../../rdma-mummy-sys/src/bindings/inlines.txt").lines();
        let inline = inline.filter_map(|line| line.strip_prefix("infiniband/verbs.h "));
        exported.chain(inline).collect()
    }

    #[test]
    fn each_verb_has_cases_or_a_reason() {
        let page = include_str!("../../docs/conformance.md");
        let rows = read(page);
        let verbs = verbs();
        assert!(verbs.len() > 150, "{verbs:?}");
        let has_reason = |verb: &str| WITHOUT.iter().any(|(names, _)| names.contains(&format!("`{verb}`")));
        let lost: Vec<_> =
            verbs.iter().filter(|verb| !rows.contains_key(**verb) && !has_reason(verb)).collect();
        assert!(lost.is_empty(), "no case is about {lost:?}, and `WITHOUT` has no reason");
        let unknown: Vec<_> = rows.keys().filter(|verb| !verbs.contains(&verb.as_str())).collect();
        assert!(unknown.is_empty(), "there are no verbs {unknown:?}");
        let both: Vec<_> = rows.keys().filter(|verb| has_reason(verb)).collect();
        assert!(both.is_empty(), "there are cases about {both:?}, which `WITHOUT` has");
    }
}
