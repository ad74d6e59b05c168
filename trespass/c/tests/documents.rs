//! `README.md` against the header and the tests.

use std::collections::BTreeSet;

use libtest_mimic::Trial;

use crate::interface::declared;
use crate::{TestOutcome, TestResult, read, source, trial};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("every_function_is_in_the_readme", &[], functions),
        trial("the_readmes_servers_are_the_examples", &[], servers),
    ]
}

/// The tables name each function, each with the case that uses it.
fn functions() -> TestResult {
    let readme = read(&source("README.md"))?;
    let rows = readme.lines().filter(|line| line.starts_with("| `trespass_"));
    let mut named = BTreeSet::new();
    for row in rows {
        let cells: Vec<_> = row.split('|').collect();
        let [_, functions, .., cases, _] = cells[..] else { return Err(format!("a short row: {row}")) };
        let functions: Vec<_> = words(functions).filter(|word| word.starts_with("trespass_")).collect();
        let mut text = String::new();
        for case in words(cases) {
            text += &body(case)?;
        }
        if let Some(name) = functions.iter().find(|name| !text.contains(**name)) {
            return Err(format!("no case of this row uses {name}: {row}"));
        }
        named.extend(functions.into_iter().map(str::to_owned));
    }
    let missing: Vec<_> = declared()?.difference(&named).cloned().collect();
    let unknown: Vec<_> = named.difference(&declared()?).cloned().collect();
    if missing.is_empty() && unknown.is_empty() {
        return Ok(TestOutcome::Passed);
    }
    Err(format!("not in README.md: {missing:?}; only in README.md: {unknown:?}"))
}

/// The words in backticks.
fn words(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// The file of a case, because a case uses functions of its file.
fn body(case: &str) -> Result<String, String> {
    let files =
        ["streams", "messages", "nonblocking", "halves", "options", "zero_copy", "workers", "processes"];
    for file in files {
        let text = read(&source(&format!("tests/c/{file}.c")))?;
        if text.contains(&format!("void {case}(void)")) {
            // What the file uses to connect stands in `suite.c`.
            return Ok(text + &read(&source("tests/c/suite.c"))?);
        }
    }
    Err(format!("no case is named {case}"))
}

/// The echo server of the first page is that of the examples, without its comments.
fn servers() -> TestResult {
    let readme = read(&source("README.md"))?;
    let example = read(&source("examples/echo_server.c"))?;
    let blocks: Vec<_> = readme.split("```c\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    let block = blocks.first().ok_or("no program in C")?;
    match block.lines().find(|line| !line.trim().is_empty() && !example.contains(line.trim())) {
        Some(line) => Err(format!("not in examples/echo_server.c: {line}")),
        None => Ok(TestOutcome::Passed),
    }
}
