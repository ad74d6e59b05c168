//! The page of differences has each case that treats SoftRoCE otherwise, and names no others.
//!
//! `cargo test -p conformance --test differences -- --nocapture` prints them, with the reasons that the cases give.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// What a case calls that treats SoftRoCE otherwise.
const CALLS: [&str; 4] = ["rig.not_softroce(", "rig.not_on(", "rig.not_softroce_extended(", "rig.expects("];

/// The only case that is skipped on all devices of the system.
const SYSTEM: &str = "Target::System";

/// A function at the left margin of a module of cases.
struct Function {
    name: String,
    body: String,
}

fn functions(text: &str) -> Vec<Function> {
    let starts = text.split("\nfn ").skip(1);
    let function = |part: &str| {
        let name = part.split(['(', '<']).next().unwrap_or_default().to_owned();
        let body = part.split("\n}\n").next().unwrap_or_default().to_owned();
        Function { name, body }
    };
    starts.map(function).collect()
}

/// The reasons in a function's own body, as they stand there.
fn reasons(body: &str) -> Vec<String> {
    let mut found = Vec::new();
    for call in CALLS {
        for (at, _) in body.match_indices(call) {
            let rest = &body[at + call.len()..];
            let end =
                rest.find(")?").or_else(|| rest.find(");")).or_else(|| rest.find(')')).unwrap_or(rest.len());
            let words: Vec<_> = rest[..end].split_whitespace().collect();
            found.push(format!(
                "{}: {}",
                call.trim_start_matches("rig.").trim_end_matches('('),
                words.join(" ")
            ));
        }
    }
    if body.contains(SYSTEM) {
        found.push("skipped on the system's devices".to_owned());
    }
    found
}

/// All cases, and the reasons of those that have any, also by way of functions that they call.
fn cases() -> (BTreeSet<String>, BTreeMap<String, Vec<String>>) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/cases");
    let (mut all, mut different) = (BTreeSet::new(), BTreeMap::new());
    for entry in fs::read_dir(folder).expect("the folder of cases") {
        let path = entry.expect("a file").path();
        let module = path.file_stem().and_then(|stem| stem.to_str()).expect("a name").to_owned();
        let text = fs::read_to_string(&path).expect("a source file");
        let (lists, _) = text.split_once("\n}\n").unwrap_or_default();
        let listed = |name: &str| lists.contains(&format!("\n        {name},"));
        let functions = functions(&text);
        let mut reasons_of: BTreeMap<&str, Vec<String>> =
            functions.iter().map(|function| (function.name.as_str(), reasons(&function.body))).collect();
        // Helpers of helpers, too.
        for _ in 0..3 {
            let before = reasons_of.clone();
            for function in &functions {
                for (helper, reasons) in before.iter().filter(|(helper, _)| !listed(helper)) {
                    let calls = function.name != *helper && function.body.contains(&format!("{helper}("));
                    let own = reasons_of.get_mut(function.name.as_str()).expect("each has a list");
                    if calls && !reasons.iter().all(|reason| own.contains(reason)) {
                        own.extend(reasons.iter().cloned());
                    }
                }
            }
        }
        for function in functions.iter().filter(|function| listed(&function.name)) {
            let name = format!("{module}::{}", function.name);
            let reasons = &reasons_of[function.name.as_str()];
            if !reasons.is_empty() {
                different.insert(name.clone(), reasons.clone());
            }
            all.insert(name);
        }
    }
    (all, different)
}

/// What the page names: `module::name`, or the beginning or the end of a name with an asterisk for the rest.
fn patterns(page: &str) -> BTreeSet<String> {
    let quoted = page.split('`').skip(1).step_by(2);
    quoted
        .filter(|words| words.contains("::") && !words.contains(' ') && !words.ends_with("::"))
        .map(str::to_owned)
        .collect()
}

fn matches(pattern: &str, name: &str) -> bool {
    let parts: Vec<&str> = pattern.split('*').collect();
    let (first, last) = (parts[0], parts[parts.len() - 1]);
    if parts.len() == 1 {
        return pattern == name;
    }
    name.len() >= first.len() + last.len()
        && name.starts_with(first)
        && name.ends_with(last)
        && parts.iter().all(|part| name.contains(part))
}

#[test]
fn the_page_has_every_case_that_treats_softroce_otherwise() {
    let (all, different) = cases();
    assert!(all.len() >= 150, "only {} cases were found", all.len());
    for (name, reasons) in &different {
        println!("{name}\n    {}", reasons.join("\n    "));
    }
    println!("{} of {} cases treat SoftRoCE otherwise", different.len(), all.len());
    let page = include_str!("../../docs/soft-rnic-conformance.md");
    let patterns = patterns(page);
    let unknown: Vec<_> =
        patterns.iter().filter(|pattern| !all.iter().any(|name| matches(pattern, name))).collect();
    let missing: Vec<_> =
        different.keys().filter(|name| !patterns.iter().any(|pattern| matches(pattern, name))).collect();
    assert!(unknown.is_empty(), "the page names cases that there are not: {unknown:#?}");
    assert!(missing.is_empty(), "the page lacks {missing:#?}");
}
