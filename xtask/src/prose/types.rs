//! Type names that several crates define.

use std::collections::{BTreeMap, BTreeSet};

use regex::Regex;

use super::source::File;
use super::{Finding, Verdict};

const MOST_CRATES: usize = 2;

/// Names that stand for the same concept in every crate that defines them.
const SAME_CONCEPT: &[(&str, &str)] = &[
    ("Args", "a program's or a command's arguments, as clap names them"),
    ("AsyncEvent", "an asynchronous event of a device"),
    ("Cli", "a program's command line, as clap names it"),
    ("Command", "a program's subcommands, as clap names them"),
    ("Connection", "one end of a connection"),
    ("Cq", "a completion queue"),
    ("Device", "an RDMA device"),
    ("Dm", "device memory"),
    ("Error", "a crate's error"),
    ("Event", "an event of the connection manager or of a worker"),
    ("Node", "a host or process with a device"),
    ("Qp", "a queue pair"),
    ("RemoteBuffer", "an address and a key of the peer's memory"),
    ("Result", "a crate's result"),
    ("Srq", "a shared receive queue"),
    ("Suite", "tests that run together"),
    ("TestDevice", "a device that tests run on"),
];

pub(super) fn check(files: &[File]) -> anyhow::Result<Verdict> {
    let definition =
        Regex::new(r"^\s*(?:pub(?:\([a-z: ]+\))? )?(?:unsafe )?(?:struct|enum|trait|union|type) (\w+)")?;
    let mut places: BTreeMap<String, Vec<Finding>> = BTreeMap::new();
    for file in files {
        for line in &file.code {
            let Some(name) = definition.captures(&line.text).and_then(|found| found.get(1)) else { continue };
            // An associated type has its trait's name for it.
            if line.text.starts_with(' ') && line.text.trim_start().starts_with("type ") {
                continue;
            }
            let finding =
                Finding { file: file.name.clone(), line: line.number, text: line.text.trim().to_owned() };
            places.entry(name.as_str().to_owned()).or_default().push(finding);
        }
    }
    places.retain(|name, places| {
        let crates: BTreeSet<_> = places.iter().map(|place| family(&place.file)).collect();
        crates.len() > MOST_CRATES && !SAME_CONCEPT.iter().any(|(same, _)| same == name)
    });
    let findings = places.into_values().flatten().collect();
    Ok(Verdict::none("a type name that more than two crates define", findings))
}

/// The crate of a file; the packages below a crate's folder are part of it.
fn family(file: &str) -> &str {
    file.split('/').next().unwrap_or(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_names_that_three_crates_define() {
        let file = |name: &str, text: &str| File::parse(name, text);
        let two = [file("a/src/lib.rs", "struct Side;"), file("b/src/lib.rs", "pub(crate) enum Side {}")];
        assert!(check(&two).unwrap().findings.is_empty());
        let mut three = Vec::from(two);
        three.extend([file("c/tests/x.rs", "    trait Side {}"), file("c/d.rs", "struct Args;")]);
        assert_eq!(check(&three).unwrap().findings.len(), 3);
    }
}
